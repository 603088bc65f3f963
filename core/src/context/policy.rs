//! Policy: what may be changed in a request, as resolved from the configuration.
//!
//! Pure values with careful defaults: reasoning that a client dropped is put back, and tool results are cut
//! only under pressure or if the cache is cold anyway. These are also the keys of `[prune]`, `[reasoning]`
//! and `[estimate]`: their doc comments are the text in `config/default.toml`.

mod compact;
mod heal;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};
use xxhash_rust::xxh3::xxh3_64;

use crate::tokens::classic::ClassicRules;
pub(crate) use compact::ThresholdBasis;
pub use compact::{CompactOverride, CompactPolicy, ReportedUsage, SummaryAuthor, SummaryEngine};
pub use heal::{ImageRepair, RepairPolicy};

/// Draws a number from 0 to 1 for an id, always the same one: what is done for a share of all ids is done for those
/// whose number is below it.
pub fn draw(id: &str) -> f64 {
    (xxh3_64(id.as_bytes()) >> 11) as f64 / (1u64 << 53) as f64
}

/// How far we may go with a request; a later one goes further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// Decide nothing new. What a thread was rewritten to before is repeated, because its cache and
    /// its reasoning rest on it.
    Observe,
    /// Decide and measure, but send the original.
    Shadow,
    /// Rewrite where policy says so.
    #[default]
    Active,
}

impl Mode {
    /// The decisions that a request in this mode uses: in mode observe those that were sent.
    pub fn decisions(self) -> DecisionMode {
        match self {
            Self::Observe | Self::Active => DecisionMode::Active,
            Self::Shadow => DecisionMode::Shadow,
        }
    }
}

/// The mode that a decision is made in. The decisions of one mode are not used in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecisionMode {
    /// It is sent.
    Active,
    /// It is measured, and never sent.
    Shadow,
}

impl DecisionMode {
    /// The mode of a stored decision, which says whether it was made in shadow mode.
    pub(super) fn of_stored(shadow: bool) -> Self {
        if shadow { Self::Shadow } else { Self::Active }
    }
}

/// What may be changed, and when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// For old tool results.
    pub prune: PrunePolicy,
    /// For reasoning.
    pub reasoning: ReasoningPolicy,
    /// For histories that fill the window.
    pub compact: CompactPolicy,
    /// For a second count of every request.
    pub estimate: ClassicPolicy,
    /// For changes that answer refusals.
    pub heal: RepairPolicy,
    /// Which usage is reported to clients.
    pub client_usage: ReportedUsage,
    /// A request takes the first of the queued messages alone.
    pub one_queued_message: bool,
    /// What is asked about the provider's cache.
    pub cache: DiagnosisPolicy,
}

/// What is asked about the provider's cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiagnosisPolicy {
    /// Whether Plimsoll asks the provider why its cache was missed if the client does not, and hides the answer from
    /// the client: Anthropic's `diagnostics`, and `prompt_cache_options` of OpenAI's Responses from GPT-5.6 on. The
    /// reason is in log, metrics, API and `plimsoll explain`. Both providers keep hashes of the prompt for it, for a
    /// short time.
    pub diagnose: bool,
}

/// How requests are counted beside our own estimate: by the rules of a known agent, by the provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassicPolicy {
    /// Whether requests are also counted by `rules`. Metrics, log lines and API then show the error of
    /// that count, too.
    pub classic: bool,
    /// What that count is used for: `nothing`, or the `budget`: which tool results are cut, and when histories
    /// are compacted. It is then also the number that is shown.
    pub decides: ClassicRole,
    /// The rules of that other count.
    #[schemars(extend("presetOnly" = true))]
    pub rules: ClassicRules,
    /// When the provider's own counting endpoint is asked, with the client's credentials. `off`; `cold` (no call
    /// was measured before it); `near_threshold` (past 80 % of the fillable window); `media` (requests with
    /// pictures or documents, as Gemini CLI does); `sample:0.01` (this share of the rewritten requests, counted as
    /// the client sent them, so that the provider checks what was saved). The request waits only where the
    /// `rules` decide and new messages have media: up to 5 s, and the count decides.
    pub count: CountSchedule,
    /// A file with the vocabulary of Gemini's tokenizer, which Plimsoll may not ship: the `tokenizer.model` or
    /// `tokenizer.json` of a Gemma 3 model. With it Gemini's tokens are counted; without it they are estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gemini_vocabulary: Option<String>,
}

/// When a counting endpoint is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CountSchedule {
    /// Never.
    #[default]
    Off,
    /// If there is no anchor.
    Cold,
    /// Near the end of the fillable window.
    NearThreshold,
    /// If there are images or documents.
    Media,
    /// For this share of the rewritten requests, between 0 and 1.
    Sample(f64),
}

impl TryFrom<String> for CountSchedule {
    type Error = String;

    fn try_from(value: String) -> Result<Self, String> {
        match value.as_str() {
            "off" => return Ok(CountSchedule::Off),
            "cold" => return Ok(CountSchedule::Cold),
            "near_threshold" => return Ok(CountSchedule::NearThreshold),
            "media" => return Ok(CountSchedule::Media),
            _ => {}
        }
        let share = value.strip_prefix("sample:").and_then(|share| share.parse().ok());
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        share.map(CountSchedule::Sample).ok_or_else(|| {
            format!(
                "{value:?} is none of `off`, `cold`, `near_threshold`, `media` and `sample:SHARE` with a share \
                 between 0 and 1"
            )
        })
    }
}

impl From<CountSchedule> for String {
    fn from(ask: CountSchedule) -> Self {
        match ask {
            CountSchedule::Off => "off".to_owned(),
            CountSchedule::Cold => "cold".to_owned(),
            CountSchedule::NearThreshold => "near_threshold".to_owned(),
            CountSchedule::Media => "media".to_owned(),
            CountSchedule::Sample(share) => format!("sample:{share}"),
        }
    }
}

impl JsonSchema for CountSchedule {
    fn schema_name() -> Cow<'static, str> {
        "CountSchedule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "When a counting endpoint is asked.",
            "type": "string",
            "pattern": "^(off|cold|near_threshold|media|sample:(0(\\.[0-9]+)?|1(\\.0+)?))$",
        })
    }
}

/// What the classic count decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClassicRole {
    /// Nothing: it stands beside ours.
    #[default]
    Nothing,
    /// What is cut, what is compacted, and what is shown.
    Budget,
}

impl ClassicPolicy {
    pub(super) fn rules(&self) -> Option<&ClassicRules> {
        if self.classic || self.decides != ClassicRole::Nothing { Some(&self.rules) } else { None }
    }

    /// The rules, if they decide.
    pub fn deciding(&self) -> Option<&ClassicRules> {
        match self.decides {
            ClassicRole::Nothing => None,
            ClassicRole::Budget => Some(&self.rules),
        }
    }
}

/// Old tool results, which are cut down to a placeholder: block, id and place stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrunePolicy {
    /// When old results may be cut: `pressure` (the window fills), `cold_cache` (the provider's cache has
    /// expired or is empty, so that a cut costs nothing), `pays_back` (the saving pays for the broken cache
    /// within seven turns), `always`. Empty: never.
    pub gate: Vec<PruneGate>,
    /// There is pressure past this share of the fillable window (the window less the output reserve, or
    /// less a quarter if the reserve is half of it or more).
    pub pressure: f64,
    /// Instead of `pressure`: there is pressure when fewer tokens than this are left of the fillable window.
    #[schemars(extend("presetOnly" = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_buffer_tokens: Option<u64>,
    /// Under pressure a cut must make room for several turns: of the room above what no cut takes away (system
    /// prompt, tools, the newest messages) at most this share may stay filled. It must also pay for the broken
    /// cache within seven turns, until a summary would be used. Otherwise Plimsoll waits. It stops waiting
    /// when the request does not fit the fillable window. 1: it never waits.
    pub low_water: f64,
    /// How many of the newest tokens of the history are never cut.
    pub protect_tokens: u64,
    /// Which tokens count for `protect_tokens`: `all` of the history, or only the `results` that could be cut. With
    /// `results` the tokens of the placeholder are not subtracted from the saving of a cut.
    #[schemars(extend("presetOnly" = true))]
    pub protect_counts: ProtectUnit,
    /// How many of the newest messages are never cut.
    pub protect_messages: u32,
    /// In a small window less is protected: `protect_tokens` and `protect_messages` reach over at most this share
    /// of the room above system prompt and tools, and a cut need save no more than that share. The newest four
    /// messages stay whole. 1: there is no such limit.
    #[schemars(extend("presetOnly" = true))]
    pub protect_share: f64,
    /// How many of the newest turns are never cut. A turn begins with a message of the user.
    #[schemars(extend("presetOnly" = true))]
    pub protect_turns: u32,
    /// A cut must save at least this many tokens; until then it waits.
    pub min_saving_tokens: u64,
    /// Conversations with fewer messages are not pruned.
    pub min_messages: u32,
    /// Only results of these tools are cut; a `*` at the end matches any rest. Empty: results of all tools.
    pub tools: Vec<String>,
    /// Results of these tools are never cut.
    pub except_tools: Vec<String>,
    /// Whether results that report an error are kept.
    pub keep_errors: bool,
    /// Whether pictures and documents in a result are kept.
    pub keep_media: bool,
    /// Whether old pictures in the user's own messages are cut like old results: by the same gates, with the
    /// newest protected, counted among the results. A text replaces each picture.
    pub media: bool,
    /// Whether results before a summary are left alone.
    #[schemars(extend("presetOnly" = true))]
    pub stop_at_summary: bool,
    /// Whether results before one that Plimsoll or the client cut earlier are left alone.
    #[schemars(extend("presetOnly" = true))]
    pub stop_at_cut: bool,
    /// The text that replaces a cut result. `{tool}` and `{tokens}` are filled in.
    pub placeholder: String,
    /// The number of turns within which a cut must pay for itself, with the gates `pays_back` and `pressure`.
    #[serde(skip)]
    pub horizon_turns: u32,
    /// A single result larger than this is cut to its head and tail when it is first seen. Without this key,
    /// only a result that does not fit the window is cut so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_result_tokens: Option<u64>,
    /// Who cuts old results: `rewrite` (Plimsoll), `provider` (Anthropic's own context editing; with other
    /// providers nobody), `auto` (the provider if it supports this and reasoning is bound to the prefix, else
    /// Plimsoll). Plimsoll sends the provider the tools, `pressure` or `always`, `min_saving_tokens`, and
    /// `protect_messages` as the number of tool uses to keep. The provider keeps neither errors nor pictures,
    /// and uses its own placeholder. A request that brings its own `context_management` keeps it.
    pub method: PruneMethod,
    /// Whether old results may be cut even if that makes later reasoning invalid, because the model
    /// binds reasoning to everything before it.
    pub accept_reasoning_loss: bool,
    /// The share of sessions, 0 to 1, that is left unchanged for comparison.
    pub hold_out: f64,
}

/// Of what the newest tokens are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProtectUnit {
    /// Of the whole history.
    #[default]
    All,
    /// Of the results that could be cut.
    Results,
}

/// When old results may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PruneGate {
    /// The window fills.
    Pressure,
    /// The provider's cache is cold anyway.
    ColdCache,
    /// The saving pays for the broken cache in time.
    PaysBack,
    /// Whenever there is enough to cut.
    Always,
}

/// Who cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PruneMethod {
    /// We rewrite the request.
    #[default]
    Rewrite,
    /// The provider's context editing.
    Provider,
    /// The provider's where our own cut would void reasoning.
    Auto,
}

/// Reasoning: what a client drops, and what the model is given back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReasoningPolicy {
    /// Whether reasoning that a client dropped is put back where the provider expects it: `auto` or `off`. With
    /// `off` no reasoning is stored.
    pub reinject: ReinjectPolicy,
    /// Whether reasoning that clients send back counts as part of the context. `false` removes it, like
    /// `strip_from_context = "all"`, whatever that key says.
    pub include_in_context: bool,
    /// Reasoning to remove from requests, if the provider allows it: `none`, `all`, or `all_but_last` (the
    /// newest reply keeps its own).
    pub strip_from_context: StripPolicy,
    /// Whether Plimsoll asks for a summary of the model's thinking, if the client asks for thinking and does not
    /// say how to show it: `as_asked` (never), or `summarized`. A thread's first request decides this for its whole
    /// life.
    pub display: ThinkingDisplay,
}

/// How thinking is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingDisplay {
    /// As the client asks.
    #[default]
    #[serde(rename = "as_asked")]
    AsRequested,
    /// As a summary.
    Summarized,
}

/// Whether dropped reasoning is put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReinjectPolicy {
    /// Where the provider wants it.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// Reasoning that is taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StripPolicy {
    /// None.
    #[default]
    None,
    /// All.
    All,
    /// All but the newest reply's.
    AllButLast,
}

/// What an upstream does with reasoning that is sent back to it (`docs/protocols.md` 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningRule {
    /// It answers 400 where it is missing.
    Demanded,
    /// It works better with it.
    Wanted,
    /// It ignores or refuses it.
    Unwanted,
}

impl Default for PrunePolicy {
    fn default() -> Self {
        Self {
            gate: vec![PruneGate::Pressure, PruneGate::ColdCache],
            pressure: 0.6,
            pressure_buffer_tokens: None,
            low_water: 0.4,
            protect_tokens: 20_000,
            protect_counts: ProtectUnit::All,
            protect_messages: 8,
            protect_share: 0.25,
            protect_turns: 0,
            min_saving_tokens: 20_000,
            min_messages: 10,
            tools: Vec::new(),
            except_tools: Vec::new(),
            keep_errors: true,
            keep_media: true,
            media: false,
            stop_at_summary: true,
            stop_at_cut: false,
            placeholder: "[Old tool result content cleared]".to_owned(),
            horizon_turns: 7,
            max_result_tokens: None,
            method: PruneMethod::Rewrite,
            accept_reasoning_loss: false,
            hold_out: 0.0,
        }
    }
}

impl Default for ReasoningPolicy {
    fn default() -> Self {
        Self {
            reinject: ReinjectPolicy::Auto,
            include_in_context: true,
            strip_from_context: StripPolicy::None,
            display: ThinkingDisplay::AsRequested,
        }
    }
}

impl ReasoningPolicy {
    /// What is removed, from both keys together.
    pub fn strip(&self) -> StripPolicy {
        if self.include_in_context { self.strip_from_context } else { StripPolicy::All }
    }
}

impl PrunePolicy {
    /// The token count above which there is pressure, if a request may fill `fillable` of the window.
    pub fn threshold(&self, fillable: u64) -> f64 {
        match self.pressure_buffer_tokens {
            Some(buffer) => fillable.saturating_sub(buffer) as f64,
            None => self.pressure * fillable as f64,
        }
    }

    /// The most tokens that a cut may leave under pressure, if `uncuttable` of the `fillable` tokens of a window
    /// cannot be cut.
    pub(super) fn low_water(&self, fillable: u64, uncuttable: u64) -> u64 {
        let room = fillable.saturating_sub(uncuttable);
        uncuttable + (self.low_water * room as f64) as u64
    }

    pub(super) fn share_of(&self, room: u64) -> u64 {
        if self.protect_share >= 1.0 { u64::MAX } else { (self.protect_share * room as f64) as u64 }
    }

    pub(super) fn covers(&self, tool: Option<&str>) -> bool {
        let tool = tool.unwrap_or_default();
        (self.tools.is_empty() || matches_any(&self.tools, tool))
            && !matches_any(&self.except_tools, tool)
    }

    pub(super) fn placeholder_text(&self, tool: Option<&str>, tokens: u64) -> String {
        let filled = self.placeholder.replace("{tool}", tool.unwrap_or("tool"));
        filled.replace("{tokens}", &tokens.to_string())
    }
}

fn matches_any(patterns: &[String], tool: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, tool))
}

fn matches(pattern: &str, tool: &str) -> bool {
    // A `*` at the end matches any rest.
    match pattern.strip_suffix('*') {
        Some(start) => tool.starts_with(start),
        None => pattern == tool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_selected_by_name_or_prefix() {
        let mut prune = PrunePolicy::default();
        assert!(prune.covers(Some("Read")));
        assert!(prune.covers(None));
        prune.tools = vec!["Read".into(), "mcp__*".into()];
        prune.except_tools = vec!["mcp__notes__*".into()];
        assert!(prune.covers(Some("Read")));
        assert!(prune.covers(Some("mcp__web__get")));
        assert!(!prune.covers(Some("Reader")));
        assert!(!prune.covers(Some("mcp__notes__add")));
        assert!(!prune.covers(None));
    }

    #[test]
    fn placeholders_name_tool_and_size() {
        let prune = PrunePolicy {
            placeholder: "[{tool}: {tokens} tokens]".into(),
            ..PrunePolicy::default()
        };
        assert_eq!(prune.placeholder_text(Some("Read"), 1200), "[Read: 1200 tokens]");
        assert_eq!(prune.placeholder_text(None, 7), "[tool: 7 tokens]");
    }

    #[test]
    fn pressure_threshold_is_share_or_leaves_token_buffer() {
        let share = PrunePolicy { pressure: 0.5, ..PrunePolicy::default() };
        assert!((share.threshold(180_000) - 90_000.0).abs() < 1e-9);
        let left = PrunePolicy { pressure_buffer_tokens: Some(13_000), ..share };
        assert!((left.threshold(180_000) - 167_000.0).abs() < 1e-9);
        assert!(left.threshold(5_000).abs() < 1e-9);
    }

    #[test]
    fn uncounted_reasoning_is_removed() {
        let left_out = ReasoningPolicy { include_in_context: false, ..ReasoningPolicy::default() };
        assert_eq!(left_out.strip(), StripPolicy::All);
        assert_eq!(ReasoningPolicy::default().strip(), StripPolicy::None);
    }

    /// Each schedule is parsed and written alike, its schema allows it, and an unknown word is an error.
    #[test]
    fn count_schedule_round_trips() {
        let schema = CountSchedule::json_schema(&mut SchemaGenerator::default());
        let pattern = schema.get("pattern").and_then(|it| it.as_str()).unwrap().to_owned();
        assert_eq!(schema.get("type").and_then(|it| it.as_str()), Some("string"));
        assert_eq!(CountSchedule::schema_name(), "CountSchedule");
        let schedules = [
            ("off", CountSchedule::Off),
            ("cold", CountSchedule::Cold),
            ("near_threshold", CountSchedule::NearThreshold),
            ("media", CountSchedule::Media),
            ("sample:0.25", CountSchedule::Sample(0.25)),
        ];
        for (word, schedule) in schedules {
            assert_eq!(CountSchedule::try_from(word.to_owned()), Ok(schedule));
            assert_eq!(String::from(schedule), word);
            assert!(pattern.contains(word.split(':').next().unwrap()), "{pattern}");
        }
        for word in ["", "never", "sample:", "sample:1.5", "sample:-0.1", "sample:NaN"] {
            let error = CountSchedule::try_from(word.to_owned()).unwrap_err();
            assert!(error.starts_with(&format!("{word:?} is none of ")), "{error}");
        }
    }

    /// Requests are counted by the rules if that is configured or if the rules decide.
    #[test]
    fn classic_rules_are_computed_if_configured_or_if_they_decide() {
        let of = |classic, decides| {
            let rules = ClassicRules { name: "mine".into(), ..ClassicRules::default() };
            let policy = ClassicPolicy { classic, decides, rules, ..ClassicPolicy::default() };
            let name = |rules: Option<&ClassicRules>| rules.map(|it| it.name.clone());
            (name(policy.rules()), name(policy.deciding()))
        };
        let mine = || Some("mine".to_owned());
        assert_eq!(of(false, ClassicRole::Nothing), (None, None));
        assert_eq!(of(true, ClassicRole::Nothing), (mine(), None));
        assert_eq!(of(false, ClassicRole::Budget), (mine(), mine()));
    }
}
