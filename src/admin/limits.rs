//! `GET /api/v1/limits`: how much is left of the providers' limits, as their responses last said.
//!
//! Nothing is asked for it: a limit that no response told of is not listed.

use std::fmt;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::responses::{AdminResponse, negotiated};
use super::state::Admin;
use crate::clock::wall;
use crate::context::Millis;
use crate::context::budget::grouped;
use crate::telemetry::QuotaState;

/// The known limits, the most used one first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct LimitsPage {
    /// When this was made, ms since 1970.
    pub now: Millis,
    /// The limits.
    pub limits: Vec<QuotaState>,
}

pub(super) fn answer(admin: &Admin, request: &Request<Incoming>) -> AdminResponse {
    let now = wall();
    let page = LimitsPage { now, limits: admin.telemetry.quotas(now) };
    Ok(negotiated(&page, request))
}

impl fmt::Display for LimitsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.limits.is_empty() {
            return write!(f, "No response has told of a limit since Plimsoll started.");
        }
        write!(
            f,
            "{:<16} {:<9} {:<14} {:>6} {:>13}  WHOLE AGAIN",
            "UPSTREAM", "KEY", "LIMIT", "USED", "OF"
        )?;
        for state in &self.limits {
            let key = state.tenant.as_ref().map_or("-", |tenant| tenant.as_str());
            let key: String = key.chars().take(8).collect();
            let limit = state.quota.limit.map_or_else(|| "-".to_owned(), grouped);
            write!(
                f,
                "\n{:<16} {key:<9} {:<14} {:>5.0}% {limit:>13}  {}",
                state.upstream,
                state.quota.kind.as_ref(),
                state.used(self.now) * 100.0,
                whole_again(state.quota.resets_at, self.now)
            )?;
            if let Some(end) = state.used_up_at.filter(|end| *end > self.now) {
                write!(f, ", used up {} at this rate", whole_again(Some(end), self.now))?;
            }
        }
        Ok(())
    }
}

fn whole_again(resets_at: Option<Millis>, now: Millis) -> String {
    match resets_at {
        None => "-".to_owned(),
        Some(at) if at <= now => "now".to_owned(),
        // Seconds are enough.
        Some(at) => {
            let wait = Duration::from_secs((at - now).div_ceil(1000));
            format!("in {}", humantime::format_duration(wait))
        }
    }
}
