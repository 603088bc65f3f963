//! `GET /api/v1/line`: what a status bar shows of a session, in one line: how full its context is, what the next call's
//! input costs, what was spent today, how much of a limit is used.
//!
//! Everything is in memory but the session itself, so that it is quick.

use std::fmt;

use http::Request;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::context;
use super::responses::{self, AdminResponse, negotiated, parameter};
use super::state::Admin;
use crate::clock::{now, wall};
use crate::context::budget::grouped;
use crate::context::caps::{CapState, Spender};
use crate::context::cost::NextInput;
use crate::context::{Millis, SessionNames};
use crate::dialect::percent::decoded_whole;
use crate::store::{Scope, ScopePage};
use crate::telemetry::QuotaState;

/// One line for a status bar; what is not known is absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct StatusLine {
    /// When this was made, ms since 1970.
    pub now: Millis,
    /// Tokens in the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The model's window, tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Nobody knows the model: its window is a guess.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub window_guessed: bool,
    /// What the next call's input will cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_input: Option<NextInput>,
    /// What everybody spent today, UTC, US dollars.
    pub today: f64,
    /// The fullest spending cap of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<CapState>,
    /// The most used provider's limit of the session's credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<QuotaState>,
}

pub(super) async fn answer(admin: &Admin, request: &Request<Incoming>) -> AdminResponse {
    let mut line = StatusLine {
        now: wall(),
        today: admin.ledgers.today(now()).await.dollars,
        ..StatusLine::default()
    };
    let named = parameter(request.uri().query(), "session").and_then(decoded_whole);
    let scope = match named {
        // A session without a turn yet has a line, too.
        Some(id) => responses::scope(admin, &id).await.ok(),
        None => {
            let page = ScopePage { after: None, skip: 0, count: 1 };
            admin.ledgers.sessions(page).await?.pop().map(|line| line.scope)
        }
    };
    if let Some(scope) = scope {
        line.add_session(admin, &scope).await?;
    }
    Ok(negotiated(&line, request))
}

impl StatusLine {
    async fn add_session(
        &mut self,
        admin: &Admin,
        scope: &Scope,
    ) -> Result<(), responses::AdminError> {
        let open_exchanges = admin.telemetry.open_exchanges(|open_exchange| {
            open_exchange.tenant == scope.tenant && open_exchange.session == scope.session
        });
        let looking = admin.ledgers.look(scope, |ledger| {
            let context = context::context(
                ledger,
                &open_exchanges,
                (&scope.session, context::MAIN),
                &admin.prices,
                self.now,
            );
            let newest = ledger.turns().next_back();
            let spender = Spender {
                tenant: scope.tenant.clone(),
                session: scope.session.clone(),
                project: SessionNames::from_ledger(ledger).project,
                tags: newest
                    .and_then(|turn| Some(turn.origin.as_deref()?.tags.clone()))
                    .unwrap_or_default(),
                upstream: newest.map(|turn| turn.upstream.clone()).unwrap_or_default(),
            };
            (context, spender)
        });
        let (context, spender) = looking.await?;
        if let Some(context) = context {
            self.total = Some(context.view.total);
            self.window = Some(context.view.window);
            self.window_guessed = context.view.window_guessed;
            self.next_input = context.view.next_input;
        }
        self.cap = admin.ledgers.caps().fullest(&spender, now());
        let limits = admin.telemetry.quotas(self.now);
        self.limit = limits.into_iter().find(|limit| {
            limit.tenant.as_ref() == Some(&scope.tenant) && limit.upstream == spender.upstream
        });
        Ok(())
    }
}

/// Dollars and cents; what is less than a cent, in more digits.
fn money(dollars: f64) -> String {
    match dollars {
        0.000_05..0.01 => format!("${dollars:.4}"),
        _ => format!("${dollars:.2}"),
    }
}

impl fmt::Display for StatusLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(total), Some(window)) = (self.total, self.window) {
            let share = total as f64 * 100.0 / window.max(1) as f64;
            let guess = if self.window_guessed { ", a guess" } else { "" };
            write!(f, "{} / {}{guess} ({share:.0}%) · ", grouped(total), grouped(window))?;
        }
        if let Some(next_input) = self.next_input {
            let NextInput { dollars, warm, cold, cached_until } = next_input;
            let is_warm = dollars == warm;
            let dollars = money(dollars);
            match cached_until {
                Some(_) if is_warm => {
                    write!(f, "next {dollars}, {} once its cache is gone · ", money(cold))?;
                }
                Some(_) => write!(f, "next {dollars}, its cache is gone · ")?,
                None => write!(f, "next {dollars} · ")?,
            }
        }
        write!(f, "today {}", money(self.today))?;
        if let Some(cap) = &self.cap {
            write!(f, " · cap {} {:.0}%", cap.cap, cap.used * 100.0)?;
        }
        if let Some(limit) = &self.limit {
            let percent_left = (1.0 - limit.used(self.now)).max(0.0) * 100.0;
            write!(f, " · {} {percent_left:.0}% left", limit.quota.kind.as_ref())?;
        }
        Ok(())
    }
}
