//! Queued messages are legal in every dialect, cost no reasoning, and stay where they are.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::policy::Policy;
use plimsoll::context::{Fact, QueuedMessage};
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{Scope, Store};
use scripted_provider::strict::{self, Clock, Dialect, Rules, ScriptedReply, StrictProvider};
use serde_json::{Value, json};

use crate::client::{self, ClientStyle, Head, HistoryItem, KeptReasoning, ToolResult};
use crate::dice::Dice;
use crate::stage::Stage;
use crate::support::server::config;

const TURNS: usize = 16;

/// Plays a session in which every third request is preceded by a queued message; panics where one
/// is refused, loses reasoning, or does not contain all queued messages so far.
async fn session(
    dialect: Dialect,
    model: &'static str,
    binding: bool,
    kept_reasoning: KeptReasoning,
) {
    let rules = Rules { binding: Some(binding), ..Rules::default() };
    let provider = StrictProvider::with_clock(rules, 7, Clock::manual());
    let serving = strict::serve(provider.clone()).await.unwrap();
    let mut config = config(&serving.base());
    (config.mode, config.policy) = (Mode::Active, Arc::new(Policy::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut stage = Stage::open(provider, serving, config, store).await;
    let (system, tools) = ("You read logs.".to_owned(), vec!["Read"]);
    let head = Head { model, system, tools, thinks: true, stream: false };
    let style = ClientStyle { cache_markers: true, ..ClientStyle::plain(kept_reasoning) };
    let (mut dice, mut queued) = (Dice::new(5), 0u32);
    let mut history = vec![HistoryItem::User("Read them all.".to_owned())];
    let mut scope: Option<Scope> = None;
    for turn in 0..TURNS {
        if let Some(scope) = scope.clone().filter(|_| turn % 3 == 1) {
            queued += 1;
            let (id, text) = (format!("q{queued}").into(), format!("Mind tide {queued}.").into());
            let fact = Fact::Queued(Box::new(QueuedMessage {
                id,
                number: queued,
                at: 1,
                text,
                repeats: None,
            }));
            assert!(
                stage
                    .server
                    .ledgers
                    .store_fact_if_absent(&stage.server.ledgers.handle(&scope), fact)
                    .await
                    .is_ok()
            );
        }
        let ends_turn = turn % 5 == 4;
        let text = format!("I read on, {turn}.");
        let reply = ScriptedReply::thinking("Where is it?", 40).with_text(&text);
        let call = json!({"path": turn});
        stage.provider.queue_reply(if ends_turn { reply } else { reply.with_call("Read", call) });
        stage.provider.take_log();
        let body = client::request(dialect, &head, &history, style);
        let (status, text) = stage.send(&client::path(dialect, &head), &body).await;
        let exchange = stage.server.next_exchange().await;
        let log = stage.provider.take_log();
        let context = format!("{model}, binding {binding}, {kept_reasoning:?}, turn {turn}");
        assert_eq!(status, 200, "{context}: {text}");
        assert_eq!(log.len(), 1, "{context}: {text}");
        let forwarded = String::from_utf8_lossy(&log[0].request.bytes).into_owned();
        assert_eq!(
            forwarded.matches("Mind tide").count(),
            queued as usize,
            "{context}: {forwarded}"
        );
        assert!(log[0].verdict.losses().is_empty(), "{context}: {:?}", log[0].verdict.losses());
        assert_eq!(exchange.done.made.injected, queued, "{context}");
        let session = exchange.tenant.clone().zip(exchange.session.clone());
        scope = session.map(|(tenant, session)| Scope { tenant, session });
        let answer: Value = serde_json::from_str(&text).unwrap();
        let (reply, calls) = client::read_reply(dialect, &answer);
        history.push(HistoryItem::Reply(reply));
        if ends_turn {
            history.push(HistoryItem::User("And then?".to_owned()));
            continue;
        }
        let results = calls.into_iter().map(|call| ToolResult {
            id: call.id,
            name: call.name,
            text: dice.words(20),
            is_error: false,
            has_picture: dice.once_in(3),
            in_blocks: dice.once_in(3),
            loads: false,
            caller: None,
        });
        history.push(HistoryItem::ToolResults(results.collect()));
    }
    assert!(queued >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_messages_are_accepted_and_keep_their_place() {
    for (dialect, model) in [
        (Dialect::Anthropic, "claude-sonnet-4-5"),
        (Dialect::Anthropic, "claude-opus-5-5"),
        (Dialect::Chat, "gpt-5.5"),
        (Dialect::Chat, "deepseek-chat"),
        (Dialect::Chat, "local-model"),
        (Dialect::Responses, "gpt-5.5"),
        (Dialect::Responses, "gpt-5.6"),
        (Dialect::Gemini, "gemini-2.5-pro"),
        (Dialect::Gemini, "gemini-3-pro"),
    ] {
        // Only these bind reasoning to what precedes it.
        let may_bind = matches!(dialect, Dialect::Anthropic | Dialect::Responses);
        for binding in [false, true].into_iter().take(1 + usize::from(may_bind)) {
            session(dialect, model, binding, KeptReasoning::All).await;
            session(dialect, model, binding, KeptReasoning::None).await;
        }
    }
}
