//! One request, top to bottom (`docs/architecture.md` "Life of a request").
//!
//! Reads like that list. Nothing in here may cost the client its response: a step that fails is left out, and
//! the original is sent.

mod client_request;
mod count_estimate;
mod count_request;
mod latest_request;
mod original_request;
mod outbound;
mod request_origin;
mod response_peek;
mod retry;
mod room;
mod websocket;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, request, response,
};
use tokio::sync::watch;

use crate::config::{ServerLimits, UpgradePolicy, Upstream};
use crate::context::Outcome;
use crate::dialect::Dialect;
use crate::dialect::paths::is_inference;
use crate::proxy::compaction::summarize::SummaryJob;
use crate::proxy::exchange::client_request::{ClientRequest, RequestPlan};
use crate::proxy::exchange::count_estimate::CountFallback;
use crate::proxy::exchange::outbound::{OutboundRequest, SentResponse};
use crate::proxy::exchange::websocket::frames::FrameObserver;
use crate::proxy::exchange::websocket::tunnel;
use crate::proxy::http::answer::{self, ProxyError};
use crate::proxy::http::arriving::ClientBody;
use crate::proxy::http::body::{self, CollectOutcome, OutgoingBody};
use crate::proxy::http::connection::ClientConnection;
use crate::proxy::http::headers::{self, HopByHopFilter};
use crate::proxy::http::pieces::SendWindow;
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::http::upstream::route;
use crate::proxy::response::observe::ResponseObserver;
use crate::proxy::response::response_body::ResponseBody;
use crate::proxy::response::silence::{SilenceLimits, StreamSilence};
use crate::proxy::response::tap::{ResponseActions, Tap};
use crate::proxy::response::usage_rewrite::{ResponseEdits, UsageAddition, UsageRewrite};
use crate::proxy::response::usage_strip::UsageStrip;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::{Proxy, ServingPhase};
use crate::proxy::turn::late::LateReply;
use crate::proxy::turn::open::{OpenTurn, ResponseHead};
use crate::proxy::turn::pending::PendingExchange;
use crate::telemetry::{ClientTimeout, FailOpen};

/// Handles one request.
pub(super) async fn run(
    proxy: Arc<Proxy>,
    request: Request<ClientBody>,
    connection: Arc<ClientConnection>,
    phase: watch::Receiver<ServingPhase>,
) -> Response<ResponseBody> {
    let mut recorder = ExchangeRecorder::open(&proxy, &request, &connection, phase);
    // 1. Accept: the connection has its permit, the headers have their limit.
    if headers::size(request.headers()) > proxy.config.limits.header_bytes {
        return error_response(&ProxyError::HeadersTooLarge, None, recorder);
    }
    if *request.method() == Method::CONNECT {
        return error_response(&ProxyError::NoForwardProxy, None, recorder);
    }
    let (head, body) = request.into_parts();
    let client_request = ClientRequest::new(&head);
    let dialect = client_request.dialect;
    recorder.record_endpoint(dialect, client_request.purpose);
    if let Err(fault) = proxy.client_access.check(&head.uri, &head.headers, &proxy.credentials) {
        return error_response(&fault, dialect, recorder);
    }
    if proxy.exchanges.load(Ordering::Relaxed) > proxy.config.limits.requests() {
        return error_response(&ProxyError::TooManyRequests, dialect, recorder);
    }
    // 2. Route.
    // Clients probe the root path, which no upstream has.
    let is_probe = head.uri.path() == "/" && [Method::GET, Method::HEAD].contains(&head.method);
    let routed = match RoutedRequest::new(&proxy, head, dialect) {
        Ok(routed) => routed,
        Err(ProxyError::NoUpstream { .. }) if is_probe => return greeting_response(recorder),
        Err(fault) => return error_response(&fault, dialect, recorder),
    };
    recorder.record_upstream(&routed.upstream);
    if routed.upgrade {
        return Box::pin(upgrade(&proxy, client_request, routed, body, recorder)).await;
    }
    Box::pin(forward_and_respond(&proxy, &client_request, routed, body, recorder)).await
}

pub(super) fn refuse_connection(
    proxy: &Arc<Proxy>,
    request: &Request<hyper::body::Incoming>,
    phase: watch::Receiver<ServingPhase>,
) -> Response<Bytes> {
    let mut recorder = ExchangeRecorder::open(proxy, request, &Arc::default(), phase);
    let checked = proxy.client_access.check(request.uri(), request.headers(), &proxy.credentials);
    // A page of another site must not learn that the proxy is full.
    let fault = checked.err().unwrap_or(ProxyError::TooManyConnections);
    let mut response = fault.answer(None);
    recorder.answer(&mut response, fault.outcome());
    response
}

/// A request with its upstream, which is looked up here and nowhere else; its head is as the upstream gets it.
struct RoutedRequest {
    upstream: Arc<Upstream>,
    head: request::Parts,
    upgrade: bool,
}

impl RoutedRequest {
    fn new(
        proxy: &Proxy,
        mut head: request::Parts,
        client_dialect: Option<Dialect>,
    ) -> Result<Self, ProxyError> {
        let upstreams = &proxy.upstreams;
        let uri = head.uri.clone();
        let route = route::route(upstreams, &head.method, &uri, &head.headers, client_dialect);
        let route = route.ok_or_else(|| no_upstream(upstreams, &uri))?;
        let upstream = route.upstream;
        let upgrade = headers::is_upgrade(&head.headers, |protocol| is_wanted(upstream, protocol));
        if upstream.credential.is_some() && !is_inference(&head.method, route.path, upgrade) {
            return Err(ProxyError::PathRefused);
        }
        let address = route::address(&route, uri.path_and_query(), &proxy.credentials);
        head.uri = address.ok_or_else(|| no_upstream(upstreams, &uri))?;
        let headers = std::mem::take(&mut head.headers);
        head.headers = outgoing_headers(headers, proxy, upstream, head.version, upgrade);
        // The upstream's HTTP version is only known after connecting.
        head.version = Version::HTTP_11;
        Ok(Self { upstream: upstream.clone(), head, upgrade })
    }
}

fn no_upstream(upstreams: &[Arc<Upstream>], uri: &Uri) -> ProxyError {
    ProxyError::NoUpstream {
        known: upstreams.iter().map(|upstream| upstream.name.clone()).collect(),
        nearest: route::nearest(upstreams, uri.path()).map(Into::into),
    }
}

fn is_wanted(upstream: &Upstream, protocol: &str) -> bool {
    // With the operator's credential, only WebSocket is allowed.
    !headers::is_http2(protocol)
        && (upstream.credential.is_none() || protocol.eq_ignore_ascii_case("websocket"))
}

fn outgoing_headers(
    headers: HeaderMap,
    proxy: &Proxy,
    upstream: &Upstream,
    version: Version,
    upgrade: bool,
) -> HeaderMap {
    let mut headers = headers::without_hop_by_hop(
        headers,
        HopByHopFilter { keep_upgrade: upgrade, keep_chunked: true },
    );
    if upgrade {
        headers::narrow_upgrade(&mut headers, |protocol| is_wanted(upstream, protocol));
    }
    let has_own = upstream.credential.is_some();
    if has_own {
        headers::narrow_subprotocols(&mut headers);
    }
    let mut headers = headers::without_lines(headers, |name, value| {
        headers::is_for_us(name)
            || has_own && !headers::may_join_credential(name)
            || proxy.credentials.is_token(name, value.as_bytes())
    });
    if let Some((name, secret)) = &upstream.credential
        && let Ok(mut value) = HeaderValue::from_str(&secret.0)
    {
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    if version == Version::HTTP_2 {
        headers::join_cookies(&mut headers);
    }
    headers::set_host(headers, &upstream.base)
}

fn response_headers(headers: HeaderMap, upstream: &Upstream, filter: HopByHopFilter) -> HeaderMap {
    let headers = headers::without_hop_by_hop(headers, filter);
    // To the operator's credential they say nothing of its account, and no web page may read the response,
    // whatever the upstream allows.
    match upstream.credential.is_some() {
        true => headers::without(headers, headers::is_operators),
        false => headers,
    }
}

async fn forward_and_respond(
    proxy: &Arc<Proxy>,
    client_request: &ClientRequest,
    routed: RoutedRequest,
    body: ClientBody,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    let RoutedRequest { upstream, head, .. } = routed;
    let dialect = client_request.dialect;
    let ready = prepare_request(proxy, client_request, &upstream, head, body, &mut recorder).await;
    let ready = match ready {
        Ok(ready) => ready,
        Err(fault) => return error_response(&fault, dialect, recorder),
    };
    let ReadyRequest { outbound, mut pending, writer, count, body_complete_at } = ready;
    // The wait for a summary is reported separately.
    let summary_wait = pending.as_ref().map(|pending| pending.summary_wait()).unwrap_or_default();
    recorder.meter.request_side = body_complete_at.elapsed().saturating_sub(summary_wait);
    if let Some(pending) = &mut pending {
        let (head, body) = outbound.parts();
        pending.count_if_wanted(proxy, head, body);
    }
    if let Some(count) = &count
        && let Some(counted) = Box::pin(count.answer_at_once(&mut recorder)).await
    {
        return count_response(counted, recorder);
    }
    // Sending consumes the head, and the response to a count is judged by it.
    let head = count.as_ref().map(|_| outbound.parts().0.clone());
    let counted = count.as_ref().map(|count| &*count.prepared);
    // 9. Forward.
    let sending = outbound.send(pending.as_deref_mut(), counted, &mut recorder);
    let SentResponse { mut response, added_usage, added_diagnosis } = match sending.await {
        Ok(sent) => sent,
        Err(error) => {
            if let Some(pending) = &mut pending {
                pending.requeue_messages(proxy).await;
            }
            let fault = unanswered(&upstream, error, &recorder);
            return error_response(&fault, dialect, recorder);
        }
    };
    let upstream_time = recorder.sent.elapsed();
    let id = client_request.provider_request_id(response.headers(), proxy, &upstream);
    recorder.record_provider_request_id(id.as_deref());
    if let (Some(count), Some(head)) = (count, head) {
        let answered = count.answer_missing(response, &head, &mut recorder);
        response = match Box::pin(answered).await {
            Ok(counted) => return count_response(counted, recorder),
            Err(response) => response,
        };
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return error_response(&unrequested_upgrade(&upstream), dialect, recorder);
    }
    if response.status().is_success()
        && let Some(writer) = writer
    {
        writer.begin();
    }
    let usage_addition =
        pending.as_ref().and_then(|pending| pending.usage_addition(added_diagnosis));
    let response_head = ResponseHead { status: response.status(), provider_request_id: id };
    let several = pending.as_ref().is_some_and(|pending| pending.prepared().conversation.several);
    let open_turn = pending.map(|pending| pending.open(proxy, response_head));
    recorder.meter.headers = Some(recorder.began.elapsed());
    // 10. Answer. 11. Observe. 12. Settle. 13. Record.
    let actions =
        response_actions(client_request, &upstream, &response, open_turn, several, &recorder);
    let forwarding = Forwarding { upstream, dialect, added_usage, usage_addition, upstream_time };
    tap_response(response, forwarding, actions, recorder).await
}

fn response_actions(
    client_request: &ClientRequest,
    upstream: &Arc<Upstream>,
    response: &Response<OutgoingBody>,
    open_turn: Option<Box<OpenTurn>>,
    several: bool,
    recorder: &ExchangeRecorder,
) -> ResponseActions {
    let proxy = &recorder.proxy;
    let mut actions =
        ResponseActions { tenant: client_request.tenant(proxy).ok(), ..ResponseActions::default() };
    if let Some(dialect) = client_request.response_dialect() {
        let status = response.status().as_u16();
        let limit = proxy.config.limits.reply_bytes;
        let progress = open_turn.as_ref().map(|turn| (turn.progress(), turn.body()));
        actions.observer = Some(
            ResponseObserver::new(dialect, status, response.headers(), limit, &proxy.memory)
                .with_several(several)
                .with_progress(progress),
        );
    }
    actions.settle = open_turn.map(|turn| turn.settle(proxy.clone()));
    // A refusal has neither a reply nor a list.
    if response.status().is_success() {
        actions.settle_late = client_request.late_reply(upstream, proxy).map(LateReply::settle);
        actions.model_list = client_request.model_list_tap(upstream, response.headers(), recorder);
    }
    actions
}

/// A request that is ready to be sent: its body is collected and planned, or streams through unread.
struct ReadyRequest {
    outbound: OutboundRequest,
    pending: Option<Box<PendingExchange>>,
    writer: Option<Box<SummaryJob>>,
    count: Option<Box<CountFallback>>,
    body_complete_at: Instant,
}

async fn prepare_request(
    proxy: &Proxy,
    client_request: &ClientRequest,
    upstream: &Arc<Upstream>,
    head: request::Parts,
    body: ClientBody,
    recorder: &mut ExchangeRecorder,
) -> Result<ReadyRequest, ProxyError> {
    // 3. Body.
    let body = permitted(body, upstream);
    let collected = match client_request.body_dialect() {
        Some(_) => {
            let ServerLimits { body_bytes, body_s, .. } = proxy.config.limits;
            let timeout = Duration::from_secs(body_s);
            body::collect(body, body_bytes, timeout, &recorder.proxy.memory).await
        }
        None => CollectOutcome::Unread(OutgoingBody::request(body)),
    };
    let body_complete_at = Instant::now();
    let mut plan = RequestPlan::default();
    let outbound = match collected {
        CollectOutcome::Broken => return Err(ProxyError::RequestBroken),
        CollectOutcome::TimedOut => return Err(ProxyError::BodyTooSlow),
        CollectOutcome::Unread(body) => OutboundRequest::plain(head, recorder.count_upload(body)),
        CollectOutcome::TooLarge(body) => {
            recorder.record_fail_open(FailOpen::BodyTooLarge);
            OutboundRequest::plain(head, recorder.count_upload(body))
        }
        CollectOutcome::NoMemory(body) => {
            recorder.record_fail_open(FailOpen::MemoryBudget);
            OutboundRequest::plain(head, recorder.count_upload(body))
        }
        CollectOutcome::Whole { bytes, trailers } => {
            recorder.meter.request_bytes = bytes.len() as u64;
            // 4. Read. 5. Open the ledger. 6. Plan. 7. Save.
            plan = client_request.plan(upstream, &bytes, &head, recorder).await;
            // 8. Splice.
            let changes = std::mem::take(&mut plan.changes);
            OutboundRequest::edited(head, bytes, trailers, changes)
        }
    };
    let RequestPlan { pending, writer, count, .. } = plan;
    Ok(ReadyRequest { outbound, pending, writer, count, body_complete_at })
}

/// How a response is forwarded.
struct Forwarding {
    upstream: Arc<Upstream>,
    dialect: Option<Dialect>,
    /// The request asked for usage on the client's behalf.
    added_usage: bool,
    /// Tokens that are added to the usage.
    usage_addition: Option<UsageAddition>,
    /// How long the upstream took for its headers, once the request was sent.
    upstream_time: Duration,
}

async fn tap_response(
    response: Response<OutgoingBody>,
    forwarding: Forwarding,
    mut actions: ResponseActions,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    let (mut parts, body) = response.into_parts();
    let filter = HopByHopFilter { keep_upgrade: false, keep_chunked: true };
    let upstream = &forwarding.upstream;
    parts.headers = response_headers(std::mem::take(&mut parts.headers), upstream, filter);
    actions.is_operators = upstream.credential.is_some();
    parts.version = Version::HTTP_11;
    let limit = recorder.proxy.config.limits.reply_bytes;
    let memory = &recorder.proxy.memory;
    actions.edits = match forwarding.usage_addition {
        _ if forwarding.added_usage => response_edits(&mut parts, |kind, headers| {
            // A response that is not a stream has usage anyway.
            if kind.starts_with("application/json") {
                return None;
            }
            let codings = headers::codings(headers);
            UsageStrip::new(upstream.host(), codings, memory).map(ResponseEdits::Strips)
        }),
        Some(addition) => response_edits(&mut parts, |kind, headers| {
            let codings = headers::codings(headers);
            Some(ResponseEdits::Rewrites(UsageRewrite::new(
                addition, kind, codings, limit, memory,
            )?))
        }),
        None => None,
    };
    actions.silence = silence(&parts.headers, &forwarding, &recorder.proxy.config.limits);
    if !parts.status.is_success() {
        recorder.clear_spared();
    }
    recorder.stamp(&mut parts.headers);
    recorder.record_status(parts.status);
    recorder.stream = Some(recorder.proxy.telemetry.stream());
    let refused = parts.status.is_client_error() || parts.status.is_server_error();
    let clean_outcome = if refused { Outcome::Refused } else { Outcome::Complete };
    let window = SendWindow::to_client();
    let mut tap = Box::new(Tap::new(body, recorder, actions, clean_outcome));
    tap.look_ahead().await;
    Response::from_parts(parts, ResponseBody::Tapped(tap, window))
}

/// `headers`: as the client gets them.
fn silence(
    headers: &HeaderMap,
    forwarding: &Forwarding,
    limits: &ServerLimits,
) -> Option<StreamSilence> {
    let limits = SilenceLimits {
        silent: nonzero_seconds(limits.silent_stream_s),
        keep_alive: nonzero_seconds(limits.keep_alive_s),
    };
    let Forwarding { upstream, dialect, upstream_time, .. } = forwarding;
    StreamSilence::new(*dialect, &upstream.name, headers, limits, *upstream_time)
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

fn greeting_response(mut recorder: ExchangeRecorder) -> Response<ResponseBody> {
    let mut response = answer::greeting();
    recorder.answer(&mut response, Outcome::Complete);
    response.map(|body| ResponseBody::Ours(Some(body)))
}

fn count_response(
    mut response: Response<Bytes>,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    recorder.answer(&mut response, Outcome::Complete);
    response.map(|body| ResponseBody::Ours(Some(body)))
}

fn error_response(
    fault: &ProxyError,
    dialect: Option<Dialect>,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    let mut response = fault.answer(dialect);
    recorder.answer(&mut response, fault.outcome());
    if *fault == ProxyError::BodyTooSlow {
        recorder.proxy.telemetry.client_timed_out(ClientTimeout::Body);
    }
    response.map(|body| ResponseBody::Ours(Some(body)))
}

fn unrequested_upgrade(upstream: &Upstream) -> ProxyError {
    let why = "it switched to a protocol that was not requested".to_owned();
    proxy_error(upstream, UpstreamError::Failed(why))
}

fn unanswered(
    upstream: &Upstream,
    error: UpstreamError,
    recorder: &ExchangeRecorder,
) -> ProxyError {
    // If the client broke its request off, the upstream is not to blame.
    recorder.upload_fault().unwrap_or_else(|| proxy_error(upstream, error))
}

fn proxy_error(upstream: &Upstream, error: UpstreamError) -> ProxyError {
    let upstream = upstream.name.clone();
    match error {
        UpstreamError::RequestBroken => ProxyError::RequestBroken,
        UpstreamError::TooSlow(reason) => ProxyError::UpstreamTooSlow { upstream, reason },
        UpstreamError::Failed(reason) => ProxyError::UpstreamFailed { upstream, reason },
        UpstreamError::ResponseLost => ProxyError::ResponseLost,
    }
}

/// Beside the operator's credential, a client's trailers could say what its headers may not.
fn permitted(body: ClientBody, upstream: &Upstream) -> ClientBody {
    if upstream.credential.is_some() { body.without_trailers() } else { body }
}

async fn upgrade(
    proxy: &Proxy,
    client_request: ClientRequest,
    routed: RoutedRequest,
    body: ClientBody,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    let RoutedRequest { upstream, head, .. } = routed;
    let dialect = client_request.dialect;
    if upstream.upgrades == UpgradePolicy::Refuse {
        return error_response(&ProxyError::UpgradeRefused, dialect, recorder);
    }
    let mut request = Request::from_parts(head, ());
    let client = hyper::upgrade::on(&mut request);
    let body = OutgoingBody::request(permitted(body, &upstream));
    let body = recorder.count_upload(body).timed(&recorder.sent);
    let request = request.map(|()| body);
    let mut response = match proxy.pool.send_http1(request).await {
        Ok(response) => response,
        Err(error) => {
            let fault = unanswered(&upstream, error, &recorder);
            return error_response(&fault, dialect, recorder);
        }
    };
    let upstream_time = recorder.sent.elapsed();
    recorder.meter.headers = Some(recorder.began.elapsed());
    let id = client_request.provider_request_id(response.headers(), proxy, &upstream);
    recorder.record_provider_request_id(id.as_deref());
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let forwarding = Forwarding {
            upstream,
            dialect,
            added_usage: false,
            usage_addition: None,
            upstream_time,
        };
        return tap_response(response, forwarding, ResponseActions::default(), recorder).await;
    }
    recorder.record_status(StatusCode::SWITCHING_PROTOCOLS);
    let provider = hyper::upgrade::on(&mut response);
    let (mut parts, _) = response.into_parts();
    let mut frames = None;
    if client_request.is_over_websocket() {
        let client_request = Arc::new(client_request);
        let upstream = upstream.clone();
        frames = Some(FrameObserver::new(client_request, upstream, id, &parts.headers, &recorder));
    }
    let filter = HopByHopFilter { keep_upgrade: true, keep_chunked: false };
    parts.headers = response_headers(std::mem::take(&mut parts.headers), &upstream, filter);
    recorder.stamp(&mut parts.headers);
    // The connection's permit is held until the tunnel ends.
    let permit = recorder.connection.permit();
    tokio::spawn(async move {
        tunnel::carry(client, provider, recorder, frames).await;
        drop(permit);
    });
    Response::from_parts(parts, ResponseBody::Ours(None))
}
