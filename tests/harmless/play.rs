//! One conversation: its client, its policy, its provider, and what is checked after every exchange.

mod checks;
mod declined;
mod doubled;
mod estimates;
mod miscounts;
mod odd_replies;
mod sibling;
mod stand_ins;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use plimsoll::config::{Config, Mode};
use plimsoll::context::Outcome;
use plimsoll::context::policy::{Policy, ReinjectPolicy, StripPolicy};
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{
    self, Clock, Dialect, LoggedRequest, Miscount, OddReply, Operation, RequestVerdict, Rule,
    Rules, ScriptedPart, ScriptedReply, StrictProvider,
};
use serde_json::Value;

use crate::client::{self, ClientStyle, Head, HistoryItem, ToolCall, ToolResult};
use crate::counts::Counts;
use crate::dice::Dice;
use crate::endless::{SUMMARY_REQUEST, is_summary_request};
use crate::hostile::{self, Hostile, Victim};
use crate::number;
use crate::proof;
use crate::random;
use crate::stage::{Stage, client_headers};
use crate::support::server::config;
use checks::{CheckedExchange, Original, REASONING, for_each_signature, for_each_string};
use odd_replies::Place;
use sibling::Answered;

/// A request of fewer bytes cannot have 210,000 tokens.
const SMALL_REQUEST_BYTES: usize = 40_000;

/// Plays the conversation of a seed.
///
/// # Errors
/// What harm was done.
pub async fn conversation(seed: u64, verbose: bool) -> Result<Counts, String> {
    conversation_with(seed, verbose, |_| {}).await
}

/// The same, where the operator shares all lessons at once, whoever met them.
///
/// # Errors
/// What harm was done.
pub async fn conversation_with_shared_lessons(seed: u64) -> Result<Counts, String> {
    play_conversation(seed, false, |_| {}, true).await
}

/// The same, where the configuration says something else.
///
/// # Errors
/// What harm was done.
pub async fn conversation_with(
    seed: u64,
    verbose: bool,
    configure: impl FnOnce(&mut Config),
) -> Result<Counts, String> {
    play_conversation(seed, verbose, configure, false).await
}

async fn play_conversation(
    seed: u64,
    verbose: bool,
    configure: impl FnOnce(&mut Config),
    shares_lessons: bool,
) -> Result<Counts, String> {
    let mut dice = Dice::new(seed);
    let dialect =
        dice.of(&[Dialect::Anthropic, Dialect::Chat, Dialect::Responses, Dialect::Gemini]);
    // Some windows are so small that a conversation outgrows them.
    let window = dice.once_in(3).then(|| dice.of(&[4_000, 12_000]));
    let rules = Rules { window, ..random::rules(&mut dice) };
    let provider = StrictProvider::with_clock(rules.clone(), seed, Clock::manual());
    provider.reply_to_matching(
        SUMMARY_REQUEST,
        ScriptedReply::text("<summary>Much was read, and more is to be read.</summary>"),
    );
    let serving = strict::serve(provider.clone()).await.map_err(|error| error.to_string())?;
    let mut config = config(&serving.base());
    config.mode = Mode::Active;
    config.upstreams[0].window = window;
    config.policy = Arc::new(random::policy(&mut dice));
    configure(&mut config);
    let policy = config.policy.as_ref().clone();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut stage = Stage::open(provider, serving, config, store).await;
    // From the seed, so that the dice of other choices fall as before.
    stage.gives_hints = seed.is_multiple_of(3);
    let head = random::head(&mut dice, dialect);
    let mut style = random::style(&mut dice);
    let mut odd_dice = Dice::new(seed.rotate_left(48));
    style.replies = random::replies(&mut odd_dice, dialect);
    let mut habit_dice = Dice::new(seed.rotate_left(8));
    stage.names_session = !habit_dice.once_in(3);
    random::add_habits(&mut style, &mut habit_dice, dialect);
    let fixed_mode = random::mode(&mut dice, 20);
    if verbose {
        println!("{dialect:?} {head:?}\n{style:?} {fixed_mode:?}\n{policy:?}");
    }
    let counts = Counts { conversations: 1, ..Counts::default() };
    let mut play = Play {
        dice,
        dialect,
        stage,
        policy,
        head,
        style,
        history: Vec::new(),
        last_sent: None,
        other_branch: None,
        loss_accepted: false,
        overflow_losses: [0; 4],
        rules,
        fixed_mode,
        is_rewritten: false,
        is_suspended: false,
        sent_by_prefix: HashMap::new(),
        sent_prefixes: HashSet::new(),
        known_cuts: HashSet::new(),
        demanding_models: HashSet::new(),
        binding_models: HashSet::new(),
        reply_broke_off: false,
        signature_prefixes: HashMap::new(),
        reasoning_models: HashMap::new(),
        hostile: Hostile::new(seed),
        sibling_dice: Dice::new(seed.rotate_left(32)),
        count_dice: Dice::new(seed.rotate_left(16)),
        odd_dice,
        habit_dice,
        known_calls: HashMap::new(),
        expected_place: None,
        is_after_hidden: false,
        last_exchange: None,
        secrets: HashSet::new(),
        shares_lessons,
        counts,
        verbose,
    };
    let turns = 2 + play.dice.below(5);
    for _ in 0..turns {
        play.turn().await?;
        play.random_event().await?;
    }
    play.counts.compacted_conversations = u64::from(play.counts.compacted > 0);
    Ok(play.counts)
}

struct Play {
    dice: Dice,
    dialect: Dialect,
    stage: Stage,
    policy: Policy,
    head: Head,
    style: ClientStyle,
    history: Vec<HistoryItem>,
    /// What went out last, while the client changes nothing of it.
    last_sent: Option<Vec<Value>>,
    /// The branch that the person left, and may come back to.
    other_branch: Option<Branch>,
    /// An earlier policy accepted a loss, and what it decided lasts.
    loss_accepted: bool,
    /// What was lost, kind by kind, when the window forced cuts: these losses stay.
    overflow_losses: [usize; 4],
    /// What the provider checks.
    rules: Rules,
    /// The mode that the client asks for with every request.
    fixed_mode: Option<&'static str>,
    /// Something else than the client's bytes went out.
    is_rewritten: bool,
    /// A rewrite was refused: nothing new is decided for a while.
    is_suspended: bool,
    /// What went out last in place of the end of a history that the client sent, by that history.
    sent_by_prefix: HashMap<u64, Vec<Value>>,
    /// Hashes of all beginnings of histories that went out and were accepted.
    sent_prefixes: HashSet<u64>,
    /// What went out in place of results: both by their hashes.
    known_cuts: HashSet<(u64, u64)>,
    /// The models for which the provider has demanded reasoning in a refusal.
    demanding_models: HashSet<&'static str>,
    /// Those for which it has refused reasoning that is bound to something else.
    binding_models: HashSet<&'static str>,
    /// The newest answer broke off.
    reply_broke_off: bool,
    /// Hash of the client's own history when a signature was made, by signature.
    signature_prefixes: HashMap<String, u64>,
    /// Which model wrote each piece of reasoning; `None` if policy had us keep no record of it.
    reasoning_models: HashMap<String, Option<&'static str>>,
    /// The other tenant of the proxy.
    hostile: Hostile,
    /// Decides about requests of the same session at the same time.
    sibling_dice: Dice,
    /// Decides about odd usage.
    count_dice: Dice,
    /// Decides about odd replies.
    odd_dice: Dice,
    /// Decides what makes the conversation hard to recognise.
    habit_dice: Dice,
    /// The model of calls that came with their reasoning, by their places.
    known_calls: HashMap<u64, &'static str>,
    /// Where the next request belongs, if it continues a whole reply.
    expected_place: Option<Place>,
    /// The newest reply had reasoning that was only billed.
    is_after_hidden: bool,
    /// The newest exchange.
    last_exchange: Option<Arc<Exchange>>,
    /// Text that no other tenant may receive.
    secrets: HashSet<String>,
    counts: Counts,
    /// The operator shares each lesson at once, whoever met it.
    shares_lessons: bool,
    verbose: bool,
}

/// A branch of the conversation that is not played now.
struct Branch {
    model: &'static str,
    history: Vec<HistoryItem>,
    last_sent: Option<Vec<Value>>,
}

/// Shows one exchange: what was decided and what the provider said, and the bodies if they are asked for.
fn show(status: u16, mode: Option<&str>, body: &Value, exchange: &Exchange, log: &[LoggedRequest]) {
    let steps: Vec<_> =
        exchange.done.steps.iter().map(|it| (it.change, it.decision, it.why)).collect();
    let verdicts: Vec<_> = log
        .iter()
        .map(|entry| match &entry.verdict {
            RequestVerdict::Accepted(accepted) => format!("{:?}", accepted.losses),
            RequestVerdict::Refused(refusal) => refusal.message.chars().take(80).collect(),
        })
        .collect();
    let (thread, resent) = (&exchange.thread, exchange.done.resent);
    println!(
        "{status} {mode:?} {thread:?} {resent:?} {steps:?} {:?} {verdicts:?}",
        exchange.fail_open
    );
    if number("PLIMSOLL_HARMLESS_BODIES").is_some() {
        println!("  client {body}");
        let sent = log.iter().map(|entry| String::from_utf8_lossy(&entry.request.bytes));
        sent.for_each(|sent| println!("  sent {sent}"));
    }
}

fn show_answer(odd: Option<OddReply>, text: &str) {
    println!("  {odd:?}");
    if number("PLIMSOLL_HARMLESS_BODIES").is_some() {
        println!("  answer {}", text.replace('\n', " "));
    }
}

impl Play {
    /// The user writes a message, and the model replies until it calls no more tools.
    async fn turn(&mut self) -> Result<(), String> {
        let words = 3 + self.dice.below(40);
        let text = self.dice.words(words);
        let is_shown = self.dice.once_in(5);
        self.history.push(if is_shown {
            HistoryItem::UserWithPicture(text)
        } else {
            HistoryItem::User(text)
        });
        self.run_tool_loop().await
    }

    /// The model replies, and tools run, until it calls none.
    async fn run_tool_loop(&mut self) -> Result<(), String> {
        for _ in 0..12 {
            let Some(calls) = self.exchange(true).await? else {
                self.undo_turn();
                return Ok(());
            };
            if std::mem::take(&mut self.reply_broke_off) {
                continue;
            }
            if calls.is_empty() {
                return Ok(());
            }
            if self.dice.once_in(12) {
                self.restart().await;
            }
            let results = calls.into_iter().map(|call| self.tool_result(call)).collect();
            self.history.push(HistoryItem::ToolResults(results));
        }
        // Too many rounds.
        self.undo_turn();
        Ok(())
    }

    /// Removes the newest user message and all after it.
    fn undo_turn(&mut self) {
        let turn_start = self.history.iter().rposition(HistoryItem::is_user_turn);
        self.history.truncate(turn_start.unwrap_or(0));
        self.last_sent = None;
        self.expected_place = None;
    }

    /// A random event between turns: a restart, rewind, edit, side call, branch or new policy.
    async fn random_event(&mut self) -> Result<(), String> {
        let event = self.dice.below(12);
        if self.verbose {
            println!(
                "happens {event}: {:?} {:?}",
                self.style.kept_reasoning, self.policy.reasoning
            );
        }
        if (1..10).contains(&event) {
            self.expected_place = None;
        }
        match event {
            0 => self.restart().await,
            1 => {
                // Back to an earlier turn.
                let turns: Vec<usize> = self.turn_starts().collect();
                let to = self.dice.below(turns.len());
                self.history.truncate(turns.get(to).copied().unwrap_or(0));
                self.last_sent = None;
                self.counts.rewinds += 1;
            }
            2 => {
                // An old message changes in a small way (a date, a reminder).
                if let Some(HistoryItem::User(text) | HistoryItem::UserWithPicture(text)) =
                    self.history.first_mut()
                {
                    text.push_str(" (edited)");
                }
                self.last_sent = None;
                self.counts.edits += 1;
            }
            3 => self.side_call().await?,
            4 => {
                let kept = random::kept_reasoning(&mut self.dice);
                if self.style.edits_replies.is_none() || !random::drops_later(kept) {
                    self.style.kept_reasoning = kept;
                }
                self.last_sent = None;
                self.other_branch.iter_mut().for_each(|branch| branch.last_sent = None);
            }
            5 => {
                self.loss_accepted |= self.policy.prune.accept_reasoning_loss
                    || self.policy.reasoning.strip() != StripPolicy::None;
                self.policy = random::policy(&mut self.dice);
                self.stage.config.policy = Arc::new(self.policy.clone());
                self.stage.restart_all().await;
                self.counts.restarts += 1;
            }
            6..=8 => self.switch_branch(),
            9 => {
                // Back into an open loop: the newest results are old ones.
                let results = |item: &&HistoryItem| !item.results().is_empty();
                let results = self.history.iter().filter(results).count();
                let nth = self.dice.below(results);
                let open =
                    self.history.iter().enumerate().filter(|(_, it)| !it.results().is_empty());
                let Some((at, _)) = open.into_iter().nth(nth) else { return Ok(()) };
                self.history.truncate(at + 1);
                self.last_sent = None;
                self.counts.rewinds += 1;
                self.run_tool_loop().await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The user continues in another branch: the one that was left, or a new one from an earlier turn, with
    /// whatever model.
    fn switch_branch(&mut self) {
        let turns: Vec<usize> = self.turn_starts().skip(1).chain([self.history.len()]).collect();
        let (to, models) = (self.dice.of(&turns), random::models(self.dialect));
        let other = self.other_branch.take().unwrap_or_else(|| {
            let history = self.history[..to].to_vec();
            Branch { model: self.dice.of(models), history, last_sent: None }
        });
        let history = std::mem::replace(&mut self.history, other.history);
        let last_sent = std::mem::replace(&mut self.last_sent, other.last_sent);
        let model = std::mem::replace(&mut self.head.model, other.model);
        self.other_branch = Some(Branch { model, history, last_sent });
        self.counts.forks += 1;
    }

    fn turn_starts(&self) -> impl Iterator<Item = usize> + '_ {
        let begins = |(index, item): (usize, &HistoryItem)| item.is_user_turn().then_some(index);
        self.history.iter().enumerate().filter_map(begins)
    }

    /// A call on top of the history, with another system prompt and no tools, whose answer is
    /// forgotten.
    async fn side_call(&mut self) -> Result<(), String> {
        let (head, history) = (self.head.clone(), self.history.clone());
        self.head.system = "You suggest what the person may say next.".to_owned();
        self.history.push(HistoryItem::User("What next?".to_owned()));
        self.exchange(false).await?;
        // It is not asked again.
        self.reply_broke_off = false;
        (self.head, self.history) = (head, history);
        self.counts.forks += 1;
        Ok(())
    }

    /// The provider binds reasoning of every model.
    fn binds(&self) -> bool {
        self.rules.binding == Some(true)
    }

    async fn restart(&mut self) {
        self.stage.restart().await;
        self.counts.restarts += 1;
    }

    fn tool_result(&mut self, call: ToolCall) -> ToolResult {
        let words = self.dice.of(&[1, 20, 200, 2000]);
        let is_anthropic = self.dialect == Dialect::Anthropic;
        let finds = self.style.defers && is_anthropic && call.name == client::FINDER;
        let loads = finds && call.caller.is_none();
        ToolResult {
            id: call.id,
            name: call.name,
            text: self.dice.words(words),
            is_error: self.dice.once_in(10) && !loads,
            // Code takes only text.
            has_picture: self.dice.once_in(10) && call.caller.is_none() && !loads,
            in_blocks: self.dice.once_in(3),
            loads,
            caller: call.caller,
        }
    }

    /// One request and its checks; returns the tool calls in the reply, `None` if it was refused.
    async fn exchange(&mut self, is_main_thread: bool) -> Result<Option<Vec<ToolCall>>, String> {
        if self.hostile.decides_to_move() {
            self.play_hostile_move().await?;
        }
        let body = client::request(self.dialect, &self.head, &self.history, self.style);
        // Before anything is sent: what is answered changes what the provider remembers.
        let original = self.check_original(&body);
        let breaks_after = self.choose_break(is_main_thread);
        let mode = self.fixed_mode.or_else(|| random::mode(&mut self.dice, 10));
        let is_implausible = self.schedule_implausible_overflow(&body, breaks_after);
        let lessons_before = self.lessons().await.filter(|_| is_implausible);
        let may = is_main_thread && mode.is_none() && !is_implausible && breaks_after.is_none();
        let miscount = self.choose_miscount(may);
        let sibling = self.choose_sibling(may && miscount.is_none(), &body);
        let may = is_main_thread && !is_implausible && breaks_after.is_none();
        let may = may && miscount.is_none() && sibling.is_none();
        let odd = self.choose_odd_reply(may).or_else(|| self.choose_decline(may));
        let has_sibling = sibling.is_some();
        let answered = match sibling {
            Some(sibling) => self.send_beside(&body, sibling).await,
            None => self.send_alone(mode, &body, breaks_after).await,
        };
        let Answered { response, exchange, sibling } = answered;
        let odd = self.happened(odd);
        let mut log = self.take_own_log()?;
        if let Some(sibling) = sibling {
            self.check_sibling(&sibling, &mut log)?;
        }
        self.last_exchange = Some(exchange.clone());
        self.count(&exchange, mode);
        if self.verbose {
            show(response.0, mode, &body, &exchange, &log);
            show_answer(odd, &response.1);
        }
        let status = response.0;
        let checked = CheckedExchange {
            body: &body,
            mode,
            status,
            exchange: &exchange,
            log: &log,
            original: &original,
            is_implausible,
        };
        self.check_exchange(&checked, miscount)?;
        self.is_after_hidden = matches!(odd, Some(OddReply::HiddenReasoning { .. }));
        if is_main_thread {
            let expected = self.expected_place.take();
            // Of two requests at once either may go on with the thread, the other one begins its own.
            odd_replies::check_place(expected.filter(|_| !has_sibling), &exchange)?;
        }
        if checked.is_implausible {
            self.check_nothing_learned(&checked, lessons_before).await?;
        }
        self.learn_from(&checked);
        self.check_prefix(&checked, is_main_thread)?;
        self.remember_sent(&checked);
        let (200, text) = response else {
            return Ok(self.handle_refusal(&checked));
        };
        if odd == Some(OddReply::Declined) {
            self.ask_another_model(&exchange);
            return Ok(Some(Vec::new()));
        }
        let whole = self.read_answer(&text);
        let answer = self.kept_answer(whole.clone(), odd);
        self.remember_reasoning(&body, &answer, exchange.outcome);
        hostile::collect_reasoning(&answer, &mut self.secrets);
        if exchange.outcome != Outcome::Complete {
            self.handle_broken_reply(answer);
            return Ok(Some(Vec::new()));
        }
        let (reply, calls) = client::read_reply(self.dialect, &answer);
        self.remember_calls(&body, &client::read_reply(self.dialect, &whole).0);
        if is_main_thread {
            let is_provable = proof::is_telling(self.dialect, self.style, &self.history, &reply);
            let place = (!has_sibling && is_provable).then(|| odd_replies::place(&exchange));
            self.history.push(HistoryItem::Reply(reply));
            self.expected_place = place;
        }
        Ok(Some(calls))
    }

    /// What holds after every exchange, whatever was drawn.
    fn check_exchange(
        &mut self,
        checked: &CheckedExchange<'_>,
        miscount: Option<Miscount>,
    ) -> Result<(), String> {
        self.check(checked)?;
        self.check_counts(checked, miscount)?;
        self.check_signatures(checked)?;
        self.check_stand_ins(checked)?;
        self.check_doubled(checked)?;
        self.count_estimate(checked);
        Ok(())
    }

    /// What the provider received of this conversation.
    fn take_own_log(&self) -> Result<Vec<LoggedRequest>, String> {
        let mut log = self.stage.provider.take_log();
        // Requests for summaries and counts are ours. Summaries are judged by `endless`.
        log.retain(|entry| {
            entry.request.operation != Operation::CountTokens && !is_summary_request(entry)
        });
        log.retain(hostile::is_from_victim);
        hostile::check_untainted(&log)?;
        Ok(log)
    }

    /// Remembers after what, and by which model, the reasoning of an answer was written.
    fn remember_reasoning(&mut self, body: &Value, answer: &Value, outcome: Outcome) {
        // Which text of a reply is the last one depends on what its client keeps of it.
        let kept = match outcome {
            Outcome::Complete => Some(answer.clone()),
            _ => client::partial_reply(self.dialect, answer.clone()),
        };
        let is_edited = kept
            .is_some_and(|reply| client::edits_before_reasoning(self.dialect, &reply, self.style));
        // What its client edits before it is no prefix of any request.
        let prefix = match is_edited {
            true => 0,
            false => {
                let prefixes = self.prefix_hashes(&client::history(self.dialect, body));
                prefixes.last().copied().unwrap_or_default()
            }
        };
        for_each_signature(answer, &mut |signature| {
            self.signature_prefixes.entry(signature.to_owned()).or_insert(prefix);
        });
        let is_recorded = self.policy.reasoning.reinject == ReinjectPolicy::Auto;
        let recorded_for = is_recorded.then_some(self.head.model);
        for_each_string(answer, REASONING, &mut |reasoning| {
            self.reasoning_models.entry(reasoning.to_owned()).or_insert(recorded_for);
        });
    }

    /// How the provider would judge the client's own request.
    fn check_original(&self, body: &Value) -> Original {
        let target = client::path(self.dialect, &self.head);
        let (provider, headers) = (&self.stage.provider, client_headers());
        let bytes = || body.to_string().into();
        let unrewritten = self
            .reasoning_is_in_place(body)
            .then(|| provider.dry_run_unbound(&target, &headers, bytes()));
        Original { given_rewrites: provider.dry_run(&target, &headers, bytes()), unrewritten }
    }

    async fn send_alone(
        &mut self,
        mode: Option<&str>,
        body: &Value,
        breaks_after: Option<usize>,
    ) -> Answered {
        self.stage.provider.take_log();
        let target = client::path(self.dialect, &self.head);
        let response = match breaks_after {
            Some(events) => self.stage.send_until_break(mode, &target, body, events).await,
            None => self.stage.send_with_mode(mode, &target, body).await,
        };
        Answered { response, exchange: self.stage.server.next_exchange().await, sibling: None }
    }

    /// What the checks of later exchanges have to know of this one.
    fn learn_from(&mut self, checked: &CheckedExchange<'_>) {
        let done = &checked.exchange.done;
        self.is_suspended |= done.resent.is_some() || done.revoked.is_some();
        // What was refused after that teaches nothing.
        let rule = checked.log.first().and_then(|entry| entry.verdict.broken_rule());
        if rule == Some(Rule::ThinkingMissing)
            || checked.exchange.refused == Some(RefusalCause::ReasoningDemanded)
        {
            self.demanding_models.insert(self.head.model);
        }
        let mut rules = checked.log.iter().filter_map(|entry| entry.verdict.broken_rule());
        if rules.any(|rule| rule == Rule::BoundElsewhere) {
            self.binding_models.insert(self.head.model);
        }
    }

    fn count(&mut self, exchange: &Exchange, mode: Option<&str>) {
        let (counts, done) = (&mut self.counts, &exchange.done);
        counts.exchanges += 1;
        counts.passive += u64::from(mode.is_some());
        counts.recovered_overflows +=
            u64::from(done.overflow.is_some_and(|overflow| overflow.saved));
        counts.revoked += u64::from(done.revoked.is_some());
        if done.is_sent() {
            counts.compacted += u64::from(done.made.compacted > 0);
            counts.cuts += u64::from(done.made.cut > 0);
            counts.put_back += u64::from(done.made.put_back > 0);
            counts.stripped += u64::from(done.made.removed > 0);
        }
    }

    /// Makes the provider refuse the next request with an impossible token count, now and then.
    fn schedule_implausible_overflow(&mut self, body: &Value, breaks_after: Option<usize>) -> bool {
        // What is known of this model can be compared then.
        let is_known = self
            .last_exchange
            .as_ref()
            .is_some_and(|exchange| exchange.model.as_deref() == Some(self.head.model));
        // OpenAI's words have no number that could be disbelieved (`docs/protocols.md` 3.6).
        let may = self.dialect != Dialect::Responses && breaks_after.is_none() && is_known;
        let sent = body.to_string();
        // A picture may have any size.
        let is_small = sent.len() < SMALL_REQUEST_BYTES && !sent.contains(client::PICTURE);
        let is_implausible = may && is_small && self.dice.once_in(12);
        if is_implausible {
            self.stage
                .provider
                .set_rules(Rules { implausible_overflow: true, ..self.rules.clone() });
            self.counts.implausible_overflows += 1;
        }
        is_implausible
    }

    /// An impossible overflow teaches nothing; other refusals after it may.
    async fn check_nothing_learned(
        &self,
        checked: &CheckedExchange<'_>,
        before: Option<hostile::LearnedState>,
    ) -> Result<(), String> {
        self.stage.provider.set_rules(self.rules.clone());
        let others = checked.log.iter().skip(1).all(|entry| entry.verdict.broken_rule().is_none());
        match self.lessons().await {
            after if after == before || !others || !checked.was_implausible() => Ok(()),
            after => Err(format!("a wild overflow taught {before:?}, and now {after:?}")),
        }
    }

    /// After an impossible overflow the client sends the request again; any other refusal is its own fault.
    fn handle_refusal(&mut self, checked: &CheckedExchange<'_>) -> Option<Vec<ToolCall>> {
        if checked.was_implausible() {
            self.reply_broke_off = true;
            return Some(Vec::new());
        }
        let rule = checked.log.last().and_then(|entry| entry.verdict.broken_rule());
        self.counts.deserved_refusals += 1;
        *self.counts.broken_rules.entry(format!("{rule:?}")).or_default() += 1;
        None
    }

    /// After how many events the answer breaks off, if it does.
    fn choose_break(&mut self, is_main_thread: bool) -> Option<usize> {
        let may = self.head.stream && self.dialect != Dialect::Gemini && is_main_thread;
        let may = may && self.style.replies == 1;
        if !may || !self.dice.once_in(3) {
            return None;
        }
        // Half of them would have thought once more after their first words.
        let thinks_twice = self.dice.once_in(2);
        if thinks_twice {
            let mut words = || self.dice.words(4);
            let second_thinking = ScriptedPart::Thinking { text: words(), tokens: 40 };
            let reply = ScriptedReply::thinking(&words(), 40)
                .with_text(&words())
                .with_part(second_thinking)
                .with_text(&words());
            self.stage.provider.queue_reply(reply);
        }
        let most = if thinks_twice || self.dialect != Dialect::Anthropic { 14 } else { 9 };
        Some(3 + self.dice.below(most))
    }

    /// The answer broke off: the client asks again, or keeps what is whole of it and has the model go on.
    fn handle_broken_reply(&mut self, answer: Value) {
        self.counts.broken_streams += 1;
        self.reply_broke_off = true;
        let Some(kept) = client::partial_reply(self.dialect, answer) else { return };
        if !self.dice.once_in(3) {
            self.history.extend([
                HistoryItem::PartialReply(kept),
                HistoryItem::User("Resume directly.".to_owned()),
            ]);
        }
    }

    /// What this tenant has learned.
    async fn lessons(&self) -> Option<hostile::LearnedState> {
        let exchange = self.last_exchange.as_ref()?;
        Some(hostile::learned_state(&self.stage.server, exchange).await)
    }

    /// A hostile tenant makes a move: it receives nothing of this one, and this one learns nothing.
    async fn play_hostile_move(&mut self) -> Result<(), String> {
        for item in &self.history {
            // The end of a text is random, and occurs nowhere else.
            let texts: Vec<&str> = match item {
                HistoryItem::User(text) | HistoryItem::UserWithPicture(text) => vec![text],
                HistoryItem::ToolResults(results) => {
                    results.iter().map(|result| &*result.text).collect()
                }
                HistoryItem::Reply(_) | HistoryItem::PartialReply(_) => Vec::new(),
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
        let result = self.hostile.make_move(self.stage.server.address, &victim).await;
        self.stage.server.next_exchange().await;
        result.check_isolation(&victim, &self.stage.provider.take_log())?;
        if self.shares_lessons {
            hostile::share_lessons(&self.stage.server).await;
        }
        self.counts.hostile_moves += 1;
        match self.lessons().await {
            after if after == before => Ok(()),
            after => Err(format!("learned from a hostile tenant: {before:?}, and now {after:?}")),
        }
    }
}
