//! The compactions of a context as the admin API shows them: with their cost, and as text.
//!
//! The facts come from `context::compact`; nothing is decided here. Text and JSON give the same numbers.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::config::PriceList;
use crate::context::budget::grouped;
use crate::context::compact::report::{CompactionReport, Compactions};
use crate::context::ledger::Ledger;
use crate::context::{Turn, cost};
use crate::telemetry::log::clean;

/// The compactions of a turn's context, with their cost.
pub(super) fn of_turn(ledger: &Ledger, turn: &Turn, prices: &PriceList) -> Compactions {
    let mut compactions = Compactions::of_turn(ledger, turn);
    for report in compactions.iter_mut() {
        let price = prices.price(&report.upstream, &report.model, &report.model);
        report.dollars =
            price.and_then(|price| cost::call(&report.spent, &price, turn.dialect, turn.at));
    }
    compactions
}

/// A compaction as text.
struct CompactionText<'r>(&'r CompactionReport);

impl fmt::Display for CompactionText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        let tokens_before = grouped(report.tokens_before);
        let tokens_after = grouped(report.tokens_after);
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(report.at);
        let time = humantime::format_rfc3339_seconds(time);
        let request = &report.exchange;
        writeln!(f, "  {tokens_before} → {tokens_after} tokens at {time}, for request {request}")?;
        let (rule, section) = report.why.rule();
        writeln!(f, "  because {rule} ({section})")?;
        let model = clean(&report.model);
        let upstream = clean(&report.upstream);
        writeln!(f, "  {}, {model} at {upstream}", report.engine.description())?;
        let seconds = report.took_ms as f64 / 1000.0;
        write!(f, "  overhead: {seconds:.1} s, {} tokens read", known_number(report.spent.input))?;
        if let Some(cached) = report.spent.cache_read {
            write!(f, " ({} from the cache)", grouped(cached))?;
        }
        write!(f, ", {} written", known_number(report.spent.output))?;
        match report.dollars {
            Some(dollars) => writeln!(f, ", ${dollars:.4}"),
            None => writeln!(f),
        }
    }
}

/// Groups digits; `unknown` for a number that was not reported.
pub(super) fn known_number(number: Option<u64>) -> String {
    number.map_or("unknown".to_owned(), grouped)
}

/// The compactions of a context as text: lines, each with its line break.
pub(super) struct CompactionsText<'c>(pub(super) &'c Compactions);

impl fmt::Display for CompactionsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(compactions) = self;
        if let Some((newest, folded)) = compactions.used.split_last() {
            write!(f, "Compacted:\n{}", CompactionText(newest))?;
            if !folded.is_empty() {
                let many = if folded.len() == 1 { "summary is" } else { "summaries are" };
                write!(f, "  {} earlier {many} included in it", folded.len())?;
                match compactions.used.iter().map(|one| one.dollars).sum::<Option<f64>>() {
                    Some(dollars) => writeln!(f, "; ${dollars:.4} for all of them")?,
                    None => writeln!(f)?,
                }
            }
        }
        match &compactions.ready {
            Some(ready) => {
                let ready = CompactionText(ready);
                write!(f, "A summary is ready, to be used past the threshold:\n{ready}")
            }
            None => Ok(()),
        }
    }
}
