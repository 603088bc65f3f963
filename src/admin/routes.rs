//! All routes as one table, and their dispatch.
//!
//! `openapi.json` describes the same table; a test compares them in both directions.

use std::time::Instant;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::guard::{self, AdminPeer, AdminRole};
use super::responses::{self, AdminBody, AdminError};
use super::state::{Admin, AdminAccess};
use super::{assets, caps, count, history, lessons, limits, line, listing, messages, spend, turns};
use crate::dialect::percent::decoded_whole;
use crate::telemetry::AdminRefusal;
use crate::telemetry::log::clean;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminQuery {
    /// The page for people.
    Page,
    /// A script or a style of the page.
    Asset,
    /// The metrics.
    Metrics,
    /// Whether the process is alive.
    Alive,
    /// Whether it should receive traffic.
    Ready,
    /// Which server this is, and its addresses.
    About,
    /// The list of sessions.
    Sessions,
    /// One session.
    Session,
    /// The turns of one session, for a chart.
    Turns,
    /// Delete one session.
    Forget,
    /// Compact one session with its next request.
    Compact,
    /// How full a thread's context is.
    Context,
    /// Have the provider count a session's newest request.
    Count,
    /// One exchange.
    Exchange,
    /// What was done to an exchange, and why.
    Explain,
    /// What rewriting saved, for many sessions.
    Savings,
    /// What rewriting saved in one session.
    SessionSavings,
    /// One session for sharing.
    Export,
    /// The queued and the sent messages of a session.
    Queue,
    /// Queue a message for a session's next request.
    Say,
    /// Remove all queued messages.
    Clear,
    /// Remove a queued message.
    TakeBack,
    /// Who spent what.
    Spend,
    /// What happened over time.
    History,
    /// How much is left of the providers' limits.
    Limits,
    /// How much of each spending cap is spent.
    Caps,
    /// Let a cap stop nothing until its period ends.
    LiftCap,
    /// One line about a session.
    Line,
    /// The lessons that upstreams taught.
    Lessons,
    /// Forget one lesson.
    ForgetLesson,
    /// Make one lesson hold for all tenants.
    ShareLesson,
    /// Exchanges as they end.
    Events,
    /// The API's description, for machines.
    OpenApi,
}

/// Method, path and query of each route. `{}` stands for one path segment.
pub const ROUTES: &[(Method, &str, AdminQuery)] = &[
    (Method::GET, "/", AdminQuery::Page),
    (Method::GET, "/ui/{file}", AdminQuery::Asset),
    (Method::GET, "/metrics", AdminQuery::Metrics),
    (Method::GET, "/healthz", AdminQuery::Alive),
    (Method::GET, "/readyz", AdminQuery::Ready),
    (Method::GET, "/api/v1/about", AdminQuery::About),
    (Method::GET, "/api/v1/sessions", AdminQuery::Sessions),
    (Method::GET, "/api/v1/sessions/{session}", AdminQuery::Session),
    (Method::GET, "/api/v1/sessions/{session}/turns", AdminQuery::Turns),
    (Method::DELETE, "/api/v1/sessions/{session}", AdminQuery::Forget),
    (Method::POST, "/api/v1/sessions/{session}/compact", AdminQuery::Compact),
    (Method::GET, "/api/v1/sessions/{session}/threads/{thread}/context", AdminQuery::Context),
    (Method::POST, "/api/v1/sessions/{session}/count", AdminQuery::Count),
    (Method::GET, "/api/v1/requests/{request}", AdminQuery::Exchange),
    (Method::GET, "/api/v1/requests/{request}/explain", AdminQuery::Explain),
    (Method::GET, "/api/v1/savings", AdminQuery::Savings),
    (Method::GET, "/api/v1/sessions/{session}/savings", AdminQuery::SessionSavings),
    (Method::GET, "/api/v1/sessions/{session}/export", AdminQuery::Export),
    (Method::GET, "/api/v1/sessions/{session}/say", AdminQuery::Queue),
    (Method::POST, "/api/v1/sessions/{session}/say", AdminQuery::Say),
    (Method::DELETE, "/api/v1/sessions/{session}/say", AdminQuery::Clear),
    (Method::DELETE, "/api/v1/sessions/{session}/say/{id}", AdminQuery::TakeBack),
    (Method::GET, "/api/v1/spend", AdminQuery::Spend),
    (Method::GET, "/api/v1/history", AdminQuery::History),
    (Method::GET, "/api/v1/limits", AdminQuery::Limits),
    (Method::GET, "/api/v1/caps", AdminQuery::Caps),
    (Method::POST, "/api/v1/caps/{name}/lift", AdminQuery::LiftCap),
    (Method::GET, "/api/v1/line", AdminQuery::Line),
    (Method::GET, "/api/v1/lessons", AdminQuery::Lessons),
    (Method::DELETE, "/api/v1/lessons/{id}", AdminQuery::ForgetLesson),
    (Method::POST, "/api/v1/lessons/{id}/share", AdminQuery::ShareLesson),
    (Method::GET, "/api/v1/events", AdminQuery::Events),
    (Method::GET, "/api/v1/openapi.json", AdminQuery::OpenApi),
];

impl AdminQuery {
    fn needs(self, query: Option<&str>, access: &AdminAccess) -> AdminRole {
        match self {
            Self::Page | Self::Asset | Self::Alive | Self::Ready | Self::OpenApi => {
                AdminRole::Anybody
            }
            // Many scrapers send no token.
            Self::Metrics if access.metrics_open => AdminRole::Anybody,
            Self::Metrics
            | Self::About
            | Self::Sessions
            | Self::Session
            | Self::Turns
            | Self::Context
            | Self::Exchange
            | Self::Explain
            | Self::Savings
            | Self::SessionSavings
            | Self::Spend
            | Self::History
            | Self::Limits
            | Self::Caps
            | Self::Line
            | Self::Lessons
            | Self::Events => AdminRole::Reader,
            // Without content it has only sizes.
            Self::Export if responses::is_without_content(query) => AdminRole::Reader,
            Self::Export
            | Self::Forget
            | Self::ForgetLesson
            | Self::ShareLesson
            | Self::LiftCap
            | Self::Compact
            | Self::Count
            | Self::Queue
            | Self::Say
            | Self::Clear
            | Self::TakeBack => AdminRole::Admin,
        }
    }

    fn audit_name(self) -> Option<&'static str> {
        match self {
            Self::Forget => Some("delete session"),
            Self::ForgetLesson => Some("forget lesson"),
            Self::ShareLesson => Some("share lesson"),
            Self::LiftCap => Some("lift cap"),
            Self::Compact => Some("compact session"),
            Self::Count => Some("count session"),
            Self::Say => Some("add a message to session"),
            Self::Clear => Some("clear the queue of session"),
            Self::TakeBack => Some("remove a message of session"),
            _ => None,
        }
    }
}

pub(super) async fn answer(
    admin: &Admin,
    request: &mut Request<Incoming>,
    peer: AdminPeer,
    ending: watch::Receiver<bool>,
) -> Response<AdminBody> {
    let route = find(request.method(), request.uri().path());
    // Who may read nothing does not learn which paths there are either.
    let needs = match &route {
        Ok(route) => route.query.needs(request.uri().query(), &admin.access),
        Err(_) => AdminRole::Reader,
    };
    let judged = guard::judge(request, needs, peer, &admin.access);
    let (role, FoundRoute { query, names }) = match (judged, route) {
        (Err(refusal), _) => return refuse(admin, refusal, peer).await,
        (Ok(_), Err(error)) => return responses::error_response(&error),
        (Ok(role), Ok(route)) => (role, route),
    };
    let response = respond(admin, query, &names, request, ending).await;
    if let Some(action) = query.audit_name() {
        let name = names.first().map_or("", String::as_str);
        tracing::info!(
            "admin: {action} {}, by {role:?} from {peer}: {}",
            clean(name),
            response.status().as_u16()
        );
    }
    response
}

async fn respond(
    admin: &Admin,
    query: AdminQuery,
    names: &[String],
    request: &mut Request<Incoming>,
    ending: watch::Receiver<bool>,
) -> Response<AdminBody> {
    let name = |at: usize| names.get(at).map_or("", String::as_str);
    let answered = match query {
        AdminQuery::Page => Ok(assets::page()),
        AdminQuery::Asset => assets::asset(name(0)),
        AdminQuery::Metrics => Ok(responses::metrics(admin)),
        AdminQuery::Alive => Ok(responses::text("alive\n")),
        AdminQuery::Ready => responses::ready(admin).await,
        AdminQuery::About => Ok(responses::about(admin).await),
        AdminQuery::Sessions => listing::sessions(admin, request.uri().query()).await,
        AdminQuery::Session => responses::session(admin, name(0)).await,
        AdminQuery::Turns => turns::answer(admin, name(0), request.uri().query()).await,
        AdminQuery::Forget => responses::forget(admin, name(0)).await,
        AdminQuery::Compact => responses::compact(admin, name(0), request.uri().query()).await,
        AdminQuery::Count => count::count(admin, name(0)).await,
        AdminQuery::Context => responses::context(admin, name(0), name(1), request).await,
        AdminQuery::Exchange => responses::exchange(admin, &name(0).into()).await,
        AdminQuery::Explain => responses::explain(admin, &name(0).into(), request).await,
        AdminQuery::Savings => responses::savings(admin, request).await,
        AdminQuery::Limits => limits::answer(admin, request),
        AdminQuery::Caps => caps::answer(admin, request),
        AdminQuery::LiftCap => caps::lift(admin, name(0)),
        AdminQuery::Line => line::answer(admin, request).await,
        AdminQuery::Spend => spend::answer(admin, request).await,
        AdminQuery::History => history::answer(admin, request).await,
        AdminQuery::SessionSavings => responses::session_savings(admin, name(0), request).await,
        AdminQuery::Export => responses::export(admin, name(0), request.uri().query()).await,
        AdminQuery::Queue => messages::queue(admin, name(0), request).await,
        AdminQuery::Say => messages::say(admin, name(0), request.body_mut()).await,
        AdminQuery::Clear => messages::clear(admin, name(0)).await,
        AdminQuery::TakeBack => messages::take_back(admin, name(0), name(1)).await,
        AdminQuery::Lessons => lessons::list(admin).await,
        AdminQuery::ForgetLesson => lessons::forget(admin, name(0)).await,
        AdminQuery::ShareLesson => lessons::share(admin, name(0)).await,
        AdminQuery::Events => Ok(responses::events(admin, ending)),
        AdminQuery::OpenApi => Ok(responses::openapi()),
    };
    answered.unwrap_or_else(|error| responses::error_response(&error))
}

/// What a request's method and path ask for.
struct FoundRoute {
    query: AdminQuery,
    /// The names at the placeholders of the path.
    names: Vec<String>,
}

fn find(method: &Method, path: &str) -> Result<FoundRoute, AdminError> {
    // A route that answers GET answers HEAD, too; hyper leaves the body out.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let mut allowed = Vec::new();
    for (known, template, query) in ROUTES {
        let Some(names) = fit(template, path) else { continue };
        if known == method {
            return Ok(FoundRoute { query: *query, names });
        }
        allowed.push(known.as_str());
    }
    if allowed.is_empty() {
        return Err(AdminError::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "There is no such path; /api/v1/openapi.json lists them.",
        ));
    }
    let what = format!("This path accepts only {}.", allowed.join(", "));
    Err(AdminError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what))
}

/// The names in a path at the placeholders of a template.
fn fit(template: &str, path: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut wanted_segments = template.split('/');
    let mut segments = path.split('/');
    loop {
        match (wanted_segments.next(), segments.next()) {
            (None, None) => return Some(names),
            (Some(wanted), Some(given)) if wanted.starts_with('{') => {
                let name = decoded_whole(given)?.into_owned();
                // An empty name would mean another route.
                if name.is_empty() {
                    return None;
                }
                names.push(name);
            }
            (Some(wanted), Some(given)) if wanted == given => {}
            _ => return None,
        }
    }
}

/// A name, encoded as one path segment.
pub fn encoded(name: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(byte as char);
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

async fn refuse(admin: &Admin, mut refusal: AdminRefusal, peer: AdminPeer) -> Response<AdminBody> {
    if refusal == AdminRefusal::WrongToken {
        // The response to a wrong token is delayed, so that guessing is slow.
        match admin.wrong_tokens.wait(Instant::now()) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => refusal = AdminRefusal::TooManyAttempts,
        }
    }
    record_refusal(admin, refusal, peer);
    responses::error_response(&refusal_error(refusal))
}

pub(super) fn record_refusal(admin: &Admin, refusal: AdminRefusal, peer: AdminPeer) {
    admin.telemetry.admin_refused(refusal);
    // Only the first one of each minute is logged: a flood of requests must not fill the disk.
    if let Some(before) = admin.wrong_tokens.line(Instant::now()) {
        let why = refusal.as_ref();
        tracing::warn!(
            "the admin listener refused a request from {peer}: {why}; {before} others since the last such line"
        );
    }
}

fn refusal_error(refusal: AdminRefusal) -> AdminError {
    let (status, code, what) = match refusal {
        AdminRefusal::NoToken | AdminRefusal::WrongToken => (
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "This listener requires a token: authorization: Bearer … It is admin_token if that is \
             configured, else the one in the file admin.token in the data folder.",
        ),
        AdminRefusal::TooManyAttempts => (
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_attempts",
            "Too many wrong tokens were sent. A valid token is accepted at any time.",
        ),
        AdminRefusal::ReadOnly => (
            StatusCode::FORBIDDEN,
            "read_only",
            "This token may only read. This request needs admin_token, or admin.token in the data folder.",
        ),
        AdminRefusal::ForeignHost => (
            StatusCode::MISDIRECTED_REQUEST,
            "foreign_host",
            "On loopback this listener accepts only loopback addresses and localhost in Host, once and \
             well-formed.",
        ),
        AdminRefusal::ForeignOrigin | AdminRefusal::ForeignUser => (
            StatusCode::FORBIDDEN,
            "foreign_origin",
            "This listener refuses requests from pages of other sites.",
        ),
    };
    AdminError::new(status, code, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_yield_decoded_names() {
        let names = |path| find(&Method::GET, path).ok().map(|route| route.names);
        let context = "/api/v1/sessions/a%2Fb%20c/threads/t/context";
        assert_eq!(names(context), Some(vec!["a/b c".to_owned(), "t".to_owned()]));
        assert_eq!(names("/api/v1/sessions"), Some(Vec::new()));
        for none in
            ["/api/v1/sessions/", "/api/v1/sessions/%F", "/api/v1/sessions/%FF", "", "//", "/x"]
        {
            assert_eq!(names(none), None, "{none}");
        }
    }

    #[test]
    fn encoded_names_decode_to_themselves() {
        for name in ["plain", "a/b c", "{\"x\":1}", "Ünï", "%2F"] {
            assert_eq!(decoded_whole(&encoded(name)).as_deref(), Some(name));
        }
    }
}
