//! Exchanges that were in flight when the program was killed are known afterwards, once each, and no others are.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::program::{Serving, run};
use crate::support::http1::{Call, Provider, Wire};
use crate::support::within;

const REPLY: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Hello."}],"stop_reason":"end_turn","usage":{"input_tokens":11,"output_tokens":9}}"#;
const REFUSAL: &str =
    r#"{"type":"error","error":{"type":"invalid_request_error","message":"no such tool"}}"#;
const START: &str = r#"{"type":"message_start","message":{"id":"msg_2","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"usage":{"input_tokens":40,"cache_read_input_tokens":8,"output_tokens":1}}}"#;
const BLOCK: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
/// Text that must not be in any file.
const SECRET: &str = "Barnacle Bill the sailor";

fn body(session: u8, stream: bool) -> String {
    format!(
        r#"{{"model":"claude-sonnet-4-5","max_tokens":64,"stream":{stream},"messages":[{{"role":"user","content":"{SECRET} {session}"}}]}}"#
    )
}

async fn ask(server: &Serving, session: u8, stream: bool) -> Wire {
    let id = format!("11111111-2222-3333-4444-00000000000{session}");
    let headers = [("x-api-key", "k"), ("x-claude-code-session-id", id.as_str())];
    server.post("/v1/messages", &body(session, stream), &headers).await
}

async fn event(call: &mut Call, data: &str) {
    call.chunk(format!("data: {data}\n\n")).await;
}

/// The beginning of a stream, which the client has seen.
async fn begin(provider: &Provider, wire: &mut Wire) -> Call {
    let mut call = provider.call().await;
    call.begin_events().await;
    event(&mut call, START).await;
    event(&mut call, BLOCK).await;
    let text = SECRET.repeat(20);
    let delta = format!(
        r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text} and so on"}}}}"#
    );
    event(&mut call, &delta).await;
    wire.until("and so on").await;
    call
}

/// The first column of a query's result.
fn rows(data: &Path, query: &str) -> Vec<String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let connection = Connection::open_with_flags(data.join("plimsoll.db"), flags).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    let mut query = connection.prepare(query).unwrap();
    let rows = query.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

async fn until(data: &Path, query: &str, expected: &[&str]) {
    let waiting = async {
        while rows(data, query) != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(query, waiting).await;
}

const OUTCOMES: &str = "SELECT outcome || ' ' || count(*) FROM turns GROUP BY outcome ORDER BY 1";
const DRAFTS: &str = "SELECT CAST(count(*) AS TEXT) FROM drafts";

#[tokio::test]
async fn exchange_that_was_begun_is_known_after_kill_9() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let arguments = ["--data", data.to_str().unwrap()];
    let mut server = Serving::start(&provider.base(), &arguments).await;

    // One exchange ends, one is refused after a while, the client of one leaves: none of them remains open.
    let mut wire = ask(&server, 1, false).await;
    provider.call().await.answer("200 OK", REPLY).await;
    assert_eq!(wire.response().await.status(), 200);
    let mut wire = ask(&server, 2, true).await;
    let mut call = provider.call().await;
    until(data, DRAFTS, &["1"]).await;
    call.answer("400 Bad Request", REFUSAL).await;
    assert_eq!(wire.response().await.status(), 400);
    drop(call);
    until(data, DRAFTS, &["0"]).await;
    let mut wire = ask(&server, 3, true).await;
    let left = begin(&provider, &mut wire).await;
    until(data, DRAFTS, &["1"]).await;
    drop(wire);
    until(data, OUTCOMES, &["client_left 1", "complete 1"]).await;
    drop(left);
    until(data, DRAFTS, &["0"]).await;

    // During another one the program is killed, after its progress was written.
    let mut wire = ask(&server, 4, true).await;
    let _call = begin(&provider, &mut wire).await;
    let query = "SELECT CAST(value ->> '$.usage.input' AS TEXT) FROM drafts
                WHERE value ->> '$.usage.output' > 100";
    until(data, query, &["48"]).await;
    server.signal("KILL").await;
    server.gone().await;

    let server = Serving::start(&provider.base(), &arguments).await;
    let outcomes = ["client_left 1", "complete 1", "interrupted 1"];
    assert_eq!(rows(data, OUTCOMES), outcomes);
    assert_eq!(rows(data, DRAFTS), ["0"]);
    server.wait_for_metrics("plimsoll_interrupted_exchanges_total 1").await;
    is_shown(&server, data).await;

    // The client retries: that is another exchange of the same thread, and the interrupted one stays one turn.
    let mut wire = ask(&server, 4, true).await;
    let mut call = begin(&provider, &mut wire).await;
    let stop = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":90}}"#;
    event(&mut call, stop).await;
    event(&mut call, r#"{"type":"message_stop"}"#).await;
    call.end().await;
    wire.until("message_stop").await;
    until(data, OUTCOMES, &["client_left 1", "complete 2", "interrupted 1"]).await;
    let threads = "SELECT count(DISTINCT thread) || ' ' || count(*) FROM turns
                   WHERE session LIKE '%4' AND session LIKE '1111%'";
    assert_eq!(rows(data, threads), ["1 2"]);
    until(data, DRAFTS, &["0"]).await;
    drop(server);
    no_word_is_in(data);
}

/// Every view says that it was interrupted, and shows what was known.
async fn is_shown(server: &Serving, data: &Path) {
    let known = "SELECT request FROM turns WHERE outcome = 'interrupted' AND estimated > 0
                 AND input = 48 AND output > 100 AND error IS NOT NULL AND thread IS NOT NULL";
    let id = rows(data, known).remove(0);
    let answer = server.ask(&format!("/api/v1/requests/{id}")).await;
    let exchange: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(exchange["outcome"], "interrupted", "{exchange}");
    assert_eq!(exchange["usage"]["input"], 48);
    assert!(exchange["estimate"]["tokens"].as_u64() > Some(0));
    let sums = "SELECT CAST(sum(input) AS TEXT) FROM sessions WHERE session LIKE '%4'";
    assert_eq!(rows(data, sums), ["48"]);
    let data = data.to_str().unwrap();
    let explained = run(&["explain", &id, "--data", data]).await.out;
    assert!(explained.contains("Plimsoll was killed during this request"), "{explained}");
    let listed = run(&["sessions", "--data", data]).await.out;
    assert!(listed.lines().any(|line| line.ends_with("interrupted")), "{listed}");
    let exported = run(&["export", "11111111-2222-3333-4444-000000000004", "--data", data]).await;
    assert!(exported.out.contains(r#""interrupted""#), "{}", exported.out);
    let saved = run(&["savings", "--data", data]).await;
    assert_eq!(saved.code, 0);
    assert_eq!(saved.err.as_str(), "");
}

fn no_word_is_in(data: &Path) {
    for file in std::fs::read_dir(data).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap_or_default();
        let found = memchr::memmem::find(&bytes, SECRET.as_bytes());
        assert_eq!(found, None, "{}", path.display());
    }
}
