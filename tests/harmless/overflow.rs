//! A window smaller than anybody believes: sessions outgrow it several times over and live.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::policy::Policy;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use scripted_provider::strict::{self, Clock, Dialect, Provider, Reply, Rules};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::speak::{self, Answered, Habits, Head, Memory, Said};
use crate::stage::Stage;
use crate::support::server::config;

/// Tokens, as the provider counts them.
const WINDOW: u64 = 20_000;
const TURNS: usize = 24;

/// What became of a session.
#[derive(Debug, Default)]
struct Lived {
    saved: usize,
    refused: usize,
    /// Tokens that the client sent in its last request, as far as bytes tell.
    sent: usize,
}

async fn session(dialect: Dialect, model: &'static str, binding: bool, mode: Mode) -> Lived {
    let rules = Rules { window: Some(WINDOW), binding: Some(binding), ..Rules::default() };
    let provider = Provider::at(rules, 7, Clock::manual());
    let summary = Reply::text("<summary>Logs were read, one after the other.</summary>");
    provider.say_to("Write a summary of the conversation", summary);
    let serving = strict::serve(provider.clone()).await.unwrap();
    let mut config = config(&serving.base());
    (config.mode, config.policy) = (mode, Arc::new(Policy::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut stage = Stage::open(provider, serving, config, store).await;
    let (system, tools) = ("You read logs.".to_owned(), vec!["Read"]);
    let head = Head { model, system, tools, thinks: true, stream: false };
    let habits = Habits {
        memory: Memory::Whole,
        marks: false,
        respells: false,
        strips: false,
        url_safe: false,
    };
    let (mut dice, mut lived) = (Dice::new(11), Lived::default());
    let mut history = vec![Said::User("Read them all.".to_owned())];
    for turn in 0..TURNS {
        let reply = Reply::thinking("Where is it?", 40).saying("I read on.");
        stage.provider.say(reply.calling("Read", json!({"path": turn})));
        let body = speak::request(dialect, &head, &history, habits);
        let (status, text) = stage.asks(&speak::target(dialect, &head), &body).await;
        let told = stage.server.told().await;
        lived.sent = body.to_string().len() / 4;
        lived.saved += usize::from(told.done.overflow.is_some_and(|overflow| overflow.saved));
        if status != 200 {
            lived.refused += 1;
            break;
        }
        let answer: Value = serde_json::from_str(&text).unwrap();
        let (reply, calls) = speak::kept(dialect, &answer);
        history.push(Said::Model(reply));
        let results = calls.into_iter().map(|call| Answered {
            id: call.id,
            name: call.name,
            text: dice.words(1200),
            is_error: false,
            has_picture: false,
            in_blocks: false,
        });
        history.push(Said::Results(results.collect()));
    }
    lived
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outgrow_a_window_that_nobody_knew_and_live() {
    for (dialect, model, bindings) in [
        (Dialect::Anthropic, "claude-sonnet-4-5", &[false][..]),
        (Dialect::Anthropic, "claude-opus-5-5", &[false, true]),
        (Dialect::Chat, "gpt-5.5", &[false]),
        (Dialect::Chat, "deepseek-chat", &[false]),
        (Dialect::Chat, "local-model", &[false]),
        (Dialect::Responses, "gpt-5.6", &[false, true]),
        (Dialect::Gemini, "gemini-2.5-pro", &[false]),
        (Dialect::Gemini, "gemini-3-pro", &[false]),
    ] {
        for &binding in bindings {
            let untouched = session(dialect, model, binding, Mode::Observe).await;
            assert_eq!(untouched.refused, 1, "{model}: it dies without us: {untouched:?}");
            let lived = session(dialect, model, binding, Mode::Active).await;
            println!("{model}, binding {binding}: {lived:?}; untouched {untouched:?}");
            assert_eq!(lived.refused, 0, "{model}, binding {binding}: {lived:?}");
            assert!(lived.saved > 0 && lived.sent as u64 > 2 * WINDOW, "{model}: {lived:?}");
        }
    }
}
