//! Turns in a real PostgreSQL: the program writes them, whatever becomes of the database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll::config::{Config, Secret};
use plimsoll::store::{Record, RecordKind, Scope};
use plimsoll::telemetry::Telemetry;
use plimsoll::warehouse::Warehouse;
use serde_json::{Value, json};

use crate::postgres::Postgres;
use crate::process::{Replica, program, provider};
use crate::server::{Engine, Server};
use crate::support::server::config;

/// Waits until a query returns this number.
async fn becomes(server: &Postgres, query: &str, number: u64) {
    for _ in 0..600 {
        if server.number(query).await == Some(number) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{query} is {:?}", server.number(query).await);
}

const COUNT: &str = "SELECT count(*) FROM turns";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_write_one_database() {
    let (server, database) = (Server::start(Engine::Valkey).await, Postgres::start().await);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let variables = [
        ("PLIMSOLL_STORE_URL", url.as_str()),
        ("PLIMSOLL_STORE_SECRET", "0123456789abcdef0123456789abcdef"),
        ("PLIMSOLL_WAREHOUSE", &database.owners_url()),
    ];
    let provider = provider().await;
    // Both make the tables, and only one of them does.
    let (first, second) =
        tokio::join!(Replica::start(&provider, &variables), Replica::start(&provider, &variables));
    for number in 0..5 {
        first.say(&format!("a-{number}"), "hello").await;
        second.say(&format!("a-{number}"), "hello again").await;
    }
    becomes(&database, COUNT, 10).await;
    becomes(&database, "SELECT count(*) FROM sessions WHERE turns = 2", 5).await;
    // What one replica says of what was spent is what the database has.
    let spent: Value = serde_json::from_str(&first.command(&["spend", "--json"]).await).unwrap();
    assert_eq!(spent["total"]["calls"], 10);
    let sums = database.rows("SELECT sum(input), sum(output) FROM turns").await;
    assert_eq!(sums[0][0].as_deref(), Some(&*spent["total"]["input"].to_string()));
    assert_eq!(sums[0][1].as_deref(), Some(&*spent["total"]["output"].to_string()));
    let export = second.command(&["export", "a-3"]).await;
    assert_eq!(export.lines().count(), 2);
    // A session that is deleted at one replica is deleted there, too.
    let token = std::fs::read_to_string(second.data.path().join("admin.token")).unwrap();
    let token = token.trim();
    second
        .view(&format!("DELETE /api/v1/sessions/a-3 HTTP/1.1\r\nauthorization: Bearer {token}"))
        .await;
    becomes(&database, COUNT, 8).await;
    for replica in [first, second] {
        let log = replica.end().await;
        assert!(!log.contains("warehouse"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_are_those_of_sqlite() {
    let database = Postgres::start().await;
    let url = database.owners_url();
    let provider = provider().await;
    let replica = Replica::start(&provider, &[("PLIMSOLL_WAREHOUSE", &url)]).await;
    for number in 0..6 {
        replica.say(&format!("s-{}", number % 2), &format!("question {number}")).await;
    }
    becomes(&database, COUNT, 6).await;
    let file = replica.data.path().join("plimsoll.db");
    let data = tempfile::tempdir().unwrap();
    let copy = data.path().join("copy.db");
    replica.command(&["backup", copy.to_str().unwrap()]).await;
    assert!(file.exists());
    let sqlite = rusqlite::Connection::open(copy).unwrap();
    for view in ["turns", "threads", "sessions"] {
        let mut query =
            sqlite.prepare(&format!("SELECT * FROM {view} ORDER BY 1, 2, 3, 4")).unwrap();
        let names: Vec<String> = query.column_names().map(str::to_owned).collect();
        let columns = format!(
            "SELECT column_name FROM information_schema.columns WHERE table_name = '{view}' \
             ORDER BY ordinal_position"
        );
        let found = database.rows(&columns).await;
        let found: Vec<&str> = found.iter().filter_map(|row| row[0].as_deref()).collect();
        assert_eq!(found, names, "{view}");
        let rows = query.query_map([], |row| {
            Ok((0..names.len())
                .map(|at| match row.get_ref(at).unwrap() {
                    rusqlite::types::ValueRef::Null => None,
                    rusqlite::types::ValueRef::Text(text) => {
                        Some(String::from_utf8_lossy(text).into_owned())
                    }
                    rusqlite::types::ValueRef::Integer(number) => Some(number.to_string()),
                    rusqlite::types::ValueRef::Real(number) => Some(number.to_string()),
                    rusqlite::types::ValueRef::Blob(_) => panic!("{view}"),
                })
                .collect::<Vec<Option<String>>>())
        });
        let rows: Vec<_> = rows.unwrap().map(Result::unwrap).collect();
        assert!(!rows.is_empty());
        let query = format!("SELECT * FROM {view} ORDER BY 1, 2, 3, 4");
        assert_eq!(database.rows(&query).await, rows, "{view}");
    }
    // The question of the documentation.
    let asked = "SELECT model, count(*), sum(dollars), avg(abs(error) * 100.0 / nullif(input, 0)) FROM turns GROUP BY model";
    assert_eq!(database.rows(asked).await[0][1].as_deref(), Some("6"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_database_is_told_once() {
    let mut database = Postgres::prepared();
    let url = database.owners_url();
    let provider = provider().await;
    let replica = Replica::start(&provider, &[("PLIMSOLL_WAREHOUSE", &url)]).await;
    replica.say("s", "while it is away").await;
    assert!(replica.view("GET /readyz HTTP/1.1").await.starts_with("ready"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    database.launch().await;
    database.ask("CREATE DATABASE turns", "postgres").await;
    becomes(&database, COUNT, 1).await;
    for round in 0..3 {
        database.kill();
        replica.say("s", &format!("{round}: it is away again")).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        database.launch().await;
        becomes(&database, COUNT, 2 + round).await;
    }
    replica.say("s", "the last one").await;
    let log = replica.end().await;
    becomes(&database, COUNT, 5).await;
    assert_eq!(log.matches("turns wait for the warehouse").count(), 4, "{log}");
    assert_eq!(log.matches("turns are written to the warehouse again").count(), 4, "{log}");
    assert!(!log.contains("p@ss") && !log.contains("p%40ss"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_what_is_wrong() {
    let mut database = Postgres::start().await;
    let data = tempfile::tempdir().unwrap();
    let check = async |url: &str| {
        let variables = [("PLIMSOLL_WAREHOUSE", url)];
        let output = program(data.path(), &variables).arg("check").output().await.unwrap();
        let [out, error] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        (output.status.success(), out, error.trim().to_owned())
    };
    let place = format!("postgres://127.0.0.1:{}/turns", database.port);
    let (is_good, out, error) = check(&database.owners_url()).await;
    assert!(is_good, "{error}");
    assert!(out.contains(&format!("warehouse: {place}\n")), "{out}");
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(database.number(tables).await, Some(0), "it makes nothing");
    let (_, _, error) = check(&database.url("plimsoll:wrong")).await;
    let login = "does not accept user and password. Correct the URL of `warehouse`";
    assert_eq!(error, format!("plimsoll: warehouse {place} {login}"));
    database.ask("CREATE USER reader PASSWORD 'r'", "turns").await;
    let (_, _, error) = check(&database.url("reader:r")).await;
    assert_eq!(error, format!("plimsoll: warehouse {place} does not let this user make tables"));
    let elsewhere = database.owners_url().replace("/turns", "/other");
    let (_, _, error) = check(&elsewhere).await;
    assert!(error.ends_with("/other does not exist: make the database"), "{error}");
    database.ask("CREATE TABLE plimsoll_layout (layout integer); INSERT INTO plimsoll_layout VALUES (7); CREATE TABLE plimsoll_turns (id text)", "turns").await;
    let (_, _, error) = check(&database.owners_url()).await;
    assert!(error.contains("has tables of a newer version of Plimsoll (layout 7"), "{error}");
    // The proxy serves.
    let url = database.owners_url();
    let provider = provider().await;
    let replica = Replica::start(&provider, &[("PLIMSOLL_WAREHOUSE", &url)]).await;
    replica.say("s", "hello").await;
    let log = replica.end().await;
    assert!(log.contains("turns wait for the warehouse, traffic continues: warehouse"), "{log}");
    assert!(log.contains("a newer version of Plimsoll"), "{log}");
    database.kill();
    let (_, _, error) = check(&database.owners_url()).await;
    assert!(error.contains("refused"), "{error}");
    let (_, _, error) = check(&database.owners_url().replace("127.0.0.1", "nowhere.invalid")).await;
    assert!(error.contains("warehouse postgres://nowhere.invalid:"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// A warehouse without a proxy before it.
struct Direct {
    warehouse: Warehouse,
    telemetry: Arc<Telemetry>,
}

impl Direct {
    fn start(url: &str, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config("http://127.0.0.1:1");
        config.warehouse = Some(Secret(url.to_owned()));
        change(&mut config);
        let telemetry = Telemetry::silent().unwrap();
        Self { warehouse: Warehouse::start(&config, &telemetry).unwrap(), telemetry }
    }

    fn write(&self, session: &str, key: u128, outcome: &str, input: Option<u64>) {
        self.write_of(session, key, outcome, input, "claude");
    }

    fn write_of(&self, session: &str, key: u128, outcome: &str, input: Option<u64>, model: &str) {
        let turn = json!({
            "exchange": format!("{key:x}"), "model": model, "outcome": outcome,
            "usage": {"input": input, "output": 1}, "ended": u64::MAX,
        });
        let value = turn.to_string().into();
        let record =
            Record { kind: RecordKind::Turn, key, value, at: 1_700_000_000_123, turn: None };
        let scope = Scope { tenant: "t".into(), session: session.into() };
        let sink = self.warehouse.sink();
        sink.write(sink.turns(&scope, &[record]));
    }

    fn counted(&self, outcome: &str) -> u64 {
        let name = format!(r#"plimsoll_warehouse_turns_total{{outcome="{outcome}"}} "#);
        let metrics = self.telemetry.render();
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_are_written_once() {
    let database = Postgres::start().await;
    let direct = Direct::start(&database.owners_url(), |_| {});
    for (outcomes, expected) in [
        (&[("interrupted", None), ("complete", Some(5))][..], ("complete", Some("5"))),
        (&[("complete", Some(5)), ("interrupted", Some(7))], ("complete", Some("5"))),
        (&[("complete", Some(5)), ("complete", Some(7))], ("complete", Some("5"))),
        (&[("complete", None), ("complete", Some(7))], ("complete", Some("7"))),
        (&[("client_left", Some(1)), ("complete", Some(7))], ("complete", Some("7"))),
        (&[("complete", Some(7)), ("client_left", Some(8))], ("complete", Some("7"))),
    ] {
        for (outcome, input) in outcomes {
            direct.write("s", 1, outcome, *input);
        }
        let written = format!(
            "SELECT count(*) FROM turns WHERE outcome = '{}' AND input::text IS NOT DISTINCT FROM {}",
            expected.0,
            expected.1.map_or("NULL".to_owned(), |input| format!("'{input}'"))
        );
        becomes(&database, &written, 1).await;
        becomes(&database, COUNT, 1).await;
        direct.warehouse.sink().delete(&Scope { tenant: "t".into(), session: "s".into() });
        becomes(&database, COUNT, 0).await;
    }
    // Text and numbers that the database does not have.
    direct.write_of("s", 2, "complete", Some(7), "a\0\\u0000'; --");
    becomes(&database, COUNT, 1).await;
    let rows = database.rows("SELECT model, ended FROM plimsoll_turns").await;
    assert_eq!(rows[0][0].as_deref(), Some("a\u{fffd}\\u0000'; --"));
    assert_eq!(rows[0][1].as_deref(), Some("9223372036854775807"));
    assert_eq!(direct.counted("dropped"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_queue_drops_and_counts() {
    let database = Postgres::start().await;
    let direct = Direct::start(&database.owners_url(), |_| {});
    direct.write("s", 1, "complete", Some(1));
    becomes(&database, COUNT, 1).await;
    database.freeze();
    let began = Instant::now();
    for key in 2..100_002 {
        direct.write("s", key, "complete", Some(1));
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "somebody waited: {took:?}");
    let dropped = direct.counted("dropped");
    assert!((1..100_000).contains(&dropped), "{dropped}");
    // Longer than a statement may take.
    tokio::time::sleep(Duration::from_secs(12)).await;
    database.thaw();
    becomes(&database, COUNT, 100_001 - dropped).await;
    assert_eq!(direct.counted("written"), 100_001 - dropped);
    direct.write("s", 200_000, "complete", Some(1));
    direct.warehouse.finish().await;
    becomes(&database, COUNT, 100_002 - dropped).await;
}
