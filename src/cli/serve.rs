//! `plimsoll serve`: config → build → serve → drain.
//!
//! Nothing is bound before the configuration has no fault and the store opens; one ready line says
//! where clients connect. The first signal drains, the second ends at once.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::print::{self, Trouble};
use crate::config::{self, Config, Loaded, Sources};
use crate::proxy::{self, Drained, Proxy};
use crate::telemetry::Telemetry;
use crate::telemetry::log::{Form, Log};

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

/// As many workers as there are cores.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Everything that serves, built and bound.
pub(super) struct House {
    config: Arc<Config>,
    telemetry: Arc<Telemetry>,
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
        let telemetry = Telemetry::new(log)?;
        let proxy = Proxy::new(config.clone(), telemetry.clone()).map_err(Trouble)?;
        let clients = bind(config.listen, "--listen").await?;
        let admin = bind(config.admin, "--admin").await?;
        let (listen, admin_at) = (clients.local_addr()?, admin.local_addr()?);
        Ok(Self { config, telemetry, proxy, clients, admin, listen, admin_at })
    }

    /// The line that says where it listens.
    pub(super) fn ready(&self) -> String {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        let (listen, admin) = (self.listen, self.admin_at);
        format!("plimsoll: listening on {scheme}://{listen} (admin http://{admin})")
    }

    /// Serves until `stop` says so, then lets streams finish.
    pub(super) async fn serve(self, mut stop: watch::Receiver<bool>) {
        let _ = self.admin;
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        if let Drained::Broken(left) = proxy::serve(self.proxy, self.clients, stopped).await {
            tracing::warn!("{left} exchanges were broken off at the deadline (limits.drain_s)");
        }
        self.telemetry.flush();
    }
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
