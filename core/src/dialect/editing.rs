//! Anthropic's context editing: how it is requested, and its reports (`docs/protocols.md` 1.3).
//!
//! The provider clears old tool results before the model reads them. The client keeps its whole history, so
//! nothing changes that was sent before. Must not know why it is requested.

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Span;
use super::count::Count;
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// The beta that the `anthropic-beta` header must list if a body has `context_management`.
pub const BETA: &str = "context-management-2025-06-27";

/// Which old tool results are cleared: the parameters of `clear_tool_uses_20250919`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextEditing {
    /// Input tokens past which results are cleared.
    pub trigger: u64,
    /// The newest tool uses that stay.
    pub keep: u64,
    /// Clears at least this many input tokens, or nothing.
    pub at_least: u64,
    /// Tools whose results stay.
    pub except: Vec<Box<str>>,
}

/// What the provider reports as cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClearingReport {
    /// Tool uses whose results were cleared.
    pub tool_uses: u64,
    /// Input tokens of cleared results and thinking; they are not in the reported input.
    pub input_tokens: u64,
}

impl ContextEditing {
    /// The edit that requests it. `None` if the client manages its context itself, if the request is of a
    /// kind that does not allow `context_management` (a thread, a requested compaction), or if betas are
    /// listed in the body (Bedrock).
    pub fn ask(&self, body: &[u8]) -> Option<Edit> {
        // Most bodies name none of these, and are not parsed.
        let mut names = ALONE.iter().chain([&BEDROCK]);
        if names.any(|name| memmem::find(body, name.as_bytes()).is_some()) {
            let document = Document::read(body).ok()?;
            let root = document.root(body)?;
            let is_managed = ALONE.iter().any(|name| root.get(name.trim_matches('"')).is_some());
            let version = root.get_text("anthropic_version").unwrap_or_default();
            if is_managed || version.starts_with(BEDROCK.trim_matches('"')) {
                return None;
            }
        }
        let start = body.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let first_byte = body.get(start + 1..)?.trim_ascii_start().first()?;
        if body[start] != b'{' || *first_byte != b'"' {
            return None;
        }
        Some(Edit {
            at: Span::new(start + 1, start + 1),
            with: Bytes::from(format!("\"context_management\":{},", self.json())),
        })
    }

    fn json(&self) -> serde_json::Value {
        let mut edit = json!({
            "type": KIND,
            "trigger": {"type": "input_tokens", "value": self.trigger},
            "keep": {"type": "tool_uses", "value": self.keep},
        });
        if self.at_least > 0 {
            edit["clear_at_least"] = json!({"type": "input_tokens", "value": self.at_least});
        }
        if !self.except.is_empty() {
            edit["exclude_tools"] = json!(self.except);
        }
        json!({"edits": [edit]})
    }
}

const KIND: &str = "clear_tool_uses_20250919";
/// Members that do not allow ours, as they appear in a body.
const ALONE: &[&str] =
    &["\"context_management\"", "\"thread\"", "\"compaction\"", "\"anthropic_beta\""];

/// The prefix of Bedrock's versions, as it appears in a body.
const BEDROCK: &str = "\"bedrock-";

/// Input tokens past which a request asks its provider to clear results; `None` if it does not. 0 if the
/// trigger counts something else, because it may then fire at any size.
pub(super) fn trigger_in(root: Value<'_>) -> Option<u64> {
    let edits = root.path(&["context_management", "edits"])?;
    edits.items().filter(clears).map(trigger).min()
}

fn clears(edit: &Value<'_>) -> bool {
    edit.get_text("type").is_some_and(|kind| kind.starts_with("clear_"))
        && edit.path(&["keep"]).and_then(|keep| keep.text()).as_deref() != Some("all")
}

fn trigger(edit: Value<'_>) -> u64 {
    /// The provider's default, input tokens (`docs/protocols.md` 1.3).
    const DEFAULT: u64 = 100_000;
    let clears_results = edit.get_text("type").is_some_and(|kind| kind.starts_with(KIND));
    let Some(trigger) = edit.get("trigger").filter(|trigger| trigger.kind() == Kind::Object) else {
        return if clears_results { DEFAULT } else { 0 };
    };
    // What counts something else may fire at any size.
    if trigger.get_text("type").as_deref() != Some("input_tokens") {
        return 0;
    }
    trigger.get("value").and_then(|value| value.as_u64()).unwrap_or(0)
}

impl ClearingReport {
    /// From a message, or the last `message_delta`; `None` if nothing was cleared.
    pub(super) fn from_reply(value: Value<'_>) -> Option<Self> {
        let mut cleared = Self::default();
        let applied = value.path(&["context_management", "applied_edits"])?;
        for edit in applied.items() {
            for (sum, name) in [
                (&mut cleared.tool_uses, "cleared_tool_uses"),
                (&mut cleared.input_tokens, "cleared_input_tokens"),
            ] {
                *sum = sum.saturating_add(Count::from_member(edit.get(name)).value().unwrap_or(0));
            }
        }
        (cleared != Self::default()).then_some(cleared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::splice::splice;

    fn editing() -> ContextEditing {
        ContextEditing { trigger: 100, keep: 3, at_least: 50, except: vec!["Write".into()] }
    }

    fn edited(body: &str) -> Option<String> {
        let edit = editing().ask(body.as_bytes())?;
        let slices = splice(&Bytes::copy_from_slice(body.as_bytes()), vec![edit]).unwrap();
        Some(String::from_utf8(slices.concat()).unwrap())
    }

    #[test]
    fn context_editing_is_inserted_first_and_rest_is_unchanged() {
        let body = " {\n \"model\": \"m\" }";
        let out = edited(body).unwrap();
        assert!(out.starts_with(" {\"context_management\":{"), "{out}");
        assert!(out.ends_with(&body[2..]), "{out}");
        let read: serde_json::Value = serde_json::from_str(&out).unwrap();
        let expected = json!([{
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": 100},
            "keep": {"type": "tool_uses", "value": 3},
            "clear_at_least": {"type": "input_tokens", "value": 50},
            "exclude_tools": ["Write"],
        }]);
        assert_eq!(read["context_management"]["edits"], expected);
        let plain = ContextEditing { at_least: 0, except: Vec::new(), ..editing() };
        let edit = &plain.json()["edits"][0];
        assert!(edit.get("clear_at_least").is_none());
        assert!(edit.get("exclude_tools").is_none());
    }

    #[test]
    fn request_that_manages_its_own_context_is_not_edited() {
        for member in
            ["context_management\":null", "thread\":{}", "compaction\":{}", "anthropic_beta\":[]"]
        {
            assert_eq!(edited(&format!("{{\"model\":\"m\",\"{member}}}")), None, "{member}");
        }
        assert_eq!(edited(r#"{"anthropic_version":"bedrock-2023-05-31"}"#), None);
        assert!(edited(r#"{"anthropic_version":"vertex-2023-10-16"}"#).is_some());
        // The word in a text, or a member of another object, does not matter.
        assert!(edited(r#"{"messages":[{"thread":1,"content":"\"compaction\""}]}"#).is_some());
        for broken in ["", "  ", "{", "{}", "[1]", "{ }", "x", r#"{"thread":"#] {
            assert_eq!(edited(broken), None, "{broken}");
        }
    }

    proptest::proptest! {
        /// Invariant 8; and a valid JSON body is valid JSON after the edit.
        #[test]
        fn invariant_8_any_bytes_are_edited_or_left_alone(body in "[ {}\\[\\]\":,a-c0-1\\\\]{0,24}") {
            let is_json = serde_json::from_str::<serde_json::Value>(&body).is_ok();
            if let Some(out) = edited(&body).filter(|_| is_json) {
                proptest::prop_assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok());
            }
        }
    }

    fn trigger(body: &str) -> Option<u64> {
        let document = Document::read(body.as_bytes()).unwrap();
        trigger_in(document.root(body.as_bytes()).unwrap())
    }

    #[test]
    fn clearing_threshold_is_read() {
        let with =
            |edits: &str| trigger(&format!(r#"{{"context_management":{{"edits":{edits}}}}}"#));
        assert_eq!(trigger("{}"), None);
        assert_eq!(with(r#"[{"type":"compact_20260112"}]"#), None);
        // Claude Code sends this one, which clears nothing.
        assert_eq!(with(r#"[{"type":"clear_thinking_20251015","keep":"all"}]"#), None);
        assert_eq!(with(r#"[{"type":"clear_thinking_20251015"}]"#), Some(0));
        assert_eq!(with(r#"[{"type":"clear_tool_uses_20250919"}]"#), Some(100_000));
        let at = |kind: &str| {
            with(&format!(
                r#"[{{"type":"clear_tool_uses_20250919","trigger":{{"type":"{kind}","value":7}}}}]"#
            ))
        };
        assert_eq!(at("input_tokens"), Some(7));
        assert_eq!(at("tool_uses"), Some(0));
        let edited = edited(r#"{"model":"m"}"#).unwrap();
        assert_eq!(trigger(&edited), Some(100));
    }

    #[test]
    fn cleared_tokens_are_summed() {
        let read = |body: &str| {
            let document = Document::read(body.as_bytes()).unwrap();
            ClearingReport::from_reply(document.root(body.as_bytes()).unwrap())
        };
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"context_management":{"applied_edits":[]}}"#), None);
        let applied = r#"{"context_management":{"applied_edits":[
            {"type":"clear_thinking_20251015","cleared_thinking_turns":2,"cleared_input_tokens":10},
            {"type":"clear_tool_uses_20250919","cleared_tool_uses":4,"cleared_input_tokens":500}]}}"#;
        assert_eq!(read(applied), Some(ClearingReport { tool_uses: 4, input_tokens: 510 }));
    }
}
