//! A session of hundreds of turns: rewriting costs the provider's cache next to nothing, and the bill
//! is smaller for it.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::policy::Policy;
use plimsoll::dialect::models::Catalogue;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use scripted_provider::strict::{self, Clock, Dialect, Rules, ScriptedReply, StrictProvider};
use serde_json::{Value, json};

use crate::client::{self, ClientStyle, Head, HistoryItem, KeptReasoning, ToolResult};
use crate::dice::Dice;
use crate::number;
use crate::stage::Stage;
use crate::support::server::config;

const MODEL: &str = "claude-sonnet-4-5";
/// What a session cost.
#[derive(Debug, Default)]
struct Usage {
    input: u64,
    read: u64,
    written: u64,
    output: u64,
    cut: u64,
    largest: usize,
}

impl Usage {
    fn cached_percent(&self) -> f64 {
        100.0 * self.read as f64 / self.input as f64
    }

    /// Tokens that were not in the cache.
    fn uncached(&self) -> u64 {
        self.input - self.read
    }

    /// US dollars at catalogue prices.
    fn cost(&self) -> f64 {
        let price = Catalogue::new(Vec::new()).model(MODEL, "").price.unwrap();
        let plain = self.input - self.read - self.written;
        let parts = [
            (plain, price.input),
            (self.read, price.cache_read),
            (self.written, price.cache_write),
            (self.output, price.output),
        ];
        parts.iter().map(|(tokens, price)| *tokens as f64 * price / 1e6).sum()
    }
}

async fn session(mode: Mode, (turns, words): (usize, usize), cache_markers: bool) -> Usage {
    // The provider's window is larger than the proxy believes, so that the untouched session lives.
    let rules = Rules { window: Some(2_000_000), ..Rules::default() };
    let provider = StrictProvider::with_clock(rules, 7, Clock::manual());
    let serving = strict::serve(provider.clone()).await.unwrap();
    let mut config = config(&serving.base());
    (config.mode, config.policy) = (mode, Arc::new(Policy::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut stage = Stage::open(provider, serving, config, store).await;
    let head = Head {
        model: MODEL,
        system: "You read logs.".to_owned(),
        tools: vec!["Read"],
        thinks: false,
        stream: false,
    };
    let style = ClientStyle { cache_markers, ..ClientStyle::plain(KeptReasoning::All) };
    let (mut dice, mut usage) = (Dice::new(11), Usage::default());
    let mut history = vec![HistoryItem::User("Read them all.".to_owned())];
    for turn in 0..turns {
        stage.provider.queue_reply(
            ScriptedReply::text("I read on.").with_call("Read", json!({"path": turn})),
        );
        let body = client::request(Dialect::Anthropic, &head, &history, style);
        let (status, text) = stage.send("/v1/messages", &body).await;
        assert_eq!(status, 200, "{text}");
        let exchange = stage.server.next_exchange().await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        let tokens = |name: &str| answer["usage"][name].as_u64().unwrap();
        let (read, written) =
            (tokens("cache_read_input_tokens"), tokens("cache_creation_input_tokens"));
        usage.input += tokens("input_tokens") + read + written;
        usage.read += read;
        usage.written += written;
        usage.output += tokens("output_tokens");
        usage.cut += u64::from(exchange.done.new.cut);
        usage.largest = usage.largest.max(body.to_string().len());
        let (reply, calls) = client::read_reply(Dialect::Anthropic, &answer);
        history.push(HistoryItem::Reply(reply));
        let results = calls.into_iter().map(|call| ToolResult::plain(call, dice.words(words)));
        history.push(HistoryItem::ToolResults(results.collect()));
    }
    usage
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_session_costs_less() {
    // A megabyte in the end: of many turns where there is time, else of fewer, longer ones.
    let long = number("PLIMSOLL_HARMLESS").is_some();
    let (turns, words) = if long { (300, 550) } else { (50, 3300) };
    let size = (turns, words);
    for cache_markers in [true, false] {
        let (observed, active) = tokio::join!(
            session(Mode::Observe, size, cache_markers),
            session(Mode::Active, size, cache_markers)
        );
        println!(
            "{turns} turns, {} KB, cache markers {cache_markers}: read {:.2} % untouched, {:.2} % rewritten \
             with {} cuts; ${:.2} and ${:.2}",
            observed.largest / 1024,
            observed.cached_percent(),
            active.cached_percent(),
            active.cut,
            observed.cost(),
            active.cost()
        );
        assert_eq!(observed.cut, 0);
        assert!(active.cut > 0, "the window fills, and nothing was cut: {active:?}");
        // What is processed again costs as much as eleven and a half times as many tokens that are read
        // (`docs/protocols.md` 7.4): each is to be earned four times over. A share of what is sent would say nothing:
        // far less is sent.
        let reprocessed = active.uncached().saturating_sub(observed.uncached());
        let saved = observed.input - active.input;
        println!("{reprocessed} tokens more were not read from the cache, {saved} were not sent");
        assert!(saved > 46 * reprocessed, "the cache suffered");
        assert!(active.cost() < observed.cost(), "the bill grew");
    }
}
