//! Who may use the admin listener: its settings must not leave it open.
//!
//! Tokens that are not configured are generated at the first start, which is not known here.

use std::net::SocketAddr;

use super::{PemKind, Resolver};
use crate::config::raw::RawConfig;
use crate::config::settings::{Secret, Tls};

/// A token with fewer characters can be guessed.
const SHORTEST_TOKEN: usize = 16;
/// As many tags as a request may have.
const MOST_TAGS: usize = 8;

/// The configured tokens of the admin listener.
pub(super) struct AdminTokens {
    /// May do everything.
    pub(super) admin: Option<Secret>,
    /// May only read.
    pub(super) reader: Option<Secret>,
}

/// The certificates of the listeners that use TLS.
#[derive(Default)]
pub(super) struct ListenerTls {
    pub(super) client: Option<Tls>,
    pub(super) admin: Option<Tls>,
}

impl Resolver<'_> {
    /// Each grows metrics by up to 50 values.
    pub(super) fn metrics_tags(&mut self, raw: &RawConfig) -> Vec<String> {
        if raw.metrics_tags.len() > MOST_TAGS {
            let todo = format!("Name at most {MOST_TAGS}.");
            self.wrong(&["metrics_tags"], "has too many names", todo);
        }
        for name in &raw.metrics_tags {
            if name.is_empty() || name.contains(['=', ',', ' ']) {
                let todo = "Write its name alone: the one before `=`.";
                self.wrong(&["metrics_tags"], format!("{name:?} is no name of a tag"), todo);
            }
        }
        raw.metrics_tags.clone()
    }

    pub(super) fn admin_tokens(&mut self, raw: &RawConfig) -> AdminTokens {
        let admin = self.token("admin_token", raw.admin_token.as_deref());
        let reader = self.token("admin_read_token", raw.admin_read_token.as_deref());
        if admin.is_some() && admin == reader {
            let what = "is the same as admin_token: every reader could do everything";
            self.wrong(&["admin_read_token"], what, "Give each a token of its own.");
        }
        AdminTokens { admin, reader }
    }

    fn token(&mut self, key: &str, raw: Option<&str>) -> Option<Secret> {
        let token = self.secret(&[key], raw?)?;
        if token.0.chars().count() < SHORTEST_TOKEN {
            let what = format!("is shorter than {SHORTEST_TOKEN} characters, and can be guessed");
            self.wrong(&[key], what, "Make a longer one: openssl rand -hex 32.");
        }
        Some(token)
    }

    /// An address that other machines can reach requires a configured token.
    pub(super) fn admin_is_safe(&mut self, admin: Option<SocketAddr>, has_token: bool) {
        if admin.is_some_and(|admin| !admin.ip().is_loopback()) && !has_token {
            self.wrong(
                &["admin"],
                "other machines could reach it, and no token is configured",
                "Set admin_token = \"env:NAME\", or bind it to 127.0.0.1.",
            );
        }
    }

    /// The certificate of the client listener, and of the admin listener if it uses TLS too.
    pub(super) fn tls(&mut self, raw: &RawConfig) -> ListenerTls {
        let Some(raw) = &raw.tls else { return ListenerTls::default() };
        let path = ["tls", "certificate"];
        let certificate = self.needed(&path, raw.certificate.as_deref(), PemKind::Certificates);
        let key = self.needed(&["tls", "key"], raw.key.as_deref(), PemKind::Key);
        let tls = Tls { certificate, key };
        let admin = if raw.admin == Some(true) { Some(tls.clone()) } else { None };
        ListenerTls { client: Some(tls), admin }
    }
}
