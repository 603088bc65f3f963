//! Classic counting: tokens by the length of the text, as known agents count them.
//!
//! The rules are data: they give the number that the agent they model gives, right or wrong. Characters are
//! UTF-16 units, as in the agents' own language (JavaScript); JSON counts at its length without whitespace.
//! Knows no tokenizer, no usage and no session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dialect::{Audience, Conversation, Message, Part, PartKind, Span};

/// How an agent counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassicRules {
    /// The name of these rules in metrics and log lines.
    pub name: String,
    /// Tokens of an ASCII character of text.
    pub text_tokens_per_char: f64,
    /// Tokens of any other character of text.
    pub other_tokens_per_char: f64,
    /// Tokens of a character of JSON: arguments of calls, blocks that are counted whole.
    pub json_tokens_per_char: f64,
    /// Tokens of a character of a tool's result.
    pub result_tokens_per_char: f64,
    /// Texts with more characters than this count as if all were ASCII.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain_past_chars: Option<u64>,
    /// Tokens of a message in addition to its parts.
    pub message_tokens: u32,
    /// Tokens of a tool call or result in addition to its text.
    pub tool_block_tokens: u32,
    /// Tokens of a picture.
    pub image_tokens: u32,
    /// Tokens of a document, audio or video.
    pub document_tokens: u32,
    /// Fewest tokens of one piece: a text, a name, arguments, a result.
    pub least_tokens: u32,
    /// Tool calls: by name and arguments (`words`), or the whole block (`json`).
    pub calls: CountedContent,
    /// Tool results: only their text (`words`), or their JSON if that is more than a text (`json`), pictures
    /// included.
    pub results: CountedContent,
    /// Reasoning that is sent back: its text (`words`), or the whole block with its signature (`json`).
    pub reasoning: CountedContent,
    /// Whether the tool's name in a result counts, too.
    pub result_names: bool,
    /// Whether the placeholder of a cut result counts.
    pub placeholders: bool,
    /// Whether system prompt and tools count in the first call.
    pub head: bool,
    /// Whether the count starts from the last reported input and output.
    pub anchored: bool,
    /// How each piece is rounded.
    pub piece_rounding: Rounding,
    /// How the sum is rounded, after `factor`.
    pub sum_rounding: Rounding,
    /// The sum is multiplied by this.
    pub factor: f64,
}

/// What of a block is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CountedContent {
    /// What the model reads of it.
    #[default]
    #[serde(rename = "words")]
    Text,
    /// All of it, as JSON.
    Json,
    /// Nothing.
    Nothing,
}

/// How a number of tokens becomes a whole one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// To the nearest; halves go up.
    Nearest,
    /// Up.
    #[default]
    Up,
    /// Down.
    Down,
    /// Not at all.
    None,
}

/// What is sent of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentContent<'s> {
    /// The part as the client sent it.
    Whole,
    /// This placeholder instead of its content.
    Text(&'s str),
    /// The beginning and the end of its content.
    Trimmed(&'s str),
    /// Nothing.
    Gone,
}

impl Default for ClassicRules {
    fn default() -> Self {
        // What most agents without a tokenizer do.
        Self {
            name: "length-4".to_owned(),
            text_tokens_per_char: 0.25,
            other_tokens_per_char: 0.25,
            json_tokens_per_char: 0.25,
            result_tokens_per_char: 0.25,
            plain_past_chars: None,
            message_tokens: 0,
            tool_block_tokens: 0,
            image_tokens: 1_000,
            document_tokens: 1_000,
            least_tokens: 0,
            calls: CountedContent::Text,
            results: CountedContent::Text,
            reasoning: CountedContent::Text,
            result_names: false,
            placeholders: true,
            head: true,
            anchored: true,
            piece_rounding: Rounding::Up,
            sum_rounding: Rounding::Up,
            factor: 1.0,
        }
    }
}

impl ClassicRules {
    /// Tokens of the messages of a request read from `body`. `seen` says what is sent of each part.
    pub fn messages<'s>(
        &self,
        body: &[u8],
        messages: &[Message],
        seen: impl Fn(&Part) -> SentContent<'s>,
    ) -> u64 {
        self.sum(self.weigh(body, messages, &seen))
    }

    /// Like [`Self::messages`], before the factor and the rounding.
    pub(crate) fn weigh<'s>(
        &self,
        body: &[u8],
        messages: &[Message],
        seen: &impl Fn(&Part) -> SentContent<'s>,
    ) -> f64 {
        messages.iter().map(|message| self.message(body, message, seen)).sum()
    }

    /// Tokens of a whole request that does not continue an earlier one.
    pub fn whole<'s>(
        &self,
        conversation: &Conversation,
        body: &[u8],
        seen: impl Fn(&Part) -> SentContent<'s>,
    ) -> u64 {
        let history = self.weigh(body, &conversation.messages, &seen);
        self.sum(history + if self.head { self.head(conversation, body) } else { 0.0 })
    }

    pub(crate) fn part(&self, body: &[u8], part: &Part) -> u64 {
        self.sum(self.raw(body, part, SentContent::Whole))
    }

    pub(crate) fn stands_for(&self, body: &[u8], part: &Part, text: &str) -> u64 {
        self.sum(self.raw(body, part, SentContent::Text(text)))
    }

    pub(crate) fn weigh_text(&self, text: &str) -> f64 {
        self.text(CharCounts::from_text(text))
    }

    pub(crate) fn system(&self, conversation: &Conversation, body: &[u8]) -> u64 {
        self.sum(self.raw_system(conversation, body))
    }

    pub(crate) fn tools(&self, conversation: &Conversation, body: &[u8]) -> u64 {
        self.sum(self.raw_tools(conversation, body))
    }

    pub(crate) fn head(&self, conversation: &Conversation, body: &[u8]) -> f64 {
        self.raw_system(conversation, body) + self.raw_tools(conversation, body)
    }

    fn raw_system(&self, conversation: &Conversation, body: &[u8]) -> f64 {
        conversation.system.iter().map(|part| self.raw(body, part, SentContent::Whole)).sum()
    }

    fn raw_tools(&self, conversation: &Conversation, body: &[u8]) -> f64 {
        let tools = conversation.tools.iter().filter(|tool| tool.audience == Audience::Model);
        let texts = tools.flat_map(|tool| &tool.texts);
        texts.map(|text| self.json(*text, body, self.json_tokens_per_char)).sum()
    }

    fn message<'s>(
        &self,
        body: &[u8],
        message: &Message,
        seen: &impl Fn(&Part) -> SentContent<'s>,
    ) -> f64 {
        // The provider counted it as the client sent it.
        if let Some(counted) = message.counted
            && message.parts.iter().all(|part| seen(part) == SentContent::Whole)
        {
            return counted as f64 / self.factor;
        }
        // Parts inside a result that is counted as JSON are counted with it.
        let mut counted_to = 0;
        let is_gone = !message.parts.is_empty()
            && message.parts.iter().all(|part| seen(part) == SentContent::Gone);
        let mut sum = if is_gone { 0.0 } else { f64::from(self.message_tokens) };
        for part in &message.parts {
            if part.span.start < counted_to {
                continue;
            }
            if self.is_counted_whole(body, part) {
                counted_to = part.content.map_or(0, |content| content.end);
            }
            sum += self.raw(body, part, seen(part));
        }
        sum
    }

    fn is_counted_whole(&self, body: &[u8], part: &Part) -> bool {
        // Whether a result's images and other blocks are counted as part of its JSON.
        self.results == CountedContent::Json
            && part.kind == PartKind::ToolResult
            && part.content.is_some_and(|content| !content.slice(body).starts_with(b"\""))
    }

    fn raw(&self, body: &[u8], part: &Part, seen: SentContent<'_>) -> f64 {
        if seen == SentContent::Gone || part.audience != Audience::Model {
            return 0.0;
        }
        match part.kind {
            PartKind::Image => f64::from(self.image_tokens),
            PartKind::Document => f64::from(self.document_tokens),
            PartKind::Text => self.part_text(part, body),
            PartKind::ToolCall => f64::from(self.tool_block_tokens) + self.call(part, body),
            PartKind::ToolResult => {
                f64::from(self.tool_block_tokens) + self.result(part, body, seen)
            }
            PartKind::Reasoning => match self.reasoning {
                CountedContent::Text => self.part_text(part, body),
                CountedContent::Json => self.block(part, body),
                CountedContent::Nothing => 0.0,
            },
            PartKind::Tool | PartKind::Opaque => self.block(part, body),
        }
    }

    fn block(&self, part: &Part, body: &[u8]) -> f64 {
        self.json(part.span, body, self.json_tokens_per_char)
    }

    fn part_text(&self, part: &Part, body: &[u8]) -> f64 {
        part.texts.iter().map(|text| self.text(chars(text.slice(body)))).sum()
    }

    fn call(&self, part: &Part, body: &[u8]) -> f64 {
        match self.calls {
            CountedContent::Text => {
                let name =
                    part.name.as_deref().map_or(0.0, |name| self.text(CharCounts::from_text(name)));
                let rate = self.json_tokens_per_char;
                name + part.texts.iter().map(|text| self.json(*text, body, rate)).sum::<f64>()
            }
            CountedContent::Json => self.block(part, body),
            CountedContent::Nothing => 0.0,
        }
    }

    fn result(&self, part: &Part, body: &[u8], seen: SentContent<'_>) -> f64 {
        let rate = self.result_tokens_per_char;
        let name = if self.result_names { part.name.as_deref() } else { None };
        let name = name.map_or(0.0, |name| self.text(CharCounts::from_text(name)));
        let content = match (seen, self.results) {
            (SentContent::Text(_), _) if !self.placeholders => return 0.0,
            (SentContent::Text(content) | SentContent::Trimmed(content), _) => {
                self.piece(CharCounts::from_text(content).all() * rate)
            }
            (_, CountedContent::Nothing) => 0.0,
            (_, CountedContent::Json) if part.content.is_some() => {
                part.content.map_or(0.0, |content| self.json(content, body, rate))
            }
            (_, CountedContent::Text | CountedContent::Json) => {
                part.texts.iter().map(|text| self.json(*text, body, rate)).sum::<f64>()
            }
        };
        name + content
    }

    fn json(&self, at: Span, body: &[u8], rate: f64) -> f64 {
        self.piece(chars(at.slice(body)).all() * rate)
    }

    fn text(&self, chars: CharCounts) -> f64 {
        let is_plain = self.plain_past_chars.is_some_and(|limit| chars.all() > limit as f64);
        let other = if is_plain { self.text_tokens_per_char } else { self.other_tokens_per_char };
        self.piece(chars.ascii as f64 * self.text_tokens_per_char + chars.other as f64 * other)
    }

    fn piece(&self, tokens: f64) -> f64 {
        self.piece_rounding.round(tokens).max(f64::from(self.least_tokens))
    }

    /// Tokens of a weight: multiplied by the factor and rounded.
    pub(crate) fn sum(&self, tokens: f64) -> u64 {
        // The cast saturates, and turns NaN into 0.
        self.sum_rounding.round(tokens * self.factor) as u64
    }
}

impl Rounding {
    fn round(self, tokens: f64) -> f64 {
        match self {
            Self::Nearest => (tokens + 0.5).floor(),
            Self::Up => tokens.ceil(),
            Self::Down => tokens.floor(),
            Self::None => tokens,
        }
    }
}

/// Characters of a JSON value in its shortest form; for a string, those of the text it represents.
pub(crate) fn length(at: Span, body: &[u8]) -> u64 {
    let chars = chars(at.slice(body));
    chars.ascii + chars.other
}

/// A number of characters, in UTF-16 units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CharCounts {
    ascii: u64,
    other: u64,
}

impl CharCounts {
    fn from_text(text: &str) -> Self {
        text.bytes().fold(Self::default(), Self::and)
    }

    fn all(self) -> f64 {
        (self.ascii + self.other) as f64
    }

    fn and(mut self, byte: u8) -> Self {
        match byte {
            0..=0x7f => self.ascii += 1,
            // The first byte of a character counts for all of it.
            0x80..=0xbf => {}
            0xc0..=0xef => self.other += 1,
            _ => self.other += 2,
        }
        self
    }

    fn ascii(self, more: u64) -> Self {
        Self { ascii: self.ascii + more, ..self }
    }

    fn other(self, more: u64) -> Self {
        Self { other: self.other + more, ..self }
    }
}

fn chars(raw: &[u8]) -> CharCounts {
    match raw {
        [b'"', inner @ .., b'"'] => literal(inner, false),
        // As `JSON.stringify` writes it; numbers are taken as written.
        _ => compact(raw),
    }
}

fn compact(raw: &[u8]) -> CharCounts {
    let mut count = CharCounts::default();
    let mut position = 0;
    while let Some(byte) = raw.get(position) {
        position += 1;
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'"' => {
                let end = position + closing(&raw[position..]);
                let inner = literal(&raw[position..end], true);
                count = count.ascii(inner.ascii + 2).other(inner.other);
                // An unfinished string ends with the text.
                position = (end + 1).min(raw.len());
            }
            byte => count = count.and(*byte),
        }
    }
    count
}

fn closing(raw: &[u8]) -> usize {
    let mut end = 0;
    while let Some(byte) = raw.get(end) {
        match byte {
            b'"' => return end,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    raw.len()
}

/// Characters of the inside of a string literal; with `written`, as JSON writes it, escapes included.
fn literal(inner: &[u8], written: bool) -> CharCounts {
    let mut count = CharCounts::default();
    let mut rest = inner;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            count = count.and(*byte);
            continue;
        }
        let Some((escape, after)) = rest.split_first() else { break };
        rest = after;
        let unit = match escape {
            b'u' => {
                let digits = rest.get(..4).and_then(|digits| std::str::from_utf8(digits).ok());
                let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
                rest = rest.get(4..).unwrap_or_default();
                unit.unwrap_or(0xfffd)
            }
            b'n' | b't' | b'r' | b'b' | b'f' => 0x0a,
            other => u16::from(*other),
        };
        // As JSON writes it: two characters where there is a short escape, six for other control characters.
        count = match unit {
            0x80.. => count.other(1),
            _ if !written => count.ascii(1),
            0x08 | 0x09 | 0x0a | 0x0c | 0x0d | 0x22 | 0x5c => count.ascii(2),
            0..0x20 => count.ascii(6),
            _ => count.ascii(1),
        };
    }
    count
}

#[cfg(test)]
mod tests;
