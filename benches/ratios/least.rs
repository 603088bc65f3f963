//! The least that reads and remembers: the floor, which in addition collects both bodies, reads each
//! once, and keeps a row of them before the answer goes out. Nothing else: no session, no estimate, no
//! log, no metric, no header touched.
//!
//! It says what the promise alone costs (design §1.8: acknowledged is durable), however it is kept.
//! Reading is `serde_json` into borrowed text; the row is the smallest that a turn could be: a number
//! as its only key, model, tokens and both bodies. One thread writes, with one prepared statement,
//! and takes all rows that wait into one transaction, at once or after [`GATHER`]; WAL, `synchronous` NORMAL.

use std::convert::Infallible;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rusqlite::{Connection, params};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

/// How long `gathered` waits for more rows once there is one: less CPU, more latency.
const GATHER: Duration = Duration::from_micros(250);

/// What is read of a request.
#[derive(Deserialize)]
struct Asked<'a> {
    #[serde(borrow)]
    model: &'a str,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// What is read of its answer.
#[derive(Deserialize)]
struct Answered<'a> {
    #[serde(borrow)]
    content: Vec<&'a RawValue>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: u64,
    output_tokens: u64,
}

/// A row that waits to be written, and who waits for it.
struct Row {
    model: Box<str>,
    usage: Usage,
    asked: Bytes,
    answered: Bytes,
    committed: oneshot::Sender<()>,
}

/// Forwards everything to `upstream` until killed. `kind`: `parse` reads and forgets, `row` keeps a row
/// in a file in `data`, `gathered` many at once.
pub(crate) fn serve(kind: &str, upstream: &str, data: &str) {
    let gather = if kind == "gathered" { GATHER } else { Duration::ZERO };
    let rows = (kind != "parse").then(|| {
        let connection = open(&Path::new(data).join("rows.db"));
        let (rows, waiting) = channel();
        std::thread::spawn(move || write(&connection, &waiting, gather));
        rows
    });
    let upstream = upstream.to_owned();
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
    crate::floor::accept(move |stream| {
        let (client, upstream, rows) = (client.clone(), upstream.clone(), rows.clone());
        hyper::server::conn::http1::Builder::new().serve_connection(
            TokioIo::new(stream),
            service_fn(move |mut request: Request<Incoming>| {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = format!("http://{upstream}{path}").parse().unwrap();
                let (client, rows) = (client.clone(), rows.clone());
                async move { Ok::<_, Infallible>(passed(&client, request, rows).await) }
            }),
        )
    });
}

async fn passed(
    client: &Client<HttpConnector, Full<Bytes>>,
    request: Request<Incoming>,
    rows: Option<Sender<Row>>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let asked = body.collect().await.unwrap().to_bytes();
    let model = {
        let read: Asked<'_> = serde_json::from_slice(&asked).unwrap();
        assert!(!read.messages.is_empty(), "a request without a message");
        Box::from(read.model)
    };
    let request = Request::from_parts(head, Full::new(asked.clone()));
    let (head, body) = client.request(request).await.unwrap().into_parts();
    let answered = body.collect().await.unwrap().to_bytes();
    let usage = {
        let read: Answered<'_> = serde_json::from_slice(&answered).unwrap();
        assert!(!read.content.is_empty(), "an answer without a word");
        read.usage
    };
    if let Some(rows) = rows {
        let (committed, commit) = oneshot::channel();
        let row = Row { model, usage, asked, answered: answered.clone(), committed };
        rows.send(row).unwrap();
        commit.await.unwrap();
    }
    Response::from_parts(head, Full::new(answered))
}

fn open(file: &Path) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
             CREATE TABLE turn (id INTEGER PRIMARY KEY, model TEXT, input INTEGER, output INTEGER,
                 asked TEXT, answered TEXT);",
        )
        .unwrap();
    connection
}

/// Writes what waits, all of it in one transaction, until nobody is left who could send more.
fn write(connection: &Connection, waiting: &Receiver<Row>, gather: Duration) {
    let mut insert = connection.prepare("INSERT INTO turn VALUES (NULL, ?, ?, ?, ?, ?)").unwrap();
    while let Ok(first) = waiting.recv() {
        if !gather.is_zero() {
            std::thread::sleep(gather);
        }
        let transaction = connection.unchecked_transaction().unwrap();
        let mut written = Vec::new();
        for row in std::iter::once(first).chain(waiting.try_iter()) {
            let Usage { input_tokens, output_tokens } = row.usage;
            let (asked, answered) = (text(&row.asked), text(&row.answered));
            let values = params![row.model, input_tokens, output_tokens, asked, answered];
            insert.execute(values).unwrap();
            written.push(row.committed);
        }
        transaction.commit().unwrap();
        for committed in written {
            let _ = committed.send(());
        }
    }
}

fn text(body: &Bytes) -> &str {
    std::str::from_utf8(body).unwrap()
}
