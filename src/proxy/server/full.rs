//! No room for another connection: it hears 503, or is closed, and is counted either way.
//!
//! A few at once are answered like any other, TLS included. Past those, what has been asked already is
//! answered without a task of its own; what has not asked yet is closed.

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
use crate::proxy::state::{Proxy, ServingPhase};
use crate::telemetry::RejectedConnection;
use crate::tls::TlsTerminator;

/// How long a connection past the limit may take to ask and hear that it is turned away.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most bytes of a request that are taken off a socket before it is closed: closing with some unread
/// takes the answer away again.
const UNREAD: usize = 16 * 1024;
/// The answer where no task can be spent on it.
const ANSWER: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nx-plimsoll-error: too_many_connections\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Turns a connection away, and counts what it got.
pub(super) fn turn_away(
    proxy: Arc<Proxy>,
    stream: TcpStream,
    phase: watch::Receiver<ServingPhase>,
) {
    let Ok(permit) = proxy.turned.clone().try_acquire_owned() else {
        let is_told = proxy.tls.is_none() && stream.into_std().and_then(tell).is_ok();
        proxy.telemetry.turned_away(if is_told {
            RejectedConnection::Answered
        } else {
            RejectedConnection::Closed
        });
        return;
    };
    tokio::spawn(async move {
        let is_told = Arc::new(AtomicBool::new(false));
        let answering = answer(&proxy, stream, phase, is_told.clone());
        let _ = tokio::time::timeout(TIMEOUT, answering).await;
        let got = if is_told.load(Ordering::Relaxed) {
            RejectedConnection::Answered
        } else {
            RejectedConnection::Closed
        };
        proxy.telemetry.turned_away(got);
        drop(permit);
    });
}

/// Answers what has been asked already; an error where nothing has. The socket does not block.
fn tell(mut stream: std::net::TcpStream) -> io::Result<()> {
    let mut asked = [0; UNREAD];
    if stream.read(&mut asked)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.write_all(ANSWER)?;
    stream.shutdown(Shutdown::Write)
}

/// Answers 503 to whatever is asked first.
async fn answer(
    proxy: &Arc<Proxy>,
    stream: TcpStream,
    phase: watch::Receiver<ServingPhase>,
    is_told: Arc<AtomicBool>,
) {
    let builder = server(&proxy.config.limits, NARROW_WINDOW);
    let tls = proxy.tls.as_ref().map(TlsTerminator::acceptor);
    let service = service_fn(move |request: Request<Incoming>| {
        is_told.store(true, Ordering::Relaxed);
        let answer = exchange::turned(proxy, &request, phase.clone()).map(Full::<Bytes>::new);
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
