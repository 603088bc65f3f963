//! What rewriting saved and what it cost: each number with what it is a share of.
//!
//! Tokens removed count on every turn that did not send them. Money is at catalogue prices and
//! counts what a broken cache cost, as the provider's own report shows it (`docs/protocols.md` 7.4).
//! Where a number could be put either way, the one that makes rewriting look worse is taken. Pure.

use serde::{Deserialize, Serialize};

use super::plan::{Change, Decision, DecisionReason, PlanStep, RewriteSummary};
use super::policy::Mode;
use super::{Estimate, EstimateMethod, ProviderCount, Turn};
use crate::dialect::models::Price;
use crate::dialect::{Dialect, Usage};

/// What rewriting did for one exchange, tokens and US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExchangeSavings {
    /// Tokens of results that were not sent, as far as they were measured ([`Turn::measure_removed`]).
    pub removed: u64,
    /// Tokens that a summary took the place of, less its own, likewise.
    #[serde(default)]
    pub compacted: u64,
    /// Tokens that shadow mode would not have sent.
    pub in_shadow: u64,
    /// Input tokens that were sent: as reported, else as estimated.
    pub sent: u64,
    /// Tokens that were in the provider's cache, stand after a new cut, and had to be processed again.
    pub reprocessed: u64,
    /// The tokens that the provider counts in the request as it came, where a sample was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came: Option<u64>,
    /// The same in money; `None` where the price, or what was used, is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
}

/// US dollars, at catalogue prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Money {
    /// What the exchange cost.
    pub spent: f64,
    /// What the removed tokens would have cost: as read from the cache where this exchange read
    /// anything of the history from it, or would have but for a new cut, else as processed. What a summary took the
    /// place of is among them where the request would have fit the window with it.
    pub saved: f64,
    /// What it cost that a new cut or summary broke the cache.
    pub broken: f64,
}

impl Money {
    /// Saved less broken; below 0 where rewriting cost more than it saved.
    pub fn net(&self) -> f64 {
        self.saved - self.broken
    }
}

/// An exchange as it is judged.
#[derive(Clone, Copy)]
pub struct SavingsInput<'a> {
    /// What was done to it.
    pub done: &'a RewriteSummary,
    /// What it reported.
    pub usage: &'a Usage,
    /// What the provider's counting endpoint answered, where it was asked.
    pub counted: Option<ProviderCount>,
    /// What was predicted.
    pub estimate: Option<&'a Estimate>,
    /// What the turn reported that it grew from.
    pub before: Option<&'a Usage>,
    /// The window that was believed, tokens.
    pub window: u64,
    /// The model's price.
    pub price: Option<Price>,
    /// Its protocol: what a long cache write costs depends on it.
    pub dialect: Dialect,
}

impl<'a> SavingsInput<'a> {
    /// A turn, and the one it grew from.
    pub fn of(turn: &'a Turn, parent: Option<&'a Turn>, price: Option<Price>) -> Self {
        Self {
            done: &turn.done,
            usage: &turn.usage,
            counted: turn.counted,
            estimate: turn.estimate.as_ref(),
            before: parent.map(|parent| &parent.usage),
            window: turn.window,
            price,
            dialect: turn.dialect,
        }
    }

    /// What rewriting did for it.
    pub fn saved(&self) -> ExchangeSavings {
        let Self { done, usage, .. } = self;
        let (sent, shadow) = (done.is_sent(), done.mode == Mode::Shadow);
        let estimated = self.estimate.map(|estimate| estimate.tokens);
        let reprocessed = self.reprocessed();
        ExchangeSavings {
            removed: if sent { done.measured(done.tokens_removed) } else { 0 },
            compacted: if sent { done.measured(done.tokens_compacted) } else { 0 },
            in_shadow: if shadow { done.tokens_removed } else { 0 },
            sent: usage.input.or(estimated).unwrap_or(0),
            reprocessed,
            came: self.came(),
            money: self.money(reprocessed),
        }
    }

    /// Only what was sent changed can be checked, and only against a reported input.
    fn came(&self) -> Option<u64> {
        let counted = self.counted.filter(|counted| counted.as_it_came)?;
        let checks = self.done.is_sent() && self.usage.input.is_some() && !self.usage.lower_bound;
        checks.then_some(counted.tokens)
    }

    /// New cuts of what was sent before, and new summaries: the cache rested on it.
    fn late_cuts(&self) -> impl Iterator<Item = &'a PlanStep> {
        self.done.steps.iter().filter(|step| is_late(step))
    }

    /// What the cache held after the turn before, less what was cut of it, less what was read now. A
    /// cache that was cold broke on its own: it is believed cold where nothing of the history was read.
    fn reprocessed(&self) -> u64 {
        let Some(held) = self.broken_cache() else { return 0 };
        let cut = self.done.measured(self.late_cuts().map(removed).sum());
        held.saturating_sub(cut).saturating_sub(self.usage.cache_read.unwrap_or(0))
    }

    /// Whether anything was read from the cache but system prompt and tools, as they are estimated: those of other
    /// sessions are the same, and keep them there.
    fn read_history(&self) -> bool {
        let head = self.estimate.map_or(0, |estimate| {
            estimate.breakdown.system.saturating_add(estimate.breakdown.tools)
        });
        self.usage.cache_read.is_some_and(|read| read > head)
    }

    /// What the cache held that a new cut or summary broke; `None` where none did.
    fn broken_cache(&self) -> Option<u64> {
        let before = self.before.filter(|_| self.usage.cache_read.is_some())?;
        let cuts = self.late_cuts().any(|step| removed(step) > 0);
        let cold = self.late_cuts().all(|step| step.why == DecisionReason::ColdCache);
        let cold = cold && !self.read_history();
        let held = held(before, self.dialect);
        (self.done.is_sent() && cuts && !cold && held > 0).then_some(held)
    }

    fn money(&self, reprocessed: u64) -> Option<Money> {
        let price = self.price?;
        let usage = self.usage;
        let spent = cost(usage, price, self.dialect)?;
        let process = match usage.cache_write {
            Some(written) if written > 0 => write_price(usage, price, self.dialect),
            _ => price.input,
        };
        // Where nothing was read because a cut broke it all, what went would have been read.
        let warm = self.read_history() || self.broken_cache().is_some();
        let again = if warm { price.cache_read } else { process };
        let (mut saved, mut broken) = (0.0, 0.0);
        if self.done.is_sent() {
            // What is cut at birth was in no cache yet.
            let newborn = self.done.steps.iter().filter(|step| {
                step.decision == Decision::New && step.why == DecisionReason::TooLarge
            });
            let newborn = newborn.map(removed).sum::<u64>().min(self.done.tokens_removed);
            let rest = self.done.measured(self.done.tokens_removed - newborn);
            let compacted = self.done.measured(self.done.tokens_compacted);
            // What would not have fit could not have been sent at any price.
            let whole = usage.input.unwrap_or(0).saturating_add(newborn + rest + compacted);
            let compacted = if whole <= self.window { compacted } else { 0 };
            saved = millionth(newborn, process) + millionth(rest + compacted, again);
            broken = millionth(reprocessed, (process - price.cache_read).max(0.0));
        }
        Some(Money { spent, saved, broken })
    }
}

/// A new change of what was sent before.
fn is_late(step: &PlanStep) -> bool {
    let shortens = matches!(step.change, Change::Cut | Change::Compacted);
    step.decision == Decision::New && shortens && step.why != DecisionReason::TooLarge
}

impl Turn {
    /// Keeps how many tokens really went for each that is claimed to be removed, once its usage is known.
    /// `parent`: the turn that it grew from.
    pub fn measure_removed(&mut self, parent: Option<&Turn>) {
        let before = parent.and_then(|parent| parent.done.measured).unwrap_or(1.0);
        let went = self.went(parent.map_or(0.0, |parent| self.error_of_new(parent)));
        let all = self.done.tokens_removed.saturating_add(self.done.tokens_compacted);
        let ratio = match went {
            Some((claimed, went)) if claimed <= all => {
                (before * (all - claimed) as f64 + went) / all as f64
            }
            _ => before,
        };
        self.done.measured = (all > 0 && ratio != 1.0).then_some(ratio);
    }

    /// What was claimed to go with this turn's own cuts, and what went, as the provider counts: what left
    /// since the turn before, and as much more as it counts fewer tokens than were predicted. What is
    /// wrong with the new part is not the cut's doing: `error_of_new`, a share of it. `None` where more
    /// came anew than went: nothing can be told apart then.
    fn went(&self, error_of_new: f64) -> Option<(u64, f64)> {
        let late = || self.done.steps.iter().filter(|step| is_late(step));
        let claimed: u64 = late().map(removed).sum();
        let stands_in: u64 = late().map(|step| step.tokens_after).sum();
        let (estimate, error) = self.error()?;
        if !self.done.is_sent() || claimed == 0 || estimate.new >= estimate.went {
            return None;
        }
        let left = estimate.went.saturating_sub(stands_in) as f64;
        let went = left + error - error_of_new * estimate.new as f64;
        Some((claimed, went.clamp(0.0, MOST_WENT * claimed as f64)))
    }

    /// How wrong new parts are counted, as a share of them: as at the turn before, where that was counted by
    /// the same expert; 0 where that cannot be told.
    fn error_of_new(&self, before: &Turn) -> f64 {
        let expert = self.estimate.as_ref().map(|estimate| estimate.guess.expert);
        let is_like = |estimate: &Estimate| {
            estimate.went == 0 && estimate.new > 0 && expert == Some(estimate.guess.expert)
        };
        let told = before.error().filter(|(estimate, _)| is_like(estimate));
        told.map_or(0.0, |(estimate, error)| (error / estimate.new as f64).clamp(-MOST_UNSEEN, 1.0))
    }

    /// An estimate that grew from a turn before, and by how much it was too high.
    fn error(&self) -> Option<(&Estimate, f64)> {
        let grown = |method| matches!(method, EstimateMethod::Anchored | EstimateMethod::Compacted);
        let estimate = self.estimate.as_ref().filter(|estimate| grown(estimate.method))?;
        let actual = self.usage.input.filter(|_| !self.usage.lower_bound)?;
        Some((estimate, estimate.tokens as f64 - actual as f64))
    }
}

/// Of what came anew, a provider counts no more than so many times what we do beside it.
const MOST_UNSEEN: f64 = 4.0;

/// A cut does not take more away than so many times what was claimed; the rest is somebody else's.
const MOST_WENT: f64 = 2.0;

fn removed(step: &PlanStep) -> u64 {
    step.tokens_before.saturating_sub(step.tokens_after)
}

/// Tokens of a prompt that the provider's cache held after it, as it reported: what was read and
/// written; where writes are not reported, because caching is automatic, all of it.
fn held(usage: &Usage, dialect: Dialect) -> u64 {
    let told = usage.cache_read.unwrap_or(0).saturating_add(usage.cache_write.unwrap_or(0));
    let automatic = dialect != Dialect::Anthropic && usage.cache_write.unwrap_or(0) == 0;
    match (automatic, usage.cache_read, usage.input) {
        (true, Some(_), Some(input)) => input,
        _ => told,
    }
}

/// What an exchange cost at catalogue prices, US dollars; `None` where its input was not reported.
pub fn cost(usage: &Usage, price: Price, dialect: Dialect) -> Option<f64> {
    let input = usage.input?;
    let read = usage.cache_read.unwrap_or(0).min(input);
    let written = usage.cache_write.unwrap_or(0).min(input - read);
    let plain = input - read - written;
    Some(
        millionth(plain, price.input)
            + millionth(read, price.cache_read)
            + millionth(written, write_price(usage, price, dialect))
            + millionth(usage.output.unwrap_or(0), price.output),
    )
}

/// What a token written to the cache costs, long and short lives mixed as reported. Where the
/// catalogue names no fee, writing costs what processing does. A long life costs a multiple of the
/// input price: 2 at Anthropic, 2.5 at OpenAI (`docs/protocols.md` 7.1, 7.2).
pub(super) fn write_price(usage: &Usage, price: Price, dialect: Dialect) -> f64 {
    let short = if price.cache_write > 0.0 { price.cache_write } else { price.input };
    let long = match dialect {
        Dialect::Anthropic => 2.0 * price.input,
        Dialect::OpenaiChat | Dialect::OpenaiResponses => 2.5 * price.input,
        Dialect::Gemini => short,
    };
    let written = usage.cache_write.unwrap_or(0);
    let share = match usage.cache_write_long {
        Some(tokens) if written > 0 => tokens.min(written) as f64 / written as f64,
        _ => 0.0,
    };
    short + share * (long - short).max(0.0)
}

fn millionth(tokens: u64, price: f64) -> f64 {
    tokens as f64 * price / 1e6
}

/// What was claimed to be saved, beside what the provider counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimCheck {
    /// How many exchanges.
    pub turns: u64,
    /// Tokens that we say were removed from them.
    pub claimed: u64,
    /// The provider's count of them as they came.
    pub came: u64,
    /// What the provider reported for them as they were sent.
    pub sent: u64,
}

impl ClaimCheck {
    /// Tokens that the provider's numbers say were saved; below 0 where more was sent than came.
    pub fn saved(&self) -> i64 {
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        signed(self.came).saturating_sub(signed(self.sent))
    }
}

/// The summaries that were written for exchanges. What they cost is overhead, in no exchange's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SummaryCosts {
    /// How many.
    pub written: u64,
    /// How many of them the money is of: those with a known price and a reported input.
    pub priced: u64,
    /// Tokens that were read for them, from the cache or not.
    pub input: u64,
    /// Tokens that were generated.
    pub output: u64,
    /// US dollars.
    pub dollars: f64,
    /// Tokens that they took the place of, less their own, each exchange anew. What they would have
    /// cost is among what was saved where the exchange would have fit the window with them.
    pub tokens_compacted: u64,
}

impl SummaryCosts {
    /// Of one that was written, by what it cost.
    pub fn of(spent: &Usage, price: Option<Price>, dialect: Dialect) -> Self {
        let dollars = price.and_then(|price| cost(spent, price, dialect));
        Self {
            written: 1,
            priced: u64::from(dollars.is_some()),
            input: spent.input.unwrap_or(0),
            output: spent.output.unwrap_or(0),
            dollars: dollars.unwrap_or(0.0),
            tokens_compacted: 0,
        }
    }

    fn join(&mut self, other: &Self) {
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        add(&mut self.written, other.written);
        add(&mut self.priced, other.priced);
        add(&mut self.input, other.input);
        add(&mut self.output, other.output);
        add(&mut self.tokens_compacted, other.tokens_compacted);
        self.dollars += other.dollars;
    }
}

/// Sums over exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Savings {
    /// How many exchanges.
    pub turns: u64,
    /// How many of them were sent with fewer tokens than they came with.
    pub pruned_turns: u64,
    /// Tokens that were not sent, each turn anew.
    pub removed: u64,
    /// Input tokens that were sent.
    pub sent: u64,
    /// `removed / (removed + sent)`: the share of the whole wire; `None` where nothing was sent.
    pub removed_share: Option<f64>,
    /// Tokens that shadow mode would not have sent.
    pub in_shadow: u64,
    /// Tokens that had to be processed again because a new cut broke the cache.
    pub reprocessed: u64,
    /// How many exchanges the money is of: those with a known price and a reported input.
    pub priced_turns: u64,
    /// Exchanges whose saving was checked by the provider's own count of the request as it came.
    #[serde(default)]
    pub checked: ClaimCheck,
    /// Summaries that were written for them.
    #[serde(default)]
    pub summaries: SummaryCosts,
    /// US dollars.
    pub money: Money,
    /// Saved, less broken, less what summaries cost, US dollars.
    pub net: f64,
}

impl Savings {
    /// Adds one exchange.
    pub fn add(&mut self, saved: &ExchangeSavings) {
        let one = Self {
            turns: 1,
            pruned_turns: u64::from(saved.removed > 0),
            removed: saved.removed,
            sent: saved.sent,
            in_shadow: saved.in_shadow,
            reprocessed: saved.reprocessed,
            priced_turns: u64::from(saved.money.is_some()),
            checked: saved.came.map_or(ClaimCheck::default(), |came| ClaimCheck {
                turns: 1,
                claimed: saved.removed,
                came,
                sent: saved.sent,
            }),
            money: saved.money.unwrap_or_default(),
            summaries: SummaryCosts {
                tokens_compacted: saved.compacted,
                ..SummaryCosts::default()
            },
            ..Self::default()
        };
        self.join(&one);
    }

    /// Adds a summary.
    pub fn wrote(&mut self, summary: SummaryCosts) {
        self.join(&Self { summaries: summary, ..Self::default() });
    }

    /// Adds other sums. A provider may report anything: sums end at their maximum.
    pub fn join(&mut self, other: &Self) {
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        add(&mut self.turns, other.turns);
        add(&mut self.pruned_turns, other.pruned_turns);
        add(&mut self.removed, other.removed);
        add(&mut self.sent, other.sent);
        add(&mut self.in_shadow, other.in_shadow);
        add(&mut self.reprocessed, other.reprocessed);
        add(&mut self.priced_turns, other.priced_turns);
        add(&mut self.checked.turns, other.checked.turns);
        add(&mut self.checked.claimed, other.checked.claimed);
        add(&mut self.checked.came, other.checked.came);
        add(&mut self.checked.sent, other.checked.sent);
        self.money.spent += other.money.spent;
        self.money.saved += other.money.saved;
        self.money.broken += other.money.broken;
        self.summaries.join(&other.summaries);
        self.net = self.money.net() - self.summaries.dollars;
        let whole = self.removed.saturating_add(self.sent);
        self.removed_share = (whole > 0).then(|| self.removed as f64 / whole as f64);
    }
}

#[cfg(test)]
mod tests;
