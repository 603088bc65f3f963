//! Conversations whose history gets content that the provider refuses. Each one that an edit can save goes on, with
//! the rest repeated (`docs/healing.md`). Conversations without defects see no edit, and no request is sent twice.
//!
//! `make harmless POISON=1 N=500` plays that many; `PLIMSOLL_POISON_SEED` one alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::policy::{ImageRepair, Policy, RepairPolicy};
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use scripted_provider::strict::{self, Clock, Dialect, Rules, ScriptedReply, StrictProvider};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::stage::patient;
use crate::support::http1::Wire;
use crate::support::noise::noise;
use crate::support::server::{TestServer, config};
use crate::{first_seed, number};

/// Conversations that `cargo test` plays.
const FEW: u64 = 80;
/// One in so many conversations has no defects.
const CLEAN_ONE_IN: usize = 4;
/// Most output that the model writes.
const OUTPUT: u64 = 8_192;

/// Content that a provider refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Defect {
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

use Defect::{
    EmptyText, ForeignThinking, HalfCharacter, IdForm, ItemTwice, LargePicture, LostCall,
    LostResult, Markers, Member, NoDocument, NoPicture, OtherType, Prefill, TooMuchOutput,
    WhiteSpace,
};

/// The defects that the provider of each protocol refuses.
fn defects(dialect: Dialect) -> &'static [Defect] {
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
    clean: u64,
    defects: BTreeMap<Defect, u64>,
    resent: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_session_continues_if_repair_can_fix_it() {
    let seeds = match number("PLIMSOLL_POISON_SEED") {
        Some(seed) => seed..seed + 1,
        None => first_seed()..first_seed() + number("PLIMSOLL_POISON").unwrap_or(FEW),
    };
    let mut counts = Counts::default();
    let mut dead = Vec::new();
    for seed in seeds.clone() {
        if let Err(message) = Play::open(seed).await.run(&mut counts).await {
            println!("seed {seed}: {message}");
            dead.push(format!("seed {seed}: {message}"));
        }
    }
    println!(
        "{} exchanges, {} of conversations without defects; {} requests sent again; defects: {:?}",
        counts.exchanges, counts.clean, counts.resent, counts.defects
    );
    assert!(dead.is_empty(), "{} sessions stayed dead:\n{}", dead.len(), dead.join("\n"));
    // A few other seeds may miss one of the defects.
    if seeds.start == 0 && seeds.end >= FEW {
        assert!(counts.defects.len() == 16, "{:?}", counts.defects);
        assert!(counts.clean > 0, "{:?}", counts.defects);
    }
}

struct Play {
    dice: Dice,
    dialect: Dialect,
    provider: StrictProvider,
    _serving: strict::StrictServer,
    store: Arc<dyn Store>,
    config: Config,
    server: TestServer,
    history: Vec<Value>,
    output: u64,
    is_clean: bool,
    /// Defects so far: the session has learned these kinds.
    earlier_defects: Vec<Defect>,
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
            Rules { max_image_bytes: 4_000, max_output_tokens: Some(OUTPUT), ..Rules::default() };
        let provider = StrictProvider::with_clock(rules, seed, Clock::manual());
        let serving = strict::serve(provider.clone()).await.unwrap();
        let mut config = patient(config(&serving.base()));
        let images = dice.of(&[ImageRepair::Text, ImageRepair::Shrink]);
        let heal = RepairPolicy { images, ..RepairPolicy::default() };
        let policy = Policy { heal, ..Policy::default() };
        (config.mode, config.policy) = (Mode::Active, Arc::new(policy));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let server =
            TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await;
        let is_clean = dice.once_in(CLEAN_ONE_IN);
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
            is_clean,
            earlier_defects: Vec::new(),
        }
    }

    async fn run(mut self, counts: &mut Counts) -> Result<(), String> {
        let turns = 4 + self.dice.below(6);
        for _ in 0..turns {
            let has_defect = !self.is_clean && self.dice.once_in(2);
            let defect = has_defect.then(|| self.dice.of(defects(self.dialect)));
            self.push_turn(defect);
            if let Some(defect) = defect {
                *counts.defects.entry(defect).or_default() += 1;
            }
            if self.dice.once_in(6) {
                let matcher = Matcher::builder().build();
                self.server =
                    TestServer::over(self.store.clone(), self.config.clone(), matcher).await;
            }
            self.exchange(defect, counts).await?;
        }
        Ok(())
    }

    /// Adds a user message, with a defect if there is one.
    fn push_turn(&mut self, defect: Option<Defect>) {
        let words = self.dice.words(6);
        match defect {
            Some(LargePicture) => {
                let seed = self.dice.below(100_000_000);
                let data = match self.dice.once_in(2) {
                    true => format!("iVBORw0KGgo{}{seed:08}", "A".repeat(5_000)),
                    false => noise(60, 40, seed as u32),
                };
                let picture = self.picture(&data);
                self.push_user(vec![picture, self.text(&words)]);
            }
            Some(NoPicture) => self.push_picture("AAAA", &words),
            Some(OtherType) => self.push_picture("/9j/", &words),
            Some(NoDocument) => {
                let data = format!("PGh0bWw+{:08}", self.dice.below(100_000_000));
                let document = self.document(&data);
                self.push_user(vec![document, self.text(&words)]);
            }
            Some(EmptyText) => self.push_user(vec![self.text(""), self.text(&words)]),
            Some(WhiteSpace) => self.push_user(vec![self.text(&words), self.text(" \n")]),
            Some(ItemTwice) => {
                let id = format!("call_{:08}", self.dice.below(100_000_000));
                self.push_user(vec![self.text(&words)]);
                self.push_call(&id);
                let call = self.history.last_mut().unwrap();
                call["id"] = json!(format!("fc_{id}"));
                let call = call.clone();
                self.history.push(call);
                self.push_result(&id);
            }
            Some(HalfCharacter) => self.push_user(vec![self.text(&format!("{words} HALF"))]),
            Some(LostResult) => {
                self.push_user(vec![self.text(&words)]);
                let id = format!("call_{:08}", self.dice.below(100_000_000));
                self.push_call(&id);
                self.push_user(vec![self.text("Go on.")]);
            }
            Some(LostCall) => {
                let id = format!("call_{:08}", self.dice.below(100_000_000));
                self.push_user(vec![self.text(&words)]);
                self.push_result(&id);
                self.push_user(vec![self.text("Go on.")]);
            }
            Some(IdForm) => {
                let id = format!("look:{}", self.dice.below(100_000_000));
                self.push_user(vec![self.text(&words)]);
                self.push_call(&id);
                self.push_result(&id);
            }
            Some(Markers) => {
                let marked = |at: usize| json!({"type": "text", "text": format!("{words} {at}"), "cache_control": {"type": "ephemeral"}});
                self.push_user((0..6).map(marked).collect());
            }
            Some(Member) => {
                let mut text = self.text(&words);
                text["source_note"] = json!("mine");
                self.push_user(vec![text]);
            }
            Some(ForeignThinking) => {
                let signature = format!("c2ln{:08}", self.dice.below(100_000_000));
                self.push_user(vec![self.text(&words)]);
                let thinking =
                    json!({"type": "thinking", "thinking": "Hm.", "signature": signature});
                let text = json!({"type": "text", "text": format!("So {words}")});
                self.history.push(json!({"role": "assistant", "content": [thinking, text]}));
                self.push_user(vec![self.text("Go on.")]);
            }
            Some(Prefill) => {
                self.push_user(vec![self.text(&words)]);
                self.history
                    .push(json!({"role": "assistant", "content": format!("I began {words}")}));
            }
            Some(TooMuchOutput) => {
                self.output = 64_000;
                self.push_user(vec![self.text(&words)]);
            }
            None => self.push_user(vec![self.text(&words)]),
        }
    }

    /// Adds a user message with a picture whose base64 begins so.
    fn push_picture(&mut self, base64_start: &str, words: &str) {
        let data = format!("{base64_start}{:08}", self.dice.below(100_000_000));
        let picture = self.picture(&data);
        self.push_user(vec![picture, self.text(words)]);
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

    fn push_user(&mut self, parts: Vec<Value>) {
        let name = if self.dialect == Dialect::Gemini { "parts" } else { "content" };
        self.history.push(json!({"role": "user", name: parts}));
    }

    fn push_call(&mut self, id: &str) {
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

    fn push_result(&mut self, id: &str) {
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
        // With the space, because the base64 of a picture may have these letters.
        (target, body.to_string().replace(" HALF", " \\ud83d"))
    }

    /// One exchange: it is answered, and only what is new is refused first.
    async fn exchange(
        &mut self,
        defect: Option<Defect>,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let words = self.dice.words(4);
        self.provider.queue_reply(ScriptedReply::text(&words));
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
        let exchange = self.server.next_exchange().await;
        let sent = self.provider.take_log().len();
        let context = format!("{:?} {defect:?} after {:?}", self.dialect, self.earlier_defects);
        if status != 200 {
            return Err(format!("{context}: {status} {text} {:?}", exchange.refusal));
        }
        // A learned rule is applied before sending. Pictures and thinking are each learned one by one.
        let always_new = [LargePicture, NoPicture, OtherType, NoDocument, ForeignThinking, Prefill];
        // Empty content and broken pairs are one rule each.
        let rule = |it: Defect| match it {
            WhiteSpace => EmptyText,
            LostCall | ItemTwice => LostResult,
            other => other,
        };
        let is_known = |it| self.earlier_defects.iter().any(|known| rule(*known) == rule(it));
        let is_new = defect.is_some_and(|it| always_new.contains(&it) || !is_known(it));
        let max_requests = if is_new { 2 } else { 1 };
        if sent > max_requests {
            return Err(format!("{context}: sent {sent} times, {:?}", exchange.refusal));
        }
        if self.earlier_defects.is_empty()
            && defect.is_none()
            && (sent != 1 || exchange.done.made.repaired > 0)
        {
            return Err(format!("{context}: changed without a defect"));
        }
        self.earlier_defects.extend(defect);
        counts.exchanges += 1;
        counts.clean += u64::from(self.is_clean);
        counts.resent += sent as u64 - 1;
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
