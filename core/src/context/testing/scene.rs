//! A session for unit tests: requests as a client sends them, and the turns they became, without sockets.

use std::sync::Arc;

use serde_json::{Value, json};

use super::edited::reply_keys;
use super::ledger::Ledger;
use super::lineage::{self, Placement};
use super::plan::{DecisionReason, Plan, PlanRequest, RecordedDecisions, replay};
use super::policy::{Mode, Policy, ReasoningRule, SummaryAuthor};
use super::reasoning;
use super::{
    CompactionRecord, Cut, ExchangeId, Fact, Millis, Outcome, PromptSection, Replacement,
    SketchPart, Turn, budget,
};
use crate::dialect::models::{Catalogue, Model};
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{self, Conversation, Dialect, PartIndex, PartKey, Reply, Usage};
use crate::tokens::Tokenizer;
use crate::tokens::learn::EstimatorState;

/// A result with this key is cut.
pub(super) fn cut(about: u128, exchange: &str, content: &str) -> Cut {
    Cut {
        about: PartKey(about),
        part: None,
        at: 1,
        exchange: exchange.into(),
        content: Replacement::Text(content.into()),
        keep_media: false,
        was: 900,
        tokens: 9,
        why: DecisionReason::Pressure,
        shadow: false,
        epoch: None,
    }
}

/// A session and its current request.
pub(super) struct SessionFixture {
    pub(super) conversation: Conversation,
    pub(super) body: Vec<u8>,
    pub(super) ledger: Ledger,
    pub(super) model: Model,
    pub(super) name: &'static str,
    pub(super) upstream: &'static str,
    pub(super) policy: Policy,
    pub(super) reasoning_rule: ReasoningRule,
    pub(super) mode: Mode,
    pub(super) clears_past: Option<u64>,
    pub(super) reserve: u64,
    pub(super) now: Millis,
    count: usize,
    exchange: ExchangeId,
}

impl SessionFixture {
    pub(super) fn new(name: &'static str, messages: &Value) -> Self {
        let body = json!({"model": name, "max_tokens": 9, "messages": messages});
        Self::read(Dialect::Anthropic, "/v1/messages", name, &body)
    }

    pub(super) fn read(dialect: Dialect, path: &str, name: &'static str, body: &Value) -> Self {
        let body = body.to_string().into_bytes();
        Self {
            conversation: dialect::read(dialect, path, &body),
            body,
            ledger: Ledger::default(),
            model: Catalogue::default().model(name, ""),
            name,
            upstream: "up",
            policy: Policy::default(),
            reasoning_rule: ReasoningRule::Wanted,
            mode: Mode::Active,
            clears_past: None,
            reserve: 0,
            now: 1,
            count: 1,
            exchange: "r1".into(),
        }
    }

    /// The client asks another model from now on.
    pub(super) fn fall_back(&mut self, name: &'static str) {
        self.model = Catalogue::default().model(name, "");
        self.name = name;
    }

    pub(super) fn send(&mut self, messages: &Value) {
        let body = json!({"model": self.name, "max_tokens": 9, "messages": messages});
        self.body = body.to_string().into_bytes();
        self.conversation = dialect::read(Dialect::Anthropic, "/v1/messages", &self.body);
        self.count += 1;
        self.exchange = format!("r{}", self.count).into();
    }

    pub(super) fn request(&self) -> PlanRequest<'_> {
        PlanRequest {
            exchange: &self.exchange,
            conversation: &self.conversation,
            body: &self.body,
            model: &self.model,
            name: self.name,
            upstream: self.upstream,
            reasoning_rule: self.reasoning_rule,
            compaction_refused: false,
            policy: &self.policy,
            client_compacts: None,
            mode: self.mode,
            clears_past: self.clears_past,
            tokenizer: Tokenizer::whole(self.model.family),
            reserve: self.reserve,
            now: self.now,
        }
    }

    pub(super) fn placed(&self) -> Placement {
        lineage::place(&self.ledger, &self.conversation, &self.exchange, None)
    }

    pub(super) fn known(&self) -> RecordedDecisions {
        let decisions = self.mode.decisions();
        RecordedDecisions::from_ledger(&self.ledger, &self.conversation, &self.placed(), decisions)
    }

    pub(super) fn plan(&self) -> Plan {
        replay(&self.request(), &self.known())
    }

    /// A summary of the messages before `cut`, as this request takes it into use.
    pub(super) fn summary(&self, cut: usize) -> CompactionRecord {
        let (about, near) = self.known().at_cut(cut).unwrap();
        CompactionRecord {
            about,
            near,
            is_own: self.known().has_own_near(&self.conversation, cut),
            at: 1,
            exchange: self.exchange.clone(),
            raw: r#"{"role":"user","content":"They spoke."}"#.into(),
            was: 100,
            tokens: 10,
            by: SummaryAuthor::Summary,
            why: DecisionReason::Threshold,
            upstream: "up".into(),
            model: self.name.into(),
            spent: Usage::default(),
            dollars: None,
            took: 0,
            carries: None,
            shadow: false,
            epoch: None,
        }
    }

    /// The result in this message is cut, as an earlier request decided.
    pub(super) fn cut(&self, message: usize, content: &str) -> Cut {
        Cut { about: PartKey(self.about(message)), ..cut(0, "r0", content) }
    }

    pub(super) fn parts(&self, tokens: impl Fn(usize) -> u32) -> Vec<SketchPart> {
        let messages = self.conversation.messages.iter().enumerate();
        let parts = messages.flat_map(|(index, message)| {
            message.parts.iter().filter_map(move |part| Some((index, part.key?)))
        });
        let sketch = parts.map(|(index, key)| SketchPart {
            key,
            tokens: tokens(index),
            place: PromptSection::History,
            by_length: false,
        });
        sketch.collect()
    }

    pub(super) fn about(&self, message: usize) -> u128 {
        let decisions = self.known();
        (0..9)
            .find_map(|part| decisions.about(PartIndex::new(message, part)))
            .expect("a part with a key")
    }

    pub(super) fn reply(&self, content: &Value) -> Reply {
        let body = json!({"id": format!("msg_{}", self.count), "content": content, "stop_reason": "end_turn",
            "usage": {"input_tokens": 900, "output_tokens": 100}});
        let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Json, 1 << 20);
        reading.push(body.to_string().as_bytes());
        reading.finish(BodyEnd::Whole)
    }

    pub(super) fn turn(&self, reply: &Reply) -> Turn {
        let request = self.request();
        let placed = self.placed();
        let plan = self.plan();
        let measured = budget::measure(
            &self.conversation,
            &self.body,
            &plan.sent,
            &self.model,
            None,
            request.tokenizer,
            &EstimatorState::new(self.model.family),
        );
        Turn {
            exchange: request.exchange.clone(),
            after: reply.chain_after(placed.position.chain),
            anchor_keys: reply_keys(&placed.position, reply),
            position: placed.position,
            response: reply.id.clone(),
            at: self.now,
            ended: self.now,
            upstream: self.upstream.into(),
            model: self.name.into(),
            purpose: self.conversation.purpose,
            estimate: Some(measured.estimate),
            usage: reply.usage.clone(),
            stop: reply.stop,
            outcome: Outcome::Complete,
            window: self.model.window,
            reserve: self.reserve,
            sketch: measured.sketch,
            reply: budget::reply(reply, request.tokenizer),
            ..Turn::empty(self.conversation.dialect, self.model.family)
        }
    }

    pub(super) fn answered(&mut self, content: &Value) {
        let reply = self.reply(content);
        let plan = self.plan();
        let turn = self.turn(&reply);
        let reasoning = reasoning::record(&reply.parts, turn.after, &turn, plan.sent.prefix());
        self.ledger.add(Fact::Turn(Arc::new(turn)));
        if let Some(record) = reasoning {
            self.ledger.add(Fact::Reasoning(Box::new(record)));
        }
    }

    /// The recorded decisions if the parent turn ended just now; `with` changes that turn.
    pub(super) fn grown_from(&self, with: impl FnOnce(&mut Turn)) -> RecordedDecisions {
        let mut turn = self.turn(&self.reply(&json!([{"type": "text", "text": "Aye."}])));
        with(&mut turn);
        let mut decisions = self.known();
        decisions.parent = Some(Arc::new(turn));
        decisions
    }
}

/// One message per letter: text of the user (`u`) or the model (`a`), a call of `Read` (`c`) or `Write` (`w`), a call
/// with reasoning before it (`t`), the result of the call before (`r`), and a result that is an error (`e`).
pub(super) fn messages(letters: &str) -> Value {
    let messages = letters.chars().enumerate().map(|(number, letter)| match letter {
        'u' => json!({"role": "user", "content": format!("Words {number}.")}),
        'a' => json!({"role": "assistant", "content": format!("Said {number}.")}),
        'c' => json!({"role": "assistant", "content": [call(number, "Read")]}),
        'w' => json!({"role": "assistant", "content": [call(number, "Write")]}),
        't' => json!({"role": "assistant", "content": [thinking(number), call(number, "Read")]}),
        'r' | 'e' => json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id(number - 1),
            "content": format!("Result {number}. {}", "It is so. ".repeat(300)), "is_error": letter == 'e'}]}),
        _ => panic!("{letter}"),
    });
    messages.collect()
}

fn call_id(number: usize) -> String {
    format!("toolu_{number:02}AbCdEfGh{number:02}")
}

fn call(number: usize, name: &str) -> Value {
    json!({"type": "tool_use", "id": call_id(number), "name": name, "input": {"n": number}})
}

pub(super) fn thinking(number: usize) -> Value {
    json!({"type": "thinking", "thinking": format!("Let me see {number}."), "signature": format!("c2lnbmF0dXJl{number:04}")})
}
