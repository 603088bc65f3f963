//! The state that all connections and exchanges of a proxy share: configuration, store, upstreams, lessons.
//!
//! Made once at the start. Looks up the configuration of upstreams, and makes ids.

mod by_model;
pub(super) mod calibration;
pub(super) mod counting_endpoints;
pub(super) mod exchange_recorder;
pub(super) mod request_info;
pub(super) mod summaries;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hyper_util::client::proxy::matcher::Matcher;
use tokio::sync::{Semaphore, watch};

use self::calibration::Calibration;
use self::counting_endpoints::CountingEndpoints;
use self::summaries::SummariesInProgress;
use crate::config::presets::Preset;
use crate::config::{Config, PriceList, Upstream};
use crate::context::policy::{CompactPolicy, Policy};
use crate::context::{ExchangeId, TenantId};
use crate::dialect::credentials::CredentialRules;
use crate::dialect::door::Door;
use crate::dialect::models::{Catalogue, Price, is_named};
use crate::dialect::{Dialect, ElementMemory};
use crate::proxy::http::client_access::ClientAccess;
use crate::proxy::http::memory::MemoryBudget;
use crate::proxy::http::tunnel_timeouts::TunnelTimeouts;
use crate::proxy::http::upstream::{self, relays};
use crate::store::ledgers::Ledgers;
use crate::store::lessons::LessonSource;
use crate::telemetry::{MemoryKind, Telemetry};
use crate::tls::TlsTerminator;

/// One in this many connections may have a wide window: a MiB for bodies over HTTP/2.
const WITH_WIDE_WINDOW: usize = 16;
/// What was read of earlier requests takes at most one in this many bytes of the memory for traffic.
const FOR_ELEMENTS: usize = 16;
/// Refused connections that get a response at the same time.
const REJECTED_AT_ONCE: usize = 64;

/// The source of a lesson, also to look one up: this upstream's model, asked by this tenant.
pub(in crate::proxy) fn lesson_source<'a>(
    tenant: Option<&'a TenantId>,
    upstream: &'a Upstream,
    model: &'a str,
    door: Door,
) -> LessonSource<'a> {
    let vouched = upstream.distinguishes_clients();
    LessonSource { tenant, upstream: &upstream.name, model, door, vouched }
}

/// The proxy: routes, connections to upstreams, store and telemetry.
pub struct Proxy {
    pub(in crate::proxy) config: Arc<Config>,
    /// The configured upstreams: routing finds one of them, and all that follows holds it by reference.
    pub(in crate::proxy) upstreams: Vec<Arc<Upstream>>,
    pub(in crate::proxy) catalogue: Catalogue,
    prices: PriceList,
    pub(in crate::proxy) ledgers: Arc<Ledgers>,
    pub(in crate::proxy) telemetry: Arc<Telemetry>,
    /// The key for hashes of credentials.
    pub(in crate::proxy) tenant_key: [u8; 32],
    /// The places where requests carry credentials.
    pub(in crate::proxy) credentials: CredentialRules,
    pub(in crate::proxy) client_access: ClientAccess,
    pub(in crate::proxy) pool: upstream::UpstreamPool,
    pub(in crate::proxy) tls: Option<TlsTerminator>,
    /// Permits for clients' connections.
    pub(in crate::proxy) connections: Arc<Semaphore>,
    /// Permits for wide windows of HTTP/2 connections.
    pub(in crate::proxy) wide_windows: Arc<Semaphore>,
    /// How many connections there were so far.
    pub(in crate::proxy) connections_so_far: AtomicU64,
    pub(in crate::proxy) rejection_permits: Arc<Semaphore>,
    pub(in crate::proxy) exchanges: AtomicUsize,
    /// Becomes true when a shutdown begins.
    pub(in crate::proxy) shutdown: watch::Sender<bool>,
    /// What responses taught about counting tokens.
    pub(in crate::proxy) calibration: Calibration,
    /// The summaries that are being written.
    pub(in crate::proxy) summaries: Arc<SummariesInProgress>,
    pub(in crate::proxy) counting: CountingEndpoints,
    /// The memory that traffic may use.
    pub(in crate::proxy) memory: Arc<MemoryBudget>,
    /// What was read of earlier requests, so that only what is new is read.
    pub(in crate::proxy) elements: Arc<ElementMemory>,
    pub(in crate::proxy) tunnel_timeouts: TunnelTimeouts,
    pub(in crate::proxy) ids: AtomicU64,
    /// Random, so that ids differ between processes and restarts.
    pub(in crate::proxy) run: u64,
}

/// The phase of serving, which every connection watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum ServingPhase {
    /// Serve.
    Serving,
    /// Serve, and tell clients that their connections end.
    Leaving,
    /// Finish what is in progress.
    Draining,
    /// Stop now.
    Breaking,
}

impl Proxy {
    /// A proxy with this configuration. Proxies for connections to upstreams are taken from the environment
    /// (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).
    ///
    /// # Errors
    /// If certificates cannot be read, with the file and the reason; or if the store does not return the key
    /// for the hashes of tenants.
    pub async fn new(
        config: Arc<Config>,
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
    ) -> Result<Arc<Self>, String> {
        let matcher = Matcher::from_env();
        relays::log_relays(&config.upstreams, &matcher);
        Self::through(config, ledgers, telemetry, matcher).await
    }

    /// [`Proxy::new`] with the proxies that `matcher` names.
    ///
    /// # Errors
    /// As [`Proxy::new`].
    pub(super) async fn through(
        config: Arc<Config>,
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
        matcher: Matcher,
    ) -> Result<Arc<Self>, String> {
        Self::with_tunnels(config, ledgers, telemetry, matcher, TunnelTimeouts::default()).await
    }

    /// [`Proxy::through`] with other timeouts for idle tunnels.
    ///
    /// # Errors
    /// As [`Proxy::new`].
    pub async fn with_tunnels(
        config: Arc<Config>,
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
        matcher: Matcher,
        tunnel_timeouts: TunnelTimeouts,
    ) -> Result<Arc<Self>, String> {
        let tls = config.tls.as_ref().map(TlsTerminator::new).transpose()?;
        ledgers.caps().configure(config.caps.clone());
        telemetry.name_preset(config.preset.map_or("none", Preset::name));
        telemetry.label_tags(&config.metrics_tags);
        telemetry.begin_at_zero(config.upstreams.iter().map(|upstream| &*upstream.name));
        let wide_windows = config.limits.connections().div_ceil(WITH_WIDE_WINDOW);
        let memory = MemoryBudget::new(config.limits.memory_bytes(), telemetry.clone());
        let seed = getrandom::u64().map_err(|error| error.to_string())?;
        let most_elements = config.limits.memory_bytes() / FOR_ELEMENTS;
        let own_memory = memory.boxed(MemoryKind::Analysis);
        let tenant_key = ledgers.tenant_key().await.map_err(|trouble| trouble.to_string())?;
        Ok(Arc::new(Self {
            pool: upstream::UpstreamPool::new(&config, matcher, &telemetry)?,
            tls,
            calibration: Calibration::new(telemetry.clone()),
            summaries: Arc::default(),
            counting: CountingEndpoints::default(),
            memory,
            elements: Arc::new(ElementMemory::new(seed, most_elements, own_memory)),
            tunnel_timeouts,
            upstreams: config.upstreams.iter().cloned().map(Arc::new).collect(),
            catalogue: config.catalogue.clone(),
            prices: PriceList::new(&config),
            credentials: CredentialRules::new(
                &config.tenant_headers,
                config.client_token.as_ref().map(|token| &*token.0),
            ),
            client_access: ClientAccess::new(&config),
            ledgers,
            telemetry,
            tenant_key,
            connections: Arc::new(Semaphore::new(config.limits.connections())),
            wide_windows: Arc::new(Semaphore::new(wide_windows)),
            connections_so_far: AtomicU64::new(0),
            rejection_permits: Arc::new(Semaphore::new(REJECTED_AT_ONCE)),
            exchanges: AtomicUsize::new(0),
            shutdown: watch::channel(false).0,
            ids: AtomicU64::new(0),
            run: getrandom::u64().map_err(|error| error.to_string())?,
            config,
        }))
    }

    pub(in crate::proxy) fn summariser(
        &self,
        policy: &CompactPolicy,
        dialect: Dialect,
    ) -> Option<&Arc<Upstream>> {
        let name = policy.upstream.as_deref()?;
        let upstream = self.upstreams.iter().find(|upstream| *upstream.name == *name)?;
        // It is asked in the dialect of the request.
        if upstream.dialects.contains(&dialect) { Some(upstream) } else { None }
    }

    /// The price of the model that answered; see [`PriceList::price`].
    pub(in crate::proxy) fn price(
        &self,
        upstream: &str,
        requested: &str,
        answered: &str,
    ) -> Option<Price> {
        self.prices.price(upstream, requested, answered)
    }

    pub(in crate::proxy) fn policy(&self, upstream: &Upstream, model: &str) -> Arc<Policy> {
        let policy = &self.config.policy;
        let mut model_overrides = self.config.compact_models.iter().rev();
        let of_model = model_overrides.find(|(name, _)| is_named(name, model));
        if upstream.compact.is_none() && of_model.is_none() {
            return policy.clone();
        }
        let mut compact = policy.compact.clone();
        // What is written for the model counts more than what is written for its upstream.
        for overrides in upstream.compact.iter().chain(of_model.map(|(_, overrides)| overrides)) {
            compact = compact.with(overrides);
        }
        Arc::new(Policy { compact, ..Policy::clone(policy) })
    }

    pub(in crate::proxy) fn next_id(&self) -> ExchangeId {
        // Unique among all replicas and restarts.
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(24);
        push_hex(&mut id, self.run, 16);
        push_hex(&mut id, number, 8);
        id.into()
    }
}

pub(in crate::proxy) fn push_hex(to: &mut String, number: u64, least: u32) {
    // As `{number:0least$x}`, ten times as fast.
    let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(least);
    to.extend((0..digits).rev().map(|at| {
        let digit = (number >> (4 * at)) as u8 & 15;
        char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 })
    }));
}
