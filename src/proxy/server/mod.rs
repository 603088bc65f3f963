//! Accepts clients' connections, serves each until it ends, and drains them at shutdown.
//!
//! One task per connection. Connections past the limit are refused; if memory is short, stalled ones are
//! closed.

mod builder;
mod full;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;

use self::builder::{Http2Window, header_time, server};
use super::compaction::context as compaction;
use super::exchange;
use super::http::answer::ProxyError;
use super::http::arriving::{ArrivingBody, ClientBody, ClientConnection, UnreadRest};
use super::http::framing::{LookAlike, RefusalReplacer, framed};
use super::http::memory::{HeldMemory, MemoryShare};
use super::http::transport::{MeteredSocket, TransportPeer};
use super::http::{opening, transport};
use super::state::exchange_recorder::non_http_response;
use super::state::{Proxy, ServingPhase};
use super::turn::drafts;
use crate::activity::Activity;
use crate::telemetry::ClientTimeout;

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an idle HTTP/2 connection may take to close after it was told to.
const LEAVING: Duration = Duration::from_secs(1);
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

/// Serves clients until `shutdown` is ready, then lets streams finish, up to `limits.drain_s`.
pub async fn serve(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> DrainOutcome {
    let (phase, watching) = watch::channel(ServingPhase::Serving);
    // Ends when this function ends.
    let mut drafting = JoinSet::new();
    drafting.spawn(drafts::run(proxy.clone()));
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => admit(&proxy, stream, &watching),
                Err(error) => {
                    tracing::warn!(
                        "a client's connection could not be accepted: {error}. If too many files are open, raise \
                         the limit (ulimit -n)"
                    );
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

async fn drain(proxy: &Proxy, phase: watch::Sender<ServingPhase>) -> DrainOutcome {
    let timeout = Duration::from_secs(proxy.config.limits.drain_s);
    proxy.shutdown.send_replace(true);
    phase.send_replace(ServingPhase::Draining);
    if tokio::time::timeout(timeout, phase.closed()).await.is_ok() {
        return DrainOutcome::Whole;
    }
    let left = proxy.exchanges.load(Ordering::Relaxed);
    phase.send_replace(ServingPhase::Breaking);
    // Exchanges that end now still emit their event and store their turn, which is quick.
    let _ = tokio::time::timeout(Duration::from_secs(1), phase.closed()).await;
    DrainOutcome::Broken(left)
}

/// Starts a connection, or refuses it if there is no room.
fn admit(proxy: &Arc<Proxy>, stream: TcpStream, phase: &watch::Receiver<ServingPhase>) {
    let _ = stream.set_nodelay(true);
    let (proxy, phase) = (proxy.clone(), phase.clone());
    let permit = proxy.connections.clone().try_acquire_owned();
    let admitted = permit.ok().and_then(|permit| {
        let permit = Arc::new(permit);
        let share = proxy.memory.share_of(Arc::downgrade(&permit));
        let held = transport::reserve(&share, proxy.tls.is_some())?;
        Some(AdmittedConnection { share, held, permit })
    });
    let Some(admitted) = admitted else { return full::refuse(proxy, stream, phase) };
    admitted.share.progress().record_activity();
    tokio::spawn(async move {
        let open = proxy.telemetry.connection();
        connection(proxy, stream, admitted, phase).await;
        drop(open);
    });
}

/// A client's connection with its permit and its memory.
struct AdmittedConnection {
    share: Arc<MemoryShare>,
    held: HeldMemory,
    permit: Arc<OwnedSemaphorePermit>,
}

async fn connection(
    proxy: Arc<Proxy>,
    stream: TcpStream,
    admitted: AdmittedConnection,
    mut phase: watch::Receiver<ServingPhase>,
) {
    let Some(tls) = &proxy.tls else {
        return serve_connection(proxy, stream, admitted, phase).await;
    };
    let accepting = tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(stream));
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        // A connection without a completed handshake is dropped in a drain.
        _ = phase.changed() => return,
    };
    if let Ok(Ok(stream)) = accepted {
        Box::pin(serve_connection(proxy, stream, admitted, phase)).await;
    }
}

/// Serves one connection until it ends; shuts it down gracefully when the phase changes.
async fn serve_connection<S>(
    proxy: Arc<Proxy>,
    mut stream: S,
    admitted: AdmittedConnection,
    mut phase: watch::Receiver<ServingPhase>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let AdmittedConnection { share, held, permit: _permit } = admitted;
    let limits = &proxy.config.limits;
    // hyper's own timeout starts once it knows the HTTP version, which needs the first bytes.
    let mut timeout = pin!(tokio::time::sleep(header_time(limits)));
    let mut stalled = pin!(stalled(&share));
    let first = tokio::select! {
        first = opening::read(&mut stream) => first,
        () = timeout.as_mut() => {
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
    let refusing = proxy.clone();
    let refusal = move |fault: &ProxyError| non_http_response(&refusing, fault);
    let stream = TokioIo::new(RefusalReplacer::new(stream, look_alike.clone(), refusal));
    let peer = if first.is_http2 { TransportPeer::Framed } else { TransportPeer::Client };
    let stream = MeteredSocket::new(stream, peer, &share, first.bytes).holding(held);
    let stall = Duration::from_secs(limits.body_s);
    let buffers = stream.read_buffers();
    let connection = ClientConnection { memory: share.clone(), buffers, stall };
    let service = service_fn(|request: Request<Incoming>| {
        let (request_guard, framing_probe) = (activity.begin(), look_alike.clone());
        let version = request.version();
        let request = request.map(|body| ClientBody::new(ArrivingBody::new(body, version)));
        let rest = UnreadRest::new(request.body(), &connection);
        exchange::run(proxy.clone(), request, memory.clone(), watching.clone()).map(
            move |response| {
                framing_probe.record(&response);
                let response = framed(response, version, rest);
                Ok::<_, io::Error>(response.map(|body| request_guard.answer(body)))
            },
        )
    });
    let mut serving = pin!(builder.serve_connection_with_upgrades(stream, service));
    // hyper has no such timeout for HTTP/2.
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
                // Requests that have just arrived are still served.
                serving.as_mut().graceful_shutdown();
                leaving = true;
                idle.set(activity.idle(LEAVING));
            }
            changed = phase.changed() => {
                if changed.is_err() || *phase.borrow() == ServingPhase::Breaking {
                    return;
                }
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Ready when others need the memory of a connection whose client neither sends nor reads.
async fn stalled(share: &MemoryShare) {
    loop {
        share.needed().await;
        let timeout = share.progress().time_left();
        if timeout.is_zero() {
            return;
        }
        tokio::time::sleep(timeout).await;
    }
}

/// Which timeout the client of an idle connection exceeded.
fn timeout_of(activity: &Activity) -> ClientTimeout {
    if activity.is_silent() { ClientTimeout::Silent } else { ClientTimeout::Idle }
}

/// Whether a connection ended because a request's headers did not arrive.
fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_timeout)
}
