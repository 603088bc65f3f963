//! `GET /api/v1/failures`: the calls that failed and became no turn, by how they ended.
//!
//! Sessions, history and spending are made of stored turns. A refused call is none, so it would show nowhere else.

use std::collections::HashMap;
use std::fmt;

use http::Request;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::responses::{AdminResponse, negotiated, number, parameter};
use super::state::Admin;
use super::view::SessionLine;
use crate::context::budget::grouped;
use crate::context::{Millis, Outcome, SessionId, TenantId};
use crate::dialect::percent::decoded_whole;
use crate::telemetry::FailedCall;

/// Failed calls since a time.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct FailuresPage {
    /// The time from which on they are counted, ms since 1970.
    pub since: Millis,
    /// Before it, some may be missing: nothing of them is stored, so they are known since this process began.
    pub complete_since: Millis,
    /// All of them.
    pub calls: u64,
    /// By how they ended, the most frequent first.
    pub kinds: Vec<FailureKind>,
}

/// Calls that ended alike.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct FailureKind {
    /// The status that clients received; `null` if they received none.
    pub status: Option<u16>,
    pub outcome: Outcome,
    pub calls: u64,
}

impl FailuresPage {
    fn add(&mut self, call: &FailedCall) {
        self.calls += 1;
        let FailedCall { status, outcome, .. } = *call;
        match self.kinds.iter_mut().find(|kind| (kind.status, kind.outcome) == (status, outcome)) {
            Some(kind) => kind.calls += 1,
            None => self.kinds.push(FailureKind { status, outcome, calls: 1 }),
        }
    }

    /// `3 × 500, 2 × no upstream answered`
    pub(crate) fn described(&self) -> String {
        let kinds = self.kinds.iter().map(|kind| match kind.status {
            Some(status) => format!("{} × {status}", grouped(kind.calls)),
            None => format!("{} × without an answer", grouped(kind.calls)),
        });
        kinds.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for FailuresPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.calls {
            0 => write!(f, "No call failed."),
            1 => write!(f, "1 call failed: {}", self.described()),
            calls => write!(f, "{} calls failed: {}", grouped(calls), self.described()),
        }
    }
}

pub(super) fn answer(admin: &Admin, request: &Request<Incoming>) -> AdminResponse {
    let query = request.uri().query();
    let since = number(query, "since")?.unwrap_or(0) as Millis;
    let tag = parameter(query, "tag").and_then(decoded_whole);
    let complete_since = admin.telemetry.failures_complete_since();
    let mut page = FailuresPage { since, complete_since, ..FailuresPage::default() };
    for call in admin.telemetry.failures(since) {
        if tag.as_deref().is_none_or(|tag| call.tags.iter().any(|other| **other == *tag)) {
            page.add(&call);
        }
    }
    page.kinds.sort_by_key(|kind| std::cmp::Reverse(kind.calls));
    Ok(negotiated(&page, request))
}

/// Adds to each session of a list how many of its calls failed.
pub(super) fn count_failed(admin: &Admin, sessions: &mut [SessionLine]) {
    let mut counts: HashMap<(TenantId, SessionId), u64> = HashMap::new();
    for call in admin.telemetry.failures(0) {
        if let (Some(tenant), Some(session)) = (call.tenant, call.session) {
            *counts.entry((tenant, session)).or_default() += 1;
        }
    }
    if counts.is_empty() {
        return;
    }
    for line in sessions {
        let key = (line.tenant.clone(), line.session.clone());
        line.failed = counts.get(&key).copied().unwrap_or(0);
    }
}
