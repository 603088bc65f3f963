//! What the scripted model says, whatever the protocol: a step of tool use while tools are offered
//! and steps are left, then an answer that ends.
//!
//! Deterministic and without a clock. Its token counts are rules of its own, consistent from one
//! request to the next, so that estimates can be right or wrong about them.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use serde_json::{Map, Value, json};

/// Tokens of a text, as the tokenizer of GPT counts them.
pub type Tokenizer = fn(&str) -> usize;

/// A request as the scripted model understands it.
#[derive(Debug)]
pub(crate) struct Ask {
    /// What its texts are counted with.
    pub(crate) tokenizer: Tokenizer,
    /// The model, as the client named it.
    pub(crate) model: String,
    /// Whether a stream is wanted.
    pub(crate) stream: bool,
    /// Whether reasoning is wanted.
    pub(crate) think: bool,
    /// Whether reasoning is counted and sealed, but not shown.
    pub(crate) keeps_thoughts: bool,
    /// Whether cache writes are reported (the client set markers).
    pub(crate) marks_cache: bool,
    /// The prompt in order, with what each piece costs.
    pub(crate) prompt: Vec<Piece>,
    /// Tools that may be called: name and JSON schema of the arguments.
    pub(crate) tools: Vec<(String, Value)>,
    /// The newest user text.
    pub(crate) said: String,
    /// Tool results since then.
    pub(crate) results: usize,
    /// The answer has to be JSON of this schema.
    pub(crate) schema: Option<Value>,
    /// Output limit, tokens.
    pub(crate) max_output: Option<u64>,
}

/// A piece of the prompt.
#[derive(Debug)]
pub(crate) struct Piece {
    hash: u64,
    tokens: u64,
}

/// A tool call of the scripted model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Value,
}

/// What the scripted model answers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: String,
    pub(crate) reasoning: Option<String>,
    pub(crate) text: String,
    pub(crate) call: Option<Call>,
    /// The output limit cut it off.
    pub(crate) truncated: bool,
    pub(crate) usage: Spent,
}

/// Tokens of one exchange, in the project's convention: cached is inside input, reasoning in output.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Spent {
    pub(crate) input: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
    pub(crate) output: u64,
    pub(crate) reasoning: u64,
}

/// What the provider remembers: prefixes that its cache holds, and how many it has answered.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    prefixes: HashSet<u64>,
    answered: u64,
}

/// Prefixes remembered at most; past it the cache starts anew, as real ones lose entries.
const PREFIXES: usize = 100_000;
/// The shortest prefix that is cached, tokens.
const CACHE_MIN: u64 = 1024;
/// Every prompt's fixed part, tokens.
const PROMPT_TOKENS: u64 = 3;
/// What Claude reads of how to call a tool where one is offered, tokens.
const CALLING_TOKENS: u64 = 450;

impl Ask {
    /// A request that says nothing yet.
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            model: String::new(),
            stream: false,
            think: false,
            keeps_thoughts: false,
            marks_cache: false,
            prompt: Vec::new(),
            tools: Vec::new(),
            said: String::new(),
            results: 0,
            schema: None,
            max_output: None,
        }
    }

    /// Adds text to the prompt, with `structure` tokens around it.
    pub(crate) fn read(&mut self, text: &str, structure: u64) {
        let tokens = self.count(text) + structure;
        self.read_counted(text, tokens);
    }

    /// Adds something whose cost is known.
    pub(crate) fn read_counted(&mut self, text: &str, tokens: u64) {
        self.prompt.push(Piece { hash: hash_of(text), tokens });
    }

    /// A user's text: a new turn begins.
    pub(crate) fn user(&mut self, text: &str) {
        self.read(text, 4);
        self.said = text.to_owned();
        self.results = 0;
    }

    /// A tool's result.
    pub(crate) fn result(&mut self, text: &str, structure: u64) {
        self.read(text, structure);
        self.results += 1;
    }

    /// A tool that may be called.
    pub(crate) fn offer(&mut self, name: &str, schema: &Value, definition: &Value) {
        let calling = self.tools.is_empty() && self.model.contains("claude");
        self.read(&definition.to_string(), 8 + if calling { CALLING_TOKENS } else { 0 });
        self.tools.push((name.to_owned(), schema.clone()));
    }

    /// Tokens of the whole prompt.
    pub(crate) fn input(&self) -> u64 {
        PROMPT_TOKENS + self.prompt.iter().map(|piece| piece.tokens).sum::<u64>()
    }

    /// Tokens of a text: the tokenizer's for GPT, more for the others, by rules made up here.
    pub(crate) fn count(&self, text: &str) -> u64 {
        let exact = (self.tokenizer)(text) as u64;
        let digits = text.bytes().filter(u8::is_ascii_digit).count() as u64;
        match self.model.as_str() {
            model if model.contains("claude") => exact * 112 / 100 + digits / 6,
            model if model.contains("gemini") => exact * 113 / 100 + digits / 8,
            _ => exact,
        }
    }

    /// Tokens of a tool call as the model wrote it, and as it is read when it comes back.
    pub(crate) fn count_call(&self, name: &str, arguments: &str) -> u64 {
        self.count(name) + self.count(arguments) + 12
    }
}

/// The scripted model's answer.
pub(crate) fn answer(ask: &Ask, memory: &mut Memory) -> Answer {
    memory.answered += 1;
    let id =
        format!("{:016x}{:08x}", hash_of(&(ask.said.as_str(), ask.prompt.len())), memory.answered);
    let call = next_call(ask, &id);
    let mut text = match (&ask.schema, &call) {
        (Some(schema), _) => instance(schema, "", &ask.said).to_string(),
        (None, Some(call)) => format!("I will use {} next.", call.name),
        (None, None) => closing(ask),
    };
    let reasoning = ask.think.then(|| thought(ask));
    let reasoned = reasoning.as_ref().map_or(0, |text| ask.count(text));
    let called =
        call.as_ref().map_or(0, |call| ask.count_call(&call.name, &call.arguments.to_string()));
    let mut output = ask.count(&text) + reasoned + called;
    let truncated = call.is_none() && ask.max_output.is_some_and(|most| output > most);
    if let (true, Some(most)) = (truncated, ask.max_output) {
        text = first_words(ask, &text, most.saturating_sub(reasoned));
        output = ask.count(&text) + reasoned;
    }
    let (cache_read, cache_write) = memory.cached(ask);
    let usage = Spent { input: ask.input(), cache_read, cache_write, output, reasoning: reasoned };
    Answer { id, reasoning, text, call: call.filter(|_| ask.schema.is_none()), truncated, usage }
}

impl Memory {
    /// Tokens read from and written to the cache; remembers this prompt's prefixes.
    fn cached(&mut self, ask: &Ask) -> (u64, u64) {
        let (mut running, mut upto, mut read) = (hash_of(&ask.model), PROMPT_TOKENS, 0);
        let mut fresh = Vec::new();
        for piece in &ask.prompt {
            running = hash_of(&(running, piece.hash));
            upto += piece.tokens;
            if upto < CACHE_MIN {
                continue;
            }
            if self.prefixes.contains(&running) {
                read = upto;
            } else {
                fresh.push(running);
            }
        }
        if self.prefixes.len() + fresh.len() > PREFIXES {
            self.prefixes.clear();
        }
        self.prefixes.extend(fresh);
        let written = if ask.marks_cache && upto >= CACHE_MIN { upto - read } else { 0 };
        (read, written)
    }
}

/// Which tool is called next, if any: a shell looks around, reads, and checks the log, in that
/// order; any other tool is called once.
fn next_call(ask: &Ask, id: &str) -> Option<Call> {
    if ask.said.contains(SUMMARY) {
        return None;
    }
    let shell = ask.tools.iter().find(|(name, _)| is_shell(name));
    let submit = ask.prompt.len() > 1 && ask.said.contains(SUBMIT);
    let steps = match (shell, steps_wanted(&ask.said)) {
        (_, Some(steps)) => steps,
        (Some(_), None) => COMMANDS.len() + usize::from(submit),
        (None, None) => 1,
    };
    let (name, schema) = shell.or_else(|| ask.tools.first()).filter(|_| ask.results < steps)?;
    let command = match COMMANDS.get(ask.results) {
        None if submit => format!("echo {SUBMIT}"),
        None => format!("sed -n '{},+40p' build.log", 1 + 40 * ask.results),
        Some(command) => (*command).to_owned(),
    };
    let arguments = instance(schema, &command, &ask.said);
    Some(Call { id: format!("call_{id}"), name: name.clone(), arguments })
}

/// What a shell is asked, step by step.
const COMMANDS: [&str; 3] = ["ls -la", "cat README.md", "tail -n 40 build.log"];
/// Agents that end on a word of their own ask for it in their prompt.
const SUBMIT: &str = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

/// Who asks for a summary says so, and where it belongs.
const SUMMARY: &str = "<summary>";

fn is_shell(name: &str) -> bool {
    matches!(
        name,
        "bash"
            | "Bash"
            | "shell"
            | "exec_command"
            | "run_shell_command"
            | "shell_command"
            | "local_shell"
    )
}

/// A prompt may say how long the script runs: `in 6 steps`.
fn steps_wanted(said: &str) -> Option<usize> {
    let before = said.split(" steps").next().filter(|before| before.len() < said.len())?;
    before.rsplit(' ').next()?.parse().ok()
}

fn thought(ask: &Ask) -> String {
    match ask.results {
        0 => "The question is about the project. Its files come first, one look at a time."
            .to_owned(),
        n => format!(
            "Result {n} is here. It says enough for this step; what is still missing comes next."
        ),
    }
}

fn closing(ask: &Ask) -> String {
    if ask.said.contains(SUMMARY) {
        return format!(
            "<summary>The person wants to know why the build failed. {} pieces were read so far, \
             its logs among them: all steps compiled, some with warnings. What was asked last is \
             still to be answered.</summary>",
            ask.prompt.len()
        );
    }
    match ask.results {
        0 => format!(
            "You said {} words, and I have read every one of them.",
            ask.said.split_whitespace().count()
        ),
        n => {
            format!("After {n} tool results I can answer: all that was asked for is in them.")
        }
    }
}

/// As many words as fit in `most` tokens.
fn first_words(ask: &Ask, text: &str, most: u64) -> String {
    let mut words: Vec<&str> = text.split_inclusive(' ').collect();
    while !words.is_empty() && ask.count(&words.concat()) > most {
        words.pop();
    }
    words.concat()
}

/// A value that a JSON schema accepts; `command` fills what looks like a shell's argument.
fn instance(schema: &Value, command: &str, said: &str) -> Value {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut object = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let commanding = matches!(name.as_str(), "command" | "cmd");
        if commanding || required.contains(&name.as_str()) {
            object.insert(name.clone(), property_value(name, property, command, said));
        }
    }
    Value::Object(object)
}

fn property_value(name: &str, property: &Value, command: &str, said: &str) -> Value {
    if let Some(first) = property["enum"].get(0) {
        return first.clone();
    }
    let kind =
        property["type"].as_str().or_else(|| property["type"].get(0)?.as_str()).unwrap_or("string");
    match kind.to_ascii_lowercase().as_str() {
        "integer" | "number" => json!(1),
        "boolean" => json!(false),
        "array" if !command.is_empty() => json!(["bash", "-lc", command]),
        "array" => json!([]),
        "object" => instance(property, command, said),
        _ => json!(match name {
            "command" | "cmd" => command,
            "description" => "Look at the project",
            "city" | "location" => "Bristol",
            name if name.contains("path") || name.contains("file") => "README.md",
            _ => "the project",
        }),
    }
}

fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_length;

    fn ask(said: &str, results: usize) -> Ask {
        let mut ask = Ask { model: "gpt-5.5".into(), ..Ask::new(by_length) };
        let schema = json!({"properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}, "required": ["command"]});
        ask.offer("bash", &schema, &json!({"name": "bash"}));
        ask.user(said);
        for n in 0..results {
            ask.result(&format!("{n} {}", "a line of a log 2026-11-20\n".repeat(200)), 6);
        }
        ask
    }

    #[test]
    fn the_script_calls_then_answers() {
        let mut memory = Memory::default();
        for (results, command) in COMMANDS.iter().enumerate() {
            let answer = answer(&ask("What is this?", results), &mut memory);
            assert_eq!(answer.call.unwrap().arguments, json!({"command": command}));
        }
        assert_eq!(answer(&ask("What is this?", 3), &mut memory).call, None);
        assert!(answer(&ask("Look around in 5 steps.", 4), &mut memory).call.is_some());
        assert!(answer(&ask("Look around in 5 steps.", 5), &mut memory).call.is_none());
    }

    #[test]
    fn the_cache_holds_what_was_seen_before() {
        let mut memory = Memory::default();
        let first = answer(&ask("x", 1), &mut memory).usage;
        let second = answer(&ask("x", 2), &mut memory).usage;
        assert_eq!(first.cache_read, 0);
        assert_eq!(second.cache_read, first.input, "the first request is a prefix of the second");
    }

    #[test]
    fn the_output_limit_cuts() {
        let mut ask = Ask { model: "gpt-5.5".into(), max_output: Some(4), ..Ask::new(by_length) };
        ask.user("one two three");
        let answer = answer(&ask, &mut Memory::default());
        assert!(answer.truncated && answer.usage.output <= 4, "{answer:?}");
    }
}
