//! Clients without a session id, several at once with one credential, some of them with equal prompts: each stays one
//! session and thread, and none gets what is another's (`docs/protocols.md` 8.2).
//!
//! They edit replies, drop texts, retrieve text for one request, and ask another model if one declines; the proxy
//! starts again in between. While two of them are equal to the letter they may change places, which nobody sees.
//!
//! `make harmless N=5000` plays as many of these; `PLIMSOLL_STRANGERS_SEED` plays one alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::policy::ReinjectPolicy;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{
    self, Clock, Dialect, OddReply, Rules, ScriptedReply, StrictProvider, StrictServer,
};
use serde_json::{Value, json};

use crate::client::{self, ClientStyle, Head, HistoryItem, KeptReasoning, ToolCall, ToolResult};
use crate::dice::Dice;
use crate::proof::is_telling;
use crate::random;
use crate::stage::{client_headers, patient};
use crate::support::http1::Wire;
use crate::support::server::{TestServer, config};
use crate::{first_seed, number};

/// Conversations that `cargo test` plays.
const FEW: u64 = 60;

/// How a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    Own,
    Shared,
    /// Another one for each request.
    New,
}

/// Session and thread.
type Place = (String, String);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_stay_apart() {
    // Each is played by several clients, one after the other.
    let count = number("PLIMSOLL_HARMLESS").map_or(FEW, |count| count / 5);
    let seeds = match number("PLIMSOLL_STRANGERS_SEED") {
        Some(seed) => seed..seed + 1,
        None => first_seed()..first_seed() + count,
    };
    let is_verbose = seeds.end - seeds.start == 1;
    let (mut played, mut harm) = (BTreeMap::new(), Vec::new());
    for seed in seeds {
        if let Err(message) = Play::open(seed, is_verbose).await.run(&mut played).await {
            println!("seed {seed} is harmed: {message}");
            harm.push(format!("seed {seed}: {message}"));
        }
    }
    println!("{played:?}");
    assert!(harm.is_empty(), "{}:\n{}", harm.len(), harm.join("\n"));
    for what in ["continued", "changed places", "declined", "restarted", "not provable"] {
        assert!(is_verbose || played.contains_key(what), "{what}: {played:?}");
    }
}

struct Stranger {
    name: usize,
    style: ClientStyle,
    head: Head,
    connection: Connection,
    wire: Option<Wire>,
    /// Its words and results are those of all others for so many requests, and its replies, too, unless they are its own.
    alike: usize,
    own_replies: bool,
    requests: usize,
    history: Vec<HistoryItem>,
    /// Calls that wait for their results.
    calls: Vec<ToolCall>,
    /// Where its newest answered request was placed.
    place: Option<Place>,
    /// The next request may begin another session, because nothing proves whose it is.
    is_lost: bool,
    is_declined: bool,
    /// Its reasoning is recorded.
    is_recorded: bool,
}

impl Stranger {
    /// The dice for its next request, or for the reply to it: those of all while they are alike.
    fn dice(&self, seed: u64, is_reply: bool) -> Dice {
        let is_own = self.requests >= self.alike || is_reply && self.own_replies;
        let name = if is_own { 1 + self.name } else { 0 };
        let number = 2 * self.requests + usize::from(is_reply);
        Dice::new(seed ^ ((number as u64) << 32) ^ ((name as u64) << 48))
    }

    /// What is known of it once its newest reply has come back: all that could tell it from another one.
    fn seen(&self, dialect: Dialect) -> Vec<Value> {
        // Signatures that policy keeps no record of tell nothing.
        let kept_reasoning =
            if self.is_recorded { self.style.kept_reasoning } else { KeptReasoning::None };
        // Nor do the ids of Gemini's calls: clients drop them or make their own, so that they are in no key.
        let drops_call_ids = dialect == Dialect::Gemini;
        let style = ClientStyle { retrieves: None, kept_reasoning, drops_call_ids, ..self.style };
        let body = client::request(dialect, &self.head, &self.history, style);
        client::history(dialect, &body)
    }
}

struct Play {
    seed: u64,
    dice: Dice,
    dialect: Dialect,
    provider: StrictProvider,
    _serving: StrictServer,
    store: Arc<dyn Store>,
    config: Config,
    server: TestServer,
    shared: Option<Wire>,
    strangers: Vec<Stranger>,
    is_verbose: bool,
}

impl Play {
    async fn open(seed: u64, is_verbose: bool) -> Self {
        let mut dice = Dice::new(seed.rotate_left(20));
        let all = [Dialect::Anthropic, Dialect::Chat, Dialect::Responses, Dialect::Gemini];
        let dialect = dice.of(&all);
        let provider = StrictProvider::with_clock(Rules::default(), seed, Clock::manual());
        let serving = strict::serve(provider.clone()).await.unwrap();
        let mut config = patient(config(&serving.base()));
        config.mode = Mode::Active;
        config.policy = Arc::new(random::policy(&mut dice));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let server = open(&store, &config).await;
        let is_recorded = config.policy.reasoning.reinject == ReinjectPolicy::Auto;
        let strangers = strangers(&mut dice, dialect, is_recorded);
        Self {
            seed,
            dice,
            dialect,
            provider,
            _serving: serving,
            store,
            config,
            server,
            shared: None,
            strangers,
            is_verbose,
        }
    }

    async fn run(mut self, played: &mut BTreeMap<&'static str, u64>) -> Result<(), String> {
        for _ in 0..6 * self.strangers.len() {
            let nth = self.dice.below(self.strangers.len());
            let mut stranger = self.strangers.remove(nth);
            let result = self.step(&mut stranger, played).await;
            self.strangers.insert(nth, stranger);
            result.map_err(|why| format!("{:?}: {why}", self.dialect))?;
            if self.dice.once_in(15) {
                self.restart().await;
                *played.entry("restarted").or_default() += 1;
            }
        }
        Ok(())
    }

    async fn restart(&mut self) {
        self.server.stop();
        self.server = open(&self.store, &self.config).await;
        self.shared = None;
        for stranger in &mut self.strangers {
            stranger.wire = None;
            // Of equal sessions the store has the newest, and of a declined first request none.
            let is_equal = stranger.alike > 0 && stranger.requests <= stranger.alike;
            stranger.is_lost |= is_equal || stranger.history.len() == 1;
        }
    }

    /// The next request of one of them, and its reply.
    async fn step(
        &mut self,
        stranger: &mut Stranger,
        played: &mut BTreeMap<&'static str, u64>,
    ) -> Result<(), String> {
        if !stranger.is_declined {
            self.say(stranger);
        }
        let mut dice = stranger.dice(self.seed, true);
        let declines = !stranger.is_declined && dice.once_in(6);
        self.provider.odd_reply_next(declines.then_some(OddReply::Declined));
        self.provider.queue_reply(reply(&mut dice, !stranger.head.tools.is_empty()));
        let body = client::request(self.dialect, &stranger.head, &stranger.history, stranger.style);
        let target = client::path(self.dialect, &stranger.head);
        let is_fine =
            self.provider.dry_run(&target, &client_headers(), body.to_string().into()).is_ok();
        let (status, text) = self.send(stranger, &body).await;
        let exchange = self.server.next_exchange().await;
        let log = self.provider.take_log();
        if self.is_verbose {
            println!("{} {:?} by {:?}: {body}", stranger.name, place(&exchange), exchange.found_by);
        }
        if status != 200 && is_fine {
            return Err(format!("{status} {text}\n{body}"));
        }
        if status != 200 {
            // Its own fault: it begins again.
            self.provider.odd_reply_next(None);
            self.provider.clear_queue();
            (stranger.history, stranger.calls, stranger.place) = Default::default();
            (stranger.is_declined, stranger.alike) = (false, 0);
            *played.entry("refused").or_default() += 1;
            return Ok(());
        }
        for other in &self.strangers {
            let word = format!("only-{}-", other.name);
            let has = |bytes: &[u8]| memchr::memmem::find(bytes, word.as_bytes()).is_some();
            if log.iter().any(|entry| has(&entry.request.bytes)) {
                return Err(format!("{} got what is {}'s: {body}", stranger.name, other.name));
            }
        }
        self.check_place(stranger, place(&exchange), played)?;
        self.read(stranger, &text, declines, played);
        Ok(())
    }

    /// It says something, or its tools return.
    fn say(&self, stranger: &mut Stranger) {
        let mut dice = stranger.dice(self.seed, false);
        let own = stranger.requests >= stranger.alike;
        let word = if own {
            format!("only-{}-{}", stranger.name, stranger.requests)
        } else {
            "all".into()
        };
        // The first words are few.
        let text = format!("{} {word}", dice.words(3 + 3 * stranger.requests.min(4)));
        let calls = std::mem::take(&mut stranger.calls);
        stranger.history.push(match calls.is_empty() {
            true => HistoryItem::User(text),
            false => HistoryItem::ToolResults(
                calls.into_iter().map(|call| ToolResult::plain(call, text.clone())).collect(),
            ),
        });
    }

    /// What it has of the answer.
    fn read(
        &mut self,
        stranger: &mut Stranger,
        text: &str,
        declines: bool,
        played: &mut BTreeMap<&'static str, u64>,
    ) {
        stranger.is_declined = declines;
        if declines {
            let models = random::models(self.dialect);
            let own = models.iter().position(|model| *model == stranger.head.model).unwrap_or(0);
            stranger.head.model = models[(own + 1) % models.len()];
            *played.entry("declined").or_default() += 1;
            return;
        }
        let answer: Value = serde_json::from_str(text).unwrap();
        let (reply, calls) = client::read_reply(self.dialect, &answer);
        stranger.is_lost = !is_telling(self.dialect, stranger.style, &stranger.history, &reply);
        stranger.history.push(HistoryItem::Reply(reply));
        stranger.calls = calls;
        stranger.requests += 1;
    }

    /// It is where it was; or it changed places with one that is the same to the letter.
    fn check_place(
        &mut self,
        stranger: &mut Stranger,
        place: Place,
        played: &mut BTreeMap<&'static str, u64>,
    ) -> Result<(), String> {
        let was_lost = std::mem::take(&mut stranger.is_lost);
        let own = stranger.place.replace(place.clone());
        if own.as_ref() == Some(&place) {
            *played.entry("continued").or_default() += 1;
            return Ok(());
        }
        let dialect = self.dialect;
        let holder = self.strangers.iter_mut().find(|other| other.place.as_ref() == Some(&place));
        if let Some(other) = holder {
            let theirs = other.seen(dialect);
            let whole = stranger.seen(dialect);
            let newest = stranger.history.pop();
            let before = stranger.seen(dialect);
            stranger.history.extend(newest);
            // It continues what the other one would continue, or repeats what a model declined.
            let is_equal = if other.is_declined { theirs == whole } else { theirs == before };
            if !is_equal {
                return Err(format!("{} got the place of {}", stranger.name, other.name));
            }
            other.place = own;
            other.is_lost = was_lost;
            *played.entry("changed places").or_default() += 1;
            return Ok(());
        }
        // Since a restart both may be in one session: what another one sent to the letter is a repeat.
        let whole = stranger.seen(dialect);
        let is_repeat = self.strangers.iter().any(|other| {
            let same_session = other.place.as_ref().is_some_and(|(session, _)| *session == place.0);
            same_session && other.seen(dialect).starts_with(&whole)
        });
        match own {
            Some(own) if !was_lost && !is_repeat => {
                Err(format!("{} was at {own:?}, is at {place:?}", stranger.name))
            }
            Some(_) => {
                *played.entry("not provable").or_default() += 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn send(&mut self, stranger: &mut Stranger, body: &Value) -> (u16, String) {
        let wire = match stranger.connection {
            Connection::Shared => &mut self.shared,
            Connection::Own | Connection::New => &mut stranger.wire,
        };
        if wire.is_none() || stranger.connection == Connection::New {
            *wire = Some(Wire::connect(self.server.address).await);
        }
        let wire = wire.as_mut().unwrap();
        let (target, body) = (client::path(self.dialect, &stranger.head), body.to_string());
        wire.send(format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nanthropic-version: 2023-06-01\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        let response = wire.response().await;
        (response.status(), response.text().to_owned())
    }
}

async fn open(store: &Arc<dyn Store>, config: &Config) -> TestServer {
    TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await
}

/// Two or three, alike for a while or from the beginning their own.
fn strangers(dice: &mut Dice, dialect: Dialect, is_recorded: bool) -> Vec<Stranger> {
    let alike = dice.of(&[0, 1, 1, 2, 4]);
    let own_replies = dice.once_in(2);
    let connections = [Connection::Own, Connection::Shared, Connection::New];
    let connection = dice.of(&connections);
    let head = Head { stream: false, ..random::head(dice, dialect) };
    let mut style = ClientStyle {
        drops_call_ids: false,
        ..ClientStyle::plain(dice.of(&[KeptReasoning::All, KeptReasoning::None]))
    };
    style.edits_replies = dice.once_in(2).then(|| random::reply_edit(dice));
    random::add_habits(&mut style, dice, dialect);
    let count = 2 + dice.below(2);
    let stranger = |name| Stranger {
        name,
        style,
        head: head.clone(),
        connection,
        wire: None,
        alike,
        own_replies,
        requests: 0,
        history: Vec::new(),
        calls: Vec::new(),
        place: None,
        is_lost: false,
        is_declined: false,
        is_recorded,
    };
    (0..count).map(stranger).collect()
}

fn reply(dice: &mut Dice, has_tools: bool) -> ScriptedReply {
    let mut reply = match dice.once_in(2) {
        true => ScriptedReply::thinking(&dice.words(9), 40),
        false => ScriptedReply::default(),
    };
    let calls = has_tools && dice.once_in(2);
    if !calls || dice.once_in(2) {
        reply = reply.with_text(&dice.words(12));
    }
    if calls {
        reply = reply.with_call("Read", json!({"path": dice.words(2)}));
    }
    reply
}

fn place(exchange: &Exchange) -> Place {
    (format!("{:?}", exchange.session), format!("{:?}", exchange.thread))
}
