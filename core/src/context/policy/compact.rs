//! Policy of compaction: the keys of `[compact]`, and those that can be set for a single upstream or model.
//!
//! Doc comments here are the text in `config/default.toml`. Pure values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

/// Compaction: when a history fills the window, a summary replaces its beginning for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompactPolicy {
    /// Who writes summaries. `summary`: the model, in a request that Plimsoll makes with the client's
    /// credentials. `provider`: Anthropic's compaction block or OpenAI's `/responses/compact`; reasoning in the
    /// messages that stay remains valid; if the provider supports neither, nothing is compacted. `auto`: the
    /// provider if it has one of these and has not refused it, else `summary`. `off`: nothing is compacted. A
    /// provider's summary uses its own prompt, quotes nothing and is not valid for another model.
    pub engine: SummaryEngine,
    /// Past this share of the fillable window (the window less the output reserve, or less a quarter if the
    /// reserve is half of it or more) a summary replaces the beginning of the history, as soon as it is
    /// written. This needs a known window: for models that Plimsoll does not know, set `window_tokens` under
    /// `[model]` or `[upstream]`.
    pub threshold: f64,
    /// Instead of `threshold`: a summary replaces the beginning past this many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_tokens: Option<u64>,
    /// Instead of `threshold`: a summary replaces the beginning once fewer tokens than this are left of the
    /// fillable window.
    #[schemars(extend("presetOnly" = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_buffer_tokens: Option<u64>,
    /// Whether the part of the window past the threshold is shown as its own category, `Autocompact
    /// buffer`, where free space ends (as Claude Code does). If nothing is compacted it is 500 tokens.
    #[schemars(extend("presetOnly" = true))]
    pub show_buffer: bool,
    /// What is compared with the threshold: the `estimate` of the next request, or the `last_call` as
    /// its provider reported it, less what it wrote to its cache (as opencode does). Then a request that does not
    /// fit is compacted once its provider says so.
    #[schemars(extend("presetOnly" = true))]
    pub watches: ThresholdBasis,
    /// Past this share of the threshold the summary is written in the background, unless cuts that wait will make
    /// enough room. 1: only when it is needed.
    pub prepare: f64,
    /// Most of the newest messages that stay word for word; the newest step always stays. Calls and their
    /// results stay together.
    pub keep_messages: u32,
    /// `true`: at least `keep_messages` messages stay, however large; the cut moves back so that no call loses
    /// its result (as micro-compaction does).
    #[schemars(extend("presetOnly" = true))]
    pub keep_at_least: bool,
    /// Most tokens of the messages that stay word for word.
    pub keep_tokens: u64,
    /// Largest share of the fillable window for the messages that stay word for word.
    #[schemars(extend("presetOnly" = true))]
    pub keep_share: f64,
    /// Between two summaries of a thread at least this share of the threshold is added to it. So fewer messages stay
    /// word for word where a summary would leave less than this free. If a summary is due sooner, none is written
    /// until the provider says that the request does not fit. 0: there is no such limit.
    #[schemars(extend("presetOnly" = true))]
    pub lasting_share: f64,
    /// Instead of `keep_messages`, `keep_tokens` and `keep_share`: the newest part of the history stays, this
    /// share of it by length, beginning with a message of the user (as Gemini CLI does).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("presetOnly" = true))]
    pub keep_history: Option<f64>,
    /// Whether the user's first message is quoted together with the summary, up to 2,000 bytes of it.
    #[schemars(extend("presetOnly" = true))]
    pub keep_first: bool,
    /// Messages of the user that contain one of these texts are quoted together with the summary.
    pub pinned: Vec<String>,
    /// Most tokens of the user's newest messages before the cut that are quoted together with the summary; at
    /// most a sixteenth of the fillable window, and up to 2,000 bytes of each message. 0: only the first message
    /// and those with a pinned text.
    #[schemars(extend("presetOnly" = true))]
    pub quote_tokens: u64,
    /// Whether a request past the threshold waits for its summary, as one that does not fit the window does.
    #[schemars(extend("presetOnly" = true))]
    pub wait_at_threshold: bool,
    /// How long a request that does not fit the window waits for summaries, in all. At most 45: some clients
    /// give up after 60 s. Plimsoll cannot send them anything meanwhile, because the status is not known before
    /// the upstream answers. 0: it never waits.
    pub wait_s: u64,
    /// How long writing a summary may take.
    pub timeout_s: u64,
    /// Most bytes of a summary; a longer one is thrown away.
    #[serde(skip)]
    pub max_bytes: u64,
    /// Seconds to wait after a failed summary before the thread asks for another.
    pub cool_down_s: u64,
    /// After this many failures in a row no summary is asked for in the thread until it shrinks.
    #[serde(skip)]
    pub max_failures: u32,
    /// The upstream that writes summaries, with its own `credential`, instead of the request's upstream. It
    /// must speak the same protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// The model that writes summaries, in place of the request's. Another model reads the history at
    /// full price, because the provider's cache belongs to the request's model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The prompt for the summary. Plimsoll adds that the summary is only a record, and
    /// must give no instructions in anyone's name.
    pub prompt: String,
    /// What the summary should focus on, in addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub focus: Option<String>,
    /// The model's reply to a summary, or the end of the summary if a message of the model follows. `{type}`
    /// becomes `auto`, or `manual` if the summary was requested; `{messages}` becomes the number of messages
    /// before. Empty: none, so that two user messages may follow each other. Providers accept that, some local
    /// models do not.
    pub boundary: String,
}

/// What is said of compaction for one upstream or one model alone; the rest is as `[compact]` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompactOverride {
    /// Who writes summaries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<SummaryEngine>,
    /// Past this share of the fillable window a summary replaces the beginning of a history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Instead of `threshold`: a summary replaces the beginning past this many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_tokens: Option<u64>,
}

impl CompactOverride {
    fn has_threshold(&self) -> bool {
        self.threshold_tokens.is_some() || self.threshold.is_some()
    }
}

/// What is held against a threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThresholdBasis {
    /// What the next call is estimated to cost.
    #[default]
    Estimate,
    /// What the last call was reported to have read.
    LastCall,
}

/// What clients are told of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportedUsage {
    /// What the provider reports.
    #[default]
    Actual,
    /// The same with what was cut and compacted added to the input.
    Unpruned,
}

/// Who writes summaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SummaryEngine {
    /// The model, in a request of our own.
    #[default]
    Summary,
    /// The provider, in its own form.
    Provider,
    /// The provider where it has one, else the model.
    Auto,
    /// Nobody.
    Off,
}

/// Who wrote a summary; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SummaryAuthor {
    /// The model, at Plimsoll's request.
    Summary,
    /// The provider, in a sealed form that only it can read.
    Provider,
}

impl SummaryAuthor {
    /// The author as text.
    pub fn description(self) -> &'static str {
        match self {
            SummaryAuthor::Summary => "written by the model at Plimsoll's request",
            SummaryAuthor::Provider => "written by the provider",
        }
    }
}

/// The default prompt for summaries.
const PROMPT: &str = "\
Stop here. Do not go on with the task and do not call any tool. Write a summary of the conversation so \
far, from which another instance of you, that sees nothing of it but this summary and the newest \
messages, can go on without asking again. If the conversation begins with a summary of what came \
before it, carry over everything in it that still matters.\n\
\n\
Write plain text under these headings, and leave out none of them:\n\
1. Requests: everything the user asked for, told in the third person.\n\
2. Decisions: what was decided and why, what was tried and given up, what the user corrected.\n\
3. Files and names: every file, function, command, address, identifier and value that matters, exactly \
as written, with what was read or changed there.\n\
4. Code: pieces of code that are needed to go on, word for word.\n\
5. Errors: what went wrong, the exact messages, and how it was solved.\n\
6. Pending: what was asked for and is not done.\n\
7. Now: what was being done in the newest messages, and the next step.\n\
\n\
Answer with the summary alone, inside <summary> and </summary>.";

impl Default for CompactPolicy {
    fn default() -> Self {
        Self {
            engine: SummaryEngine::Summary,
            threshold: 0.95,
            threshold_tokens: None,
            threshold_buffer_tokens: None,
            show_buffer: false,
            watches: ThresholdBasis::Estimate,
            prepare: 0.95,
            keep_messages: 8,
            keep_at_least: false,
            keep_tokens: 20_000,
            keep_share: 0.15,
            lasting_share: 0.333,
            keep_history: None,
            keep_first: true,
            pinned: Vec::new(),
            quote_tokens: 2000,
            wait_at_threshold: false,
            wait_s: 30,
            timeout_s: 180,
            max_bytes: 64 * 1024,
            cool_down_s: 120,
            max_failures: 3,
            upstream: None,
            model: None,
            prompt: PROMPT.to_owned(),
            focus: None,
            boundary: "[The conversation goes on below.]".to_owned(),
        }
    }
}

impl CompactPolicy {
    /// The same with the settings of an upstream or model applied.
    #[must_use]
    pub fn with(&self, over: &CompactOverride) -> Self {
        let mut compact = self.clone();
        if over.has_threshold() {
            compact.threshold_tokens = over.threshold_tokens;
            compact.threshold_buffer_tokens = None;
            compact.threshold = over.threshold.unwrap_or(compact.threshold);
        }
        compact.engine = over.engine.unwrap_or(compact.engine);
        compact
    }

    /// Tokens above which a history is compacted, if a request may fill `fillable` of the window.
    pub fn threshold(&self, fillable: u64) -> u64 {
        let tokens = match (self.threshold_tokens, self.threshold_buffer_tokens) {
            (Some(tokens), _) => tokens,
            (None, Some(buffer)) => fillable.saturating_sub(buffer),
            (None, None) => (self.threshold * fillable as f64) as u64,
        };
        tokens.min(fillable)
    }

    pub(crate) fn prepare_threshold(&self, fillable: u64) -> u64 {
        (self.prepare * self.threshold(fillable) as f64) as u64
    }

    /// What stands between a summary of this many messages and what follows.
    pub(crate) fn boundary(&self, messages: usize, is_requested: bool) -> Option<String> {
        let kind = if is_requested { "manual" } else { "auto" };
        let text = self.boundary.replace("{type}", kind);
        let text = text.replace("{messages}", &messages.to_string());
        // A message without text would be refused.
        if text.trim().is_empty() { None } else { Some(text) }
    }

    pub(crate) fn most_after(&self, fillable: u64) -> u64 {
        // So that the next summary is not due soon.
        match self.lasting_share > 0.0 {
            true => ((1.0 - self.lasting_share) * self.threshold(fillable) as f64) as u64,
            false => u64::MAX,
        }
    }

    pub(crate) fn tail(&self, fillable: u64) -> u64 {
        self.keep_tokens.min((self.keep_share * fillable as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_is_share_or_tokens_or_leaves_token_buffer() {
        let share = CompactPolicy { threshold: 0.5, prepare: 0.9, ..CompactPolicy::default() };
        assert_eq!(share.threshold(180_000), 90_000);
        assert_eq!(share.prepare_threshold(180_000), 81_000);
        let tokens = CompactPolicy { threshold_tokens: Some(100_000), ..share.clone() };
        assert_eq!(tokens.threshold(180_000), 100_000);
        assert_eq!(tokens.threshold(50_000), 50_000);
        let left = CompactPolicy { threshold_buffer_tokens: Some(13_000), ..share };
        assert_eq!(left.threshold(180_000), 167_000);
        assert_eq!(left.threshold(5_000), 0);
    }

    #[test]
    fn override_replaces_threshold() {
        let base = CompactPolicy { threshold_tokens: Some(100_000), ..CompactPolicy::default() };
        let engine =
            CompactOverride { engine: Some(SummaryEngine::Off), ..CompactOverride::default() };
        assert_eq!(
            base.with(&engine),
            CompactPolicy { engine: SummaryEngine::Off, ..base.clone() }
        );
        let share = CompactOverride { threshold: Some(0.5), ..CompactOverride::default() };
        assert_eq!(base.with(&share).threshold(180_000), 90_000);
        let tokens = CompactOverride { threshold_tokens: Some(7), ..CompactOverride::default() };
        assert_eq!(base.with(&share).with(&tokens).threshold(180_000), 7);
        assert_eq!(base.with(&CompactOverride::default()), base);
    }
}
