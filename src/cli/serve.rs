//! `plimsoll serve`: config → build → serve → drain.
//!
//! Nothing is bound before the configuration has no fault and the store opens; one ready line says
//! where clients connect. The first signal drains, the second ends at once.

mod timed;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::print::{self, Trouble};
use super::socket::{self, SocketFile};
use super::tokens;
use crate::admin::prices::Prices;
use crate::admin::view::About;
use crate::admin::{self, Access, Admin, Listener};
use crate::config::{self, Config, Lessons, Loaded, Sources};
use crate::context::Millis;
use crate::proxy::{self, Drained, Proxy};
use crate::store::folder;
use crate::store::keyed::Keyed;
use crate::store::ledgers::Ledgers;
use crate::store::lessons::Terms;
use crate::store::sqlite::Sqlite;
use crate::telemetry::Telemetry;
use crate::telemetry::log::{Form, Log};
use crate::tls::Terminator;
use crate::tokens::bpe;

/// How often what is past its time is forgotten.
const SWEEP: Duration = Duration::from_secs(3600);
/// Exit code after a second signal.
const INTERRUPTED: i32 = 130;

/// Serves until a signal.
pub(super) fn run(sources: &Sources) -> Result<(), Trouble> {
    let loaded = config::load(sources)?;
    let form = if loaded.config.log_json { Form::Json } else { Form::Text };
    let log = Log::to(form, std::io::stderr())?;
    runtime()?.block_on(async {
        let stop = signals()?;
        let house = House::build(loaded, log, Ports::Configured).await?;
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

fn cannot_write(config: &Config, error: std::io::Error) -> Trouble {
    let folder = config.data.display();
    Trouble(format!("{folder} cannot be used: {error}. Choose another folder with --data"))
}

/// As many workers as there are cores.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Which ports a house takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// Those that are configured; it is a fault where they are taken.
    Configured,
    /// Those, or free ones on loopback where they are taken.
    OrFree,
}

/// Everything that serves, built and bound.
pub(super) struct House {
    config: Arc<Config>,
    telemetry: Arc<Telemetry>,
    ledgers: Arc<Ledgers>,
    proxy: Arc<Proxy>,
    clients: TcpListener,
    admin: TcpListener,
    admin_tls: Option<Terminator>,
    /// The socket in the data folder, unless another process has it or the folder cannot be written.
    pub(super) socket: Option<(UnixListener, SocketFile)>,
    /// Who may ask the admin listener.
    pub(super) access: Access,
    /// Where clients connect, with the real port.
    pub(super) listen: SocketAddr,
    /// Where the admin listener stands, with the real port.
    pub(super) admin_at: SocketAddr,
}

impl House {
    /// Builds and binds; says whose fault it is where that fails.
    pub(super) async fn build(loaded: Loaded, log: Log, ports: Ports) -> Result<Self, Trouble> {
        log.take_diagnostics(&std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into()));
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let config = Arc::new(loaded.config);
        if let Some(file) = &config.policy.estimate.gemini_vocabulary {
            vocabulary(Path::new(file))?;
        }
        let telemetry = Telemetry::new(log)?;
        for warning in
            folder::prepare(&config.data).map_err(|error| cannot_write(&config, error))?
        {
            tracing::warn!("{warning}");
        }
        let store = Sqlite::open(&config.data.join(folder::DATABASE))?;
        let store = Keyed::open(store, &config.data)?;
        let store = timed::Timed { store, telemetry: telemetry.clone() };
        let Lessons { tenants, days } = config.lessons;
        let terms = Terms { tenants, days };
        let ledgers = Arc::new(Ledgers::by_terms(Arc::new(store), terms));
        let proxy = Proxy::new(config.clone(), ledgers.clone(), telemetry.clone())
            .await
            .map_err(Trouble)?;
        let admin_tls = config.admin_tls.as_ref().map(Terminator::new).transpose();
        let admin_tls = admin_tls.map_err(Trouble)?;
        let clients = bind(config.listen, "--listen", ports).await?;
        let admin = bind(config.admin, "--admin", ports).await?;
        let (listen, admin_at) = (clients.local_addr()?, admin.local_addr()?);
        let access = tokens::access(&config)?;
        let socket = socket::listen(&config.data).await;
        let socket = socket.inspect_err(|error| no_socket(&config, error)).ok();
        Ok(Self {
            config,
            telemetry,
            ledgers,
            proxy,
            clients,
            admin,
            admin_tls,
            socket,
            access,
            listen,
            admin_at,
        })
    }

    /// The line that says where it listens.
    pub(super) fn ready(&self) -> String {
        format!("plimsoll: listening on {} (admin {})", self.base(), self.page())
    }

    /// A link to the page: with the token, where it was made here, and where those who read what we print
    /// may have it.
    fn page(&self) -> String {
        let scheme = if self.config.admin_tls.is_some() { "https" } else { "http" };
        let page = format!("{scheme}://{}", self.admin_at);
        if self.config.admin_token.is_some() || is_collected() {
            return page;
        }
        format!("{page}/#token={}", self.access.admin.0)
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
            About::of(&self.config, self.listen, self.admin_at, now()),
            Prices::of(&self.config),
            self.access,
            stop.clone(),
        );
        let (finish, finished) = watch::channel(false);
        let (socket, file) = self.socket.unzip();
        let listeners = socket.map(Listener::Socket).into_iter();
        let listeners = listeners.chain([Listener::Port(self.admin, self.admin_tls)]);
        let looking_in: Vec<_> = listeners
            .map(|listener| {
                tokio::spawn(admin::serve(admin.clone(), listener, becomes_true(finished.clone())))
            })
            .collect();
        let sweeping = tokio::spawn(sweep(self.ledgers, self.config, self.telemetry.clone()));
        let drained = proxy::serve(self.proxy, self.clients, becomes_true(stop)).await;
        if let Drained::Broken(left) = drained {
            tracing::warn!("{left} exchanges were broken off at the deadline (limits.drain_s)");
        }
        sweeping.abort();
        finish.send_replace(true);
        for listening in looking_in {
            let _ = listening.await;
        }
        drop(file);
        self.telemetry.flush();
    }
}

/// Ready when `flag` is true, or nobody can make it so any more.
async fn becomes_true(mut flag: watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}

/// Forgets, now and then, what is past its time.
async fn sweep(ledgers: Arc<Ledgers>, config: Arc<Config>, telemetry: Arc<Telemetry>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let age = Duration::from_secs(config.retention.days.saturating_mul(24 * 3600));
        let before = now().saturating_sub(age.as_millis() as Millis);
        match ledgers.expire(before, config.retention.bytes).await {
            Ok(0) => {}
            Ok(records) => tracing::info!("{records} facts were past their time and are forgotten"),
            Err(trouble) => {
                telemetry.retention_failed();
                tracing::warn!("what is past its time could not be forgotten: {trouble}");
            }
        }
        if let Err(trouble) = ledgers.lessons().expire(now()).await {
            tracing::warn!("lessons past their time could not be forgotten: {trouble}");
        }
    }
}

fn now() -> Millis {
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

/// Whether what we print to standard output is kept where others read it: a service's journal, the logs of
/// a cluster.
fn is_collected() -> bool {
    ["JOURNAL_STREAM", "KUBERNETES_SERVICE_HOST"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

fn no_socket(config: &Config, error: &std::io::Error) {
    let socket = socket::path(&config.data);
    tracing::warn!(
        "{}: {error}; `plimsoll sessions` and its like do not find this process by it",
        socket.display()
    );
}

async fn bind(address: SocketAddr, flag: &str, ports: Ports) -> Result<TcpListener, Trouble> {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    let bound = TcpListener::bind(address).await;
    if ports == Ports::OrFree && bound.as_ref().is_err_and(|error| error.kind() == AddrInUse) {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let instead = free.local_addr()?;
        print::note(&format!("{address} is taken by somebody else; {instead} is used instead"));
        return Ok(free);
    }
    bound.map_err(|error| {
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
