//! The proxy that a command runs behind: the one that answers at the socket in the data folder, which is this user's own, or
//! one that serves for as long as the command runs.
//!
//! What the user's environment already sends elsewhere is kept or said.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::view::ServerInfo;
use crate::cli::admin_client::{self, AdminClient};
use crate::cli::print::{self, CliError};
use crate::cli::serve::{Ports, Server};
use crate::config::{self, Config, ConfigSources};
use crate::store::folder;
use crate::telemetry::log::{Log, LogFormat};

/// Variables that may already send a provider's calls elsewhere, and the upstream of each.
const DETOURS: &[(&str, &str)] = &[
    ("ANTHROPIC_BASE_URL", "anthropic"),
    ("OPENAI_BASE_URL", "openai"),
    ("GOOGLE_GEMINI_BASE_URL", "gemini"),
];

/// A running proxy, either somebody else's or our own.
pub(super) struct RunningProxy {
    /// The base URL for clients.
    pub(super) base: String,
    pub(super) client: AdminClient,
    pub(super) about: ServerInfo,
    /// What stops our own, and its task.
    own: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl RunningProxy {
    /// The proxy that answers in the data folder, else a new one.
    pub(super) async fn find_or_start(
        sources: ConfigSources,
        config: &Config,
    ) -> Result<Self, CliError> {
        match AdminClient::by_socket(&config.data).await {
            Ok(Some((client, about))) if is_requested_server(&sources, config, &about) => {
                let base = reachable(&about.clients);
                if !is_loopback(&base) {
                    return Err(CliError(format!(
                        "the running proxy listens on {base}, which is not this machine's loopback: \
                         commands are not sent there. Set its base URL yourself, or choose another folder with --data"
                    )));
                }
                warn_of_detours(&sources, &base);
                return Ok(Self { base, client, about, own: None });
            }
            Ok(_) => {}
            Err(trouble) => {
                print::note(&format!("{}; starting another Plimsoll for this command", trouble.0));
            }
        }
        Self::start(sources).await
    }

    async fn start(mut sources: ConfigSources) -> Result<Self, CliError> {
        keep_detours(&mut sources);
        let loaded = config::load(&sources)?;
        let config = &loaded.config;
        let path = config.data.join(folder::RUN_LOG);
        let data = config.data.clone();
        let form = if config.log_json { LogFormat::Json } else { LogFormat::Text };
        let log = log_file(&path)?;
        // The terminal belongs to the command, so the log is written to a file.
        let server = Server::build(loaded, Log::to(form, log)?, Ports::OrFree).await?;
        // We bound this address, so nobody else can be listening there.
        let client = match server.socket {
            Some(_) => AdminClient::Socket(data),
            None => AdminClient::Port(server.admin_at, Some(server.access.admin.clone())),
        };
        let base = reachable(&server.base());
        print::note(&format!("serving on {base}; the log is {}", path.display()));
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(server.serve(stopped));
        let about = client.about().await?;
        Ok(Self { base, client, about, own: Some((stop, serving)) })
    }

    pub(super) async fn end(self) {
        if let Some((stop, serving)) = self.own {
            stop.send_replace(true);
            let _ = serving.await;
        }
    }
}

fn is_requested_server(sources: &ConfigSources, config: &Config, about: &ServerInfo) -> bool {
    // Any server is the requested one, unless a flag names its address.
    let is_named = sources.flags.iter().any(|flag| flag.key == "admin");
    !is_named || admin_client::serves_at(about, config.admin)
}

fn is_loopback(base: &str) -> bool {
    let Ok(uri) = base.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    is_web
        && is_plain
        && (host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

fn log_file(path: &Path) -> Result<File, CliError> {
    let data = path.parent().unwrap_or(path);
    let opened = folder::prepare(data).and_then(|warnings| {
        for warning in &warnings {
            print::note(warning);
        }
        folder::run_log(data)
    });
    opened.map_err(|error| {
        let path = path.display();
        CliError(format!("{path} cannot be written: {error}. Choose another folder with --data"))
    })
}

pub(in crate::cli) fn reachable(base: &str) -> String {
    // A listener on all addresses is also on loopback.
    base.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")
}

fn keep_detours(sources: &mut ConfigSources) {
    // The user's calls go there, with keys for that place. So our own proxy forwards to them, unless its
    // configuration names another base URL.
    for (name, upstream) in DETOURS {
        let Some(url) = sources.variable(name).map(str::to_owned) else { continue };
        let ours = format!("PLIMSOLL_UPSTREAM_{}", upstream.to_uppercase());
        let flagged = format!("{upstream}=");
        let is_set = sources.variable(&ours).is_some()
            || sources
                .flags
                .iter()
                .any(|flag| flag.key == "upstream" && flag.value.starts_with(&flagged));
        if !is_set {
            print::note(&format!("{name} is set: {upstream} is forwarded to {url}"));
            sources.variables.push((ours, url));
        }
    }
}

fn warn_of_detours(sources: &ConfigSources, base: &str) {
    // A proxy that already runs does not know this terminal's base URLs.
    for (name, upstream) in DETOURS {
        if let Some(url) = sources.variable(name).filter(|url| !url.starts_with(base)) {
            print::note(&format!(
                "{name} was {url}; the running proxy sends {upstream} where its own configuration \
                 says"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_urls_are_recognised() {
        for yes in [
            "http://127.0.0.1:8787",
            "https://127.9.9.9:1",
            "http://[::1]:8787",
            "http://localhost:1",
        ] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in [
            "http://203.0.113.9:80",
            "http://127.0.0.1:80@evil.example",
            "http://evil.example@127.0.0.1",
            "http://127.0.0.1.evil.example",
            "http://localhost.evil.example",
            "ftp://127.0.0.1",
            "127.0.0.1",
            "/",
            "",
        ] {
            assert!(!is_loopback(no), "{no}");
        }
    }
}
