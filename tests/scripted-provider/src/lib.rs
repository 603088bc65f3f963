//! A provider for tests: the demo's script, or as strict as real providers are, or both.
//!
//! [`strict`] checks what real providers check and returns their errors. It imports nothing of Plimsoll, as
//! the demo's provider does not: a rule that the product reads wrongly is not read wrongly here, too.

#![forbid(unsafe_code)]

pub mod strict;

use bytes::Bytes;
use demo_provider::{Judge, OnReply};
use http::StatusCode;
use http::request::Parts;
use serde_json::Value;

pub use demo_provider::ScriptedProvider;

use strict::{ReceivedRequest, RequestVerdict, StrictProvider};

/// Refuses what real providers refuse, with their errors, and checks what comes back of a reply.
impl Judge for StrictProvider {
    fn judge(&self, head: &Parts, body: &Bytes) -> Result<Option<OnReply>, (StatusCode, Value)> {
        let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let now = self.clock().now();
        let request = ReceivedRequest::parse(path, &head.headers, body.clone(), now);
        // It has no opinion on the paths that it does not know.
        let (Some(request), &http::Method::POST) = (request, &head.method) else {
            return Ok(None);
        };
        match self.validate(&request) {
            RequestVerdict::Refused(error) => {
                let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
                Err((status, *error.body))
            }
            RequestVerdict::Accepted(accepted) => {
                let provider = self.clone();
                Ok(Some(Box::new(move |reply| provider.record_reply(&request, &accepted, reply))))
            }
        }
    }
}

#[cfg(test)]
mod tests;
