use std::sync::Arc;

use super::Proxy;
use super::state::push_hex;
use crate::config::{
    ClientMode, Config, ContentSettings, IncludeUsage, LogLevel, Mode, ProviderCounting, Retention,
    ServerLimits, Tenants, UpgradePolicy, Upstream,
};
use crate::dialect::Dialect;
use crate::store::ledgers::Ledgers;
use crate::telemetry::Telemetry;

/// One upstream for all dialects, and no waits that could delay a test.
pub(super) fn config(commit_ms: u64) -> Config {
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        admin: ([127, 0, 0, 1], 0).into(),
        client_token: None,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        tenant_headers: Vec::new(),
        admin_token: None,
        admin_read_token: None,
        metrics_open: false,
        admin_tls: None,
        secret_variables: Vec::new(),
        tls: None,
        data: std::path::PathBuf::new(),
        mode: Mode::Observe,
        client_mode: ClientMode::Lower,
        preset: None,
        upstreams: vec![upstream("up", "http://127.0.0.1:1", &[Dialect::Anthropic])],
        extra_ca: None,
        limits: ServerLimits {
            process_bytes: Some(512 << 20),
            commit_ms,
            store_ms: 1000,
            first_load_ms: 1000,
            drain_s: 1,
            ..ServerLimits::default()
        },
        retention: Retention { days: 1, bytes: 1 << 30 },
        lessons: crate::config::LessonSettings::default(),
        on_failure: Default::default(),
        content: ContentSettings::default(),
        count: ProviderCounting::Sent,
        output_reserve: 0,
        policy: Arc::default(),
        compact_models: Vec::new(),
        catalogue: crate::dialect::models::Catalogue::default(),
        catalogue_file: None,
        log_json: false,
        log_level: LogLevel::default(),
        request_id_header: false,
        tenants: Tenants::default(),
    }
}

pub(super) fn upstream(name: &str, base: &str, dialects: &[Dialect]) -> Upstream {
    Upstream {
        name: name.into(),
        base: base.parse().unwrap(),
        dialects: dialects.to_vec(),
        prefix: None,
        hosts: Vec::new(),
        credential: None,
        mode: None,
        upgrades: UpgradePolicy::Tunnel,
        include_usage: IncludeUsage::Auto,
        count_tokens: Default::default(),
        reasoning_echo: None,
        window: None,
        price: None,
        compact: None,
    }
}

#[tokio::test]
async fn exchange_ids_are_unique() {
    let telemetry = Telemetry::silent().unwrap();
    let ledgers = Arc::new(Ledgers::new(Arc::new(crate::store::memory::MemoryStore::default())));
    let proxy = Proxy::new(Arc::new(config(0)), ledgers, telemetry).await.unwrap();
    let (one, two) = (proxy.next_id(), proxy.next_id());
    assert_ne!(one, two);
    let (one, two) = (one.as_str(), two.as_str());
    assert_eq!((one.len(), &one[..16]), (24, &two[..16]));
}

#[test]
fn hex_matches_the_format_macros() {
    for number in [0, 1, 0x9f, 0xffff_ffff, 0x1_0000_0000, 0x0123_4567_89ab_cdef, u64::MAX] {
        let (mut eight, mut sixteen) = (String::new(), String::new());
        push_hex(&mut eight, number, 8);
        push_hex(&mut sixteen, number, 16);
        assert_eq!((eight, sixteen), (format!("{number:08x}"), format!("{number:016x}")));
    }
}
