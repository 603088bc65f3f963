use std::sync::Arc;

use super::Proxy;
use super::state::push_hex;
use crate::config::{Config, Upstream};
use crate::dialect::Dialect;
use crate::dialect::models::{Catalogue, ModelOverride};
use crate::store::ledgers::Ledgers;
use crate::telemetry::Telemetry;

/// Without waits that could delay a test.
pub(super) fn config(commit_ms: u64) -> Config {
    let mut config = Config::for_tests("http://127.0.0.1:1");
    config.limits.commit_ms = commit_ms;
    config.limits.drain_s = 1;
    config
}

pub(super) fn upstream(name: &str, base: &str, dialects: &[Dialect]) -> Upstream {
    Upstream { dialects: dialects.to_vec(), ..Upstream::for_tests(name, base) }
}

#[tokio::test]
async fn exchange_ids_are_unique() {
    let telemetry = Telemetry::silent().unwrap();
    let ledgers = Arc::new(Ledgers::new(Arc::new(crate::store::memory::MemoryStore::default())));
    let proxy = Proxy::new(Arc::new(config(0)), ledgers, telemetry).await.unwrap();
    let (one, two) = (proxy.next_id(), proxy.next_id());
    assert_ne!(one, two);
    let (one, two) = (one.as_str(), two.as_str());
    assert_eq!(one.len(), 24);
    assert_eq!(one[..16], two[..16]);
}

#[tokio::test]
async fn configured_price_is_of_whatever_answered() {
    let telemetry = Telemetry::silent().unwrap();
    let ledgers = Arc::new(Ledgers::new(Arc::new(crate::store::memory::MemoryStore::default())));
    let catalogue = Catalogue::default();
    let listed = catalogue.model("gpt-5", "").price;
    let own = catalogue.model("claude-opus-4-6", "").price;
    let deployment =
        ModelOverride { name: "my-deployment".into(), price: own, ..ModelOverride::default() };
    let config = Config { catalogue: Catalogue::new(vec![deployment]), ..config(0) };
    let proxy = Proxy::new(Arc::new(config), ledgers, telemetry).await.unwrap();
    assert!(listed.is_some() && own.is_some() && listed != own);
    assert_eq!(proxy.price("up", "my-deployment", "gpt-5"), own);
    assert_eq!(proxy.price("up", "gpt-5-mini", "gpt-5"), listed);
}

#[test]
fn hex_matches_format_macros() {
    for number in [0, 1, 0x9f, 0xffff_ffff, 0x1_0000_0000, 0x0123_4567_89ab_cdef, u64::MAX] {
        let (mut eight, mut sixteen) = (String::new(), String::new());
        push_hex(&mut eight, number, 8);
        push_hex(&mut sixteen, number, 16);
        assert_eq!(eight, format!("{number:08x}"));
        assert_eq!(sixteen, format!("{number:016x}"));
    }
}
