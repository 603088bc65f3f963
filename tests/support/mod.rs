//! A scripted provider and a raw client, with exact control over bytes and timing.
//!
//! The test itself is the script: it reads what arrives and decides what is sent, so nothing unexpected happens between
//! two steps, and no sleep is needed. Every wait has a generous limit, after which the test fails.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod coding;
#[cfg(feature = "otel")]
pub mod collector;
pub mod h2;
pub mod held;
pub mod http1;
pub mod looking;
pub mod noise;
pub mod orders;
pub mod server;
pub mod wire;

use std::future::Future;
use std::time::Duration;

/// Waits for something that must happen; fails the test if it does not.
pub async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(20), wait).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long: {what}"),
    }
}

/// A digest, to compare bodies.
pub fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Bytes that do not compress or repeat, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}
