//! What is known about a request besides its content: its tenant, its model behind its upstream, its purpose.
//!
//! Made once, when the request was read, and shared from then on: by its plan, its turn and its record. Small, so that it
//! can be held as long as a response takes. Must not hold the body, nor anything that grows with it.

use std::sync::Arc;

use super::lesson_source;
use crate::config::Upstream;
use crate::context::policy::{Policy, ReasoningRule};
use crate::context::{ExchangeId, TenantId};
use crate::dialect::hints::ClientHints;
use crate::dialect::models::Model;
use crate::dialect::status::may_blame_content;
use crate::dialect::{ProviderError, Purpose, repair};
use crate::store::lessons::LessonSource;
use crate::telemetry::{RefusalOutcome, RefusalReport};
use crate::tokens::learn::EstimatorState;

/// A request without its content.
#[derive(Clone)]
pub(crate) struct RequestInfo {
    pub(crate) exchange: ExchangeId,
    /// Its tenant; `None` if unknown.
    pub(crate) tenant: Option<TenantId>,
    pub(crate) upstream: Arc<Upstream>,
    /// The model, as the client named it, if it named one.
    pub(crate) requested_model: Option<Box<str>>,
    /// What lessons about the model are kept under.
    pub(crate) lesson_model: Box<str>,
    pub(crate) model: Model,
    /// What responses taught about counting that model's tokens.
    pub(crate) learned: Arc<EstimatorState>,
    pub(crate) reasoning_rule: ReasoningRule,
    /// The provider refused to compact contexts of this model.
    pub(crate) compaction_refused: bool,
    /// The model's maximum output in tokens, learned from another request's refusal.
    pub(crate) learned_max_output: Option<u64>,
    pub(crate) policy: Arc<Policy>,
    /// As in [`PlanRequest`](crate::context::plan::PlanRequest).
    pub(crate) client_compacts: Option<bool>,
    pub(crate) purpose: Purpose,
    /// What the client said of it in headers.
    pub(crate) hints: Option<Box<ClientHints>>,
    /// The requested output limit, tokens.
    pub(crate) max_output: Option<u64>,
    /// All its cache markers ask for the long lifetime.
    pub(crate) long_cache: bool,
    /// Output tokens that are reserved.
    pub(crate) reserve: u64,
    /// The provider holds earlier history.
    pub(crate) is_held: bool,
    /// See [`repeated_calls`](crate::context::repeats::repeated_calls).
    pub(crate) repeated_calls: Option<u32>,
    /// The store did not return the lessons in time.
    pub(crate) lessons_missed: bool,
}

impl RequestInfo {
    /// The model, as the client named it; empty if it named none.
    pub(crate) fn model_name(&self) -> &str {
        self.requested_model.as_deref().unwrap_or_default()
    }

    pub(crate) fn lesson_source(&self) -> LessonSource<'_> {
        lesson_source(self.tenant.as_ref(), &self.upstream, &self.lesson_model, self.model.door)
    }

    /// Returns the window assumed so far.
    pub(crate) fn set_named_window(&mut self, window: u64, output_reserve: u64) -> u64 {
        let assumed = std::mem::replace(&mut self.model.window, window);
        self.reserve = self.model.reserve(output_reserve);
        assumed
    }

    /// What a refusal that was forwarded unread says could have been repaired. `error`: none if it is not in
    /// the protocol's form, such as a gateway's page.
    pub(crate) fn refusal(
        &self,
        status: u16,
        error: Option<&ProviderError>,
    ) -> Option<RefusalReport> {
        // The others do not blame what the request contains.
        if !may_blame_content(status) {
            return None;
        }
        let message = error.map(ProviderError::text).unwrap_or_default();
        let refusal = repair::read(&repair::RefusedAnswer { status, body: message.as_bytes() });
        if refusal.is_none() && self.is_held {
            // The provider no longer holds the history, and the client sends it whole (`docs/protocols.md` 1.3).
            return None;
        }
        Some(match refusal {
            Some(refusal) => {
                let outcome = match self.policy.heal.causes.contains(&refusal.cause) {
                    true => RefusalOutcome::Possible,
                    false => RefusalOutcome::NoRepair,
                };
                RefusalReport { causes: vec![refusal.cause], outcome }
            }
            None => RefusalReport { causes: Vec::new(), outcome: RefusalOutcome::Unknown },
        })
    }
}
