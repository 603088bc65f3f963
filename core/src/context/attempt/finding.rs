//! What the responses to a request's forms showed, and what is remembered of that: the decisions that no longer
//! apply, and the lesson about the model.
//!
//! The table of the consequences; [`super::next`] returns the findings. Pure.

use super::context::AttemptContext;
use crate::context::Renewal;
use crate::dialect::lesson::Lesson;
use crate::dialect::refusal::RefusalCause;

/// What a response showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFinding {
    /// The repaired form was final.
    Repaired {
        /// Whether the provider accepted it.
        accepted: bool,
    },
    /// The repaired form was refused, either for the same thing, or for something that no edit can fix; in
    /// the latter case the repair may be decided again.
    RepairRefused(Renewal),
    /// The request does not fit. The repairs so far are kept, unless the last one was refused.
    Overflow {
        /// The last repair was refused for something else: as for [`AttemptFinding::RepairRefused`].
        refused_repair: Option<Renewal>,
    },
    /// The form with room was final.
    RoomMade {
        /// Whether the provider accepted it.
        accepted: bool,
    },
    /// The form with room was refused for this cause.
    RoomRefused(RefusalCause),
    /// Only the original was accepted: our changes, or what we requested, were refused for this cause.
    ChangeRefused(RefusalCause),
    /// No form was accepted. The planned form was refused for `cause`; `of_original` is `None` if the original
    /// was not judged, because it failed.
    AllRefused {
        /// The cause that the first refusal named.
        cause: RefusalCause,
        /// The cause that the refusal of the original named, if it was refused.
        of_original: Option<RefusalCause>,
    },
    /// The planned form was refused for this cause, and the original was refused too. A form that may be accepted got
    /// no response, so whether our changes are at fault is unknown.
    Unsettled(RefusalCause),
    /// The form without the request's own decisions was final; with them, it was refused for `cause`.
    OwnDecisionsRefused {
        /// The cause that the first refusal named.
        cause: RefusalCause,
        /// Whether the provider accepted it without them.
        accepted: bool,
    },
}

/// What is remembered after a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consequence {
    /// The decisions that no longer apply.
    pub revokes: Option<RevocationScope>,
    /// The lesson about the model, if the provider's message teaches one.
    pub lesson: Option<Lesson>,
}

/// Which decisions no longer apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationScope {
    /// All decisions so far, in requests that continue this one.
    InBranch,
    /// The last repair.
    Repair(Renewal),
    /// The cuts that made room.
    Room(Renewal),
    /// The request's decisions that the last accepted request did not have.
    Own(Renewal),
    /// All decisions of the request.
    All(Renewal),
}

impl AttemptFinding {
    /// What is remembered after this finding.
    pub fn consequence(self, context: AttemptContext<'_>) -> Consequence {
        match self {
            AttemptFinding::Overflow { refused_repair: None }
            | AttemptFinding::RoomMade { .. }
            | AttemptFinding::Repaired { .. }
            | AttemptFinding::Unsettled(_) => Consequence::default(),
            AttemptFinding::RepairRefused(renewal)
            | AttemptFinding::Overflow { refused_repair: Some(renewal) } => {
                Consequence { revokes: Some(RevocationScope::Repair(renewal)), lesson: None }
            }
            AttemptFinding::RoomRefused(cause) => Consequence {
                revokes: Some(RevocationScope::Room(renewal(cause))),
                lesson: of_the_model(cause),
            },
            AttemptFinding::ChangeRefused(_) | AttemptFinding::AllRefused { .. }
                if context.is_count =>
            {
                Consequence::default()
            }
            AttemptFinding::ChangeRefused(cause) => {
                let mut consequence = Consequence::default();
                if context.is_rewritten && !cause.is_beside() {
                    consequence.revokes = Some(RevocationScope::InBranch);
                }
                let mut added = context.added.iter().find(|added| added.cause == cause);
                if added.is_none() && !context.is_rewritten {
                    // Nothing else was changed, so what we requested caused the refusal.
                    added = context.added.first();
                }
                consequence.lesson = match added {
                    Some(added) => Some(added.lesson),
                    None if context.is_rewritten => of_what_is_sent(cause).or(of_the_model(cause)),
                    None => None,
                };
                consequence
            }
            AttemptFinding::AllRefused { .. } if !context.is_rewritten => Consequence::default(),
            AttemptFinding::AllRefused { cause, of_original } => {
                let is_own_fault = of_original == Some(cause) && cause.is_own_fault();
                let is_innocent = is_own_fault || cause.is_beside();
                // Never again, so that not every request of the session is refused.
                let revokes =
                    if is_innocent { None } else { Some(RevocationScope::All(Renewal::Never)) };
                let lesson = match of_original == Some(cause) {
                    // What the original is refused for, too, is true of the model without our changes.
                    true => of_what_is_sent(cause).or(of_the_model(cause)),
                    // So is this, whoever changed what the reasoning is bound to.
                    false => of_the_model(cause).filter(|lesson| *lesson == Lesson::ReasoningBound),
                };
                Consequence { revokes, lesson }
            }
            AttemptFinding::OwnDecisionsRefused { cause, accepted } => {
                let again = if accepted { renewal(cause) } else { Renewal::Next };
                // The accepted form still had reasoning put back.
                let lesson = of_what_is_sent(cause).filter(|lesson| {
                    let is_disproved =
                        *lesson == Lesson::ReasoningRefused && context.has_reasoning_back;
                    accepted && !is_disproved
                });
                let lesson = lesson.or(of_the_model(cause));
                Consequence { revokes: Some(RevocationScope::Own(again)), lesson }
            }
        }
    }
}

fn renewal(cause: RefusalCause) -> Renewal {
    // What was learned prevents the next refusal; without a lesson, only a cold cache is a fresh
    // start.
    if cause.teaches() { Renewal::Next } else { Renewal::Cold }
}

/// What a refusal with this cause shows about the model, whoever caused it.
fn of_the_model(cause: RefusalCause) -> Option<Lesson> {
    match cause {
        RefusalCause::Bound => Some(Lesson::ReasoningBound),
        RefusalCause::ReasoningDemanded => Some(Lesson::ReasoningDemanded),
        _ => None,
    }
}

/// What a refusal with this cause shows about our changes, if they caused it.
fn of_what_is_sent(cause: RefusalCause) -> Option<Lesson> {
    match cause {
        RefusalCause::ReasoningRefused => Some(Lesson::ReasoningRefused),
        RefusalCause::Compaction => Some(Lesson::CompactionRefused),
        _ => None,
    }
}
