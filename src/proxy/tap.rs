//! The tap: the response body as the client gets it, watched as it passes.
//!
//! Every frame leaves at once, the same and in order, trailers and errors included (invariant 5).
//! Knows exactly one ending: complete, upstream failed, or client left, also on drop. Nothing that
//! is learned from a body may fail it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::account::Account;
use super::upstream::Trouble;
use crate::context::Outcome;

/// A response body of ours, or an upstream's under the tap.
pub enum Answer {
    /// Our own words.
    Ours(Option<Bytes>),
    /// An upstream's.
    Tapped(Box<Tap>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Trouble;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Trouble>>> {
        match self.get_mut() {
            Answer::Ours(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Answer::Tapped(tap) => Pin::new(tap.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Ours(bytes) => bytes.is_none(),
            Answer::Tapped(tap) => tap.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Ours(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Answer::Tapped(tap) => tap.size_hint(),
        }
    }
}

/// An upstream's response body on its way to the client.
pub struct Tap {
    inner: Incoming,
    account: Account,
    /// How it ends if it is only passed on: refused, or complete.
    whole: Outcome,
}

impl Tap {
    pub(crate) fn new(inner: Incoming, mut account: Account, whole: Outcome) -> Self {
        if inner.is_end_stream() {
            account.event.outcome = whole;
        }
        Self { inner, account, whole }
    }

    fn saw(&mut self, data: &Bytes) {
        let event = &mut self.account.event;
        event.first_byte_us.get_or_insert_with(|| super::account::micros(self.account.began));
        event.frames += 1;
        event.response_bytes += data.len() as u64;
    }
}

impl Body for Tap {
    type Data = Bytes;
    type Error = Trouble;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Trouble>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.saw(data);
                }
                if this.inner.is_end_stream() {
                    this.account.event.outcome = this.whole;
                }
            }
            Some(Err(_)) => this.account.event.outcome = Outcome::UpstreamFailed,
            None => this.account.event.outcome = this.whole,
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
