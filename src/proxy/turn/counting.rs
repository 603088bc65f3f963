//! The provider's own count of a prompt, if policy asks for it. The request waits for it only where an agent's
//! rules decide, and it has new pictures or documents.
//!
//! Sent to the counting endpoint with the client's credentials, and with no other header of the client that
//! is not needed. A count that arrives before the reply ends is stored with the turn. If it is late or
//! refused, or too many are in flight, only the count is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, request};
use xxhash_rust::xxh3::xxh3_128;

use crate::context::budget::{UncountedMedia, media_chains};
use crate::context::policy::{CountSchedule, draw};
use crate::context::{EstimateMethod, TenantId};
use crate::dialect::counting::{CountQuestion, answer};
use crate::dialect::lesson::{Lesson, QuotableText, RefusalBody, taught};
use crate::dialect::{Conversation, Dialect, Message, Purpose};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::learning::questions;
use crate::proxy::offload::long_work;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::proxy::state::counting_endpoints::{CountingEndpoints, PendingCount};
use crate::proxy::state::request_info::RequestInfo;
use crate::store::ledgers::AnchorTurn;
use crate::telemetry::CountOutcome;

/// How long a response is waited for.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request waits for the count of its pictures and documents.
const MEDIA_WAIT: Duration = Duration::from_secs(5);
/// How long an upstream is not asked after any other response, unless the response says how long.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest pause that an upstream can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Most bytes of a response.
const ANSWER_BYTES: usize = 64 * 1024;
/// The share of the usable window above which a request is near its threshold.
const NEAR: f64 = 0.8;

/// Head and body are those that are sent. `None` if nothing is counted.
pub(crate) fn request_count(
    request: &PlacedRequest,
    head: &request::Parts,
    sent: &OutgoingBody,
) -> Option<Arc<PendingCount>> {
    let PlacedRequest { proxy, planned, .. } = request;
    let prepared = &planned.prepared;
    let estimate = request.estimate()?;
    let is_rewritten = planned.done.is_sent();
    let near = prepared.plan_request().fillable() as f64 * NEAR;
    let count = prepared.info.policy.estimate.count;
    let wanted = match count {
        CountSchedule::Off => false,
        CountSchedule::Cold => estimate.method == EstimateMethod::Estimated,
        CountSchedule::NearThreshold => estimate.tokens as f64 > near,
        // Where an agent's rules decide, the request has waited for it.
        CountSchedule::Media => {
            prepared.info.policy.estimate.deciding().is_none()
                && prepared.conversation.messages.iter().any(Message::has_media)
        }
        CountSchedule::Sample(share) => {
            is_rewritten && draw(prepared.info.exchange.as_str()) < share
        }
    };
    if !wanted || prepared.conversation.purpose != Purpose::Turn {
        return None;
    }
    // A sample checks the claimed savings, so the client's original is counted.
    let of_original = matches!(count, CountSchedule::Sample(_)) || !is_rewritten;
    let prompt = if of_original { prepared.body.clone() } else { sent.whole()? };
    let count = PendingCount::new(of_original);
    CountRequest::new(proxy, prepared, head, prompt).begin(count.clone());
    Some(count)
}

/// Asks now, because an operator wants to know, and waits for the response.
///
/// # Errors
/// The reason why there is no count.
pub(crate) async fn count_now(request: CountRequest) -> Result<u64, CountOutcome> {
    request.answer_within(TIMEOUT, &PendingCount::default()).await
}

/// Sets the provider's count on new messages with pictures or documents, where an agent's rules decide. Returns how
/// long the request waited for it; `None` if nothing was asked.
pub(crate) async fn count_media(
    request: &mut PlacedRequest,
    head: &request::Parts,
) -> Option<Duration> {
    let PlacedRequest { proxy, planned, opened, .. } = request;
    let prepared = &mut planned.prepared;
    let info = prepared.info.clone();
    let rules = info.policy.estimate.deciding()?;
    let is_wanted = info.policy.estimate.count == CountSchedule::Media;
    if !is_wanted || !prepared.may_rewrite() || info.purpose != Purpose::Turn {
        return None;
    }
    let prepared = Arc::make_mut(prepared);
    let memory = MediaMemory::new(&proxy.counting, &info, &prepared.conversation);
    memory.recall(&mut prepared.conversation);
    let anchor = opened.anchor.as_ref().map(AnchorTurn::as_anchor);
    let media = UncountedMedia::new(rules, &prepared.conversation, anchor)?;
    let began = Instant::now();
    let question = media.clone();
    let body = prepared.body.clone();
    let prompt = long_work(info.tenant.as_ref(), move || question.body(&body)).await.ok()?;
    let request = CountRequest::new(proxy, prepared, head, prompt.into());
    let pause_key = request.pause_key();
    let result = PendingCount::default();
    match request.answer_within(MEDIA_WAIT, &result).await {
        Ok(tokens) => {
            let body = prepared.body.clone();
            media.set_counted(rules, &mut prepared.conversation, &body, tokens);
            memory.keep(&prepared.conversation);
        }
        // The next request must not wait as long.
        Err(CountOutcome::Failed) => proxy.counting.pause(pause_key, PAUSE),
        Err(_) if result.is_missing.load(Ordering::Relaxed) => {
            proxy.counting.set_missing(&info.lesson_source());
        }
        Err(_) => {}
    }
    Some(began.elapsed())
}

/// The counts of messages with pictures or documents, by their content: none is asked for twice.
struct MediaMemory<'p> {
    endpoints: &'p CountingEndpoints,
    /// The index of each such message, with its key.
    keys: Vec<(usize, u128)>,
}

impl<'p> MediaMemory<'p> {
    fn new(
        endpoints: &'p CountingEndpoints,
        info: &RequestInfo,
        conversation: &Conversation,
    ) -> Self {
        let tenant = info.tenant.as_ref().map(TenantId::as_str).unwrap_or_default();
        let source = [tenant, &info.upstream.name, info.model_name()].join("\0");
        let mut keys = Vec::new();
        for (index, chain) in media_chains(conversation) {
            let key = [source.as_bytes(), &chain.0.to_le_bytes()].join(&0);
            keys.push((index, xxh3_128(&key)));
        }
        Self { endpoints, keys }
    }

    fn recall(&self, conversation: &mut Conversation) {
        for (index, key) in &self.keys {
            conversation.messages[*index].counted = self.endpoints.answered(*key);
        }
    }

    fn keep(&self, conversation: &Conversation) {
        for (index, key) in &self.keys {
            if let Some(tokens) = conversation.messages[*index].counted {
                self.endpoints.keep(*key, tokens);
            }
        }
    }
}

/// A count request with everything needed to send it.
pub(crate) struct CountRequest {
    proxy: Arc<Proxy>,
    info: Arc<RequestInfo>,
    dialect: Dialect,
    uri: Uri,
    headers: HeaderMap,
    /// The JSON body that is counted.
    prompt: Bytes,
}

impl CountRequest {
    /// `prompt` is what `prepared` was sent as, with this head.
    pub(crate) fn new(
        proxy: &Arc<Proxy>,
        prepared: &PreparedRequest,
        head: &request::Parts,
        prompt: Bytes,
    ) -> Self {
        Self {
            proxy: proxy.clone(),
            info: prepared.info.clone(),
            dialect: prepared.conversation.dialect,
            uri: head.uri.clone(),
            headers: head.headers.clone(),
            prompt,
        }
    }

    async fn answer_within(
        self,
        timeout: Duration,
        result: &PendingCount,
    ) -> Result<u64, CountOutcome> {
        let proxy = self.proxy.clone();
        let upstream = self.info.upstream.clone();
        let mut outcome = CountOutcome::Answered;
        let permit = proxy.counting.permits.clone().try_acquire_owned();
        let counted = match permit {
            _ if proxy.counting.is_paused(&self.pause_key()) => Err(CountOutcome::Paused),
            Err(_) => Err(CountOutcome::Busy),
            Ok(_permit) => {
                let sending = self.send(result, &mut outcome);
                let counted = tokio::time::timeout(timeout, sending).await;
                counted.unwrap_or(Err(CountOutcome::Failed))
            }
        };
        proxy.telemetry.counted_by_provider(&upstream.name, counted.err().unwrap_or(outcome));
        counted
    }

    /// Asks in the background.
    fn begin(self, found: Arc<PendingCount>) {
        tokio::spawn(async move {
            let proxy = self.proxy.clone();
            let pause_key = self.pause_key();
            match self.answer_within(TIMEOUT, &found).await {
                Ok(tokens) => _ = found.tokens.set(tokens),
                Err(CountOutcome::Failed) => proxy.counting.pause(pause_key, PAUSE),
                Err(_) => {}
            }
        });
    }

    fn pause_key(&self) -> Box<str> {
        // A refusal to one tenant says nothing about the others.
        let tenant = self.info.tenant.as_ref().map(TenantId::as_str).unwrap_or_default();
        format!("{tenant} {}", self.info.upstream.name).into()
    }

    /// Sets `outcome` if the count is one that was made before.
    async fn send(
        self,
        found: &PendingCount,
        outcome: &mut CountOutcome,
    ) -> Result<u64, CountOutcome> {
        let pause_key = self.pause_key();
        let Self { proxy, info, dialect, uri, headers, prompt } = self;
        let upstream = &info.upstream;
        // As far as is known, there is no such endpoint.
        if proxy.knows(&info.lesson_source(), Lesson::CountMissing) {
            return Err(CountOutcome::Missing);
        }
        // Reading a large body takes milliseconds, and other streams must not wait for it.
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let question =
            long_work(info.tenant.as_ref(), move || CountQuestion::new(dialect, &target, &prompt))
                .await;
        let Ok(Some(CountQuestion { target, body })) = question else {
            return Err(CountOutcome::Missing);
        };
        let body_copy = body.clone();
        // Equal prompts have equal counts.
        let key = xxh3_128(&[upstream.name.as_bytes(), target.as_bytes(), &body].join(&0));
        if let Some(tokens) = proxy.counting.answered(key) {
            *outcome = CountOutcome::Cached;
            return Ok(tokens);
        }
        let mut parts = uri.into_parts();
        parts.path_and_query = Some(target.parse().map_err(|_| CountOutcome::Missing)?);
        let mut request = Request::post(Uri::from_parts(parts).map_err(|_| CountOutcome::Missing)?);
        if let Some(all) = request.headers_mut() {
            *all = questions::headers(&headers, upstream, upstream, &proxy.credentials);
            all.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            all.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let request = request.body(OutgoingBody::slices(vec![body], None));
        let sending = proxy.pool.send(request.map_err(|_| CountOutcome::Missing)?).await;
        let response = sending.map_err(|_| CountOutcome::Failed)?;
        let status = response.status();
        let pause = pause(response.headers());
        let begun = StartedResponse::read(response, ANSWER_BYTES, &proxy.memory).await;
        if status != StatusCode::OK {
            let refusal = RefusalBody { status: status.as_u16(), body: &begun.start };
            let request = QuotableText { body: &body_copy, texts: vec![info.model_name()] };
            if taught(&refusal, &request).holds(Lesson::CountMissing) {
                found.is_missing.store(true, Ordering::Relaxed);
                return Err(CountOutcome::Missing);
            }
            proxy.counting.pause(pause_key, pause);
            return Err(CountOutcome::Refused);
        }
        let tokens = answer(dialect, &begun.start).ok_or(CountOutcome::Failed)?;
        proxy.counting.keep(key, tokens);
        Ok(tokens)
    }
}

fn pause(headers: &HeaderMap) -> Duration {
    let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    retry_after.map_or(PAUSE, |seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE))
}
