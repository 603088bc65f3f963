//! A queued message is sent in the next request of the session's main line and stays there.

use plimsoll::config::Mode;
use plimsoll::config::presets::Preset;
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::Policy;
use plimsoll::context::{Fact, InjectedMessage, InjectionState, QueuedMessage};
use plimsoll::store::Scope;
use plimsoll::telemetry::{FailOpen, MessageStep};
use serde_json::{Value, json};

use crate::play::{Play, Scene, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};

const MODEL: &str = "claude-sonnet-4-5";

fn reply(text: &str) -> Value {
    anthropic_reply("m1", MODEL, json!([{"type": "text", "text": text}]))
}

/// Plays the first exchange of a session, and returns its scope.
async fn begun(play: &mut Play) -> Scope {
    let scene = play.exchange(&anthropic_request(MODEL, &history(1)), &reply("Go on.")).await;
    let (tenant, session) = (scene.exchange.tenant.clone(), scene.exchange.session.clone());
    Scope { tenant: tenant.unwrap(), session: session.unwrap() }
}

async fn queue(play: &Play, scope: &Scope, number: u32, text: &str) {
    let id = format!("id-{number}").into();
    let queued = QueuedMessage { id, number, at: 1, text: text.into(), repeats: None };
    let kept = play
        .server
        .ledgers
        .store_fact_if_absent(&play.server.ledgers.handle(scope), Fact::Queued(Box::new(queued)))
        .await;
    assert!(kept.is_ok());
}

async fn waiting(play: &Play, scope: &Scope) -> usize {
    play.server.ledgers.look(scope, |ledger| ledger.waiting().len()).await.unwrap()
}

fn is_injected(scene: &Scene) -> bool {
    scene.bytes.contains("Mind the tide.")
}

#[tokio::test]
async fn queued_messages_are_sent_at_end_and_stay_there() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 2, "And the \"wind\".").await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    let mut messages = play.server.telemetry.messages();

    let scene = play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Aye.")).await;
    let last = scene.sent["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["content"][0]["type"], "tool_result");
    let texts = [&last["content"][1]["text"], &last["content"][2]["text"]];
    assert_eq!(texts, ["Mind the tide.", "And the \"wind\"."], "in order, after the result");
    assert_eq!(scene.steps(), [(Change::Injected, Decision::New, DecisionReason::Queued); 2]);
    assert_eq!(waiting(&play, &scope).await, 0);
    let dequeued = messages.recv().await.unwrap();
    assert_eq!(dequeued.step, MessageStep::Dequeued);
    assert_eq!(dequeued.exchange, Some(scene.exchange.id.clone()));

    // Later requests, after a restart too, begin with the same bytes.
    let mut longer = history(2);
    longer.push(message("assistant", json!([{"type": "text", "text": "Aye."}])));
    longer.push(message("user", json!("And now?")));
    let prefix = &scene.bytes[..scene.bytes.rfind("]}").unwrap()];
    for restarts in [false, true] {
        if restarts {
            play.restart().await;
        }
        let later = play.exchange(&anthropic_request(MODEL, &longer), &reply("On we go.")).await;
        assert_eq!(&later.bytes[..prefix.len()], prefix);
        assert_eq!(later.exchange.done.made.injected, 2);
        assert_eq!(later.exchange.done.new.injected, 0);
        let (estimate, parts) =
            (later.exchange.estimate.as_ref().unwrap(), later.bytes.len() as u64);
        assert!(estimate.tokens > 0, "{estimate:?}");
        assert!(estimate.tokens < parts, "{estimate:?}");
    }
    // A retry of the request with the messages has them, a rewind to before it does not, a fork does.
    assert!(is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Aye.")).await
    ));
    assert!(!is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(1)), &reply("Back.")).await
    ));
    let mut fork = history(2);
    fork.push(message("assistant", json!([{"type": "text", "text": "Aye."}])));
    fork.push(message("user", json!("Rather the other way.")));
    assert!(is_injected(
        &play.exchange(&anthropic_request(MODEL, &fork), &reply("So be it.")).await
    ));
    // The client changed an earlier message; the place is found by its neighbours.
    fork[0]["content"] = json!("Read them all. (Today is Sunday.)");
    assert!(is_injected(
        &play.exchange(&anthropic_request(MODEL, &fork), &reply("So be it.")).await
    ));
}

#[tokio::test]
async fn dexto_takes_one_queued_message_a_step() {
    let mut play = crate::presets::play(Preset::Dexto, &[]).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    queue(&play, &scope, 2, "And the wind.").await;
    let first = play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Aye.")).await;
    assert!(first.bytes.contains("Mind the tide."), "{}", first.bytes);
    assert!(!first.bytes.contains("And the wind."), "{}", first.bytes);
    assert_eq!(waiting(&play, &scope).await, 1);
    let second = play.exchange(&anthropic_request(MODEL, &history(3)), &reply("Aye.")).await;
    let tide = second.bytes.find("Mind the tide.").unwrap();
    let wind = second.bytes.find("And the wind.").unwrap();
    assert!(tide < wind, "the first stays where it was");
    assert_eq!(waiting(&play, &scope).await, 0);
}

/// A step that failed takes its own message again, and no other.
#[tokio::test]
async fn repeated_step_takes_no_second_message() {
    let mut play = crate::presets::play(Preset::Dexto, &[]).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    queue(&play, &scope, 2, "And the wind.").await;
    let request = anthropic_request(MODEL, &history(2));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer(
        "529 Overloaded",
        r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#,
    )
    .await;
    drop(call);
    assert_eq!(client.response().await.status(), 529);
    play.server.next_exchange().await;
    let repeated = play.exchange(&request, &reply("Aye.")).await;
    assert!(repeated.bytes.contains("Mind the tide."), "{}", repeated.bytes);
    assert!(!repeated.bytes.contains("And the wind."), "{}", repeated.bytes);
    assert_eq!(waiting(&play, &scope).await, 1);
    let next = play.exchange(&anthropic_request(MODEL, &history(3)), &reply("Aye.")).await;
    assert!(next.bytes.contains("And the wind."), "{}", next.bytes);
}

#[tokio::test]
async fn queued_messages_are_not_sent_by_sub_agents_or_other_tenants() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    // A sub-agent with a system prompt of its own, a sub-agent that the client names, and a prefilled reply.
    let mut agent = anthropic_request(MODEL, &[message("user", json!("Find the chart."))]);
    agent["system"] = json!("You search.");
    assert!(!is_injected(&play.exchange(&agent, &reply("Here.")).await));
    play.headers = "x-claude-code-agent-id: a1\r\n".to_owned();
    assert!(!is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Here.")).await
    ));
    play.headers = "x-plimsoll-mode: observe\r\n".to_owned();
    assert!(!is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Go on.")).await
    ));
    play.headers = String::new();
    let mut prefilled = history(2);
    prefilled.push(message("assistant", json!("Well")));
    assert!(!is_injected(
        &play.exchange(&anthropic_request(MODEL, &prefilled), &reply("Go on.")).await
    ));
    assert_eq!(waiting(&play, &scope).await, 1);
    // Nor does a request with another credential get it.
    play.key = "other";
    assert!(!is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(3)), &reply("Go on.")).await
    ));
    play.key = "k";
    assert!(is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(3)), &reply("Go on.")).await
    ));
}

#[tokio::test]
async fn removed_message_is_never_sent() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    let back = InjectedMessage { id: "id-1".into(), at: 2, state: InjectionState::Removed };
    let held = play
        .server
        .ledgers
        .store_fact_if_absent(
            &play.server.ledgers.handle(&scope),
            Fact::InjectedMessage(Box::new(back.clone())),
        )
        .await;
    assert_eq!(held.unwrap(), Fact::InjectedMessage(Box::new(back.clone())));
    assert!(!is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Go on.")).await
    ));
    // A sent message cannot be removed: the first decision counts.
    queue(&play, &scope, 2, "Mind the tide.").await;
    assert!(is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(3)), &reply("Go on.")).await
    ));
    let back = InjectedMessage { id: "id-2".into(), ..back };
    let held = play
        .server
        .ledgers
        .store_fact_if_absent(
            &play.server.ledgers.handle(&scope),
            Fact::InjectedMessage(Box::new(back)),
        )
        .await
        .unwrap();
    let Fact::InjectedMessage(held) = held else { panic!("{held:?}") };
    assert!(held.place().is_some());
}

/// A branch whose rewrite was refused continues as its client sends it; other branches keep their messages.
#[tokio::test]
async fn injected_message_stays_in_branches_that_were_not_refused() {
    const REFUSED: &str =
        r#"{"error":{"message":"messages.1: Invalid `signature` in `thinking` block."}}"#;
    let mut play = Play::of("/v1/messages", eager()).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    assert!(is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Aye.")).await
    ));
    let grown = |text: &str, more: usize| {
        let mut grown = history(2);
        grown.push(message("assistant", json!([{"type": "text", "text": "Aye."}])));
        grown.push(message("user", json!(text)));
        grown.extend(history(2 + more).split_off(5));
        anthropic_request(MODEL, &grown)
    };
    let beside = grown("What may I ask?", 6);
    let mut client = play.send_request(&beside).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), beside.to_string());
    call.answer("200 OK", &reply("This.").to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    assert!(play.server.next_exchange().await.suspends_branch());
    for _ in 0..2 {
        assert!(is_injected(&play.exchange(&grown("And now?", 0), &reply("On we go.")).await));
        assert!(!is_injected(&play.exchange(&beside, &reply("This.")).await));
        play.restart().await;
    }
}

/// A waiting message survives a restart, and shadow mode does not send it.
#[tokio::test]
async fn queued_messages_survive_restart_and_wait_in_shadow_mode() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    play.config.mode = Mode::Shadow;
    play.restart().await;
    assert!(!is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Go on.")).await
    ));
    play.config.mode = Mode::Active;
    play.restart().await;
    assert_eq!(waiting(&play, &scope).await, 1);
    assert!(is_injected(
        &play.exchange(&anthropic_request(MODEL, &history(3)), &reply("Go on.")).await
    ));
}

/// The messages of a request without a reply wait for the next request. A retry of the same request has them where they
/// were.
#[tokio::test]
async fn failed_request_requeues_messages() {
    let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#;
    for (is_retried, is_refused) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut play = Play::of("/v1/messages", Policy::default()).await;
        let scope = begun(&mut play).await;
        queue(&play, &scope, 1, "Mind the tide.").await;
        let mut messages = play.server.telemetry.messages();
        let mut client = play.send_request(&anthropic_request(MODEL, &history(2))).await;
        let mut call = play.provider.call().await;
        assert!(call.message.text().contains("Mind the tide."));
        if is_refused {
            call.answer("529 Overloaded", overloaded).await;
        }
        drop(call);
        assert_eq!(client.response().await.status(), if is_refused { 529 } else { 502 });
        play.server.next_exchange().await;
        assert_eq!(waiting(&play, &scope).await, 1, "they wait again");
        assert_eq!(messages.try_recv().unwrap().step, MessageStep::Dequeued);
        assert_eq!(messages.try_recv().unwrap().step, MessageStep::Queued);
        assert!(messages.try_recv().is_err(), "told once, refused: {is_refused}");

        let mut next = history(2);
        if !is_retried {
            next.pop();
            next.push(message("user", json!("Never mind that. What now?")));
        }
        let mut messages = play.server.telemetry.messages();
        let scene = play.exchange(&anthropic_request(MODEL, &next), &reply("Aye.")).await;
        assert_eq!(scene.bytes.matches("Mind the tide.").count(), 1, "once: {}", scene.bytes);
        assert_eq!(waiting(&play, &scope).await, 0);
        assert_eq!(messages.try_recv().unwrap().step, MessageStep::Dequeued, "{is_retried}");
        next.push(message("assistant", json!([{"type": "text", "text": "Aye."}])));
        next.push(message("user", json!("And now?")));
        let scene = play.exchange(&anthropic_request(MODEL, &next), &reply("On.")).await;
        assert_eq!(scene.bytes.matches("Mind the tide.").count(), 1, "they stay there");
    }
}

/// An error that cannot be read is an error: its messages wait again. A reply that passed whole delivered them, read or
/// not, and its turn is stored.
#[tokio::test]
async fn messages_of_request_with_unread_response_are_not_lost() {
    let cases = [
        ("429 Too Many Requests", "content-encoding: rot13\r\n", "ohfl", 1),
        ("529 Overloaded", "content-encoding: rot13\r\n", "ohfl", 1),
        ("529 Overloaded", "content-encoding: gzip\r\n", "neither gzip nor JSON", 1),
        ("200 OK", "content-encoding: rot13\r\n", "nlr", 0),
        ("200 OK", "content-encoding: gzip\r\n", "neither gzip nor JSON", 0),
    ];
    for (status, more, body, queued) in cases {
        let mut play = Play::of("/v1/messages", Policy::default()).await;
        let scope = begun(&mut play).await;
        queue(&play, &scope, 1, "Mind the tide.").await;
        let mut client = play.send_request(&anthropic_request(MODEL, &history(2))).await;
        let mut call = play.provider.call().await;
        assert!(call.message.text().contains("Mind the tide."));
        let head = format!("HTTP/1.1 {status}\r\n{more}content-length: {}\r\n\r\n", body.len());
        call.send(format!("{head}{body}")).await;
        assert_eq!(client.response().await.text(), body);
        drop(call);
        let exchange = play.server.next_exchange().await;
        assert!(exchange.fail_open.contains(&FailOpen::ReplyUnread), "{:?}", exchange.fail_open);
        assert_eq!(waiting(&play, &scope).await, queued, "{status} {more}");
        let is_turn = play.server.ledgers.look(&scope, |it| it.turn(&exchange.id).is_some()).await;
        assert_eq!(is_turn.unwrap(), queued == 0, "{status} {more}");

        let mut next = history(2);
        next.push(message("assistant", json!([{"type": "text", "text": "Aye."}])));
        next.push(message("user", json!("And now?")));
        let scene = play.exchange(&anthropic_request(MODEL, &next), &reply("On.")).await;
        assert_eq!(scene.bytes.matches("Mind the tide.").count(), 1, "{}", scene.bytes);
        assert_eq!(waiting(&play, &scope).await, 0);
    }
}

/// A message is not blamed for a request that is refused without it, too, however often it was tried.
#[tokio::test]
async fn message_waits_again_if_its_request_is_refused_without_it_too() {
    let wrong = r#"{"type":"error","error":{"type":"invalid_request_error","message":"temperature must be below 2"}}"#;
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let scope = begun(&mut play).await;
    queue(&play, &scope, 1, "Mind the tide.").await;
    for number in 0..3 {
        let mut next = history(2);
        next.pop();
        next.push(message("user", json!(format!("Never mind that. What now, {number}?"))));
        let mut client = play.send_request(&anthropic_request(MODEL, &next)).await;
        let mut call = play.provider.call().await;
        assert!(call.message.text().contains("Mind the tide."), "{number}");
        call.answer("400 Bad Request", wrong).await;
        let mut call = call.wire.request().await;
        assert!(!call.message.text().contains("Mind the tide."), "{number}");
        call.answer("400 Bad Request", wrong).await;
        assert_eq!(client.response().await.status(), 400);
        drop(call);
        play.server.next_exchange().await;
        assert_eq!(waiting(&play, &scope).await, 1, "{number}");
    }
}

/// If the client leaves before the reply ends, its messages wait again.
#[tokio::test]
async fn leaving_requeues_messages() {
    for is_begun in [false, true] {
        let mut play = Play::of("/v1/messages", Policy::default()).await;
        let scope = begun(&mut play).await;
        queue(&play, &scope, 1, "Mind the tide.").await;
        let mut request = anthropic_request(MODEL, &history(2));
        request["stream"] = json!(true);
        let mut messages = play.server.telemetry.messages();
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        assert!(call.message.text().contains("Mind the tide."));
        if is_begun {
            call.begin_events().await;
            let start = json!({"type": "message_start", "message": reply("")});
            call.chunk(format!("event: message_start\ndata: {start}\n\n")).await;
            client.until("message_start").await;
        }
        drop(client);
        play.server.next_exchange().await;
        let requeued = async {
            while waiting(&play, &scope).await == 0 {
                tokio::task::yield_now().await;
            }
        };
        crate::support::within("the words wait again", requeued).await;
        drop(call);
        let taken = messages.try_recv().unwrap();
        assert_eq!(taken.step, MessageStep::Dequeued);
        assert_eq!(taken.position, None);
        let again = messages.try_recv().unwrap();
        assert_eq!(again.step, MessageStep::Queued, "{is_begun}");
        assert_eq!(again.position, Some(1), "{is_begun}");
        let mut next = history(2);
        next.pop();
        next.push(message("user", json!("Never mind that. What now?")));
        let scene = play.exchange(&anthropic_request(MODEL, &next), &reply("Aye.")).await;
        assert_eq!(scene.bytes.matches("Mind the tide.").count(), 1, "{is_begun} {}", scene.bytes);
    }
}
