//! What a command is started with: its variables, arguments and configuration, as `config/clients.toml` says.
//!
//! What the user has set is replaced only where an address stands, and that is said. Keys are named, never shown.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::overlay::ConfigCopy;
use crate::admin::view::ServerInfo;
use crate::cli::clients::{self, ClientEntry, Environment, KEYS, TABLE, Template};
use crate::cli::print::{self, CliError};
use crate::config::Config;

/// Headers that Claude Code sends with each request, one per line.
const CLAUDE_HEADERS: &str = "ANTHROPIC_CUSTOM_HEADERS";

/// What a command is started with.
pub(super) struct Launch<'a> {
    client: Option<&'static ClientEntry>,
    config: &'a Config,
    about: &'a ServerInfo,
    /// The user's own environment.
    environment: Environment,
    pub(super) variables: BTreeMap<String, OsString>,
    /// Before the command's own.
    pub(super) arguments: Vec<String>,
    pub(super) overlay: Option<ConfigCopy>,
}

impl<'a> Launch<'a> {
    pub(super) fn new(
        client: Option<&'static ClientEntry>,
        config: &'a Config,
        about: &'a ServerInfo,
    ) -> Self {
        Self {
            client,
            config,
            about,
            environment: clients::environment(),
            variables: BTreeMap::new(),
            arguments: Vec::new(),
            overlay: None,
        }
    }

    /// Points the command at the address of this run, and says what it cannot be made to do. `lasting`: the address that
    /// other runs have, too, for advice about the user's own files.
    pub(super) fn point_to(&mut self, root: &str, lasting: &str) -> Result<(), CliError> {
        let template = Template::new(root);
        let advice = Template::new(lasting);
        self.set(&TABLE.environment, template);
        for (name, value) in with_token(self.config, &self.environment) {
            self.variables.insert(name.to_owned(), value.into());
        }
        let Some(client) = self.client else { return Ok(()) };
        self.set(&client.environment, template);
        self.set_unless_set(&client.unless_set, template);
        if let Some((row, key)) = client.for_key(&self.environment.clone()) {
            let template = Template { root, key };
            self.set(&row.environment, template);
            for name in self.set_unless_set(&row.unless_set, template) {
                print::note(&format!("{name} is the key of {}", row.key));
            }
        }
        self.arguments = client.arguments.iter().map(|word| template.fill(word)).collect();
        let mut limits: Vec<String> =
            client.limits(&self.environment).map(|limit| advice.fill(limit)).collect();
        if let Some(upstream) = &client.upstream
            && let Some((name, _)) = upstream.split_once('=')
            && !self.about.upstreams.iter().any(|known| known.name == name)
        {
            limits.push(format!("it needs an upstream: --upstream {upstream}"));
        }
        if let Some(file) = client.file.as_ref().filter(|file| file.overlay) {
            match ConfigCopy::new(file, &self.environment, template) {
                Ok(overlay) => {
                    let (name, value) = overlay.variable();
                    self.variables.insert(name.to_owned(), value.into());
                    self.overlay = Some(overlay);
                }
                // The command runs all the same, with its own file.
                Err(why) => limits.push(why),
            }
        }
        if !limits.is_empty() {
            print::note(&format!("{}: {}", client.title, limits.join("; ")));
        }
        Ok(())
    }

    fn set(&mut self, variables: &BTreeMap<String, String>, template: Template<'_>) {
        for (name, value) in variables {
            let value = template.fill(value);
            // The proxy says what happens to the others (`RunningProxy`).
            if let Some(old) = self.environment.get(name)
                && !TABLE.environment.contains_key(name)
                && *old != value
            {
                print::note(&format!("{name} was {old}; for this command it is {value}"));
            }
            self.variables.insert(name.clone(), value.into());
        }
    }

    /// Returns the names of those that were not set.
    fn set_unless_set<'v>(
        &mut self,
        variables: &'v BTreeMap<String, String>,
        template: Template<'_>,
    ) -> Vec<&'v str> {
        let mut names = Vec::new();
        for (name, value) in variables {
            // A variable that is set but empty is the user's choice, too.
            if std::env::var_os(name).is_none() {
                self.variables.insert(name.clone(), template.fill(value).into());
                names.push(name.as_str());
            }
        }
        names
    }
}

/// The variables through which a command sends a required client token. Prints what is left to do.
fn with_token(config: &Config, environment: &Environment) -> Vec<(&'static str, String)> {
    let Some(token) = config.client_token.as_ref().map(|token| &*token.0) else {
        return Vec::new();
    };
    let header = format!("x-plimsoll-token: {token}");
    // Headers that the user sends already stay.
    let headers = match environment.get(CLAUDE_HEADERS) {
        Some(headers) => format!("{headers}\n{header}"),
        None => header,
    };
    let mut variables = Vec::new();
    let mut others = Vec::new();
    for (name, keys) in KEYS {
        let mut upstreams = config.upstreams.iter();
        // Where the upstream has a key of its own, the client's key may be the token.
        if upstreams.any(|upstream| *upstream.name == **name && upstream.credential.is_some()) {
            variables.push((keys[0], token.to_owned()));
        } else if *name != "anthropic" {
            // Claude Code sends the header.
            others.push(*name);
        }
    }
    if !others.is_empty() {
        print::note(&format!(
            "client_token is required. Claude Code sends it; for {} a command must send the header \
             x-plimsoll-token itself, or gets 401",
            others.join(" and ")
        ));
    }
    variables.push((CLAUDE_HEADERS, headers));
    variables
}
