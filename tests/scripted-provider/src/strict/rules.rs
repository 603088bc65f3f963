//! How strict: what a test may switch, and what each model asks by its name.
//!
//! Where a switch says nothing the model's name decides, as `docs/protocols.md` has it; a name that is
//! not known gets the strictest answer. Knows nothing of requests.

use super::Dialect;

/// Whether Chat Completions wants the reasoning text back (`docs/protocols.md` 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// On every assistant message with tool calls, else 400 (DeepSeek V3.2+, Kimi).
    Demanded,
    /// Read where it comes, its absence is a silent loss (GLM, Qwen, MiniMax, OpenRouter, vLLM).
    Welcome,
    /// 400 where it comes, and never sent (OpenAI, Mistral, Cerebras, Groq).
    Refused,
}

/// Whether Gemini demands its thought signatures (`docs/protocols.md` 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// On the first call of each step of the current turn, else 400 (Gemini 3 and later).
    Required,
    /// Checked where they come, a silent loss where they do not (Gemini 2.5).
    Optional,
}

/// Switches. `None` means: as the model's name says.
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
    /// Chat Completions: what becomes of `reasoning_content` (`docs/protocols.md` 4.2).
    pub reasoning_content: Option<Echo>,
    /// Gemini: what becomes of a call without a signature (`docs/protocols.md` 5.4).
    pub gemini_signatures: Option<Signatures>,
    /// Context window, tokens.
    pub window: Option<u64>,
    /// Smallest prefix that is cached, tokens (`docs/protocols.md` 7).
    pub cache_min: Option<u64>,
    /// Whether fields that the protocol does not know are refused (`docs/protocols.md` 1.1).
    pub unknown_fields_refused: bool,
    /// Whether it compacts on demand (`docs/protocols.md` 1.3, 3.3).
    pub compacts: bool,
    /// Pictures in one request (`docs/protocols.md` 1.8).
    pub most_pictures: usize,
    /// Bytes of one picture, as it is sent (`docs/protocols.md` 1.8).
    pub most_picture_bytes: usize,
    /// Pixels of a picture's longer side (`docs/protocols.md` 1.8).
    pub most_picture_side: u32,
    /// Bytes of one request (`docs/protocols.md` 1.6).
    pub most_request_bytes: usize,
    /// Tokens that every model writes at most; `None`: as many as it is asked for (`docs/protocols.md` 1.8).
    pub most_output: Option<u64>,
    /// The next request for an answer is refused as far too long, whatever its size: an error of the
    /// provider's own, once.
    pub wild_overflow: bool,
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
            most_pictures: 100,
            most_picture_bytes: 5 * 1024 * 1024,
            most_picture_side: 8_000,
            most_request_bytes: 32 * 1024 * 1024,
            most_output: None,
            wild_overflow: false,
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

/// What one model asks, all switches considered.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// The name without dates, cases and the vendor.
    pub(super) name: String,
    pub(super) binding: bool,
    /// Binding holds although nobody asked (`docs/protocols.md` 1.5.4).
    pub(super) binding_enforced: bool,
    pub(super) account_bound: bool,
    pub(super) thinking_mandatory: Option<bool>,
    pub(super) keeps_reasoning: bool,
    pub(super) echo: Echo,
    pub(super) signatures: Signatures,
    pub(super) host: Host,
    pub(super) window: u64,
    pub(super) cache_min: u64,
    pub(super) unknown_fields_refused: bool,
    /// Compacts on demand.
    pub(super) compacts: bool,
    /// Thinks unless told not to, and cannot be told not to.
    pub(super) always_thinks: bool,
    /// Refuses an assistant message at the end (`docs/protocols.md` 1.2).
    pub(super) refuses_prefill: bool,
    /// Knows `role: system` among the messages (`docs/protocols.md` 1.2).
    pub(super) system_role: bool,
    /// Hides thinking unless asked (`docs/protocols.md` 1.5).
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
    /// What the model of that name asks.
    pub(super) fn of(&self, dialect: Dialect, name: &str) -> Model {
        let plain = plain(name);
        let claude = Claude::of(&plain);
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
        let signatures = match gemini {
            Some(version) if version < (3, 0) => Signatures::Optional,
            _ => Signatures::Required,
        };
        Model {
            binding,
            binding_enforced: self.new_account || claude.binds_every_account(),
            account_bound: self.account_bound.unwrap_or(claude.account_bound()),
            thinking_mandatory: self.thinking_mandatory,
            keeps_reasoning: self.keeps_reasoning.unwrap_or(keeps),
            echo: self.reasoning_content.unwrap_or(echo(host, &plain)),
            signatures: self.gemini_signatures.unwrap_or(signatures),
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

impl Model {
    /// Whether this model reads what `writer` thought (`docs/protocols.md` 1.5.1).
    pub(super) fn reads(&self, writer: &str) -> bool {
        let known =
            [("claude-fable-5-1", "claude-opus-5"), ("claude-fable-5-1", "claude-opus-5-5")];
        self.name == writer
            || known.contains(&(self.name.as_str(), writer))
            || self
                .readable
                .iter()
                .any(|(reader, other)| plain(reader) == self.name && plain(other) == writer)
    }
}

/// A Claude by family and version; unknown names count as the newest.
#[derive(Clone, Copy, Debug)]
struct Claude {
    family: Family,
    version: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Haiku,
    Sonnet,
    Opus,
    Fable,
    Mythos,
    Unknown,
}

impl Claude {
    fn of(plain: &str) -> Self {
        let families = [
            ("haiku", Family::Haiku),
            ("sonnet", Family::Sonnet),
            ("opus", Family::Opus),
            ("fable", Family::Fable),
            ("mythos", Family::Mythos),
        ];
        let found = families.iter().find(|(word, _)| plain.contains(word));
        let Some((word, family)) = found else {
            return Self { family: Family::Unknown, version: (u32::MAX, 0) };
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

    /// `docs/protocols.md` 1.5, preserved thinking.
    fn binding(self) -> bool {
        match self.family {
            Family::Fable | Family::Mythos => self.at_least(5, 1),
            _ => self.at_least(5, 5),
        }
    }

    /// `docs/protocols.md` 1.5.4.
    fn binds_every_account(self) -> bool {
        matches!(self.family, Family::Fable | Family::Mythos) && self.at_least(5, 2)
    }

    /// `docs/protocols.md` 1.5.2.
    fn account_bound(self) -> bool {
        let families = [Family::Sonnet, Family::Haiku, Family::Unknown];
        families.contains(&self.family) && self.at_least(5, 5)
    }

    /// `docs/protocols.md` 1.5, which earlier blocks the model sees.
    fn keeps_thinking(self) -> bool {
        match self.family {
            Family::Opus => self.at_least(4, 5),
            _ => self.at_least(4, 6),
        }
    }

    /// `docs/protocols.md` 1.2: forced tools and switched-off thinking are refused.
    fn always_thinks(self) -> bool {
        match self.family {
            Family::Fable | Family::Mythos => self.at_least(5, 1),
            Family::Opus | Family::Sonnet | Family::Unknown => self.at_least(5, 5),
            Family::Haiku => false,
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

/// `docs/protocols.md` 4.2.
fn echo(host: Host, plain: &str) -> Echo {
    match host {
        Host::DeepSeek if plain.contains("-r1") => Echo::Refused,
        Host::DeepSeek | Host::Kimi => Echo::Demanded,
        Host::OpenAi | Host::Mistral | Host::GeminiCompat => Echo::Refused,
        Host::Xai | Host::OpenRouter => Echo::Welcome,
        Host::Compatible => {
            let welcoming = ["glm", "qwen", "minimax", "gpt-oss", "reason", "mimo"];
            match welcoming.iter().any(|family| plain.contains(family)) {
                true => Echo::Welcome,
                false => Echo::Refused,
            }
        }
    }
}

/// `docs/protocols.md` 9.
fn window(dialect: Dialect, claude: Claude, plain: &str, gpt: Option<(u32, u32)>) -> u64 {
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

/// `docs/protocols.md` 7.1, 7.2, 7.3.
fn cache_min(dialect: Dialect, claude: Claude, gemini: Option<(u32, u32)>, host: Host) -> u64 {
    let opus = claude.family == Family::Opus;
    match (dialect, claude.version) {
        (Dialect::Gemini, _) if gemini.is_some_and(|version| version < (3, 0)) => 2048,
        (Dialect::Gemini, _) => 4096,
        (Dialect::Chat, _) if host == Host::DeepSeek => 64,
        (Dialect::Chat | Dialect::Responses, _) => 1024,
        (Dialect::Anthropic, version) => match claude.family {
            Family::Haiku if version == (4, 5) => 4096,
            _ if opus && (version == (4, 5) || version == (4, 6)) => 4096,
            _ if opus && version == (4, 7) => 2048,
            Family::Sonnet if version == (5, 0) => 1024,
            _ if version >= (5, 0) => 512,
            _ => 1024,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(dialect: Dialect, name: &str) -> Model {
        Rules::default().of(dialect, name)
    }

    #[test]
    fn claude_by_name() {
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
            let model = of(Dialect::Anthropic, name);
            let is = (model.binding, model.account_bound, model.keeps_reasoning);
            assert_eq!(is, (binding, account, keeps), "{name}");
            assert_eq!((model.refuses_prefill, model.cache_min), (prefill, min), "{name}");
        }
    }

    #[test]
    fn who_reads_whom() {
        let fable = of(Dialect::Anthropic, "claude-fable-5.1");
        assert!(fable.reads("claude-opus-5") && fable.reads("claude-fable-5-1"));
        assert!(!of(Dialect::Anthropic, "claude-opus-5").reads("claude-fable-5-1"));
    }

    #[test]
    fn the_others_by_name() {
        for (name, echo) in [
            ("deepseek-v3.2", Echo::Demanded),
            ("deepseek-r1", Echo::Refused),
            ("kimi-k2-thinking", Echo::Demanded),
            ("gpt-5.5", Echo::Refused),
            ("mistral-large", Echo::Refused),
            ("glm-5.2", Echo::Welcome),
            ("anthropic/claude-sonnet-4.5", Echo::Welcome),
        ] {
            assert_eq!(of(Dialect::Chat, name).echo, echo, "{name}");
        }
        for (name, signatures) in [
            ("gemini-3-pro-preview", Signatures::Required),
            ("gemini-2.5-pro", Signatures::Optional),
            ("models/gemini-3.5-flash-lite", Signatures::Required),
        ] {
            assert_eq!(of(Dialect::Gemini, name).signatures, signatures, "{name}");
        }
        for (name, phases, binding) in
            [("gpt-5.3-codex", true, false), ("gpt-5.2", false, false), ("gpt-6.1-sol", true, true)]
        {
            let model = of(Dialect::Responses, name);
            assert_eq!((model.phases, model.binding), (phases, binding), "{name}");
        }
    }
}
