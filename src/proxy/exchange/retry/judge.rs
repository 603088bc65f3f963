//! What the response to a form of a request says, as a [`Verdict`].
//!
//! By status and start; an accepted one may begin with an error. A refusal is read up to its cause, and kept whole: it
//! may be the response that the client gets.

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::response::Parts;
use http::{Response, StatusCode};

use super::Retry;
use crate::context::attempt::{RefusalKind, RequestForm, Verdict};
use crate::context::overflow::{self, OverflowEvidence, OverflowReport, OverflowSign};
use crate::dialect::lesson::LessonMatch;
use crate::dialect::overflow::{ErrorResponse, Overflow, overflow as stated_overflow};
use crate::dialect::reading::BodyEnd;
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::repair::{self, Refusal, RepairCause};
use crate::dialect::status::{blames_request, may_not_fit};
use crate::dialect::{Dialect, Reply};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::http::memory::MemoryBudget;
use crate::proxy::learning::lessons;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::response::observe::ResponseObserver;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::wire::json::Document;

/// Most bytes of a refusal that are read for its cause.
const CAUSE_BYTES: usize = 64 * 1024;
/// Most bytes that are read of the start of an accepted response: an error is shorter.
const PEEK_BYTES: usize = 16 * 1024;
/// How long the start of a response without content may be delayed, accepted or refused.
const TIMEOUT: Duration = Duration::from_millis(250);

impl Retry<'_> {
    pub(super) async fn judge(
        &mut self,
        form: RequestForm,
        response: Response<OutgoingBody>,
    ) -> Verdict {
        let status = response.status();
        let is_last_resort = matches!(form, RequestForm::Original | RequestForm::LastAccepted);
        if status.is_success() && !is_last_resort {
            return self.judge_accepted(form, response).await;
        }
        if !may_be_refusal(status) {
            self.hold(form, StartedResponse::unread(response, &self.recorder.proxy.memory));
            return if status.is_success() { Verdict::Accepted } else { Verdict::Failed };
        }
        let response = read_refusal(response, self.recorder).await;
        let cause = match blames_request(status.as_u16()) {
            true => Some(refusal::cause(&response.start)),
            false => None,
        };
        let overflow = self.window_of(&response);
        let verdict = match form {
            RequestForm::Planned | RequestForm::Repaired(_) => {
                let taught = self.taught(&response).await;
                self.refusal = self.repairable(&response);
                self.judge_repairable(form, cause, overflow, taught)
            }
            RequestForm::WithRoom => {
                self.room_taught = self.taught(&response).await;
                refusal_verdict(cause, overflow)
            }
            RequestForm::Original | RequestForm::LastAccepted => refusal_verdict(cause, overflow),
        };
        self.hold(form, response);
        verdict
    }

    fn judge_repairable(
        &mut self,
        form: RequestForm,
        cause: Option<RefusalCause>,
        overflow: Option<Overflow>,
        taught: LessonMatch,
    ) -> Verdict {
        if form == RequestForm::Planned {
            self.planned_taught = taught.clone();
        }
        if self.refusal.as_ref().is_some_and(|refusal| refusal.cause == RepairCause::MaxTokens) {
            self.output_taught = taught.clone();
        }
        // A number that contradicts the estimate may be quoted, or about another limit.
        let believed = overflow.filter(|overflow| self.agrees_with_estimate(overflow, &taught));
        if let Some(reported) = believed {
            self.overflow = Some((OverflowReport::new(OverflowSign::Refused, reported), taught));
        }
        // What the message names outright counts more than what its numbers suggest.
        if self.refusal.is_none() {
            self.refusal = believed.and_then(|reported| self.output_refused(&reported));
        }
        match &self.refusal {
            Some(repairable) => Verdict::Repairable(RefusalKind {
                cause,
                overflows: believed.is_some(),
                is_of_reasoning: repairable.cause == RepairCause::Reasoning,
            }),
            // A number that is not believed justifies no cut.
            None if overflow.is_some() && believed.is_none() => Verdict::Failed,
            None => refusal_verdict(cause, overflow),
        }
    }

    async fn judge_accepted(
        &mut self,
        form: RequestForm,
        response: Response<OutgoingBody>,
    ) -> Verdict {
        // Without a place in a session no room can be made, so its start is not read.
        let Some(placed) = &self.placed else {
            self.hold(form, StartedResponse::unread(response, &self.recorder.proxy.memory));
            return Verdict::Accepted;
        };
        let (response, overflow) = peek(response, placed, self.recorder).await;
        self.hold(form, response);
        match overflow {
            // Room was made already; its overflow is final.
            Some(_) if form == RequestForm::WithRoom => Verdict::OverflowInReply,
            Some((overflow, taught)) if self.agrees_with_estimate(&overflow.reported, &taught) => {
                self.refusal = self.output_refused(&overflow.reported);
                self.overflow = Some((overflow, taught));
                match self.refusal {
                    Some(_) => Verdict::Repairable(RefusalKind {
                        overflows: true,
                        ..RefusalKind::default()
                    }),
                    None => Verdict::OverflowInReply,
                }
            }
            _ => Verdict::Accepted,
        }
    }

    fn repairable(&self, refused: &StartedResponse) -> Option<Refusal> {
        let placed = self.placed.as_ref().filter(|placed| placed.may_repair())?;
        let status = refused.head.status.as_u16();
        let refusal = repair::read(&repair::RefusedAnswer { status, body: &refused.start })?;
        if placed.allows_repair(refusal.cause) { Some(refusal) } else { None }
    }

    fn output_refused(&self, reported: &Overflow) -> Option<Refusal> {
        // The output gives way before history does.
        let placed = self.placed.as_ref().filter(|placed| placed.may_repair())?;
        let refusal = placed.output_refused(reported)?;
        if placed.allows_repair(refusal.cause) { Some(refusal) } else { None }
    }

    fn agrees_with_estimate(&self, overflow: &Overflow, taught: &LessonMatch) -> bool {
        let Some(placed) = &self.placed else { return true };
        let contradicts = placed.contradicts_estimate(overflow);
        if contradicts {
            placed.count_unlearned(taught);
        }
        !contradicts
    }

    fn window_of(&self, refused: &StartedResponse) -> Option<Overflow> {
        // No room is made in a token count, so it does not matter there.
        let placed = self.placed.as_ref()?;
        let overflow = stated_overflow(&ErrorResponse {
            status: refused.head.status.as_u16(),
            host: self.info.upstream.host(),
            body: &refused.start,
        })?;
        if overflow.is_inferred && !placed.confirms(&overflow) {
            return None;
        }
        Some(overflow)
    }

    async fn taught(&self, refused: &StartedResponse) -> LessonMatch {
        // The lessons of a refusal whose message is complete and not quoted from the request.
        // A request without a place in a session (a token count) teaches nothing.
        let Some(placed) = &self.placed else { return LessonMatch::default() };
        let status = refused.head.status.as_u16();
        let error = lessons::RefusalResponse::Refused { status, body: &refused.start };
        let prepared = &placed.planned.prepared;
        let head = Some(&*self.original.head);
        lessons::taught(error, &prepared.info, &prepared.body, head).await
    }
}

/// What a refusal with this cause says: the cause that its message names, if the status blames the request, and what
/// it says about the window.
fn refusal_verdict(cause: Option<RefusalCause>, overflow: Option<Overflow>) -> Verdict {
    // A status that does not blame the request counts only if the message says that the request does not fit.
    match (overflow, cause) {
        (Some(_), cause) => Verdict::DoesNotFit(cause),
        (None, Some(cause)) => Verdict::Refused(cause),
        (None, None) => Verdict::Failed,
    }
}

fn may_be_refusal(status: StatusCode) -> bool {
    blames_request(status.as_u16()) || may_not_fit(status.as_u16())
}

async fn read_refusal(
    response: Response<OutgoingBody>,
    recorder: &ExchangeRecorder,
) -> StartedResponse {
    // Reads the start of a refusal: until it is complete, and for no longer than an accepted response is
    // delayed.
    StartedResponse::until(response, CAUSE_BYTES, TIMEOUT, &recorder.proxy.memory, |head, start| {
        let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
        is_plain && Document::read(start).is_ok()
    })
    .await
}

/// Reads the start of an accepted response. With it comes what it says about the window, and the lessons of its message,
/// if it is an error instead of a reply: an event before any content, or a 200 with an error (`docs/protocols.md` 3.6, 4.3;
/// gateways, MiniMax). What is delayed is never content of the reply, and the delay is short.
async fn peek(
    response: Response<OutgoingBody>,
    placed: &PlacedRequest,
    recorder: &ExchangeRecorder,
) -> (StartedResponse, Option<(OverflowReport, LessonMatch)>) {
    let conversation = &placed.planned.prepared.conversation;
    let mut partial_reply = Reply::default();
    let reading = StartedResponse::until(
        response,
        PEEK_BYTES,
        TIMEOUT,
        &recorder.proxy.memory,
        |head, start| {
            partial_reply = reply(conversation.dialect, head, start, &recorder.proxy.memory);
            partial_reply.error.is_some()
                || !partial_reply.parts.is_empty()
                || partial_reply.complete
        },
    );
    let response = reading.await;
    // Content has begun: whatever comes after it, the request fitted.
    if !partial_reply.parts.is_empty() {
        return (response, None);
    }
    let host = placed.planned.prepared.info.upstream.host();
    let evidence = OverflowEvidence { host, ..OverflowEvidence::default() };
    let detected = overflow::detected(&partial_reply, conversation.purpose, &evidence);
    let (Some(overflow), Some(error)) = (detected, &partial_reply.error) else {
        return (response, None);
    };
    if overflow.sign != OverflowSign::InReply {
        return (response, None);
    }
    let error = lessons::RefusalResponse::InReply { status: StatusCode::OK.as_u16(), error };
    let prepared = &placed.planned.prepared;
    let taught = lessons::taught(error, &prepared.info, &prepared.body, None).await;
    (response, Some((overflow, taught)))
}

fn reply(dialect: Dialect, head: &Parts, start: &[u8], memory: &Arc<MemoryBudget>) -> Reply {
    let status = StatusCode::OK.as_u16();
    let mut reading = ResponseObserver::new(dialect, status, &head.headers, PEEK_BYTES * 2, memory);
    reading.observe(start);
    reading.finish(BodyEnd::Whole).reply.unwrap_or_default()
}
