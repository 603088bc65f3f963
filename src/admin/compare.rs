//! Compares two requests of a session: what was added, dropped, moved or cut, and where the provider's cached prefix ends.
//!
//! Says it in words, too. Contains places and sizes, and never text of a prompt (invariant 9).

use std::fmt;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::responses::{self, AdminError, AdminResponse, negotiated};
use super::state::Admin;
use crate::context::budget::grouped;
use crate::context::compare::{PartsChange, PartsFate, RequestComparison, compare};
use crate::context::ledger::Ledger;
use crate::context::{ExchangeId, PromptSection, Turn};

/// What differs between two requests of a session, as they were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct ComparedRequests {
    /// The exchange of the earlier one.
    pub earlier_request: ExchangeId,
    /// The exchange of the later one.
    pub later_request: ExchangeId,
    /// From the end of the earlier one to the arrival of the later one, ms.
    pub idle_ms: u64,
    /// Whether the same model of the same upstream was called.
    pub same_model: bool,
    /// How long its cache lasts after a call, ms.
    pub cache_lifetime_ms: u64,
    /// Tokens that the later one read from the provider's cache; `None` if that was not reported.
    pub cache_read: Option<u64>,
    #[serde(flatten)]
    pub comparison: RequestComparison,
}

/// Compares a request with the one that the query names as `with`, or else with the one that it continues.
pub(super) async fn answer(
    admin: &Admin,
    id: &ExchangeId,
    request: &Request<Incoming>,
) -> AdminResponse {
    let recent = admin.telemetry.recent(id);
    let scope = responses::scope_of_exchange(admin, id, recent.as_deref()).await?;
    let scope = scope.ok_or_else(|| responses::unknown_exchange(id))?;
    let other = responses::text_parameter(request.uri().query(), "with").map(ExchangeId::from);
    let looking = admin.ledgers.look(&scope, |ledger| {
        let turn = ledger.turn(id).ok_or_else(|| responses::unknown_exchange(id))?;
        let other: &Turn = match &other {
            Some(other) => ledger.turn(other).ok_or_else(|| not_in_session(other))?,
            None => ledger.parent(&turn.position).ok_or_else(|| {
                AdminError::unknown(format!("Exchange {id:?} continues no known request."))
            })?,
        };
        let [earlier, later] = if other.at <= turn.at { [other, turn] } else { [turn, other] };
        let ttl_s = admin.prices.model(&earlier.model).cache_ttl_s;
        ComparedRequests::new(ledger, earlier, later, ttl_s)
    });
    Ok(negotiated(&looking.await??, request))
}

fn not_in_session(id: &ExchangeId) -> AdminError {
    AdminError::unknown(format!(
        "The session has no turn of exchange {id:?}: compare two requests of one session."
    ))
}

impl ComparedRequests {
    fn new(ledger: &Ledger, earlier: &Turn, later: &Turn, ttl_s: u64) -> Result<Self, AdminError> {
        let forgotten = |turn: &Turn| {
            let id = &turn.exchange;
            AdminError::unknown(format!(
                "What exchange {id:?} sent is not known any more: the session is too long."
            ))
        };
        let earlier_parts = ledger.sketch(earlier).ok_or_else(|| forgotten(earlier))?;
        let later_parts = ledger.sketch(later).ok_or_else(|| forgotten(later))?;
        Ok(Self {
            earlier_request: earlier.exchange.clone(),
            later_request: later.exchange.clone(),
            idle_ms: later.at.saturating_sub(earlier.ended),
            same_model: (&earlier.model, &earlier.upstream) == (&later.model, &later.upstream),
            cache_lifetime_ms: earlier.usage.cache_ttl_ms(ttl_s),
            cache_read: later.usage.cache_read,
            comparison: compare(&earlier_parts, &later_parts),
        })
    }

    /// Where the beginning that both have ends, and what the provider read of it.
    fn cache(&self) -> String {
        let RequestComparison { same, broken_in, .. } = &self.comparison;
        let end = match broken_in {
            Some(section) => {
                let section = section_name(*section);
                format!("A cached prefix ends before part {} ({section}).", same.parts + 1)
            }
            None => "All of the earlier request can be read from the cache.".to_owned(),
        };
        let read = match self.cache_read {
            None => "The provider reported no cache.".to_owned(),
            Some(read) => {
                format!("The provider read {} tokens from its cache", grouped(read))
                    + &self.cache_loss(read)
            }
        };
        format!("{end} {read}")
    }

    /// Why the provider read nothing from its cache, if that is plain.
    fn cache_loss(&self, read: u64) -> String {
        if read > 0 || self.comparison.same.parts == 0 {
            ".".to_owned()
        } else if !self.same_model {
            ": another model was asked.".to_owned()
        } else if self.idle_ms > self.cache_lifetime_ms {
            let [idle, lifetime] = [self.idle_ms, self.cache_lifetime_ms].map(duration);
            format!(": it lasts {lifetime}, and {idle} had passed.")
        } else {
            ", though its lifetime was not over.".to_owned()
        }
    }
}

impl fmt::Display for ComparedRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { earlier_request, later_request, idle_ms, comparison, .. } = self;
        let RequestComparison { same, earlier, later, changes, .. } = comparison;
        let model = if self.same_model { "the same model" } else { "another model" };
        writeln!(
            f,
            "{later_request} after {earlier_request}, {} later, {model}",
            duration(*idle_ms)
        )?;
        writeln!(
            f,
            "The same: the first {} of {} parts, {} of {} tokens (before: {} parts, {} tokens)",
            same.parts,
            later.parts,
            grouped(same.tokens),
            grouped(later.tokens),
            earlier.parts,
            grouped(earlier.tokens)
        )?;
        for change in changes {
            writeln!(f, "  {}", change_line(change))?;
        }
        write!(f, "{}", self.cache())
    }
}

fn change_line(change: &PartsChange) -> String {
    let PartsChange { does, section, at, span, from, uncut } = change;
    let places = match span.parts {
        1 => format!("part {at}"),
        more => format!("parts {at}–{}", at + more - 1),
    };
    let tokens = match uncut {
        Some(uncut) => format!("{} → {}", grouped(*uncut), grouped(span.tokens)),
        None => grouped(span.tokens),
    };
    let origin = match (does, from) {
        (PartsFate::Dropped, _) => " of the earlier request".to_owned(),
        (_, Some(from)) => format!(", before at {from}"),
        (_, None) => String::new(),
    };
    format!("{:<8} {places} ({}){origin}: {tokens} tokens", does.as_ref(), section_name(*section))
}

fn section_name(section: PromptSection) -> &'static str {
    match section {
        PromptSection::Tools | PromptSection::ToolsItem => "tools",
        PromptSection::System | PromptSection::SystemItem => "system prompt",
        PromptSection::History => "history",
        PromptSection::Reasoning
        | PromptSection::SteeredReasoning
        | PromptSection::OldReasoning => "reasoning",
    }
}

/// A time of milliseconds, in whole seconds.
fn duration(ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(ms / 1000)).to_string()
}
