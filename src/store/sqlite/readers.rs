//! A few threads that read, each with its own connection.
//!
//! Traffic and the admin API have separate ones, so that no admin query delays a request. A query whose
//! caller has gone is skipped. The queue is bounded; if it is full, queries are refused at once. Knows
//! nothing of facts.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::connection::connect;
use super::errors::failed;
use crate::store::{StoreError, StoreFuture};

/// Queries that may wait.
const QUEUE: usize = 1024;
/// Steps of the database between two checks of the time.
const STEPS: i32 = 2000;
/// How long the writer waits for them to end: as long as a query may take.
const LEAVE: Duration = Duration::from_secs(2);

type ReadJob = Box<dyn FnOnce(&mut Connection) + Send>;

/// The number of threads, and how long one query may take.
#[derive(Clone, Copy)]
pub(super) struct ReaderLimits {
    pub(super) name: &'static str,
    pub(super) threads: usize,
    pub(super) limit: Option<Duration>,
}

/// Lets the writer interrupt the admin API's readers: queries with a time limit end, and no other begins
/// before the writer is done.
#[derive(Default)]
pub(super) struct ReaderGate {
    looking: Mutex<ReaderGateState>,
    changed: Condvar,
}

/// The state of the gate.
#[derive(Default)]
struct ReaderGateState {
    /// Queries in progress.
    inside: usize,
    /// The writer is waiting or working.
    is_wanted: bool,
}

impl ReaderGate {
    /// Runs `work` once no query is in progress, or [`LEAVE`] after they were told to end; no query begins
    /// meanwhile.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut looking = lock(&self.looking);
        looking.is_wanted = true;
        let _wanted = WriterClaim(self);
        drop(self.changed.wait_timeout_while(looking, LEAVE, |state| state.inside > 0));
        work()
    }

    fn enter(&self) -> ReaderPass<'_> {
        // The writer would otherwise never find the gate empty.
        let looking = lock(&self.looking);
        let state = self.changed.wait_while(looking, |state| state.is_wanted);
        state.unwrap_or_else(PoisonError::into_inner).inside += 1;
        ReaderPass(self)
    }

    fn is_wanted(&self) -> bool {
        lock(&self.looking).is_wanted
    }
}

/// Keeps the gate closed for the writer, until this is dropped.
struct WriterClaim<'m>(&'m ReaderGate);

impl Drop for WriterClaim<'_> {
    fn drop(&mut self) {
        lock(&self.0.looking).is_wanted = false;
        self.0.changed.notify_all();
    }
}

/// A query in progress.
struct ReaderPass<'m>(&'m ReaderGate);

impl Drop for ReaderPass<'_> {
    fn drop(&mut self) {
        lock(&self.0.looking).inside -= 1;
        self.0.changed.notify_all();
    }
}

pub(super) struct Readers {
    questions: Mutex<Option<SyncSender<ReadJob>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    waiting: Arc<AtomicUsize>,
    make_way: Arc<ReaderGate>,
    size: ReaderLimits,
}

impl Readers {
    /// Starts the threads, which end when this is dropped. Queries with a limit end at once if `make_way`
    /// tells them to.
    pub(super) fn start(
        path: &Path,
        size: ReaderLimits,
        make_way: Arc<ReaderGate>,
    ) -> Result<Self, StoreError> {
        let (questions, queue) = sync_channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::new();
        for _ in 0..size.threads {
            let connection = connect(path)?;
            let queue = queue.clone();
            let thread = std::thread::Builder::new().name(size.name.into());
            // Fewer threads are slower; without any, queries are refused.
            threads.extend(thread.spawn(move || run(connection, &queue)).ok());
        }
        Ok(Self {
            questions: Mutex::new(Some(questions)),
            threads: Mutex::new(threads),
            waiting: Arc::default(),
            make_way,
            size,
        })
    }

    pub(super) fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'static, T> {
        let (answer, due) = oneshot::channel();
        let waiting = self.waiting.clone();
        let limit = self.size.limit;
        let make_way = self.make_way.clone();
        let question: ReadJob = Box::new(move |connection| {
            waiting.fetch_sub(1, Ordering::Relaxed);
            // Its caller has gone.
            if answer.is_closed() {
                return;
            }
            let answered = limited(connection, limit, &make_way, query).map_err(failed);
            drop(answer.send(answered));
        });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let queued = lock(&self.questions).as_ref().map(|queue| queue.try_send(question));
        let is_queued = matches!(queued, Some(Ok(())));
        if !is_queued {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Box::pin(async move {
            if !is_queued {
                return Err(StoreError::Closed);
            }
            due.await.unwrap_or(Err(StoreError::Closed))
        })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        lock(&self.threads).len()
    }

    /// Accepts no more queries; returns the threads, which end after the queries that wait.
    pub(super) fn close(&self) -> Vec<JoinHandle<()>> {
        lock(&self.questions).take();
        std::mem::take(&mut lock(&self.threads))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(mut connection: Connection, queue: &Mutex<Receiver<ReadJob>>) {
    loop {
        let question = lock(queue).recv();
        let Ok(question) = question else { return };
        // A query that panics loses its result, not the thread.
        let work = std::panic::AssertUnwindSafe(|| question(&mut connection));
        drop(std::panic::catch_unwind(work));
    }
}

fn limited<T>(
    connection: &mut Connection,
    limit: Option<Duration>,
    make_way: &Arc<ReaderGate>,
    query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    // Traffic has no limit: its queries are short, and a request depends on them.
    let Some(limit) = limit else { return query(connection) };
    let _inside = make_way.enter();
    let until = Instant::now() + limit;
    let gate = make_way.clone();
    connection.progress_handler(STEPS, Some(move || Instant::now() > until || gate.is_wanted()))?;
    let answer = query(connection);
    // The next query has a time of its own.
    connection.progress_handler(STEPS, None::<fn() -> bool>)?;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance;

    const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
        SELECT count(*) FROM n";

    fn readers(folder: &Path, threads: usize, limit: Duration) -> Readers {
        let path = folder.join("p.db");
        let size = ReaderLimits { name: "test", threads, limit: Some(limit) };
        Readers::start(&path, size, Arc::default()).unwrap()
    }

    /// The writer waits for a slow query to end; otherwise the log would grow meanwhile.
    #[tokio::test(flavor = "multi_thread")]
    async fn writer_waits_for_queries() {
        let folder = conformance::folder();
        let readers = readers(folder.path(), 1, Duration::from_secs(60));
        let make_way = readers.make_way.clone();
        let (inside, is_inside) = std::sync::mpsc::channel();
        let has_left = Arc::new(AtomicUsize::new(0));
        let left = has_left.clone();
        let look = readers.query(move |_| {
            inside.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(400));
            left.store(1, Ordering::SeqCst);
            Ok(())
        });
        is_inside.recv().unwrap();
        let next = readers.query(|it| it.query_row("SELECT 1", [], |row| row.get::<_, i64>(0)));
        make_way.during(|| assert_eq!(has_left.load(Ordering::SeqCst), 1, "somebody looks in"));
        look.await.unwrap();
        assert_eq!(next.await.unwrap(), 1, "the next one gets in again");
    }

    /// The writer waits for nobody if no query runs. A query that runs is told to end.
    #[tokio::test(flavor = "multi_thread")]
    async fn writer_ends_running_queries() {
        let folder = conformance::folder();
        let readers = readers(folder.path(), 1, Duration::from_secs(60));
        let make_way = readers.make_way.clone();
        let began = Instant::now();
        make_way.during(|| ());
        let endless = readers.query(|it| it.query_row(ENDLESS, [], |row| row.get::<_, i64>(0)));
        while lock(&make_way.looking).inside == 0 {
            tokio::task::yield_now().await;
        }
        make_way.during(|| ());
        assert!(began.elapsed() < LEAVE, "it waited as long as for somebody who does not leave");
        assert!(endless.await.unwrap_err().to_string().contains("aborted"));
        assert_eq!(lock(&make_way.looking).inside, 0);
    }

    #[tokio::test]
    async fn long_queries_complete_in_time() {
        let folder = conformance::folder();
        let readers = readers(folder.path(), 1, Duration::from_secs(60));
        let many = ENDLESS.replace("FROM n)", "FROM n WHERE i < 50000)");
        let many = readers.query(move |it| it.query_row(&many, [], |row| row.get::<_, i64>(0)));
        assert_eq!(many.await.unwrap(), 50_000);
    }

    #[tokio::test]
    async fn endless_queries_are_ended() {
        let folder = conformance::folder();
        let readers = readers(folder.path(), 1, Duration::from_millis(50));
        let endless = readers.query(|it| it.query_row(ENDLESS, [], |row| row.get::<_, i64>(0)));
        let trouble = endless.await.unwrap_err().to_string();
        assert!(trouble.contains("took too long"), "{trouble}");
        let next = readers.query(|it| it.query_row("SELECT 7", [], |row| row.get::<_, i64>(0)));
        assert_eq!(next.await.unwrap(), 7);
        assert_eq!(readers.waiting(), 0);
    }

    #[tokio::test]
    async fn query_that_panics_fails_alone() {
        let folder = conformance::folder();
        let readers = readers(folder.path(), 1, Duration::from_secs(9));
        let panics = readers.query(|_| -> rusqlite::Result<()> { panic!("a mistake") });
        assert!(panics.await.is_err());
        assert!(readers.query(|_| Ok(())).await.is_ok());
    }

    #[tokio::test]
    async fn full_queue_refuses_queries() {
        let folder = conformance::folder();
        let readers = readers(folder.path(), 1, Duration::from_secs(9));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let holds = readers.query(move |_| Ok(gate.recv().is_ok()));
        while readers.waiting() > 0 {
            tokio::task::yield_now().await;
        }
        let waiting: Vec<_> = (0..QUEUE).map(|_| readers.query(|_| Ok(()))).collect();
        assert!(matches!(readers.query(|_| Ok(())).await, Err(StoreError::Closed)));
        drop(waiting); // these queries are no longer waited for, so they are not run
        go.send(()).unwrap();
        assert!(holds.await.unwrap());
        while readers.waiting() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(readers.query(|_| Ok(())).await.is_ok());
    }
}
