//! One admin request: who sends it, what it asks for, the response.
//!
//! Whoever may not read anything does not learn which paths exist. What changes something is logged.

use std::time::Instant;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::guard::{self, AdminPeer, AdminRole};
use super::responses::{self, AdminBody, AdminError};
use super::routes::{self, AdminQuery, FoundRoute};
use super::state::Admin;
use super::{
    assets, caps, compare, count, events, failures, history, lessons, limits, line, listing,
    messages, openapi, scrape, spend, transcript, turns,
};
use crate::telemetry::AdminRefusal;
use crate::telemetry::log::clean;

pub(super) async fn answer(
    admin: &Admin,
    request: &mut Request<Incoming>,
    peer: AdminPeer,
    ending: watch::Receiver<bool>,
) -> Response<AdminBody> {
    let route = routes::find(request.method(), request.uri().path());
    // Who may read nothing does not learn which paths there are either.
    let needs = match &route {
        Ok(route) => route.query.needs(request.uri().query(), admin.access.metrics_open),
        Err(_) => AdminRole::Reader,
    };
    let judged = guard::judge(request, needs, peer, &admin.access);
    let (role, FoundRoute { query, names }) = match (judged, route) {
        (Err(refusal), _) => return refuse(admin, refusal, peer).await,
        (Ok(_), Err(error)) => return responses::error_response(&error),
        (Ok(role), Ok(route)) => (role, route),
    };
    let response = respond(admin, query, role, &names, request, ending).await;
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
    role: AdminRole,
    names: &[String],
    request: &mut Request<Incoming>,
    ending: watch::Receiver<bool>,
) -> Response<AdminBody> {
    let name = |at: usize| names.get(at).map_or("", String::as_str);
    let answered = match query {
        AdminQuery::Page => Ok(assets::page()),
        AdminQuery::Asset => assets::asset(name(0)),
        AdminQuery::Metrics => Ok(scrape::answer(admin, request.headers())),
        AdminQuery::Alive => Ok(responses::text("alive\n")),
        AdminQuery::Ready => responses::ready(admin).await,
        AdminQuery::About => Ok(responses::about(admin, role).await),
        AdminQuery::Sessions => listing::sessions(admin, request.uri().query()).await,
        AdminQuery::Session => responses::session(admin, name(0)).await,
        AdminQuery::Turns => turns::answer(admin, name(0), request.uri().query()).await,
        AdminQuery::Forget => responses::forget(admin, name(0)).await,
        AdminQuery::Compact => responses::compact(admin, name(0), request.uri().query()).await,
        AdminQuery::Count => count::count(admin, name(0)).await,
        AdminQuery::Context => responses::context(admin, name(0), name(1), request).await,
        AdminQuery::Transcript => {
            transcript::answer(admin, name(0), name(1), request.uri().query()).await
        }
        AdminQuery::Exchange => responses::exchange(admin, &name(0).into()).await,
        AdminQuery::Explain => responses::explain(admin, &name(0).into(), request).await,
        AdminQuery::Compare => compare::answer(admin, &name(0).into(), request).await,
        AdminQuery::Savings => responses::savings(admin, request).await,
        AdminQuery::Limits => limits::answer(admin, request),
        AdminQuery::Caps => caps::answer(admin, request).await,
        AdminQuery::SetCap => caps::set(admin, name(0), request.uri().query()).await,
        AdminQuery::UnsetCap => caps::take_back(admin, name(0)).await,
        AdminQuery::LiftCap => caps::lift(admin, name(0), request.uri().query()).await,
        AdminQuery::Line => line::answer(admin, request).await,
        AdminQuery::Spend => spend::answer(admin, request).await,
        AdminQuery::History => history::answer(admin, request).await,
        AdminQuery::Failures => failures::answer(admin, request),
        AdminQuery::SessionSavings => responses::session_savings(admin, name(0), request).await,
        AdminQuery::Export => responses::export(admin, name(0), request.uri().query()).await,
        AdminQuery::Queue => messages::queue(admin, name(0), request).await,
        AdminQuery::Say => messages::say(admin, name(0), request.body_mut()).await,
        AdminQuery::Clear => messages::clear(admin, name(0)).await,
        AdminQuery::TakeBack => messages::take_back(admin, name(0), name(1)).await,
        AdminQuery::Lessons => lessons::list(admin).await,
        AdminQuery::ForgetLesson => lessons::forget(admin, name(0)).await,
        AdminQuery::ShareLesson => lessons::share(admin, name(0)).await,
        AdminQuery::Events => Ok(events::events(admin, ending)),
        AdminQuery::OpenApi => Ok(responses::whole("application/json", openapi::document())),
    };
    answered.unwrap_or_else(|error| responses::error_response(&error))
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
