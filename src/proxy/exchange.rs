//! One request, top to bottom (design §4).
//!
//! Reads like the list it implements. Nothing in here may cost the client an answer: what fails on
//! the way is left out, and the original goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, request, response,
};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::account::{About, Account};
use super::added::{Added, Addition};
use super::answer::Fault;
use super::asked::Asked;
use super::body::{self, Collected, Outgoing};
use super::frames::Frames;
use super::headers::{self, Passing};
use super::included::Hiding;
use super::lessons::Lesson;
use super::observe::Observation;
use super::route::{self, Route};
use super::tap::{Answer, Doing, Tap};
use super::turn::Measure;
use super::upstream::Unanswered;
use super::{Phase, Proxy, tunnel};
use crate::config::{Upgrades, Upstream};
use crate::context::{Fact, Outcome};
use crate::dialect::refusal::{self, Cause};
use crate::dialect::{Dialect, Purpose};
use crate::telemetry::FailOpen;
use crate::wire::splice::{Edit, splice};

/// Answers one request.
pub(crate) async fn run(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
    phase: watch::Receiver<Phase>,
) -> Response<Answer> {
    let mut account = Account::open(&proxy, &request, phase);
    // 1. Accept: the connection has its permit, the headers have their limit.
    if headers::size(request.headers()) > proxy.config.limits.header_bytes {
        return ours(&Fault::HeadersTooLarge, account);
    }
    if *request.method() == Method::CONNECT {
        return ours(&Fault::NoForwardProxy, account);
    }
    // 2. Route.
    let (head, body) = request.into_parts();
    let asked = Asked::new(&head);
    account.event.dialect = asked.dialect;
    account.event.purpose = asked.purpose;
    let Some(routed) = Routed::new(&proxy, head, asked.dialect) else {
        return ours(&Fault::NoUpstream, account);
    };
    account.event.upstream = Some(routed.upstream.name.clone());
    if routed.upgrade {
        return Box::pin(upgraded(&proxy, asked, routed, body, account)).await;
    }
    Box::pin(answered(&proxy, &asked, routed, body, account)).await
}

/// The answer where there is no room for another connection.
pub(crate) fn turned(
    proxy: &Arc<Proxy>,
    request: &Request<Incoming>,
    phase: watch::Receiver<Phase>,
) -> Response<Bytes> {
    let mut account = Account::open(proxy, request, phase);
    let response = Fault::Full.answer(None);
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = Fault::Full.outcome();
    response
}

/// A request that knows where it goes; its head is as the upstream gets it.
struct Routed<'p> {
    upstream: &'p Upstream,
    head: request::Parts,
    upgrade: bool,
}

impl<'p> Routed<'p> {
    fn new(proxy: &'p Proxy, mut head: request::Parts, spoken: Option<Dialect>) -> Option<Self> {
        let upstreams = &proxy.config.upstreams;
        let asked = head.uri.clone();
        let route = route::route(upstreams, &asked, &head.headers, spoken)?;
        let upstream = route.upstream;
        let upgrade = headers::is_upgrade(&head.headers);
        head.uri = route::address(&route)?;
        let headers = std::mem::take(&mut head.headers);
        head.headers = outgoing_headers(headers, &route, head.version, upgrade);
        // Which version the upstream speaks is found out when connecting.
        head.version = Version::HTTP_11;
        Some(Self { upstream, head, upgrade })
    }
}

fn outgoing_headers(
    headers: HeaderMap,
    route: &Route<'_, '_>,
    version: Version,
    upgrade: bool,
) -> HeaderMap {
    let headers = headers::pass(headers, Passing { upgrade, keep_chunked: true });
    let own = route.upstream.credential.as_ref();
    let mut headers = headers::without(headers, |name| {
        headers::is_for_us(name) || (own.is_some() && route::is_credential(name))
    });
    if let Some((name, secret)) = own
        && let Ok(mut value) = HeaderValue::from_str(&secret.0)
    {
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    if version == Version::HTTP_2 {
        headers::join_cookies(&mut headers);
    }
    headers::set_host(headers, &route.upstream.base)
}

async fn answered(
    proxy: &Arc<Proxy>,
    asked: &Asked,
    routed: Routed<'_>,
    body: Incoming,
    mut account: Account,
) -> Response<Answer> {
    // 3. Body.
    let collected = match asked.read_as() {
        Some(_) => body::collect(body, proxy.config.limits.body_bytes).await,
        None => Collected::Unread(Outgoing::through(body)),
    };
    let here = Instant::now();
    let mut measure = None;
    let Routed { upstream, head, .. } = routed;
    let outbound = match collected {
        Collected::Broken => return ours(&Fault::RequestBroken, account),
        Collected::Unread(body) => Outbound::plain(head, account.counting(body)),
        Collected::TooLarge(body) => {
            account.stood_aside(FailOpen::BodyTooLarge);
            Outbound::plain(head, account.counting(body))
        }
        Collected::Whole { bytes, trailers } => {
            account.event.request_bytes = bytes.len() as u64;
            // 4. Read. 5. Open the ledger. 6. Plan. 7. Save.
            let understood = asked.understand(&bytes, &mut account).await;
            measure = understood.measure;
            // 8. Splice.
            Outbound::edited(head, bytes, trailers, understood.changes)
        }
    };
    account.event.request_side_us = here.elapsed().as_micros() as u64;
    // 9. Forward.
    let (response, asked_usage) = match outbound.send(&mut measure, &mut account).await {
        Ok(sent) => sent,
        Err(error) => return ours(&fault(upstream, error), account),
    };
    let settle = measure.map(|measure| measure.settle(proxy.clone()));
    account.event.headers_us = Some(account.elapsed_us());
    // 10. Answer. 11. Observe. 12. End. 13. Tell.
    let observation = asked.answered_in().map(|dialect| {
        let limit = proxy.config.limits.reply_bytes;
        Observation::new(dialect, response.status().as_u16(), response.headers(), limit)
    });
    tapped(response, account, Doing { observation, hiding: None, settle }, asked_usage)
}

/// A request on its way out.
struct Outbound {
    head: request::Parts,
    body: Outgoing,
    /// Sent in its place if an edited body is refused.
    original: Option<Box<(request::Parts, Outgoing)>>,
    /// What it asks for on our behalf.
    adds: Option<Addition>,
    /// It is rewritten.
    rewritten: bool,
}

/// What is changed in a body.
#[derive(Default)]
pub(crate) struct Changes {
    /// The body without its encoding, and what the plan changes in it.
    pub(crate) rewrite: Option<(Bytes, Vec<Edit>)>,
    /// What is asked on our behalf; only where the body has no encoding.
    pub(crate) added: Option<Added>,
}

impl Outbound {
    fn plain(head: request::Parts, body: Outgoing) -> Self {
        Self { head, body, original: None, adds: None, rewritten: false }
    }

    fn edited(
        mut head: request::Parts,
        bytes: Bytes,
        trailers: Option<HeaderMap>,
        changes: Changes,
    ) -> Self {
        let untouched = |trailers| Outgoing::slices(vec![bytes.clone()], trailers);
        let rewritten = changes.rewrite.is_some();
        let adds = changes.added.as_ref().map(|added| added.what);
        let (plain, mut edits) = changes.rewrite.unwrap_or_else(|| (bytes.clone(), Vec::new()));
        edits.extend(changes.added.map(|added| added.edit));
        let spliced = (!edits.is_empty()).then(|| splice(&plain, edits));
        let Some(Ok(slices)) = spliced else {
            return Self::plain(head, untouched(trailers));
        };
        let original = Some(Box::new((head.clone(), untouched(trailers.clone()))));
        let length = slices.iter().map(Bytes::len).sum();
        headers::set_length(&mut head.headers, length);
        if head.headers.contains_key(CONTENT_ENCODING) {
            head.headers = headers::without(head.headers, |name| *name == CONTENT_ENCODING);
        }
        if let Some(adds) = adds {
            adds.in_head(&mut head.headers);
        }
        let body = Outgoing::slices(slices, trailers);
        Self { head, body, original, adds, rewritten }
    }

    /// Sends it; answers whether what was answered was asked for usage on our behalf.
    async fn send(
        self,
        measure: &mut Option<Measure>,
        account: &mut Account,
    ) -> Result<(Response<Incoming>, bool), Unanswered> {
        let proxy = account.proxy.clone();
        let at_once = proxy.exchanges.load(Ordering::Relaxed);
        let request = Request::from_parts(self.head, self.body);
        let response = proxy.pool.send(request, at_once).await?;
        let Some(original) = self.original else { return Ok((response, false)) };
        if !may_be_ours(response.status()) {
            return Ok((response, self.adds == Some(Addition::Usage)));
        }
        // A refusal that the client may not have earned: the original tells whose it is.
        let cause = refusal::cause(&body::start_of(response, CAUSE_BYTES).await);
        account.stood_aside(FailOpen::RewriteRefused);
        let (head, body) = *original;
        let response = proxy.pool.send(Request::from_parts(head, body), at_once).await?;
        if let Some(measure) = measure {
            measure.is_sent_as_it_came(account);
        }
        account.event.done.resent = self.rewritten.then_some(cause);
        let rewritten = measure.as_mut().filter(|_| self.rewritten);
        let aside = rewritten.map(|measure| measure.was_refused(cause));
        if !may_be_ours(response.status()) {
            account.event.refused = Some(cause);
            let learned = Learned {
                // With nothing else to blame, it was what we asked for.
                added: self.adds.filter(|adds| adds.cause() == cause || !self.rewritten),
                echo: self.rewritten && cause == Cause::ReasoningRefused,
                binds: self.rewritten && cause == Cause::Bound,
                aside: aside.filter(|_| !cause.is_beside()),
            };
            // What counts tokens may know less than what answers.
            if account.event.purpose != Some(Purpose::Count) {
                learned.keep(proxy, account.about()).await;
            }
        }
        Ok((response, false))
    }
}

/// Whether a refusal may be due to what we changed.
fn may_be_ours(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Most bytes of a refusal that are read for its cause.
const CAUSE_BYTES: usize = 64 * 1024;

/// What a refusal taught.
struct Learned {
    added: Option<Addition>,
    echo: bool,
    binds: bool,
    aside: Option<Fact>,
}

impl Learned {
    /// Remembers it, across restarts. A store that cannot keep it costs one more refusal.
    async fn keep(self, proxy: Arc<Proxy>, about: About) {
        let patience = Duration::from_millis(proxy.config.limits.save_ms);
        let keeping = tokio::spawn(self.kept(proxy, about));
        let _ = tokio::time::timeout(patience, keeping).await;
    }

    async fn kept(self, proxy: Arc<Proxy>, about: About) {
        let About { upstream, model, scope } = about;
        let lessons = &proxy.lessons;
        if let (Some(fact), Some(scope)) = (self.aside, scope) {
            let _ = proxy.ledgers.note(scope, fact).await;
        }
        if let Some(added) = self.added {
            let (lesson, model) = added.lesson(&model);
            lessons.learn(&proxy.ledgers, lesson, &upstream, model).await;
        }
        let of_model = [(self.echo, Lesson::EchoRefused), (self.binds, Lesson::Binds)];
        for (_, lesson) in of_model.into_iter().filter(|(is_learned, _)| *is_learned) {
            lessons.learn(&proxy.ledgers, lesson, &upstream, &model).await;
        }
    }
}

/// An upstream's answer, on its way to the client. `asked_usage`: it answers a body that asked for
/// usage on our behalf.
fn tapped(
    response: Response<Incoming>,
    mut account: Account,
    mut doing: Doing,
    asked_usage: bool,
) -> Response<Answer> {
    let (mut parts, body) = response.into_parts();
    let passing = Passing { upgrade: false, keep_chunked: true };
    parts.headers = headers::pass(std::mem::take(&mut parts.headers), passing);
    parts.version = Version::HTTP_11;
    if asked_usage {
        doing.hiding = hiding(&mut parts);
    }
    account.stamp(&mut parts.headers);
    account.event.status = Some(parts.status.as_u16());
    account.stream = Some(account.proxy.telemetry.stream());
    let refused = parts.status.is_client_error() || parts.status.is_server_error();
    let whole = if refused { Outcome::Refused } else { Outcome::Complete };
    let tap = Tap::new(body, account, doing, whole);
    Response::from_parts(parts, Answer::Tapped(Box::new(tap)))
}

/// What hides our question's answer, where the response is a stream; its length then changes.
fn hiding(parts: &mut response::Parts) -> Option<Box<Hiding>> {
    let value = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let json = value(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"));
    if json || !parts.status.is_success() {
        return None;
    }
    let hiding = Hiding::new(value(CONTENT_ENCODING).unwrap_or_default())?;
    let headers = std::mem::take(&mut parts.headers);
    parts.headers =
        headers::without(headers, |name| *name == CONTENT_LENGTH || *name == CONTENT_ENCODING);
    Some(Box::new(hiding))
}

/// An answer of our own.
fn ours(fault: &Fault, mut account: Account) -> Response<Answer> {
    let mut response = fault.answer(account.event.dialect);
    account.stamp(response.headers_mut());
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = fault.outcome();
    response.map(|body| Answer::Ours(Some(body)))
}

fn fault(upstream: &Upstream, error: Unanswered) -> Fault {
    match error {
        Unanswered::RequestBroken => Fault::RequestBroken,
        Unanswered::TooSlow(why) => Fault::UpstreamTooSlow(upstream.name.clone(), why),
        Unanswered::Failed(why) => Fault::UpstreamFailed(upstream.name.clone(), why),
    }
}

/// Leaves HTTP: tunnelled byte for byte, or refused where policy says so.
async fn upgraded(
    proxy: &Proxy,
    asked: Asked,
    routed: Routed<'_>,
    body: Incoming,
    mut account: Account,
) -> Response<Answer> {
    let Routed { upstream, head, .. } = routed;
    if upstream.upgrades == Upgrades::Refuse {
        return ours(&Fault::UpgradeRefused, account);
    }
    let mut request = Request::from_parts(head, ());
    let client = hyper::upgrade::on(&mut request);
    let request = request.map(|()| Outgoing::through(body));
    let mut response = match proxy.pool.send_http1(request).await {
        Ok(response) => response,
        Err(error) => return ours(&fault(upstream, error), account),
    };
    account.event.headers_us = Some(account.elapsed_us());
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return tapped(response, account, Doing::default(), false);
    }
    account.event.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
    let upstream = hyper::upgrade::on(&mut response);
    let read = asked.is_over_websocket();
    let frames = read.then(|| Frames::new(Arc::new(asked), response.headers(), &account));
    tokio::spawn(tunnel::carry(client, upstream, account, frames));
    let (mut parts, _) = response.into_parts();
    let passing = Passing { upgrade: true, keep_chunked: false };
    parts.headers = headers::pass(std::mem::take(&mut parts.headers), passing);
    Response::from_parts(parts, Answer::Ours(None))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use http::header::ACCEPT_ENCODING;
    use http_body::Body;

    use super::*;
    use crate::proxy::included;

    fn frames(mut body: Outgoing) -> Vec<Bytes> {
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

    fn usage(edit: Option<Edit>) -> Changes {
        let added = edit.map(|edit| Added { what: Addition::Usage, edit });
        Changes { added, rewrite: None }
    }

    #[test]
    fn invariant_1_without_an_edit_the_same_allocation_is_forwarded() {
        let body = Bytes::from(b"{\"stream\":true}".to_vec());
        let outbound = Outbound::edited(head(), body.clone(), None, Changes::default());
        assert!(outbound.original.is_none());
        assert_eq!(outbound.head.headers[ACCEPT_ENCODING], "gzip, br");
        let frames = frames(outbound.body);
        assert_eq!(frames.len(), 1);
        assert_eq!((frames[0].as_ptr(), frames[0].len()), (body.as_ptr(), body.len()));
    }

    #[test]
    fn invariant_2_around_an_edit_the_clients_own_bytes_are_forwarded() {
        let body = Bytes::from(b"{\"stream\":true}".to_vec());
        let outbound = Outbound::edited(head(), body.clone(), None, usage(included::ask(&body)));
        let frames = frames(outbound.body);
        assert_eq!(frames[0].as_ptr(), body.as_ptr());
        assert_eq!(frames.last().unwrap().as_ptr(), body[body.len() - 1..].as_ptr());
        let length: usize = frames.iter().map(Bytes::len).sum();
        assert_eq!(outbound.head.headers[CONTENT_LENGTH], length.to_string());
        let (head, original) = *outbound.original.unwrap();
        assert_eq!(head.headers[CONTENT_LENGTH], "15");
        assert_eq!(self::frames(original)[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn an_edit_that_does_not_fit_is_left_out() {
        let body = Bytes::from_static(b"{}");
        let edit = Edit { at: crate::wire::json::Span::new(9, 9), with: Bytes::from_static(b"x") };
        let outbound = Outbound::edited(head(), body.clone(), None, usage(Some(edit)));
        assert_eq!(frames(outbound.body), [body]);
    }
}
