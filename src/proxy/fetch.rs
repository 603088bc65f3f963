//! A file by GET, over the connections to upstreams: through the same proxies, with the same trusted authorities.
//!
//! What is in it is not known here. It follows no redirect, sends no credential, and ends after a minute.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};

use super::http::body::OutgoingBody;
use super::http::headers;
use super::http::upstream::error::UpstreamError;
use super::state::Proxy;

/// How long it may take.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Proxy {
    /// What is at `url`, at most `limit` bytes. A redirect is not followed: it may lead anywhere.
    ///
    /// # Errors
    /// In words, if it cannot be had.
    pub(crate) async fn fetch(&self, url: &Uri, limit: usize) -> Result<Bytes, String> {
        tokio::time::timeout(TIMEOUT, self.get(url, limit))
            .await
            .map_err(|_| format!("no answer within {} s", TIMEOUT.as_secs()))?
    }

    async fn get(&self, url: &Uri, limit: usize) -> Result<Bytes, String> {
        let mut request = Request::get(url.clone());
        if let Some(all) = request.headers_mut() {
            *all = headers::set_host(HeaderMap::new(), url);
            all.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            all.insert(USER_AGENT, HeaderValue::from_static("plimsoll"));
        }
        let request = request.body(OutgoingBody::default()).map_err(|error| error.to_string())?;
        let sending = self.pool.send_http1(request).await;
        let response = sending.map_err(|error| match error {
            UpstreamError::TooSlow(reason) | UpstreamError::Failed(reason) => reason,
            UpstreamError::RequestBroken | UpstreamError::ResponseLost => "it broke off".to_owned(),
        })?;
        if response.status() != StatusCode::OK {
            return Err(format!("it answered {}", response.status()));
        }
        let body = Limited::new(response.into_body(), limit).collect().await;
        Ok(body.map_err(|error| error.to_string())?.to_bytes())
    }
}
