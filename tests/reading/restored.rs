//! Recorded conversations, played with a client that drops all reasoning: what is sent equals what the real client
//! sent, part for part.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use plimsoll::context::ledger::{Ledger, anchor_keys};
use plimsoll::context::lineage::place;
use plimsoll::context::plan::{self, RecordedDecisions};
use plimsoll::context::policy::{DecisionMode, Mode, Policy, ReasoningRule};
use plimsoll::context::reasoning;
use plimsoll::context::{ExchangeId, Fact, Outcome, Turn};
use plimsoll::dialect::models::{Catalogue, Model};
use plimsoll::dialect::{self, Conversation, Dialect, Part, PartKind, Role};
use plimsoll::tokens::Tokenizer;
use plimsoll::wire::splice::splice;
use serde_json::Value;

use crate::corpus::{Call, DIALECTS, calls, corpus, files};

#[test]
fn dropped_reasoning_is_put_back_as_real_client_sent_it() {
    let root = corpus().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"));
    for (dialect, name) in DIALECTS {
        let (mut same, mut other) = (0, Vec::new());
        for path in files(&root.join("conversations").join(name)) {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for (step, verdict) in play(dialect, &calls(dialect, &path)).into_iter().enumerate() {
                match verdict {
                    None => {}
                    Some(Ok(())) => same += 1,
                    Some(Err(how)) => other.push(format!("{file} step {step}: {how}")),
                }
            }
        }
        println!("{name}: {same} requests restored, {} not", other.len());
        assert!(other.len() <= most_other(dialect), "not restored:\n{}", other.join("\n"));
        let is_whole = corpus().is_some();
        assert!(same > if is_whole { 20 } else { 0 }, "the recordings are not whole: {same}");
    }
}

/// Recorded requests that differ, each because of its client. The number may shrink, but must not grow.
fn most_other(dialect: Dialect) -> usize {
    match dialect {
        Dialect::Anthropic | Dialect::OpenaiResponses => 0,
        // The client sends back Gemini's details without their signature, which OpenRouter's rule forbids
        // (`docs/protocols.md` 4.2).
        Dialect::OpenaiChat => 1,
        // The clients copy one signature onto each parallel call, move a text's signature onto a thought, or leave out
        // parts.
        Dialect::Gemini => 14,
    }
}

/// Plays a conversation with a client that drops all reasoning. For each request in which the real client sent
/// reasoning: whether what is sent is the same.
fn play(dialect: Dialect, calls: &[Call]) -> Vec<Option<Result<(), String>>> {
    let mut ledger = Ledger::default();
    let catalogue = Catalogue::new(Vec::new());
    let mut verdicts = Vec::new();
    let mut thought: Vec<String> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let dropped = without_reasoning(dialect, &call.request);
        let conversation = dialect::read(dialect, &call.target, &dropped);
        let exchange = ExchangeId::from(index.to_string());
        let model = catalogue.model(conversation.model.as_deref().unwrap_or_default(), "");
        let placed = place(&ledger, &conversation, &exchange, None);
        let mut known =
            RecordedDecisions::from_ledger(&ledger, &conversation, &placed, DecisionMode::Active);
        let policy = Policy::default();
        let request = request(&exchange, &conversation, &dropped, &model, &policy);
        let new = reasoning::propose(&request, &known).facts;
        known.add(new.iter().cloned());
        new.into_iter().for_each(|fact| ledger.add(fact));
        let plan = plan::replay(&request, &known);
        let out = splice(&Bytes::from(dropped.clone()), plan.edits.clone()).unwrap().concat();
        let out = dialect::read(dialect, &call.target, &out).parts_and(&out);
        let real = dialect::read(dialect, &call.target, &call.request).parts_and(&call.request);
        // Reasoning from elsewhere is not known.
        let made_here = |seen: &&Seen| thought.iter().any(|raw| raw.contains(&seen.identity));
        let mut thinking = real.iter().filter(|seen| seen.thinks).peekable();
        let is_known = thinking.peek().is_some() && thinking.all(|seen| made_here(&seen));
        verdicts.push(is_known.then(|| compare(&real, &out)));

        let turn = turn(exchange.clone(), placed, call, dialect, &model, request.name);
        let prefix = plan.sent.prefix();
        let reasoning = reasoning::record(&call.reply.parts, turn.after, &turn, prefix);
        ledger.add(Fact::Turn(Arc::new(turn)));
        thought.extend(call.reply.parts.iter().map(|part| {
            let signature = part.signature.as_deref().map(spelled).unwrap_or_default();
            let thinks = part.kind == PartKind::Reasoning;
            signature + &if thinks { spelled(&part.text) } else { String::new() }
        }));
        reasoning.into_iter().for_each(|it| ledger.add(Fact::Reasoning(Box::new(it))));
    }
    verdicts
}

fn request<'a>(
    exchange: &'a ExchangeId,
    conversation: &'a Conversation,
    body: &'a [u8],
    model: &'a Model,
    policy: &'a Policy,
) -> plan::PlanRequest<'a> {
    plan::PlanRequest {
        exchange,
        conversation,
        body,
        model,
        name: conversation.model.as_deref().unwrap_or_default(),
        upstream: "u",
        reasoning_rule: ReasoningRule::Wanted,
        compaction_refused: false,
        policy,
        client_compacts: None,
        mode: Mode::Active,
        clears_past: None,
        tokenizer: Tokenizer::now(model.family),
        reserve: 0,
        now: 0,
    }
}

fn turn(
    exchange: ExchangeId,
    placed: plimsoll::context::lineage::Placement,
    call: &Call,
    dialect: Dialect,
    model: &Model,
    name: &str,
) -> Turn {
    Turn {
        exchange,
        after: call.reply.chain_after(placed.position.chain),
        position: placed.position,
        response: call.reply.id.clone(),
        upstream: "u".into(),
        model: name.into(),
        usage: call.reply.usage.clone(),
        stop: call.reply.stop,
        outcome: Outcome::Complete,
        window: model.window,
        anchor_keys: anchor_keys(&call.reply),
        ..Turn::empty(dialect, model.family)
    }
}

/// What is compared of a part: its kind, and its signature or text.
#[derive(Debug, PartialEq)]
struct Seen {
    what: String,
    /// Its signature, else its text.
    identity: String,
    thinks: bool,
}

trait Shown {
    fn parts_and(&self, body: &[u8]) -> Vec<Seen>;
}

impl Shown for Conversation {
    fn parts_and(&self, body: &[u8]) -> Vec<Seen> {
        let seen = |part: &Part| {
            let sealed =
                part.signature.map(|sealed| normal(sealed.slice(body))).unwrap_or_default();
            let is_reasoning = part.kind == PartKind::Reasoning;
            let text: String = match is_reasoning {
                true => part.texts.iter().map(|text| normal(text.slice(body))).collect(),
                false => part.key.map(|key| key.to_string()).unwrap_or_default(),
            };
            let identity = match (sealed.is_empty(), is_reasoning) {
                (true, true) => text.clone(),
                _ => sealed.clone(),
            };
            let what = format!("{:?} {text} {sealed}", part.kind);
            let thinks = part.role == Role::Assistant && !identity.is_empty();
            Seen { what, identity, thinks }
        };
        // An empty field or text counts as none. Summaries of Gemini's thoughts need not be sent back.
        let is_gemini = self.dialect == Dialect::Gemini;
        let is_something = |part: &&Part| match part.kind {
            PartKind::Reasoning if is_gemini => part.signature.is_some(),
            PartKind::Reasoning => part.signature.is_some() || !part.texts.is_empty(),
            PartKind::Text => part.key.is_some() || part.signature.is_some(),
            _ => true,
        };
        self.parts().filter(is_something).map(seen).collect()
    }
}

/// The value of a JSON string.
fn normal(literal: &[u8]) -> String {
    let text: Value = serde_json::from_slice(literal).unwrap_or_default();
    spelled(text.as_str().unwrap_or_default())
}

/// Base64 in the standard alphabet.
fn spelled(text: &str) -> String {
    text.replace('-', "+").replace('_', "/").trim_end_matches('=').to_owned()
}

fn compare(real: &[Seen], out: &[Seen]) -> Result<(), String> {
    if real == out {
        return Ok(());
    }
    let at = real.iter().zip(out).take_while(|(real, out)| real == out).count();
    let short = |seen: Option<&Seen>| {
        seen.map_or("nothing".to_owned(), |seen| seen.what.chars().take(90).collect())
    };
    Err(format!("part {at}: {} became {}", short(real.get(at)), short(out.get(at))))
}

/// The request of a client that drops all reasoning.
fn without_reasoning(dialect: Dialect, body: &[u8]) -> Vec<u8> {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    let kinds = |value: &Value, kinds: &[&str]| {
        value["type"].as_str().is_some_and(|kind| kinds.contains(&kind))
    };
    match dialect {
        Dialect::Anthropic => each(&mut body["messages"], |message| {
            retain(&mut message["content"], |block| {
                !kinds(block, &["thinking", "redacted_thinking"])
            });
        }),
        Dialect::OpenaiChat => each(&mut body["messages"], |message| {
            for name in FIELDS {
                message.as_object_mut().map(|message| message.remove(*name));
            }
            retain(&mut message["content"], |block| !kinds(block, &["thinking"]));
            each(&mut message["tool_calls"], |call| {
                call.as_object_mut().map(|call| call.remove("extra_content"));
            });
            // An absent member stays absent.
            if let Some(message) = message.as_object_mut() {
                message.retain(|name, value| name != "tool_calls" || !value.is_null());
            }
        }),
        Dialect::OpenaiResponses => {
            retain(&mut body["input"], |item| !kinds(item, &["reasoning"]));
        }
        Dialect::Gemini => each(&mut body["contents"], |content| {
            each(&mut content["parts"], |part| {
                part.as_object_mut().map(|part| part.remove("thoughtSignature"));
                part.as_object_mut().map(|part| part.remove("thought_signature"));
            });
            retain(&mut content["parts"], |part| {
                part["thought"] != Value::Bool(true) && part["text"] != ""
            });
        }),
    }
    serde_json::to_vec(&body).unwrap()
}

const FIELDS: &[&str] = &[
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "reasoning_text",
    "reasoning_opaque",
    "extra_content",
];

fn each(list: &mut Value, change: impl FnMut(&mut Value)) {
    list.as_array_mut().into_iter().flatten().for_each(change);
}

fn retain(list: &mut Value, keep: impl FnMut(&Value) -> bool) {
    if let Some(list) = list.as_array_mut() {
        list.retain(keep);
    }
}
