//! Refuses connections if there is no room: with a 503, or by closing; both are counted.
//!
//! A few at a time get a normal response, also with TLS. Past those, a request that has already arrived gets
//! a response without a task of its own; a connection without one is closed.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::builder::{NARROW_WINDOW, server};
use crate::proxy::exchange;
use crate::proxy::http::answer::ProxyError;
use crate::proxy::state::exchange_recorder::unread_response;
use crate::proxy::state::{Proxy, ServingPhase};
use crate::telemetry::RejectedConnection;
use crate::tls::TlsTerminator;

/// How long a refused connection may take to send its request and read the response.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most bytes of a request that are read before its connection is closed: closing it with unread data would
/// discard the response.
const UNREAD: usize = 16 * 1024;

pub(super) fn refuse(proxy: Arc<Proxy>, stream: TcpStream, phase: watch::Receiver<ServingPhase>) {
    let Ok(permit) = proxy.rejection_permits.clone().try_acquire_owned() else {
        // Without a permit there is no task: a TLS client is only closed.
        let is_answered = proxy.tls.is_none() && reject(&proxy, stream).is_ok();
        proxy.telemetry.connection_refused(if is_answered {
            RejectedConnection::Answered
        } else {
            RejectedConnection::Closed
        });
        return;
    };
    tokio::spawn(async move {
        let is_answered = Arc::new(AtomicBool::new(false));
        let answering = answer(&proxy, stream, phase, is_answered.clone());
        let _ = tokio::time::timeout(TIMEOUT, answering).await;
        let got = if is_answered.load(Ordering::Relaxed) {
            RejectedConnection::Answered
        } else {
            RejectedConnection::Closed
        };
        proxy.telemetry.connection_refused(got);
        drop(permit);
    });
}

/// Responds to a request that has already arrived; an error if there is none.
fn reject(proxy: &Proxy, stream: TcpStream) -> io::Result<()> {
    // The socket is non-blocking.
    let mut stream = stream.into_std()?;
    // Closing with unread data would discard the response.
    let mut unread = [0; UNREAD];
    if stream.read(&mut unread)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.write_all(&unread_response(proxy, &ProxyError::TooManyConnections))?;
    stream.shutdown(Shutdown::Write)
}

async fn answer(
    proxy: &Arc<Proxy>,
    stream: TcpStream,
    phase: watch::Receiver<ServingPhase>,
    is_answered: Arc<AtomicBool>,
) {
    let builder = server(&proxy.config.limits, NARROW_WINDOW);
    let tls = proxy.tls.as_ref().map(TlsTerminator::acceptor);
    let service = service_fn(move |request: Request<Incoming>| {
        is_answered.store(true, Ordering::Relaxed);
        let answer =
            exchange::refuse_connection(proxy, &request, phase.clone()).map(Full::<Bytes>::new);
        async move { Ok::<Response<_>, io::Error>(answer) }
    });
    match tls {
        None => drop(builder.serve_connection(TokioIo::new(stream), service).await),
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                drop(builder.serve_connection(TokioIo::new(stream), service).await);
            }
        }
    }
}
