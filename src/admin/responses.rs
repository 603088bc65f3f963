//! The responses to admin requests.
//!
//! Every response forbids caching and content sniffing; an error says whose fault it is and what to do.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use schemars::JsonSchema;
use serde::Serialize;

use super::context;
use super::explain::Explanation;
use super::export;
use super::guard::AdminRole;
use super::savings::{SavingsPage, SessionSums};
use super::state::{Admin, EXPORTS};
use super::view::{
    self, CompactionRequest, CompactionStart, DeleteOutcome, DryRun, ServerInfo, SessionView, id_of,
};
use crate::clock::wall;
use crate::context::ExchangeId;
use crate::context::ledger::Ledger;
use crate::dialect::percent::decoded_whole;
use crate::store::ledgers::{FOCUS_BYTES, PENDING_TTL};
use crate::store::{Scope, ScopeLine, ScopePage, StoreError};
use crate::telemetry::log::LogFields;
use crate::telemetry::{Exchange, OpenExchange, RECENT};

/// Sessions on a page of the list, unless the query names a number.
pub(super) const DEFAULT_PAGE: usize = 50;
/// The most sessions on a page.
pub(super) const LARGEST_PAGE: usize = 500;
/// How long the store may take to report that it is ready.
const READY: Duration = Duration::from_secs(1);
/// Headers of every response, for browsers: do not cache it, do not show it to other sites, load nothing for
/// it.
const HARDENING: [(HeaderName, &str); 7] = [
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Why a request fails.
#[derive(Clone, Debug)]
pub(super) struct AdminError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl AdminError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(super) fn unknown(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", what)
    }
}

impl From<StoreError> for AdminError {
    fn from(trouble: StoreError) -> Self {
        let message = format!("{trouble}. The store failed; traffic continues without it.");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store", message)
    }
}

/// The body of a response.
pub(super) type AdminBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// The body of an error.
#[derive(Serialize, JsonSchema)]
pub(super) struct ErrorBody<'e> {
    error: ErrorDetails<'e>,
}

/// Whose fault it is, and what to do.
#[derive(Serialize, JsonSchema)]
struct ErrorDetails<'e> {
    /// For programs.
    code: &'e str,
    /// For people.
    message: &'e str,
}

pub(super) type AdminResponse = Result<Response<AdminBody>, AdminError>;

pub(super) fn error_response(error: &AdminError) -> Response<AdminBody> {
    let AdminError { status, code, message } = error;
    let mut response = json(&ErrorBody { error: ErrorDetails { code, message } });
    *response.status_mut() = *status;
    let more = match *status {
        StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, "Bearer realm=\"plimsoll\"")),
        StatusCode::TOO_MANY_REQUESTS => Some((RETRY_AFTER, "5")),
        _ => None,
    };
    if let Some((name, value)) = more {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

pub(super) fn text(text: impl Into<Bytes>) -> Response<AdminBody> {
    whole("text/plain; charset=utf-8", text)
}

pub(super) fn json(value: &impl Serialize) -> Response<AdminBody> {
    whole("application/json", serde_json::to_vec(value).unwrap_or_default())
}

pub(super) fn whole(kind: &'static str, body: impl Into<Bytes>) -> Response<AdminBody> {
    with_hardening(kind, Full::new(body.into()).map_err(|never| match never {}).boxed_unsync())
}

pub(super) fn with_hardening(kind: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HARDENING {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

pub(super) async fn ready(admin: &Admin) -> AdminResponse {
    // Whether the process is ready for traffic: the store responds or is known to be unusable, and no shutdown
    // is in progress.
    if *admin.draining.borrow() {
        return Err(not_ready("Shutting down: requests in flight are finished.".into()));
    }
    match tokio::time::timeout(READY, admin.ledgers.ready()).await {
        Ok(Ok(())) => Ok(text("ready\n")),
        // Traffic works without a store, so readiness must not wait for it.
        Ok(Err(
            trouble @ (StoreError::Unusable(_)
            | StoreError::InUse(_)
            | StoreError::Damaged(_)
            | StoreError::Full(_)),
        )) => Ok(text(format!("ready, degraded: nothing is stored: {trouble}\n"))),
        Ok(Err(trouble)) => Err(not_ready(trouble.to_string())),
        Err(_) => Err(not_ready("The store does not answer in time.".into())),
    }
}

fn not_ready(why: String) -> AdminError {
    AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", why)
}

pub(super) async fn about(admin: &Admin, role: AdminRole) -> Response<AdminBody> {
    let store_failure = match tokio::time::timeout(READY, admin.ledgers.ready()).await {
        Ok(answer) => answer.err().map(|trouble| trouble.to_string()),
        Err(_) => Some("the store does not answer in time".to_owned()),
    };
    json(&ServerInfo {
        in_flight: admin.telemetry.in_flight(),
        store_failure,
        may_read_content: role == AdminRole::Admin,
        ..admin.about.clone()
    })
}

/// One page of the sessions.
pub(super) struct ListedScopes {
    /// Newest first.
    pub lines: Vec<ScopeLine>,
    /// How many sessions come before the next page; `None` if this is the last one.
    pub next: Option<usize>,
}

pub(super) async fn list_scopes(
    admin: &Admin,
    query: Option<&str>,
) -> Result<ListedScopes, AdminError> {
    let skip = number(query, "skip")?.unwrap_or(0);
    let limit = page_limit(query)?;
    let cursor = match parameter(query, "after") {
        None => None,
        Some(name) => Some(view::cursor_of(name).ok_or_else(|| {
            let what = "after should be the next_after of the page before.";
            AdminError::new(StatusCode::BAD_REQUEST, "bad_query", what)
        })?),
    };
    // One line more than requested shows whether there is a next page.
    let page = ScopePage { after: cursor, skip, count: limit + 1 };
    let mut lines = admin.ledgers.sessions(page).await?;
    let next_skip = if lines.len() > limit { Some(skip + limit) } else { None };
    lines.truncate(limit);
    Ok(ListedScopes { lines, next: next_skip })
}

/// The most sessions on a page.
pub(super) fn page_limit(query: Option<&str>) -> Result<usize, AdminError> {
    Ok(number(query, "limit")?.unwrap_or(DEFAULT_PAGE).clamp(1, LARGEST_PAGE))
}

pub(super) fn number(query: Option<&str>, name: &str) -> Result<Option<usize>, AdminError> {
    let Some(raw) = parameter(query, name) else { return Ok(None) };
    raw.parse().map(Some).map_err(|_| {
        let message = format!("{name} should be a whole number, 0 or more.");
        AdminError::new(StatusCode::BAD_REQUEST, "bad_query", message)
    })
}

pub(super) fn parameter<'q>(query: Option<&'q str>, name: &str) -> Option<&'q str> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// A text in the query, decoded as forms encode it; `None` if it is empty.
pub(super) fn text_parameter(query: Option<&str>, name: &str) -> Option<String> {
    let text = parameter(query, name).filter(|text| !text.is_empty())?;
    decoded_whole(&text.replace('+', " ")).map(Cow::into_owned)
}

pub(super) async fn session(admin: &Admin, id: &str) -> AdminResponse {
    let scope = scope(admin, id).await?;
    let looking = admin
        .ledgers
        .look(&scope, |ledger| SessionView::new(&scope, ledger, &admin.prices, wall()));
    let session = looking.await?;
    session.map(|session| json(&session)).ok_or_else(|| unknown_session(id))
}

pub(super) async fn forget(admin: &Admin, id: &str) -> AdminResponse {
    let scope = exact_scope(admin, id).await?;
    let records = admin.ledgers.forget(&scope).await?;
    admin.index.forget(&scope).await;
    Ok(json(&DeleteOutcome { records }))
}

pub(super) async fn compact(admin: &Admin, id: &str, query: Option<&str>) -> AdminResponse {
    let scope = exact_scope(admin, id).await?;
    let dry = is_true(query, "dry_run")?;
    let focus = parameter(query, "focus").and_then(decoded_whole).map(Cow::into_owned);
    let focus = focus.filter(|focus| !focus.trim().is_empty()).map(String::into_boxed_str);
    if focus.as_ref().is_some_and(|focus| focus.len() > FOCUS_BYTES) {
        let what = format!("focus is longer than {FOCUS_BYTES} bytes; make it shorter.");
        return Err(AdminError::new(StatusCode::BAD_REQUEST, "bad_query", what));
    }
    let latest_request = admin.ledgers.latest_request(&scope).await;
    let preview = match &latest_request {
        Some(latest_request) => Some(latest_request.preview().ok_or_else(|| {
            let what = "There is nothing to cut: the newest messages stay word for word, and there is \
                        too little before them, or the provider stores the history.";
            AdminError::new(StatusCode::CONFLICT, "nothing_to_cut", what)
        })?),
        None => None,
    };
    if dry {
        let preview = preview.ok_or_else(|| not_at_hand(admin))?;
        return Ok(json(&DryRun::new(preview, &admin.prices)));
    }
    // At once, if the history is in memory and the summariser has its own credential.
    if let Some(latest_request) = &latest_request
        && latest_request.can_begin()
    {
        return match latest_request.begin(focus) {
            true => Ok(json(&CompactionRequest { begins: CompactionStart::Now, waits_s: None })),
            false => {
                let what = "A summary of this session is already being written.";
                Err(AdminError::new(StatusCode::CONFLICT, "under_way", what))
            }
        };
    }
    if !admin.ledgers.request_compaction(scope, focus).await? {
        let what = "Too many compaction requests are pending.";
        return Err(AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many", what));
    }
    let waits_s = Some(PENDING_TTL.as_secs());
    Ok(json(&CompactionRequest { begins: CompactionStart::NextRequest, waits_s }))
}

/// The session's newest request is not in memory.
pub(super) fn not_at_hand(admin: &Admin) -> AdminError {
    let what = match admin.ledgers.is_shared() {
        true => {
            "This replica does not have the history now. Ask the one that got the session's newest request, or try \
             again after its next one."
        }
        false => {
            "Plimsoll does not have the history now. Try again after the session's next request."
        }
    };
    AdminError::new(StatusCode::CONFLICT, "not_at_hand", what)
}

fn unknown_session(id: &str) -> AdminError {
    AdminError::unknown(format!(
        "Nothing is known of session {id:?}; `plimsoll sessions` or /api/v1/sessions lists them."
    ))
}

pub(super) fn unknown_exchange(id: &ExchangeId) -> AdminError {
    AdminError::unknown(format!(
        "Nothing is known of request {id:?}: it is not among the last {RECENT}, and its turn is not stored. The log has every request."
    ))
}

/// The fewest characters of an id by which a session is found.
const SHORTEST_PREFIX: usize = 6;

/// The session with this id: our id, or the client's if only one credential uses it. To look at it, the beginning of an id
/// is enough if it is that of one of the newest sessions alone, and `latest` is the newest.
pub(super) async fn scope(admin: &Admin, id: &str) -> Result<Scope, AdminError> {
    let error = match exact_scope(admin, id).await {
        Err(error) if error.status == StatusCode::NOT_FOUND => error,
        found => return found,
    };
    let lines = admin.ledgers.sessions(ScopePage::first(LARGEST_PAGE)).await?;
    if id == "latest" {
        return lines.into_iter().next().map(|line| line.scope).ok_or(error);
    }
    if id.chars().count() < SHORTEST_PREFIX {
        return Err(error);
    }
    let mut scopes = lines.into_iter().map(|line| line.scope);
    let is_meant =
        |scope: &Scope| scope.session.as_str().starts_with(id) || id_of(scope).starts_with(id);
    let scope = scopes.find(is_meant).ok_or(error)?;
    if let Some(other) = scopes.find(is_meant) {
        let message = format!(
            "Several sessions begin with {id:?}, such as {} and {}.",
            id_of(&scope),
            id_of(&other)
        );
        return Err(AdminError::new(StatusCode::CONFLICT, "ambiguous", message));
    }
    Ok(scope)
}

/// The session with exactly this id, for what cannot be taken back.
async fn exact_scope(admin: &Admin, id: &str) -> Result<Scope, AdminError> {
    use crate::context::ledger::Ledger;
    if let Some(scope) = view::scope_of(id)
        && (!admin.ledgers.look(&scope, Ledger::is_empty).await?
            || admin.ledgers.scopes_of(&scope.session).await?.contains(&scope))
    {
        return Ok(scope);
    }
    let mut scopes = admin.ledgers.scopes_of(&id.into()).await?;
    if scopes.len() > 1 {
        // Scopes with turns take precedence over those with only a request in flight.
        let mut with_turns = Vec::new();
        for scope in &scopes {
            if !admin.ledgers.look(scope, Ledger::is_empty).await? {
                with_turns.push(scope.clone());
            }
        }
        if !with_turns.is_empty() {
            scopes = with_turns;
        }
    }
    match (scopes.pop(), scopes.is_empty()) {
        (Some(scope), true) => Ok(scope),
        (None, _) => Err(unknown_session(id)),
        (Some(last), false) => {
            let ids: Vec<_> = scopes.iter().chain([&last]).map(id_of).collect();
            let message = format!("Several credentials use this id. Use one of {}", ids.join(", "));
            Err(AdminError::new(StatusCode::CONFLICT, "ambiguous", message))
        }
    }
}

/// How full a thread's context is: as JSON, or as text for people.
pub(super) async fn context(
    admin: &Admin,
    session: &str,
    thread: &str,
    request: &Request<Incoming>,
) -> AdminResponse {
    let scope = match scope(admin, session).await {
        // Its first request may be in flight; nothing of the session is stored yet then.
        Err(error) if error.status == StatusCode::NOT_FOUND => {
            scope_in_flight(admin, session).ok_or(error)?
        }
        found => found?,
    };
    let open_exchanges = admin.telemetry.open_exchanges(|open_exchange| {
        open_exchange.tenant == scope.tenant && open_exchange.session == scope.session
    });
    let looking = admin.ledgers.look(&scope, |ledger| {
        context::context(ledger, &open_exchanges, (&scope.session, thread), &admin.prices, wall())
    });
    let view = looking.await?.ok_or_else(|| {
        AdminError::unknown(format!("Session {session:?} has no thread {thread:?} with a turn."))
    })?;
    Ok(negotiated(&view, request))
}

/// The session of requests in flight with this id; of the newest one for `latest`.
fn scope_in_flight(admin: &Admin, id: &str) -> Option<Scope> {
    if id == "latest" {
        return admin.telemetry.open_exchanges(|_| true).first().map(scope_of_open);
    }
    let open_exchanges = admin.telemetry.open_exchanges(|open_exchange| {
        open_exchange.session == *id || id_of(&scope_of_open(open_exchange)) == id
    });
    let mut scopes: Vec<Scope> = open_exchanges.iter().map(scope_of_open).collect();
    scopes.dedup();
    // Several credentials may use one id.
    match scopes.as_slice() {
        [scope] => Some(scope.clone()),
        _ => None,
    }
}

fn scope_of_open(open_exchange: &OpenExchange) -> Scope {
    Scope { tenant: open_exchange.tenant.clone(), session: open_exchange.session.clone() }
}

/// A view as JSON, or as text for people: the query decides, or else the `Accept` header.
pub(super) fn negotiated(
    view: &(impl Serialize + Display),
    request: &Request<Incoming>,
) -> Response<AdminBody> {
    let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let as_text = match parameter(request.uri().query(), "format") {
        Some(format) => format == "text",
        None => accepts.is_some_and(|accept| accept.starts_with("text/plain")),
    };
    if as_text { text(format!("{view}\n")) } else { json(view) }
}

/// The session of an exchange: from its report if there still is one, else from its turn.
pub(super) async fn scope_of_exchange(
    admin: &Admin,
    id: &ExchangeId,
    recent: Option<&Exchange>,
) -> Result<Option<Scope>, AdminError> {
    let Some(recent) = recent else { return Ok(admin.ledgers.scope_of_turn(id).await?) };
    let names = recent.tenant.clone().zip(recent.session.clone());
    Ok(names.map(|(tenant, session)| Scope { tenant, session }))
}

pub(super) async fn explain(
    admin: &Admin,
    id: &ExchangeId,
    request: &Request<Incoming>,
) -> AdminResponse {
    // From its turn, however old, or else from its report.
    let recent = admin.telemetry.recent(id);
    let scope = scope_of_exchange(admin, id, recent.as_deref()).await?;
    let turn = match scope {
        Some(scope) => {
            let looking = admin.ledgers.look(&scope, |ledger| {
                let turn = ledger.turn(id)?;
                Some(Explanation::of_turn(&scope, ledger, turn, &admin.prices))
            });
            match looking.await {
                // If the store fails, the report remains.
                Err(_) if recent.is_some() => None,
                found => found?,
            }
        }
        None => None,
    };
    let explanation = turn.or_else(|| recent.map(|recent| Explanation::of_exchange(&recent)));
    let explanation = explanation.ok_or_else(|| unknown_exchange(id))?;
    Ok(negotiated(&explanation, request))
}

pub(super) async fn savings(admin: &Admin, request: &Request<Incoming>) -> AdminResponse {
    let ListedScopes { lines, next } = list_scopes(admin, request.uri().query()).await?;
    let mut gathered = Vec::with_capacity(lines.len());
    for line in lines {
        let sums = session_sums(admin, &line.scope).await?;
        gathered.push((line.scope, sums));
    }
    Ok(negotiated(&SavingsPage::new(gathered, next), request))
}

pub(super) async fn session_savings(
    admin: &Admin,
    id: &str,
    request: &Request<Incoming>,
) -> AdminResponse {
    let scope = scope(admin, id).await?;
    let sums = session_sums(admin, &scope).await?;
    Ok(negotiated(&SavingsPage::new(vec![(scope, sums)], None), request))
}

async fn session_sums(admin: &Admin, scope: &Scope) -> Result<SessionSums, AdminError> {
    let prices = admin.prices.clone();
    Ok(admin
        .ledgers
        .look_at_one_of_many(scope, move |ledger| SessionSums::from_ledger(ledger, &prices))
        .await?)
}

/// One line of JSON per call; with content, if that is requested.
pub(super) async fn export(admin: &Admin, id: &str, query: Option<&str>) -> AdminResponse {
    let with_content = is_true(query, "content")?;
    let scope = scope(admin, id).await?;
    let permit = admin.exports.clone().try_acquire_owned().map_err(|_| {
        let what = format!("{EXPORTS} sessions are being exported already; try again soon.");
        AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_exports", what)
    })?;
    let threads = admin.ledgers.look_at_one_of_many(&scope, Ledger::threads).await?;
    let mut content = None;
    if with_content {
        content = Some(export::SessionContent::new(admin.ledgers.clone(), scope.clone(), &threads));
    }
    let key = admin.ledgers.tenant_key().await?;
    let lines = export::ExportLines::new(key, scope, threads, content);
    // Lines are produced as the client reads them.
    let frames = stream::unfold((lines, permit), |(mut lines, permit)| async move {
        let line = lines.next().await?;
        Some((line.map(Frame::data), (lines, permit)))
    });
    Ok(with_hardening("application/x-ndjson", StreamBody::new(frames).boxed_unsync()))
}

/// Whether an export explicitly excludes content. An invalid value does not count as that.
pub(super) fn is_without_content(query: Option<&str>) -> bool {
    matches!(is_true(query, "content"), Ok(false))
}

pub(super) fn is_true(query: Option<&str>, switch: &str) -> Result<bool, AdminError> {
    match parameter(query, switch) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => {
            let what = format!("{switch} should be true or false.");
            Err(AdminError::new(StatusCode::BAD_REQUEST, "bad_query", what))
        }
    }
}

pub(super) async fn exchange(admin: &Admin, id: &ExchangeId) -> AdminResponse {
    // As reported, or else what its turn stores of it.
    if let Some(exchange) = admin.telemetry.recent(id) {
        return Ok(json(&LogFields::from(&*exchange)));
    }
    // Older ones are known by their turns only.
    if let Some(scope) = admin.ledgers.scope_of_turn(id).await? {
        let looking = admin.ledgers.look(&scope, |ledger| {
            let turn = ledger.turn(id)?;
            Some(view::exchange(&scope, ledger, turn, &admin.prices))
        });
        if let Some(exchange) = looking.await? {
            return Ok(json(&LogFields::from(&exchange)));
        }
    }
    Err(unknown_exchange(id))
}
