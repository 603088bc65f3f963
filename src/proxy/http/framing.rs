//! Corrects messages that hyper writes in its own way.
//!
//! To data that is not a request, hyper responds by itself with a bare status: here one of ours is written
//! instead. A 304 keeps its declared length. Must not change a byte of any other message.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::answer::{ERROR, ProxyError};
use super::arriving::UnreadRest;

/// The responses that hyper makes itself: their first lines; [`BARE_REST`] follows each.
const BARE: [(&[u8], ProxyError); 3] = [
    (b"HTTP/1.1 400 Bad Request\r\n", ProxyError::Malformed),
    (b"HTTP/1.1 414 URI Too Long\r\n", ProxyError::TargetTooLong),
    (b"HTTP/1.1 431 Request Header Fields Too Large\r\n", ProxyError::HeadersTooLarge),
];
const BARE_REST: &[u8] = b"connection: close\r\ncontent-length: 0\r\n\r\n";

/// Whether the last response on a connection looks like one of hyper's own, although it is an upstream's.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookAlike(Arc<AtomicBool>);

impl LookAlike {
    pub(crate) fn record<B>(&self, response: &Response<B>) {
        let is_alike = BARE.iter().any(|(_, fault)| fault.status() == response.status());
        let is_ours = response.headers().contains_key(ERROR);
        self.0.store(is_alike && !is_ours, Ordering::Relaxed);
    }
}

/// A client's connection on which hyper's own refusals are replaced by ours, of which `refusal` makes the bytes.
pub(crate) struct RefusalReplacer<S, F> {
    stream: S,
    look_alike: LookAlike,
    refusal: F,
    /// What is written instead of hyper's bytes.
    instead: Bytes,
}

impl<S, F: FnMut(&ProxyError) -> Bytes> RefusalReplacer<S, F> {
    pub(crate) fn new(stream: S, look_alike: LookAlike, refusal: F) -> Self {
        Self { stream, look_alike, refusal, instead: Bytes::new() }
    }

    /// Replaces `bytes` by our response if they are one of hyper's.
    fn replace(&mut self, bytes: &[u8]) -> bool {
        let Some(line) = bytes.strip_suffix(BARE_REST) else { return false };
        // An upstream's response of the same bytes is passed on.
        if self.look_alike.0.load(Ordering::Relaxed) {
            return false;
        }
        let Some((_, fault)) = BARE.iter().find(|(bare, _)| line == *bare) else { return false };
        self.instead = (self.refusal)(fault);
        true
    }
}

impl<S: AsyncWrite + Unpin, F> RefusalReplacer<S, F> {
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.instead))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.instead.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin, F: Unpin> AsyncRead for RefusalReplacer<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S, F> AsyncWrite for RefusalReplacer<S, F>
where
    S: AsyncWrite + Unpin,
    F: FnMut(&ProxyError) -> Bytes + Unpin,
{
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_instead(cx))?;
        if this.replace(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut this.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_instead(cx))?;
        if let [only] = slices
            && this.replace(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        Pin::new(&mut this.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_instead(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_instead(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

/// A response's body that can hide its length from hyper. With it ends the interest in its request's body.
pub(crate) struct FramedBody<B> {
    body: B,
    keeps_length: bool,
    _rest: UnreadRest,
}

pub(crate) fn framed<B>(
    response: Response<B>,
    version: Version,
    rest: UnreadRest,
) -> Response<FramedBody<B>> {
    // Hyper removes the length from a 304 unless the body's own length is unknown, and never sends a body with
    // it.
    let keeps_length = version <= Version::HTTP_11
        && response.status() == StatusCode::NOT_MODIFIED
        && response.headers().contains_key(CONTENT_LENGTH);
    response.map(|body| FramedBody { body, keeps_length, _rest: rest })
}

impl<B: Body + Unpin> Body for FramedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        !self.keeps_length && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.keeps_length { SizeHint::default() } else { self.body.size_hint() }
    }
}
