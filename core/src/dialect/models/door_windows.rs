//! The windows that models have at a door where they are smaller than with an API key (`docs/protocols.md` 9).
//!
//! What the door's own list of models says comes before them: the numbers have moved, and depend on the account and the
//! client.

use crate::dialect::door::Door;

/// Tokens that may be sent, by the start of a model's name; the longest start that fits decides.
type Windows = &'static [(&'static str, u64)];

/// With a login to ChatGPT, from the list of models that Codex brings along.
const CHATGPT: Windows = &[
    // Read from the backend's list in June (5.3 to 5.5) and September 2026 (6). Of GPT-5.6 it said 372,000 in July
    // and 272,000 since August, to some clients 872,000. For GPT-6.1 nothing was seen.
    ("gpt-", 272_000),
    ("codex-", 272_000),
    ("gpt-5.3-codex-spark", 128_000),
    // One source.
    ("gpt-daybreak-red", 372_000),
];

/// At GitHub Copilot, from LiteLLM 1.110.2 (MIT, Copyright (c) 2023 Berri AI). GPT-6 and Grok have the usual ones there.
const COPILOT: Windows = &[
    ("claude-", 200_000),
    ("claude-haiku-", 128_000),
    ("gemini-", 200_000),
    ("gpt-3.5-turbo", 16_384),
    ("gpt-4", 32_768),
    ("gpt-4.1", 128_000),
    ("gpt-4o", 64_000),
    ("gpt-5-mini", 128_000),
    ("gpt-5.3-codex", 128_000),
    ("gpt-5.4", 272_000),
    ("gpt-5.5", 272_000),
    ("gpt-5.6", 272_000),
    ("gpt-5.6-luna", 200_000),
    ("kimi-k3", 917_504),
];

/// The window at this door of a model with these names; `None` if it is the usual one.
pub(super) fn window(door: Door, names: &[String]) -> Option<u64> {
    let windows = match door {
        Door::Api => return None,
        Door::Chatgpt => CHATGPT,
        Door::Copilot => COPILOT,
    };
    let fitting =
        windows.iter().filter(|(start, _)| names.iter().any(|name| name.starts_with(start)));
    fitting.max_by_key(|(start, _)| start.len()).map(|(_, window)| *window)
}
