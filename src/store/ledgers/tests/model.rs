//! Every order in which requests, a load, an eviction and a deletion can meet at the cache of a session.
//!
//! A step is what happens under one lock; between two steps, other threads may run. Requests and the store are the real
//! ones. The task that reads the store is played here, so that it can be stopped between reading and merging.

use std::sync::LazyLock;

use futures_util::FutureExt as _;

use super::super::session_cache::LoadedLedger;
use super::orders::{Choices, in_every_order};
use super::*;
use crate::store::LogPlace;
use crate::store::recall::{RecallRun, RecallStart};

/// The turn that the store has before the first request.
const BEFORE: &str = "before";

/// Made once, because parsing takes longer than a run.
static CONVERSATION: LazyLock<Conversation> = LazyLock::new(|| conversation(&user("hi")));
static TURN: LazyLock<Turn> = LazyLock::new(|| {
    let ledgers = Ledgers::new(Arc::new(MemoryStore::default()));
    let cache = lock(&ledgers.caches).cache(&scope());
    match turn(&place_of(BEFORE, cache, Instant::now()), "A") {
        Fact::Turn(turn) => Turn::clone(&turn),
        _ => unreachable!(),
    }
});

fn place_of(name: &str, cache: Arc<SessionCache>, began: Instant) -> OpenedSession {
    let store_missed = !cache.is_loaded();
    let lookup = lookup("t", Some("s"), name);
    OpenedSession::at(&lookup, &CONVERSATION, scope(), cache, began, store_missed)
}

fn turn_of(name: &str) -> Fact {
    Fact::Turn(Arc::new(Turn { exchange: name.into(), ..TURN.clone() }))
}

fn scope() -> Scope {
    Scope { tenant: "t".into(), session: "s".into() }
}

/// The stores of these tests answer at once.
fn now<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().unwrap()
}

/// The names of the turns in a ledger, sorted.
fn turns_of(ledger: &Ledger) -> Vec<String> {
    let mut turns: Vec<String> = ledger.turns().map(|turn| turn.exchange.to_string()).collect();
    turns.sort();
    turns
}

struct World {
    store: Arc<MemoryStore>,
    ledgers: Ledgers,
    loads: Vec<Load>,
    /// How far the deletion is; `None`: there is none.
    deletion: Option<Deletion>,
    /// When the store had deleted the session.
    deleted: Option<Instant>,
}

/// A read of the session from the store.
struct Load {
    cache: Arc<SessionCache>,
    run: RecallRun,
    read: Option<Ledger>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    Begins,
    InTheStore,
    OfWhoCameMeanwhile,
    Over,
}

enum Request {
    Comes(&'static str),
    HasShelf(&'static str, Arc<SessionCache>, Instant),
    HasPlace(Box<OpenedSession>),
    Over,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Request(usize),
    /// A request is placed, and ends without a turn.
    Leave(usize),
    Load(usize),
    /// The read of the store fails.
    FailedLoad(usize),
    Eviction,
    Deletion,
}

impl World {
    /// A session with a turn in the store that was not read yet.
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let before = record(&turn_of(BEFORE)).unwrap();
        now(store.put_if_absent(scope(), vec![before])).unwrap();
        let ledgers = Ledgers::new(store.clone());
        Self { store, ledgers, loads: Vec::new(), deletion: None, deleted: None }
    }

    /// The turns in the store.
    fn kept(&self) -> Vec<String> {
        let records = now(self.store.scan(scope(), session_cache::FACTS)).unwrap();
        turns_of(&session_cache::ledger(&records).ledger)
    }

    fn request(&mut self, request: Request) -> Request {
        match request {
            Request::Comes(name) => {
                let began = Instant::now();
                let cache = lock(&self.ledgers.caches).cache(&scope());
                if let RecallStart::Read(run, _) = cache.recall().begin() {
                    self.loads.push(Load { cache: cache.clone(), run, read: None });
                }
                Request::HasShelf(name, cache, began)
            }
            Request::HasShelf(name, cache, began) => {
                Request::HasPlace(Box::new(place_of(name, cache, began)))
            }
            Request::HasPlace(opened) => {
                let fact = turn_of(opened.exchange.as_str());
                now(self.ledgers.commit(*opened, vec![fact])).unwrap();
                Request::Over
            }
            Request::Over => unreachable!(),
        }
    }

    fn load(&mut self, at: usize, fails: bool) {
        let mut load = self.loads.swap_remove(at);
        match load.read.take() {
            _ if fails => load.run.end(Err(StoreError::Closed)),
            None => {
                let records = now(self.store.scan(scope(), session_cache::FACTS)).unwrap();
                load.read = Some(session_cache::ledger(&records).ledger);
                self.loads.push(load);
            }
            Some(read) => {
                load.cache
                    .loaded(LoadedLedger { ledger: read, has_unread: false }, LogPlace::default());
                load.run.end(Ok(()));
            }
        }
    }

    /// As [`Ledgers::forget`] does, with a stop before the store deletes.
    fn delete(&mut self, deletion: Deletion) -> Deletion {
        match deletion {
            Deletion::Begins => {
                let cache = lock(&self.ledgers.caches).remove(&scope());
                if let Some(cache) = cache {
                    drop(cache.forget(|| Box::pin(std::future::ready(Ok(())))));
                }
                Deletion::InTheStore
            }
            Deletion::InTheStore => {
                now(self.store.drop_scope(scope())).unwrap();
                self.deleted = Some(Instant::now());
                Deletion::OfWhoCameMeanwhile
            }
            Deletion::OfWhoCameMeanwhile => {
                self.ledgers.forget_late(&scope());
                Deletion::Over
            }
            Deletion::Over => unreachable!(),
        }
    }
}

/// What happens in a run.
#[derive(Clone, Copy, Default)]
struct Cast {
    evictions: usize,
    deletes: bool,
    loads_fail: bool,
    /// A request is placed and ends, and the store is read and merged, in one step each.
    is_coarse: bool,
}

/// The result of one run.
struct Seen {
    world: World,
    /// When each request with a turn began.
    began: Vec<(&'static str, Instant)>,
}

/// One run: the chosen step is executed next, until all have ended.
fn run(names: &[&'static str], cast: Cast, choices: &mut Choices) -> Seen {
    let mut world = World::new();
    world.deletion = cast.deletes.then_some(Deletion::Begins);
    let mut requests: Vec<Request> = names.iter().map(|name| Request::Comes(name)).collect();
    let (mut evictions, mut began) = (cast.evictions, Vec::new());
    loop {
        let open = requests.iter().enumerate();
        let open = open.filter(|(_, request)| !matches!(request, Request::Over));
        let mut steps: Vec<Step> = open.map(|(at, _)| Step::Request(at)).collect();
        let has_place = |(_, request): &(usize, &Request)| matches!(request, Request::HasPlace(_));
        let placed = requests.iter().enumerate().filter(has_place);
        let may_leave = |_: &(usize, &Request)| cast.deletes;
        steps.extend(placed.filter(may_leave).map(|(at, _)| Step::Leave(at)));
        steps.extend((0..world.loads.len()).map(Step::Load));
        if cast.loads_fail {
            steps.extend((0..world.loads.len()).map(Step::FailedLoad));
        }
        steps.extend((evictions > 0).then_some(Step::Eviction));
        let deletes = world.deletion.is_some_and(|it| it != Deletion::Over);
        steps.extend(deletes.then_some(Step::Deletion));
        if steps.is_empty() {
            return Seen { world, began };
        }
        match steps[choices.next(steps.len())] {
            Step::Request(at) => {
                let request = std::mem::replace(&mut requests[at], Request::Over);
                if let Request::Comes(name) = request {
                    began.push((name, Instant::now()));
                }
                requests[at] = world.request(request);
                if let (true, Request::HasPlace(_)) = (cast.is_coarse, &requests[at]) {
                    let request = std::mem::replace(&mut requests[at], Request::Over);
                    requests[at] = world.request(request);
                }
                one_cache_is_used(&requests, cast);
            }
            Step::Load(at) => {
                if cast.is_coarse && world.loads[at].read.is_none() {
                    world.load(at, false);
                    // The newest read is the last in the list.
                    let last = world.loads.len() - 1;
                    world.load(last, false);
                } else {
                    world.load(at, false);
                }
            }
            Step::Leave(at) => {
                requests[at] = Request::Over;
                began.retain(|(name, _)| *name != names[at]);
            }
            Step::FailedLoad(at) => world.load(at, true),
            Step::Eviction => {
                evictions -= 1;
                lock(&world.ledgers.caches).release(&[scope()]);
            }
            Step::Deletion => {
                world.deletion = world.deletion.map(|deletion| world.delete(deletion));
            }
        }
    }
}

/// Requests of a session that is not deleted share one cache, evicted or not.
fn one_cache_is_used(requests: &[Request], cast: Cast) {
    let used = requests.iter().filter_map(|request| match request {
        Request::HasShelf(_, cache, _) => Some(Arc::as_ptr(cache)),
        Request::HasPlace(opened) => Some(Arc::as_ptr(&opened.cache)),
        Request::Comes(_) | Request::Over => None,
    });
    let mut used: Vec<*const SessionCache> = used.collect();
    used.dedup();
    assert!(cast.deletes || used.len() <= 1, "two caches of one session");
}

/// The counted bytes are the bytes that the caches hold.
fn bytes_are_right(ledgers: &Ledgers) {
    let held = lock(&ledgers.caches).held(&scope());
    let bytes = held.map_or(0, |cache| cache.look(Ledger::bytes));
    assert_eq!(lock(&ledgers.caches).bytes(), bytes);
}

/// The turns that memory knows of the session, if it was read.
fn known(ledgers: &Ledgers) -> Option<Vec<String>> {
    let held = lock(&ledgers.caches).held(&scope());
    held.filter(|cache| cache.is_loaded()).map(|cache| cache.look(turns_of))
}

#[test]
fn no_order_loses_turn() {
    for (is_coarse, loads_fail) in [(false, false), (true, true)] {
        let cast = Cast { evictions: 1, loads_fail, is_coarse, ..Cast::default() };
        let runs = in_every_order(|choices| {
            let Seen { world, began } = run(&["one", "other"], cast, choices);
            let names = began.into_iter().map(|(name, _)| name.to_owned());
            let mut all: Vec<String> = names.chain([BEFORE.to_owned()]).collect();
            all.sort();
            assert_eq!(world.kept(), all);
            if let Some(known) = known(&world.ledgers) {
                assert_eq!(known, world.kept(), "memory knows what the store knows");
            }
            bytes_are_right(&world.ledgers);
        });
        println!("{runs} orders");
        assert!(runs > 100, "{runs} orders");
    }
}

/// Checks every order of these requests, their loads and a deletion.
fn nothing_comes_back(names: &[&'static str], is_coarse: bool) {
    let cast = Cast { deletes: true, is_coarse, ..Cast::default() };
    let runs = in_every_order(|choices| {
        let Seen { world, began } = run(names, cast, choices);
        let (deleted, kept) = (world.deleted.unwrap(), world.kept());
        let began = began.into_iter().filter(|(_, began)| *began > deleted);
        let mut since: Vec<&str> = began.map(|(name, _)| name).collect();
        since.sort_unstable();
        assert_eq!(kept, since, "what began since then, and nothing else");
        if let Some(known) = known(&world.ledgers) {
            assert_eq!(known, kept, "memory knows what the store knows");
        }
        bytes_are_right(&world.ledgers);
    });
    println!("{runs} orders");
    assert!(runs > 100, "{runs} orders");
}

#[test]
fn no_order_of_load_undeletes() {
    nothing_comes_back(&["one"], false);
}

#[test]
fn no_order_of_requests_undeletes() {
    nothing_comes_back(&["one", "other"], true);
}

#[test]
fn waiting_requests_share_read() {
    let runs = in_every_order(|choices| {
        let mut world = World::new();
        let mut stay = Vec::new();
        for name in ["one", "other", "third"] {
            stay.push(world.request(Request::Comes(name)));
            // A cache in use is not evicted.
            lock(&world.ledgers.caches).release(&[scope()]);
            assert!(world.loads.len() <= 1, "two read at once");
            for _ in 0..choices.next(3) {
                if !world.loads.is_empty() {
                    world.load(0, false);
                }
            }
        }
        let read = world.loads.is_empty();
        assert!(!read || known(&world.ledgers).is_some());
    });
    assert_eq!(runs, 27, "orders");
}
