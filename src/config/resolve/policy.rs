//! Checks policies: for contradictions, and for values that cannot be intended.
//!
//! A preset's values are checked together with the settings that override them; a fault names the place of
//! the setting.

use super::Resolver;
use crate::config::errors::ConfigPlace;
use crate::config::raw::RawConfig;
use crate::context::policy::{
    ClassicPolicy, ClassicRole, CompactOverride, Policy, PruneGate, PruneMethod, ReinjectPolicy,
    StripPolicy,
};
use crate::tokens::bpe;

/// The longest time that a request may wait for a summary, in seconds: the shortest timeout of clients for
/// the first byte is 60 s (`docs/protocols.md` 10.4), and the response itself takes time.
const LONGEST_WAIT: u64 = 45;
/// Fewer tokens have no room for a head, a note and a tail.
const SMALLEST_RESULT: u64 = 200;

impl Resolver<'_> {
    /// Checks that a policy does not contradict itself.
    pub(super) fn policy(&mut self, raw: &RawConfig) -> Policy {
        let prune = &raw.prune;
        let shares = [
            ("pressure", prune.pressure),
            ("low_water", prune.low_water),
            ("hold_out", prune.hold_out),
        ];
        for (key, value) in shares {
            if !(0.0..=1.0).contains(&value) {
                self.wrong(&["prune", key], "is not a share", "Write a number from 0 to 1.");
            }
        }
        if prune.max_result_tokens.is_some_and(|limit| limit < SMALLEST_RESULT) {
            let what = "leaves no room for head and tail";
            self.wrong(&["prune", "max_result_tokens"], what, "Write 200 or more.");
        }
        if prune.placeholder.trim().is_empty() {
            let what = "is empty, which providers refuse";
            self.wrong(&["prune", "placeholder"], what, "Write a few words.");
        }
        let contradiction = prune.except_tools.iter().find(|tool| prune.tools.contains(tool));
        if let Some(tool) = contradiction {
            let what = format!("{tool:?} is in `tools` too");
            self.wrong(&["prune", "except_tools"], what, "Name it in one of them.");
        }
        if prune.method == PruneMethod::Provider && prune.accept_reasoning_loss {
            let what = "has no effect: the provider's own cuts keep reasoning valid";
            self.wrong(&["prune", "accept_reasoning_loss"], what, "Remove it, or method.");
        }
        let mut gates = prune.gate.iter();
        if prune.method == PruneMethod::Provider
            && !prune.gate.is_empty()
            && !gates.any(|gate| matches!(gate, PruneGate::Pressure | PruneGate::Always))
        {
            let what = "leaves pruning to the provider, which supports none of the values in gate";
            let todo = "Name pressure or always in gate, or change method.";
            self.wrong(&["prune", "method"], what, todo);
        }
        let reasoning = &raw.reasoning;
        self.lost_keys(raw);
        self.estimate(&raw.estimate);
        self.compact(raw);
        Policy {
            compact: raw.compact.clone(),
            prune: prune.clone(),
            reasoning: reasoning.clone(),
            estimate: ClassicPolicy {
                gemini_vocabulary: self.vocabulary(raw.estimate.gemini_vocabulary.as_deref()),
                ..raw.estimate.clone()
            },
            heal: raw.heal.clone(),
            client_usage: raw.client_usage,
            one_queued_message: raw.one_queued_message,
            cache: raw.cache.clone(),
        }
    }

    pub(super) fn compact_models(&mut self, raw: &RawConfig) -> Vec<(Box<str>, CompactOverride)> {
        let names = self.entry.keys(&["model"]);
        let mut overrides = Vec::new();
        // In the order of the file: of two that fit, the later one counts.
        for name in names {
            let over = raw.model.get(&name).and_then(|model| model.compact.as_ref());
            self.compact_over("model", &name, over);
            overrides.extend(over.map(|over| (name.as_str().into(), over.clone())));
        }
        overrides
    }

    /// Checks that the overrides for an upstream or a model do not contradict themselves.
    pub(super) fn compact_over(&mut self, of: &str, name: &str, raw: Option<&CompactOverride>) {
        let Some(over) = raw else { return };
        let table = [of, name, "compact"];
        self.shares(&table, &[("threshold", over.threshold)]);
        self.one_threshold(
            &table,
            &[
                ("threshold_tokens", over.threshold_tokens.is_some()),
                ("threshold", over.threshold.is_some()),
            ],
        );
    }

    fn wait(&mut self, table: &[&str], seconds: u64) {
        // Checks that all waits of a request together end well before the first client gives up.
        if seconds > LONGEST_WAIT {
            let path = [table, &["wait_s"]].concat();
            let todo = format!("Write {LONGEST_WAIT} or less.");
            self.wrong(&path, "is longer than clients wait: some give up after 60 s", &todo);
        }
    }

    fn shares(&mut self, table: &[&str], all: &[(&str, Option<f64>)]) {
        for (key, share) in all {
            if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
                let path = [table, &[*key]].concat();
                self.wrong(&path, "is not a share", "Write a number from 0 to 1.");
            }
        }
    }

    fn one_threshold(&mut self, table: &[&str], says: &[(&str, bool)]) {
        let raw: Vec<&str> = says.iter().filter(|(_, is)| *is).map(|(key, _)| *key).collect();
        if let [one, other, ..] = &raw[..] {
            let what = format!("cannot be set together with {other}");
            let path = [table, &[*one]].concat();
            self.wrong(&path, &what, "Set one of them.");
        }
    }

    /// Checks that compaction leaves something, and has instructions.
    fn compact(&mut self, raw: &RawConfig) {
        let compact = &raw.compact;
        self.shares(
            &["compact"],
            &[("threshold", Some(compact.threshold)), ("prepare", Some(compact.prepare))],
        );
        let share = self.is_set(&["compact"], "threshold");
        self.one_threshold(
            &["compact"],
            &[("threshold_tokens", compact.threshold_tokens.is_some()), ("threshold", share)],
        );
        if compact.prompt.trim().is_empty() {
            let what = "is empty: the model gets no instruction";
            self.wrong(&["compact", "prompt"], what, "Write a few words, or remove it.");
        }
        if compact.timeout_s == 0 {
            let remedy = "Write 1 or more, or engine = \"off\".";
            self.wrong(&["compact", "timeout_s"], "leaves nothing", remedy);
        }
        self.wait(&["compact"], compact.wait_s);
        if let Some(upstream) = &compact.upstream
            && !is_there(raw, upstream)
        {
            let what = format!("{upstream:?} is not an upstream");
            self.wrong(&["compact", "upstream"], &what, "Name one of [upstream], or a built-in.");
        }
    }

    /// Checks that a count that decides is not turned off.
    fn estimate(&mut self, raw: &ClassicPolicy) {
        let is_off = !raw.classic && self.is_set(&["estimate"], "classic");
        if is_off && raw.decides != ClassicRole::Nothing {
            self.wrong(
                &["estimate", "classic"],
                "is off, but estimate.decides needs it",
                "Set estimate.decides = \"nothing\", or turn it on.",
            );
        }
    }

    fn vocabulary(&mut self, raw: Option<&str>) -> Option<String> {
        let raw = raw?;
        let file = self.file(&["estimate", "gemini_vocabulary"], raw);
        let read = std::fs::read(&file).map_err(|error| format!("{raw}: {error}"));
        let checked =
            read.and_then(|file| bpe::fits(&file).map_err(|error| format!("{raw} {error}")));
        if let Err(what) = checked {
            let todo =
                "Name the tokenizer.model or tokenizer.json of a Gemma 3 model, or remove it.";
            self.wrong(&["estimate", "gemini_vocabulary"], &what, todo);
        }
        Some(file.display().to_string())
    }

    /// Warns of keys that lose against another one, which may be a preset's, and says which wins.
    fn lost_keys(&mut self, raw: &RawConfig) {
        let RawConfig { prune, compact, .. } = raw;
        let has_pressure = prune.gate.contains(&PruneGate::Pressure);
        for key in ["pressure", "low_water"] {
            if !has_pressure && self.is_users(&["prune", key]) {
                self.loses(&["prune", key], &["prune", "gate"], "has no `pressure`");
            }
        }
        let reasoning = &raw.reasoning;
        if !reasoning.include_in_context && reasoning.strip_from_context == StripPolicy::AllButLast
        {
            self.wins(
                "reasoning.strip_from_context: `all_but_last` has no effect, because \
                 include_in_context = false wins: all reasoning is removed. Remove one of them.",
            );
        }
        if reasoning.strip() != StripPolicy::None
            && reasoning.reinject == ReinjectPolicy::Auto
            && self.is_set(&["reasoning"], "reinject")
        {
            let place = self.entry.place(&["reasoning", "reinject"]);
            self.wins(&format!(
                "{place}: reasoning.reinject: `auto` puts back only what the provider refuses to miss, \
                 because the keys that remove reasoning win.",
            ));
        }
        for key in ["keep_messages", "keep_tokens"] {
            if compact.keep_history.is_some() && self.is_users(&["compact", key]) {
                self.loses(&["compact", key], &["compact", "keep_history"], "is set");
            }
        }
        if compact.keep_at_least && self.is_users(&["compact", "keep_tokens"]) {
            let loser = ["compact", "keep_tokens"];
            self.loses(&loser, &["compact", "keep_at_least"], "is true");
        }
    }

    fn loses(&mut self, key: &[&str], winner: &[&str], why: &str) {
        let place = self.entry.place(winner);
        let (key, winner) = (key.join("."), winner.join("."));
        self.wins(&format!("{key} has no effect, because {winner} {why} ({place})."));
    }

    fn is_users(&self, path: &[&str]) -> bool {
        let entry = self.entry.at(path);
        entry.is_some_and(|entry| !matches!(entry.place, ConfigPlace::Preset(_)))
    }

    fn is_set(&self, table: &[&str], key: &str) -> bool {
        self.entry.keys(table).iter().any(|raw| raw == key)
    }
}

fn is_there(raw: &RawConfig, name: &str) -> bool {
    raw.upstream.contains_key(name)
        || crate::config::built_in::BUILT_IN.iter().any(|one| one.name == name)
}
