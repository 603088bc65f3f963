//! Exchanges on their way, and the writing of their drafts.
//!
//! Whoever has an exchange under way only notes how far it is, in memory. One task writes: what lasts, at
//! most once a second each, so that an exchange that ends at once costs no write. Nobody waits for it, and
//! what the store does not take now is written later or not at all.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use tokio::sync::Notify;

use super::{Ledgers, OpenedSession, lock, record};
use crate::context::{Fact, Millis, Turn};
use crate::dialect::{ReplyProgress, ResponseReader};
use crate::store::drafts::Draft;
use crate::store::{Scope, StoreError};

/// How often one exchange is written, and the instance's beat.
const PERIOD: Duration = Duration::from_secs(1);
/// Most drafts in one write: turns wait for it. With more exchanges on their way each is written less often.
const MOST: usize = 64;
/// Most keys of ended exchanges that wait for a store that fails.
const ENDED: usize = 4096;

/// All exchanges on their way.
#[derive(Default)]
pub(super) struct Drafts {
    /// Drawn at the start; another process has another.
    instance: u64,
    state: Mutex<DraftState>,
    begun: Notify,
}

#[derive(Default)]
struct DraftState {
    open: HashMap<u128, OpenDraft>,
    /// Written, and ended without a turn.
    ended: Vec<u128>,
    /// When something was last written.
    beat: Option<Instant>,
}

struct OpenDraft {
    exchange: Arc<DraftedExchange>,
    due: Instant,
    written: bool,
}

/// An exchange on its way.
struct DraftedExchange {
    key: u128,
    scope: Scope,
    /// When its session was first known here.
    since: Instant,
    known: Mutex<DraftContent>,
    latest: Arc<DraftProgress>,
}

struct DraftContent {
    /// As it would be if nothing came any more.
    turn: Turn,
    progress: ReplyProgress,
}

/// Pieces of a reply after a look at which all is noted: usage is told at the beginning, in one of them.
const PIECES: u8 = 4;

/// How far a reply is, as it was noted last.
pub struct DraftProgress {
    /// Pieces of which all is still to be noted.
    wanted: AtomicU8,
    said: AtomicUsize,
    /// What was noted and not looked at.
    progress: Mutex<Option<ReplyProgress>>,
}

impl DraftProgress {
    fn new() -> Self {
        let (said, progress) = Default::default();
        Self { wanted: AtomicU8::new(PIECES), said, progress }
    }

    /// Another piece of the reply has come. Of most only their length is noted.
    pub fn note(&self, reading: &ResponseReader) {
        self.said.store(reading.said_bytes(), Ordering::Relaxed);
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted > 0 {
            self.wanted.store(wanted - 1, Ordering::Relaxed);
            *lock(&self.progress) = Some(reading.progress());
        }
    }
}

/// Holds an exchange among those on their way. Dropped, it ended and left no turn.
pub struct DraftGuard {
    drafts: Arc<Drafts>,
    exchange: Arc<DraftedExchange>,
}

impl DraftGuard {
    /// Where is noted how far the reply is.
    pub fn latest(&self) -> Arc<DraftProgress> {
        self.exchange.latest.clone()
    }

    /// What stays of it, as far as is known.
    pub fn turn(&self) -> Turn {
        lock(&self.exchange.known).turn.clone()
    }

    /// Puts another turn in place of what stays of it, where there is one.
    pub fn revise(&self, revised: impl FnOnce(&Turn) -> Option<Turn>) {
        let turn = &mut lock(&self.exchange.known).turn;
        if let Some(revised) = revised(turn) {
            *turn = revised;
        }
    }

    /// The turn is written, and took the draft away; or the store failed, and the draft is all that stays.
    pub fn release(self) {
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
        // Without randomness all are of one instance: what it left is found when it starts alone.
        Self { instance: getrandom::u64().unwrap_or_default(), ..Self::default() }
    }

    /// Takes out what was forgotten on request.
    pub(super) fn forget(&self, scope: &Scope) {
        let mut state = lock(&self.state);
        let gone = state.open.extract_if(|_, open| open.exchange.scope == *scope);
        let gone: Vec<u128> = gone.filter(|(_, open)| open.written).map(|(key, _)| key).collect();
        state.ended.extend(gone);
        self.begun.notify_one();
    }

    /// What is to be written now, and which keys have ended; `None` where nothing is.
    fn due(&self) -> Option<(Vec<DueDraft>, Vec<u128>)> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let mut lives = false;
        let mut late: Vec<&mut OpenDraft> = Vec::new();
        for open in state.open.values_mut() {
            open.exchange.latest.wanted.store(PIECES, Ordering::Relaxed);
            lives |= open.written;
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
        let is_late = state.beat.is_none_or(|beat| beat.elapsed() >= PERIOD);
        let ended = std::mem::take(&mut state.ended);
        if due.is_empty() && ended.is_empty() && !(lives && is_late) {
            return None;
        }
        state.beat = Some(now);
        Some((due, ended))
    }

    /// What was written is written; of what ended meanwhile it goes again.
    fn wrote(&self, keys: &[u128]) {
        let mut state = lock(&self.state);
        let DraftState { open, ended, .. } = &mut *state;
        ended.extend(keys.iter().filter(|key| !open.contains_key(key)));
    }

    /// Nothing was written.
    fn failed(&self, first: &[u128], mut ended: Vec<u128>) {
        let mut state = lock(&self.state);
        for key in first {
            if let Some(open) = state.open.get_mut(key) {
                open.written = false;
            }
        }
        ended.truncate(ENDED.saturating_sub(state.ended.len()));
        state.ended.extend(ended);
    }

    fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.open.is_empty() && state.ended.is_empty()
    }
}

/// An exchange that is to be written.
struct DueDraft {
    exchange: Arc<DraftedExchange>,
    is_first: bool,
}

impl DueDraft {
    /// Its draft; `None` where it is written as it is.
    fn draft(&self, now: Millis) -> Option<Draft> {
        let DraftedExchange { scope, since, known, latest, .. } = &*self.exchange;
        let (said, told) = (latest.said.load(Ordering::Relaxed), lock(&latest.progress).take());
        let turn = {
            let DraftContent { turn, progress } = &mut *lock(known);
            if told.is_none() && said == progress.said && !self.is_first {
                return None;
            }
            *progress = ReplyProgress { said, ..told.unwrap_or_else(|| progress.clone()) };
            turn.ended = now.max(turn.at);
            turn.usage = progress.usage_so_far();
            turn.response.clone_from(&progress.id);
            turn.clone()
        };
        let record = record(&Fact::Turn(Box::new(turn)))?;
        Some(Draft { scope: scope.clone(), record, since: *since })
    }
}

impl Ledgers {
    /// An exchange is on its way: `turn` is what it leaves if it is never heard of again. It is written
    /// once it has lasted for `delay`.
    pub fn draft(&self, opened: &OpenedSession, turn: Turn, delay: Duration) -> DraftGuard {
        let exchange = Arc::new(DraftedExchange {
            key: super::turn_key(&turn.exchange),
            scope: opened.scope.clone(),
            since: opened.cache.born(),
            known: Mutex::new(DraftContent { turn, progress: ReplyProgress::default() }),
            latest: Arc::new(DraftProgress::new()),
        });
        let due = Instant::now() + delay;
        let open = OpenDraft { exchange: exchange.clone(), due, written: false };
        let drafts = self.drafts.clone();
        let is_first = {
            let mut state = lock(&drafts.state);
            state.open.insert(exchange.key, open);
            state.open.len() == 1
        };
        if is_first {
            drafts.begun.notify_one();
        }
        DraftGuard { drafts, exchange }
    }

    /// Ready when there are drafts to write, now or soon.
    pub async fn has_drafts(&self) {
        while self.drafts.is_idle() {
            self.drafts.begun.notified().await;
        }
    }

    /// Writes the drafts that are due.
    ///
    /// # Errors
    /// The store's [`StoreError`]: they are written later, where their exchanges still go on.
    pub async fn write_drafts(&self, now: Millis) -> Result<(), StoreError> {
        let Some((due, ended)) = self.drafts.due() else { return Ok(()) };
        let drafts: Vec<Draft> = due.iter().filter_map(|due| due.draft(now)).collect();
        let keys: Vec<u128> = due.iter().map(|due| due.exchange.key).collect();
        let instance = self.drafts.instance;
        let written = self.store.put_drafts(instance, drafts, ended.clone()).await;
        match &written {
            Ok(()) => self.drafts.wrote(&keys),
            Err(_) => {
                let first = due.iter().filter(|due| due.is_first);
                let first: Vec<u128> = first.map(|due| due.exchange.key).collect();
                self.drafts.failed(&first, ended);
            }
        }
        written
    }

    /// Makes turns of what processes left that are gone, silent for `lease`: answers how many were made since
    /// it was asked last.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn adopt_drafts(&self, lease: Duration) -> Result<usize, StoreError> {
        let mut made = self.store.adopt_drafts(self.drafts.instance, lease).await?;
        let count = made.len();
        made.sort();
        made.dedup();
        for scope in made {
            if lock(&self.caches).held(&scope).is_some() {
                self.refresh(&scope).await?;
            }
        }
        Ok(count)
    }
}
