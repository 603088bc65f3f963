//! What the scripted model replies, whatever the protocol: a step of tool use while tools are offered
//! and steps are left, then a reply that ends.
//!
//! Deterministic and without a clock. Its token counts are rules of its own, consistent from one
//! request to the next, so that estimates can be right or wrong about them.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use serde_json::{Map, Value, json};

/// Counts the tokens of a text, as the tokenizer of GPT does.
pub type TokenizerFn = fn(&str) -> usize;

/// A request as the scripted model understands it.
#[derive(Debug)]
pub(crate) struct ModelRequest {
    pub(crate) tokenizer: TokenizerFn,
    /// The model, as the client named it.
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// Whether the reply has reasoning.
    pub(crate) thinks: bool,
    /// Whether reasoning is counted and signed, but not shown.
    pub(crate) hides_reasoning: bool,
    /// Whether cache writes are reported (the client set markers).
    pub(crate) has_cache_markers: bool,
    /// The prompt in order, with what each piece costs.
    pub(crate) prompt: Vec<CountedText>,
    /// Tools that may be called.
    pub(crate) tools: Vec<ToolDefinition>,
    /// The newest user text.
    pub(crate) user_text: String,
    /// Number of steps of the task that goes on, and of the newest one that says how many it has.
    pub(crate) steps: Option<usize>,
    pub(crate) last_steps: Option<usize>,
    /// Number of tool results since then, or of all that a summary in its place tells of.
    pub(crate) tool_results: usize,
    /// Number of all tool results, and of those that a summary tells of.
    pub(crate) all_results: usize,
    /// The step that the newest call is, if its command says so.
    pub(crate) called_step: Option<usize>,
    /// The reply has to be JSON of this schema.
    pub(crate) output_schema: Option<Value>,
    /// Output limit, tokens.
    pub(crate) max_output: Option<u64>,
}

/// A tool that the model may call.
#[derive(Clone, Debug)]
pub struct ToolDefinition {
    /// The name.
    pub name: String,
    /// JSON schema of the arguments.
    pub parameters: Value,
}

/// A piece of the prompt.
#[derive(Debug)]
pub(crate) struct CountedText {
    hash: u64,
    tokens: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptedCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Value,
}

/// One reply of the scripted model.
#[derive(Debug)]
pub(crate) struct ModelReply {
    pub(crate) id: String,
    pub(crate) reasoning: Option<String>,
    pub(crate) text: String,
    pub(crate) call: Option<ScriptedCall>,
    /// Whether the output limit cut it off.
    pub(crate) truncated: bool,
    pub(crate) usage: TokenUsage,
}

/// Tokens of one exchange, in the project's convention: cached is inside input, reasoning in output.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TokenUsage {
    pub(crate) input: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
    pub(crate) output: u64,
    pub(crate) reasoning: u64,
}

/// What the provider keeps between requests.
#[derive(Debug, Default)]
pub(crate) struct ScriptState {
    /// Prefixes that its cache holds.
    cached_prefixes: HashSet<u64>,
    reply_count: u64,
}

/// Cached tokens of one request.
struct CachedTokens {
    read: u64,
    written: u64,
}

/// Prefixes kept at most; past it the cache is emptied, as real ones lose entries.
const MAX_PREFIXES: usize = 100_000;
/// The shortest prefix that is cached, tokens.
const CACHE_MIN: u64 = 1024;
/// Every prompt's fixed part, tokens.
const PROMPT_TOKENS: u64 = 3;
/// The instructions that Claude gets if a tool is offered, tokens.
const TOOL_PROMPT_TOKENS: u64 = 450;

impl ModelRequest {
    /// An empty request.
    pub(crate) fn new(tokenizer: TokenizerFn) -> Self {
        Self {
            tokenizer,
            model: String::new(),
            stream: false,
            thinks: false,
            hides_reasoning: false,
            has_cache_markers: false,
            prompt: Vec::new(),
            tools: Vec::new(),
            user_text: String::new(),
            steps: None,
            last_steps: None,
            tool_results: 0,
            all_results: 0,
            called_step: None,
            output_schema: None,
            max_output: None,
        }
    }

    /// Adds text to the prompt, with `structure` tokens around it.
    pub(crate) fn add_text(&mut self, text: &str, structure: u64) {
        let tokens = self.count_tokens(text) + structure;
        self.add_counted(text, tokens);
    }

    /// Adds something whose tokens are known.
    pub(crate) fn add_counted(&mut self, text: &str, tokens: u64) {
        self.prompt.push(CountedText { hash: hash_of(text), tokens });
    }

    /// Adds a user's text, which begins a new turn, unless the client wrote it to remind the model of something.
    pub(crate) fn add_user_text(&mut self, text: &str) {
        self.add_text(text, 4);
        if text.starts_with("<system-reminder>") && !self.user_text.is_empty() {
            return;
        }
        self.tool_results =
            number_before(text, SUMMARISED).or_else(|| steps_told(text)).unwrap_or(0);
        self.all_results += self.tool_results;
        // What tells of steps goes on with the task, whether or not it repeats it.
        self.last_steps = requested_steps(text).or(self.last_steps);
        self.steps = if self.tool_results > 0 { self.last_steps } else { requested_steps(text) };
        self.user_text = text.to_owned();
    }

    /// Adds a call; `text` tells it from others.
    pub(crate) fn add_call(&mut self, name: &str, arguments: &str, text: &str) {
        self.add_counted(text, self.count_call_tokens(name, arguments));
        self.called_step = steps_told(arguments);
    }

    pub(crate) fn add_tool_result(&mut self, text: &str, structure: u64) {
        self.add_text(text, structure);
        // A client may keep the newest steps beside a summary that tells of them, too.
        let results = self.called_step.take().unwrap_or(self.tool_results + 1);
        self.all_results = self.all_results - self.tool_results + results;
        self.tool_results = results;
    }

    /// Adds a tool; `definition` is what stands in the prompt.
    pub(crate) fn add_tool(&mut self, name: &str, parameters: &Value, definition: &Value) {
        let is_first_for_claude = self.tools.is_empty() && self.model.contains("claude");
        self.add_text(
            &definition.to_string(),
            8 + if is_first_for_claude { TOOL_PROMPT_TOKENS } else { 0 },
        );
        self.tools.push(ToolDefinition { name: name.to_owned(), parameters: parameters.clone() });
    }

    /// Tokens of the whole prompt.
    pub(crate) fn input_tokens(&self) -> u64 {
        PROMPT_TOKENS + self.prompt.iter().map(|piece| piece.tokens).sum::<u64>()
    }

    /// Tokens of a text: the tokenizer's for GPT, more for the others, by rules made up here.
    pub(crate) fn count_tokens(&self, text: &str) -> u64 {
        let exact = (self.tokenizer)(text) as u64;
        let digits = text.bytes().filter(u8::is_ascii_digit).count() as u64;
        match self.model.as_str() {
            model if model.contains("claude") => exact * 112 / 100 + digits / 6,
            model if model.contains("gemini") => exact * 113 / 100 + digits / 8,
            _ => exact,
        }
    }

    /// Tokens of a tool call as the model wrote it, and as it is read when it comes back.
    pub(crate) fn count_call_tokens(&self, name: &str, arguments: &str) -> u64 {
        self.count_tokens(name) + self.count_tokens(arguments) + 12
    }
}

/// The scripted model's reply.
pub(crate) fn reply(request: &ModelRequest, state: &mut ScriptState) -> ModelReply {
    state.reply_count += 1;
    let id = format!(
        "{:016x}{:08x}",
        hash_of(&(request.user_text.as_str(), request.prompt.len())),
        state.reply_count
    );
    let call = next_call(request, &id);
    let mut text = match (&request.output_schema, &call) {
        (Some(schema), _) => schema_instance(schema, "").to_string(),
        (None, Some(call)) => format!("I will use {} next.", call.name),
        (None, None) => final_text(request),
    };
    let reasoning = request.thinks.then(|| reasoning_text(request));
    let reasoning_tokens = reasoning.as_ref().map_or(0, |text| request.count_tokens(text));
    let call_tokens = call
        .as_ref()
        .map_or(0, |call| request.count_call_tokens(&call.name, &call.arguments.to_string()));
    let mut output = request.count_tokens(&text) + reasoning_tokens + call_tokens;
    let truncated = call.is_none() && request.max_output.is_some_and(|limit| output > limit);
    if let (true, Some(limit)) = (truncated, request.max_output) {
        text = first_words(request, &text, limit.saturating_sub(reasoning_tokens));
        output = request.count_tokens(&text) + reasoning_tokens;
    }
    let cached = state.cache_prompt(request);
    let usage = TokenUsage {
        input: request.input_tokens(),
        cache_read: cached.read,
        cache_write: cached.written,
        output,
        reasoning: reasoning_tokens,
    };
    ModelReply {
        id,
        reasoning,
        text,
        call: if request.output_schema.is_none() { call } else { None },
        truncated,
        usage,
    }
}

impl ScriptState {
    /// Reads a prompt from the cache and writes its prefixes.
    fn cache_prompt(&mut self, request: &ModelRequest) -> CachedTokens {
        let (mut chain, mut total, mut read) = (hash_of(&request.model), PROMPT_TOKENS, 0);
        let mut new_prefixes = Vec::new();
        for piece in &request.prompt {
            chain = hash_of(&(chain, piece.hash));
            total += piece.tokens;
            if total < CACHE_MIN {
                continue;
            }
            if self.cached_prefixes.contains(&chain) {
                read = total;
            } else {
                new_prefixes.push(chain);
            }
        }
        if self.cached_prefixes.len() + new_prefixes.len() > MAX_PREFIXES {
            self.cached_prefixes.clear();
        }
        self.cached_prefixes.extend(new_prefixes);
        let written =
            if request.has_cache_markers && total >= CACHE_MIN { total - read } else { 0 };
        CachedTokens { read, written }
    }
}

fn next_call(request: &ModelRequest, id: &str) -> Option<ScriptedCall> {
    // Which tool is called next, if any: a shell looks around, reads, and checks the log, in that order; any
    // other tool is called once.
    if asks_for_summary(request) {
        return None;
    }
    let shell = request.tools.iter().find(|tool| is_shell(&tool.name));
    let submits = request.prompt.len() > 1 && request.user_text.contains(SUBMIT_WORD);
    let steps = match (shell, request.steps) {
        (_, Some(steps)) => steps,
        (Some(_), None) => COMMANDS.len() + usize::from(submits),
        (None, None) => 1,
    };
    if request.tool_results >= steps {
        return None;
    }
    let tool = shell.or_else(|| request.tools.first())?;
    let command = match COMMANDS.get(request.tool_results) {
        None if submits => format!("echo {SUBMIT_WORD}"),
        None => {
            format!("{READS}{}{LINES_READ} build.log", 1 + LINES_OF_STEP * request.tool_results)
        }
        Some(command) => (*command).to_owned(),
    };
    let arguments = schema_instance(&tool.parameters, &command);
    Some(ScriptedCall { id: format!("call_{id}"), name: tool.name.clone(), arguments })
}

/// The commands of a shell, step by step.
const COMMANDS: [&str; 3] = ["ls -la", "cat README.md", "tail -n 40 build.log"];
/// The commands of later steps, before and after the number of their first line.
const READS: &str = "sed -n '";
const LINES_READ: &str = ",+40p'";
const LINES_OF_STEP: usize = 40;
/// Some agents end when the model echoes this word, and their prompt says so.
const SUBMIT_WORD: &str = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

/// A prompt that requests a summary names one of these tags.
const SUMMARY_TAGS: [&str; 2] = ["<summary>", "<state_snapshot>"];

fn asks_for_summary(request: &ModelRequest) -> bool {
    // Whether the newest text requests a summary: one that is quoted tells of results.
    let mut after_tags = SUMMARY_TAGS.iter().filter_map(|tag| request.user_text.rsplit_once(tag));
    after_tags.any(|(_, after)| !after.contains(SUMMARISED))
}

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
            | "terminal"
            | "execute"
            | "Execute"
            | "run_commands"
            | "Shell"
    )
}

/// How a summary says how many results it stands for.
const SUMMARISED: &str = " results were read so far";

fn requested_steps(text: &str) -> Option<usize> {
    // A prompt may say how long the script runs: `in 6 steps`.
    number_before(text, " steps")
}

/// The first number right before these words.
fn number_before(text: &str, words: &str) -> Option<usize> {
    let mut places = text.match_indices(words);
    places.find_map(|(at, _)| text[..at].rsplit(' ').next()?.parse().ok())
}

fn steps_told(text: &str) -> Option<usize> {
    // The steps that a text tells of: it quotes the commands. Prompts of agents have examples of the same program.
    let quoted = text.split(READS).skip(1);
    let lines = quoted.filter_map(|rest| rest.split_once(LINES_READ)?.0.parse().ok());
    lines.max().map(|line: usize| line / LINES_OF_STEP + 1)
}

fn reasoning_text(request: &ModelRequest) -> String {
    match request.tool_results {
        0 => "The question is about the project. Its files come first, one look at a time."
            .to_owned(),
        n => format!(
            "Result {n} is here. It says enough for this step; what is still missing comes next."
        ),
    }
}

fn final_text(request: &ModelRequest) -> String {
    if asks_for_summary(request) {
        return format!("<summary>{}</summary>", summary(request, request.all_results));
    }
    // Some clients send a history as text, without tools, and ask for its summary in words of their own.
    let has_steps_left = request.steps.is_some_and(|steps| request.tool_results < steps);
    if request.tools.is_empty() && request.tool_results > 0 && has_steps_left {
        return summary(request, request.tool_results);
    }
    match request.tool_results {
        0 => format!(
            "You said {} words, and I have read every one of them.",
            request.user_text.split_whitespace().count()
        ),
        n => {
            format!("After {n} tool results I can answer: all that was asked for is in them.")
        }
    }
}

fn summary(request: &ModelRequest, results: usize) -> String {
    let task = request.last_steps.map_or_else(String::new, |steps| format!(", in {steps} steps"));
    format!(
        "The person wants to know why the build failed{task}. All in all {results}{SUMMARISED}, its \
         logs among them: all steps compiled, some with warnings. What was asked last is still to \
         be answered."
    )
}

/// As many words as fit in `limit` tokens.
fn first_words(request: &ModelRequest, text: &str, limit: u64) -> String {
    let mut words: Vec<&str> = text.split_inclusive(' ').collect();
    while !words.is_empty() && request.count_tokens(&words.concat()) > limit {
        words.pop();
    }
    words.concat()
}

/// A value that a JSON schema accepts; `command` fills what looks like a shell's argument.
fn schema_instance(schema: &Value, command: &str) -> Value {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut object = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_command = matches!(name.as_str(), "command" | "cmd");
        if is_command || required.contains(&name.as_str()) {
            object.insert(name.clone(), property_value(name, property, command));
        }
    }
    Value::Object(object)
}

fn property_value(name: &str, property: &Value, command: &str) -> Value {
    if let Some(first) = property["enum"].get(0) {
        return first.clone();
    }
    let kind =
        property["type"].as_str().or_else(|| property["type"].get(0)?.as_str()).unwrap_or("string");
    match kind.to_ascii_lowercase().as_str() {
        "integer" | "number" => json!(1),
        "boolean" => json!(false),
        "array" if name == "commands" => json!([command]),
        "array" if !command.is_empty() => json!(["bash", "-lc", command]),
        "array" => json!([]),
        "object" => schema_instance(property, command),
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

    fn request(text: &str, results: usize) -> ModelRequest {
        let mut request = ModelRequest { model: "gpt-5.5".into(), ..ModelRequest::new(by_length) };
        let schema = json!({"properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}, "required": ["command"]});
        request.add_tool("bash", &schema, &json!({"name": "bash"}));
        request.add_user_text(text);
        for n in 0..results {
            request
                .add_tool_result(&format!("{n} {}", "a line of a log 2026-11-20\n".repeat(200)), 6);
        }
        request
    }

    #[test]
    fn script_calls_tools_and_then_replies_with_text() {
        let mut memory = ScriptState::default();
        for (results, command) in COMMANDS.iter().enumerate() {
            let reply = reply(&request("What is this?", results), &mut memory);
            assert_eq!(reply.call.unwrap().arguments, json!({"command": command}));
        }
        assert_eq!(reply(&request("What is this?", 3), &mut memory).call, None);
        let example = "You may read parts: `sed -n '10,20p' FILE`. What is this?";
        let call = reply(&request(example, 0), &mut memory).call.unwrap();
        assert_eq!(call.arguments, json!({"command": COMMANDS[0]}));
        assert!(reply(&request("Look around in 5 steps.", 4), &mut memory).call.is_some());
        assert!(reply(&request("Look around in 5 steps.", 5), &mut memory).call.is_none());
        let summarised = "Look around in 5 steps. All in all 3 results were read so far.";
        assert!(reply(&request(summarised, 1), &mut memory).call.is_some());
        assert!(reply(&request(summarised, 2), &mut memory).call.is_none());
        let quoted = format!("So far: <summary>{summarised}</summary>");
        assert!(reply(&request(&quoted, 1), &mut memory).call.is_some());
        let mut told = request("Look around in 5 steps.", 2);
        told.add_user_text(
            "Done so far: bash(tail -n 40 build.log), bash(sed -n '121,+40p' build.log)",
        );
        let call = reply(&told, &mut memory).call.unwrap();
        assert_eq!(call.arguments, json!({"command": "sed -n '161,+40p' build.log"}));
        told.add_tool_result("a line", 6);
        assert!(reply(&told, &mut memory).call.is_none());
        // Steps that the client keeps beside a summary count once.
        let mut kept = request(summarised, 0);
        let [cut, next] =
            [121, 161].map(|line| json!({"command": format!("sed -n '{line},+40p'")}));
        kept.add_call("bash", &cut.to_string(), "call");
        kept.add_tool_result("a line", 6);
        assert_eq!(kept.tool_results, 4);
        assert_eq!(kept.all_results, 4);
        assert!(reply(&kept, &mut memory).call.is_some());
        kept.add_call("bash", &next.to_string(), "call");
        kept.add_tool_result("a line", 6);
        assert!(reply(&kept, &mut memory).call.is_none());
        kept.add_user_text("Write a <state_snapshot>.");
        assert!(reply(&kept, &mut memory).text.contains("5 results were read so far"));
    }

    #[test]
    fn request_reads_cached_prefix() {
        let mut memory = ScriptState::default();
        let first = reply(&request("x", 1), &mut memory).usage;
        let second = reply(&request("x", 2), &mut memory).usage;
        assert_eq!(first.cache_read, 0);
        assert_eq!(second.cache_read, first.input, "the first request is a prefix of the second");
    }

    #[test]
    fn output_ends_at_output_limit() {
        let mut request = ModelRequest {
            model: "gpt-5.5".into(),
            max_output: Some(4),
            ..ModelRequest::new(by_length)
        };
        request.add_user_text("one two three");
        let reply = reply(&request, &mut ScriptState::default());
        assert!(reply.truncated, "{reply:?}");
        assert!(reply.usage.output <= 4, "{reply:?}");
    }
}
