//! Sums that several processes add up together, in a place that all of them reach.
//!
//! Each counts what it spends itself, and learns from there what all spent: the larger of both counts. A sum never
//! shrinks within its period.

use super::{Cap, CapPeriod, CapState, CapSums, Millis, Spender, Spending, SumChange};

/// The name of the day's sum, in which everything is added up. Those of caps have colons.
const DAY_SUM: &str = "day";

/// A sum that several processes may add up together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SumKey {
    /// The cap's name and what it adds up: caps of one name that differ in it have different sums. The day's sum has a
    /// name of its own.
    pub cap: Box<str>,
    /// Whose spending it is.
    pub subject: Box<str>,
    /// The number of the period.
    pub period: u64,
    /// When the period ends, ms since 1970; `None` if it has no end.
    pub ends: Option<Millis>,
}

/// An addition to sums, by who adds. A process numbers its additions, from 1, and sends one only once all before it are
/// confirmed: so its last number says which were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdditionId {
    /// The process.
    pub instance: u64,
    /// The number of its addition.
    pub number: u64,
}

impl Cap {
    /// What [`Self::has_sums_of`] compares, in one word.
    pub(super) fn sums_name(&self) -> String {
        format!("{}:{}:{}", self.name, self.subject(), self.per.as_ref())
    }

    fn sum_key(&self, subject: &str, at: Millis) -> SumKey {
        SumKey {
            cap: self.sums_name().into(),
            subject: subject.into(),
            period: self.per.number(at),
            ends: self.per.end(at),
        }
    }
}

impl CapSums {
    /// The sum of everything that is spent on a day.
    pub fn day_key(at: Millis) -> SumKey {
        SumKey {
            cap: DAY_SUM.into(),
            subject: "all".into(),
            period: CapPeriod::Day.number(at),
            ends: CapPeriod::Day.end(at),
        }
    }

    /// The sum of a cap by this name that a subject adds to.
    pub fn key(&self, name: &str, subject: &str, at: Millis) -> Option<SumKey> {
        Some(self.cap(name)?.sum_key(subject, at))
    }

    /// The sums that a request of a spender adds to.
    pub fn keys(&self, spender: &Spender, at: Millis) -> Vec<SumKey> {
        let keys = self.caps.iter().flat_map(|cap| {
            let subjects = cap.subjects(spender).into_iter();
            subjects.map(|subject| cap.sum_key(&subject, at))
        });
        keys.chain([Self::day_key(at)]).collect()
    }

    /// All sums of running periods.
    pub fn running(&self, now: Millis) -> Vec<(SumKey, Spending)> {
        let running = self.sums.iter().filter_map(|((number, subject), sum)| {
            let key = self.caps[*number].sum_key(subject, now);
            (key.period == sum.period).then_some((key, sum.spending))
        });
        running.chain([(Self::day_key(now), self.today(now))]).collect()
    }

    /// Learns what all processes together spent. Returns the cap if more than 80 %, or the whole, is spent only now.
    pub fn raise(&mut self, key: &SumKey, spending: Spending, at: Millis) -> Option<CapState> {
        if *key.cap == *DAY_SUM {
            self.today.change(SumChange::Raise, key.period, spending, at);
            return None;
        }
        let number = self.caps.iter().position(|cap| cap.sums_name() == *key.cap)?;
        // The period has ended meanwhile.
        if self.caps[number].per.number(at) != key.period {
            return None;
        }
        let passed = self.change(SumChange::Raise, number, &key.subject, spending, at);
        self.forget_surplus(at);
        passed
    }
}
