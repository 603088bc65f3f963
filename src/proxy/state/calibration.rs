//! What responses taught about counting tokens, by upstream and model: kept in memory, and saved now and
//! then.
//!
//! Holds only numbers, and hashes of the names of tools. Shared by all users of an upstream; a tenant that
//! sends more than all others together therefore teaches less with each response. If clients use the
//! operator's credential, anybody could make up tenants, so there each tenant has its own state. What a crash
//! loses is learned again in a few calls. Invalid data from the store is dropped. A state from fewer
//! responses never replaces one from more, here or in the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::by_model::ModelMap;
use crate::clock::now;
use crate::context::{Millis, TenantId};
use crate::dialect::models::Family;
use crate::store::StoreError;
use crate::store::ledgers::Ledgers;
use crate::store::lessons::LessonSource;
use crate::store::recall::{ReadBudget, Recall, RecallOutcome};
use crate::telemetry::Telemetry;
use crate::tokens::learn::{CostPrediction, EstimatorState, Observation};

/// It is saved at every power of two but the first, and then after this many responses: a single response is
/// learned again faster than it is saved.
const SAVED_EVERY: u64 = 64;
/// Older states are trusted less, ms: a week.
const OLD: u64 = 7 * 24 * 3600 * 1000;

/// The tenants of this many responses are remembered.
const TEACHERS: usize = 32;
/// If one tenant has more than this many of them, only every [`SLOWER`]th of its responses teaches.
const MOST_OF_ONE: usize = 16;
const SLOWER: u8 = 4;

/// The states by upstream and model.
pub(crate) struct Calibration(Arc<CalibrationState>);

struct CalibrationState {
    all: Mutex<ModelMap<ModelCalibration>>,
    telemetry: Arc<Telemetry>,
}

/// The state of one model.
struct ModelCalibration {
    /// The tenant that it is for; `None`: for all.
    pupil: Option<Box<str>>,
    learned: Arc<EstimatorState>,
    teachers: RecentTeachers,
    /// Whether the store was asked for it. Until then nothing is saved.
    recall: Recall,
}

impl ModelCalibration {
    /// The state of a new model. Its range starts as wide as that of a model of its family that has learned,
    /// behind the same upstream and for the same tenant.
    fn new(place: &CalibrationKey, family: Family, all: &ModelMap<Self>) -> Self {
        let siblings = all.of_upstream(&place.upstream).filter(|it| it.pupil == place.pupil);
        let learned = EstimatorState::beside(family, siblings.map(|it| &*it.learned));
        let (teachers, recall) = Default::default();
        Self { pupil: place.pupil.clone(), learned: Arc::new(learned), teachers, recall }
    }
}

/// The tenants of the last responses, as hashes.
#[derive(Default)]
struct RecentTeachers {
    last: VecDeque<u64>,
    skipped: u8,
}

impl RecentTeachers {
    /// Whether a response to this tenant teaches.
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

/// A response that teaches.
pub(crate) struct CalibrationSample {
    pub(crate) seen: Observation,
    pub(crate) guess: CostPrediction,
    /// The reported input tokens.
    pub(crate) actual: u64,
}

/// A model behind an upstream, for all tenants or for one.
#[derive(Clone)]
struct CalibrationKey {
    upstream: Box<str>,
    model: Box<str>,
    /// The tenant, if the state is only for one.
    pupil: Option<Box<str>>,
    /// The name of the state: the model, and the tenant if the state is only for one.
    name: Box<str>,
}

impl CalibrationSample {
    /// The state after it.
    fn taught(&self, learned: &EstimatorState) -> EstimatorState {
        learned.clone().after(&self.seen, &self.guess, self.actual)
    }

    /// The state after a response, whether it teaches or not.
    pub(crate) fn after(
        lesson: Option<&Self>,
        learned: &Arc<EstimatorState>,
    ) -> Arc<EstimatorState> {
        lesson.map_or_else(|| learned.clone(), |lesson| Arc::new(lesson.taught(learned)))
    }
}

impl Calibration {
    /// Starts empty; reports to `telemetry` what it learns.
    pub(super) fn new(telemetry: Arc<Telemetry>) -> Self {
        Self(Arc::new(CalibrationState { all: Mutex::default(), telemetry }))
    }

    /// The state of a model behind an upstream, from all tenants or for one `pupil`. The store is asked once,
    /// and waited for within the budget; a later answer is merged when it arrives.
    pub(crate) async fn of(
        &self,
        ledgers: &Arc<Ledgers>,
        upstream: &str,
        model: &str,
        pupil: Option<&TenantId>,
        family: Family,
        budget: &ReadBudget,
    ) -> (Arc<EstimatorState>, RecallOutcome) {
        let place = CalibrationKey::of(upstream, model, pupil);
        let (learned, recall) = self.0.known(&place, family);
        if recall.is_known() {
            return (learned, RecallOutcome::Known);
        }
        let (ledgers, shared) = (ledgers.clone(), self.0.clone());
        let requested = place.clone();
        let read = || async move {
            if let Some(saved) = requested.saved(&ledgers, family).await? {
                shared.join(&requested, saved);
            }
            Ok(())
        };
        let recalled = recall.wait(budget, read).await;
        (self.0.known(&place, family).0, recalled)
    }

    /// Learns from a response; saving runs as a task of its own.
    pub(crate) fn learn(
        &self,
        ledgers: &Arc<Ledgers>,
        source: &LessonSource<'_>,
        lesson: &CalibrationSample,
    ) {
        let LessonSource { tenant, upstream, model, vouched } = *source;
        // With vouched credentials, all tenants share a state; otherwise each has its own.
        let place = CalibrationKey::of(upstream, model, tenant.filter(|_| !vouched));
        let (learned, may_save) = {
            let mut all = self.0.all();
            let Some(known) = all.get_mut(&place.upstream, &place.name) else { return };
            let tenant = tenant.map(|tenant| xxh3_64(tenant.as_str().as_bytes()));
            if !tenant.is_some_and(|tenant| known.teachers.hear(tenant)) {
                return;
            }
            let before = known.learned.lessons();
            known.learned = Arc::new(lesson.taught(&known.learned));
            if known.learned.lessons() == before {
                return;
            }
            (known.learned.clone(), known.recall.is_known())
        };
        let (lessons, band) = learned.state();
        self.0.telemetry.learned(upstream, model, lessons, band);
        let is_due = lessons.is_power_of_two() || lessons.is_multiple_of(SAVED_EVERY);
        if lessons > 1 && is_due && may_save {
            let (ledgers, shared) = (ledgers.clone(), self.0.clone());
            // If saving fails, it is learned again.
            tokio::spawn(async move { shared.save(&ledgers, &place, &learned).await.ok() });
        }
    }
}

impl CalibrationState {
    /// The state of a model, and whether the store has answered.
    fn known(&self, place: &CalibrationKey, family: Family) -> (Arc<EstimatorState>, Recall) {
        let mut all = self.all();
        if let Some(known) = all.get_mut(&place.upstream, &place.name)
            && known.learned.is_of(family)
        {
            return (known.learned.clone(), known.recall.clone());
        }
        let known = ModelCalibration::new(place, family, &all);
        let both = (known.learned.clone(), known.recall.clone());
        all.insert(&place.upstream, &place.name, known);
        both
    }

    /// Uses the saved state if it is from more responses.
    fn join(&self, place: &CalibrationKey, saved: EstimatorState) {
        let mut all = self.all();
        let known = all.get_mut(&place.upstream, &place.name);
        let Some(known) = known.filter(|known| is_more(&saved, &known.learned)) else { return };
        let (lessons, band) = saved.state();
        self.telemetry.learned(&place.upstream, &place.model, lessons, band);
        known.learned = Arc::new(saved);
    }

    /// Saves the state, unless another process saved one from more responses, which is then used.
    async fn save(
        &self,
        ledgers: &Ledgers,
        place: &CalibrationKey,
        learned: &EstimatorState,
    ) -> Result<(), StoreError> {
        let saved = place.saved(ledgers, learned.family()).await?;
        if let Some(saved) = saved.filter(|saved| is_more(saved, learned)) {
            self.join(place, saved);
            return Ok(());
        }
        let Ok(state) = serde_json::to_vec(learned) else { return Ok(()) };
        ledgers.calibrations().save(&place.key(), state.into(), now()).await
    }

    fn all(&self) -> MutexGuard<'_, ModelMap<ModelCalibration>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one state is from more responses than the other, of the same family.
fn is_more(one: &EstimatorState, other: &EstimatorState) -> bool {
    other.is_of(one.family()) && one.lessons() > other.lessons()
}

impl CalibrationKey {
    fn of(upstream: &str, model: &str, pupil: Option<&TenantId>) -> Self {
        let name = match pupil {
            Some(pupil) => format!("{model} for {pupil}").into(),
            None => model.into(),
        };
        let pupil = pupil.map(|pupil| pupil.as_str().into());
        Self { upstream: upstream.into(), model: model.into(), pupil, name }
    }

    /// The saved state, if valid.
    async fn saved(
        &self,
        ledgers: &Ledgers,
        family: Family,
    ) -> Result<Option<EstimatorState>, StoreError> {
        let read = |(saved, at): (Bytes, Millis)| {
            let learned: EstimatorState = serde_json::from_slice(&saved).ok()?;
            let is_old = now().saturating_sub(at) > OLD;
            (learned.is_of(family) && learned.is_whole())
                .then(|| if is_old { learned.aged() } else { learned })
        };
        let saved = ledgers.calibrations().states(&self.key()).await?;
        let saved = saved.into_iter().filter_map(read);
        Ok(saved.max_by_key(EstimatorState::lessons))
    }

    /// The key in the store: it must never change.
    fn key(&self) -> String {
        format!("counting {} behind {}", self.name, self.upstream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the same upstream and family, and for the same tenant: one tenant's traffic says nothing to another.
    #[test]
    fn a_new_models_range_starts_as_a_siblings() {
        let one = TenantId::from("one");
        let mut all = ModelMap::default();
        for (pupil, width) in [(None, 2.0), (Some(&one), 4.0)] {
            let place = CalibrationKey::of("up", "a", pupil);
            let mut taught = serde_json::json!(EstimatorState::new(Family::Claude));
            taught["lessons"] = 100.into();
            taught["widths"] = serde_json::json!(vec![width; 4]);
            let learned = Arc::new(serde_json::from_value(taught).unwrap());
            let known = ModelCalibration::new(&place, Family::Claude, &all);
            let known = ModelCalibration { learned, ..known };
            all.insert(&place.upstream, &place.name, known);
        }
        let started = |upstream, pupil, family| {
            let place = CalibrationKey::of(upstream, "b", pupil);
            EstimatorState::clone(&ModelCalibration::new(&place, family, &all).learned)
        };
        let fresh = EstimatorState::new(Family::Claude);
        let [shared, own] = [None, Some(&one)].map(|pupil| started("up", pupil, Family::Claude));
        assert!(shared != fresh && own != fresh && shared != own);
        let two = TenantId::from("two");
        for (upstream, pupil) in [("other", None), ("up", Some(&two))] {
            assert_eq!(started(upstream, pupil, Family::Claude), fresh);
        }
        let new = EstimatorState::new(Family::ClaudeNew);
        assert_eq!(started("up", None, Family::ClaudeNew), new);
    }

    #[test]
    fn one_who_sends_most_teaches_less_and_one_who_is_alone_teaches_always() {
        let mut teachers = RecentTeachers::default();
        assert!((0..100).all(|_| teachers.hear(1)), "alone");
        assert!(teachers.hear(2));
        let heard = |teachers: &mut RecentTeachers| (0..40).filter(|_| teachers.hear(1)).count();
        assert_eq!(heard(&mut teachers), 10, "among others");
        assert!((0..15).all(|_| teachers.hear(2)), "who sends less is always heard");
    }
}
