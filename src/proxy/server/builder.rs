//! The settings for serving HTTP/1.1 and HTTP/2: limits of headers, streams, and buffered data.
//!
//! They bound what a connection holds, whatever its client does.

use std::time::Duration;

use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto;

use crate::config::ServerLimits;
use crate::proxy::http::transport::{BUFFER, READ};

/// Streams that a client may have at once on an HTTP/2 connection.
const STREAMS: u32 = 1000;
/// Most bytes of a request that are buffered for a slow upstream, per HTTP/2 stream.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all streams of a connection. h2 takes the more small frames at once the wider it is: with 256 KiB it
/// closed a connection with 1,000 small requests.
pub(super) const WIDE_WINDOW: u32 = 1024 * 1024;
/// The same past the connections that may have a wide one: HTTP/2 has no smaller window.
pub(super) const NARROW_WINDOW: u32 = 65_535;
/// Most bytes of a response that are buffered for a slow client, per HTTP/2 stream.
const SEND_BUFFER: usize = 64 * 1024;

pub(super) fn header_time(limits: &ServerLimits) -> Duration {
    Duration::from_secs(limits.header_s)
}

pub(super) fn server(limits: &ServerLimits, window: u32) -> auto::Builder<TokioExecutor> {
    let header_bytes = limits.header_bytes;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .preserve_header_case(true)
        .auto_date_header(false)
        // Ours is for both versions, and needs no timer per request (`Activity::idle`).
        .header_read_timeout(None)
        .max_buf_size(BUFFER.max(header_bytes + READ));
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
