//! OpenAI Responses, judged (`docs/protocols.md` 3): the list of items, what they point at, and the
//! encrypted reasoning among them.
//!
//! A request over a chain (`previous_response_id`) is judged as the whole list it stands for; places
//! are indexes of that list.

mod compaction;
mod fields;
mod pairs;
mod reasoning;
mod response;

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

use super::cache::Policy;
use super::prompt::{
    PROMPT, Piece, Place, Weighed, hash, items, link, text, weigh, weigh_sealed, weigh_text,
};
use super::reply::Scene;
use super::reply_store::{Book, Prefix};
use super::rules::Model;
use super::verdict::{Accepted, Refusal, Rule};
use super::{Call, Dialect, Purpose, Reading};

pub(super) use compaction::compact;
pub(super) use response::{remember, write};

const DIALECT: Dialect = Dialect::Responses;

/// An item of the list that the model works on.
struct Item<'c> {
    value: Cow<'c, Value>,
    /// Its type; `message` where none is given.
    kind: String,
}

impl Item<'_> {
    fn field(&self, name: &str) -> &Value {
        &self.value[name]
    }

    fn id(&self) -> Option<&str> {
        self.value["id"].as_str()
    }

    fn is_said(&self) -> bool {
        self.kind == "message" && self.value["role"] == "user"
    }
}

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::openai(rule, 400, None, None, message.into()))
}

fn refuse_at<T>(rule: Rule, param: &str, message: String) -> Result<T, Refusal> {
    Err(Refusal::openai(rule, 400, None, Some(param), message))
}

/// Judges a request.
pub(super) fn read(call: &Call, model: &Model, book: &Book) -> Result<Reading, Refusal> {
    if call.account.is_none() {
        let message = "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
        return Err(Refusal::openai(Rule::Authentication, 401, None, None, message.into()));
    }
    if call.purpose == Purpose::Compact && !model.compacts {
        let message = "Invalid URL (POST /v1/responses/compact)";
        return Err(Refusal::openai(Rule::Compaction, 404, None, None, message.into()));
    }
    fields::check(call, model)?;
    let list = list(call, book)?;
    fields::check_items(model, &list)?;
    compaction::check(call, model, book, &list)?;
    let seals = reasoning::seals(call, model, book, &list)?;
    pairs::check(book, &list, &seals)?;
    let mut pieces = front(&call.body);
    let (system, tools) = pieces.split_last().map_or((0, &[][..]), |(last, all)| (last.hash, all));
    let tools = tools.iter().fold(0, |chain, piece| link(chain, piece.hash));
    let start = Prefix { system, tools, messages: 0 };
    let read = reasoning::read(call, model, book, &list, &seals, start);
    let front_pieces = pieces.len();
    for (at, item) in list.iter().enumerate() {
        let place = |block| Place::Message { message: at, block };
        match (item.kind.as_str(), read.visible.get(&at)) {
            ("reasoning", Some(tokens)) => {
                let sealed = text(item.field("encrypted_content"));
                pieces.push(weigh_sealed("reasoning", sealed, *tokens).at(place(0)));
            }
            ("reasoning", None) => {}
            _ => pieces.extend(
                weigh_item(item).into_iter().enumerate().map(|(block, one)| one.at(place(block))),
            ),
        }
    }
    let room = fit(call, model, &mut pieces, front_pieces)?;
    let most = call.body["max_output_tokens"].as_u64();
    Ok(Reading {
        unedited: total(&pieces),
        pieces,
        cache_key: cache_key(&call.body),
        policy: Policy::Automatic {
            min: model.cache_min,
            step: 128,
            ttl: Duration::from_secs(if model.bills_cache_writes { 1800 } else { 300 }),
        },
        prefix: Prefix { messages: read.chain, ..start },
        last_seal: None,
        parent: read.parent,
        scene: scene(call, model, &list, most.unwrap_or(room).min(room)),
        omits: call.body["reasoning"]["summary"].is_null(),
        transformations: read.transformations,
        edits: Vec::new(),
        own: read.not_kept,
        // The endpoint that compacts takes no tools (`docs/protocols.md` 3.3): nothing can be said of the
        // prefix there.
        losses: if call.purpose == Purpose::Compact { Vec::new() } else { read.losses },
    })
}

fn total(pieces: &[Piece]) -> u64 {
    PROMPT + pieces.iter().map(|piece| piece.tokens).sum::<u64>()
}

/// The whole list: the chain before, then the new items, references resolved (`docs/protocols.md` 3.2).
fn list<'c>(call: &'c Call, book: &Book) -> Result<Vec<Item<'c>>, Refusal> {
    let mut all: Vec<Cow<'c, Value>> = Vec::new();
    if let Some(id) = call.body["previous_response_id"].as_str() {
        let Some(before) = book.conversation(id, call.account) else {
            let message = format!("Previous response with id '{id}' not found.");
            let code = Some("previous_response_not_found");
            let param = Some("previous_response_id");
            return Err(Refusal::openai(Rule::PreviousResponse, 400, code, param, message));
        };
        all.extend(before.into_iter().map(Cow::Owned));
    }
    if let Some(said) = call.body["input"].as_str() {
        all.push(Cow::Owned(json!({"type": "message", "role": "user", "content": said})));
    }
    for item in items(&call.body["input"]) {
        all.push(match text(&item["type"]) {
            "item_reference" => {
                let id = text(&item["id"]);
                match book.stored_item(id, call.account) {
                    Some(stored) => Cow::Owned(stored.clone()),
                    None => return not_found(call, id),
                }
            }
            _ => Cow::Borrowed(item),
        });
    }
    let kind = |value: &Value| value["type"].as_str().unwrap_or("message").to_owned();
    Ok(all.into_iter().map(|value| Item { kind: kind(&value), value }).collect())
}

/// `docs/protocols.md` 3.2: an id that nothing is stored under.
fn not_found<T>(call: &Call, id: &str) -> Result<T, Refusal> {
    let mut message = format!("Item with id '{id}' not found.");
    if call.body["store"] == false {
        message += " Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input.";
    }
    Err(Refusal::openai(Rule::ItemNotFound, 404, None, Some("input"), message))
}

/// Tools and instructions; the instructions come last, empty where there are none.
fn front(body: &Value) -> Vec<Piece> {
    let tools = items(&body["tools"]).enumerate();
    let mut pieces: Vec<Piece> =
        tools.map(|(at, tool)| weigh("tool", tool).at(Place::Tool(at))).collect();
    let instructions = text(&body["instructions"]);
    let mut weighed = weigh_text("system", instructions);
    if instructions.is_empty() {
        weighed.tokens = 0;
    }
    pieces.push(weighed.at(Place::System(0)));
    pieces
}

/// An item as the model reads it; its id is not part of it.
fn weigh_item(item: &Item<'_>) -> Vec<Weighed> {
    let tag = |name: &str| format!("{} {}", item.kind, text(item.field(name)));
    match item.kind.as_str() {
        "message" => {
            let role = tag("role");
            let whole = item.field("content").as_str().map(|words| weigh_text(&role, words));
            let parts = items(item.field("content")).map(|part| weigh_part(&role, part));
            whole.into_iter().chain(parts).collect()
        }
        "function_call" => {
            let words = format!("{}\n{}", text(item.field("name")), text(item.field("arguments")));
            vec![weigh_text(&tag("call_id"), &words)]
        }
        "custom_tool_call" => {
            let words = format!("{}\n{}", text(item.field("name")), text(item.field("input")));
            vec![weigh_text(&tag("call_id"), &words)]
        }
        kind if kind.ends_with("_call_output") => {
            let output = item.field("output");
            let whole = output.as_str().map(|words| weigh_text(&tag("call_id"), words));
            let parts = items(output).map(|part| weigh_part(&tag("call_id"), part));
            whole.into_iter().chain(parts).collect()
        }
        "compaction" => {
            vec![weigh_sealed(
                "compaction",
                text(item.field("encrypted_content")),
                compaction::TOKENS,
            )]
        }
        _ => vec![weigh(&item.kind, &item.value)],
    }
}

/// A part is its text, whatever annotations hang on it.
fn weigh_part(tag: &str, part: &Value) -> Weighed {
    match part["text"].as_str() {
        Some(words) => weigh_text(tag, words),
        None => weigh(tag, part),
    }
}

/// `docs/protocols.md` 3.6: too long is refused, or with `truncation: auto` items go from the beginning.
/// Answers the room for output.
fn fit(call: &Call, model: &Model, pieces: &mut Vec<Piece>, front: usize) -> Result<u64, Refusal> {
    if call.purpose == Purpose::Count {
        return Ok(u64::MAX);
    }
    let input = total(pieces);
    if input > model.window && call.body["truncation"] != "auto" {
        let message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
        let code = Some("context_length_exceeded");
        return Err(Refusal::openai(Rule::Overflow, 400, code, Some("input"), message.into()));
    }
    let mut left = input;
    let too_many = pieces[front..].iter().take_while(|piece| {
        let over = left > model.window;
        left -= if over { piece.tokens } else { 0 };
        over
    });
    let too_many = too_many.count();
    pieces.drain(front..front + too_many);
    compacts(call, total(pieces))?;
    Ok(model.window.saturating_sub(total(pieces)))
}

/// Compaction on the server is not simulated (yet); below its threshold nothing happens
/// (`docs/protocols.md` 3.3). It belongs here.
fn compacts(call: &Call, input: u64) -> Result<(), Refusal> {
    let thresholds = items(&call.body["context_management"]);
    let passed = thresholds.filter_map(|edit| edit["compact_threshold"].as_u64());
    match passed.into_iter().any(|threshold| input >= threshold) {
        true => Err(Refusal::not_simulated(DIALECT, "compaction on the server")),
        false => Ok(()),
    }
}

/// What keeps caches apart (`docs/protocols.md` 7.2, the reasons that the API itself gives for a miss).
fn cache_key(body: &Value) -> u128 {
    let values = [
        body["prompt_cache_key"].to_string(),
        body["text"].to_string(),
        body["reasoning"]["effort"].to_string(),
        body["service_tier"].to_string(),
    ];
    hash(&values.each_ref().map(String::as_str))
}

/// Whether the model reasons for this request.
fn thinks(body: &Value, model: &Model) -> bool {
    model.reasons && body["reasoning"]["effort"] != "none"
}

fn scene(call: &Call, model: &Model, list: &[Item<'_>], max_output: u64) -> Scene {
    let said = list.iter().rposition(Item::is_said);
    let after = said.map_or(0, |said| said + 1);
    // A round is a run of what the model wrote.
    let wrote = |item: &Item<'_>| {
        matches!(item.kind.as_str(), "reasoning" | "function_call" | "custom_tool_call")
            || item.kind == "message" && item.field("role") == "assistant"
    };
    let tail = &list[after..];
    let begins = |at: &usize| wrote(&tail[*at]) && (*at == 0 || !wrote(&tail[*at - 1]));
    let later = items(&call.body["input"]).flat_map(|item| items(&item["tools"]));
    let tools = items(&call.body["tools"]).chain(later);
    let tools = tools.filter(|tool| tool["type"] == "function");
    let none = call.body["tool_choice"] == "none";
    Scene {
        thinks: thinks(&call.body, model),
        begins_thinking: false,
        tools: tools
            .filter(|_| !none)
            .map(|tool| (text(&tool["name"]).to_owned(), tool["parameters"].clone()))
            .collect(),
        said: said.map_or(0, |at| {
            weigh_item(&list[at]).iter().fold(0, |chain, one| link(chain, one.hash))
        }),
        rounds: (0..tail.len()).filter(begins).count() as u64,
        max_output: Some(max_output),
    }
}

/// `docs/protocols.md` 6.
pub(super) fn count(accepted: &Accepted) -> Value {
    json!({"object": "response.input_tokens", "input_tokens": accepted.input_tokens})
}

#[cfg(test)]
mod tests;
