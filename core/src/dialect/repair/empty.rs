//! Empty text, or only white space: the block is removed; if it is the only one, it gets a placeholder text.
//!
//! No message is removed: its neighbours may have the same role, and calls may depend on it.

use super::messages::history;
use crate::dialect::rewrite::{Removal, edit, first_member, literal, room, runs};
use crate::dialect::{Dialect, Span};
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

pub(super) fn edits(dialect: Dialect, root: Value<'_>, body: &[u8], text: &str) -> Vec<Edit> {
    let mut pass = EmptyTextPass { dialect, body, text, edits: Vec::new() };
    if dialect == Dialect::Anthropic
        && let Some(system) = root.get("system").filter(|system| system.kind() == Kind::Array)
        && system.items().next().is_some()
    {
        pass.list(system);
    }
    let messages: Vec<Value<'_>> =
        history(dialect, root).into_iter().flat_map(|list| list.items()).collect();
    for message in &messages {
        pass.message(*message);
    }
    if dialect == Dialect::Anthropic
        && let Some(last) = messages.last()
    {
        pass.ending(*last);
    }
    pass.edits
}

struct EmptyTextPass<'a> {
    dialect: Dialect,
    body: &'a [u8],
    text: &'a str,
    edits: Vec<Edit>,
}

impl EmptyTextPass<'_> {
    fn message(&mut self, message: Value<'_>) {
        if message.kind() != Kind::Object {
            return;
        }
        let name = if self.dialect == Dialect::Gemini { "parts" } else { "content" };
        let is_models = message.get_text("role").is_some_and(|role| role == "assistant");
        let calls = message.get("tool_calls").is_some_and(|calls| calls.items().next().is_some());
        let is_item = message.get_text("type").is_some_and(|kind| kind != "message");
        if self.dialect == Dialect::OpenaiResponses && is_item {
            return;
        }
        let Some(content) = message.get(name) else {
            if !calls && message.get("role").is_some() {
                let member = format!("\"{name}\":{}", self.least());
                self.edits.extend(first_member(self.body, message.span().start, &member));
            }
            return;
        };
        match content.kind() {
            Kind::String if is_blank(content) && is_models && calls => self.put(content, "null"),
            Kind::String if is_blank(content) => self.put(content, &literal(self.text)),
            Kind::Null if !calls => self.put(content, &self.least()),
            Kind::Array if calls && content.items().all(|part| self.is_empty(part)) => {
                self.put(content, "null");
            }
            Kind::Array => self.list(content),
            _ => {}
        }
    }

    fn list(&mut self, list: Value<'_>) {
        // Handles a list of blocks, and the lists in its results.
        let (empty, full): (Vec<_>, Vec<_>) = list.items().partition(|part| self.is_empty(*part));
        if full.is_empty() {
            return self.put(list, &format!("[{}]", self.block()));
        }
        for run in runs(self.body, empty.iter().map(Value::span).collect()) {
            if let Some(Removal::Shared(at)) = room(self.body, run) {
                self.edits.push(edit(at, ""));
            }
        }
        if self.dialect != Dialect::Anthropic {
            return;
        }
        for block in full {
            let is_result = block.get_text("type").is_some_and(|kind| kind == "tool_result");
            if is_result
                && let Some(content) = block.get("content")
                && content.items().next().is_some()
            {
                self.list(content);
            }
        }
    }

    fn ending(&mut self, message: Value<'_>) {
        // The API refuses a last text of the model that ends with white space.
        if message.get_text("role").as_deref() != Some("assistant") {
            return;
        }
        let Some(content) = message.get("content") else { return };
        let value = content.items().last().map_or(Some(content), |block| block.get("text"));
        let Some(value) = value else { return };
        let Some(text) = value.text() else { return };
        let trimmed = text.trim_end();
        if !trimmed.is_empty() && trimmed.len() < text.len() {
            self.edits.push(edit(value.span(), literal(trimmed)));
        }
    }

    fn is_empty(&self, part: Value<'_>) -> bool {
        if part.kind() != Kind::Object {
            return part.is_null();
        }
        if self.dialect == Dialect::Gemini {
            // A signed part stays, because the next request has to bring its signature.
            let is_signed = part.get_any(&["thoughtSignature", "thought_signature"]).is_some();
            let has_data = part.entries().any(|(key, _)| !key.is("thought"));
            return !has_data || part.get("text").is_some_and(is_blank) && !is_signed;
        }
        let kind = part.get_text("type").unwrap_or_default();
        let is_text = matches!(&*kind, "text" | "input_text" | "output_text");
        is_text && part.get("text").is_none_or(is_blank)
    }

    fn least(&self) -> String {
        match self.dialect {
            Dialect::Gemini => format!("[{}]", self.block()),
            _ => literal(self.text),
        }
    }

    fn block(&self) -> String {
        let text = literal(self.text);
        match self.dialect {
            Dialect::Gemini => format!("{{\"text\":{text}}}"),
            Dialect::OpenaiResponses => format!("{{\"type\":\"input_text\",\"text\":{text}}}"),
            Dialect::Anthropic | Dialect::OpenaiChat => {
                format!("{{\"type\":\"text\",\"text\":{text}}}")
            }
        }
    }

    fn put(&mut self, value: Value<'_>, with: &str) {
        let Span { start, end } = value.span();
        self.edits.push(edit(Span::new(start, end), with.to_owned()));
    }
}

fn is_blank(value: Value<'_>) -> bool {
    value.text().is_some_and(|text| text.trim().is_empty())
}
