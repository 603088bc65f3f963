//! What people change of the caps while Plimsoll runs: caps that are set over those of the configuration, and caps that are
//! lifted until their period ends.
//!
//! It is one document, so that it is kept, and replaced, as a whole. Knows nothing of where that is.

use serde::{Deserialize, Serialize};

use super::{Cap, CapLift, CapSums, Millis, UnknownCap};

/// Caps that were set and lifted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CapChanges {
    set: Vec<Cap>,
    lifted: Vec<CapLift>,
}

impl CapChanges {
    /// Sets a cap; `None`: takes back what was set under this name.
    pub fn set(&mut self, name: &str, cap: Option<Cap>) {
        self.set.retain(|cap| *cap.name != *name);
        self.set.extend(cap);
    }

    /// Lifts a cap. What was lifted of it in an earlier period is over.
    pub fn lift(&mut self, lift: &CapLift) {
        self.lifted.retain(|other| other.cap != lift.cap || other.period == lift.period);
        if !self.lifted.contains(lift) {
            self.lifted.push(lift.clone());
        }
    }

    fn over(&self, configured: &[Cap]) -> Vec<Cap> {
        let mut caps = configured.to_vec();
        caps.retain(|cap| !self.set.iter().any(|set| set.name == cap.name));
        caps.extend(self.set.iter().cloned());
        caps
    }
}

impl CapSums {
    /// Has the configured caps with these changes from now on. What is spent of those that were there before stays.
    /// Returns the caps whose sums begin at 0.
    pub fn change_caps(&mut self, configured: &[Cap], changes: &CapChanges) -> Vec<Cap> {
        self.lifted.clone_from(&changes.lifted);
        self.replace(changes.over(configured))
    }

    /// What lets a cap stop nothing until its period ends: for one subject that it limits, or for all.
    ///
    /// # Errors
    /// If there is no cap of this name, or if nothing is spent of it by this subject.
    pub fn lift(
        &self,
        name: &str,
        subject: Option<&str>,
        now: Millis,
    ) -> Result<CapLift, UnknownCap> {
        let number = self.caps.iter().position(|cap| *cap.name == *name);
        let number = number.ok_or(UnknownCap::Name)?;
        let cap = &self.caps[number];
        let period = cap.per.number(now);
        if let Some(subject) = subject
            && self.sums.get(&(number, subject.into())).is_none_or(|sum| sum.period != period)
        {
            return Err(UnknownCap::Subject);
        }
        Ok(CapLift { cap: cap.sums_name().into(), subject: subject.map(Box::from), period })
    }
}
