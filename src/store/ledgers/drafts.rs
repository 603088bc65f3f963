//! Exchanges in flight, and the writing of their drafts.
//!
//! An exchange only records its progress in memory. One task writes drafts, each at most once a second and
//! only for exchanges that last, so that a short exchange causes no write. Nobody waits for it, and what the
//! store does not accept now is written later or not at all.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use tokio::sync::Notify;

use super::lock::lock;
use super::records::{record, turn_key};
use crate::clock::wall_micros;
use crate::context::{Fact, Millis, TenantId, Turn};
use crate::dialect::{ReplyProgress, ResponseReader};
use crate::store::drafts::Draft;
use crate::store::{Record, Scope};

/// How often one exchange's draft is written, if anything has changed.
const PERIOD: Duration = Duration::from_secs(1);
/// Most drafts in one write, because turns wait for it. With more exchanges in flight, each is written less
/// often.
const MOST: usize = 64;
/// Most keys of ended exchanges that are kept while the store fails.
const ENDED: usize = 4096;

/// All exchanges in flight.
#[derive(Default)]
pub(super) struct Drafts {
    /// Random; each process has another.
    instance: u64,
    state: Mutex<DraftState>,
    begun: Notify,
}

#[derive(Default)]
struct DraftState {
    open: HashMap<u128, OpenDraft>,
    /// Keys of drafts that were written and whose exchanges ended without a turn.
    ended: Vec<u128>,
}

struct OpenDraft {
    exchange: Arc<DraftedExchange>,
    due: Instant,
    written: bool,
}

/// An exchange in flight.
struct DraftedExchange {
    key: u128,
    scope: Scope,
    /// When its session was first known here.
    since: Instant,
    known: Mutex<DraftContent>,
    latest: Arc<DraftProgress>,
}

impl DraftedExchange {
    fn has_response(&self, response: &str) -> bool {
        let latest = lock(&self.latest.progress).as_ref().and_then(|progress| progress.id.clone());
        let id = latest.or_else(|| lock(&self.known).progress.id.clone());
        id.as_deref() == Some(response)
    }
}

struct DraftContent {
    /// The turn as it would be if nothing more arrived.
    turn: Turn,
    progress: ReplyProgress,
}

/// After a draft was made, this many pieces of the reply are recorded in full: usage is reported in one of
/// the first.
const PIECES: u8 = 4;

/// The last recorded progress of a reply.
pub(crate) struct DraftProgress {
    /// How many pieces are still to be recorded in full.
    wanted: AtomicU8,
    /// The length of the reply so far.
    reply_bytes: AtomicUsize,
    /// Progress that was recorded but not read yet.
    progress: Mutex<Option<ReplyProgress>>,
}

impl DraftProgress {
    fn new() -> Self {
        Self {
            wanted: AtomicU8::new(PIECES),
            reply_bytes: AtomicUsize::default(),
            progress: Mutex::default(),
        }
    }

    /// Records another piece of the reply.
    pub(crate) fn note(&self, reading: &ResponseReader) {
        // Of most pieces, only the length is recorded.
        self.reply_bytes.store(reading.content_bytes(), Ordering::Relaxed);
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted > 0 {
            self.wanted.store(wanted - 1, Ordering::Relaxed);
            *lock(&self.progress) = Some(reading.progress());
        }
    }
}

/// Keeps an exchange among those in flight. If it is dropped, the exchange ended without a turn.
pub(crate) struct DraftGuard {
    drafts: Arc<Drafts>,
    exchange: Arc<DraftedExchange>,
}

impl DraftGuard {
    /// Where the progress of the reply is recorded.
    pub(crate) fn latest(&self) -> Arc<DraftProgress> {
        self.exchange.latest.clone()
    }

    /// The turn of its draft.
    pub(crate) fn turn(&self) -> Turn {
        lock(&self.exchange.known).turn.clone()
    }

    /// Replaces the turn of its draft, if there is a new one.
    pub(crate) fn revise(&self, revised: impl FnOnce(&Turn) -> Option<Turn>) {
        let turn = &mut lock(&self.exchange.known).turn;
        if let Some(revised) = revised(turn) {
            *turn = revised;
        }
    }

    /// Ends the draft because the turn was stored, which removed it; or the store failed, and only the draft
    /// remains.
    pub(crate) fn release(self) {
        lock(&self.drafts.state).open.remove(&self.exchange.key);
    }
}

impl Drop for DraftGuard {
    fn drop(&mut self) {
        let mut state = lock(&self.drafts.state);
        let was = state.open.remove(&self.exchange.key);
        if was.is_some_and(|open| open.written) {
            state.ended.push(self.exchange.key);
            self.drafts.begun.notify_one();
        }
    }
}

impl Drafts {
    pub(super) fn new() -> Self {
        // Without randomness, the time of its start tells it from the processes before it.
        let instance = getrandom::u64().unwrap_or_else(|_| wall_micros().cast_unsigned());
        Self { instance, ..Self::default() }
    }

    pub(super) fn instance(&self) -> u64 {
        self.instance
    }

    pub(super) fn begin(
        self: &Arc<Self>,
        scope: Scope,
        since: Instant,
        turn: Turn,
        delay: Duration,
    ) -> DraftGuard {
        let exchange = Arc::new(DraftedExchange {
            key: turn_key(&turn.exchange),
            scope,
            since,
            known: Mutex::new(DraftContent { turn, progress: ReplyProgress::default() }),
            latest: Arc::new(DraftProgress::new()),
        });
        let due = Instant::now() + delay;
        let open = OpenDraft { exchange: exchange.clone(), due, written: false };
        // The writer sleeps while there is none.
        let is_first = {
            let mut state = lock(&self.state);
            state.open.insert(exchange.key, open);
            state.open.len() == 1
        };
        if is_first {
            self.begun.notify_one();
        }
        DraftGuard { drafts: self.clone(), exchange }
    }

    /// The exchange in flight whose response has this id, if its tenant has one.
    pub(super) fn of_response(&self, tenant: &TenantId, response: &str) -> Option<(Scope, Turn)> {
        let state = lock(&self.state);
        let mut exchanges = state.open.values().map(|open| &open.exchange);
        let exchange =
            exchanges.find(|open| open.scope.tenant == *tenant && open.has_response(response))?;
        let turn = lock(&exchange.known).turn.clone();
        Some((exchange.scope.clone(), turn))
    }

    /// Ready when there are drafts to write, now or soon.
    pub(super) async fn wait_for_work(&self) {
        while self.is_idle() {
            self.begun.notified().await;
        }
    }

    pub(super) fn forget(&self, scope: &Scope) {
        let mut state = lock(&self.state);
        let deleted = state.open.extract_if(|_, open| open.exchange.scope == *scope);
        // Only those that were written are in the store.
        let written: Vec<u128> =
            deleted.filter(|(_, open)| open.written).map(|(key, _)| key).collect();
        state.ended.extend(written);
        self.begun.notify_one();
    }

    /// What is to be written now; `None` if that is nothing.
    pub(super) fn due(&self) -> Option<DraftBatch> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let mut late: Vec<&mut OpenDraft> = Vec::new();
        for open in state.open.values_mut() {
            open.exchange.latest.wanted.store(PIECES, Ordering::Relaxed);
            if open.due <= now {
                late.push(open);
            }
        }
        // Those that were never written come first, then those that wait longest.
        if late.len() > MOST {
            late.select_nth_unstable_by_key(MOST, |open| (open.written, open.due));
        }
        let due = late.into_iter().take(MOST).map(|open| {
            let is_first = !std::mem::replace(&mut open.written, true);
            open.due = now + PERIOD;
            DueDraft { exchange: open.exchange.clone(), is_first }
        });
        let due: Vec<DueDraft> = due.collect();
        let ended = std::mem::take(&mut state.ended);
        if due.is_empty() && ended.is_empty() {
            return None;
        }
        Some(DraftBatch { due, ended })
    }

    pub(super) fn wrote(&self, keys: &[u128]) {
        // Exchanges that ended while their drafts were written left them behind.
        let mut state = lock(&self.state);
        let DraftState { open, ended, .. } = &mut *state;
        ended.extend(keys.iter().filter(|key| !open.contains_key(key)));
    }

    pub(super) fn failed(&self, first: &[u128], mut ended: Vec<u128>) {
        let mut state = lock(&self.state);
        for key in first {
            if let Some(open) = state.open.get_mut(key) {
                open.written = false;
            }
        }
        // The store may be down for long.
        ended.truncate(ENDED.saturating_sub(state.ended.len()));
        state.ended.extend(ended);
    }

    fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.open.is_empty() && state.ended.is_empty()
    }
}

/// One write of drafts.
pub(super) struct DraftBatch {
    pub(super) due: Vec<DueDraft>,
    /// Keys of drafts that are removed, because their exchanges ended without a turn.
    pub(super) ended: Vec<u128>,
}

/// An exchange whose draft is to be written.
pub(super) struct DueDraft {
    exchange: Arc<DraftedExchange>,
    /// It was never written before.
    pub(super) is_first: bool,
}

impl DueDraft {
    pub(super) fn key(&self) -> u128 {
        self.exchange.key
    }

    /// Its draft; `None` if it has not changed since it was written.
    pub(super) fn draft(&self, now: Millis) -> Option<Draft> {
        let DraftedExchange { scope, since, known, latest, .. } = &*self.exchange;
        let reply_bytes = latest.reply_bytes.load(Ordering::Relaxed);
        let newer = lock(&latest.progress).take();
        let turn = {
            let DraftContent { turn, progress } = &mut *lock(known);
            if newer.is_none() && reply_bytes == progress.content_bytes && !self.is_first {
                return None;
            }
            let newer = newer.unwrap_or_else(|| progress.clone());
            *progress = ReplyProgress { content_bytes: reply_bytes, ..newer };
            turn.ended = now.max(turn.at);
            turn.usage = progress.usage_so_far();
            turn.response.clone_from(&progress.id);
            turn.clone()
        };
        let record = Record { turn: None, ..record(&Fact::Turn(Arc::new(turn)))? };
        Some(Draft { scope: scope.clone(), record, since: *since })
    }
}
