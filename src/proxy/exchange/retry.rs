//! Sends a request again after a response that may lead to a retry (`docs/rewriting.md` "Rules for every
//! rewrite"): performs what [`context::attempt`](crate::context::attempt) decides.
//!
//! Judges responses by their status and their start, holds those that may still be forwarded, and remembers
//! the findings, so that the next request is not refused for the same. Decides nothing itself.

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::{Response, StatusCode};

use super::original_request::{OriginalRequest, send};
use super::response_peek::{self, OverflowInStart};
use crate::context::attempt::{
    AttemptContext, AttemptFinding, NextAction, RefusableOption, RefusalKind, RequestForm,
    RetryState, RevocationScope, Verdict, next,
};
use crate::context::overflow::OverflowSign;
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::overflow::{ErrorResponse, Overflow, overflow};
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::repair::{self, Refusal, RepairCause};
use crate::dialect::{PartKey, Purpose};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::learning::lessons;
use crate::proxy::response::status::{blames_request, may_not_fit};
use crate::proxy::state::Proxy;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::pending::{PendingExchange, RepairedRequest, RevisedRequest, SessionFact};
use crate::proxy::turn::request_info::RequestInfo;
use crate::telemetry::{FailOpen, LessonOutcome, RefusalOutcome};
use crate::wire::json::Document;

/// Most bytes of a refusal that are read for its cause.
const CAUSE_BYTES: usize = 64 * 1024;

/// A request whose response may lead to a retry.
pub(super) struct Retry<'a> {
    pub(super) original: Box<OriginalRequest>,
    /// What it requests on the client's behalf.
    pub(super) adds: Vec<RefusableOption>,
    pub(super) is_rewritten: bool,
    /// The tenant, upstream and model that a lesson of its responses applies to.
    pub(super) info: RequestInfo,
    pub(super) pending: Option<&'a mut PendingExchange>,
    pub(super) recorder: &'a mut ExchangeRecorder,
}

/// The response that is forwarded to the client, and the form of the request that it answers.
pub(super) struct FinalResponse {
    pub(super) response: Response<OutgoingBody>,
    pub(super) form: RequestForm,
}

/// A response that may still be forwarded to the client, and the form of the request that it answers.
struct HeldResponse {
    form: RequestForm,
    response: StartedResponse,
}

/// What a response said about the window, and the lessons of its message.
#[derive(Clone)]
struct SeenOverflow {
    sign: OverflowSign,
    reported: Overflow,
    taught: LessonMatch,
}

/// What a refusal says.
struct ReadRefusal {
    /// The cause that its message names, if the status blames the request.
    cause: Option<RefusalCause>,
    /// What it says about the window.
    overflow: Option<Overflow>,
    taught: LessonMatch,
}

/// The responses so far, and what they showed.
#[derive(Default)]
struct RetryHistory {
    held: Vec<HeldResponse>,
    /// The newest overflow that may be answered with room.
    overflow: Option<SeenOverflow>,
    /// The lessons of the first one.
    taught: LessonMatch,
    /// The newest refusal, if an edit can fix it.
    refusal: Option<Refusal>,
    /// The request with all repairs.
    repaired: Option<RevisedRequest>,
    /// The same without the newest repair.
    repaired_before: Option<RevisedRequest>,
    /// The keys of the decisions of the newest repair.
    repair_decisions: Vec<PartKey>,
    /// The causes of all repairs.
    repair_causes: Vec<RepairCause>,
    /// The lessons of a refusal of the output limit.
    output_taught: LessonMatch,
    /// The request with room.
    room: Option<RevisedRequest>,
    /// The lessons of its refusal.
    room_taught: LessonMatch,
    /// The request in the form of the last accepted one.
    last_accepted: Option<RevisedRequest>,
}

impl Retry<'_> {
    /// Returns the response to forward. The client waits for it.
    ///
    /// # Errors
    /// If there was no response to the request as its client sent it.
    pub(super) async fn run(
        mut self,
        first: Response<OutgoingBody>,
    ) -> Result<FinalResponse, UpstreamError> {
        let mut answers = RetryHistory::default();
        let mut state = RetryState::Planned;
        let mut verdict = self.judge(RequestForm::Planned, first, &mut answers).await;
        loop {
            let step = next(self.context(), state, verdict);
            if let Some(finding) = step.finding {
                self.remember(finding, &mut answers).await;
            }
            state = match step.then {
                NextAction::Send(state) => state,
                NextAction::Answer(form) => {
                    return answers.take(form).map(|response| FinalResponse { response, form });
                }
            };
            answers.held.retain(|held| state.may_answer(held.form));
            verdict = match state {
                RetryState::Planned => Verdict::Unavailable,
                RetryState::Repaired { round, .. } => self.send_repaired(round, &mut answers).await,
                RetryState::WithRoom(_) => self.send_with_room(&mut answers).await,
                RetryState::WithRoomUnbound(_) => self.send_with_room_unbound(&mut answers).await,
                RetryState::Original { .. } => {
                    let (head, body) = self.original.untouched();
                    let response = send(self.recorder, head, body).await?;
                    self.recorder.record_fail_open(FailOpen::RewriteRefused);
                    self.judge(RequestForm::Original, response, &mut answers).await
                }
                RetryState::LastAccepted { cause, .. } => {
                    self.send_last_accepted(cause, &mut answers).await
                }
            };
        }
    }

    fn context(&self) -> AttemptContext<'_> {
        let pending = self.pending.as_deref();
        AttemptContext {
            is_rewritten: self.is_rewritten,
            changes_beyond_repairs: pending
                .is_some_and(PendingExchange::has_changes_beyond_repairs),
            has_reasoning_back: pending.is_some_and(PendingExchange::has_reasoning_back),
            added: &self.adds,
            is_count: self.info.purpose == Purpose::Count,
        }
    }

    /// Judges the response to a form, and holds it.
    async fn judge(
        &self,
        form: RequestForm,
        response: Response<OutgoingBody>,
        answers: &mut RetryHistory,
    ) -> Verdict {
        let status = response.status();
        let is_last_resort = matches!(form, RequestForm::Original | RequestForm::LastAccepted);
        if status.is_success() && !is_last_resort {
            return self.judge_accepted(form, response, answers).await;
        }
        if !may_be_refusal(status) {
            answers.hold(form, StartedResponse::unread(response, &self.recorder.memory));
            return if status.is_success() { Verdict::Accepted } else { Verdict::Failed };
        }
        let response = read_refusal(response, self.recorder).await;
        let refused = ReadRefusal {
            cause: blames_request(status).then(|| refusal::cause(&response.start)),
            overflow: self.window_of(&response),
            taught: self.taught(&response).await,
        };
        let verdict = match form {
            RequestForm::Planned | RequestForm::Repaired(_) => {
                answers.refusal = self.repairable(&response);
                self.judge_repairable(form, refused, answers)
            }
            RequestForm::WithRoom | RequestForm::WithRoomUnbound => {
                answers.room_taught = refused.taught.clone();
                refused.verdict()
            }
            RequestForm::Original | RequestForm::LastAccepted => refused.verdict(),
        };
        answers.hold(form, response);
        verdict
    }

    /// Judges a refusal of the planned or a repaired form: an edit may fix it.
    fn judge_repairable(
        &self,
        form: RequestForm,
        refused: ReadRefusal,
        answers: &mut RetryHistory,
    ) -> Verdict {
        let taught = &refused.taught;
        if form == RequestForm::Planned {
            answers.taught = taught.clone();
        }
        if answers.is_about_output() {
            answers.output_taught = taught.clone();
        }
        let believed = refused.overflow.filter(|overflow| self.believes(overflow, taught));
        if let Some(reported) = believed {
            let (sign, taught) = (OverflowSign::Refused, taught.clone());
            answers.overflow = Some(SeenOverflow { sign, reported, taught });
        }
        match &answers.refusal {
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
        answers: &mut RetryHistory,
    ) -> Verdict {
        let Some(pending) = &self.pending else {
            answers.hold(form, StartedResponse::unread(response, &self.recorder.memory));
            return Verdict::Accepted;
        };
        let peeked = response_peek::read(response, pending, self.recorder).await;
        answers.hold(form, peeked.response);
        match peeked.overflow {
            Some(_) if matches!(form, RequestForm::WithRoom | RequestForm::WithRoomUnbound) => {
                Verdict::OverflowInReply
            }
            Some(OverflowInStart { reported, taught }) if self.believes(&reported, &taught) => {
                let sign = OverflowSign::InReply;
                answers.overflow = Some(SeenOverflow { sign, reported, taught });
                Verdict::OverflowInReply
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

    /// Sends the request with the smallest change that fixes the newest refusal.
    async fn send_repaired(&mut self, round: u8, answers: &mut RetryHistory) -> Verdict {
        let (Some(pending), Some(refusal)) = (&mut self.pending, answers.refusal.take()) else {
            return Verdict::Unavailable;
        };
        let repair = pending.repair(&refusal, answers.repaired.as_ref(), self.recorder).await;
        let Some(RepairedRequest { revised, decisions }) = repair else {
            return Verdict::Unavailable;
        };
        answers.repair_decisions = decisions;
        answers.repair_causes.push(refusal.cause);
        answers.repaired_before = answers.repaired.take();
        let (response, repaired) = match self.send_revised(Some(revised)).await {
            Ok(sent) => sent,
            Err(verdict) => {
                answers.repaired = answers.repaired_before.take();
                if verdict == Verdict::NoResponse {
                    let causes = &answers.repair_causes;
                    self.recorder.report_refusal(causes, RefusalOutcome::Unanswered);
                }
                return verdict;
            }
        };
        answers.repaired = Some(repaired);
        self.judge(RequestForm::Repaired(round), response, answers).await
    }

    /// Sends the request with room made by cuts or a summary.
    async fn send_with_room(&mut self, answers: &mut RetryHistory) -> Verdict {
        let (Some(pending), Some(overflow)) = (&mut self.pending, &answers.overflow) else {
            return Verdict::Unavailable;
        };
        let room = pending.make_room(overflow.reported, &self.original.head, self.recorder).await;
        self.send_room(RequestForm::WithRoom, room, answers).await
    }

    /// Sends the request with room once more, without the reasoning that is bound to what was cut.
    async fn send_with_room_unbound(&mut self, answers: &mut RetryHistory) -> Verdict {
        let (Some(pending), Some(room)) = (&mut self.pending, &answers.room) else {
            return Verdict::Unavailable;
        };
        let room = pending.unbind_room(room, self.recorder).await;
        self.send_room(RequestForm::WithRoomUnbound, room, answers).await
    }

    /// Sends a form with room; `room`: `None` if there is none.
    async fn send_room(
        &mut self,
        form: RequestForm,
        room: Option<RevisedRequest>,
        answers: &mut RetryHistory,
    ) -> Verdict {
        match self.send_revised(room).await {
            Ok((response, room)) => {
                answers.room = Some(room);
                self.judge(form, response, answers).await
            }
            Err(verdict) => verdict,
        }
    }

    /// Sends the request with the changes of the last accepted one, because reasoning may depend on them.
    async fn send_last_accepted(
        &mut self,
        cause: RefusalCause,
        answers: &mut RetryHistory,
    ) -> Verdict {
        let Some(pending) = &mut self.pending else { return Verdict::Unavailable };
        let before = pending.as_last_accepted(cause).await;
        match self.send_revised(before).await {
            Ok((response, before)) => {
                answers.last_accepted = Some(before);
                self.judge(RequestForm::LastAccepted, response, answers).await
            }
            Err(verdict) => verdict,
        }
    }

    /// Sends a revised request, and returns its response.
    ///
    /// # Errors
    /// The verdict, if there is nothing else to send, or if it got no response.
    async fn send_revised(
        &self,
        revised: Option<RevisedRequest>,
    ) -> Result<(Response<OutgoingBody>, RevisedRequest), Verdict> {
        let revised = revised.ok_or(Verdict::Unavailable)?;
        let changed = self.original.changed(Some(revised.rewrite()));
        let (head, body) = changed.ok_or(Verdict::Unavailable)?;
        let response = send(self.recorder, head, body).await.map_err(|_| Verdict::NoResponse)?;
        Ok((response, revised))
    }

    fn believes(&self, overflow: &Overflow, taught: &LessonMatch) -> bool {
        let disbelieves = |pending: &&mut PendingExchange| {
            pending.contradicts_estimate(overflow, taught, self.recorder)
        };
        !self.pending.as_ref().is_some_and(disbelieves)
    }

    /// What a refusal says about the window. No room is made in a token count, so it does not matter there.
    fn window_of(&self, refused: &StartedResponse) -> Option<Overflow> {
        self.pending.as_ref()?;
        let (status, host) = (refused.head.status.as_u16(), self.info.upstream.host());
        overflow(&ErrorResponse { status, host, body: &refused.start })
    }

    /// The lessons of a refusal whose message is complete and not quoted from the request.
    async fn taught(&self, refused: &StartedResponse) -> LessonMatch {
        // A request without a pending exchange (a token count) teaches nothing.
        let Some(pending) = &self.pending else { return LessonMatch::default() };
        let (status, body) = (refused.head.status.as_u16(), &*refused.start);
        let error = lessons::RefusalResponse::Refused { status, body };
        let prepared = pending.prepared();
        lessons::taught(error, &prepared.body, prepared.model_name(), Some(&self.original.head))
            .await
    }

    /// Reports a finding, and stores its consequences.
    async fn remember(&mut self, finding: AttemptFinding, answers: &mut RetryHistory) {
        let mut revoked = Vec::new();
        if let AttemptFinding::ChangeRefused(cause)
        | AttemptFinding::AllRefused { cause, .. }
        | AttemptFinding::Unsettled(cause) = finding
        {
            self.record_original_sent(cause).await;
        }
        if let Some(pending) = &mut self.pending {
            match (finding, answers.overflow.clone()) {
                (AttemptFinding::Repaired { accepted }, _) => {
                    let causes = if accepted { &answers.repair_causes[..] } else { &[] };
                    if let Some(repaired) = answers.repaired.take() {
                        pending.set_repaired(repaired, causes, self.recorder);
                    }
                    if causes.contains(&RepairCause::MaxTokens) {
                        pending.learn_max_output(&answers.output_taught, self.recorder).await;
                    }
                    let outcome = match accepted {
                        true => RefusalOutcome::Healed,
                        false => RefusalOutcome::Unanswered,
                    };
                    self.recorder.report_refusal(&answers.repair_causes, outcome);
                }
                (AttemptFinding::RepairRefused(_), _) => {
                    let causes = &answers.repair_causes;
                    self.recorder.report_refusal(causes, RefusalOutcome::RefusedAgain);
                }
                (
                    AttemptFinding::Overflow { refused_repair },
                    Some(SeenOverflow { sign, reported, taught }),
                ) => {
                    if refused_repair.is_some() {
                        let causes = &answers.repair_causes;
                        self.recorder.report_refusal(causes, RefusalOutcome::RefusedAgain);
                        answers.repaired = answers.repaired_before.take();
                    }
                    // Room is made in the request with its repairs.
                    if let Some(repaired) = answers.repaired.take() {
                        pending.set_repaired(repaired, &[], self.recorder);
                    }
                    pending.record_overflow(sign, reported, &taught, self.recorder).await;
                }
                (AttemptFinding::RoomMade { accepted }, _) => {
                    if let Some(room) = answers.room.take() {
                        pending.set_room(room, accepted, self.recorder);
                    }
                }
                (AttemptFinding::OwnDecisionsRefused { cause, .. }, _) => {
                    let before = answers.last_accepted.take();
                    revoked = before.map_or_else(Vec::new, |before| {
                        pending.set_sent_as_last_accepted(before, cause, self.recorder)
                    });
                }
                _ => {}
            }
        }
        if let AttemptFinding::ChangeRefused(cause)
        | AttemptFinding::OwnDecisionsRefused { cause, accepted: true } = finding
        {
            self.recorder.event.refused = Some(cause);
        }
        let consequence = finding.consequence(self.context());
        if let Some(RevocationScope::Repair(_) | RevocationScope::All(_)) = consequence.revokes {
            revoked = std::mem::take(&mut answers.repair_decisions);
        }
        let room = answers.room.as_ref();
        let fact = consequence.revokes.and_then(|scope| self.revocation(scope, revoked, room));
        let is_of_room =
            matches!(finding, AttemptFinding::RoomBound | AttemptFinding::RoomRefused(_));
        let taught = if is_of_room { &answers.room_taught } else { &answers.taught };
        let learned = RefusalLessons { lesson: consequence.lesson, taught: taught.clone(), fact };
        learned.store_in_time(&self.recorder.proxy, &self.info).await;
    }

    /// Records that the original was sent.
    async fn record_original_sent(&mut self, cause: RefusalCause) {
        self.recorder.event.done.resent = self.is_rewritten.then_some(cause);
        self.recorder.clear_spared();
        let Some(pending) = &mut self.pending else { return };
        pending.set_sent_as_original(self.recorder).await;
        if self.is_rewritten {
            pending.set_refused(cause);
        }
    }

    /// The fact that decisions no longer apply. `own`: those that the last accepted request did not have, or
    /// those of the last repair.
    fn revocation(
        &mut self,
        scope: RevocationScope,
        own: Vec<PartKey>,
        room: Option<&RevisedRequest>,
    ) -> Option<SessionFact> {
        let pending = self.pending.as_mut()?;
        match scope {
            RevocationScope::InBranch => Some(pending.suspend_branch()),
            RevocationScope::Room(retry) => pending.revoke(pending.room_decisions(room?), retry),
            RevocationScope::Own(retry) | RevocationScope::Repair(retry) => {
                pending.revoke(own, retry)
            }
            RevocationScope::All(retry) => {
                pending.revoke([pending.own_decisions(), own].concat(), retry)
            }
        }
    }
}

impl RetryHistory {
    /// Holds a response, because it may be the one that the client gets.
    fn hold(&mut self, form: RequestForm, response: StartedResponse) {
        self.held.push(HeldResponse { form, response });
    }

    /// Whether the newest refusal is about the output limit.
    fn is_about_output(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| refusal.cause == RepairCause::MaxTokens)
    }

    /// The response to a form.
    fn take(mut self, form: RequestForm) -> Result<Response<OutgoingBody>, UpstreamError> {
        let at = self.held.iter().position(|held| held.form == form);
        let answer = at.map(|at| self.held.swap_remove(at).response.into_response());
        // The table only returns forms that are held (`every_sequence_of_attempts_ends_with_a_kept_response`).
        answer.ok_or(UpstreamError::ResponseLost)
    }
}

/// Whether a response with this status may be a refusal; its message decides.
fn may_be_refusal(status: StatusCode) -> bool {
    blames_request(status) || may_not_fit(status)
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
        &recorder.memory,
        |head, start| {
            let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
            is_plain && Document::read(start).is_ok()
        },
    )
    .await
}

/// What a refusal taught.
struct RefusalLessons {
    /// The lesson that its cause points to. It is learned if the message teaches it.
    lesson: Option<Lesson>,
    taught: LessonMatch,
    /// The fact about decisions.
    fact: Option<SessionFact>,
}

impl RefusalLessons {
    /// Stores it, so that it survives restarts, and waits for that for a limited time. If the store cannot, another
    /// request will be refused.
    async fn store_in_time(self, proxy: &Arc<Proxy>, info: &RequestInfo) {
        if self.lesson.is_none() && self.fact.is_none() {
            return;
        }
        let timeout = Duration::from_millis(proxy.config.limits.save_ms);
        let keeping = tokio::spawn(self.store(proxy.clone(), info.clone()));
        let _ = tokio::time::timeout(timeout, keeping).await;
    }

    async fn store(self, proxy: Arc<Proxy>, info: RequestInfo) {
        if let Some(SessionFact { session, fact }) = self.fact {
            let _ = proxy.ledgers.store_fact(&session, fact).await;
        }
        let Some(lesson) = self.lesson else { return };
        if self.taught.holds(lesson) {
            return proxy.learn(&info.lesson_source(), lesson, None).await;
        }
        let is_quoted = self.taught.quoted.contains(&lesson);
        let why = if is_quoted { LessonOutcome::Quoted } else { LessonOutcome::Unknown };
        proxy.telemetry.lesson(&info.upstream.name, why);
    }
}
