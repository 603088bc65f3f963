//! Replaces the beginning of a history by a summary: the summary's messages, and the edits that insert them
//! (`docs/rewriting.md` "Compaction").
//!
//! Everything after the cut stays byte for byte, and so does what is between the messages without being a
//! message (tools that are items of a Responses history).

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::beside::{self, Removal, edit, literal};
use crate::dialect::{Conversation, Dialect, Span};
use crate::wire::splice::Edit;

/// The messages of a summary as JSON: a user message with the text, messages of `steps` that are repeated, and if the
/// history continues with a user message, a `boundary` of the model, so that roles alternate.
pub fn continued(dialect: Dialect, text: &str, steps: &[String], boundary: Option<&str>) -> String {
    let mut messages = message(dialect, "user", text);
    for step in steps {
        messages.push(',');
        messages.push_str(step);
    }
    if let Some(boundary) = boundary {
        let role = if dialect == Dialect::Gemini { "model" } else { "assistant" };
        messages.push(',');
        messages.push_str(&message(dialect, role, boundary));
    }
    messages
}

/// A summary's text that ends with a boundary, for a history that continues with a message of the model.
pub fn with_boundary(summary: &str, boundary: &str) -> String {
    format!("{summary}\n\n{boundary}")
}

/// The same messages with the boundary of the model at their end moved to the end of the summary's own message;
/// `None` if they end with none.
pub fn with_boundary_moved(raw: &str) -> Option<String> {
    let list = format!("[{raw}]");
    let messages: Vec<&RawValue> = serde_json::from_str(&list).ok()?;
    let (last, before) = messages.split_last()?;
    let (first, steps) = before.split_first()?;
    let mut boundary: TextMessage = serde_json::from_str(last.get()).ok()?;
    if !matches!(&*boundary.role, "assistant" | "model") {
        return None;
    }
    let mut summary: TextMessage = serde_json::from_str(first.get()).ok()?;
    let text = summary.content.text();
    *text = with_boundary(text, boundary.content.text());
    let mut moved = serde_json::to_string(&summary).ok()?;
    for step in steps {
        moved.push(',');
        moved.push_str(step.get());
    }
    Some(moved)
}

/// A message as [`message`] writes it.
#[derive(Deserialize, Serialize)]
struct TextMessage {
    role: String,
    #[serde(flatten)]
    content: MessageText,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum MessageText {
    Content(String),
    Parts([TextPart; 1]),
}

#[derive(Deserialize, Serialize)]
struct TextPart {
    text: String,
}

impl MessageText {
    fn text(&mut self) -> &mut String {
        match self {
            Self::Content(text) => text,
            Self::Parts([part]) => &mut part.text,
        }
    }
}

pub(in crate::dialect) fn message(dialect: Dialect, role: &str, text: &str) -> String {
    let text = literal(text);
    match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            format!(r#"{{"role":"{role}","content":{text}}}"#)
        }
        Dialect::Gemini => format!(r#"{{"role":"{role}","parts":[{{"text":{text}}}]}}"#),
    }
}

/// Edits that replace the first `cut` messages by `raw` (messages as [`continued`] writes them). `None` if
/// there are none, if none would be left, or if `raw` is not a list of objects.
pub fn compact(
    conversation: &Conversation,
    body: &[u8],
    cut: usize,
    raw: &str,
) -> Option<Vec<Edit>> {
    let messages = conversation.messages.get(..cut)?;
    if messages.is_empty() || cut >= conversation.messages.len() || !are_objects(raw) {
        return None;
    }
    let mut runs = beside::runs(body, messages.iter().map(|message| message.span).collect());
    // Other values between the messages stay, so there may be several runs.
    let first_run = runs.remove(0);
    let mut edits = vec![edit(first_run, raw.to_owned())];
    edits.extend(removals(body, runs)?);
    Some(edits)
}

/// Edits that end the history before message `from`. `None` if nothing would be left.
pub fn end_before(conversation: &Conversation, body: &[u8], from: usize) -> Option<Vec<Edit>> {
    if from == 0 {
        return None;
    }
    let messages = conversation.messages.get(from..)?;
    removals(body, beside::runs(body, messages.iter().map(|message| message.span).collect()))
}

fn removals(body: &[u8], runs: Vec<Span>) -> Option<Vec<Edit>> {
    let removed = runs.into_iter().map(|run| match beside::room(body, run)? {
        Removal::Shared(at) => Some(edit(at, "")),
        Removal::Alone(_) => None,
    });
    removed.collect()
}

fn are_objects(raw: &str) -> bool {
    // A strict parser must accept them, because the body does.
    let list = format!("[{raw}]");
    raw.trim_start().starts_with('{') && serde_json::from_str::<Vec<IgnoredAny>>(&list).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;
    use crate::wire::splice::splice;
    use bytes::Bytes;
    use serde_json::Value;

    fn cut(dialect: Dialect, body: &str, cut: usize, boundary: bool) -> Option<String> {
        let target = match dialect {
            Dialect::Gemini => "/v1beta/models/gemini-3-pro:generateContent",
            Dialect::Anthropic => "/v1/messages",
            Dialect::OpenaiChat => "/v1/chat/completions",
            Dialect::OpenaiResponses => "/v1/responses",
        };
        let read = dialect::read(dialect, target, body.as_bytes());
        let raw = continued(dialect, "So \"far\".", &[], boundary.then_some("On."));
        let edits = compact(&read, body.as_bytes(), cut, &raw)?;
        let slices = splice(&Bytes::from(body.to_owned()), edits).unwrap();
        let text = String::from_utf8(slices.concat()).unwrap();
        serde_json::from_str::<Value>(&text).unwrap();
        Some(text)
    }

    #[test]
    fn summary_replaces_beginning_and_leaves_all_other_bytes() {
        let body = r#"{ "messages" : [ {"role":"user","content":"a"} , {"role":"assistant","content":"b"},
            {"role":"user", "content":"c"}], "x":1.0}"#;
        let expected = r#"{ "messages" : [ {"role":"user","content":"So \"far\"."},{"role":"assistant","content":"On."},
            {"role":"user", "content":"c"}], "x":1.0}"#;
        for dialect in [Dialect::Anthropic, Dialect::OpenaiChat] {
            assert_eq!(cut(dialect, body, 2, true).unwrap(), expected);
            assert_eq!(cut(dialect, body, 0, true), None);
            assert_eq!(cut(dialect, body, 3, true), None, "nothing would be left to answer");
            assert_eq!(cut(dialect, body, 9, true), None);
        }
        let gemini = r#"{"contents":[{"role":"user","parts":[{"text":"a"}]},{"role":"model","parts":[{"text":"b"}]}]}"#;
        assert_eq!(
            cut(Dialect::Gemini, gemini, 1, false).unwrap(),
            r#"{"contents":[{"role":"user","parts":[{"text":"So \"far\"."}]},{"role":"model","parts":[{"text":"b"}]}]}"#
        );
    }

    /// Codex sends its tools as items. They are not part of the history, so they stay.
    #[test]
    fn items_between_messages_stay() {
        let tools = r#"{"type":"additional_tools","tools":[]}"#;
        let body = format!(
            r#"{{"input":[{{"role":"user","content":"a"}},{tools},{{"role":"assistant","content":"b"}},{{"role":"user","content":"c"}}]}}"#
        );
        assert_eq!(
            cut(Dialect::OpenaiResponses, &body, 2, false).unwrap(),
            format!(
                r#"{{"input":[{{"role":"user","content":"So \"far\"."}},{tools},{{"role":"user","content":"c"}}]}}"#
            )
        );
    }

    #[test]
    fn history_ends_at_given_message() {
        let body =
            br#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", body);
        let edits = end_before(&read, body, 1).unwrap();
        let slices = splice(&Bytes::from_static(body), edits).unwrap();
        assert_eq!(slices.concat(), br#"{"messages":[{"role":"user","content":"a"}]}"#);
        assert_eq!(end_before(&read, body, 0), None);
        assert_eq!(end_before(&read, body, 2), Some(Vec::new()));
    }

    #[test]
    fn boundary_moves_into_summary() {
        let dialects =
            [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];
        for dialect in dialects {
            let step = message(dialect, "user", "A tool.");
            let steps = [step.clone()];
            let separate = continued(dialect, "They \"spoke\".", &steps, Some("Go on.\n"));
            let moved = continued(dialect, "They \"spoke\".\n\nGo on.\n", &steps, None);
            let result = with_boundary_moved(&separate);
            assert_eq!(result.as_deref(), Some(&*moved), "{dialect:?}");
            assert_eq!(with_boundary_moved(&moved), None, "{dialect:?}: it ends with a step");
            assert_eq!(with_boundary_moved(&step), None, "{dialect:?}: it has none");
        }
    }

    #[test]
    fn only_texts_have_boundary() {
        let alone = message(Dialect::Anthropic, "assistant", "Go on.");
        for raw in [&alone, "", "{", r#"{"a":1},{"b":2}"#, r#"{"role":"user"},1"#] {
            assert_eq!(with_boundary_moved(raw), None, "{raw}");
        }
    }

    #[test]
    fn summary_that_is_not_list_of_json_objects_is_rejected() {
        let body =
            br#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", body);
        for raw in ["", "{", r#"{"a":1},"#, "1", r#"{"a":1}]}"#] {
            assert_eq!(compact(&read, body, 1, raw), None, "{raw}");
        }
    }
}
