//! A proxy on a port of its own, pointed at scripted providers.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::presets::Preset;
use plimsoll::config::{self, Config, ConfigSources, LessonSettings, Upstream};
use plimsoll::proxy::{DrainOutcome, Proxy, TunnelTimeouts, serve};
use plimsoll::store::Store;
use plimsoll::store::ledgers::Ledgers;
use plimsoll::store::lessons::LessonTerms;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::{Exchange, Telemetry};
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

use super::within;

/// The configuration with this preset and these variables.
pub fn resolved(preset: Preset, also: &[(&str, &str)]) -> Config {
    let own = [("PLIMSOLL_PRESET", preset.name()), ("HOME", "/home/somebody")];
    let variables = own.iter().chain(also).map(|(name, value)| ((*name).into(), (*value).into()));
    let sources = ConfigSources { variables: variables.collect(), ..ConfigSources::default() };
    config::load(&sources).unwrap().config
}

/// A running proxy.
pub struct TestServer {
    pub address: SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    serving: JoinHandle<DrainOutcome>,
    pub telemetry: Arc<Telemetry>,
    pub ledgers: Arc<Ledgers>,
    events: broadcast::Receiver<Arc<Exchange>>,
}

impl TestServer {
    /// A proxy in front of one upstream that speaks all dialects.
    pub async fn before(base: &str) -> Self {
        Self::with(config(base)).await
    }

    pub async fn with(config: Config) -> Self {
        Self::through(config, Matcher::builder().build()).await
    }

    pub async fn through(config: Config, matcher: Matcher) -> Self {
        Self::over(Arc::new(MemoryStore::default()), config, matcher).await
    }

    /// A proxy with this store.
    pub async fn over(store: Arc<dyn Store>, config: Config, matcher: Matcher) -> Self {
        Self::open(store, config, matcher, TunnelTimeouts::default()).await
    }

    /// A proxy whose idle tunnels end after these times.
    pub async fn with_tunnels(config: Config, timeouts: TunnelTimeouts) -> Self {
        Self::open(Arc::new(MemoryStore::default()), config, Matcher::builder().build(), timeouts)
            .await
    }

    async fn open(
        store: Arc<dyn Store>,
        config: Config,
        matcher: Matcher,
        timeouts: TunnelTimeouts,
    ) -> Self {
        let LessonSettings { days } = config.lessons;
        let ledgers =
            Arc::new(Ledgers::with_admin_store(store.clone(), store, LessonTerms { days }));
        let telemetry = Telemetry::silent().unwrap();
        let events = telemetry.subscribe();
        let (config, counted) = (Arc::new(config), telemetry.clone());
        let proxy = Proxy::with_tunnels(config, ledgers.clone(), counted, matcher, timeouts);
        let proxy = proxy.await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stop) = oneshot::channel::<()>();
        let stopped = async move {
            let _ = stop.await;
        };
        let serving = tokio::spawn(serve(proxy, listener, stopped));
        Self { address, shutdown: Some(shutdown), serving, telemetry, ledgers, events }
    }

    /// The next exchange that it records.
    pub async fn next_exchange(&mut self) -> Arc<Exchange> {
        within("an event", self.events.recv()).await.unwrap()
    }

    /// Fails if it has recorded another exchange.
    pub fn expect_no_exchange(&mut self) {
        assert!(self.events.try_recv().is_err(), "recorded twice");
    }

    /// Tells it to stop.
    pub fn stop(&mut self) {
        let _ = self.shutdown.take().unwrap().send(());
    }

    /// The outcome, once it has stopped.
    pub async fn drained(self) -> DrainOutcome {
        within("the proxy to drain", self.serving).await.unwrap()
    }
}

pub fn upstream(name: &str, base: &str) -> Upstream {
    Upstream::for_tests(name, base)
}

/// The configuration that tests begin with.
pub fn config(base: &str) -> Config {
    Config::for_tests(base)
}
