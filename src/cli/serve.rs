//! `plimsoll serve`: config → build → serve → drain.
//!
//! Binds nothing before the configuration is valid and the store is open; one ready line says where clients
//! connect. The first signal drains, the second one ends the process at once.

mod catalogue;
mod descriptors;
mod reclaim;
pub(super) mod room;
mod start_timer;
mod sweep;
mod threads;
mod timed;

use std::io::IsTerminal as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::print::{self, CliError};
use super::socket::{self, SocketFile};
use super::tokens;
use crate::admin::view::ServerInfo;
use crate::admin::{self, Admin, AdminAccess, AdminListener};
use crate::clock::{now, wall};
use crate::config::{
    self, Config, ConfigSources, LessonSettings, LoadedConfig, OnFailure, PriceList, SharedStore,
};
use crate::dialect::models::Family;
#[cfg(feature = "otel")]
use crate::otel::OtelExport;
use crate::proxy::{self, DrainOutcome, Proxy};
use crate::store::deferred_store::DeferredStore;
use crate::store::keyed;
use crate::store::ledgers::{Ledgers, TurnCost};
use crate::store::lessons::LessonTerms;
use crate::store::redis::{RedisServer, ServerTls};
use crate::store::served::ServedStore;
use crate::store::{Store, StoreError, folder};
use crate::telemetry::Telemetry;
use crate::telemetry::log::{Log, LogFormat};
use crate::tls::{self, TlsTerminator};
use crate::tokens::bpe;
use crate::warehouse::Warehouse;
use start_timer::StartTimer;

/// How often opening the store is tried again.
const OPENING_PAUSE: Duration = Duration::from_secs(5);
/// How long the store may take at shutdown to leave one complete file.
const CLOSING: Duration = Duration::from_secs(5);
/// How long the start waits until it is read from the store what was spent before, if there are caps.
const READING_SPENDING: Duration = Duration::from_secs(10);
/// Exit code after a second signal.
const INTERRUPTED: i32 = 130;
/// The variable that overrides `log_level`.
const LOG_LEVEL: &str = "RUST_LOG";

pub(super) fn run(sources: &ConfigSources) -> Result<(), CliError> {
    let loaded = config::load(sources)?;
    let form = if loaded.config.log_json { LogFormat::Json } else { LogFormat::Text };
    let log = Log::to(form, std::io::stderr())?;
    block_on(async {
        let stop = signals()?;
        reload_on_hangup(sources.clone(), log.clone())?;
        let connections = loaded.config.limits.connections();
        let server = Server::build(loaded, log, Ports::Configured).await?;
        if let Some(too_few) = descriptors::allow(connections) {
            tracing::warn!("{too_few}");
        }
        print::line(&server.ready());
        print::line(&server.first_steps());
        server.serve(stop).await;
        Ok(())
    })
}

/// Provides the vocabulary for counting Gemini's tokens.
pub(super) fn provide_gemini_vocabulary(file: &Path) -> Result<(), CliError> {
    let name = file.display();
    let bytes =
        std::fs::read(file).map_err(|error| CliError(format!("{name} cannot be read: {error}")))?;
    bpe::provide(&bytes).map_err(|error| CliError(format!("{name} {error}")))
}

fn cannot_write(config: &Config, error: std::io::Error) -> CliError {
    let folder = config.data.display();
    CliError(format!("{folder} cannot be used: {error}. Choose another folder with --data"))
}

/// Runs a command that serves.
pub(super) fn block_on<T>(
    command: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    // What hangs at its end (a disk, a name server) is not waited for.
    let runtime = threads::runtime()?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}

/// Which ports a server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// The configured ones; if they are in use, that is an error.
    Configured,
    /// The configured ones, or free ones on loopback if they are in use.
    OrFree,
}

/// All parts of a server, built and bound.
pub(super) struct Server {
    config: Arc<Config>,
    telemetry: Arc<Telemetry>,
    store: Arc<ServedStore>,
    warehouse: Option<Warehouse>,
    ledgers: Arc<Ledgers>,
    proxy: Arc<Proxy>,
    clients: TcpListener,
    admin: TcpListener,
    admin_tls: Option<TlsTerminator>,
    /// The socket in the data folder, unless another process uses it or the folder cannot be written.
    pub(super) socket: Option<(UnixListener, SocketFile)>,
    /// Who may use the admin listener.
    pub(super) access: AdminAccess,
    /// The address for clients, with the actual port.
    pub(super) listen: SocketAddr,
    /// The address of the admin listener, with the actual port.
    pub(super) admin_at: SocketAddr,
}

impl Server {
    /// Builds and binds everything; an error says whose fault it is.
    pub(super) async fn build(
        loaded: LoadedConfig,
        log: Log,
        ports: Ports,
    ) -> Result<Self, CliError> {
        log.take_diagnostics(&log_level(&loaded.config));
        let mut timer = StartTimer::begin();
        // Loaded in parallel to the rest, so that the first request is counted as exactly as all others.
        let vocabularies = [Family::O200k, Family::Cl100k]
            .map(|family| tokio::task::spawn_blocking(move || _ = bpe::load(family)));
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        if cfg!(not(feature = "otel")) && loaded.config.otel.is_some() {
            tracing::warn!("OpenTelemetry is not in this build (feature otel); nothing is sent");
        }
        let config = Arc::new(loaded.config);
        if let Some(file) = &config.policy.estimate.gemini_vocabulary {
            provide_gemini_vocabulary(Path::new(file))?;
        }
        let telemetry = Telemetry::new(log)?;
        timer.done("the configuration is read");
        let store = Arc::new(open_store(&config, &telemetry).await?);
        timer.done("the store is open");
        let warehouse = Warehouse::start(&config, &telemetry);
        let ledgers = open_ledgers(&store, warehouse.as_ref(), &config, &telemetry);
        let proxy = Proxy::new(config.clone(), ledgers.clone(), telemetry.clone())
            .await
            .map_err(CliError)?;
        timer.done("the proxy is built");
        let admin_tls = config.admin_tls.as_ref().map(TlsTerminator::new).transpose();
        let admin_tls = admin_tls.map_err(CliError)?;
        let clients = bind(config.listen, "--listen", ports).await?;
        let admin = bind(config.admin, "--admin", ports).await?;
        // A client that was cut off repeats its request at once, and waits in the queue: it may continue one of them.
        proxy::find_interrupted(&proxy).await;
        if let Err(error) = ledgers.read_caps(&config.data).await {
            tracing::warn!(
                "caps that were set while Plimsoll ran cannot be read: {error}; the configured ones hold"
            );
        }
        read_spending(&ledgers, PriceList::new(&config)).await;
        timer.done("what was spent is read");
        // With port 0 the system chooses.
        let listen = clients.local_addr()?;
        let admin_at = admin.local_addr()?;
        let access = tokens::access(&config)?;
        let socket = socket::listen(&config.data).await;
        let socket = socket.inspect_err(|error| warn_no_socket(&config, error)).ok();
        timer.done("the ports are bound");
        for loading in vocabularies {
            // A panic in loading is reported; tokens are then counted by length.
            drop(loading.await);
        }
        timer.done("the vocabularies are loaded");
        Ok(Self {
            config,
            telemetry,
            store,
            warehouse,
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

    fn ready(&self) -> String {
        format!("plimsoll: listening on {} (admin {})", self.base(), self.page())
    }

    /// What a person wants to know next: what is changed, where requests go and clients point, where the page and the data
    /// are.
    fn first_steps(&self) -> String {
        format!(
            "{}\n  page: {}\n  data: {}",
            self.config.introduction(&self.base()),
            self.page(),
            self.config.data.display()
        )
    }

    pub(super) fn page(&self) -> String {
        let scheme = if self.config.admin_tls.is_some() { "https" } else { "http" };
        let page = format!("{scheme}://{}", self.admin_at);
        // It has the token if that was generated here and a terminal shows it: any other output may be stored
        // where others can read it.
        if self.config.admin_token.is_some() || !std::io::stdout().is_terminal() {
            return page;
        }
        format!("{page}/#token={}", self.access.admin.0)
    }

    pub(super) fn base(&self) -> String {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.listen)
    }

    /// Serves until `stop` is true, then lets streams finish.
    pub(super) async fn serve(self, stop: watch::Receiver<bool>) {
        let admin = Admin::new(
            self.config.limits.process_bytes,
            self.ledgers.clone(),
            self.telemetry.clone(),
            ServerInfo::new(&self.config, self.listen, self.admin_at, wall()),
            PriceList::new(&self.config),
            self.access.clone(),
            stop.clone(),
        );
        // The admin listener ends last, so that it can report on the shutdown.
        let (finish, finished) = watch::channel(false);
        let (socket, file) = self.socket.unzip();
        let has_socket = socket.is_some();
        let mut listeners = Vec::new();
        listeners.extend(socket.map(AdminListener::Socket));
        listeners.push(AdminListener::Port(self.admin, self.admin_tls));
        let mut admin_tasks = Vec::new();
        for listener in listeners {
            let serving = admin::serve(admin.clone(), listener, becomes_true(finished.clone()));
            admin_tasks.push(tokio::spawn(serving));
        }
        #[cfg(feature = "otel")]
        let export = OtelExport::start(&self.config, &self.telemetry);
        let access = self.access;
        let config = self.config.clone();
        let store = self.store.clone();
        let telemetry = self.telemetry.clone();
        let late_admin = admin.clone();
        let followed = self.config.clone();
        let fetching = self.proxy.clone();
        let sweeping = tokio::spawn(async move {
            let was_late = reopen_store(&config, &store).await;
            // The socket and its file live as long as this task.
            let mut _file = None;
            if was_late && !has_socket {
                _file = listen_late(&config, late_admin, &access, finished).await;
            }
            sweep::run(self.ledgers, store, telemetry, config.retention).await;
        });
        let drained = tokio::select! {
            drained = proxy::serve(self.proxy, self.clients, becomes_true(stop)) => drained,
            never = reclaim::run() => match never {},
            never = catalogue::follow(&followed, &fetching) => match never {},
            never = admin::tell_others(admin) => match never {},
        };
        if let DrainOutcome::Broken(left) = drained {
            tracing::warn!("{left} exchanges were aborted at the deadline (limits.drain_s)");
        }
        sweeping.abort();
        finish.send_replace(true);
        for task in admin_tasks {
            let _ = task.await;
        }
        drop(file);
        let copying = async {
            if let Some(warehouse) = self.warehouse {
                warehouse.finish().await;
            }
        };
        let closing = tokio::time::timeout(CLOSING, self.store.close());
        match tokio::join!(closing, copying).0 {
            Ok(Ok(())) => {}
            Ok(Err(trouble)) => tracing::warn!(
                "the store's WAL stays beside it, and the next start reads it: {trouble}"
            ),
            Err(_) => tracing::warn!(
                "the store's WAL stays beside it, and the next start reads it: the disk is too slow"
            ),
        }
        #[cfg(feature = "otel")]
        if let Some(export) = export {
            export.finish().await;
        }
        self.telemetry.flush();
    }
}

/// Reads what was spent before this start, for caps and the day's sum.
async fn read_spending(ledgers: &Arc<Ledgers>, prices: PriceList) {
    let cost: TurnCost =
        Arc::new(move |turn| turn.cost(|model| prices.price(&turn.upstream, &turn.model, model)));
    ledgers.caps().price_by(cost);
    let reader = ledgers.clone();
    let started = now();
    let reading = tokio::spawn(async move {
        let unread = reader.read_spending(started).await;
        if unread > 0 && reader.caps().has_caps() {
            tracing::warn!(
                "what {unread} sessions spent before this start could not be read, and is not counted"
            );
        }
    });
    // Without caps nothing is decided by it.
    if ledgers.caps().has_caps() && tokio::time::timeout(READING_SPENDING, reading).await.is_err() {
        tracing::warn!(
            "the store is slow: what was spent before this start counts for caps once it is read"
        );
    }
}

/// Ready once `flag` is true, or once its sender is gone.
async fn becomes_true(mut flag: watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}

fn open_ledgers(
    store: &ServedStore,
    warehouse: Option<&Warehouse>,
    config: &Config,
    telemetry: &Arc<Telemetry>,
) -> Arc<Ledgers> {
    let warehouse = warehouse.map(Warehouse::sink);
    let [traffic, admin] = store.stores().map(|store| -> Arc<dyn Store> {
        let telemetry = telemetry.clone();
        Arc::new(timed::TimedStore { store, telemetry, warehouse: warehouse.clone() })
    });
    let LessonSettings { days } = config.lessons;
    let terms = LessonTerms { days };
    Arc::new(Ledgers::with_admin_store(traffic, admin, terms))
}

/// Opens the store, now or later ([`reopen_store`]).
async fn open_store(config: &Config, telemetry: &Telemetry) -> Result<ServedStore, CliError> {
    match prepare(config) {
        Err(error) if config.on_failure == OnFailure::Exit => {
            return Err(cannot_write(config, error));
        }
        // Otherwise opening the store fails in the same way, and reports it.
        _ => {}
    }
    if let Some(shared) = &config.shared_store {
        return open_shared_store(config, shared).await;
    }
    let store = DeferredStore::new(&config.data.join(folder::DATABASE));
    let Err(trouble) = store.open() else {
        warn_of_room(config);
        return Ok(ServedStore::File(store));
    };
    if config.on_failure == OnFailure::Exit || matches!(trouble, StoreError::InUse(_)) {
        return Err(trouble.into());
    }
    tracing::warn!("nothing is stored for now, traffic continues: {trouble}");
    telemetry.set_store_state(None);
    replace_if_damaged(&store, &trouble);
    Ok(ServedStore::File(store))
}

async fn open_shared_store(config: &Config, shared: &SharedStore) -> Result<ServedStore, CliError> {
    let server = redis_server(config, shared)?;
    // Odd settings of the server are reported when it is connected to.
    if let Err(trouble) = server.examine().await {
        if config.on_failure == OnFailure::Exit {
            return Err(trouble.into());
        }
        tracing::warn!("nothing is stored for now, traffic continues: {trouble}");
    }
    // The server deletes what no sweep did: all replicas were off, or one was killed in the middle.
    let life =
        Duration::from_secs((config.retention.days.saturating_add(2)).saturating_mul(86_400));
    Ok(ServedStore::on_server(server, &shared.secret.0, life))
}

/// Where the store's server is, and how to get in.
pub(super) fn redis_server(config: &Config, shared: &SharedStore) -> Result<RedisServer, CliError> {
    let tls = match shared.tls {
        true => Some(ServerTls {
            config: Arc::new(tls::client_config(config).map_err(CliError)?),
            authorities: tls::authorities(config).map_err(CliError)?.into(),
        }),
        false => None,
    };
    Ok(RedisServer {
        hosts: shared.hosts.clone(),
        sentinel: shared.sentinel.clone(),
        is_cluster: shared.is_cluster,
        tls,
        user: shared.user.clone(),
        password: shared.password.as_ref().map(|password| password.0.as_str().into()),
        database: shared.database,
        prefix: shared.prefix.clone(),
        fingerprint: keyed::fingerprint(&shared.secret.0),
        acks: shared.acks,
    })
}

fn prepare(config: &Config) -> std::io::Result<()> {
    // Others may have read it until now.
    for warning in folder::prepare(&config.data)? {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Returns whether the store was not open at first.
async fn reopen_store(config: &Config, store: &ServedStore) -> bool {
    let ServedStore::File(store) = store else { return false };
    if store.load().is_some() {
        return false;
    }
    // A damaged file is replaced by a new one; anything else may mend itself.
    loop {
        let trying = store.clone();
        let opened = tokio::task::spawn_blocking(move || trying.open()).await;
        match opened {
            Ok(Ok(())) => break,
            Ok(Err(trouble)) if replace_if_damaged(store, &trouble) => {}
            Ok(Err(_)) | Err(_) => tokio::time::sleep(OPENING_PAUSE).await,
        }
    }
    // This could not be checked before, because the folder did not exist.
    if let Err(error) = prepare(config) {
        tracing::warn!("{} cannot be read: {error}", config.data.display());
    }
    tracing::warn!("the store works again: from now on turns are stored");
    true
}

async fn listen_late(
    config: &Config,
    admin: Arc<Admin>,
    access: &AdminAccess,
    finished: watch::Receiver<bool>,
) -> Option<SocketFile> {
    // The folder could not be written before.
    let socket = socket::listen(&config.data).await;
    let (listener, file) = socket.inspect_err(|error| warn_no_socket(config, error)).ok()?;
    tokens::write_generated(config, access);
    tokio::spawn(admin::serve(admin, AdminListener::Socket(listener), becomes_true(finished)));
    Some(file)
}

/// Renames a damaged file, so that a new one is used; `false` if damage is not the problem, or the renaming fails.
fn replace_if_damaged(store: &DeferredStore, trouble: &StoreError) -> bool {
    if !matches!(trouble, StoreError::Damaged(_)) {
        return false;
    }
    let aside = store.set_aside(wall());
    match &aside {
        Ok(aside) => {
            tracing::warn!(
                "the damaged store was renamed to {}; a new one is used",
                aside.display()
            );
        }
        Err(error) => tracing::warn!(
            "the damaged store cannot be renamed: {error}. Move it away, or choose another folder with --data"
        ),
    }
    aside.is_ok()
}

fn warn_of_room(config: &Config) {
    if let Some(room) = room::missing(&config.data.join(folder::DATABASE), config.retention.bytes) {
        tracing::warn!("{room}");
    }
}

fn log_level(config: &Config) -> String {
    std::env::var(LOG_LEVEL).unwrap_or_else(|_| config.log_level.as_ref().to_owned())
}

/// Reads the configuration again at each SIGHUP, and applies what can change at run time.
fn reload_on_hangup(sources: ConfigSources, log: Log) -> Result<(), CliError> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match config::load(&sources) {
                Ok(loaded) => {
                    let level = log_level(&loaded.config);
                    log.set_level(&level);
                    let by =
                        if std::env::var_os(LOG_LEVEL).is_some() { LOG_LEVEL } else { "log_level" };
                    tracing::info!(
                        "SIGHUP: the log's level is {level} ({by}); changed certificates are used from the next \
                         connection on; all else needs a restart"
                    );
                }
                Err(faults) => {
                    tracing::warn!("SIGHUP: the configuration stays as it was: {faults}");
                }
            }
        }
    });
    Ok(())
}

/// Becomes true at the first SIGTERM or SIGINT.
pub(super) fn signals() -> Result<watch::Receiver<bool>, CliError> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => continue,
            }
            // The second one ends the process at once; SIGHUP does not end it.
            if stop.send_replace(true) {
                std::process::exit(INTERRUPTED);
            }
            tracing::info!("shutting down: finishing open streams; a second signal ends at once");
        }
    });
    Ok(stopped)
}

fn warn_no_socket(config: &Config, error: &std::io::Error) {
    let socket = socket::path(&config.data);
    tracing::warn!(
        "{}: {error}; commands such as `plimsoll sessions` cannot reach this process through it",
        socket.display()
    );
}

async fn bind(address: SocketAddr, flag: &str, ports: Ports) -> Result<TcpListener, CliError> {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    let bound = TcpListener::bind(address).await;
    if ports == Ports::OrFree && bound.as_ref().is_err_and(|error| error.kind() == AddrInUse) {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let instead = free.local_addr()?;
        print::note(&format!("{address} is in use by another process; {instead} is used instead"));
        return Ok(free);
    }
    bound.map_err(|error| {
        CliError(match error.kind() {
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
