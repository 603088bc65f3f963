//! Every row of the table: what was done, what the request is by then, and what is done next.

use std::collections::HashMap;

use super::ScheduleEvent as E;
use super::ScheduleEvent::{CannotWrite, NotSaved, Planned, TimedOut, WriterDone};
use super::SummaryWriter::{CoolingDown, Elsewhere, Here, Nobody};
use super::WrittenSummary::{AfterLoop, Missing, Ready};
use super::*;
use CompactionNeed::{Must, No, Prepare, Swap};
use DecisionReason::{NotKept, NotReady, NothingToCut, OpenLoop, Provider, Shadow};
use ScheduleAction::*;

/// A request with this need, in active mode. No summary is written, and nobody writes one.
const fn at(need: CompactionNeed) -> ScheduleContext {
    let (mode, may_decide) = (Mode::Active, true);
    let (summary, writer) = (Missing, Nobody);
    let (is_requested, waits_at_threshold) = (false, false);
    ScheduleContext { need, mode, may_decide, summary, writer, is_requested, waits_at_threshold }
}

/// The same under a policy that waits at the threshold.
const fn waiting(need: CompactionNeed, writer: SummaryWriter) -> ScheduleContext {
    ScheduleContext { waits_at_threshold: true, ..by(need, writer) }
}

const fn with(need: CompactionNeed, summary: WrittenSummary) -> ScheduleContext {
    ScheduleContext { summary, ..at(need) }
}

const fn by(need: CompactionNeed, writer: SummaryWriter) -> ScheduleContext {
    ScheduleContext { writer, ..at(need) }
}

const fn in_mode(need: CompactionNeed, mode: Mode) -> ScheduleContext {
    ScheduleContext { mode, ..with(need, Ready) }
}

const fn held_out(need: CompactionNeed) -> ScheduleContext {
    ScheduleContext { may_decide: false, ..with(need, Ready) }
}

const fn requested(need: CompactionNeed) -> ScheduleContext {
    ScheduleContext { is_requested: true, ..at(need) }
}

const START: ScheduleState = ScheduleState { overflows: false, used: 0, is_fresh: false };
const OVERFLOW: ScheduleState = ScheduleState { overflows: true, ..START };
const FRESH: ScheduleState = ScheduleState { is_fresh: true, ..START };
const USED: ScheduleState = ScheduleState { used: 1, ..START };
const USED_FRESH: ScheduleState = ScheduleState { used: 1, ..FRESH };
const USED_TWICE_UNREAD: ScheduleState = ScheduleState { used: 2, ..START };
const USED_TWICE: ScheduleState = ScheduleState { used: 2, ..FRESH };

type Row =
    (&'static str, ScheduleContext, ScheduleState, ScheduleEvent, ScheduleAction, ScheduleState);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("it needs no summary",                     at(No), START, Planned, SendSmall, START),
    ("nor one that is written",                 with(No, Ready), START, Planned, SendSmall, START),
    ("whoever writes",                          by(No, CoolingDown), START, Planned, SendSmall, START),
    ("whatever the mode",                       in_mode(No, Mode::Observe), START, Planned, SendSmall, START),
    ("observed only",                           in_mode(Must, Mode::Observe), START, Planned, Send, START),
    ("held out",                                held_out(Must), START, Planned, Send, START),
    ("shadow mode asks for nothing",            in_mode(Prepare, Mode::Shadow), START, Planned, Send, START),
    ("shadow mode reports what is due",         in_mode(Swap, Mode::Shadow), START, Planned, Decline(Shadow), START),
    ("the same, if it does not fit",            in_mode(Must, Mode::Shadow), START, Planned, Decline(Shadow), START),

    ("one is prepared",                         with(Prepare, Ready), START, Planned, Send, START),
    ("one is prepared, for after the loop",     with(Prepare, AfterLoop), START, Planned, Send, START),
    ("one is due",                              with(Swap, Ready), START, Planned, Use, USED),
    ("one is due, after the loop",              with(Swap, AfterLoop), START, Planned, Decline(OpenLoop), START),
    ("it does not fit",                         with(Must, Ready), START, Planned, Use, USED),
    ("the provider said so",                    with(Must, Ready), OVERFLOW, Planned, Use, USED),
    ("one is used although others are written", ScheduleContext { writer: Here, ..with(Swap, Ready) }, FRESH, Planned, Use, USED_FRESH),
    ("it could not be saved",                   with(Swap, Ready), USED, NotSaved, Decline(NotKept), USED),

    ("another process may have prepared one",   at(Prepare), START, Planned, Refresh, FRESH),
    ("another process may have written one",    at(Swap), START, Planned, Refresh, FRESH),
    ("the same, if it does not fit",            at(Must), START, Planned, Refresh, FRESH),
    ("the store has none",                      at(Prepare), FRESH, Planned, WriteLater, FRESH),
    ("the store has none, and one is due",      at(Swap), FRESH, Planned, WriteLater, FRESH),
    ("the store has none, and it does not fit", at(Must), FRESH, Planned, WriteNow, FRESH),
    ("the same, and it waits",                  waiting(Swap, Nobody), FRESH, Planned, WriteNow, FRESH),
    ("it waits only for one that is due",       waiting(Prepare, Nobody), FRESH, Planned, WriteLater, FRESH),
    ("the store has one",                       with(Swap, Ready), FRESH, Planned, Use, USED_FRESH),
    ("the store has one in use",                at(No), FRESH, Planned, SendSmall, FRESH),

    ("it is being prepared",                    by(Prepare, Here), START, Planned, Send, START),
    ("it is being written, and due",            by(Swap, Here), START, Planned, Decline(NotReady), START),
    ("the same, and it waits",                  waiting(Swap, Here), START, Planned, Wait, FRESH),
    ("being prepared, it does not wait",        waiting(Prepare, Here), START, Planned, Send, START),
    ("it failed before, nobody waits",          waiting(Swap, CoolingDown), FRESH, Planned, Decline(NotReady), FRESH),
    ("it is being written, and does not fit",   by(Must, Here), START, Planned, Wait, FRESH),
    ("it is prepared elsewhere",                by(Prepare, Elsewhere), START, Planned, Send, START),
    ("it is written elsewhere, and due",        by(Swap, Elsewhere), START, Planned, Refresh, FRESH),
    ("not in the store yet",                    by(Swap, Elsewhere), FRESH, Planned, Decline(NotReady), FRESH),
    ("it is written elsewhere, and must be",    by(Must, Elsewhere), START, Planned, Refresh, FRESH),
    ("not in the store yet",                    by(Must, Elsewhere), FRESH, Planned, Wait, FRESH),
    ("it failed before",                        by(Prepare, CoolingDown), START, Planned, Send, START),
    ("it failed here, others may succeed",      by(Swap, CoolingDown), START, Planned, Refresh, FRESH),
    ("no others did",                           by(Swap, CoolingDown), FRESH, Planned, Decline(NotReady), FRESH),
    ("no others did, and it does not fit",      by(Must, CoolingDown), FRESH, Planned, Decline(NotReady), FRESH),

    ("it is written: used",                     with(Must, Ready), FRESH, WriterDone, Use, USED_FRESH),
    ("it fits by now",                          with(No, Ready), FRESH, WriterDone, SendSmall, FRESH),
    ("it failed",                               by(Must, CoolingDown), FRESH, WriterDone, Decline(NotReady), FRESH),
    ("nobody failed, but there is none",        at(Must), FRESH, WriterDone, Decline(NotReady), FRESH),
    ("it took too long",                        by(Must, Here), FRESH, TimedOut, Decline(NotReady), FRESH),

    ("nothing to write, nor due",               at(Prepare), FRESH, CannotWrite(NothingToCut), Send, FRESH),
    ("nothing to write, and due",               at(Swap), FRESH, CannotWrite(NothingToCut), GiveUp(NothingToCut), FRESH),
    ("nobody can write it",                     at(Must), FRESH, CannotWrite(Provider), GiveUp(Provider), FRESH),
    ("nothing to write, but requested",         requested(Prepare), FRESH, CannotWrite(NothingToCut), GiveUp(NothingToCut), FRESH),
    ("too many are written, not due",           at(Prepare), FRESH, CannotWrite(NotReady), Send, FRESH),
    ("too many are written, and due",           at(Must), FRESH, CannotWrite(NotReady), Decline(NotReady), FRESH),
    ("too many are written, and requested",     requested(Prepare), FRESH, CannotWrite(NotReady), Decline(NotReady), FRESH),

    ("the summary is enough",                   at(No), USED, Planned, Send, USED),
    ("it leaves too much: another",             with(Must, Ready), USED, Planned, Use, USED_TWICE_UNREAD),
    ("it leaves too much: is there another?",   at(Must), USED, Planned, Refresh, USED_FRESH),
    ("it leaves too much: another is written",  at(Must), USED_FRESH, Planned, WriteNow, USED_FRESH),
    ("the next one is prepared",                at(Prepare), USED_FRESH, Planned, WriteLater, USED_FRESH),
    ("two leave too much",                      at(Must), USED_TWICE, Planned, Send, USED_TWICE),
    ("two leave too much, a third is written",  with(Must, Ready), USED_TWICE, Planned, Send, USED_TWICE),
    ("two are enough",                          at(No), USED_TWICE, Planned, Send, USED_TWICE),
];

#[test]
fn each_event_has_its_next_step() {
    for (name, context, before, event, action, state) in ROWS {
        let step = next(*context, *before, *event);
        let expected = ScheduleStep { action: *action, state: *state };
        assert_eq!(step, expected, "{name}: {context:?}, {before:?}, {event:?}");
    }
}

/// What can happen after an action. Nothing happens after an action that sends the request.
fn results(action: ScheduleAction) -> Vec<E> {
    let unwritable = [NothingToCut, Provider, NotReady].map(CannotWrite);
    match action {
        SendSmall | Send | Decline(_) | GiveUp(_) => vec![],
        WriteLater => unwritable.to_vec(),
        WriteNow => [vec![WriterDone, TimedOut], unwritable.to_vec()].concat(),
        Wait => vec![WriterDone, TimedOut],
        Use => vec![Planned, NotSaved],
        Refresh => vec![Planned],
    }
}

/// Every possible request: need, summary and writer may have changed after each action.
fn contexts() -> Vec<ScheduleContext> {
    let mut all: Vec<_> = [No, Prepare, Swap, Must].map(at).to_vec();
    let every = |all: Vec<_>, change: &dyn Fn(ScheduleContext) -> Vec<ScheduleContext>| {
        all.into_iter().flat_map(change).collect::<Vec<_>>()
    };
    all = every(all, &|it| {
        [Missing, Ready, AfterLoop].map(|summary| ScheduleContext { summary, ..it }).to_vec()
    });
    all = every(all, &|it| {
        [Nobody, Here, Elsewhere, CoolingDown]
            .map(|writer| ScheduleContext { writer, ..it })
            .to_vec()
    });
    all = every(all, &|it| {
        [Mode::Active, Mode::Shadow, Mode::Observe]
            .map(|mode| ScheduleContext { mode, ..it })
            .to_vec()
    });
    all = every(all, &|it| {
        [true, false].map(|may_decide| ScheduleContext { may_decide, ..it }).to_vec()
    });
    all = every(all, &|it| {
        [true, false].map(|is_requested| ScheduleContext { is_requested, ..it }).to_vec()
    });
    every(all, &|it| {
        [true, false]
            .map(|waits_at_threshold| ScheduleContext { waits_at_threshold, ..it })
            .to_vec()
    })
}

/// All paths that begin with an event in a state.
struct Walk<'a> {
    contexts: &'a [ScheduleContext],
    counts: fn(ScheduleAction) -> bool,
    /// The highest number of counted actions from here on; `None` while it is being computed.
    most: HashMap<String, Option<usize>>,
}

impl Walk<'_> {
    fn most(&mut self, state: ScheduleState, event: E) -> usize {
        let key = format!("{state:?} {event:?}");
        match self.most.get(&key) {
            Some(Some(most)) => return *most,
            Some(None) => panic!("this path does not end: {key}"),
            None => self.most.insert(key.clone(), None),
        };
        let mut most = 0;
        for context in self.contexts {
            let step = next(*context, state, event);
            let counted = usize::from((self.counts)(step.action));
            let results = results(step.action);
            let later = results.into_iter().map(|result| self.most(step.state, result)).max();
            most = most.max(counted + later.unwrap_or(0));
        }
        self.most.insert(key, Some(most));
        most
    }
}

/// Whatever the request becomes after each action, it is sent in the end: every path ends, and its last action sends
/// the request.
#[test]
fn every_request_is_sent_after_bounded_number_of_steps() {
    let contexts = contexts();
    let most = |state, counts| {
        Walk { contexts: &contexts, counts, most: HashMap::new() }.most(state, Planned)
    };
    for state in [START, OVERFLOW] {
        assert_eq!(most(state, |action| matches!(action, Wait | WriteNow)), 2, "waits");
        assert_eq!(most(state, |action| matches!(action, Use)), usize::from(MOST_SUMMARIES));
        assert_eq!(most(state, |action| matches!(action, Refresh)), 1, "reads of the store");
        assert_eq!(most(state, |_| true), 6, "five before it is sent");
    }
}

/// A request waits for a summary only if it needs one, and nothing is done where nothing may be decided.
#[test]
fn schedule_acts_only_if_summary_is_needed_and_allowed() {
    let states = [START, OVERFLOW, FRESH, USED, USED_FRESH, USED_TWICE];
    let mut seen = 0;
    for context in contexts() {
        for step in states.map(|state| next(context, state, Planned)) {
            let acts = matches!(step.action, Wait | WriteNow | WriteLater | Use | Refresh);
            let may = context.mode == Mode::Active && context.may_decide && context.need != No;
            assert!(may || !acts, "{context:?}: {step:?}");
            let waits = matches!(step.action, Wait | WriteNow);
            let may_wait =
                context.need == Must || context.need == Swap && context.waits_at_threshold;
            assert!(may_wait || !waits, "{context:?}: {step:?}");
            let is_used = step.action == Use;
            assert!(!is_used || context.need >= Swap && context.summary == Ready, "{step:?}");
            let writes = matches!(step.action, WriteNow | WriteLater);
            assert!(!writes || context.writer == Nobody && context.summary == Missing, "{step:?}");
            seen += usize::from(acts);
        }
    }
    assert!(seen > 100, "{seen}");
}

/// Three failures are the maximum here, and each cools the thread down until the given time.
#[test]
fn summary_writer_follows_each_start_end_and_failure() {
    type Change = fn(WriterState) -> WriterState;
    let begun: Change = WriterState::begun;
    let elsewhere: Change = WriterState::found_elsewhere;
    let failed_elsewhere: Change =
        |state| state.with_failures(SummaryFailures::default().and_one(100));
    let cancelled: Change = |state| state.ended(WritingEnd::Cancelled, 100);
    let failed: Change = |state| state.ended(WritingEnd::Failed, 100);
    let written: Change = |state| state.ended(WritingEnd::Written, 100);
    for (name, changes, now, writer) in [
        ("nothing was written", &[][..], 0, Nobody),
        ("it is being written", &[begun], 0, Here),
        ("another process was first", &[begun, elsewhere], 0, Elsewhere),
        ("the next one is written here", &[begun, elsewhere, cancelled, begun], 0, Here),
        ("nobody failed", &[begun, cancelled], 0, Nobody),
        ("another process wrote it", &[begun, elsewhere, written], 0, Nobody),
        ("it failed", &[begun, failed], 99, CoolingDown),
        ("it failed at another process", &[failed_elsewhere], 99, CoolingDown),
        ("it failed a while ago", &[begun, failed], 100, Nobody),
        ("an operator's is written meanwhile", &[begun, failed, begun], 99, Here),
        ("and cancelled", &[begun, failed, begun, cancelled], 99, CoolingDown),
        ("and written", &[begun, failed, begun, written], 99, Nobody),
        ("two failed", &[failed, failed], 100, Nobody),
        ("three failed", &[failed, failed, failed], 100, CoolingDown),
        ("the count begins again", &[failed, failed, written, failed, failed], 100, Nobody),
    ] {
        let state = changes.iter().fold(WriterState::default(), |state, change| change(state));
        assert_eq!(state.writer(3, now), writer, "{name}");
    }
}
