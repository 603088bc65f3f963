//! A provider's own count of a session's newest request, requested now, compared with our estimate.
//!
//! Counts nothing itself: the proxy calls the provider with a credential that it has in memory.

use std::fmt;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::responses::{AdminError, AdminResponse, json, not_at_hand, scope};
use super::state::Admin;
use crate::context::ExchangeId;
use crate::context::budget::grouped;
use crate::store::ledgers::{ProviderRecount, RecountError};

/// The provider's count, and our estimate.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct CountComparison {
    /// The exchange whose request was counted as it was sent: the session's newest one.
    pub request: ExchangeId,
    /// Input tokens as the provider counts them.
    pub tokens: u64,
    /// Input tokens that were estimated before sending.
    pub estimated: u64,
    /// `estimated - tokens`.
    pub difference: i64,
    /// The same as a percentage of `tokens`; `null` if `tokens` is 0.
    pub difference_percent: Option<f64>,
}

impl From<ProviderRecount> for CountComparison {
    fn from(recount: ProviderRecount) -> Self {
        let ProviderRecount { exchange, tokens, estimated } = recount;
        let difference = estimated as i64 - tokens as i64;
        let percent = match tokens {
            0 => None,
            tokens => Some(difference as f64 * 100.0 / tokens as f64),
        };
        Self { request: exchange, tokens, estimated, difference, difference_percent: percent }
    }
}

impl fmt::Display for CountComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = grouped(self.tokens);
        let estimated = grouped(self.estimated);
        writeln!(
            f,
            "Counted now by the provider: {tokens} tokens, for the newest request as it was sent"
        )?;
        write!(f, "Estimated: {estimated} tokens")?;
        match self.difference_percent {
            Some(percent) => write!(f, " ({percent:+.1}% error)"),
            None => Ok(()),
        }
    }
}

pub(super) async fn count(admin: &Admin, id: &str) -> AdminResponse {
    let scope = scope(admin, id).await?;
    let latest_request = admin.ledgers.latest_request(&scope).await;
    let latest_request = latest_request.ok_or_else(|| not_at_hand(admin))?;
    Ok(json(&CountComparison::from(latest_request.count().await.map_err(wrong)?)))
}

fn wrong(why: RecountError) -> AdminError {
    let (status, code, what) = match why {
        RecountError::NoEndpoint => (
            StatusCode::CONFLICT,
            "no_endpoint",
            "This provider has no token counting endpoint for this protocol.",
        ),
        RecountError::NoCredential => (
            StatusCode::CONFLICT,
            "no_credential",
            "There is no credential to ask with: a client's is kept for ten minutes after its request, and \
             the upstream has none of its own. Ask again after the session's next request.",
        ),
        RecountError::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "Other counts are running, or the provider has a rate limit. Try again later.",
        ),
        RecountError::Refused => {
            (StatusCode::BAD_GATEWAY, "refused", "The provider refused to count it.")
        }
        RecountError::Failed => (
            StatusCode::BAD_GATEWAY,
            "no_answer",
            "The provider did not answer with a count in time.",
        ),
    };
    AdminError::new(status, code, what)
}
