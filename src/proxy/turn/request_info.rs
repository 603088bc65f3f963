//! What is known about a request besides its content: its tenant, model and purpose.
//!
//! Small, so that it can be held as long as a response takes. Must not hold the body, nor anything that grows
//! with it.

use std::sync::Arc;

use crate::config::Upstream;
use crate::context::policy::Policy;
use crate::context::{EstimateMethod, TenantId};
use crate::dialect::lesson::LessonMatch;
use crate::dialect::models::Model;
use crate::dialect::{ProviderError, Purpose, repair};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::{Proxy, lesson_source};
use crate::store::lessons::LessonSource;
use crate::telemetry::{LessonOutcome, RefusalOutcome, RefusalReport};

/// A window is not believed if it contradicts an estimate by more than this factor.
const DOUBT: u64 = 3;

/// A request without its content.
#[derive(Clone)]
pub(crate) struct RequestInfo {
    /// Its tenant; `None` if unknown.
    pub(super) tenant: Option<TenantId>,
    pub(crate) upstream: Arc<Upstream>,
    /// The model, as the client named it; empty if it named none.
    pub(crate) model_name: Box<str>,
    /// What lessons about the model are kept under.
    lesson_model: Box<str>,
    pub(crate) model: Model,
    pub(crate) purpose: Purpose,
    /// Output tokens that are reserved.
    pub(crate) reserve: u64,
    /// The requested output limit, tokens.
    pub(crate) max_output: Option<u64>,
    /// The provider holds earlier history.
    pub(crate) is_held: bool,
    /// See [`repeated_calls`](crate::context::repeats::repeated_calls).
    pub(crate) repeated_calls: Option<u32>,
    policy: Arc<Policy>,
}

impl RequestInfo {
    pub(crate) fn new(prepared: &PreparedRequest) -> Self {
        let conversation = &prepared.conversation;
        Self {
            tenant: prepared.tenant.clone(),
            upstream: prepared.upstream.clone(),
            model_name: prepared.model_name().into(),
            lesson_model: prepared.lesson_model.clone(),
            model: prepared.model.clone(),
            purpose: conversation.purpose,
            reserve: prepared.reserve,
            max_output: conversation.max_output,
            is_held: conversation.held.is_some(),
            repeated_calls: prepared.repeated_calls,
            policy: prepared.policy.clone(),
        }
    }

    /// What a refusal that was forwarded unread says could have been repaired. `error`: none if it is not in
    /// the protocol's form, such as a gateway's page.
    pub(super) fn refusal(
        &self,
        status: u16,
        error: Option<&ProviderError>,
    ) -> Option<RefusalReport> {
        if !matches!(status, 400 | 413 | 422) {
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

    pub(crate) fn lesson_source(&self) -> LessonSource<'_> {
        lesson_source(self.tenant.as_ref(), &self.upstream, &self.lesson_model, self.model.door)
    }

    /// `estimate`: that of the request as sent.
    pub(super) fn window_to_learn(
        &self,
        taught: &LessonMatch,
        estimate: Option<(u64, EstimateMethod)>,
        proxy: &Proxy,
    ) -> Option<u64> {
        proxy.count_quoted(&self.upstream.name, taught);
        let window = taught.window()?;
        // Lessons that are not learned are counted.
        if !is_plausible(window, self, estimate) {
            proxy.telemetry.lesson(&self.upstream.name, LessonOutcome::Implausible);
            return None;
        }
        Some(window)
    }
}

fn is_plausible(
    window: u64,
    request: &RequestInfo,
    estimate: Option<(u64, EstimateMethod)>,
) -> bool {
    // The tokens sent and the output requested must have been too large for it. If the provider holds the
    // history, its size is unknown here, so any window is plausible.
    let Some((tokens, method)) = estimate else { return true };
    if request.is_held || method == EstimateMethod::Held {
        return true;
    }
    let output = request.max_output.unwrap_or(0);
    tokens.saturating_mul(DOUBT).saturating_add(output) >= window
}
