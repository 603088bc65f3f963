//! What is sent next, depending on the provider's response: all retries of a request, as a table.
//!
//! A request is sent as planned. If that is refused, it may be sent repaired, with room made in it, as its client
//! sent it, and in the form of the branch's last accepted request: each form at most once, repaired once for each
//! refused thing, and [`MOST_CALLS`] in all. If we changed anything beyond repairs, reasoning is repaired last,
//! because it may depend on our change. [`next`] returns the action and the finding;
//! [`AttemptFinding::consequence`] returns what is remembered of the finding.
//! Pure: the caller performs the action and decides nothing (`docs/rewriting.md` "Rules for every rewrite").

mod context;
mod finding;

use super::Renewal;
use crate::dialect::refusal::RefusalCause;

pub use context::{AttemptContext, RefusableOption};
pub use finding::{AttemptFinding, Consequence, RevocationScope};

/// A form in which a request can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    /// With the changes of its plan, and with what is requested on the client's behalf.
    Planned,
    /// The same, with the smallest change that answers each refusal; holds how many refusals are answered.
    Repaired(u8),
    /// With parts cut to make room.
    WithRoom,
    /// As its client sent it.
    Original,
    /// With the changes of the last accepted request of its branch, and no decisions of its own.
    LastAccepted,
}

impl RequestForm {
    fn before_repair(round: u8) -> Self {
        if round == 1 { Self::Planned } else { Self::Repaired(round - 1) }
    }
}

/// The result of sending a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was accepted, and its reply has begun.
    Accepted,
    /// It was accepted, but instead of a reply the body has an error: it does not fit.
    OverflowInReply,
    /// It was refused because it does not fit. Holds the cause that the message names, if the status blames
    /// the request (400, 404, 422).
    DoesNotFit(Option<RefusalCause>),
    /// It was refused, and the status blames the request.
    Refused(RefusalCause),
    /// It was refused for something that an edit can fix.
    Repairable(RefusalKind),
    /// It failed, and changing the request would not help: a rate limit, a failing provider, an overflow that
    /// contradicts the estimate.
    Failed,
    /// It was sent, but no response came: the connection failed, or it took too long. Says nothing about the
    /// form.
    NoResponse,
    /// The request has no such form: there is no edit for it, it could not be saved, or it is the same as one
    /// that was sent.
    Unavailable,
}

/// Details of a refusal that an edit can fix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalKind {
    /// The cause that the message names, if the status blames the request (400, 404, 422).
    pub cause: Option<RefusalCause>,
    /// The message also says that the request does not fit.
    pub overflows: bool,
    /// It is about reasoning, which may depend on what we changed: the client's reasoning is removed only if
    /// nothing else helps.
    pub is_of_reasoning: bool,
}

/// At most this many calls of the provider for one request of a client.
pub const MOST_CALLS: u8 = 3;

/// What was sent last, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryState {
    /// The request as planned.
    Planned,
    /// Repaired, in this round.
    Repaired {
        /// What to do if no repair helps.
        otherwise: RepairFallback,
        /// The refusal that the newest repair answers.
        refusal: RefusalKind,
        /// How many refusals are answered by repairs.
        round: u8,
    },
    /// With room, because it did not fit.
    WithRoom(RoomFallback),
    /// The original, because the rewritten request was refused for `cause`.
    Original {
        /// The cause that the refusal named.
        cause: RefusalCause,
        /// Which part of the rewrite may have caused it.
        blamed: BlameTarget,
    },
    /// In the last accepted form, because the rewritten request was refused for `cause`, and the original for
    /// `of_original`.
    LastAccepted {
        /// The cause that the first refusal named.
        cause: RefusalCause,
        /// The cause that the refusal of the original named.
        of_original: RefusalCause,
        /// The first refusal was about reasoning: if this form is refused too, the client's reasoning is
        /// removed.
        may_repair: bool,
    },
}

/// Which part of a rewritten request may have caused its refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlameTarget {
    /// Anything that was changed.
    Change,
    /// The changes, or the client's own reasoning.
    Reasoning,
    /// Its size, which is larger than that of the original. Holds the form whose response says so.
    Size(RequestForm),
}

/// What to do if no room can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomFallback {
    /// The form whose response says that the request does not fit: the planned or a repaired one.
    pub too_large: RequestForm,
    /// The cause that allows sending the original, too.
    pub cause: Option<RefusalCause>,
}

/// What to do if no repair helps, depending on what was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairFallback {
    /// Only the planned form was sent before, with this refusal.
    AfterPlanned(RefusalKind),
    /// Every other form was sent before.
    AfterAll {
        /// The cause that the first refusal named.
        cause: RefusalCause,
        /// The cause that the refusal of the original named.
        of_original: RefusalCause,
    },
}

/// What to do after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryStep {
    /// What the response showed.
    pub finding: Option<AttemptFinding>,
    /// The next action.
    pub then: NextAction,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Send another form.
    Send(RetryState),
    /// Forward the response to this form to the client.
    Answer(RequestForm),
}

impl RetryState {
    /// Whether the client may still get the response to a form that was sent before.
    pub fn may_answer(self, form: RequestForm) -> bool {
        match self {
            // Nothing was sent before the planned form.
            RetryState::Planned => false,
            RetryState::WithRoom(fallback) => form == fallback.too_large,
            // If there is no room to make, the client sees the refusal that says the request is too
            // large.
            RetryState::Repaired { otherwise: RepairFallback::AfterPlanned(_), refusal, round } => {
                form == RequestForm::Planned
                    || refusal.overflows && form == RequestForm::before_repair(round)
            }
            RetryState::Repaired { otherwise: RepairFallback::AfterAll { .. }, .. } => {
                form == RequestForm::Original
            }
            RetryState::Original { blamed, .. } => blamed == BlameTarget::Size(form),
            RetryState::LastAccepted { .. } => form == RequestForm::Original,
        }
    }
}

/// What to do after `verdict` on what was sent last. `calls`: how many forms were sent so far.
pub fn next(
    context: AttemptContext<'_>,
    calls: u8,
    state: RetryState,
    verdict: Verdict,
) -> RetryStep {
    let step = match state {
        RetryState::Planned => context.after_planned(verdict),
        RetryState::Repaired { otherwise, refusal, round } => {
            context.after_repair(otherwise, refusal, round, verdict)
        }
        RetryState::WithRoom(fallback) => context.after_room(fallback, verdict.without_repair()),
        RetryState::Original { cause, blamed } => context.after_original(cause, blamed, verdict),
        RetryState::LastAccepted { cause, of_original, may_repair } => {
            after_last_accepted(cause, of_original, may_repair, verdict)
        }
    };
    match step.then {
        NextAction::Send(unsent) if calls >= MOST_CALLS => step.without_call(unsent),
        _ => step,
    }
}

impl Verdict {
    fn without_repair(self) -> Self {
        match self {
            // Only the planned and the repaired form are repaired. For the others a refusal is one of
            // size or of the rewrite.
            Verdict::Repairable(RefusalKind { overflows: true, cause, .. }) => {
                Verdict::DoesNotFit(cause)
            }
            Verdict::Repairable(RefusalKind { cause, .. }) => {
                Verdict::Refused(cause.unwrap_or(RefusalCause::Other))
            }
            other => other,
        }
    }
}

impl AttemptContext<'_> {
    fn after_planned(self, verdict: Verdict) -> RetryStep {
        match verdict {
            Verdict::Accepted | Verdict::Failed | Verdict::NoResponse | Verdict::Unavailable => {
                RetryStep::answer(RequestForm::Planned)
            }
            Verdict::OverflowInReply => RetryStep::make_room(RequestForm::Planned, None),
            Verdict::DoesNotFit(cause) => RetryStep::make_room(RequestForm::Planned, cause),
            Verdict::Refused(cause) => self.without_changes(cause, BlameTarget::Change),
            // Reasoning may depend on our change: the original shows whether it does.
            Verdict::Repairable(RefusalKind {
                is_of_reasoning: true, cause: Some(cause), ..
            }) if self.changes_beyond_repairs => {
                self.without_changes(cause, BlameTarget::Reasoning)
            }
            Verdict::Repairable(first) => {
                RetryStep::repair(RepairFallback::AfterPlanned(first), first, 1)
            }
        }
    }

    fn after_repair(
        self,
        otherwise: RepairFallback,
        refusal: RefusalKind,
        round: u8,
        verdict: Verdict,
    ) -> RetryStep {
        let form = RequestForm::Repaired(round);
        let may_make_room = matches!(otherwise, RepairFallback::AfterPlanned(_));
        match verdict {
            Verdict::Accepted => RetryStep::repaired(form, true),
            Verdict::OverflowInReply if may_make_room => RetryStep::make_room(form, None),
            Verdict::OverflowInReply | Verdict::Failed => RetryStep::repaired(form, false),
            Verdict::DoesNotFit(cause) if may_make_room => RetryStep::make_room(form, cause),
            // Each repair answers one refused thing; the next message names the next one.
            Verdict::Repairable(refusal) => RetryStep::repair(otherwise, refusal, round + 1),
            Verdict::Unavailable | Verdict::NoResponse if refusal.overflows && may_make_room => {
                RetryStep::make_room(RequestForm::before_repair(round), refusal.cause)
            }
            Verdict::NoResponse => self.after_unanswered_repair(otherwise),
            Verdict::Unavailable if round == 1 => self.after_failed_repair(otherwise),
            Verdict::Refused(_) | Verdict::DoesNotFit(_) => {
                self.after_failed_repair(otherwise).repair_refused(Renewal::Next)
            }
            Verdict::Unavailable => {
                self.after_failed_repair(otherwise).repair_refused(Renewal::Never)
            }
        }
    }

    fn after_failed_repair(self, otherwise: RepairFallback) -> RetryStep {
        let refusal = match otherwise {
            RepairFallback::AfterPlanned(refusal) => refusal,
            RepairFallback::AfterAll { cause, of_original } => {
                return RetryStep::answer(RequestForm::Original)
                    .all_refused(cause, Some(of_original));
            }
        };
        match (refusal.overflows, refusal.cause) {
            // The refusal also said that the request does not fit, which room answers.
            (true, cause) => RetryStep::make_room(RequestForm::Planned, cause),
            (false, Some(cause)) => self.without_changes(cause, BlameTarget::Change),
            (false, None) => RetryStep::answer(RequestForm::Planned),
        }
    }

    fn after_unanswered_repair(self, otherwise: RepairFallback) -> RetryStep {
        match otherwise {
            // The repair may be right, so it is not blamed.
            RepairFallback::AfterPlanned(_) => self.after_failed_repair(otherwise),
            RepairFallback::AfterAll { cause, .. } => RetryStep::unsettled(cause),
        }
    }

    fn after_room(self, fallback: RoomFallback, verdict: Verdict) -> RetryStep {
        match verdict {
            Verdict::Accepted => RetryStep::room_made(true),
            Verdict::Failed => RetryStep::room_made(false),
            Verdict::Refused(cause) => {
                self.without_room(fallback).finding(AttemptFinding::RoomRefused(cause))
            }
            _ => self.without_room(fallback),
        }
    }

    fn after_original(
        self,
        cause: RefusalCause,
        blamed: BlameTarget,
        verdict: Verdict,
    ) -> RetryStep {
        let of_original = match verdict.without_repair() {
            Verdict::Accepted | Verdict::OverflowInReply => {
                return RetryStep::answer(RequestForm::Original)
                    .finding(AttemptFinding::ChangeRefused(cause));
            }
            Verdict::DoesNotFit(_) => Some(RefusalCause::Overflow),
            Verdict::Refused(of_original) => Some(of_original),
            _ => None,
        };
        let may_be_ours = self.is_rewritten && !cause.is_beside();
        match (of_original, blamed) {
            // The client cannot make room from a complaint about what else the original lacks, so it gets the
            // response about size. A fault in the original's own structure is the client's to see.
            (Some(refused), BlameTarget::Size(too_large)) if refused != RefusalCause::Structure => {
                RetryStep::answer(too_large).all_refused(cause, of_original)
            }
            (Some(of_original), BlameTarget::Change | BlameTarget::Reasoning) if may_be_ours => {
                let may_repair = blamed == BlameTarget::Reasoning;
                RetryStep::send(RetryState::LastAccepted { cause, of_original, may_repair })
            }
            _ => RetryStep::answer(RequestForm::Original).all_refused(cause, of_original),
        }
    }

    fn without_changes(self, cause: RefusalCause, blamed: BlameTarget) -> RetryStep {
        let is_of_added = self.added.iter().any(|added| added.cause == cause);
        // If nothing was rewritten, the original is only sent if `cause` names something that was
        // requested on the client's behalf: no second request is sent on a guess.
        match self.is_rewritten || is_of_added {
            true => RetryStep::send(RetryState::Original { cause, blamed }),
            false => RetryStep::answer(RequestForm::Planned),
        }
    }

    fn without_room(self, fallback: RoomFallback) -> RetryStep {
        let RoomFallback { too_large, cause } = fallback;
        // A request with reasoning put back may be too large where the original fits.
        match cause {
            Some(cause) if self.has_reasoning_back => {
                self.without_changes(cause, BlameTarget::Size(too_large))
            }
            _ => RetryStep::answer(too_large),
        }
    }
}

fn after_last_accepted(
    cause: RefusalCause,
    of_original: RefusalCause,
    may_repair: bool,
    verdict: Verdict,
) -> RetryStep {
    match verdict.without_repair() {
        Verdict::Accepted | Verdict::OverflowInReply => RetryStep::own_refused(cause, true),
        Verdict::Failed => RetryStep::own_refused(cause, false),
        // The client can make room, but only after a response that says so.
        Verdict::DoesNotFit(_) if of_original != RefusalCause::Structure => {
            RetryStep::answer(RequestForm::LastAccepted).all_refused(cause, Some(of_original))
        }
        // Every form was refused, so the client's reasoning itself may be at fault.
        Verdict::Refused(_) | Verdict::Unavailable if may_repair => {
            let refusal =
                RefusalKind { cause: Some(cause), overflows: false, is_of_reasoning: true };
            RetryStep::repair(RepairFallback::AfterAll { cause, of_original }, refusal, 1)
        }
        Verdict::NoResponse => RetryStep::unsettled(cause),
        _ => RetryStep::answer(RequestForm::Original).all_refused(cause, Some(of_original)),
    }
}

impl RetryStep {
    fn send(state: RetryState) -> Self {
        Self { finding: None, then: NextAction::Send(state) }
    }

    fn repair(otherwise: RepairFallback, refusal: RefusalKind, round: u8) -> Self {
        Self::send(RetryState::Repaired { otherwise, refusal, round })
    }

    fn answer(form: RequestForm) -> Self {
        Self { finding: None, then: NextAction::Answer(form) }
    }

    fn make_room(too_large: RequestForm, cause: Option<RefusalCause>) -> Self {
        // The response to this form says that the request does not fit.
        Self::send(RetryState::WithRoom(RoomFallback { too_large, cause }))
            .finding(AttemptFinding::Overflow { refused_repair: None })
    }

    fn repaired(form: RequestForm, accepted: bool) -> Self {
        Self::answer(form).finding(AttemptFinding::Repaired { accepted })
    }

    /// What to do instead of sending `unsent`, if all calls are used up.
    fn without_call(self, unsent: RetryState) -> Self {
        match unsent {
            // What the newest refusal names is left to the client. The repairs so far are right, so its next request
            // begins with them.
            RetryState::Repaired { otherwise: RepairFallback::AfterPlanned(_), round, .. } => {
                Self::repaired(RequestForm::before_repair(round), false)
            }
            RetryState::Repaired {
                otherwise: RepairFallback::AfterAll { cause, of_original },
                ..
            }
            | RetryState::LastAccepted { cause, of_original, .. } => {
                Self::answer(RequestForm::Original).all_refused(cause, Some(of_original))
            }
            RetryState::WithRoom(RoomFallback { too_large: form, .. })
            | RetryState::Original { blamed: BlameTarget::Size(form), .. } => {
                Self { then: NextAction::Answer(form), ..self }
            }
            RetryState::Planned | RetryState::Original { .. } => {
                Self { then: NextAction::Answer(RequestForm::Planned), ..self }
            }
        }
    }

    fn own_refused(cause: RefusalCause, accepted: bool) -> Self {
        Self::answer(RequestForm::LastAccepted)
            .finding(AttemptFinding::OwnDecisionsRefused { cause, accepted })
    }

    fn room_made(accepted: bool) -> Self {
        Self::answer(RequestForm::WithRoom).finding(AttemptFinding::RoomMade { accepted })
    }

    fn unsettled(cause: RefusalCause) -> Self {
        // A form that may be accepted got no response, so nobody knows which form is at fault.
        Self::answer(RequestForm::Original).finding(AttemptFinding::Unsettled(cause))
    }

    fn finding(self, finding: AttemptFinding) -> Self {
        Self { finding: Some(finding), ..self }
    }

    fn repair_refused(self, renewal: Renewal) -> Self {
        match self.finding {
            None => self.finding(AttemptFinding::RepairRefused(renewal)),
            Some(AttemptFinding::Overflow { .. }) => {
                self.finding(AttemptFinding::Overflow { refused_repair: Some(renewal) })
            }
            // That no form was accepted says already that the repair was refused.
            Some(_) => self,
        }
    }

    fn all_refused(self, cause: RefusalCause, of_original: Option<RefusalCause>) -> Self {
        self.finding(AttemptFinding::AllRefused { cause, of_original })
    }
}

#[cfg(test)]
mod tests;
