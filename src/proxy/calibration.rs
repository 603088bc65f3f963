//! What answers taught about counting, by upstream and model: kept in memory, saved now and then.
//!
//! Numbers only: no words, and names of tools as hashes. Shared by all who use an upstream. What is
//! lost with a crash is learned again in a few calls; what a store gives that cannot be right is
//! forgotten.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::by_model::ByModel;
use super::now;
use super::planned::Subject;
use crate::dialect::models::Family;
use crate::store::ledgers::Ledgers;
use crate::telemetry::Telemetry;
use crate::tokens::learn::{Guess, Learned, Observation};

/// It is saved at every power of two but the first, and then after so many answers: one answer is
/// learned again sooner than it is written.
const SAVED_EVERY: u64 = 64;
/// What is older is doubted, ms: a week.
const OLD: u64 = 7 * 24 * 3600 * 1000;

/// States by upstream and model.
pub(crate) struct Calibration {
    all: Mutex<ByModel<Arc<Learned>>>,
    telemetry: Arc<Telemetry>,
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

    /// What is known of a model behind an upstream. The store is asked once, on a task of its own and
    /// for no longer than `patience`: a store that hangs or fails costs what was learned, no request.
    pub(crate) async fn of(
        &self,
        ledgers: &Arc<Ledgers>,
        upstream: &str,
        model: &str,
        family: Family,
        patience: Duration,
    ) -> Arc<Learned> {
        let known = self.all().get(upstream, model).filter(|known| known.is_of(family)).cloned();
        if let Some(known) = known {
            return known;
        }
        let (ledgers, key) = (ledgers.clone(), key(upstream, model));
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
        match all.get(upstream, model).filter(|known| known.is_of(family)) {
            Some(first) => first.clone(),
            None => {
                if learned.lessons() > 0 {
                    self.telemetry.learned(upstream, model, learned.state());
                }
                all.insert(upstream, model, learned.clone());
                learned
            }
        }
    }

    /// Learns from an answer to a request; it is saved on a task of its own.
    pub(crate) fn learn(&self, ledgers: &Arc<Ledgers>, subject: &Subject, lesson: &Lesson) {
        let (upstream, model) = (&*subject.upstream, subject.name());
        let learned = {
            let mut all = self.all();
            let Some(known) = all.get_mut(upstream, model) else { return };
            let before = known.lessons();
            let next = Learned::clone(known).after(&lesson.seen, &lesson.guess, lesson.actual);
            *known = Arc::new(next);
            (known.lessons() > before).then(|| known.clone())
        };
        let Some(learned) = learned else { return };
        self.telemetry.learned(upstream, model, learned.state());
        let lessons = learned.lessons();
        if lessons > 1 && (lessons.is_power_of_two() || lessons.is_multiple_of(SAVED_EVERY)) {
            let Ok(state) = serde_json::to_vec(&*learned) else { return };
            let (ledgers, key) = (ledgers.clone(), key(upstream, model));
            // One that is not saved is learned again.
            tokio::spawn(async move { drop(ledgers.learn_more(&key, state.into(), now()).await) });
        }
    }

    fn all(&self) -> MutexGuard<'_, ByModel<Arc<Learned>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names are kept in stores: they may not change.
fn key(upstream: &str, model: &str) -> String {
    format!("counting {model} behind {upstream}")
}
