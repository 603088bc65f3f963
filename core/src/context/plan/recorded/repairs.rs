//! Changes that answer refusals: which of them apply to a request.
//!
//! They apply to the upstream and model that refused. Must not know what they change.

use std::sync::Arc;

use super::RecordedDecisions;
use super::branch::Branch;
use crate::context::ledger::Ledger;
use crate::context::plan::PlanRequest;
use crate::context::repair::RepairDecision;
use crate::dialect::PartKey;
use crate::dialect::repair::Repair;

impl RecordedDecisions {
    pub(super) fn find_repairs(&mut self, ledger: &Ledger, branch: &Branch<'_>) {
        for repair in ledger.repairs() {
            if branch.has_repair(repair) {
                self.add_repair(repair.clone());
            }
        }
    }

    pub(super) fn add_repair(&mut self, one: Arc<RepairDecision>) {
        if self.repairs.iter().all(|other| other.about != one.about) {
            self.repairs.push(one);
            // If two replace the same image, the smaller one comes first and is used.
            self.repairs.sort_by_key(|one| {
                let size = match &one.repair {
                    Repair::Picture { data, .. } => data.len(),
                    _ => 0,
                };
                (one.repair.order(), size, one.about)
            });
        }
    }

    pub(in crate::context) fn repairs_of<'k>(
        &'k self,
        request: &PlanRequest<'_>,
    ) -> impl Iterator<Item = &'k RepairDecision> {
        self.repairs.iter().map(|one| &**one).filter(|one| one.is_for(request))
    }

    pub(in crate::context) fn has_text_for(&self, request: &PlanRequest<'_>, key: PartKey) -> bool {
        self.repairs_of(request)
            .any(|one| matches!(&one.repair, Repair::Media { part, .. } if *part == key))
    }

    /// The base64 data of the smaller image that replaces another.
    pub(in crate::context) fn smaller_picture(
        &self,
        request: &PlanRequest<'_>,
        key: PartKey,
    ) -> Option<&str> {
        self.repairs_of(request).find_map(|one| match &one.repair {
            Repair::Picture { part, data } if *part == key => Some(&**data),
            _ => None,
        })
    }
}
