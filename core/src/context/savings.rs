//! What rewriting saved and what it cost, each number with its total.
//!
//! A removed token counts in every turn that did not send it. Money is at catalogue prices and includes the
//! cost of a broken cache, as the provider's usage shows it (`docs/protocols.md` 7.4). Where a number could
//! be computed in two ways, the one that makes rewriting look worse is used. Pure.

use serde::{Deserialize, Serialize};

use super::cost::{self, millionths, write_price};
use super::plan::{NewTokens, RewriteSummary};
use super::policy::Mode;
use super::{CostPrediction, Estimate, EstimateMethod, Millis, ProviderCount, Turn};
use crate::dialect::models::Price;
use crate::dialect::{Dialect, Usage};

/// The effect of rewriting on one exchange, tokens and US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ExchangeSavings {
    /// Tokens of results that were not sent, as measured ([`Turn::measure_removed`]).
    pub removed: u64,
    /// Tokens that a summary replaced, less its own, as measured.
    #[serde(default)]
    pub compacted: u64,
    /// Tokens that shadow mode would not have sent.
    pub in_shadow: u64,
    /// Input tokens that were sent: reported, else estimated.
    pub sent: u64,
    /// Tokens after a new cut that were in the provider's cache and had to be processed again.
    pub reprocessed: u64,
    /// The provider's count of the original request, if this exchange was sampled for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came: Option<u64>,
    /// The effect in money; `None` if the price or the usage is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
}

impl ExchangeSavings {
    /// Tokens that were not sent: of results, and of the history that a summary replaced.
    pub fn gone(&self) -> u64 {
        self.removed.saturating_add(self.compacted)
    }
}

/// US dollars, at catalogue prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Money {
    /// The cost of the exchange.
    pub spent: f64,
    /// What the removed tokens would have cost. They are priced as cache reads if this exchange read any of
    /// the history from the cache, or would have without a new cut; else as processed. Tokens that a summary
    /// replaced are included if the request would have fit the window with them.
    pub saved: f64,
    /// The cost of the cache that a new cut or summary broke.
    pub broken: f64,
}

impl Money {
    fn net(&self) -> f64 {
        self.saved - self.broken
    }
}

/// The data about an exchange that its savings are computed from.
#[derive(Clone, Copy)]
struct SavingsInput<'a> {
    /// What was changed in its request.
    done: &'a RewriteSummary,
    /// Usage as the provider reported it.
    usage: &'a Usage,
    /// The count of the provider's counting endpoint, if it was asked.
    counted: Option<ProviderCount>,
    /// Its predicted cost.
    estimate: Option<&'a Estimate>,
    /// The reported usage of the parent turn.
    before: Option<&'a Usage>,
    /// The window that was assumed, tokens.
    window: u64,
    /// The catalogue price of the model that answered; `None` if unknown.
    price: Option<Price>,
    /// What everything that is billed of it cost, US dollars ([`cost::billed`]); `None` if unknown.
    spent: Option<f64>,
    /// Its protocol: the price of a long-lived cache write depends on it.
    dialect: Dialect,
    /// When it was made: so does the price.
    at: Millis,
}

impl<'a> SavingsInput<'a> {
    fn from_turn(
        turn: &'a Turn,
        parent: Option<&'a Turn>,
        price: impl Fn(&str) -> Option<Price>,
    ) -> Self {
        let answered = turn.usage.served_by.as_deref().unwrap_or(turn.answered_by());
        Self {
            done: &turn.done,
            usage: &turn.usage,
            counted: turn.counted,
            estimate: turn.estimate.as_ref(),
            before: parent.map(|parent| &parent.usage),
            window: turn.window,
            price: turn.price_of(answered, &price),
            spent: turn.cost(price),
            dialect: turn.dialect,
            at: turn.at,
        }
    }

    fn saved(&self) -> ExchangeSavings {
        let Self { done, usage, .. } = self;
        let is_sent = done.is_sent();
        let is_shadow = done.mode == Mode::Shadow;
        let estimated = self.estimate.map(|estimate| estimate.tokens);
        let reprocessed = self.reprocessed();
        ExchangeSavings {
            removed: if is_sent { done.measured(done.tokens_removed) } else { 0 },
            compacted: if is_sent { done.measured(done.tokens_compacted) } else { 0 },
            in_shadow: if is_shadow { done.tokens_removed } else { 0 },
            sent: usage.input.or(estimated).unwrap_or(0),
            reprocessed,
            came: self.came(),
            money: self.money(reprocessed),
        }
    }

    fn came(&self) -> Option<u64> {
        // The claim can only be checked if changes were sent, and if the input was reported.
        if !self.done.is_sent() || self.usage.input.is_none() || self.usage.lower_bound {
            return None;
        }
        let counted = self.counted.filter(|counted| counted.of_original)?;
        Some(counted.tokens)
    }

    fn reprocessed(&self) -> u64 {
        let Some(held) = self.broken_cache() else { return 0 };
        let cut = self.done.measured(self.done.tokens_of_new().late);
        // A cache that was cold is not counted: nothing of the history was read then.
        held.saturating_sub(cut).saturating_sub(self.usage.cache_read.unwrap_or(0))
    }

    fn read_history(&self) -> bool {
        // System prompt and tools are equal in other sessions, which may have cached them.
        let head = self.estimate.map_or(0, |estimate| {
            estimate.breakdown.system.saturating_add(estimate.breakdown.tools)
        });
        self.usage.cache_read.is_some_and(|read| read > head)
    }

    /// Tokens in the cache that a new cut or summary broke: the cache had the unchanged form. `None` if none
    /// were broken.
    fn broken_cache(&self) -> Option<u64> {
        // Without a report of cache reads, nobody knows whether there was a cache.
        self.usage.cache_read?;
        let NewTokens { late, in_warm_cache, .. } = self.done.tokens_of_new();
        let is_warm = in_warm_cache || self.read_history();
        if !self.done.is_sent() || late == 0 || !is_warm {
            return None;
        }
        Some(held(self.before?, self.dialect)).filter(|tokens| *tokens > 0)
    }

    fn money(&self, reprocessed: u64) -> Option<Money> {
        let usage = self.usage;
        let price = self.price?.rates(cost::terms(usage, &usage.billing, self.at))?;
        let spent = cost::known(self.spent?)?;
        // What was removed would have been written to the cache, too.
        let process = match usage.cache_write {
            Some(written) if written > 0 => write_price(usage, price, self.dialect),
            _ => price.input,
        };
        // If nothing was read because a cut broke the cache, the removed tokens would have been cache reads.
        let warm = self.read_history() || self.broken_cache().is_some();
        let reread_price = if warm { price.cache_read } else { process };
        let mut saved = 0.0;
        let mut broken = 0.0;
        if self.done.is_sent() {
            // What is cut when it is first sent was in no cache.
            let newborn = self.done.tokens_of_new().at_birth.min(self.done.tokens_removed);
            let rest = self.done.measured(self.done.tokens_removed - newborn);
            let compacted = self.done.measured(self.done.tokens_compacted);
            // A history that would not have fit the window could not have been sent at any price.
            let original = usage.input.unwrap_or(0).saturating_add(newborn + rest + compacted);
            let compacted = if original <= self.window { compacted } else { 0 };
            saved = millionths(newborn, process) + millionths(rest + compacted, reread_price);
            broken = millionths(reprocessed, (process - price.cache_read).max(0.0));
        }
        Some(Money { spent, saved: cost::known(saved)?, broken: cost::known(broken)? })
    }
}

impl Turn {
    /// What rewriting saved or cost. `parent`: the turn that it continues. `price`: that of a model.
    pub fn savings(
        &self,
        parent: Option<&Turn>,
        price: impl Fn(&str) -> Option<Price>,
    ) -> ExchangeSavings {
        SavingsInput::from_turn(self, parent, price).saved()
    }

    /// Stores how many tokens were really saved per claimed token, once the usage is known. `parent`: the
    /// turn that it continues.
    pub fn measure_removed(&mut self, parent: Option<&Turn>) {
        let parent_ratio = parent.and_then(|parent| parent.done.measured).unwrap_or(1.0);
        let total = self.done.tokens_removed.saturating_add(self.done.tokens_compacted);
        // What earlier turns cut keeps the ratio that was measured then.
        let ratio = match self.really_removed() {
            Some((claimed, removed)) if claimed <= total => {
                (parent_ratio * (total - claimed) as f64 + removed) / total as f64
            }
            _ => parent_ratio,
        };
        self.done.measured = if total > 0 && ratio != 1.0 { Some(ratio) } else { None };
    }

    /// The tokens claimed for this turn's own late cuts, and the tokens really saved: those that the estimate
    /// took off, and the share of its error that is theirs. `None` if the estimate did not take them off: it
    /// has no earlier turn to take them off from, or the parts that were cut are not in it.
    fn really_removed(&self) -> Option<(u64, f64)> {
        let NewTokens { late: claimed, stand_ins, .. } = self.done.tokens_of_new();
        let (estimate, error) = self.error()?;
        let is_whole =
            claimed.saturating_add(stand_ins) as f64 <= MOST_REMOVED * estimate.gone_history as f64;
        if !self.done.is_sent() || claimed == 0 || !is_whole {
            return None;
        }
        let subtracted = estimate.gone_history.saturating_sub(stand_ins) as f64;
        let removed = subtracted + error * share_of_cuts(subtracted, &estimate.guess);
        Some((claimed, removed.clamp(0.0, MOST_REMOVED * claimed as f64)))
    }

    /// An estimate based on an earlier turn, and by how many tokens its prediction was too high.
    fn error(&self) -> Option<(&Estimate, f64)> {
        // The prediction, because `Estimate::tokens` may be a number by an agent's rules.
        let estimate = self.estimate.as_ref()?;
        let has_anchor =
            matches!(estimate.method, EstimateMethod::Anchored | EstimateMethod::Compacted);
        if !has_anchor || self.usage.lower_bound {
            return None;
        }
        let actual = self.usage.input?;
        Some((estimate, estimate.guess.tokens as f64 - actual as f64))
    }
}

fn share_of_cuts(left: f64, guess: &CostPrediction) -> f64 {
    let of_cuts = (MISCOUNTED * left).powi(2);
    let of_new = (guess.high.saturating_sub(guess.low) as f64 / 2.0).powi(2);
    // The error is shared out by the squares of what either may be off by: the more uncertain the new parts are, the less an error says
    // about the cuts. What earlier new parts were off by is not subtracted: in recorded sessions that made
    // claims twice as wrong (`docs/rewriting.md` "What it saved").
    if of_cuts > 0.0 { of_cuts / (of_cuts + of_new) } else { 0.0 }
}

/// Cut parts may have been miscounted by this share, nine times in ten. The range of a prediction
/// ([`CostPrediction::low`]) is as probable.
const MISCOUNTED: f64 = 0.2;

/// A cut saves at most this many times its claim; anything above has another cause.
const MOST_REMOVED: f64 = 2.0;

fn held(usage: &Usage, dialect: Dialect) -> u64 {
    let reported = usage.cache_read.unwrap_or(0).saturating_add(usage.cache_write.unwrap_or(0));
    let automatic = dialect != Dialect::Anthropic && usage.cache_write.unwrap_or(0) == 0;
    // Where caching is automatic and writes are not reported, the whole prompt is in the cache.
    match (automatic, usage.cache_read, usage.input) {
        (true, Some(_), Some(input)) => input,
        _ => reported,
    }
}

/// Claimed savings compared with the provider's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClaimCheck {
    /// How many exchanges.
    pub turns: u64,
    /// Tokens that we claim were not sent of them: removed, and replaced by summaries.
    pub claimed: u64,
    /// The provider's count of their original requests.
    pub came: u64,
    /// The reported input of the requests as sent.
    pub sent: u64,
}

impl ClaimCheck {
    /// Tokens saved according to the provider; below 0 if more was sent than came.
    pub fn saved(&self) -> i64 {
        let came = i64::try_from(self.came).unwrap_or(i64::MAX);
        came.saturating_sub(i64::try_from(self.sent).unwrap_or(i64::MAX))
    }
}

/// The summaries written for exchanges. Their cost is overhead, in no exchange's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SummaryCosts {
    /// How many.
    pub written: u64,
    /// How many of them `dollars` includes: those with a known price and a reported input.
    pub priced: u64,
    /// Input tokens used for them, cached or not.
    pub input: u64,
    /// Output tokens used for them.
    pub output: u64,
    /// Their cost, US dollars.
    pub dollars: f64,
    /// Tokens that they replaced, less their own, summed over all exchanges that used them. Their price is in
    /// the savings if the exchange would have fit the window with them.
    pub tokens_compacted: u64,
}

impl SummaryCosts {
    /// The costs of one summary, from its usage.
    /// `dollars`: what it cost, if that is known.
    pub fn from_usage(spent: &Usage, dollars: Option<f64>) -> Self {
        Self {
            written: 1,
            priced: u64::from(dollars.is_some() && !spent.billing.is_lower_bound()),
            input: spent.input.unwrap_or(0),
            output: spent.output.unwrap_or(0),
            dollars: dollars.unwrap_or(0.0),
            tokens_compacted: 0,
        }
    }

    fn join(&mut self, other: &Self) {
        add(&mut self.written, other.written);
        add(&mut self.priced, other.priced);
        add(&mut self.input, other.input);
        add(&mut self.output, other.output);
        add(&mut self.tokens_compacted, other.tokens_compacted);
        self.dollars += other.dollars;
    }
}

/// Sums over exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Savings {
    /// How many exchanges.
    pub turns: u64,
    /// How many of them were sent with fewer tokens than the client sent.
    pub pruned_turns: u64,
    /// Tokens that were not sent, counted in each turn.
    pub removed: u64,
    /// Input tokens that were sent.
    pub sent: u64,
    /// `removed / (removed + sent)`: the share of all traffic; `None` if nothing was sent.
    pub removed_share: Option<f64>,
    /// Tokens that shadow mode would not have sent.
    pub in_shadow: u64,
    /// Tokens that had to be processed again because a new cut broke the cache.
    pub reprocessed: u64,
    /// How many exchanges `money` includes: those with a known price and a reported input.
    pub priced_turns: u64,
    /// Exchanges whose savings were checked with the provider's count of the original request.
    #[serde(default)]
    pub checked: ClaimCheck,
    /// The summaries written for them.
    #[serde(default)]
    pub summaries: SummaryCosts,
    /// US dollars.
    pub money: Money,
    /// Saved, less broken, less the cost of summaries, US dollars.
    pub net: f64,
}

impl Savings {
    /// Adds one exchange.
    pub fn add(&mut self, saved: &ExchangeSavings) {
        self.join(&Self {
            turns: 1,
            pruned_turns: u64::from(saved.removed > 0),
            removed: saved.removed,
            sent: saved.sent,
            in_shadow: saved.in_shadow,
            reprocessed: saved.reprocessed,
            priced_turns: u64::from(saved.money.is_some()),
            checked: saved.came.map_or(ClaimCheck::default(), |came| ClaimCheck {
                turns: 1,
                claimed: saved.gone(),
                came,
                sent: saved.sent,
            }),
            money: saved.money.unwrap_or_default(),
            summaries: SummaryCosts {
                tokens_compacted: saved.compacted,
                ..SummaryCosts::default()
            },
            ..Self::default()
        });
    }

    /// Adds a summary.
    pub fn wrote(&mut self, summary: SummaryCosts) {
        self.join(&Self { summaries: summary, ..Self::default() });
    }

    /// Adds other sums.
    pub fn join(&mut self, other: &Self) {
        // They saturate, because a provider may report anything.
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
        self.removed_share = match self.removed.saturating_add(self.sent) {
            0 => None,
            total => Some(self.removed as f64 / total as f64),
        };
    }
}

fn add(sum: &mut u64, more: u64) {
    // Saturates, because a provider may report anything.
    *sum = sum.saturating_add(more);
}

#[cfg(test)]
mod miscounted_tests;
#[cfg(test)]
mod tests;
