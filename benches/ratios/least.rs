//! The least that reads and remembers: the floor, which in addition collects both bodies, reads each
//! once with `serde_json` into borrowed text, and keeps a row before the answer goes out. Nothing else.
//!
//! It says what the promise alone costs (acknowledged is durable: `docs/architecture.md` "Promises"). The
//! row is the smallest that
//! a turn could be: a number as its key, model, tokens, both bodies; one thread takes all that wait into one
//! transaction (waiting 250 µs for more made it no cheaper). Beside it stands a line of a file: kept
//! over `kill -9` as well, but found again only by reading all of them.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

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

/// What is kept.
struct Row {
    model: Box<str>,
    usage: Usage,
    asked: Bytes,
    answered: Bytes,
}

/// A row that waits to be written, and who waits for it.
type Waiting = (Row, oneshot::Sender<()>);

/// Where it is kept.
#[derive(Clone)]
enum Keeps {
    Nothing,
    Rows(Sender<Waiting>),
    Lines(Arc<Mutex<File>>),
}

/// Forwards everything to `upstream` until killed. `kind`: `parse` reads and forgets, `row` keeps a row
/// of a table in `data`, `line` a line of a file there.
pub(crate) fn serve(kind: &str, upstream: &str, data: &str) {
    let data = Path::new(data);
    let keeps = match kind {
        "row" => {
            let connection = open(&data.join("rows.db"));
            let (rows, waiting) = channel();
            std::thread::spawn(move || write(&connection, &waiting));
            Keeps::Rows(rows)
        }
        "line" => Keeps::Lines(Arc::new(Mutex::new(File::create(data.join("lines")).unwrap()))),
        _ => Keeps::Nothing,
    };
    let upstream = upstream.to_owned();
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
    crate::floor::accept(move |stream| {
        let (client, upstream, keeps) = (client.clone(), upstream.clone(), keeps.clone());
        hyper::server::conn::http1::Builder::new().serve_connection(
            TokioIo::new(stream),
            service_fn(move |mut request: Request<Incoming>| {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = format!("http://{upstream}{path}").parse().unwrap();
                let (client, keeps) = (client.clone(), keeps.clone());
                async move { Ok::<_, Infallible>(passed(&client, request, keeps).await) }
            }),
        )
    });
}

async fn passed(
    client: &Client<HttpConnector, Full<Bytes>>,
    request: Request<Incoming>,
    keeps: Keeps,
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
    let row = Row { model, usage, asked, answered: answered.clone() };
    match keeps {
        Keeps::Nothing => {}
        Keeps::Rows(rows) => {
            let (committed, commit) = oneshot::channel();
            rows.send((row, committed)).unwrap();
            commit.await.unwrap();
        }
        Keeps::Lines(file) => {
            let Row { model, usage: Usage { input_tokens, output_tokens }, .. } = &row;
            let (asked, answered) = (text(&row.asked), text(&row.answered));
            let line = format!("{model} {input_tokens} {output_tokens} {asked} {answered}\n");
            file.lock().unwrap().write_all(line.as_bytes()).unwrap();
        }
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
fn write(connection: &Connection, waiting: &Receiver<Waiting>) {
    let mut insert = connection.prepare("INSERT INTO turn VALUES (NULL, ?, ?, ?, ?, ?)").unwrap();
    while let Ok(first) = waiting.recv() {
        let transaction = connection.unchecked_transaction().unwrap();
        let mut written = Vec::new();
        for (row, waits) in std::iter::once(first).chain(waiting.try_iter()) {
            let Usage { input_tokens, output_tokens } = row.usage;
            let (asked, answered) = (text(&row.asked), text(&row.answered));
            let values = params![row.model, input_tokens, output_tokens, asked, answered];
            insert.execute(values).unwrap();
            written.push(waits);
        }
        transaction.commit().unwrap();
        for waits in written {
            let _ = waits.send(());
        }
    }
}

fn text(body: &Bytes) -> &str {
    std::str::from_utf8(body).unwrap()
}
