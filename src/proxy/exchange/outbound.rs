//! Sends a request, and retries it if its provider refuses it (`docs/rewriting.md` "Rules for every
//! rewrite").
//!
//! A refusal that may lead to a retry is read before any byte of it is forwarded (`retry`). Any other is
//! forwarded as the provider wrote it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, request};

use super::live_exchange::Planned;
use super::original_request::{OriginalRequest, send};
use super::retry::Retry;
use crate::context::attempt::RequestForm;
use crate::dialect::status::{blames_request, may_not_fit};
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::plan::added_option::AddedOptionKind;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;

/// A smaller body has nothing that could be cut to make room, bytes.
const WORTH_BYTES: usize = 2048;

impl Planned {
    /// The request as it is sent with this plan.
    pub(super) fn outbound(
        &mut self,
        head: Arc<request::Parts>,
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    ) -> (request::Parts, OutgoingBody) {
        let mut original = OriginalRequest::new(head, bytes, trailers);
        let placed = self.placed.as_deref();
        let planned = placed.map(|placed| &placed.planned).or(self.count.as_deref());
        let Some(planned) = planned else { return original.into_untouched() };
        original.plain = planned.prepared.body.clone();
        original.added.clone_from(&planned.prepared.added);
        let may_repair = placed.is_some_and(PlacedRequest::may_repair);
        // It could only be sent again as it is: nothing of it has to be kept.
        let is_small = original.bytes.len() < WORTH_BYTES && !may_repair;
        if planned.plan.edits.is_empty() && original.added.is_empty() && is_small {
            return original.into_untouched();
        }
        let outbound = original.edited(&planned.plan.edits, planned.beta());
        self.original = Some(Box::new(original));
        outbound
    }

    /// Returns the response to forward, and what its request asked for on the client's behalf.
    pub(super) async fn send(
        &mut self,
        head: request::Parts,
        body: OutgoingBody,
        recorder: &mut ExchangeRecorder,
    ) -> Result<(Response<OutgoingBody>, Vec<AddedOptionKind>), UpstreamError> {
        // The response may demand that it is sent again.
        let original = self.original.take();
        let mut adds = Vec::new();
        let mut is_rewritten = false;
        if let Some(original) = &original {
            adds.extend(original.added.iter().map(|added| added.kind));
            is_rewritten = original.is_rewritten;
        }
        let response = send(recorder, head, body).await?;
        let status = response.status();
        let blames_us = (is_rewritten || !adds.is_empty()) && blames_request(status.as_u16());
        let placed = self.placed.as_deref_mut();
        // If no room may be made, a message about the window is read as it passes, without waiting for it.
        let mendable = placed.as_deref().filter(|placed| placed.may_make_room());
        let is_judged = blames_us && placed.is_some() || mendable.is_some();
        let may_be_overflow =
            is_judged && (may_not_fit(status.as_u16()) || blames_request(status.as_u16()));
        let may_overflow =
            status == StatusCode::OK && mendable.is_some_and(PlacedRequest::may_overflow);
        let may_retry = blames_us || may_be_overflow || may_overflow;
        let original = if may_retry { original } else { None };
        let planned = placed.as_deref().map(|placed| &placed.planned).or(self.count.as_deref());
        let (Some(original), Some(planned)) = (original, planned) else {
            return Ok((response, if blames_us { Vec::new() } else { adds }));
        };
        let info = planned.prepared.info.clone();
        let refusable = adds.iter().map(|added| added.refusable()).collect();
        let retry = Retry::new(original, refusable, info, placed, recorder);
        // Boxed, because few requests get here and the future is large.
        let (response, form) = Box::pin(retry.run(response)).await?;
        Ok((response, if form == RequestForm::Original { Vec::new() } else { adds }))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use http::header::ACCEPT_ENCODING;
    use http_body::Body;

    use http::Request;
    use http::header::CONTENT_LENGTH;

    use super::*;
    use crate::proxy::plan::added_option::AddedOption;
    use crate::proxy::plan::request_usage;
    use crate::wire::splice::Edit;

    fn frames(mut body: OutgoingBody) -> Vec<Bytes> {
        let mut frames = Vec::new();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        while let std::task::Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx)
        {
            frames.extend(frame.into_data());
        }
        frames
    }

    fn head() -> request::Parts {
        let request = Request::post("/v1/chat/completions").header(ACCEPT_ENCODING, "gzip, br");
        request.header(CONTENT_LENGTH, "15").body(()).unwrap().into_parts().0
    }

    fn original(bytes: &Bytes, edit: Option<Edit>) -> OriginalRequest {
        let added = edit.map(|edit| AddedOption { kind: AddedOptionKind::Usage, edit });
        let added = added.into_iter().collect();
        let (bytes, plain) = (bytes.clone(), bytes.clone());
        let is_rewritten = false;
        OriginalRequest { head: head().into(), bytes, plain, trailers: None, added, is_rewritten }
    }

    #[test]
    fn invariant_1_without_edit_same_allocation_is_forwarded() {
        let body = Bytes::from(b"{\"stream\":true}".to_vec());
        let mut planned = Planned::default();
        let (head, sent) = planned.outbound(head().into(), body.clone(), None);
        assert!(planned.original.is_none());
        assert_eq!(head.headers[ACCEPT_ENCODING], "gzip, br");
        let frames = frames(sent);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].as_ptr(), body.as_ptr());
        assert_eq!(frames[0].len(), body.len());
    }

    #[test]
    fn invariant_2_edits_keep_own_bytes() {
        let body = Bytes::from(b"{\"stream\":true}".to_vec());
        let mut original = original(&body, request_usage::request(&body));
        let (head, sent) = original.edited(&[], None);
        assert!(!original.is_rewritten);
        let frames = frames(sent);
        assert_eq!(frames[0].as_ptr(), body.as_ptr());
        assert_eq!(frames.last().unwrap().as_ptr(), body[body.len() - 1..].as_ptr());
        let length: usize = frames.iter().map(Bytes::len).sum();
        assert_eq!(head.headers[CONTENT_LENGTH], length.to_string());
        let (head, original) = original.untouched();
        assert_eq!(head.headers[CONTENT_LENGTH], "15");
        assert_eq!(self::frames(original)[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn conflicting_options_are_left_out() {
        let body = Bytes::from_static(b"{\"stream\":true}");
        let edit = |with: &'static [u8]| Edit {
            at: crate::wire::json::Span::new(1, 9),
            with: Bytes::from_static(with),
        };
        let mut original = original(&body, Some(edit(b"\"b\"")));
        let (_, sent) = original.edited(&[edit(b"\"a\"")], None);
        assert!(original.is_rewritten);
        assert!(original.added.is_empty());
        assert_eq!(frames(sent).concat(), b"{\"a\":true}");
    }

    #[test]
    fn edits_outside_are_left_out() {
        let body = Bytes::from_static(b"{}");
        let edit = Edit { at: crate::wire::json::Span::new(9, 9), with: Bytes::from_static(b"x") };
        let (_, sent) = original(&body, Some(edit)).edited(&[], None);
        assert_eq!(frames(sent), [body]);
    }
}
