//! Checks of OpenAI Responses (`docs/protocols.md` 3): the list of items, their references, and the
//! encrypted reasoning among them.
//!
//! A request with `previous_response_id` is checked as the whole list that it stands for; places are
//! indexes of that list.

mod compaction;
mod fields;
mod pairs;
mod programs;
mod reasoning;
mod response;

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

use super::cache::CachePolicy;
use super::prompt::{
    PROMPT_TOKENS, PieceContent, Place, PromptPiece, hash, items, link, measure, measure_encrypted,
    measure_text, text,
};
use super::reply::ReplyContext;
use super::reply_store::{Prefix, ReplyStore};
use super::rules::ModelRules;
use super::verdict::{AcceptedRequest, ApiError, Rule};
use super::{Dialect, Operation, ParsedRequest, ReceivedRequest};
use demo_provider::ToolDefinition;

pub(super) use compaction::compact;
pub(super) use response::{record_reply, write_response};

const DIALECT: Dialect = Dialect::Responses;

/// An item of the list that the model works on.
struct InputItem<'c> {
    value: Cow<'c, Value>,
    /// Its type; `message` if none is given.
    kind: String,
}

impl InputItem<'_> {
    fn field(&self, name: &str) -> &Value {
        &self.value[name]
    }

    fn id(&self) -> Option<&str> {
        self.value["id"].as_str()
    }

    fn is_user_turn(&self) -> bool {
        self.kind == "message" && self.value["role"] == "user"
    }

    /// Whether the model wrote it.
    fn is_output(&self) -> bool {
        let kinds = ["reasoning", "function_call", "custom_tool_call", "program", "program_output"];
        kinds.contains(&self.kind.as_str())
            || self.kind == "message" && self.value["role"] == "assistant"
    }
}

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError::openai(rule, 400, None, None, message.into()))
}

fn refuse_at<T>(rule: Rule, param: &str, message: String) -> Result<T, ApiError> {
    Err(ApiError::openai(rule, 400, None, Some(param), message))
}

/// Checks and parses a request.
pub(super) fn parse(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
) -> Result<ParsedRequest, ApiError> {
    if request.account.is_none() {
        let message = "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
        return Err(ApiError::openai(Rule::Authentication, 401, None, None, message.into()));
    }
    if request.operation == Operation::Compact && !model.compacts {
        let message = "Invalid URL (POST /v1/responses/compact)";
        return Err(ApiError::openai(Rule::Compaction, 404, None, None, message.into()));
    }
    fields::check(request, model)?;
    let list = input_items(request, store)?;
    fields::check_items(model, &list)?;
    compaction::check(request, model, store, &list)?;
    let signatures = reasoning::signatures(request, model, store, &list)?;
    pairs::check(store, &list, &signatures)?;
    programs::check(&list)?;
    let mut pieces = front(&request.body);
    let (system, tools) = pieces.split_last().map_or((0, &[][..]), |(last, all)| (last.hash, all));
    let tools = tools.iter().fold(0, |chain, piece| link(chain, piece.hash));
    let start = Prefix { system, tools, messages: 0 };
    let checked = reasoning::check(request, model, store, &list, &signatures, start);
    let front_pieces = pieces.len();
    for (at, item) in list.iter().enumerate() {
        let place = |block| Place::Message { message: at, block };
        match (item.kind.as_str(), checked.visible.get(&at)) {
            ("reasoning", Some(tokens)) => {
                let encrypted = text(item.field("encrypted_content"));
                pieces.push(measure_encrypted("reasoning", encrypted, *tokens).at(place(0)));
            }
            ("reasoning", None) => {}
            _ if programs::is_hidden(item) => {}
            _ => pieces.extend(
                measure_item(item)
                    .into_iter()
                    .enumerate()
                    .map(|(block, content)| content.at(place(block))),
            ),
        }
    }
    let room = check_window(request, model, &mut pieces, front_pieces)?;
    let requested = request.body["max_output_tokens"].as_u64();
    Ok(ParsedRequest {
        unedited_tokens: total(&pieces),
        pieces,
        cache_key: cache_key(&request.body),
        cache_policy: CachePolicy::Automatic {
            min: model.cache_min,
            step: 128,
            ttl: Duration::from_secs(if model.bills_cache_writes { 1800 } else { 300 }),
        },
        prefix: Prefix { messages: checked.chain, ..start },
        last_signature: None,
        parent: checked.parent,
        context: reply_context(request, model, &list, requested.unwrap_or(room).min(room)),
        omits_thinking: request.body["reasoning"]["summary"].is_null(),
        transformations: checked.transformations,
        edits: Vec::new(),
        provider_edits: checked.not_kept,
        // The endpoint that compacts takes no tools (`docs/protocols.md` 3.3), so the prefix cannot be checked.
        losses: if request.operation == Operation::Compact { Vec::new() } else { checked.losses },
    })
}

fn total(pieces: &[PromptPiece]) -> u64 {
    PROMPT_TOKENS + pieces.iter().map(|piece| piece.tokens).sum::<u64>()
}

fn input_items<'c>(
    request: &'c ReceivedRequest,
    store: &ReplyStore,
) -> Result<Vec<InputItem<'c>>, ApiError> {
    // The whole list: the previous responses, then the new items, with references resolved (`docs/protocols.md`
    // 3.2).
    let mut all: Vec<Cow<'c, Value>> = Vec::new();
    if let Some(id) = request.body["previous_response_id"].as_str() {
        let Some(previous) = store.conversation(id, request.account) else {
            let message = format!("Previous response with id '{id}' not found.");
            let code = Some("previous_response_not_found");
            let param = Some("previous_response_id");
            return Err(ApiError::openai(Rule::PreviousResponse, 400, code, param, message));
        };
        all.extend(previous.into_iter().map(Cow::Owned));
    }
    if let Some(input) = request.body["input"].as_str() {
        all.push(Cow::Owned(json!({"type": "message", "role": "user", "content": input})));
    }
    for item in items(&request.body["input"]) {
        all.push(match text(&item["type"]) {
            "item_reference" => {
                let id = text(&item["id"]);
                match store.stored_item(id, request.account) {
                    Some(stored) => Cow::Owned(stored.clone()),
                    None => return not_found(request, id),
                }
            }
            _ => Cow::Borrowed(item),
        });
    }
    let kind = |value: &Value| value["type"].as_str().unwrap_or("message").to_owned();
    Ok(all.into_iter().map(|value| InputItem { kind: kind(&value), value }).collect())
}

fn not_found<T>(request: &ReceivedRequest, id: &str) -> Result<T, ApiError> {
    // `docs/protocols.md` 3.2: an id that nothing is stored under.
    let mut message = format!("Item with id '{id}' not found.");
    if request.body["store"] == false {
        message += " Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input.";
    }
    Err(ApiError::openai(Rule::ItemNotFound, 404, None, Some("input"), message))
}

/// Tools and instructions; the instructions come last, empty if there are none.
fn front(body: &Value) -> Vec<PromptPiece> {
    let tools = items(&body["tools"]).enumerate();
    let mut pieces: Vec<PromptPiece> =
        tools.map(|(at, tool)| measure("tool", tool).at(Place::Tool(at))).collect();
    let instructions = text(&body["instructions"]);
    let mut measured = measure_text("system", instructions);
    if instructions.is_empty() {
        measured.tokens = 0;
    }
    pieces.push(measured.at(Place::System(0)));
    pieces
}

/// An item as the model reads it, without its id.
fn measure_item(item: &InputItem<'_>) -> Vec<PieceContent> {
    let tag = |name: &str| format!("{} {}", item.kind, text(item.field(name)));
    match item.kind.as_str() {
        "message" => {
            let role = tag("role");
            let string = item.field("content").as_str().map(|text| measure_text(&role, text));
            let parts = items(item.field("content")).map(|part| measure_part(&role, part));
            string.into_iter().chain(parts).collect()
        }
        "function_call" => {
            let call = format!("{}\n{}", text(item.field("name")), text(item.field("arguments")));
            vec![measure_text(&tag("call_id"), &call)]
        }
        "program" => vec![measure_text(&tag("call_id"), text(item.field("code")))],
        "program_output" => vec![measure_text(&tag("call_id"), text(item.field("result")))],
        "custom_tool_call" => {
            let call = format!("{}\n{}", text(item.field("name")), text(item.field("input")));
            vec![measure_text(&tag("call_id"), &call)]
        }
        kind if kind.ends_with("_call_output") => {
            let output = item.field("output");
            let string = output.as_str().map(|text| measure_text(&tag("call_id"), text));
            let parts = items(output).map(|part| measure_part(&tag("call_id"), part));
            string.into_iter().chain(parts).collect()
        }
        "compaction" => {
            vec![measure_encrypted(
                "compaction",
                text(item.field("encrypted_content")),
                compaction::SUMMARY_TOKENS,
            )]
        }
        _ => vec![measure(&item.kind, &item.value)],
    }
}

fn measure_part(tag: &str, part: &Value) -> PieceContent {
    // A part is its text, without annotations.
    match part["text"].as_str() {
        Some(text) => measure_text(tag, text),
        None => measure(tag, part),
    }
}

/// Returns the room for output, tokens.
fn check_window(
    request: &ReceivedRequest,
    model: &ModelRules,
    pieces: &mut Vec<PromptPiece>,
    front: usize,
) -> Result<u64, ApiError> {
    // `docs/protocols.md` 3.6: too long is refused, or with `truncation: auto` items are removed from the
    // beginning.
    if request.operation == Operation::CountTokens {
        return Ok(u64::MAX);
    }
    let input = total(pieces);
    if input > model.window && request.body["truncation"] != "auto" {
        let message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
        let code = Some("context_length_exceeded");
        return Err(ApiError::openai(Rule::Overflow, 400, code, Some("input"), message.into()));
    }
    let mut remaining = input;
    let too_many = pieces[front..].iter().take_while(|piece| {
        let over = remaining > model.window;
        remaining -= if over { piece.tokens } else { 0 };
        over
    });
    let too_many = too_many.count();
    pieces.drain(front..front + too_many);
    check_threshold(request, total(pieces))?;
    Ok(model.window.saturating_sub(total(pieces)))
}

fn check_threshold(request: &ReceivedRequest, input: u64) -> Result<(), ApiError> {
    // Compaction on the server is not simulated yet; below its threshold nothing happens (`docs/protocols.md`
    // 3.3).
    let thresholds = items(&request.body["context_management"]);
    let passed = thresholds.filter_map(|edit| edit["compact_threshold"].as_u64());
    match passed.into_iter().any(|threshold| input >= threshold) {
        true => Err(ApiError::not_simulated(DIALECT, "compaction on the server")),
        false => Ok(()),
    }
}

fn cache_key(body: &Value) -> u128 {
    // Requests with different keys share no cache (`docs/protocols.md` 7.2, the reasons that the API gives for
    // a miss).
    let values = [
        body["prompt_cache_key"].to_string(),
        body["text"].to_string(),
        body["reasoning"]["effort"].to_string(),
        body["service_tier"].to_string(),
    ];
    hash(&values.each_ref().map(String::as_str))
}

/// Whether the model reasons for this request.
fn thinks(body: &Value, model: &ModelRules) -> bool {
    model.reasons && body["reasoning"]["effort"] != "none"
}

fn reply_context(
    request: &ReceivedRequest,
    model: &ModelRules,
    list: &[InputItem<'_>],
    max_output: u64,
) -> ReplyContext {
    let last_user = list.iter().rposition(InputItem::is_user_turn);
    let tail_start = last_user.map_or(0, |at| at + 1);
    // A round is a run of items that the model wrote.
    let tail = &list[tail_start..];
    let begins = |at: &usize| tail[*at].is_output() && (*at == 0 || !tail[*at - 1].is_output());
    let later = items(&request.body["input"]).flat_map(|item| items(&item["tools"]));
    let tools = items(&request.body["tools"]).chain(later);
    let may_call = request.body["tool_choice"] != "none";
    let tools = tools.filter(|tool| may_call && tool["type"] == "function");
    ReplyContext {
        thinks: thinks(&request.body, model),
        must_begin_with_thinking: false,
        tools: tools
            .map(|tool| ToolDefinition {
                name: text(&tool["name"]).to_owned(),
                parameters: tool["parameters"].clone(),
            })
            .collect(),
        user_hash: last_user.map_or(0, |at| {
            measure_item(&list[at]).iter().fold(0, |chain, content| link(chain, content.hash))
        }),
        rounds: (0..tail.len()).filter(begins).count() as u64,
        max_output: Some(max_output),
    }
}

/// `docs/protocols.md` 6.
pub(super) fn count(accepted: &AcceptedRequest) -> Value {
    json!({"object": "response.input_tokens", "input_tokens": accepted.input_tokens})
}

#[cfg(test)]
mod tests;
