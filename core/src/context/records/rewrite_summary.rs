//! Reports on a plan: the changes, their counts, and the rule behind each decision in words.
//!
//! Stored with the turn and shown to operators, so it must not contain any text of a prompt (invariant 9).

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::{Change, Decision, DecisionReason, PlanStep, is_default};
use crate::context::policy::Mode;
use crate::dialect::overflow::Overflow;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;

/// What was done to a request; stored with its turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RewriteSummary {
    /// The steps that are new or declined, at most [`MOST_STORED_STEPS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<PlanStep>,
    /// How many changes were made, replayed and new.
    #[serde(flatten, skip_serializing_if = "ChangeCounts::is_nothing")]
    #[schemars(with = "Option<ChangeCounts>")]
    pub made: ChangeCounts,
    /// How many of them are new.
    #[serde(default, skip_serializing_if = "ChangeCounts::is_nothing")]
    pub new: ChangeCounts,
    /// Tokens of tool results that were not sent, estimated. Removed reasoning is only counted in pieces,
    /// because the size of encrypted reasoning is unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tokens_removed: u64,
    /// The share of `tokens_removed` that is new with this request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tokens_pruned: u64,
    /// What the new steps took away, all of them; see [`Self::tokens_of_new`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub new_tokens: NewTokens,
    /// Tokens by which cut results grew, estimated.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tokens_added: u64,
    /// Tokens that a summary replaced, less its own, estimated.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tokens_compacted: u64,
    /// What was removed by an agent's rules, if they decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_rules: Option<RemovedTokens>,
    /// How many tokens were really saved per token claimed above, according to the provider's counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The mode. In shadow mode all of this was decided and measured, and nothing of it sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// The session is held out for comparison: nothing new is decided in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub held_out: bool,
    /// The provider refused the rewritten request for this cause, so the original was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resent: Option<RefusalCause>,
    /// The provider refused the new decisions of this request for this cause. They were revoked, and the
    /// request was sent with the earlier decisions only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<RefusalCause>,
    /// The provider refused the request for these causes, and accepted it with them repaired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub healed: Vec<RepairCause>,
    /// Visible thinking was requested on the client's behalf.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shows_thinking: bool,
    /// What was done because the window was too small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<OverflowReport>,
}

/// How an overflow shows; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OverflowSign {
    /// The provider refused the request.
    Refused,
    /// An error instead of a reply or in the middle of it, after the provider had accepted the request.
    InReply,
    /// The reply ended because the window was full.
    WindowFull,
    /// The reply ended with its length limit before it had any content (`docs/protocols.md` 4.3, MiMo).
    Empty,
    /// The provider read far fewer tokens than were sent (`docs/protocols.md` 4.3, Ollama).
    Truncated,
}

/// An overflow, as it is reported and stored with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OverflowReport {
    /// How it showed.
    pub sign: OverflowSign,
    /// What the provider's message says about it.
    #[serde(flatten)]
    pub reported: Overflow,
    /// Room was made, and the provider accepted the request.
    pub saved: bool,
}

impl OverflowReport {
    /// One for which no room was made.
    pub fn new(sign: OverflowSign, reported: Overflow) -> Self {
        Self { sign, reported, saved: false }
    }
}

/// Tokens that are not sent, by the count that decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct RemovedTokens {
    /// Of tool results, less what stands in for them.
    pub cut: u64,
    /// The share of these that is new with this request.
    pub pruned: u64,
    /// Of the messages that a summary replaced, less the summary.
    pub compacted: u64,
}

/// What the new steps of a request took away, in estimated tokens. Of all of them: only [`MOST_STORED_STEPS`] steps
/// are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct NewTokens {
    /// Removed by late steps, those that change what was sent before; less what stands in for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub late: u64,
    /// Placeholders and summaries in place of what late steps removed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stand_ins: u64,
    /// Whether a late step was made for another reason than a cold cache.
    #[serde(default, skip_serializing_if = "is_default")]
    pub in_warm_cache: bool,
    /// Removed from results that were too large when they were first sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub at_birth: u64,
}

impl NewTokens {
    fn from_steps(steps: &[PlanStep]) -> Self {
        let mut sums = Self::default();
        for step in steps.iter().filter(|step| step.decision == Decision::New) {
            if step.why == DecisionReason::TooLarge {
                sums.at_birth = sums.at_birth.saturating_add(step.removed());
            } else if matches!(step.change, Change::Cut | Change::Compacted) {
                // They change what was sent before.
                sums.late = sums.late.saturating_add(step.removed());
                sums.stand_ins = sums.stand_ins.saturating_add(step.tokens_after);
                sums.in_warm_cache |= step.why != DecisionReason::ColdCache;
            }
        }
        sums
    }
}

/// Changes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct ChangeCounts {
    /// Tool results that were cut.
    #[serde(default)]
    pub cut: u32,
    /// Pieces of reasoning that were put back, including stand-ins.
    #[serde(default)]
    pub put_back: u32,
    /// Pieces of reasoning that were removed.
    #[serde(default)]
    pub removed: u32,
    /// 1 if a summary replaces the beginning of the history, else 0.
    #[serde(default)]
    pub compacted: u32,
    /// Queued messages that were injected.
    #[serde(default)]
    pub injected: u32,
    /// Changes that answer a refusal.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repaired: u32,
}

impl ChangeCounts {
    /// Whether there are none.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The sum of all kinds.
    pub fn count(&self) -> u32 {
        let parts = [self.put_back, self.removed, self.compacted, self.injected, self.repaired];
        parts.into_iter().fold(self.cut, u32::saturating_add)
    }

    /// In words, with the new ones of each kind: `3 tool results cut (2 new), 1 piece of reasoning put back`.
    pub fn description(&self, new: ChangeCounts) -> String {
        let kinds = [
            (self.cut, new.cut, "tool result", "cut"),
            (self.put_back, new.put_back, "piece", "of reasoning put back"),
            (self.removed, new.removed, "piece", "of reasoning removed"),
            (self.compacted, new.compacted, "history", "compacted"),
            (self.injected, new.injected, "queued message", "sent"),
            (self.repaired, new.repaired, "refused part", "repaired"),
        ];
        let mut phrases = Vec::new();
        for (count, new_count, noun, verb) in kinds.into_iter().filter(|(count, ..)| *count > 0) {
            let plural = if count == 1 { "" } else { "s" };
            let suffix = if new_count > 0 { format!(" ({new_count} new)") } else { String::new() };
            phrases.push(format!("{count} {noun}{plural} {verb}{suffix}"));
        }
        phrases.join(", ")
    }

    /// The counter of a kind; stand-ins count as put back.
    pub fn counter(&mut self, change: Change) -> &mut u32 {
        match change {
            Change::Cut => &mut self.cut,
            Change::PutBack | Change::StandIn => &mut self.put_back,
            Change::Removed => &mut self.removed,
            Change::Compacted => &mut self.compacted,
            Change::Injected => &mut self.injected,
            Change::Repaired => &mut self.repaired,
        }
    }
}

/// At most this many steps are stored with a turn.
pub const MOST_STORED_STEPS: usize = 64;

impl RewriteSummary {
    /// Whether there is nothing to keep.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the changes were really sent.
    pub fn is_sent(&self) -> bool {
        !self.made.is_nothing() && self.mode != Mode::Shadow && self.resent.is_none()
    }

    /// What was removed, by the count that decides.
    pub fn removed(&self) -> RemovedTokens {
        self.by_rules.unwrap_or(RemovedTokens {
            cut: self.tokens_removed,
            pruned: self.tokens_pruned,
            compacted: self.tokens_compacted,
        })
    }

    pub(crate) fn measured(&self, claimed: u64) -> u64 {
        // The provider's counts may confirm only a share of what is claimed.
        (claimed as f64 * self.measured.unwrap_or(1.0)).round() as u64
    }

    pub(crate) fn tokens_of_new(&self) -> NewTokens {
        // Turns of earlier versions have no sums: then those of the stored steps.
        if is_default(&self.new_tokens) {
            NewTokens::from_steps(&self.steps)
        } else {
            self.new_tokens
        }
    }

    /// Summarises these steps.
    pub fn from_steps(steps: &[PlanStep], mode: Mode) -> Self {
        let mut done = Self { mode, new_tokens: NewTokens::from_steps(steps), ..Self::default() };
        for step in steps {
            if step.decision != Decision::Replayed && done.steps.len() < MOST_STORED_STEPS {
                done.steps.push(step.clone());
            }
            // Stored as well, so that it is shown why, but it changes nothing.
            if step.decision == Decision::Declined {
                continue;
            }
            *done.made.counter(step.change) += 1;
            *done.new.counter(step.change) += u32::from(step.decision == Decision::New);
            let removed = step.removed();
            // A summary is no cut: its tokens are reported by themselves.
            if step.change == Change::Compacted {
                done.tokens_compacted += removed;
                continue;
            }
            done.tokens_removed += removed;
            done.tokens_pruned += if step.decision == Decision::New { removed } else { 0 };
            done.tokens_added += step.tokens_after.saturating_sub(step.tokens_before);
        }
        done
    }
}

/// The documents and headings that state the rules.
const OLD_RESULTS: &str = "docs/rewriting.md \"Old tool results\"";
const REASONING: &str = "docs/rewriting.md \"Reasoning\"";
const COMPACTION: &str = "docs/rewriting.md \"Compaction\"";
const ALWAYS: &str = "docs/rewriting.md \"Rules for every rewrite\"";
const ALLOWED: &str = "docs/architecture.md \"When a rewrite is allowed\"";
const FAILING: &str = "docs/architecture.md \"Failing open\"";
const HEALING: &str = "docs/healing.md \"What is changed\"";
const OVERFLOW: &str = "docs/rewriting.md \"A request that does not fit\"";

impl DecisionReason {
    /// The rule in words, and the document and heading that state it.
    pub fn rule(self) -> (&'static str, &'static str) {
        match self {
            Self::Pressure => ("the window fills past prune.pressure", OLD_RESULTS),
            Self::ColdCache => {
                ("the provider's cache is cold or empty, so that a cut breaks nothing", OLD_RESULTS)
            }
            Self::PaysBack => {
                ("the saving pays for the broken cache within a few turns", OLD_RESULTS)
            }
            Self::Always => ("the policy cuts whenever a cut saves enough", OLD_RESULTS),
            Self::TooLarge => (
                "the result is too large to be sent whole",
                "docs/rewriting.md \"Results that are too large\"",
            ),
            Self::Queued => {
                ("it was queued for this session", "docs/rewriting.md \"Injected messages\"")
            }
            Self::Overflow => ("the provider answered that it does not fit the window", OVERFLOW),
            Self::Birth => ("it is sent for the first time, so nothing depends on it yet", ALLOWED),
            Self::Demanded => ("the provider answers 400 if it is missing", REASONING),
            Self::OpenLoop => ("the tool loop it belongs to is still open", REASONING),
            Self::Stripped => ("the policy leaves reasoning out of the context", REASONING),
            Self::Bound => ("the model's later reasoning is bound to these bytes", ALLOWED),
            Self::OtherPrefix => {
                ("the messages before it are not those that it was made with", REASONING)
            }
            Self::OtherModel => ("another model made it", REASONING),
            Self::OtherUpstream => ("another upstream made it", REASONING),
            Self::Unwanted => {
                ("the provider does not expect it back, or thinking is off", REASONING)
            }
            Self::TooLate => {
                ("earlier requests were sent without it, and the cache depends on that", REASONING)
            }
            Self::Policy => ("the policy forbids it", ALLOWED),
            Self::Provider => (
                "prune.method leaves old results to the provider",
                "docs/rewriting.md \"Clearing by the provider\"",
            ),
            Self::NoGate => ("no condition in prune.gate is met", OLD_RESULTS),
            Self::TooLittle => ("it would save less than prune.min_saving_tokens", OLD_RESULTS),
            Self::UnknownWindow => ("the model is unknown: its window is a guess", OLD_RESULTS),
            Self::LittleRoom => {
                ("it would not bring the request down to prune.low_water", OLD_RESULTS)
            }
            Self::NoGain => {
                ("the broken cache would cost more than is saved within a few turns", OLD_RESULTS)
            }
            Self::Suspended => (
                "the provider refused a rewrite: nothing new is changed in this branch for now",
                ALWAYS,
            ),
            Self::HeldOut => {
                ("the session is held out for comparison", "docs/rewriting.md \"What it saved\"")
            }
            Self::Held => ("the provider stores the history", ALLOWED),
            Self::Purpose => ("it is the client's own compaction, or another side call", ALWAYS),
            Self::Structure => ("the structure of the request does not allow this edit", FAILING),
            Self::NotKept => ("the store did not save the decision", FAILING),
            Self::Threshold => ("the context fills past compact.threshold", COMPACTION),
            Self::Window => ("it would not fit the window otherwise", COMPACTION),
            Self::Requested => ("it was requested", COMPACTION),
            Self::NothingToCut => ("nothing can be summarised", COMPACTION),
            Self::Shadow => ("shadow mode asks for no summary", ALLOWED),
            Self::NotReady => ("its summary is not written yet", COMPACTION),
            Self::Refusal => ("the provider refused the request without this change", HEALING),
        }
    }
}

impl Change {
    /// What was done, in words.
    pub fn description(self) -> &'static str {
        match self {
            Change::Cut => "cut a tool result",
            Change::PutBack => "put reasoning back",
            Change::StandIn => "put a stand-in for lost reasoning",
            Change::Removed => "removed reasoning",
            Change::Compacted => "compacted the history",
            Change::Injected => "sent a queued message",
            Change::Repaired => "changed what the provider refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{PartIndex, Span};

    fn step(change: Change, decision: Decision, before: u64, after: u64) -> PlanStep {
        let declined = PlanStep::declined(
            change,
            DecisionReason::Always,
            PartIndex::new(1, 2),
            Span::new(0, 9),
            before,
        );
        PlanStep { decision, tokens_after: after, ..declined }
    }

    #[test]
    fn replayed_steps_are_counted_and_new_or_declined_ones_listed() {
        let steps = [
            step(Change::Cut, Decision::Replayed, 900, 10),
            step(Change::Cut, Decision::New, 500, 10),
            step(Change::StandIn, Decision::New, 0, 0),
            step(Change::Removed, Decision::Declined, 70, 70),
        ];
        let done = RewriteSummary::from_steps(&steps, Mode::Active);
        assert_eq!(done.steps, steps[1..]);
        assert_eq!(done.made, ChangeCounts { cut: 2, put_back: 1, ..ChangeCounts::default() });
        assert_eq!(done.new, ChangeCounts { cut: 1, put_back: 1, ..ChangeCounts::default() });
        assert_eq!(done.tokens_removed, 890 + 490);
        assert_eq!(done.tokens_added, 0);
        assert!(done.is_sent());
        assert!(!done.is_nothing());
        assert!(!RewriteSummary { mode: Mode::Shadow, ..done.clone() }.is_sent());
        assert!(!RewriteSummary { resent: Some(RefusalCause::Structure), ..done }.is_sent());
    }

    #[test]
    fn limited_number_of_steps_is_listed_and_all_are_counted() {
        let steps = vec![step(Change::Cut, Decision::New, 10, 1); MOST_STORED_STEPS + 5];
        let done = RewriteSummary::from_steps(&steps, Mode::Active);
        assert_eq!(done.steps.len(), MOST_STORED_STEPS);
        assert_eq!(done.new.cut as usize, MOST_STORED_STEPS + 5);
    }

    /// All new tokens are summed, listed or not, by what the change did to the cache.
    #[test]
    fn unlisted_steps_are_summed() {
        let of = |why, change, decision| PlanStep { why, ..step(change, decision, 1_010, 10) };
        let cold = of(DecisionReason::ColdCache, Change::Cut, Decision::New);
        let mut steps = vec![cold; MOST_STORED_STEPS + 6];
        let sums =
            |steps: &[PlanStep]| RewriteSummary::from_steps(steps, Mode::Active).tokens_of_new();
        let all = NewTokens { late: 70_000, stand_ins: 700, ..NewTokens::default() };
        assert_eq!(sums(&steps), all);
        steps.push(of(DecisionReason::TooLarge, Change::Cut, Decision::New));
        steps.push(of(DecisionReason::Pressure, Change::Cut, Decision::Replayed));
        steps.push(of(DecisionReason::Pressure, Change::Cut, Decision::Declined));
        steps.push(of(DecisionReason::Queued, Change::Injected, Decision::New));
        assert_eq!(sums(&steps), NewTokens { at_birth: 1_000, ..all });
        steps.push(of(DecisionReason::Pressure, Change::Cut, Decision::New));
        let warm = NewTokens { late: 71_000, stand_ins: 710, in_warm_cache: true, at_birth: 1_000 };
        assert_eq!(sums(&steps), warm);
    }

    #[test]
    fn rewrite_summary_round_trips() {
        let steps = [step(Change::Cut, Decision::New, 500, 10)];
        let done =
            RewriteSummary { held_out: true, ..RewriteSummary::from_steps(&steps, Mode::Shadow) };
        let text = serde_json::to_string(&done).unwrap();
        assert_eq!(serde_json::from_str::<RewriteSummary>(&text).unwrap(), done);
        let before: RewriteSummary =
            serde_json::from_str(r#"{"cut":1,"tokens_removed":3,"tokens_added":0}"#).unwrap();
        assert_eq!(before.made.cut, 1);
        assert_eq!(before.mode, Mode::Active);
    }

    /// Each kind of change is shown with its count and how many are new; a single one in the singular.
    #[test]
    fn changes_are_described_by_kind() {
        let made = ChangeCounts {
            cut: 1,
            put_back: 2,
            removed: 3,
            compacted: 1,
            injected: 5,
            repaired: 6,
        };
        assert_eq!(made.count(), 18);
        let new = ChangeCounts { put_back: 1, ..ChangeCounts::default() };
        let description = "1 tool result cut, 2 pieces of reasoning put back (1 new), 3 pieces of \
                     reasoning removed, 1 history compacted, 5 queued messages sent, 6 refused \
                     parts repaired";
        assert_eq!(made.description(new), description);
        let mut counted = ChangeCounts::default();
        let changes = [
            (Change::Cut, 1, "cut a tool result"),
            (Change::PutBack, 1, "put reasoning back"),
            (Change::StandIn, 1, "put a stand-in for lost reasoning"),
            (Change::Removed, 3, "removed reasoning"),
            (Change::Compacted, 1, "compacted the history"),
            (Change::Injected, 5, "sent a queued message"),
            (Change::Repaired, 6, "changed what the provider refused"),
        ];
        for (change, times, expected) in changes {
            *counted.counter(change) += times;
            assert_eq!(change.description(), expected);
        }
        assert_eq!(counted, made);
    }

    /// Summaries are counted apart from cuts, and new changes apart from replayed ones.
    #[test]
    fn removed_tokens_are_counted_by_change_that_removed_them() {
        let steps = [
            step(Change::Compacted, Decision::New, 5_000, 400),
            step(Change::Compacted, Decision::Replayed, 300, 100),
            step(Change::Cut, Decision::New, 900, 10),
            step(Change::Cut, Decision::New, 70, 10),
            step(Change::Cut, Decision::Replayed, 60, 10),
            step(Change::Injected, Decision::New, 0, 12),
            step(Change::Injected, Decision::Replayed, 0, 30),
        ];
        let done = RewriteSummary::from_steps(&steps, Mode::Active);
        let new: Vec<PlanStep> =
            steps.iter().filter(|step| step.decision == Decision::New).cloned().collect();
        let expected = RewriteSummary {
            steps: new,
            made: ChangeCounts { cut: 3, compacted: 2, injected: 2, ..ChangeCounts::default() },
            new: ChangeCounts { cut: 2, compacted: 1, injected: 1, ..ChangeCounts::default() },
            tokens_removed: 890 + 60 + 50,
            tokens_pruned: 890 + 60,
            new_tokens: NewTokens {
                late: 4_600 + 890 + 60,
                stand_ins: 420,
                in_warm_cache: true,
                at_birth: 0,
            },
            tokens_added: 42,
            tokens_compacted: 4_600 + 200,
            ..RewriteSummary::default()
        };
        assert_eq!(done, expected);
        assert!(RewriteSummary::default().is_nothing());
        assert!(!done.is_nothing());
        let written = serde_json::to_value(RewriteSummary::default()).unwrap();
        assert_eq!(written, serde_json::json!({}), "empty values are not written");
    }

    /// Every reason has a rule in words, a document and a heading in quotes; `tests/citations.rs` looks for the heading.
    #[test]
    fn each_reason_has_its_rule() {
        use strum::IntoEnumIterator as _;
        let mut rules = Vec::new();
        for why in DecisionReason::iter() {
            let (rule, heading) = why.rule();
            let is_heading = heading.starts_with("docs/")
                && heading.ends_with('"')
                && heading.split_once(".md \"").is_some_and(|(_, title)| title.len() > 3);
            assert!(rule.len() > 10, "{why:?}: {rule}, {heading}");
            assert!(is_heading, "{why:?}: {rule}, {heading}");
            rules.push(rule);
        }
        rules.sort_unstable();
        rules.dedup();
        assert_eq!(rules.len(), DecisionReason::iter().count(), "no two say the same");
    }
}
