//! The OpenAPI file and the table of routes list the same routes, and responses match the file.

use std::collections::BTreeSet;

use plimsoll::admin::routes::ROUTES;
use serde_json::Value;

use super::place::{self, Place, tenant};
use super::support::looking::READER;

fn document() -> Value {
    serde_json::from_str(include_str!("../../src/admin/openapi.json")).unwrap()
}

#[test]
fn openapi_lists_served_routes() {
    let document = document();
    let mut written = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            written.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let routed = ROUTES.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    assert_eq!(written, routed);
}

#[test]
fn openapi_path_parameters_are_described_and_references_resolve() {
    let document = document();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for segment in path.split('/').filter_map(|it| it.strip_prefix('{')?.strip_suffix('}')) {
            assert!(operations.to_string().contains(&format!("\"name\":\"{segment}\"")), "{path}");
        }
    }
    let text = document.to_string();
    for (at, start) in text.match_indices("\"$ref\":\"#/components/schemas/") {
        let name = text[at + start.len()..].split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

/// For every route, the file says which token it needs and how it refuses.
#[tokio::test]
async fn roles_match_openapi() {
    let place = Place::new().await;
    let document = document();
    for (method, path, _) in ROUTES {
        let written = &document["paths"][*path][method.as_str().to_lowercase()];
        let security = written.get("security").unwrap_or(&document["security"]).to_string();
        let target = path.replace(['{', '}'], "");
        let as_whom = async |token: &str| {
            let headers = [("authorization", token)];
            let mut wire = place.open(method.as_str(), &target, &headers).await;
            let head = wire.head().await;
            head.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
        };
        let without = as_whom(place::ABSENT).await;
        assert_eq!(without != 401, security == "[]", "{method} {path} without a token");
        let reading = as_whom(&format!("Bearer {READER}")).await;
        let is_readable = security == "[]" || security.contains("reader");
        assert_eq!(reading != 403, is_readable, "{method} {path} with the token that may read");
        for status in ["401", "429"] {
            let is_written = written["responses"].get(status).is_some();
            assert_eq!(is_written, security != "[]", "{method} {path}: {status}");
        }
    }
    let text = document.to_string();
    for (at, start) in text.match_indices("\"$ref\":\"#/components/responses/") {
        let name = text[at + start.len()..].split('"').next().unwrap();
        assert!(document["components"]["responses"][name].is_object(), "{name}");
    }
}

#[tokio::test]
async fn openapi_file_is_served() {
    let place = Place::new().await;
    assert_eq!(place.json("/api/v1/openapi.json").await, document());
}

/// Responses have the fields that the file requires, and no others.
#[tokio::test]
async fn responses_match_openapi() {
    let place = Place::new().await;
    place.turn(&tenant(1), "s", "main", 1_000).await;
    place.turn(&tenant(1), "s", "main", place::now()).await;
    place.telemetry.report(place::exchange("abc"));
    let say = format!("/api/v1/sessions/{}.s/say", tenant(1));
    let waiting = place::json(&place.post(&say, r#"{"text": "Hello."}"#).await);
    let document = document();
    hold(&document, &document["components"]["schemas"]["Waiting"], &waiting, "Waiting");
    for (path, schema) in [
        ("/api/v1/about".to_owned(), "About"),
        ("/api/v1/sessions".to_owned(), "Sessions"),
        ("/api/v1/sessions?sort=dollars&details=true".to_owned(), "Sessions"),
        ("/api/v1/history".to_owned(), "History"),
        (format!("/api/v1/sessions/{}.s/turns", tenant(1)), "Turns"),
        (format!("/api/v1/sessions/{}.s", tenant(1)), "Session"),
        (format!("/api/v1/sessions/{}.s/threads/main/context", tenant(1)), "Context"),
        ("/api/v1/requests/abc".to_owned(), "Exchange"),
        ("/api/v1/requests/s-main-1000".to_owned(), "Exchange"),
        ("/api/v1/requests/abc/explain".to_owned(), "Explanation"),
        ("/api/v1/requests/s-main-1000/explain".to_owned(), "Explanation"),
        (say.clone(), "Queue"),
        ("/api/v1/savings".to_owned(), "Savings"),
        (format!("/api/v1/sessions/{}.s/savings", tenant(1)), "Savings"),
    ] {
        let answer = place.json(&path).await;
        hold(&document, &document["components"]["schemas"][schema], &answer, schema);
    }
    let wrong = place.get("/api/v1/requests/none").await;
    hold(&document, &document["components"]["schemas"]["Error"], &place::json(&wrong), "Error");
}

/// An exchange that is no longer among the recent ones is reconstructed from its turn, like its explanation.
#[tokio::test]
async fn exchange_is_found_as_long_as_its_turn_is_kept() {
    let place = Place::new().await;
    place.turn(&tenant(1), "s", "main", 1_000).await;
    let found = place.json("/api/v1/requests/s-main-1000").await;
    assert_eq!((&found["id"], &found["session"]), (&"s-main-1000".into(), &"s".into()));
    assert_eq!((&found["thread"], &found["at"]), (&"main".into(), &1_000.into()));
    let explained = place.json("/api/v1/requests/s-main-1000/explain").await;
    assert_eq!(found["model"], explained["model"]);
    assert_eq!(place.get("/api/v1/requests/never").await.status(), 404);
}

/// Every refusal that can occur is in the file, at each path where it can occur.
#[tokio::test]
async fn openapi_lists_every_refusal() {
    let document = document();
    let listed = |method: &str, path: &str, status: u16| {
        document["paths"][path][method.to_lowercase()]["responses"][status.to_string()].is_object()
    };
    let place = Place::new().await;
    let mut met = BTreeSet::new();
    for (method, template, _) in ROUTES {
        let path = template.replace(['{', '}'], "");
        for headers in [
            ("authorization", place::ABSENT),
            ("host", "evil.example"),
            ("origin", "http://evil.example"),
        ] {
            let headers = [headers];
            let mut wire = place.open(method.as_str(), &path, &headers).await;
            let head = wire.head().await;
            let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
            if status >= 400 && status != 404 {
                assert!(listed(method.as_str(), template, status), "{method} {template}: {status}");
                met.insert(status);
            }
        }
        if template.contains("{session}") {
            assert!(listed(method.as_str(), template, 409), "{method} {template}: 409");
        }
        let asks_the_store = template.starts_with("/api/v1/")
            && !template.starts_with("/api/v1/caps")
            && !["/api/v1/about", "/api/v1/limits", "/api/v1/events", "/api/v1/openapi.json"]
                .contains(template);
        if asks_the_store || *template == "/readyz" {
            assert!(listed(method.as_str(), template, 503), "{method} {template}: 503");
        }
    }
    assert!(met.is_superset(&BTreeSet::from([401, 403, 421])), "{met:?}");
}

/// Checks a response against its schema: fields, types, values.
fn hold(document: &Value, schema: &Value, answer: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return hold(document, &document["components"]["schemas"][name], answer, at);
    }
    if let Some(options) = schema["oneOf"].as_array() {
        let fitting = options.iter().find(|it| (it["type"] == "null") == answer.is_null());
        return hold(document, fitting.unwrap(), answer, at);
    }
    let kind = match answer {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let types = &schema["type"];
    let fits = |wanted: &str| wanted == kind || (wanted == "number" && kind == "integer");
    let allowed = types.as_str().is_some_and(fits)
        || types.as_array().into_iter().flatten().any(|it| it.as_str().is_some_and(fits));
    assert!(allowed, "{at} is a {kind}, but should be {types}");
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(answer), "{at}: {answer} is not one of {values:?}");
    }
    for item in answer.as_array().into_iter().flatten() {
        hold(document, &schema["items"], item, &format!("{at}[]"));
    }
    let Some(fields) = answer.as_object() else { return };
    for (name, value) in fields {
        let listed = &schema["properties"][name];
        // A map has values of one kind.
        let known = if listed.is_null() { &schema["additionalProperties"] } else { listed };
        assert!(known.is_object(), "{at}.{name} is not in the file");
        hold(document, known, value, &format!("{at}.{name}"));
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(fields.contains_key(name.as_str().unwrap()), "{at} has no {name}");
    }
}
