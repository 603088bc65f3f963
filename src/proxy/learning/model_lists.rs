//! What lists of models teach: the windows of their models, for the tenant that asked, at the door where it asked.
//!
//! A list is the provider's own text, which no client can dictate. What it says comes before the catalogue, and after the
//! configuration and refusals.

use std::sync::Arc;

use crate::clock::now;
use crate::config::Upstream;
use crate::context::TenantId;
use crate::dialect::door::Door;
use crate::dialect::model_list;
use crate::proxy::offload::{OFF_THREAD, long_work_if};
use crate::proxy::state::{Proxy, lesson_source};
use crate::telemetry::LessonOutcome;

/// Most models of one list whose windows are learned: a tenant has room for as many other lessons.
const MOST: usize = 32;

impl Proxy {
    /// `target`: path and query of the request for the list.
    pub(crate) async fn learn_list(
        self: Arc<Self>,
        tenant: TenantId,
        upstream: Arc<Upstream>,
        door: Door,
        target: Box<str>,
        body: Vec<u8>,
    ) {
        if upstream.window.is_some() {
            // What is configured counts more than a list.
            return;
        }
        let is_long = body.len() > OFF_THREAD;
        let models =
            long_work_if(is_long, Some(&tenant), move || model_list::read(&target, &body)).await;
        let mut assumed = Vec::new();
        for mut listed in models {
            let model = self.catalogue.model(&listed.name, "").through(door, &listed.name);
            // The whole window, of which the catalogue knows what input may fill.
            if model.known && listed.window == model.window + model.max_output {
                listed.window = model.window;
            }
            if !model.is_configured {
                assumed.push((listed, model.window));
            }
        }
        let source = lesson_source(Some(&tenant), &upstream, "", door);
        let learned = self.ledgers.lessons().learn_listed(&source, &assumed, MOST, now()).await;
        for _ in 0..learned {
            self.telemetry.lesson(&upstream.name, LessonOutcome::Learned);
        }
        if learned > 0 {
            tracing::info!("{} lists other windows for {learned} of its models", upstream.name);
        }
    }
}
