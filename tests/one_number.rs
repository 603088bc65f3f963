//! One number: what is shown between turns, plus what is new, is the number that the next request is decided by, to the
//! token; in every preset and dialect, whatever was reported.
#![allow(
    clippy::too_many_lines,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::sync::Arc;

use plimsoll::config::presets::Preset;
use plimsoll::config::{self, Config, ConfigSources};
use plimsoll::context::budget::{self, Anchor, CarryOutlook, ContextView, WindowLimits};
use plimsoll::context::ledger::{Ledger, anchor_keys};
use plimsoll::context::lineage::place;
use plimsoll::context::plan::{self, PlanRequest, RecordedDecisions};
use plimsoll::context::policy::{DecisionMode, Mode};
use plimsoll::context::{EstimateMethod, Fact, Outcome, Turn, prune, reasoning};
use plimsoll::dialect::models::{Catalogue, Family, Model};
use plimsoll::dialect::reading::{BodyEnd, Framing, ResponseReader};
use plimsoll::dialect::{self, Dialect, Reply};
use plimsoll::tokens::Tokenizer;
use plimsoll::tokens::classic::SentContent;
use plimsoll::tokens::learn::{EstimatorState, Observation};
use plimsoll::tokens::unsent::UnsentReasoning;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The configuration with these keys.
fn resolved(settings: &[(&str, &str)]) -> Config {
    let mut variables = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
    variables.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    config::load(&ConfigSources { variables, ..ConfigSources::default() }).unwrap().config
}

/// Every preset, and variants with keys about reasoning.
fn policies() -> Vec<(String, Config)> {
    let keys: [&[(&str, &str)]; 4] = [
        &[],
        &[
            ("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", "false"),
            ("PLIMSOLL_REASONING_REINJECT", "off"),
        ],
        &[
            ("PLIMSOLL_REASONING_STRIP_FROM_CONTEXT", "all_but_last"),
            ("PLIMSOLL_REASONING_REINJECT", "off"),
        ],
        &[("PLIMSOLL_REASONING_REINJECT", "off")],
    ];
    let mut policies = Vec::new();
    for also in keys {
        policies.push((format!("none {also:?}"), resolved(also)));
        for preset in Preset::ALL {
            let mut settings = vec![("PLIMSOLL_PRESET", preset.name())];
            settings.extend(also);
            policies.push((format!("{} {also:?}", preset.name()), resolved(&settings)));
        }
    }
    policies
}

/// A protocol and a model that speaks it.
const MODELS: [(Dialect, &str, &str); 8] = [
    (Dialect::Anthropic, "/v1/messages", "claude-sonnet-4-5"),
    (Dialect::Anthropic, "/v1/messages", "claude-opus-4-6"),
    (Dialect::OpenaiChat, "/v1/chat/completions", "gpt-5"),
    (Dialect::OpenaiChat, "/v1/chat/completions", "deepseek-reasoner"),
    (Dialect::OpenaiChat, "/v1/chat/completions", "some-local-model"),
    (Dialect::OpenaiResponses, "/v1/responses", "gpt-5"),
    (Dialect::Gemini, "/v1beta/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro"),
    (
        Dialect::Gemini,
        "/v1beta/models/gemini-3-pro-preview:generateContent",
        "gemini-3-pro-preview",
    ),
];

/// One exchange of a session.
#[derive(Clone, Debug)]
struct Step {
    /// Whether the model reasons.
    thinks: bool,
    /// Whether it calls a tool, whose result comes next. Otherwise the user speaks next.
    calls: bool,
    /// The model's text, and that of the user or tool after it.
    texts: (String, String),
    /// How much the reported input differs from the estimate.
    off: i64,
    /// Output tokens without reasoning, and tokens of reasoning.
    output: (u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let text = "([a-z]{1,9} ){1,30}";
    let step =
        (any::<bool>(), any::<bool>(), (text, text), -40i64..4_000, (1u64..900, 0u64..60_000));
    let step = step.prop_map(|(thinks, calls, texts, off, output)| {
        let output = if thinks { (output.0, output.1.max(1)) } else { (output.0, 0) };
        Step { thinks, calls, texts, off, output }
    });
    prop::collection::vec(step, 2..7)
}

struct Session<'a> {
    config: &'a Config,
    dialect: Dialect,
    target: &'static str,
    name: &'static str,
    model: Model,
    learned: EstimatorState,
    ledger: Ledger,
    history: Vec<Value>,
    calls: usize,
}

impl<'a> Session<'a> {
    fn new(
        config: &'a Config,
        (dialect, target, name): (Dialect, &'static str, &'static str),
    ) -> Self {
        let model = Catalogue::default().model(name, "");
        let learned = EstimatorState::new(model.family);
        let (ledger, history) = Default::default();
        Self { config, dialect, target, name, model, learned, ledger, history, calls: 0 }
    }

    fn body(&self) -> String {
        let (name, history) = (self.name, &self.history);
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        let read = json!({"name": "Read", "description": "Reads.", "input_schema": schema});
        let body = match self.dialect {
            Dialect::Anthropic => {
                json!({"model": name, "max_tokens": 9000, "system": "You are calm.",
                "thinking": {"type": "enabled", "budget_tokens": 4000}, "tools": [read], "messages": history})
            }
            Dialect::OpenaiChat => json!({"model": name, "tools": [{"type": "function", "function":
                {"name": "Read", "description": "Reads.", "parameters": schema}}], "messages": history}),
            Dialect::OpenaiResponses => {
                json!({"model": name, "instructions": "You are calm.", "store": false,
                "tools": [{"type": "function", "name": "Read", "parameters": schema}],
                "include": ["reasoning.encrypted_content"], "input": history})
            }
            Dialect::Gemini => json!({"systemInstruction": {"parts": [{"text": "You are calm."}]},
                "tools": [{"functionDeclarations": [{"name": "Read", "parameters": schema}]}],
                "contents": history}),
        };
        body.to_string()
    }

    fn add_user_message(&mut self, text: &str) {
        self.history.push(match self.dialect {
            Dialect::Gemini => json!({"role": "user", "parts": [{"text": text}]}),
            _ => json!({"role": "user", "content": text}),
        });
    }

    fn add_tool_result(&mut self, text: &str) {
        let id = self.id();
        self.history.push(match self.dialect {
            Dialect::Anthropic => json!({"role": "user", "content":
                [{"type": "tool_result", "tool_use_id": id, "content": text}]}),
            Dialect::OpenaiChat => json!({"role": "tool", "tool_call_id": id, "content": text}),
            Dialect::OpenaiResponses => {
                json!({"type": "function_call_output", "call_id": id, "output": text})
            }
            Dialect::Gemini => json!({"role": "user", "parts":
                [{"functionResponse": {"name": "Read", "response": {"output": text}}}]}),
        });
    }

    fn id(&self) -> String {
        format!("call_AbCdEfGh{:04}", self.calls)
    }

    /// The reply of a step to a request of this many tokens, and what the client sends back of it.
    fn reply_of(&self, step: &Step, input: u64) -> (Reply, Vec<Value>) {
        let (id, n) = (self.id(), self.calls);
        let (text, path) = (&step.texts.0, json!({"path": format!("src/{n}.rs")}));
        let (text_tokens, thought) = step.output;
        let output = text_tokens + thought;
        let signature = format!("c2VhbA{n:04}==");
        let mut reply;
        let mut back = Vec::new();
        match self.dialect {
            Dialect::Anthropic => {
                let mut content = Vec::new();
                if step.thinks {
                    content.push(json!({"type": "thinking", "thinking": format!("Hm, {n}."), "signature": signature}));
                }
                content.push(json!({"type": "text", "text": text}));
                if step.calls {
                    content
                        .push(json!({"type": "tool_use", "id": id, "name": "Read", "input": path}));
                }
                reply = json!({"id": format!("msg_{n}"), "type": "message", "role": "assistant",
                    "model": self.name, "content": content, "stop_reason": "end_turn",
                    "usage": {"input_tokens": input, "output_tokens": output}});
                back.push(json!({"role": "assistant", "content": reply["content"]}));
            }
            Dialect::OpenaiChat => {
                let mut message = json!({"role": "assistant", "content": text});
                if step.thinks && self.name != "gpt-5" {
                    message["reasoning_content"] = json!(format!("Hm, {n}."));
                }
                if step.calls {
                    message["tool_calls"] = json!([{"id": id, "type": "function",
                        "function": {"name": "Read", "arguments": path.to_string()}}]);
                }
                reply = json!({"id": format!("chatcmpl-{n}"), "object": "chat.completion", "model": self.name,
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
                        "completion_tokens_details": {"reasoning_tokens": thought}}});
                back.push(reply["choices"][0]["message"].clone());
            }
            Dialect::OpenaiResponses => {
                let mut items = Vec::new();
                if step.thinks {
                    items.push(json!({"type": "reasoning", "id": format!("rs_{n}"), "summary": [],
                        "encrypted_content": signature}));
                }
                items
                    .push(json!({"type": "message", "id": format!("msg_{n}"), "role": "assistant",
                    "content": [{"type": "output_text", "text": text, "annotations": []}]}));
                if step.calls {
                    items.push(
                        json!({"type": "function_call", "id": format!("fc_{n}"), "call_id": id,
                        "name": "Read", "arguments": path.to_string()}),
                    );
                }
                reply = json!({"id": format!("resp_{n}"), "object": "response", "status": "completed",
                    "model": self.name, "output": items, "usage": {"input_tokens": input,
                    "output_tokens": output, "total_tokens": input + output,
                    "output_tokens_details": {"reasoning_tokens": thought}}});
                back.extend(items);
            }
            Dialect::Gemini => {
                let mut parts = Vec::new();
                if step.thinks {
                    parts.push(json!({"text": format!("Hm, {n}."), "thought": true}));
                }
                parts.push(json!({"text": text}));
                if step.calls {
                    let mut call = json!({"functionCall": {"name": "Read", "args": path}});
                    if step.thinks {
                        call["thoughtSignature"] = json!(signature);
                    }
                    parts.push(call);
                }
                reply = json!({"responseId": format!("r{n}"), "modelVersion": self.name,
                    "candidates": [{"index": 0, "finishReason": "STOP",
                        "content": {"role": "model", "parts": parts}}],
                    "usageMetadata": {"promptTokenCount": input, "candidatesTokenCount": text_tokens,
                        "totalTokenCount": input + output}});
                if thought > 0 {
                    reply["usageMetadata"]["thoughtsTokenCount"] = json!(thought);
                }
                // The official clients show thoughts and do not send them back; they do send signatures.
                parts.retain(|part| part.get("thought").is_none());
                back.push(json!({"role": "model", "parts": parts}));
            }
        }
        let mut reading = ResponseReader::new(self.dialect, 200, Framing::Json, 1 << 20);
        reading.push(reply.to_string().as_bytes());
        (reading.finish(BodyEnd::Whole), back)
    }

    /// Plays one exchange. If there was a turn before, returns what was shown, what was new and the number that
    /// decided.
    fn exchange(&mut self, step: &Step) -> Option<Decided> {
        self.calls += 1;
        let body = self.body();
        let read = dialect::read(self.dialect, self.target, body.as_bytes());
        let exchange = format!("req-{:03}", self.calls).into();
        let placed = place(&self.ledger, &read, &exchange, None);
        let anchor =
            placed.parent.as_ref().and_then(|parent| self.ledger.anchor_at(parent)).cloned();
        let sketch = anchor.as_ref().and_then(|turn| self.ledger.sketch(turn));
        let anchor = anchor.zip(sketch);
        let grown = anchor.as_ref().map(|(turn, sketch)| Anchor { turn, sketch });
        let model = self.model.clone();
        let request = PlanRequest {
            exchange: &exchange,
            conversation: &read,
            body: body.as_bytes(),
            model: &model,
            name: self.name,
            upstream: "up",
            reasoning_rule: reasoning::rule(self.dialect, "", self.name),
            compaction_refused: false,
            policy: &self.config.policy,
            mode: Mode::Active,
            clears_past: None,
            tokenizer: Tokenizer::whole(self.model.family),
            reserve: self.model.reserve(self.config.output_reserve),
            now: self.calls as u64 * 1_000,
        };
        let mut known = RecordedDecisions::of(&self.ledger, &read, &placed, DecisionMode::Active);
        let mut facts = reasoning::propose(&request, &known).facts;
        known.add(facts.clone());
        let plan = plan::replay(&request, &known);
        let measured = budget::estimate(&request, &plan.sent, &known, grown, &self.learned);
        let estimate = measured.estimate.clone();
        let rules = request.policy.estimate.deciding();
        let new = match (rules, &grown) {
            // The messages after the reply are counted here independently.
            (Some(rules), Some(_)) => {
                let last = read.messages.iter().rposition(|it| it.role == dialect::Role::Assistant);
                let fresh = &read.messages[last.unwrap() + 1..];
                rules.messages(body.as_bytes(), fresh, |_| SentContent::Whole) as i64
            }
            // The new parts as they were counted, and the learned correction.
            _ => {
                let (seen, guess) = (measured.seen.as_ref().unwrap(), &estimate.guess);
                let counted = seen.counted[guess.retention as usize] as i64;
                seen.new_content.tokens as i64 + guess.tokens as i64 - counted
            }
        };
        let decided = grown.map(|anchor| {
            assert_eq!(estimate.method, EstimateMethod::Anchored);
            let view = ContextView::after(anchor.turn);
            let basis = view.basis.unwrap();
            assert_eq!(view.total, basis.input + basis.output + basis.new - basis.gone);
            let parts = view.breakdown;
            assert_eq!(view.total, parts.system + parts.tools + parts.messages);
            Decided { shown: view.total, new, by: estimate.tokens }
        });
        // The decisions by that number, and what is sent then.
        let cost = prune::RequestCost { tokens: estimate.tokens, parts: &measured.parts, rules };
        let cuts = prune::propose(&request, &known, cost).facts;
        known.add(cuts.clone());
        facts.extend(cuts);
        let plan = plan::replay(&request, &known);
        let sent = budget::estimate(&request, &plan.sent, &known, grown, &self.learned);
        let input = sent.estimate.tokens.saturating_add_signed(step.off).max(1);
        let (reply, mut back) = self.reply_of(step, input);
        self.history.append(&mut back);
        let mut turn = self.turn(&request, &placed.position, &reply);
        (turn.estimate, turn.sketch) = (Some(sent.estimate.clone()), sent.sketch.clone());
        if let Some(seen) = &sent.seen {
            self.learned = self.learned.clone().after(seen, &sent.estimate.guess, input);
        }
        let prospect = CarryOutlook::new(&request, &sent, grown, true, WindowLimits::default());
        turn.carry = Some(prospect.carry_over(&turn, &reply, request.model, &self.learned));
        let thoughts = reasoning::record(
            &reply.parts,
            reasoning::ReplyOrigin {
                dialect: self.dialect,
                after: turn.after,
                prefix: plan.sent.chain(),
                order: plan.sent.thought(),
                model: self.name,
                upstream: "up",
                at: turn.ended,
            },
        );
        facts.extend(thoughts.map(|thoughts| Fact::Reasoning(Box::new(thoughts))));
        facts.push(Fact::Turn(Box::new(turn)));
        facts.into_iter().for_each(|fact| self.ledger.add(fact));
        decided
    }

    fn turn(
        &self,
        request: &PlanRequest<'_>,
        position: &plimsoll::context::Position,
        reply: &Reply,
    ) -> Turn {
        Turn {
            exchange: request.exchange.clone(),
            position: position.clone(),
            after: reply.chain_after(position.chain),
            done: <_>::default(),
            response: reply.id.clone(),
            at: request.now,
            ended: request.now + 500,
            upstream: "up".into(),
            dialect: self.dialect,
            model: self.name.into(),
            family: self.model.family,
            purpose: request.conversation.purpose,
            estimate: None,
            usage: reply.usage.clone(),
            counted: None,
            stop: reply.stop,
            outcome: Outcome::Complete,
            window: self.model.window,
            reserve: request.reserve,
            sketch: <_>::default(),
            reply: budget::reply(reply, Tokenizer::whole(self.model.family)),
            anchor_keys: anchor_keys(reply),
            others: Vec::new(),
            provider_request_id: None,
            repeated_calls: None,
            hints: None,
            origin: None,
            carry: None,
        }
    }
}

/// What was shown before a request, what was new in it, and the number that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decided {
    shown: u64,
    new: i64,
    by: u64,
}

/// The learned state for a provider that counts reasoning that is not sent back.
fn counts_unsent(family: Family) -> EstimatorState {
    let unsent = UnsentReasoning { tokens: 700, counted: false };
    [false, true].into_iter().fold(EstimatorState::new(family), |learned, streams| {
        let seen = Observation { counted: [1_000; 4], unsent, streams, ..Observation::default() };
        let guess = learned.guess(&seen, Default::default());
        let learned = learned.after(&seen, &guess, 1_700);
        assert!(learned.counts_unsent(streams));
        learned
    })
}

fn plays(
    name: &str,
    config: &Config,
    model: (Dialect, &'static str, &'static str),
    unsent: bool,
    steps: &[Step],
) {
    let mut session = Session::new(config, model);
    if unsent {
        session.learned = counts_unsent(session.model.family);
    }
    session.add_user_message("How deep is she?");
    for (at, step) in steps.iter().enumerate() {
        if let Some(decided) = session.exchange(step) {
            let case = format!("{name}, {model:?}, {unsent}, turn {at}: {decided:?} of {steps:#?}");
            assert_eq!(decided.shown.checked_add_signed(decided.new), Some(decided.by), "{case}");
        }
        match step.calls {
            true => session.add_tool_result(&step.texts.1),
            false => session.add_user_message(&step.texts.1),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is shown after a turn, plus what is new, decides the next request.
    #[test]
    fn the_shown_context_plus_new_input_decides_the_next_request(steps in steps(), unsent in any::<bool>()) {
        for (name, config) in policies_once() {
            for model in MODELS {
                plays(name, config, model, unsent, &steps);
            }
        }
    }
}

fn policies_once() -> &'static [(String, Config)] {
    static POLICIES: std::sync::OnceLock<Arc<[(String, Config)]>> = std::sync::OnceLock::new();
    POLICIES.get_or_init(|| policies().into())
}
