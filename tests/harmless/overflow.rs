//! A window smaller than the catalogue says: sessions outgrow it several times and continue.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::policy::Policy;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use scripted_provider::strict::{
    self, Clock, Dialect, OVERFLOW_WORDINGS, Rules, ScriptedReply, StrictProvider,
};
use serde_json::{Value, json};

use crate::client::{self, ClientStyle, Head, HistoryItem, KeptReasoning, ToolResult};
use crate::dice::Dice;
use crate::stage::Stage;
use crate::support::server::config;

/// Tokens, as the provider counts them.
const WINDOW: u64 = 20_000;
const TURNS: usize = 24;

/// Counts of a session.
#[derive(Debug, Default)]
struct SessionReport {
    recovered: usize,
    refused: usize,
    /// Tokens that the client sent in its last request, as far as bytes tell.
    last_request_tokens: usize,
}

async fn session(
    dialect: Dialect,
    model: &'static str,
    binding: bool,
    mode: Mode,
    wording: Option<usize>,
) -> SessionReport {
    let rules = Rules { binding: Some(binding), overflow_wording: wording, ..Rules::default() };
    let rules = Rules { window: Some(WINDOW), ..rules };
    let provider = StrictProvider::with_clock(rules, 7, Clock::manual());
    let summary = ScriptedReply::text("<summary>Logs were read, one after the other.</summary>");
    provider.reply_to_matching("Write a summary of the conversation", summary);
    let serving = strict::serve(provider.clone()).await.unwrap();
    let mut config = config(&serving.base());
    (config.mode, config.policy) = (mode, Arc::new(Policy::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut stage = Stage::open(provider, serving, config, store).await;
    let (system, tools) = ("You read logs.".to_owned(), vec!["Read"]);
    let head = Head { model, system, tools, thinks: true, stream: false };
    let style = ClientStyle::plain(KeptReasoning::All);
    let (mut dice, mut report) = (Dice::new(11), SessionReport::default());
    let mut history = vec![HistoryItem::User("Read them all.".to_owned())];
    for turn in 0..TURNS {
        let reply = ScriptedReply::thinking("Where is it?", 40).with_text("I read on.");
        stage.provider.queue_reply(reply.with_call("Read", json!({"path": turn})));
        let body = client::request(dialect, &head, &history, style);
        let (status, text) = stage.send(&client::path(dialect, &head), &body).await;
        let exchange = stage.server.next_exchange().await;
        report.last_request_tokens = body.to_string().len() / 4;
        report.recovered +=
            usize::from(exchange.done.overflow.is_some_and(|overflow| overflow.saved));
        if status != 200 {
            report.refused += 1;
            break;
        }
        let answer: Value = serde_json::from_str(&text).unwrap();
        let (reply, calls) = client::read_reply(dialect, &answer);
        history.push(HistoryItem::Reply(reply));
        let results = calls.into_iter().map(|call| ToolResult::plain(call, dice.words(1200)));
        history.push(HistoryItem::ToolResults(results.collect()));
    }
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_survive_overflows_of_unknown_window() {
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
            let untouched = session(dialect, model, binding, Mode::Observe, None).await;
            assert_eq!(untouched.refused, 1, "{model}: it dies without us: {untouched:?}");
            let report = session(dialect, model, binding, Mode::Active, None).await;
            println!("{model}, binding {binding}: {report:?}; untouched {untouched:?}");
            assert_eq!(report.refused, 0, "{model}, binding {binding}: {report:?}");
            assert!(report.recovered > 0, "{model}: {report:?}");
            assert!(report.last_request_tokens as u64 > 2 * WINDOW, "{model}: {report:?}");
        }
    }
}

/// The same, in whatever words and shape the provider says so. Output counts towards the window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_survive_any_overflow() {
    let models = [
        (Dialect::Anthropic, "claude-sonnet-4-5"),
        (Dialect::Chat, "local-model"),
        (Dialect::Responses, "gpt-5.6"),
        (Dialect::Gemini, "gemini-2.5-pro"),
    ];
    for wording in 0..OVERFLOW_WORDINGS {
        let (dialect, model) = models[(wording + wording / models.len()) % models.len()];
        let report = session(dialect, model, false, Mode::Active, Some(wording)).await;
        println!("wording {wording}, {model}: {report:?}");
        assert_eq!(report.refused, 0, "wording {wording}, {model}: {report:?}");
        assert!(report.recovered > 0, "wording {wording}, {model}: {report:?}");
    }
}
