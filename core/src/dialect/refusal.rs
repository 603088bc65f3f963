//! The cause of a provider's refusal, as far as its message shows it (`docs/protocols.md` 1.2, 1.5, 2.2, 3.2,
//! 4.2, 5.2, 5.4).
//!
//! The wording changes, so only stable fragments are searched, and only a lesson or a label depends on the
//! result. The message itself is not kept.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::overflow::{ErrorResponse, overflow};

/// The cause of a refusal; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RefusalCause {
    /// Calls and results do not match, or something is empty, out of order, or duplicated.
    Structure,
    /// Reasoning is bound to another prefix than the one sent.
    Bound,
    /// A signature or encrypted content is invalid.
    Signature,
    /// Required reasoning is missing.
    ReasoningDemanded,
    /// Reasoning, or its member, is not accepted.
    ReasoningRefused,
    /// `stream_options` is not accepted.
    Usage,
    /// `context_management`, or its beta, is not accepted.
    Editing,
    /// `include`, or encrypted reasoning in it, is not accepted.
    Include,
    /// Visible thinking is not accepted.
    Display,
    /// Asking why the cache was missed is not accepted.
    Diagnosis,
    /// Compaction by the provider, or its result, is not accepted.
    Compaction,
    /// The context is too long.
    Overflow,
    /// Unknown.
    Other,
}

/// Fragments in lower case, the most certain first; all fragments of a line must match.
const SIGNS: &[(&[&str], RefusalCause)] = &[
    (&["stream_options"], RefusalCause::Usage),
    (&["include_usage"], RefusalCause::Usage),
    (&["context_management"], RefusalCause::Editing),
    (&["context-management"], RefusalCause::Editing),
    (&["clear_tool_uses"], RefusalCause::Editing),
    (&["diagnostics:"], RefusalCause::Diagnosis),
    (&["'diagnostics"], RefusalCause::Diagnosis),
    (&["previous_message_id", "diagnostics"], RefusalCause::Diagnosis),
    (&["cache-diagnosis"], RefusalCause::Diagnosis),
    (&["prompt_cache_options"], RefusalCause::Diagnosis),
    (&["comparison_response_id"], RefusalCause::Diagnosis),
    (&["reasoning.encrypted_content"], RefusalCause::Include),
    (&["encrypted content is not supported"], RefusalCause::Include),
    (&["'include'"], RefusalCause::Include),
    (&["'include["], RefusalCause::Include),
    (&["\"include\""], RefusalCause::Include),
    (&["reasoning.summary"], RefusalCause::Display),
    (&["reasoning summaries"], RefusalCause::Display),
    (&["include_thoughts"], RefusalCause::Display),
    (&["includethoughts"], RefusalCause::Display),
    (&["thinking is not enabled for"], RefusalCause::Display),
    (&["thinking", ".display:"], RefusalCause::Display),
    (&["\"thinking\"", "\"display\""], RefusalCause::Display),
    (&["compaction"], RefusalCause::Compaction),
    (&["compact-2026"], RefusalCause::Compaction),
    (&["item cmp_"], RefusalCause::Compaction),
    (&["must be passed back"], RefusalCause::ReasoningDemanded),
    (&["reasoning_content is missing"], RefusalCause::ReasoningDemanded),
    (&["missing a thought_signature"], RefusalCause::ReasoningDemanded),
    (&["expected `thinking`"], RefusalCause::ReasoningDemanded),
    (&["without its required 'reasoning' item"], RefusalCause::ReasoningDemanded),
    (&["bound to a different"], RefusalCause::Bound),
    (&["signature"], RefusalCause::Signature),
    (&["encrypted content"], RefusalCause::Signature),
    (&["encrypted_content"], RefusalCause::Signature),
    (&["cannot be modified", "thinking"], RefusalCause::Signature),
    (&["reasoning_content"], RefusalCause::ReasoningRefused),
    (&["reasoning_details"], RefusalCause::ReasoningRefused),
    (&["'reasoning'", "unsupported"], RefusalCause::ReasoningRefused),
    (&["\"reasoning\"", "not permitted"], RefusalCause::ReasoningRefused),
    (&["tool_use"], RefusalCause::Structure),
    (&["tool_result"], RefusalCause::Structure),
    (&["tool_call"], RefusalCause::Structure),
    (&["tool output"], RefusalCause::Structure),
    (&["function call"], RefusalCause::Structure),
    (&["function response"], RefusalCause::Structure),
    (&["function_call"], RefusalCause::Structure),
    (&["non-empty"], RefusalCause::Structure),
    (&["required following item"], RefusalCause::Structure),
    (&["items are not persisted"], RefusalCause::Structure),
    (&["duplicate item"], RefusalCause::Structure),
    (&["extra inputs are not permitted"], RefusalCause::Structure),
    (&["thinking"], RefusalCause::ReasoningRefused),
];

impl RefusalCause {
    /// Whether reasoning that was put back for the first time may have caused it. Other causes depend on
    /// earlier changes.
    pub fn is_of_what_is_new(self) -> bool {
        matches!(self, RefusalCause::Signature | RefusalCause::ReasoningRefused)
    }

    pub(crate) fn teaches(self) -> bool {
        // Whether it teaches how to send the next request.
        let of_reasoning = matches!(self, RefusalCause::Bound | RefusalCause::ReasoningDemanded);
        of_reasoning || matches!(self, RefusalCause::ReasoningRefused | RefusalCause::Compaction)
    }

    /// Whether a request that is refused for this cause both rewritten and in its original form is the
    /// client's own fault: our rewrites do not cause such a refusal. Most of them make a request smaller.
    pub(crate) fn is_own_fault(self) -> bool {
        matches!(self, RefusalCause::Structure | RefusalCause::Overflow | RefusalCause::Other)
    }

    /// Whether it is about something that Plimsoll requests on the client's behalf, so that it says nothing
    /// about rewrites of the history.
    pub fn is_beside(self) -> bool {
        matches!(
            self,
            RefusalCause::Usage
                | RefusalCause::Editing
                | RefusalCause::Include
                | RefusalCause::Display
                | RefusalCause::Diagnosis
        )
    }
}

/// The cause that a refusal's body names.
pub fn cause(body: &[u8]) -> RefusalCause {
    let overflow = overflow(&ErrorResponse { status: 400, host: "", body });
    if overflow.is_some_and(|overflow| !overflow.is_inferred) {
        return RefusalCause::Overflow;
    }
    let text = String::from_utf8_lossy(body).to_lowercase();
    let row = SIGNS.iter().find(|(signs, _)| signs.iter().all(|sign| text.contains(sign)));
    row.map_or(RefusalCause::Other, |(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_cause_of_refusal() {
        for (message, named) in [
            ("`tool_use` ids were found without `tool_result` blocks", RefusalCause::Structure),
            ("text content blocks must be non-empty", RefusalCause::Structure),
            (
                "messages.1.content.0: Invalid `signature` in `thinking` block.",
                RefusalCause::Signature,
            ),
            (
                "Invalid `signature` in `thinking` block. The block is bound to a different \
                 conversation.",
                RefusalCause::Bound,
            ),
            ("The encrypted content for item rs_1 could not be verified.", RefusalCause::Signature),
            (
                "The reasoning_content in the thinking mode must be passed back to the API.",
                RefusalCause::ReasoningDemanded,
            ),
            ("Function call is missing a thought_signature in", RefusalCause::ReasoningDemanded),
            ("property 'reasoning_content' is unsupported", RefusalCause::ReasoningRefused),
            ("Unknown parameter: 'stream_options'", RefusalCause::Usage),
            ("context_management: Extra inputs are not permitted", RefusalCause::Editing),
            (
                "Unexpected value(s) `context-management-2025-06-27` for the `anthropic-beta` header.",
                RefusalCause::Editing,
            ),
            ("Encrypted content is not supported with this model.", RefusalCause::Include),
            ("Unknown parameter: 'include'.", RefusalCause::Include),
            ("thinking.adaptive.display: Extra inputs are not permitted", RefusalCause::Display),
            (
                "Your organization must be verified to generate reasoning summaries.",
                RefusalCause::Display,
            ),
            ("Thinking_config.include_thoughts is only enabled when", RefusalCause::Display),
            ("Unknown name \"includeThoughts\" at 'generation_config'", RefusalCause::Display),
            (r#"{"detail":[{"loc":["body","thinking","display"]}]}"#, RefusalCause::Display),
            ("The `compaction` block's `signature` does not verify.", RefusalCause::Compaction),
            (
                "The encrypted content for item cmp_1 could not be verified.",
                RefusalCause::Compaction,
            ),
            (
                "Unexpected value(s) `compact-2026-09-04` for the `anthropic-beta` header.",
                RefusalCause::Compaction,
            ),
            (r#"{"detail":[{"loc":["body","include"],"msg":"extra"}]}"#, RefusalCause::Include),
            ("prompt is too long: 210000 tokens > 200000 maximum", RefusalCause::Overflow),
            ("temperature must be below 2", RefusalCause::Other),
        ] {
            assert_eq!(cause(message.as_bytes()), named, "{message}");
        }
    }
}
