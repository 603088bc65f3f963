//! What the response to a form of a request says, as a [`Verdict`].
//!
//! By status and start; an accepted one may begin with an error. A refusal is read up to its cause, and kept whole: it
//! may be the response that the client gets.

use http::header::CONTENT_ENCODING;
use http::{Response, StatusCode};

use super::{Retry, SeenResponses};
use crate::context::attempt::{RefusalKind, RequestForm, Verdict};
use crate::context::overflow::OverflowSign;
use crate::dialect::lesson::LessonMatch;
use crate::dialect::overflow::{ErrorResponse, Overflow, overflow};
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::repair::{self, Refusal, RepairCause};
use crate::proxy::exchange::response_peek::{self, SeenOverflow};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::learning::lessons::{self, QuotableRequest};
use crate::proxy::response::status::{blames_request, may_not_fit};
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::wire::json::Document;

/// Most bytes of a refusal that are read for its cause.
const CAUSE_BYTES: usize = 64 * 1024;

/// What a refusal says.
struct ReadRefusal {
    /// The cause that its message names, if the status blames the request.
    cause: Option<RefusalCause>,
    /// What it says about the window.
    overflow: Option<Overflow>,
}

impl ReadRefusal {
    fn verdict(&self) -> Verdict {
        // A status that does not blame the request counts only if the message says that the request does not
        // fit.
        match (self.overflow, self.cause) {
            (Some(_), cause) => Verdict::DoesNotFit(cause),
            (None, Some(cause)) => Verdict::Refused(cause),
            (None, None) => Verdict::Failed,
        }
    }
}

impl Retry<'_> {
    pub(super) async fn judge(
        &self,
        form: RequestForm,
        response: Response<OutgoingBody>,
        seen: &mut SeenResponses,
    ) -> Verdict {
        let status = response.status();
        let is_last_resort = matches!(form, RequestForm::Original | RequestForm::LastAccepted);
        if status.is_success() && !is_last_resort {
            return self.judge_accepted(form, response, seen).await;
        }
        if !may_be_refusal(status) {
            seen.hold(form, StartedResponse::unread(response, &self.recorder.proxy.memory));
            return if status.is_success() { Verdict::Accepted } else { Verdict::Failed };
        }
        let response = read_refusal(response, self.recorder).await;
        let refused = ReadRefusal {
            cause: match blames_request(status) {
                true => Some(refusal::cause(&response.start)),
                false => None,
            },
            overflow: self.window_of(&response),
        };
        let verdict = match form {
            RequestForm::Planned | RequestForm::Repaired(_) => {
                let taught = self.taught(&response).await;
                seen.refusal = self.repairable(&response);
                self.judge_repairable(form, refused, taught, seen)
            }
            RequestForm::WithRoom => {
                seen.room_taught = self.taught(&response).await;
                refused.verdict()
            }
            RequestForm::Original | RequestForm::LastAccepted => refused.verdict(),
        };
        seen.hold(form, response);
        verdict
    }

    fn judge_repairable(
        &self,
        form: RequestForm,
        refused: ReadRefusal,
        taught: LessonMatch,
        seen: &mut SeenResponses,
    ) -> Verdict {
        if form == RequestForm::Planned {
            seen.planned_taught = taught.clone();
        }
        if seen.is_about_output() {
            seen.output_taught = taught.clone();
        }
        // A number that contradicts the estimate may be quoted, or about another limit.
        let believed =
            refused.overflow.filter(|overflow| self.agrees_with_estimate(overflow, &taught));
        if let Some(reported) = believed {
            let sign = OverflowSign::Refused;
            seen.overflow = Some(SeenOverflow { sign, reported, taught });
        }
        // What the message names outright counts more than what its numbers suggest.
        if seen.refusal.is_none() {
            seen.refusal = believed.and_then(|reported| self.output_refused(&reported));
        }
        match &seen.refusal {
            Some(repairable) => Verdict::Repairable(RefusalKind {
                cause: refused.cause,
                overflows: believed.is_some(),
                is_of_reasoning: repairable.cause == RepairCause::Reasoning,
            }),
            // A number that is not believed justifies no cut.
            None if refused.overflow.is_some() && believed.is_none() => Verdict::Failed,
            None => refused.verdict(),
        }
    }

    async fn judge_accepted(
        &self,
        form: RequestForm,
        response: Response<OutgoingBody>,
        seen: &mut SeenResponses,
    ) -> Verdict {
        // Without a pending exchange no room can be made, so its start is not read.
        let Some(pending) = &self.pending else {
            seen.hold(form, StartedResponse::unread(response, &self.recorder.proxy.memory));
            return Verdict::Accepted;
        };
        let (response, overflow) = response_peek::read(response, pending, self.recorder).await;
        seen.hold(form, response);
        match overflow {
            // Room was made already; its overflow is final.
            Some(_) if form == RequestForm::WithRoom => Verdict::OverflowInReply,
            Some(overflow) if self.agrees_with_estimate(&overflow.reported, &overflow.taught) => {
                seen.refusal = self.output_refused(&overflow.reported);
                seen.overflow = Some(overflow);
                match seen.refusal {
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
        let pending = self.pending.as_ref().filter(|pending| pending.may_repair())?;
        let status = refused.head.status.as_u16();
        let refusal = repair::read(&repair::RefusedAnswer { status, body: &refused.start })?;
        if pending.allows_repair(refusal.cause) { Some(refusal) } else { None }
    }

    fn output_refused(&self, reported: &Overflow) -> Option<Refusal> {
        // The output gives way before history does.
        let pending = self.pending.as_ref().filter(|pending| pending.may_repair())?;
        let refusal = pending.output_refused(reported)?;
        if pending.allows_repair(refusal.cause) { Some(refusal) } else { None }
    }

    fn agrees_with_estimate(&self, overflow: &Overflow, taught: &LessonMatch) -> bool {
        match &self.pending {
            Some(pending) => !pending.contradicts_estimate(overflow, taught, self.recorder),
            None => true,
        }
    }

    fn window_of(&self, refused: &StartedResponse) -> Option<Overflow> {
        // No room is made in a token count, so it does not matter there.
        let pending = self.pending.as_ref()?;
        let overflow = overflow(&ErrorResponse {
            status: refused.head.status.as_u16(),
            host: self.info.upstream.host(),
            body: &refused.start,
        })?;
        if overflow.is_inferred && !pending.confirms(&overflow) {
            return None;
        }
        Some(overflow)
    }

    async fn taught(&self, refused: &StartedResponse) -> LessonMatch {
        // The lessons of a refusal whose message is complete and not quoted from the request.
        // A request without a pending exchange (a token count) teaches nothing.
        let Some(pending) = &self.pending else { return LessonMatch::default() };
        let status = refused.head.status.as_u16();
        let error = lessons::RefusalResponse::Refused { status, body: &refused.start };
        let prepared = pending.prepared();
        let refused = QuotableRequest {
            info: &prepared.info,
            body: &prepared.body,
            head: Some(&self.original.head),
        };
        lessons::taught(error, &refused).await
    }
}

fn may_be_refusal(status: StatusCode) -> bool {
    blames_request(status) || may_not_fit(status)
}

async fn read_refusal(
    response: Response<OutgoingBody>,
    recorder: &ExchangeRecorder,
) -> StartedResponse {
    // Reads the start of a refusal: until it is complete, and for no longer than an accepted response is
    // delayed.
    StartedResponse::until(
        response,
        CAUSE_BYTES,
        response_peek::TIMEOUT,
        &recorder.proxy.memory,
        |head, start| {
            let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
            is_plain && Document::read(start).is_ok()
        },
    )
    .await
}
