//! Checks of Gemini `generateContent` (`docs/protocols.md` 5): turns, calls and their responses, and thought
//! signatures.
//!
//! Keys may come in camel or snake case (`docs/protocols.md` 5.1); everything here reads both through [`get`].

mod fields;
mod response;
mod thought_signatures;
mod turns;

use std::time::Duration;

use serde_json::{Value, json};

use super::cache::CachePolicy;
use super::prompt::{
    PIECE_OVERHEAD_TOKENS, PROMPT_TOKENS, PieceContent, Place, PromptPiece, hash, items, link,
    measure, measure_text, text,
};
use super::reply::ReplyContext;
use super::reply_store::{Prefix, ReplyStore};
use super::rules::{ModelRules, SignatureRule};
use super::verdict::{AcceptedRequest, ApiError, Rule};
use super::{Dialect, Operation, ParsedRequest, ReceivedRequest};
use demo_provider::ToolDefinition;

pub(super) use response::{record_reply, write_response};

const DIALECT: Dialect = Dialect::Gemini;

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError::gemini(rule, 400, message.into()))
}

/// A field by its camel-case name, in either spelling; null if there is none.
fn get<'v>(value: &'v Value, name: &str) -> &'v Value {
    value.get(name).or_else(|| value.get(snake(name))).unwrap_or(&Value::Null)
}

/// `functionCall` as `function_call`.
fn snake(name: &str) -> String {
    let mut spelled = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            spelled.push('_');
        }
        spelled.push(letter.to_ascii_lowercase());
    }
    spelled
}

/// `function_call` as `functionCall`.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first_word = words.next().unwrap_or_default().to_owned();
    words.fold(first_word, |all, word| {
        let mut letters = word.chars();
        let head = letters.next().map(|c| c.to_ascii_uppercase());
        all + &head.into_iter().chain(letters).collect::<String>()
    })
}

/// Checks and parses a request.
pub(super) fn parse(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
) -> Result<ParsedRequest, ApiError> {
    if request.account.is_none() {
        let message = "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.";
        return Err(ApiError::gemini(Rule::Authentication, 403, message.into()));
    }
    // A count may hold the whole request, or the contents alone (`docs/protocols.md` 6).
    let wrapped = get(&request.body, "generateContentRequest");
    let counts_whole = request.operation == Operation::CountTokens && wrapped.is_object();
    let body = if counts_whole { wrapped } else { &request.body };
    fields::check(body, model)?;
    let turns = turns(body);
    turns::check(&turns)?;
    let current = turns.iter().rposition(ContentRun::is_user_turn).unwrap_or(0);
    let thoughts = thought_signatures::check(model, store, &turns, current)?;
    let mut pieces = front(body);
    let front = pieces.len();
    for turn in &turns {
        for (place, part) in &turn.parts {
            if let Some(tokens) = thoughts.visible.get(place) {
                let signature = text(get(part, "thoughtSignature"));
                let measured =
                    PieceContent { hash: hash(&["thought", signature]), tokens: *tokens };
                pieces.push(measured.at(*place));
            }
            pieces.extend(measure_part(turn.role, part).map(|measured| measured.at(*place)));
        }
    }
    let input = PROMPT_TOKENS + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    let room = check_window(request, model, input)?;
    let requested = get(get(body, "generationConfig"), "maxOutputTokens").as_u64();
    let user_hash = turns.get(current).map_or(0, |turn| {
        let parts = turn.parts.iter().filter_map(|(_, part)| measure_part("user", part));
        parts.fold(0, |chain, content| link(chain, content.hash))
    });
    let later_turns = turns.get(current + 1..).unwrap_or_default();
    Ok(ParsedRequest {
        unedited_tokens: input,
        cache_key: 0,
        cache_policy: CachePolicy::Automatic {
            min: model.cache_min,
            step: 1,
            ttl: Duration::from_secs(300),
        },
        prefix: Prefix {
            messages: pieces[front..].iter().fold(0, |chain, piece| link(chain, piece.hash)),
            ..Prefix::default()
        },
        pieces,
        last_signature: None,
        parent: thoughts.parent,
        context: ReplyContext {
            thinks: thinks(body, model),
            must_begin_with_thinking: false,
            tools: functions(body),
            user_hash,
            rounds: later_turns.iter().filter(|turn| turn.role == "model").count() as u64,
            max_output: Some(requested.unwrap_or(room).min(room)),
        },
        omits_thinking: get(thinking(body), "includeThoughts") != true,
        transformations: Vec::new(),
        edits: Vec::new(),
        provider_edits: thoughts.not_kept,
        losses: thoughts.losses,
    })
}

fn thinking(body: &Value) -> &Value {
    get(get(body, "generationConfig"), "thinkingConfig")
}

fn thinks(body: &Value, model: &ModelRules) -> bool {
    let budget = get(thinking(body), "thinkingBudget");
    model.signature_rule == SignatureRule::Required || thinking(body).is_object() && budget != 0
}

fn role(content: &Value) -> &str {
    match text(&content["role"]) {
        // `function` is the older name, and none means the user.
        "" | "function" => "user",
        role => role,
    }
}

/// A part with its place.
type PlacedPart<'c> = (Place, &'c Value);

/// A content of the user, or consecutive contents of the model: the official SDKs keep each chunk of a
/// stream as a content of its own, so that one step has several.
struct ContentRun<'c> {
    role: &'c str,
    parts: Vec<PlacedPart<'c>>,
}

impl<'c> ContentRun<'c> {
    fn calls(&self) -> impl Iterator<Item = &'c Value> + Clone {
        self.parts.iter().map(|(_, part)| get(part, "functionCall")).filter(|call| call.is_object())
    }

    fn responses(&self) -> impl Iterator<Item = &'c Value> + Clone {
        let parts = self.parts.iter().map(|(_, part)| get(part, "functionResponse"));
        parts.filter(|response| response.is_object())
    }

    fn is_user_turn(&self) -> bool {
        // Whether it has text of the user: a turn in the sense of `docs/protocols.md` 5.4 begins.
        self.role == "user" && self.parts.iter().any(|(_, part)| part["text"].is_string())
    }
}

fn turns<'c>(body: &'c Value) -> Vec<ContentRun<'c>> {
    let mut turns: Vec<ContentRun<'c>> = Vec::new();
    for (message, content) in items(&body["contents"]).enumerate() {
        let parts = items(get(content, "parts")).enumerate();
        let parts = parts.map(|(block, part)| (Place::Message { message, block }, part));
        let role = role(content);
        match turns.last_mut().filter(|turn| turn.role == "model" && role == "model") {
            Some(turn) => turn.parts.extend(parts),
            None => turns.push(ContentRun { role, parts: parts.collect() }),
        }
    }
    turns
}

fn measure_part(role: &str, part: &Value) -> Option<PieceContent> {
    // A part as the model reads it; thoughts that come back are not read (`docs/protocols.md` 5.4).
    let (call, response) = (get(part, "functionCall"), get(part, "functionResponse"));
    match part["text"].as_str() {
        _ if part["thought"] == true => None,
        Some("") => None,
        Some(text) => Some(measure_text(role, text)),
        None if call.is_object() => Some(measure_call(call)),
        None if response.is_object() => {
            let name = format!("response {}", text(&response["name"]));
            Some(measure(&name, &response["response"]))
        }
        None => Some(measure(role, part)),
    }
}

fn measure_call(call: &Value) -> PieceContent {
    measure(&format!("call {}", text(&call["name"])), &json!([call["name"], call["args"]]))
}

/// Tools and the system instruction.
fn front(body: &Value) -> Vec<PromptPiece> {
    let tools = items(get(body, "tools")).enumerate();
    let tools = tools.map(|(at, tool)| measure("tool", tool).at(Place::Tool(at)));
    let system = items(get(get(body, "systemInstruction"), "parts")).enumerate();
    let system = system.map(|(at, part)| measure("system", part).at(Place::System(at)));
    tools.chain(system).collect()
}

fn functions(body: &Value) -> Vec<ToolDefinition> {
    let config = get(get(body, "toolConfig"), "functionCallingConfig");
    if config["mode"] == "NONE" {
        return Vec::new();
    }
    let schemas = ["parametersJsonSchema", "parameters"];
    items(get(body, "tools"))
        .flat_map(|tool| items(get(tool, "functionDeclarations")))
        .map(|tool| {
            let schema = schemas.iter().map(|name| get(tool, name)).find(|s| s.is_object());
            ToolDefinition {
                name: text(&tool["name"]).to_owned(),
                parameters: schema.cloned().unwrap_or_default(),
            }
        })
        .collect()
}

/// Returns the room for output, tokens.
fn check_window(
    request: &ReceivedRequest,
    model: &ModelRules,
    input: u64,
) -> Result<u64, ApiError> {
    // `docs/protocols.md` 5.5.
    let window = model.window;
    if request.operation == Operation::Reply && input > window {
        let message = format!(
            "The input token count ({input}) exceeds the maximum number of tokens allowed ({window})."
        );
        return refuse(Rule::Overflow, message);
    }
    Ok(window.saturating_sub(input))
}

/// `docs/protocols.md` 6.
pub(super) fn count(accepted: &AcceptedRequest) -> Value {
    let total = accepted.input_tokens;
    json!({"totalTokens": total, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": total}]})
}

/// Tokens of a thought as it is counted.
fn thought_tokens(tokens: u64) -> u64 {
    if tokens == 0 { 0 } else { tokens + PIECE_OVERHEAD_TOKENS }
}

#[cfg(test)]
mod tests;
