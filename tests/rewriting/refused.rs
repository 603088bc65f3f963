//! A rewrite that the provider refuses costs one round trip, once.

use plimsoll::context::ledger::Ledger;
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::store::Scope;
use plimsoll::telemetry::{FailOpen, RefusalOutcome};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request};
use crate::pruned::{CLEARED, eager, history};
use crate::support::http1::Call;

const MODEL: &str = "claude-sonnet-4-5";
const REFUSED: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block."}}"#;
pub const BOUND: &str = r#"{"type":"error","error":{"message":"messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\"."}}"#;

fn json_of(call: &Call) -> Value {
    serde_json::from_str(call.message.text()).unwrap()
}

/// A session in which results were cut; a reply for the next request; and how many were cut.
pub async fn cut_before() -> (Play, Value, usize) {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let first = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    let before = cleared(&first.sent);
    (play, reply, before)
}

/// How many results were cut.
fn cleared(sent: &Value) -> usize {
    let messages = sent["messages"].as_array().unwrap().iter();
    messages.filter(|it| it["content"][0]["content"] == CLEARED).count()
}

#[tokio::test]
async fn refused_rewrite_sends_original_and_suspends_branch() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let request = anthropic_request(MODEL, &history(6));
    let reply =
        anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}])).to_string();
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert_ne!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), request.to_string());
    call.answer("200 OK", &reply).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.refused, Some(RefusalCause::Signature));
    assert!(exchange.done.resent == Some(RefusalCause::Signature));
    assert!(!exchange.done.is_sent());
    // The recorded estimate is that of the accepted request, not of the refused one.
    let (tenant, session) = (exchange.tenant.clone().unwrap(), exchange.session.clone().unwrap());
    let turn = |ledger: &Ledger| ledger.turn(&exchange.id).unwrap().estimate.clone();
    let kept = play.server.ledgers.look(&Scope { tenant, session }, turn).await.unwrap();
    assert_eq!(exchange.estimate, kept);
    assert!(exchange.fail_open.contains(&FailOpen::RewriteRefused));

    // From then on the thread is not rewritten, after a restart too.
    let mut longer = history(6);
    longer.push(json!({"role": "assistant", "content": [{"type": "text", "text": "Go on."}]}));
    longer.push(json!({"role": "user", "content": "And now?"}));
    let longer = anthropic_request(MODEL, &longer);
    let reply = serde_json::from_str(&reply).unwrap();
    let scene = play.exchange(&longer, &reply).await;
    assert_eq!(scene.bytes, longer.to_string());
    assert_eq!(scene.steps().first().map(|step| step.2), Some(DecisionReason::Suspended));
    play.restart().await;
    assert_eq!(play.exchange(&longer, &reply).await.bytes, longer.to_string());
}

#[tokio::test]
async fn if_original_is_refused_too_no_rewrite_is_blamed() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let request = anthropic_request(MODEL, &history(6));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    call.answer("400 Bad Request", REFUSED).await;
    let response = client.response().await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.text(), REFUSED);
    assert_eq!(play.server.next_exchange().await.refused, None);
}

/// Reasoning may depend on what we changed. The client's reasoning is removed only if the original is refused as well;
/// after that no later turn is refused for it.
#[tokio::test]
async fn reasoning_of_client_is_removed_only_if_nothing_else_helps() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let thought = json!({"type": "thinking", "thinking": "So far.", "signature": "bm90IG91cnM="});
    let mut stale = history(6);
    let turn = |content: Value| {
        [
            json!({"role": "assistant", "content": content}),
            json!({"role": "user", "content": "And now?"}),
        ]
    };
    stale.extend(turn(json!([thought, {"type": "text", "text": "So."}])));
    let place = format!("messages.{}.content.0", stale.len() - 2);
    let refused = REFUSED.replace("messages.1.content.0", &place);
    let request = anthropic_request(MODEL, &stale);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let planned = json_of(&call);
    assert!(cleared(&planned) > 0, "{planned}");
    assert!(planned.to_string().contains("thinking"), "{planned}");
    call.answer("400 Bad Request", &refused).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", &refused).await;
    let mut call = call.wire.request().await;
    let healed = json_of(&call);
    assert_eq!(cleared(&healed), cleared(&planned));
    assert!(!healed.to_string().contains("bm90IG91cnM="), "{healed}");
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    call.answer("200 OK", &reply.to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.refusal.as_ref().unwrap().outcome, RefusalOutcome::Healed);

    stale.extend(turn(json!([{"type": "text", "text": "Go on."}])));
    play.restart().await;
    let next = play.exchange(&anthropic_request(MODEL, &stale), &reply).await;
    let (before, now) = (healed["messages"].as_array().unwrap(), &next.sent["messages"]);
    assert_eq!(before[..], now.as_array().unwrap()[..before.len()]);
}

/// What a refusal says about a model is learned even if the original is refused as well, because the client's own
/// reasoning may depend on earlier cuts.
#[tokio::test]
async fn prefix_binding_is_learned_even_if_original_is_refused() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let mut client = play.send_request(&anthropic_request(MODEL, &history(6))).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", BOUND).await;
    let mut call = call.wire.request().await;
    call.answer("400 Bad Request", BOUND).await;
    assert_eq!(client.response().await.status(), 400);
    drop(call);
    assert_eq!(play.server.next_exchange().await.refused, None);

    // In another session nothing is cut before reasoning.
    play.session = "other";
    let mut thoughtful = history(6);
    let thought = json!({"type": "thinking", "thinking": "So far.", "signature": "c2ln"});
    thoughtful
        .push(json!({"role": "assistant", "content": [thought, {"type": "text", "text": "So."}]}));
    thoughtful.push(json!({"role": "user", "content": "And now?"}));
    let scene = play
        .exchange(&anthropic_request(MODEL, &thoughtful), &anthropic_reply("m1", MODEL, json!([])))
        .await;
    assert_eq!(scene.steps(), [(Change::Cut, Decision::Declined, DecisionReason::Bound)]);
}

/// A refusal of a call beside the conversation does not affect the conversation.
#[tokio::test]
async fn refusal_of_side_call_does_not_affect_conversation() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let first = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    assert!(first.exchange.done.is_sent());
    let grown = |text: &str| {
        let mut grown = history(6);
        grown.push(json!({"role": "assistant", "content": [{"type": "text", "text": "Go on."}]}));
        grown.push(json!({"role": "user", "content": text}));
        anthropic_request(MODEL, &grown)
    };
    let mut beside = grown("What may I ask next?");
    beside["system"] = json!("You suggest.");
    let mut client = play.send_request(&beside).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), beside.to_string());
    call.answer("200 OK", &reply.to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    play.server.next_exchange().await;
    // What was cut stays cut, whatever else is cut later.
    let results = first.sent["messages"].as_array().unwrap().clone();
    let cut = results.iter().rposition(|it| it["content"][0]["content"] == CLEARED).unwrap();
    for _ in 0..2 {
        let next = play.exchange(&grown("And now?"), &reply).await;
        assert_eq!(next.sent["messages"].as_array().unwrap()[..=cut], results[..=cut]);
        play.restart().await;
    }
    // Requests that continue the refused call are not rewritten.
    let mut on = beside.clone();
    let messages = on["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": "Go on."}]}));
    messages.push(json!({"role": "user", "content": "More."}));
    assert_eq!(play.exchange(&on, &reply).await.bytes, on.to_string());
}

/// The original may be refused because reasoning depends on earlier decisions: those are sent again, without the new
/// ones.
#[tokio::test]
async fn earlier_decisions_are_sent_if_original_is_refused_too() {
    for (refusal, cause, rests) in
        [(REFUSED, RefusalCause::Signature, true), (BOUND, RefusalCause::Bound, false)]
    {
        let (mut play, reply, before) = cut_before().await;
        let longer = anthropic_request(MODEL, &history(12));
        let mut client = play.send_request(&longer).await;
        let mut call = play.provider.call().await;
        call.answer("400 Bad Request", refusal).await;
        let mut call = call.wire.request().await;
        assert_eq!(call.message.text(), longer.to_string());
        call.answer("400 Bad Request", BOUND).await;
        let mut call = call.wire.request().await;
        let sent = json_of(&call);
        assert_eq!(cleared(&sent), before);
        call.answer("200 OK", &reply.to_string()).await;
        assert_eq!(client.response().await.status(), 200);
        drop(call);
        let exchange = play.server.next_exchange().await;
        assert_eq!(exchange.refused, Some(cause));
        assert_eq!(exchange.done.revoked, Some(cause));
        assert!(exchange.done.is_sent());
        assert!(exchange.done.resent.is_none());
        assert!(!exchange.suspends_branch());
        let mut grown = history(12);
        let content = json!([{"type": "text", "text": "Go on."}]);
        grown.push(json!({"role": "assistant", "content": content}));
        grown.push(json!({"role": "user", "content": "And now?"}));
        let scene = play.exchange(&anthropic_request(MODEL, &grown), &reply).await;
        // If nothing was learned that would avoid another refusal, nothing more is tried.
        let is_left_alone =
            scene.steps() == [(Change::Cut, Decision::Declined, DecisionReason::Suspended)];
        assert_eq!(is_left_alone, rests, "{:?}", scene.steps());
        // What was sent is sent the same way again, after a restart too.
        let now = cleared(&scene.sent);
        assert_eq!(now == before, rests);
        for _ in 0..2 {
            let scene = play.exchange(&anthropic_request(MODEL, &grown), &reply).await;
            assert_eq!(cleared(&scene.sent), now, "{:?}", scene.steps());
            play.restart().await;
        }
    }
}

/// If a refusal taught something, the next request decides again. After a second refusal, there is no third attempt.
#[tokio::test]
async fn revoked_decision_returns_once() {
    let (mut play, reply, before) = cut_before().await;
    let longer = anthropic_request(MODEL, &history(12));
    for _ in 0..2 {
        let mut client = play.send_request(&longer).await;
        let mut call = play.provider.call().await;
        assert!(cleared(&json_of(&call)) > before);
        for _ in 0..2 {
            call.answer("400 Bad Request", BOUND).await;
            call = call.wire.request().await;
        }
        assert_eq!(cleared(&json_of(&call)), before);
        call.answer("200 OK", &reply.to_string()).await;
        assert_eq!(client.response().await.status(), 200);
        drop(call);
        play.server.next_exchange().await;
        play.restart().await;
    }
    assert_eq!(cleared(&play.exchange(&longer, &reply).await.sent), before);
}

/// The original is refused for an earlier change, and without the new cuts the request does not fit: the client gets
/// the overflow error, because it can make room. An error of its own it gets first.
#[tokio::test]
async fn client_gets_the_useful_refusal() {
    const UNFIT: &str = r#"{"error":{"message":"prompt is too long: 4100 tokens > 4000 maximum"}}"#;
    const EMPTY: &str = r#"{"error":{"message":"text content blocks must be non-empty"}}"#;
    for (theirs, heard) in [(BOUND, UNFIT), (EMPTY, EMPTY)] {
        let (play, ..) = cut_before().await;
        let mut client = play.send_request(&anthropic_request(MODEL, &history(12))).await;
        let mut call = play.provider.call().await;
        for refusal in [BOUND, theirs] {
            call.answer("400 Bad Request", refusal).await;
            call = call.wire.request().await;
        }
        call.answer("400 Bad Request", UNFIT).await;
        let response = client.response().await;
        assert_eq!(response.status(), 400);
        assert_eq!(response.text(), heard);
    }
}

/// An error of the client's own revokes no decision: once the client has fixed it, everything continues.
#[tokio::test]
async fn clients_own_error_revokes_nothing() {
    const WRONG: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"temperature must be below 2"}}"#;
    let (mut play, reply, before) = cut_before().await;
    let longer = anthropic_request(MODEL, &history(12));
    let mut client = play.send_request(&longer).await;
    let mut call = play.provider.call().await;
    for _ in 0..2 {
        call.answer("400 Bad Request", WRONG).await;
        call = call.wire.request().await;
    }
    assert_eq!(cleared(&json_of(&call)), before);
    call.answer("400 Bad Request", WRONG).await;
    assert_eq!(client.response().await.status(), 400);
    drop(call);
    assert_eq!(play.server.next_exchange().await.refused, None);
    assert!(cleared(&play.exchange(&longer, &reply).await.sent) > before);
}

/// If the original meets a rate limit, it is not known what caused the first refusal.
#[tokio::test]
async fn rate_limit_suspends_no_branch() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let request = anthropic_request(MODEL, &history(6));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    call.answer("429 Too Many Requests", r#"{"type":"error"}"#).await;
    assert_eq!(client.response().await.status(), 429);
    drop(call);
    let exchange = play.server.next_exchange().await;
    assert!(exchange.refused.is_none());
    assert!(!exchange.suspends_branch());
    // The refused cuts are not tried again; later ones are.
    assert_eq!(cleared(&play.exchange(&request, &reply).await.sent), 0);
    assert!(
        cleared(&play.exchange(&anthropic_request(MODEL, &history(12)), &reply).await.sent) > 0
    );
}

/// If the original is refused as well, reasoning may depend on earlier cuts: these stay, and only the decisions of the
/// refused request are revoked. A session must not answer 400 for ever.
#[tokio::test]
async fn if_both_forms_are_refused_only_new_decisions_are_revoked() {
    let (mut play, reply, before) = cut_before().await;
    let longer = anthropic_request(MODEL, &history(12));
    let mut client = play.send_request(&longer).await;
    let mut call = play.provider.call().await;
    assert!(cleared(&json_of(&call)) > before);
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), longer.to_string());
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(cleared(&json_of(&call)), before);
    call.answer("400 Bad Request", REFUSED).await;
    assert_eq!(client.response().await.status(), 400);
    drop(call);
    play.server.next_exchange().await;

    for _ in 0..2 {
        let scene = play.exchange(&longer, &reply).await;
        assert_eq!(cleared(&scene.sent), before, "{:?}", scene.steps());
        play.restart().await;
    }
    // Later results can be cut.
    assert!(
        cleared(&play.exchange(&anthropic_request(MODEL, &history(18)), &reply).await.sent)
            > before
    );
}
