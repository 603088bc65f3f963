//! `plimsoll setup AGENT`: an agent's lasting configuration, printed or written, and taken back to the byte.
//!
//! Before a file is changed, its bytes are saved in the data folder. A file that was changed since is not taken back: the user's
//! work counts more than ours.

mod record;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::admin_client;
use super::clients::edit::with_values;
use super::clients::restore::{is_blank, without_values};
use super::clients::{self, ClientEntry, ClientFile, Environment, TABLE, Template};
use super::flags::ConfigFlags;
use super::print::{self, CliError};
use super::run::proxy::reachable;
use crate::config::Config;
use crate::store::folder::write_whole;
use record::{ChangeState, FileChange, SetupRecord};

/// What is to be done.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SetupOptions {
    /// The agent.
    #[arg(required_unless_present_any = ["list", "undo"])]
    agent: Option<String>,
    /// Write it into the agent's own file.
    #[arg(long, conflicts_with_all = ["list", "undo"])]
    write: bool,
    /// Take back what was written, of this agent or of all.
    #[arg(long, conflicts_with = "list")]
    undo: bool,
    /// List the agents.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    settings: ConfigFlags,
}

pub(super) fn run(options: &SetupOptions) -> Result<(), CliError> {
    let client = match &options.agent {
        Some(name) => Some(TABLE.by_name(name).ok_or_else(|| clients::unknown(name))?),
        None => None,
    };
    if options.list {
        for client in &TABLE.clients {
            print::line(&format!("{:<16} {}", client.name, client.title));
        }
        return Ok(());
    }
    let config = admin_client::load_config(&options.settings.sources())?;
    if options.undo {
        return undo(&config.data, client);
    }
    let Some(client) = client else { return Ok(()) };
    let environment = clients::environment();
    let root = root(&config);
    let template = Template::new(&root);
    for limit in client.limits(&environment) {
        print::note(&format!("{}: {}", client.title, template.fill(limit)));
    }
    if let Some(effects) = &client.effects {
        print::note(&format!("{}: {effects}", client.title));
    }
    match &client.file {
        Some(file) if options.write => {
            let written = write(&config.data, client, file, &environment, template)?;
            if let Some(path) = written {
                let sources = options.settings.sources();
                let is_named = sources.flags.iter().any(|flag| flag.key == "data");
                let data = if is_named {
                    format!(" --data {}", config.data.display())
                } else {
                    String::new()
                };
                print::line(&format!(
                    "{path} is written; `plimsoll setup --undo{data}` takes it back"
                ));
            }
            Ok(())
        }
        None if exports(client, &environment, template).is_empty() => Err(CliError(format!(
            "there is nothing to set for {} in this environment; what stands above says why",
            client.title
        ))),
        None if options.write => Err(CliError(format!(
            "{} has no file for this. Put these lines into your shell's profile:\n{}",
            client.title,
            exports(client, &environment, template)
        ))),
        Some(file) => {
            print::out(&shown(file, template)?);
            Ok(())
        }
        None => {
            print::out(&exports(client, &environment, template));
            Ok(())
        }
    }
}

/// The address that clients use.
pub(super) fn root(config: &Config) -> String {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    reachable(&format!("{scheme}://{}", config.listen))
}

fn shown(file: &ClientFile, template: Template<'_>) -> Result<String, CliError> {
    let values = file.values(&template);
    let mut text = format!("# {}\n", file.shown());
    if values.iter().any(|(path, _)| path.contains(['?', '['])) {
        text += "# set each of these that is there\n";
        for (path, value) in &values {
            let _ = writeln!(text, "{} = {value}", in_words(path));
        }
    } else {
        text += &with_values(file.format, "", &values).map_err(CliError)?;
    }
    Ok(text)
}

/// A path of our table as people write it: `customModels with provider anthropic: baseUrl`.
fn in_words(path: &str) -> String {
    let path = path.replace('?', "");
    match path.split_once('[').and_then(|(list, rest)| Some((list, rest.split_once("].")?))) {
        Some((list, (condition, member))) => {
            format!("{list} with {}: {member}", condition.replace('=', " "))
        }
        None => path,
    }
}

fn exports(client: &ClientEntry, environment: &Environment, template: Template<'_>) -> String {
    let mut variables = BTreeMap::new();
    for name in client.reads.iter().flat_map(|names| names.split(", ")) {
        if let Some(value) = TABLE.environment.get(name) {
            variables.insert(name, template.fill(value));
        }
    }
    for (name, value) in client.environment.iter().chain(&client.unless_set) {
        variables.insert(name, template.fill(value));
    }
    if let Some((row, _)) = client.for_key(environment) {
        // The key itself stays where it is.
        let key = format!("${}", row.key);
        let template = Template { key: &key, ..template };
        for (name, value) in row.environment.iter().chain(&row.unless_set) {
            variables.insert(name, template.fill(value));
        }
    }
    let mut text = String::new();
    for (name, value) in variables {
        // The shell has to fill in the key.
        let quote = if value.starts_with('$') { '"' } else { '\'' };
        let _ = writeln!(text, "export {name}={quote}{value}{quote}");
    }
    if !client.arguments.is_empty() {
        let arguments: Vec<String> =
            client.arguments.iter().map(|word| format!("'{}'", template.fill(word))).collect();
        let _ = writeln!(text, "# and start it with {}", arguments.join(" "));
    }
    text
}

/// Returns the path, if it was written.
fn write(
    data: &Path,
    client: &ClientEntry,
    file: &ClientFile,
    environment: &Environment,
    template: Template<'_>,
) -> Result<Option<String>, CliError> {
    let named = file.path(environment).ok_or_else(|| CliError("there is no HOME".to_owned()))?;
    // A link stays a link: its target is changed.
    let path = named.canonicalize().unwrap_or(named);
    let shown_path = path.display();
    let original = read(&path)?;
    let text = String::from_utf8(original.clone().unwrap_or_default())
        .map_err(|_| CliError(format!("{shown_path} is not text")))?;
    let values = file.values(&template);
    let edited = with_values(file.format, &text, &values)
        .map_err(|why| CliError(format!("{shown_path} {why}; nothing was changed")))?;
    if original.as_deref() == Some(edited.as_bytes()) {
        print::line(&format!("{shown_path} is as it should be"));
        return Ok(None);
    }
    let mut record = SetupRecord::load(data)?;
    record.add(FileChange::new(
        &client.name,
        &path,
        original.as_deref(),
        edited.as_bytes(),
        &values,
    ));
    // First the record, so that whatever happens to the file can be taken back.
    record.save(data)?;
    replace(&path, edited.as_bytes())?;
    Ok(Some(shown_path.to_string()))
}

fn undo(data: &Path, client: Option<&ClientEntry>) -> Result<(), CliError> {
    let mut record = SetupRecord::load(data)?;
    let mut refused = Vec::new();
    let mut remaining = Vec::new();
    // The newest first: a file may have been changed twice.
    while let Some(change) = record.pop() {
        if client.is_some_and(|client| client.name != change.agent) {
            remaining.push(change);
            continue;
        }
        let path = change.file.clone();
        let shown_path = path.display();
        let current = read(&path)?;
        match change.state(current.as_deref()) {
            ChangeState::AsWritten => {
                take_back(&change)?;
                print::line(&format!("{shown_path} is as it was"));
            }
            ChangeState::Gone => print::line(&format!("{shown_path} has nothing of ours any more")),
            ChangeState::ChangedSince => {
                match take_out(&change, current.as_deref().unwrap_or_default()) {
                    Ok(()) => print::line(&format!(
                        "{shown_path} has nothing of ours any more; what was changed since stays"
                    )),
                    Err(CliError(why)) => {
                        let names: Vec<&str> =
                            change.values.iter().map(|(name, _)| &**name).collect();
                        refused.push(format!(
                            "{shown_path} was changed since, and {why}, so it stays. Remove {} yourself",
                            names.join(", ")
                        ));
                        remaining.push(change);
                    }
                }
            }
        }
    }
    remaining.reverse();
    record.replace(remaining);
    record.save(data)?;
    if refused.is_empty() { Ok(()) } else { Err(CliError(refused.join("\n"))) }
}

/// Takes what we wrote out of a file that was changed since.
fn take_out(change: &FileChange, current: &[u8]) -> Result<(), CliError> {
    let file = TABLE.by_name(&change.agent).and_then(|client| client.file.as_ref());
    let file = file.ok_or_else(|| clients::unknown(&change.agent))?;
    let original = change.original()?;
    let text = without_values(
        file.format,
        str::from_utf8(current).map_err(|_| CliError("is not text".to_owned()))?,
        &String::from_utf8_lossy(original.as_deref().unwrap_or_default()),
        &change.values,
    )
    .map_err(CliError)?;
    if original.is_none() && is_blank(file.format, &text) {
        return take_back(change);
    }
    replace(&change.file, text.as_bytes())
}

fn take_back(change: &FileChange) -> Result<(), CliError> {
    if let Some(original) = change.original()? {
        return replace(&change.file, &original);
    }
    fs::remove_file(&change.file).map_err(|error| failed(&change.file, &error))?;
    for folder in &change.folders {
        // One that is in use meanwhile stays.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

/// The file's bytes; `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, CliError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, &error)),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    write_whole(path, bytes).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> CliError {
    CliError(format!("{}: {error}", path.display()))
}
