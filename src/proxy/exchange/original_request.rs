//! A request as its client sent it, kept so that it can be sent again, with or without changes.
//!
//! Without changes it is the same allocation that was received, byte for byte.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Request, Response, request};

use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::headers;
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::plan::added_option::AddedOption;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::wire::splice::{Edit, splice};

/// A request as the client sent it; its head is as the upstream gets it.
pub(super) struct OriginalRequest {
    pub(super) head: Arc<request::Parts>,
    pub(super) bytes: Bytes,
    /// The body, decompressed: what is edited.
    pub(super) plain: Bytes,
    pub(super) trailers: Option<HeaderMap>,
    /// What is requested on the client's behalf.
    pub(super) added: Vec<AddedOption>,
    /// It was first sent with edits of the plan.
    pub(super) is_rewritten: bool,
}

impl OriginalRequest {
    pub(super) fn new(
        head: Arc<request::Parts>,
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    ) -> Self {
        let plain = bytes.clone();
        Self { head, bytes, plain, trailers, added: Vec::new(), is_rewritten: false }
    }

    pub(super) fn into_untouched(self) -> (request::Parts, OutgoingBody) {
        let body = OutgoingBody::slices(vec![self.bytes], self.trailers);
        (Arc::unwrap_or_clone(self.head), body)
    }

    /// The request as it is sent first, with these edits and with what is added, as far as they fit.
    pub(super) fn edited(
        &mut self,
        edits: &[Edit],
        beta: Option<&'static str>,
    ) -> (request::Parts, OutgoingBody) {
        self.is_rewritten = !edits.is_empty();
        let changed = self.changed(edits, beta).or_else(|| {
            // What is requested on the client's behalf does not fit in: the plan counts as sent, so it stays.
            self.added.clear();
            self.changed(edits, beta)
        });
        changed.unwrap_or_else(|| {
            self.is_rewritten = false;
            self.untouched()
        })
    }

    pub(super) fn untouched(&self) -> (request::Parts, OutgoingBody) {
        let body = OutgoingBody::slices(vec![self.bytes.clone()], self.trailers.clone());
        (request::Parts::clone(&self.head), body)
    }

    /// The request with these edits and with what is added; `None` without any. `beta`: what its head has to list.
    pub(super) fn changed(
        &self,
        edits: &[Edit],
        beta: Option<&'static str>,
    ) -> Option<(request::Parts, OutgoingBody)> {
        let mut edits = edits.to_vec();
        edits.extend(self.added.iter().map(|added| added.edit.clone()));
        if edits.is_empty() {
            return None;
        }
        // An edit that does not fit is an error of ours, and then the client's bytes are sent.
        let slices = splice(&self.plain, edits).ok()?;
        let mut head = request::Parts::clone(&self.head);
        headers::set_length(&mut head.headers, slices.iter().map(Bytes::len).sum());
        // The edited body is the decompressed one.
        if head.headers.contains_key(CONTENT_ENCODING) {
            head.headers = headers::without(head.headers, |name| *name == CONTENT_ENCODING);
        }
        for added in &self.added {
            added.kind.add_headers(&mut head.headers);
        }
        if let Some(beta) = beta {
            headers::list_beta(&mut head.headers, beta);
        }
        Some((head, OutgoingBody::slices(slices, self.trailers.clone())))
    }
}

pub(super) async fn send(
    recorder: &ExchangeRecorder,
    head: request::Parts,
    body: OutgoingBody,
) -> Result<Response<OutgoingBody>, UpstreamError> {
    let body = body.timed(&recorder.sent);
    recorder.proxy.pool.send(Request::from_parts(head, body)).await
}
