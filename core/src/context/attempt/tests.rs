//! Every row of the table: what was sent, what was answered, what is sent or answered then, and what is
//! remembered.

use strum::IntoEnumIterator;

use super::Finding::*;
use super::Form::*;
use super::Then::{Answer, Send};
use super::Verdict as V;
use super::*;

const PLAIN: Facts = Facts {
    is_rewritten: false,
    may_unbind: false,
    has_reasoning_back: false,
    added: None,
    is_count: false,
};
const REPAIRED: Facts = Facts { is_rewritten: true, ..PLAIN };
const REWRITTEN: Facts = Facts { may_unbind: true, ..REPAIRED };
const REASONING_BACK: Facts = Facts { has_reasoning_back: true, ..REWRITTEN };
const USAGE_ASKED: Facts = Facts { added: Some((Cause::Usage, Lesson::UsageRefused)), ..PLAIN };

const BOUND: Cause = Cause::Bound;
const STRUCTURE: Cause = Cause::Structure;

type Row = (&'static str, Facts, State, Verdict, Then, Option<Finding>);

const OVERFLOW: Cause = Cause::Overflow;
const SIGNATURE: Cause = Cause::Signature;
const USAGE_AND_REWRITTEN: Facts = Facts { is_rewritten: true, ..USAGE_ASKED };
const UNFIT: Verdict = V::DoesNotFit(Some(OVERFLOW));
const PLANNED: State = State::Planned;
const FIRST: RefusalKind =
    RefusalKind { cause: Some(STRUCTURE), overflows: false, is_of_reasoning: false };
const TOO_MUCH: RefusalKind =
    RefusalKind { cause: Some(OVERFLOW), overflows: true, is_of_reasoning: false };
const NOBODY: RefusalKind = RefusalKind { cause: None, overflows: false, is_of_reasoning: false };
const REASONING: RefusalKind =
    RefusalKind { cause: Some(SIGNATURE), overflows: false, is_of_reasoning: true };
const ROOM: State = State::WithRoom(None);
const ROOM_OR_ORIGINAL: State = State::WithRoom(Some(OVERFLOW));

const fn repaired(first: RefusalKind, round: u8) -> State {
    State::Repaired { otherwise: Otherwise::AfterPlanned(first), round }
}

const fn repaired_last(round: u8) -> State {
    let otherwise = Otherwise::AfterAll { cause: SIGNATURE, of_original: BOUND };
    State::Repaired { otherwise, round }
}

const fn original(cause: Cause) -> State {
    State::Original { cause, blamed: Blamed::Change }
}

const fn thoughtful(cause: Cause) -> State {
    State::Original { cause, blamed: Blamed::Reasoning }
}

const fn too_large(cause: Cause) -> State {
    State::Original { cause, blamed: Blamed::Size }
}

const fn last(cause: Cause, of_original: Cause) -> State {
    State::LastAccepted { cause, of_original, may_repair: false }
}

const LAST_BUT_REPAIR: State =
    State::LastAccepted { cause: SIGNATURE, of_original: BOUND, may_repair: true };

const fn all(cause: Cause, of_original: Cause) -> Option<Finding> {
    Some(AllRefused { cause, of_original: Some(of_original) })
}

const fn own(cause: Cause, accepted: bool) -> Option<Finding> {
    Some(OwnDecisionsRefused { cause, accepted })
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("it is answered",                          REWRITTEN, PLANNED, V::Accepted, Answer(Planned), None),
    ("a limit",                                 REWRITTEN, PLANNED, V::Failed, Answer(Planned), None),
    ("an error in place of a reply",            PLAIN, PLANNED, V::OverflowInReply, Send(ROOM), Some(Overflow)),
    ("it does not fit",                         PLAIN, PLANNED, V::DoesNotFit(None), Send(ROOM), Some(Overflow)),
    ("a rewritten one does not fit",            REWRITTEN, PLANNED, UNFIT, Send(ROOM_OR_ORIGINAL), Some(Overflow)),
    ("a rewritten one is refused",              REWRITTEN, PLANNED, V::Refused(BOUND), Send(original(BOUND)), None),
    ("what we asked for is refused",            USAGE_ASKED, PLANNED, V::Refused(Cause::Usage), Send(original(Cause::Usage)), None),
    ("the client's fault: no guess",            USAGE_ASKED, PLANNED, V::Refused(Cause::Other), Answer(Planned), None),
    ("the client's fault",                      PLAIN, PLANNED, V::Refused(STRUCTURE), Answer(Planned), None),

    ("an edit answers it",                      PLAIN, PLANNED, V::Repairable(FIRST), Send(repaired(FIRST, 1)), None),
    ("an edit answers it, of a rewritten one",  REWRITTEN, PLANNED, V::Repairable(FIRST), Send(repaired(FIRST, 1)), None),
    ("less output may do, before room is made", PLAIN, PLANNED, V::Repairable(TOO_MUCH), Send(repaired(TOO_MUCH, 1)), None),

    ("the repair helped",                       PLAIN, repaired(FIRST, 1), V::Accepted, Answer(Form::Repaired(1)), Some(Finding::Repaired { accepted: true })),
    ("a limit",                                 PLAIN, repaired(FIRST, 1), V::Failed, Answer(Form::Repaired(1)), Some(Finding::Repaired { accepted: false })),
    ("no edit is found",                        PLAIN, repaired(FIRST, 1), V::Unavailable, Answer(Planned), None),
    ("no edit is found, and we changed it",     REWRITTEN, repaired(FIRST, 1), V::Unavailable, Send(original(STRUCTURE)), None),
    ("no edit is found, and nobody is blamed",  REWRITTEN, repaired(NOBODY, 1), V::Unavailable, Answer(Planned), None),
    ("another thing is refused",                PLAIN, repaired(FIRST, 1), V::Repairable(FIRST), Send(repaired(FIRST, 2)), None),
    ("one thing after another",                 PLAIN, repaired(FIRST, MOST_REPAIRS), V::Repairable(FIRST), Answer(Planned), Some(RepairRefused(RevocationRetry::Never))),
    ("the same is refused again",               PLAIN, repaired(FIRST, 2), V::Unavailable, Answer(Planned), Some(RepairRefused(RevocationRetry::Never))),
    ("something else that no edit answers",     PLAIN, repaired(FIRST, 1), V::Refused(Cause::Other), Answer(Planned), Some(RepairRefused(RevocationRetry::Next))),
    ("the same, and we changed it",             REWRITTEN, repaired(FIRST, 1), V::Refused(Cause::Other), Send(original(STRUCTURE)), Some(RepairRefused(RevocationRetry::Next))),
    ("less output is not enough",               PLAIN, repaired(TOO_MUCH, 1), V::DoesNotFit(Some(OVERFLOW)), Send(ROOM_OR_ORIGINAL), Some(Overflow)),
    ("there is no less output",                 PLAIN, repaired(TOO_MUCH, 1), V::Unavailable, Send(ROOM_OR_ORIGINAL), Some(Overflow)),

    ("reasoning, and we changed nothing",       PLAIN, PLANNED, V::Repairable(REASONING), Send(repaired(REASONING, 1)), None),
    ("the same, with what was repaired before", REPAIRED, PLANNED, V::Repairable(REASONING), Send(repaired(REASONING, 1)), None),
    ("reasoning may rest on what we changed",   REWRITTEN, PLANNED, V::Repairable(REASONING), Send(thoughtful(SIGNATURE)), None),
    ("it does not",                             REWRITTEN, thoughtful(SIGNATURE), V::Refused(BOUND), Send(LAST_BUT_REPAIR), None),
    ("a repair was tried before",               REWRITTEN, original(STRUCTURE), V::Refused(SIGNATURE), Send(last(STRUCTURE, SIGNATURE)), None),
    ("nor is a repair what an option needs",    USAGE_AND_REWRITTEN, original(Cause::Usage), V::Refused(SIGNATURE), Answer(Original), all(Cause::Usage, SIGNATURE)),
    ("it rested on older changes",              REWRITTEN, LAST_BUT_REPAIR, V::Accepted, Answer(LastAccepted), own(SIGNATURE, true)),
    ("it did not: the client's goes",           REWRITTEN, LAST_BUT_REPAIR, V::Refused(SIGNATURE), Send(repaired_last(1)), None),
    ("the same, refused for something else",    REWRITTEN, LAST_BUT_REPAIR, V::Refused(Cause::Other), Send(repaired_last(1)), None),
    ("the same, and none was accepted before",  REWRITTEN, LAST_BUT_REPAIR, V::Unavailable, Send(repaired_last(1)), None),
    ("too large: it helps the client",          REWRITTEN, LAST_BUT_REPAIR, UNFIT, Answer(LastAccepted), all(SIGNATURE, BOUND)),
    ("that helped",                             REWRITTEN, repaired_last(1), V::Accepted, Answer(Form::Repaired(1)), Some(Finding::Repaired { accepted: true })),
    ("there is none that could go",             REWRITTEN, repaired_last(1), V::Unavailable, Answer(Original), all(SIGNATURE, BOUND)),
    ("that did not help",                       REWRITTEN, repaired_last(1), V::Refused(Cause::Other), Answer(Original), all(SIGNATURE, BOUND)),
    ("it is too large without it",              REWRITTEN, repaired_last(1), UNFIT, Answer(Original), all(SIGNATURE, BOUND)),

    ("room is made, and something is refused",  PLAIN, ROOM, V::Repairable(FIRST), Answer(Planned), Some(RoomRefused(STRUCTURE))),
    ("room helped",                             PLAIN, ROOM, V::Accepted, Answer(WithRoom), Some(RoomMade { saved: true })),
    ("a limit",                                 PLAIN, ROOM, V::Failed, Answer(WithRoom), Some(RoomMade { saved: false })),
    ("no room can be made",                     PLAIN, ROOM, V::Unavailable, Answer(Planned), None),
    ("it does not fit with room either",        REWRITTEN, ROOM_OR_ORIGINAL, V::DoesNotFit(None), Answer(Planned), None),
    ("an error in place of a reply, again",     REWRITTEN, ROOM_OR_ORIGINAL, V::OverflowInReply, Answer(Planned), None),
    ("what made room is refused",               REWRITTEN, ROOM_OR_ORIGINAL, V::Refused(BOUND), Answer(Planned), Some(RoomRefused(BOUND))),
    ("reasoning put back may be too much",      REASONING_BACK, ROOM_OR_ORIGINAL, V::Unavailable, Send(too_large(OVERFLOW)), None),
    ("the same, and the status blames nobody",  REASONING_BACK, ROOM, V::Unavailable, Answer(Planned), None),

    ("the change was to blame",                 REWRITTEN, original(BOUND), V::Accepted, Answer(Original), Some(ChangeRefused(BOUND))),
    ("a limit",                                 REWRITTEN, original(BOUND), V::Failed, Answer(Original), Some(AllRefused { cause: BOUND, of_original: None })),
    ("refused as it came, too",                 REWRITTEN, original(BOUND), V::Refused(SIGNATURE), Send(last(BOUND, SIGNATURE)), None),
    ("too large as it came",                    REWRITTEN, original(BOUND), UNFIT, Send(last(BOUND, OVERFLOW)), None),
    ("history is not to blame for an option",   USAGE_AND_REWRITTEN, original(Cause::Usage), V::Refused(STRUCTURE), Answer(Original), all(Cause::Usage, STRUCTURE)),
    ("too large both ways",                     REASONING_BACK, too_large(OVERFLOW), UNFIT, Answer(Planned), all(OVERFLOW, OVERFLOW)),
    ("too large, and by itself out of order",   REASONING_BACK, too_large(OVERFLOW), V::Refused(STRUCTURE), Answer(Original), all(OVERFLOW, STRUCTURE)),

    ("its own decisions were to blame",         REWRITTEN, last(BOUND, SIGNATURE), V::Accepted, Answer(LastAccepted), own(BOUND, true)),
    ("a limit",                                 REWRITTEN, last(BOUND, SIGNATURE), V::Failed, Answer(LastAccepted), own(BOUND, false)),
    ("none was accepted before",                REWRITTEN, last(BOUND, SIGNATURE), V::Unavailable, Answer(Original), all(BOUND, SIGNATURE)),
    ("refused in every form",                   REWRITTEN, last(BOUND, SIGNATURE), V::Refused(BOUND), Answer(Original), all(BOUND, SIGNATURE)),
    ("too large: it helps the client",          REWRITTEN, last(BOUND, SIGNATURE), V::DoesNotFit(None), Answer(LastAccepted), all(BOUND, SIGNATURE)),
    ("too large, and by itself out of order",   REWRITTEN, last(BOUND, STRUCTURE), V::DoesNotFit(None), Answer(Original), all(BOUND, STRUCTURE)),
];

#[test]
fn every_row() {
    for (name, facts, state, verdict, then, finding) in ROWS {
        let step = next(*facts, *state, *verdict);
        assert_eq!(step, Step { then: *then, finding: *finding }, "{name}: {state:?}, {verdict:?}");
    }
}

const COUNT: Facts = Facts { is_count: true, ..REWRITTEN };

type ConsequenceRow = (Option<Finding>, Facts, Option<Void>, Option<Lesson>);

#[rustfmt::skip]
const CONSEQUENCES: &[ConsequenceRow] = &[
    (Some(Overflow),                                     REWRITTEN, None, None),
    (Some(RoomMade { saved: true }),                     REWRITTEN, None, None),
    (Some(Finding::Repaired { accepted: true }),         REWRITTEN, None, None),
    (Some(RepairRefused(RevocationRetry::Never)),        REWRITTEN, Some(Void::Repair(RevocationRetry::Never)), None),
    (Some(RoomRefused(BOUND)),                           REWRITTEN, Some(Void::Room(RevocationRetry::Next)), Some(Lesson::ReasoningBound)),
    (Some(RoomRefused(STRUCTURE)),                       REWRITTEN, Some(Void::Room(RevocationRetry::Cold)), None),
    (Some(ChangeRefused(BOUND)),                         REWRITTEN, Some(Void::InBranch), Some(Lesson::ReasoningBound)),
    (Some(ChangeRefused(Cause::ReasoningRefused)),       REWRITTEN, Some(Void::InBranch), Some(Lesson::ReasoningRefused)),
    (Some(ChangeRefused(STRUCTURE)),                     REWRITTEN, Some(Void::InBranch), None),
    (Some(ChangeRefused(BOUND)),                         COUNT, None, None),
    (Some(ChangeRefused(Cause::Usage)),                  USAGE_ASKED, None, Some(Lesson::UsageRefused)),
    (Some(ChangeRefused(Cause::Other)),                  USAGE_ASKED, None, Some(Lesson::UsageRefused)),
    (Some(ChangeRefused(Cause::Usage)),                  USAGE_AND_REWRITTEN, None, Some(Lesson::UsageRefused)),
    (Some(ChangeRefused(STRUCTURE)),                     USAGE_AND_REWRITTEN, Some(Void::InBranch), None),
    (all(BOUND, SIGNATURE),                              REWRITTEN, Some(Void::All(RevocationRetry::Never)), Some(Lesson::ReasoningBound)),
    (all(Cause::ReasoningDemanded, SIGNATURE),           REWRITTEN, Some(Void::All(RevocationRetry::Never)), None),
    (all(STRUCTURE, STRUCTURE),                          REWRITTEN, None, None),
    (all(STRUCTURE, Cause::Other),                       REWRITTEN, Some(Void::All(RevocationRetry::Never)), None),
    (all(Cause::Usage, STRUCTURE),                       USAGE_AND_REWRITTEN, None, None),
    (all(Cause::Usage, Cause::Usage),                    USAGE_ASKED, None, None),
    (all(BOUND, SIGNATURE),                              COUNT, None, None),
    (own(BOUND, true),                                   REWRITTEN, Some(Void::Own(RevocationRetry::Next)), Some(Lesson::ReasoningBound)),
    (own(STRUCTURE, true),                               REWRITTEN, Some(Void::Own(RevocationRetry::Cold)), None),
    (own(STRUCTURE, false),                              REWRITTEN, Some(Void::Own(RevocationRetry::Next)), None),
    (own(Cause::Compaction, true),                       REWRITTEN, Some(Void::Own(RevocationRetry::Next)), Some(Lesson::CompactionRefused)),
    (own(Cause::Compaction, false),                      REWRITTEN, Some(Void::Own(RevocationRetry::Next)), None),
    (own(Cause::ReasoningRefused, true),                 REASONING_BACK, Some(Void::Own(RevocationRetry::Next)), None),
    (own(Cause::ReasoningRefused, true),                 REWRITTEN, Some(Void::Own(RevocationRetry::Next)), Some(Lesson::ReasoningRefused)),
    (own(Cause::Compaction, true),                       REASONING_BACK, Some(Void::Own(RevocationRetry::Next)), Some(Lesson::CompactionRefused)),
    (own(Cause::ReasoningDemanded, true),                REWRITTEN, Some(Void::Own(RevocationRetry::Next)), Some(Lesson::ReasoningDemanded)),
    (Some(ChangeRefused(Cause::ReasoningDemanded)),      REWRITTEN, Some(Void::InBranch), Some(Lesson::ReasoningDemanded)),
    (Some(ChangeRefused(BOUND)),                         USAGE_ASKED, None, Some(Lesson::UsageRefused)),
    (all(BOUND, SIGNATURE),                              PLAIN, None, None),
];

#[test]
fn every_consequence() {
    for (finding, facts, void, lesson) in CONSEQUENCES {
        let consequence = finding.unwrap().consequence(*facts);
        let expected = Consequence { void: *void, lesson: *lesson };
        assert_eq!(consequence, expected, "{finding:?} {facts:?}");
    }
}

/// Whatever is answered, each form of a request is sent once at most, and the client gets an answer that was
/// given and is held.
#[test]
fn every_path_ends_with_an_answer_that_is_held() {
    for facts in [PLAIN, REPAIRED, REWRITTEN, REASONING_BACK, USAGE_ASKED] {
        walk(facts, State::Planned, vec![], &mut vec![]);
    }
}

/// No answer is held longer than the client may get it: a refusal's body is memory, and a connection.
/// That none is given up too early is the test above.
#[test]
fn no_answer_is_held_that_cannot_be_the_last_word() {
    let held =
        |state: State| [Planned, WithRoom, Original, LastAccepted].map(|it| state.may_answer(it));
    assert_eq!(held(PLANNED), [false; 4]);
    assert_eq!(held(ROOM), [true, false, false, false]);
    assert_eq!(held(original(BOUND)), [false; 4]);
    assert_eq!(held(too_large(OVERFLOW)), [true, false, false, false]);
    assert_eq!(held(last(BOUND, SIGNATURE)), [false, false, true, false]);
    assert_eq!(held(repaired(FIRST, 1)), [true, false, false, false]);
    assert_eq!(held(repaired_last(1)), [false, false, true, false]);
}

fn walk(facts: Facts, state: State, held: Vec<Form>, sent: &mut Vec<Form>) {
    let form = match state {
        State::Planned => Form::Planned,
        State::Repaired { round, .. } => Form::Repaired(round),
        State::WithRoom(_) => Form::WithRoom,
        State::Original { .. } => Form::Original,
        State::LastAccepted { .. } => Form::LastAccepted,
    };
    assert!(!sent.contains(&form), "{form:?} twice: {sent:?}");
    sent.push(form);
    let mut verdicts = vec![Verdict::Accepted, Verdict::OverflowInReply, Verdict::Failed];
    verdicts.extend(Cause::iter().map(Verdict::Refused));
    verdicts.extend(Cause::iter().map(|cause| Verdict::DoesNotFit(Some(cause))));
    verdicts.push(Verdict::DoesNotFit(None));
    verdicts.extend([FIRST, TOO_MUCH, NOBODY, REASONING].map(Verdict::Repairable));
    if form != Form::Planned && form != Form::Original {
        verdicts.push(Verdict::Unavailable);
    }
    for verdict in verdicts {
        let mut now_held = held.clone();
        now_held.extend((verdict != Verdict::Unavailable).then_some(form));
        match next(facts, state, verdict).then {
            Then::Answer(answer) => {
                assert!(now_held.contains(&answer), "{facts:?} {state:?} {verdict:?}: {answer:?}");
            }
            Then::Send(next) => {
                now_held.retain(|form| next.may_answer(*form));
                walk(facts, next, now_held, sent);
            }
        }
    }
    sent.pop();
}
