//! Words said from outside are legal in every dialect, cost no reasoning, and stay where they are.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::policy::Policy;
use plimsoll::context::{Fact, QueuedMessage};
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{Scope, Store};
use scripted_provider::strict::{self, Clock, Dialect, Provider, Reply, Rules};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::speak::{self, Answered, Habits, Head, Memory, Said};
use crate::stage::Stage;
use crate::support::server::config;

const TURNS: usize = 16;

/// Plays a session in which every third request is preceded by a queued message; panics where one
/// is refused, loses reasoning, or does not carry all that was said so far.
async fn session(dialect: Dialect, model: &'static str, binding: bool, memory: Memory) {
    let rules = Rules { binding: Some(binding), ..Rules::default() };
    let provider = Provider::at(rules, 7, Clock::manual());
    let serving = strict::serve(provider.clone()).await.unwrap();
    let mut config = config(&serving.base());
    (config.mode, config.policy) = (Mode::Active, Arc::new(Policy::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut stage = Stage::open(provider, serving, config, store).await;
    let (system, tools) = ("You read logs.".to_owned(), vec!["Read"]);
    let head = Head { model, system, tools, thinks: true, stream: false };
    let habits = Habits { memory, marks: true, respells: false, strips: false, url_safe: false };
    let (mut dice, mut queued) = (Dice::new(5), 0u32);
    let mut history = vec![Said::User("Read them all.".to_owned())];
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
                stage.server.ledgers.settle(&stage.server.ledgers.room(&scope), fact).await.is_ok()
            );
        }
        let ends = turn % 5 == 4;
        let words = format!("I read on, {turn}.");
        let reply = Reply::thinking("Where is it?", 40).saying(&words);
        let call = json!({"path": turn});
        stage.provider.say(if ends { reply } else { reply.calling("Read", call) });
        stage.provider.take_log();
        let body = speak::request(dialect, &head, &history, habits);
        let (status, text) = stage.asks(&speak::target(dialect, &head), &body).await;
        let told = stage.server.told().await;
        let log = stage.provider.take_log();
        let at = format!("{model}, binding {binding}, {memory:?}, turn {turn}");
        assert_eq!((status, log.len()), (200, 1), "{at}: {text}");
        let forwarded = String::from_utf8_lossy(&log[0].call.bytes).into_owned();
        assert_eq!(forwarded.matches("Mind tide").count(), queued as usize, "{at}: {forwarded}");
        assert!(log[0].verdict.losses().is_empty(), "{at}: {:?}", log[0].verdict.losses());
        assert_eq!(told.done.made.injected, queued, "{at}");
        let session = told.tenant.clone().zip(told.session.clone());
        scope = session.map(|(tenant, session)| Scope { tenant, session });
        let answer: Value = serde_json::from_str(&text).unwrap();
        let (reply, calls) = speak::kept(dialect, &answer);
        history.push(Said::Model(reply));
        if ends {
            history.push(Said::User("And then?".to_owned()));
            continue;
        }
        let results = calls.into_iter().map(|call| Answered {
            id: call.id,
            name: call.name,
            text: dice.words(20),
            is_error: false,
            has_picture: dice.once_in(3),
            in_blocks: dice.once_in(3),
        });
        history.push(Said::Results(results.collect()));
    }
    assert!(queued >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_is_legal_and_stays() {
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
        // Only these sign what stands before their reasoning.
        let signs = matches!(dialect, Dialect::Anthropic | Dialect::Responses);
        for binding in [false, true].into_iter().take(1 + usize::from(signs)) {
            session(dialect, model, binding, Memory::Whole).await;
            session(dialect, model, binding, Memory::None).await;
        }
    }
}
