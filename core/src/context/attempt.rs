//! What is sent next, by what a provider answered: every retry of one request, as a table.
//!
//! A request goes out as planned. Where that is refused it may be sent with what was refused repaired, with room
//! made in it, as its client sent it, and as the last accepted request of its branch was sent: each once at most,
//! repaired as often as another thing is refused ([`MOST_REPAIRS`]). Reasoning is repaired last where we changed
//! anything: it may rest on that. [`next`] says what to do and what was found out; [`AttemptFinding::consequence`] says
//! what is remembered of that. Pure: whoever sends performs it and decides nothing (`docs/rewriting.md` "Rules
//! for every rewrite").

use super::RevocationRetry;
use crate::dialect::lesson::Lesson;
use crate::dialect::refusal::RefusalCause;

/// A form in which a request can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    /// With what its plan changes, and what is asked on our behalf.
    Planned,
    /// The same, with the smallest change that answers a refusal; by how many refusals that are answered.
    Repaired(u8),
    /// With room made in it.
    WithRoom,
    /// As its client sent it.
    Original,
    /// With what was changed in the last accepted request of its branch, and nothing that it decided itself.
    LastAccepted,
}

/// What came of sending a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is being answered.
    Accepted,
    /// It is accepted, and in place of a reply comes an error: it does not fit.
    OverflowInReply,
    /// It is refused because it does not fit; with the cause that the words name where the status blames
    /// what was sent (400, 404, 422).
    DoesNotFit(Option<RefusalCause>),
    /// It is refused, and the status blames what was sent.
    Refused(RefusalCause),
    /// It is refused for something that an edit can answer.
    Repairable(RefusalKind),
    /// It is not answered, and no change of the request would help: a limit, a provider that fails.
    Failed,
    /// There is no such form of this request, or nothing was answered to it.
    Unavailable,
}

/// What else is known of a refusal that an edit can answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalKind {
    /// What its words name, where the status blames what was sent (400, 404, 422).
    pub cause: Option<RefusalCause>,
    /// It also says that the request does not fit.
    pub overflows: bool,
    /// It is of reasoning, which may rest on what we changed: the client's is taken out where nothing else helps.
    pub is_of_reasoning: bool,
}

/// As often as this a request is repaired: once for each thing that is refused.
const MOST_REPAIRS: u8 = 4;

/// Something that is asked on our behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusableOption {
    /// What a refusal of it names.
    pub cause: RefusalCause,
    /// What that teaches.
    pub lesson: Lesson,
}

/// What is known of a request before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptContext<'a> {
    /// Its plan changes what its client sent.
    pub is_rewritten: bool,
    /// It changes more than what was refused before: what the client's reasoning may rest on.
    pub may_unbind: bool,
    /// Reasoning that its client left out was put back in what was sent last.
    pub has_reasoning_back: bool,
    /// What is asked on our behalf.
    pub added: &'a [RefusableOption],
    /// It asks how many tokens it is: its endpoint may know less than the one that answers.
    pub is_count: bool,
}

/// What was sent last, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryState {
    /// The request as planned.
    Planned,
    /// Repaired, for the time `round`.
    Repaired {
        /// What is done where no repair helps.
        otherwise: RepairFallback,
        /// How many refusals are answered.
        round: u8,
    },
    /// With room, because it did not fit; with the cause for which it could also be sent as it came.
    WithRoom(Option<RefusalCause>),
    /// As it came, because the rewritten one was refused for `cause`.
    Original {
        /// What the refusal named.
        cause: RefusalCause,
        /// What of the rewritten one may be to blame.
        blamed: BlameTarget,
    },
    /// As the last accepted one, because the rewritten one was refused for `cause`, and the original for
    /// `of_original`.
    LastAccepted {
        /// What the first refusal named.
        cause: RefusalCause,
        /// What the refusal of the original named.
        of_original: RefusalCause,
        /// The first was of reasoning: the client's is taken out where this form is refused as well.
        may_repair: bool,
    },
}

/// What of a rewritten request may be to blame for its refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlameTarget {
    /// Anything that was changed.
    Change,
    /// What was changed, or the client's own reasoning.
    Reasoning,
    /// That it is larger than what its client sent.
    Size,
}

/// What is done where no repair helps, by what was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairFallback {
    /// The request as planned alone, which was refused as this says.
    AfterPlanned(RefusalKind),
    /// Every other form.
    AfterAll {
        /// What the first refusal named.
        cause: RefusalCause,
        /// What the refusal of the original named.
        of_original: RefusalCause,
    },
}

/// What to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryStep {
    /// What the answer showed.
    pub finding: Option<AttemptFinding>,
    /// What comes then.
    pub then: NextAction,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Another form is sent.
    Send(RetryState),
    /// The client gets what was answered to this form.
    Answer(RequestForm),
}

/// What an answer showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFinding {
    /// Repaired, it was the last word.
    Repaired {
        /// The provider took it.
        accepted: bool,
    },
    /// Repaired, it is refused: for something that no edit answers, after which the repair may be decided anew, or
    /// for the same thing.
    RepairRefused(RevocationRetry),
    /// The request does not fit.
    Overflow,
    /// With room in it, it was the last word.
    RoomMade {
        /// The provider took it.
        saved: bool,
    },
    /// With room in it, it is refused for another reason.
    RoomRefused(RefusalCause),
    /// Only the original is accepted: what we changed, or asked for, was refused for this.
    ChangeRefused(RefusalCause),
    /// No form is accepted. Refused for `cause` as planned; `of_original`: `None` where who is to blame was
    /// not told.
    AllRefused {
        /// What the first refusal named.
        cause: RefusalCause,
        /// What the refusal of the original named.
        of_original: Option<RefusalCause>,
    },
    /// Without what it decided itself it was the last word; with it, it was refused for `cause`.
    OwnDecisionsRefused {
        /// What the first refusal named.
        cause: RefusalCause,
        /// The provider took it without.
        accepted: bool,
    },
}

/// What is remembered of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consequence {
    /// What no longer holds.
    pub void: Option<RevocationScope>,
    /// What is learned of the model, as far as the provider's words teach it.
    pub lesson: Option<Lesson>,
}

/// Decisions that no longer hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationScope {
    /// Everything decided so far, in what grows from this request.
    InBranch,
    /// What the last repair changed.
    Repair(RevocationRetry),
    /// What made room.
    Room(RevocationRetry),
    /// What the request decided beyond the last accepted one.
    Own(RevocationRetry),
    /// All that the request decided.
    All(RevocationRetry),
}

impl RetryState {
    /// Whether the client may yet get what was answered to a form that was sent before.
    pub fn may_answer(self, form: RequestForm) -> bool {
        match self {
            RetryState::Planned => false,
            RetryState::WithRoom(_) => form == RequestForm::Planned,
            RetryState::Repaired { otherwise: RepairFallback::AfterPlanned(_), .. } => {
                form == RequestForm::Planned
            }
            RetryState::Repaired { otherwise: RepairFallback::AfterAll { .. }, .. } => {
                form == RequestForm::Original
            }
            RetryState::Original { blamed, .. } => {
                form == RequestForm::Planned && blamed == BlameTarget::Size
            }
            RetryState::LastAccepted { .. } => form == RequestForm::Original,
        }
    }
}

/// What to do after `verdict` on what was sent last.
pub fn next(facts: AttemptContext<'_>, state: RetryState, verdict: Verdict) -> RetryStep {
    match state {
        RetryState::Planned => facts.after_planned(verdict),
        RetryState::Repaired { otherwise, round } => facts.after_repair(otherwise, round, verdict),
        RetryState::WithRoom(first) => facts.after_room(first, verdict.unrepaired()),
        RetryState::Original { cause, blamed } => facts.after_original(cause, blamed, verdict),
        RetryState::LastAccepted { cause, of_original, may_repair } => {
            after_last_accepted(cause, of_original, may_repair, verdict)
        }
    }
}

impl Verdict {
    /// Where nothing is repaired: neither what makes room nor the client's own request is.
    fn unrepaired(self) -> Self {
        match self {
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
    /// What to do after `verdict` on the request as planned.
    fn after_planned(self, verdict: Verdict) -> RetryStep {
        match verdict {
            Verdict::Accepted | Verdict::Failed | Verdict::Unavailable => {
                RetryStep::answer(RequestForm::Planned)
            }
            Verdict::OverflowInReply => {
                RetryStep::send(RetryState::WithRoom(None)).finding(AttemptFinding::Overflow)
            }
            Verdict::DoesNotFit(cause) => {
                RetryStep::send(RetryState::WithRoom(cause)).finding(AttemptFinding::Overflow)
            }
            Verdict::Refused(cause) => self.without_changes(cause, BlameTarget::Change),
            Verdict::Repairable(RefusalKind {
                is_of_reasoning: true, cause: Some(cause), ..
            }) if self.may_unbind => self.without_changes(cause, BlameTarget::Reasoning),
            Verdict::Repairable(first) => RetryStep::repair(RepairFallback::AfterPlanned(first), 1),
        }
    }

    /// What to do after `verdict` on the request as it was repaired for the time `round`.
    fn after_repair(self, otherwise: RepairFallback, round: u8, verdict: Verdict) -> RetryStep {
        let repaired = |accepted| {
            RetryStep::answer(RequestForm::Repaired(round))
                .finding(AttemptFinding::Repaired { accepted })
        };
        match (verdict, otherwise) {
            (Verdict::Accepted | Verdict::OverflowInReply, _) => repaired(true),
            (Verdict::Failed, _) => repaired(false),
            (Verdict::Repairable(_), _) if round < MOST_REPAIRS => {
                RetryStep::repair(otherwise, round + 1)
            }
            (Verdict::DoesNotFit(cause), RepairFallback::AfterPlanned(_)) => {
                RetryStep::send(RetryState::WithRoom(cause)).finding(AttemptFinding::Overflow)
            }
            (Verdict::Unavailable, _) if round == 1 => self.unrepaired(otherwise),
            (Verdict::Refused(_) | Verdict::DoesNotFit(_), _) => {
                self.unrepaired(otherwise).repair_refused(RevocationRetry::Next)
            }
            (Verdict::Repairable(_) | Verdict::Unavailable, _) => {
                self.unrepaired(otherwise).repair_refused(RevocationRetry::Never)
            }
        }
    }

    /// What is done where no repair answers a refusal.
    fn unrepaired(self, otherwise: RepairFallback) -> RetryStep {
        let first = match otherwise {
            RepairFallback::AfterPlanned(first) => first,
            RepairFallback::AfterAll { cause, of_original } => {
                return RetryStep::answer(RequestForm::Original)
                    .all_refused(cause, Some(of_original));
            }
        };
        match (first.overflows, first.cause) {
            (true, cause) => {
                RetryStep::send(RetryState::WithRoom(cause)).finding(AttemptFinding::Overflow)
            }
            (false, Some(cause)) => self.without_changes(cause, BlameTarget::Change),
            (false, None) => RetryStep::answer(RequestForm::Planned),
        }
    }

    /// What to do after `verdict` on the request with room in it; `first`: what the refusal for its size named.
    fn after_room(self, first: Option<RefusalCause>, verdict: Verdict) -> RetryStep {
        let room_made = |saved| {
            RetryStep::answer(RequestForm::WithRoom).finding(AttemptFinding::RoomMade { saved })
        };
        match verdict {
            Verdict::Accepted => room_made(true),
            Verdict::Failed => room_made(false),
            Verdict::Refused(cause) => {
                self.without_room(first).finding(AttemptFinding::RoomRefused(cause))
            }
            _ => self.without_room(first),
        }
    }

    /// What to do after `verdict` on the request as it came.
    fn after_original(
        self,
        cause: RefusalCause,
        blamed: BlameTarget,
        verdict: Verdict,
    ) -> RetryStep {
        let of_original = match verdict.unrepaired() {
            Verdict::Accepted | Verdict::OverflowInReply => {
                return RetryStep::answer(RequestForm::Original)
                    .finding(AttemptFinding::ChangeRefused(cause));
            }
            Verdict::DoesNotFit(_) => Some(RefusalCause::Overflow),
            Verdict::Refused(of_original) => Some(of_original),
            _ => None,
        };
        match of_original {
            Some(of_original)
                if blamed != BlameTarget::Size && self.is_rewritten && !cause.is_beside() =>
            {
                let may_repair = blamed == BlameTarget::Reasoning;
                RetryStep::send(RetryState::LastAccepted { cause, of_original, may_repair })
            }
            _ => {
                // What else the original lacks helps no client to make room; what it got wrong by itself does.
                let is_planned = blamed == BlameTarget::Size
                    && of_original.is_some_and(|cause| cause != RefusalCause::Structure);
                let form = if is_planned { RequestForm::Planned } else { RequestForm::Original };
                RetryStep::answer(form).all_refused(cause, of_original)
            }
        }
    }

    /// The request as it came, where a refusal that names `cause` may be due to what we changed. Where
    /// nothing was rewritten it names what was asked on our behalf, or it is the client's: no second request
    /// is sent on a guess.
    fn without_changes(self, cause: RefusalCause, blamed: BlameTarget) -> RetryStep {
        let is_of_added = self.added.iter().any(|added| added.cause == cause);
        match self.is_rewritten || is_of_added {
            true => RetryStep::send(RetryState::Original { cause, blamed }),
            false => RetryStep::answer(RequestForm::Planned),
        }
    }

    /// Where no room could be made. With reasoning put back a request may not fit where it would as it came.
    fn without_room(self, first: Option<RefusalCause>) -> RetryStep {
        match first.filter(|_| self.has_reasoning_back) {
            Some(cause) => self.without_changes(cause, BlameTarget::Size),
            None => RetryStep::answer(RequestForm::Planned),
        }
    }
}

/// What to do after `verdict` on the last accepted form.
fn after_last_accepted(
    cause: RefusalCause,
    of_original: RefusalCause,
    may_repair: bool,
    verdict: Verdict,
) -> RetryStep {
    let own_refused = |accepted| {
        RetryStep::answer(RequestForm::LastAccepted)
            .finding(AttemptFinding::OwnDecisionsRefused { cause, accepted })
    };
    let all_refused = |form| RetryStep::answer(form).all_refused(cause, Some(of_original));
    match verdict.unrepaired() {
        Verdict::Accepted | Verdict::OverflowInReply => own_refused(true),
        Verdict::Failed => own_refused(false),
        Verdict::DoesNotFit(_) if of_original != RefusalCause::Structure => {
            all_refused(RequestForm::LastAccepted)
        }
        Verdict::Refused(_) | Verdict::Unavailable if may_repair => {
            RetryStep::repair(RepairFallback::AfterAll { cause, of_original }, 1)
        }
        _ => all_refused(RequestForm::Original),
    }
}

impl RetryStep {
    fn send(state: RetryState) -> Self {
        Self { finding: None, then: NextAction::Send(state) }
    }

    fn repair(otherwise: RepairFallback, round: u8) -> Self {
        Self::send(RetryState::Repaired { otherwise, round })
    }

    fn answer(form: RequestForm) -> Self {
        Self { finding: None, then: NextAction::Answer(form) }
    }

    fn finding(self, finding: AttemptFinding) -> Self {
        Self { finding: Some(finding), ..self }
    }

    fn repair_refused(self, retry: RevocationRetry) -> Self {
        Self { finding: self.finding.or(Some(AttemptFinding::RepairRefused(retry))), ..self }
    }

    fn all_refused(self, cause: RefusalCause, of_original: Option<RefusalCause>) -> Self {
        self.finding(AttemptFinding::AllRefused { cause, of_original })
    }
}

impl AttemptFinding {
    /// What is remembered of it.
    pub fn consequence(self, facts: AttemptContext<'_>) -> Consequence {
        match self {
            AttemptFinding::Overflow
            | AttemptFinding::RoomMade { .. }
            | AttemptFinding::Repaired { .. } => Consequence::default(),
            AttemptFinding::RepairRefused(retry) => {
                Consequence { void: Some(RevocationScope::Repair(retry)), lesson: None }
            }
            AttemptFinding::RoomRefused(cause) => Consequence {
                void: Some(RevocationScope::Room(retry(cause))),
                lesson: of_the_model(cause),
            },
            AttemptFinding::ChangeRefused(_) | AttemptFinding::AllRefused { .. }
                if facts.is_count =>
            {
                Consequence::default()
            }
            AttemptFinding::ChangeRefused(cause) => {
                let void =
                    (facts.is_rewritten && !cause.is_beside()).then_some(RevocationScope::InBranch);
                // With nothing else to blame, it was what we asked for.
                let named = facts.added.iter().find(|added| added.cause == cause);
                let added = named.or_else(|| facts.added.first().filter(|_| !facts.is_rewritten));
                let added = added.map(|added| added.lesson);
                let of_rewrite = || of_what_is_sent(cause).or(of_the_model(cause));
                let lesson = added.or_else(|| of_rewrite().filter(|_| facts.is_rewritten));
                Consequence { void, lesson }
            }
            AttemptFinding::AllRefused { .. } if !facts.is_rewritten => Consequence::default(),
            AttemptFinding::AllRefused { cause, of_original } => {
                let is_own_fault = of_original == Some(cause) && cause.is_own_fault();
                let is_innocent = is_own_fault || cause.is_beside();
                // A session must not answer 400 for ever.
                let void = (!is_innocent).then_some(RevocationScope::All(RevocationRetry::Never));
                // That is so, whoever moved what the reasoning is bound to.
                let lesson = of_the_model(cause).filter(|it| *it == Lesson::ReasoningBound);
                Consequence { void, lesson }
            }
            AttemptFinding::OwnDecisionsRefused { cause, accepted } => {
                let again = if accepted { retry(cause) } else { RevocationRetry::Next };
                let is_kept = |lesson: &Lesson| {
                    *lesson == Lesson::ReasoningRefused && facts.has_reasoning_back
                };
                let lesson = of_what_is_sent(cause).filter(|it| accepted && !is_kept(it));
                let lesson = lesson.or(of_the_model(cause));
                Consequence { void: Some(RevocationScope::Own(again)), lesson }
            }
        }
    }
}

/// When what was refused for it may be decided again, where the request is accepted without.
fn retry(cause: RefusalCause) -> RevocationRetry {
    if cause.teaches() { RevocationRetry::Next } else { RevocationRetry::Cold }
}

/// What a refusal that names `cause` says of the model, whoever is to blame.
fn of_the_model(cause: RefusalCause) -> Option<Lesson> {
    match cause {
        RefusalCause::Bound => Some(Lesson::ReasoningBound),
        RefusalCause::ReasoningDemanded => Some(Lesson::ReasoningDemanded),
        _ => None,
    }
}

/// What it says of what we sent, where that is to blame.
fn of_what_is_sent(cause: RefusalCause) -> Option<Lesson> {
    match cause {
        RefusalCause::ReasoningRefused => Some(Lesson::ReasoningRefused),
        RefusalCause::Compaction => Some(Lesson::CompactionRefused),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
