//! One conversation: its client, its policy, its provider, and what is held after every exchange.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode, ServerLimits};
use plimsoll::context::Outcome;
use plimsoll::context::plan::Decision;
use plimsoll::context::policy::{
    CompactPolicy, Policy, PruneGate, PrunePolicy, ReasoningPolicy, ReinjectPolicy, StripPolicy,
    ThinkingDisplay,
};
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{
    self, Clock, Dialect, Judged, Loss, Part, Provider, Reply, Rule, Rules, Serving, Verdict,
};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use xxhash_rust::xxh3::xxh3_64;

use crate::dice::Dice;
use crate::hostile::{self, Hostile, Victim};
use crate::number;
use crate::speak::{self, Answered, Called, Habits, Head, Memory, Said};
use crate::stream;
use crate::support::http1::Wire;
use crate::support::server::{TestServer, config};
use crate::support::within;

/// How long anything inside may take, ms.
const PATIENCE_MS: u64 = 10_000;

/// Part of every request for a summary.
pub const ASKS: &str = "Write a summary of the conversation";

/// A kind of loss.
type Kind = fn(&Loss) -> bool;

/// The losses that no request may have which its client did not bring about.
const KINDS: [(&str, Kind); 4] = [
    ("reasoning dropped", |loss| matches!(loss, Loss::ReasoningDropped { .. })),
    ("reasoning absent", |loss| matches!(loss, Loss::ReasoningAbsent { readable: true, .. })),
    ("reasoning changed", |loss| matches!(loss, Loss::ReasoningChanged { .. })),
    ("signature absent", |loss| matches!(loss, Loss::SignatureAbsent { .. })),
];

fn lost(losses: &[Loss], kind: Kind) -> usize {
    losses.iter().filter(|loss| kind(loss)).count()
}

/// What was played.
#[derive(Default)]
pub struct Counts {
    pub conversations: u64,
    pub exchanges: u64,
    pub cuts: u64,
    pub put_back: u64,
    pub taken_out: u64,
    pub restarts: u64,
    pub forks: u64,
    pub rewinds: u64,
    pub edits: u64,
    /// Exchanges that repeated what went out before, byte for meaning.
    pub stable: u64,
    pub earned: u64,
    /// Refusals after which a request was sent as those before it.
    pub taken_back: u64,
    /// Streams that broke off.
    pub broken_off: u64,
    /// Exchanges whose history begins with a summary, and conversations that have one.
    pub compacted: u64,
    pub outgrown: u64,
    /// Overflows that were mended.
    pub mended: u64,
    /// What a hostile tenant beside did.
    pub hostile: u64,
    /// The rules that clients broke by themselves, with how often.
    pub broken: BTreeMap<String, u64>,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.conversations += other.conversations;
        self.exchanges += other.exchanges;
        self.cuts += other.cuts;
        self.put_back += other.put_back;
        self.taken_out += other.taken_out;
        self.restarts += other.restarts;
        self.forks += other.forks;
        self.rewinds += other.rewinds;
        self.edits += other.edits;
        self.stable += other.stable;
        self.earned += other.earned;
        self.taken_back += other.taken_back;
        self.broken_off += other.broken_off;
        self.compacted += other.compacted;
        self.outgrown += other.outgrown;
        self.mended += other.mended;
        self.hostile += other.hostile;
        for (rule, count) in &other.broken {
            *self.broken.entry(rule.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} conversations, {} exchanges: {} with cuts, {} with reasoning put back, {} with \
             reasoning taken out, {} compacted in {} conversations; {} overflows mended; {} times \
             sent as before; {} broken off; {} prefixes repeated; {} restarts, {} forks, {} rewinds, {} edits; \
             {} moves of a hostile tenant; \
             {} refusals that their clients earned, 0 that they did not",
            self.conversations,
            self.exchanges,
            self.cuts,
            self.put_back,
            self.taken_out,
            self.compacted,
            self.outgrown,
            self.mended,
            self.taken_back,
            self.broken_off,
            self.stable,
            self.restarts,
            self.forks,
            self.rewinds,
            self.edits,
            self.hostile,
            self.earned
        )
    }
}

/// Plays the conversation of a seed.
///
/// # Errors
/// What harm was done.
pub async fn conversation(seed: u64, tell: bool) -> Result<Counts, String> {
    conversation_where(seed, tell, |_| {}).await
}

/// The same, where the configuration says something else.
///
/// # Errors
/// What harm was done.
pub async fn conversation_where(
    seed: u64,
    tell: bool,
    is_configured: impl FnOnce(&mut Config),
) -> Result<Counts, String> {
    let mut dice = Dice::new(seed);
    let dialect =
        dice.of(&[Dialect::Anthropic, Dialect::Chat, Dialect::Responses, Dialect::Gemini]);
    // Some windows are so small that a conversation outgrows them.
    let window = dice.once_in(3).then(|| dice.of(&[4_000, 12_000]));
    let rules = Rules { window, ..rules(&mut dice) };
    let binds = rules.binding == Some(true);
    let provider = Provider::at(rules, seed, Clock::manual());
    provider.say_to(ASKS, Reply::text("<summary>Much was read, and more is to be read.</summary>"));
    let serving = strict::serve(provider.clone()).await.map_err(|error| error.to_string())?;
    let policy = policy(&mut dice);
    let mut config = config(&serving.base());
    config.mode = Mode::Active;
    config.upstreams[0].window = window;
    config.policy = Arc::new(policy.clone());
    is_configured(&mut config);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let stage = Stage::open(provider, serving, config, store).await;
    let head = head(&mut dice, dialect);
    let habits = habits(&mut dice);
    if tell {
        println!("{dialect:?} {head:?}\n{habits:?}\n{policy:?}");
    }
    let counts = Counts { conversations: 1, ..Counts::default() };
    let mut play = Play {
        dice,
        dialect,
        stage,
        policy,
        head,
        habits,
        history: Vec::new(),
        forwarded: None,
        elsewhere: None,
        accepted: false,
        forced: [0; 4],
        binds,
        demands: false,
        has_broken_off: false,
        sealed: HashMap::new(),
        hostile: Hostile::new(seed),
        told: None,
        secrets: HashSet::new(),
        counts,
        tell,
    };
    let turns = 2 + play.dice.below(5);
    for _ in 0..turns {
        play.turn().await?;
        play.happens().await?;
    }
    play.counts.outgrown = u64::from(play.counts.compacted > 0);
    Ok(play.counts)
}

/// The provider, and the proxy before it.
pub struct Stage {
    pub provider: Provider,
    _serving: Serving,
    config: Config,
    store: Arc<dyn Store>,
    pub server: TestServer,
    client: Wire,
}

struct Play {
    dice: Dice,
    dialect: Dialect,
    stage: Stage,
    policy: Policy,
    head: Head,
    habits: Habits,
    history: Vec<Said>,
    /// What went out last, while the client changes nothing of it.
    forwarded: Option<Vec<Value>>,
    /// The branch that the person left, and may come back to.
    elsewhere: Option<Branch>,
    /// An earlier policy accepted a loss, and what it decided lasts.
    accepted: bool,
    /// What was lost, kind by kind, when the window forced cuts: those last.
    forced: [usize; 4],
    /// The provider binds reasoning of every model.
    binds: bool,
    /// It was seen to demand it.
    demands: bool,
    /// The newest answer broke off.
    has_broken_off: bool,
    /// What the client's own request was when a seal was made, by seal.
    sealed: HashMap<String, u64>,
    /// Who shares the proxy with this client.
    hostile: Hostile,
    /// The newest exchange.
    told: Option<Arc<Exchange>>,
    /// What nobody else may hear.
    secrets: HashSet<String>,
    counts: Counts,
    tell: bool,
}

/// A branch of the conversation that is not played now.
struct Branch {
    model: &'static str,
    history: Vec<Said>,
    forwarded: Option<Vec<Value>>,
}

/// Shows one exchange: what was decided and what the provider said, and the bodies if they are asked for.
fn tell(status: u16, body: &Value, told: &Exchange, log: &[Judged]) {
    let steps: Vec<_> = told.done.steps.iter().map(|it| (it.change, it.decision, it.why)).collect();
    let verdicts: Vec<_> = log
        .iter()
        .map(|judged| match &judged.verdict {
            Verdict::Accepted(accepted) => format!("{:?}", accepted.losses),
            Verdict::Refused(refusal) => refusal.message.chars().take(80).collect(),
        })
        .collect();
    let (thread, resent) = (&told.thread, told.done.resent);
    println!("{status} {thread:?} {resent:?} {steps:?} {:?} {verdicts:?}", told.fail_open);
    if number("PLIMSOLL_HARMLESS_BODIES").is_some() {
        println!("  client {body}");
        let sent = log.iter().map(|judged| String::from_utf8_lossy(&judged.call.bytes));
        sent.for_each(|sent| println!("  sent {sent}"));
    }
}

async fn open(store: &Arc<dyn Store>, config: &Config) -> TestServer {
    TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await
}

impl Play {
    /// The person says something, and the model works on it until it has nothing to call.
    async fn turn(&mut self) -> Result<(), String> {
        let words = 3 + self.dice.below(40);
        let text = self.dice.words(words);
        let is_shown = self.dice.once_in(5);
        self.history.push(if is_shown { Said::Shown(text) } else { Said::User(text) });
        for _ in 0..12 {
            let Some(calls) = self.exchange(true).await? else {
                self.take_back();
                return Ok(());
            };
            if std::mem::take(&mut self.has_broken_off) {
                continue;
            }
            if calls.is_empty() {
                return Ok(());
            }
            if self.dice.once_in(12) {
                self.restarts().await;
            }
            let results = calls.into_iter().map(|call| self.answered(call)).collect();
            self.history.push(Said::Results(results));
        }
        // It never ends.
        self.take_back();
        Ok(())
    }

    /// The person takes their newest words back, and all that came of them.
    fn take_back(&mut self) {
        let said = self.history.iter().rposition(Said::is_users);
        self.history.truncate(said.unwrap_or(0));
        self.forwarded = None;
    }

    /// What happens between turns.
    async fn happens(&mut self) -> Result<(), String> {
        match self.dice.below(12) {
            0 => self.restarts().await,
            1 => {
                // Back to an earlier turn.
                let turns: Vec<usize> = self.turns().collect();
                let to = self.dice.below(turns.len());
                self.history.truncate(turns.get(to).copied().unwrap_or(0));
                self.forwarded = None;
                self.counts.rewinds += 1;
            }
            2 => {
                // An old message changes in a small way (a date, a reminder).
                if let Some(Said::User(text) | Said::Shown(text)) = self.history.first_mut() {
                    text.push_str(" (edited)");
                }
                self.forwarded = None;
                self.counts.edits += 1;
            }
            3 => self.side_call().await?,
            4 => {
                self.habits.memory = memory(&mut self.dice);
                self.forwarded = None;
                self.elsewhere.iter_mut().for_each(|branch| branch.forwarded = None);
            }
            5 => {
                self.accepted |= self.policy.prune.accept_reasoning_loss
                    || self.policy.reasoning.strip() != StripPolicy::None;
                self.policy = policy(&mut self.dice);
                self.stage.config.policy = Arc::new(self.policy.clone());
                self.restarts().await;
            }
            6..=8 => self.goes_elsewhere(),
            _ => {}
        }
        Ok(())
    }

    /// The person goes on in another branch: the one that was left, or a new one from an earlier turn, with
    /// whatever model.
    fn goes_elsewhere(&mut self) {
        let turns: Vec<usize> = self.turns().skip(1).chain([self.history.len()]).collect();
        let (to, models) = (self.dice.of(&turns), models(self.dialect));
        let other = self.elsewhere.take().unwrap_or_else(|| {
            let history = self.history[..to].to_vec();
            Branch { model: self.dice.of(models), history, forwarded: None }
        });
        let history = std::mem::replace(&mut self.history, other.history);
        let forwarded = std::mem::replace(&mut self.forwarded, other.forwarded);
        let model = std::mem::replace(&mut self.head.model, other.model);
        self.elsewhere = Some(Branch { model, history, forwarded });
        self.counts.forks += 1;
    }

    fn turns(&self) -> impl Iterator<Item = usize> + '_ {
        let begins = |(index, said): (usize, &Said)| said.is_users().then_some(index);
        self.history.iter().enumerate().filter_map(begins)
    }

    /// A call on top of the history, with another system prompt and no tools, whose answer is
    /// forgotten.
    async fn side_call(&mut self) -> Result<(), String> {
        let (head, history) = (self.head.clone(), self.history.clone());
        self.head.system = "You suggest what the person may say next.".to_owned();
        self.history.push(Said::User("What next?".to_owned()));
        self.exchange(false).await?;
        (self.head, self.history) = (head, history);
        self.counts.forks += 1;
        Ok(())
    }

    async fn restarts(&mut self) {
        self.stage.server = open(&self.stage.store, &self.stage.config).await;
        self.stage.client = Wire::connect(self.stage.server.address).await;
        self.counts.restarts += 1;
    }

    fn answered(&mut self, call: Called) -> Answered {
        let words = self.dice.of(&[1, 20, 200, 2000]);
        Answered {
            id: call.id,
            name: call.name,
            text: self.dice.words(words),
            is_error: self.dice.once_in(10),
            has_picture: self.dice.once_in(10),
            in_blocks: self.dice.once_in(3),
        }
    }

    /// One request; answers the calls in the reply, or nothing where it was refused.
    async fn exchange(&mut self, carries_on: bool) -> Result<Option<Vec<Called>>, String> {
        if self.hostile.moves_now() {
            self.is_attacked().await?;
        }
        let body = speak::request(self.dialect, &self.head, &self.history, self.habits);
        let target = speak::target(self.dialect, &self.head);
        self.stage.provider.take_log();
        // Judged before anything is sent: what is answered changes what the provider remembers.
        let untouched =
            self.stage.provider.would(&target, &client_headers(), body.to_string().into());
        let breaks_after = self.breaks_after(carries_on);
        let response = match breaks_after {
            Some(events) => self.stage.asks_until_it_breaks(&target, &body, events).await,
            None => self.stage.asks(&target, &body).await,
        };
        let told = self.stage.server.told().await;
        let mut log = self.stage.provider.take_log();
        // Requests for summaries are ours, and judged by `endless`.
        log.retain(|judged| memchr::memmem::find(&judged.call.bytes, ASKS.as_bytes()).is_none());
        log.retain(hostile::is_victims);
        hostile::is_clean(&log)?;
        self.told = Some(told.clone());
        self.counts.exchanges += 1;
        self.counts.compacted += u64::from(told.done.made.compacted > 0);
        let mended = told.done.overflow.is_some_and(|overflow| overflow.saved);
        self.counts.mended += u64::from(mended);
        self.counts.taken_back += u64::from(told.done.taken_back.is_some());
        self.counts.cuts += u64::from(told.done.made.cut > 0);
        self.counts.put_back += u64::from(told.done.made.put_back > 0);
        self.counts.taken_out += u64::from(told.done.made.taken_out > 0);
        if self.tell {
            tell(response.0, &body, &told, &log);
        }
        let original = self.holds(&body, response.0, &told, &log, untouched)?;
        self.demands |= told.refused == Some(RefusalCause::ReasoningDemanded);
        // These change what they sent before by themselves.
        let forgets = matches!(self.habits.memory, Memory::Newest | Memory::Half);
        if carries_on && !forgets {
            self.is_stable(&told, &log)?;
        } else if told.done.steps.iter().any(|step| step.decision == Decision::New) {
            // What is decided on a side call holds for the same words here.
            self.forwarded = None;
        }
        let (200, text) = response else {
            let rule = log.last().and_then(|judged| judged.verdict.refused());
            // Its reasoning stands where the client got it, and is bound to what was sent in place of that.
            // What outgrew its window by itself is no matter of that.
            let (headers, bytes) = (&log.first().unwrap().call.headers, body.to_string().into());
            let fits = || self.stage.provider.would_unbound(&target, headers, bytes).is_ok();
            if original == Some(Rule::BoundElsewhere) && self.is_untouched(&body) && fits() {
                return Err(format!("an earlier rewrite led to a refusal:\n{body}"));
            }
            self.counts.earned += 1;
            *self.counts.broken.entry(format!("{rule:?}")).or_default() += 1;
            return Ok(None);
        };
        let answer = match self.head.stream {
            true => stream::whole(self.dialect, &text),
            false => serde_json::from_str(&text).unwrap(),
        };
        let asked = self.prefix(&speak::history(self.dialect, &body));
        seals(&answer, &mut |seal| {
            self.sealed.entry(seal.to_owned()).or_insert(asked);
        });
        hostile::thoughts(&answer, &mut self.secrets);
        if told.outcome != Outcome::Complete {
            self.broke_off(answer);
            return Ok(Some(Vec::new()));
        }
        let (reply, calls) = speak::kept(self.dialect, &answer);
        if carries_on {
            self.history.push(Said::Model(reply));
        }
        Ok(Some(calls))
    }

    /// After how many events the answer breaks off, if it does.
    fn breaks_after(&mut self, carries_on: bool) -> Option<usize> {
        let may = self.head.stream && self.dialect == Dialect::Anthropic && carries_on;
        if !may || !self.dice.once_in(3) {
            return None;
        }
        // Half of them would have thought once more after their first words.
        let thinks_again = self.dice.once_in(2);
        if thinks_again {
            let mut words = || self.dice.words(4);
            let again = Part::Thinking { text: words(), tokens: 40 };
            let reply = Reply::thinking(&words(), 40).saying(&words()).and(again).saying(&words());
            self.stage.provider.say(reply);
        }
        Some(3 + self.dice.below(if thinks_again { 14 } else { 9 }))
    }

    /// The answer broke off: the client asks again, or keeps what is whole of it and has the model go on.
    fn broke_off(&mut self, answer: Value) {
        self.counts.broken_off += 1;
        self.has_broken_off = true;
        let kept = speak::kept_of_partial(answer);
        if kept["content"] != Value::Array(Vec::new()) && !self.dice.once_in(3) {
            self.history.extend([Said::Model(kept), Said::User("Resume directly.".to_owned())]);
        }
    }

    /// What this tenant has learned.
    async fn lessons(&self) -> Option<hostile::Known> {
        let told = self.told.as_ref()?;
        Some(hostile::known(&self.stage.server, told).await)
    }

    /// A hostile tenant makes a move: it hears nothing of this one, and this one has learned nothing.
    async fn is_attacked(&mut self) -> Result<(), String> {
        for said in &self.history {
            // The end of a text is chance, and stands nowhere else.
            let texts: Vec<&str> = match said {
                Said::User(text) | Said::Shown(text) => vec![text],
                Said::Results(results) => results.iter().map(|result| &*result.text).collect(),
                Said::Model(_) => Vec::new(),
            };
            let ends = texts.into_iter().filter_map(|text| text.split(' ').next_back());
            self.secrets.extend(ends.filter(|end| end.len() == 8).map(str::to_owned));
        }
        let before = self.lessons().await;
        self.stage.provider.take_log();
        let victim = Victim {
            dialect: self.dialect,
            head: &self.head,
            history: &self.history,
            secrets: &self.secrets,
        };
        let led = self.hostile.acts(self.stage.server.address, &victim).await;
        self.stage.server.told().await;
        led.is_nothing(&victim, &self.stage.provider.take_log())?;
        self.counts.hostile += 1;
        match self.lessons().await {
            after if after == before => Ok(()),
            after => Err(format!("learned from a hostile tenant: {before:?}, and now {after:?}")),
        }
    }

    /// What must hold after every exchange; answers what the request is refused for as it came.
    fn holds(
        &mut self,
        body: &Value,
        status: u16,
        told: &Exchange,
        log: &[Judged],
        original: Result<Vec<Loss>, Box<strict::Refusal>>,
    ) -> Result<Option<Rule>, String> {
        let raw = body.to_string();
        let Some(first) = log.first() else { return Err("nothing was forwarded".to_owned()) };
        let rule = original.as_ref().err().map(|refusal| refusal.rule);
        let is_same = first.call.bytes == raw;
        // Where the client did not ask for usage, we do; that is no rewrite.
        let asks_usage = self.dialect == Dialect::Chat && self.head.stream;
        if told.done.is_nothing() && !is_same && !asks_usage {
            return Err("changed without a decision".to_owned());
        }
        // No refusal that the untouched request would not have had.
        // Where a model binds reasoning that is not known to, one refusal teaches it.
        let teaches = self.binds && told.refused == Some(RefusalCause::Bound) && status < 400;
        // So does one where it demands the reasoning of an open loop, which a summary made void.
        let demands =
            told.refused == Some(RefusalCause::ReasoningDemanded) && told.done.new.compacted > 0;
        let teaches = teaches || demands && !self.demands && status < 400;
        // With reasoning put back it may not fit where it would as it came: then it is sent so.
        let overflowed = told.done.overflow.is_some() && status < 400;
        let mended = teaches || overflowed;
        if let (Verdict::Refused(refusal), Ok(_), false) = (&first.verdict, &original, mended) {
            return Err(format!(
                "refused, but not the original: {} {:?}\n{}\n{}",
                refusal.message,
                told.done.steps,
                raw,
                String::from_utf8_lossy(&first.call.bytes)
            ));
        }
        if status >= 400 && original.is_ok() {
            return Err(format!("{status} for a request that is fine"));
        }
        if let Some(Verdict::Accepted(accepted)) = log.last().map(|last| &last.verdict)
            && told.done.overflow.is_some_and(|overflow| overflow.saved)
        {
            self.forced = KINDS.map(|(_, kind)| lost(&accepted.losses, kind));
        }
        let (Verdict::Accepted(accepted), Ok(untouched)) = (&first.verdict, &original) else {
            return Ok(rule);
        };
        // No silent loss that policy did not accept.
        let strips = self.policy.reasoning.strip() != StripPolicy::None;
        // Nor with what a summary stands for: the reasoning that rests on it goes with it.
        let compacted = told.done.made.compacted > 0;
        let accepts =
            compacted || self.accepted || self.policy.prune.accept_reasoning_loss || strips;
        for ((name, kind), forced) in KINDS.into_iter().zip(self.forced) {
            // What the original would lose for another reason is lost either way.
            let absent: Kind = |loss| matches!(loss, Loss::ReasoningAbsent { .. });
            let any = if name == "reasoning absent" { absent } else { kind };
            let (ours, theirs) = (lost(&accepted.losses, kind), lost(untouched, any));
            if ours > theirs.max(forced) && !accepts {
                return Err(format!(
                    "{name}: {ours} against {theirs}: {:?}\n{raw}\n{}",
                    accepted.losses,
                    String::from_utf8_lossy(&first.call.bytes)
                ));
            }
        }
        Ok(rule)
    }

    /// Whether all reasoning in a request stands after what the client itself had sent when it got it: a
    /// provider that had seen the client's own requests would find it bound to just that.
    fn is_untouched(&self, body: &Value) -> bool {
        let history = speak::history(self.dialect, body);
        let prefixes: Vec<u64> =
            (0..=history.len()).map(|to| self.prefix(&history[..to])).collect();
        let mut stands = true;
        for (index, said) in history.iter().enumerate() {
            seals(said, &mut |seal| {
                let made = self.sealed.get(seal);
                stands &= made.is_none_or(|made| prefixes[..=index].contains(made));
            });
        }
        stands
    }

    /// What a history and its head are told by.
    fn prefix(&self, history: &[Value]) -> u64 {
        let head = (&self.head.system, &self.head.tools);
        xxh3_64(format!("{head:?}{history:?}").as_bytes())
    }

    /// What went out before goes out again, but where something new was decided (`docs/architecture.md`
    /// "Promises").
    fn is_stable(&mut self, told: &Exchange, log: &[Judged]) -> Result<(), String> {
        let before = self.forwarded.take();
        let history = |judged: &Judged| speak::history(self.dialect, &judged.call.body);
        // What was refused before, or refused now and sent again otherwise, is not what stays.
        let accepted = |judged: &&Judged| matches!(judged.verdict, Verdict::Accepted(_));
        let as_before = told.done.taken_back.is_some();
        if told.refused.is_none() || as_before {
            self.forwarded = log.last().filter(accepted).map(history);
        }
        let decided = told.done.steps.iter().any(|step| step.decision == Decision::New);
        // Where what was new was taken back, what went out before went out in the end.
        let sent = if as_before { log.last() } else { log.first() }.map(history);
        let (Some(before), Some(sent), false) = (before, sent, decided) else { return Ok(()) };
        let same = before.iter().zip(&sent).take_while(|(before, sent)| before == sent).count();
        if same < before.len() {
            return Err(format!(
                "the prefix changed at {same} and nothing was decided: {:?}\n{}\n{}",
                told.done.steps,
                before[same],
                sent.get(same).unwrap_or(&Value::Null)
            ));
        }
        self.counts.stable += 1;
        Ok(())
    }
}

impl Stage {
    pub async fn open(
        provider: Provider,
        serving: Serving,
        mut config: Config,
        store: Arc<dyn Store>,
    ) -> Self {
        // Rewriting is tried here, not the patience of a machine that does other things beside: what
        // comes late is tried where time is held (`tests/rewriting/trouble.rs`).
        let ServerLimits { load_ms, settle_ms, save_ms, commit_ms, .. } = &mut config.limits;
        (*load_ms, *settle_ms) = (PATIENCE_MS, PATIENCE_MS);
        (*save_ms, *commit_ms) = (PATIENCE_MS, PATIENCE_MS);
        let server = open(&store, &config).await;
        let client = Wire::connect(server.address).await;
        Self { provider, _serving: serving, config, store, server, client }
    }

    pub async fn asks(&mut self, target: &str, body: &Value) -> (u16, String) {
        self.client.send(written(target, body, "keep-alive")).await;
        let response = self.client.response().await;
        (response.status(), response.text().to_owned())
    }

    /// The same on a connection of its own, whose answer breaks off after so many events, if it has more.
    async fn asks_until_it_breaks(
        &mut self,
        target: &str,
        body: &Value,
        events: usize,
    ) -> (u16, String) {
        self.provider.break_off_after(events);
        let mut client = Wire::connect(self.server.address).await;
        client.send(written(target, body, "close")).await;
        let mut read = Vec::new();
        // It ends with an error where the answer breaks off.
        let _ = within("the answer to end", client.stream.read_to_end(&mut read)).await;
        // Where nothing was streamed, the next answer does not break off.
        self.provider.break_off_after(usize::MAX);
        let text = String::from_utf8(read).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

/// What a client sends beside its body, as far as the provider reads it.
fn client_headers() -> HeaderMap {
    let names = [("x-api-key", "k"), ("anthropic-version", "2023-06-01")];
    names
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .into_iter()
        .collect()
}

/// A request as it stands on the wire.
fn written(target: &str, body: &Value, connection: &str) -> String {
    let body = body.to_string();
    format!(
        "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nanthropic-version: 2023-06-01\r\n\
         x-plimsoll-session: s\r\nconnection: {connection}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn rules(dice: &mut Dice) -> Rules {
    Rules {
        binding: dice.once_in(3).then_some(true),
        thinking_mandatory: dice.once_in(4).then_some(true),
        cache_min: Some(1),
        ..Rules::default()
    }
}

fn memory(dice: &mut Dice) -> Memory {
    dice.of(&[Memory::Whole, Memory::Whole, Memory::None, Memory::Newest, Memory::Half])
}

fn habits(dice: &mut Dice) -> Habits {
    Habits {
        memory: memory(dice),
        marks: dice.once_in(2),
        respells: dice.once_in(3),
        strips: dice.once_in(4),
        url_safe: dice.once_in(3),
    }
}

fn models(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Anthropic => {
            &["claude-sonnet-4-5", "claude-opus-4-6", "claude-opus-5-5", "claude-haiku-5-5"]
        }
        Dialect::Chat => &["gpt-4.1", "deepseek-v4", "kimi-k3", "glm-5.2", "some-model"],
        Dialect::Responses => &["gpt-5.4", "gpt-5.6-sol", "gpt-6.1-sol"],
        Dialect::Gemini => &["gemini-3-pro", "gemini-2.5-flash"],
    }
}

fn head(dice: &mut Dice, dialect: Dialect) -> Head {
    Head {
        model: dice.of(models(dialect)),
        system: dice.words(30),
        tools: vec!["Read", "Grep", "Bash"],
        // Some models cannot be told not to think.
        thinks: !dice.once_in(5) || dialect == Dialect::Anthropic,
        stream: dice.once_in(2),
    }
}

fn policy(dice: &mut Dice) -> Policy {
    let gates: [&[PruneGate]; 5] = [
        &[PruneGate::Always],
        &[PruneGate::Always],
        &[PruneGate::ColdCache],
        &[PruneGate::PaysBack],
        &[PruneGate::Pressure, PruneGate::ColdCache],
    ];
    let prune = PrunePolicy {
        gate: dice.of(&gates).to_vec(),
        pressure: dice.of(&[0.01, 0.8]),
        protect_tokens: dice.of(&[0, 300, 3000]),
        protect_messages: dice.of(&[0, 2, 8]),
        min_saving_tokens: dice.of(&[1, 300]),
        min_messages: dice.of(&[0, 6]),
        tools: if dice.once_in(4) { vec!["Re*".to_owned()] } else { Vec::new() },
        keep_errors: dice.once_in(2),
        keep_media: dice.once_in(2),
        media: dice.once_in(2),
        max_result_tokens: dice.once_in(3).then_some(400),
        accept_reasoning_loss: dice.once_in(8),
        ..PrunePolicy::default()
    };
    let reasoning = ReasoningPolicy {
        reinject: if dice.once_in(6) { ReinjectPolicy::Off } else { ReinjectPolicy::Auto },
        include_in_context: true,
        strip_from_context: dice.of(&[
            StripPolicy::None,
            StripPolicy::None,
            StripPolicy::None,
            StripPolicy::All,
            StripPolicy::AllButLast,
        ]),
        display: dice.of(&[ThinkingDisplay::AsAsked, ThinkingDisplay::Summarized]),
    };
    let compact = CompactPolicy {
        threshold: dice.of(&[0.6, 0.95]),
        prepare: dice.of(&[0.7, 0.9, 1.0]),
        keep_messages: dice.of(&[2, 8]),
        wait_s: 5,
        timeout_s: 5,
        ..CompactPolicy::default()
    };
    Policy { prune, reasoning, compact, ..Policy::default() }
}

/// The seals of reasoning anywhere in a value.
fn seals(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| seals(item, found)),
        Value::Object(members) => {
            let sealing = ["signature", "data", "encrypted_content"];
            for (name, value) in members {
                match value {
                    Value::String(seal) if sealing.contains(&&**name) => found(seal),
                    value => seals(value, found),
                }
            }
        }
        _ => {}
    }
}
