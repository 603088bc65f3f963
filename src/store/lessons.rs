//! Lessons: what upstreams taught by refusing, who met it, and for whom it holds.
//!
//! A lesson holds for the tenant that met it. It holds for all once enough tenants agree whom the upstream
//! also answered, or once the operator shares it. It ends after some days, and at once where it is
//! forgotten. Kept in memory, bounded; a store that fails costs one more refusal, never an answer.

mod entry;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as Turn;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::recall::{ReadBudget, Recall, RecallOutcome};
use super::{Record, RecordKind, Scope, Store, StoreError};
use crate::context::{Millis, TenantId};
use crate::dialect::lesson::Lesson;
use entry::{LessonEvent, LessonNote};

pub use state::LessonOffer;
use state::LessonState;

const DAY: Millis = 24 * 3600 * 1000;
/// How often what other processes learned is asked for, ms.
const REFRESH: Millis = 30_000;
/// Most notes that are read of one day.
const NOTES: usize = 16_384;
/// The longest life of a lesson that can be configured, days: older scopes are empty.
const LONGEST_LIFE: u64 = 90;

/// When a lesson holds for all, and how long any holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessonTerms {
    /// Tenants that must agree.
    pub tenants: usize,
    /// How long a lesson holds after it was met, days.
    pub days: u64,
}

impl Default for LessonTerms {
    fn default() -> Self {
        Self { tenants: 3, days: 7 }
    }
}

impl LessonTerms {
    fn life(self) -> Millis {
        self.days.saturating_mul(DAY)
    }
}

/// Where a lesson comes from, or is asked for.
#[derive(Clone, Copy, Debug)]
pub struct LessonSource<'a> {
    /// Whose request; `None` where that is not known: it neither teaches nor counts.
    pub tenant: Option<&'a TenantId>,
    /// The upstream.
    pub upstream: &'a str,
    /// The model; empty where a lesson is about all of an upstream.
    pub model: &'a str,
    /// Whether the upstream knows the tenant apart from others. Where all ask with the operator's
    /// credential, anybody can make tenants up: they learn for themselves and count for no agreement.
    pub vouched: bool,
}

/// What a lesson is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LessonSubject {
    upstream: Box<str>,
    model: Box<str>,
    lesson: Lesson,
    /// The window that was believed, tokens, where it puts that right: whoever configures another
    /// starts afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    believed: Option<u64>,
}

impl LessonSubject {
    /// A name for people and machines. It may not change: stores hold it in their keys.
    fn id(&self) -> String {
        let Self { upstream, model, lesson, believed } = self;
        let name = serde_json::to_string(&(upstream, model, lesson, believed)).unwrap_or_default();
        format!("{:016x}", xxh3_64(name.as_bytes()))
    }
}

/// For whom a lesson holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LessonScope {
    /// For each tenant that met it.
    Tenants,
    /// For all: enough tenants agree.
    Agreed,
    /// For all, until it is forgotten: the operator shared it.
    Shared,
}

/// A lesson as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LessonLine {
    /// Its id.
    pub id: String,
    /// The upstream.
    pub upstream: String,
    /// The model; empty where it is about all of the upstream's.
    pub model: String,
    /// What was learned.
    pub lesson: Lesson,
    /// Of a window: the one that was believed, tokens.
    pub believed: Option<u64>,
    /// How many tenants met it.
    pub tenants: usize,
    /// How many of them count for an agreement: the upstream answered them too.
    pub agree: usize,
    /// When it was first met or shared, ms since 1970.
    pub since: Millis,
    /// When it ends, ms since 1970; absent where it does not.
    pub expires: Option<Millis>,
    /// For whom it holds.
    pub reach: LessonScope,
}

/// All lessons. A copy is the same lessons.
#[derive(Clone)]
pub struct Lessons(Arc<LessonsInner>);

struct LessonsInner {
    store: Arc<dyn Store>,
    state: Mutex<LessonState>,
    recall: Recall,
    /// One loads at a time.
    loading: Turn<()>,
}

impl Lessons {
    /// Lessons over `store`; nothing is read yet.
    pub fn new(store: Arc<dyn Store>, terms: LessonTerms) -> Self {
        let state = Mutex::new(LessonState::new(terms));
        let (recall, loading) = Default::default();
        Self(Arc::new(LessonsInner { store, state, recall, loading }))
    }

    /// Reads what is kept, once a process, and waits for it within the budget; later takes over now and then,
    /// beside the request, what other processes learned.
    pub async fn ready(&self, budget: &ReadBudget, now: Millis) -> RecallOutcome {
        let lessons = self.clone();
        let read = || async move { lessons.load(now).await };
        let recalled = self.0.recall.wait(budget, read).await;
        if recalled == RecallOutcome::Known && self.state().is_due(now) {
            let lessons = self.clone();
            tokio::spawn(async move { lessons.refresh(now).await });
        }
        recalled
    }

    /// Whether this holds for whoever asks.
    pub fn holds(&self, source: &LessonSource<'_>, lesson: Lesson, now: Millis) -> bool {
        self.state().holds(source, lesson, now)
    }

    /// The window of a model, tokens, where `believed` is what catalogue and configuration say.
    pub fn window(&self, source: &LessonSource<'_>, believed: u64, now: Millis) -> u64 {
        self.state().window(source, believed, now)
    }

    /// The most tokens that a model writes, where that was learned.
    pub fn max_output(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        self.state().max_output(source, now)
    }

    /// Learns from a refusal. `believed`: the window that a window puts right.
    pub async fn learn(
        &self,
        source: &LessonSource<'_>,
        lesson: Lesson,
        believed: Option<u64>,
        now: Millis,
    ) -> LessonOffer {
        let model = if lesson.is_about_all_models() { "" } else { source.model };
        let (upstream, model) = (source.upstream.into(), model.into());
        let about = LessonSubject { upstream, model, lesson, believed };
        let (outcome, notes) = self.state().learn(source, about, now);
        // One that is not kept is learned again.
        self.keep(notes).await.ok();
        outcome
    }

    /// An upstream answered a request. `held`: tokens that its model read and wrote, which void any
    /// smaller window.
    pub fn answered(&self, source: &LessonSource<'_>, held: Option<u64>, now: Millis) {
        let notes = self.state().answered(source, held, now);
        if !notes.is_empty() {
            let lessons = self.clone();
            tokio::spawn(async move { lessons.keep(notes).await.ok() });
        }
    }

    /// All that hold for anybody, the newest first.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn list(&self, now: Millis) -> Result<Vec<LessonLine>, StoreError> {
        self.load(now).await?;
        self.refresh(now).await?;
        Ok(self.state().list(now))
    }

    /// Forgets a lesson for all; `false` where there is none of that id.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has forgotten all the same.
    pub async fn forget(&self, id: &str, now: Millis) -> Result<bool, StoreError> {
        self.decide(id, LessonEvent::Forgotten, now).await
    }

    /// Has a lesson hold for all, until it is forgotten; `false` where there is none of that id.
    ///
    /// # Errors
    /// The store's [`StoreError`]; in this process it holds all the same.
    pub async fn share(&self, id: &str, now: Millis) -> Result<bool, StoreError> {
        self.decide(id, LessonEvent::Shared, now).await
    }

    /// Drops what is past its time from the store.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn expire(&self, now: Millis) -> Result<(), StoreError> {
        let kept = self.state().terms().days + 1;
        for ago in kept + 1..kept + LONGEST_LIFE {
            let Some(day) = (now / DAY).checked_sub(ago) else { break };
            if !self.0.store.scan(scope_of(day), 1).await?.is_empty() {
                self.0.store.drop_scope(scope_of(day)).await?;
            }
        }
        Ok(())
    }

    async fn decide(&self, id: &str, event: LessonEvent, now: Millis) -> Result<bool, StoreError> {
        self.load(now).await?;
        let Some(note) = self.state().decide(id, event, now) else { return Ok(false) };
        self.keep(vec![note]).await.map(|()| true)
    }

    async fn load(&self, now: Millis) -> Result<(), StoreError> {
        let _alone = self.0.loading.lock().await;
        if self.state().is_loaded() {
            return Ok(());
        }
        let days = self.state().terms().days + 1;
        let notes = self.read(now, days).await?;
        self.state().load(notes, now);
        Ok(())
    }

    async fn refresh(&self, now: Millis) -> Result<(), StoreError> {
        let notes = self.read(now, 1).await?;
        self.state().apply(notes, now);
        Ok(())
    }

    /// What is kept of today and so many days before it, and all that the operator decided.
    async fn read(&self, now: Millis, days: u64) -> Result<Vec<LessonNote>, StoreError> {
        let today = now / DAY;
        let mut notes = Vec::new();
        let scopes = (today.saturating_sub(days)..=today).map(scope_of);
        for scope in scopes.chain([operator()]) {
            let records = self.0.store.scan(scope, NOTES).await?;
            // A newer version's are left alone.
            notes.extend(records.iter().filter_map(|record| LessonNote::read(&record.value)));
        }
        Ok(notes)
    }

    async fn keep(&self, notes: Vec<LessonNote>) -> Result<(), StoreError> {
        for note in notes {
            let Ok(value) = serde_json::to_vec(&note) else { continue };
            let scope =
                if note.event.is_operators() { operator() } else { scope_of(note.at / DAY) };
            let key = xxh3_128(note.name().as_bytes());
            let record =
                Record { kind: RecordKind::Learned, key, value: value.into(), at: note.at };
            self.0.store.put_if_absent(scope, vec![record]).await?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, LessonState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a day's lessons are kept: a day past its time goes as a whole.
fn scope_of(day: u64) -> Scope {
    Scope { tenant: TenantId::default(), session: format!("~lessons of day {day}").into() }
}

/// Where the operator's decisions are kept, which do not end.
fn operator() -> Scope {
    Scope { tenant: TenantId::default(), session: "~lessons decided".into() }
}

#[cfg(test)]
mod tests;
