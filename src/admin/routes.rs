//! All routes as one table, which `openapi.rs` describes and `dispatch.rs` serves.
//!
//! A route that is added here has to say who may use it, and what it answers: both are matched without a default.

use http::{Method, StatusCode};
use strum::{AsRefStr, EnumMessage};

use super::guard::AdminRole;
use super::responses::{self, AdminError};
use crate::dialect::percent::decoded_whole;

/// What a request asks for. The API's description shows these comments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr, EnumMessage)]
#[strum(serialize_all = "camelCase")]
pub enum AdminQuery {
    /// The page: overview, sessions, live exchanges and models.
    Page,
    /// A script, style or picture of the page.
    Asset,
    /// Metrics in Prometheus' text format, or in OpenMetrics' if it is asked for; docs/metrics.md lists them. Needs no token if metrics_open is configured.
    Metrics,
    /// Whether the process is alive.
    Alive,
    /// Whether it is ready for traffic. Traffic flows also while nothing can be stored.
    Ready,
    /// Which server this is, and where it listens.
    About,
    /// Sessions, newest first, or in another order, searched and filtered.
    Sessions,
    /// One session with its threads.
    Session,
    /// The turns of a session: context, usage, cost, error and changes of each, oldest first. No content.
    Turns,
    /// Delete a session and everything that is stored about it.
    Forget,
    /// Compact a session. The summary starts at once if the configured summariser has a credential of its own, or else
    /// with the session's next request; the first request after it is written uses it.
    Compact,
    /// The words of a thread's calls, as far as they were stored (`content.keep`), with secrets masked: what each call
    /// added and what was replied, a page at a time, and what rewriting did to a part.
    Transcript,
    /// How full a thread's context is.
    Context,
    /// Ask the provider to count the session's newest request now, as it was sent (Anthropic, OpenAI Responses, Gemini).
    /// Uses the upstream's own credential, or the client's, which is kept for ten minutes.
    Count,
    /// One exchange: one of the last, or one whose turn is stored.
    Exchange,
    /// What was changed in a request, and why; for every exchange that became a turn, and for the last ones.
    Explain,
    /// What differs between a request and an earlier one of its session, as they were sent: which parts were added,
    /// dropped, moved or cut, and where the provider's cached prefix ends.
    Compare,
    /// What rewriting saved in a page of sessions, newest first.
    Savings,
    /// What rewriting saved in one session.
    SessionSavings,
    /// One session for sharing: a line of JSON for each call, without content unless `content` asks for it.
    Export,
    /// Messages that are queued for the session, and those that were sent.
    Queue,
    /// Add a user message at the end of the next request of the session's main thread; it stays there in all later requests.
    Say,
    /// Remove all queued messages.
    Clear,
    /// Remove a queued message.
    TakeBack,
    /// What was spent since a time, and who spent it.
    Spend,
    /// What happened over time, in equal steps and by model.
    History,
    /// Calls that failed and became no turn, by how they ended.
    Failures,
    /// How much is left of the providers' limits, as their responses last said.
    Limits,
    /// How much of each spending cap is spent, and by whom.
    Caps,
    /// Set a cap, or change one of the configuration, until it is taken back.
    SetCap,
    /// Take back what was set under this name; the configured cap holds again, if there is one.
    UnsetCap,
    /// Let a cap stop nothing until its period ends, or until the next start.
    LiftCap,
    /// One line about a session, for a status bar.
    Line,
    /// Lessons from refusals of upstreams, the newest first.
    Lessons,
    /// Delete a lesson, at once and for everyone; the next such refusal teaches it again.
    ForgetLesson,
    /// Apply a lesson to everyone, until it is deleted.
    ShareLesson,
    /// Live events, as server-sent events.
    Events,
    /// This description, for machines.
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
    (Method::GET, "/api/v1/sessions/{session}/threads/{thread}/transcript", AdminQuery::Transcript),
    (Method::POST, "/api/v1/sessions/{session}/count", AdminQuery::Count),
    (Method::GET, "/api/v1/requests/{request}", AdminQuery::Exchange),
    (Method::GET, "/api/v1/requests/{request}/explain", AdminQuery::Explain),
    (Method::GET, "/api/v1/requests/{request}/compare", AdminQuery::Compare),
    (Method::GET, "/api/v1/savings", AdminQuery::Savings),
    (Method::GET, "/api/v1/sessions/{session}/savings", AdminQuery::SessionSavings),
    (Method::GET, "/api/v1/sessions/{session}/export", AdminQuery::Export),
    (Method::GET, "/api/v1/sessions/{session}/say", AdminQuery::Queue),
    (Method::POST, "/api/v1/sessions/{session}/say", AdminQuery::Say),
    (Method::DELETE, "/api/v1/sessions/{session}/say", AdminQuery::Clear),
    (Method::DELETE, "/api/v1/sessions/{session}/say/{id}", AdminQuery::TakeBack),
    (Method::GET, "/api/v1/spend", AdminQuery::Spend),
    (Method::GET, "/api/v1/history", AdminQuery::History),
    (Method::GET, "/api/v1/failures", AdminQuery::Failures),
    (Method::GET, "/api/v1/limits", AdminQuery::Limits),
    (Method::GET, "/api/v1/caps", AdminQuery::Caps),
    (Method::POST, "/api/v1/caps/{name}", AdminQuery::SetCap),
    (Method::DELETE, "/api/v1/caps/{name}", AdminQuery::UnsetCap),
    (Method::POST, "/api/v1/caps/{name}/lift", AdminQuery::LiftCap),
    (Method::GET, "/api/v1/line", AdminQuery::Line),
    (Method::GET, "/api/v1/lessons", AdminQuery::Lessons),
    (Method::DELETE, "/api/v1/lessons/{id}", AdminQuery::ForgetLesson),
    (Method::POST, "/api/v1/lessons/{id}/share", AdminQuery::ShareLesson),
    (Method::GET, "/api/v1/events", AdminQuery::Events),
    (Method::GET, "/api/v1/openapi.json", AdminQuery::OpenApi),
];

impl AdminQuery {
    /// `metrics_open`: metrics are for anybody.
    pub(super) fn needs(self, query: Option<&str>, metrics_open: bool) -> AdminRole {
        match self {
            Self::Page | Self::Asset | Self::Alive | Self::Ready | Self::OpenApi => {
                AdminRole::Anybody
            }
            // Many scrapers send no token.
            Self::Metrics if metrics_open => AdminRole::Anybody,
            Self::Metrics
            | Self::About
            | Self::Sessions
            | Self::Session
            | Self::Turns
            | Self::Context
            | Self::Exchange
            | Self::Explain
            | Self::Compare
            | Self::Savings
            | Self::SessionSavings
            | Self::Spend
            | Self::History
            | Self::Failures
            | Self::Limits
            | Self::Caps
            | Self::Line
            | Self::Lessons
            | Self::Events => AdminRole::Reader,
            // Without content it has only sizes.
            Self::Export if responses::is_without_content(query) => AdminRole::Reader,
            Self::Export
            | Self::Transcript
            | Self::Forget
            | Self::ForgetLesson
            | Self::ShareLesson
            | Self::LiftCap
            | Self::SetCap
            | Self::UnsetCap
            | Self::Compact
            | Self::Count
            | Self::Queue
            | Self::Say
            | Self::Clear
            | Self::TakeBack => AdminRole::Admin,
        }
    }

    pub(super) fn audit_name(self) -> Option<&'static str> {
        match self {
            Self::Forget => Some("delete session"),
            Self::ForgetLesson => Some("forget lesson"),
            Self::ShareLesson => Some("share lesson"),
            Self::LiftCap => Some("lift cap"),
            Self::SetCap => Some("set cap"),
            Self::UnsetCap => Some("take back cap"),
            Self::Compact => Some("compact session"),
            Self::Count => Some("count session"),
            Self::Say => Some("add a message to session"),
            Self::Clear => Some("clear the queue of session"),
            Self::TakeBack => Some("remove a message of session"),
            _ => None,
        }
    }
}

/// What a request's method and path ask for.
pub(super) struct FoundRoute {
    pub(super) query: AdminQuery,
    /// The names at the placeholders of the path.
    pub(super) names: Vec<String>,
}

pub(super) fn find(method: &Method, path: &str) -> Result<FoundRoute, AdminError> {
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
}
