//! A map by upstream and model, in memory.
//!
//! Looked up by both names without allocation, because each request does so several times. Clients choose the
//! names of models: if an upstream has more than [`MODELS`], the least recently used is dropped, and the
//! caller asks the store again.

use foldhash::HashMap;

/// Most models of one upstream.
const MODELS: usize = 512;

/// A value for each model.
pub(super) struct ModelMap<V> {
    upstreams: HashMap<Box<str>, HashMap<Box<str>, RecentlyUsed<V>>>,
    /// Counts uses.
    uses: u64,
}

struct RecentlyUsed<V> {
    value: V,
    /// The use counter at its last use.
    last: u64,
}

impl<V> Default for ModelMap<V> {
    fn default() -> Self {
        Self { upstreams: HashMap::default(), uses: 0 }
    }
}

impl<V> ModelMap<V> {
    pub(super) fn get_mut(&mut self, upstream: &str, model: &str) -> Option<&mut V> {
        self.uses += 1;
        let used = self.upstreams.get_mut(upstream)?.get_mut(model)?;
        used.last = self.uses;
        Some(&mut used.value)
    }

    /// Does not count as a use.
    pub(super) fn of_upstream(&self, upstream: &str) -> impl Iterator<Item = &V> {
        let models = self.upstreams.get(upstream).into_iter();
        models.flat_map(|models| models.values().map(|used| &used.value))
    }

    pub(super) fn insert(&mut self, upstream: &str, model: &str, value: V) {
        self.uses += 1;
        let models = self.upstreams.entry(upstream.into()).or_default();
        if models.len() >= MODELS && !models.contains_key(model) {
            let oldest = models.iter().min_by_key(|(_, used)| used.last);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                models.remove(&name);
            }
        }
        models.insert(model.into(), RecentlyUsed { value, last: self.uses });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_limit_only_least_recently_used_model_is_dropped() {
        let mut numbers = ModelMap::default();
        numbers.insert("other", "m", 0);
        for number in 0..MODELS {
            numbers.insert("up", &number.to_string(), number);
        }
        let get = |numbers: &mut ModelMap<usize>, up: &str, model: &str| {
            numbers.get_mut(up, model).map(|number| *number)
        };
        assert_eq!(get(&mut numbers, "up", "0"), Some(0));
        numbers.insert("up", "511", 1);
        assert_eq!(get(&mut numbers, "up", "511"), Some(1));
        numbers.insert("up", "512", 7);
        for (model, there) in [("0", true), ("1", false), ("2", true), ("511", true), ("512", true)]
        {
            assert_eq!(get(&mut numbers, "up", model).is_some(), there, "{model}");
        }
        assert_eq!(get(&mut numbers, "other", "m"), Some(0));
    }
}
