//! The agents that we know, and how each is pointed at Plimsoll: `config/clients.toml`.
//!
//! Reads the table and fills in its templates. Must not know what a command does with them.

pub(super) mod edit;
pub(super) mod restore;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;

use super::print::CliError;
use edit::FileFormat;

/// What is known of agents.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientTable {
    /// The variables that every command gets.
    pub(super) environment: BTreeMap<String, String>,
    #[serde(rename = "client")]
    pub(super) clients: Vec<ClientEntry>,
}

/// One agent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientEntry {
    /// Its name in commands.
    pub(super) name: String,
    /// Its name for people.
    pub(super) title: String,
    /// What its program is called.
    pub(super) programs: Vec<String>,
    /// The version that was tried.
    pub(super) tested: Option<String>,
    /// The variables that it reads, of those that every command gets.
    pub(super) reads: Option<String>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) unless_set: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) with_key: Vec<KeyVariables>,
    #[serde(default)]
    pub(super) arguments: Vec<String>,
    /// The upstream that it needs, `name=url`.
    pub(super) upstream: Option<String>,
    pub(super) file: Option<ClientFile>,
    #[serde(default)]
    pub(super) limits: Vec<ClientLimit>,
    /// What else changes in the agent.
    pub(super) effects: Option<String>,
}

/// Variables that are set if the user has a key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyVariables {
    /// The variable with the key.
    pub(super) key: String,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) unless_set: BTreeMap<String, String>,
}

/// An agent's own configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientFile {
    /// The variable that moves its folder.
    variable: Option<String>,
    /// Where it is otherwise.
    home: String,
    /// Below that.
    folder: Option<String>,
    /// Its name in the folder.
    pub(super) name: String,
    pub(super) format: FileFormat,
    /// Paths in it, and their values.
    pub(super) set: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) overlay: bool,
}

/// What an agent cannot be made to do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientLimit {
    pub(super) text: String,
    /// It does not matter if one of these variables is set.
    #[serde(default)]
    pub(super) unless: Vec<String>,
}

/// The variables from which agents read their keys, by upstream; the usual one first.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    ("anthropic", &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"]),
    ("openai", &["OPENAI_API_KEY"]),
    ("gemini", &["GEMINI_API_KEY", "GOOGLE_API_KEY"]),
];

/// The table.
pub(super) static TABLE: LazyLock<ClientTable> = LazyLock::new(|| {
    // A test reads it, so it has no errors.
    toml::from_str(include_str!("../../config/clients.toml")).unwrap_or_default()
});

/// The value of a variable in the user's environment.
pub(super) type Environment = BTreeMap<String, String>;

/// The environment of this process, as far as it is text.
pub(super) fn environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

impl ClientTable {
    /// The agent of this name, or whose program is called so.
    pub(super) fn by_name(&self, name: &str) -> Option<&ClientEntry> {
        let named = self.clients.iter().find(|client| client.name == name);
        named.or_else(|| self.by_program(name))
    }

    /// The agent whose program this is.
    pub(super) fn by_program(&self, program: &str) -> Option<&ClientEntry> {
        let program = Path::new(program).file_name()?.to_str()?;
        self.clients.iter().find(|client| client.programs.iter().any(|known| known == program))
    }

    /// The names of all agents.
    pub(super) fn names(&self) -> Vec<&str> {
        self.clients.iter().map(|client| &*client.name).collect()
    }
}

impl ClientEntry {
    /// What it cannot be made to do, in this environment.
    pub(super) fn limits<'a>(
        &'a self,
        environment: &'a Environment,
    ) -> impl Iterator<Item = &'a str> {
        self.limits
            .iter()
            .filter(|limit| !limit.unless.iter().any(|name| environment.contains_key(name)))
            .map(|limit| &*limit.text)
    }

    /// The variables for the first key that the user has.
    pub(super) fn for_key<'a>(
        &'a self,
        environment: &'a Environment,
    ) -> Option<(&'a KeyVariables, &'a str)> {
        let mut rows = self.with_key.iter();
        rows.find_map(|row| Some((row, environment.get(&row.key)?.as_str())))
    }
}

impl ClientFile {
    /// The folder that its variable moves.
    fn base(&self, environment: &Environment) -> Option<PathBuf> {
        match self.variable.as_ref().and_then(|variable| environment.get(variable)) {
            Some(moved) => Some(PathBuf::from(moved)),
            None => in_home(&self.home, environment),
        }
    }

    /// The folder that has the file and the agent's other files; `None` if there is no home folder.
    pub(super) fn folder(&self, environment: &Environment) -> Option<PathBuf> {
        let base = self.base(environment)?;
        Some(match &self.folder {
            Some(below) => base.join(below),
            None => base,
        })
    }

    /// The file's path.
    pub(super) fn path(&self, environment: &Environment) -> Option<PathBuf> {
        Some(self.folder(environment)?.join(&self.name))
    }

    /// The variable that moves the folder, and the value with which the agent finds it at `folder`.
    pub(super) fn moved_to(&self, folder: &Path) -> Option<(&str, PathBuf)> {
        let variable = self.variable.as_deref()?;
        let base = if self.folder.is_some() { folder.parent()? } else { folder };
        Some((variable, base.to_owned()))
    }

    /// The name that a copy of its folder must have.
    pub(super) fn folder_name(&self) -> &str {
        self.folder.as_deref().unwrap_or("configuration")
    }

    /// Its values, filled in.
    pub(super) fn values(&self, template: &Template<'_>) -> Vec<(&str, String)> {
        self.set.iter().map(|(path, value)| (&**path, template.fill(value))).collect()
    }

    /// Where it is for people, such as `~/.codex/config.toml`.
    pub(super) fn shown(&self) -> String {
        let folder = self.folder.as_ref().map_or(String::new(), |folder| format!("{folder}/"));
        format!("{}/{folder}{}", self.home, self.name)
    }
}

/// That no agent has this name, and which there are.
pub(super) fn unknown(name: &str) -> CliError {
    CliError(format!("{name} is no agent that Plimsoll knows: {}", TABLE.names().join(", ")))
}

fn in_home(path: &str, environment: &Environment) -> Option<PathBuf> {
    let home = environment.get("HOME").map(PathBuf::from).filter(|home| home.is_absolute())?;
    let below = path.trim_start_matches('~').trim_start_matches('/');
    Some(if below.is_empty() { home } else { home.join(below) })
}

/// What the templates of the table are filled in with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template<'a> {
    /// The address for clients.
    pub(super) root: &'a str,
    /// The key that a row is about.
    pub(super) key: &'a str,
}

impl<'a> Template<'a> {
    pub(super) fn new(root: &'a str) -> Self {
        Self { root, key: "" }
    }

    pub(super) fn fill(&self, text: &str) -> String {
        let versioned = format!("{}/v1", self.root);
        text.replace("{root}", self.root).replace("{v1}", &versioned).replace("{key}", self.key)
    }
}

#[cfg(test)]
mod tests;
