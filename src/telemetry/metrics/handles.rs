//! Handles of the label sets that exchanges have had so far.
//!
//! Kept by upstream, and there by model, so that an exchange finds all of its own with a look-up by each name
//! and no label is written down twice. A handle is made when its series first counts: `/metrics`
//! shows no series of which nothing was counted.

use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use foldhash::HashMap;

use super::traffic::{
    CacheHandles, ComparisonHandles, LearningHandles, TrafficHandles, TrafficKey, UsageHandles,
};

/// What has a label, by that label.
pub(super) type HandleMap<K, V> = Mutex<HashMap<K, Arc<V>>>;

/// Handles of one upstream.
#[derive(Default)]
pub(super) struct UpstreamHandles {
    pub(super) traffic: HandleMap<TrafficKey, TrafficHandles>,
    pub(super) models: HandleMap<String, ModelHandles>,
}

/// Handles of one model behind one upstream.
pub(super) struct ModelHandles {
    /// The model, as it is labelled.
    pub(super) label: Box<str>,
    pub(super) spent: OnceLock<UsageHandles>,
    pub(super) compared: OnceLock<ComparisonHandles>,
    pub(super) taught: OnceLock<LearningHandles>,
    /// By whether the exchange was edited.
    pub(super) cached: [OnceLock<CacheHandles>; 3],
}

impl ModelHandles {
    pub(super) fn new(label: Box<str>) -> Self {
        let (spent, compared, taught) = Default::default();
        Self { label, spent, compared, taught, cached: Default::default() }
    }
}

/// The handles that `key` has.
pub(super) fn known<Q, V>(all: &HandleMap<Q::Owned, V>, key: &Q) -> Option<Arc<V>>
where
    Q: ToOwned<Owned: Hash + Eq> + Hash + Eq + ?Sized,
{
    all.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

/// As [`known`]; made where they are met for the first time.
pub(super) fn handles<Q, V>(
    all: &HandleMap<Q::Owned, V>,
    key: &Q,
    make: impl FnOnce() -> V,
) -> Arc<V>
where
    Q: ToOwned<Owned: Hash + Eq> + Hash + Eq + ?Sized,
{
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handles) = all.get(key) {
        return handles.clone();
    }
    let made = Arc::new(make());
    all.insert(key.to_owned(), made.clone());
    made
}
