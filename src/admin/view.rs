//! The views: the only types that clients of the admin API see.
//!
//! Fields are added, never renamed, because scripts rely on them. Nothing here can hold a prompt, a reply or
//! a key. The numbers come from one place (`context::budget`), never from a second formula.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::context::view_after;
use super::session_cost::SessionCost;
use crate::config::{Config, Mode, PriceList};
use crate::context::budget::ContextView;
use crate::context::cost::NextInput;
use crate::context::ledger::{Ledger, Totals};
use crate::context::{
    ExchangeId, Millis, Outcome, SessionId, SessionNames, TenantId, ThreadId, Turn,
};
use crate::dialect::hints::ClientHints;
use crate::dialect::models::Family;
use crate::dialect::{Dialect, Purpose, StopReason};
use crate::store::{Cursor, Scope, ScopeLine};
use crate::telemetry::{Exchange, ExchangeTiming};

/// An exchange as far as its turn stores it: without the request line, and without its bytes and times.
pub(super) fn exchange(
    scope: &Scope,
    ledger: &Ledger,
    turn: &Turn,
    prices: &PriceList,
) -> Exchange {
    let price = prices.for_turn(turn);
    Exchange {
        upstream: Some(turn.upstream.clone()),
        dialect: Some(turn.dialect),
        purpose: Some(turn.purpose),
        model: Some(turn.model.clone()),
        family: Some(turn.family),
        tenant: Some(scope.tenant.clone()),
        session: Some(scope.session.clone()),
        thread: Some(turn.position.thread.clone()),
        provider_request_id: turn.provider_request_id.clone(),
        repeated_calls: turn.repeated_calls,
        hints: turn.hints.clone(),
        found_by: turn.origin.as_deref().and_then(|origin| origin.found_by),
        agent: turn.origin.as_deref().and_then(|origin| origin.agent.clone()),
        outcome: turn.outcome,
        stop: turn.stop,
        estimate: turn.estimate.clone(),
        done: turn.done.clone(),
        usage: turn.usage.clone(),
        served: turn.served.clone(),
        dollars: turn.cost(price),
        saved: Some(turn.savings(ledger.parent(&turn.position), price)),
        window: Some(turn.window),
        timing: ExchangeTiming {
            duration_us: turn.ended.saturating_sub(turn.at).saturating_mul(1000),
            ..ExchangeTiming::default()
        },
        ..Exchange::begun(turn.exchange.clone(), turn.at, "", "")
    }
}

/// Which server this is, and its addresses.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ServerInfo {
    /// The program's version.
    pub version: String,
    /// When it began to serve, ms since 1970.
    pub started: Millis,
    /// The address that clients connect to.
    pub clients: String,
    /// The address of the admin listener.
    #[serde(default)]
    pub admin: String,
    /// The mode, which limits what may be changed.
    pub mode: Mode,
    /// The configured upstreams.
    pub upstreams: Vec<UpstreamLine>,
    /// Whether clients may put tags into their base URL: `/~name=value/v1/…`.
    #[serde(default)]
    pub path_tags: bool,
    /// Whether the text of exchanges is stored (`content.keep`).
    #[serde(default)]
    pub keeps_content: bool,
    /// Whether the token of this request may read such text.
    #[serde(default)]
    pub may_read_content: bool,
    /// Exchanges in flight, or whose turns are still being stored.
    #[serde(default)]
    pub in_flight: usize,
    /// Why nothing is stored or read at present, if that is so.
    #[serde(default)]
    pub store_failure: Option<String>,
}

/// A configured upstream.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UpstreamLine {
    /// Its configured name, also a path prefix.
    pub name: String,
    /// Scheme, host and base path.
    pub base_url: String,
    /// The protocols for which a path without a prefix selects it.
    pub dialects: Vec<Dialect>,
}

/// A page of sessions, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct SessionPage {
    pub sessions: Vec<SessionLine>,
    /// The `skip` of the next page; `null` on the last. With many sessions `next_after` is faster, and skips
    /// none if sessions are added meanwhile.
    pub next: Option<usize>,
    /// The `after` of the next page; `null` on the last.
    #[serde(default)]
    pub next_after: Option<String>,
    /// How many sessions there are on all pages, with a search or a filter those that it leaves; absent while the newest
    /// are listed and not all were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<usize>,
    /// Older sessions are still being read, or left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// They are still being read: the next answer has more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reading: bool,
    /// How many sessions were searched and sorted, the newest ones; only with another order, a
    /// search or a filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexed: Option<usize>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The name of a position in the list of sessions, as this API uses it.
pub(super) fn cursor_named(cursor: Cursor) -> String {
    format!("{}-{}", cursor.used, cursor.id)
}

pub(super) fn cursor_of(name: &str) -> Option<Cursor> {
    let (used, id) = name.split_once('-')?;
    Some(Cursor { used: used.parse().ok()?, id: id.parse().ok()? })
}

/// A session as a list shows it.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct SessionLine {
    /// The session's id in this API.
    pub id: String,
    /// The id that the client gave it, or one of ours if it gave none.
    pub session: SessionId,
    /// The keyed hash of its credential.
    pub tenant: TenantId,
    /// When something was last stored for it, ms since 1970.
    pub newest: Millis,
    /// The number of stored facts.
    pub records: u64,
    /// When its first exchange began, ms since 1970.
    #[serde(default)]
    pub began: Millis,
    /// The number of exchanges.
    #[serde(default)]
    pub turns: u64,
    /// The reported input of all exchanges, in tokens.
    #[serde(default)]
    pub input: u64,
    /// The reported output of all exchanges, in tokens.
    #[serde(default)]
    pub output: u64,
    /// The part of the input that was read from the provider's cache, in tokens.
    #[serde(default)]
    pub cache_read: u64,
    /// Calls of it that failed and are no exchanges of it, as far as they are known: nothing of them is stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// Its names, and how its main thread is, if that was requested.
    #[serde(flatten)]
    pub details: SessionDetails,
}

/// What a list says of a session beside sums, if that is requested: its turns have to be read for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(crate) struct SessionDetails {
    /// Its agent, project and title.
    #[serde(flatten)]
    pub names: SessionNames,
    /// The model that its main thread requested last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The window of that model, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Nobody knows the model: its window is a guess.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub window_guessed: bool,
    /// The upstream of that request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The main thread's context, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    /// The same in percent of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// What all its exchanges and our summaries of it cost, US dollars, as far as their prices are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
    /// The number of exchanges and summaries whose price is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpriced: Option<usize>,
    /// How far the main thread's last estimate was off, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<i64>,
    /// The same as a share of what was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_ratio: Option<f64>,
    /// The number of its threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// What the input of its main thread's next call will cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_input: Option<NextInput>,
}

/// A session with its threads.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct SessionView {
    /// The session's id in this API.
    pub id: String,
    /// The id that the client gave it, or one of ours if it gave none.
    pub session: SessionId,
    /// The keyed hash of its credential.
    pub tenant: TenantId,
    /// When its first exchange began, ms since 1970.
    pub began: Millis,
    /// When its last exchange ended, ms since 1970.
    pub newest: Millis,
    /// The number of exchanges.
    pub turns: usize,
    /// The sums of what was reported for them.
    pub totals: Totals,
    /// What they and our summaries of it cost, US dollars, as far as their prices are known.
    #[serde(default)]
    pub dollars: f64,
    /// The number of exchanges and summaries whose price is not known.
    #[serde(default)]
    pub unpriced: usize,
    /// Its agent, project, title and main thread.
    #[serde(flatten)]
    pub names: SessionNames,
    /// Its threads, the most recently used first.
    pub threads: Vec<ThreadView>,
}

/// One thread of a session.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct ThreadView {
    /// Its id.
    pub id: ThreadId,
    /// What its last request was for.
    pub purpose: Purpose,
    /// The upstream of its last request.
    pub upstream: String,
    /// The protocol of its last request.
    pub dialect: Dialect,
    /// The model that was requested.
    pub model: String,
    /// The model's tokenizer family.
    pub family: Family,
    /// The number of exchanges.
    pub turns: usize,
    /// When its first exchange began, ms since 1970.
    pub began: Millis,
    /// When its last exchange ended, ms since 1970.
    pub newest: Millis,
    /// How its last exchange ended.
    pub outcome: Outcome,
    /// Why its last reply ended.
    pub stop: Option<StopReason>,
    /// The last exchange with a reported input.
    pub measured: Option<ExchangeView>,
    /// How full its context is; `null` if nothing was reported or estimated.
    pub context: Option<ContextView>,
    /// The id of its last exchange, for `/api/v1/requests/{request}`.
    pub request: ExchangeId,
    /// The provider's request id of that exchange, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<String>,
    /// In how many of the model's last ten turns its newest call had the same result; given from four on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated_calls: Option<u32>,
    /// The thread that the client names, such as a sub-agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_thread: Option<String>,
    /// What the client said of its last request in headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<Box<ClientHints>>,
}

/// The estimate and the report of one exchange.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct ExchangeView {
    /// Input that the provider reported, in tokens.
    pub actual: u64,
    /// Input that was estimated, in tokens.
    pub estimated: Option<u64>,
    /// `estimated − actual`, tokens.
    pub error: Option<i64>,
    /// `error / actual`.
    pub error_ratio: Option<f64>,
}

pub(crate) use super::preview::DryRun;

/// The state of a requested compaction.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct CompactionRequest {
    /// When it begins.
    pub begins: CompactionStart,
    /// How long it waits for a request that can start it, in seconds; absent if it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_s: Option<u64>,
}

/// When a requested compaction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CompactionStart {
    /// The summary is being written, for the next request to use.
    Now,
    /// The next request of the main thread starts it.
    NextRequest,
}

/// The result of a DELETE.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct DeleteOutcome {
    /// The number of deleted facts.
    pub records: u64,
}

pub(super) fn id_of(scope: &Scope) -> String {
    // Clients choose session ids, and two credentials may use the same one.
    format!("{}.{}", scope.tenant, scope.session)
}

/// The scope of an id, if it has the form of [`id_of`].
pub(super) fn scope_of(id: &str) -> Option<Scope> {
    let (tenant, session) = id.split_once('.')?;
    let is_tenant = tenant.len() == 16 && tenant.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_tenant {
        return None;
    }
    Some(Scope { tenant: tenant.into(), session: session.into() })
}

impl ServerInfo {
    /// The server of this configuration, with `listen` as the address for clients and `admin` as the admin
    /// listener's, running since `started`.
    pub fn new(config: &Config, listen: SocketAddr, admin: SocketAddr, started: Millis) -> Self {
        let upstreams = config.upstreams.iter().map(|upstream| UpstreamLine {
            name: upstream.name.to_string(),
            base_url: upstream.shown_base(),
            dialects: upstream.dialects.clone(),
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started,
            clients: url(config.tls.is_some(), listen),
            admin: url(config.admin_tls.is_some(), admin),
            mode: config.mode,
            upstreams: upstreams.collect(),
            path_tags: true,
            keeps_content: config.content.keep,
            // Filled in when somebody asks.
            may_read_content: false,
            in_flight: 0,
            store_failure: None,
        }
    }
}

fn url(is_tls: bool, address: SocketAddr) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}

impl From<ScopeLine> for SessionLine {
    fn from(line: ScopeLine) -> Self {
        Self {
            id: id_of(&line.scope),
            session: line.scope.session,
            tenant: line.scope.tenant,
            newest: line.newest,
            records: line.records,
            began: line.began,
            turns: line.turns,
            input: line.input,
            output: line.output,
            cache_read: line.cache_read,
            failed: 0,
            details: SessionDetails::default(),
        }
    }
}

impl SessionView {
    /// `None` if the session has no turns.
    pub(super) fn new(
        scope: &Scope,
        ledger: &Ledger,
        prices: &PriceList,
        now: Millis,
    ) -> Option<Self> {
        let cost = SessionCost::from_ledger(ledger, prices);
        let began = ledger.turns().map(|turn| turn.at).min()?;
        let newest = ledger.turns().map(|turn| turn.ended).max()?;
        let threads = ledger.threads();
        let mut threads: Vec<_> = threads
            .iter()
            .filter_map(|(id, turns)| {
                ThreadView::new(id, turns.iter().map(AsRef::as_ref), prices, now)
            })
            .collect();
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.newest));
        Some(Self {
            id: id_of(scope),
            session: scope.session.clone(),
            tenant: scope.tenant.clone(),
            began,
            newest,
            turns: ledger.turns().count(),
            totals: ledger.totals(),
            dollars: cost.dollars.unwrap_or(0.0),
            unpriced: cost.unpriced,
            names: SessionNames::from_ledger(ledger),
            threads,
        })
    }
}

impl SessionDetails {
    pub(super) fn from_ledger(ledger: &Ledger, prices: &PriceList, now: Millis) -> Self {
        let names = SessionNames::from_ledger(ledger);
        let threads = ledger.threads();
        let main = threads.iter().find(|(id, _)| Some(id) == names.main_thread.as_ref());
        let turns = main.map(|(_, turns)| &turns[..]).unwrap_or_default();
        let newest = turns.last();
        let last_measured = turns.iter().rev().find_map(|turn| ExchangeView::from_turn(turn));
        let context = view_after(turns.iter().map(AsRef::as_ref), prices, now);
        let cost = SessionCost::from_ledger(ledger, prices);
        Self {
            upstream: newest.map(|turn| turn.upstream.to_string()),
            outcome: newest.map(|turn| turn.outcome),
            context: context.as_ref().map(|context| context.total),
            window_guessed: context.as_ref().is_some_and(|context| context.window_guessed),
            percent: context.as_ref().map(|context| context.percent),
            dollars: cost.dollars,
            unpriced: Some(cost.unpriced),
            model: newest.map(|turn| turn.model.to_string()),
            window: newest.map(|turn| turn.window),
            error: last_measured.and_then(|measured| measured.error),
            error_ratio: last_measured.and_then(|measured| measured.error_ratio),
            threads: Some(threads.len()),
            next_input: context.and_then(|view| view.next_input),
            names,
        }
    }
}

impl ThreadView {
    fn new<'t>(
        id: &ThreadId,
        turns: impl DoubleEndedIterator<Item = &'t Turn> + Clone,
        prices: &PriceList,
        now: Millis,
    ) -> Option<Self> {
        let newest = turns.clone().next_back()?;
        Some(Self {
            id: id.clone(),
            purpose: newest.purpose,
            upstream: newest.upstream.to_string(),
            dialect: newest.dialect,
            model: newest.model.to_string(),
            family: newest.family,
            turns: turns.clone().count(),
            began: turns.clone().map(|turn| turn.at).min()?,
            newest: turns.clone().map(|turn| turn.ended).max()?,
            outcome: newest.outcome,
            stop: newest.stop,
            measured: turns.clone().rev().find_map(ExchangeView::from_turn),
            context: view_after(turns, prices, now),
            request: newest.exchange.clone(),
            provider_request_id: newest.provider_request_id.as_deref().map(str::to_owned),
            repeated_calls: newest.repeated_calls,
            client_thread: newest.position.client_thread.as_deref().map(str::to_owned),
            hints: newest.hints.clone(),
        })
    }
}

impl ExchangeView {
    fn from_turn(turn: &Turn) -> Option<Self> {
        let actual = turn.usage.input?;
        let estimated = turn.estimate.as_ref().map(|estimate| estimate.tokens);
        let error = estimated.and_then(|estimated| turn.usage.error_of(estimated));
        let error_ratio = error.and_then(|error| error.ratio);
        let error = error.map(|error| error.tokens);
        Some(Self { actual, estimated, error, error_ratio })
    }
}
