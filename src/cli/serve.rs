//! `plimsoll serve`: config → build → serve → drain.
//!
//! Nothing is bound before the configuration has no fault and the store opens; one ready line says
//! where clients connect. The first signal drains, the second ends at once.

pub(super) mod room;
mod sweep;
mod timed;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::print::{self, Trouble};
use crate::admin::prices::Prices;
use crate::admin::view::About;
use crate::admin::{self, Admin};
use crate::config::{self, Config, Loaded, OnFailure, Sources};
use crate::context::Millis;
use crate::proxy::{self, Drained, Proxy};
use crate::store::late::Late;
use crate::store::ledgers::Ledgers;
use crate::telemetry::Telemetry;
use crate::telemetry::log::{Form, Log};
use crate::tokens::bpe;

/// The store's file in the data folder.
pub(super) const FILE: &str = "plimsoll.db";
/// How often a store that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the store may take to leave one whole file at the end.
const CLOSING: Duration = Duration::from_secs(5);
/// Exit code after a second signal.
const INTERRUPTED: i32 = 130;

/// Serves until a signal.
pub(super) fn run(sources: &Sources) -> Result<(), Trouble> {
    let loaded = config::load(sources)?;
    let form = if loaded.config.log_json { Form::Json } else { Form::Text };
    let log = Log::to(form, std::io::stderr())?;
    runtime()?.block_on(async {
        let stop = signals()?;
        let house = House::build(loaded, log).await?;
        print::line(&house.ready());
        house.serve(stop).await;
        Ok(())
    })
}

/// Provides the vocabulary that counts Gemini's tokens.
pub(super) fn vocabulary(file: &Path) -> Result<(), Trouble> {
    let named = |error: String| Trouble(format!("{} {error}", file.display()));
    let read = std::fs::read(file).map_err(|error| named(format!("cannot be read: {error}")))?;
    bpe::provide(&read).map_err(|error| named(error.to_string()))
}

/// As many workers as there are cores.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Everything that serves, built and bound.
pub(super) struct House {
    config: Arc<Config>,
    telemetry: Arc<Telemetry>,
    store: Arc<Late>,
    ledgers: Arc<Ledgers>,
    proxy: Arc<Proxy>,
    clients: TcpListener,
    admin: TcpListener,
    /// Where clients connect, with the real port.
    pub(super) listen: SocketAddr,
    /// Where the admin listener stands, with the real port.
    pub(super) admin_at: SocketAddr,
}

impl House {
    /// Builds and binds; says whose fault it is where that fails.
    pub(super) async fn build(loaded: Loaded, log: Log) -> Result<Self, Trouble> {
        log.take_diagnostics(&std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into()));
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let config = Arc::new(loaded.config);
        if let Some(file) = &config.policy.estimate.gemini_vocabulary {
            vocabulary(Path::new(file))?;
        }
        let telemetry = Telemetry::new(log)?;
        let store = Arc::new(opened(&config, &telemetry)?);
        let timed = |store: Late| timed::Timed { store, telemetry: telemetry.clone() };
        let (traffic, lookers) = (timed(Late::clone(&store)), timed(store.for_lookers()));
        let ledgers = Arc::new(Ledgers::with_lookers(Arc::new(traffic), Arc::new(lookers)));
        let proxy = Proxy::new(config.clone(), ledgers.clone(), telemetry.clone())
            .await
            .map_err(Trouble)?;
        let clients = bind(config.listen, "--listen").await?;
        let admin = bind(config.admin, "--admin").await?;
        let (listen, admin_at) = (clients.local_addr()?, admin.local_addr()?);
        Ok(Self { config, telemetry, store, ledgers, proxy, clients, admin, listen, admin_at })
    }

    /// The line that says where it listens.
    pub(super) fn ready(&self) -> String {
        format!("plimsoll: listening on {} (admin http://{})", self.base(), self.admin_at)
    }

    /// Where clients connect, as a URL.
    pub(super) fn base(&self) -> String {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.listen)
    }

    /// Serves until `stop` says so, then lets streams finish. The admin listener goes last, so that
    /// it can say what is going on.
    pub(super) async fn serve(self, stop: watch::Receiver<bool>) {
        let admin = Admin::new(
            self.ledgers.clone(),
            self.telemetry.clone(),
            About::of(&self.config, self.listen, now()),
            Prices::of(&self.config),
            self.config.admin_token.clone(),
            stop.clone(),
        );
        let (finish, finished) = watch::channel(false);
        let looking_in = tokio::spawn(admin::serve(admin, self.admin, becomes_true(finished)));
        let retention = self.config.retention;
        let (store, told) = (self.store.clone(), self.telemetry.clone());
        let sweeping = tokio::spawn(async move {
            reopened(&store).await;
            sweep::run(self.ledgers, store, told, retention).await;
        });
        let drained = proxy::serve(self.proxy, self.clients, becomes_true(stop)).await;
        if let Drained::Broken(left) = drained {
            tracing::warn!("{left} exchanges were broken off at the deadline (limits.drain_s)");
        }
        sweeping.abort();
        finish.send_replace(true);
        let _ = looking_in.await;
        match tokio::time::timeout(CLOSING, self.store.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(trouble)) => tracing::warn!("the store's log stays beside it: {trouble}"),
            Err(_) => tracing::warn!("the store's log stays beside it: the disk is too slow"),
        }
        self.telemetry.flush();
    }
}

/// Ready when `flag` is true, or nobody can make it so any more.
async fn becomes_true(mut flag: watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}

/// The store, open, or to be tried again ([`reopened`]).
fn opened(config: &Config, telemetry: &Telemetry) -> Result<Late, Trouble> {
    let store = Late::new(&config.data.join(FILE));
    let Err(trouble) = store.open() else {
        warn_of_room(config);
        return Ok(store);
    };
    if config.on_failure == OnFailure::Exit {
        return Err(trouble.into());
    }
    tracing::warn!("nothing is kept for now, and traffic goes on: {trouble}");
    telemetry.store_is(None);
    begin_anew(&store, &trouble);
    Ok(store)
}

/// Tries until the store is open. One that is damaged gives way to a new one.
async fn reopened(store: &Late) {
    if store.load().is_some() {
        return;
    }
    loop {
        let trying = store.clone();
        let opened = tokio::task::spawn_blocking(move || trying.open()).await;
        match opened {
            Ok(Ok(())) => break,
            Ok(Err(trouble)) if begin_anew(store, &trouble) => {}
            Ok(Err(_)) | Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    tracing::warn!("the store can be used again: from now on facts are kept");
}

/// Sets a damaged file beside; `false` where that is not what is wrong, or fails.
fn begin_anew(store: &Late, trouble: &crate::store::Trouble) -> bool {
    if !matches!(trouble, crate::store::Trouble::Damaged(_)) {
        return false;
    }
    let aside = store.set_aside(now());
    match &aside {
        Ok(aside) => {
            tracing::warn!("the damaged store is now {}; a new one is begun", aside.display());
        }
        Err(error) => tracing::warn!("the damaged store cannot be set beside: {error}"),
    }
    aside.is_ok()
}

/// Says where the disk has less room than the store may take.
fn warn_of_room(config: &Config) {
    if let Some(room) = room::missing(&config.data.join(FILE), config.retention.bytes) {
        tracing::warn!("{room}");
    }
}

pub(super) fn now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as Millis)
}

/// Becomes true at the first SIGTERM or SIGINT; the second ends the process at once.
pub(super) fn signals() -> Result<watch::Receiver<bool>, Trouble> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stop.send_replace(true) {
                std::process::exit(INTERRUPTED);
            }
            tracing::info!("finishing what is under way; a second signal ends at once");
        }
    });
    Ok(stopped)
}

async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Trouble> {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    TcpListener::bind(address).await.map_err(|error| {
        Trouble(match error.kind() {
            AddrInUse => format!(
                "{address} is in use by another process. Stop it, or choose another port with {flag}"
            ),
            AddrNotAvailable => format!(
                "{address} is not an address of this machine. Choose another with {flag}"
            ),
            PermissionDenied => format!(
                "this user may not bind {address}. Choose a port above 1023 with {flag}"
            ),
            _ => format!("{address} cannot be bound: {error}. Choose another with {flag}"),
        })
    })
}
