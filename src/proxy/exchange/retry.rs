//! Sends a request again where its answer may not be the last word (`docs/rewriting.md` "What is always
//! so"): performs what [`context::attempt`](crate::context::attempt) decides.
//!
//! Judges answers by their status and their first words, keeps those that may yet be the client's, and
//! remembers what was found out, which spares the next request the refusal. Decides nothing itself.

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::{Response, StatusCode};

use super::original_request::{OriginalRequest, sent};
use super::response_peek;
use crate::context::Fact;
use crate::context::attempt::{
    Facts, Finding, Form, RefusalKind, State, Then, Verdict, Void, next,
};
use crate::context::overflow::OverflowSign;
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::overflow::{Answered, Overflow, overflow};
use crate::dialect::refusal::{self, Cause};
use crate::dialect::repair::{self, Refusal, RepairCause};
use crate::dialect::{PartKey, Purpose};
use crate::proxy::exchange_recorder::{ExchangeRecorder, LearningSubject};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::learning::lessons;
use crate::proxy::plan::added_option::AddedOptionKind;
use crate::proxy::response::status::{blames_request, may_not_fit};
use crate::proxy::state::Proxy;
use crate::proxy::turn::pending::{PendingExchange, RevisedRequest};
use crate::proxy::upstream::error::UpstreamError;
use crate::store::ledgers::SessionRoom;
use crate::telemetry::{FailOpen, LessonOutcome, RefusalOutcome};
use crate::wire::json::Document;

/// Most bytes of a refusal that are read for its cause.
const CAUSE_BYTES: usize = 64 * 1024;

/// Which part of a first answer may change what is sent.
#[derive(Clone, Copy)]
pub(super) struct Suspicion {
    /// The refusal may be due to what we changed.
    pub(super) blames_us: bool,
    /// It may say that the request does not fit.
    pub(super) may_not_fit: bool,
    /// It is accepted, and may tell of an overflow all the same.
    pub(super) may_overflow: bool,
}

/// A request whose answer may not be the last word.
pub(super) struct Retry<'a> {
    pub(super) original: Box<OriginalRequest>,
    pub(super) adds: Option<AddedOptionKind>,
    pub(super) is_rewritten: bool,
    pub(super) suspicion: Suspicion,
    pub(super) measure: Option<&'a mut PendingExchange>,
    pub(super) account: &'a mut ExchangeRecorder,
}

/// What was answered so far, and what was found out by it.
#[derive(Default)]
struct Answers {
    /// Those that may yet be the client's.
    held: Vec<(Form, StartedResponse)>,
    /// How the first one says that the request does not fit, and what it says of the window.
    overflow: Option<(OverflowSign, Overflow)>,
    /// What the words of the first one teach.
    taught: LessonMatch,
    /// What an edit can answer of the newest refusal.
    refusal: Option<Refusal>,
    /// The request as it is repaired, what the newest repair decided, and what all of them answer.
    repaired: Option<RevisedRequest>,
    repair_decisions: Vec<PartKey>,
    repair_causes: Vec<RepairCause>,
    /// The request with room in it, and what the words of its refusal teach.
    room: Option<RevisedRequest>,
    room_taught: LessonMatch,
    /// The request as the last accepted one.
    last_accepted: Option<RevisedRequest>,
}

impl Retry<'_> {
    /// The last word on the request, and the form that it answers. The client waits for it.
    ///
    /// # Errors
    /// Where nothing answered the request as its client sent it.
    pub(super) async fn run(
        mut self,
        first: Response<OutgoingBody>,
    ) -> Result<(Response<OutgoingBody>, Form), UpstreamError> {
        let mut answers = Answers::default();
        let (mut state, mut verdict) =
            (State::Planned, self.judge_first(first, &mut answers).await);
        loop {
            let step = next(self.facts(), state, verdict);
            if let Some(finding) = step.finding {
                self.remember(finding, &mut answers).await;
            }
            state = match step.then {
                Then::Send(state) => state,
                Then::Answer(form) => return answers.take(form).map(|response| (response, form)),
            };
            answers.held.retain(|(form, _)| state.may_answer(*form));
            verdict = match state {
                State::Planned => Verdict::Unavailable,
                State::Repaired { round, .. } => self.send_repaired(round, &mut answers).await,
                State::WithRoom(_) => self.send_with_room(&mut answers).await,
                State::Original { .. } => {
                    let (head, body) = self.original.untouched();
                    let response = sent(self.account, head, body).await?;
                    self.account.stood_aside(FailOpen::RewriteRefused);
                    let is_refused = blames_request(response.status());
                    self.judge(Form::Original, response, is_refused, &mut answers).await
                }
                State::LastAccepted { cause, .. } => {
                    self.send_last_accepted(cause, &mut answers).await
                }
            };
        }
    }

    fn facts(&self) -> Facts {
        let measure = self.measure.as_deref();
        Facts {
            is_rewritten: self.is_rewritten,
            may_unbind: measure.is_some_and(PendingExchange::may_unbind),
            has_reasoning_back: measure.is_some_and(PendingExchange::has_reasoning_back),
            added: self.adds.map(|adds| (adds.cause(), adds.lesson())),
            is_count: self.account.event.purpose == Some(Purpose::Count),
        }
    }

    async fn judge_first(
        &self,
        response: Response<OutgoingBody>,
        answers: &mut Answers,
    ) -> Verdict {
        if self.suspicion.may_overflow {
            return self.judge_accepted(Form::Planned, response, answers).await;
        }
        let refused = read_refusal(response, self.account).await;
        answers.taught = self.taught(&refused).await;
        let cause = refusal::cause(&refused.start);
        let said = window_of(&refused, self.account).filter(|_| self.suspicion.may_not_fit);
        answers.refusal = self.repairable(&refused);
        answers.held.push((Form::Planned, refused));
        let blames_us = self.suspicion.blames_us;
        let said = said.filter(|said| self.believes(said, &answers.taught));
        answers.overflow = said.map(|said| (OverflowSign::Refused, said));
        if answers.refusal.is_some() {
            let cause = blames_us.then_some(cause);
            return Verdict::Repairable(answers.kind(cause, said.is_some()));
        }
        match said {
            Some(_) => Verdict::DoesNotFit(blames_us.then_some(cause)),
            None if blames_us => Verdict::Refused(cause),
            None => Verdict::Failed,
        }
    }

    /// An answer that was accepted, and may begin with an error that says that the request does not fit.
    async fn judge_accepted(
        &self,
        form: Form,
        response: Response<OutgoingBody>,
        answers: &mut Answers,
    ) -> Verdict {
        let Some(measure) = &self.measure else {
            answers.held.push((form, StartedResponse::unread(response, &self.account.memory)));
            return Verdict::Accepted;
        };
        let (begun, said) = response_peek::read(response, measure, self.account).await;
        answers.held.push((form, begun));
        match said {
            Some(_) if form != Form::Planned => Verdict::OverflowInReply,
            Some((said, taught)) if self.believes(&said, &taught) => {
                answers.overflow = Some((OverflowSign::InReply, said));
                answers.taught = taught;
                Verdict::OverflowInReply
            }
            _ => Verdict::Accepted,
        }
    }

    /// An answer to another form than the first; `is_refused`: its status blames what was sent.
    async fn judge(
        &self,
        form: Form,
        response: Response<OutgoingBody>,
        is_refused: bool,
        answers: &mut Answers,
    ) -> Verdict {
        if !is_refused {
            let is_accepted = response.status().is_success();
            answers.held.push((form, StartedResponse::unread(response, &self.account.memory)));
            return if is_accepted { Verdict::Accepted } else { Verdict::Failed };
        }
        let refused = read_refusal(response, self.account).await;
        let cause = refusal::cause(&refused.start);
        let overflows = window_of(&refused, self.account).is_some();
        answers.held.push((form, refused));
        if overflows { Verdict::DoesNotFit(Some(cause)) } else { Verdict::Refused(cause) }
    }

    /// What an edit can answer of a refusal, where one may be made.
    fn repairable(&self, refused: &StartedResponse) -> Option<Refusal> {
        let measure = self.measure.as_ref().filter(|measure| measure.may_repair())?;
        let (status, body) = (refused.head.status.as_u16(), &*refused.start);
        let refusal = repair::read(&repair::RefusedAnswer { status, body })?;
        measure.repairs(refusal.cause).then_some(refusal)
    }

    /// With the smallest change that answers the newest refusal.
    async fn send_repaired(&mut self, round: u8, answers: &mut Answers) -> Verdict {
        let (Some(measure), Some(refusal)) = (&mut self.measure, answers.refusal.take()) else {
            return Verdict::Unavailable;
        };
        let repair = measure.repair(&refusal, answers.repaired.as_ref(), self.account).await;
        let Some((repaired, decisions)) = repair else { return Verdict::Unavailable };
        answers.repair_decisions = decisions;
        answers.repair_causes.push(refusal.cause);
        let Some((response, repaired)) = self.send_revised(Some(repaired)).await else {
            return Verdict::Unavailable;
        };
        answers.repaired = Some(repaired);
        let form = Form::Repaired(round);
        if response.status().is_success() {
            return self.judge_accepted(form, response, answers).await;
        }
        let status = response.status();
        let is_refused = blames_request(status) || may_not_fit(status);
        if !is_refused || status.is_server_error() {
            return self.judge(form, response, false, answers).await;
        }
        let refused = read_refusal(response, self.account).await;
        let cause = refusal::cause(&refused.start);
        answers.refusal = self.repairable(&refused);
        let said = window_of(&refused, self.account);
        if let Some(said) = said {
            answers.overflow = Some((OverflowSign::Refused, said));
        }
        answers.held.push((form, refused));
        match (&answers.refusal, said) {
            (Some(_), said) => Verdict::Repairable(answers.kind(Some(cause), said.is_some())),
            (None, Some(_)) => Verdict::DoesNotFit(Some(cause)),
            (None, None) => Verdict::Refused(cause),
        }
    }

    /// By cutting what can be cut, or by a summary.
    async fn send_with_room(&mut self, answers: &mut Answers) -> Verdict {
        let (Some(measure), Some((_, said))) = (&mut self.measure, answers.overflow) else {
            return Verdict::Unavailable;
        };
        let room = measure.make_room(said, &self.original.head, self.account).await;
        let Some((response, room)) = self.send_revised(room).await else {
            return Verdict::Unavailable;
        };
        answers.room = Some(room);
        let (form, status) = (Form::WithRoom, response.status());
        if status == StatusCode::OK {
            return self.judge_accepted(form, response, answers).await;
        }
        let is_refused = blames_request(status) || may_not_fit(status);
        let verdict = self.judge(form, response, is_refused, answers).await;
        if let (Verdict::Refused(_), Some((_, refused))) = (verdict, answers.held.last()) {
            answers.room_taught = self.taught(refused).await;
        }
        verdict
    }

    /// Reasoning may rest on what was changed before.
    async fn send_last_accepted(&mut self, cause: Cause, answers: &mut Answers) -> Verdict {
        let Some(measure) = &mut self.measure else { return Verdict::Unavailable };
        let before = measure.as_last_accepted(cause).await;
        let Some((response, before)) = self.send_revised(before).await else {
            return Verdict::Unavailable;
        };
        answers.last_accepted = Some(before);
        let is_refused = blames_request(response.status());
        self.judge(Form::LastAccepted, response, is_refused, answers).await
    }

    /// `None` where there is nothing else to send, or nobody answered it.
    async fn send_revised(
        &self,
        revised: Option<RevisedRequest>,
    ) -> Option<(Response<OutgoingBody>, RevisedRequest)> {
        let revised = revised?;
        let (head, body) = self.original.changed(Some(revised.rewrite()))?;
        Some((sent(self.account, head, body).await.ok()?, revised))
    }

    fn believes(&self, said: &Overflow, taught: &LessonMatch) -> bool {
        let disbelieves = |measure: &&mut PendingExchange| {
            measure.contradicts_estimate(said, taught, self.account)
        };
        !self.measure.as_ref().is_some_and(disbelieves)
    }

    /// What a refusal teaches, whole and not quoted from what was sent.
    async fn taught(&self, refused: &StartedResponse) -> LessonMatch {
        // What counts tokens has no measure, and teaches nothing.
        let Some(measure) = &self.measure else { return LessonMatch::default() };
        let (status, body) = (refused.head.status.as_u16(), &*refused.start);
        let error = lessons::RefusalResponse::Refused { status, body };
        lessons::taught(error, measure.subject().quotable(), Some(&self.original.head)).await
    }

    /// Tells of a finding, and keeps what follows from it.
    async fn remember(&mut self, finding: Finding, answers: &mut Answers) {
        let mut void = Vec::new();
        if let Finding::ChangeRefused(cause) | Finding::AllRefused { cause, .. } = finding {
            self.record_original_sent(cause).await;
        }
        if let Some(measure) = &mut self.measure {
            match (finding, answers.overflow) {
                (Finding::Repaired { accepted }, _) => {
                    let causes = if accepted { &answers.repair_causes[..] } else { &[] };
                    if let Some(repaired) = answers.repaired.take() {
                        measure.set_repaired(repaired, causes, self.account);
                    }
                    let outcome = match accepted {
                        true => RefusalOutcome::Healed,
                        false => RefusalOutcome::Unanswered,
                    };
                    self.account.report_refusal(&answers.repair_causes, outcome);
                }
                (Finding::RepairRefused(_), _) => {
                    let causes = &answers.repair_causes;
                    self.account.report_refusal(causes, RefusalOutcome::RefusedAgain);
                }
                (Finding::Overflow, Some(overflow)) => {
                    // Room is made beside what was repaired.
                    if let Some(repaired) = answers.repaired.take() {
                        measure.set_repaired(repaired, &[], self.account);
                    }
                    measure.record_overflow(overflow, &answers.taught, self.account).await;
                }
                (Finding::RoomMade { saved }, _) => {
                    let room = answers.room.take();
                    room.into_iter().for_each(|room| measure.set_room(room, saved, self.account));
                }
                (Finding::RoomRefused(cause), _) => measure.set_refused(cause),
                (Finding::OwnDecisionsRefused { cause, .. }, _) => {
                    let before = answers.last_accepted.take();
                    void = before.map_or_else(Vec::new, |before| {
                        measure.set_sent_as_last_accepted(before, cause, self.account)
                    });
                }
                _ => {}
            }
        }
        if let Finding::ChangeRefused(cause)
        | Finding::OwnDecisionsRefused { cause, accepted: true } = finding
        {
            self.account.event.refused = Some(cause);
        }
        let consequence = finding.consequence(self.facts());
        if let Some(Void::Repair(_) | Void::All(_)) = consequence.void {
            void = std::mem::take(&mut answers.repair_decisions);
        }
        let fact = consequence.void.and_then(|it| self.void(it, void, answers.room.as_ref()));
        let is_of_room = matches!(finding, Finding::RoomRefused(_));
        let taught = if is_of_room { &answers.room_taught } else { &answers.taught };
        let learned = Learned { lesson: consequence.lesson, taught: taught.clone(), fact };
        learned.keep(self.account.proxy.clone(), self.account.about()).await;
    }

    /// What is known of it is of the original.
    async fn record_original_sent(&mut self, cause: Cause) {
        self.account.event.done.resent = self.is_rewritten.then_some(cause);
        let Some(measure) = &mut self.measure else { return };
        measure.set_sent_as_original(self.account).await;
        if self.is_rewritten {
            measure.set_refused(cause);
        }
    }

    /// The fact that decisions no longer hold. `own`: those beyond the last accepted request, or of the last repair.
    fn void(
        &mut self,
        void: Void,
        own: Vec<PartKey>,
        room: Option<&RevisedRequest>,
    ) -> Option<(SessionRoom, Fact)> {
        let measure = self.measure.as_mut()?;
        match void {
            Void::InBranch => Some(measure.suspend_branch()),
            Void::Room(anew) => measure.revoke(measure.room_decisions(room?), anew),
            Void::Own(anew) | Void::Repair(anew) => measure.revoke(own, anew),
            Void::All(anew) => measure.revoke([measure.own_decisions(), own].concat(), anew),
        }
    }
}

impl Answers {
    /// The kind of the newest refusal, which an edit can answer.
    fn kind(&self, cause: Option<Cause>, overflows: bool) -> RefusalKind {
        let of = self.refusal.as_ref().map(|refusal| refusal.cause);
        RefusalKind { cause, overflows, is_of_reasoning: of == Some(RepairCause::Reasoning) }
    }

    /// What was answered to a form.
    fn take(mut self, form: Form) -> Result<Response<OutgoingBody>, UpstreamError> {
        let place = self.held.iter().position(|(held, _)| *held == form);
        let answer = place.map(|place| self.held.swap_remove(place).1.into_response());
        // The table answers what is held (`every_path_ends_with_an_answer_that_is_held`).
        answer.ok_or_else(|| UpstreamError::Failed("its answer was not kept".into()))
    }
}

/// Reads the start of a refusal: no longer than the start of an accepted answer is waited for, and no longer
/// than until it is whole.
async fn read_refusal(
    response: Response<OutgoingBody>,
    account: &ExchangeRecorder,
) -> StartedResponse {
    StartedResponse::until(
        response,
        (CAUSE_BYTES, response_peek::PATIENCE),
        &account.memory,
        |head, start| {
            let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
            is_plain && start.trim_ascii_end().ends_with(b"}") && Document::read(start).is_ok()
        },
    )
    .await
}

/// What a refusal says of the window.
fn window_of(refused: &StartedResponse, account: &ExchangeRecorder) -> Option<Overflow> {
    let host = account.upstream_host().unwrap_or_default();
    let status = refused.head.status.as_u16();
    overflow(&Answered { status, host: &host, body: &refused.start })
}

/// What a refusal taught.
struct Learned {
    /// What its blame points at. It is learned where the words teach it.
    lesson: Option<Lesson>,
    taught: LessonMatch,
    /// What it says of decisions.
    fact: Option<(SessionRoom, Fact)>,
}

impl Learned {
    /// Remembers it, across restarts. A store that cannot keep it costs one more refusal.
    async fn keep(self, proxy: Arc<Proxy>, about: LearningSubject) {
        if self.lesson.is_none() && self.fact.is_none() {
            return;
        }
        let patience = Duration::from_millis(proxy.config.limits.save_ms);
        let keeping = tokio::spawn(self.kept(proxy, about));
        let _ = tokio::time::timeout(patience, keeping).await;
    }

    async fn kept(self, proxy: Arc<Proxy>, about: LearningSubject) {
        if let Some((room, fact)) = self.fact {
            let _ = proxy.ledgers.note(&room, fact).await;
        }
        let Some(lesson) = self.lesson else { return };
        if self.taught.holds(lesson) {
            return proxy.learn(&about.source(), lesson, None).await;
        }
        let is_quoted = self.taught.quoted.contains(&lesson);
        let why = if is_quoted { LessonOutcome::Quoted } else { LessonOutcome::Unknown };
        proxy.telemetry.lesson(&about.upstream, why);
    }
}
