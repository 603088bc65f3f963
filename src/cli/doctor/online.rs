//! Whether each provider answers, through the running Plimsoll: its list of models costs nothing.
//!
//! The key of the environment is sent as the provider's own clients send it, and never shown.

use std::time::Duration;

use bytes::Bytes;
use http::header::{DATE, HOST};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use jiff::fmt::rfc2822;
use tokio::net::TcpStream;

use super::findings::{Findings, Level};
use crate::admin::view::ServerInfo;
use crate::cli::clients::{Environment, KEYS};
use crate::cli::print::CliError;
use crate::cli::run::proxy::reachable;
use crate::clock::wall;

/// How long a provider may take.
const WITHIN: Duration = Duration::from_secs(20);
/// How far the clocks may be apart, milliseconds.
const CLOCKS_APART: u64 = 60_000;

pub(super) async fn ask(
    about: Option<&ServerInfo>,
    environment: &Environment,
    findings: &mut Findings,
) {
    let Some(about) = about else {
        return findings.add(Level::Look, "online", "not asked: Plimsoll does not run");
    };
    let base = reachable(&about.clients);
    let Some(address) = base.strip_prefix("http://") else {
        return findings.add(Level::Look, "online", "not asked: clients need TLS");
    };
    for upstream in &about.upstreams {
        let name = &upstream.name;
        let asking = tokio::time::timeout(WITHIN, list_models(address, name, environment));
        match asking.await {
            Ok(Ok((status, headers))) => {
                let is_ours = headers.contains_key("x-plimsoll-error");
                let has_key = key_for(name, environment).is_some();
                let (level, text) = verdict(status, is_ours, has_key);
                findings.add(level, "online", format!("{name}: {text}"));
                clock(name, &headers, findings);
            }
            Ok(Err(trouble)) => {
                findings.add(Level::Fault, "online", format!("{name}: {}", trouble.0));
            }
            Err(_) => findings.add(Level::Fault, "online", format!("{name} did not answer")),
        }
    }
}

async fn list_models(
    address: &str,
    upstream: &str,
    environment: &Environment,
) -> Result<(StatusCode, HeaderMap), CliError> {
    let version = if upstream == "gemini" { "v1beta" } else { "v1" };
    let mut request = Request::get(format!("/{upstream}/{version}/models")).header(HOST, address);
    let key = key_for(upstream, environment);
    request = match (upstream, key) {
        ("anthropic", Some(key)) => request.header("x-api-key", key),
        ("gemini", Some(key)) => request.header("x-goog-api-key", key),
        (_, Some(key)) => request.header("authorization", format!("Bearer {key}")),
        (_, None) => request,
    };
    if upstream == "anthropic" {
        request = request.header("anthropic-version", "2023-06-01");
    }
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = handshake(stream).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    Ok((response.status(), response.headers().clone()))
}

/// The key of the environment that is for this upstream.
fn key_for<'e>(upstream: &str, environment: &'e Environment) -> Option<&'e String> {
    let (_, names) = KEYS.iter().find(|(known, _)| *known == upstream)?;
    names.iter().find_map(|name| environment.get(*name))
}

fn verdict(status: StatusCode, is_ours: bool, has_key: bool) -> (Level, String) {
    if is_ours {
        return (Level::Fault, format!("cannot be reached ({status}); the log says why"));
    }
    match status.as_u16() {
        200..300 if has_key => (Level::Ok, "answers, and takes the key".to_owned()),
        200..300 => (Level::Ok, "answers; no key was tried".to_owned()),
        401 | 403 if !has_key => (Level::Look, format!("answers, and wants a key ({status})")),
        401 | 403 => (Level::Look, format!("answers, and wants another key ({status})")),
        _ => (Level::Look, format!("answers with {status}")),
    }
}

fn clock(name: &str, headers: &HeaderMap, findings: &mut Findings) {
    let Some(date) = headers.get(DATE).and_then(|date| date.to_str().ok()) else { return };
    let Ok(theirs) = rfc2822::parse(date) else { return };
    let theirs = u64::try_from(theirs.timestamp().as_millisecond()).unwrap_or(0);
    let apart = theirs.abs_diff(wall());
    if apart > CLOCKS_APART {
        let text = format!("{} s away from that of {name}", apart / 1000);
        findings.add(Level::Look, "clock", text);
    }
}
