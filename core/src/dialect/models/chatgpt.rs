//! The windows of models with a login to ChatGPT, which are smaller than with an API key (`docs/protocols.md` 9).
//!
//! From the list of models that Codex brings along. The numbers have moved, and depend on the account and the client, so
//! what the backend's own list says comes before them.

/// Tokens that may be sent, by the start of a model's name; the longest start that fits decides.
const WINDOWS: &[(&str, u64)] = &[
    // Read from the backend's list in June (5.3 to 5.5) and September 2026 (6). Of GPT-5.6 it said 372,000 in July
    // and 272,000 since August, to some clients 872,000. For GPT-6.1 nothing was seen.
    ("gpt-", 272_000),
    ("codex-", 272_000),
    ("gpt-5.3-codex-spark", 128_000),
    // One source.
    ("gpt-daybreak-red", 372_000),
];

pub(super) fn window(names: &[String]) -> Option<u64> {
    let fitting =
        WINDOWS.iter().filter(|(start, _)| names.iter().any(|name| name.starts_with(start)));
    fitting.max_by_key(|(start, _)| start.len()).map(|(_, window)| *window)
}
