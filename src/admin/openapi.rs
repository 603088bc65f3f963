//! The API's description for machines (OpenAPI 3.1): the table of routes, and the types of the views.
//!
//! A route's summary is the comment of its [`AdminQuery`], a field's description the comment of the field. What no type
//! says stands here: parameters, media types, and why a request fails.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};
use strum::{EnumMessage as _, VariantNames as _};

use super::caps::CapsPage;
use super::compare::ComparedRequests;
use super::context::ContextPage;
use super::count::CountComparison;
use super::explain::Explanation;
use super::failures::FailuresPage;
use super::guard::AdminRole;
use super::history::HistoryPage;
use super::lessons::{LessonDecision, LessonList};
use super::limits::LimitsPage;
use super::line::StatusLine;
use super::listing::SessionOrder;
use super::messages::{
    ClearedMessages, InjectQueue, InjectRequest, RemovedMessage, WaitingMessage,
};
use super::responses::{DEFAULT_PAGE, ErrorBody, LARGEST_PAGE};
use super::routes::{AdminQuery, ROUTES};
use super::savings::SavingsPage;
use super::spend::{SpendBy, SpendPage};
use super::transcript::{DEFAULT_CALLS, MOST_CALLS, TranscriptPage};
use super::turns::TurnsPage;
use super::view::{CompactionRequest, DeleteOutcome, DryRun, ServerInfo, SessionPage, SessionView};
use crate::context::caps::CapPeriod;
use crate::telemetry::log::LogFields;

/// The description, as JSON.
pub(super) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| describe().to_string())
}

fn describe() -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut schemas = settings.into_generator();
    let error = schemas.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for (method, path, query) in ROUTES {
        let operations = paths.entry(*path).or_insert_with(|| json!({}));
        operations[method.as_str().to_lowercase()] = operation(*query, path, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll admin API",
            "version": "1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Monitors and controls a running Plimsoll. Everything except the page, the probes and this \
                file requires a token: one that may do everything, or one that may only read. Clients of the Unix \
                socket admin.sock in the data folder need no token: only the user who owns the folder (and root) can \
                connect to it. Fields are added, never renamed.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "May do everything: admin_token if it is configured, else the file admin.token in \
                        the data folder.",
                },
                "reader": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "May only read, without content: admin_read_token if it is configured, else the \
                        file read.token in the data folder.",
                },
            },
            "responses": refusals(&error),
            "schemas": schemas.take_definitions(true),
        },
    })
}

/// The refusals that are the same everywhere.
fn refusals(error: &Schema) -> Value {
    let mut responses = json!({});
    for (name, why) in [
        ("Unauthorized", "No token, or a wrong one; wrong tokens are rate-limited."),
        ("Forbidden", "The token may only read, or the request comes from a page of another site."),
        (
            "ForeignHost",
            "Host is missing, malformed, repeated or, on loopback, not this machine's.",
        ),
        ("TooManyAttempts", "Too many wrong tokens were sent, and this is another one."),
    ] {
        responses[name] =
            json!({"description": why, "content": {"application/json": {"schema": error}}});
    }
    responses
}

fn operation(query: AdminQuery, path: &str, schemas: &mut SchemaGenerator) -> Value {
    let role = query.needs(None, false);
    let mut operation = json!({
        "operationId": query.as_ref(),
        "summary": query.get_documentation(),
        "security": security(role),
    });
    let mut path_and_query = path_parameters(path);
    path_and_query.extend(parameters(query).into_iter().map(Parameter::described));
    if !path_and_query.is_empty() {
        operation["parameters"] = path_and_query.into();
    }
    if query == AdminQuery::Say {
        let message = schemas.subschema_for::<InjectRequest>();
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": message}}});
    }
    let mut responses = json!({
        "200": {"description": answer(query), "content": content(query, schemas)},
        "403": {"$ref": "#/components/responses/Forbidden"},
        "421": {"$ref": "#/components/responses/ForeignHost"},
    });
    if role != AdminRole::Anybody {
        responses["401"] = json!({"$ref": "#/components/responses/Unauthorized"});
        responses["429"] = json!({"$ref": "#/components/responses/TooManyAttempts"});
    }
    let error = schemas.subschema_for::<ErrorBody>();
    for (status, why) in failures(query, path) {
        responses[status] =
            json!({"description": why, "content": {"application/json": {"schema": error}}});
    }
    operation["responses"] = responses;
    operation
}

fn security(role: AdminRole) -> Value {
    match role {
        AdminRole::Anybody => json!([]),
        AdminRole::Reader => json!([{"token": []}, {"reader": []}]),
        AdminRole::Admin => json!([{"token": []}]),
    }
}

/// What a response with the status 200 is, by media type.
fn content(query: AdminQuery, schemas: &mut SchemaGenerator) -> Value {
    let json = match query {
        AdminQuery::Page => return text(&["text/html"]),
        AdminQuery::Asset => return text(&["text/javascript", "text/css", "image/svg+xml"]),
        AdminQuery::Metrics | AdminQuery::Alive | AdminQuery::Ready => {
            return text(&["text/plain"]);
        }
        AdminQuery::Export => return text(&["application/x-ndjson"]),
        AdminQuery::Events => return text(&["text/event-stream"]),
        AdminQuery::OpenApi => json_schema!({"type": "object"}),
        AdminQuery::About => schemas.subschema_for::<ServerInfo>(),
        AdminQuery::Sessions => schemas.subschema_for::<SessionPage>(),
        AdminQuery::Session => schemas.subschema_for::<SessionView>(),
        AdminQuery::Turns => schemas.subschema_for::<TurnsPage>(),
        AdminQuery::Forget => schemas.subschema_for::<DeleteOutcome>(),
        AdminQuery::Compact => {
            let request = schemas.subschema_for::<CompactionRequest>();
            json_schema!({"anyOf": [request, schemas.subschema_for::<DryRun>()]})
        }
        AdminQuery::Context => schemas.subschema_for::<ContextPage>(),
        AdminQuery::Transcript => schemas.subschema_for::<TranscriptPage>(),
        AdminQuery::Count => schemas.subschema_for::<CountComparison>(),
        AdminQuery::Exchange => schemas.subschema_for::<LogFields<'_>>(),
        AdminQuery::Explain => schemas.subschema_for::<Explanation>(),
        AdminQuery::Compare => schemas.subschema_for::<ComparedRequests>(),
        AdminQuery::Savings | AdminQuery::SessionSavings => schemas.subschema_for::<SavingsPage>(),
        AdminQuery::Queue => schemas.subschema_for::<InjectQueue>(),
        AdminQuery::Say => schemas.subschema_for::<WaitingMessage>(),
        AdminQuery::Clear => schemas.subschema_for::<ClearedMessages>(),
        AdminQuery::TakeBack => schemas.subschema_for::<RemovedMessage>(),
        AdminQuery::Spend => schemas.subschema_for::<SpendPage>(),
        AdminQuery::History => schemas.subschema_for::<HistoryPage>(),
        AdminQuery::Failures => schemas.subschema_for::<FailuresPage>(),
        AdminQuery::Limits => schemas.subschema_for::<LimitsPage>(),
        AdminQuery::Caps | AdminQuery::LiftCap | AdminQuery::SetCap | AdminQuery::UnsetCap => {
            schemas.subschema_for::<CapsPage>()
        }
        AdminQuery::Line => schemas.subschema_for::<StatusLine>(),
        AdminQuery::Lessons => schemas.subschema_for::<LessonList>(),
        AdminQuery::ForgetLesson | AdminQuery::ShareLesson => {
            schemas.subschema_for::<LessonDecision>()
        }
    };
    let mut content = json!({"application/json": {"schema": json}});
    if has_text(query) {
        content["text/plain"] = json!({"schema": {"type": "string"}});
    }
    content
}

fn text(media: &[&str]) -> Value {
    media.iter().map(|media| ((*media).to_owned(), json!({"schema": {"type": "string"}}))).collect()
}

/// Whether there is a form for people, too.
fn has_text(query: AdminQuery) -> bool {
    parameters(query).iter().any(|parameter| parameter.name == "format")
}

/// What a response with the status 200 says, in words.
fn answer(query: AdminQuery) -> &'static str {
    match query {
        AdminQuery::Ready => {
            "It is ready; the text is `ready`, or begins with `ready, degraded` while nothing can be stored."
        }
        AdminQuery::Compact => "It is requested; for a dry run: what it would do.",
        AdminQuery::Export => {
            "Lines in the format of recorded transcripts; `plimsoll replay` reads them."
        }
        AdminQuery::Events => {
            "A stream that does not end. `exchange`: an exchange that ended, as `/api/v1/requests/{request}` shows it. \
             `compacted` and `pruned`: a request whose context was just made smaller, with the tokens `before` and \
             `after`, the `strategy` that wrote the summary (`summary` or `provider`), or how many `results` were \
             cleared. `queued` (with its `position`) and `dequeued`: a queued message. `say`: every step of a queued \
             message (`queued`, `removed`, `taken`), without its text. `cap`: a cap of which 80 % or the whole was \
             just spent. `missed`: how many events were skipped because the reader was too slow."
        }
        _ => "It worked.",
    }
}

/// A parameter of the query.
struct Parameter {
    name: &'static str,
    what: &'static str,
    schema: Schema,
}

impl Parameter {
    fn new(name: &'static str, what: &'static str, schema: Schema) -> Self {
        Self { name, what, schema }
    }

    fn described(self) -> Value {
        json!({"name": self.name, "in": "query", "description": self.what, "schema": self.schema})
    }
}

/// A parameter that is a text.
fn words(name: &'static str, what: &'static str) -> Parameter {
    Parameter::new(name, what, json_schema!({"type": "string"}))
}

fn format() -> Parameter {
    let what = "`text` for people; `accept: text/plain` does the same.";
    Parameter::new("format", what, json_schema!({"type": "string", "enum": ["json", "text"]}))
}

fn number() -> Schema {
    json_schema!({"type": "integer", "minimum": 0})
}

fn switch() -> Schema {
    json_schema!({"type": "boolean", "default": false})
}

/// Which page of a list.
fn page(default: usize, most: usize) -> [Parameter; 2] {
    let limit =
        json_schema!({"type": "integer", "minimum": 1, "maximum": most, "default": default});
    [
        Parameter::new("skip", "How many to leave out at the beginning.", number()),
        Parameter::new("limit", "How many, at most.", limit),
    ]
}

fn parameters(query: AdminQuery) -> Vec<Parameter> {
    match query {
        AdminQuery::Sessions => {
            page(DEFAULT_PAGE, LARGEST_PAGE).into_iter().chain(list_parameters()).collect()
        }
        AdminQuery::Savings => {
            page(DEFAULT_PAGE, LARGEST_PAGE).into_iter().chain([format()]).collect()
        }
        AdminQuery::Turns => {
            let what = "Only turns that ended then or later, ms since 1970.";
            vec![Parameter::new("since", what, number())]
        }
        AdminQuery::Transcript => {
            let what = "The id of the page's first call; without it and `skip`, the newest calls.";
            page(DEFAULT_CALLS, MOST_CALLS).into_iter().chain([words("request", what)]).collect()
        }
        AdminQuery::Compact => {
            let what = "`true`: only show what it would do.";
            vec![
                words("focus", "What the summary should focus on; 4,000 bytes at most."),
                Parameter::new("dry_run", what, switch()),
            ]
        }
        AdminQuery::Export => {
            let what = "Include the content, if it was stored (`content.keep`). A call without stored content has the \
                        flag `no_content`. Needs the token that may do everything.";
            vec![Parameter::new("content", what, switch())]
        }
        AdminQuery::Spend => {
            let by = json_schema!({
                "type": "string", "enum": SpendBy::VARIANTS, "default": SpendBy::default().as_ref()
            });
            let since = "Since when, ms since 1970; else the last 30 days.";
            vec![
                Parameter::new("by", "By which name the calls are listed.", by),
                Parameter::new("since", since, number()),
                format(),
            ]
        }
        AdminQuery::Failures => vec![
            Parameter::new("since", "Since when, ms since 1970.", number()),
            words("tag", "Only calls with this tag."),
            format(),
        ],
        AdminQuery::History => {
            let range =
                json_schema!({"type": "string", "pattern": "^[0-9]+[mhd]$", "default": "24h"});
            vec![
                Parameter::new("range", "How far back: 15m to 30d.", range),
                words("tenant", "Only calls of this credential."),
                words("model", "Only calls that this model answered."),
                words("upstream", "Only calls to this upstream."),
            ]
        }
        AdminQuery::LiftCap => vec![words("subject", "Only for this one; else for all.")],
        AdminQuery::SetCap => {
            let per = json_schema!({"type": "string", "enum": CapPeriod::VARIANTS});
            let dollars = json_schema!({"type": "number", "exclusiveMinimum": 0});
            vec![
                words("of", "Whose spending it limits, as in the configuration."),
                Parameter::new("per", "In which time.", per),
                Parameter::new("dollars", "At most so many US dollars.", dollars),
                Parameter::new("tokens", "At most so many tokens.", number()),
            ]
        }
        AdminQuery::Line => vec![words("session", "The session; else the newest."), format()],
        AdminQuery::Compare => {
            vec![
                words("with", "The other request; else the one that this one continues."),
                format(),
            ]
        }
        AdminQuery::Context
        | AdminQuery::Explain
        | AdminQuery::SessionSavings
        | AdminQuery::Queue
        | AdminQuery::Limits
        | AdminQuery::Caps => vec![format()],
        _ => Vec::new(),
    }
}

/// How the list of sessions is searched, sorted and filtered.
fn list_parameters() -> [Parameter; 8] {
    let details = "Whether each line has the names of its session and how its main thread is. The turns of each \
                   session are read for it.";
    let order = "Numbers begin with the largest, names with a, unless this says otherwise.";
    let sort = json_schema!({
        "type": "string", "enum": SessionOrder::VARIANTS, "default": SessionOrder::default().as_ref()
    });
    [
        words("after", "The next_after of the page before."),
        Parameter::new("details", details, switch()),
        words(
            "search",
            "Words that must all be in a session's id, agent, project, title, model or upstream.",
        ),
        Parameter::new("sort", "By what the list is sorted.", sort),
        Parameter::new("order", order, json_schema!({"type": "string", "enum": ["asc", "desc"]})),
        words("tenant", "Only sessions of this credential."),
        words("model", "Only sessions whose main thread last requested this model."),
        words("upstream", "Only sessions whose main thread last used this upstream."),
    ]
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|it| it.strip_prefix('{')?.strip_suffix('}'));
    let described = names.map(|name| {
        let what = match name {
            "session" => {
                "An id from the list, or the client's own id if only one credential uses it."
            }
            "thread" => "A thread's id, or `main`; `latest` is the same.",
            "request" => "The id of an exchange, from a log line, a list or x-plimsoll-request-id.",
            "name" => "The name of a cap.",
            "file" => "The name of a file that the page asks for.",
            _ => "An id from the list.",
        };
        json!({
            "name": name, "in": "path", "required": true, "description": what, "schema": {"type": "string"}
        })
    });
    described.collect()
}

/// The other ways to fail: status and reason.
fn failures(query: AdminQuery, path: &str) -> Vec<(&'static str, &'static str)> {
    let mut failures = Vec::new();
    if path.contains('{') {
        failures.push(("404", "Nothing of that name is known, or nothing is stored about it."));
    }
    if path.contains("{session}") {
        let why = match query {
            AdminQuery::Compact => {
                "Several credentials use this id (`ambiguous`), there is nothing to cut (`nothing_to_cut`), a summary \
                 is being written (`under_way`), or Plimsoll does not have the history for a dry run (`not_at_hand`)."
            }
            AdminQuery::Count => {
                "It cannot be counted (`not_at_hand`, `no_endpoint`, `no_credential`), or several credentials use \
                 this id."
            }
            AdminQuery::Say => "Too many messages are queued, or several credentials use this id.",
            AdminQuery::TakeBack => "It was already sent, or several credentials use this id.",
            _ => "Several credentials use this id.",
        };
        failures.push(("409", why));
    }
    match query {
        AdminQuery::Ready => {
            failures.push(("503", "It is shutting down, or the store does not answer."));
        }
        AdminQuery::Compact => {
            failures.push(("503", "The store failed, or too many requests for one are pending."));
        }
        AdminQuery::Count => {
            failures.push(("502", "The provider refused, or sent no count."));
            failures.push(("503", "Other counts are running, or the store failed."));
        }
        AdminQuery::Export => {
            failures.push(("503", "Too many sessions are being exported, or the store failed."));
        }
        AdminQuery::Say => {
            failures.push(("413", "The text is too long."));
            failures.push(("503", "The store failed."));
        }
        _ if asks_the_store(path) => failures.push(("503", "The store failed.")),
        _ => {}
    }
    if query == AdminQuery::Say || parameters(query).iter().any(|it| it.name != "format") {
        failures.push(("400", "A parameter or the body is not what it should be."));
    }
    failures
}

fn asks_the_store(path: &str) -> bool {
    const IN_MEMORY: [&str; 4] = ["about", "limits", "events", "openapi.json"];
    path.strip_prefix("/api/v1/")
        .is_some_and(|path| !path.starts_with("caps") && !IN_MEMORY.contains(&path))
}
