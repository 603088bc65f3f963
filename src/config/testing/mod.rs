//! The configuration that tests begin with: one upstream for all dialects, limits that a test can reach, and no key of
//! an environment or a file.
//!
//! Only tests are built with it.

use std::path::PathBuf;
use std::sync::Arc;

use super::{
    ClientMode, Config, ContentSettings, IncludeUsage, LessonSettings, LogLevel, Mode,
    ProviderCounting, Retention, ServerLimits, Tenants, UpgradePolicy, Upstream,
};
use crate::dialect::Dialect;
use crate::dialect::models::Catalogue;

impl Config {
    /// Observes what goes to one upstream, `up`, at `base`.
    ///
    /// # Panics
    /// If `base` is no URL.
    pub fn for_tests(base: &str) -> Self {
        Self {
            listen: ([127, 0, 0, 1], 0).into(),
            admin: ([127, 0, 0, 1], 0).into(),
            client_token: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tenant_headers: Vec::new(),
            admin_token: None,
            admin_read_token: None,
            metrics_open: false,
            metrics_tags: Vec::new(),
            admin_tls: None,
            secret_variables: Vec::new(),
            tls: None,
            data: PathBuf::new(),
            mode: Mode::Observe,
            client_mode: ClientMode::Lower,
            preset: None,
            upstreams: vec![Upstream::for_tests("up", base)],
            extra_ca: None,
            limits: ServerLimits {
                header_bytes: 64 * 1024,
                body_bytes: 8 * 1024 * 1024,
                reply_bytes: 8 * 1024 * 1024,
                process_bytes: Some(512 * 1024 * 1024),
                commit_ms: 20,
                store_ms: 1000,
                first_load_ms: 1000,
                drain_s: 10,
                ..ServerLimits::default()
            },
            retention: Retention { days: 1, bytes: 1 << 30 },
            lessons: LessonSettings::default(),
            shared_store: None,
            warehouse: None,
            on_failure: Default::default(),
            content: ContentSettings::default(),
            count: ProviderCounting::Sent,
            output_reserve: 16_000,
            policy: Arc::default(),
            caps: Vec::new(),
            compact_models: Vec::new(),
            catalogue: Catalogue::default(),
            catalogue_file: None,
            catalogue_url: None,
            log_json: false,
            log_level: LogLevel::default(),
            request_id_header: false,
            tenants: Tenants::default(),
            otel: None,
        }
    }
}

impl Upstream {
    /// Speaks all dialects at `base`.
    ///
    /// # Panics
    /// If `base` is no URL.
    #[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
    pub fn for_tests(name: &str, base: &str) -> Self {
        Self {
            name: name.into(),
            base: base.parse().unwrap(),
            dialects: vec![
                Dialect::Anthropic,
                Dialect::OpenaiChat,
                Dialect::OpenaiResponses,
                Dialect::Gemini,
            ],
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
}
