//! A request on its way out, and what is done where its provider refuses it (`docs/rewriting.md` "What is
//! always so").
//!
//! A refusal is read before any byte of it goes to the client, and means one of three things: it does
//! not fit, it may be due to what we changed, or it is the client's. What cannot be mended goes through
//! as the provider wrote it.

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Request, Response, StatusCode, request};

use super::account::Account;
use super::added::{Added, Addition};
use super::body::Outgoing;
use super::refused::{self, Refused, does_not_fit, lessons_of, made_fit, may_be_ours, may_not_fit};
use super::turn::Measure;
use super::upstream::Unanswered;
use super::{early, headers};
use crate::context::overflow::Sign;
use crate::dialect::refusal;
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
pub(super) struct Original {
    pub(super) head: request::Parts,
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    added: Option<Added>,
}

/// A body of fewer bytes holds nothing that could be left out.
const WORTH_BYTES: usize = 2048;

impl Original {
    pub(super) fn untouched(&self) -> (request::Parts, Outgoing) {
        let body = Outgoing::slices(vec![self.bytes.clone()], self.trailers.clone());
        (self.head.clone(), body)
    }

    /// Head and body as they are with these changes; `None` where there are none, or they do not fit
    /// the body.
    pub(super) fn changed(&self, rewrite: Option<Rewrite>) -> Option<(request::Parts, Outgoing)> {
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
        let response = sent(account, head, body).await?;
        let asks_usage = adds == Some(Addition::Usage);
        let may_be_ours = (rewritten || adds.is_some()) && may_be_ours(response.status());
        // Where no room may be made there is nothing to wait for: what is said of the window is read as it passes.
        let mendable = measure.as_ref().filter(|measure| measure.may_make_room());
        let is_judged = may_be_ours && measure.is_some() || mendable.is_some();
        let may_not_fit = is_judged && may_not_fit(response.status());
        let is_accepted = response.status() == StatusCode::OK;
        let may_overflow = is_accepted && mendable.is_some_and(Measure::may_overflow);
        let may_be_mended = may_be_ours || may_not_fit || may_overflow;
        let Some(original) = original.filter(|_| may_be_mended) else {
            return Ok((response, asks_usage && !may_be_ours));
        };
        let doubtful = Doubtful { original, adds, rewritten, may_be_ours, may_not_fit };
        // Few get here: the others' way is not made longer by it.
        match measure {
            Some(measure) if may_overflow => {
                let checked = doubtful.checked(response, measure, account);
                Ok((Box::pin(checked).await, asks_usage))
            }
            _ => {
                let mended = doubtful.mended(response, measure, account);
                let (response, is_asked) = Box::pin(mended).await?;
                Ok((response, is_asked && asks_usage))
            }
        }
    }
}

/// What was sent, and answered in a way that may not be the last word.
struct Doubtful {
    original: Box<Original>,
    adds: Option<Addition>,
    rewritten: bool,
    /// The refusal may be due to what we changed.
    may_be_ours: bool,
    /// It may say that the request does not fit.
    may_not_fit: bool,
}

impl Doubtful {
    /// An answer that was accepted, but may tell of an overflow.
    async fn checked(
        self,
        response: Response<Outgoing>,
        measure: &mut Measure,
        account: &mut Account,
    ) -> Response<Outgoing> {
        let (begun, said) = early::read(response, measure, account).await;
        let believed = |(said, taught): &_| !measure.disbelieves(said, taught, account);
        if let Some((said, taught)) = said.filter(believed) {
            measure.overflowed((Sign::InReply, said), &taught, account).await;
            if let Some(response) = made_fit(&self.original, said, measure, account).await {
                return response;
            }
        }
        begun.into_response()
    }

    /// A refusal that may be mended; answers whether what is answered was asked for what was added.
    async fn mended(
        self,
        response: Response<Outgoing>,
        measure: &mut Option<Measure>,
        account: &mut Account,
    ) -> Result<(Response<Outgoing>, bool), Unanswered> {
        let Self { original, adds, rewritten, may_be_ours, may_not_fit } = self;
        let refused = refused::start(response, account).await;
        let taught = lessons_of(&refused, &original, measure.as_ref()).await;
        let (mut may_help, mut overflowed) = (may_be_ours, false);
        if let Some(measure) = measure.as_mut().filter(|_| may_not_fit)
            && let Some(said) = does_not_fit(&refused, account)
            && !measure.disbelieves(&said, &taught, account)
        {
            overflowed = true;
            measure.overflowed((Sign::Refused, said), &taught, account).await;
            if let Some(response) = made_fit(&original, said, measure, account).await {
                return Ok((response, true));
            }
            // With reasoning put back it may not fit where it would as it came.
            may_help &= measure.puts_back();
        }
        if !may_help {
            return Ok((refused.into_response(), true));
        }
        // A refusal that the client may not have earned. Where nothing was rewritten it names what was
        // asked on our behalf, or it is the client's: no second request is sent on a guess.
        let cause = refusal::cause(&refused.start);
        if !rewritten && adds.is_none_or(|adds| adds.cause() != cause) {
            return Ok((refused.into_response(), true));
        }
        let unfit = overflowed.then_some(refused);
        let refused = Refused { cause, taught, adds, rewritten, unfit };
        refused.otherwise(*original, measure, account).await
    }
}

pub(super) async fn sent(
    account: &Account,
    head: request::Parts,
    body: Outgoing,
) -> Result<Response<Outgoing>, Unanswered> {
    account.proxy.pool.send(Request::from_parts(head, body)).await
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
