//! Gemini `generateContent`, judged and answered (`providers.md` §5): turns and their parts, function
//! calls and their responses, thought signatures.
//!
//! A signature is bound to the part it sits on, and to the account; which base64 alphabet it comes in
//! does not matter (`clients.md` §0.10).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::author::{Part, Reply, Scene};
use super::cache::Policy;
use super::measure::{Piece, Place, Weighed, hash, items, link, text, weigh, weigh_text};
use super::rules::{Model, Signatures};
use super::signatures::{Book, Issued, Kind, Mint, Prefix, Seal};
use super::verdict::{Accepted, Loss, Refusal, Rule, Why};
use super::{Call, Dialect, Purpose, Reading};

const DIALECT: Dialect = Dialect::Gemini;

/// What the API takes in place of a signature (`providers.md` §5.4).
const SKIPS: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// Fields of a request, in both spellings.
const FIELDS: [&str; 17] = [
    "contents",
    "systemInstruction",
    "system_instruction",
    "tools",
    "toolConfig",
    "tool_config",
    "generationConfig",
    "generation_config",
    "safetySettings",
    "safety_settings",
    "cachedContent",
    "cached_content",
    "labels",
    "model",
    "store",
    "serviceTier",
    "service_tier",
];

/// How long an implicit cache keeps a prefix: hours are seen, minutes are sure (`providers.md` §7.3).
const TTL: std::time::Duration = std::time::Duration::from_secs(300);

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::gemini(rule, 400, message.into()))
}

/// A value under either of its names.
fn either<'v>(value: &'v Value, camel: &str, snake: &str) -> &'v Value {
    value.get(camel).or_else(|| value.get(snake)).unwrap_or(&Value::Null)
}

fn call_of(part: &Value) -> &Value {
    either(part, "functionCall", "function_call")
}

fn response_of(part: &Value) -> &Value {
    either(part, "functionResponse", "function_response")
}

/// The request itself: counting may wrap it (`providers.md` §6).
fn request(body: &Value) -> &Value {
    let wrapped = either(body, "generateContentRequest", "generate_content_request");
    if wrapped.is_object() { wrapped } else { body }
}

/// Judges a request.
pub(super) fn read(call: &Call, model: &Model, book: &Book) -> Result<Reading, Refusal> {
    if call.account.is_none() {
        let message = "Method doesn't allow unregistered callers. Please use API Key or other form of API consumer identity to call this API.";
        return Err(Refusal::gemini(Rule::Authentication, 403, message.to_owned()));
    }
    let body = request(&call.body);
    if let Some(name) = unknown(body, model) {
        let message = format!("Invalid JSON payload received. Unknown name \"{name}\": Cannot find field.");
        return refuse(Rule::UnknownField, message);
    }
    let contents: Vec<&Value> = items(&body["contents"]).collect();
    if contents.is_empty() {
        return refuse(Rule::FieldRequired, "* GenerateContentRequest.contents: contents is not specified\n");
    }
    shapes(&contents)?;
    turns(&contents)?;
    let mut checker = Checker { call, model, book, contents: &contents, thought: Thought::default() };
    checker.check()?;
    let thought = checker.thought;
    let system = either(body, "systemInstruction", "system_instruction");
    let mut pieces: Vec<Piece> = declarations(body)
        .enumerate()
        .map(|(at, tool)| weigh("tool", tool).at(Place::Tool(at)))
        .collect();
    let tools = pieces.iter().fold(0, |chain, piece| link(chain, piece.hash));
    let said: Vec<Piece> = items(&system["parts"])
        .enumerate()
        .map(|(at, part)| weigh("system", part).at(Place::System(at)))
        .collect();
    let prefix = Prefix {
        system: said.iter().fold(0, |chain, piece| link(chain, piece.hash)),
        tools,
        messages: thought.chain,
    };
    pieces.extend(said);
    for (message, content) in contents.iter().enumerate() {
        for (block, part) in items(&content["parts"]).enumerate() {
            let role = role(content);
            pieces.push(weighed(role, part).at(Place::Message { message, block }));
        }
    }
    let input: u64 = super::measure::PROMPT + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    if input > model.window && call.purpose == Purpose::Answer {
        return refuse(
            Rule::Overflow,
            format!(
                "The input token count ({input}) exceeds the maximum number of tokens allowed ({}).",
                model.window
            ),
        );
    }
    Ok(Reading {
        pieces,
        cache_key: 0,
        policy: Policy::Automatic { min: model.cache_min, step: 1, ttl: TTL },
        prefix,
        last_seal: None,
        parent: thought.parent,
        scene: scene(body, &contents),
        omits: false,
        transformations: Vec::new(),
        edits: Vec::new(),
        losses: thought.losses,
        unedited: input,
    })
}

/// A member that the protocol does not know.
fn unknown<'b>(body: &'b Value, model: &Model) -> Option<&'b str> {
    let names = body.as_object()?.keys().map(String::as_str);
    names.filter(|_| model.unknown_fields_refused).find(|name| !FIELDS.contains(name))
}

fn role(content: &Value) -> &str {
    match text(&content["role"]) {
        "model" => "model",
        _ => "user",
    }
}

/// A part as it is rendered: its signature is no word of it.
fn weighed(role: &str, part: &Value) -> Weighed {
    match part["text"].as_str() {
        Some(words) => weigh_text(role, words),
        None => {
            let mut bare = part.clone();
            if let Some(bare) = bare.as_object_mut() {
                bare.remove("thoughtSignature");
                bare.remove("thought_signature");
            }
            weigh(role, &bare)
        }
    }
}

/// Every content has parts, every part says one thing (`providers.md` §5.2).
fn shapes(contents: &[&Value]) -> Result<(), Refusal> {
    for (at, content) in contents.iter().enumerate() {
        let known = ["", "user", "model", "function"].contains(&text(&content["role"]));
        if !known {
            return refuse(Rule::Role, "Please use a valid role: user, model.");
        }
        if items(&content["parts"]).len() == 0 {
            return refuse(
                Rule::EmptyContent,
                format!("* GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty.\n"),
            );
        }
        for (part_at, part) in items(&content["parts"]).enumerate() {
            let empty = part["text"] == "" && signature(part).is_none();
            let nothing = part.as_object().is_none_or(|part| part.keys().all(|key| {
                ["thought", "thoughtSignature", "thought_signature"].contains(&key.as_str())
            }));
            if empty || (nothing && signature(part).is_none()) {
                return refuse(
                    Rule::EmptyContent,
                    format!("* GenerateContentRequest.contents[{at}].parts[{part_at}].data: required oneof field 'data' must have one initialized field\n"),
                );
            }
            let response = response_of(part);
            if response.is_object() && !response["response"].is_object() {
                return refuse(
                    Rule::ResponseForm,
                    format!("Invalid value at 'contents[{at}].parts[{part_at}].function_response.response' (type.googleapis.com/google.protobuf.Struct)"),
                );
            }
        }
    }
    Ok(())
}

/// Calls and their responses, turn by turn (`providers.md` §5.2).
fn turns(contents: &[&Value]) -> Result<(), Refusal> {
    let calls = |content: &Value| -> Vec<String> {
        let all = items(&content["parts"]).map(call_of).filter(|call| call.is_object());
        all.map(|call| text(&call["name"]).to_owned()).collect()
    };
    let responses = |content: &Value| -> Vec<String> {
        let all = items(&content["parts"]).map(response_of).filter(|it| it.is_object());
        all.map(|response| text(&response["name"]).to_owned()).collect()
    };
    for (at, content) in contents.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| contents[before]);
        let (called, answered) = (calls(content), responses(content));
        if !called.is_empty() && before.is_none_or(|before| role(before) != "user") {
            return refuse(
                Rule::TurnOrder,
                "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
            );
        }
        let open = before.map(calls).unwrap_or_default();
        if answered.is_empty() && open.is_empty() {
            continue;
        }
        if open.is_empty() {
            return refuse(
                Rule::TurnOrder,
                "Please ensure that function response turn comes immediately after a function call turn.",
            );
        }
        let (mut wanted, mut given) = (open, answered);
        wanted.sort();
        given.sort();
        if wanted != given {
            return refuse(
                Rule::ResponseCount,
                "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.",
            );
        }
    }
    let open = contents.last().is_some_and(|last| !calls(last).is_empty());
    match open {
        true => refuse(
            Rule::ResponseCount,
            "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.",
        ),
        false => Ok(()),
    }
}

fn signature(part: &Value) -> Option<&str> {
    either(part, "thoughtSignature", "thought_signature").as_str().filter(|it| !it.is_empty())
}

/// Whether a signature is the documented value that skips the check, plain or in base64.
fn skips(signature: &str) -> bool {
    let decoded = STANDARD.decode(signature).ok();
    let words = decoded.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
    SKIPS.iter().any(|skip| signature == *skip || words == Some(*skip))
}

/// What a signature signs: the words or the call.
fn signed(part: &Value) -> u128 {
    let call = call_of(part);
    if call.is_object() {
        return hash(&["call", text(&call["name"]), &call["args"].to_string()]);
    }
    hash(&["text", text(&part["text"])])
}

/// What came of a request's signatures.
#[derive(Default)]
struct Thought {
    losses: Vec<Loss>,
    chain: u128,
    parent: Option<usize>,
}

struct Checker<'a> {
    call: &'a Call,
    model: &'a Model,
    book: &'a Book,
    contents: &'a [&'a Value],
    thought: Thought,
}

impl Checker<'_> {
    fn check(&mut self) -> Result<(), Refusal> {
        let said = self.contents.iter().rposition(|content| is_said(content)).unwrap_or(0);
        for (at, content) in self.contents.iter().enumerate() {
            let mut first_call = true;
            for (block, part) in items(&content["parts"]).enumerate() {
                if role(content) == "model" {
                    let is_call = call_of(part).is_object();
                    let demanded = is_call && first_call && at > said;
                    first_call &= !is_call;
                    self.part(at, block, part, demanded)?;
                }
                if part["thought"] != true {
                    self.thought.chain =
                        link(self.thought.chain, weighed(role(content), part).hash);
                }
            }
        }
        Ok(())
    }

    fn part(
        &mut self,
        message: usize,
        block: usize,
        part: &Value,
        demanded: bool,
    ) -> Result<(), Refusal> {
        let place = Place::Message { message, block };
        let issued = self.issued(part);
        if let Some(seal) = issued {
            self.thought.parent = Some(seal.reply);
        }
        let absent = |thought: &mut Thought| {
            if issued.is_some_and(|seal| self.model.reads(&seal.model)) {
                thought.losses.push(Loss::SignatureAbsent { place });
            }
        };
        let Some(signature) = signature(part) else {
            if demanded && self.model.signatures == Signatures::Required {
                let name = text(&call_of(part)["name"]);
                return refuse(
                    Rule::SignatureMissing,
                    format!("Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:{name}` , position {}. Please refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details.", message + 1),
                );
            }
            absent(&mut self.thought);
            return Ok(());
        };
        if skips(signature) {
            absent(&mut self.thought);
            return Ok(());
        }
        let Some((_, seal)) = self.book.seal(DIALECT, signature) else {
            return refuse(Rule::SignatureInvalid, "Corrupted thought signature.");
        };
        if seal.text != signed(part) || Some(seal.account) != self.call.account {
            return refuse(Rule::SignatureInvalid, "Thought signature is not valid");
        }
        if !self.model.reads(&seal.model) {
            self.thought.losses.push(Loss::ReasoningDropped { place, why: Why::Model });
        }
        Ok(())
    }

    /// The seal that this part was issued with.
    fn issued(&self, part: &Value) -> Option<&Seal> {
        let number = self.book.trace(DIALECT, "signed", &signed(part).to_string())?;
        let reply = self.book.reply(number)?;
        let mut seals = reply.seals.iter().filter_map(|seal| self.book.numbered(*seal));
        seals.find(|seal| seal.text == signed(part)).filter(|seal| {
            Some(seal.account) == self.call.account
        })
    }
}

/// Whether a content holds words of a person, not responses alone.
fn is_said(content: &Value) -> bool {
    let mut parts = items(&content["parts"]);
    role(content) == "user" && parts.any(|part| !response_of(part).is_object())
}

fn declarations(body: &Value) -> impl Iterator<Item = &Value> {
    items(&body["tools"]).flat_map(|tool| {
        items(either(tool, "functionDeclarations", "function_declarations"))
    })
}

fn scene(body: &Value, contents: &[&Value]) -> Scene {
    let said = contents.iter().rposition(|content| is_said(content)).unwrap_or(0);
    let words = items(&contents[said]["parts"]).map(|part| weighed("user", part).hash);
    let config = either(body, "generationConfig", "generation_config");
    let limit = either(config, "maxOutputTokens", "max_output_tokens").as_u64();
    let schema = |declaration: &Value| {
        let json = either(declaration, "parametersJsonSchema", "parameters_json_schema");
        if json.is_object() { json.clone() } else { declaration["parameters"].clone() }
    };
    Scene {
        thinks: true,
        begins_thinking: false,
        tools: declarations(body).map(|it| (text(&it["name"]).to_owned(), schema(it))).collect(),
        said: words.fold(0, link),
        rounds: contents[said..].iter().filter(|it| role(it) == "model").count() as u64,
        max_output: limit,
    }
}

/// The response, with what each piece of reasoning weighs. Every step's first call is signed
/// (`providers.md` §5.4); words are where the model thought about them.
pub(super) fn write(
    call: &Call,
    accepted: &Accepted,
    reply: &Reply,
    mint: &mut Mint,
) -> (Value, Vec<u64>) {
    let shows = {
        let config = either(request(&call.body), "generationConfig", "generation_config");
        let thinking = either(config, "thinkingConfig", "thinking_config");
        *either(thinking, "includeThoughts", "include_thoughts") == true
    };
    let (mut parts, mut weights) = (Vec::new(), Vec::new());
    let (mut thoughts, mut output, mut pending, mut called) = (0, 0, 0, false);
    for part in &reply.parts {
        match part {
            Part::Thinking { text, tokens } => {
                (thoughts, pending) = (thoughts + tokens, pending + tokens);
                if shows {
                    parts.push(json!({"text": text, "thought": true}));
                }
            }
            Part::Sealed { tokens } | Part::Redacted { tokens } => {
                (thoughts, pending) = (thoughts + tokens, pending + tokens);
            }
            Part::Text(words) => {
                let mut said = json!({"text": words});
                output += weigh_text("model", words).tokens;
                if pending > 0 && !reply.calls() {
                    said["thoughtSignature"] = json!(mint.signature(120));
                    weights.push(std::mem::take(&mut pending));
                }
                parts.push(said);
            }
            Part::Call { name, arguments } => {
                let mut part = json!({"functionCall": {"name": name, "args": arguments}});
                output += weigh("model", &part).tokens;
                if !called {
                    part["thoughtSignature"] = json!(mint.signature(120));
                    weights.push(std::mem::take(&mut pending));
                }
                called = true;
                parts.push(part);
            }
        }
    }
    if parts.is_empty() {
        parts.push(json!({"text": "…"}));
    }
    let prompt = accepted.input_tokens;
    let mut usage = json!({
        "promptTokenCount": prompt, "candidatesTokenCount": output, "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + output + thoughts,
    });
    if accepted.cached.read > 0 {
        usage["cachedContentTokenCount"] = json!(accepted.cached.read);
    }
    let whole = json!({
        "candidates": [{"content": {"parts": parts, "role": "model"}, "finishReason": "STOP",
            "index": 0}],
        "usageMetadata": usage, "modelVersion": call.model, "responseId": mint.id(""),
    });
    (whole, weights)
}

/// Remembers a response as issued.
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
    let mut seals = Vec::new();
    for part in items(&whole["candidates"][0]["content"]["parts"]) {
        let Some(signature) = signature(part) else { continue };
        let number = book.next_seal();
        let seal = Seal {
            kind: Kind::Thought,
            account,
            model: model.name.clone(),
            text: signed(part),
            prefix: standing.prefix,
            before: None,
            reply,
            run: (number, 1),
            lead: 0,
            tokens: weights.get(seals.len()).copied().unwrap_or_default(),
            id: String::new(),
        };
        seals.push(number);
        book.add_trace(DIALECT, "signed", &seal.text.to_string());
        book.add_seal(DIALECT, signature, seal);
    }
    book.add_reply(Issued {
        account,
        model: model.name.clone(),
        seals,
        reasoning: None,
        items: Vec::new(),
        trail: standing.trail.clone(),
    });
}

/// `providers.md` §6.
pub(super) fn count(accepted: &Accepted) -> Value {
    json!({"totalTokens": accepted.input_tokens})
}
