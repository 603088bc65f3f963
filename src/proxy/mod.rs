//! Floor 5, the wire: accept, limits, drain.
//!
//! Must never be in the way: whatever fails in here, the client gets what it would have got without
//! us. Does not know the admin listener.

mod added_option;
mod analysis;
mod answer;
mod at_hand;
mod body;
mod by_model;
mod calibration;
mod client_request;
mod close;
mod compaction;
mod counting;
mod drafts;
pub mod exchange;
mod exchange_recorder;
mod frames;
mod framing;
mod full;
mod gate;
mod headers;
mod lessons;
mod memory;
mod names;
mod observe;
mod opening;
mod outbound;
mod pieces;
mod planned_request;
mod progress;
mod questions;
mod relays;
mod response_peek;
mod retry;
mod route;
mod summarize;
pub mod tap;
mod transport;
mod tunnel;
mod turn;
mod undelivered;
pub mod upstream;
mod usage_rewrite;
mod usage_strip;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use self::answer::ProxyError;
use self::calibration::Calibration;
use self::compaction::CompactionScheduler;
use self::counting::CountingEndpoints;
use self::framing::{LookAlike, MarkedTransport, framed};
use self::gate::ClientAccess;
use self::memory::{HeldMemory, MemoryBudget, MemoryShare};
use self::opening::First;
use self::transport::{MeteredSocket, TransportPeer};
pub use self::tunnel::TunnelTimeouts;
use crate::activity::Activity;
use crate::config::{Config, ServerLimits, Upstream};
use crate::context::Millis;
use crate::context::policy::{CompactPolicy, Policy};
use crate::dialect::credentials::Credentials;
use crate::dialect::models::{Catalogue, is_named};
use crate::store::ledgers::Ledgers;
use crate::telemetry::{ClientTimeout, MemoryKind, Telemetry, clock};
use crate::tls::Terminator;
use crate::wire::memory::Memory as _;

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an idle HTTP/2 connection may take to go once it was told to.
const LEAVING: Duration = Duration::from_secs(1);
/// Pause after the system refused a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most bytes that hyper buffers of one connection, each way; its own default is 408 KiB. Headers past
/// `limits.header_bytes` must fit, so that we can refuse them in our own words.
pub(crate) const BUFFER: usize = 128 * 1024;
/// Bytes of a short header: as many headers as of these fit the limit are read over HTTP/1.
pub(crate) const LEAST_HEADER: usize = 16;
/// Streams that one client may have at once on an HTTP/2 connection.
const STREAMS: u32 = 1000;
/// Most bytes of one request that wait for a slow upstream, per HTTP/2 stream.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same of all streams of a connection, where there is memory for it.
const WIDE_WINDOW: u32 = 1024 * 1024;
/// The same where there is not: HTTP/2 has no smaller one.
const NARROW_WINDOW: u32 = 65_535;
/// Most bytes of one response that wait for a slow client in its HTTP/2 stream, as far as they were taken.
const SEND_BUFFER: usize = 64 * 1024;

/// The proxy: routes, connections to upstreams, and whoever it tells.
pub struct Proxy {
    config: Arc<Config>,
    catalogue: Catalogue,
    ledgers: Arc<Ledgers>,
    telemetry: Arc<Telemetry>,
    /// Keys the hashes of credentials.
    tenant_key: [u8; 32],
    /// What carries them.
    credentials: Credentials,
    gate: ClientAccess,
    pool: upstream::Pool,
    tls: Option<Terminator>,
    connections: Arc<Semaphore>,
    turned: Arc<Semaphore>,
    exchanges: AtomicUsize,
    /// Turns true when a shutdown begins.
    shutdown: watch::Sender<bool>,
    /// What answers taught about counting.
    calibration: Calibration,
    /// Summaries that are being written.
    compacting: CompactionScheduler,
    counting: CountingEndpoints,
    /// What traffic may make us hold.
    memory: Arc<MemoryBudget>,
    tunnel_timeouts: TunnelTimeouts,
    ids: AtomicU64,
    /// Drawn at the start, so that no other process and no later start gives the same ids.
    run: u64,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Every stream finished.
    Whole,
    /// The deadline (`limits.drain_s`) came first: this many exchanges were broken off.
    Broken(usize),
}

/// What connections are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Go on.
    Serving,
    /// Finish what is under way.
    Draining,
    /// Break off.
    Breaking,
}

impl Proxy {
    /// A proxy as `config` asks for; proxies between us and the upstreams come from the environment
    /// (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).
    ///
    /// # Errors
    /// Where certificates cannot be read; says which file and why. Or where the store does not give
    /// the key that tells tenants apart.
    pub async fn new(
        config: Arc<Config>,
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
    ) -> Result<Arc<Self>, String> {
        let matcher = Matcher::from_env();
        relays::tell(&config.upstreams, &matcher);
        Self::through(config, ledgers, telemetry, matcher).await
    }

    /// [`Proxy::new`] with the proxies that `matcher` names.
    ///
    /// # Errors
    /// As [`Proxy::new`].
    pub async fn through(
        config: Arc<Config>,
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
        matcher: Matcher,
    ) -> Result<Arc<Self>, String> {
        Self::with_tunnels(config, ledgers, telemetry, matcher, TunnelTimeouts::default()).await
    }

    /// [`Proxy::through`] with other times for quiet tunnels.
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
        let tls = config.tls.as_ref().map(Terminator::new).transpose()?;
        telemetry.begin_at_zero(config.upstreams.iter().map(|upstream| &*upstream.name));
        let memory = MemoryBudget::new(
            config.limits.memory_bytes,
            config.limits.analysis_bytes,
            config.limits.connection_bytes,
            telemetry.clone(),
        );
        let tenant_key = ledgers.tenant_key().await.map_err(|trouble| trouble.to_string())?;
        Ok(Arc::new(Self {
            pool: upstream::Pool::new(&config, matcher, &telemetry, &memory)?,
            tls,
            calibration: Calibration::new(telemetry.clone()),
            compacting: CompactionScheduler::default(),
            counting: CountingEndpoints::default(),
            memory,
            tunnel_timeouts,
            catalogue: Catalogue::new(config.models.clone()),
            credentials: Credentials::new(
                &config.tenant_headers,
                config.client_token.as_ref().map(|token| &*token.0),
            ),
            gate: ClientAccess::new(&config),
            ledgers,
            telemetry,
            tenant_key,
            connections: Arc::new(Semaphore::new(config.limits.connections)),
            turned: Arc::new(Semaphore::new(full::AT_ONCE)),
            exchanges: AtomicUsize::new(0),
            shutdown: watch::channel(false).0,
            ids: AtomicU64::new(0),
            run: getrandom::u64().map_err(|error| error.to_string())?,
            config,
        }))
    }

    /// The upstream of that name.
    fn upstream(&self, name: Option<&str>) -> Option<&Upstream> {
        let name = name?;
        self.config.upstreams.iter().find(|upstream| *upstream.name == *name)
    }

    /// Whether an upstream knows clients apart: by credentials of their own, not by the operator's.
    fn knows_apart(&self, upstream: Option<&str>) -> bool {
        self.upstream(upstream).is_none_or(|upstream| upstream.credential.is_none())
    }

    /// The host of the upstream of that name.
    fn host_of(&self, name: Option<&str>) -> Option<Box<str>> {
        self.upstream(name)?.base.host().map(Into::into)
    }

    /// The policy for requests to an upstream for the model of that name.
    fn policy(&self, upstream: Option<&Upstream>, model: &str) -> Arc<Policy> {
        let named = self.config.compact_models.iter().rev();
        let of_model = named.filter(|(name, _)| is_named(name, model)).map(|(_, over)| over).next();
        let of_upstream = upstream.and_then(|upstream| upstream.compact.as_ref());
        let policy = &self.config.policy;
        let over = of_upstream.into_iter().chain(of_model);
        match over.fold(None, |compact: Option<CompactPolicy>, over| {
            Some(compact.as_ref().unwrap_or(&policy.compact).with(over))
        }) {
            None => policy.clone(),
            Some(compact) => Arc::new(Policy { compact, ..Policy::clone(policy) }),
        }
    }

    /// A new exchange's id, unique among all replicas and restarts.
    fn next_id(&self) -> Box<str> {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(24);
        push_hex(&mut id, self.run, 16);
        push_hex(&mut id, number, 8);
        id.into()
    }
}

/// As `{number:0least$x}` would, in a tenth of the time.
fn push_hex(to: &mut String, number: u64, least: u32) {
    let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(least);
    let digit = |at| char::from_digit((number >> (4 * at)) as u32 & 15, 16);
    to.extend((0..digits).rev().filter_map(digit));
}

/// The time, milliseconds since 1970.
fn now() -> Millis {
    clock::now()
}

/// Serves clients until `shutdown` is ready, then lets streams finish, up to `limits.drain_s`.
pub async fn serve(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> DrainOutcome {
    let (phase, watching) = watch::channel(Phase::Serving);
    // Ends with this, however this ends.
    let mut drafting = JoinSet::new();
    drafting.spawn(drafts::run(proxy.clone()));
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => admit(&proxy, stream, &watching),
                Err(error) => {
                    tracing::warn!("no connection could be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    drop(watching);
    let drained = drain(&proxy, phase).await;
    drop(drafting);
    compaction::finish(&proxy).await;
    drafts::finish(&proxy.ledgers).await;
    drained
}

async fn drain(proxy: &Proxy, phase: watch::Sender<Phase>) -> DrainOutcome {
    let patience = Duration::from_secs(proxy.config.limits.drain_s);
    proxy.shutdown.send_replace(true);
    phase.send_replace(Phase::Draining);
    if tokio::time::timeout(patience, phase.closed()).await.is_ok() {
        return DrainOutcome::Whole;
    }
    let left = proxy.exchanges.load(Ordering::Relaxed);
    phase.send_replace(Phase::Breaking);
    // What ends now still tells of itself and keeps its turn; that takes no long time.
    let _ = tokio::time::timeout(Duration::from_secs(1), phase.closed()).await;
    DrainOutcome::Broken(left)
}

/// Starts a connection, or tells it that there is no room.
fn admit(proxy: &Arc<Proxy>, stream: TcpStream, phase: &watch::Receiver<Phase>) {
    let _ = stream.set_nodelay(true);
    let (proxy, phase) = (proxy.clone(), phase.clone());
    let place = proxy.connections.clone().try_acquire_owned();
    let opened = place.ok().and_then(|place| {
        let place = Arc::new(place);
        let share = proxy.memory.share_of(Arc::downgrade(&place));
        let held = transport::open(&share, proxy.tls.is_some())?;
        Some(AdmittedConnection { share, held, place })
    });
    let Some(opened) = opened else { return full::turn_away(proxy, stream, phase) };
    opened.share.progress().moved();
    tokio::spawn(async move {
        let open = proxy.telemetry.connection();
        connection(proxy, stream, opened, phase).await;
        drop(open);
    });
}

/// A client's connection that has its place, and its memory.
struct AdmittedConnection {
    share: Arc<MemoryShare>,
    held: HeldMemory,
    place: Arc<OwnedSemaphorePermit>,
}

async fn connection(
    proxy: Arc<Proxy>,
    stream: TcpStream,
    opened: AdmittedConnection,
    mut phase: watch::Receiver<Phase>,
) {
    let Some(tls) = &proxy.tls else { return plain(proxy, stream, opened, phase).await };
    let accepting = tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(stream));
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        // Who has not even shaken hands is let go when we drain.
        _ = phase.changed() => return,
    };
    if let Ok(Ok(stream)) = accepted {
        Box::pin(plain(proxy, stream, opened, phase)).await;
    }
}

/// Serves one connection until it ends; graceful from the phase's change on.
async fn plain<S>(
    proxy: Arc<Proxy>,
    mut stream: S,
    opened: AdmittedConnection,
    mut phase: watch::Receiver<Phase>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let AdmittedConnection { share, held, place: _place } = opened;
    let limits = &proxy.config.limits;
    // hyper's own clock begins when it knows which version is spoken: not before the first bytes.
    let mut patience = pin!(tokio::time::sleep(header_time(limits)));
    let mut stalled = pin!(stalled(&share));
    let first = tokio::select! {
        first = opening::read(&mut stream) => first,
        () = patience.as_mut() => {
            proxy.telemetry.client_timed_out(ClientTimeout::Silent);
            return;
        }
        () = stalled.as_mut() => return,
        _ = phase.changed() => return,
    };
    let Ok(first) = first else { return };
    let Some(window) = Http2Window::of(&first, &share, limits) else { return };
    let builder = server(limits, window.bytes);
    let (activity, look_alike) = (Activity::default(), LookAlike::default());
    let (watching, memory) = (phase.clone(), share.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let (under_way, alike) = (activity.begin(), look_alike.clone());
        let version = request.version();
        exchange::run(proxy.clone(), request, memory.clone(), watching.clone()).map(
            move |response| {
                alike.saw(&response);
                Ok::<_, io::Error>(framed(response, version).map(|body| under_way.answer(body)))
            },
        )
    });
    let telling = proxy.clone();
    let refused = move |fault: &ProxyError| exchange::unread(&telling, fault);
    let stream = TokioIo::new(MarkedTransport::new(stream, look_alike.clone(), refused));
    let peer = if first.is_http2 { TransportPeer::Framed } else { TransportPeer::Client };
    let stream = MeteredSocket::new(stream, peer, &share, first.bytes).holding(held);
    let mut serving = pin!(builder.serve_connection_with_upgrades(stream, service));
    // HTTP/2 has no clock of its own.
    let mut idle = pin!(activity.idle(header_time(limits)));
    let mut leaving = false;
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if ended.is_err_and(|error| is_timeout(&*error)) {
                    proxy.telemetry.client_timed_out(timeout_of(&activity));
                }
                return;
            }
            () = stalled.as_mut() => return,
            () = idle.as_mut() => {
                if !leaving {
                    proxy.telemetry.client_timed_out(timeout_of(&activity));
                }
                if leaving || activity.is_silent() {
                    return;
                }
                // What was asked just now is still answered.
                serving.as_mut().graceful_shutdown();
                leaving = true;
                idle.set(activity.idle(LEAVING));
            }
            changed = phase.changed() => {
                if changed.is_err() || *phase.borrow() == Phase::Breaking {
                    return;
                }
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Ready when others need the memory of a connection whose client brings and takes nothing.
async fn stalled(share: &MemoryShare) {
    loop {
        share.budget().short_of_connections().await;
        let patience = share.progress().patience();
        if patience.is_zero() {
            return;
        }
        tokio::time::sleep(patience).await;
    }
}

/// How much of an HTTP/2 connection's bodies may wait, and the memory for it.
struct Http2Window {
    bytes: u32,
    _held: HeldMemory,
}

impl Http2Window {
    /// A window as wide as there is memory for; `None` where there is none even for a narrow one.
    fn of(first: &First, share: &Arc<MemoryShare>, limits: &ServerLimits) -> Option<Self> {
        let mut held = share.guard(MemoryKind::Buffer);
        if !first.is_http2 {
            return Some(Self { bytes: NARROW_WINDOW, _held: held });
        }
        // One request's headers come at a time.
        let headers = limits.header_bytes * 2;
        if held.hold(WIDE_WINDOW as usize + headers) {
            return Some(Self { bytes: WIDE_WINDOW, _held: held });
        }
        let mut held = share.guard(MemoryKind::Connection);
        let is_held = held.hold(NARROW_WINDOW as usize + headers);
        is_held.then_some(Self { bytes: NARROW_WINDOW, _held: held })
    }
}

/// What the client of a connection took too long for, on which nothing is under way.
fn timeout_of(activity: &Activity) -> ClientTimeout {
    if activity.is_silent() { ClientTimeout::Silent } else { ClientTimeout::Idle }
}

/// Whether a connection ended because a request's headers did not come.
fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_timeout)
}

/// How long a request's headers may take to come.
fn header_time(limits: &ServerLimits) -> Duration {
    Duration::from_secs(limits.header_s)
}

/// HTTP/1.1 or HTTP/2, whichever the client speaks first.
fn server(limits: &ServerLimits, window: u32) -> auto::Builder<TokioExecutor> {
    let header_bytes = limits.header_bytes;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .preserve_header_case(true)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(header_time(limits))
        .max_headers(header_bytes.div_ceil(LEAST_HEADER))
        .max_buf_size(BUFFER.max(header_bytes * 2));
    builder
        .http2()
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW.min(window))
        .initial_connection_window_size(window)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(header_bytes * 2).unwrap_or(u32::MAX));
    builder
}

#[cfg(test)]
mod tests;
