//! Makes the decision to change what a provider refused, for one model and upstream.
//!
//! One change has one key, whoever decided it, so that it is stored once.

use xxhash_rust::xxh3::xxh3_128;

use crate::context::plan::PlanRequest;
use crate::context::records::RepairDecision;
use crate::dialect::PartKey;
use crate::dialect::repair::Repair;

impl RepairDecision {
    pub(super) fn new(request: &PlanRequest<'_>, repair: Repair) -> Self {
        let text = format!("{}\n{}\n{}", identity(&repair), request.name, request.upstream);
        Self {
            about: PartKey(xxh3_128(text.as_bytes())),
            at: request.now,
            exchange: request.exchange.clone(),
            model: request.name.into(),
            upstream: request.upstream.into(),
            repair,
            epoch: None,
        }
    }

    pub(crate) fn is_for(&self, request: &PlanRequest<'_>) -> bool {
        *self.model == *request.name && *self.upstream == *request.upstream
    }
}

fn identity(repair: &Repair) -> String {
    // The inserted text is left out, because it may differ in another version.
    let cause = repair.cause();
    let word: &str = cause.as_ref();
    match repair {
        Repair::Media { part, .. } | Repair::Prefill { part, .. } => format!("{word} {part}"),
        Repair::Picture { part, data } => format!("picture {part} {}", data.len()),
        Repair::Field { place } => format!("{word} {place}"),
        Repair::MaxTokens { most } => format!("{word} {most}"),
        Repair::OutputFits { window } => format!("{word} window {window}"),
        Repair::ToolIds { length } => format!("{word} {length:?}"),
        Repair::CacheMarks { most } => format!("{word} {most}"),
        Repair::ToolReferences => format!("{word} references"),
        Repair::Empty { .. } | Repair::Unicode | Repair::ToolPairs { .. } => word.to_owned(),
    }
}
