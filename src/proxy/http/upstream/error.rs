//! Why there is no response of an upstream, in words that name the cause.
//!
//! Says whether it was too slow or failed; never what was sent.

use std::error::Error;
use std::io;

use crate::telemetry::RepeatCause;

/// Why there is no response of an upstream.
#[derive(Clone, Debug)]
pub(crate) enum UpstreamError {
    /// The client aborted the request's body.
    RequestBroken,
    /// It accepted no connection in time, or had no free stream.
    TooSlow(String),
    /// It was unreachable, or failed before its headers.
    Failed(String),
    /// It gave one, but Plimsoll no longer has it: a mistake of ours.
    ResponseLost,
}

/// Classifies an error of a connection, with all its causes.
pub(super) fn unanswered(error: &(dyn Error + 'static)) -> UpstreamError {
    let mut message = String::new();
    let mut slow = false;
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        // The body that hyper was given failed, and that body is the client's.
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user) {
            return UpstreamError::RequestBroken;
        }
        slow |= kind == Some(io::ErrorKind::TimedOut);
        let more = error.to_string();
        // Many errors repeat the text of their cause at the end.
        if message.is_empty() {
            message = more;
        } else if !message.ends_with(&more) {
            message = format!("{message}: {more}");
        }
        cause = error.source();
    }
    if slow { UpstreamError::TooSlow(message) } else { UpstreamError::Failed(message) }
}

/// Whether the peer certainly did not process this request: it sent REFUSED_STREAM, or GOAWAY with an earlier
/// stream (RFC 9113, 8.7).
pub(super) fn unprocessed(error: &hyper::Error) -> Option<RepeatCause> {
    let error = error.source()?.downcast_ref::<h2::Error>()?;
    // An error of our own side says nothing about the peer.
    match error.reason() {
        _ if !error.is_remote() => None,
        _ if error.is_go_away() => Some(RepeatCause::WentAway),
        Some(h2::Reason::REFUSED_STREAM) => Some(RepeatCause::RefusedStream),
        _ => None,
    }
}
