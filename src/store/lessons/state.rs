//! Lessons in memory: found by upstream and model, bounded, and counted again when one changes.
//!
//! Pure, except for its own state. Every request asks it, so common questions take two look-ups.

use std::collections::VecDeque;

use foldhash::HashMap;
use xxhash_rust::xxh3::xxh3_64;

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
    /// It is new to the tenant, and now enough tenants agree, so that it applies to all.
    Agreed,
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
/// Most tenants and models whose accepted requests are remembered; past it, the oldest is dropped until its
/// next accepted request.
const ANSWERED: usize = 16_384;
/// How many times a window can be corrected.
const CORRECTIONS: usize = 8;

/// All lessons that are loaded.
pub(super) struct LessonState {
    terms: LessonTerms,
    by_upstream: HashMap<Box<str>, HashMap<Box<str>, Vec<LessonEntry>>>,
    /// Tenants with an accepted request at an upstream, and the most tokens that a model accepted: by hash,
    /// with the time.
    answered: HashMap<u64, (u64, Millis)>,
    /// The keys of `answered`, in the order of arrival.
    came: VecDeque<u64>,
    is_loaded: bool,
    due: Millis,
}

impl LessonState {
    pub(super) fn new(terms: LessonTerms) -> Self {
        let (by_upstream, answered, came) = Default::default();
        Self { terms, by_upstream, answered, came, is_loaded: false, due: 0 }
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

    /// Applies stored notes in the order of time.
    pub(super) fn apply(&mut self, mut notes: Vec<LessonNote>, now: Millis) {
        notes.sort_by_key(|note| (note.at, note.event));
        for note in &notes {
            self.entry(&note.about).apply(note);
        }
        self.expire(now);
        for note in &notes {
            self.count(&note.about, now);
        }
    }

    pub(super) fn holds(&self, source: &LessonSource<'_>, lesson: Lesson, now: Millis) -> bool {
        let model = if lesson.is_about_all_models() { "" } else { source.model };
        let mut entries = self.of(source.upstream, model).iter();
        entries.any(|entry| {
            let own = || entry.own(source.tenant, self.terms, now).is_some();
            entry.about.lesson == lesson && (entry.is_for_all(now) || own())
        })
    }

    /// The window after corrections: what the upstream said instead of `believed`, then instead of that, and
    /// so on.
    pub(super) fn window(&self, source: &LessonSource<'_>, believed: u64, now: Millis) -> u64 {
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

    /// The most output that may be asked for.
    pub(super) fn max_output(&self, source: &LessonSource<'_>, now: Millis) -> Option<u64> {
        self.limit(source, now, |about| match about.lesson {
            Lesson::MaxOutput(most) => Some(most),
            _ => None,
        })
    }

    /// The window that corrects this one.
    fn correction(&self, source: &LessonSource<'_>, believed: u64, now: Millis) -> Option<u64> {
        self.limit(source, now, |about| match about.lesson {
            Lesson::Window(window) if about.believed == Some(believed) => Some(window),
            _ => None,
        })
    }

    /// The limit that applies, of those that `read` finds in lessons. What the tenant met last comes before what
    /// applies to all; of that, the smallest.
    fn limit(
        &self,
        source: &LessonSource<'_>,
        now: Millis,
        read: impl Fn(&LessonSubject) -> Option<u64>,
    ) -> Option<u64> {
        let (mut own, mut shared): (Option<(Millis, u64)>, Option<u64>) = (None, None);
        for entry in self.of(source.upstream, source.model) {
            let Some(limit) = read(&entry.about) else { continue };
            own = own.max(entry.own(source.tenant, self.terms, now).map(|at| (at, limit)));
            if entry.is_for_all(now) {
                shared = Some(shared.map_or(limit, |other| other.min(limit)));
            }
        }
        own.map(|(_, limit)| limit).or(shared)
    }

    /// Learns a lesson; returns the result and the notes to store.
    pub(super) fn learn(
        &mut self,
        source: &LessonSource<'_>,
        about: LessonSubject,
        now: Millis,
    ) -> (LessonOffer, Vec<LessonNote>) {
        let is_new = about.lesson != Lesson::Window(about.believed.unwrap_or(0));
        let Some(tenant) = source.tenant.filter(|_| is_new) else {
            return (LessonOffer::Nothing, Vec::new());
        };
        let before = self.find(&about).and_then(|it| it.own(Some(tenant), self.terms, now));
        if before.is_none() && !self.has_room(&about, tenant, now) {
            return (LessonOffer::Full, Vec::new());
        }
        let is_answered = self.was_answered(tenant, source.upstream, now);
        let entry = self.entry(&about);
        let was_for_all = entry.is_for_all(now);
        let after = entry.after();
        // What was forgotten in this millisecond stays forgotten.
        let at = now.max(after.saturating_add(1));
        let met = LessonNote {
            about: about.clone(),
            event: LessonEvent::Met,
            tenant: Some(tenant.clone()),
            at,
            after,
        };
        let answered =
            is_answered.then(|| LessonNote { event: LessonEvent::Answered, ..met.clone() });
        let mut notes: Vec<LessonNote> = [met].into_iter().chain(answered).collect();
        notes.iter().for_each(|note| entry.apply(note));
        self.count(&about, now);
        let is_agreed = self.find(&about).is_some_and(|entry| entry.is_agreed(now));
        if before.is_some_and(|before| before / DAY == at / DAY) {
            // It is already stored.
            notes.clear();
        }
        let outcome = match () {
            () if is_agreed && !was_for_all => LessonOffer::Agreed,
            () if before.is_some() => LessonOffer::Known,
            () => LessonOffer::New,
        };
        (outcome, notes)
    }

    /// Records an accepted request; returns the notes to store.
    pub(super) fn answered(
        &mut self,
        source: &LessonSource<'_>,
        held: Option<u64>,
        now: Millis,
    ) -> Vec<LessonNote> {
        let LessonSource { tenant: Some(tenant), upstream, model, vouched } = *source else {
            return Vec::new();
        };
        let is_first = vouched && !self.was_answered(tenant, upstream, now);
        if vouched {
            self.remember(named(&[tenant.as_str(), upstream]), 0, now);
        }
        if let Some(held) = held {
            self.remember(most(upstream, model), held, now);
        }
        let terms = self.terms;
        let Some(models) = self.by_upstream.get_mut(upstream) else { return Vec::new() };
        let mut notes = Vec::new();
        let note = |about: &LessonSubject, event, after| {
            let (about, tenant) = (about.clone(), Some(tenant.clone()));
            LessonNote { about, event, tenant, at: now, after }
        };
        if is_first {
            let uncounted = models.values_mut().flatten().filter(|it| !it.is_counted(tenant));
            notes.extend(uncounted.map(|it| note(&it.about, LessonEvent::Answered, it.after())));
        }
        let entries = models.get_mut(model).map_or(&mut [][..], |entries| entries.as_mut_slice());
        let outgrown = entries.iter().filter(|entry| {
            let is_small = matches!(entry.about.lesson, Lesson::Window(it) if held.is_some_and(|held| held > it));
            let is_used = entry.own(Some(tenant), terms, now).is_some() || entry.is_agreed(now);
            is_small && is_used
        });
        notes.extend(outgrown.map(|it| note(&it.about, LessonEvent::Outgrown, it.after())));
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
        let all = self.by_upstream.values().flat_map(HashMap::values).flatten();
        let about = all
            .filter(|entry| entry.line(terms, now).is_some())
            .find(|entry| entry.about.id() == id)?
            .about
            .clone();
        let note = LessonNote { about: about.clone(), event, tenant: None, at: now, after: 0 };
        self.entry(&about).apply(&note);
        self.count(&about, now);
        Some(note)
    }

    pub(super) fn list(&self, now: Millis) -> Vec<LessonLine> {
        let all = self.by_upstream.values().flat_map(HashMap::values).flatten();
        let mut lines: Vec<LessonLine> =
            all.filter_map(|entry| entry.line(self.terms, now)).collect();
        lines.sort_by(|a, b| b.since.cmp(&a.since).then_with(|| a.id.cmp(&b.id)));
        lines
    }

    fn of(&self, upstream: &str, model: &str) -> &[LessonEntry] {
        let models = self.by_upstream.get(upstream);
        models.and_then(|models| models.get(model)).map_or(&[], Vec::as_slice)
    }

    fn find(&self, about: &LessonSubject) -> Option<&LessonEntry> {
        self.of(&about.upstream, &about.model).iter().find(|entry| entry.about == *about)
    }

    fn entry(&mut self, about: &LessonSubject) -> &mut LessonEntry {
        let models = self.by_upstream.entry(about.upstream.clone()).or_default();
        let entries = models.entry(about.model.clone()).or_default();
        let at = entries.iter().position(|entry| entry.about == *about);
        let at = at.unwrap_or_else(|| {
            entries.push(LessonEntry::new(about.clone()));
            entries.len() - 1
        });
        &mut entries[at]
    }

    fn count(&mut self, about: &LessonSubject, now: Millis) {
        let terms = self.terms;
        let held = self.answered.get(&most(&about.upstream, &about.model)).copied();
        let is_fresh = |at: Millis| at.saturating_add(terms.life()) > now;
        let is_contradicted = match (about.lesson, held) {
            (Lesson::Window(window), Some((held, at))) => held > window && is_fresh(at),
            _ => false,
        };
        let models = self.by_upstream.get_mut(&about.upstream);
        let entries = models.and_then(|models| models.get_mut(&about.model));
        let entry = entries.into_iter().flatten().find(|entry| entry.about == *about);
        entry.into_iter().for_each(|entry| entry.count(terms, is_contradicted));
    }

    /// Whether another lesson fits; expired ones make room.
    fn has_room(&mut self, about: &LessonSubject, tenant: &TenantId, now: Millis) -> bool {
        if self.fits(about, tenant) {
            return true;
        }
        self.expire(now);
        self.fits(about, tenant)
    }

    fn fits(&self, about: &LessonSubject, tenant: &TenantId) -> bool {
        let all = || self.by_upstream.values().flat_map(HashMap::values).flatten();
        let is_new = self.find(about).is_none();
        about.model.len() <= NAME_BYTES
            && !(is_new && self.of(&about.upstream, &about.model).len() >= OF_MODEL)
            && all().filter(|entry| entry.is_met_by(tenant)).count() < OF_TENANT
            && all().map(LessonEntry::tenants).sum::<usize>() < MEETINGS
    }

    /// Drops lessons that apply to nobody any more.
    fn expire(&mut self, now: Millis) {
        let terms = self.terms;
        for models in self.by_upstream.values_mut() {
            for entries in models.values_mut() {
                entries.retain_mut(|entry| {
                    let is_recent = entry.after().saturating_add(terms.life()) > now;
                    entry.expire(terms, now) > 0 || entry.is_shared() || is_recent
                });
            }
            models.retain(|_, entries| !entries.is_empty());
        }
    }

    fn was_answered(&self, tenant: &TenantId, upstream: &str, now: Millis) -> bool {
        let known = self.answered.get(&named(&[tenant.as_str(), upstream]));
        known.is_some_and(|(_, at)| at.saturating_add(self.terms.life()) > now)
    }

    /// Remembers the most tokens that were accepted lately, and when.
    fn remember(&mut self, what: u64, held: u64, now: Millis) {
        if !self.answered.contains_key(&what) {
            if self.answered.len() >= ANSWERED {
                self.came.pop_front().and_then(|first| self.answered.remove(&first));
            }
            self.came.push_back(what);
        }
        let life = self.terms.life();
        let known = self.answered.entry(what).or_insert((held, now));
        if held >= known.0 || known.1.saturating_add(life) <= now {
            *known = (held, now);
        }
    }
}

fn named(names: &[&str]) -> u64 {
    xxh3_64(names.join("\n").as_bytes())
}

/// The key for the most tokens that a model accepted from anybody.
fn most(upstream: &str, model: &str) -> u64 {
    named(&["", upstream, model])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lesson_that_is_met_again_the_same_day_is_not_written_again() {
        const NOW: Millis = 20_000 * DAY;
        let mut state = LessonState::new(LessonTerms::default());
        let tenant = "a".into();
        let source =
            LessonSource { tenant: Some(&tenant), upstream: "up", model: "m", vouched: true };
        let mut written = |now| {
            let (upstream, model, lesson) = ("up".into(), "m".into(), Lesson::ReasoningBound);
            let about = LessonSubject { upstream, model, lesson, believed: None };
            state.learn(&source, about, now).1.len()
        };
        assert_eq!([written(NOW), written(NOW + 5), written(NOW + DAY - 1)], [1, 0, 0]);
        assert_eq!([written(NOW + DAY), written(NOW + DAY + 1)], [1, 0]);
    }

    #[test]
    fn a_full_table_of_accepted_requests_drops_the_oldest_entry() {
        let mut state = LessonState::new(LessonTerms::default());
        (0..=ANSWERED as u64).for_each(|what| state.remember(what, 0, 1));
        state.remember(7, 0, 2);
        assert_eq!((state.answered.len(), state.came.len()), (ANSWERED, ANSWERED));
        assert!(!state.answered.contains_key(&0) && state.answered.contains_key(&1));
    }
}
