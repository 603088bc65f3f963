//! A session of hundreds of turns: rewriting costs the provider's cache next to nothing, and the bill
//! is smaller for it.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::policy::Policy;
use plimsoll::dialect::models::Catalogue;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use scripted_provider::strict::{self, Clock, Dialect, Provider, Reply, Rules};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::number;
use crate::speak::{self, Answered, Habits, Head, Memory, Said};
use crate::stage::Stage;
use crate::support::server::config;

const MODEL: &str = "claude-sonnet-4-5";
/// What a session cost.
#[derive(Debug, Default)]
struct Spent {
    input: u64,
    read: u64,
    written: u64,
    output: u64,
    cut: u64,
    largest: usize,
}

impl Spent {
    fn share(&self) -> f64 {
        100.0 * self.read as f64 / self.input as f64
    }

    /// Tokens that were not in the cache.
    fn unread(&self) -> u64 {
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

async fn session(mode: Mode, (turns, words): (usize, usize), marks: bool) -> Spent {
    // The provider's window is larger than the proxy believes, so that the untouched session lives.
    let rules = Rules { window: Some(2_000_000), ..Rules::default() };
    let provider = Provider::at(rules, 7, Clock::manual());
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
    let habits =
        Habits { memory: Memory::Whole, marks, respells: false, strips: false, url_safe: false };
    let (mut dice, mut spent) = (Dice::new(11), Spent::default());
    let mut history = vec![Said::User("Read them all.".to_owned())];
    for turn in 0..turns {
        stage.provider.say(Reply::text("I read on.").calling("Read", json!({"path": turn})));
        let body = speak::request(Dialect::Anthropic, &head, &history, habits);
        let (status, text) = stage.asks("/v1/messages", &body).await;
        assert_eq!(status, 200, "{text}");
        let told = stage.server.told().await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        let of = |name: &str| answer["usage"][name].as_u64().unwrap();
        let (read, written) = (of("cache_read_input_tokens"), of("cache_creation_input_tokens"));
        spent.input += of("input_tokens") + read + written;
        spent.read += read;
        spent.written += written;
        spent.output += of("output_tokens");
        spent.cut += u64::from(told.done.new.cut);
        spent.largest = spent.largest.max(body.to_string().len());
        let (reply, calls) = speak::kept(Dialect::Anthropic, &answer);
        history.push(Said::Model(reply));
        let results = calls.into_iter().map(|call| Answered {
            id: call.id,
            name: call.name,
            text: dice.words(words),
            is_error: false,
            has_picture: false,
            in_blocks: false,
        });
        history.push(Said::Results(results.collect()));
    }
    spent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_session_keeps_its_cache_and_costs_less() {
    // A megabyte in the end: of many turns where there is time, else of fewer, longer ones.
    let long = number("PLIMSOLL_HARMLESS").is_some();
    let (turns, words) = if long { (300, 550) } else { (50, 3300) };
    let size = (turns, words);
    for marks in [true, false] {
        let (observed, active) =
            tokio::join!(session(Mode::Observe, size, marks), session(Mode::Active, size, marks));
        println!(
            "{turns} turns, {} KB, cache markers {marks}: read {:.2} % untouched, {:.2} % rewritten \
             with {} cuts; ${:.2} and ${:.2}",
            observed.largest / 1024,
            observed.share(),
            active.share(),
            active.cut,
            observed.cost(),
            active.cost()
        );
        assert_eq!(observed.cut, 0);
        assert!(active.cut > 0, "the window fills, and nothing was cut: {active:?}");
        // What is processed again costs as much as eleven and a half times as many tokens that are read
        // (`docs/protocols.md` 7.4): each is to be earned four times over. A share of what is sent would say nothing:
        // far less is sent.
        let again = active.unread().saturating_sub(observed.unread());
        let left_out = observed.input - active.input;
        println!("{again} tokens more were not read from the cache, {left_out} were not sent");
        assert!(left_out > 46 * again, "the cache suffered");
        assert!(active.cost() < observed.cost(), "the bill grew");
    }
}
