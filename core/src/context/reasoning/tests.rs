//! Which reasoning is put back, replaced by a stand-in, or removed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::context::plan::{ForeignReasoning, replay};
use crate::context::policy::ReasoningPolicy;
use crate::context::scene::{SessionFixture, messages, thinking};
use crate::dialect::models::Family;

/// Earlier versions stored a signature as a pair, without the range of text that it belongs to.
#[test]
fn earlier_signatures_are_read() {
    let read: Signature = serde_json::from_str(r#"[2,"sig"]"#).unwrap();
    assert_eq!(read, Signature { part: 2, value: "sig".into(), piece: None });
    let now = Signature { piece: Some((0, 4)), ..read };
    let again = serde_json::from_str::<Signature>(&serde_json::to_string(&now).unwrap());
    assert_eq!(again.unwrap(), now);
}

#[test]
fn gateway_that_reads_reasoning_gets_it_back_whatever_model() {
    let rule = |host, model| rule(Dialect::OpenaiChat, host, model);
    assert_eq!(rule("ai-gateway.vercel.sh", "openai/gpt-oss-120b"), ReasoningRule::Wanted);
    assert_eq!(rule("openrouter.ai", "openai/gpt-oss-120b"), ReasoningRule::Wanted);
    assert_eq!(rule("ai-gateway.vercel.sh", "moonshotai/kimi-k2.5"), ReasoningRule::Demanded);
    assert_eq!(rule("api.avian.io", "moonshotai/kimi-k2.5"), ReasoningRule::Demanded);
    // As recorded, for this model only.
    assert_eq!(rule("api.cerebras.ai", "gpt-oss-120b"), ReasoningRule::Wanted);
    assert_eq!(rule("ollama.com", "gpt-oss:120b"), ReasoningRule::Wanted);
    assert_eq!(rule("api.cerebras.ai", "zai-glm-4.7"), ReasoningRule::Unwanted);
    assert_eq!(rule("api.cerebras.ai", "llama-3.3-70b"), ReasoningRule::Unwanted);
    assert_eq!(rule("notollama.com", "gpt-oss:120b"), ReasoningRule::Unwanted);
    // These hosts refuse unknown fields.
    assert_eq!(rule("api.groq.com", "openai/gpt-oss-120b"), ReasoningRule::Unwanted);
    assert_eq!(rule("api.openai.com", "gpt-5.4"), ReasoningRule::Unwanted);
}

const FREE: &str = "claude-opus-4-6";
const BOUND: &str = "claude-opus-5-5";

/// A session whose model thought before each text and call, and the next request. `letters` as in [`messages`];
/// `sends`: whether the client sends the reasoning of the message with this number.
fn session(name: &'static str, letters: &str, sends: impl Fn(usize) -> bool) -> SessionFixture {
    let all = messages(letters);
    let history = |upto: usize| -> Value {
        let message = |(number, one): (usize, &Value)| {
            let mut one = one.clone();
            if one["role"] == "assistant" && sends(number) {
                one["content"] = thought(number, &one);
            }
            one
        };
        all.as_array().unwrap()[..upto].iter().enumerate().map(message).collect()
    };
    let mut scene = SessionFixture::new(name, &history(1));
    for (number, one) in all.as_array().unwrap().iter().enumerate() {
        if one["role"] == "assistant" {
            if number > 1 {
                scene.send(&history(number));
            }
            scene.answered(&thought(number, one));
        }
    }
    scene.send(&history(letters.len()));
    scene
}

/// The content of one of the model's messages, with its reasoning first.
fn thought(number: usize, message: &Value) -> Value {
    let content = match &message["content"] {
        Value::String(words) => json!([{"type": "text", "text": words}]),
        blocks => blocks.clone(),
    };
    std::iter::once(thinking(number)).chain(content.as_array().unwrap().iter().cloned()).collect()
}

/// What is decided about reasoning, and what is refused, each with the reason.
fn proposed(
    scene: &SessionFixture,
) -> (Vec<(ReasoningAction, DecisionReason)>, Vec<DecisionReason>) {
    of(scene, &scene.known())
}

fn of(
    scene: &SessionFixture,
    known: &RecordedDecisions,
) -> (Vec<(ReasoningAction, DecisionReason)>, Vec<DecisionReason>) {
    let Proposal { facts, declined } = propose(&scene.request(), known);
    let decided = facts.into_iter().map(|fact| match fact {
        Fact::ReasoningDecision(decision) => (decision.does, decision.why),
        other => panic!("{other:?}"),
    });
    (decided.collect(), declined.into_iter().map(|step| step.why).collect())
}

const DROPS: fn(usize) -> bool = |_| false;
const SENDS: fn(usize) -> bool = |_| true;

#[test]
fn dropped_reasoning_of_newest_reply_is_put_back_at_once() {
    let back = (vec![(ReasoningAction::PutBack, DecisionReason::Birth)], vec![]);
    for name in [FREE, BOUND] {
        assert_eq!(proposed(&session(name, "ucr", DROPS)), back, "{name}");
        assert_eq!(proposed(&session(name, "uau", DROPS)), back, "{name}");
        assert_eq!(proposed(&session(name, "ucr", SENDS)), (vec![], vec![]), "{name}");
    }
}

/// Beside a text that its client edited the place of reasoning is not certain. Where a text is gone, it is.
#[test]
fn edited_reply_gets_no_reasoning() {
    let call = messages("uc")[1]["content"][0].clone();
    let text = |text: &str| json!({"type": "text", "text": text});
    let mut scene = SessionFixture::new(FREE, &messages("u"));
    scene.answered(&json!([thinking(1), text("Let me read."), call]));
    let mut after = |content: Value| {
        let mut all = messages("ucr");
        all[1]["content"] = content;
        scene.send(&all);
        proposed(&scene)
    };
    let back = (vec![(ReasoningAction::PutBack, DecisionReason::Birth)], vec![]);
    assert_eq!(after(json!([text("Let me read."), call])), back);
    assert_eq!(after(json!([call])), back, "the text is gone");
    let declined = (vec![], vec![DecisionReason::OtherPrefix]);
    assert_eq!(after(json!([text("Let me read.\n---\nby a model"), call])), declined);
}

/// What its client dropped behind it is in no prefix of bound reasoning; what came before it is.
#[test]
fn bound_reasoning_needs_only_what_precedes_it() {
    let call = messages("uc")[1]["content"][0].clone();
    let text = json!({"type": "text", "text": "Let me read."});
    let without_text = |reply: Value| {
        let mut scene = SessionFixture::new(BOUND, &messages("u"));
        scene.answered(&reply);
        let mut all = messages("ucr");
        all[1]["content"] = json!([call]);
        scene.send(&all);
        proposed(&scene)
    };
    let back = (vec![(ReasoningAction::PutBack, DecisionReason::Birth)], vec![]);
    assert_eq!(without_text(json!([thinking(1), text, call])), back);
    let declined = (vec![], vec![DecisionReason::OtherPrefix]);
    assert_eq!(without_text(json!([text, thinking(1), call])), declined);
}

/// Where earlier requests were sent without the reasoning, the cache depends on its absence: it is put back if that
/// costs nothing, or if it is required.
#[test]
fn older_reasoning_is_put_back_if_that_is_free_or_required() {
    let of = |letters, reasoning_rule, late: u64| {
        let mut scene = session(FREE, letters, DROPS);
        (scene.reasoning_rule, scene.now) = (reasoning_rule, 1 + late);
        let (decided, declined) = proposed(&scene);
        (decided.into_iter().map(|(_, why)| why).collect::<Vec<_>>(), declined)
    };
    use DecisionReason::{Birth, ColdCache, Demanded, OpenLoop, TooLate};
    assert_eq!(of("uauau", ReasoningRule::Wanted, 0), (vec![Birth], vec![TooLate]));
    assert_eq!(of("uauau", ReasoningRule::Demanded, 0), (vec![Demanded, Birth], vec![]));
    assert_eq!(of("uauau", ReasoningRule::Wanted, 86_400_000), (vec![ColdCache, Birth], vec![]));
    assert_eq!(of("ucrcr", ReasoningRule::Wanted, 0), (vec![OpenLoop, Birth], vec![]));
    assert_eq!(of("ucrcrau", ReasoningRule::Wanted, 0), (vec![Birth], vec![TooLate, TooLate]));
}

#[test]
fn reasoning_goes_back_to_model_and_upstream_that_made_it() {
    let declined = |change: fn(&mut SessionFixture)| {
        let mut scene = session(FREE, "ucr", DROPS);
        change(&mut scene);
        let (decided, declined) = proposed(&scene);
        assert!(decided.is_empty(), "{decided:?}");
        declined
    };
    use DecisionReason::{OtherModel, OtherUpstream, Unwanted};
    assert_eq!(declined(|scene| scene.name = "claude-opus-4-5"), [OtherModel]);
    assert_eq!(declined(|scene| scene.upstream = "other"), [OtherUpstream]);
    assert_eq!(declined(|scene| scene.reasoning_rule = ReasoningRule::Unwanted), [Unwanted]);
    assert_eq!(declined(|scene| scene.conversation.thinks = Some(false)), [Unwanted]);
}

/// Bound reasoning is valid only after the exact prefix that it was made from; other reasoning is valid anywhere.
#[test]
fn bound_reasoning_is_put_back_only_after_its_exact_prefix() {
    let altered = |name| {
        let mut scene = session(name, "ucr", DROPS);
        let mut all = messages("ucr");
        all[0]["content"] = "Other words.".into();
        scene.send(&all);
        proposed(&scene)
    };
    assert_eq!(altered(BOUND), (vec![], vec![DecisionReason::OtherPrefix]));
    assert_eq!(altered(FREE), (vec![(ReasoningAction::PutBack, DecisionReason::Birth)], vec![]));
}

#[test]
fn policy_can_forbid_putting_back() {
    let of = |letters, reinject, strip_from_context| {
        let mut scene = session(FREE, letters, DROPS);
        scene.policy.reasoning =
            ReasoningPolicy { reinject, strip_from_context, ..ReasoningPolicy::default() };
        proposed(&scene)
    };
    use DecisionReason::Policy;
    let nothing = (vec![], vec![]);
    assert_eq!(of("uau", ReinjectPolicy::Off, StripPolicy::None), nothing);
    assert_eq!(of("uau", ReinjectPolicy::Auto, StripPolicy::All), (vec![], vec![Policy]));
    // In the turn that goes on, too.
    assert_eq!(of("ucr", ReinjectPolicy::Auto, StripPolicy::All), (vec![], vec![Policy]));
    assert_eq!(of("ucr", ReinjectPolicy::Auto, StripPolicy::AllButLast), (vec![], vec![Policy]));
}

/// What was put back once is repeated, whatever policy says by now: later requests and the cache depend on it.
#[test]
fn reasoning_put_back_is_repeated() {
    let stays = |name, letters, strip_from_context| {
        let mut scene = session(name, letters, DROPS);
        let mut known = scene.known();
        let facts = propose(&scene.request(), &known).facts;
        assert!(!facts.is_empty());
        known.add(facts);
        scene.policy.reasoning.strip_from_context = strip_from_context;
        let plan = crate::context::plan::replay(&scene.request(), &known);
        plan.sent.has_put_back()
    };
    for strip in [StripPolicy::None, StripPolicy::All, StripPolicy::AllButLast] {
        for (name, letters) in [(FREE, "uau"), (FREE, "ucr"), (BOUND, "uau")] {
            assert!(stays(name, letters, strip), "{name} {letters} {strip:?}");
        }
    }
}

/// A call beside the conversation decides nothing that its thread would have to repeat. A suspended thread waits until
/// its cache is cold.
#[test]
fn no_reasoning_is_decided_beside_conversation_or_in_suspended_threads() {
    let mut scene = session(FREE, "ucr", DROPS);
    let mut known = scene.known();
    known.is_suspended = true;
    assert_eq!(of(&scene, &known), (vec![], vec![]));
    scene.now += 86_400_000;
    assert_eq!(of(&scene, &known).0.len(), 1);
    for beside in [Purpose::Count, Purpose::Compaction, Purpose::Side, Purpose::WarmUp] {
        scene.conversation.purpose = beside;
        assert_eq!(of(&scene, &known), (vec![], vec![]), "{beside:?}");
    }
}

#[test]
fn policy_strips_only_reasoning_that_provider_does_not_need() {
    let of = |name, letters, reasoning_rule, strip_from_context| {
        let mut scene = session(name, letters, SENDS);
        scene.policy.reasoning.strip_from_context = strip_from_context;
        scene.reasoning_rule = reasoning_rule;
        let (decided, declined) = proposed(&scene);
        let out = |(does, why)| (does, why) == (ReasoningAction::Remove, DecisionReason::Stripped);
        assert!(decided.iter().cloned().all(out), "{decided:?}");
        (decided.len(), declined)
    };
    use DecisionReason::{Bound, Demanded, OpenLoop};
    use ReasoningRule::Wanted;
    assert_eq!(of(FREE, "uauau", Wanted, StripPolicy::All), (2, vec![]));
    assert_eq!(of(FREE, "uauau", Wanted, StripPolicy::AllButLast), (1, vec![]));
    assert_eq!(of(FREE, "uauau", Wanted, StripPolicy::None), (0, vec![]));
    assert_eq!(of(FREE, "uaucr", Wanted, StripPolicy::All), (1, vec![OpenLoop]));
    assert_eq!(
        of(FREE, "uauau", ReasoningRule::Demanded, StripPolicy::All),
        (0, vec![Demanded; 2])
    );
    assert_eq!(of(BOUND, "uauau", Wanted, StripPolicy::All), (0, vec![Bound; 2]));
    let mut held = session(FREE, "uau", SENDS);
    held.policy.reasoning.strip_from_context = StripPolicy::All;
    held.conversation.held = Some(crate::dialect::HeldHistory::After("r".into()));
    assert_eq!(proposed(&held), (vec![], vec![DecisionReason::Held]));
}

/// The same, predicted for the next request.
#[test]
fn reasoning_stripped_or_put_back_in_next_request_is_predicted() {
    use NextRequest::{InLoop, NewTurn};
    let may_go = |name, reasoning_rule, next| {
        let mut scene = SessionFixture::new(name, &messages("u"));
        scene.reasoning_rule = reasoning_rule;
        may_go_next(&scene.request(), next)
    };
    assert!(may_go(FREE, ReasoningRule::Wanted, NewTurn));
    assert!(!may_go(FREE, ReasoningRule::Wanted, InLoop));
    assert!(!may_go(FREE, ReasoningRule::Demanded, NewTurn));
    assert!(!may_go(BOUND, ReasoningRule::Wanted, NewTurn));
    let back = |reinject, reasoning_rule, thinks, strip_from_context| {
        let mut scene = SessionFixture::new(FREE, &messages("u"));
        (scene.reasoning_rule, scene.conversation.thinks) = (reasoning_rule, thinks);
        let reasoning = &mut scene.policy.reasoning;
        (reasoning.reinject, reasoning.strip_from_context) = (reinject, strip_from_context);
        is_put_back_next(&scene.request())
    };
    use ReasoningRule::{Demanded, Unwanted, Wanted};
    use StripPolicy::{All, None as Nothing};
    let auto = ReinjectPolicy::Auto;
    assert!(back(auto, Wanted, None, Nothing));
    assert!(back(auto, Wanted, Some(true), Nothing));
    assert!(back(auto, Demanded, None, All), "demanded whatever policy leaves out");
    assert!(!back(ReinjectPolicy::Off, Wanted, None, Nothing));
    assert!(!back(auto, Unwanted, None, Nothing));
    assert!(!back(auto, Wanted, Some(false), Nothing));
    assert!(!back(auto, Wanted, None, All));
}

/// A session whose first two messages are replaced by a summary.
fn summarised(name: &'static str, sends: fn(usize) -> bool) -> SessionFixture {
    let mut scene = session(name, "uauau", sends);
    let compact = scene.summary(2);
    scene.ledger.add(Fact::Compact(Box::new(compact)));
    scene
}

/// The model does not read it, and may demand that there is some.
#[test]
fn reasoning_of_another_model_is_not_void() {
    let mut scene = summarised(FREE, SENDS);
    scene.fall_back(BOUND);
    assert_eq!(proposed(&scene).0, []);
}

/// The provider would refuse it: it was made after the messages that the summary replaces.
#[test]
fn bound_reasoning_after_summary_is_removed_if_client_sends_it() {
    let out = (ReasoningAction::Remove, DecisionReason::Bound);
    let scene = summarised(BOUND, SENDS);
    assert_eq!(scene.known().kept_from(), 2);
    assert_eq!(proposed(&scene).0, std::slice::from_ref(&out), "that of the message that stays");
    let mut known = scene.known();
    known.add(propose(&scene.request(), &known).facts);
    assert_eq!(of(&scene, &known).0, [], "it is decided once");
    assert_eq!(proposed(&summarised(FREE, SENDS)).0, [], "it is bound to nothing");
    assert!(!proposed(&summarised(BOUND, DROPS)).0.contains(&out), "its client does not send it");
    assert_eq!(proposed(&session(BOUND, "uauau", SENDS)).0, [], "there is no summary");
    // In a suspended thread, too: otherwise the request would be refused.
    let mut known = scene.known();
    known.is_suspended = true;
    assert_eq!(of(&scene, &known).0, [out]);
    let made_behind = scene.known().replies[0].reasoning.prefix;
    let mut known = scene.known();
    let sent = known.sent().before(known.replies[0].index);
    assert_ne!(made_behind, sent);
    let again =
        ReasoningRecord { prefix: sent, ..ReasoningRecord::clone(&known.replies[0].reasoning) };
    known.replies[0].reasoning = Arc::new(again);
    assert_eq!(of(&scene, &known).0, [], "it was made behind the summary");
}

/// It is removed in the same request that decides it, even if the provider demands the reasoning of other replies.
#[test]
fn reasoning_is_removed_in_request_that_decides_it() {
    for reasoning_rule in [ReasoningRule::Wanted, ReasoningRule::Demanded] {
        let mut scene = session(BOUND, "uauauau", SENDS);
        let compact = scene.summary(2);
        scene.ledger.add(Fact::Compact(Box::new(compact)));
        scene.reasoning_rule = reasoning_rule;
        let mut known = scene.known();
        assert!(known.was_sent(&known.replies[0]), "with the request before");
        known.add(propose(&scene.request(), &known).facts);
        let steps = replay(&scene.request(), &known).steps;
        let gone = steps.iter().filter(|step| step.change == Change::Removed);
        let gone: Vec<usize> = gone.map(|step| step.at.message).collect();
        assert_eq!(gone, [3, 5], "{reasoning_rule:?}");
    }
}

/// Cuts invalidate reasoning that the client itself sends. Reasoning before the cuts is put back as before, because no
/// valid reasoning follows it any more.
#[test]
fn reasoning_before_removed_reasoning_is_still_put_back() {
    let scene = session(BOUND, "uauauau", |number| number == 5);
    let (request, mut known) = (scene.request(), scene.known());
    let first = known.replies[0].reasoning.after.0;
    let own = request.part(PartIndex::new(5, 0)).and_then(|part| part.reasoning_key).unwrap();
    known.add(vec![
        decision(&request, first, ReasoningAction::PutBack, DecisionReason::Birth),
        take_out(&request, own, DecisionReason::Bound),
    ]);
    let steps = replay(&request, &known).steps.into_iter();
    let steps: Vec<_> = steps.map(|step| (step.change, step.at.message)).collect();
    assert_eq!(steps, [(Change::PutBack, 1), (Change::Removed, 5)]);
}

/// A reply was made while the reasoning before it was left out. Now the client sends that reasoning, so the reply's own
/// can no longer be put back after it.
#[test]
fn reasoning_is_not_put_back_after_reasoning_that_it_was_made_without() {
    let mut scene = session(BOUND, "uauauau", DROPS);
    let all = messages("uauauau");
    let thinks = |numbers: &[usize]| -> Value {
        let message = |(number, one): (usize, &Value)| {
            let mut one = one.clone();
            if numbers.contains(&number) {
                one["content"] = thought(number, &one);
            }
            one
        };
        all.as_array().unwrap().iter().enumerate().map(message).collect()
    };
    let back = |scene: &SessionFixture| proposed(scene).0.len();
    scene.send(&thinks(&[1]));
    assert_eq!(back(&scene), 0, "behind the first");
    scene.send(&thinks(&[]));
    assert_eq!(back(&scene), 1, "without it");
}

/// A request was repeated, and the client sends the reasoning of the second reply.
#[test]
fn reasoning_behind_summary_is_judged_by_reply_that_made_it() {
    let scene = summarised(BOUND, SENDS);
    let mut known = scene.known();
    let first = known.replies[0].reasoning.clone();
    let sent = known.sent().before(known.replies[0].index);
    let second = ReasoningRecord { prefix: sent, ..ReasoningRecord::clone(&first) };
    known.replies[0].is_replaced = true;
    for (made, goes) in
        [(Some(second), false), (Some(ReasoningRecord::clone(&first)), true), (None, true)]
    {
        let at = PartIndex::new(3, 0);
        known.foreign = vec![ForeignReasoning { at, made: made.map(Arc::new) }];
        assert_eq!(of(&scene, &known).0.len(), usize::from(goes));
    }
}

/// What the host and the model's name say about reasoning (`docs/protocols.md` 4.2).
#[test]
fn reasoning_rule_depends_on_dialect_host_and_model_name() {
    use Dialect::{Anthropic, Gemini, OpenaiChat, OpenaiResponses};
    use ReasoningRule::{Demanded, Unwanted, Wanted};
    for (dialect, host, model, does) in [
        (Anthropic, "api.anthropic.com", "claude-opus-4-6", Wanted),
        (Anthropic, "api.deepseek.com", "any", Demanded),
        (Anthropic, "api.kimi.com", "any", Demanded),
        (Anthropic, "h", "vendor/deepseek-v4", Demanded),
        (Anthropic, "h", "DeepSeek-R1", Wanted),
        (OpenaiResponses, "h", "deepseek-v4", Wanted),
        (Gemini, "h", "gemini-2.5-pro", Wanted),
        (Gemini, "h", "gemini-3-pro", Demanded),
        (Gemini, "h", "models/gemini-10", Demanded),
        (Gemini, "h", "gemini-pro", Wanted),
        (Gemini, "h", "gemma", Wanted),
        (OpenaiChat, "api.openai.com", "deepseek-v4", Unwanted),
        (OpenaiChat, "eu.api.openai.com", "deepseek-v4", Unwanted),
        (OpenaiChat, "notapi.openai.com", "deepseek-v4", Demanded),
        (OpenaiChat, "api.x.ai", "kimi-k2", Unwanted),
        (OpenaiChat, "api.moonshot.ai", "any", Demanded),
        (OpenaiChat, "api.deepseek.com", "deepseek-r1", Unwanted),
        (OpenaiChat, "api.z.ai", "any", Wanted),
        (OpenaiChat, "api.xyz.ai", "any", Unwanted),
        (OpenaiChat, "h", "glm-5", Wanted),
        (OpenaiChat, "open.bigmodel.cn", "any", Wanted),
        (OpenaiChat, "dashscope.aliyuncs.com", "any", Wanted),
        (OpenaiChat, "h", "qwq-32b", Wanted),
        (OpenaiChat, "api.minimax.io", "any", Wanted),
        (OpenaiChat, "openrouter.ai", "any", Wanted),
        (OpenaiChat, "ai-gateway.vercel.sh", "any", Wanted),
        (OpenaiChat, "api.mistral.ai", "any", Wanted),
        (OpenaiChat, "h", "google/gemini-2.5", Wanted),
        (OpenaiChat, "h", "llama-5", Unwanted),
    ] {
        assert_eq!(rule(dialect, host, model), does, "{dialect:?} {host} {model}");
    }
}

/// A part of a reply: its text, its signature, and its key if it has one.
fn piece(kind: PartKind, text: &str, signature: Option<&str>, key: Option<u128>) -> ReplyPart {
    let (own_signature, key) = (signature.map(Into::into), key.map(PartKey));
    ReplyPart { text: text.into(), signature: own_signature, key, ..ReplyPart::new(kind) }
}

fn raw(signature: Option<&str>) -> ReplyPart {
    ReplyPart { raw: Some("{}".into()), ..piece(PartKind::Reasoning, "Hm.", signature, None) }
}

fn recorded(dialect: Dialect, parts: Vec<ReplyPart>) -> Option<ReasoningRecord> {
    let turn = Turn { ended: 3, ..Turn::empty(dialect, Family::Other) };
    record(&parts, Chain(1), &turn, ForwardedPrefix { chain: Chain(2), thought: None })
}

/// Blocks are kept with their place among the keyed parts and the hosted tools that ran between these.
#[test]
fn blocks_are_kept_with_their_places() {
    let text = |key| piece(PartKind::Text, "Aye.", None, Some(key));
    let ran = || piece(PartKind::Opaque, "", None, None);
    let parts = vec![raw(None), text(1), ran(), raw(None), ran(), raw(None), text(2), raw(None)];
    let kept = recorded(Dialect::OpenaiResponses, parts).unwrap();
    let places = kept.blocks.iter().map(|it| (it.before, it.hosted, it.leads, it.partial));
    assert_eq!(
        places.collect::<Vec<_>>(),
        [(0, 0, false, false), (1, 1, true, false), (1, 2, false, false), (2, 0, false, false)]
    );
    assert_eq!(kept.parts, vec![PartKey(1), PartKey(2)]);
    assert!(kept.signatures.is_empty());
    assert_eq!(kept.after, Chain(1));
    assert_eq!(kept.prefix, Chain(2));
    assert_eq!(kept.at, 3);
    assert!(recorded(Dialect::Anthropic, vec![text(1)]).is_none(), "there is none");
}

/// A block that broke off is kept if it has a signature, in the dialect that wants all of a reply's reasoning or none.
#[test]
fn incomplete_reasoning_block_is_kept_if_it_has_signature() {
    let cut = |signature| vec![piece(PartKind::Reasoning, "Hm", Some(signature), None)];
    let kept = recorded(Dialect::Anthropic, cut("c2ln")).unwrap();
    let [block] = &kept.blocks[..] else { panic!("{kept:?}") };
    assert!(block.partial, "{block:?}");
    assert!(block.raw.contains(r#""signature":"c2ln""#), "{block:?}");
    assert!(recorded(Dialect::Anthropic, cut("")).is_none(), "none came of it");
    assert!(recorded(Dialect::OpenaiResponses, cut("c2ln")).is_none());
    let words = vec![piece(PartKind::Opaque, "", Some("c2ln"), None)];
    assert!(recorded(Dialect::Anthropic, words).is_none());
}

/// Gemini's thoughts need not go back, but its signatures must: each on its part, and in a text on its piece.
#[test]
fn geminis_signatures_are_kept_with_their_parts() {
    let of = |parts| recorded(Dialect::Gemini, parts);
    assert!(of(vec![raw(None)]).is_none());
    assert_eq!(of(vec![raw(Some("a"))]).unwrap().blocks.len(), 1);
    let call = |signature, key| piece(PartKind::ToolCall, "{}", signature, Some(key));
    let text = |text, signature, key| piece(PartKind::Text, text, signature, key);
    let signatures = |parts| {
        let kept = of(parts).unwrap();
        let signatures = kept.signatures.iter().map(|it| (it.part, it.value.to_string(), it.piece));
        signatures.collect::<Vec<_>>()
    };
    let all = vec![
        text("One ", Some("a"), None),
        text("two ", None, None),
        text("three.", Some("b"), Some(1)),
        call(Some("c"), 2),
        call(None, 3),
        text("Done.", Some("d"), Some(4)),
    ];
    assert_eq!(
        signatures(all),
        [
            (0, "a".into(), Some((0, 4))),
            (0, "b".into(), Some((8, 14))),
            (1, "c".into(), None),
            (3, "d".to_owned(), None)
        ]
    );
}

/// Gemini demands a signature on the first call of each step of the current turn.
#[test]
fn unsigned_gemini_call_gets_stand_in() {
    let call = |n: usize, signature: Option<&str>| {
        let mut part = json!({"functionCall": {"name": "ls", "args": {"n": n}}});
        if let Some(signature) = signature {
            part["thoughtSignature"] = signature.into();
        }
        part
    };
    let result = json!({"functionResponse": {"name": "ls", "response": {"output": "a"}}});
    let content = |role, parts: Value| json!({"role": role, "parts": parts});
    let step = |calls: Value| [content("model", calls), content("user", json!([result]))];
    let contents: Vec<Value> = [content("user", json!([{"text": "Look."}]))]
        .into_iter()
        .chain(step(json!([call(1, None)])))
        .chain([
            content("model", json!([{"text": "Aye."}])),
            content("user", json!([{"text": "And?"}])),
        ])
        .chain(step(json!([call(2, None), call(3, None)])))
        .chain(step(json!([call(4, Some("c2ln"))])))
        .collect();
    let path = "/v1beta/models/gemini-3-pro:generateContent";
    let body = json!({"contents": contents});
    let mut scene = SessionFixture::read(Dialect::Gemini, path, "gemini-3-pro", &body);
    scene.reasoning_rule = ReasoningRule::Demanded;
    let known = scene.known();
    let facts = propose(&scene.request(), &known).facts;
    let [Fact::ReasoningDecision(decision)] = &facts[..] else { panic!("{facts:?}") };
    assert_eq!(Some(decision.about.0), known.about(PartIndex::new(5, 0)));
    assert_eq!(decision.does, ReasoningAction::StandIn(SKIP.into()));
    scene.reasoning_rule = ReasoningRule::Wanted;
    assert_eq!(proposed(&scene).0, []);
}

/// Chat Completions look-alikes demand a reasoning field on each message with calls. Known reasoning is put back; a
/// stand-in is used if none is known.
#[test]
fn message_with_calls_gets_stand_in_where_nothing_is_known() {
    let call = |id: &str| json!([{"id": id, "type": "function", "function": {"name": "ls", "arguments": "{}"}}]);
    let body = json!({"messages": [{"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": call("call_one")},
        {"role": "tool", "tool_call_id": "call_one", "content": "a"},
        {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": call("call_two")},
        {"role": "tool", "tool_call_id": "call_two", "content": "b"},
        {"role": "assistant", "content": "Aye."},
        {"role": "user", "content": "Go on."}]});
    let of = |reasoning_rule, thinks| {
        let path = "/v1/chat/completions";
        let mut scene = SessionFixture::read(Dialect::OpenaiChat, path, "deepseek-v4", &body);
        (scene.reasoning_rule, scene.conversation.thinks) = (reasoning_rule, thinks);
        let known = scene.known();
        let facts = propose(&scene.request(), &known).facts;
        let about = |fact: &Fact| match fact {
            Fact::ReasoningDecision(decision) => {
                (0..7).find(|at| known.about(PartIndex::new(*at, 0)) == Some(decision.about.0))
            }
            other => panic!("{other:?}"),
        };
        facts.iter().map(about).collect::<Vec<_>>()
    };
    assert_eq!(of(ReasoningRule::Demanded, None), [Some(1)]);
    assert_eq!(of(ReasoningRule::Demanded, Some(true)), [Some(1)]);
    assert_eq!(of(ReasoningRule::Demanded, Some(false)), []);
    assert_eq!(of(ReasoningRule::Wanted, None), []);
    // Anthropic's dialect has blocks for reasoning, so no field is added.
    let mut claude = session(FREE, "ucr", SENDS);
    claude.reasoning_rule = ReasoningRule::Demanded;
    assert_eq!(proposed(&claude).0, []);
}

/// Outside an open loop, Chat's reasoning may be removed; within one, only where it is not wanted.
#[test]
fn chat_reasoning_may_be_removed_in_open_loop_if_not_wanted() {
    use NextRequest::{InLoop, NewTurn};
    let of = |reasoning_rule, next| {
        let body = json!({"messages": [{"role": "user", "content": "Look."}]});
        let path = "/v1/chat/completions";
        let mut scene = SessionFixture::read(Dialect::OpenaiChat, path, "glm-5", &body);
        scene.reasoning_rule = reasoning_rule;
        // In this dialect, a model that binds reasoning elsewhere does not.
        scene.model.binding = crate::dialect::models::ReasoningBinding::Prefix;
        may_go_next(&scene.request(), next)
    };
    assert!(of(ReasoningRule::Wanted, NewTurn));
    assert!(!of(ReasoningRule::Wanted, InLoop));
    assert!(of(ReasoningRule::Unwanted, NewTurn));
    assert!(of(ReasoningRule::Unwanted, InLoop));
}
