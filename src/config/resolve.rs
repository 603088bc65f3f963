//! Resolves a configuration: checks values, reads secrets, and fills in defaults.
//!
//! Each check adds a fault and continues, so that all faults are reported at once. Nothing here binds a port
//! or writes a file, and no fault quotes a secret.

mod admin;
mod caps;
mod clients;
mod models;
mod otel;
mod policy;
mod store;
mod upstreams;
mod warehouse;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::errors::{ConfigErrors, ConfigPlace};
use super::layers::{ConfigEntry, ConfigTree};
use super::raw::{RawConfig, RawLogFormat};
use super::settings::{Config, Secret, ServerLimits};
use super::sources::ConfigSources;
use super::{memory_limits, permissions};
use crate::dialect::models::Price;

pub(crate) use caps::{CapFault, check as check_cap};
pub(super) use clients::oddities;
pub(crate) use models::day;

/// The days that a lesson may hold.
const LESSON_DAYS: std::ops::RangeInclusive<u64> = 1..=90;
/// The longest name of an upstream, which is a path segment and a metric label.
const LONGEST_NAME: usize = 40;

/// Whether a variable begins like ours but is not a setting.
pub(super) fn is_foreign(name: &str) -> bool {
    // Those of our own tools, and those that Kubernetes sets for every service called `plimsoll`.
    let rest = name.trim_start_matches("PLIMSOLL_");
    matches!(rest, "CONFIG" | "BLESS" | "CORPUS" | "PORT")
        || ["PORT_", "SERVICE_", "TEST_", "BENCH_", "CRASH_", "FUZZ_", "HARMLESS", "ENDLESS"]
            .iter()
            .any(|start| rest.starts_with(start))
}

/// Resolves the raw configuration. `None` if so much is wrong that nothing can be checked.
pub(super) fn resolve(
    entry: &ConfigEntry,
    sources: &ConfigSources,
    errors: &mut ConfigErrors,
    warnings: &mut Vec<String>,
) -> Option<Config> {
    let raw: RawConfig = match serde_json::from_value(entry.value()) {
        Ok(raw) => raw,
        // A wrong shape has already been reported. The rest is still checked, without the wrong keys.
        Err(error) => {
            if errors.is_empty() {
                errors.add(entry.place.clone(), "", error.to_string(), "Fix the value.");
            }
            serde_json::from_value(without(entry, "", errors).value()).ok()?
        }
    };
    let mut resolver = Resolver { entry, sources, errors, warnings, secret_variables: Vec::new() };
    let listen = resolver.address(&["listen"], &raw.listen);
    let admin = resolver.address(&["admin"], &raw.admin);
    let admin_tokens = resolver.admin_tokens(&raw);
    resolver.admin_is_safe(admin, raw.admin_token.is_some());
    if let (Some(listen), Some(admin)) = (listen, admin)
        && listen == admin
        && listen.port() != 0
    {
        resolver.wrong(&["admin"], "is the same address as listen", "Give each a port of its own.");
    }
    resolver.limits(&raw);
    let tls = resolver.tls(&raw);
    let ca_file = raw.extra_ca.as_deref();
    let extra_ca = ca_file.map(|path| resolver.pem(&["extra_ca"], path, PemKind::Certificates));
    let upstreams = resolver.upstreams(&raw, listen);
    let clients = resolver.clients(&raw, listen);
    let policy = resolver.policy(&raw);
    let compact_models = resolver.compact_models(&raw);
    let caps = resolver.caps(&raw);
    let shared_store = resolver.shared_store(&raw);
    let data = resolver.data(raw.data.as_deref());
    let models = resolver.catalogue(&raw, data.as_deref());
    Some(Config {
        listen: listen?,
        client_token: clients.token,
        allowed_hosts: clients.hosts,
        allowed_origins: clients.origins,
        tenant_headers: clients.tenant_headers,
        admin: admin?,
        admin_token: admin_tokens.admin,
        admin_read_token: admin_tokens.reader,
        metrics_open: raw.metrics_open,
        metrics_tags: resolver.metrics_tags(&raw),
        warehouse: resolver.warehouse(&raw),
        otel: resolver.otel(&raw.otel),
        admin_tls: tls.admin,
        secret_variables: resolver.secret_variables,
        tls: tls.client,
        data: data?,
        mode: raw.mode,
        client_mode: raw.client_mode,
        preset: raw.preset,
        upstreams,
        extra_ca,
        limits: ServerLimits {
            // Read once: the container's limit does not change while the process runs.
            process_bytes: raw
                .limits
                .process_bytes
                .or_else(|| Some(memory_limits::process_bytes())),
            ..raw.limits
        },
        retention: raw.retention,
        shared_store,
        on_failure: raw.store.on_failure,
        content: raw.content,
        lessons: raw.lessons,
        count: raw.count,
        output_reserve: raw.output_reserve_tokens,
        policy: Arc::new(policy),
        caps,
        compact_models,
        catalogue: models.catalogue,
        catalogue_file: models.file,
        catalogue_url: models.url,
        log_json: raw.log == RawLogFormat::Json,
        log_level: raw.log_level,
        request_id_header: raw.request_id_header,
        tenants: raw.tenants,
    })
}

fn without(entry: &ConfigEntry, path: &str, errors: &ConfigErrors) -> ConfigEntry {
    // The others are checked too.
    let ConfigTree::Table(entries) = &entry.tree else { return entry.clone() };
    let faultless = entries.iter().filter_map(|(key, below)| {
        let path = super::schema::joined(path, key);
        if errors.0.iter().any(|fault| fault.key == path) {
            return None;
        }
        Some((key.clone(), without(below, &path, errors)))
    });
    ConfigEntry { place: entry.place.clone(), tree: ConfigTree::Table(faultless.collect()) }
}

/// With less than this, too little remains for traffic besides the process itself.
const LEAST_PROCESS: u64 = 64 << 20;

/// The expected content of a PEM file.
#[derive(Clone, Copy)]
enum PemKind {
    Certificates,
    Key,
}

/// Whether the file has certificates, and nothing broken.
fn read_certificates(file: &Path) -> Result<(), pem::Error> {
    let mut found = CertificateDer::pem_file_iter(file)?;
    found.next().unwrap_or(Err(pem::Error::NoItemsFound))?;
    found.try_for_each(|next| next.map(drop))
}

/// Checks values, and reports where the wrong ones are.
struct Resolver<'a> {
    entry: &'a ConfigEntry,
    sources: &'a ConfigSources,
    errors: &'a mut ConfigErrors,
    warnings: &'a mut Vec<String>,
    /// The environment variables that secrets were read from.
    secret_variables: Vec<String>,
}

impl Resolver<'_> {
    fn wrong(&mut self, path: &[&str], what: impl Into<String>, todo: impl Into<String>) {
        self.errors.add(self.entry.place(path), &path.join("."), what, todo);
    }

    fn wins(&mut self, warning: &str) {
        self.warnings.push(warning.to_owned());
    }

    fn address(&mut self, path: &[&str], raw: &str) -> Option<SocketAddr> {
        // No name is resolved: `localhost` is taken for IPv4's loopback.
        let local = raw.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        let address = local.as_deref().unwrap_or(raw).parse();
        if address.is_err() {
            let todo = "Write an IP address and a port, such as 127.0.0.1:8787.";
            self.wrong(path, format!("{raw:?} is not an address and port"), todo);
        }
        address.ok()
    }

    /// A secret from `env:NAME` or `file:PATH`; in an environment variable of ours, also the secret itself.
    fn secret(&mut self, path: &[&str], raw: &str) -> Option<Secret> {
        let secret = if let Some(name) = raw.strip_prefix("env:") {
            let value = self.sources.variable(name).map(str::to_owned);
            self.secret_variables.push(name.to_owned());
            value.ok_or_else(|| {
                (format!("environment variable {name} is not set"), format!("Set {name}."))
            })
        } else if let Some(file) = raw.strip_prefix("file:") {
            let file = self.file(path, file);
            self.must_be_private(path, &file);
            std::fs::read_to_string(&file).map_err(|error| {
                let file = file.display();
                (format!("{file} cannot be read: {error}"), "Make it readable.".to_owned())
            })
        } else if matches!(self.entry.place(path), ConfigPlace::Variable(_)) {
            // A variable of ours is as private as one that `env:` names.
            Ok(raw.to_owned())
        } else {
            Err((
                "a secret must not be in the configuration itself".to_owned(),
                "Put it into an environment variable or a file, and write \"env:NAME\" or \
                 \"file:PATH\"."
                    .to_owned(),
            ))
        };
        match secret.map(|secret| secret.trim().to_owned()) {
            Ok(secret) if !secret.is_empty() && HeaderValue::from_str(&secret).is_ok() => {
                Some(Secret(secret))
            }
            Ok(_) => {
                self.wrong(path, "the secret is empty or not one line of text", "Fix it.");
                None
            }
            Err((what, todo)) => {
                self.wrong(path, what, todo);
                None
            }
        }
    }

    fn limits(&mut self, raw: &RawConfig) {
        let limits = &raw.limits;
        for (key, is_zero) in [
            ("connections", limits.connections == Some(0)),
            ("header_bytes", limits.header_bytes == 0),
            ("header_s", limits.header_s == 0),
            ("body_bytes", limits.body_bytes == 0),
            ("body_s", limits.body_s == 0),
            ("connect_s", limits.connect_s == 0),
        ] {
            if is_zero {
                self.wrong(&["limits", key], "0 allows nothing", "Write 1 or more.");
            }
        }
        if limits.process_bytes.is_some_and(|bytes| bytes < LEAST_PROCESS) {
            let remedy = "Write 67108864 (64 MiB) or more, or leave it out.";
            let what = "is too little for the process and its traffic";
            self.wrong(&["limits", "process_bytes"], what, remedy);
        }
        for (key, value) in [("days", raw.retention.days), ("bytes", raw.retention.bytes)] {
            if value == 0 {
                self.wrong(&["retention", key], "0 stores nothing", "Write 1 or more.");
            }
        }
        if !LESSON_DAYS.contains(&raw.lessons.days) {
            let what = format!("{} is not from 1 to 90", raw.lessons.days);
            self.wrong(
                &["lessons", "days"],
                &what,
                "Write the number of days until a lesson expires.",
            );
        }
    }

    fn file(&self, path: &[&str], raw: &str) -> PathBuf {
        // `~/` is the home folder, and a relative path in a configuration file starts at that file's folder. A
        // path from the command line starts at the working directory.
        if let (Some(rest), Some(home)) = (raw.strip_prefix("~/"), self.sources.folder("HOME")) {
            return home.join(rest);
        }
        match self.entry.place(path) {
            ConfigPlace::Line(file, _) => file.parent().unwrap_or(Path::new("")).join(raw),
            _ => PathBuf::from(raw),
        }
    }

    fn must_be_ours(&mut self, path: &[&str], file: &Path) {
        // We obey it: whoever may write it decides what we do.
        if let Some(finding) = permissions::writable(file) {
            self.wrong(path, finding.what, finding.todo);
        }
    }

    fn must_be_private(&mut self, path: &[&str], file: &Path) {
        // That others may read it is odd, but may be intended.
        self.must_be_ours(path, file);
        if let Some(finding) = permissions::readable(file) {
            self.warnings.push(format!("{}: {}. {}", path.join("."), finding.what, finding.todo));
        }
    }

    fn needed(&mut self, path: &[&str], raw: Option<&str>, holds: PemKind) -> PathBuf {
        let Some(raw) = raw else {
            self.wrong(path, "is missing", "Add it: TLS needs a certificate and its key.");
            return PathBuf::new();
        };
        self.pem(path, raw, holds)
    }

    fn pem(&mut self, path: &[&str], raw: &str, holds: PemKind) -> PathBuf {
        let file = self.file(path, raw);
        match holds {
            PemKind::Key => self.must_be_private(path, &file),
            PemKind::Certificates => self.must_be_ours(path, &file),
        }
        let read = match holds {
            PemKind::Key => PrivateKeyDer::from_pem_file(&file).map(drop),
            PemKind::Certificates => read_certificates(&file),
        };
        let todo = "Name a PEM file that exists and is readable.";
        let what = match (read, holds) {
            (Ok(()), _) => return file,
            (Err(pem::Error::Io(error)), _) => format!("{raw}: {error}"),
            (Err(pem::Error::NoItemsFound), PemKind::Key) => {
                format!("{raw} contains no private key")
            }
            (Err(pem::Error::NoItemsFound), PemKind::Certificates) => {
                format!("{raw} contains no certificate")
            }
            // The error could quote the key's file, which nobody should see.
            (Err(_), _) => format!("{raw} is broken PEM"),
        };
        self.wrong(path, what, todo);
        file
    }

    fn data(&mut self, raw: Option<&str>) -> Option<PathBuf> {
        if let Some(raw) = raw.filter(|raw| !raw.is_empty()) {
            return Some(self.file(&["data"], raw));
        }
        // As the XDG Base Directory Specification says.
        if let Some(folder) = self.sources.folder("XDG_DATA_HOME") {
            return Some(folder.join("plimsoll"));
        }
        if let Some(home) = self.sources.folder("HOME") {
            return Some(home.join(".local/share/plimsoll"));
        }
        let what = "there is no home folder for the data";
        self.wrong(&["data"], what, "Name a folder: --data DIR or data = \"DIR\".");
        None
    }

    fn price(&mut self, path: &[&str], raw: Option<&Price>) {
        if let Some((key, number)) = raw.and_then(Price::impossible_number) {
            self.wrong(
                path,
                format!("{key} = {number} is not a number from 0 to 100,000"),
                "Write US dollars per million tokens.",
            );
        }
    }
}
