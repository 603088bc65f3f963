//! Sends a request, and retries it if its provider refuses it (`docs/rewriting.md` "Rules for every
//! rewrite").
//!
//! A refusal that may lead to a retry is read before any byte of it is forwarded (`retry`). Any other is
//! forwarded as the provider wrote it.

use std::sync::Arc;

use http::{Response, StatusCode, request};

use super::original_request::{OriginalRequest, send};
use super::retry::Retry;
use crate::context::attempt::RequestForm;
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::plan::added_option::AddedOptionKind;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::response::status::{blames_request, may_not_fit};
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::wire::splice::Edit;

/// A request to be sent.
pub(super) struct OutboundRequest {
    head: request::Parts,
    body: OutgoingBody,
    /// The original, if it may have to be sent again.
    original: Option<Box<OriginalRequest>>,
    /// What it requests on the client's behalf.
    adds: Vec<AddedOptionKind>,
    /// Whether it is rewritten.
    rewritten: bool,
}

/// A smaller body has nothing that could be cut to make room, bytes.
const WORTH_BYTES: usize = 2048;

impl OutboundRequest {
    pub(super) fn parts(&self) -> (&request::Parts, &OutgoingBody) {
        (&self.head, &self.body)
    }

    pub(super) fn plain(head: request::Parts, body: OutgoingBody) -> Self {
        Self { head, body, original: None, adds: Vec::new(), rewritten: false }
    }

    /// `may_repair`: if it is refused, however small it is.
    pub(super) fn edited(
        mut original: OriginalRequest,
        edits: &[Edit],
        beta: Option<&'static str>,
        may_repair: bool,
    ) -> Self {
        let rewritten = !edits.is_empty();
        // It could only be sent again as it is: nothing of it has to be kept.
        let is_small = original.bytes.len() < WORTH_BYTES && !may_repair;
        if !rewritten && original.added.is_empty() && is_small {
            let OriginalRequest { head, bytes, trailers, .. } = original;
            let body = OutgoingBody::slices(vec![bytes], trailers);
            return Self::plain(Arc::unwrap_or_clone(head), body);
        }
        let changed = original.changed(edits, beta).or_else(|| {
            // What is requested on the client's behalf does not fit in: the plan counts as sent, so it stays.
            original.added.clear();
            original.changed(edits, beta)
        });
        match changed {
            Some((head, body)) => {
                let adds = original.added.iter().map(|added| added.kind).collect();
                Self { head, body, original: Some(Box::new(original)), adds, rewritten }
            }
            None => {
                let (head, body) = original.untouched();
                let original = Some(Box::new(original));
                Self { head, body, original, adds: Vec::new(), rewritten: false }
            }
        }
    }

    /// Returns the response to forward, and what its request asked for on the client's behalf. `count`: the request, if
    /// it counts tokens.
    pub(super) async fn send(
        self,
        placed: Option<&mut PlacedRequest>,
        count: Option<&PlannedRequest>,
        recorder: &mut ExchangeRecorder,
    ) -> Result<(Response<OutgoingBody>, Vec<AddedOptionKind>), UpstreamError> {
        let Self { head, body, original, adds, rewritten: is_rewritten } = self;
        // The response may demand that it is sent again.
        let response = send(recorder, head, body).await?;
        let status = response.status();
        let blames_us = (is_rewritten || !adds.is_empty()) && blames_request(status);
        // If no room may be made, a message about the window is read as it passes, without waiting for it.
        let mendable = placed.as_deref().filter(|placed| placed.may_make_room());
        let is_judged = blames_us && placed.is_some() || mendable.is_some();
        let may_be_overflow = is_judged && (may_not_fit(status) || blames_request(status));
        let may_overflow =
            status == StatusCode::OK && mendable.is_some_and(PlacedRequest::may_overflow);
        let may_retry = blames_us || may_be_overflow || may_overflow;
        let original = if may_retry { original } else { None };
        let planned = placed.as_deref().map(|placed| &placed.planned).or(count);
        let (Some(original), Some(planned)) = (original, planned) else {
            return Ok((response, if blames_us { Vec::new() } else { adds }));
        };
        let info = planned.prepared.info.clone();
        let refusable = adds.iter().map(|added| added.refusable()).collect();
        let retry = Retry::new(original, refusable, is_rewritten, info, placed, recorder);
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

    use bytes::Bytes;

    use super::*;
    use crate::proxy::plan::added_option::AddedOption;
    use crate::proxy::plan::request_usage;

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
        OriginalRequest { head: head().into(), bytes, plain, trailers: None, added }
    }

    #[test]
    fn invariant_1_without_edit_same_allocation_is_forwarded() {
        let body = Bytes::from(b"{\"stream\":true}".to_vec());
        let outbound = OutboundRequest::edited(original(&body, None), &[], None, false);
        assert!(outbound.original.is_none());
        assert!(!outbound.rewritten);
        assert_eq!(outbound.head.headers[ACCEPT_ENCODING], "gzip, br");
        let frames = frames(outbound.body);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].as_ptr(), body.as_ptr());
        assert_eq!(frames[0].len(), body.len());
    }

    #[test]
    fn invariant_2_edits_keep_own_bytes() {
        let body = Bytes::from(b"{\"stream\":true}".to_vec());
        let original = original(&body, request_usage::request(&body));
        let outbound = OutboundRequest::edited(original, &[], None, false);
        let frames = frames(outbound.body);
        assert_eq!(frames[0].as_ptr(), body.as_ptr());
        assert_eq!(frames.last().unwrap().as_ptr(), body[body.len() - 1..].as_ptr());
        let length: usize = frames.iter().map(Bytes::len).sum();
        assert_eq!(outbound.head.headers[CONTENT_LENGTH], length.to_string());
        let (head, original) = outbound.original.unwrap().untouched();
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
        let original = original(&body, Some(edit(b"\"b\"")));
        let outbound = OutboundRequest::edited(original, &[edit(b"\"a\"")], None, false);
        assert!(outbound.rewritten);
        assert!(outbound.adds.is_empty());
        assert_eq!(frames(outbound.body).concat(), b"{\"a\":true}");
    }

    #[test]
    fn edits_outside_are_left_out() {
        let body = Bytes::from_static(b"{}");
        let edit = Edit { at: crate::wire::json::Span::new(9, 9), with: Bytes::from_static(b"x") };
        let outbound = OutboundRequest::edited(original(&body, Some(edit)), &[], None, false);
        assert_eq!(frames(outbound.body), [body]);
    }
}
