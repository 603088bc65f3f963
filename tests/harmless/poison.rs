//! Conversations in which something strikes that a provider refuses, and stays in the history: none stays dead that an
//! edit can save, and the rest of it is repeated (`docs/healing.md`). Conversations that nothing strikes meet no edit,
//! and no request is sent twice.
//!
//! `make harmless POISON=1 N=500` plays that many; `PLIMSOLL_POISON_SEED` one alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::policy::{ImageRepair, Policy, RepairPolicy};
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use scripted_provider::strict::{self, Clock, Dialect, Provider, Reply, Rules};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::support::http1::Wire;
use crate::support::noise::noise;
use crate::support::server::{TestServer, config};
use crate::{first_seed, number};

/// Conversations that `cargo test` plays.
const FEW: u64 = 80;
/// Of so many conversations nothing strikes one.
const HEALTHY: usize = 4;
/// Most output that the model writes.
const OUTPUT: u64 = 8_192;

/// What strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Poison {
    LargePicture,
    NoPicture,
    EmptyText,
    HalfCharacter,
    LostResult,
    LostCall,
    IdForm,
    Markers,
    Member,
    ForeignThinking,
    Prefill,
    TooMuchOutput,
    WhiteSpace,
    ItemTwice,
    OtherType,
    NoDocument,
}

use Poison::{
    EmptyText, ForeignThinking, HalfCharacter, IdForm, ItemTwice, LargePicture, LostCall,
    LostResult, Markers, Member, NoDocument, NoPicture, OtherType, Prefill, TooMuchOutput,
    WhiteSpace,
};

/// What can strike in each protocol, as its provider refuses it.
fn poisons(dialect: Dialect) -> &'static [Poison] {
    match dialect {
        Dialect::Anthropic => &[
            LargePicture,
            NoPicture,
            OtherType,
            NoDocument,
            EmptyText,
            HalfCharacter,
            LostResult,
            LostCall,
            IdForm,
            Markers,
            Member,
            ForeignThinking,
            Prefill,
            TooMuchOutput,
            WhiteSpace,
        ],
        Dialect::Chat => {
            &[LargePicture, NoPicture, HalfCharacter, LostResult, LostCall, TooMuchOutput]
        }
        Dialect::Responses => &[
            LargePicture,
            NoPicture,
            HalfCharacter,
            LostResult,
            LostCall,
            TooMuchOutput,
            ItemTwice,
        ],
        Dialect::Gemini => &[
            LargePicture,
            NoPicture,
            NoDocument,
            HalfCharacter,
            LostResult,
            LostCall,
            TooMuchOutput,
        ],
    }
}

/// What was played.
#[derive(Default)]
struct Counts {
    exchanges: u64,
    healthy: u64,
    struck: BTreeMap<Poison, u64>,
    extra: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_stays_dead_that_an_edit_can_save() {
    let seeds = match number("PLIMSOLL_POISON_SEED") {
        Some(seed) => seed..seed + 1,
        None => first_seed()..first_seed() + number("PLIMSOLL_POISON").unwrap_or(FEW),
    };
    let mut counts = Counts::default();
    let mut dead = Vec::new();
    for seed in seeds.clone() {
        if let Err(why) = Play::open(seed).await.plays(&mut counts).await {
            println!("seed {seed}: {why}");
            dead.push(format!("seed {seed}: {why}"));
        }
    }
    println!(
        "{} exchanges, {} of conversations that nothing struck; {} requests sent again; struck: {:?}",
        counts.exchanges, counts.healthy, counts.extra, counts.struck
    );
    assert!(dead.is_empty(), "{} sessions stayed dead:\n{}", dead.len(), dead.join("\n"));
    if seeds.end - seeds.start >= FEW {
        assert!(counts.struck.len() == 16 && counts.healthy > 0, "{:?}", counts.struck);
    }
}

struct Play {
    dice: Dice,
    dialect: Dialect,
    provider: Provider,
    _serving: strict::Serving,
    store: Arc<dyn Store>,
    config: Config,
    server: TestServer,
    history: Vec<Value>,
    output: u64,
    healthy: bool,
    /// What struck so far: its kind is known to the session.
    known: Vec<Poison>,
}

impl Play {
    async fn open(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let dialect = dice.of(&[
            Dialect::Anthropic,
            Dialect::Anthropic,
            Dialect::Chat,
            Dialect::Responses,
            Dialect::Gemini,
        ]);
        let rules =
            Rules { most_picture_bytes: 4_000, most_output: Some(OUTPUT), ..Rules::default() };
        let provider = Provider::at(rules, seed, Clock::manual());
        let serving = strict::serve(provider.clone()).await.unwrap();
        let mut config = config(&serving.base());
        let images = dice.of(&[ImageRepair::Text, ImageRepair::Shrink]);
        let heal = RepairPolicy { images, ..RepairPolicy::default() };
        let policy = Policy { heal, ..Policy::default() };
        (config.mode, config.policy) = (Mode::Active, Arc::new(policy));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let server =
            TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await;
        let healthy = dice.once_in(HEALTHY);
        let known = Vec::new();
        Self {
            dice,
            dialect,
            provider,
            _serving: serving,
            store,
            config,
            server,
            history: Vec::new(),
            output: 1_000,
            healthy,
            known,
        }
    }

    async fn plays(mut self, counts: &mut Counts) -> Result<(), String> {
        let turns = 4 + self.dice.below(6);
        for _ in 0..turns {
            let strikes = !self.healthy && self.dice.once_in(2);
            let poison = strikes.then(|| self.dice.of(poisons(self.dialect)));
            self.speaks(poison);
            if let Some(poison) = poison {
                *counts.struck.entry(poison).or_default() += 1;
            }
            if self.dice.once_in(6) {
                let matcher = Matcher::builder().build();
                self.server =
                    TestServer::over(self.store.clone(), self.config.clone(), matcher).await;
            }
            self.exchange(poison, counts).await?;
        }
        Ok(())
    }

    /// What the person says, and what strikes.
    fn speaks(&mut self, poison: Option<Poison>) {
        let words = self.dice.words(6);
        match poison {
            Some(LargePicture) => {
                let seed = self.dice.below(100_000_000);
                let data = match self.dice.once_in(2) {
                    true => format!("iVBORw0KGgo{}{seed:08}", "A".repeat(5_000)),
                    false => noise(60, 40, seed as u32),
                };
                let picture = self.picture(&data);
                self.says(vec![picture, self.text(&words)]);
            }
            Some(NoPicture) => self.shows("AAAA", &words),
            Some(OtherType) => self.shows("/9j/", &words),
            Some(NoDocument) => {
                let data = format!("PGh0bWw+{:08}", self.dice.below(100_000_000));
                let document = self.document(&data);
                self.says(vec![document, self.text(&words)]);
            }
            Some(EmptyText) => self.says(vec![self.text(""), self.text(&words)]),
            Some(WhiteSpace) => self.says(vec![self.text(&words), self.text(" \n")]),
            Some(ItemTwice) => {
                let id = format!("call_{:08}", self.dice.below(100_000_000));
                self.says(vec![self.text(&words)]);
                self.calls(&id);
                let call = self.history.last_mut().unwrap();
                call["id"] = json!(format!("fc_{id}"));
                let call = call.clone();
                self.history.push(call);
                self.answers(&id);
            }
            Some(HalfCharacter) => self.says(vec![self.text(&format!("{words} HALF"))]),
            Some(LostResult) => {
                self.says(vec![self.text(&words)]);
                let id = format!("call_{:08}", self.dice.below(100_000_000));
                self.calls(&id);
                self.says(vec![self.text("Go on.")]);
            }
            Some(LostCall) => {
                let id = format!("call_{:08}", self.dice.below(100_000_000));
                self.says(vec![self.text(&words)]);
                self.answers(&id);
                self.says(vec![self.text("Go on.")]);
            }
            Some(IdForm) => {
                let id = format!("look:{}", self.dice.below(100_000_000));
                self.says(vec![self.text(&words)]);
                self.calls(&id);
                self.answers(&id);
            }
            Some(Markers) => {
                let marked = |at: usize| json!({"type": "text", "text": format!("{words} {at}"), "cache_control": {"type": "ephemeral"}});
                self.says((0..6).map(marked).collect());
            }
            Some(Member) => {
                let mut text = self.text(&words);
                text["source_note"] = json!("mine");
                self.says(vec![text]);
            }
            Some(ForeignThinking) => {
                let seal = format!("c2ln{:08}", self.dice.below(100_000_000));
                self.says(vec![self.text(&words)]);
                let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": seal});
                let said = json!({"type": "text", "text": format!("So {words}")});
                self.history.push(json!({"role": "assistant", "content": [thought, said]}));
                self.says(vec![self.text("Go on.")]);
            }
            Some(Prefill) => {
                self.says(vec![self.text(&words)]);
                self.history
                    .push(json!({"role": "assistant", "content": format!("I began {words}")}));
            }
            Some(TooMuchOutput) => {
                self.output = 64_000;
                self.says(vec![self.text(&words)]);
            }
            None => self.says(vec![self.text(&words)]),
        }
    }

    /// The person shows a picture whose base64 begins so.
    fn shows(&mut self, begins: &str, words: &str) {
        let data = format!("{begins}{:08}", self.dice.below(100_000_000));
        let picture = self.picture(&data);
        self.says(vec![picture, self.text(words)]);
    }

    fn text(&self, words: &str) -> Value {
        match self.dialect {
            Dialect::Gemini => json!({"text": words}),
            Dialect::Responses => json!({"type": "input_text", "text": words}),
            Dialect::Anthropic | Dialect::Chat => json!({"type": "text", "text": words}),
        }
    }

    fn picture(&self, data: &str) -> Value {
        let url = format!("data:image/png;base64,{data}");
        match self.dialect {
            Dialect::Anthropic => {
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
            }
            Dialect::Chat => json!({"type": "image_url", "image_url": {"url": url}}),
            Dialect::Responses => json!({"type": "input_image", "image_url": url}),
            Dialect::Gemini => json!({"inlineData": {"mimeType": "image/png", "data": data}}),
        }
    }

    /// A web page, for example, that is called a PDF.
    fn document(&self, data: &str) -> Value {
        match self.dialect {
            Dialect::Gemini => json!({"inlineData": {"mimeType": "application/pdf", "data": data}}),
            _ => {
                json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}})
            }
        }
    }

    fn says(&mut self, parts: Vec<Value>) {
        let name = if self.dialect == Dialect::Gemini { "parts" } else { "content" };
        self.history.push(json!({"role": "user", name: parts}));
    }

    fn calls(&mut self, id: &str) {
        self.history.push(match self.dialect {
            Dialect::Anthropic => json!({"role": "assistant", "content": [
                {"type": "tool_use", "id": id, "name": "look", "input": {}}]}),
            Dialect::Chat => json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}]}),
            Dialect::Responses => {
                json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"})
            }
            Dialect::Gemini => {
                json!({"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"id": id}}}]})
            }
        });
    }

    fn answers(&mut self, id: &str) {
        self.history.push(match self.dialect {
            Dialect::Anthropic => json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": "Seen."}]}),
            Dialect::Chat => json!({"role": "tool", "tool_call_id": id, "content": "Seen."}),
            Dialect::Responses => {
                json!({"type": "function_call_output", "call_id": id, "output": "Seen."})
            }
            Dialect::Gemini => json!({"role": "user", "parts": [
                {"functionResponse": {"name": "look", "response": {"output": id}}}]}),
        });
    }

    fn request(&self) -> (&'static str, String) {
        let history = &self.history;
        let (target, body) = match self.dialect {
            Dialect::Anthropic => (
                "/v1/messages",
                json!({"model": "claude-sonnet-4-6", "max_tokens": self.output, "messages": history,
                    "tools": [{"name": "look", "input_schema": {"type": "object"}}]}),
            ),
            Dialect::Chat => (
                "/v1/chat/completions",
                json!({"model": "gpt-5.5", "max_completion_tokens": self.output, "messages": history}),
            ),
            Dialect::Responses => (
                "/v1/responses",
                json!({"model": "gpt-5.5", "max_output_tokens": self.output, "store": false, "input": history}),
            ),
            Dialect::Gemini => (
                "/v1beta/models/gemini-2.5-pro:generateContent",
                json!({"contents": history, "generationConfig": {"maxOutputTokens": self.output}}),
            ),
        };
        (target, body.to_string().replace("HALF", "\\ud83d"))
    }

    /// One exchange: it is answered, and only what is new is refused first.
    async fn exchange(
        &mut self,
        poison: Option<Poison>,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let words = self.dice.words(4);
        self.provider.say(Reply::text(&words));
        self.provider.take_log();
        let (target, body) = self.request();
        let head = format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nanthropic-version: 2023-06-01\r\n\
             x-plimsoll-session: s\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut client = Wire::connect(self.server.address).await;
        client.send(format!("{head}{body}")).await;
        let response = client.response().await;
        let (status, text) = (response.status(), response.text().to_owned());
        let told = self.server.told().await;
        let sent = self.provider.take_log().len();
        let at = format!("{:?} {poison:?} after {:?}", self.dialect, self.known);
        if status != 200 {
            return Err(format!("{at}: {status} {text} {:?}", told.refusal));
        }
        // A rule is kept: what breaks it later is not refused first. Pictures and thoughts are each their own.
        let each = [LargePicture, NoPicture, OtherType, NoDocument, ForeignThinking, Prefill];
        // What is empty and what does not pair is one rule each.
        let rule = |it: Poison| match it {
            WhiteSpace => EmptyText,
            LostCall | ItemTwice => LostResult,
            other => other,
        };
        let is_known = |it| self.known.iter().any(|known| rule(*known) == rule(it));
        let is_new = poison.is_some_and(|it| each.contains(&it) || !is_known(it));
        let most = if is_new { 2 } else { 1 };
        if sent > most {
            return Err(format!("{at}: sent {sent} times, {:?}", told.refusal));
        }
        if self.known.is_empty() && poison.is_none() && (sent != 1 || told.done.made.repaired > 0) {
            return Err(format!("{at}: changed though nothing struck"));
        }
        self.known.extend(poison);
        counts.exchanges += 1;
        counts.healthy += u64::from(self.healthy);
        counts.extra += sent as u64 - 1;
        let answer: Value = serde_json::from_str(&text).map_err(|why| why.to_string())?;
        match self.dialect {
            Dialect::Anthropic => {
                self.history.push(json!({"role": "assistant", "content": answer["content"]}));
            }
            Dialect::Chat => {
                let words = &answer["choices"][0]["message"]["content"];
                self.history.push(json!({"role": "assistant", "content": words}));
            }
            Dialect::Responses => {
                self.history.extend(answer["output"].as_array().cloned().unwrap_or_default());
            }
            Dialect::Gemini => self.history.push(answer["candidates"][0]["content"].clone()),
        }
        Ok(())
    }
}
