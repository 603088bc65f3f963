//! The body of a response as the server sends it: our own, or an upstream's in a tap.
//!
//! If it is dropped before its end, its client has left.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;

use super::tap::Tap;
use crate::proxy::http::arriving::ConnectionError;
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::pieces::SendWindow;

/// A response body of our own, or an upstream's in a tap.
pub(crate) enum ResponseBody {
    /// Our own body.
    Ours(Option<Bytes>),
    /// An upstream's, and the window for its unsent pieces.
    Tapped(Box<Tap<OutgoingBody>>, SendWindow),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        match self.get_mut() {
            ResponseBody::Ours(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            ResponseBody::Tapped(tap, window) => {
                ready!(window.poll_ready(cx));
                let frame = ready!(Pin::new(tap.as_mut()).poll_frame(cx));
                Poll::Ready(
                    frame.map(|frame| frame.map(|frame| frame.map_data(|data| window.pass(data)))),
                )
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Ours(bytes) => bytes.is_none(),
            ResponseBody::Tapped(tap, _) => tap.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Ours(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            ResponseBody::Tapped(tap, _) => tap.size_hint(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // A client may leave at the finish reason. The usage that we asked for comes after it, and is still
        // read.
        let ResponseBody::Tapped(tap, _) = self else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        if !tap.awaits_usage() {
            return;
        }
        let mut body = std::mem::replace(self, ResponseBody::Ours(None));
        runtime.spawn(async move {
            if let ResponseBody::Tapped(tap, _) = &mut body {
                tap.read_usage().await;
            }
        });
    }
}
