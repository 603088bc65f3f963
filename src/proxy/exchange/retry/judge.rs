//! What the response to a form of a request says, as a [`Verdict`].
//!
//! By status and start; an accepted one may begin with an error. A refusal is read up to its cause, and kept whole: it
//! may be the response that the client gets.

use http::header::CONTENT_ENCODING;
use http::{Response, StatusCode};

use super::{Retry, SeenOverflow, SeenResponses};
use crate::context::attempt::{RefusalKind, RequestForm, Verdict};
use crate::context::overflow::OverflowSign;
use crate::dialect::lesson::LessonMatch;
use crate::dialect::overflow::{ErrorResponse, Overflow, overflow};
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::repair::{self, Refusal, RepairCause};
use crate::proxy::exchange::response_peek::{self, OverflowInStart};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::learning::lessons::{self, QuotableRequest};
use crate::proxy::response::status::{blames_request, may_not_fit};
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::pending::PendingExchange;
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
    /// The verdict, if no edit can fix it. A status that does not blame the request counts only if the message says
    /// that the request does not fit.
    fn verdict(&self) -> Verdict {
        match (self.overflow, self.cause) {
            (Some(_), cause) => Verdict::DoesNotFit(cause),
            (None, Some(cause)) => Verdict::Refused(cause),
            (None, None) => Verdict::Failed,
        }
    }
}

impl Retry<'_> {
    /// Judges the response to a form, and holds it.
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
            cause: blames_request(status).then(|| refusal::cause(&response.start)),
            overflow: self.window_of(&response),
        };
        let verdict = match form {
            RequestForm::Planned | RequestForm::Repaired(_) => {
                let taught = self.taught(&response).await;
                seen.refusal = self.repairable(&response);
                self.judge_repairable(form, refused, taught, seen)
            }
            RequestForm::WithRoom | RequestForm::WithRoomUnbound => {
                seen.room_taught = self.taught(&response).await;
                refused.verdict()
            }
            RequestForm::Original | RequestForm::LastAccepted => refused.verdict(),
        };
        seen.hold(form, response);
        verdict
    }

    /// Judges a refusal of the planned or a repaired form: an edit may fix it.
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
        let believed =
            refused.overflow.filter(|overflow| self.agrees_with_estimate(overflow, &taught));
        if let Some(reported) = believed {
            let sign = OverflowSign::Refused;
            seen.overflow = Some(SeenOverflow { sign, reported, taught });
        }
        if seen.refusal.is_none() {
            seen.refusal = believed.and_then(|reported| self.output_refused(&reported));
        }
        match &seen.refusal {
            Some(repairable) => Verdict::Repairable(RefusalKind {
                cause: refused.cause,
                overflows: believed.is_some(),
                is_of_reasoning: repairable.cause == RepairCause::Reasoning,
            }),
            None if refused.overflow.is_some() && believed.is_none() => Verdict::Failed,
            None => refused.verdict(),
        }
    }

    /// Judges an accepted response, which may begin with an error that says that the request does not fit.
    async fn judge_accepted(
        &self,
        form: RequestForm,
        response: Response<OutgoingBody>,
        seen: &mut SeenResponses,
    ) -> Verdict {
        let Some(pending) = &self.pending else {
            seen.hold(form, StartedResponse::unread(response, &self.recorder.proxy.memory));
            return Verdict::Accepted;
        };
        let peeked = response_peek::read(response, pending, self.recorder).await;
        seen.hold(form, peeked.response);
        match peeked.overflow {
            Some(_) if matches!(form, RequestForm::WithRoom | RequestForm::WithRoomUnbound) => {
                Verdict::OverflowInReply
            }
            Some(OverflowInStart { reported, taught })
                if self.agrees_with_estimate(&reported, &taught) =>
            {
                let sign = OverflowSign::InReply;
                seen.overflow = Some(SeenOverflow { sign, reported, taught });
                seen.refusal = self.output_refused(&reported);
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

    /// The refusal as one that an edit can fix, if a repair is allowed.
    fn repairable(&self, refused: &StartedResponse) -> Option<Refusal> {
        let pending = self.pending.as_ref().filter(|pending| pending.may_repair())?;
        let (status, body) = (refused.head.status.as_u16(), &*refused.start);
        let refusal = repair::read(&repair::RefusedAnswer { status, body })?;
        pending.allows_repair(refusal.cause).then_some(refusal)
    }

    /// The overflow as a refusal of the output alone, if a repair is allowed: it gives way before history does.
    fn output_refused(&self, reported: &Overflow) -> Option<Refusal> {
        let pending = self.pending.as_ref().filter(|pending| pending.may_repair())?;
        let refusal = pending.output_refused(reported)?;
        pending.allows_repair(refusal.cause).then_some(refusal)
    }

    /// Whether what a message says about the window agrees with the estimate.
    fn agrees_with_estimate(&self, overflow: &Overflow, taught: &LessonMatch) -> bool {
        let disbelieves = |pending: &&mut PendingExchange| {
            pending.contradicts_estimate(overflow, taught, self.recorder)
        };
        !self.pending.as_ref().is_some_and(disbelieves)
    }

    /// What a refusal says about the window. No room is made in a token count, so it does not matter there.
    fn window_of(&self, refused: &StartedResponse) -> Option<Overflow> {
        let pending = self.pending.as_ref()?;
        let (status, host) = (refused.head.status.as_u16(), self.info.upstream.host());
        let stated = overflow(&ErrorResponse { status, host, body: &refused.start })?;
        (!stated.is_inferred || pending.confirms(&stated)).then_some(stated)
    }

    /// The lessons of a refusal whose message is complete and not quoted from the request.
    async fn taught(&self, refused: &StartedResponse) -> LessonMatch {
        // A request without a pending exchange (a token count) teaches nothing.
        let Some(pending) = &self.pending else { return LessonMatch::default() };
        let (status, body) = (refused.head.status.as_u16(), &*refused.start);
        let error = lessons::RefusalResponse::Refused { status, body };
        let prepared = pending.prepared();
        let refused = QuotableRequest {
            tenant: prepared.tenant.as_ref(),
            body: &prepared.body,
            model: prepared.model_name(),
            head: Some(&self.original.head),
        };
        lessons::taught(error, &refused).await
    }
}

/// Whether a response with this status may be a refusal; its message decides.
fn may_be_refusal(status: StatusCode) -> bool {
    blames_request(status) || may_not_fit(status)
}

/// Reads the start of a refusal: until it is complete, and for no longer than an accepted response is
/// delayed.
async fn read_refusal(
    response: Response<OutgoingBody>,
    recorder: &ExchangeRecorder,
) -> StartedResponse {
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
