//! Sends a request again after a response that may lead to a retry (`docs/rewriting.md` "Rules for every
//! rewrite"): performs what [`context::attempt`](crate::context::attempt) decides.
//!
//! Holds the responses that may still be forwarded; judges them in `judge`, and remembers the findings in `remember`.
//! Decides nothing itself.

mod judge;
mod remember;

use std::sync::Arc;

use http::Response;

use super::latest_request;
use super::original_request::{OriginalRequest, send};
use crate::context::attempt::{
    AttemptContext, NextAction, RefusableOption, RequestForm, RetryState, Verdict, next,
};
use crate::context::overflow::OverflowReport;
use crate::dialect::lesson::LessonMatch;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::{Refusal, RepairCause};
use crate::dialect::{PartKey, Purpose};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::request_info::RequestInfo;
use crate::telemetry::{FailOpen, RefusalOutcome};

/// A request whose response may lead to a retry: the responses so far, and what they showed.
pub(super) struct Retry<'a> {
    pub(super) original: Box<OriginalRequest>,
    /// What it requests on the client's behalf.
    pub(super) adds: Vec<RefusableOption>,
    /// The tenant, upstream and model that a lesson of its responses applies to.
    pub(super) info: Arc<RequestInfo>,
    pub(super) placed: Option<&'a mut PlacedRequest>,
    pub(super) recorder: &'a mut ExchangeRecorder,
    /// The responses that may still be forwarded to the client, each with the form of the request that it answers.
    held: Vec<(RequestForm, StartedResponse)>,
    /// The newest overflow that may be answered with room, and the lessons of its message.
    overflow: Option<(OverflowReport, LessonMatch)>,
    /// The lessons of the refusal of the planned form.
    planned_taught: LessonMatch,
    /// The newest refusal, if an edit can fix it.
    refusal: Option<Refusal>,
    /// The request with all repairs.
    repaired: Option<PlannedRequest>,
    /// The same without the newest repair.
    repaired_before: Option<PlannedRequest>,
    /// The keys of the decisions of each repair that got a response and is not revoked.
    repair_decisions: Vec<Vec<PartKey>>,
    /// The causes of all repairs.
    repair_causes: Vec<RepairCause>,
    /// The lessons of a refusal of the output limit.
    output_taught: LessonMatch,
    /// The request with room.
    room: Option<PlannedRequest>,
    /// The lessons of its refusal.
    room_taught: LessonMatch,
    /// The request in the form of the last accepted one.
    last_accepted: Option<PlannedRequest>,
}

impl<'a> Retry<'a> {
    /// `adds`: what the request asks for on the client's behalf.
    pub(super) fn new(
        original: Box<OriginalRequest>,
        adds: Vec<RefusableOption>,
        info: Arc<RequestInfo>,
        placed: Option<&'a mut PlacedRequest>,
        recorder: &'a mut ExchangeRecorder,
    ) -> Self {
        Self {
            original,
            adds,
            info,
            placed,
            recorder,
            held: Vec::new(),
            overflow: None,
            planned_taught: LessonMatch::default(),
            refusal: None,
            repaired: None,
            repaired_before: None,
            repair_decisions: Vec::new(),
            repair_causes: Vec::new(),
            output_taught: LessonMatch::default(),
            room: None,
            room_taught: LessonMatch::default(),
            last_accepted: None,
        }
    }

    /// Returns the response to forward, and the form of the request that it answers. The client waits for it.
    ///
    /// # Errors
    /// If there was no response to the request as its client sent it.
    pub(super) async fn run(
        mut self,
        first: Response<OutgoingBody>,
    ) -> Result<(Response<OutgoingBody>, RequestForm), UpstreamError> {
        let mut state = RetryState::Planned;
        let mut verdict = self.judge(RequestForm::Planned, first).await;
        let mut calls = 1;
        loop {
            let step = next(self.context(), calls, state, verdict);
            if let Some(finding) = step.finding {
                self.remember(finding).await;
            }
            state = match step.then {
                NextAction::Send(state) => state,
                NextAction::Answer(form) => {
                    self.keep_latest(form);
                    return self.take(form).map(|response| (response, form));
                }
            };
            // A response that cannot be the final one any more gives its memory and its connection back.
            self.held.retain(|(form, _)| state.may_answer(*form));
            verdict = match state {
                RetryState::Planned => Verdict::Unavailable,
                RetryState::Repaired { round, .. } => self.send_repaired(round).await,
                RetryState::WithRoom(_) => self.send_with_room().await,
                RetryState::Original { .. } => {
                    let (head, body) = self.original.untouched();
                    let response = send(self.recorder, head, body).await?;
                    self.recorder.event.add_fail_open(FailOpen::RewriteRefused);
                    self.judge(RequestForm::Original, response).await
                }
                RetryState::LastAccepted { cause, .. } => self.send_last_accepted(cause).await,
            };
            // A form that the request does not have is no call.
            calls += u8::from(verdict != Verdict::Unavailable);
        }
    }

    fn keep_latest(&self, form: RequestForm) {
        // The planned form was kept before it was sent; now another one is final.
        if let Some(placed) = self.placed.as_deref()
            && form != RequestForm::Planned
        {
            latest_request::keep(placed, &self.original.head);
        }
    }

    fn context(&self) -> AttemptContext<'_> {
        let placed = self.placed.as_deref();
        AttemptContext {
            is_rewritten: self.original.is_rewritten,
            changes_beyond_repairs: placed.is_some_and(PlacedRequest::has_changes_beyond_repairs),
            has_reasoning_back: placed.is_some_and(|placed| placed.planned.done.made.put_back > 0),
            added: &self.adds,
            is_count: self.info.purpose == Purpose::Count,
        }
    }

    async fn send_repaired(&mut self, round: u8) -> Verdict {
        let (Some(placed), Some(refusal)) = (&mut self.placed, self.refusal.take()) else {
            return Verdict::Unavailable;
        };
        let base = self.repaired.as_ref();
        let repair = placed.repair(&refusal, base, self.recorder).await;
        let Some((repaired, decisions)) = repair else { return Verdict::Unavailable };
        self.repair_causes.push(refusal.cause);
        let (response, repaired) = match self.send_revised(Some(repaired)).await {
            Ok(sent) => sent,
            Err(verdict) => {
                // It got no response: the form before it stands.
                if verdict == Verdict::NoResponse {
                    let causes = &self.repair_causes;
                    self.recorder.report_refusal(causes, RefusalOutcome::Unanswered);
                }
                return verdict;
            }
        };
        // The repair is one more change of the request with all repairs before it.
        self.repaired_before = self.repaired.replace(repaired);
        self.repair_decisions.push(decisions);
        self.judge(RequestForm::Repaired(round), response).await
    }

    async fn send_with_room(&mut self) -> Verdict {
        let (Some(placed), Some((overflow, _))) = (&mut self.placed, &self.overflow) else {
            return Verdict::Unavailable;
        };
        let room = placed.make_room(overflow.reported, &self.original.head, self.recorder).await;
        match self.send_revised(room).await {
            Ok((response, room)) => {
                self.room = Some(room);
                self.judge(RequestForm::WithRoom, response).await
            }
            Err(verdict) => verdict,
        }
    }

    async fn send_last_accepted(&mut self, cause: RefusalCause) -> Verdict {
        // Reasoning may depend on the changes of the last accepted request.
        let Some(placed) = &mut self.placed else { return Verdict::Unavailable };
        let revised = placed.as_last_accepted(cause).await;
        match self.send_revised(revised).await {
            Ok((response, revised)) => {
                self.last_accepted = Some(revised);
                self.judge(RequestForm::LastAccepted, response).await
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
        revised: Option<PlannedRequest>,
    ) -> Result<(Response<OutgoingBody>, PlannedRequest), Verdict> {
        let revised = revised.ok_or(Verdict::Unavailable)?;
        let changed = self.original.changed(&revised.plan.edits, revised.beta());
        let (head, body) = changed.ok_or(Verdict::Unavailable)?;
        let response = send(self.recorder, head, body).await.map_err(|_| Verdict::NoResponse)?;
        Ok((response, revised))
    }

    fn hold(&mut self, form: RequestForm, response: StartedResponse) {
        // It may be the response that the client gets.
        self.held.push((form, response));
    }

    fn take(mut self, form: RequestForm) -> Result<Response<OutgoingBody>, UpstreamError> {
        // The table only returns forms that are held (`every_sequence_of_attempts_ends_with_kept_response`).
        let index = self.held.iter().position(|(held, _)| *held == form);
        let (_, response) = self.held.swap_remove(index.ok_or(UpstreamError::ResponseLost)?);
        Ok(response.into_response())
    }
}
