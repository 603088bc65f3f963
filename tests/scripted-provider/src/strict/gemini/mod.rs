//! Gemini `generateContent`, judged (`docs/protocols.md` 5): turns, calls and their responses, and thought
//! signatures.
//!
//! Keys may come in camel or snake case (`docs/protocols.md` 5.1); everything here reads both through [`get`].

mod fields;
mod response;
mod thought_signatures;
mod turns;

use std::time::Duration;

use serde_json::{Value, json};

use super::cache::Policy;
use super::prompt::{
    PROMPT, Piece, Place, STRUCTURE, Weighed, hash, items, link, text, weigh, weigh_text,
};
use super::reply::Scene;
use super::reply_store::{Book, Prefix};
use super::rules::{Model, Signatures};
use super::verdict::{Accepted, Refusal, Rule};
use super::{Call, Dialect, Purpose, Reading};

pub(super) use response::{remember, write};

const DIALECT: Dialect = Dialect::Gemini;

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::gemini(rule, 400, message.into()))
}

/// A field by its camel-case name, in either spelling; null where there is none.
fn get<'v>(value: &'v Value, name: &str) -> &'v Value {
    value.get(name).or_else(|| value.get(snake(name))).unwrap_or(&Value::Null)
}

/// `functionCall` as `function_call`.
fn snake(name: &str) -> String {
    let mut all = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            all.push('_');
        }
        all.push(letter.to_ascii_lowercase());
    }
    all
}

/// `function_call` as `functionCall`.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| {
        let mut letters = word.chars();
        let head = letters.next().map(|c| c.to_ascii_uppercase());
        all + &head.into_iter().chain(letters).collect::<String>()
    })
}

/// Judges a request.
pub(super) fn read(call: &Call, model: &Model, book: &Book) -> Result<Reading, Refusal> {
    if call.account.is_none() {
        let message = "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.";
        return Err(Refusal::gemini(Rule::Authentication, 403, message.into()));
    }
    // A count may hold the whole request, or the contents alone (`docs/protocols.md` 6).
    let wrapped = get(&call.body, "generateContentRequest");
    let counts_whole = call.purpose == Purpose::Count && wrapped.is_object();
    let body = if counts_whole { wrapped } else { &call.body };
    fields::check(body, model)?;
    let turns = turns(body);
    turns::check(&turns)?;
    let current = turns.iter().rposition(Turn::is_said).unwrap_or(0);
    let thoughts = thought_signatures::check(model, book, &turns, current)?;
    let mut pieces = front(body);
    let front = pieces.len();
    for turn in &turns {
        for (place, part) in &turn.parts {
            if let Some(tokens) = thoughts.visible.get(place) {
                let seal = text(get(part, "thoughtSignature"));
                let weighed = Weighed { hash: hash(&["thought", seal]), tokens: *tokens };
                pieces.push(weighed.at(*place));
            }
            pieces.extend(weigh_part(turn.role, part).map(|weighed| weighed.at(*place)));
        }
    }
    let input = PROMPT + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    let room = overflow(call, model, input)?;
    let most = get(get(body, "generationConfig"), "maxOutputTokens").as_u64();
    let said = turns.get(current).map_or(0, |said| {
        let parts = said.parts.iter().filter_map(|(_, part)| weigh_part("user", part));
        parts.fold(0, |chain, one| link(chain, one.hash))
    });
    let after = turns.get(current + 1..).unwrap_or_default();
    Ok(Reading {
        unedited: input,
        cache_key: 0,
        policy: Policy::Automatic { min: model.cache_min, step: 1, ttl: Duration::from_secs(300) },
        prefix: Prefix {
            messages: pieces[front..].iter().fold(0, |chain, piece| link(chain, piece.hash)),
            ..Prefix::default()
        },
        pieces,
        last_seal: None,
        parent: thoughts.parent,
        scene: Scene {
            thinks: thinks(body, model),
            begins_thinking: false,
            tools: functions(body),
            said,
            rounds: after.iter().filter(|turn| turn.role == "model").count() as u64,
            max_output: Some(most.unwrap_or(room).min(room)),
        },
        omits: get(thinking(body), "includeThoughts") != true,
        transformations: Vec::new(),
        edits: Vec::new(),
        own: thoughts.not_kept,
        losses: thoughts.losses,
    })
}

fn thinking(body: &Value) -> &Value {
    get(get(body, "generationConfig"), "thinkingConfig")
}

fn thinks(body: &Value, model: &Model) -> bool {
    let budget = get(thinking(body), "thinkingBudget");
    model.signatures == Signatures::Required || thinking(body).is_object() && budget != 0
}

fn role(content: &Value) -> &str {
    match text(&content["role"]) {
        // `function` is the older name, and none means the user.
        "" | "function" => "user",
        role => role,
    }
}

/// A part with its place.
type Placed<'c> = (Place, &'c Value);

/// A content, or a run of the model's: the official SDKs keep each chunk of a stream as a content of
/// its own, so that one step is spread over several.
struct Turn<'c> {
    role: &'c str,
    parts: Vec<Placed<'c>>,
}

impl<'c> Turn<'c> {
    fn calls(&self) -> impl Iterator<Item = &'c Value> + Clone {
        self.parts.iter().map(|(_, part)| get(part, "functionCall")).filter(|call| call.is_object())
    }

    fn responses(&self) -> impl Iterator<Item = &'c Value> + Clone {
        let parts = self.parts.iter().map(|(_, part)| get(part, "functionResponse"));
        parts.filter(|response| response.is_object())
    }

    /// Whether a person speaks: a turn in the sense of `docs/protocols.md` 5.4 begins.
    fn is_said(&self) -> bool {
        self.role == "user" && self.parts.iter().any(|(_, part)| part["text"].is_string())
    }
}

fn turns<'c>(body: &'c Value) -> Vec<Turn<'c>> {
    let mut turns: Vec<Turn<'c>> = Vec::new();
    for (message, content) in items(&body["contents"]).enumerate() {
        let parts = items(get(content, "parts")).enumerate();
        let parts = parts.map(|(block, part)| (Place::Message { message, block }, part));
        let role = role(content);
        match turns.last_mut().filter(|turn| turn.role == "model" && role == "model") {
            Some(turn) => turn.parts.extend(parts),
            None => turns.push(Turn { role, parts: parts.collect() }),
        }
    }
    turns
}

/// A part as the model reads it; thoughts that come back are not read (`docs/protocols.md` 5.4).
fn weigh_part(role: &str, part: &Value) -> Option<Weighed> {
    let (call, response) = (get(part, "functionCall"), get(part, "functionResponse"));
    match part["text"].as_str() {
        _ if part["thought"] == true => None,
        Some("") => None,
        Some(words) => Some(weigh_text(role, words)),
        None if call.is_object() => Some(weigh_call(call)),
        None if response.is_object() => {
            let name = format!("response {}", text(&response["name"]));
            Some(weigh(&name, &response["response"]))
        }
        None => Some(weigh(role, part)),
    }
}

fn weigh_call(call: &Value) -> Weighed {
    weigh(&format!("call {}", text(&call["name"])), &json!([call["name"], call["args"]]))
}

/// Tools and the system instruction.
fn front(body: &Value) -> Vec<Piece> {
    let tools = items(get(body, "tools")).enumerate();
    let tools = tools.map(|(at, tool)| weigh("tool", tool).at(Place::Tool(at)));
    let system = items(get(get(body, "systemInstruction"), "parts")).enumerate();
    let system = system.map(|(at, part)| weigh("system", part).at(Place::System(at)));
    tools.chain(system).collect()
}

fn functions(body: &Value) -> Vec<(String, Value)> {
    let config = get(get(body, "toolConfig"), "functionCallingConfig");
    let none = config["mode"] == "NONE";
    let schemas = ["parametersJsonSchema", "parameters"];
    items(get(body, "tools"))
        .filter(|_| !none)
        .flat_map(|tool| items(get(tool, "functionDeclarations")))
        .map(|tool| {
            let schema = schemas.iter().map(|name| get(tool, name)).find(|s| s.is_object());
            (text(&tool["name"]).to_owned(), schema.cloned().unwrap_or_default())
        })
        .collect()
}

/// `docs/protocols.md` 5.5. Answers the room for output.
fn overflow(call: &Call, model: &Model, input: u64) -> Result<u64, Refusal> {
    let window = model.window;
    if call.purpose == Purpose::Answer && input > window {
        let message = format!(
            "The input token count ({input}) exceeds the maximum number of tokens allowed ({window})."
        );
        return refuse(Rule::Overflow, message);
    }
    Ok(window.saturating_sub(input))
}

/// `docs/protocols.md` 6.
pub(super) fn count(accepted: &Accepted) -> Value {
    let total = accepted.input_tokens;
    json!({"totalTokens": total, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": total}]})
}

/// What a thought weighs when it is read.
fn thought_tokens(tokens: u64) -> u64 {
    if tokens == 0 { 0 } else { tokens + STRUCTURE }
}

#[cfg(test)]
mod tests;
