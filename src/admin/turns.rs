//! The turns of a session, each with its context, its cost, its error and what was changed: the data of a chart.
//!
//! Numbers and ids only, no content. A context is the one that `ContextView` shows.

use serde::{Deserialize, Serialize};

use super::calls::EstimateCheck;
use super::responses::{self, AdminResponse, json, number};
use super::state::Admin;
use crate::config::PriceList;
use crate::context::budget::{ContextView, WindowLimits};
use crate::context::ledger::Ledger;
use crate::context::plan::ChangeCounts;
use crate::context::{EstimateMethod, ExchangeId, Millis, Outcome, SessionNames, ThreadId, Turn};
use crate::dialect::{Purpose, StopReason, Usage};
use crate::telemetry::Telemetry;

/// The turns of a session, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct TurnsPage {
    /// The thread of its conversation; others are sub-agents and side calls.
    pub main_thread: Option<ThreadId>,
    /// Turns that ended at `since` or later; all without it.
    pub turns: Vec<TurnView>,
}

/// One turn.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct TurnView {
    /// The id of its exchange, for `/api/v1/requests/{request}`.
    pub request: ExchangeId,
    pub thread: ThreadId,
    /// The exchange that it continues.
    pub parent: Option<ExchangeId>,
    /// The kind of the agent that sent it, or the client's name of its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The sub-agent that sent it, as its client names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<Box<str>>,
    /// The sub-agent that started that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_agent: Option<Box<str>>,
    pub purpose: Purpose,
    pub upstream: Box<str>,
    /// The model that was requested.
    pub model: Box<str>,
    /// The model that the reply names, if it is not called as it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<Box<str>>,
    /// When the request arrived, ms since 1970.
    pub at: Millis,
    /// When the exchange ended, ms since 1970.
    pub ended: Millis,
    /// From the request to the first byte of the response, ms. Known for recent exchanges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
    pub outcome: Outcome,
    pub stop: Option<StopReason>,
    /// The context after it; `null` if nothing was reported or estimated.
    pub context: Option<TurnContext>,
    /// What the provider reported.
    pub usage: Usage,
    /// US dollars; `null` if a price of it is not known.
    pub dollars: Option<f64>,
    pub estimate: Option<TurnEstimate>,
    /// Changes of its request, those of earlier turns too.
    pub made: ChangeCounts,
    /// The share of `made` that is new with it.
    pub new: ChangeCounts,
    /// Whether the changes were sent.
    pub sent: bool,
    /// Tokens that were not sent.
    pub removed: u64,
    /// What that saved, less the cost of a broken cache, US dollars.
    pub saved: f64,
    /// The window was too small: whether room was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow_avoided: Option<bool>,
}

/// How full a context is, and with what; the parts add up to `total`.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct TurnContext {
    pub total: u64,
    pub system: u64,
    pub tools: u64,
    /// Messages without reasoning.
    pub messages: u64,
    pub reasoning: u64,
    pub window: u64,
    /// Output tokens that are reserved.
    pub reserve: u64,
    /// The points at which pruning, compacting and so on begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<WindowLimits>,
}

/// An estimate beside what was reported.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct TurnEstimate {
    /// Input tokens.
    pub tokens: u64,
    pub method: EstimateMethod,
    /// The range that contains the real number nine times in ten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
    /// `(estimated − reported) / reported`; `null` if they cannot be compared.
    pub error_ratio: Option<f64>,
}

impl TurnsPage {
    fn from_ledger(
        ledger: &Ledger,
        since: Millis,
        prices: &PriceList,
        telemetry: &Telemetry,
    ) -> Self {
        let turns = ledger.turns().filter(|turn| turn.ended >= since);
        let mut turns: Vec<TurnView> =
            turns.map(|turn| TurnView::new(turn, ledger, prices, telemetry)).collect();
        turns.sort_by_key(|turn| turn.at);
        Self { main_thread: SessionNames::from_ledger(ledger).main_thread, turns }
    }
}

impl TurnView {
    fn new(turn: &Turn, ledger: &Ledger, prices: &PriceList, telemetry: &Telemetry) -> Self {
        let price = prices.for_turn(turn);
        let saved = turn.savings(ledger.parent(&turn.position), price);
        let money = saved.money.unwrap_or_default();
        let hints = turn.hints.as_deref();
        let agent_type = hints.and_then(|hints| hints.agent_type);
        let client_thread = turn.position.client_thread.as_deref();
        let first_byte_us =
            telemetry.recent(&turn.exchange).and_then(|exchange| exchange.timing.first_byte_us);
        Self {
            request: turn.exchange.clone(),
            thread: turn.position.thread.clone(),
            parent: turn.position.parent.clone(),
            agent: agent_type
                .map(|kind| kind.as_ref().to_owned())
                .or_else(|| client_thread.map(str::to_owned)),
            agent_id: hints.and_then(|hints| hints.agent.clone()),
            parent_agent: hints.and_then(|hints| hints.parent_agent.clone()),
            purpose: turn.purpose,
            upstream: turn.upstream.clone(),
            model: turn.model.clone(),
            served: turn.served.clone(),
            at: turn.at,
            ended: turn.ended,
            first_byte_ms: first_byte_us.map(|us| us / 1000),
            outcome: turn.outcome,
            stop: turn.stop,
            context: turn.carried().map(|_| TurnContext::from_turn(turn)),
            usage: turn.usage.clone(),
            dollars: turn.cost(price),
            estimate: TurnEstimate::from_turn(turn),
            made: turn.done.made,
            new: turn.done.new,
            sent: turn.done.is_sent(),
            removed: saved.gone(),
            saved: money.saved - money.broken,
            overflow_avoided: turn.done.overflow.map(|overflow| overflow.saved),
        }
    }
}

impl TurnContext {
    fn from_turn(turn: &Turn) -> Self {
        let view = ContextView::after(turn);
        let parts = view.breakdown;
        Self {
            total: view.total,
            system: parts.system,
            tools: parts.tools,
            messages: parts.messages.saturating_sub(parts.reasoning),
            reasoning: parts.reasoning,
            window: view.window,
            reserve: view.reserve,
            limits: turn.carry.as_ref().and_then(|carry| carry.limits),
        }
    }
}

impl TurnEstimate {
    fn from_turn(turn: &Turn) -> Option<Self> {
        let estimate = turn.estimate.as_ref()?;
        let band = estimate.band().filter(|band| band.low < band.high);
        Some(Self {
            tokens: estimate.tokens,
            method: estimate.method,
            low: band.map(|band| band.low),
            high: band.map(|band| band.high),
            error_ratio: EstimateCheck::from_turn(turn).map(|check| check.ratio),
        })
    }
}

pub(super) async fn answer(admin: &Admin, id: &str, query: Option<&str>) -> AdminResponse {
    let since = number(query, "since")?.unwrap_or(0) as Millis;
    let scope = responses::scope(admin, id).await?;
    let looking = admin.ledgers.look(&scope, |ledger| {
        TurnsPage::from_ledger(ledger, since, &admin.prices, &admin.telemetry)
    });
    Ok(json(&looking.await?))
}
