//! A provider that checks what real ones check, and answers with their errors: the oracle of the
//! tests, and the demo's conscience.
//!
//! Written from `docs/protocols.md` (cited at each rule), apart from the
//! product's readers: it imports nothing of the floors below. It remembers what it issued
//! (signatures, encrypted reasoning, replies) and what it cached, and tells every silent loss.
//! [`Provider::judge`] is the heart, pure but for that memory; [`serve()`] puts it on a socket.

mod anthropic;
mod cache;
mod gemini;
mod limits;
mod openai_chat;
mod openai_responses;
mod prompt;
mod reply;
mod reply_store;
mod request_log;
mod rules;
mod serve;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use cache::{Cache, Policy};
use prompt::{Piece, hash};
use reply::{Author, Scene};
use reply_store::{Book, Mint, Prefix};
use request_log::Log;
use rules::Model;

pub use cache::{Cached, Miss};
pub use prompt::{MEDIA, PROMPT, Place, STRUCTURE, Ttl};
pub use reply::{Part, Reply};
pub use request_log::Judged;
pub use rules::{Echo, Rules, Signatures};
pub use serve::{Serving, serve};
pub use verdict::{Accepted, Loss, Refusal, Rule, Transformation, Verdict, Why};

/// The protocol a call speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions and its look-alikes.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Gemini `generateContent`.
    Gemini,
}

impl Dialect {
    fn word(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Gemini => "gemini",
        }
    }
}

/// What a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A reply.
    Answer,
    /// The number of its input tokens (`docs/protocols.md` 6).
    Count,
    /// What stands in place of its history (`docs/protocols.md` 1.3, 3.3).
    Compact,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Call {
    /// The protocol, by the path.
    pub dialect: Dialect,
    /// What is wanted, by the path.
    pub purpose: Purpose,
    /// The model, by path or body; empty where none is named.
    pub model: String,
    /// Whether the reply streams.
    pub stream: bool,
    /// Whether a Gemini stream is framed as events; as one JSON array where not (`docs/protocols.md` 5.1).
    pub framed: bool,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The body as it arrived.
    pub bytes: Bytes,
    /// The body read; copies of the call share it.
    pub body: Arc<Value>,
    /// The account: a hash of the credential; `None` without one.
    pub account: Option<u128>,
    /// When, since the provider began.
    pub at: Duration,
}

impl Call {
    /// Reads a request; `None` where the path is none of ours. A body that is not JSON reads as null,
    /// which every protocol refuses.
    pub fn read(path: &str, headers: &HeaderMap, bytes: Bytes, at: Duration) -> Option<Self> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let (dialect, purpose) = match last {
            "messages" if body["compaction"].is_object() => (Dialect::Anthropic, Purpose::Compact),
            "messages" => (Dialect::Anthropic, Purpose::Answer),
            "compact" if path.ends_with("/responses/compact") => {
                (Dialect::Responses, Purpose::Compact)
            }
            "count_tokens" => (Dialect::Anthropic, Purpose::Count),
            "completions" if path.ends_with("/chat/completions") => {
                (Dialect::Chat, Purpose::Answer)
            }
            "responses" => (Dialect::Responses, Purpose::Answer),
            "input_tokens" => (Dialect::Responses, Purpose::Count),
            _ => match last.split_once(':')?.1 {
                "generateContent" | "streamGenerateContent" => (Dialect::Gemini, Purpose::Answer),
                "countTokens" => (Dialect::Gemini, Purpose::Count),
                _ => return None,
            },
        };
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let named = body["model"].as_str().unwrap_or_default();
        let model = last.split_once(':').map_or(named, |(model, _)| model).to_owned();
        let stream = match dialect {
            Dialect::Gemini => last.ends_with(":streamGenerateContent"),
            _ => body["stream"] == true,
        };
        Some(Self {
            dialect,
            purpose,
            model,
            stream,
            framed: dialect != Dialect::Gemini || parameter("alt") == Some("sse"),
            account: account(headers, parameter("key")),
            headers: headers.clone(),
            bytes,
            body: Arc::new(body),
            at,
        })
    }

    /// A header's text; several lines of it joined by commas.
    fn header(&self, name: &str) -> Option<String> {
        let lines: Vec<&str> =
            self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        (!lines.is_empty()).then(|| lines.join(","))
    }
}

/// The account behind a credential: the key alone, whichever header carries it.
fn account(headers: &HeaderMap, key: Option<&str>) -> Option<u128> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let credential = header("x-api-key")
        .or_else(|| header("x-goog-api-key"))
        .or_else(|| header("api-key"))
        .or_else(|| header("authorization").map(|all| all.trim_start_matches("Bearer ")))
        .or(key)?;
    Some(hash(&[credential]))
}

/// The time, as a test or the machine has it.
#[derive(Clone, Debug)]
pub struct Clock(Time);

#[derive(Clone, Debug)]
enum Time {
    Real(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's time, from now on.
    pub fn real() -> Self {
        Self(Time::Real(Instant::now()))
    }

    /// A time that stands until it is advanced. Copies share it.
    pub fn manual() -> Self {
        Self(Time::Manual(Arc::default()))
    }

    /// Lets time pass; the machine's passes by itself.
    pub fn advance(&self, by: Duration) {
        if let Time::Manual(ms) = &self.0 {
            ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
        }
    }

    /// Time since the beginning.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Time::Real(began) => began.elapsed(),
            Time::Manual(ms) => Duration::from_millis(ms.load(Ordering::SeqCst)),
        }
    }
}

/// The strict provider. Copies share their memory.
#[derive(Clone)]
pub struct Provider {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("clock", &self.clock).finish_non_exhaustive()
    }
}

struct State {
    rules: Rules,
    book: Book,
    cache: Cache,
    mint: Mint,
    author: Author,
    script: VecDeque<Reply>,
    /// Replies to requests that hold certain words.
    asides: Vec<(String, Reply)>,
    /// The next stream breaks off after so many events.
    breaks_after: Option<usize>,
    log: Log,
}

/// What a dialect found out about a request that it accepts.
struct Reading {
    /// The prompt as the model reads it.
    pieces: Vec<Piece>,
    /// What keeps its cache apart, besides account and model.
    cache_key: u128,
    policy: Policy,
    /// What new reasoning will be bound to.
    prefix: Prefix,
    /// The newest seal in the conversation.
    last_seal: Option<usize>,
    /// The reply of ours that the request grew from.
    parent: Option<usize>,
    scene: Scene,
    /// Whether new thinking is shown without its text.
    omits: bool,
    transformations: Vec<Transformation>,
    edits: Vec<Value>,
    /// Where the provider itself took out or replaced what was sent.
    own: Vec<Place>,
    losses: Vec<Loss>,
    /// Tokens before the provider's own edits.
    unedited: u64,
}

/// What stays of a [`Reading`] for the reply.
#[derive(Clone, Debug, Default)]
struct Standing {
    prefix: Prefix,
    last_seal: Option<usize>,
    scene: Scene,
    omits: bool,
    trail: Option<cache::Trail>,
}

/// The answer to a call: what to send.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers besides `content-type`.
    pub headers: Vec<(&'static str, String)>,
    /// The whole answer as JSON. Where a stream was asked for and the status is 200, it is what the
    /// stream says in parts.
    pub body: Value,
}

impl Provider {
    /// A provider with these rules on the machine's clock; `seed` decides what it says and how its
    /// signatures look.
    pub fn new(rules: Rules, seed: u64) -> Self {
        Self::at(rules, seed, Clock::real())
    }

    /// A provider on a clock of the test's.
    pub fn at(rules: Rules, seed: u64, clock: Clock) -> Self {
        let state = State {
            rules,
            book: Book::default(),
            cache: Cache::default(),
            mint: Mint::new(seed),
            author: Author::new(seed),
            script: VecDeque::new(),
            asides: Vec::new(),
            breaks_after: None,
            log: Log::default(),
        };
        Self { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Other rules from now on.
    pub fn set_rules(&self, rules: Rules) {
        self.state().rules = rules;
    }

    /// What it answers next, before the author speaks again; several are answered in order. Only
    /// calls for an answer that are accepted take one.
    pub fn say(&self, reply: Reply) {
        self.state().script.push_back(reply);
    }

    /// What it answers to every request that holds these words: such a request takes nothing of what
    /// was said to be answered in order.
    pub fn say_to(&self, words: &str, reply: Reply) {
        self.state().asides.push((words.to_owned(), reply));
    }

    /// The next answer that is streamed breaks off after so many events.
    pub fn break_off_after(&self, events: usize) {
        self.state().breaks_after = Some(events);
    }

    /// What was judged since the last time, oldest first.
    pub fn take_log(&self) -> Vec<Judged> {
        self.state().log.take()
    }

    /// Judges a request: what a real provider would refuse, and what it would silently lose. Moves
    /// the prompt cache (for an answer, not for a count), and is logged.
    pub fn judge(&self, call: &Call) -> Verdict {
        self.state().judge(call)
    }

    /// What would become of a request, without a trace of it: nothing moves, nothing is logged, and
    /// the prompt cache is not asked. Answers what would be lost.
    ///
    /// # Errors
    /// The [`Refusal`] that it would meet.
    pub fn would(
        &self,
        path: &str,
        headers: &HeaderMap,
        bytes: Bytes,
    ) -> Result<Vec<Loss>, Box<Refusal>> {
        let state = self.state();
        let Some(call) = Call::read(path, headers, bytes, self.clock.now()) else {
            return Ok(Vec::new());
        };
        let model = state.rules.of(call.dialect, &call.model);
        state.read(&call, &model).map(|reading| reading.losses).map_err(Box::new)
    }

    /// The same by a provider that does not bind reasoning to what stands before it.
    ///
    /// # Errors
    /// The [`Refusal`] that it would meet.
    pub fn would_unbound(
        &self,
        path: &str,
        headers: &HeaderMap,
        bytes: Bytes,
    ) -> Result<Vec<Loss>, Box<Refusal>> {
        let state = self.state();
        let Some(call) = Call::read(path, headers, bytes, self.clock.now()) else {
            return Ok(Vec::new());
        };
        let mut model = state.rules.of(call.dialect, &call.model);
        model.binding = false;
        state.read(&call, &model).map(|reading| reading.losses).map_err(Box::new)
    }

    /// Judges a request and answers it: the error, the count, or the next reply with fresh
    /// signatures, which are remembered.
    pub fn answer(&self, call: &Call) -> Answer {
        self.state().answer(call)
    }

    /// Remembers a reply that somebody else wrote as if it were ours: its signatures, ids and texts
    /// count as issued for this request.
    pub fn remember(&self, call: &Call, accepted: &Accepted, whole: &Value) {
        self.state().remember(call, accepted, whole, &[]);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the first difference at `place` is where the provider itself changed the prompt: there,
/// or between there and the piece before.
fn by_own_hand(own: &[Place], pieces: &[Piece], place: Place) -> bool {
    let at = pieces.iter().position(|piece| piece.place == place).unwrap_or(pieces.len());
    let before = at.checked_sub(1).map(|at| pieces[at].place);
    own.iter().any(|own| *own <= place && before.is_none_or(|before| *own > before))
}

impl State {
    fn judge(&mut self, call: &Call) -> Verdict {
        let model = self.rules.of(call.dialect, &call.model);
        let is_wild =
            call.purpose == Purpose::Answer && std::mem::take(&mut self.rules.wild_overflow);
        let verdict = match self.read(call, &model) {
            Ok(_) if is_wild => Verdict::Refused(limits::wild_overflow(call)),
            Ok(reading) => self.accept(call, &model, reading),
            Err(refusal) => Verdict::Refused(refusal),
        };
        self.log.add(call, &verdict);
        verdict
    }

    fn read(&self, call: &Call, model: &Model) -> Result<Reading, Refusal> {
        limits::check(call, &self.rules)?;
        match call.dialect {
            Dialect::Anthropic => anthropic::read(call, model, &self.book),
            Dialect::Chat => openai_chat::read(call, model, &self.book),
            Dialect::Responses => openai_responses::read(call, model, &self.book),
            Dialect::Gemini => gemini::read(call, model, &self.book),
        }
    }

    fn accept(&mut self, call: &Call, model: &Model, reading: Reading) -> Verdict {
        let mut accepted = Accepted {
            input_tokens: PROMPT + reading.pieces.iter().map(|piece| piece.tokens).sum::<u64>(),
            unedited_tokens: reading.unedited,
            cached: Cached::default(),
            transformations: reading.transformations,
            edits: reading.edits,
            losses: reading.losses,
            standing: Arc::default(),
        };
        let mut standing = Standing {
            prefix: reading.prefix,
            last_seal: reading.last_seal,
            scene: reading.scene,
            omits: reading.omits,
            trail: None,
        };
        if call.purpose != Purpose::Count {
            let account = call.account.unwrap_or_default();
            let space = [hash(&[&model.name]), account, reading.cache_key];
            let space = space.into_iter().fold(0, prompt::link);
            let parent = reading.parent.and_then(|reply| self.book.reply(reply));
            let before = parent.and_then(|reply| reply.trail.as_ref());
            let (mut cached, trail) =
                self.cache.pass(space, &reading.pieces, PROMPT, reading.policy, before, call.at);
            standing.trail = Some(trail);
            if let Some((tokens, Miss::Changed(place))) = cached.missed
                && by_own_hand(&reading.own, &reading.pieces, place)
            {
                cached.missed = Some((tokens, Miss::Own(place)));
            } else if let Some((tokens, why)) = cached.missed {
                accepted.losses.push(Loss::CacheMissed { tokens, why });
            }
            accepted.cached = cached;
        }
        accepted.standing = Arc::new(standing);
        Verdict::Accepted(accepted)
    }

    fn answer(&mut self, call: &Call) -> Answer {
        let accepted = match self.judge(call) {
            Verdict::Refused(Refusal { status, headers, body, .. }) => {
                return Answer { status, headers, body: *body };
            }
            Verdict::Accepted(accepted) => accepted,
        };
        let body = match (call.purpose, call.dialect) {
            (Purpose::Count, Dialect::Responses) => openai_responses::count(&accepted),
            (Purpose::Count, Dialect::Gemini) => gemini::count(&accepted),
            (Purpose::Count, _) => anthropic::count(&accepted),
            (Purpose::Compact, Dialect::Responses) => {
                let model = self.rules.of(call.dialect, &call.model);
                let (book, mint) = (&mut self.book, &mut self.mint);
                openai_responses::compact(call, &model, &accepted, book, mint)
            }
            (Purpose::Compact, _) => {
                let model = self.rules.of(call.dialect, &call.model);
                let (book, mint) = (&mut self.book, &mut self.mint);
                anthropic::compact(call, &model, &accepted, book, mint)
            }
            (Purpose::Answer, _) => {
                let (whole, weights) = self.write(call, &accepted);
                self.remember(call, &accepted, &whole, &weights);
                self.log.answered(&whole);
                whole
            }
        };
        Answer { status: 200, headers: vec![("request-id", self.mint.id("req_"))], body }
    }

    /// The next reply in the protocol's words, with what each piece of reasoning weighs.
    fn write(&mut self, call: &Call, accepted: &Accepted) -> (Value, Vec<u64>) {
        let scene = &accepted.standing.scene;
        let asked = |(words, _): &&(String, Reply)| {
            memchr::memmem::find(&call.bytes, words.as_bytes()).is_some()
        };
        let aside = self.asides.iter().find(asked).map(|(_, reply)| reply.clone());
        let scripted = aside.or_else(|| self.script.pop_front());
        let mut reply = scripted.unwrap_or_else(|| self.author.next(scene));
        if !scene.thinks {
            reply = reply.unthinking();
        }
        let model = self.rules.of(call.dialect, &call.model);
        let mint = &mut self.mint;
        match call.dialect {
            Dialect::Anthropic => anthropic::write(call, accepted, &reply, mint),
            Dialect::Chat => (openai_chat::write(call, &model, accepted, &reply, mint), Vec::new()),
            Dialect::Responses => openai_responses::write(call, &model, accepted, &reply, mint),
            Dialect::Gemini => gemini::write(call, &model, accepted, &reply, mint),
        }
    }

    fn remember(&mut self, call: &Call, accepted: &Accepted, whole: &Value, weights: &[u64]) {
        let model = self.rules.of(call.dialect, &call.model);
        let book = &mut self.book;
        match call.dialect {
            Dialect::Anthropic => {
                anthropic::remember(call, &model, accepted, whole, weights, book);
            }
            Dialect::Chat => openai_chat::remember(call, &model, accepted, whole, book),
            Dialect::Responses => {
                openai_responses::remember(call, &model, accepted, whole, weights, book);
            }
            Dialect::Gemini => gemini::remember(call, &model, accepted, whole, weights, book),
        }
    }
}
