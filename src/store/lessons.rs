//! Lessons: what refusals of upstreams taught, which tenants met them, and for whom they apply.
//!
//! A lesson applies to the tenant that met it, and to all only once the operator shares it: nobody can tell
//! how many people hold a number of keys, so tenants cannot vote. It expires after some days, and ends at once
//! if it is forgotten. Kept in memory, bounded. If the store fails, another request is refused; no response is
//! lost.

mod entry;
mod state;
mod terms;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as Turn;
use xxhash_rust::xxh3::xxh3_128;

use super::recall::{ReadBudget, Recall, RecallOutcome};
use super::{Record, RecordKind, Scope, Store, StoreError};
use crate::context::{Millis, TenantId};
use crate::dialect::lesson::Lesson;
use crate::dialect::model_list::ListedModel;
use entry::{LessonEvent, LessonNote};

pub(crate) use state::LessonOffer;
use state::LessonState;
use terms::{DAY, LessonSubject};
pub use terms::{LessonLine, LessonScope, LessonSource, LessonTerms};

/// Most notes that are read for one day.
const NOTES: usize = 16_384;
/// The longest configurable lifetime of a lesson, days: older scopes are empty.
const LONGEST_LIFE: u64 = 90;

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
    pub(super) fn new(store: Arc<dyn Store>, terms: LessonTerms) -> Self {
        let state = Mutex::new(LessonState::new(terms));
        let (recall, loading) = Default::default();
        Self(Arc::new(LessonsInner { store, state, recall, loading }))
    }

    /// Reads the stored lessons once per process, and waits for that within the budget. From a shared store it later
    /// reads those of other processes now and then, in the background.
    pub(crate) async fn ready(&self, budget: &ReadBudget, now: Millis) -> RecallOutcome {
        let lessons = self.clone();
        let recalled = self.0.recall.wait(budget, || async move { lessons.load(now).await }).await;
        if recalled == RecallOutcome::Known && self.0.store.is_shared() && self.state().is_due(now)
        {
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

    /// The window of a model that a list of models named, tokens.
    pub fn listed_window(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        self.state().listed_window(source, now)
    }

    /// Learns the windows that a list named, except those that are assumed anyway, of at most `most` models;
    /// returns how many.
    /// `assumed`: each model with its window in the list, and the one that is assumed without it.
    pub(crate) async fn learn_listed(
        &self,
        source: &LessonSource<'_>,
        assumed: &[(ListedModel, u64)],
        most: usize,
        now: Millis,
    ) -> usize {
        let mut learned = 0;
        let mut differ = 0;
        let mut all_notes = Vec::new();
        for (listed, assumed) in assumed {
            let source = LessonSource { model: &listed.name, ..*source };
            let mut state = self.state();
            let effective = state.listed_window(&source, now).unwrap_or(*assumed);
            // A gateway may list any number of models.
            if effective != listed.window && differ < most {
                differ += 1;
                let about = LessonSubject::new(&source, Lesson::ListedWindow(listed.window), None);
                let (_, notes) = state.learn(&source, about, now);
                learned += usize::from(!notes.is_empty());
                all_notes.extend(notes);
            }
        }
        // If saving fails, it is learned again.
        self.keep(all_notes).await.ok();
        learned
    }

    /// The model's maximum output in tokens, if it was learned.
    pub fn max_output(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        self.state().max_output(source, now)
    }

    /// Learns from a refusal. `believed`: for a window, the assumed one that it corrects.
    pub(crate) async fn learn(
        &self,
        source: &LessonSource<'_>,
        lesson: Lesson,
        believed: Option<u64>,
        now: Millis,
    ) -> LessonOffer {
        let about = LessonSubject::new(source, lesson, believed);
        let (outcome, notes) = self.state().learn(source, about, now);
        // If saving fails, it is learned again.
        self.keep(notes).await.ok();
        outcome
    }

    /// Records that an upstream accepted a request whose model read and wrote `held` tokens, which disproves any
    /// smaller window that the tenant had met.
    pub(crate) fn answered(&self, source: &LessonSource<'_>, held: u64, now: Millis) {
        let notes = self.state().answered(source, held, now);
        if !notes.is_empty() {
            let lessons = self.clone();
            // A reply does not wait for it.
            tokio::spawn(async move { lessons.keep(notes).await.ok() });
        }
    }

    /// All lessons that apply to anybody, the newest first.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn list(&self, now: Millis) -> Result<Vec<LessonLine>, StoreError> {
        self.load(now).await?;
        if self.0.store.is_shared() {
            self.refresh(now).await?;
        }
        Ok(self.state().list(now))
    }

    /// Forgets a lesson for all; `false` if there is none with this id.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has forgotten it all the same.
    pub(crate) async fn forget(&self, id: &str, now: Millis) -> Result<bool, StoreError> {
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
    pub(crate) async fn expire(&self, now: Millis) -> Result<(), StoreError> {
        // A lesson lasts whole days from its own time, so it ends within the day after the last.
        let days = self.state().terms().days + 1;
        for ago in days + 1..days + LONGEST_LIFE {
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
        // The next one finds that it is loaded.
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
            let record = Record {
                kind: RecordKind::Learned,
                key,
                value: value.into(),
                at: note.at,
                turn: None,
            };
            self.0.store.put_if_absent(scope, vec![record]).await?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, LessonState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn scope_of(day: u64) -> Scope {
    // An expired day is deleted as a whole.
    Scope { tenant: TenantId::default(), session: format!("~lessons of day {day}").into() }
}

fn operator() -> Scope {
    // They do not expire, so they are in none of the days.
    Scope { tenant: TenantId::default(), session: "~lessons decided".into() }
}

#[cfg(test)]
mod tests;
