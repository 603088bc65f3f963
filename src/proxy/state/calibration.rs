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

use xxhash_rust::xxh3::xxh3_64;

use super::by_model::ModelMap;
use crate::clock::now;
use crate::context::TenantId;
use crate::dialect::models::Family;
use crate::store::StoreError;
use crate::store::ledgers::Ledgers;
use crate::store::lessons::LessonSource;
use crate::store::recall::{ReadBudget, Recall};
use crate::telemetry::Telemetry;
use crate::tokens::learn::{CostPrediction, EstimatorState, Observation};

/// It is saved at every power of two but the first, and then after this many responses: a single response is
/// learned again faster than it is saved.
const SAVED_EVERY: u64 = 64;
/// Older states are trusted less, ms: a week.
const OLD: u64 = 7 * 24 * 3600 * 1000;

/// The tenants of this many responses are remembered.
const REMEMBERED: usize = 32;
/// If one tenant has more than this many of them, only every [`TAUGHT_ONE_IN`]th of its responses teaches.
const MOST_OF_ONE: usize = 16;
const TAUGHT_ONE_IN: u8 = 4;

/// The states by upstream and model.
pub(crate) struct Calibration(Arc<CalibrationState>);

struct CalibrationState {
    all: Mutex<ModelMap<ModelCalibration>>,
    telemetry: Arc<Telemetry>,
}

/// The state of one model, as far as it is known now.
pub(crate) struct RecalledState {
    pub(crate) learned: Arc<EstimatorState>,
    /// Whether the store's state is in it.
    pub(crate) recall: Recall,
}

/// The state of one model.
struct ModelCalibration {
    /// The tenant that it is for; `None`: for all tenants.
    for_tenant: Option<Box<str>>,
    learned: Arc<EstimatorState>,
    recent_tenants: RecentTenants,
    /// Whether the store was asked for it. Until then nothing is saved.
    recall: Recall,
}

impl ModelCalibration {
    fn new(key: &CalibrationKey, family: Family, all: &ModelMap<Self>) -> Self {
        // Its range starts as wide as that of a model of its family that has learned, behind the same upstream
        // and for the same tenant.
        let siblings = all
            .of_upstream(&key.upstream)
            .filter(|sibling| sibling.for_tenant == key.for_tenant)
            .map(|sibling| &*sibling.learned);
        Self {
            for_tenant: key.for_tenant.clone(),
            learned: Arc::new(EstimatorState::beside(family, siblings)),
            recent_tenants: RecentTenants::default(),
            recall: Recall::default(),
        }
    }

    fn state(&self) -> RecalledState {
        RecalledState { learned: self.learned.clone(), recall: self.recall.clone() }
    }
}

/// The tenants of the last responses, as hashes.
#[derive(Default)]
struct RecentTenants {
    last: VecDeque<u64>,
    skipped: u8,
}

impl RecentTenants {
    fn admit(&mut self, tenant: u64) -> bool {
        // A tenant that sends more than all others together teaches less with each response.
        let count = self.last.iter().filter(|recent| **recent == tenant).count();
        if count >= MOST_OF_ONE && count < self.last.len() {
            self.skipped = (self.skipped + 1) % TAUGHT_ONE_IN;
            if self.skipped != 0 {
                return false;
            }
        }
        if self.last.len() >= REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(tenant);
        true
    }
}

/// What one response says about the estimate of its request.
pub(crate) struct CalibrationSample {
    pub(crate) seen: Box<Observation>,
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
    for_tenant: Option<Box<str>>,
    /// The name of the state: the model, and the tenant if the state is only for one.
    name: Box<str>,
}

impl CalibrationSample {
    fn applied_to(&self, before: &EstimatorState) -> Arc<EstimatorState> {
        Arc::new(before.clone().after(&self.seen, &self.guess, self.actual))
    }
}

impl Calibration {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> Self {
        Self(Arc::new(CalibrationState { all: Mutex::default(), telemetry }))
    }

    pub(crate) async fn recall(
        &self,
        ledgers: &Arc<Ledgers>,
        upstream: &str,
        model: &str,
        for_tenant: Option<&TenantId>,
        family: Family,
        budget: &ReadBudget,
    ) -> RecalledState {
        let key = CalibrationKey::new(upstream, model, for_tenant);
        let state = self.0.in_memory(&key, family);
        if state.recall.is_known() {
            return state;
        }
        let ledgers = ledgers.clone();
        let shared = self.0.clone();
        let requested = key.clone();
        // The store is asked once, and waited for within the budget; a later answer is merged when it arrives.
        let recalling = state.recall.wait(budget, || async move {
            if let Some(saved) = requested.saved(&ledgers, family).await? {
                shared.merge(&requested, saved);
            }
            Ok(())
        });
        recalling.await;
        self.0.in_memory(&key, family)
    }

    /// Learns from a response. Returns the state after it, also if it does not teach the others. `before`: the state with
    /// which its request was estimated.
    pub(crate) fn learn(
        &self,
        ledgers: &Arc<Ledgers>,
        source: &LessonSource<'_>,
        sample: &CalibrationSample,
        before: &EstimatorState,
    ) -> Arc<EstimatorState> {
        let LessonSource { tenant, upstream, model, vouched, .. } = *source;
        // With vouched credentials, all tenants share a state; otherwise each has its own.
        let key = CalibrationKey::new(upstream, model, if vouched { None } else { tenant });
        let mut models = self.0.lock();
        let state = tenant.and_then(|tenant| {
            let state = models.get_mut(&key.upstream, &key.name)?;
            let may_teach = state.recent_tenants.admit(xxh3_64(tenant.as_str().as_bytes()));
            if may_teach { Some(state) } else { None }
        });
        let Some(state) = state else {
            drop(models);
            return sample.applied_to(before);
        };
        // Other responses may have changed it since the request was estimated.
        let learned = sample.applied_to(&state.learned);
        let earlier_state = std::mem::replace(&mut state.learned, learned.clone());
        let may_save = state.recall.is_known();
        drop(models);
        let samples = learned.observations();
        // An implausible response teaches nothing.
        if samples == earlier_state.observations() {
            return learned;
        }
        self.0.telemetry.learned(upstream, model, samples, learned.width());
        let is_due = samples.is_power_of_two() || samples.is_multiple_of(SAVED_EVERY);
        if samples > 1 && is_due && may_save {
            let ledgers = ledgers.clone();
            let shared = self.0.clone();
            let saved = learned.clone();
            // If saving fails, it is learned again.
            tokio::spawn(async move { shared.save(&ledgers, &key, &saved).await.ok() });
        }
        learned
    }
}

impl CalibrationState {
    fn in_memory(&self, key: &CalibrationKey, family: Family) -> RecalledState {
        let mut models = self.lock();
        if let Some(calibration) = models.get_mut(&key.upstream, &key.name)
            && calibration.learned.is_of(family)
        {
            return calibration.state();
        }
        let calibration = ModelCalibration::new(key, family, &models);
        let state = calibration.state();
        models.insert(&key.upstream, &key.name, calibration);
        state
    }

    fn merge(&self, key: &CalibrationKey, saved: EstimatorState) {
        let mut models = self.lock();
        let Some(calibration) = models.get_mut(&key.upstream, &key.name) else { return };
        if !is_from_more(&saved, &calibration.learned) {
            return;
        }
        self.telemetry.learned(&key.upstream, &key.model, saved.observations(), saved.width());
        calibration.learned = Arc::new(saved);
    }

    async fn save(
        &self,
        ledgers: &Ledgers,
        key: &CalibrationKey,
        learned: &EstimatorState,
    ) -> Result<(), StoreError> {
        let saved = match ledgers.is_shared() {
            true => key.saved(ledgers, learned.family()).await?,
            // What the store has came from here, or was merged before.
            false => None,
        };
        // Another process may have saved one from more responses, which is then used.
        if let Some(saved) = saved.filter(|saved| is_from_more(saved, learned)) {
            self.merge(key, saved);
            return Ok(());
        }
        let Ok(state) = serde_json::to_vec(learned) else { return Ok(()) };
        ledgers.calibrations().save(&key.store_key(), state.into(), now()).await
    }

    fn lock(&self) -> MutexGuard<'_, ModelMap<ModelCalibration>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one state is from more responses than the other, of the same family.
fn is_from_more(one: &EstimatorState, other: &EstimatorState) -> bool {
    other.is_of(one.family()) && one.observations() > other.observations()
}

impl CalibrationKey {
    fn new(upstream: &str, model: &str, for_tenant: Option<&TenantId>) -> Self {
        let name = match for_tenant {
            Some(for_tenant) => format!("{model} for {for_tenant}").into(),
            None => model.into(),
        };
        let for_tenant = for_tenant.map(|for_tenant| for_tenant.as_str().into());
        Self { upstream: upstream.into(), model: model.into(), for_tenant, name }
    }

    async fn saved(
        &self,
        ledgers: &Ledgers,
        family: Family,
    ) -> Result<Option<EstimatorState>, StoreError> {
        let mut states = Vec::new();
        for (saved, at) in ledgers.calibrations().states(&self.store_key()).await? {
            // Whatever is not valid is learned again.
            let Ok(state) = serde_json::from_slice::<EstimatorState>(&saved) else { continue };
            if !state.is_of(family) || !state.is_whole() {
                continue;
            }
            let is_old = now().saturating_sub(at) > OLD;
            states.push(if is_old { state.aged() } else { state });
        }
        Ok(states.into_iter().max_by_key(EstimatorState::observations))
    }

    fn store_key(&self) -> String {
        // It must never change, or what is stored would not be found.
        format!("counting {} behind {}", self.name, self.upstream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the same upstream and family, and for the same tenant: one tenant's traffic says nothing to another.
    #[test]
    fn new_models_start_like_siblings() {
        let one = TenantId::from("one");
        let mut all = ModelMap::default();
        for (for_tenant, width) in [(None, 20), (Some(&one), 40)] {
            let key = CalibrationKey::new("up", "a", for_tenant);
            let mut taught = serde_json::json!(EstimatorState::new(Family::Claude));
            taught["observations"] = 100.into();
            taught["errors"][0] = serde_json::json!([width]);
            let learned = Arc::new(serde_json::from_value(taught).unwrap());
            let known = ModelCalibration::new(&key, Family::Claude, &all);
            let known = ModelCalibration { learned, ..known };
            all.insert(&key.upstream, &key.name, known);
        }
        let started = |upstream, for_tenant, family| {
            let key = CalibrationKey::new(upstream, "b", for_tenant);
            EstimatorState::clone(&ModelCalibration::new(&key, family, &all).learned)
        };
        let fresh = EstimatorState::new(Family::Claude);
        let [shared, own] =
            [None, Some(&one)].map(|for_tenant| started("up", for_tenant, Family::Claude));
        assert_ne!(shared, fresh);
        assert_ne!(own, fresh);
        assert_ne!(shared, own);
        let two = TenantId::from("two");
        for (upstream, for_tenant) in [("other", None), ("up", Some(&two))] {
            assert_eq!(started(upstream, for_tenant, Family::Claude), fresh);
        }
        let new = EstimatorState::new(Family::ClaudeNew);
        assert_eq!(started("up", None, Family::ClaudeNew), new);
    }

    #[test]
    fn tenant_with_most_responses_teaches_less_unless_it_is_only_one() {
        let mut recent = RecentTenants::default();
        assert!((0..100).all(|_| recent.admit(1)), "alone");
        assert!(recent.admit(2));
        let admitted = |recent: &mut RecentTenants| (0..40).filter(|_| recent.admit(1)).count();
        assert_eq!(admitted(&mut recent), 10, "among others");
        assert!((0..15).all(|_| recent.admit(2)), "a tenant with fewer responses always teaches");
    }
}
