//! OpenAI Responses, judged and answered (`providers.md` §3): items and their pairs, reasoning by id
//! and by its encrypted content.
//!
//! Items sent inline, without ids, are not held to their pairs by id; everything else is
//! (`providers.md` §3.2). Reasoning that does not fit is withheld and reported, not refused (§3.5).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::author::{Part, Reply, Scene};
use super::cache::Policy;
use super::measure::{Piece, Place, STRUCTURE, Weighed, hash, items, link, text, weigh, weigh_sealed, weigh_text};
use super::rules::Model;
use super::signatures::{Book, Issued, Item, Kind, Mint, Prefix, Seal};
use super::verdict::{Accepted, Loss, Refusal, Rule, Transformation, Why};
use super::{Call, Dialect, Purpose, Reading};

const DIALECT: Dialect = Dialect::Responses;

/// How long an automatic cache keeps a prefix at least (`providers.md` §7.2).
const TTL: std::time::Duration = std::time::Duration::from_secs(300);
/// Its step, tokens.
const STEP: u64 = 128;

/// Fields of a request (`providers.md` §3.2).
const FIELDS: [&str; 31] = [
    "background",
    "client_metadata",
    "context_management",
    "conversation",
    "generate",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
];

fn refuse<T>(rule: Rule, param: &str, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::openai(rule, 400, None, Some(param), message.into()))
}

/// Judges a request.
pub(super) fn read(call: &Call, model: &Model, book: &Book) -> Result<Reading, Refusal> {
    let body = &call.body;
    if call.account.is_none() {
        let message = "You didn't provide an API key.".to_owned();
        return Err(Refusal::openai(Rule::Authentication, 401, Some("invalid_api_key"), None, message));
    }
    let names = body.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    if let Some(name) = names.into_iter().find(|name| !FIELDS.contains(name) && model.unknown_fields_refused) {
        let message = format!("Unknown parameter: '{name}'.");
        let code = Some("unknown_parameter");
        return Err(Refusal::openai(Rule::UnknownField, 400, code, Some(name), message));
    }
    if body["previous_response_id"].is_string() || !body["conversation"].is_null() {
        return Err(Refusal::not_simulated(DIALECT, "history that the provider holds"));
    }
    let listed: Vec<&Value> = items(&body["input"]).collect();
    pairs(&listed)?;
    let mut checker = Checker::new(call, model, book, &listed);
    checker.check()?;
    let Checker { thought, visible, .. } = checker;
    let tools: Vec<Piece> = items(&body["tools"])
        .enumerate()
        .map(|(at, tool)| weigh("tool", tool).at(Place::Tool(at)))
        .collect();
    let system = weigh_text("system", text(&body["instructions"])).at(Place::System(0));
    let prefix = prefix(body, thought.chain);
    let mut pieces = tools;
    pieces.push(system);
    if let Some(words) = body["input"].as_str() {
        pieces.push(weigh_text("user", words).at(Place::Message { message: 0, block: 0 }));
    }
    for (at, item) in listed.iter().enumerate() {
        let weighed = match item["type"] == "reasoning" {
            true => match visible.iter().find(|(index, _)| *index == at) {
                Some((_, tokens)) => weigh_sealed("reasoning", text(&item["encrypted_content"]), *tokens),
                None => continue,
            },
            false => weighed(item),
        };
        pieces.push(weighed.at(Place::Message { message: at, block: 0 }));
    }
    let input: u64 = super::measure::PROMPT + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    if input > model.window && call.purpose == Purpose::Answer && body["truncation"] != "auto" {
        let message = "Your input exceeds the context window of this model. Please adjust your input and try again.".to_owned();
        let code = Some("context_length_exceeded");
        return Err(Refusal::openai(Rule::Overflow, 400, code, Some("input"), message));
    }
    Ok(Reading {
        pieces,
        cache_key: hash(&[text(&body["prompt_cache_key"])]),
        policy: Policy::Automatic { min: model.cache_min, step: STEP, ttl: TTL },
        prefix,
        last_seal: None,
        parent: thought.parent,
        scene: scene(body, &listed),
        omits: false,
        transformations: thought.transformations,
        edits: Vec::new(),
        losses: thought.losses,
        unedited: input,
    })
}

fn prefix(body: &Value, messages: u128) -> Prefix {
    Prefix {
        system: weigh_text("system", text(&body["instructions"])).hash,
        tools: items(&body["tools"]).fold(0, |chain, tool| link(chain, weigh("tool", tool).hash)),
        messages,
    }
}

fn kind(item: &Value) -> &str {
    match text(&item["type"]) {
        "" => "message",
        kind => kind,
    }
}

fn is_call(item: &Value) -> bool {
    ["function_call", "custom_tool_call"].contains(&kind(item))
}

fn is_output(item: &Value) -> bool {
    ["function_call_output", "custom_tool_call_output"].contains(&kind(item))
}

/// An item as it is rendered: ids of the store and status are no words of it.
fn weighed(item: &Value) -> Weighed {
    let role = match text(&item["role"]) {
        "" if is_output(item) => "tool",
        "" => "assistant",
        role => role,
    };
    if let Some(words) = item["content"].as_str() {
        return weigh_text(role, words);
    }
    let mut bare = item.clone();
    if let Some(bare) = bare.as_object_mut() {
        for name in ["id", "status", "phase", "type"] {
            bare.remove(name);
        }
    }
    if kind(item) == "message" && items(&item["content"]).len() == 1 {
        return weigh(role, &item["content"][0]);
    }
    weigh(role, &bare)
}

/// Calls and outputs (`providers.md` §3.2).
fn pairs(listed: &[&Value]) -> Result<(), Refusal> {
    let mut ids = HashSet::new();
    for item in listed {
        if let Some(id) = item["id"].as_str() {
            let wanted = match kind(item) {
                "message" => "msg",
                "function_call" => "fc",
                "custom_tool_call" => "ctc",
                "reasoning" => "rs",
                _ => "",
            };
            if !id.starts_with(wanted) {
                let message = format!("Invalid 'input[0].id': '{id}'. Expected an ID that begins with '{wanted}'.");
                return refuse(Rule::ItemIdForm, "input", message);
            }
            if !ids.insert(id) {
                let message = format!("Duplicate item found with id {id}. Remove duplicate items from your input and try again.");
                return refuse(Rule::ItemTwice, "input", message);
            }
        }
    }
    for (at, item) in listed.iter().enumerate() {
        let id = text(&item["call_id"]);
        let is_same = |other: &&&Value| other["call_id"] == item["call_id"];
        if is_output(item) && !listed[..at].iter().filter(is_same).any(|it| is_call(it)) {
            let message = format!("No tool call found for function call output with call_id {id}.");
            return refuse(Rule::ResultWithoutCall, "input", message);
        }
        if is_call(item) && !listed[at..].iter().filter(is_same).any(|it| is_output(it)) {
            let message = format!("No tool output found for function call {id}.");
            return refuse(Rule::CallUnanswered, "input", message);
        }
    }
    Ok(())
}

/// What came of a request's reasoning.
#[derive(Default)]
struct Thought {
    transformations: Vec<Transformation>,
    losses: Vec<Loss>,
    chain: u128,
    parent: Option<usize>,
}

struct Checker<'a> {
    call: &'a Call,
    model: &'a Model,
    book: &'a Book,
    listed: &'a [&'a Value],
    /// The first item after the newest words of a person.
    current: usize,
    prefix: Prefix,
    /// Reasoning that the model reads, with what it weighs.
    visible: Vec<(usize, u64)>,
    thought: Thought,
}

impl<'a> Checker<'a> {
    fn new(call: &'a Call, model: &'a Model, book: &'a Book, listed: &'a [&'a Value]) -> Self {
        let said = listed.iter().rposition(|item| is_said(item));
        Self {
            call,
            model,
            book,
            listed,
            current: said.map_or(0, |at| at + 1),
            prefix: prefix(&call.body, 0),
            visible: Vec::new(),
            thought: Thought::default(),
        }
    }

    fn check(&mut self) -> Result<(), Refusal> {
        if let Some(words) = self.call.body["input"].as_str() {
            self.thought.chain = link(0, weigh_text("user", words).hash);
        }
        // Reasoning directly before, that nothing has followed yet.
        let mut run: Vec<&Value> = Vec::new();
        for (at, item) in self.listed.iter().enumerate() {
            if kind(item) == "reasoning" {
                self.reasoning(at, item)?;
                run.push(item);
                continue;
            }
            self.follows(item, &run)?;
            self.reply(at, item, &run);
            run.clear();
            self.thought.chain = link(self.thought.chain, weighed(item).hash);
        }
        match run.iter().find_map(|item| item["id"].as_str()) {
            Some(id) => without_following(id),
            None => Ok(()),
        }
    }

    /// One reasoning item.
    fn reasoning(&mut self, at: usize, item: &Value) -> Result<(), Refusal> {
        let id = text(&item["id"]);
        if !item["summary"].is_array() {
            let message = format!("Missing required parameter: 'input[{at}].summary'.");
            return refuse(Rule::FieldRequired, "input", message);
        }
        let Some(content) = item["encrypted_content"].as_str() else {
            if self.call.body["store"] == false || self.book.trace(DIALECT, "item", id).is_none() {
                let message = format!("Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input.");
                return refuse(Rule::ItemNotFound, "input", message);
            }
            return Ok(());
        };
        let Some((_, seal)) = self.book.seal(DIALECT, content) else {
            let message = format!("The encrypted content for item {id} could not be verified. Reason: Encrypted content could not be decrypted or parsed.");
            let code = Some("invalid_encrypted_content");
            return Err(Refusal::openai(Rule::SignatureInvalid, 400, code, None, message));
        };
        if Some(seal.account) != self.call.account {
            let message = format!("The encrypted content for item {id} could not be verified. Reason: Encrypted content organization_id did not match the target organization.");
            let code = Some("invalid_encrypted_content");
            return Err(Refusal::openai(Rule::SignatureInvalid, 400, code, None, message));
        }
        let place = Place::Message { message: at, block: 0 };
        let why = match () {
            () if !self.model.reads(&seal.model) => Some(Why::Model),
            () if self.model.binding && self.now() != seal.prefix => Some(Why::Prefix),
            () if !self.model.keeps_reasoning && at < self.current => Some(Why::Turn),
            () => None,
        };
        let Some(why) = why else {
            self.visible.push((at, seal.tokens));
            return Ok(());
        };
        let id = Some(id.to_owned()).filter(|id| !id.is_empty());
        self.thought.transformations.push(Transformation { place, id, why, allowed: false });
        if why != Why::Turn {
            self.thought.losses.push(Loss::ReasoningDropped { place, why });
        }
        Ok(())
    }

    fn now(&self) -> Prefix {
        Prefix { messages: self.thought.chain, ..self.prefix }
    }

    /// An item by its id stands after its reasoning; reasoning by its id before its item.
    fn follows(&self, item: &Value, run: &[&Value]) -> Result<(), Refusal> {
        let id = text(&item["id"]);
        let issued = self.issued(id);
        let is_ours = |of: &Value| kind(of) == "message" && of["role"] == "assistant" || is_call(of);
        if let Some(dangling) = run.iter().filter_map(|it| it["id"].as_str()).next()
            && (!is_ours(item)
                || self.issued(dangling).is_some_and(|reasoning| {
                    !id.is_empty() && reasoning.led_to.as_deref() != Some(id)
                }))
        {
            return without_following(dangling);
        }
        let Some(issued) = issued else { return Ok(()) };
        let there = |wanted: &String| run.iter().any(|it| it["id"] == wanted.as_str());
        match issued.reasoning.iter().find(|wanted| !there(wanted)) {
            Some(wanted) => refuse(
                Rule::ItemWithoutReasoning,
                "input",
                format!(
                    "Item '{id}' of type '{}' was provided without its required 'reasoning' item: '{wanted}'.",
                    kind(item)
                ),
            ),
            None => Ok(()),
        }
    }

    fn issued(&self, id: &str) -> Option<&Item> {
        let reply = self.book.reply(self.book.trace(DIALECT, "item", id)?)?;
        reply.items.iter().find(|item| item.id == id)
    }

    /// What of a reply did not come back.
    fn reply(&mut self, at: usize, item: &Value, run: &[&Value]) {
        let trace = match (is_call(item), item["role"] == "assistant") {
            (true, _) => self.book.trace(DIALECT, "call", text(&item["call_id"])),
            (_, true) => self.book.trace(DIALECT, "text", &words(item)),
            _ => return,
        };
        let Some(number) = trace else { return };
        let first = self.thought.parent != Some(number);
        self.thought.parent = Some(number);
        let Some(issued) = self.book.reply(number).filter(|_| first) else { return };
        let place = Place::Message { message: at, block: 0 };
        let wanted = self.model.keeps_reasoning || at >= self.current;
        let seal = issued.seals.first().and_then(|seal| self.book.numbered(*seal));
        let seal = seal.filter(|_| wanted && run.len() < leading(self.book, issued));
        if let Some(seal) = seal {
            let fits = !self.model.binding || self.now() == seal.prefix;
            let ours = Some(seal.account) == self.call.account && self.model.reads(&seal.model);
            self.thought.losses.push(Loss::ReasoningAbsent {
                place,
                issued: issued.seals.len(),
                present: run.len(),
                readable: fits && ours,
            });
        }
        let phased = issued.items.iter().any(|item| item.phase.is_some());
        if phased && kind(item) == "message" && item["phase"].is_null() {
            self.thought.losses.push(Loss::PhaseDropped { place });
        }
    }
}

/// Pieces of reasoning at the start of a reply.
fn leading(book: &Book, issued: &Issued) -> usize {
    let seals = issued.seals.iter().filter_map(|seal| book.numbered(*seal));
    seals.take_while(|seal| seal.lead == 0).count()
}

fn without_following(id: &str) -> Result<(), Refusal> {
    let message = format!("Item '{id}' of type 'reasoning' was provided without its required following item.");
    refuse(Rule::ReasoningWithoutItem, "input", message)
}

/// The words of a message, in whatever form.
fn words(item: &Value) -> String {
    match item["content"].as_str() {
        Some(words) => words.to_owned(),
        None => items(&item["content"]).map(|block| text(&block["text"])).collect(),
    }
}

fn is_said(item: &Value) -> bool {
    kind(item) == "message" && item["role"] == "user"
}

fn scene(body: &Value, listed: &[&Value]) -> Scene {
    let said = listed.iter().rposition(|item| is_said(item));
    let hash = said.map(|at| weighed(listed[at]).hash);
    let whole = weigh_text("user", text(&body["input"])).hash;
    let after = &listed[said.map_or(0, |at| at + 1)..];
    let outputs = |pair: &[&Value]| is_output(pair[0]) && !is_output(pair[1]);
    let rounds = after.windows(2).filter(|pair| outputs(pair)).count()
        + usize::from(after.last().is_some_and(|last| is_output(last)));
    let functions = items(&body["tools"]).filter(|tool| tool["type"] == "function");
    Scene {
        thinks: body["reasoning"]["effort"] != "none",
        begins_thinking: false,
        tools: functions
            .filter(|_| body["tool_choice"] != "none")
            .map(|tool| (text(&tool["name"]).to_owned(), tool["parameters"].clone()))
            .collect(),
        said: hash.unwrap_or(whole),
        rounds: rounds as u64,
        max_output: body["max_output_tokens"].as_u64(),
    }
}

/// The response, with what each piece of reasoning weighs. Encrypted content is there where it was
/// asked for (`providers.md` §3.2).
pub(super) fn write(
    call: &Call,
    accepted: &Accepted,
    reply: &Reply,
    mint: &mut Mint,
) -> (Value, Vec<u64>) {
    let asked = items(&call.body["include"]).any(|it| it == "reasoning.encrypted_content");
    let (mut output, mut weights) = (Vec::new(), Vec::new());
    let mut tokens = 0;
    for part in &reply.parts {
        let item = match part {
            Part::Thinking { tokens: thought, .. }
            | Part::Sealed { tokens: thought }
            | Part::Redacted { tokens: thought } => {
                weights.push(*thought);
                tokens += thought + STRUCTURE;
                let summary = match part {
                    Part::Thinking { text, .. } => json!([{"type": "summary_text", "text": text}]),
                    _ => json!([]),
                };
                let mut item = json!({"id": mint.id("rs_"), "type": "reasoning", "summary": summary});
                if asked {
                    item["encrypted_content"] = json!(mint.signature(200));
                }
                output.push(item);
                continue;
            }
            Part::Text(words) => json!({
                "id": mint.id("msg_"), "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": words, "annotations": []}],
            }),
            Part::Call { name, arguments } => json!({
                "id": mint.id("fc_"), "type": "function_call", "status": "completed",
                "call_id": mint.id("call_"), "name": name, "arguments": arguments.to_string(),
            }),
        };
        tokens += weighed(&item).tokens;
        output.push(item);
    }
    let thought: u64 = weights.iter().map(|tokens| tokens + STRUCTURE).sum();
    let transformations: Vec<Value> = accepted.transformations.iter().map(transformation).collect();
    let cached = accepted.cached;
    let whole = json!({
        "id": mint.id("resp_"), "object": "response", "created_at": 1_760_000_000,
        "status": "completed", "model": call.model, "output": output, "error": null,
        "incomplete_details": null, "store": call.body["store"] != false,
        "input_transformations": transformations,
        "usage": {
            "input_tokens": accepted.input_tokens,
            "input_tokens_details": {"cached_tokens": cached.read,
                "cache_write_tokens": cached.written_5m + cached.written_1h},
            "output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": accepted.input_tokens + tokens,
        },
    });
    (whole, weights)
}

/// `providers.md` §3.5.
fn transformation(one: &Transformation) -> Value {
    let reason = match one.why {
        Why::Model => "model_mismatch",
        Why::Account => "organization_mismatch",
        Why::Prefix => "prefix_mismatch",
        Why::Turn => "turn_boundary",
    };
    json!({"id": one.id, "type": "reasoning", "action": "removed", "reason": reason})
}

/// Remembers a response as issued: its seals, and which item each led to.
pub(super) fn remember(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    whole: &Value,
    weights: &[u64],
    book: &mut Book,
) {
    let standing = &accepted.standing;
    let (reply, account) = (book.next_reply(), call.account.unwrap_or_default());
    let output: Vec<&Value> = items(&whole["output"]).collect();
    let mut chain = standing.prefix.messages;
    let (mut seals, mut listed, mut run, mut lead) = (Vec::new(), Vec::<Item>::new(), Vec::new(), 0);
    let mut thought = 0;
    for (at, item) in output.iter().enumerate() {
        let id = text(&item["id"]).to_owned();
        book.add_trace(DIALECT, "item", &id);
        if kind(item) == "reasoning" {
            let next = output[at..].iter().find(|next| kind(next) != "reasoning");
            let led_to = next.map(|next| text(&next["id"]).to_owned());
            if let Some(content) = item["encrypted_content"].as_str() {
                let number = book.next_seal();
                let seal = Seal {
                    kind: Kind::Encrypted,
                    account,
                    model: model.name.clone(),
                    text: 0,
                    prefix: Prefix { messages: chain, ..standing.prefix },
                    before: None,
                    reply,
                    run: (number, 1),
                    lead,
                    tokens: weights.get(thought).copied().unwrap_or_default(),
                    id: id.clone(),
                };
                seals.push(number);
                book.add_seal(DIALECT, content, seal);
            }
            thought += 1;
            run.push(id.clone());
            listed.push(Item { id, reasoning: Vec::new(), led_to, phase: None });
            continue;
        }
        match is_call(item) {
            true => book.add_trace(DIALECT, "call", text(&item["call_id"])),
            false => book.add_trace(DIALECT, "text", &words(item)),
        }
        let phase = item["phase"].as_str().map(str::to_owned);
        listed.push(Item { id, reasoning: std::mem::take(&mut run), led_to: None, phase });
        lead += 1;
        chain = link(chain, weighed(item).hash);
    }
    book.add_reply(Issued {
        account,
        model: model.name.clone(),
        seals,
        reasoning: None,
        items: listed,
        trail: standing.trail.clone(),
    });
}

/// `providers.md` §6.
pub(super) fn count(accepted: &Accepted) -> Value {
    json!({"object": "response.input_tokens", "input_tokens": accepted.input_tokens})
}
