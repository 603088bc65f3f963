//! A request on its way out, and what is done where its provider refuses it (design §4.8, §4.9).
//!
//! A refusal is read before any byte of it goes to the client, and means one of three things: it does
//! not fit (room is made, once), it may be due to what we changed (the original tells), or it is the
//! client's. What cannot be mended goes through as the provider wrote it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Request, Response, StatusCode, request};
use hyper::body::Incoming;

use super::account::{About, Account};
use super::added::{Added, Addition};
use super::body::{Begun, Outgoing};
use super::lessons::Lesson;
use super::turn::Measure;
use super::upstream::Unanswered;
use super::{Proxy, early, headers};
use crate::context::Fact;
use crate::context::overflow::Sign;
use crate::dialect::Purpose;
use crate::dialect::overflow::{Answered, Overflow, overflow};
use crate::dialect::refusal::{self, Cause};
use crate::telemetry::FailOpen;
use crate::wire::splice::{Edit, splice};

/// A request on its way out.
pub(crate) struct Outbound {
    head: request::Parts,
    body: Outgoing,
    /// As it came, where it may have to be sent again.
    original: Option<Box<Original>>,
    /// What it asks for on our behalf.
    adds: Option<Addition>,
    /// It is rewritten.
    rewritten: bool,
}

/// What is changed in a body.
#[derive(Default)]
pub(crate) struct Changes {
    /// What the plan changes in the body.
    pub(crate) rewrite: Option<Rewrite>,
    /// What is asked on our behalf; only where the body has no encoding.
    pub(crate) added: Option<Added>,
}

/// What a plan changes.
pub(crate) struct Rewrite {
    /// The body without its encoding.
    pub(crate) plain: Bytes,
    /// The changes of its bytes.
    pub(crate) edits: Vec<Edit>,
    /// What the head has to list for it.
    pub(crate) beta: Option<&'static str>,
}

/// A request as the client sent it; its head is as the upstream gets it.
struct Original {
    head: request::Parts,
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    added: Option<Added>,
}

/// A body of fewer bytes holds nothing that could be left out.
const WORTH_BYTES: usize = 2048;

impl Original {
    fn untouched(self) -> (request::Parts, Outgoing) {
        (self.head, Outgoing::slices(vec![self.bytes], self.trailers))
    }

    /// Head and body as they are with these changes; `None` where there are none, or they do not fit
    /// the body.
    fn changed(&self, rewrite: Option<Rewrite>) -> Option<(request::Parts, Outgoing)> {
        let as_it_is = || Rewrite { plain: self.bytes.clone(), edits: Vec::new(), beta: None };
        let Rewrite { plain, mut edits, beta } = rewrite.unwrap_or_else(as_it_is);
        edits.extend(self.added.as_ref().map(|added| added.edit.clone()));
        if edits.is_empty() {
            return None;
        }
        let slices = splice(&plain, edits).ok()?;
        let mut head = self.head.clone();
        headers::set_length(&mut head.headers, slices.iter().map(Bytes::len).sum());
        if head.headers.contains_key(CONTENT_ENCODING) {
            head.headers = headers::without(head.headers, |name| *name == CONTENT_ENCODING);
        }
        if let Some(added) = &self.added {
            added.what.in_head(&mut head.headers);
        }
        if let Some(beta) = beta {
            headers::list_beta(&mut head.headers, beta);
        }
        Some((head, Outgoing::slices(slices, self.trailers.clone())))
    }
}

impl Outbound {
    /// What goes out: head and body.
    pub(crate) fn going(&self) -> (&request::Parts, &Outgoing) {
        (&self.head, &self.body)
    }

    /// A body that nobody has read.
    pub(crate) fn plain(head: request::Parts, body: Outgoing) -> Self {
        Self { head, body, original: None, adds: None, rewritten: false }
    }

    /// A body that was read, with `changes`.
    pub(crate) fn edited(
        head: request::Parts,
        bytes: Bytes,
        trailers: Option<HeaderMap>,
        changes: Changes,
    ) -> Self {
        let rewritten = changes.rewrite.is_some();
        if !rewritten && changes.added.is_none() && bytes.len() < WORTH_BYTES {
            return Self::plain(head, Outgoing::slices(vec![bytes], trailers));
        }
        let original = Original { head, bytes, trailers, added: changes.added };
        match original.changed(changes.rewrite) {
            Some((head, body)) => {
                let adds = original.added.as_ref().map(|added| added.what);
                Self { head, body, original: Some(Box::new(original)), adds, rewritten }
            }
            None => {
                let original = Original { added: None, ..original };
                let head = original.head.clone();
                let slices = vec![original.bytes.clone()];
                let body = Outgoing::slices(slices, original.trailers.clone());
                let original = Some(Box::new(original));
                Self { head, body, original, adds: None, rewritten: false }
            }
        }
    }

    /// Sends it; answers whether what was answered was asked for usage on our behalf.
    pub(crate) async fn send(
        self,
        measure: &mut Option<Measure>,
        account: &mut Account,
    ) -> Result<(Response<Outgoing>, bool), Unanswered> {
        let Self { head, body, original, adds, rewritten } = self;
        let asks_usage = adds == Some(Addition::Usage);
        let response = sent(account, head, body).await?;
        let status = response.status();
        if let (Some(original), Some(measure), StatusCode::OK) =
            (&original, measure.as_mut(), status)
            && measure.may_overflow()
        {
            let (begun, said) = early::read(response, measure, account).await;
            if let Some(said) = said {
                measure.overflowed(Sign::InReply, said, account).await;
                if let Some(response) = made_fit(original, said, measure, account).await {
                    return Ok((response, asks_usage));
                }
            }
            return Ok((begun.into_response(), asks_usage));
        }
        let is_changed = rewritten || adds.is_some();
        let may_be_ours = is_changed && may_be_ours(status);
        let may_not_fit = measure.is_some() && may_not_fit(status);
        let Some(original) = original.filter(|_| may_be_ours || may_not_fit) else {
            return Ok((response.map(Outgoing::through), asks_usage && !may_be_ours));
        };
        let refused = Begun::read(response, CAUSE_BYTES).await;
        let (mut may_help, mut overflowed) = (may_be_ours, false);
        if let Some(measure) = measure.as_mut().filter(|_| may_not_fit)
            && let Some(said) = does_not_fit(&refused, account)
        {
            overflowed = true;
            measure.overflowed(Sign::Refused, said, account).await;
            if let Some(response) = made_fit(&original, said, measure, account).await {
                return Ok((response, asks_usage));
            }
            // With reasoning put back it may not fit where it would as it came.
            may_help &= measure.puts_back();
        }
        if !may_help {
            return Ok((refused.into_response(), asks_usage));
        }
        // A refusal that the client may not have earned: the original tells whose it is.
        let cause = refusal::cause(&refused.start);
        let (head, body) = original.untouched();
        let response = sent(account, head, body).await?;
        let is_ours = !self::may_be_ours(response.status());
        blamed(cause, adds, (rewritten, is_ours), measure, account).await;
        if overflowed && !is_ours {
            // It does not fit either way: what else the original lacks helps no client to make room.
            return Ok((refused.into_response(), asks_usage));
        }
        Ok((response.map(Outgoing::through), false))
    }
}

async fn sent(
    account: &Account,
    head: request::Parts,
    body: Outgoing,
) -> Result<Response<Incoming>, Unanswered> {
    let proxy = &account.proxy;
    let at_once = proxy.exchanges.load(Ordering::Relaxed);
    proxy.pool.send(Request::from_parts(head, body), at_once).await
}

/// Whether a refusal may be due to what we changed.
fn may_be_ours(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Whether an answer may say that a request does not fit: what else it takes stands with the words.
fn may_not_fit(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 413 | 422 | 424 | 500)
}

/// Most bytes of a refusal that are read for its cause.
const CAUSE_BYTES: usize = 64 * 1024;

/// What a refusal says of the window.
fn does_not_fit(refused: &Begun, account: &Account) -> Option<Overflow> {
    let host = account.upstream_host().unwrap_or_default();
    let status = refused.head.status.as_u16();
    overflow(&Answered { status, host: &host, body: &refused.start })
}

/// Makes room in a request that does not fit and sends it once more. `None` where there is no room
/// to be made, or it was refused again: then the provider's first answer is the client's.
async fn made_fit(
    original: &Original,
    said: Overflow,
    measure: &mut Measure,
    account: &mut Account,
) -> Option<Response<Outgoing>> {
    let room = measure.make_room(said, &original.head, account).await?;
    let (head, body) = original.changed(Some(room.rewrite()))?;
    let response = sent(account, head, body).await.ok()?;
    let status = response.status();
    if status == StatusCode::OK {
        let (begun, said) = early::read(response, measure, account).await;
        return said.is_none().then(|| {
            measure.has_room(room, true, account);
            begun.into_response()
        });
    }
    if !may_be_ours(status) && !may_not_fit(status) {
        measure.has_room(room, status.is_success(), account);
        return Some(response.map(Outgoing::through));
    }
    let again = Begun::read(response, CAUSE_BYTES).await;
    if does_not_fit(&again, account).is_none() {
        // What made room is refused for another reason: it is not repeated.
        let cause = refusal::cause(&again.start);
        measure.was_refused(cause);
        let learned = Learned {
            aside: Some(measure.sets_aside()),
            binds: cause == Cause::Bound,
            demands: cause == Cause::ReasoningDemanded,
            ..Learned::default()
        };
        learned.keep(account.proxy.clone(), account.about()).await;
    }
    None
}

/// The original was sent in place of what was refused: tells of it and, where it `is_ours`, learns.
async fn blamed(
    cause: Cause,
    adds: Option<Addition>,
    (rewritten, is_ours): (bool, bool),
    measure: &mut Option<Measure>,
    account: &mut Account,
) {
    account.stood_aside(FailOpen::RewriteRefused);
    if let Some(measure) = measure {
        measure.is_sent_as_it_came(account);
    }
    account.event.done.resent = rewritten.then_some(cause);
    let mut changed = measure.as_mut().filter(|_| rewritten);
    if let Some(measure) = &mut changed {
        measure.was_refused(cause);
    }
    account.event.refused = is_ours.then_some(cause);
    // What counts tokens may know less than what answers.
    if account.event.purpose == Some(Purpose::Count) {
        return;
    }
    // That a model binds its reasoning is so, whoever moved what it is bound to.
    let binds = rewritten && cause == Cause::Bound;
    let learned = match is_ours {
        true => Learned {
            // With nothing else to blame, it was what we asked for.
            added: adds.filter(|adds| adds.cause() == cause || !rewritten),
            echo: rewritten && cause == Cause::ReasoningRefused,
            demands: rewritten && cause == Cause::ReasoningDemanded,
            binds,
            compacts_not: rewritten && cause == Cause::Compaction,
            aside: changed.filter(|_| !cause.is_beside()).map(Measure::sets_aside),
        },
        // Nor is it decided again what may have been to blame all the same: a session must not answer 400
        // for ever.
        false => Learned {
            binds,
            aside: changed.filter(|_| !cause.is_beside()).and_then(|it| it.takes_back()),
            ..Learned::default()
        },
    };
    learned.keep(account.proxy.clone(), account.about()).await;
}

/// What a refusal taught.
#[derive(Default)]
struct Learned {
    added: Option<Addition>,
    echo: bool,
    demands: bool,
    binds: bool,
    compacts_not: bool,
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
        let of_model = [
            (self.echo, Lesson::EchoRefused),
            (self.demands, Lesson::EchoDemanded),
            (self.binds, Lesson::Binds),
            (self.compacts_not, Lesson::CompactionRefused),
        ];
        for (_, lesson) in of_model.into_iter().filter(|(is_learned, _)| *is_learned) {
            lessons.learn(&proxy.ledgers, lesson, &upstream, &model).await;
        }
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
        assert!(outbound.original.is_none() && !outbound.rewritten);
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
        let (head, original) = outbound.original.unwrap().untouched();
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
