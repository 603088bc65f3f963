//! What a provider's refusal is about, as far as its words tell (`docs/protocols.md` 1.2, 1.5, 2.2, 3.2,
//! 4.2, 5.2, 5.4).
//!
//! Wordings are unstable, so only their steady fragments are looked for, and nothing but a lesson or
//! a label hangs on the answer. The words themselves go nowhere.

use serde::{Deserialize, Serialize};

use super::overflow::{Answered, overflow};

/// What a refusal names; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Calls and results do not pair, something is empty, out of order, or twice.
    Structure,
    /// Reasoning is bound to another prefix than the one that was sent.
    Bound,
    /// A signature or encrypted content is void.
    Signature,
    /// Reasoning is missing where it is demanded.
    ReasoningDemanded,
    /// Reasoning, or the field that carries it, is not accepted.
    ReasoningRefused,
    /// `stream_options` is not accepted.
    Usage,
    /// `context_management`, or its beta, is not accepted.
    Editing,
    /// `include`, or encrypted reasoning in it, is not accepted.
    Include,
    /// Compaction by the provider, or what it wrote, is not accepted.
    Compaction,
    /// The context is too long.
    Overflow,
    /// It does not say.
    Other,
}

/// Fragments in lower case, the surest first; all of a line must be there.
const SIGNS: &[(&[&str], Cause)] = &[
    (&["stream_options"], Cause::Usage),
    (&["include_usage"], Cause::Usage),
    (&["context_management"], Cause::Editing),
    (&["context-management"], Cause::Editing),
    (&["clear_tool_uses"], Cause::Editing),
    (&["reasoning.encrypted_content"], Cause::Include),
    (&["encrypted content is not supported"], Cause::Include),
    (&["'include'"], Cause::Include),
    (&["'include["], Cause::Include),
    (&["\"include\""], Cause::Include),
    (&["compaction"], Cause::Compaction),
    (&["compact-2026"], Cause::Compaction),
    (&["item cmp_"], Cause::Compaction),
    (&["must be passed back"], Cause::ReasoningDemanded),
    (&["reasoning_content is missing"], Cause::ReasoningDemanded),
    (&["missing a thought_signature"], Cause::ReasoningDemanded),
    (&["expected `thinking`"], Cause::ReasoningDemanded),
    (&["without its required 'reasoning' item"], Cause::ReasoningDemanded),
    (&["bound to a different"], Cause::Bound),
    (&["signature"], Cause::Signature),
    (&["encrypted content"], Cause::Signature),
    (&["encrypted_content"], Cause::Signature),
    (&["cannot be modified", "thinking"], Cause::Signature),
    (&["reasoning_content"], Cause::ReasoningRefused),
    (&["reasoning_details"], Cause::ReasoningRefused),
    (&["'reasoning'", "unsupported"], Cause::ReasoningRefused),
    (&["\"reasoning\"", "not permitted"], Cause::ReasoningRefused),
    (&["tool_use"], Cause::Structure),
    (&["tool_result"], Cause::Structure),
    (&["tool_call"], Cause::Structure),
    (&["tool output"], Cause::Structure),
    (&["function call"], Cause::Structure),
    (&["function response"], Cause::Structure),
    (&["function_call"], Cause::Structure),
    (&["non-empty"], Cause::Structure),
    (&["required following item"], Cause::Structure),
    (&["items are not persisted"], Cause::Structure),
    (&["duplicate item"], Cause::Structure),
    (&["extra inputs are not permitted"], Cause::Structure),
    (&["thinking"], Cause::ReasoningRefused),
];

impl Cause {
    /// Whether it may be due to reasoning that was put back the first time it was missing. What else it
    /// names stands, or does not, with what was changed further up.
    pub fn is_of_what_is_new(self) -> bool {
        matches!(self, Cause::Signature | Cause::ReasoningRefused)
    }

    /// Whether what it names teaches how to send the next request.
    pub fn teaches(self) -> bool {
        let of_reasoning = matches!(self, Cause::Bound | Cause::ReasoningDemanded);
        of_reasoning || matches!(self, Cause::ReasoningRefused | Cause::Compaction)
    }

    /// Whether a request that is refused for it both as it is rewritten and as it came is its client's
    /// own fault: what was rewritten before leads to no such refusal.
    pub fn is_own_fault(self) -> bool {
        matches!(self, Cause::Structure | Cause::Other)
    }

    /// Whether it names something that we ask of providers beside the client, which says nothing of
    /// how the history was rewritten.
    pub fn is_beside(self) -> bool {
        matches!(self, Cause::Usage | Cause::Editing | Cause::Include)
    }
}

/// What a refusal's body names.
pub fn cause(body: &[u8]) -> Cause {
    if overflow(&Answered { status: 400, host: "", body }).is_some() {
        return Cause::Overflow;
    }
    let text = String::from_utf8_lossy(body).to_lowercase();
    let named = |signs: &[&str]| signs.iter().all(|sign| text.contains(sign));
    SIGNS.iter().find(|(signs, _)| named(signs)).map_or(Cause::Other, |(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_providers_tell_what_they_refuse() {
        for (words, named) in [
            ("`tool_use` ids were found without `tool_result` blocks", Cause::Structure),
            ("text content blocks must be non-empty", Cause::Structure),
            ("messages.1.content.0: Invalid `signature` in `thinking` block.", Cause::Signature),
            (
                "Invalid `signature` in `thinking` block. The block is bound to a different \
                 conversation.",
                Cause::Bound,
            ),
            ("The encrypted content for item rs_1 could not be verified.", Cause::Signature),
            (
                "The reasoning_content in the thinking mode must be passed back to the API.",
                Cause::ReasoningDemanded,
            ),
            ("Function call is missing a thought_signature in", Cause::ReasoningDemanded),
            ("property 'reasoning_content' is unsupported", Cause::ReasoningRefused),
            ("Unknown parameter: 'stream_options'", Cause::Usage),
            ("context_management: Extra inputs are not permitted", Cause::Editing),
            (
                "Unexpected value(s) `context-management-2025-06-27` for the `anthropic-beta` header.",
                Cause::Editing,
            ),
            ("Encrypted content is not supported with this model.", Cause::Include),
            ("Unknown parameter: 'include'.", Cause::Include),
            ("The `compaction` block's `signature` does not verify.", Cause::Compaction),
            ("The encrypted content for item cmp_1 could not be verified.", Cause::Compaction),
            (
                "Unexpected value(s) `compact-2026-09-04` for the `anthropic-beta` header.",
                Cause::Compaction,
            ),
            (r#"{"detail":[{"loc":["body","include"],"msg":"extra"}]}"#, Cause::Include),
            ("prompt is too long: 210000 tokens > 200000 maximum", Cause::Overflow),
            ("temperature must be below 2", Cause::Other),
        ] {
            assert_eq!(cause(words.as_bytes()), named, "{words}");
        }
    }
}
