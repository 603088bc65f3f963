//! Randomness from the system, for the keys that a store keeps.
//!
//! Without it no key is made up: the store says so.

use super::StoreError;

/// 32 random bytes from the system.
pub(super) fn random() -> Result<[u8; 32], StoreError> {
    let mut bytes = [0; 32];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| {
        StoreError::Unusable(format!("the system gives no randomness: {error}"))
    })?;
    Ok(bytes)
}
