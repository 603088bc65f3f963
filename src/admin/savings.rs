//! What rewriting saved, for one session and for many, with what each number is a share of.
//!
//! Held-out sessions are shown beside the others with their number, so that three of them mislead nobody. The
//! sums come from `context::savings`; nothing is computed here a second time.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::view::id_of;
use crate::config::{Mode, PriceList};
use crate::context::budget::grouped;
use crate::context::cost;
use crate::context::ledger::Ledger;
use crate::context::policy::DecisionMode;
use crate::context::savings::{self, SummaryCosts};
use crate::context::{SessionId, SessionNames, Turn};
use crate::dialect::{Dialect, Purpose};
use crate::store::Scope;
use crate::telemetry::log::clean;

/// With fewer sessions than this on either side, a comparison means nothing.
const ENOUGH: u64 = 30;

/// What was saved in the sessions of a page, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct SavingsPage {
    /// The sum of all of them.
    pub total: savings::Savings,
    /// The sessions from which something was removed or would have been, or that have a summary.
    pub sessions: Vec<SessionSavings>,
    /// The number of sessions that were counted.
    pub counted: u64,
    /// The `skip` of the next page; `null` if every session is counted.
    pub next: Option<usize>,
    /// Held-out sessions compared with the others; `null` if none is held out.
    pub comparison: Option<Comparison>,
}

/// What was saved in one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct SessionSavings {
    /// The session's id in this API.
    pub id: String,
    /// The id that the client gave it.
    pub session: SessionId,
    /// What people call it, as far as its turns say: its title, or its agent and project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// The sums.
    pub savings: savings::Savings,
}

/// Sessions that `prune.hold_out` left unchanged, compared with the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct Comparison {
    /// Unchanged.
    pub held_out: ComparisonGroup,
    /// Rewritten if policy required it.
    pub others: ComparisonGroup,
    /// The number of sessions that are neither, because `hold_out` or the mode changed meanwhile; not
    /// compared.
    pub mixed: u64,
    /// Whether both groups have enough sessions for a comparison.
    pub enough: bool,
    /// What a turn of the others cost less; `None` if a group has fewer than two sessions with a known cost.
    pub saved_per_turn: Option<SavedPerTurn>,
}

/// A difference of costs, and where it is with a probability of 95 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct SavedPerTurn {
    /// US dollars; negative if the others cost more.
    pub dollars: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// One side of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct ComparisonGroup {
    /// The number of sessions.
    pub sessions: u64,
    /// The number of turns with a reported input.
    pub turns: u64,
    /// The median of their input tokens.
    pub median_input: Option<u64>,
    /// The average cost of a turn at catalogue prices, in US dollars.
    pub cost_per_turn: Option<f64>,
    /// The number of turns that the cost is of.
    pub priced_turns: u64,
}

/// The sums of one session.
#[derive(Default)]
pub(super) struct SessionSums {
    savings: savings::Savings,
    session_name: Option<String>,
    side: Option<ComparisonSide>,
    inputs: Vec<u64>,
    cost: f64,
    priced: u64,
}

/// The side of the comparison that a session is on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparisonSide {
    HeldOut,
    Other,
    Mixed,
}

impl SessionSums {
    pub(super) fn from_ledger(ledger: &Ledger, prices: &PriceList) -> Self {
        let session_name = SessionNames::from_ledger(ledger).description();
        let mut gathered = Self { session_name, ..Self::default() };
        for turn in ledger.turns() {
            let price = prices.for_turn(turn);
            gathered.savings.add(&turn.savings(ledger.parent(&turn.position), price));
            // A side call says nothing of how long contexts are, and a lower bound nothing of the whole.
            if turn.purpose != Purpose::Turn || turn.usage.lower_bound {
                continue;
            }
            let side = side(turn);
            gathered.side = Some(gathered.side.map_or(side, |before| before.with(side)));
            gathered.inputs.extend(turn.usage.input);
            let dollars = turn.cost(price);
            gathered.cost += dollars.unwrap_or(0.0);
            gathered.priced += u64::from(dollars.is_some());
        }
        for one in ledger.summaries(DecisionMode::Active) {
            // The protocol changes the cost only by cache lifetimes, which are not reported.
            let turn = ledger.turn(&one.exchange);
            let dialect = turn.map_or(Dialect::OpenaiChat, |turn| turn.dialect);
            let price = prices.price(&one.upstream, &one.model, &one.model);
            let dollars = price.and_then(|price| cost::call(&one.spent, &price, dialect, one.at));
            gathered.savings.wrote(SummaryCosts::from_usage(&one.spent, dollars));
        }
        gathered
    }
}

fn side(turn: &Turn) -> ComparisonSide {
    match (turn.done.held_out, turn.done.mode) {
        (true, _) if turn.done.made.is_nothing() => ComparisonSide::HeldOut,
        (false, Mode::Active) => ComparisonSide::Other,
        _ => ComparisonSide::Mixed,
    }
}

impl ComparisonSide {
    fn with(self, other: Self) -> Self {
        if self == other { self } else { ComparisonSide::Mixed }
    }
}

impl SavingsPage {
    /// The page of these sessions; `next` comes from the page of sessions.
    pub(super) fn new(gathered: Vec<(Scope, SessionSums)>, next: Option<usize>) -> Self {
        let mut total = savings::Savings::default();
        let mut comparison = Comparison::default();
        let mut held_out = GroupSums::default();
        let mut others = GroupSums::default();
        let mut sessions = Vec::new();
        let counted = gathered.len() as u64;
        for (scope, mut one) in gathered {
            total.join(&one.savings);
            let wrote = one.savings.summaries.written > 0;
            if wrote || one.savings.removed + one.savings.in_shadow > 0 {
                let id = id_of(&scope);
                let (session, session_name) = (scope.session, one.session_name.take());
                let savings = one.savings;
                sessions.push(SessionSavings { id, session, session_name, savings });
            }
            match one.side {
                Some(ComparisonSide::HeldOut) => held_out.add(one),
                Some(ComparisonSide::Other) => others.add(one),
                Some(ComparisonSide::Mixed) => comparison.mixed += 1,
                None => {}
            }
        }
        comparison.enough = held_out.sessions.min(others.sessions) >= ENOUGH;
        let has_held_out = held_out.sessions > 0;
        comparison.saved_per_turn = held_out.less(&others);
        comparison.held_out = held_out.group();
        comparison.others = others.group();
        Self {
            total,
            sessions,
            counted,
            next,
            comparison: if has_held_out { Some(comparison) } else { None },
        }
    }
}

/// Standard errors on either side of a mean within which it is with a probability of 95 %.
const ERRORS: f64 = 1.96;

/// The sums of one side.
#[derive(Default)]
struct GroupSums {
    sessions: u64,
    inputs: Vec<u64>,
    cost: f64,
    priced: u64,
    /// Cost and priced turns of each session that has some: sessions are drawn, not turns.
    each: Vec<(f64, f64)>,
}

impl GroupSums {
    fn add(&mut self, one: SessionSums) {
        self.sessions += 1;
        self.inputs.extend(one.inputs);
        self.cost += one.cost;
        self.priced += one.priced;
        if one.priced > 0 {
            self.each.push((one.cost, one.priced as f64));
        }
    }

    /// The cost of a turn, and the square of its standard error: that of a ratio of two sums over sessions.
    fn mean(&self) -> Option<(f64, f64)> {
        let sessions = self.each.len() as f64;
        if sessions < 2.0 {
            return None;
        }
        let turns: f64 = self.each.iter().map(|(_, turns)| turns).sum();
        let mean = self.cost / turns;
        let squares = self.each.iter().map(|(cost, turns)| (cost - mean * turns).powi(2));
        Some((mean, squares.sum::<f64>() * sessions / (sessions - 1.0) / turns.powi(2)))
    }

    /// How much less a turn of the others costs.
    fn less(&self, others: &Self) -> Option<SavedPerTurn> {
        let (mean, error) = self.mean()?;
        let (other_mean, other_error) = others.mean()?;
        let dollars = mean - other_mean;
        let margin = ERRORS * (error + other_error).sqrt();
        Some(SavedPerTurn { dollars, low: dollars - margin, high: dollars + margin })
    }

    fn group(mut self) -> ComparisonGroup {
        let turns = self.inputs.len();
        let mut median = None;
        if turns > 0 {
            median = Some(*self.inputs.select_nth_unstable(turns / 2).1);
        }
        ComparisonGroup {
            sessions: self.sessions,
            turns: turns as u64,
            median_input: median,
            cost_per_turn: match self.priced {
                0 => None,
                priced => Some(self.cost / priced as f64),
            },
            priced_turns: self.priced,
        }
    }
}

impl fmt::Display for SavingsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = &self.total;
        writeln!(f, "Savings of {}", sessions(self.counted))?;
        let share = total.removed_share.unwrap_or(0.0) * 100.0;
        let unpruned = grouped(total.removed.saturating_add(total.sent));
        writeln!(
            f,
            "  Removed:      {} tokens, counted on each turn without them",
            grouped(total.removed)
        )?;
        writeln!(f, "                {share:.1}% of {unpruned} that would have been sent")?;
        writeln!(
            f,
            "                on {} of {} turns",
            grouped(total.pruned_turns),
            grouped(total.turns)
        )?;
        if total.in_shadow > 0 {
            writeln!(
                f,
                "  In shadow:    {} tokens would have been removed",
                grouped(total.in_shadow)
            )?;
        }
        let money = &total.money;
        writeln!(f, "  Saved:        ${:.4} at catalogue prices", money.saved)?;
        writeln!(
            f,
            "  Broken cache: ${:.4} for {} tokens processed again",
            money.broken,
            grouped(total.reprocessed)
        )?;
        let summaries = &total.summaries;
        if summaries.written > 0 {
            SummaryCostsText(summaries).fmt(f)?;
        }
        writeln!(f, "  Net:          {}${:.4}", minus(total.net), total.net.abs())?;
        writeln!(
            f,
            "  Spent:        ${:.4} on the {} of {} turns whose price is known",
            money.spent,
            grouped(total.priced_turns),
            grouped(total.turns)
        )?;
        let checked = &total.checked;
        if checked.turns > 0 {
            writeln!(
                f,
                "  Checked:      {} tokens claimed on {} turns, {} by the provider's own count",
                grouped(checked.claimed),
                grouped(checked.turns),
                checked.saved()
            )?;
        }
        if let Some(comparison) = &self.comparison {
            comparison.fmt(f)?;
        }
        // Of a single session, the total says it all.
        if self.counted > 1 {
            for session in &self.sessions {
                session.fmt(f)?;
            }
        }
        match self.next {
            Some(_) => write!(f, "Older sessions are not counted; use --limit to count more."),
            None => Ok(()),
        }
    }
}

impl fmt::Display for SessionSavings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", clean(self.session.as_str()))?;
        if let Some(name) = &self.session_name {
            write!(f, " ({name})")?;
        }
        let removed = grouped(self.savings.removed);
        let share = self.savings.removed_share.unwrap_or(0.0) * 100.0;
        let net = self.savings.net;
        writeln!(f, ": {removed} tokens ({share:.1}%), net {}${:.4}", minus(net), net.abs())
    }
}

/// What summaries cost, as text.
struct SummaryCostsText<'c>(&'c SummaryCosts);

impl fmt::Display for SummaryCostsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(costs) = self;
        writeln!(
            f,
            "  Summaries:    ${:.4} on the {} of {} whose price is known",
            costs.dollars,
            grouped(costs.priced),
            grouped(costs.written)
        )?;
        let input = grouped(costs.input);
        let output = grouped(costs.output);
        writeln!(f, "                {input} tokens read for them, {output} generated")?;
        let compacted = grouped(costs.tokens_compacted);
        writeln!(
            f,
            "                instead of {compacted} tokens, counted on each turn without them"
        )
    }
}

fn minus(number: f64) -> &'static str {
    if number < 0.0 { "-" } else { "" }
}

fn sessions(count: u64) -> String {
    format!("{} session{}", grouped(count), if count == 1 { "" } else { "s" })
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Held out, compared with the others:")?;
        for (name, group) in [("held out", &self.held_out), ("others", &self.others)] {
            let median = group.median_input.map_or("unknown".to_owned(), grouped);
            let cost = group.cost_per_turn.map_or("unknown".into(), |cost| format!("${cost:.4}"));
            let sessions = sessions(group.sessions);
            let turns = grouped(group.turns);
            writeln!(
                f,
                "  {name}: {sessions}, {turns} turns, median input {median} tokens, {cost} a turn"
            )?;
        }
        if let Some(SavedPerTurn { dollars, low, high }) = self.saved_per_turn {
            let [dollars, low, high] =
                [dollars, low, high].map(|one| format!("{}${:.4}", minus(one), one.abs()));
            writeln!(f, "  saved a turn: {dollars} ({low} to {high} with a probability of 95 %)")?;
        }
        if self.mixed > 0 {
            writeln!(f, "  in neither group: {}", sessions(self.mixed))?;
        }
        if !self.enough {
            writeln!(f, "  These are too few for a conclusion: each side needs {ENOUGH}.")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(costs: &[f64]) -> GroupSums {
        let mut sums = GroupSums::default();
        for cost in costs {
            sums.add(SessionSums { cost: *cost, priced: 1, ..SessionSums::default() });
        }
        sums
    }

    #[test]
    fn sessions_have_their_names() {
        let mut session = SessionSavings {
            id: "t.line-1".into(),
            session: "line-1".into(),
            session_name: None,
            savings: savings::Savings::default(),
        };
        assert_eq!(session.to_string(), "line-1: 0 tokens (0.0%), net $0.0000\n");
        session.session_name = Some("Codex · my shop".into());
        assert!(session.to_string().starts_with("line-1 (Codex · my shop): "), "{session}");
    }

    /// Of one turn a session, it is the difference of two means of three, each with a deviation of 1.
    #[test]
    fn difference_has_its_interval() {
        let saved = group(&[1.0, 2.0, 3.0]).less(&group(&[0.0, 1.0, 2.0])).unwrap();
        assert!((saved.dollars - 1.0).abs() < 1e-9, "{saved:?}");
        let margin = 1.96 * (2.0_f64 / 3.0).sqrt();
        assert!((saved.high - 1.0 - margin).abs() < 1e-9, "{saved:?}");
        assert!((1.0 - margin - saved.low).abs() < 1e-9, "{saved:?}");
        assert_eq!(group(&[1.0]).less(&group(&[0.0, 1.0])), None, "one session says nothing");
    }
}
