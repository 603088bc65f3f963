//! The model's replies in parts, independent of protocols: set by a test or generated here.
//!
//! The generator is deterministic: the same seed and the same conversation give the same reply, whatever
//! other requests come in between. It knows nothing of how a protocol writes replies.

use serde_json::{Map, Value, json};

use super::prompt::{items, text};
use demo_provider::ToolDefinition;

/// One reply of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptedReply {
    /// Its parts in order.
    pub parts: Vec<ScriptedPart>,
}

/// A part of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptedPart {
    /// Reasoning with its visible text, which is empty if the request hides it.
    Thinking {
        /// The visible text.
        text: String,
        /// Tokens of the reasoning: billed, and counted as input when it comes back.
        tokens: u64,
    },
    /// Reasoning without visible text, only a signature.
    HiddenThinking {
        /// Tokens of the reasoning.
        tokens: u64,
    },
    /// Anthropic `redacted_thinking`; elsewhere as [`ScriptedPart::HiddenThinking`].
    RedactedThinking {
        /// Tokens of the reasoning.
        tokens: u64,
    },
    /// Text for the user.
    Text(String),
    /// A tool call. Several in one reply are parallel.
    ToolCall {
        /// The tool's name.
        name: String,
        /// Its arguments, an object.
        arguments: Value,
    },
}

impl ScriptedReply {
    /// A reply of one text.
    pub fn text(text: &str) -> Self {
        Self::default().with_text(text)
    }

    /// A reply that begins with thinking.
    pub fn thinking(text: &str, tokens: u64) -> Self {
        Self::default().with_part(ScriptedPart::Thinking { text: text.to_owned(), tokens })
    }

    /// Adds a text.
    #[must_use]
    pub fn with_text(self, text: &str) -> Self {
        self.with_part(ScriptedPart::Text(text.to_owned()))
    }

    /// Adds a tool call.
    #[must_use]
    pub fn with_call(self, name: &str, arguments: Value) -> Self {
        self.with_part(ScriptedPart::ToolCall { name: name.to_owned(), arguments })
    }

    /// Adds a part.
    #[must_use]
    pub fn with_part(mut self, part: ScriptedPart) -> Self {
        self.parts.push(part);
        self
    }

    /// Whether a tool is called.
    pub fn has_calls(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, ScriptedPart::ToolCall { .. }))
    }

    pub(super) fn has_thinking(&self) -> bool {
        self.parts
            .iter()
            .any(|part| !matches!(part, ScriptedPart::Text(_) | ScriptedPart::ToolCall { .. }))
    }

    /// Another reply to the same request: other texts, and from the second on other arguments.
    pub(super) fn alternative(&self, nth: usize) -> Self {
        let mut other = self.clone();
        for part in &mut other.parts {
            match part {
                ScriptedPart::Thinking { text, .. } | ScriptedPart::Text(text) => {
                    text.push_str(&format!(" or {nth}"));
                }
                ScriptedPart::ToolCall { arguments, .. } if nth > 1 => {
                    for argument in arguments.as_object_mut().into_iter().flat_map(Map::values_mut)
                    {
                        if let Value::String(text) = argument {
                            text.push_str(&format!(" or {nth}"));
                        }
                    }
                }
                _ => {}
            }
        }
        other
    }

    /// Removes its reasoning, for a request that wants none.
    pub(super) fn without_thinking(mut self) -> Self {
        self.parts
            .retain(|part| matches!(part, ScriptedPart::Text(_) | ScriptedPart::ToolCall { .. }));
        self
    }
}

/// What the generator knows of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyContext {
    /// Whether the request lets the model think.
    pub(super) thinks: bool,
    /// Whether a reply with calls has to begin with visible thinking (`docs/protocols.md` 1.2).
    pub(super) must_begin_with_thinking: bool,
    /// Tools that may be called.
    pub(super) tools: Vec<ToolDefinition>,
    /// Hash of the newest user text.
    pub(super) user_hash: u128,
    /// Replies since then.
    pub(super) rounds: u64,
    /// Output limit, tokens.
    pub(super) max_output: Option<u64>,
}

/// Generates replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyGenerator {
    seed: u64,
}

impl ReplyGenerator {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The next reply: up to five rounds of one to three parallel calls, each with or without
    /// thinking and text, then a reply without calls.
    pub(super) fn generate(self, context: &ReplyContext) -> ScriptedReply {
        let mut turn_rng =
            Rng::new(self.seed ^ context.user_hash as u64 ^ (context.user_hash >> 64) as u64);
        let rounds = turn_rng.below(6);
        let mut rng = Rng::new(turn_rng.next() ^ context.rounds.wrapping_mul(0x9e37_79b9));
        let mut reply = ScriptedReply::default();
        if context.thinks {
            add_thinking(&mut reply, &mut rng, context.must_begin_with_thinking);
        }
        if context.tools.is_empty() || context.rounds >= rounds {
            let text = rng.words(8, 60);
            return reply.with_text(&text);
        }
        if rng.below(2) == 0 {
            reply = reply.with_text(&rng.words(3, 12));
        }
        for _ in 0..=[0, 0, 0, 1, 1, 2][rng.below(6) as usize] {
            let tool = &context.tools[rng.below(context.tools.len() as u64) as usize];
            let arguments = schema_instance(&tool.parameters, &mut rng);
            reply = reply.with_call(&tool.name, arguments);
        }
        reply
    }
}

fn add_thinking(reply: &mut ScriptedReply, rng: &mut Rng, must_think: bool) {
    // Adds no, one or two pieces of reasoning, now and then one without visible text.
    let pieces = match rng.below(10) {
        0 if !must_think => 0,
        0..8 => 1,
        _ => 2,
    };
    for _ in 0..pieces {
        let tokens = 20 + rng.below(400);
        reply.parts.push(match rng.below(10) {
            0 => ScriptedPart::RedactedThinking { tokens },
            1 => ScriptedPart::HiddenThinking { tokens },
            _ => ScriptedPart::Thinking { text: rng.words(10, 80), tokens },
        });
    }
}

/// A value that a JSON schema accepts: what is required, and nothing else.
fn schema_instance(schema: &Value, rng: &mut Rng) -> Value {
    let mut object = Map::new();
    let properties = schema["properties"].as_object();
    for name in items(&schema["required"]).map(text) {
        let property = properties.and_then(|all| all.get(name)).unwrap_or(&Value::Null);
        object.insert(name.to_owned(), property_value(property, rng));
    }
    Value::Object(object)
}

fn property_value(property: &Value, rng: &mut Rng) -> Value {
    if let Some(first) = property["enum"].get(0) {
        return first.clone();
    }
    match text(&property["type"]).to_ascii_lowercase().as_str() {
        "integer" | "number" => json!(rng.below(1000)),
        "boolean" => json!(rng.below(2) == 1),
        "array" => json!([]),
        "object" => schema_instance(property, rng),
        _ => json!(rng.words(1, 8)),
    }
}

/// A splitmix64 random number generator.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn words(&mut self, min: u64, max: u64) -> String {
        // Between `min` and `max` words; the last one occurs nowhere else.
        const WORDS: [&str; 16] = [
            "the",
            "build",
            "fails",
            "in",
            "a",
            "test",
            "of",
            "parser",
            "so",
            "look",
            "at",
            "file",
            "\"Größe\"",
            "line\n",
            "<and>",
            "naïve",
        ];
        let count = min + self.below(max - min);
        let mut all: Vec<String> =
            (0..count).map(|_| WORDS[self.below(16) as usize].to_owned()).collect();
        all.push(format!("{:08x}", self.next() as u32));
        all.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply_context(user_hash: u128, rounds: u64) -> ReplyContext {
        let schema = json!({"properties": {"path": {"type": "string"}, "n": {"type": "integer"}}, "required": ["path", "n"]});
        ReplyContext {
            thinks: true,
            tools: vec![ToolDefinition { name: "read".into(), parameters: schema }],
            user_hash,
            rounds,
            ..ReplyContext::default()
        }
    }

    #[test]
    fn reply_generator_is_deterministic_and_stops_calling_tools() {
        let generator = ReplyGenerator::new(3);
        let mut seen = Vec::new();
        for user_hash in 0..40 {
            assert_eq!(
                generator.generate(&reply_context(user_hash, 0)),
                generator.generate(&reply_context(user_hash, 0))
            );
            assert!(
                !generator.generate(&reply_context(user_hash, 6)).has_calls(),
                "after five rounds it answers"
            );
            seen.push(generator.generate(&reply_context(user_hash, 0)));
        }
        let calls = |reply: &ScriptedReply| {
            reply.parts.iter().filter(|p| matches!(p, ScriptedPart::ToolCall { .. })).count()
        };
        for many in 0..=3 {
            assert!(seen.iter().any(|reply| calls(reply) == many), "never {many} calls at once");
        }
        assert!(seen.iter().any(|reply| {
            reply.parts.iter().any(|p| matches!(p, ScriptedPart::RedactedThinking { .. }))
        }));
        assert!(seen.iter().any(|reply| matches!(
            reply.parts[..],
            [ScriptedPart::ToolCall { .. } | ScriptedPart::Text(_), ..]
        )));
    }

    #[test]
    fn arguments_fit_their_schema() {
        let reply = (0..)
            .map(|user_hash| ReplyGenerator::new(1).generate(&reply_context(user_hash, 0)))
            .find(ScriptedReply::has_calls);
        let parts = reply.unwrap().parts;
        let Some(ScriptedPart::ToolCall { arguments, .. }) = parts.last() else {
            panic!("{parts:?}")
        };
        assert!(arguments["path"].is_string(), "{arguments}");
        assert!(arguments["n"].is_u64(), "{arguments}");
    }
}
