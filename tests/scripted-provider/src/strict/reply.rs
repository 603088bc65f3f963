//! What the model says next: a reply in parts that no protocol owns, given by a test or written here.
//!
//! The author is deterministic: the same seed and the same conversation give the same reply, whatever
//! was asked in between. It knows what a request offers, nothing of how replies are written down.

use serde_json::{Map, Value, json};

use super::prompt::{items, text};

/// One reply of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// Its parts in order.
    pub parts: Vec<Part>,
}

/// A part of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Reasoning with the text that is shown of it. Shown as empty where the request hides it.
    Thinking {
        /// What is shown.
        text: String,
        /// What was really thought, tokens; it is billed, and weighs this when it comes back.
        tokens: u64,
    },
    /// Reasoning of which only the seal is seen.
    Sealed {
        /// What was really thought, tokens.
        tokens: u64,
    },
    /// Anthropic `redacted_thinking`; elsewhere as [`Part::Sealed`].
    Redacted {
        /// What was really thought, tokens.
        tokens: u64,
    },
    /// Words for the user.
    Text(String),
    /// A tool call. Several in one reply are parallel.
    Call {
        /// The tool's name.
        name: String,
        /// Its arguments, an object.
        arguments: Value,
    },
}

impl Reply {
    /// A reply of one text.
    pub fn text(text: &str) -> Self {
        Self::default().saying(text)
    }

    /// A reply that thinks first.
    pub fn thinking(text: &str, tokens: u64) -> Self {
        Self::default().and(Part::Thinking { text: text.to_owned(), tokens })
    }

    /// Adds a text.
    #[must_use]
    pub fn saying(self, text: &str) -> Self {
        self.and(Part::Text(text.to_owned()))
    }

    /// Adds a tool call.
    #[must_use]
    pub fn calling(self, name: &str, arguments: Value) -> Self {
        self.and(Part::Call { name: name.to_owned(), arguments })
    }

    /// Adds a part.
    #[must_use]
    pub fn and(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Whether a tool is called.
    pub fn calls(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Call { .. }))
    }

    /// Whether anything was thought.
    pub(super) fn thinks(&self) -> bool {
        self.parts.iter().any(|part| !matches!(part, Part::Text(_) | Part::Call { .. }))
    }

    /// Without its reasoning, for a request that wants none.
    pub(super) fn unthinking(mut self) -> Self {
        self.parts.retain(|part| matches!(part, Part::Text(_) | Part::Call { .. }));
        self
    }
}

/// What the author sees of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Scene {
    /// Whether the request lets the model think.
    pub(super) thinks: bool,
    /// Whether a reply with calls has to begin with visible thinking (`docs/protocols.md` 1.2).
    pub(super) begins_thinking: bool,
    /// Tools that may be called: name and schema of the arguments.
    pub(super) tools: Vec<(String, Value)>,
    /// Hash of the newest user text.
    pub(super) said: u128,
    /// Replies since then.
    pub(super) rounds: u64,
    /// Most tokens of output.
    pub(super) max_output: Option<u64>,
}

/// Writes replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Author {
    seed: u64,
}

impl Author {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The next reply: up to five rounds of one to three parallel calls, each with or without
    /// thinking and words, then an answer.
    pub(super) fn next(self, scene: &Scene) -> Reply {
        let mut turn = Dice::new(self.seed ^ scene.said as u64 ^ (scene.said >> 64) as u64);
        let rounds = turn.below(6);
        let mut dice = Dice::new(turn.next() ^ scene.rounds.wrapping_mul(0x9e37_79b9));
        let mut reply = Reply::default();
        if scene.thinks {
            think(&mut reply, &mut dice, scene.begins_thinking);
        }
        if scene.tools.is_empty() || scene.rounds >= rounds {
            let words = dice.words(8, 60);
            return reply.saying(&words);
        }
        if dice.below(2) == 0 {
            reply = reply.saying(&dice.words(3, 12));
        }
        for _ in 0..=[0, 0, 0, 1, 1, 2][dice.below(6) as usize] {
            let (name, schema) = &scene.tools[dice.below(scene.tools.len() as u64) as usize];
            let arguments = instance(schema, &mut dice);
            reply = reply.calling(name, arguments);
        }
        reply
    }
}

/// None, one or two pieces of reasoning, now and then one of which nothing is seen.
fn think(reply: &mut Reply, dice: &mut Dice, must: bool) {
    let pieces = match dice.below(10) {
        0 if !must => 0,
        0..8 => 1,
        _ => 2,
    };
    for _ in 0..pieces {
        let tokens = 20 + dice.below(400);
        reply.parts.push(match dice.below(10) {
            0 => Part::Redacted { tokens },
            1 => Part::Sealed { tokens },
            _ => Part::Thinking { text: dice.words(10, 80), tokens },
        });
    }
}

/// A value that a JSON schema accepts: what is required, and nothing else.
fn instance(schema: &Value, dice: &mut Dice) -> Value {
    let mut object = Map::new();
    let properties = schema["properties"].as_object();
    for name in items(&schema["required"]).map(text) {
        let property = properties.and_then(|all| all.get(name)).unwrap_or(&Value::Null);
        object.insert(name.to_owned(), property_value(property, dice));
    }
    Value::Object(object)
}

fn property_value(property: &Value, dice: &mut Dice) -> Value {
    if let Some(first) = property["enum"].get(0) {
        return first.clone();
    }
    match text(&property["type"]).to_ascii_lowercase().as_str() {
        "integer" | "number" => json!(dice.below(1000)),
        "boolean" => json!(dice.below(2) == 1),
        "array" => json!([]),
        "object" => instance(property, dice),
        _ => json!(dice.words(1, 8)),
    }
}

/// Numbers that look random, from splitmix64.
struct Dice(u64);

impl Dice {
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

    /// Between `least` and `most` words; the last one occurs nowhere else.
    fn words(&mut self, least: u64, most: u64) -> String {
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
        let count = least + self.below(most - least);
        let mut all: Vec<String> =
            (0..count).map(|_| WORDS[self.below(16) as usize].to_owned()).collect();
        all.push(format!("{:08x}", self.next() as u32));
        all.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(said: u128, rounds: u64) -> Scene {
        let schema = json!({"properties": {"path": {"type": "string"}, "n": {"type": "integer"}}, "required": ["path", "n"]});
        Scene {
            thinks: true,
            tools: vec![("read".into(), schema)],
            said,
            rounds,
            ..Scene::default()
        }
    }

    #[test]
    fn an_author_is_the_same_every_time_and_ends() {
        let author = Author::new(3);
        let mut seen = Vec::new();
        for said in 0..40 {
            assert_eq!(author.next(&scene(said, 0)), author.next(&scene(said, 0)));
            assert!(!author.next(&scene(said, 6)).calls(), "after five rounds it answers");
            seen.push(author.next(&scene(said, 0)));
        }
        let calls =
            |reply: &Reply| reply.parts.iter().filter(|p| matches!(p, Part::Call { .. })).count();
        for many in 0..=3 {
            assert!(seen.iter().any(|reply| calls(reply) == many), "never {many} calls at once");
        }
        assert!(
            seen.iter().any(|reply| reply.parts.iter().any(|p| matches!(p, Part::Redacted { .. })))
        );
        assert!(
            seen.iter()
                .any(|reply| matches!(reply.parts[..], [Part::Call { .. } | Part::Text(_), ..]))
        );
    }

    #[test]
    fn arguments_fit_their_schema() {
        let reply = (0..).map(|said| Author::new(1).next(&scene(said, 0))).find(Reply::calls);
        let parts = reply.unwrap().parts;
        let Some(Part::Call { arguments, .. }) = parts.last() else { panic!("{parts:?}") };
        assert!(arguments["path"].is_string() && arguments["n"].is_u64(), "{arguments}");
    }
}
