//! `plimsoll check`: every fault of a configuration at once, or what would be served.
//!
//! Binds nothing and writes nothing.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::print::{self, Trouble};
use crate::config::faults::Faults;
use crate::config::{self, Config, Loaded, Sources};
use crate::telemetry::log::word;

/// Prints the verdict.
pub(super) fn run(sources: &Sources, as_json: bool) -> Result<(), Trouble> {
    match config::load(sources) {
        Ok(loaded) if as_json => print::json(&served_json(&loaded)),
        Ok(loaded) => print::out(&served(&loaded)),
        Err(faults) => {
            if as_json {
                print::json(&faults_json(&faults));
            }
            return Err(Trouble(faults.to_string()));
        }
    }
    Ok(())
}

/// What would be served, for people.
fn served(loaded: &Loaded) -> String {
    let Config { listen, admin, data, mode, upstreams, .. } = &loaded.config;
    let from = loaded.file.as_ref().map_or("defaults".into(), |file| file.display().to_string());
    let mut out = format!("configuration: {from}: no faults\n");
    for warning in &loaded.warnings {
        let _ = writeln!(out, "note: {warning}");
    }
    let scheme = if loaded.config.tls.is_some() { "https" } else { "http" };
    let guarded = if loaded.config.client_token.is_some() { " (with a token)" } else { "" };
    let _ = writeln!(out, "clients:   {scheme}://{listen}{guarded}");
    let token =
        if loaded.config.admin_token.is_some() { "configured" } else { "in the data folder" };
    let scheme = if loaded.config.admin_tls.is_some() { "https" } else { "http" };
    let _ = writeln!(out, "admin:     {scheme}://{admin} (token {token})");
    let _ = writeln!(out, "data:      {}", data.display());
    let _ = writeln!(out, "mode:      {}", word(mode));
    if let Some(preset) = loaded.config.preset {
        let _ = writeln!(out, "preset:    {}", preset.name());
    }
    let _ = writeln!(out, "upstreams, in the order in which a path chooses:");
    for upstream in upstreams {
        let dialects: Vec<_> = upstream.dialects.iter().map(word).collect();
        let dialects =
            if dialects.is_empty() { "no bare path".into() } else { dialects.join(", ") };
        let mut also = vec![format!("/{}/…", upstream.name)];
        also.extend(upstream.prefix.iter().map(|prefix| format!("{prefix}/…")));
        also.extend(upstream.hosts.iter().map(|host| format!("host {host}")));
        let _ = writeln!(
            out,
            "  {:<12} {}  ({dialects}; {})",
            upstream.name,
            upstream.base.to_string().trim_end_matches('/'),
            also.join(", "),
        );
    }
    out
}

fn served_json(loaded: &Loaded) -> Value {
    let Config { listen, admin, data, mode, upstreams, .. } = &loaded.config;
    let upstreams: Vec<_> = upstreams
        .iter()
        .map(|upstream| {
            json!({
                "name": upstream.name,
                "base_url": upstream.base.to_string().trim_end_matches('/'),
                "dialects": upstream.dialects,
                "prefix": upstream.prefix,
                "hosts": upstream.hosts,
                "own_credential": upstream.credential.is_some(),
            })
        })
        .collect();
    json!({
        "ok": true,
        "file": loaded.file,
        "warnings": loaded.warnings,
        "listen": listen,
        "admin": admin,
        "data": data,
        "mode": mode,
        "preset": loaded.config.preset,
        "upstreams": upstreams,
    })
}

fn faults_json(faults: &Faults) -> Value {
    let faults: Vec<_> = faults
        .0
        .iter()
        .map(|fault| {
            json!({
                "place": fault.place.to_string(),
                "key": fault.key,
                "what": fault.what,
                "whose": fault.whose(),
                "todo": fault.todo,
            })
        })
        .collect();
    json!({ "ok": false, "faults": faults })
}
