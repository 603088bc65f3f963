//! A server that replicas share, beside the file: what each adds to a request, and what many sessions take there.
//!
//! The sessions are copies of a real one of 40 turns, written by the store itself. The servers are those that
//! `scripts/tools` fetches.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll::context::SessionId;
use plimsoll::store::redis::{RedisServer, RedisStore};
use plimsoll::store::sqlite::SqliteStore;
use plimsoll::store::{Record, RecordKind, Scope, ScopePage, Store};
use serde_json::Value;

use super::load::{Latencies, Load};
use super::process::{self, Part, Plimsoll};
use super::{Size, median};

/// Turns of each session.
const TURNS: usize = 40;
/// Sessions of the comparison, for each round.
const COMPARED: usize = 25;
/// Sessions at a time.
const WIDTH: usize = 2;
/// Sessions that are written at once.
const WRITERS: usize = 16;
/// Sessions that a server copies for one pipeline.
const COPIED_AT_ONCE: usize = 200;
/// How often a look-up is made.
const LOOKS: usize = 300;
/// What all keys begin with, as by default.
const PREFIX: &str = "plimsoll:";
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const TOKEN: &str = "a token for the bench";

/// A Redis server of its own, which is killed when this is dropped.
struct Server {
    port: u16,
    process: Child,
    _data: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/fleet/redis/usr");
        let program: PathBuf = tools.join("bin/redis-server");
        assert!(program.exists(), "{} is missing: run scripts/tools", program.display());
        let data = tempfile::tempdir().unwrap();
        let port = process::free_port();
        let process = Command::new(program)
            .env("LD_LIBRARY_PATH", tools.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH)))
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"])
            .arg(data.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { port, process, _data: data }
    }

    /// The store, once a replica has left the fingerprint of its secret there.
    fn store(&self) -> RedisStore {
        let answer = self.ask(&format!("GET {PREFIX}{{index}}:secret"));
        let fingerprint = answer.lines().nth(1).unwrap().trim();
        let server = RedisServer {
            hosts: vec![("127.0.0.1".into(), self.port)],
            prefix: PREFIX.into(),
            fingerprint: fingerprint.into(),
            ..RedisServer::default()
        };
        RedisStore::new(server, Duration::from_secs(30 * 86_400))
    }

    /// What all keys and values take, bytes.
    fn used_memory(&self) -> f64 {
        let info = self.ask("INFO memory");
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// Gives each scope the records of one, which the server copies: a tenth of the time that writing them takes.
    fn copy_records(&self, from: &Scope, to: impl Iterator<Item = Scope>) {
        let mut link = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut answers = BufReader::new(link.try_clone().unwrap());
        let name =
            |scope: &Scope, part| format!("{PREFIX}{{{}:{}}}:{part}", scope.tenant, scope.session);
        let scopes: Vec<Scope> = to.collect();
        for some in scopes.chunks(COPIED_AT_ONCE) {
            let mut commands = String::new();
            for scope in some {
                for part in ["facts", "log", "meta"] {
                    let copy =
                        format!("COPY {} {} REPLACE\r\n", name(from, part), name(scope, part));
                    commands.push_str(&copy);
                }
            }
            link.write_all(commands.as_bytes()).unwrap();
            for _ in 0..3 * some.len() {
                let mut answer = String::new();
                answers.read_line(&mut answer).unwrap();
                assert_eq!(answer, ":1\r\n");
            }
        }
    }

    fn ask(&self, command: &str) -> String {
        let mut link = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        link.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        link.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The configuration of a replica on it.
    fn config(&self, folder: &Path) -> String {
        let secret = private_file(folder, "secret", SECRET);
        format!("[store]\nurl = \"redis://127.0.0.1:{}\"\nsecret = \"file:{secret}\"\n", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn private_file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path.display().to_string()
}

/// What a replica on one of the two stores is configured with.
fn replica_config(folder: &Path, store: &str) -> String {
    let token = private_file(folder, "token", TOKEN);
    // Or the sessions that are asked for are deleted as too many.
    let retention = "retention.bytes = 1_000_000_000_000";
    format!("mode = \"observe\"\nadmin_token = \"file:{token}\"\n{retention}\n{store}")
}

/// Prints both tables, the second one with so many sessions.
pub(crate) async fn print(size: &Size, sessions: usize) {
    let secrets = tempfile::tempdir().unwrap();
    let provider = Part::start("provider", &[]);
    let server = Server::start();
    let on_server = replica_config(secrets.path(), &server.config(secrets.path()));
    let in_file = replica_config(secrets.path(), "");
    compare(size, &provider.address, &in_file, &on_server).await;
    drop(server);

    println!("{sessions} sessions of {TURNS} turns");
    for is_named in [true, false] {
        let server = Server::start();
        let on_server = replica_config(secrets.path(), &server.config(secrets.path()));
        let replica = Plimsoll::with(&provider.address, &on_server);
        let scope = sample(&replica.address, is_named, &server.store()).await;
        drop(replica);
        let count = if is_named { sessions } else { sessions.div_ceil(10) };
        let store = Arc::new(server.store());
        let copy = SessionCopy::read(&*store, scope, is_named).await;
        let before = server.used_memory();
        let began = Instant::now();
        // One turn of each, which puts it on the list, then the others.
        copy.write(store, count, 1).await;
        server.copy_records(&copy.source, (0..count).map(|number| copy.scope(number)));
        let each = (server.used_memory() - before) / count as f64 / 1024.0;
        let how = if is_named { "named by their client" } else { "found by what is said" };
        println!("KiB in Redis a session, {how} {each:>8.1} (target: 24), {count} sessions");
        if is_named {
            println!("copied in {:.0} s", began.elapsed().as_secs_f64());
            print_figures("Redis", &provider.address, None, &on_server, &copy, count);
        }
    }
    let replica = Plimsoll::with(&provider.address, &in_file);
    talk(&Load::new(&replica.address), "sample").await;
    // Drained, so that its file is complete.
    let data = replica.stop();
    let store = Arc::new(SqliteStore::open(&data.path().join("plimsoll.db")).unwrap());
    let copy = SessionCopy::read(&*store, newest(&*store).await, true).await;
    let began = Instant::now();
    copy.write(store.clone(), sessions, usize::MAX).await;
    drop(store);
    // With what is beside the file.
    let files = std::fs::read_dir(data.path()).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    println!(
        "KiB in SQLite a session {:>8.1}, written in {:.0} s\n",
        bytes as f64 / sessions as f64 / 1024.0,
        began.elapsed().as_secs_f64()
    );
    print_figures("SQLite", &provider.address, Some(data), &in_file, &copy, sessions);
}

/// A request of a session in the middle, beside each store: CPU and latency.
async fn compare(size: &Size, provider: &str, in_file: &str, on_server: &str) {
    let replicas = [Plimsoll::with(provider, in_file), Plimsoll::with(provider, on_server)];
    let targets = [
        ("direct", provider, None),
        ("SQLite", &replicas[0].address, Some(replicas[0].id())),
        ("Redis", &replicas[1].address, Some(replicas[1].id())),
    ];
    let mut samples = vec![Vec::new(); targets.len()];
    for round in 0..=size.rounds {
        for ((_, address, id), samples) in targets.iter().zip(&mut samples) {
            let load = Load::new(address);
            let before = id.map_or(0.0, process::cpu_seconds);
            let times = talks(&load, round).await;
            let cpu = id.map_or(0.0, process::cpu_seconds) - before;
            // The first round warms up.
            if round > 0 {
                samples.push((cpu / (COMPARED * TURNS) as f64, times));
            }
        }
    }
    println!("a request of a session      p50 µs    added    p99 µs    added   µs CPU");
    let mut direct = [0.0; 2];
    for ((name, ..), samples) in targets.iter().zip(&samples) {
        let [p50, p99, cpu] = [
            |(_, times): &(f64, Latencies)| times.p50,
            |(_, times): &(f64, Latencies)| times.p99,
            |(cpu, _): &(f64, Latencies)| *cpu,
        ]
        .map(|figure| median(&mut samples.iter().map(figure).collect::<Vec<_>>()) * 1e6);
        if *name == "direct" {
            direct = [p50, p99];
        }
        println!(
            "{name:<25}{p50:>9.0}{:>9.0}{p99:>10.0}{:>9.0}{cpu:>9.0}",
            p50 - direct[0],
            p99 - direct[1]
        );
    }
    println!("Redis: bar 600 µs added at p50; {WIDTH} sessions at a time\n");
}

/// Several sessions from their first to their last turn.
async fn talks(load: &Load, round: usize) -> Latencies {
    let mut tasks = Vec::new();
    for lane in 0..WIDTH {
        let load = load.clone();
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            for number in (lane..COMPARED).step_by(WIDTH) {
                times.extend(talk(&load, &format!("s-{round}-{number}")).await);
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    Latencies::of(times)
}

/// One session of an agent: each turn brings a result of 2 kB. Returns how long each took.
async fn talk(load: &Load, session: &str) -> Vec<f64> {
    let mut times = Vec::new();
    let mut history = format!(r#"{{"role":"user","content":"Look at ship {session}."}}"#);
    for turn in 0..TURNS {
        let body = format!(
            r#"{{"model":"claude-sonnet-4-5","max_tokens":1024,"stream":true,"messages":[{history}]}}"#
        );
        let began = Instant::now();
        let answer = load.say(session, body).await;
        times.push(began.elapsed().as_secs_f64());
        assert!(answer.ends_with(b"}}"), "an answer is not whole");
        let result = format!("{session}, line {turn} of the log. ").repeat(60);
        history += &format!(
            r#",{{"role":"assistant","content":[{{"type":"text","text":"Done."}}]}},{{"role":"user","content":"{result}"}}"#
        );
    }
    times
}

/// A real session, named by its client or not; returns its scope.
async fn sample(address: &str, is_named: bool, store: &dyn Store) -> Scope {
    // The load names a session by a header, which an empty name is not.
    talk(&Load::new(address), if is_named { "sample" } else { "" }).await;
    newest(store).await
}

async fn newest(store: &dyn Store) -> Scope {
    let lines = store.scopes(ScopePage::first(10)).await.unwrap();
    let mut turns = lines.into_iter().filter(|line| line.turns == TURNS as u64);
    turns.next().unwrap().scope
}

/// A session to copy.
struct SessionCopy {
    source: Scope,
    records: Vec<Record>,
    /// Fingerprints that each turn left.
    signs: usize,
}

impl SessionCopy {
    async fn read(store: &dyn Store, scope: Scope, is_named: bool) -> Self {
        let records = store.scan(scope.clone(), usize::MAX).await.unwrap();
        // As `store/ledgers/fingerprints.rs` leaves them: of the reply, of its request's end, and of both together.
        let signs = if is_named { 0 } else { 3 };
        Self { source: scope, records, signs }
    }

    fn scope(&self, number: usize) -> Scope {
        let session: SessionId = format!("copied-{number:08}").into();
        Scope { tenant: self.source.tenant.clone(), session }
    }

    /// The first records, each session's of a millisecond of its own, and all fingerprints.
    fn records(&self, number: usize, most: usize) -> Vec<Record> {
        let mut records: Vec<Record> = self.records.iter().take(most).cloned().collect();
        for record in &mut records {
            record.at += number as u64;
        }
        for record in &self.records {
            for sign in 0..self.signs {
                let at = (number * 1000 + records.len() * 7 + sign) as u64;
                let key = u128::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                let kind = RecordKind::Fingerprint;
                records.push(Record {
                    kind,
                    key,
                    value: Default::default(),
                    at: record.at,
                    turn: None,
                });
            }
        }
        records
    }

    async fn write(&self, store: Arc<dyn Store>, count: usize, most: usize) {
        let mut writes = tokio::task::JoinSet::new();
        for number in 0..count {
            if writes.len() >= WRITERS {
                writes.join_next().await;
            }
            let records = self.records(number, most);
            let store = store.clone();
            let scope = self.scope(number);
            writes.spawn(async move {
                loop {
                    // Under such a load a store may be late.
                    if store.put_if_absent(scope.clone(), records.clone()).await.is_ok() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
        }
        while writes.join_next().await.is_some() {}
    }
}

/// Prints what a replica takes for its answers, with many sessions.
fn print_figures(
    store: &str,
    provider: &str,
    data: Option<tempfile::TempDir>,
    config: &str,
    copy: &SessionCopy,
    count: usize,
) {
    let data = data.unwrap_or_else(|| tempfile::tempdir().unwrap());
    let replica = Plimsoll::on(data, provider, config);
    let print = |what: &str, figure: f64, bar: &str| {
        println!("{store}: {what:<34}{figure:>10.1}   {bar}");
    };
    print("start to first answer, ms", replica.first_answer * 1e3, "(bar: 200)");
    let mut after = String::new();
    let list = times(|_| {
        let page = view(&replica, &format!("/api/v1/sessions?limit=100{after}"));
        after = match page["next_after"].as_str() {
            Some(next) => format!("&after={next}"),
            None => String::new(),
        };
        assert!(!page["sessions"].as_array().unwrap().is_empty(), "{page}");
    });
    print("page of 100 sessions, p50 ms", list.p50 * 1e3, "(bar: 5)");
    print("page of 100 sessions, p99 ms", list.p99 * 1e3, "");
    let look_up = times(|number| {
        let session = copy.scope(number * 7919 % count).session;
        let view = view(&replica, &format!("/api/v1/sessions/{session}"));
        assert_eq!(view["turns"], TURNS, "{view}");
    });
    print("session by id, p50 ms", look_up.p50 * 1e3, "(bar: 5)");
    print("session by id, p99 ms", look_up.p99 * 1e3, "");
    let before = replica.rss_kib();
    let began = Instant::now();
    let page = loop {
        let page = view(&replica, "/api/v1/sessions?sort=dollars&limit=10");
        if page["reading"] != true {
            break page;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    print("page's index, s until whole", began.elapsed().as_secs_f64(), "");
    print("page's index, MiB", (replica.rss_kib() - before) / 1024.0, "");
    print("page's index, sessions", page["indexed"].as_f64().unwrap(), "");
    let began = Instant::now();
    let spent = view(&replica, "/api/v1/spend?by=model&since=0");
    print("spend over all, s", began.elapsed().as_secs_f64(), "");
    assert!(spent["sessions"].as_u64().unwrap() >= count as u64, "{}", spent["sessions"]);
}

fn times(mut look: impl FnMut(usize)) -> Latencies {
    let mut times = Vec::new();
    for number in 0..LOOKS {
        let began = Instant::now();
        look(number);
        times.push(began.elapsed().as_secs_f64());
    }
    Latencies::of(times)
}

/// A view of the admin API.
fn view(replica: &Plimsoll, path: &str) -> Value {
    let mut link = TcpStream::connect(&replica.admin).unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
    );
    link.write_all(head.as_bytes()).unwrap();
    let mut answer = BufReader::new(link);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        answer.read_line(&mut head).unwrap();
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // The connection may close later.
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    answer.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}
