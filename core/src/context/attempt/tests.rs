//! Every row of the table: what was sent, what was answered, what is sent or answered then, and what is
//! remembered.

use std::collections::HashSet;

use strum::IntoEnumIterator;

use super::AttemptFinding::*;
use super::NextAction::{Answer, Send};
use super::RequestForm::*;
use super::Verdict as V;
use super::*;
use crate::dialect::lesson::Lesson;

const PLAIN: AttemptContext<'_> = AttemptContext {
    is_rewritten: false,
    changes_beyond_repairs: false,
    has_reasoning_back: false,
    added: &[],
    is_count: false,
};
const REPAIRED: AttemptContext<'_> = AttemptContext { is_rewritten: true, ..PLAIN };
const REWRITTEN: AttemptContext<'_> = AttemptContext { changes_beyond_repairs: true, ..REPAIRED };
const REASONING_BACK: AttemptContext<'_> = AttemptContext { has_reasoning_back: true, ..REWRITTEN };
const USAGE: RefusableOption =
    RefusableOption { cause: RefusalCause::Usage, lesson: Lesson::UsageRefused };
const DISPLAY: RefusableOption =
    RefusableOption { cause: RefusalCause::Display, lesson: Lesson::DisplayRefused };
const INCLUDE: RefusableOption =
    RefusableOption { cause: RefusalCause::Include, lesson: Lesson::IncludeRefused };
const USAGE_ASKED: AttemptContext<'_> = AttemptContext { added: &[USAGE], ..PLAIN };
const THREE_ASKED: AttemptContext<'_> =
    AttemptContext { added: &[USAGE, DISPLAY, INCLUDE], ..PLAIN };

const BOUND: RefusalCause = RefusalCause::Bound;
const STRUCTURE: RefusalCause = RefusalCause::Structure;

type Row = (AttemptContext<'static>, RetryState, Verdict, NextAction, Option<AttemptFinding>);

const OVERFLOW: RefusalCause = RefusalCause::Overflow;
const SIGNATURE: RefusalCause = RefusalCause::Signature;
const USAGE_AND_REWRITTEN: AttemptContext<'_> =
    AttemptContext { is_rewritten: true, ..USAGE_ASKED };
const UNFIT: Verdict = V::DoesNotFit(Some(OVERFLOW));
const PLANNED: RetryState = RetryState::Planned;
const FIRST: RefusalKind =
    RefusalKind { cause: Some(STRUCTURE), overflows: false, is_of_reasoning: false };
const TOO_MUCH: RefusalKind =
    RefusalKind { cause: Some(OVERFLOW), overflows: true, is_of_reasoning: false };
const NOBODY: RefusalKind = RefusalKind { cause: None, overflows: false, is_of_reasoning: false };
const REASONING: RefusalKind =
    RefusalKind { cause: Some(SIGNATURE), overflows: false, is_of_reasoning: true };
const OR_PLANNED: RoomFallback = RoomFallback { too_large: Planned, cause: None };
const OR_ORIGINAL: RoomFallback = RoomFallback { cause: Some(OVERFLOW), ..OR_PLANNED };
const ROOM: RetryState = RetryState::WithRoom(OR_PLANNED);
const ROOM_OR_ORIGINAL: RetryState = RetryState::WithRoom(OR_ORIGINAL);
const UNFIT_FINDING: Option<AttemptFinding> = Some(Overflow { refused_repair: None });

const fn room_after_repair(round: u8, cause: Option<RefusalCause>) -> RetryState {
    RetryState::WithRoom(RoomFallback { too_large: RequestForm::Repaired(round), cause })
}

const fn unfit_after_refused_repair(renewal: Renewal) -> Option<AttemptFinding> {
    Some(Overflow { refused_repair: Some(renewal) })
}

const fn repaired(first: RefusalKind, round: u8) -> RetryState {
    RetryState::Repaired { otherwise: RepairFallback::AfterPlanned(first), refusal: first, round }
}

/// Something else was refused after the first repair.
const fn repaired_again(first: RefusalKind, refusal: RefusalKind) -> RetryState {
    RetryState::Repaired { otherwise: RepairFallback::AfterPlanned(first), refusal, round: 2 }
}

const fn repaired_last(round: u8) -> RetryState {
    let otherwise = RepairFallback::AfterAll { cause: SIGNATURE, of_original: BOUND };
    RetryState::Repaired { otherwise, refusal: REASONING, round }
}

const fn original(cause: RefusalCause) -> RetryState {
    RetryState::Original { cause, blamed: BlameTarget::Change }
}

const fn thoughtful(cause: RefusalCause) -> RetryState {
    RetryState::Original { cause, blamed: BlameTarget::Reasoning }
}

const fn too_large(cause: RefusalCause) -> RetryState {
    RetryState::Original { cause, blamed: BlameTarget::Size(Planned) }
}

const TOO_LARGE_REPAIRED: RetryState =
    RetryState::Original { cause: OVERFLOW, blamed: BlameTarget::Size(RequestForm::Repaired(1)) };

const fn last(cause: RefusalCause, of_original: RefusalCause) -> RetryState {
    RetryState::LastAccepted { cause, of_original, may_repair: false }
}

const LAST_BUT_REPAIR: RetryState =
    RetryState::LastAccepted { cause: SIGNATURE, of_original: BOUND, may_repair: true };

const fn all(cause: RefusalCause, of_original: RefusalCause) -> Option<AttemptFinding> {
    Some(AllRefused { cause, of_original: Some(of_original) })
}

const fn own(cause: RefusalCause, accepted: bool) -> Option<AttemptFinding> {
    Some(OwnDecisionsRefused { cause, accepted })
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Planned.
    (REWRITTEN, PLANNED, V::Accepted, Answer(Planned), None),
    (REWRITTEN, PLANNED, V::Failed, Answer(Planned), None),
    (PLAIN, PLANNED, V::OverflowInReply, Send(ROOM), UNFIT_FINDING),
    (PLAIN, PLANNED, V::DoesNotFit(None), Send(ROOM), UNFIT_FINDING),
    (REWRITTEN, PLANNED, UNFIT, Send(ROOM_OR_ORIGINAL), UNFIT_FINDING),
    (REWRITTEN, PLANNED, V::Refused(BOUND), Send(original(BOUND)), None),
    (USAGE_ASKED, PLANNED, V::Refused(RefusalCause::Usage), Send(original(RefusalCause::Usage)), None),
    (THREE_ASKED, PLANNED, V::Refused(RefusalCause::Include), Send(original(RefusalCause::Include)), None),
    (USAGE_ASKED, PLANNED, V::Refused(RefusalCause::Other), Answer(Planned), None),
    (PLAIN, PLANNED, V::Refused(STRUCTURE), Answer(Planned), None),
    (PLAIN, PLANNED, V::Repairable(FIRST), Send(repaired(FIRST, 1)), None),
    (REWRITTEN, PLANNED, V::Repairable(FIRST), Send(repaired(FIRST, 1)), None),
    (PLAIN, PLANNED, V::Repairable(TOO_MUCH), Send(repaired(TOO_MUCH, 1)), None),
    (PLAIN, PLANNED, V::Repairable(REASONING), Send(repaired(REASONING, 1)), None),
    (REPAIRED, PLANNED, V::Repairable(REASONING), Send(repaired(REASONING, 1)), None),
    (REWRITTEN, PLANNED, V::Repairable(REASONING), Send(thoughtful(SIGNATURE)), None),

    // Repaired, after planned.
    (PLAIN, repaired(FIRST, 1), V::Accepted, Answer(RequestForm::Repaired(1)), Some(AttemptFinding::Repaired { accepted: true })),
    (PLAIN, repaired(FIRST, 1), V::Failed, Answer(RequestForm::Repaired(1)), Some(AttemptFinding::Repaired { accepted: false })),
    (PLAIN, repaired(FIRST, 1), V::Unavailable, Answer(Planned), None),
    (REWRITTEN, repaired(FIRST, 1), V::Unavailable, Send(original(STRUCTURE)), None),
    (REWRITTEN, repaired(NOBODY, 1), V::Unavailable, Answer(Planned), None),
    (PLAIN, repaired(FIRST, 1), V::Repairable(NOBODY), Send(repaired_again(FIRST, NOBODY)), None),
    (PLAIN, repaired(FIRST, 2), V::Unavailable, Answer(Planned), Some(RepairRefused(Renewal::Never))),
    (PLAIN, repaired(FIRST, 1), V::Refused(RefusalCause::Other), Answer(Planned), Some(RepairRefused(Renewal::Next))),
    (REWRITTEN, repaired(FIRST, 1), V::Refused(RefusalCause::Other), Send(original(STRUCTURE)), Some(RepairRefused(Renewal::Next))),
    (PLAIN, repaired(TOO_MUCH, 1), UNFIT, Send(room_after_repair(1, Some(OVERFLOW))), UNFIT_FINDING),
    (PLAIN, repaired(FIRST, 2), V::OverflowInReply, Send(room_after_repair(2, None)), UNFIT_FINDING),
    (PLAIN, repaired(TOO_MUCH, 1), V::Refused(RefusalCause::Other), Send(ROOM_OR_ORIGINAL), unfit_after_refused_repair(Renewal::Next)),
    (PLAIN, repaired_again(TOO_MUCH, FIRST), V::Unavailable, Send(ROOM_OR_ORIGINAL), unfit_after_refused_repair(Renewal::Never)),
    (PLAIN, repaired(TOO_MUCH, 2), V::Unavailable, Send(room_after_repair(1, Some(OVERFLOW))), UNFIT_FINDING),
    (PLAIN, repaired_again(FIRST, TOO_MUCH), V::Unavailable, Send(room_after_repair(1, Some(OVERFLOW))), UNFIT_FINDING),
    (PLAIN, repaired(TOO_MUCH, 1), V::Unavailable, Send(ROOM_OR_ORIGINAL), UNFIT_FINDING),
    (PLAIN, repaired(FIRST, 1), V::NoResponse, Answer(Planned), None),
    (REWRITTEN, repaired(FIRST, 1), V::NoResponse, Send(original(STRUCTURE)), None),
    (PLAIN, repaired(FIRST, 2), V::NoResponse, Answer(Planned), None),
    (PLAIN, repaired(TOO_MUCH, 1), V::NoResponse, Send(ROOM_OR_ORIGINAL), UNFIT_FINDING),

    // With room.
    (PLAIN, ROOM, V::Repairable(FIRST), Answer(Planned), Some(RoomRefused(STRUCTURE))),
    (PLAIN, ROOM, V::Accepted, Answer(WithRoom), Some(RoomMade { accepted: true })),
    (PLAIN, ROOM, V::Failed, Answer(WithRoom), Some(RoomMade { accepted: false })),
    (PLAIN, ROOM, V::Unavailable, Answer(Planned), None),
    (PLAIN, room_after_repair(1, None), V::Unavailable, Answer(RequestForm::Repaired(1)), None),
    (REASONING_BACK, room_after_repair(1, Some(OVERFLOW)), V::Unavailable, Send(TOO_LARGE_REPAIRED), None),
    (REWRITTEN, ROOM_OR_ORIGINAL, V::DoesNotFit(None), Answer(Planned), None),
    (REWRITTEN, ROOM_OR_ORIGINAL, V::OverflowInReply, Answer(Planned), None),
    (REWRITTEN, ROOM_OR_ORIGINAL, V::Refused(STRUCTURE), Answer(Planned), Some(RoomRefused(STRUCTURE))),
    (PLAIN, ROOM, V::Refused(BOUND), Answer(Planned), Some(RoomRefused(BOUND))),
    (REASONING_BACK, ROOM_OR_ORIGINAL, V::Unavailable, Send(too_large(OVERFLOW)), None),
    (REASONING_BACK, ROOM, V::Unavailable, Answer(Planned), None),
    (PLAIN, ROOM, V::NoResponse, Answer(Planned), None),
    (REASONING_BACK, ROOM_OR_ORIGINAL, V::NoResponse, Send(too_large(OVERFLOW)), None),

    // Original, because of the content.
    (REWRITTEN, thoughtful(SIGNATURE), V::Refused(BOUND), Send(LAST_BUT_REPAIR), None),
    (REWRITTEN, original(STRUCTURE), V::Refused(SIGNATURE), Send(last(STRUCTURE, SIGNATURE)), None),
    (USAGE_AND_REWRITTEN, original(RefusalCause::Usage), V::Refused(SIGNATURE), Answer(Original), all(RefusalCause::Usage, SIGNATURE)),
    (REWRITTEN, original(BOUND), V::Accepted, Answer(Original), Some(ChangeRefused(BOUND))),
    (REWRITTEN, original(BOUND), V::Failed, Answer(Original), Some(AllRefused { cause: BOUND, of_original: None })),
    (REWRITTEN, original(BOUND), V::Refused(SIGNATURE), Send(last(BOUND, SIGNATURE)), None),
    (REWRITTEN, original(BOUND), UNFIT, Send(last(BOUND, OVERFLOW)), None),
    (USAGE_AND_REWRITTEN, original(RefusalCause::Usage), V::Refused(STRUCTURE), Answer(Original), all(RefusalCause::Usage, STRUCTURE)),

    // Original, because of the size.
    (REASONING_BACK, too_large(OVERFLOW), UNFIT, Answer(Planned), all(OVERFLOW, OVERFLOW)),
    (REASONING_BACK, TOO_LARGE_REPAIRED, UNFIT, Answer(RequestForm::Repaired(1)), all(OVERFLOW, OVERFLOW)),
    (REASONING_BACK, too_large(OVERFLOW), V::Refused(STRUCTURE), Answer(Original), all(OVERFLOW, STRUCTURE)),

    // Last accepted.
    (REWRITTEN, LAST_BUT_REPAIR, V::Accepted, Answer(LastAccepted), own(SIGNATURE, true)),
    (REWRITTEN, LAST_BUT_REPAIR, V::Refused(SIGNATURE), Send(repaired_last(1)), None),
    (REWRITTEN, LAST_BUT_REPAIR, V::Refused(RefusalCause::Other), Send(repaired_last(1)), None),
    (REWRITTEN, LAST_BUT_REPAIR, V::Unavailable, Send(repaired_last(1)), None),
    (REWRITTEN, LAST_BUT_REPAIR, UNFIT, Answer(LastAccepted), all(SIGNATURE, BOUND)),
    (REWRITTEN, last(BOUND, SIGNATURE), V::Accepted, Answer(LastAccepted), own(BOUND, true)),
    (REWRITTEN, last(BOUND, SIGNATURE), V::Failed, Answer(LastAccepted), own(BOUND, false)),
    (REWRITTEN, last(BOUND, SIGNATURE), V::Unavailable, Answer(Original), all(BOUND, SIGNATURE)),
    (REWRITTEN, last(BOUND, SIGNATURE), V::Refused(BOUND), Answer(Original), all(BOUND, SIGNATURE)),
    (REWRITTEN, last(BOUND, SIGNATURE), V::DoesNotFit(None), Answer(LastAccepted), all(BOUND, SIGNATURE)),
    (REWRITTEN, last(BOUND, STRUCTURE), V::DoesNotFit(None), Answer(Original), all(BOUND, STRUCTURE)),
    (REWRITTEN, last(BOUND, SIGNATURE), V::NoResponse, Answer(Original), Some(Unsettled(BOUND))),
    (REWRITTEN, LAST_BUT_REPAIR, V::NoResponse, Answer(Original), Some(Unsettled(SIGNATURE))),

    // Repaired, last of all.
    (REWRITTEN, repaired_last(1), V::Accepted, Answer(RequestForm::Repaired(1)), Some(AttemptFinding::Repaired { accepted: true })),
    (REWRITTEN, repaired_last(1), V::Unavailable, Answer(Original), all(SIGNATURE, BOUND)),
    (REWRITTEN, repaired_last(1), V::Refused(RefusalCause::Other), Answer(Original), all(SIGNATURE, BOUND)),
    (REWRITTEN, repaired_last(1), V::OverflowInReply, Answer(RequestForm::Repaired(1)), Some(AttemptFinding::Repaired { accepted: false })),
    (REWRITTEN, repaired_last(1), V::Failed, Answer(RequestForm::Repaired(1)), Some(AttemptFinding::Repaired { accepted: false })),
    (REWRITTEN, repaired_last(1), UNFIT, Answer(Original), all(SIGNATURE, BOUND)),
    (REWRITTEN, repaired_last(1), V::NoResponse, Answer(Original), Some(Unsettled(SIGNATURE))),
    (REWRITTEN, repaired_last(2), V::NoResponse, Answer(Original), Some(Unsettled(SIGNATURE))),
];

#[test]
fn each_verdict_has_its_next_step() {
    for (context, state, verdict, then, finding) in ROWS {
        let expected = RetryStep { then: *then, finding: *finding };
        let step = next(*context, 1, *state, *verdict);
        assert_eq!(step, expected, "{context:?} {state:?} {verdict:?}");
    }
}

const COUNT: AttemptContext<'_> = AttemptContext { is_count: true, ..REWRITTEN };

type ConsequenceRow =
    (Option<AttemptFinding>, AttemptContext<'static>, Option<RevocationScope>, Option<Lesson>);

#[rustfmt::skip]
const CONSEQUENCES: &[ConsequenceRow] = &[
    (UNFIT_FINDING,                                      REWRITTEN, None, None),
    (unfit_after_refused_repair(Renewal::Next),  REWRITTEN, Some(RevocationScope::Repair(Renewal::Next)), None),
    (Some(RoomMade { accepted: true }),                     REWRITTEN, None, None),
    (Some(AttemptFinding::Repaired { accepted: true }),         REWRITTEN, None, None),
    (Some(RepairRefused(Renewal::Never)),        REWRITTEN, Some(RevocationScope::Repair(Renewal::Never)), None),
    (Some(RoomRefused(BOUND)),                           REWRITTEN, Some(RevocationScope::Room(Renewal::Next)), Some(Lesson::ReasoningBound)),
    (Some(RoomRefused(STRUCTURE)),                       REWRITTEN, Some(RevocationScope::Room(Renewal::Cold)), None),
    (Some(ChangeRefused(BOUND)),                         REWRITTEN, Some(RevocationScope::InBranch), Some(Lesson::ReasoningBound)),
    (Some(ChangeRefused(RefusalCause::ReasoningRefused)),       REWRITTEN, Some(RevocationScope::InBranch), Some(Lesson::ReasoningRefused)),
    (Some(ChangeRefused(STRUCTURE)),                     REWRITTEN, Some(RevocationScope::InBranch), None),
    (Some(ChangeRefused(BOUND)),                         COUNT, None, None),
    (Some(ChangeRefused(RefusalCause::Usage)),                  USAGE_ASKED, None, Some(Lesson::UsageRefused)),
    (Some(ChangeRefused(RefusalCause::Include)),                THREE_ASKED, None, Some(Lesson::IncludeRefused)),
    (Some(ChangeRefused(RefusalCause::Other)),                  USAGE_ASKED, None, Some(Lesson::UsageRefused)),
    (Some(ChangeRefused(RefusalCause::Usage)),                  USAGE_AND_REWRITTEN, None, Some(Lesson::UsageRefused)),
    (Some(ChangeRefused(STRUCTURE)),                     USAGE_AND_REWRITTEN, Some(RevocationScope::InBranch), None),
    (all(BOUND, SIGNATURE),                              REWRITTEN, Some(RevocationScope::All(Renewal::Never)), Some(Lesson::ReasoningBound)),
    (all(RefusalCause::ReasoningDemanded, SIGNATURE),           REWRITTEN, Some(RevocationScope::All(Renewal::Never)), None),
    (all(STRUCTURE, STRUCTURE),                          REWRITTEN, None, None),
    (all(OVERFLOW, OVERFLOW),                            REASONING_BACK, None, None),
    (all(STRUCTURE, RefusalCause::Other),                       REWRITTEN, Some(RevocationScope::All(Renewal::Never)), None),
    (all(RefusalCause::Usage, STRUCTURE),                       USAGE_AND_REWRITTEN, None, None),
    (all(RefusalCause::Usage, RefusalCause::Usage),                    USAGE_ASKED, None, None),
    (Some(AllRefused { cause: BOUND, of_original: None }), REWRITTEN, Some(RevocationScope::All(Renewal::Never)), Some(Lesson::ReasoningBound)),
    (all(RefusalCause::ReasoningDemanded, RefusalCause::ReasoningDemanded), REWRITTEN, Some(RevocationScope::All(Renewal::Never)), Some(Lesson::ReasoningDemanded)),
    (all(RefusalCause::ReasoningRefused, RefusalCause::ReasoningRefused), REWRITTEN, Some(RevocationScope::All(Renewal::Never)), Some(Lesson::ReasoningRefused)),
    (all(RefusalCause::Compaction, RefusalCause::Compaction), REWRITTEN, Some(RevocationScope::All(Renewal::Never)), Some(Lesson::CompactionRefused)),
    (all(RefusalCause::ReasoningDemanded, STRUCTURE),    REWRITTEN, Some(RevocationScope::All(Renewal::Never)), None),
    (all(RefusalCause::ReasoningRefused, STRUCTURE),     REWRITTEN, Some(RevocationScope::All(Renewal::Never)), None),
    (all(BOUND, SIGNATURE),                              COUNT, None, None),
    (own(BOUND, true),                                   REWRITTEN, Some(RevocationScope::Own(Renewal::Next)), Some(Lesson::ReasoningBound)),
    (own(STRUCTURE, true),                               REWRITTEN, Some(RevocationScope::Own(Renewal::Cold)), None),
    (own(STRUCTURE, false),                              REWRITTEN, Some(RevocationScope::Own(Renewal::Next)), None),
    (own(RefusalCause::Compaction, true),                       REWRITTEN, Some(RevocationScope::Own(Renewal::Next)), Some(Lesson::CompactionRefused)),
    (own(RefusalCause::Compaction, false),                      REWRITTEN, Some(RevocationScope::Own(Renewal::Next)), None),
    (own(RefusalCause::ReasoningRefused, true),                 REASONING_BACK, Some(RevocationScope::Own(Renewal::Next)), None),
    (own(RefusalCause::ReasoningRefused, true),                 REWRITTEN, Some(RevocationScope::Own(Renewal::Next)), Some(Lesson::ReasoningRefused)),
    (own(RefusalCause::Compaction, true),                       REASONING_BACK, Some(RevocationScope::Own(Renewal::Next)), Some(Lesson::CompactionRefused)),
    (own(RefusalCause::ReasoningDemanded, true),                REWRITTEN, Some(RevocationScope::Own(Renewal::Next)), Some(Lesson::ReasoningDemanded)),
    (Some(ChangeRefused(RefusalCause::ReasoningDemanded)),      REWRITTEN, Some(RevocationScope::InBranch), Some(Lesson::ReasoningDemanded)),
    (Some(ChangeRefused(BOUND)),                         USAGE_ASKED, None, Some(Lesson::UsageRefused)),
    (all(BOUND, SIGNATURE),                              PLAIN, None, None),
    (Some(Unsettled(BOUND)),                             REWRITTEN, None, None),
];

#[test]
fn each_finding_gives_listed_revocation_and_lesson() {
    for (finding, context, revokes, lesson) in CONSEQUENCES {
        let consequence = finding.unwrap().consequence(*context);
        let expected = Consequence { revokes: *revokes, lesson: *lesson };
        assert_eq!(consequence, expected, "{finding:?} {context:?}");
    }
}

/// The provider is called three times at most for one request. Past that the client gets the response that it can do
/// the most with, and what was learned is remembered.
#[test]
fn the_third_call_is_the_last() {
    #[rustfmt::skip]
    let rows = [
        (PLAIN, repaired(FIRST, 2), V::Repairable(FIRST), RequestForm::Repaired(2), Some(AttemptFinding::Repaired { accepted: false })),
        (PLAIN, repaired(FIRST, 2), UNFIT, RequestForm::Repaired(2), UNFIT_FINDING),
        (REWRITTEN, repaired(FIRST, 2), V::Refused(STRUCTURE), Planned, Some(RepairRefused(Renewal::Next))),
        (REASONING_BACK, room_after_repair(1, Some(OVERFLOW)), V::Refused(STRUCTURE), RequestForm::Repaired(1), Some(RoomRefused(STRUCTURE))),
        (REWRITTEN, original(STRUCTURE), V::Refused(SIGNATURE), Original, all(STRUCTURE, SIGNATURE)),
        (REWRITTEN, LAST_BUT_REPAIR, V::Refused(SIGNATURE), Original, all(SIGNATURE, BOUND)),
        (REWRITTEN, repaired_last(1), V::Repairable(FIRST), Original, all(SIGNATURE, BOUND)),
    ];
    for (context, state, verdict, form, finding) in rows {
        let step = next(context, MOST_CALLS, state, verdict);
        assert_eq!(step, RetryStep { then: Answer(form), finding }, "{state:?} {verdict:?}");
    }
}

/// Whatever is answered, each form of a request is sent once at most, three in all, and the client gets an answer that
/// was given and is held.
#[test]
fn every_sequence_of_attempts_ends_with_kept_response() {
    for context in [PLAIN, REPAIRED, REWRITTEN, REASONING_BACK, USAGE_ASKED, THREE_ASKED] {
        walk(context, RetryState::Planned, &[], &[], 0, &mut HashSet::new());
    }
}

/// No answer is held longer than the client may get it: a refusal's body is memory, and a connection.
/// That none is given up too early is the test above.
#[test]
fn only_response_that_client_may_still_get_is_kept() {
    let held = |state: RetryState| {
        [Planned, WithRoom, Original, LastAccepted].map(|it| state.may_answer(it))
    };
    const PLANNED_ONLY: [bool; 4] = [true, false, false, false];
    const ORIGINAL_ONLY: [bool; 4] = [false, false, true, false];
    assert_eq!(held(PLANNED), [false; 4]);
    assert_eq!(held(ROOM), PLANNED_ONLY);
    assert_eq!(held(room_after_repair(1, None)), [false; 4]);
    assert!(room_after_repair(1, None).may_answer(RequestForm::Repaired(1)));
    assert_eq!(held(original(BOUND)), [false; 4]);
    assert_eq!(held(too_large(OVERFLOW)), PLANNED_ONLY);
    assert_eq!(held(last(BOUND, SIGNATURE)), ORIGINAL_ONLY);
    assert_eq!(held(repaired(FIRST, 1)), PLANNED_ONLY);
    assert_eq!(held(repaired_last(1)), ORIGINAL_ONLY);
    let unfit_again = repaired_again(FIRST, TOO_MUCH);
    assert!(unfit_again.may_answer(RequestForm::Repaired(1)));
    assert!(unfit_again.may_answer(Planned));
    assert!(!repaired_again(FIRST, FIRST).may_answer(RequestForm::Repaired(1)));
}

fn walk(
    context: AttemptContext<'_>,
    state: RetryState,
    held: &[RequestForm],
    sent: &[RequestForm],
    calls: u8,
    walked: &mut HashSet<String>,
) {
    // Many verdicts lead to the same state.
    if !walked.insert(format!("{state:?} {held:?} {sent:?} {calls}")) {
        return;
    }
    let form = match state {
        RetryState::Planned => RequestForm::Planned,
        RetryState::Repaired { round, .. } => RequestForm::Repaired(round),
        RetryState::WithRoom(_) => RequestForm::WithRoom,
        RetryState::Original { .. } => RequestForm::Original,
        RetryState::LastAccepted { .. } => RequestForm::LastAccepted,
    };
    assert!(!sent.contains(&form), "{form:?} twice: {sent:?}");
    let sent = [sent, &[form]].concat();
    let mut verdicts = vec![Verdict::Accepted, Verdict::OverflowInReply, Verdict::Failed];
    verdicts.extend(RefusalCause::iter().map(Verdict::Refused));
    verdicts.extend(RefusalCause::iter().map(|cause| Verdict::DoesNotFit(Some(cause))));
    verdicts.push(Verdict::DoesNotFit(None));
    verdicts.extend([FIRST, TOO_MUCH, NOBODY, REASONING].map(Verdict::Repairable));
    if form != RequestForm::Planned && form != RequestForm::Original {
        verdicts.extend([Verdict::Unavailable, Verdict::NoResponse]);
    }
    for verdict in verdicts {
        let mut now_held = held.to_vec();
        let has_response = !matches!(verdict, Verdict::Unavailable | Verdict::NoResponse);
        now_held.extend(has_response.then_some(form));
        let calls = calls + u8::from(verdict != Verdict::Unavailable);
        assert!(calls <= MOST_CALLS, "{context:?} {state:?} {verdict:?} after {sent:?}");
        match next(context, calls, state, verdict).then {
            NextAction::Answer(answer) => {
                assert!(
                    now_held.contains(&answer),
                    "{context:?} {state:?} {verdict:?}: {answer:?}"
                );
            }
            NextAction::Send(next) => {
                now_held.retain(|form| next.may_answer(*form));
                walk(context, next, &now_held, &sent, calls, walked);
            }
        }
    }
}
