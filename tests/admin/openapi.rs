//! The API's description resolves, and roles, refusals and responses are as it says.

use std::collections::BTreeSet;

use plimsoll::admin::routes::ROUTES;
use serde_json::Value;

use super::place::{self, Place, tenant};
use super::support::looking::READER;

async fn document(place: &Place) -> Value {
    place.json("/api/v1/openapi.json").await
}

#[tokio::test]
async fn references_of_openapi_resolve() {
    let document = document(&Place::new().await).await;
    let text = document.to_string();
    let references = text.split("\"$ref\":\"#").skip(1);
    let names: BTreeSet<&str> = references.map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(names.len() > 50, "{names:?}");
    for name in names {
        assert!(document.pointer(name).is_some_and(Value::is_object), "{name}");
    }
    let ids = text.matches("\"operationId\"").count();
    assert_eq!(ids, ROUTES.len());
}

/// For every route, the file says which token it needs and how it refuses.
#[tokio::test]
async fn roles_match_openapi() {
    let place = Place::new().await;
    let document = document(&place).await;
    for (method, path, _) in ROUTES {
        let written = &document["paths"][*path][method.as_str().to_lowercase()];
        let security = written["security"].to_string();
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
    let document = document(&place).await;
    hold(&document, "WaitingMessage", &waiting);
    for (path, schema) in [
        ("/api/v1/about".to_owned(), "ServerInfo"),
        ("/api/v1/sessions".to_owned(), "SessionPage"),
        ("/api/v1/sessions?sort=dollars&details=true".to_owned(), "SessionPage"),
        ("/api/v1/history".to_owned(), "HistoryPage"),
        (format!("/api/v1/sessions/{}.s/turns", tenant(1)), "TurnsPage"),
        (format!("/api/v1/sessions/{}.s", tenant(1)), "SessionView"),
        (format!("/api/v1/sessions/{}.s/threads/main/context", tenant(1)), "ContextPage"),
        (format!("/api/v1/sessions/{}.s/threads/main/transcript", tenant(1)), "TranscriptPage"),
        ("/api/v1/requests/abc".to_owned(), "Exchange"),
        ("/api/v1/requests/s-main-1000".to_owned(), "Exchange"),
        ("/api/v1/requests/abc/explain".to_owned(), "Explanation"),
        ("/api/v1/requests/s-main-1000/explain".to_owned(), "Explanation"),
        (say.clone(), "InjectQueue"),
        ("/api/v1/savings".to_owned(), "SavingsPage"),
        (format!("/api/v1/sessions/{}.s/savings", tenant(1)), "SavingsPage"),
    ] {
        let answer = place.json(&path).await;
        hold(&document, schema, &answer);
    }
    let wrong = place.get("/api/v1/requests/none").await;
    hold(&document, "ErrorBody", &place::json(&wrong));
}

/// An exchange that is no longer among the recent ones is reconstructed from its turn, like its explanation.
#[tokio::test]
async fn exchange_is_found_as_long_as_its_turn_is_kept() {
    let place = Place::new().await;
    place.turn(&tenant(1), "s", "main", 1_000).await;
    let found = place.json("/api/v1/requests/s-main-1000").await;
    assert_eq!(found["id"], "s-main-1000");
    assert_eq!(found["session"], "s");
    assert_eq!(found["thread"], "main");
    assert_eq!(found["at"], 1_000);
    let explained = place.json("/api/v1/requests/s-main-1000/explain").await;
    assert_eq!(found["model"], explained["model"]);
    assert_eq!(place.get("/api/v1/requests/never").await.status(), 404);
}

/// Every refusal that can occur is in the file, at each path where it can occur.
#[tokio::test]
async fn openapi_lists_every_refusal() {
    let place = Place::new().await;
    let document = document(&place).await;
    let listed = |method: &str, path: &str, status: u16| {
        document["paths"][path][method.to_lowercase()]["responses"][status.to_string()].is_object()
    };
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

fn hold(document: &Value, name: &str, answer: &Value) {
    let schema = &document["components"]["schemas"][name];
    if let Err(at) = matches(document, schema, answer) {
        panic!("{name}{at}");
    }
}

/// Checks a response against its schema: fields, types, values. The error is what is wrong, and where.
fn matches(document: &Value, schema: &Value, answer: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return matches(document, document.pointer(&reference[1..]).unwrap(), answer);
    }
    if let Some(options) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let mut wrong = Vec::new();
        for option in options {
            match matches(document, option, answer) {
                Ok(()) => return Ok(()),
                Err(why) => wrong.push(why),
            }
        }
        return Err(wrong.join(", or "));
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
    let types = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    if !types.iter().any(|wanted| wanted == kind || (wanted == "number" && kind == "integer")) {
        return Err(format!(" is a {kind}, but should be {types:?}"));
    }
    let values =
        schema["enum"].as_array().cloned().or_else(|| Some(vec![schema.get("const")?.clone()]));
    if values.is_some_and(|values| !values.contains(answer)) {
        return Err(format!(" has a wrong value: {answer}"));
    }
    for item in answer.as_array().into_iter().flatten() {
        matches(document, &schema["items"], item).map_err(|why| format!("[]{why}"))?;
    }
    let Some(fields) = answer.as_object() else { return Ok(()) };
    for (name, value) in fields {
        // A map has values of one kind.
        let known = schema["properties"].get(name).or(schema.get("additionalProperties"));
        let known = known.ok_or_else(|| format!(".{name} is not described"))?;
        matches(document, known, value).map_err(|why| format!(".{name}{why}"))?;
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            return Err(format!(" has no {name}"));
        }
    }
    Ok(())
}
