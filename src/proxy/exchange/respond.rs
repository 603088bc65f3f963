//! From an exchange whose response has begun to the response that its client gets: headers, edits, and the tap that
//! observes the body and settles the exchange.

use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode, Version, response};

use super::live_exchange::{LiveExchange, Sent};
use crate::clock::now;
use crate::config::Upstream;
use crate::context::Outcome;
use crate::dialect::quota;
use crate::proxy::http::headers::{self, HopByHopFilter};
use crate::proxy::http::pieces::SendWindow;
use crate::proxy::response::observe::ResponseObserver;
use crate::proxy::response::response_body::ResponseBody;
use crate::proxy::response::silence::{SilenceLimits, StreamSilence};
use crate::proxy::response::tap::{ResponseActions, Tap};
use crate::proxy::response::usage_rewrite::{ResponseEdits, UsageRewrite};
use crate::proxy::response::usage_strip::UsageStrip;

impl LiveExchange<Sent> {
    /// What is learned from its response: its turn, the turn of an earlier exchange, a list of models.
    pub(super) fn actions(&mut self) -> ResponseActions {
        let proxy = &self.recorder.proxy;
        let Sent { response, turn, .. } = &mut self.phase;
        let now = now();
        let mut quotas = quota::from_headers(response.headers(), now);
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            let unnamed = quota::unnamed(response.headers(), &quotas, now);
            quotas.extend(unnamed);
        }
        // To find the tenant of a request that is not read takes longer than all else here.
        let tenant = match quotas.is_empty() && self.client.response_dialect().is_none() {
            true => None,
            false => self.client.tenant(proxy).ok(),
        };
        proxy.telemetry.quotas_told(&self.upstream.name, tenant.as_ref(), quotas, now);
        let turn = turn.take();
        let mut actions = ResponseActions { tenant, ..ResponseActions::default() };
        if let Some(dialect) = self.client.response_dialect() {
            let status = response.status().as_u16();
            let limit = proxy.config.limits.reply_bytes;
            let observer =
                ResponseObserver::new(dialect, status, response.headers(), limit, &proxy.memory);
            actions.observer = Some(match &turn {
                Some(turn) => turn.observed_by(observer),
                None => observer,
            });
        }
        actions.settle = turn.map(|turn| turn.settle(proxy.clone()));
        // A refusal has neither a reply nor a list.
        if response.status().is_success() {
            actions.settle_late = self.client.settle_late(&self.upstream, proxy);
            actions.model_list =
                self.client.model_list_tap(&self.upstream, response.headers(), &self.recorder);
        }
        actions
    }

    /// The response as its client gets it.
    pub(super) async fn respond(self, mut actions: ResponseActions) -> Response<ResponseBody> {
        // Its body settles the exchange, however it ends.
        let Self { mut recorder, client, upstream, phase } = self;
        let Sent { response, upstream_time, added_usage, usage_addition, .. } = phase;
        let (mut parts, body) = response.into_parts();
        let filter = HopByHopFilter { keep_upgrade: false, keep_chunked: true };
        parts.headers = response_headers(std::mem::take(&mut parts.headers), &upstream, filter);
        actions.is_operators = upstream.credential.is_some();
        parts.version = Version::HTTP_11;
        let limits = &recorder.proxy.config.limits;
        let memory = &recorder.proxy.memory;
        actions.edits = match usage_addition {
            _ if added_usage => response_edits(&mut parts, |kind, headers| {
                // A response that is not a stream has usage anyway.
                if kind.starts_with("application/json") {
                    return None;
                }
                let codings = headers::codings(headers);
                UsageStrip::new(upstream.host(), codings, memory).map(ResponseEdits::Strips)
            }),
            Some(addition) => response_edits(&mut parts, |kind, headers| {
                let codings = headers::codings(headers);
                let limit = limits.reply_bytes;
                Some(ResponseEdits::Rewrites(UsageRewrite::new(
                    addition, kind, codings, limit, memory,
                )?))
            }),
            None => None,
        };
        let silence = SilenceLimits {
            silent: nonzero_seconds(limits.silent_stream_s),
            keep_alive: nonzero_seconds(limits.keep_alive_s),
        };
        let headers = &parts.headers;
        actions.silence =
            StreamSilence::new(client.dialect, &upstream.name, headers, silence, upstream_time);
        if let Some(silence) = &mut actions.silence {
            silence.chunks = recorder.chunk_times();
        }
        if !parts.status.is_success() {
            recorder.clear_spared();
        }
        recorder.stamp(&mut parts.headers);
        recorder.event.status = Some(parts.status.as_u16());
        recorder.stream = Some(recorder.proxy.telemetry.stream());
        let refused = parts.status.is_client_error() || parts.status.is_server_error();
        let clean_outcome = if refused { Outcome::Refused } else { Outcome::Complete };
        let window = SendWindow::to_client();
        let mut tap = Box::new(Tap::new(body, recorder, actions, clean_outcome));
        tap.look_ahead().await;
        Response::from_parts(parts, ResponseBody::Tapped(tap, window))
    }
}

pub(super) fn response_headers(
    headers: HeaderMap,
    upstream: &Upstream,
    filter: HopByHopFilter,
) -> HeaderMap {
    let headers = headers::without_hop_by_hop(headers, filter);
    // To the operator's credential they say nothing of its account, and no web page may read the response,
    // whatever the upstream allows.
    match upstream.credential.is_some() {
        true => headers::without(headers, headers::is_operators),
        false => headers,
    }
}

fn nonzero_seconds(seconds: u64) -> Option<Duration> {
    // 0 turns a limit off.
    if seconds > 0 { Some(Duration::from_secs(seconds)) } else { None }
}

/// `with` makes the edits for this content type and these headers.
fn response_edits(
    parts: &mut response::Parts,
    with: impl FnOnce(&str, &HeaderMap) -> Option<ResponseEdits>,
) -> Option<Box<ResponseEdits>> {
    if !parts.status.is_success() {
        return None;
    }
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let edits = with(kind.unwrap_or_default(), &parts.headers)?;
    // An edited response loses its length and its encoding.
    let headers = std::mem::take(&mut parts.headers);
    parts.headers =
        headers::without(headers, |name| *name == CONTENT_LENGTH || *name == CONTENT_ENCODING);
    Some(Box::new(edits))
}
