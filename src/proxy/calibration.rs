//! What answers taught about counting, by upstream and model: kept in memory, saved now and then.
//!
//! Numbers only: no words, and names of tools as hashes. Shared by all who use an upstream, so that one
//! who sends more than all others together teaches less by each answer. Where all ask with the operator's
//! credential anybody can make tenants up: there each tenant has its own. What is lost with a crash is
//! learned again in a few calls; what a store gives that cannot be right is forgotten.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::by_model::ByModel;
use super::now;
use crate::dialect::models::Family;
use crate::store::ledgers::Ledgers;
use crate::store::lessons::Source;
use crate::telemetry::Telemetry;
use crate::tokens::learn::{Guess, Learned, Observation};

/// It is saved at every power of two but the first, and then after so many answers: one answer is
/// learned again sooner than it is written.
const SAVED_EVERY: u64 = 64;
/// What is older is doubted, ms: a week.
const OLD: u64 = 7 * 24 * 3600 * 1000;

/// Of so many answers it is known whose they were.
const TEACHERS: usize = 32;
/// Past this many of them, one tenant among others teaches by every [`SLOWER`]th answer alone.
const MOST_OF_ONE: usize = 16;
const SLOWER: u8 = 4;

/// States by upstream and model.
pub(crate) struct Calibration {
    all: Mutex<ByModel<Known>>,
    telemetry: Arc<Telemetry>,
}

/// What is known of a model.
struct Known {
    learned: Arc<Learned>,
    teachers: Teachers,
}

/// Who taught last, by hash.
#[derive(Default)]
struct Teachers {
    last: VecDeque<u64>,
    skipped: u8,
}

impl Teachers {
    /// Whether an answer to this tenant teaches.
    fn hear(&mut self, tenant: u64) -> bool {
        let own = self.last.iter().filter(|teacher| **teacher == tenant).count();
        if own >= MOST_OF_ONE && own < self.last.len() {
            self.skipped = (self.skipped + 1) % SLOWER;
            if self.skipped != 0 {
                return false;
            }
        }
        if self.last.len() >= TEACHERS {
            self.last.pop_front();
        }
        self.last.push_back(tenant);
        true
    }
}

/// An answer that teaches.
pub(crate) struct Lesson {
    pub(crate) seen: Observation,
    pub(crate) guess: Guess,
    /// Input tokens that were reported.
    pub(crate) actual: u64,
}

impl Calibration {
    /// Knows nothing yet; tells `telemetry` what it learns.
    pub(crate) fn new(telemetry: Arc<Telemetry>) -> Self {
        Self { all: Mutex::default(), telemetry }
    }

    /// What is known of a model behind an upstream, by everybody's answers or those to one `pupil` alone. The store is asked once, on a task of its own and
    /// for no longer than `patience`: a store that hangs or fails costs what was learned, no request.
    pub(crate) async fn of(
        &self,
        ledgers: &Arc<Ledgers>,
        (upstream, model, pupil): (&str, &str, Option<&str>),
        family: Family,
        patience: Duration,
    ) -> Arc<Learned> {
        let name = &*name(model, pupil);
        let known = self.all().get(upstream, name).map(|known| known.learned.clone());
        if let Some(known) = known.filter(|known| known.is_of(family)) {
            return known;
        }
        let (ledgers, key) = (ledgers.clone(), key(upstream, name));
        let asking = tokio::spawn(async move { ledgers.newest_learned(&key).await.ok().flatten() });
        let saved = tokio::time::timeout(patience, asking).await;
        let saved = saved.ok().and_then(Result::ok).flatten();
        let saved = saved.and_then(|(saved, at)| {
            let learned: Learned = serde_json::from_slice(&saved).ok()?;
            let old = now().saturating_sub(at) > OLD;
            Some(if old { learned.aged() } else { learned })
        });
        let learned = saved.filter(|learned| learned.is_of(family) && learned.is_whole());
        let learned = Arc::new(learned.unwrap_or_else(|| Learned::new(family)));
        let mut all = self.all();
        match all.get(upstream, name).filter(|known| known.learned.is_of(family)) {
            Some(first) => first.learned.clone(),
            None => {
                if learned.lessons() > 0 {
                    self.telemetry.learned(upstream, model, learned.state());
                }
                let known = Known { learned: learned.clone(), teachers: Teachers::default() };
                all.insert(upstream, name, known);
                learned
            }
        }
    }

    /// Learns from an answer to a request; it is saved on a task of its own.
    pub(crate) fn learn(&self, ledgers: &Arc<Ledgers>, source: &Source<'_>, lesson: &Lesson) {
        let Source { tenant, upstream, model, vouched } = *source;
        // Whose answers alone teach; everybody's do where credentials are vouched for.
        let pupil = tenant.filter(|_| !vouched);
        let name = &*name(model, pupil);
        let learned = {
            let mut all = self.all();
            let Some(known) = all.get_mut(upstream, name) else { return };
            let tenant = tenant.map(|tenant| xxh3_64(tenant.as_bytes()));
            if !tenant.is_some_and(|tenant| known.teachers.hear(tenant)) {
                return;
            }
            let before = known.learned.lessons();
            let next = Learned::clone(&known.learned);
            known.learned = Arc::new(next.after(&lesson.seen, &lesson.guess, lesson.actual));
            (known.learned.lessons() > before).then(|| known.learned.clone())
        };
        let Some(learned) = learned else { return };
        self.telemetry.learned(upstream, model, learned.state());
        let lessons = learned.lessons();
        if lessons > 1 && (lessons.is_power_of_two() || lessons.is_multiple_of(SAVED_EVERY)) {
            let Ok(state) = serde_json::to_vec(&*learned) else { return };
            let (ledgers, key) = (ledgers.clone(), key(upstream, name));
            // One that is not saved is learned again.
            tokio::spawn(async move { drop(ledgers.learn_more(&key, state.into(), now()).await) });
        }
    }

    fn all(&self) -> MutexGuard<'_, ByModel<Known>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name by which it is known what was learned of a model.
fn name<'a>(model: &'a str, pupil: Option<&str>) -> Cow<'a, str> {
    pupil.map_or(Cow::Borrowed(model), |pupil| format!("{model} for {pupil}").into())
}

/// Names are kept in stores: they may not change.
fn key(upstream: &str, model: &str) -> String {
    format!("counting {model} behind {upstream}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_sends_most_teaches_less_and_one_who_is_alone_teaches_always() {
        let mut teachers = Teachers::default();
        assert!((0..100).all(|_| teachers.hear(1)), "alone");
        assert!(teachers.hear(2));
        let heard = |teachers: &mut Teachers| (0..40).filter(|_| teachers.hear(1)).count();
        assert_eq!(heard(&mut teachers), 10, "among others");
        assert!((0..15).all(|_| teachers.hear(2)), "who sends less is always heard");
    }
}
