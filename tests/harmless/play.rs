//! One conversation: its client, its policy, its provider, and what is held after every exchange.

mod checks;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use plimsoll::config::{Config, Mode};
use plimsoll::context::Outcome;
use plimsoll::context::plan::Decision;
use plimsoll::context::policy::{Policy, StripPolicy};
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{
    self, Clock, Dialect, Judged, Part, Provider, Reply, Rules, Verdict,
};
use serde_json::Value;

use crate::counts::Counts;
use crate::deal;
use crate::dice::Dice;
use crate::hostile::{self, Hostile, Victim};
use crate::number;
use crate::speak::{self, Answered, Called, Habits, Head, Said};
use crate::stage::{Stage, client_headers};
use crate::stream;
use crate::support::server::config;
use checks::{Original, Seen, seals};

/// Part of every request for a summary.
pub const ASKS: &str = "Write a summary of the conversation";

/// Bytes of a request of which nobody believes that it has 210,000 tokens.
const SMALL: usize = 40_000;

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
    let rules = Rules { window, ..deal::rules(&mut dice) };
    let provider = Provider::at(rules.clone(), seed, Clock::manual());
    provider.say_to(ASKS, Reply::text("<summary>Much was read, and more is to be read.</summary>"));
    let serving = strict::serve(provider.clone()).await.map_err(|error| error.to_string())?;
    let policy = deal::policy(&mut dice);
    let mut config = config(&serving.base());
    config.mode = Mode::Active;
    config.upstreams[0].window = window;
    config.policy = Arc::new(policy.clone());
    is_configured(&mut config);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let stage = Stage::open(provider, serving, config, store).await;
    let head = deal::head(&mut dice, dialect);
    let habits = deal::habits(&mut dice);
    let always = deal::mode(&mut dice, 20);
    if tell {
        println!("{dialect:?} {head:?}\n{habits:?} {always:?}\n{policy:?}");
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
        rules,
        always,
        is_rewritten: false,
        is_aside: false,
        went_out: HashMap::new(),
        cut: HashSet::new(),
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
    /// What the provider checks.
    rules: Rules,
    /// The mode that the client asks for with every request.
    always: Option<&'static str>,
    /// Something else than the client's bytes went out.
    is_rewritten: bool,
    /// A rewrite was refused: nothing new is decided for a while.
    is_aside: bool,
    /// What went out last in place of the end of a history that the client sent, by that history.
    went_out: HashMap<u64, Vec<Value>>,
    /// What went out in place of results: both by their hashes.
    cut: HashSet<(u64, u64)>,
    /// The provider was seen to demand reasoning.
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
fn tell(status: u16, mode: Option<&str>, body: &Value, told: &Exchange, log: &[Judged]) {
    let steps: Vec<_> = told.done.steps.iter().map(|it| (it.change, it.decision, it.why)).collect();
    let verdicts: Vec<_> = log
        .iter()
        .map(|judged| match &judged.verdict {
            Verdict::Accepted(accepted) => format!("{:?}", accepted.losses),
            Verdict::Refused(refusal) => refusal.message.chars().take(80).collect(),
        })
        .collect();
    let (thread, resent) = (&told.thread, told.done.resent);
    println!("{status} {mode:?} {thread:?} {resent:?} {steps:?} {:?} {verdicts:?}", told.fail_open);
    if number("PLIMSOLL_HARMLESS_BODIES").is_some() {
        println!("  client {body}");
        let sent = log.iter().map(|judged| String::from_utf8_lossy(&judged.call.bytes));
        sent.for_each(|sent| println!("  sent {sent}"));
    }
}

impl Play {
    /// The person says something, and the model works on it until it has nothing to call.
    async fn turn(&mut self) -> Result<(), String> {
        let words = 3 + self.dice.below(40);
        let text = self.dice.words(words);
        let is_shown = self.dice.once_in(5);
        self.history.push(if is_shown { Said::Shown(text) } else { Said::User(text) });
        self.works().await
    }

    /// The model works on what was said last.
    async fn works(&mut self) -> Result<(), String> {
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
        let event = self.dice.below(12);
        if self.tell {
            println!("happens {event}: {:?} {:?}", self.habits.memory, self.policy.reasoning);
        }
        match event {
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
                self.habits.memory = deal::memory(&mut self.dice);
                self.forwarded = None;
                self.elsewhere.iter_mut().for_each(|branch| branch.forwarded = None);
            }
            5 => {
                self.accepted |= self.policy.prune.accept_reasoning_loss
                    || self.policy.reasoning.strip() != StripPolicy::None;
                self.policy = deal::policy(&mut self.dice);
                self.stage.config.policy = Arc::new(self.policy.clone());
                self.restarts().await;
            }
            6..=8 => self.goes_elsewhere(),
            9 => {
                // Back into an open loop: the newest results are old ones.
                let results = |said: &&Said| !said.results().is_empty();
                let results = self.history.iter().filter(results).count();
                let nth = self.dice.below(results);
                let open =
                    self.history.iter().enumerate().filter(|(_, it)| !it.results().is_empty());
                let Some((at, _)) = open.into_iter().nth(nth) else { return Ok(()) };
                self.history.truncate(at + 1);
                self.forwarded = None;
                self.counts.rewinds += 1;
                self.works().await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The person goes on in another branch: the one that was left, or a new one from an earlier turn, with
    /// whatever model.
    fn goes_elsewhere(&mut self) {
        let turns: Vec<usize> = self.turns().skip(1).chain([self.history.len()]).collect();
        let (to, models) = (self.dice.of(&turns), deal::models(self.dialect));
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
        // It is not asked again.
        self.has_broken_off = false;
        (self.head, self.history) = (head, history);
        self.counts.forks += 1;
        Ok(())
    }

    /// The provider binds reasoning of every model.
    fn binds(&self) -> bool {
        self.rules.binding == Some(true)
    }

    async fn restarts(&mut self) {
        self.stage.restarts().await;
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
        // Judged before anything is sent: what is answered changes what the provider remembers.
        let original = self.original(&body);
        let breaks_after = self.breaks_after(carries_on);
        let mode = self.always.or_else(|| deal::mode(&mut self.dice, 10));
        let is_wild = self.is_refused_wildly(&body, breaks_after);
        let known = self.lessons().await.filter(|_| is_wild);
        let response = self.asks(mode, &body, breaks_after).await;
        let told = self.stage.server.told().await;
        let mut log = self.stage.provider.take_log();
        // Requests for summaries are ours, and judged by `endless`.
        log.retain(|judged| memchr::memmem::find(&judged.call.bytes, ASKS.as_bytes()).is_none());
        log.retain(hostile::is_victims);
        hostile::is_clean(&log)?;
        self.told = Some(told.clone());
        self.counts(&told, mode);
        if self.tell {
            tell(response.0, mode, &body, &told, &log);
        }
        let status = response.0;
        let seen = Seen {
            body: &body,
            mode,
            status,
            told: &told,
            log: &log,
            original: &original,
            is_wild,
        };
        self.holds(&seen)?;
        if seen.is_wild {
            self.has_learned_nothing(&seen, known).await?;
        }
        self.is_aside |= told.done.resent.is_some() || told.done.revoked.is_some();
        self.demands |= told.refused == Some(RefusalCause::ReasoningDemanded);
        self.remembers(&seen);
        let decided = told.done.steps.iter().any(|step| step.decision == Decision::New);
        match (carries_on, self.is_steady(mode)) {
            (true, true) => self.is_stable(&seen)?,
            // What is decided on a side call holds for the same words here.
            (false, _) if !decided => {}
            _ => self.forwarded = None,
        }
        let (200, text) = response else {
            return Ok(self.is_refused(&seen));
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

    /// What would become of a request as it comes.
    fn original(&self, body: &Value) -> Original {
        let target = speak::target(self.dialect, &self.head);
        let (provider, headers) = (&self.stage.provider, client_headers());
        let bytes = || body.to_string().into();
        let alone =
            self.is_untouched(body).then(|| provider.would_unbound(&target, &headers, bytes()));
        Original { here: provider.would(&target, &headers, bytes()), alone }
    }

    async fn asks(
        &mut self,
        mode: Option<&str>,
        body: &Value,
        breaks_after: Option<usize>,
    ) -> (u16, String) {
        self.stage.provider.take_log();
        let target = speak::target(self.dialect, &self.head);
        match breaks_after {
            Some(events) => self.stage.asks_until_it_breaks(mode, &target, body, events).await,
            None => self.stage.asks_in(mode, &target, body).await,
        }
    }

    fn counts(&mut self, told: &Exchange, mode: Option<&str>) {
        let (counts, done) = (&mut self.counts, &told.done);
        counts.exchanges += 1;
        counts.unchanged += u64::from(mode.is_some());
        counts.mended += u64::from(done.overflow.is_some_and(|overflow| overflow.saved));
        counts.taken_back += u64::from(done.revoked.is_some());
        if done.is_sent() {
            counts.compacted += u64::from(done.made.compacted > 0);
            counts.cuts += u64::from(done.made.cut > 0);
            counts.put_back += u64::from(done.made.put_back > 0);
            counts.taken_out += u64::from(done.made.removed > 0);
        }
    }

    /// The provider will refuse the next request in words that nobody can believe.
    fn is_refused_wildly(&mut self, body: &Value, breaks_after: Option<usize>) -> bool {
        // What is known of this model can be compared then.
        let is_known =
            self.told.as_ref().is_some_and(|told| told.model.as_deref() == Some(self.head.model));
        // OpenAI's words have no number that could be disbelieved (`docs/protocols.md` 3.6).
        let may = self.dialect != Dialect::Responses && breaks_after.is_none() && is_known;
        let sent = body.to_string();
        // A picture may have any size.
        let is_small = sent.len() < SMALL && !sent.contains(speak::PICTURE);
        let is_wild = may && is_small && self.dice.once_in(12);
        if is_wild {
            self.stage.provider.set_rules(Rules { wild_overflow: true, ..self.rules.clone() });
            self.counts.wild += 1;
        }
        is_wild
    }

    /// Words that nobody can believe teach nothing; what was refused after them may.
    async fn has_learned_nothing(
        &self,
        seen: &Seen<'_>,
        before: Option<hostile::Known>,
    ) -> Result<(), String> {
        self.stage.provider.set_rules(self.rules.clone());
        let others = seen.log.iter().skip(1).all(|judged| judged.verdict.refused().is_none());
        match self.lessons().await {
            after if after == before || !others || !seen.was_wild() => Ok(()),
            after => Err(format!("a wild overflow taught {before:?}, and now {after:?}")),
        }
    }

    /// A request was refused: the client asks again where there is no sense in that, and earned it where not.
    fn is_refused(&mut self, seen: &Seen<'_>) -> Option<Vec<Called>> {
        if seen.was_wild() {
            self.has_broken_off = true;
            return Some(Vec::new());
        }
        let rule = seen.log.last().and_then(|judged| judged.verdict.refused());
        self.counts.earned += 1;
        *self.counts.broken.entry(format!("{rule:?}")).or_default() += 1;
        None
    }

    /// After how many events the answer breaks off, if it does.
    fn breaks_after(&mut self, carries_on: bool) -> Option<usize> {
        let may = self.head.stream && self.dialect != Dialect::Gemini && carries_on;
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
        let most = if thinks_again || self.dialect != Dialect::Anthropic { 14 } else { 9 };
        Some(3 + self.dice.below(most))
    }

    /// The answer broke off: the client asks again, or keeps what is whole of it and has the model go on.
    fn broke_off(&mut self, answer: Value) {
        self.counts.broken_off += 1;
        self.has_broken_off = true;
        let Some(kept) = speak::kept_of_partial(self.dialect, answer) else { return };
        if !self.dice.once_in(3) {
            self.history.extend([Said::Partial(kept), Said::User("Resume directly.".to_owned())]);
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
                Said::Model(_) | Said::Partial(_) => Vec::new(),
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
}
