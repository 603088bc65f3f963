//! The weight of a reply by an agent's rules, as its client will send it back. Only for replies whose usage was
//! not reported: the others were counted by the provider.

use super::decided::messages_weight;
use crate::dialect::reply::runs;
use crate::dialect::{Dialect, PartKind, Reply, ReplyPart};
use crate::tokens::classic::ClassicRules;

/// The weight of the messages that a client makes of a reply. `thoughts`: with its reasoning.
pub(super) fn reply_weight(
    rules: &ClassicRules,
    dialect: Dialect,
    reply: &Reply,
    thoughts: bool,
) -> f64 {
    let raw = reply_as_sent(dialect, reply, thoughts);
    if raw.is_empty() { 0.0 } else { messages_weight(rules, dialect, &raw) }
}

pub(super) fn has_content(reply: &Reply) -> bool {
    // Nobody sends reasoning alone.
    reply.parts.iter().any(|part| part.kind != PartKind::Reasoning && part.key.is_some())
}

fn reply_as_sent(dialect: Dialect, reply: &Reply, thoughts: bool) -> String {
    if !has_content(reply) {
        return String::new();
    }
    let mut blocks: Vec<String> = Vec::new();
    let mut text = String::new();
    let mut calls = Vec::new();
    // Reasoning comes first, in whatever order it was received.
    for part in reply.parts.iter().filter(|part| part.kind == PartKind::Reasoning) {
        match &part.raw {
            Some(raw) if thoughts => blocks.push(raw.as_ref().into()),
            // Plimsoll puts nothing back of a stream that broke off, but clients keep what they have.
            None if thoughts && dialect == Dialect::OpenaiChat => {
                blocks.push(format!(r#"{{"reasoning_content":{}}}"#, quoted(&part.text)));
            }
            _ => {}
        }
    }
    for (_, run) in runs(&reply.parts) {
        let Some(last) = run.last() else { continue };
        let words: String = run.iter().map(|part| part.text.as_str()).collect();
        match (last.kind, dialect) {
            (PartKind::Text, Dialect::OpenaiChat) => text.push_str(&words),
            (PartKind::Text, _) => blocks.push(text_block(dialect, &words)),
            (PartKind::ToolCall, Dialect::OpenaiChat) => calls.push(call_block(dialect, last)),
            (PartKind::ToolCall, _) => blocks.push(call_block(dialect, last)),
            _ => {}
        }
    }
    let list = blocks.join(",");
    match dialect {
        Dialect::Anthropic => format!(r#"{{"role":"assistant","content":[{list}]}}"#),
        Dialect::OpenaiResponses => list,
        Dialect::Gemini => format!(r#"{{"role":"model","parts":[{list}]}}"#),
        Dialect::OpenaiChat => {
            // The received fields of reasoning: `{"reasoning_content":…}`.
            let fields = blocks.iter().filter_map(|raw| raw.strip_prefix('{')?.strip_suffix('}'));
            let fields: String = fields.map(|members| format!(",{members}")).collect();
            let calls = calls.join(",");
            let calls =
                if calls.is_empty() { calls } else { format!(r#","tool_calls":[{calls}]"#) };
            format!(r#"{{"role":"assistant","content":{}{fields}{calls}}}"#, quoted(&text))
        }
    }
}

fn text_block(dialect: Dialect, text: &str) -> String {
    let text = quoted(text);
    match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat => format!(r#"{{"type":"text","text":{text}}}"#),
        Dialect::Gemini => format!(r#"{{"text":{text}}}"#),
        Dialect::OpenaiResponses => format!(
            r#"{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":{text}}}]}}"#
        ),
    }
}

fn call_block(dialect: Dialect, call: &ReplyPart) -> String {
    let name = quoted(call.name.as_deref().unwrap_or_default());
    let id = quoted(call.id.as_deref().unwrap_or_default());
    let arguments = quoted(&call.text);
    let input = if call.text.is_empty() { "{}" } else { &call.text };
    match dialect {
        Dialect::Anthropic => {
            format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#)
        }
        Dialect::OpenaiChat => format!(
            r#"{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}"#
        ),
        Dialect::OpenaiResponses => format!(
            r#"{{"type":"function_call","call_id":{id},"name":{name},"arguments":{arguments}}}"#
        ),
        Dialect::Gemini => format!(r#"{{"functionCall":{{"name":{name},"args":{input}}}}}"#),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};

    /// What the reply in these deltas of Chat Completions weighs, by length/4.
    fn weight(deltas: &[&str], end: BodyEnd) -> f64 {
        let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Events, 1 << 20);
        for delta in deltas {
            let choice = format!(r#"{{"index":0,"delta":{delta},"finish_reason":null}}"#);
            reading.push(format!("data: {{\"choices\":[{choice}]}}\n\n").as_bytes());
        }
        if end == BodyEnd::Whole {
            reading.push(
                b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            );
        }
        reply_weight(&ClassicRules::default(), Dialect::OpenaiChat, &reading.finish(end), true)
    }

    #[test]
    fn broken_streams_weigh_what_was_received() {
        let thoughts = [r#"{"reasoning_content":"1234"}"#, r#"{"reasoning_content":"5678"}"#];
        assert_eq!(weight(&thoughts, BodyEnd::Cut), 0.0, "nobody sends reasoning alone");
        let answered = [thoughts[0], thoughts[1], r#"{"content":"1234"}"#];
        assert_eq!(weight(&answered, BodyEnd::Cut), 3.0);
        assert_eq!(weight(&answered, BodyEnd::Whole), 3.0);
    }

    #[test]
    fn nested_members_stay_whole() {
        let deltas =
            [r#"{"extra_content":{"google":{"thought_signature":"s"}}}"#, r#"{"content":"1234"}"#];
        assert_eq!(weight(&deltas, BodyEnd::Whole), 1.0);
    }
}
