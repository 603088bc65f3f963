//! The database to which finished turns are copied.
//!
//! Nothing is connected to here.

use super::Resolver;
use crate::config::raw::RawConfig;
use crate::config::settings::Secret;

const FORM: &str = "Write postgres://USER@HOST:PORT/DATABASE.";

impl Resolver<'_> {
    pub(super) fn warehouse(&mut self, raw: &RawConfig) -> Option<Secret> {
        let path = ["warehouse"];
        let server = self.server_url(&path, raw.warehouse.as_deref()?)?;
        match judge(&server.url.0) {
            // It may contain a password, so it is not quoted.
            Err(what) => self.wrong(&path, what, FORM),
            Ok(has_password) if has_password && !server.is_secret => {
                let todo = "Use warehouse = \"env:NAME\" or \"file:PATH\".";
                self.wrong(&path, "carries a password", todo);
            }
            Ok(_) => return Some(server.url),
        }
        None
    }
}

/// Whether a URL has a password in it.
///
/// # Errors
/// What is wrong with it.
fn judge(url: &str) -> Result<bool, &'static str> {
    let (scheme, rest) = url.split_once("://").ok_or("is not a URL")?;
    if !matches!(scheme, "postgres" | "postgresql") {
        return Err("is for no database that Plimsoll knows");
    }
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    // A password may have an @ in it, a host may not.
    let (login, hosts) = place.rsplit_once('@').unwrap_or(("", place));
    let host = hosts.split(['/', ':']).next().unwrap_or_default();
    if host.is_empty() && !options.contains("host=") {
        return Err("names no server");
    }
    Ok(login.contains(':') || options.contains("password="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_judged() {
        for (url, verdict) in [
            ("postgres://db", Ok(false)),
            ("postgresql://me@db:5433/turns?sslmode=require", Ok(false)),
            ("postgres://me:p@:w@db/turns", Ok(true)),
            ("postgres://me@db/turns?password=p", Ok(true)),
            ("postgres:///turns?host=/run/postgresql", Ok(false)),
            ("db:5432", Err("is not a URL")),
            ("mysql://db", Err("is for no database that Plimsoll knows")),
            ("postgres://", Err("names no server")),
            ("postgres://me:p@/turns", Err("names no server")),
        ] {
            assert_eq!(judge(url), verdict, "{url}");
        }
    }
}
