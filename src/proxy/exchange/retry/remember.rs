//! What is remembered of the responses to a request's forms: reported now, and stored, so that the next request is
//! not refused for the same.

use super::Retry;
use crate::context::Fact;
use crate::context::attempt::{AttemptFinding, RevocationScope};
use crate::dialect::PartKey;
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;
use crate::telemetry::{LessonOutcome, RefusalOutcome};

impl Retry<'_> {
    pub(super) async fn remember(&mut self, finding: AttemptFinding) {
        if let AttemptFinding::ChangeRefused(cause)
        | AttemptFinding::AllRefused { cause, .. }
        | AttemptFinding::Unsettled(cause) = finding
        {
            self.record_original_sent(cause).await;
        }
        if let (AttemptFinding::ChangeRefused(_), Some(placed)) = (finding, &mut self.placed) {
            placed.is_blamed = true;
        }
        let left_out = self.record_form(finding).await;
        if let AttemptFinding::ChangeRefused(cause)
        | AttemptFinding::OwnDecisionsRefused { cause, accepted: true } = finding
        {
            self.recorder.event.refused = Some(cause);
        }
        let consequence = finding.consequence(self.context());
        let fact = consequence.revokes.and_then(|scope| self.revocation(scope, left_out));
        // The newest refusal may be that of the request with room, whose message teaches something else.
        let is_of_room = matches!(finding, AttemptFinding::RoomRefused(_));
        let taught = if is_of_room { &self.room_taught } else { &self.planned_taught };
        self.store(consequence.lesson, taught.clone(), fact).await;
    }

    /// Returns the keys of the decisions that the final form left out.
    async fn record_form(&mut self, finding: AttemptFinding) -> Vec<PartKey> {
        let Some(placed) = &mut self.placed else { return Vec::new() };
        match (finding, &self.overflow) {
            (AttemptFinding::Repaired { accepted }, _) => {
                let causes = if accepted { &self.repair_causes[..] } else { &[] };
                if let Some(repaired) = self.repaired.take() {
                    placed.set_repaired(repaired, causes, self.recorder);
                }
                if causes.contains(&RepairCause::MaxTokens) {
                    placed.learn_max_output(&self.output_taught, self.recorder).await;
                }
                let outcome = match accepted {
                    true => RefusalOutcome::Healed,
                    false => RefusalOutcome::Unanswered,
                };
                self.recorder.report_refusal(&self.repair_causes, outcome);
            }
            (AttemptFinding::RepairRefused(_), _) => {
                let causes = &self.repair_causes;
                self.recorder.report_refusal(causes, RefusalOutcome::RefusedAgain);
            }
            (AttemptFinding::Overflow { refused_repair }, Some((overflow, taught))) => {
                if refused_repair.is_some() {
                    let causes = &self.repair_causes;
                    self.recorder.report_refusal(causes, RefusalOutcome::RefusedAgain);
                    // The newest repair was refused: room is made in the form before it.
                    self.repaired = self.repaired_before.take();
                }
                // Room is made in the request with its repairs.
                if let Some(repaired) = self.repaired.take() {
                    placed.set_repaired(repaired, &[], self.recorder);
                }
                placed.record_overflow(*overflow, taught, self.recorder).await;
            }
            (AttemptFinding::RoomMade { accepted }, _) => {
                if let Some(room) = self.room.take() {
                    placed.set_room(room, accepted, self.recorder);
                }
            }
            (AttemptFinding::OwnDecisionsRefused { cause, .. }, _) => {
                if let Some(revised) = self.last_accepted.take() {
                    return placed.set_sent_as_last_accepted(revised, cause, self.recorder);
                }
            }
            _ => {}
        }
        Vec::new()
    }

    async fn record_original_sent(&mut self, cause: RefusalCause) {
        let cause = if self.original.is_rewritten { Some(cause) } else { None };
        self.recorder.record_resent(cause);
        if let Some(placed) = &mut self.placed {
            placed.set_sent_as_original(cause, self.recorder).await;
        }
    }

    /// The fact that decisions no longer apply. `left_out`: those that the last accepted request did not have.
    fn revocation(&mut self, scope: RevocationScope, left_out: Vec<PartKey>) -> Option<Fact> {
        let placed = self.placed.as_mut()?;
        match scope {
            RevocationScope::InBranch => Some(placed.suspend_branch()),
            RevocationScope::Room(renewal) => {
                let room = self.room.as_ref()?;
                placed.revoke(room.decided_beyond(Some(&placed.planned)), renewal)
            }
            RevocationScope::Own(renewal) => placed.revoke(left_out, renewal),
            RevocationScope::Repair(renewal) => {
                placed.revoke(self.repair_decisions.pop()?, renewal)
            }
            RevocationScope::All(renewal) => {
                let mut keys = placed.planned.decided_beyond(None);
                let repairs = std::mem::take(&mut self.repair_decisions).concat();
                for key in repairs {
                    // A repair may be among its own decisions, too.
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
                placed.revoke(keys, renewal)
            }
        }
    }

    /// `lesson`: the one that a refusal's cause points to, learned if its message teaches it. `fact`: about decisions.
    async fn store(&self, lesson: Option<Lesson>, taught: LessonMatch, fact: Option<Fact>) {
        if lesson.is_none() && fact.is_none() {
            return;
        }
        let proxy = self.recorder.proxy.clone();
        let info = self.info.clone();
        let session = self.placed.as_deref().map(|placed| placed.opened.handle());
        // Stored, it survives restarts. If the store cannot do it in time, another request will be refused.
        let storing = self.recorder.proxy.store_in_time(async move {
            if let (Some(session), Some(fact)) = (session, fact) {
                let _ = proxy.ledgers.store_fact(&session, fact).await;
            }
            let Some(lesson) = lesson else { return };
            if taught.holds(lesson) {
                return proxy.learn(&info.lesson_source(), lesson, None).await;
            }
            let is_quoted = taught.quoted.contains(&lesson);
            let why = if is_quoted { LessonOutcome::Quoted } else { LessonOutcome::Unknown };
            proxy.telemetry.lesson(&info.upstream.name, why);
        });
        storing.await;
    }
}
