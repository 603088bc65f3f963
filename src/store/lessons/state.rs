//! Lessons in memory: found by upstream and model, bounded, and counted again when one changes.
//!
//! Pure, except for its own state. Every request asks it, so common questions take two look-ups.

use foldhash::HashMap;

use super::entry::{LessonEntry, LessonEvent, LessonNote};
use super::terms::{DAY, LessonLine, LessonSource, LessonSubject, LessonTerms};
use crate::context::{Millis, TenantId};
use crate::dialect::lesson::Lesson;

/// How often the lessons of other processes are read, ms.
pub(super) const REFRESH: Millis = 30_000;

/// The result of offering a lesson.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LessonOffer {
    /// It is new to the tenant.
    New,
    /// The tenant had met it before.
    Known,
    /// There is no room for more.
    Full,
    /// The tenant is unknown, or the lesson says nothing new.
    Nothing,
}

/// Most lessons of one model; past it, new ones are not learned.
const OF_MODEL: usize = 32;
/// Most lessons that one tenant may have met.
const OF_TENANT: usize = 64;
/// Most pairs of a lesson and a tenant, over all lessons.
const MEETINGS: usize = 8192;
/// Longest name of a model that lessons are learned about, bytes.
const NAME_BYTES: usize = 256;
/// How many times a window can be corrected.
const CORRECTIONS: usize = 8;

/// All lessons that are loaded.
pub(super) struct LessonState {
    terms: LessonTerms,
    by_upstream: HashMap<Box<str>, HashMap<Box<str>, Vec<LessonEntry>>>,
    is_loaded: bool,
    due: Millis,
}

impl LessonState {
    pub(super) fn new(terms: LessonTerms) -> Self {
        Self { terms, by_upstream: HashMap::default(), is_loaded: false, due: 0 }
    }

    pub(super) fn terms(&self) -> LessonTerms {
        self.terms
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Whether it is time to read the lessons of other processes; the caller then reads them.
    pub(super) fn is_due(&mut self, now: Millis) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now.saturating_add(REFRESH);
        }
        is_due
    }

    pub(super) fn load(&mut self, notes: Vec<LessonNote>, now: Millis) {
        self.apply(notes, now);
        self.is_loaded = true;
        self.due = now.saturating_add(REFRESH);
    }

    pub(super) fn apply(&mut self, mut notes: Vec<LessonNote>, now: Millis) {
        notes.sort_by_key(|note| (note.at, note.event));
        for note in &notes {
            self.entry(&note.about).apply(note);
        }
        self.expire(now);
    }

    pub(super) fn holds(&self, source: &LessonSource<'_>, lesson: Lesson, now: Millis) -> bool {
        let model = if lesson.is_about_all_models() { "" } else { source.model };
        let mut entries = self.lessons_of(source.upstream, model).iter();
        entries.any(|entry| {
            entry.about.lesson == lesson
                && (entry.is_shared() || entry.own(source.tenant, self.terms, now).is_some())
        })
    }

    pub(super) fn window(&self, source: &LessonSource<'_>, believed: u64, now: Millis) -> u64 {
        // A corrected window can be refused and corrected again.
        let mut passed = Vec::new();
        let mut window = believed;
        while passed.len() < CORRECTIONS {
            let Some(corrected) = self.correction(source, window, now) else { break };
            if corrected == believed || passed.contains(&corrected) {
                // It says different windows in turn, as a router does: the smallest always fits.
                return passed.iter().copied().fold(corrected, u64::min);
            }
            passed.push(corrected);
            window = corrected;
        }
        window
    }

    /// The window that a list of models named: for this model, else for all of the upstream's.
    pub(super) fn listed_window(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        let whole_upstream = LessonSource { model: "", ..*source };
        self.listed_for(source, now).or_else(|| self.listed_for(&whole_upstream, now))
    }

    fn listed_for(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        self.limit(source, now, |about| match about.lesson {
            // A list belongs to the protocol by which it was read.
            Lesson::ListedWindow(window) if about.door == source.door => Some(window),
            _ => None,
        })
    }

    pub(super) fn max_output(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        self.limit(source, now, |about| match about.lesson {
            Lesson::MaxOutput(most) => Some(most),
            _ => None,
        })
    }

    fn correction(&self, source: &LessonSource<'_>, believed: u64, now: Millis) -> Option<u64> {
        self.limit(source, now, |about| match about.lesson {
            Lesson::Window(window)
                if about.believed == Some(believed) && about.door == source.door =>
            {
                Some(window)
            }
            _ => None,
        })
    }

    fn limit(
        &self,
        source: &LessonSource<'_>,
        now: Millis,
        read: impl Fn(&LessonSubject) -> Option<u64>,
    ) -> Option<u64> {
        // What the tenant met last comes before what applies to all; of that, the smallest is safe.
        let mut newest: Option<(Millis, u64)> = None;
        let mut shared: Option<u64> = None;
        for entry in self.lessons_of(source.upstream, source.model) {
            let Some(limit) = read(&entry.about) else { continue };
            newest = newest.max(entry.own(source.tenant, self.terms, now).map(|at| (at, limit)));
            if entry.is_shared() {
                shared = Some(shared.map_or(limit, |other| other.min(limit)));
            }
        }
        newest.map(|(_, limit)| limit).or(shared)
    }

    /// Learns a lesson; returns the result and the notes to store.
    pub(super) fn learn(
        &mut self,
        source: &LessonSource<'_>,
        about: LessonSubject,
        now: Millis,
    ) -> (LessonOffer, Vec<LessonNote>) {
        let Some(tenant) = source.tenant else { return (LessonOffer::Nothing, Vec::new()) };
        // The upstream named the window that was assumed anyway.
        if about.lesson == Lesson::Window(about.believed.unwrap_or(0)) {
            return (LessonOffer::Nothing, Vec::new());
        }
        let last_met = self.find(&about).and_then(|entry| entry.own(Some(tenant), self.terms, now));
        if last_met.is_none() && !self.has_room(&about, tenant, now) {
            return (LessonOffer::Full, Vec::new());
        }
        let entry = self.entry(&about);
        let ended = entry.after();
        // What was forgotten in this millisecond stays forgotten.
        let met_at = now.max(ended.saturating_add(1));
        let met = LessonNote {
            about,
            event: LessonEvent::Met,
            tenant: Some(tenant.clone()),
            at: met_at,
            after: ended,
        };
        entry.apply(&met);
        match last_met {
            // It is already stored.
            Some(last_met) if last_met / DAY == met_at / DAY => (LessonOffer::Known, Vec::new()),
            Some(_) => (LessonOffer::Known, vec![met]),
            None => (LessonOffer::New, vec![met]),
        }
    }

    /// Records an accepted request, whose model read and wrote `held` tokens; returns the notes to store.
    pub(super) fn answered(
        &mut self,
        source: &LessonSource<'_>,
        held: u64,
        now: Millis,
    ) -> Vec<LessonNote> {
        let LessonSource { tenant: Some(tenant), upstream, model, door, .. } = *source else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        for entry in self.lessons_of(upstream, model) {
            let window = entry.about.lesson.window();
            // Another protocol of the upstream may have another window.
            let is_outgrown =
                entry.about.door == door && window.is_some_and(|window| held > window);
            if is_outgrown && entry.own(Some(tenant), self.terms, now).is_some() {
                notes.push(LessonNote {
                    about: entry.about.clone(),
                    event: LessonEvent::Outgrown,
                    tenant: Some(tenant.clone()),
                    at: now,
                    after: entry.after(),
                });
            }
        }
        if !notes.is_empty() {
            self.apply(notes.clone(), now);
        }
        notes
    }

    /// Applies an operator's decision about a lesson; returns the note to store.
    pub(super) fn decide(
        &mut self,
        id: &str,
        event: LessonEvent,
        now: Millis,
    ) -> Option<LessonNote> {
        let terms = self.terms;
        let about = self
            .entries()
            .filter(|entry| entry.line(terms, now).is_some())
            .find(|entry| entry.about.id() == id)?
            .about
            .clone();
        let note = LessonNote { about: about.clone(), event, tenant: None, at: now, after: 0 };
        self.entry(&about).apply(&note);
        Some(note)
    }

    pub(super) fn list(&self, now: Millis) -> Vec<LessonLine> {
        let mut lines: Vec<LessonLine> =
            self.entries().filter_map(|entry| entry.line(self.terms, now)).collect();
        lines.sort_by(|a, b| b.since.cmp(&a.since).then_with(|| a.id.cmp(&b.id)));
        lines
    }

    fn lessons_of(&self, upstream: &str, model: &str) -> &[LessonEntry] {
        let models = self.by_upstream.get(upstream);
        models.and_then(|models| models.get(model)).map_or(&[], Vec::as_slice)
    }

    fn entries(&self) -> impl Iterator<Item = &LessonEntry> {
        self.by_upstream.values().flat_map(HashMap::values).flatten()
    }

    fn find(&self, about: &LessonSubject) -> Option<&LessonEntry> {
        self.lessons_of(&about.upstream, &about.model).iter().find(|entry| entry.about == *about)
    }

    fn entry(&mut self, about: &LessonSubject) -> &mut LessonEntry {
        let models = self.by_upstream.entry(about.upstream.clone()).or_default();
        let entries = models.entry(about.model.clone()).or_default();
        let position = entries.iter().position(|entry| entry.about == *about);
        let index = position.unwrap_or_else(|| {
            entries.push(LessonEntry::new(about.clone()));
            entries.len() - 1
        });
        &mut entries[index]
    }

    fn has_room(&mut self, about: &LessonSubject, tenant: &TenantId, now: Millis) -> bool {
        // Expired lessons are only counted out when room is needed.
        if self.fits(about, tenant) {
            return true;
        }
        self.expire(now);
        self.fits(about, tenant)
    }

    fn fits(&self, about: &LessonSubject, tenant: &TenantId) -> bool {
        let is_new = self.find(about).is_none();
        about.model.len() <= NAME_BYTES
            && !(is_new && self.lessons_of(&about.upstream, &about.model).len() >= OF_MODEL)
            && self.entries().filter(|entry| entry.is_met_by(tenant)).count() < OF_TENANT
            && self.entries().map(LessonEntry::tenants).sum::<usize>() < MEETINGS
    }

    /// Drops lessons that apply to nobody any more.
    fn expire(&mut self, now: Millis) {
        let terms = self.terms;
        for models in self.by_upstream.values_mut() {
            for entries in models.values_mut() {
                entries.retain_mut(|entry| {
                    // A recent end stays: notes from before it must not bring the lesson back.
                    let is_recent = entry.after().saturating_add(terms.life()) > now;
                    entry.expire(terms, now) > 0 || entry.is_shared() || is_recent
                });
            }
            models.retain(|_, entries| !entries.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::door::Door;

    #[test]
    fn lesson_is_written_once_day() {
        const NOW: Millis = 20_000 * DAY;
        let mut state = LessonState::new(LessonTerms::default());
        let tenant = "a".into();
        let (tenant, door) = (Some(&tenant), Door::Api);
        let source = LessonSource { tenant, upstream: "up", model: "m", door, vouched: true };
        let mut written = |now| {
            let about = LessonSubject::new(&source, Lesson::ReasoningBound, None);
            state.learn(&source, about, now).1.len()
        };
        assert_eq!([written(NOW), written(NOW + 5), written(NOW + DAY - 1)], [1, 0, 0]);
        assert_eq!([written(NOW + DAY), written(NOW + DAY + 1)], [1, 0]);
    }
}
