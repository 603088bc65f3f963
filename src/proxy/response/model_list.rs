//! A list of models on its way to the client: a decompressed copy of it, to learn the windows in it.
//!
//! Bounded. At its limit, or with an encoding that cannot be read, the list is forwarded and nothing is learned.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::HeaderMap;

use crate::proxy::http::headers;
use crate::proxy::http::memory::{HeldMemory, MemoryBudget};
use crate::proxy::state::exchange_recorder::TurnOutcome;
use crate::telemetry::MemoryKind;
use crate::wire::encoding::Decoder;
use crate::wire::memory::Memory as _;

/// Longest list that is read, bytes, decompressed: that of a router with hundreds of models has 1 MiB.
const LONGEST: usize = 4 << 20;

/// What is done with a whole list.
pub(crate) type LearnList = Box<dyn FnOnce(Vec<u8>) -> BoxFuture<'static, ()> + Send>;

/// A list of models that is being forwarded.
pub(crate) struct ModelListTap {
    decoder: Decoder,
    plain: Vec<u8>,
    memory: HeldMemory,
    learn: LearnList,
}

impl ModelListTap {
    /// A tap for a response with these headers; `None` if it cannot be read.
    pub(crate) fn new(
        headers: &HeaderMap,
        memory: &Arc<MemoryBudget>,
        learn: LearnList,
    ) -> Option<Self> {
        let codings = headers::codings(headers);
        let decoder = Decoder::new(codings, LONGEST, || memory.boxed(MemoryKind::Reply)).ok()?;
        let memory = memory.guard(MemoryKind::Reply);
        Some(Self { decoder, plain: Vec::new(), memory, learn })
    }

    pub(super) fn pass(&mut self, data: &[u8]) -> bool {
        let Ok(plain) = self.decoder.push(data) else { return false };
        let length = self.plain.len() + plain.len();
        if length > LONGEST || !self.memory.hold(2 * length) {
            return false;
        }
        self.plain.extend_from_slice(&plain);
        true
    }

    pub(super) fn learned(self) -> BoxFuture<'static, TurnOutcome> {
        let Self { plain, memory, learn, .. } = self;
        let learning = learn(plain);
        Box::pin(async move {
            learning.await;
            drop(memory);
            TurnOutcome::default()
        })
    }
}
