//! An explanation as text for people.
//!
//! Gives the same numbers as the JSON; the layout is part of the product, and a test checks it.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use super::{CacheEffect, CacheReport, ExplainedChange, ExplainedEstimate, Explanation};
use crate::admin::compactions::{CompactionsText, known_number};
use crate::config::Mode;
use crate::context::budget::grouped;
use crate::context::plan::Decision;
use crate::context::savings::ExchangeSavings;
use crate::context::{Outcome, SessionId, ThreadId};
use crate::telemetry::log::clean;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(self.at);
        let time = humantime::format_rfc3339_millis(time);
        writeln!(f, "Request {} at {time}", self.request)?;
        let model = name_or_dash(self.model.as_deref());
        let upstream = name_or_dash(self.upstream.as_deref());
        let session = name_or_dash(self.session.as_ref().map(SessionId::as_str));
        let thread = name_or_dash(self.thread.as_ref().map(ThreadId::as_str));
        writeln!(f, "{model} at {upstream}; session {session}, thread {thread}")?;
        if let Some(witness) = self.found_by {
            writeln!(f, "The session was found by {}", witness.meaning())?;
        }
        if let Some(id) = &self.provider_request_id {
            writeln!(f, "The provider's request id: {}", clean(id))?;
        }
        if self.outcome == Outcome::Interrupted {
            writeln!(f, "Plimsoll was killed during this request: this is what it knew then")?;
        }
        if let Some(times) = self.repeated_calls {
            writeln!(
                f,
                "Loop: the newest call had the same result in {times} of the last 10 turns"
            )?;
        }
        writeln!(f, "Mode: {}{}", self.mode.as_ref(), self.but())?;
        if let Some(overflow) = self.overflow {
            writeln!(f, "Overflow: {overflow}")?;
        }
        writeln!(f, "{}", self.sum())?;
        for (title, decision) in [
            ("New:", Decision::New),
            ("Replayed:", Decision::Replayed),
            ("Not made:", Decision::Declined),
        ] {
            let mut steps = self.steps.iter().filter(|step| step.decision == decision).peekable();
            if steps.peek().is_some() {
                writeln!(f, "{title}")?;
            }
            steps.try_for_each(|step| step.fmt(f))?;
        }
        if self.unlisted > 0 {
            writeln!(f, "And {} more that are not listed.", self.unlisted)?;
        }
        CompactionsText(&self.compactions).fmt(f)?;
        self.cache.fmt(f)?;
        if let Some(estimate) = &self.estimate {
            estimate.fmt(f)?;
        }
        match &self.saved {
            Some(saved) => money(saved, self.dollars, f),
            None => Ok(()),
        }
    }
}

fn name_or_dash(name: Option<&str>) -> Cow<'_, str> {
    // Clients choose names, which may hold control characters.
    clean(name.unwrap_or("-"))
}

impl Explanation {
    /// Why decided changes were not sent.
    fn but(&self) -> String {
        match (self.mode, self.resent, self.revoked) {
            (_, Some(cause), _) => format!(
                "; the provider refused the rewrite ({}), and the original request was sent",
                cause.as_ref()
            ),
            (_, None, Some(cause)) => format!(
                "; the provider refused the new changes ({}), and the last accepted form was sent",
                cause.as_ref()
            ),
            _ if !self.healed.is_empty() => {
                let causes: Vec<&str> = self.healed.iter().map(AsRef::as_ref).collect();
                format!(
                    "; the provider refused the request ({}), and accepted it after a repair",
                    causes.join(", ")
                )
            }
            (Mode::Shadow, ..) => "; decided and measured, but the original was sent".to_owned(),
            _ if self.held_out => "; the session is held out for comparison".to_owned(),
            _ => String::new(),
        }
    }

    fn sum(&self) -> String {
        if self.made.is_nothing() {
            return "Nothing was changed.".to_owned();
        }
        let less = grouped(self.tokens_removed.saturating_add(self.tokens_compacted));
        format!("Changes: {}; {less} tokens less", self.made.description(self.new))
    }
}

impl fmt::Display for ExplainedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}", self.change.description())?;
        if let (Some(message), Some(part)) = (self.message, self.part) {
            write!(f, " at message {message}, part {part}")?;
        }
        if let Some(byte) = self.byte {
            write!(f, ", byte {}", grouped(byte))?;
        }
        let bytes = arrow(self.bytes_before, self.bytes_after, "bytes");
        let tokens = match (self.decision, self.tokens_before) {
            // The tokens of a whole batch, which one part represents.
            (Decision::Declined, Some(tokens)) => {
                Some(format!("{} tokens to save", grouped(tokens)))
            }
            _ => arrow(self.tokens_before, self.tokens_after, "tokens"),
        };
        let sizes: Vec<String> = bytes.into_iter().chain(tokens).collect();
        if !sizes.is_empty() {
            write!(f, ": {}", sizes.join(", "))?;
        }
        writeln!(f)?;
        write!(f, "    {} ({})", self.rule, self.section)?;
        match &self.decided_by {
            Some(exchange) => writeln!(f, "; decided by {exchange}"),
            None => writeln!(f),
        }
    }
}

fn arrow(before: Option<u64>, after: Option<u64>, unit: &str) -> Option<String> {
    let before = before?;
    let after = after?;
    Some(match before == after {
        true => format!("{} {unit}", grouped(before)),
        false => format!("{} → {} {unit}", grouped(before), grouped(after)),
    })
}

impl fmt::Display for CacheEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Cache:")?;
        if let (Some(kept), Some(of)) = (self.kept, self.kept_of) {
            let share = if of == 0 { 100.0 } else { kept as f64 * 100.0 / of as f64 };
            write!(f, "  expected: {share:.0}% of the turn before is unchanged")?;
            write!(f, " ({} of {} tokens)", grouped(kept), grouped(of))?;
            match self.breaks_in {
                Some(place) => writeln!(f, ", to a change in the {}", place.as_ref())?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "  reported: {}", self.now)?;
        if let Some(before) = &self.before {
            writeln!(f, "  turn before ({}): {before}", before.request)?;
        }
        if let Some(miss) = self.miss {
            write!(f, "  the provider says what differs: {}", miss.cause.as_ref())?;
            match miss.tokens {
                Some(tokens) => writeln!(f, " ({} tokens not read)", grouped(tokens))?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for CacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = known_number(self.read);
        let written = known_number(self.written);
        write!(f, "read {read}, written {written}, of {} tokens", known_number(self.input))
    }
}

impl fmt::Display for ExplainedEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.method.as_ref();
        write!(
            f,
            "Estimate: {} tokens ({method}, {})",
            grouped(self.tokens),
            self.counting.as_ref()
        )?;
        match self.actual {
            Some(actual) => writeln!(f, ", reported {}", grouped(actual)),
            None => writeln!(f),
        }
    }
}

fn money(saved: &ExchangeSavings, dollars: Option<f64>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(money) = saved.money else {
        return match dollars {
            Some(dollars) => write!(f, "Money: ${dollars:.4} spent"),
            None => write!(f, "Money: unknown"),
        };
    };
    write!(
        f,
        "Money: ${:.4} spent; ${:.4} saved, ${:.4} for {} tokens processed again",
        money.spent,
        money.saved,
        money.broken,
        grouped(saved.reprocessed)
    )
}
