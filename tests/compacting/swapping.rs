//! A summary is written in the background, used at the threshold, and stays.

use std::time::Duration;

use plimsoll::config::presets::Preset;
use plimsoll::config::{self, ConfigSources, Mode};
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{CompactOverride, Policy, SummaryAuthor, SummaryEngine};
use plimsoll::context::{EstimateMethod, Fact, Outcome, QueuedMessage};
use plimsoll::dialect::models::Family;
use plimsoll::dialect::{self, Dialect};
use plimsoll::tokens::bpe;
use plimsoll::tokens::classic::SentContent;
use serde_json::{Value, json};

use crate::play::{
    MARK, Play, Scene, THRESHOLD, USABLE, policy, send_summary, tokens, without_a_pause,
};

const SUMMARY: &str = "The person asks numbered questions.";

fn steps(scene: &Scene) -> Vec<(Change, Decision, DecisionReason)> {
    let steps = scene.exchange.done.steps.iter();
    steps.map(|step| (step.change, step.decision, step.why)).collect()
}

fn is_compacted(scene: &Scene) -> bool {
    scene.bytes.contains(SUMMARY)
}

/// The part of the request that a prompt cache could have.
fn prefix(scene: &Scene) -> &str {
    &scene.bytes[..scene.bytes.rfind("]").unwrap()]
}

/// A play whose summary is written, and used in the returned exchange.
async fn compacted() -> (Play, Scene) {
    compacted_under(without_a_pause()).await
}

async fn compacted_under(policy: Policy) -> (Play, Scene) {
    let mut play = Play::of(policy).await;
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    loop {
        let scene = play.turn(play.history.len() / 2).await;
        if is_compacted(&scene) {
            return (play, scene);
        }
    }
}

/// A compaction is a live event when its request is sent: the size before and after, and who wrote the summary.
#[tokio::test]
async fn compaction_is_sent_as_live_event() {
    let mut play = Play::of(policy()).await;
    let mut live = play.server.telemetry.shrunk();
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    let scene = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if is_compacted(&scene) {
            break scene;
        }
    };
    let event = live.try_recv().unwrap();
    assert_eq!(event.event, "compacted");
    assert_eq!(event.strategy, Some(SummaryAuthor::Summary));
    assert_eq!(event.exchange, scene.exchange.id);
    let after = scene.exchange.estimate.as_ref().unwrap().tokens;
    // The number before is the one that reached the threshold.
    assert_eq!(event.after, after);
    assert!(event.before >= THRESHOLD, "{event:?}");
    assert!(event.after < THRESHOLD, "{event:?}");
    // A repetition of the compaction is no event.
    play.turn(play.history.len() / 2).await;
    assert!(live.try_recv().is_err());
}

/// Right after a compaction, an agent's own count is that of what was sent, the summary included.
#[tokio::test]
async fn agents_rules_count_what_was_sent_after_compaction() {
    for preset in [Preset::Dexto, Preset::MicroCompact, Preset::Opencode, Preset::GeminiCli] {
        let variables = [("HOME", "/home/somebody"), ("PLIMSOLL_PRESET", preset.name())];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let sources = ConfigSources { variables: variables.into(), ..ConfigSources::default() };
        let estimate = config::load(&sources).unwrap().config.policy.estimate.clone();
        let mut policy = policy();
        policy.estimate = estimate.clone();
        let (_, scene) = compacted_under(policy).await;
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", scene.bytes.as_bytes());
        let counted = estimate.rules.whole(&read, scene.bytes.as_bytes(), |_| SentContent::Whole);
        let measured = scene.exchange.estimate.as_ref().unwrap();
        assert_eq!(measured.tokens, counted, "{preset:?}");
        assert_eq!(measured.method, EstimateMethod::Estimated, "{preset:?}");
    }
}

#[tokio::test]
async fn summary_request_repeats_cached_prefix_and_adds_instruction() {
    let mut play = Play::of(policy()).await;
    let (scene, question) = play.fill_to_mark().await;
    let request: Value = serde_json::from_str(question.message.text()).unwrap();
    let messages = request["messages"].as_array().unwrap();
    let sent = scene.sent["messages"].as_array().unwrap();
    // The request before it with the instruction at its end, and the same credential.
    assert_eq!(messages.len(), sent.len());
    assert_eq!(messages[..sent.len() - 1], sent[..sent.len() - 1]);
    assert_eq!(request["system"], scene.sent["system"]);
    assert_eq!(messages.last().unwrap()["content"][0]["text"], sent.last().unwrap()["content"]);
    assert_eq!(request["stream"], true);
    assert!(question.message.head.contains("x-api-key: k\r\n"), "{}", question.message.head);
    assert!(!question.message.head.contains("x-plimsoll-session"));
}

#[tokio::test]
async fn prepared_summary_is_used_at_threshold_and_stays() {
    // The vocabulary is loaded, as in a server that is ready.
    bpe::load(Family::Claude);
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, &format!("Hm. <summary>{SUMMARY}</summary>")).await;
    play.wait_until_written(1).await;
    // It is not used before the threshold.
    let scene = loop {
        let before = play.history.clone();
        let scene = play.turn(play.history.len() / 2).await;
        if is_compacted(&scene) {
            assert!(play.request().to_string().len() as u64 / 4 > THRESHOLD);
            break scene;
        }
        assert_eq!(scene.sent["messages"].as_array().unwrap()[..before.len()], before[..]);
    };
    assert_eq!(steps(&scene), [(Change::Compacted, Decision::New, DecisionReason::Threshold)]);
    assert!(tokens(&scene) < THRESHOLD, "{}", tokens(&scene));
    assert_eq!(scene.exchange.estimate.as_ref().unwrap().method, EstimateMethod::Compacted);
    // A summary's frame contains a random number, so its size varies a little.
    let done = &scene.exchange.done;
    let (before, after) = (done.steps[0].tokens_before, done.steps[0].tokens_after);
    assert_eq!(done.tokens_compacted, before - after);
    assert!(done.tokens_compacted > before / 2, "{done:?}");
    let sent = scene.sent["messages"].as_array().unwrap();
    let first = sent[0]["content"].as_str().unwrap();
    assert!(first.contains(SUMMARY), "{first}");
    assert!(!first.contains("Hm."), "{first}");
    assert!(first.contains("Question 0"), "the first words are quoted");
    // Roles alternate, and what remains is the client's.
    let roles: Vec<&str> = sent.iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert!(roles.windows(2).all(|pair| pair[0] != pair[1]), "{roles:?}");
    let request = play.request();
    let all = request["messages"].as_array().unwrap();
    let tail = sent.len() - 2;
    assert_eq!(sent[2..], all[all.len() - 1 - tail..all.len() - 1]);

    // Later turns repeat it byte for byte, across a restart and under another policy.
    let later = play.turn(90).await;
    assert!(later.bytes.starts_with(prefix(&scene)), "{}\n{}", scene.bytes, later.bytes);
    assert_eq!(later.exchange.estimate.as_ref().unwrap().method, EstimateMethod::Anchored);
    play.config.mode = Mode::Observe;
    play.restart().await;
    let later = play.turn(91).await;
    assert!(later.bytes.starts_with(prefix(&scene)));
    assert_eq!(later.exchange.done.made.compacted, 1);
    // The same beginning is summarised only once: later summary requests contain the first summary.
    assert!(play.take_summary_bodies().iter().all(|text| text.contains(SUMMARY)));
}

#[tokio::test]
async fn rewind_to_before_cut_has_its_whole_history_again() {
    let (mut play, _) = compacted().await;
    play.history.truncate(4);
    let scene = play.turn(50).await;
    assert!(!is_compacted(&scene));
    assert_eq!(scene.sent, {
        let mut request = play.request();
        request["messages"].as_array_mut().unwrap().pop();
        request
    });
}

#[tokio::test]
async fn fork_after_cut_and_changed_first_message_keep_summary() {
    let (mut play, first) = compacted().await;
    // A fork: another message instead of the newest.
    let history = play.history.clone();
    play.history.truncate(history.len() - 2);
    let fork = play.turn(60).await;
    assert!(is_compacted(&fork));
    assert_eq!(fork.sent["messages"][0], first.sent["messages"][0]);
    // A client that changes its first message (a date, a reminder).
    play.history = history;
    play.history[0]["content"] = json!("Question 0, as of today.");
    let changed = play.turn(61).await;
    assert_eq!(changed.sent["messages"][0], first.sent["messages"][0]);
    // If the client edits the message just before the cut, it is another history, and all of it is sent.
    let cut = play.history.len() - changed.sent["messages"].as_array().unwrap().len();
    for message in &mut play.history[..=cut] {
        message["content"] = json!("Something else.");
    }
    let edited = play.turn(62).await;
    assert!(!is_compacted(&edited));
}

/// A summary was written for a question beside the conversation, so the model's boundary stands between it and the
/// user's message. In the conversation itself the model's reply follows: there it ends the summary's own message.
#[tokio::test]
async fn boundary_joins_summary_before_reply() {
    let mut policy = policy();
    policy.compact.keep_messages = 1;
    let mut play = Play::of(policy).await;
    let question = loop {
        play.add_user_message(play.history.len() / 2, 120);
        play.history.push(json!({"role": "user", "content": "And beside this?"}));
        let client = play.send_request().await;
        play.history.pop();
        if tokens(&play.read_reply(client).await) > MARK {
            break play.next_summary_request().await;
        }
    };
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    let roles = |scene: &Scene| -> Vec<String> {
        let messages = scene.sent["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    };
    let compacted = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if is_compacted(&scene) {
            break scene;
        }
    };
    let kept = roles(&compacted).len() - 1;
    let history = &play.history[..play.history.len() - 1];
    assert_eq!(
        compacted.sent["messages"].as_array().unwrap()[1..],
        history[history.len() - kept..]
    );
    assert!(roles(&compacted).windows(2).all(|two| two[0] != two[1]), "{}", compacted.bytes);
    let summary = compacted.sent["messages"][0]["content"].as_str().unwrap();
    assert!(summary.ends_with("\n\n[The conversation goes on below.]"), "{summary}");
    // That form stays.
    play.restart().await;
    let next = play.turn(play.history.len() / 2).await;
    assert!(next.bytes.starts_with(prefix(&compacted)), "{}", next.bytes);
}

#[tokio::test]
async fn second_summary_replaces_first() {
    let (mut play, first) = compacted().await;
    let question = loop {
        let scene = play.turn(play.history.len() / 2).await;
        assert_eq!(scene.sent["messages"][0], first.sent["messages"][0]);
        if tokens(&scene) > crate::play::MARK {
            break play.next_summary_request().await;
        }
    };
    assert!(question.message.text().contains(SUMMARY), "it reads the first summary");
    send_summary(question, "Both of them.").await;
    play.wait_until_written(2).await;
    let scene = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if scene.bytes.contains("Both of them.") {
            break scene;
        }
    };
    assert!(!is_compacted(&scene), "one summary, not two: {}", scene.bytes);
    assert!(tokens(&scene) < THRESHOLD);
    let later = play.turn(99).await;
    assert!(later.bytes.starts_with(prefix(&scene)));
}

/// A requested compaction is written with the next request and used by the one after it, however small the context is.
#[tokio::test]
async fn session_is_compacted_on_request() {
    let mut policy = policy();
    policy.compact.engine = SummaryEngine::Off;
    let mut play = Play::of(policy).await;
    for number in 0..4 {
        play.turn(number).await;
    }
    let scope = play
        .server
        .ledgers
        .sessions(plimsoll::store::ScopePage::first(1))
        .await
        .unwrap()
        .remove(0)
        .scope;
    let focus = Some("The second question.".into());
    assert!(play.server.ledgers.request_compaction(scope.clone(), focus).await.unwrap());
    let before = play.turn(4).await;
    assert!(!is_compacted(&before));
    let question = play.next_summary_request().await;
    assert!(question.message.text().contains("Look above all at this: The second question."));
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    let scene = play.turn(5).await;
    assert_eq!(steps(&scene), [(Change::Compacted, Decision::New, DecisionReason::Requested)]);
    assert!(is_compacted(&scene));
    assert!(scene.exchange.done.tokens_compacted > 0);
    // Only once.
    assert!(steps(&play.turn(6).await).is_empty());
    assert!(!play.server.ledgers.has_pending_compaction(&scope));
    assert!(play.take_summary_bodies().is_empty());
}

/// A request waits only if it would not fit otherwise.
#[tokio::test]
async fn request_that_would_not_fit_waits_for_its_summary() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    play.add_user_message(70, 3000);
    let client = play.send_request().await;
    // Planning takes a slow machine a while: only a summary that comes after it is waited for.
    tokio::time::sleep(Duration::from_secs(1)).await;
    send_summary(question, SUMMARY).await;
    let scene = play.read_reply(client).await;
    assert!(is_compacted(&scene));
    assert!(scene.exchange.timing.compaction_wait_us.is_some());
    assert_eq!(steps(&scene)[0], (Change::Compacted, Decision::New, DecisionReason::Window));
}

#[tokio::test]
async fn request_past_threshold_is_sent_whole_if_no_summary_is_ready() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    let scene = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if tokens(&scene) > THRESHOLD {
            break scene;
        }
    };
    assert_eq!(steps(&scene), [(Change::Compacted, Decision::Declined, DecisionReason::NotReady)]);
    assert_eq!(scene.exchange.timing.compaction_wait_us, None);
    assert!(tokens(&scene) < USABLE);
    drop(question);
}

/// A client that leaves cancels the wait, not the summary.
#[tokio::test]
async fn leaving_keeps_the_summary() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    play.add_user_message(70, 3000);
    drop(play.send_request().await);
    let left = play.server.next_exchange().await;
    assert_eq!(left.outcome, Outcome::ClientLeft);
    assert_eq!(left.status, None);
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    let client = play.send_request().await;
    let scene = play.read_reply(client).await;
    assert!(is_compacted(&scene));
}

#[tokio::test]
async fn shadow_mode_reports_but_requests_no_summary_and_observe_does_nothing() {
    for (mode, expected) in [(Mode::Shadow, true), (Mode::Observe, false)] {
        let store = std::sync::Arc::new(plimsoll::store::memory::MemoryStore::default());
        let mut play = Play::over(store, policy(), mode).await;
        let mut reported = false;
        for number in 0..16 {
            let scene = play.turn(number).await;
            assert!(scene.sent["messages"].as_array().unwrap().len() == number * 2 + 1);
            reported |=
                steps(&scene) == [(Change::Compacted, Decision::Declined, DecisionReason::Shadow)];
        }
        assert_eq!(reported, expected);
        assert!(play.take_summary_bodies().is_empty());
    }
}

/// A threshold for an upstream or a model applies to its requests only; that of the model has priority.
#[tokio::test]
async fn model_has_its_own_threshold() {
    let over =
        |tokens| CompactOverride { threshold_tokens: Some(tokens), ..CompactOverride::default() };
    let never = CompactOverride { engine: Some(SummaryEngine::Off), ..CompactOverride::default() };
    let first_compaction =
        async |upstream: Option<CompactOverride>, models: Vec<(Box<str>, CompactOverride)>| {
            let store = std::sync::Arc::new(plimsoll::store::memory::MemoryStore::default());
            let mut play = Play::over(store, policy(), Mode::Shadow).await;
            play.config.upstreams[0].compact = upstream;
            play.config.compact_models = models;
            play.restart().await;
            let mut first = None;
            for number in 0..18 {
                let scene = play.turn(number).await;
                if !steps(&scene).is_empty() {
                    first.get_or_insert(tokens(&scene));
                }
            }
            first
        };
    let usual = first_compaction(None, Vec::new()).await.unwrap();
    assert!(usual >= THRESHOLD);
    let early = first_compaction(Some(over(500)), Vec::new()).await.unwrap();
    assert!((500..1_000).contains(&early), "{early}");
    let named = vec![("claude-sonnet-*".into(), over(1_200)), ("gpt-*".into(), never.clone())];
    let models = first_compaction(Some(over(500)), named).await.unwrap();
    assert!((1_200..THRESHOLD).contains(&models), "{models}");
    assert_eq!(first_compaction(None, vec![("claude-*".into(), never)]).await, None);
}

/// An injected message and a summary are new in one request: both are there, and stay the same. A message that a later
/// summary replaces is not sent again.
#[tokio::test]
async fn injected_message_and_summary_in_one_request_both_stay() {
    const QUEUED: &str = "Mind the tide.";
    let mut play = Play::of(without_a_pause()).await;
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    let scope = play
        .server
        .ledgers
        .sessions(plimsoll::store::ScopePage::first(1))
        .await
        .unwrap()
        .remove(0)
        .scope;
    let queue_message = async |play: &Play| {
        let queued =
            QueuedMessage { id: "w".into(), number: 1, at: 1, text: QUEUED.into(), repeats: None };
        let fact = Fact::Queued(Box::new(queued));
        assert!(
            play.server
                .ledgers
                .store_fact_if_absent(&play.server.ledgers.handle(&scope), fact)
                .await
                .is_ok()
        );
    };
    // The message is queued when the next request will be compacted.
    let scene = loop {
        if play.request().to_string().len() as u64 / 4 + 250 > THRESHOLD {
            queue_message(&play).await;
        }
        let scene = play.turn(play.history.len() / 2).await;
        if is_compacted(&scene) {
            break scene;
        }
    };
    let after = format!("Question {}:", play.history.len() / 2 - 1);
    assert_eq!(scene.bytes.matches(QUEUED).count(), 1, "{}", scene.bytes);
    assert!(scene.bytes.contains(&after), "injected in this request, or before");
    assert!(tokens(&scene) < THRESHOLD);
    let later = play.turn(70).await;
    assert!(later.bytes.starts_with(prefix(&scene)), "{}\n{}", scene.bytes, later.bytes);
    let question = loop {
        let scene = play.turn(play.history.len() / 2).await;
        assert_eq!(scene.bytes.matches(QUEUED).count(), 1);
        if tokens(&scene) > crate::play::MARK {
            break play.next_summary_request().await;
        }
    };
    assert!(question.message.text().contains(QUEUED), "the second summary reads them");
    send_summary(question, "Both of them.").await;
    play.wait_until_written(2).await;
    loop {
        let scene = play.turn(play.history.len() / 2).await;
        if scene.bytes.contains("Both of them.") {
            // The injected message is removed or stays with the message that it follows.
            let stays = scene.bytes.contains(&after);
            assert_eq!(scene.bytes.matches(QUEUED).count(), usize::from(stays), "{}", scene.bytes);
            break;
        }
    }
}

/// A summary that is due too soon after another one is not written. That is said once, until enough was added.
#[tokio::test]
async fn little_room_for_summary_is_said_once() {
    let mut policy = policy();
    policy.compact.prepare = 1.0;
    (policy.compact.lasting_share, policy.compact.quote_tokens) = (0.9, 50);
    let mut play = Play::of(policy).await;
    let questions = play.write_every_summary(SUMMARY);
    let (mut due, mut said) = (0, 0);
    while questions.lock().unwrap().len() < 2 {
        let scene = play.turn(play.history.len() / 2).await;
        let is_second = scene.bytes.contains(SUMMARY) && tokens(&scene) >= THRESHOLD;
        due += u64::from(is_second);
        said += steps(&scene).iter().filter(|step| step.2 == DecisionReason::LittleRoom).count();
    }
    assert!(due > 2, "{due} requests were due");
    assert_eq!(said, 1, "of {due} requests");
}
