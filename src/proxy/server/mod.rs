//! Accepts clients' connections, serves each until it ends, and drains them at shutdown.
//!
//! One task per connection. Past the limit, new ones wait in the kernel's queue for a moment; then they are refused.

mod builder;
mod full;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::builder::{NARROW_WINDOW, WIDE_WINDOW, header_time, server};
use super::compaction::compact as compaction;
use super::exchange::{self, drop_credentials};
use super::http::arriving::{ArrivingBody, ClientBody, UnreadRest};
use super::http::connection::ClientConnection;
use super::http::framing::{LookAlike, RefusalReplacer, framed};
use super::http::opening;
use super::http::transport::{ConnectionSocket, ReadSize};
use super::state::exchange_recorder::non_http_response;
use super::state::{Proxy, ServingPhase};
use super::turn::drafts;
use crate::activity::Activity;
use crate::telemetry::ClientTimeout;

/// How long new connections wait in the kernel's queue while all permits are in use.
const FULL: Duration = Duration::from_secs(1);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an idle HTTP/2 connection may take to close after it was told to.
const LEAVING: Duration = Duration::from_secs(1);
/// How long after the signal to end new connections are accepted, and idle HTTP/1.1 connections stay open. Clients are told
/// meanwhile, so that no request meets a connection that closes.
const GRACE: Duration = Duration::from_secs(3);
/// Pause after the system failed to accept a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Every stream finished.
    Whole,
    /// The deadline (`limits.drain_s`) ended this many exchanges.
    Broken(usize),
}

/// Serves clients until `shutdown` is ready, then lets them leave and streams finish, up to `limits.drain_s`.
pub async fn serve(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> DrainOutcome {
    // Each connection watches it, so that it tells when all have ended.
    let phase = watch::Sender::new(ServingPhase::Serving);
    // Ends when this function ends.
    let mut background = JoinSet::new();
    background.spawn(drafts::run(proxy.clone()));
    let ledgers = proxy.ledgers.clone();
    background.spawn(async move { match ledgers.follow_caps().await {} });
    let ledgers = proxy.ledgers.clone();
    background.spawn(async move { match drop_credentials(&ledgers).await {} });
    tokio::select! {
        () = shutdown => {}
        never = accept_all(&proxy, &listener, &phase) => match never {}
    }
    let deadline = Instant::now() + Duration::from_secs(proxy.config.limits.drain_s);
    phase.send_replace(ServingPhase::Leaving);
    let leaving = tokio::time::timeout_at(deadline.min(Instant::now() + GRACE), phase.closed());
    tokio::select! {
        _ = leaving => {}
        never = accept_all(&proxy, &listener, &phase) => match never {}
    }
    // From here on, new clients are refused by the system, and can go elsewhere.
    drop(listener);
    let outcome = drain(&proxy, phase, deadline).await;
    drop(background);
    compaction::finish(&proxy).await;
    drafts::finish(&proxy.ledgers).await;
    outcome
}

async fn accept_all(
    proxy: &Arc<Proxy>,
    listener: &TcpListener,
    phase: &watch::Sender<ServingPhase>,
) -> Infallible {
    let mut is_full = false;
    loop {
        match accept(proxy, listener, is_full).await {
            Ok((stream, permit)) => {
                is_full = permit.is_none();
                admit(proxy, stream, permit, phase.subscribe());
            }
            Err(error) => {
                tracing::warn!(
                    "a client's connection could not be accepted: {error}. If too many files are open, raise \
                     the limit (ulimit -n)"
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The next connection, with its permit if there is one.
async fn accept(
    proxy: &Proxy,
    listener: &TcpListener,
    is_full: bool,
) -> io::Result<(TcpStream, Option<OwnedSemaphorePermit>)> {
    let permits = &proxy.connections;
    // While there is no permit, new connections wait in the kernel's queue, where nobody hears why: so if that
    // lasted a moment (`is_full`), they are taken without one, to be refused.
    let waited = match is_full {
        true => None,
        false => tokio::time::timeout(FULL, permits.clone().acquire_owned()).await.ok(),
    };
    let (stream, _) = listener.accept().await?;
    let permit = match waited {
        Some(permit) => permit.ok(),
        None => permits.clone().try_acquire_owned().ok(),
    };
    Ok((stream, permit))
}

async fn drain(
    proxy: &Proxy,
    phase: watch::Sender<ServingPhase>,
    deadline: Instant,
) -> DrainOutcome {
    proxy.shutdown.send_replace(true);
    phase.send_replace(ServingPhase::Draining);
    if tokio::time::timeout_at(deadline, phase.closed()).await.is_ok() {
        return DrainOutcome::Whole;
    }
    let broken = proxy.exchanges.load(Ordering::Relaxed);
    phase.send_replace(ServingPhase::Breaking);
    // Exchanges that end now still emit their event and store their turn, which is quick.
    let _ = tokio::time::timeout(Duration::from_secs(1), phase.closed()).await;
    DrainOutcome::Broken(broken)
}

fn admit(
    proxy: &Arc<Proxy>,
    stream: TcpStream,
    permit: Option<OwnedSemaphorePermit>,
    phase: watch::Receiver<ServingPhase>,
) {
    // Small events of a stream go out at once.
    let _ = stream.set_nodelay(true);
    let proxy = proxy.clone();
    let Some(permit) = permit else { return full::refuse(proxy, stream, phase) };
    let number = proxy.connections_so_far.fetch_add(1, Ordering::Relaxed) + 1;
    tokio::spawn(async move {
        let open = proxy.telemetry.connection();
        let permit = Arc::new(permit);
        let client = Arc::new(ClientConnection::new(number, &permit));
        connection(proxy, stream, client, phase).await;
        drop((open, permit));
    });
}

async fn connection(
    proxy: Arc<Proxy>,
    stream: TcpStream,
    client: Arc<ClientConnection>,
    mut phase: watch::Receiver<ServingPhase>,
) {
    let Some(tls) = &proxy.tls else {
        return serve_connection(proxy, stream, client, phase).await;
    };
    let accepting = tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(stream));
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        // A connection without a completed handshake is dropped in a drain.
        () = draining(&mut phase) => return,
    };
    if let Ok(Ok(stream)) = accepted {
        Box::pin(serve_connection(proxy, stream, client, phase)).await;
    }
}

async fn serve_connection<S>(
    proxy: Arc<Proxy>,
    mut stream: S,
    client: Arc<ClientConnection>,
    mut phase: watch::Receiver<ServingPhase>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &proxy.config.limits;
    // hyper's own timeout starts once it knows the HTTP version, which needs the first bytes.
    let mut timeout = pin!(tokio::time::sleep(header_time(limits)));
    let opening = tokio::select! {
        opening = opening::read(&mut stream) => opening,
        () = timeout.as_mut() => {
            proxy.telemetry.client_timed_out(ClientTimeout::Silent);
            return;
        }
        () = draining(&mut phase) => return,
    };
    let Ok(opening) = opening else { return };
    // Held until the connection ends.
    let wide_window = match opening.is_http2 {
        true => proxy.wide_windows.clone().try_acquire_owned().ok(),
        false => None,
    };
    let window = if wide_window.is_some() { WIDE_WINDOW } else { NARROW_WINDOW };
    let builder = server(limits, window);
    let activity = Activity::default();
    let look_alike = LookAlike::default();
    let watching = phase.clone();
    let refusing = proxy.clone();
    let stream = RefusalReplacer::new(stream, look_alike.clone(), move |fault| {
        non_http_response(&refusing, fault)
    });
    let reads = ReadSize::default();
    let stream = ConnectionSocket::of_client(TokioIo::new(stream), opening.bytes, reads.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let request_guard = activity.begin();
        let framing_probe = look_alike.clone();
        let version = request.version();
        let request =
            request.map(|body| ClientBody::new(ArrivingBody::new(body, version), reads.clone()));
        let rest = UnreadRest::new(request.body(), Duration::from_secs(limits.body_s));
        let phase = watching.clone();
        exchange::run(proxy.clone(), request, client.clone(), watching.clone()).map(
            move |mut response| {
                framing_probe.record(&response);
                // Said with the response, so that no other request is on its way when the connection closes.
                if *phase.borrow() == ServingPhase::Leaving {
                    end_after(&mut response, version);
                }
                let response = framed(response, version, rest);
                Ok::<_, io::Error>(response.map(|body| request_guard.answer(body)))
            },
        )
    });
    let mut serving = pin!(builder.serve_connection_with_upgrades(stream, service));
    let mut idle = pin!(activity.idle(header_time(limits)));
    let mut leaving = false;
    loop {
        tokio::select! {
            _ = serving.as_mut() => return,
            () = idle.as_mut() => {
                if !leaving {
                    proxy.telemetry.client_timed_out(timeout_of(&activity));
                }
                if leaving || activity.is_silent() {
                    return;
                }
                // Requests that have just arrived are still served.
                serving.as_mut().graceful_shutdown();
                leaving = true;
                idle.set(activity.idle(LEAVING));
            }
            changed = phase.changed() => {
                let phase = *phase.borrow_and_update();
                if changed.is_err() || phase == ServingPhase::Breaking {
                    return;
                }
                // hyper would close an idle HTTP/1.1 connection, to which a request may be on its way.
                if phase == ServingPhase::Draining || opening.is_http2 {
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

fn end_after<B>(response: &mut Response<B>, version: Version) {
    // Over HTTP/2 a frame of its own says so.
    if version <= Version::HTTP_11 {
        let headers = response.headers_mut();
        headers.entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
    }
}

async fn draining(phase: &mut watch::Receiver<ServingPhase>) {
    drop(phase.wait_for(|phase| *phase >= ServingPhase::Draining).await);
}

fn timeout_of(activity: &Activity) -> ClientTimeout {
    if activity.is_silent() { ClientTimeout::Silent } else { ClientTimeout::Idle }
}
