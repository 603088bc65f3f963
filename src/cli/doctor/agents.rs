//! Which agents are installed, in which version, and where each is pointed.
//!
//! Runs nothing but `PROGRAM --version`, for a short time.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Semaphore;

use super::findings::{Findings, Level};
use crate::cli::clients::edit::values_at;
use crate::cli::clients::{ClientEntry, Environment, TABLE};

/// How long an agent may take to say its version.
const VERSION_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn examine(root: &str, environment: &Environment, findings: &mut Findings) {
    // Each takes a core for seconds.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let permits = Arc::new(Semaphore::new(cores));
    let mut asking = Vec::new();
    for client in &TABLE.clients {
        if let Some((name, path)) = installed(client, environment) {
            asking.push((client, name, tokio::spawn(version(path, permits.clone()))));
        }
    }
    if asking.is_empty() {
        findings.add(Level::Look, "agents", "none that Plimsoll knows is on the PATH");
    }
    for (client, name, version) in asking {
        let version = version.await.unwrap_or(StatedVersion::Unknown);
        let (level, place) = pointed(client, name, root, environment);
        let (is_new, version) = compared(client, &version);
        let level = if is_new { Level::Look } else { level };
        findings.add(level, &client.name, format!("{version}; {place}"));
    }
}

fn installed<'c>(client: &'c ClientEntry, environment: &Environment) -> Option<(&'c str, PathBuf)> {
    let folders = environment.get("PATH")?;
    for name in &client.programs {
        for folder in std::env::split_paths(folders).filter(|folder| folder.is_absolute()) {
            let path = folder.join(name);
            if path.is_file() {
                return Some((name, path));
            }
        }
    }
    None
}

/// What a program says of its version.
#[derive(Debug, PartialEq)]
enum StatedVersion {
    Version(String),
    /// It did not answer in time.
    Late,
    /// It failed, as it does on a Node.js that is too old; what it printed is about something else.
    Failed,
    Unknown,
}

async fn version(program: PathBuf, permits: Arc<Semaphore>) -> StatedVersion {
    let _permit = permits.acquire().await;
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
    let done = match tokio::time::timeout(VERSION_WITHIN, command.output()).await {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => return StatedVersion::Unknown,
        Err(_) => return StatedVersion::Late,
    };
    if !done.status.success() {
        return StatedVersion::Failed;
    }
    // Some print it where errors go.
    let texts = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    match texts.iter().find_map(|text| version_in(text)) {
        Some(version) => StatedVersion::Version(version),
        None => StatedVersion::Unknown,
    }
}

fn version_in(text: &str) -> Option<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '-'));
    let mut numbers = words.map(|word| word.trim_start_matches('v'));
    let version = numbers
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'));
    version.map(|word| word.trim_end_matches('.').chars().take(32).collect())
}

/// Whether this version is new to us, and what is to be said of it.
fn compared(client: &ClientEntry, version: &StatedVersion) -> (bool, String) {
    let version = match version {
        StatedVersion::Version(version) => version.as_str(),
        StatedVersion::Late => {
            let seconds = VERSION_WITHIN.as_secs();
            return (true, format!("its --version did not answer in {seconds} s"));
        }
        StatedVersion::Failed => {
            return (true, "does not run: see what its --version prints".to_owned());
        }
        StatedVersion::Unknown => return (false, "says no version".to_owned()),
    };
    match client.tested.as_deref() {
        None => (true, format!("{version}, not tried by us in any version")),
        Some(tested) if version == tested => (false, version.to_owned()),
        Some(tested) => {
            let is_new = numbers(version) > numbers(tested);
            let text = if is_new { "new to us" } else { "older" };
            (is_new, format!("{version}, {text}: we tried {tested}"))
        }
    }
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-']).map_while(|part| part.parse().ok()).collect()
}

/// Where its variables and its file send it.
fn pointed(
    client: &ClientEntry,
    program: &str,
    root: &str,
    environment: &Environment,
) -> (Level, String) {
    let mut addresses = Vec::new();
    let read = client.reads.iter().flat_map(|names| names.split(", "));
    for name in read.chain(client.environment.keys().map(String::as_str)) {
        if let Some(address) = environment.get(name) {
            addresses.push((name.to_owned(), address.clone()));
        }
    }
    if let Some(file) = &client.file
        && let Some(path) = file.path(environment)
        && let Ok(text) = std::fs::read_to_string(path)
    {
        let places =
            file.set.iter().filter(|(_, value)| value.contains("{root}") || value.contains("{v1}"));
        for (path, _) in places {
            for address in values_at(file.format, &text, path) {
                addresses.push((file.shown(), address));
            }
        }
    }
    if let Some((place, address)) = addresses.iter().find(|(_, value)| !value.starts_with(root)) {
        return (Level::Look, format!("{place} points it at {}", shown(address)));
    }
    match addresses.first() {
        Some((place, _)) => (Level::Ok, format!("{place} points it here")),
        None => (Level::Ok, format!("not pointed here: `plimsoll run -- {program}` does that")),
    }
}

/// An address without what may be secret in it.
fn shown(address: &str) -> String {
    let address = address.split(['?', '#']).next().unwrap_or_default();
    match address.split_once("://") {
        Some((scheme, rest)) => {
            format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host))
        }
        None => "something that is no address".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_are_new() {
        let codex = TABLE.by_name("codex").unwrap();
        let tested = codex.tested.as_deref().unwrap();
        let is_new = |version: &str| compared(codex, &StatedVersion::Version(version.to_owned()));
        assert_eq!(is_new(tested), (false, tested.to_owned()));
        assert!(is_new("9.0").0);
        assert!(!is_new("0.9.1-beta").0);
        let late = compared(codex, &StatedVersion::Late);
        assert_eq!(late, (true, "its --version did not answer in 10 s".to_owned()));
    }

    #[test]
    fn addresses_are_shown_without_secrets() {
        assert_eq!(shown("https://me:pw@host/v1?key=x"), "https://host/v1");
        assert_eq!(shown("sk-secret"), "something that is no address");
    }
}
