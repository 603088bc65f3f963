//! Caps: how much may be spent, by whom and in which time, and how much of that was.
//!
//! The sums are of stored turns, at the prices of their time, and of our own summaries. A cap that is reached stops the next
//! request; those in flight end as they would have. Periods are of UTC. Pure: the time is an argument.

mod changes;
mod shared;

use std::collections::HashMap;
use std::fmt;

use jiff::civil::Date;
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumString, VariantNames};

pub use self::changes::CapChanges;
pub use self::shared::{AdditionId, SumKey};
use super::budget::grouped;
use super::{CompactionRecord, Millis, SessionId, TenantId, Turn};
use crate::dialect::Usage;

/// How many sums are kept. Past it, the one that nothing was added to for longest is forgotten: of those that are not
/// nearly reached, because a cap that begins again at 0 would let through what it just refused.
const MOST_SUMS: usize = 10_000;
/// From this share of a cap on, it is told.
pub const WARNING: f64 = 0.8;

/// Whose spending has a sum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(AsRefStr, EnumString, VariantNames, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CapSubject {
    /// Everybody together.
    All,
    /// Each credential.
    Tenant,
    /// Each session, with its sub-agents.
    Session,
    /// Each folder that agents work in.
    Project,
    /// Each tag.
    Tag,
    /// Each upstream.
    Upstream,
}

/// How long a sum grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(AsRefStr, EnumString, VariantNames, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CapPeriod {
    /// As long as the session.
    Session,
    /// An hour.
    Hour,
    /// A day.
    #[default]
    Day,
    /// A month.
    Month,
}

/// Who set a cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CapOrigin {
    /// The configuration.
    #[default]
    Configuration,
    /// A person, while Plimsoll ran: `plimsoll caps --set`.
    Command,
}

/// A limit of spending.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cap {
    /// Its name.
    pub name: Box<str>,
    /// Who set it.
    pub origin: CapOrigin,
    /// Whose spending it limits.
    pub of: CapSubject,
    /// Only this one of them.
    pub only: Option<Box<str>>,
    /// In which time.
    pub per: CapPeriod,
    /// At most so many US dollars.
    pub dollars: Option<f64>,
    /// At most so many tokens, input and output.
    pub tokens: Option<u64>,
}

/// Who spends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spender {
    /// The credential.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// The folder that the agent works in, as far as it is known.
    pub project: Option<Box<str>>,
    /// The tags of the request, `name=value`.
    pub tags: Vec<Box<str>>,
    /// The upstream.
    pub upstream: Box<str>,
}

/// What something cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spending {
    /// US dollars, as far as the price is known.
    pub dollars: f64,
    /// Tokens, input and output.
    pub tokens: u64,
}

/// How much of a cap is spent by one of those whom it limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CapState {
    /// The cap's name.
    pub cap: Box<str>,
    /// Who set it.
    #[serde(default)]
    pub origin: CapOrigin,
    /// Whose spending it is.
    pub subject: Box<str>,
    /// In which time.
    pub per: CapPeriod,
    /// What was spent, US dollars.
    pub dollars: f64,
    /// What was spent, tokens.
    pub tokens: u64,
    /// At most so many US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_dollars: Option<f64>,
    /// At most so many tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_tokens: Option<u64>,
    /// The larger share of the two that is spent.
    pub used: f64,
    /// It stops nothing until the period ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lifted: bool,
    /// When the period ends, ms since 1970; `None` if it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Millis>,
}

/// What becomes of a sum that several processes add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumChange {
    /// Something is added.
    Add,
    /// It is at least this.
    Raise,
}

/// A period in which a cap stops nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapLift {
    /// The cap's name and what it adds up.
    cap: Box<str>,
    /// Whom it does not stop; `None`: nobody is stopped.
    subject: Option<Box<str>>,
    /// The number of the period.
    period: u64,
}

/// Why a cap cannot be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCap {
    /// No cap has this name.
    Name,
    /// This subject has spent nothing of it in the running period.
    Subject,
}

/// What was spent in the running period of one subject.
#[derive(Clone, Copy, Default)]
struct CapSum {
    period: u64,
    spending: Spending,
    /// When something was added last.
    at: Millis,
}

/// The sums of all caps, and of the day.
#[derive(Default)]
pub struct CapSums {
    caps: Vec<Cap>,
    /// By the cap's place in the list, and by its subject.
    sums: HashMap<(usize, Box<str>), CapSum>,
    lifted: Vec<CapLift>,
    /// Everything of the newest day.
    today: CapSum,
}

impl CapPeriod {
    /// The number of the period that a time is in.
    fn number(self, at: Millis) -> u64 {
        match self {
            Self::Session => 0,
            Self::Hour => at / HOUR,
            Self::Day => at / DAY,
            Self::Month => {
                let date = date(at);
                u64::from(date.year().unsigned_abs()) * 12 + u64::from(date.month().unsigned_abs())
            }
        }
    }

    /// When the period that a time is in began.
    fn start(self, at: Millis) -> Millis {
        match self {
            Self::Session => 0,
            Self::Hour => at - at % HOUR,
            Self::Day => at - at % DAY,
            Self::Month => millis(date(at).first_of_month()),
        }
    }

    /// When it ends.
    fn end(self, at: Millis) -> Option<Millis> {
        match self {
            Self::Session => None,
            Self::Hour => Some(self.start(at) + HOUR),
            Self::Day => Some(self.start(at) + DAY),
            Self::Month => Some(millis(date(at).first_of_month().checked_add(1.month()).ok()?)),
        }
    }
}

const HOUR: Millis = 60 * 60 * 1000;
const DAY: Millis = 24 * HOUR;

fn date(at: Millis) -> Date {
    let at = i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    Offset::UTC.to_datetime(at.unwrap_or_default()).date()
}

fn millis(date: Date) -> Millis {
    let start = Offset::UTC.to_timestamp(date.to_datetime(jiff::civil::Time::midnight()));
    start.map_or(0, |start| start.as_millisecond().unsigned_abs())
}

impl Cap {
    /// Whose spending has a sum of its own, as it is written: `tag:team=core`.
    pub fn subject(&self) -> String {
        match &self.only {
            Some(only) => format!("{}:{only}", self.of.as_ref()),
            None => self.of.as_ref().to_owned(),
        }
    }

    /// The subjects of a spender that it limits.
    fn subjects(&self, spender: &Spender) -> Vec<Box<str>> {
        let mut subjects: Vec<Box<str>> = match self.of {
            CapSubject::All => vec!["all".into()],
            CapSubject::Tenant => vec![spender.tenant.as_str().into()],
            CapSubject::Session => {
                vec![format!("{}.{}", spender.tenant, spender.session).into()]
            }
            CapSubject::Project => spender.project.clone().into_iter().collect(),
            CapSubject::Tag => spender.tags.clone(),
            CapSubject::Upstream => vec![spender.upstream.clone()],
        };
        if let Some(only) = &self.only {
            subjects.retain(|subject| subject == only);
        }
        subjects
    }

    /// Whether it adds up what another one of its name does, so that only the limit may differ.
    fn has_sums_of(&self, other: &Self) -> bool {
        self.name == other.name
            && self.of == other.of
            && self.only == other.only
            && self.per == other.per
    }

    fn used(&self, spending: Spending) -> f64 {
        let dollars = self.dollars.map_or(0.0, |most| spending.dollars / most);
        let tokens = self.tokens.map_or(0.0, |most| spending.tokens as f64 / most as f64);
        dollars.max(tokens)
    }
}

impl Spending {
    /// What usage stands for.
    pub fn new(usage: &Usage, dollars: Option<f64>) -> Self {
        let tokens = usage
            .billed()
            .map(|(_, one)| one.input.unwrap_or(0).saturating_add(one.output.unwrap_or(0)));
        let tokens = tokens.fold(0, u64::saturating_add);
        Self { dollars: dollars.unwrap_or(0.0), tokens }
    }

    /// What a turn cost.
    pub fn from_turn(turn: &Turn) -> Self {
        Self::new(&turn.usage, turn.dollars)
    }

    /// What a summary of ours cost.
    pub fn from_summary(summary: &CompactionRecord) -> Self {
        Self::new(&summary.spent, summary.dollars)
    }

    /// What is more in it than in an earlier one.
    pub fn less(self, earlier: Self) -> Self {
        Self {
            dollars: (self.dollars - earlier.dollars).max(0.0),
            tokens: self.tokens.saturating_sub(earlier.tokens),
        }
    }

    /// Adds more.
    pub fn join(&mut self, more: Self) {
        self.dollars += more.dollars;
        self.tokens = self.tokens.saturating_add(more.tokens);
    }

    /// Is at least as much as another one.
    pub fn raise(&mut self, least: Self) {
        self.dollars = self.dollars.max(least.dollars);
        self.tokens = self.tokens.max(least.tokens);
    }
}

impl fmt::Display for CapState {
    /// What is spent of what: `$8.10 of $10.00`, `900 of 1,000 tokens`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(most) = self.most_dollars {
            write!(f, "${:.2} of ${most:.2}", self.dollars)?;
        }
        if let Some(most) = self.most_tokens {
            let comma = if self.most_dollars.is_some() { ", " } else { "" };
            write!(f, "{comma}{} of {} tokens", grouped(self.tokens), grouped(most))?;
        }
        Ok(())
    }
}

impl CapSum {
    /// Changes spending of a period; a later period begins anew, and an earlier one is over.
    fn change(&mut self, change: SumChange, period: u64, spending: Spending, at: Millis) {
        if period > self.period {
            *self = Self { period, ..Self::default() };
        }
        if period == self.period {
            match change {
                SumChange::Add => self.spending.join(spending),
                SumChange::Raise => self.spending.raise(spending),
            }
            self.at = self.at.max(at);
        }
    }

    fn add(&mut self, period: u64, spending: Spending, at: Millis) {
        self.change(SumChange::Add, period, spending, at);
    }

    fn spending_in(&self, period: u64) -> Spending {
        if self.period == period { self.spending } else { Spending::default() }
    }
}

impl CapSums {
    /// The sums of these caps, of which nothing is spent.
    pub fn new(caps: Vec<Cap>) -> Self {
        Self { caps, ..Self::default() }
    }

    /// The cap of this name.
    pub fn cap(&self, name: &str) -> Option<&Cap> {
        self.caps.iter().find(|cap| *cap.name == *name)
    }

    /// Has these caps from now on. What is spent of those that were there before stays. Returns those whose sums begin at 0.
    fn replace(&mut self, caps: Vec<Cap>) -> Vec<Cap> {
        let old_caps = std::mem::replace(&mut self.caps, caps);
        let mut numbers = HashMap::new();
        for (old, cap) in old_caps.iter().enumerate() {
            if let Some(new) = self.caps.iter().position(|one| one.has_sums_of(cap)) {
                numbers.insert(old, new);
            }
        }
        let sums = std::mem::take(&mut self.sums).into_iter();
        self.sums = sums
            .filter_map(|((old, subject), sum)| Some(((*numbers.get(&old)?, subject), sum)))
            .collect();
        let new_caps = self.caps.iter();
        new_caps.filter(|cap| !old_caps.iter().any(|old| cap.has_sums_of(old))).cloned().collect()
    }

    /// Adds what was spent of a cap before it was set. `sums`: of this cap alone.
    pub fn join(&mut self, sums: Self) {
        let Some(number) = self.caps.iter().position(|cap| sums.caps.contains(cap)) else {
            return;
        };
        for ((_, subject), sum) in sums.sums {
            let key = (number, subject);
            self.sums.entry(key).or_default().add(sum.period, sum.spending, sum.at);
        }
    }

    /// Whether there is a cap.
    pub fn has_caps(&self) -> bool {
        !self.caps.is_empty()
    }

    /// From when on spending counts at this time: the start of the longest period, or of the day.
    pub fn since(&self, now: Millis) -> Millis {
        let starts = self.caps.iter().map(|cap| cap.per.start(now));
        starts.min().unwrap_or(Millis::MAX).min(CapPeriod::Day.start(now))
    }

    /// Adds to the sum of the day alone.
    pub fn add_to_day(&mut self, spending: Spending, at: Millis) {
        self.today.add(CapPeriod::Day.number(at), spending, at);
    }

    /// Adds what was spent by a request that arrived `at`. Returns the caps of which it passed [`WARNING`], or the whole.
    pub fn add(&mut self, spender: &Spender, spending: Spending, at: Millis) -> Vec<CapState> {
        self.add_to_day(spending, at);
        let mut passed = Vec::new();
        for number in 0..self.caps.len() {
            for subject in self.caps[number].subjects(spender) {
                passed.extend(self.change(SumChange::Add, number, &subject, spending, at));
            }
        }
        self.forget_surplus(at);
        passed
    }

    fn change(
        &mut self,
        change: SumChange,
        number: usize,
        subject: &str,
        spending: Spending,
        at: Millis,
    ) -> Option<CapState> {
        let earlier = self.state(number, subject, at).used;
        let period = self.caps[number].per.number(at);
        let sum = self.sums.entry((number, subject.into())).or_default();
        sum.change(change, period, spending, at);
        let state = self.state(number, subject, at);
        let is_passed = [WARNING, 1.0].iter().any(|share| earlier < *share && state.used >= *share);
        is_passed.then_some(state)
    }

    fn forget_surplus(&mut self, at: Millis) {
        // First those that stop nobody now, and of these the oldest.
        while self.sums.len() > MOST_SUMS {
            let least = self.sums.iter().min_by_key(|((number, _), sum)| {
                let cap = &self.caps[*number];
                let runs = sum.period == cap.per.number(at);
                (runs && cap.used(sum.spending) >= WARNING, sum.at)
            });
            let Some(key) = least.map(|(key, _)| key.clone()) else { break };
            self.sums.remove(&key);
        }
    }

    /// The fullest cap that limits a spender; lifted ones do not.
    pub fn fullest(&self, spender: &Spender, now: Millis) -> Option<CapState> {
        let mut fullest: Option<CapState> = None;
        for (number, cap) in self.caps.iter().enumerate() {
            for subject in cap.subjects(spender) {
                let state = self.state(number, &subject, now);
                let is_fuller = fullest.as_ref().is_none_or(|other| state.used > other.used);
                if is_fuller && !state.lifted {
                    fullest = Some(state);
                }
            }
        }
        fullest
    }

    fn is_lifted(&self, cap: &Cap, subject: &str, period: u64) -> bool {
        self.lifted.iter().any(|lift| {
            lift.period == period
                && lift.subject.as_deref().is_none_or(|one| one == subject)
                && *lift.cap == *cap.sums_name()
        })
    }

    /// What is spent of each cap now, the fullest first. A cap that nobody has spent of yet has a line, too.
    pub fn list(&self, now: Millis) -> Vec<CapState> {
        let mut list = Vec::new();
        for (number, cap) in self.caps.iter().enumerate() {
            let period = cap.per.number(now);
            let sums =
                self.sums.iter().filter(|(key, sum)| key.0 == number && sum.period == period);
            let states: Vec<CapState> =
                sums.map(|(key, _)| self.state(number, &key.1, now)).collect();
            if states.is_empty() {
                list.push(self.state(number, cap.only.as_deref().unwrap_or("-"), now));
            }
            list.extend(states);
        }
        list.sort_by(|one, other| other.used.total_cmp(&one.used));
        list
    }

    /// What was spent today, UTC.
    pub fn today(&self, now: Millis) -> Spending {
        self.today.spending_in(CapPeriod::Day.number(now))
    }

    fn state(&self, number: usize, subject: &str, at: Millis) -> CapState {
        let cap = &self.caps[number];
        let period = cap.per.number(at);
        let sum = self.sums.get(&(number, Box::from(subject)));
        let spending = sum.map(|sum| sum.spending_in(period)).unwrap_or_default();
        CapState {
            cap: cap.name.clone(),
            origin: cap.origin,
            subject: subject.into(),
            per: cap.per,
            dollars: spending.dollars,
            tokens: spending.tokens,
            most_dollars: cap.dollars,
            most_tokens: cap.tokens,
            used: cap.used(spending),
            lifted: self.is_lifted(cap, subject, period),
            ends: cap.per.end(at),
        }
    }
}

#[cfg(test)]
mod tests;
