//! The list of sessions, a page at a time: newest first from the store's list, in any other order and filtered from the
//! index.
//!
//! The newest are listed without the index, so that scripts and the first look are as quick with 100,000 sessions as with ten.

use std::cmp::Ordering;

use http::StatusCode;
use strum::{AsRefStr, EnumString, VariantNames};

use super::failures;
use super::index::IndexedSession;
use super::responses::{
    self, AdminError, AdminResponse, ListedScopes, json, number, parameter, text_parameter,
};
use super::state::Admin;
use super::view::{SessionDetails, SessionLine, SessionPage, cursor_named};
use crate::clock::wall;

/// Most words of a search: each is looked for in every session.
const MOST_WORDS: usize = 8;

/// By what a list is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum SessionOrder {
    /// When it was last used.
    #[default]
    Used,
    /// When it began.
    Began,
    /// The agent's name, then the session's.
    Client,
    Model,
    /// How full its context is.
    Fill,
    Dollars,
    /// The last estimate's error, without sign.
    Error,
    Turns,
    Input,
    Output,
}

/// What a list is made of, beside its place.
struct ListQuery {
    order: SessionOrder,
    is_ascending: bool,
    /// In lower case; each must be somewhere in a session's names.
    words: Vec<String>,
    tenant: Option<String>,
    model: Option<String>,
    upstream: Option<String>,
}

impl ListQuery {
    fn parse(query: Option<&str>) -> Result<Self, AdminError> {
        let order = match parameter(query, "sort") {
            None => SessionOrder::default(),
            Some(order) => order.parse().map_err(|_| {
                bad_query(format!("sort should be one of {}.", SessionOrder::VARIANTS.join(", ")))
            })?,
        };
        let is_ascending = match parameter(query, "order") {
            // Names from a, numbers from the largest.
            None => matches!(order, SessionOrder::Client | SessionOrder::Model),
            Some("asc") => true,
            Some("desc") => false,
            Some(_) => return Err(bad_query("order should be asc or desc.".to_owned())),
        };
        let search = text_parameter(query, "search").unwrap_or_default().to_lowercase();
        let words: Vec<String> = search.split_whitespace().map(str::to_owned).collect();
        if words.len() > MOST_WORDS {
            return Err(bad_query(format!("search should have at most {MOST_WORDS} words.")));
        }
        Ok(Self {
            order,
            is_ascending,
            words,
            tenant: text_parameter(query, "tenant"),
            model: text_parameter(query, "model"),
            upstream: text_parameter(query, "upstream"),
        })
    }

    /// Whether the store's own list answers it.
    fn is_plain(&self) -> bool {
        let Self { order, is_ascending, words, tenant, model, upstream } = self;
        let has_filter = tenant.is_some() || model.is_some() || upstream.is_some();
        *order == SessionOrder::Used && !is_ascending && words.is_empty() && !has_filter
    }

    fn has(&self, session: &IndexedSession) -> bool {
        let details = &session.details;
        let scope = &session.line.scope;
        if self.tenant.as_deref().is_some_and(|tenant| *tenant != *scope.tenant.as_str())
            || !self.has_model(session)
            || self.upstream.is_some() && self.upstream != details.upstream
        {
            return false;
        }
        let names = &details.names;
        let agent = names.agent.as_ref().map(ToString::to_string).unwrap_or_default();
        let texts = [
            scope.session.as_str(),
            &agent,
            names.project.as_deref().unwrap_or_default(),
            names.title.as_deref().unwrap_or_default(),
            details.model.as_deref().unwrap_or_default(),
            details.upstream.as_deref().unwrap_or_default(),
        ];
        self.words.iter().all(|word| texts.iter().any(|text| text.to_lowercase().contains(word)))
    }

    fn has_model(&self, session: &IndexedSession) -> bool {
        // The one that was requested last, or any that answered.
        self.model.as_deref().is_none_or(|model| {
            session.details.model.as_deref() == Some(model)
                || session.calls.iter().any(|call| *call.model == *model)
        })
    }

    fn compare(&self, one: &IndexedSession, other: &IndexedSession) -> Ordering {
        let ordering = match self.order {
            SessionOrder::Used => one.line.cursor.cmp(&other.line.cursor),
            SessionOrder::Began => one.line.began.cmp(&other.line.began),
            SessionOrder::Client => client_of(one).cmp(&client_of(other)),
            SessionOrder::Model => one.details.model.cmp(&other.details.model),
            SessionOrder::Fill => numbers(one.details.percent, other.details.percent),
            SessionOrder::Dollars => numbers(one.details.dollars, other.details.dollars),
            SessionOrder::Error => numbers(error_of(one), error_of(other)),
            SessionOrder::Turns => one.line.turns.cmp(&other.line.turns),
            SessionOrder::Input => one.line.input.cmp(&other.line.input),
            SessionOrder::Output => one.line.output.cmp(&other.line.output),
        };
        let ordering = if self.is_ascending { ordering } else { ordering.reverse() };
        // Of equal ones, the newest first.
        ordering.then(other.line.cursor.cmp(&one.line.cursor))
    }
}

fn client_of(session: &IndexedSession) -> (Option<&str>, &str) {
    // The agent's name, then the session's.
    let agent = session.details.names.agent.as_ref();
    (agent.map(|agent| &*agent.name), session.line.scope.session.as_str())
}

fn error_of(session: &IndexedSession) -> Option<f64> {
    session.details.error_ratio.map(f64::abs)
}

fn bad_query(what: String) -> AdminError {
    AdminError::new(StatusCode::BAD_REQUEST, "bad_query", what)
}

fn numbers(one: Option<f64>, other: Option<f64>) -> Ordering {
    // What is not known comes before every number.
    one.unwrap_or(f64::NEG_INFINITY).total_cmp(&other.unwrap_or(f64::NEG_INFINITY))
}

pub(super) async fn sessions(admin: &Admin, query: Option<&str>) -> AdminResponse {
    let wanted = ListQuery::parse(query)?;
    if wanted.is_plain() {
        newest(admin, query).await
    } else {
        selected(admin, query, &wanted).await
    }
}

async fn newest(admin: &Admin, query: Option<&str>) -> AdminResponse {
    let ListedScopes { lines, next } = responses::list_scopes(admin, query).await?;
    let next_after = next.and_then(|_| Some(cursor_named(lines.last()?.cursor)));
    let with_details = responses::is_true(query, "details")?;
    // Sessions may have been added since they were counted.
    let skip = number(query, "skip")?.unwrap_or(0);
    let has_skipped_by_number = parameter(query, "after").is_none();
    let found = match next {
        // With a cursor, nobody knows how many come before.
        _ if !has_skipped_by_number => None,
        None => Some(skip + lines.len()),
        Some(next) => admin.index.count().map(|count| count.max(next + 1)),
    };
    let mut sessions = Vec::with_capacity(lines.len());
    for line in lines {
        let scope = line.scope.clone();
        let mut line = SessionLine::from(line);
        if with_details {
            let prices = admin.prices.clone();
            let looking = admin.ledgers.look_at_one_of_many(&scope, move |ledger| {
                SessionDetails::from_ledger(ledger, &prices, wall())
            });
            line.details = looking.await?;
        }
        sessions.push(line);
    }
    failures::count_failed(admin, &mut sessions);
    Ok(json(&SessionPage {
        sessions,
        next,
        next_after,
        found,
        incomplete: false,
        reading: false,
        indexed: None,
    }))
}

async fn selected(admin: &Admin, query: Option<&str>, wanted: &ListQuery) -> AdminResponse {
    let skip = number(query, "skip")?.unwrap_or(0);
    let limit = responses::page_limit(query)?;
    let index = admin.index.refreshed(&admin.ledgers, &admin.prices).await?;
    let mut matches: Vec<&IndexedSession> =
        index.sessions.values().filter(|session| wanted.has(session)).collect();
    let end = skip.saturating_add(limit);
    // Only what comes before the end of the page is sorted.
    if end < matches.len() {
        matches.select_nth_unstable_by(end, |one, other| wanted.compare(one, other));
    }
    let count = matches.len();
    matches.truncate(end);
    matches.sort_unstable_by(|one, other| wanted.compare(one, other));
    let now = wall();
    let mut sessions = Vec::with_capacity(limit.min(matches.len()));
    for session in matches.into_iter().skip(skip) {
        let mut details = session.details.clone();
        // What was cached when the session was read may be gone.
        if let Some(next_input) = &mut details.next_input
            && next_input.cached_until.is_some_and(|until| until <= now)
        {
            next_input.dollars = next_input.cold;
        }
        sessions.push(SessionLine { details, ..SessionLine::from(session.line.clone()) });
    }
    failures::count_failed(admin, &mut sessions);
    Ok(json(&SessionPage {
        sessions,
        next: if end < count { Some(end) } else { None },
        next_after: None,
        found: Some(count),
        incomplete: !index.is_whole(),
        reading: index.is_reading(),
        indexed: Some(index.sessions.len()),
    }))
}
