//! Presets: the policies of known agents, as configurations that the user's settings override.
//!
//! Each is a file of `config/presets/`, compiled in; a test per preset reproduces the numbers of the agent
//! that it names. Knows the meaning of no key, except of those that exclude each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::errors::ConfigPlace;
use super::layers::{self, ConfigEntry, ConfigTree};

/// A known agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Clears the results of reading tools early and often.
    MicroCompact,
    /// opencode.
    Opencode,
    /// Gemini CLI.
    GeminiCli,
    /// Dexto.
    Dexto,
    /// Claude Code.
    ClaudeCode,
    /// LLxprt Code.
    Llxprt,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::MicroCompact,
        Self::Opencode,
        Self::GeminiCli,
        Self::Dexto,
        Self::ClaudeCode,
        Self::Llxprt,
    ];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::MicroCompact => "micro-compact",
            Self::Opencode => "opencode",
            Self::GeminiCli => "gemini-cli",
            Self::Dexto => "dexto",
            Self::ClaudeCode => "claude-code",
            Self::Llxprt => "llxprt",
        }
    }

    /// Its configuration file's text.
    pub fn text(self) -> &'static str {
        match self {
            Self::MicroCompact => include_str!("../../config/presets/micro-compact.toml"),
            Self::Opencode => include_str!("../../config/presets/opencode.toml"),
            Self::GeminiCli => include_str!("../../config/presets/gemini-cli.toml"),
            Self::Dexto => include_str!("../../config/presets/dexto.toml"),
            Self::ClaudeCode => include_str!("../../config/presets/claude-code.toml"),
            Self::Llxprt => include_str!("../../config/presets/llxprt.toml"),
        }
    }
}

/// Keys that exclude each other.
const EITHER: [&[&[&str]]; 2] = [
    &[&["prune", "pressure"], &["prune", "pressure_buffer_tokens"]],
    &[
        &["compact", "threshold"],
        &["compact", "threshold_tokens"],
        &["compact", "threshold_buffer_tokens"],
    ],
];

/// Adds the chosen preset, if any, below the user's settings. If the user sets one key of a group in
/// [`EITHER`], the preset's values for the group are removed.
pub(super) fn put_under(raw: &mut ConfigEntry) {
    let Some(ConfigTree::Leaf(name)) = raw.at(&["preset"]).map(|entry| &entry.tree) else { return };
    let chosen = Preset::ALL.iter().find(|preset| name.as_str() == Some(preset.name()));
    let Some(preset) = chosen else { return };
    let mut below = layers::shipped(&ConfigPlace::Preset(preset.name()), preset.text());
    for either in EITHER {
        if either.iter().any(|path| raw.at(path).is_some()) {
            either.iter().for_each(|path| below.take(path));
        }
    }
    raw.put_under(&below);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigSources, load};

    fn resolved(text: &str) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plimsoll.toml");
        std::fs::write(&file, format!("data = \"d\"\n{text}")).unwrap();
        let loaded = load(&ConfigSources { file: Some(file), ..ConfigSources::default() });
        loaded.unwrap_or_else(|errors| panic!("{errors}")).config
    }

    #[test]
    fn presets_are_valid_and_named() {
        for preset in Preset::ALL {
            assert!(toml::de::DeTable::parse(preset.text()).is_ok(), "{}", preset.name());
            assert_eq!(serde_json::to_value(preset).unwrap(), preset.name());
            let config = resolved(&format!("preset = \"{}\"", preset.name()));
            assert_eq!(config.preset, Some(preset));
            assert_ne!(config.policy, resolved("").policy, "{} changes nothing", preset.name());
        }
    }

    #[test]
    fn set_keys_override_presets() {
        let config = resolved("preset = \"opencode\"\n[prune]\nprotect_tokens = 50_000");
        let prune = &config.policy.prune;
        assert_eq!(prune.protect_turns, 3);
        assert_eq!(prune.protect_tokens, 50_000);
        assert!(prune.stop_at_cut);
        // Of two keys that exclude each other, the one that is written in the configuration counts.
        let config = resolved("preset = \"claude-code\"\n[prune]\npressure = 0.5");
        assert!((config.policy.prune.threshold(180_000) - 90_000.0).abs() < 1e-9);
        let config = resolved("preset = \"claude-code\"\n[compact]\nthreshold = 0.5");
        assert_eq!(config.policy.compact.threshold(180_000), 90_000);
    }
}
