//! What calls cost, compared with the bills that the providers' price pages give: `bills.tsv` of each case.
//!
//! The inputs are in `tests/data/cases`. Prices that depend on the time are computed at times around their borders; one
//! bill is followed to every place where a cost is said.

use std::path::PathBuf;

use plimsoll::context::cost;
use plimsoll::dialect::door::Door;
use plimsoll::dialect::models::Catalogue;
use plimsoll::dialect::reading::{BodyEnd, Framing, ResponseReader};
use plimsoll::dialect::{Dialect, Usage};
use serde_json::Value;

use crate::support::http1::{Provider, Wire};
use crate::support::looking::Looking;
use crate::support::server::{TestServer, config};

/// What each kind of reply holds beside what a row gives.
fn envelope(dialect: Dialect) -> Value {
    match dialect {
        Dialect::Anthropic => serde_json::json!({
            "id": "m", "type": "message", "role": "assistant", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "Aye."}]
        }),
        Dialect::OpenaiChat => serde_json::json!({
            "id": "c", "object": "chat.completion",
            "choices": [{
                "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Aye."}
            }]
        }),
        Dialect::OpenaiResponses => serde_json::json!({
            "id": "r", "object": "response", "status": "completed",
            "output": [{
                "type": "message", "id": "o", "role": "assistant",
                "content": [{"type": "output_text", "text": "Aye."}]
            }]
        }),
        Dialect::Gemini => serde_json::json!({
            "candidates": [{
                "content": {"role": "model", "parts": [{"text": "Aye."}]}, "finishReason": "STOP"
            }]
        }),
    }
}

/// `1000*5 + 20*25`: tokens and their prices a million.
fn sum(terms: &str) -> f64 {
    let mut total = 0.0;
    for term in terms.split(" + ") {
        let (tokens, price) = term.split_once('*').expect("tokens and a price");
        total += tokens.parse::<f64>().expect("tokens") * price.parse::<f64>().expect("a price");
    }
    total / 1e6
}

/// With the bills of the cases there are more than 60.
#[test]
fn bills_are_those_of_price_pages() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bills.tsv");
    let table = std::fs::read_to_string(file).expect("bills.tsv");
    let mut count = 0;
    for row in table.lines().filter(|row| !row.starts_with('#')).skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let [case, path, model, members, terms] = columns[..] else { panic!("{row}") };
        let dialect = dialect_of(path);
        let mut reply = envelope(dialect);
        let members: Value = serde_json::from_str(members).expect("JSON");
        for (name, value) in members.as_object().expect("members") {
            reply[name] = value.clone();
        }
        let mut reader = ResponseReader::new(dialect, 200, Framing::Unknown, 1 << 20);
        reader.push(reply.to_string().as_bytes());
        let usage = reader.finish(BodyEnd::Whole).usage;
        let bill = Bill {
            case: case.to_owned(),
            path: path.to_owned(),
            model: model.to_owned(),
            answered: None,
            usage,
            dialect,
            dollars: sum(terms),
        };
        let dollars = bill.at("2026-11-27T12:00:00Z");
        assert!((dollars - bill.dollars).abs() < 5e-7, "{case}: {dollars}, not {terms}");
        count += 1;
    }
    assert!(count >= 46, "{count} bills");
}

/// A row of `bills.tsv`.
struct Bill {
    case: String,
    path: String,
    model: String,
    /// What the reply calls it.
    answered: Option<String>,
    usage: Usage,
    dialect: Dialect,
    dollars: f64,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases").join(name)
}

fn bills(name: &str) -> Vec<Bill> {
    let table = std::fs::read_to_string(folder(name).join("bills.tsv")).expect("bills.tsv");
    table.lines().skip(1).map(|row| bill(name, row)).collect()
}

fn dialect_of(path: &str) -> Dialect {
    match path {
        path if path.contains("/chat/completions") => Dialect::OpenaiChat,
        path if path.contains("generateContent") => Dialect::Gemini,
        path if path.contains("/responses") => Dialect::OpenaiResponses,
        _ => Dialect::Anthropic,
    }
}

fn bill(name: &str, row: &str) -> Bill {
    let columns: Vec<&str> = row.split('\t').collect();
    let [case, path, request, reply, _, dollars] = columns[..] else { panic!("{row}") };
    let read = |file: &str| std::fs::read(folder(name).join(file)).expect("a file of the case");
    let dialect = dialect_of(path);
    let body: serde_json::Value = serde_json::from_slice(&read(request)).expect("JSON");
    let in_path = path.split_once("/models/").map(|(_, rest)| rest);
    let in_path = in_path.and_then(|rest| rest.split(':').next()).unwrap_or_default();
    let model = body["model"].as_str().unwrap_or(in_path).to_owned();
    let mut reader = ResponseReader::new(dialect, 200, Framing::Unknown, 1 << 20);
    reader.push(&read(reply));
    let reply = reader.finish(BodyEnd::Whole);
    let mut usage = reply.usage;
    usage.billing.regional |= Door::is_regional(path, &model);
    let dollars = dollars.parse().expect("a number");
    let answered = reply.model.map(String::from);
    Bill { case: case.to_owned(), path: path.to_owned(), model, answered, usage, dialect, dollars }
}

impl Bill {
    fn at(&self, time: &str) -> f64 {
        let at = time.parse::<jiff::Timestamp>().expect("a time").as_millisecond() as u64;
        let catalogue = Catalogue::default();
        // As turns are priced: a name that nobody knows is another one of the model that answered.
        let answered = self.answered.as_deref().unwrap_or(&self.model);
        let priced = |model: &str| catalogue.model(model, "").price;
        let price = |model: &str| priced(model).or_else(|| priced(answered));
        let dollars = cost::billed(&self.usage, &self.model, self.dialect, at, price);
        dollars.unwrap_or_else(|| panic!("{}: no price", self.case))
    }

    fn check(&self, time: &str, expected: f64) {
        let dollars = self.at(time);
        assert!(
            (dollars - expected).abs() < 5e-5,
            "{} at {time}: {dollars}, not {expected}",
            self.case
        );
    }
}

#[test]
fn bills_are_right_to_cent() {
    for name in ["cost-shown", "price-geography", "price-speed", "price-steps"] {
        for bill in bills(name) {
            bill.check("2026-11-27T12:00:00Z", bill.dollars);
        }
    }
}

#[test]
fn deepseek_costs_half_outside_peak_hours() {
    for bill in bills("price-time-of-day") {
        bill.check("2026-11-25T02:30:00Z", bill.dollars);
        bill.check("2026-11-25T12:30:00Z", bill.dollars / 2.0);
        bill.check("2026-11-28T02:30:00Z", bill.dollars / 2.0);
    }
}

#[test]
fn announced_prices_hold_from_their_day_on() {
    for bill in bills("price-dates") {
        let day = bill.case.rsplit(' ').next().expect("a day").to_owned();
        bill.check(&format!("{day}T00:00:00Z"), bill.dollars);
        bill.check("2026-11-30T23:59:59Z", bill.dollars / 2.0);
    }
}

/// Each model costs what the tables say, within 1 %, and has one of the windows that they name.
#[test]
fn models_have_prices_and_windows_of_public_tables() {
    let table =
        std::fs::read_to_string(folder("model-entries").join("entries.tsv")).expect("entries");
    let mut wrong = Vec::new();
    for row in table.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let [name, input, output, read, windows, ..] = columns[..] else { panic!("{row}") };
        let model = Catalogue::default().model(name, "");
        let rates = model.price.map(|price| price.base());
        for (said, is) in [
            (input, rates.map(|rates| rates.input)),
            (output, rates.map(|rates| rates.output)),
            (read, rates.map(|rates| rates.cache_read)),
        ] {
            let Ok(said) = said.parse::<f64>() else { continue };
            if is.is_none_or(|is| (is - said).abs() > 0.01 * said) {
                wrong.push(format!("{name}: {is:?}, not {said}"));
            }
        }
        let windows: Vec<u64> = windows.split(" or ").filter_map(|one| one.parse().ok()).collect();
        if !windows.is_empty() && !windows.contains(&model.window) {
            wrong.push(format!("{name}: a window of {}, not {windows:?}", model.window));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn cost_is_said_wherever_call_is_shown() {
    let provider = Provider::start().await;
    let config = config(&provider.base());
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let bill = bills("cost-shown").remove(0);
    let read =
        |file: &str| std::fs::read_to_string(folder("cost-shown").join(file)).expect("a file");
    let request = read("1-request.json");
    let mut client = Wire::connect(server.address).await;
    let (path, length) = (&bill.path, request.len());
    client
        .send(format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-session-id: s\r\n\
             content-length: {length}\r\n\r\n{request}"
        ))
        .await;
    provider.call().await.answer("200 OK", &read("1-reply.json")).await;
    client.response().await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.dollars, Some(bill.dollars));
    let parts: f64 = exchange.costs.iter().map(|(_, parts)| parts.total()).sum();
    assert!((parts - bill.dollars).abs() < 1e-9, "{:?}", exchange.costs);
    let id = &exchange.id;
    let shown = looking.json(&format!("/api/v1/requests/{id}")).await;
    assert_eq!(shown["dollars"], bill.dollars);
    let explained = looking.get(&format!("/api/v1/requests/{id}/explain?format=text")).await;
    let explained = explained.text();
    assert!(explained.contains("$0.1000 spent"), "{explained}");
    let listed = looking.json("/api/v1/sessions").await;
    let session = listed["sessions"][0]["id"].as_str().expect("an id").to_owned();
    let exported = looking.get(&format!("/api/v1/sessions/{session}/export")).await;
    let exported = exported.text();
    assert!(exported.contains("\"dollars\":0.1"), "{exported}");
    let session = looking.json(&format!("/api/v1/sessions/{session}")).await;
    assert_eq!(session["dollars"], bill.dollars);
    for (by, name) in [
        ("model", "claude-opus-5-5"),
        ("class", "main"),
        ("session", "s"),
        ("upstream", exchange.upstream.as_deref().expect("an upstream")),
    ] {
        let spent = looking.json(&format!("/api/v1/spend?by={by}")).await;
        assert_eq!(spent["total"]["dollars"], bill.dollars, "{by}");
        assert_eq!(spent["lines"][0]["name"], name, "{by}");
    }
    let refused = looking.get("/api/v1/spend?by=mood").await;
    assert_eq!(refused.status(), 400);
    assert!(refused.text().contains("by should be one of model, upstream"), "{}", refused.text());
}

/// 1,000 tokens of input and 100 of output cost $0.0035 by OpenAI's price page; whoever answers says $0.004.
#[tokio::test]
async fn stated_price_stands_beside_ours() {
    let provider = Provider::start().await;
    let config = config(&provider.base());
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let request = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"Hail."}]}"#;
    let reply = r#"{"id":"c","object":"chat.completion","model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"Aye."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100,"cost":0.004}}"#;
    let mut client = Wire::connect(server.address).await;
    client
        .send(format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n\
             content-length: {}\r\n\r\n{request}",
            request.len()
        ))
        .await;
    provider.call().await.answer("200 OK", reply).await;
    client.response().await;
    server.next_exchange().await;
    let metrics = looking.get("/metrics").await;
    let metrics = metrics.text();
    for (price, dollars) in [("stated", "0.004"), ("catalogue", "0.0035")] {
        let line = format!("model=\"gpt-4o\",price=\"{price}\"");
        let counted = metrics.lines().find(|one| one.contains(&line)).unwrap_or_default();
        assert!(counted.ends_with(&format!("}} {dollars}")), "{price}: {counted}");
    }
}

/// A call of $0.40 input and $0.02 output, with the definitions of two tools, a result of one, and a call of it: what each
/// line costs adds up to it.
#[tokio::test]
async fn tools_have_their_share_of_input() {
    let provider = Provider::start().await;
    let config = config(&provider.base());
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let long = "The tide came in over the flats before noon. ".repeat(400);
    let request = serde_json::json!({
        "model": "claude-opus-5-5", "max_tokens": 9,
        "tools": [
            {"name": "Read", "description": long, "input_schema": {"type": "object"}},
            {"name": "mcp__maps__find", "description": long, "input_schema": {"type": "object"}}
        ],
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": long.repeat(2)}]}
        ]
    })
    .to_string();
    let reply = r#"{"id":"m","type":"message","role":"assistant","model":"claude-opus-5-5","content":[{"type":"text","text":"Aye."},{"type":"tool_use","id":"t2","name":"Read","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":100000,"output_tokens":1000}}"#;
    let length = request.len();
    let mut client = Wire::connect(server.address).await;
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\n\
             content-length: {length}\r\n\r\n{request}"
        ))
        .await;
    provider.call().await.answer("200 OK", reply).await;
    client.response().await;
    server.next_exchange().await;
    let spent = looking.json("/api/v1/spend?by=tool").await;
    let dollars = |name: &str| line(&spent, name)["dollars"].as_f64().expect("a number");
    let total = spent["total"]["dollars"].as_f64().expect("a number");
    assert!((total - 0.42).abs() < 1e-9, "{spent}");
    assert_eq!(spent["total"]["calls"], 1);
    assert_eq!(spent["total"]["input"], 100_000);
    let [read, find, rest] = ["Read", "mcp__maps__find", "(the rest)"].map(dollars);
    assert!((read / find - 3.0).abs() < 0.2, "a result twice as long as a definition: {spent}");
    assert!((0.02..0.05).contains(&rest), "output and framing: {spent}");
    assert_eq!(line(&spent, "Read")["defined"], 1);
    assert_eq!(line(&spent, "Read")["called"], 1);
    assert_eq!(line(&spent, "mcp__maps__find")["defined"], 1);
    assert_eq!(line(&spent, "mcp__maps__find")["called"], 0);
    let servers = looking.json("/api/v1/spend?by=server").await;
    assert_eq!(line(&servers, "maps")["dollars"], find);
    assert_eq!(line(&servers, "(own tools)")["dollars"], read);
    let text = looking.get("/api/v1/spend?by=tool&format=text").await.text().to_owned();
    assert!(text.contains("defined in 1, called 0 times"), "{text}");
}

/// The next request has the same definitions, which are stored with the first.
#[tokio::test]
async fn tools_that_stay_are_counted_again() {
    let provider = Provider::start().await;
    let config = config(&provider.base());
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let question = serde_json::json!({"role": "user", "content": "Look."});
    let reply = serde_json::json!([{"type": "text", "text": "The tide came in before noon."}]);
    let said = serde_json::json!({"role": "assistant", "content": reply});
    let mut client = Wire::connect(server.address).await;
    for messages in [vec![&question], vec![&question, &said, &question]] {
        let request = serde_json::json!({
            "model": "claude-opus-5-5", "max_tokens": 9, "messages": messages,
            "tools": [{"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}]
        })
        .to_string();
        let length = request.len();
        client
            .send(format!(
                "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\n\
                 x-claude-code-session-id: s\r\ncontent-length: {length}\r\n\r\n{request}"
            ))
            .await;
        let reply = serde_json::json!({
            "id": "m", "type": "message", "role": "assistant", "model": "claude-opus-5-5",
            "content": reply, "stop_reason": "end_turn",
            "usage": {"input_tokens": 400, "output_tokens": 9}
        });
        provider.call().await.answer("200 OK", &reply.to_string()).await;
        client.response().await;
        server.next_exchange().await;
    }
    let spent = looking.json("/api/v1/spend?by=tool").await;
    assert_eq!(line(&spent, "Read")["defined"], 2);
}

/// The line of a name.
fn line<'s>(spent: &'s Value, name: &str) -> &'s Value {
    let lines = spent["lines"].as_array().expect("lines");
    let line = lines.iter().find(|line| line["name"] == name);
    line.unwrap_or_else(|| panic!("{name}: {spent}"))
}

#[tokio::test]
async fn limits_are_shown_as_response_tells_them() {
    let provider = Provider::start().await;
    let config = config(&provider.base());
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let nothing = looking.get("/api/v1/limits?format=text").await;
    assert_eq!(nothing.text(), "No response has told of a limit since Plimsoll started.\n");
    let body =
        r#"{"model":"claude-opus-5-5","max_tokens":9,"messages":[{"role":"user","content":"a"}]}"#;
    let length = body.len();
    let mut client = Wire::connect(server.address).await;
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    let mut call = provider.call().await;
    let headers = "anthropic-ratelimit-unified-5h-utilization: 0.91\r\n\
                   anthropic-ratelimit-unified-5h-reset: 4102444800\r\nconnection: close\r\n";
    call.send(format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: 2\r\n\r\n{{}}"))
        .await;
    let response = client.response().await;
    assert!(response.head.contains("unified-5h-utilization: 0.91"), "the client sees them, too");
    server.next_exchange().await;
    let limits = looking.json("/api/v1/limits").await;
    assert_eq!(limits["limits"][0]["kind"], "five_hours");
    assert_eq!(limits["limits"][0]["used"], 0.91);
    let text = looking.get("/api/v1/limits?format=text").await;
    assert!(text.text().contains("five_hours"), "{}", text.text());
    let metrics = looking.get("/metrics").await;
    let gauge = metrics.text().lines().find(|line| line.starts_with("plimsoll_quota_fill_ratio{"));
    assert!(gauge.is_some_and(|line| line.ends_with(" 0.91")), "{gauge:?}");
    // Gemini tells of a limit in the refusal alone.
    let body = r#"{"contents":[{"role":"user","parts":[{"text":"a"}]}]}"#;
    let length = body.len();
    let mut client = Wire::connect(server.address).await;
    client
        .send(format!(
            "POST /v1beta/models/gemini-3-pro:generateContent HTTP/1.1\r\nhost: localhost\r\nx-goog-api-key: k\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
        .await;
    let refusal = r#"{"error":{"code":429,"message":"Quota exceeded.","status":"RESOURCE_EXHAUSTED","details":[
        {"violations":[{"quotaId":"GenerateRequestsPerMinutePerProjectPerModel","quotaValue":"10"}]},
        {"retryDelay":"3600s"}]}}"#;
    provider.call().await.answer("429 Too Many Requests", refusal).await;
    assert_eq!(client.response().await.status(), 429);
    server.next_exchange().await;
    let limits = looking.json("/api/v1/limits").await;
    assert_eq!(limits["limits"][0]["kind"], "requests");
    assert_eq!(limits["limits"][0]["limit"], 10);
    assert_eq!(limits["limits"][0]["used"], 1.0);
}
