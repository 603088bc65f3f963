//! What a small request is made of: the same load on proxies that leave one thing out each.
//!
//! Every layer does what the one above it does, and something more; the difference is its cost. Two of
//! them are Plimsoll built with another store: one that forgets, and one that keeps as the real one
//! does but is not waited for. Below them stands what any proxy would cost that reads and remembers.

use std::path::Path;
use std::sync::Arc;

use plimsoll::config::{self, ConfigFlag, ConfigSources};
use plimsoll::proxy::{self, Proxy};
use plimsoll::store::drafts::Draft;
use plimsoll::store::ledgers::Ledgers;
use plimsoll::store::precondition::Precondition;
use plimsoll::store::sqlite::SqliteStore;
use plimsoll::store::wrapper::StoreWrapper;
use plimsoll::store::{Record, Scope, Store, StoreError, StoreFuture, WriteOutcome};
use plimsoll::telemetry::Telemetry;
use plimsoll::telemetry::log::{Log, LogFormat};

use super::load::{Load, MESSAGES};
use super::process::{self, Part, Plimsoll};
use super::{Size, median};

/// A path of the upstream's that holds no conversation: it is passed on unread.
pub(crate) const UNREAD: &str = "/anthropic/v1/unread";

/// Serves `provider` with a store as `kind` says (`forgets`, `unwaited`, `undrafted`, `whole`), its file in
/// `data`.
pub(crate) fn serve(kind: &str, provider: &str, data: &str) {
    let flag = |key: &str, value: String| ConfigFlag {
        name: format!("--{key}"),
        key: key.to_owned(),
        value,
    };
    let flags = vec![
        flag("upstream", format!("anthropic=http://{provider}")),
        flag("mode", "observe".to_owned()),
        flag("data", data.to_owned()),
    ];
    let config = config::load(&ConfigSources { flags, ..ConfigSources::default() }).unwrap().config;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&Path::new(data).join("plimsoll.db")).unwrap();
        let store = Arc::new(Less { store, keeps: Keeps::of(kind) });
        let telemetry = Telemetry::new(Log::to(LogFormat::Text, std::io::sink()).unwrap()).unwrap();
        let proxy = Proxy::new(Arc::new(config), Arc::new(Ledgers::new(store)), telemetry);
        let proxy = proxy.await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        proxy::serve(proxy, listener, std::future::pending()).await;
    });
}

/// What is left out of the real store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// Nothing is written.
    Nothing,
    /// Nobody waits for what is written.
    Unwaited,
    /// What is on its way is not written.
    Undrafted,
    /// Nothing is left out.
    All,
}

impl Keeps {
    fn of(kind: &str) -> Self {
        match kind {
            "forgets" => Self::Nothing,
            "unwaited" => Self::Unwaited,
            "undrafted" => Self::Undrafted,
            _ => Self::All,
        }
    }
}

/// The real store, or less than it.
struct Less {
    store: SqliteStore,
    keeps: Keeps,
}

impl StoreWrapper for Less {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        Ok(&self.store)
    }

    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        if matches!(self.keeps, Keeps::Undrafted | Keeps::All) {
            return self.store.put(scope, records, only_if);
        }
        let puts = vec![WriteOutcome::Written; records.len()];
        if self.keeps == Keeps::Unwaited {
            drop(self.store.put(scope, records, only_if)); // queued all the same
        }
        Box::pin(std::future::ready(Ok(puts)))
    }

    fn append(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, ()> {
        match self.keeps {
            Keeps::Undrafted | Keeps::All => self.store.append(scope, records, only_if),
            Keeps::Unwaited | Keeps::Nothing => {
                let put = StoreWrapper::put(self, scope, records, only_if);
                Box::pin(async move { put.await.map(drop) })
            }
        }
    }

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        match self.keeps {
            Keeps::All | Keeps::Unwaited => self.store.put_drafts(instance, drafts, ended),
            Keeps::Undrafted | Keeps::Nothing => Box::pin(std::future::ready(Ok(()))),
        }
    }
}

/// Measures every layer, interleaved, and prints what each adds.
pub(crate) async fn print(size: &Size) {
    let provider = Part::start("provider", &[]);
    let floor = Part::start("floor", &[&provider.address]);
    let data = tempfile::tempdir().unwrap();
    let part = |role: &str, kind: &str| {
        let own = data.path().join(kind);
        std::fs::create_dir(&own).unwrap();
        Part::start(role, &[kind, &provider.address, &own.to_string_lossy()])
    };
    let [forgets, unwaited] = ["forgets", "unwaited"].map(|kind| part("server", kind));
    let [parses, rows, lines] = ["parse", "row", "line"].map(|kind| part("least", kind));
    let whole = Plimsoll::start(&provider.address);
    let layers = [
        ("bare proxy", &floor.address, floor.id(), MESSAGES),
        ("+ routed, timed, counted, logged", &whole.address, whole.id(), UNREAD),
        ("+ read, placed, planned, estimated", &forgets.address, forgets.id(), MESSAGES),
        ("+ its turn written", &unwaited.address, unwaited.id(), MESSAGES),
        ("+ and waited for: all of it", &whole.address, whole.id(), MESSAGES),
    ];
    let least = [
        ("the least that parses both bodies", &parses.address, parses.id(), MESSAGES),
        ("the least that also keeps a durable row", &rows.address, rows.id(), MESSAGES),
        ("the same with a line of a file for it", &lines.address, lines.id(), MESSAGES),
    ];
    let all: Vec<_> = layers.iter().chain(&least).collect();
    let mut samples = vec![Vec::new(); all.len()];
    for round in 0..=size.rounds {
        for ((_, address, id, path), samples) in all.iter().zip(&mut samples) {
            let load = Load::new(address).at(path);
            let before = process::cpu_seconds(*id);
            load.small_requests(size.requests, 8).await;
            if round > 0 {
                samples.push((process::cpu_seconds(*id) - before) / size.requests as f64);
            }
        }
    }
    let figures: Vec<f64> = samples.iter_mut().map(|samples| median(samples) * 1e6).collect();
    let line = |name: &str, figure: f64, above: f64| {
        let (adds, ratio) = (figure - above, figure / figures[0]);
        println!("{name:<40}{figure:>9.1}{adds:>10.1}{ratio:>7.2}×");
    };
    println!("a small request, CPU                           µs      adds   floor");
    let (ours, least_figures) = figures.split_at(layers.len());
    let mut before = 0.0;
    for ((name, ..), figure) in layers.iter().zip(ours) {
        line(name, *figure, before);
        before = *figure;
    }
    println!("\nabove the bare proxy");
    for ((name, ..), figure) in least.iter().zip(least_figures) {
        line(name, *figure, figures[0]);
    }
    println!();
}
