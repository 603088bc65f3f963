//! One lesson: the notes that it consists of, and for whom it applies.
//!
//! Notes are only added, in any order and by any process; the same notes give the same result. `now` is an
//! argument.

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use super::terms::{DAY, LessonLine, LessonScope, LessonSubject, LessonTerms};
use crate::context::{Millis, TenantId};

/// An event in the life of a lesson.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LessonEvent {
    /// A tenant met it.
    Met,
    /// The upstream accepted a request of the tenant that would not fit a window of that size.
    Outgrown,
    /// The operator made it apply to all.
    Shared,
    /// The operator forgot it.
    Forgotten,
}

impl LessonEvent {
    pub(super) fn is_operators(self) -> bool {
        matches!(self, Self::Shared | Self::Forgotten)
    }
}

/// An event of a lesson, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LessonNote {
    #[serde(flatten)]
    pub(super) about: LessonSubject,
    pub(super) event: LessonEvent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<TenantId>,
    pub(super) at: Millis,
    /// When the lesson was last forgotten or disproved: if it is met again after that, it is a new one.
    #[serde(default)]
    pub(super) after: Millis,
}

impl LessonNote {
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    pub(super) fn name(&self) -> String {
        // With the day in it, a tenant's lesson is stored once a day at most.
        let Self { about, event, tenant, at, after } = self;
        let tenant = tenant.as_ref().map(TenantId::as_str).unwrap_or_default();
        let when = match event {
            LessonEvent::Met => at / DAY,
            LessonEvent::Outgrown | LessonEvent::Shared | LessonEvent::Forgotten => *at,
        };
        format!("{} {event:?} {tenant} {when} {after}", about.id())
    }
}

/// What the notes of one lesson amount to.
pub(super) struct LessonEntry {
    pub(super) about: LessonSubject,
    /// The first and last time that each tenant met it.
    met: HashMap<TenantId, LessonSighting>,
    shared: Option<Millis>,
    forgotten: Millis,
    /// When it was last disproved.
    outgrown: Millis,
}

#[derive(Clone, Copy)]
struct LessonSighting {
    first: Millis,
    last: Millis,
}

impl LessonEntry {
    pub(super) fn new(about: LessonSubject) -> Self {
        Self { about, met: HashMap::default(), shared: None, forgotten: 0, outgrown: 0 }
    }

    pub(super) fn apply(&mut self, note: &LessonNote) {
        let LessonNote { event, tenant, at, .. } = note;
        let tenant = tenant.as_ref().map(TenantId::as_str).unwrap_or_default();
        let is_void = *at <= self.forgotten;
        match event {
            LessonEvent::Forgotten => {
                self.forgotten = self.forgotten.max(*at);
                self.met.retain(|_, met| met.last > *at);
                self.shared = self.shared.filter(|shared| shared > at);
            }
            _ if is_void => {}
            LessonEvent::Shared => self.shared = self.shared.max(Some(*at)),
            LessonEvent::Met => {
                let begins = LessonSighting { first: *at, last: *at };
                let met = self.met.entry(tenant.into()).or_insert(begins);
                met.last = met.last.max(*at);
            }
            LessonEvent::Outgrown => {
                self.outgrown = self.outgrown.max(*at);
                self.met.retain(|whose, met| *whose != tenant || met.last > *at);
            }
        }
    }

    /// When a tenant last met it, if that still applies.
    pub(super) fn own(
        &self,
        tenant: Option<&TenantId>,
        terms: LessonTerms,
        now: Millis,
    ) -> Option<Millis> {
        let sighting = self.met.get(tenant?)?;
        let expires = sighting.last.saturating_add(terms.life());
        if expires > now { Some(sighting.last) } else { None }
    }

    pub(super) fn is_met_by(&self, tenant: &TenantId) -> bool {
        self.met.contains_key(tenant)
    }

    /// Whether it applies to tenants that never met it.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub(super) fn after(&self) -> Millis {
        self.forgotten.max(self.outgrown)
    }

    /// Drops tenants for whom it has expired; returns how many are left.
    pub(super) fn expire(&mut self, terms: LessonTerms, now: Millis) -> usize {
        self.met.retain(|_, met| met.last.saturating_add(terms.life()) > now);
        self.met.len()
    }

    pub(super) fn tenants(&self) -> usize {
        self.met.len()
    }

    /// The lesson as it is listed; `None` if it applies to nobody.
    pub(super) fn line(&self, terms: LessonTerms, now: Millis) -> Option<LessonLine> {
        let life = terms.life();
        let met: Vec<&LessonSighting> =
            self.met.values().filter(|met| met.last.saturating_add(life) > now).collect();
        let since = met.iter().map(|met| met.first).chain(self.shared).min()?;
        let reach = if self.is_shared() { LessonScope::Shared } else { LessonScope::Tenants };
        let last_met = met.iter().map(|met| met.last).max().unwrap_or(0);
        let ends = last_met.saturating_add(life);
        let LessonSubject { upstream, model, lesson, believed, door } = &self.about;
        Some(LessonLine {
            id: self.about.id(),
            upstream: upstream.to_string(),
            model: model.to_string(),
            lesson: *lesson,
            believed: *believed,
            door: *door,
            tenants: met.len(),
            since,
            expires: (reach != LessonScope::Shared).then_some(ends),
            reach,
        })
    }
}
