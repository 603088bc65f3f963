//! The settings for serving HTTP/1.1 and HTTP/2: limits of headers, streams, and buffered data.
//!
//! Memory for windows is reserved first; without memory even for a narrow window, the connection is refused.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;

use crate::config::ServerLimits;
use crate::proxy::http::memory::{HeldMemory, MemoryShare};
use crate::proxy::http::opening::ConnectionOpening;
use crate::proxy::http::transport::{BUFFER, MOST_HEADERS};
use crate::telemetry::MemoryKind;
use crate::wire::memory::Memory as _;

/// Streams that a client may have at once on an HTTP/2 connection.
const STREAMS: u32 = 1000;
/// Most bytes of a request that are buffered for a slow upstream, per HTTP/2 stream.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all streams of a connection, if there is memory for it.
const WIDE_WINDOW: u32 = 1024 * 1024;
/// The same if there is not: HTTP/2 has no smaller window.
pub(super) const NARROW_WINDOW: u32 = 65_535;
/// Most bytes of a response that are buffered for a slow client, per HTTP/2 stream.
const SEND_BUFFER: usize = 64 * 1024;

/// The window of an HTTP/2 connection for bodies, with its memory.
pub(super) struct Http2Window {
    pub(super) bytes: u32,
    _held: HeldMemory,
}

impl Http2Window {
    /// The widest window that there is memory for; `None` if there is not enough for a narrow one.
    pub(super) fn of(
        first: &ConnectionOpening,
        share: &Arc<MemoryShare>,
        limits: &ServerLimits,
    ) -> Option<Self> {
        let mut held = share.guard(MemoryKind::Buffer);
        if !first.is_http2 {
            return Some(Self { bytes: NARROW_WINDOW, _held: held });
        }
        // The headers of one request are received at a time.
        let headers = limits.header_bytes * 2;
        if held.hold(WIDE_WINDOW as usize + headers) {
            return Some(Self { bytes: WIDE_WINDOW, _held: held });
        }
        let mut held = share.guard(MemoryKind::Connection);
        let is_held = held.hold(NARROW_WINDOW as usize + headers);
        is_held.then_some(Self { bytes: NARROW_WINDOW, _held: held })
    }
}

/// How long a request's headers may take to arrive.
pub(super) fn header_time(limits: &ServerLimits) -> Duration {
    Duration::from_secs(limits.header_s)
}

/// HTTP/1.1 or HTTP/2, depending on the client's first bytes.
pub(super) fn server(limits: &ServerLimits, window: u32) -> auto::Builder<TokioExecutor> {
    let header_bytes = limits.header_bytes;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .preserve_header_case(true)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(header_time(limits))
        .max_headers(MOST_HEADERS)
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
