//! Handles of the label sets that exchanges have had so far.
//!
//! They are grouped by upstream, and then by model, so that an exchange finds all of its handles with one
//! look-up per name, and builds no label twice. A handle is created when its series first counts: `/metrics`
//! shows no series for which nothing was counted.

use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use foldhash::HashMap;

use super::traffic::{
    CacheHandles, ComparisonHandles, LearningHandles, TrafficHandles, TrafficKey, UsageHandles,
};

/// Handles by their label.
pub(super) type HandleMap<K, V> = Mutex<HashMap<K, Arc<V>>>;

/// Handles of one upstream.
#[derive(Default)]
pub(super) struct UpstreamHandles {
    pub(super) traffic: HandleMap<TrafficKey, TrafficHandles>,
    pub(super) models: HandleMap<String, ModelHandles>,
}

/// Handles of one model behind one upstream.
pub(super) struct ModelHandles {
    /// The model's label.
    pub(super) label: Box<str>,
    pub(super) spent: OnceLock<UsageHandles>,
    pub(super) compared: OnceLock<ComparisonHandles>,
    pub(super) taught: OnceLock<LearningHandles>,
    /// By how the exchange was edited.
    pub(super) cached: [OnceLock<CacheHandles>; 3],
}

impl ModelHandles {
    pub(super) fn new(label: Box<str>) -> Self {
        let (spent, compared, taught) = Default::default();
        Self { label, spent, compared, taught, cached: Default::default() }
    }
}

/// The existing handles of `key`.
pub(super) fn known<Q, V>(all: &HandleMap<Q::Owned, V>, key: &Q) -> Option<Arc<V>>
where
    Q: ToOwned<Owned: Hash + Eq> + Hash + Eq + ?Sized,
{
    all.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

/// Like [`known`]; creates the handles on first use.
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
