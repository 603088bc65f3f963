//! The rules that a test sets, and the rules of each model by its name.
//!
//! For a rule that is not set the model's name decides, as in `docs/protocols.md`; an unknown name gets
//! the strictest rules. Knows nothing of requests.

use super::Dialect;

/// Whether Chat Completions requires the reasoning text back (`docs/protocols.md` 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningEcho {
    /// On every assistant message with tool calls, else 400 (DeepSeek V3.2+, Kimi).
    Required,
    /// Read if it comes back; its absence is a silent loss (GLM, Qwen, MiniMax, OpenRouter, vLLM).
    Optional,
    /// 400 if it comes, and never sent (OpenAI, Mistral, Cerebras, Groq).
    Refused,
}

/// Whether Gemini requires its thought signatures (`docs/protocols.md` 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureRule {
    /// On the first call of each step of the current turn, else 400 (Gemini 3 and later).
    Required,
    /// Checked if they come back; their absence is a silent loss (Gemini 2.5).
    Optional,
}

/// What the provider checks. `None` means: by the model's name.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Claude, GPT: reasoning is bound to the exact prefix (`docs/protocols.md` 1.5, 3.5).
    pub binding: Option<bool>,
    /// Claude: blocks are bound to the account that got them (`docs/protocols.md` 1.5.2).
    pub account_bound: Option<bool>,
    /// Claude: the account is as new as the rule, so that binding holds without asking
    /// (`docs/protocols.md` 1.5.4).
    pub new_account: bool,
    /// Claude: thinking must stand at the start of an open tool loop. `None`: where the request
    /// says `thinking.type: enabled` (`docs/protocols.md` 1.2).
    pub thinking_mandatory: Option<bool>,
    /// Claude, GPT: reasoning of earlier turns is kept, read and counted (`docs/protocols.md` 1.5, 3.5).
    pub keeps_reasoning: Option<bool>,
    /// More pairs of (reader, writer): models that read another's reasoning (`docs/protocols.md` 1.5.1).
    pub readable: Vec<(String, String)>,
    /// Chat Completions: whether `reasoning_content` is required, optional or refused (`docs/protocols.md` 4.2).
    pub reasoning_content: Option<ReasoningEcho>,
    /// Gemini: whether signatures are required or optional (`docs/protocols.md` 5.4).
    pub gemini_signatures: Option<SignatureRule>,
    /// Context window, tokens.
    pub window: Option<u64>,
    /// Smallest prefix that is cached, tokens (`docs/protocols.md` 7).
    pub cache_min: Option<u64>,
    /// Whether fields that the protocol does not know are refused (`docs/protocols.md` 1.1).
    pub unknown_fields_refused: bool,
    /// Whether it compacts on demand (`docs/protocols.md` 1.3, 3.3).
    pub compacts: bool,
    /// Most images in one request (`docs/protocols.md` 1.8).
    pub max_images: usize,
    /// Most bytes of one image, as it is sent (`docs/protocols.md` 1.8).
    pub max_image_bytes: usize,
    /// Most pixels of an image's longer side (`docs/protocols.md` 1.8).
    pub max_image_side: u32,
    /// Most bytes of one request (`docs/protocols.md` 1.6).
    pub max_request_bytes: usize,
    /// Most output tokens of every model; `None`: any number (`docs/protocols.md` 1.8).
    pub max_output_tokens: Option<u64>,
    /// An overflow comes in this wording ([`OVERFLOW_WORDINGS`](super::OVERFLOW_WORDINGS)), and output counts towards
    /// the window; `None`: as the provider of each protocol does it.
    pub overflow_wording: Option<usize>,
    /// The next request for a reply is refused once as far too long, whatever its size.
    pub implausible_overflow: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            binding: None,
            account_bound: None,
            new_account: true,
            thinking_mandatory: None,
            keeps_reasoning: None,
            readable: Vec::new(),
            reasoning_content: None,
            gemini_signatures: None,
            window: None,
            cache_min: None,
            unknown_fields_refused: true,
            compacts: true,
            max_images: 100,
            max_image_bytes: 5 * 1024 * 1024,
            max_image_side: 8_000,
            max_request_bytes: 32 * 1024 * 1024,
            max_output_tokens: None,
            overflow_wording: None,
            implausible_overflow: false,
        }
    }
}

/// How a Chat Completions host writes its errors and carries reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    OpenAi,
    DeepSeek,
    Kimi,
    Mistral,
    Xai,
    /// Names with a vendor before a slash: reasoning in `reasoning_details`.
    OpenRouter,
    /// Gemini behind Chat Completions: signatures in `extra_content`.
    GeminiCompat,
    /// Any other look-alike.
    Compatible,
}

/// The rules of one model.
#[derive(Clone, Debug)]
pub(super) struct ModelRules {
    /// The name without dates, cases and the vendor.
    pub(super) name: String,
    pub(super) binding: bool,
    /// Binding holds without a request for it (`docs/protocols.md` 1.5.4).
    pub(super) binding_enforced: bool,
    pub(super) account_bound: bool,
    pub(super) thinking_mandatory: Option<bool>,
    pub(super) keeps_reasoning: bool,
    pub(super) reasoning_echo: ReasoningEcho,
    pub(super) signature_rule: SignatureRule,
    pub(super) host: Host,
    pub(super) window: u64,
    pub(super) cache_min: u64,
    pub(super) unknown_fields_refused: bool,
    /// Compacts on demand.
    pub(super) compacts: bool,
    /// Always thinks; requests cannot switch it off.
    pub(super) always_thinks: bool,
    /// Refuses an assistant message at the end (`docs/protocols.md` 1.2).
    pub(super) refuses_prefill: bool,
    /// Knows `role: system` among the messages (`docs/protocols.md` 1.2).
    pub(super) system_role: bool,
    /// Hides thinking unless requested (`docs/protocols.md` 1.5).
    pub(super) omits_thinking: bool,
    /// Prompt and `max_tokens` together must fit (`docs/protocols.md` 1.6).
    pub(super) max_tokens_must_fit: bool,
    /// Marks messages with a phase (`docs/protocols.md` 3.5).
    pub(super) phases: bool,
    /// Is a reasoning model (`docs/protocols.md` 3.5).
    pub(super) reasons: bool,
    /// Reports and bills cache writes (`docs/protocols.md` 7.2).
    pub(super) bills_cache_writes: bool,
    readable: Vec<(String, String)>,
}

impl Rules {
    /// The rules of a model.
    pub(super) fn for_model(&self, dialect: Dialect, name: &str) -> ModelRules {
        let plain = plain(name);
        let claude = Claude::from_name(&plain);
        let gpt = version_after(&plain, "gpt-");
        let host = host(name, &plain);
        let named_binding = match dialect {
            Dialect::Anthropic => claude.binding(),
            Dialect::Responses => gpt.is_none_or(|version| version >= (5, 6)),
            Dialect::Chat | Dialect::Gemini => false,
        };
        let binding = self.binding.unwrap_or(named_binding);
        let keeps = match dialect {
            Dialect::Responses => gpt.is_none_or(|version| version >= (5, 6)),
            _ => claude.keeps_thinking(),
        };
        let gemini = version_after(&plain, "gemini-");
        let signature_rule = match gemini {
            Some(version) if version < (3, 0) => SignatureRule::Optional,
            _ => SignatureRule::Required,
        };
        ModelRules {
            binding,
            binding_enforced: self.new_account || claude.binds_every_account(),
            account_bound: self.account_bound.unwrap_or(claude.account_bound()),
            thinking_mandatory: self.thinking_mandatory,
            keeps_reasoning: self.keeps_reasoning.unwrap_or(keeps),
            reasoning_echo: self.reasoning_content.unwrap_or(reasoning_echo(host, &plain)),
            signature_rule: self.gemini_signatures.unwrap_or(signature_rule),
            host,
            window: self.window.unwrap_or(window(dialect, claude, &plain, gpt)),
            cache_min: self.cache_min.unwrap_or(cache_min(dialect, claude, gemini, host)),
            unknown_fields_refused: self.unknown_fields_refused,
            compacts: self.compacts,
            always_thinks: claude.always_thinks(),
            refuses_prefill: claude.at_least(4, 6),
            system_role: claude.at_least(4, 5),
            omits_thinking: claude.at_least(4, 7),
            max_tokens_must_fit: !claude.at_least(4, 5),
            phases: gpt.is_none_or(|version| version >= (5, 3)),
            reasons: gpt.is_none_or(|version| version >= (5, 0)),
            bills_cache_writes: gpt.is_some_and(|version| version >= (5, 6)),
            readable: self.readable.clone(),
            name: plain,
        }
    }
}

impl ModelRules {
    /// Whether this model reads the reasoning of `writer` (`docs/protocols.md` 1.5.1).
    pub(super) fn reads(&self, writer: &str) -> bool {
        let pairs =
            [("claude-fable-5-1", "claude-opus-5"), ("claude-fable-5-1", "claude-opus-5-5")];
        self.name == writer
            || pairs.contains(&(self.name.as_str(), writer))
            || self
                .readable
                .iter()
                .any(|(reader, other)| plain(reader) == self.name && plain(other) == writer)
    }
}

/// A Claude by family and version; unknown names count as the newest.
#[derive(Clone, Copy, Debug)]
struct Claude {
    family: ClaudeFamily,
    version: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaudeFamily {
    Haiku,
    Sonnet,
    Opus,
    Fable,
    Mythos,
    Unknown,
}

impl Claude {
    fn from_name(plain: &str) -> Self {
        let families = [
            ("haiku", ClaudeFamily::Haiku),
            ("sonnet", ClaudeFamily::Sonnet),
            ("opus", ClaudeFamily::Opus),
            ("fable", ClaudeFamily::Fable),
            ("mythos", ClaudeFamily::Mythos),
        ];
        let entry = families.iter().find(|(word, _)| plain.contains(word));
        let Some((word, family)) = entry else {
            return Self { family: ClaudeFamily::Unknown, version: (u32::MAX, 0) };
        };
        // `claude-opus-4-5`, before that `claude-3-5-sonnet`.
        let version = version_after(plain, &format!("{word}-"))
            .or_else(|| version_after(plain, "claude-"))
            .unwrap_or((u32::MAX, 0));
        Self { family: *family, version }
    }

    fn at_least(self, major: u32, minor: u32) -> bool {
        self.version >= (major, minor)
    }

    fn binding(self) -> bool {
        // `docs/protocols.md` 1.5, preserved thinking.
        match self.family {
            ClaudeFamily::Fable | ClaudeFamily::Mythos => self.at_least(5, 1),
            _ => self.at_least(5, 5),
        }
    }

    fn binds_every_account(self) -> bool {
        // `docs/protocols.md` 1.5.4.
        matches!(self.family, ClaudeFamily::Fable | ClaudeFamily::Mythos) && self.at_least(5, 2)
    }

    fn account_bound(self) -> bool {
        // `docs/protocols.md` 1.5.2.
        let families = [ClaudeFamily::Sonnet, ClaudeFamily::Haiku, ClaudeFamily::Unknown];
        families.contains(&self.family) && self.at_least(5, 5)
    }

    fn keeps_thinking(self) -> bool {
        // `docs/protocols.md` 1.5, which earlier blocks the model sees.
        match self.family {
            ClaudeFamily::Opus => self.at_least(4, 5),
            _ => self.at_least(4, 6),
        }
    }

    fn always_thinks(self) -> bool {
        // `docs/protocols.md` 1.2: forced tools and switched-off thinking are refused.
        match self.family {
            ClaudeFamily::Fable | ClaudeFamily::Mythos => self.at_least(5, 1),
            ClaudeFamily::Opus | ClaudeFamily::Sonnet | ClaudeFamily::Unknown => {
                self.at_least(5, 5)
            }
            ClaudeFamily::Haiku => false,
        }
    }
}

/// A model's name without vendor, case, dots, date and deployment suffix.
fn plain(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase().replace('.', "-");
    let name = name.split(['@', ':']).next().unwrap_or_default().to_owned();
    match name.rsplit_once('-') {
        Some((rest, date)) if date.len() == 8 && date.bytes().all(|b| b.is_ascii_digit()) => {
            rest.to_owned()
        }
        Some((rest, "latest")) => rest.to_owned(),
        _ => name,
    }
}

/// `5-2-codex` after the prefix is (5, 2).
fn version_after(plain: &str, prefix: &str) -> Option<(u32, u32)> {
    let rest = &plain[plain.find(prefix)? + prefix.len()..];
    let mut numbers = rest.split('-').map(|word| word.parse::<u32>().ok());
    let major = numbers.next()??;
    Some((major, numbers.next().flatten().unwrap_or(0)))
}

fn host(name: &str, plain: &str) -> Host {
    match () {
        () if plain.contains("gemini") => Host::GeminiCompat,
        () if name.contains('/') => Host::OpenRouter,
        () if plain.starts_with("gpt") || plain.starts_with("o1") || plain.starts_with("o3") => {
            Host::OpenAi
        }
        () if plain.starts_with("o4") || plain.starts_with("chatgpt") => Host::OpenAi,
        () if plain.contains("deepseek") => Host::DeepSeek,
        () if plain.contains("kimi") || plain.contains("moonshot") => Host::Kimi,
        () if plain.contains("mistral") || plain.contains("magistral") => Host::Mistral,
        () if plain.contains("grok") => Host::Xai,
        () => Host::Compatible,
    }
}

fn reasoning_echo(host: Host, plain: &str) -> ReasoningEcho {
    // `docs/protocols.md` 4.2.
    match host {
        Host::DeepSeek if plain.contains("-r1") => ReasoningEcho::Refused,
        Host::DeepSeek | Host::Kimi => ReasoningEcho::Required,
        Host::OpenAi | Host::Mistral | Host::GeminiCompat => ReasoningEcho::Refused,
        Host::Xai | Host::OpenRouter => ReasoningEcho::Optional,
        Host::Compatible => {
            let sends_reasoning = ["glm", "qwen", "minimax", "gpt-oss", "reason", "mimo"];
            match sends_reasoning.iter().any(|family| plain.contains(family)) {
                true => ReasoningEcho::Optional,
                false => ReasoningEcho::Refused,
            }
        }
    }
}

fn window(dialect: Dialect, claude: Claude, plain: &str, gpt: Option<(u32, u32)>) -> u64 {
    // `docs/protocols.md` 9.
    match (dialect, gpt) {
        (Dialect::Anthropic, _) if claude.at_least(4, 6) => 1_000_000,
        (Dialect::Anthropic, _) => 200_000,
        (Dialect::Gemini, _) => 1_048_576,
        (_, Some(version)) if version >= (5, 6) => 922_000,
        (_, Some(version)) if version >= (5, 0) => 272_000,
        (_, Some(_)) => 128_000,
        _ if plain.contains("gemini") => 1_048_576,
        _ if plain.contains("deepseek") || plain.contains("glm") => 1_000_000,
        _ if plain.contains("kimi") || plain.contains("mistral") => 262_144,
        _ => 128_000,
    }
}

fn cache_min(dialect: Dialect, claude: Claude, gemini: Option<(u32, u32)>, host: Host) -> u64 {
    // `docs/protocols.md` 7.1, 7.2, 7.3.
    let opus = claude.family == ClaudeFamily::Opus;
    match (dialect, claude.version) {
        (Dialect::Gemini, _) if gemini.is_some_and(|version| version < (3, 0)) => 2048,
        (Dialect::Gemini, _) => 4096,
        (Dialect::Chat, _) if host == Host::DeepSeek => 64,
        (Dialect::Chat | Dialect::Responses, _) => 1024,
        (Dialect::Anthropic, version) => match claude.family {
            ClaudeFamily::Haiku if version == (4, 5) => 4096,
            _ if opus && (version == (4, 5) || version == (4, 6)) => 4096,
            _ if opus && version == (4, 7) => 2048,
            ClaudeFamily::Sonnet if version == (5, 0) => 1024,
            _ if version >= (5, 0) => 512,
            _ => 1024,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_of(dialect: Dialect, name: &str) -> ModelRules {
        Rules::default().for_model(dialect, name)
    }

    #[test]
    fn claude_rules_follow_from_name() {
        // name, binding, account, keeps, prefill refused, smallest cached prefix
        let table = [
            ("claude-sonnet-4-5-20250929", false, false, false, false, 1024),
            ("claude-haiku-4-5", false, false, false, false, 4096),
            ("claude-opus-4.5", false, false, true, false, 4096),
            ("claude-opus-4-6", false, false, true, true, 4096),
            ("claude-opus-4-7", false, false, true, true, 2048),
            ("claude-sonnet-4-6", false, false, true, true, 1024),
            ("claude-3-5-sonnet-latest", false, false, false, false, 1024),
            ("claude-sonnet-5", false, false, true, true, 1024),
            ("claude-opus-5", false, false, true, true, 512),
            ("claude-opus-5-5", true, false, true, true, 512),
            ("claude-sonnet-5-5", true, true, true, true, 512),
            ("anthropic/claude-haiku-5.5", true, true, true, true, 512),
            ("claude-fable-5-1", true, false, true, true, 512),
            ("claude-fable-5", false, false, true, true, 512),
            ("claude-never-seen", true, true, true, true, 512),
        ];
        for (name, binding, account, keeps, prefill, min) in table {
            let model = rules_of(Dialect::Anthropic, name);
            let is = (model.binding, model.account_bound, model.keeps_reasoning);
            assert_eq!(is, (binding, account, keeps), "{name}");
            assert_eq!(model.refuses_prefill, prefill, "{name}");
            assert_eq!(model.cache_min, min, "{name}");
        }
    }

    #[test]
    fn claude_fable_reads_opus_reasoning_and_not_reverse() {
        let fable = rules_of(Dialect::Anthropic, "claude-fable-5.1");
        assert!(fable.reads("claude-opus-5"));
        assert!(fable.reads("claude-fable-5-1"));
        assert!(!rules_of(Dialect::Anthropic, "claude-opus-5").reads("claude-fable-5-1"));
    }

    #[test]
    fn rules_of_other_models_follow_from_model_name() {
        for (name, echo) in [
            ("deepseek-v3.2", ReasoningEcho::Required),
            ("deepseek-r1", ReasoningEcho::Refused),
            ("kimi-k2-thinking", ReasoningEcho::Required),
            ("gpt-5.5", ReasoningEcho::Refused),
            ("mistral-large", ReasoningEcho::Refused),
            ("glm-5.2", ReasoningEcho::Optional),
            ("anthropic/claude-sonnet-4.5", ReasoningEcho::Optional),
        ] {
            assert_eq!(rules_of(Dialect::Chat, name).reasoning_echo, echo, "{name}");
        }
        for (name, signatures) in [
            ("gemini-3-pro-preview", SignatureRule::Required),
            ("gemini-2.5-pro", SignatureRule::Optional),
            ("models/gemini-3.5-flash-lite", SignatureRule::Required),
        ] {
            assert_eq!(rules_of(Dialect::Gemini, name).signature_rule, signatures, "{name}");
        }
        for (name, phases, binding) in
            [("gpt-5.3-codex", true, false), ("gpt-5.2", false, false), ("gpt-6.1-sol", true, true)]
        {
            let model = rules_of(Dialect::Responses, name);
            assert_eq!(model.phases, phases, "{name}");
            assert_eq!(model.binding, binding, "{name}");
        }
    }
}
