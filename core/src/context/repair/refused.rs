//! A request that was refused, as every kind of repair sees it; and the fact that a repair becomes.
//!
//! Chooses no repair: `repair` does, with `output`, `pictures`, `smaller` and `thoughts`.

use crate::context::Fact;
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::records::RepairDecision;
use crate::dialect::repair::path::PathTarget;
use crate::dialect::repair::{Refusal, Repair};
use crate::wire::json::Document;
use crate::wire::splice::Edit;

/// A request that was refused.
pub(super) struct RefusedRequest<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) known: &'a RecordedDecisions,
    pub(super) refusal: &'a Refusal,
    /// The body that was sent.
    pub(super) sent: &'a [u8],
    /// The edits that made it from the client's body.
    pub(super) edits: &'a [Edit],
}

impl RefusedRequest<'_> {
    /// The place that the refusal names; an error if it does not exist.
    pub(super) fn place(&self) -> Result<Option<PathTarget>, ()> {
        let Some(path) = &self.refusal.place else { return Ok(None) };
        let document = Document::read(self.sent).unwrap_or_default();
        let target = document.root(self.sent).and_then(|root| path.find(root));
        target.map(Some).ok_or(())
    }
}

pub(super) fn decided(request: &PlanRequest<'_>, repair: Repair) -> Fact {
    Fact::Repair(Box::new(RepairDecision::new(request, repair)))
}
