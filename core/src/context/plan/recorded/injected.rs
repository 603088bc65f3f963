//! Injected messages: where each of them stands in a request, and where the next one can.
//!
//! A place is found by content, as with cuts. Must not know which messages wait.

use std::sync::Arc;

use super::RecordedDecisions;
use crate::context::InjectedMessage;
use crate::context::ledger::BoundaryHash;
use crate::dialect::{PartIndex, PartKey, Role};

/// The end of a request's history, as far as the model has not replied to it.
pub(in crate::context) struct HistoryEnd {
    /// The newest part.
    pub(in crate::context) at: PartIndex,
    /// The key of decisions about that part.
    pub(in crate::context) about: u128,
    pub(in crate::context) boundary: Option<PartKey>,
}

impl RecordedDecisions {
    pub(super) fn find_injected(&mut self, injected: &Arc<InjectedMessage>) {
        let Some(injection) = injected.place() else { return };
        if injection.epoch != self.epoch {
            return;
        }
        let place = self.keyed_parts.iter().rposition(|keyed| keyed.about == injection.after.0);
        let Some(place) = place.or_else(|| self.joined(injection.boundary?)) else { return };
        self.injected.push((place, injected.clone()));
        // Ordered by the part that they follow, then by when they were queued.
        self.injected.sort_by_key(|(place, injected)| {
            (*place, injected.place().map(|injection| injection.number))
        });
    }

    fn joined(&self, boundary: PartKey) -> Option<usize> {
        let mut places =
            (1..self.keyed_parts.len()).filter(|place| self.boundary(*place) == Some(boundary));
        let place = places.next()?;
        // Of two, nobody can say which one it was.
        if places.next().is_none() { Some(place) } else { None }
    }

    fn boundary(&self, place: usize) -> Option<PartKey> {
        let previous = self.keyed_parts.get(place.checked_sub(1)?)?.key;
        Some(PartKey(BoundaryHash::new(previous, self.keyed_parts.get(place)?.key).0))
    }

    /// Where a message can be injected now: after the newest part, if the model has not replied to it.
    pub(in crate::context) fn end(&self) -> Option<HistoryEnd> {
        let place = self.keyed_parts.iter().rposition(|keyed| keyed.role != Role::System)?;
        let keyed = self.keyed_parts[place];
        match keyed.role {
            Role::User | Role::Tool => Some(HistoryEnd {
                at: keyed.at,
                about: keyed.about,
                boundary: self.boundary(place),
            }),
            Role::Assistant | Role::System => None,
        }
    }

    pub(in crate::context) fn is_injected(&self, id: &str) -> bool {
        self.injected.iter().any(|(_, injected)| *injected.id == *id)
    }

    pub(in crate::context) fn injected_at(
        &self,
        at: PartIndex,
    ) -> impl Iterator<Item = &InjectedMessage> {
        self.injected
            .iter()
            .filter(move |(place, _)| self.keyed_parts[*place].at == at)
            .map(|(_, message)| &**message)
    }

    pub(in crate::context) fn injected_in(
        &self,
        message: usize,
    ) -> impl Iterator<Item = &InjectedMessage> {
        self.injected
            .iter()
            .filter(move |(place, _)| self.keyed_parts[*place].at.message == message)
            .map(|(_, message)| &**message)
    }

    /// Messages injected in this request: the place that they follow, and all that follow it, in order.
    pub(in crate::context) fn injections(
        &self,
    ) -> impl Iterator<Item = (PartIndex, Vec<&InjectedMessage>)> {
        let from = self.kept_from();
        let groups = self.injected.chunk_by(|one, two| one.0 == two.0);
        let groups = groups.map(|group| {
            (
                self.keyed_parts[group[0].0].at,
                group.iter().map(|(_, injected)| &**injected).collect(),
            )
        });
        // Messages that a summary covers are not repeated.
        groups.filter(move |(at, _): &(_, Vec<&InjectedMessage>)| at.message >= from)
    }
}
