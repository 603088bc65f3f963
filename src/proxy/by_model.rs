//! What is kept in memory by upstream and, there, by model.
//!
//! Found by both names as they are, because each request asks several times. Clients choose the names
//! of models: past [`MODELS`] of an upstream all of its are forgotten, and whoever keeps them asks the
//! store again.

use foldhash::HashMap;

/// Most models of an upstream.
pub(super) const MODELS: usize = 512;

/// Something for each model.
pub(super) struct ByModel<V>(HashMap<Box<str>, HashMap<Box<str>, V>>);

impl<V> Default for ByModel<V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<V> ByModel<V> {
    pub(super) fn get(&self, upstream: &str, model: &str) -> Option<&V> {
        self.0.get(upstream)?.get(model)
    }

    pub(super) fn get_mut(&mut self, upstream: &str, model: &str) -> Option<&mut V> {
        self.0.get_mut(upstream)?.get_mut(model)
    }

    pub(super) fn insert(&mut self, upstream: &str, model: &str, value: V) {
        let models = self.0.entry(upstream.into()).or_default();
        if models.len() >= MODELS && !models.contains_key(model) {
            models.clear();
        }
        models.insert(model.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_all_are_there_and_past_it_the_new_one_alone() {
        let mut numbers = ByModel::default();
        numbers.insert("other", "m", 0);
        for number in 0..MODELS {
            numbers.insert("up", &number.to_string(), number);
        }
        assert_eq!((numbers.get("up", "0"), numbers.get("up", "511")), (Some(&0), Some(&511)));
        numbers.insert("up", "511", 1);
        assert_eq!((numbers.get("up", "0"), numbers.get("up", "511")), (Some(&0), Some(&1)));
        numbers.insert("up", "512", 7);
        assert_eq!((numbers.get("up", "0"), numbers.get("up", "512")), (None, Some(&7)));
        assert_eq!(numbers.get("other", "m"), Some(&0));
    }
}
