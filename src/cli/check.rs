//! `plimsoll check`: all faults of a configuration at once, or what would be served.
//!
//! Binds nothing and writes nothing. The store is checked as it would be opened: a file that cannot be used
//! is reported, and a disk with too little space.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::print::{self, CliError};
use super::serve;
use crate::config::errors::ConfigErrors;
use crate::config::{self, Config, ConfigSources, LoadedConfig};
use crate::store::{folder, sqlite};
use crate::tls::TlsTerminator;
use crate::warehouse;

/// Prints the verdict.
pub(super) fn run(sources: &ConfigSources, as_json: bool) -> Result<(), CliError> {
    match config::load(sources) {
        Ok(mut loaded) => {
            let store = serve::block_on(StoreCheck::new(&loaded.config))?;
            loaded.warnings.extend(store.room.clone());
            if as_json {
                print::json(&served_json(&loaded, &store));
            } else {
                print::out(&served(&loaded, &store));
            }
            if let Some(trouble) = store.trouble {
                return Err(CliError(trouble));
            }
        }
        Err(errors) => {
            if as_json {
                print::json(&faults_json(&errors));
            }
            return Err(CliError(errors.to_string()));
        }
    }
    Ok(())
}

/// The state of the store.
pub(super) struct StoreCheck {
    /// Why the store or the listener's certificate cannot be used.
    pub(super) trouble: Option<String>,
    /// How much disk space is missing, or what is odd about the server.
    pub(super) room: Option<String>,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// Where the warehouse is, if there is one.
    warehouse: Option<String>,
}

impl StoreCheck {
    pub(super) async fn new(config: &Config) -> Result<Self, CliError> {
        let server = match &config.shared_store {
            Some(shared) => {
                let server = serve::redis_server(config, shared)?;
                server.examine().await
            }
            None => Ok(None),
        };
        let file = config.data.join(folder::DATABASE);
        let examined = match file.try_exists() {
            Ok(true) => sqlite::examine(&file).map_err(|trouble| trouble.to_string()),
            _ => Ok(0),
        };
        let writable = writable(&config.data);
        // Whether certificate and key match can only be seen when they are read together.
        let certificate =
            config.tls.as_ref().map_or(Ok(()), |tls| TlsTerminator::new(tls).map(drop));
        let room = match &config.shared_store {
            Some(_) => server.clone().ok().flatten(),
            None => serve::room::missing(&file, config.retention.bytes),
        };
        let bytes = *examined.as_ref().unwrap_or(&0);
        let server = server.map_err(|trouble| trouble.to_string());
        let (warehouse, copied) = warehouse::examine(config).await.unzip();
        let trouble = writable.err().or(examined.err()).or(certificate.err()).or(server.err());
        let trouble = trouble.or(copied.and_then(Result::err));
        Ok(Self { trouble, room, bytes, warehouse })
    }
}

/// Whether the data folder can be written, or created.
fn writable(data: &Path) -> Result<(), String> {
    use rustix::fs::{Access, access};
    let nearest = data.ancestors().find(|folder| folder.symlink_metadata().is_ok());
    let Some(folder) = nearest.filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(()); // relative to the working directory
    };
    let fault = if !folder.is_dir() {
        "is not a folder".to_owned()
    } else if let Err(error) = access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        format!("cannot be written to by this user ({error})")
    } else {
        return Ok(());
    };
    Err(format!(
        "Plimsoll cannot store anything in {}: {} {fault}. Choose another folder with --data",
        data.display(),
        folder.display()
    ))
}

/// What would be served, as text for people.
fn served(loaded: &LoadedConfig, kept: &StoreCheck) -> String {
    let Config { listen, admin, data, mode, upstreams, .. } = &loaded.config;
    let from = loaded.file.as_ref().map_or("defaults".into(), |file| file.display().to_string());
    let mut text = format!("configuration: {from}: no errors\n");
    for warning in &loaded.warnings {
        let _ = writeln!(text, "note: {warning}");
    }
    let scheme = if loaded.config.tls.is_some() { "https" } else { "http" };
    let guarded = if loaded.config.client_token.is_some() { " (with a token)" } else { "" };
    let _ = writeln!(text, "clients:   {scheme}://{listen}{guarded}");
    let token =
        if loaded.config.admin_token.is_some() { "configured" } else { "in the data folder" };
    let scheme = if loaded.config.admin_tls.is_some() { "https" } else { "http" };
    let _ = writeln!(text, "admin:     {scheme}://{admin} (token {token})");
    let size = if kept.bytes > 0 { format!(" ({} MiB)", kept.bytes >> 20) } else { String::new() };
    let _ = writeln!(text, "data:      {}{size}", data.display());
    if let Some(shared) = &loaded.config.shared_store {
        let _ = writeln!(text, "store:     {}", shared.shown());
    }
    if let Some(warehouse) = kept.warehouse.as_ref().filter(|place| !place.is_empty()) {
        let _ = writeln!(text, "warehouse: {warehouse}");
    }
    let _ = writeln!(text, "mode:      {}", mode.as_ref());
    if let Some(preset) = loaded.config.preset {
        let _ = writeln!(text, "preset:    {}", preset.name());
    }
    let _ = writeln!(text, "upstreams, in the order in which they are tried:");
    for upstream in upstreams {
        let dialects: Vec<_> = upstream.dialects.iter().map(AsRef::as_ref).collect();
        let dialects = if dialects.is_empty() {
            "only by name, prefix or host".into()
        } else {
            dialects.join(", ")
        };
        let mut also = vec![format!("/{}/…", upstream.name)];
        also.extend(upstream.prefix.iter().map(|prefix| format!("{prefix}/…")));
        also.extend(upstream.hosts.iter().map(|host| format!("host {host}")));
        let _ = writeln!(
            text,
            "  {:<12} {}  ({dialects}; {})",
            upstream.name,
            upstream.shown_base(),
            also.join(", "),
        );
    }
    text
}

fn served_json(loaded: &LoadedConfig, kept: &StoreCheck) -> Value {
    let Config { listen, admin, data, mode, upstreams, .. } = &loaded.config;
    let upstreams: Vec<_> = upstreams
        .iter()
        .map(|upstream| {
            json!({
                "name": upstream.name,
                "base_url": upstream.shown_base(),
                "dialects": upstream.dialects,
                "prefix": upstream.prefix,
                "hosts": upstream.hosts,
                "own_credential": upstream.credential.is_some(),
            })
        })
        .collect();
    json!({
        "ok": kept.trouble.is_none(),
        "store": {"trouble": kept.trouble, "bytes": kept.bytes},
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

fn faults_json(errors: &ConfigErrors) -> Value {
    let errors: Vec<_> = errors
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
    json!({ "ok": false, "faults": errors })
}
