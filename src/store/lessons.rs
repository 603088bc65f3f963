//! Lessons: what refusals of upstreams taught, which tenants met them, and for whom they apply.
//!
//! A lesson applies to the tenant that met it. It applies to all once enough tenants agree whose requests the
//! upstream also accepted, or once the operator shares it. It expires after some days, and ends at once if it
//! is forgotten. Kept in memory, bounded. If the store fails, another request is refused; no response is
//! lost.

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
/// How often the lessons of other processes are read, ms.
const REFRESH: Millis = 30_000;
/// Most notes that are read for one day.
const NOTES: usize = 16_384;
/// The longest configurable lifetime of a lesson, days: older scopes are empty.
const LONGEST_LIFE: u64 = 90;

/// When a lesson applies to all, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessonTerms {
    /// How many tenants must agree.
    pub tenants: usize,
    /// How long a lesson applies after it was met, days.
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

/// The source of a lesson, also to look one up.
#[derive(Clone, Copy, Debug)]
pub struct LessonSource<'a> {
    /// The tenant; `None` if unknown: it then neither teaches nor counts.
    pub tenant: Option<&'a TenantId>,
    /// The upstream.
    pub upstream: &'a str,
    /// The model; empty if a lesson is about the whole upstream.
    pub model: &'a str,
    /// Whether the upstream can tell the tenant from others. If clients use the operator's credential,
    /// anybody could make up tenants: they then learn for themselves, and do not count for an agreement.
    pub vouched: bool,
}

/// What a lesson is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LessonSubject {
    upstream: Box<str>,
    model: Box<str>,
    lesson: Lesson,
    /// For a window: the assumed window that it corrects, tokens. A different configured window starts
    /// afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    believed: Option<u64>,
}

impl LessonSubject {
    /// The id, for people and machines. It must not change, because stored keys contain it.
    fn id(&self) -> String {
        let Self { upstream, model, lesson, believed } = self;
        let name = serde_json::to_string(&(upstream, model, lesson, believed)).unwrap_or_default();
        format!("{:016x}", xxh3_64(name.as_bytes()))
    }
}

/// For whom a lesson applies.
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

/// A lesson as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LessonLine {
    /// Its id.
    pub id: String,
    /// The upstream.
    pub upstream: String,
    /// The model; empty if it is about all models of the upstream.
    pub model: String,
    /// What was learned.
    pub lesson: Lesson,
    /// For a window: the assumed window that it corrects, tokens.
    pub believed: Option<u64>,
    /// How many tenants met it.
    pub tenants: usize,
    /// How many of them count for an agreement, because the upstream also accepted their requests.
    pub agree: usize,
    /// When it was first met or shared, ms since 1970.
    pub since: Millis,
    /// When it expires, ms since 1970; absent if it does not.
    pub expires: Option<Millis>,
    /// For whom it applies.
    pub reach: LessonScope,
}

/// All lessons. A clone shares them.
#[derive(Clone)]
pub struct Lessons(Arc<LessonsInner>);

struct LessonsInner {
    store: Arc<dyn Store>,
    state: Mutex<LessonState>,
    recall: Recall,
    /// Only one task loads at a time.
    loading: Turn<()>,
}

impl Lessons {
    /// Lessons over `store`; nothing is read yet.
    pub fn new(store: Arc<dyn Store>, terms: LessonTerms) -> Self {
        let state = Mutex::new(LessonState::new(terms));
        let (recall, loading) = Default::default();
        Self(Arc::new(LessonsInner { store, state, recall, loading }))
    }

    /// Reads the stored lessons once per process, and waits for that within the budget. Later it reads those
    /// of other processes now and then, in the background.
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

    /// Whether a lesson applies to this source.
    pub fn holds(&self, source: &LessonSource<'_>, lesson: Lesson, now: Millis) -> bool {
        self.state().holds(source, lesson, now)
    }

    /// The window of a model, tokens, if `believed` is the one from catalogue and configuration.
    pub fn window(&self, source: &LessonSource<'_>, believed: u64, now: Millis) -> u64 {
        self.state().window(source, believed, now)
    }

    /// The model's maximum output in tokens, if it was learned.
    pub fn max_output(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        self.state().max_output(source, now)
    }

    /// Learns from a refusal. `believed`: for a window, the assumed one that it corrects.
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
        // If saving fails, it is learned again.
        self.keep(notes).await.ok();
        outcome
    }

    /// Records that an upstream accepted a request. `held`: tokens that its model read and wrote, which
    /// disprove any smaller window.
    pub fn answered(&self, source: &LessonSource<'_>, held: Option<u64>, now: Millis) {
        let notes = self.state().answered(source, held, now);
        if !notes.is_empty() {
            let lessons = self.clone();
            tokio::spawn(async move { lessons.keep(notes).await.ok() });
        }
    }

    /// All lessons that apply to anybody, the newest first.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn list(&self, now: Millis) -> Result<Vec<LessonLine>, StoreError> {
        self.load(now).await?;
        self.refresh(now).await?;
        Ok(self.state().list(now))
    }

    /// Forgets a lesson for all; `false` if there is none with this id.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has forgotten it all the same.
    pub async fn forget(&self, id: &str, now: Millis) -> Result<bool, StoreError> {
        self.decide(id, LessonEvent::Forgotten, now).await
    }

    /// Makes a lesson apply to all until it is forgotten; `false` if there is none with this id.
    ///
    /// # Errors
    /// The store's [`StoreError`]; in this process it applies all the same.
    pub async fn share(&self, id: &str, now: Millis) -> Result<bool, StoreError> {
        self.decide(id, LessonEvent::Shared, now).await
    }

    /// Deletes expired lessons from the store.
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

    /// The notes of today and of this many days before, and all of the operator's decisions.
    async fn read(&self, now: Millis, days: u64) -> Result<Vec<LessonNote>, StoreError> {
        let today = now / DAY;
        let mut notes = Vec::new();
        let scopes = (today.saturating_sub(days)..=today).map(scope_of);
        for scope in scopes.chain([operator()]) {
            let records = self.0.store.scan(scope, NOTES).await?;
            // Notes of a newer version are ignored.
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

/// The scope of a day's lessons: an expired day is deleted as a whole.
fn scope_of(day: u64) -> Scope {
    Scope { tenant: TenantId::default(), session: format!("~lessons of day {day}").into() }
}

/// The scope of the operator's decisions, which do not expire.
fn operator() -> Scope {
    Scope { tenant: TenantId::default(), session: "~lessons decided".into() }
}

#[cfg(test)]
mod tests;
