//! A part in, tokens out: text by tokenizer family, structure by dialect, pictures by patches.
//!
//! The constants are measured (`estimator.md` §1). Bounded: past a share of text per request the
//! length model speaks, and the result says so. Must not know what was sent before.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::bpe::{self, Encoding};
use super::media;
use crate::dialect::models::{Binding, Family, Model};
use crate::dialect::{Conversation, Dialect, Part, PartKind, ReplyPart, Span};
use crate::wire::json::Document;

/// Most bytes of text that are tokenised for one request, at some 30 MB/s; past it the length
/// model speaks.
pub const EXACT_BYTES: usize = 2 << 20;

/// How the tokens of new parts were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// With the model's own tokenizer.
    Exact,
    /// With a public tokenizer, times what the model's family needs of it.
    Ratio,
    /// From the length of the text: the tokenizer is not loaded yet, or the new text was longer
    /// than what is tokenised for one request.
    #[default]
    Length,
}

/// How text is counted for one family of models.
#[derive(Clone, Copy, Debug)]
pub struct Tokenizer {
    /// Whose tokens.
    pub family: Family,
    /// The vocabulary, where it is loaded.
    pub encoding: Option<&'static Encoding>,
    /// Most bytes that are tokenised for one request.
    pub limit: usize,
}

impl Tokenizer {
    /// For `family`, with the vocabulary if it is loaded; see [`bpe::is_wanted`].
    pub fn now(family: Family) -> Self {
        Self { family, encoding: bpe::loaded(family), limit: EXACT_BYTES }
    }

    /// The same, waiting until the vocabulary is loaded: for tests, and at the start.
    pub fn whole(family: Family) -> Self {
        Self { family, encoding: bpe::load(family), limit: EXACT_BYTES }
    }

    /// A counter for one request to `model`, read from `body`.
    pub fn counter<'c>(
        self,
        conversation: &'c Conversation,
        body: &'c [u8],
        model: &Model,
    ) -> Counter<'c> {
        let calls = conversation.parts().filter(|part| part.kind == PartKind::ToolCall);
        let names = calls.filter_map(|call| Some((call.id.as_deref()?, call.name.as_deref()?)));
        let shape = Shape::of(model, conversation.dialect);
        Counter { names: names.collect(), shape, ..self.words(body) }
    }

    /// A counter for what a reply says.
    pub fn reply(self) -> Counter<'static> {
        self.words(&[])
    }

    fn words(self, body: &[u8]) -> Counter<'_> {
        let counting = match self.family {
            Family::O200k | Family::Cl100k => Counting::Exact,
            Family::Gemini | Family::Claude | Family::ClaudeNew | Family::Other => Counting::Ratio,
        };
        let (left, document) = (self.limit, Document::default());
        let (names, shape) = (HashMap::new(), Shape::default());
        Counter { tokenizer: self, body, names, shape, left, counting, document }
    }
}

/// Counts the parts of one request, or of one reply.
pub struct Counter<'c> {
    tokenizer: Tokenizer,
    body: &'c [u8],
    /// Tools' names by their calls' ids: a result is introduced by the name.
    names: HashMap<&'c str, &'c str>,
    shape: Shape,
    /// Bytes that may still be tokenised.
    left: usize,
    counting: Counting,
    document: Document,
}

impl Counter<'_> {
    /// Tokens of a part of the request, with its share of structure.
    pub fn part(&mut self, part: &Part) -> u32 {
        if let Some(media) = &part.media {
            return media::tokens(part, media, self.body, self.tokenizer.family);
        }
        let mut words: u32 = part.texts.iter().map(|text| self.literal(*text)).sum();
        if part.kind == PartKind::Reasoning && words == 0 {
            // Sealed reasoning is as long as what it seals, more or less.
            words = part.sealed.map_or(0, |sealed| (sealed.len() / SEALED_BYTES) as u32);
        }
        if part.texts.is_empty() && matches!(part.kind, PartKind::Tool | PartKind::Opaque) {
            return 0; // not in the prompt: deferred, or a mere mark
        }
        if part.kind == PartKind::Tool {
            words = (u64::from(words) * u64::from(self.shape.tool_percent) / 100) as u32;
        }
        words + self.structure(part)
    }

    /// Tokens of a part of the request whose words give way to `text`.
    pub fn stands_for(&mut self, part: &Part, text: &str) -> u32 {
        self.words(text) + self.structure(part)
    }

    /// What the first tool costs beside itself: the instructions on how to call one.
    pub fn offering(&self) -> u32 {
        self.shape.offering
    }

    /// What a prompt costs beside its parts.
    pub fn opening(&self) -> u64 {
        self.shape.prompt
    }

    /// Tokens of a part of a reply, without what will stand around it.
    pub fn said(&mut self, part: &ReplyPart) -> u32 {
        let name = part.name.as_deref().map_or(0, |name| self.words(name));
        self.words(&part.text) + name
    }

    /// What a request costs beside its parts when it grew from another one; `answers` says whether
    /// it brings tool results.
    pub fn growing(&self, answers: bool) -> i64 {
        self.shape.opening + if answers { self.shape.answered } else { 0 }
    }

    /// How the parts so far were counted; the least exact of them.
    pub fn counting(&self) -> Counting {
        self.counting
    }

    fn structure(&mut self, part: &Part) -> u32 {
        let shape = self.shape;
        match part.kind {
            PartKind::ToolResult => {
                let id = part.id.as_deref().unwrap_or_default();
                let name = part.name.as_deref().or_else(|| self.names.get(id).copied());
                let name = match (shape.names_results, name) {
                    (true, Some(name)) => self.words(&format!("functions.{name}")),
                    _ => 0,
                };
                shape.result + name
            }
            PartKind::ToolCall => {
                shape.call + part.name.as_deref().map_or(0, |name| self.words(name))
            }
            PartKind::Text => shape.text,
            PartKind::Tool => shape.tool,
            PartKind::Reasoning => shape.reasoning,
            PartKind::Image | PartKind::Document | PartKind::Opaque => 0,
        }
    }

    /// Tokens of a JSON value as a model reads it: a string without quotes and escapes, anything
    /// else as it stands.
    fn literal(&mut self, at: Span) -> u32 {
        let raw = at.of(self.body);
        if raw.first() != Some(&b'"') {
            return self.words(&String::from_utf8_lossy(raw));
        }
        let mut document = std::mem::take(&mut self.document);
        let read = document.read_again(raw).ok();
        let text: Cow<'_, str> = read
            .and_then(|()| document.root(raw)?.text())
            .unwrap_or_else(|| String::from_utf8_lossy(raw));
        let tokens = self.words(&text);
        drop(text);
        self.document = document;
        tokens
    }

    /// Tokens of some words.
    fn words(&mut self, text: &str) -> u32 {
        let ratio = ratio(self.tokenizer.family);
        let public = match self.tokenizer.encoding.filter(|_| text.len() <= self.left) {
            Some(encoding) => {
                self.left -= text.len();
                encoding.count(text) as f64
            }
            None => {
                self.counting = Counting::Length;
                text.len() as f64 / BYTES_A_TOKEN
            }
        };
        (public * ratio).round() as u32
    }
}

/// Bytes of text a token of o200k stands for, over recorded agents' sessions.
const BYTES_A_TOKEN: f64 = 4.1;
/// Bytes of base64 a token of sealed reasoning takes.
const SEALED_BYTES: usize = 7;

/// A family's tokens for one of o200k's (`estimator.md` §1).
fn ratio(family: Family) -> f64 {
    match family {
        Family::O200k | Family::Cl100k => 1.0,
        Family::Gemini => 1.16,
        Family::Claude => 1.15,
        Family::ClaudeNew => 1.56,
        Family::Other => 1.1,
    }
}

/// What stands around parts, tokens: measured (`estimator.md` §1, and the recorded conversations
/// that `tests/estimate.rs` reads).
#[derive(Clone, Copy, Default)]
struct Shape {
    text: u32,
    call: u32,
    result: u32,
    /// A result is introduced by its tool's name.
    names_results: bool,
    tool: u32,
    /// Tools are shown in a form shorter than their JSON: so much of it is left.
    tool_percent: u32,
    /// With the first tool: instructions.
    offering: u32,
    reasoning: u32,
    /// Once in every prompt.
    prompt: u64,
    /// Once in a request that grew: what opens the reply.
    opening: i64,
    /// Once more in a request that brings tool results: what the calls' end had cost.
    answered: i64,
}

impl Shape {
    fn of(model: &Model, dialect: Dialect) -> Self {
        match model.family {
            Family::O200k | Family::Cl100k => Self::of_openai(model, dialect),
            Family::Other => Self {
                names_results: false,
                tool_percent: 100,
                offering: 100,
                ..Self::of_openai(model, dialect)
            },
            Family::Claude => Self {
                call: 30,
                result: 38,
                tool: 20,
                tool_percent: 100,
                offering: 480,
                prompt: 7,
                opening: 2,
                answered: -27,
                ..Self::default()
            },
            Family::ClaudeNew => Self {
                call: 36,
                result: 43,
                tool: 28,
                tool_percent: 100,
                offering: 440,
                prompt: 7,
                answered: -40,
                ..Self::default()
            },
            Family::Gemini => {
                Self { text: 1, call: 8, result: 14, tool: 12, tool_percent: 45, ..Self::default() }
            }
        }
    }

    fn of_openai(model: &Model, dialect: Dialect) -> Self {
        // GPT-5 and the o-series are the ones whose reasoning is bound.
        let reasons = model.binding == Binding::Prefix;
        let (result, opening, answered) = match (reasons, dialect) {
            (true, Dialect::OpenaiResponses) => (6, 2, 0),
            // A reply's channel marks are reported as output, and are not sent back.
            (true, _) => (5, -3, 0),
            (false, Dialect::OpenaiResponses) => (3, 3, -1),
            (false, _) => (3, 4, -2),
        };
        Self {
            text: 4,
            call: 6,
            result,
            names_results: true,
            tool: 8,
            tool_percent: 60,
            offering: 0,
            reasoning: 2,
            prompt: 3,
            opening,
            answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;
    use crate::dialect::models::Catalogue;

    fn model(family: Family) -> Model {
        let name = match family {
            Family::ClaudeNew => "claude-opus-5",
            _ => "gpt-5",
        };
        Catalogue::default().model(name, "")
    }

    fn tokens(family: Family, body: &str) -> (Vec<u32>, Counting) {
        let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
        let mut counter = Tokenizer::whole(family).counter(&read, body.as_bytes(), &model(family));
        let parts = read.parts().map(|part| counter.part(part)).collect();
        (parts, counter.counting())
    }

    const BODY: &str = r#"{"input":[{"role":"user","content":"Hello, \u0077orld!"},
        {"type":"function_call","call_id":"c","name":"shell","arguments":"{}"},
        {"type":"function_call_output","call_id":"c","output":"Hello, world!"}]}"#;

    #[test]
    fn gpts_structure_is_counted_to_the_token() {
        let (parts, counting) = tokens(Family::O200k, BODY);
        // 4 and the words; 6, "functions.shell" and the words (`estimator.md` §1).
        assert_eq!((parts[0], parts[2]), (4 + 4, 6 + 2 + 4));
        assert_eq!(counting, Counting::Exact);
    }

    #[test]
    fn other_families_are_counted_in_proportion() {
        let (parts, counting) = tokens(Family::ClaudeNew, BODY);
        assert_eq!((parts[0], parts[2]), (6, 43 + 6));
        assert_eq!(counting, Counting::Ratio);
    }

    #[test]
    fn past_its_limit_and_without_a_vocabulary_length_speaks() {
        let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", BODY.as_bytes());
        for tokenizer in [
            Tokenizer { limit: 5, ..Tokenizer::whole(Family::O200k) },
            Tokenizer { encoding: None, ..Tokenizer::whole(Family::O200k) },
        ] {
            let mut counter = tokenizer.counter(&read, BODY.as_bytes(), &model(Family::O200k));
            assert_eq!(counter.part(read.parts().next().unwrap()), 4 + 3);
            assert_eq!(counter.counting(), Counting::Length);
        }
    }
}
