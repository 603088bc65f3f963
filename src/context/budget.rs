//! The budget: what the next call will cost, where it goes, how much is left (design §6.1).
//!
//! One truth: the number on the context page, in the metrics and in every decision is made here.
//! `estimate = anchor's actual input + its reply + Σ parts added − Σ parts removed`; without an
//! anchor the sum over all parts, and it says so. Breakdowns always sum to their total. Pure.

mod view;

pub use view::{Basis, View};

use super::{Breakdown, Estimate, Method, Sketch, Sketched, Turn};
use crate::dialect::models::Model;
use crate::dialect::{Conversation, Dialect, Reply};
use crate::tokens::Tokenizer;

/// The turn that a request grew from, and everything its request consisted of
/// (`Ledger::anchor_at`, `Ledger::sketch`).
#[derive(Clone, Copy, Debug)]
pub struct Anchor<'a> {
    /// The turn; its usage must be known.
    pub turn: &'a Turn,
    /// Its full sketch.
    pub sketch: &'a [Sketched],
}

/// An estimate, and the sketch it was made of, which its turn keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What the call will cost.
    pub estimate: Estimate,
    /// What is sent, part by part, as the difference from the anchor's.
    pub sketch: Sketch,
}

/// Estimates what `conversation`, read from `body`, will cost as input of `model`. `tokenizer`:
/// of the model's family.
pub fn measure(
    conversation: &Conversation,
    body: &[u8],
    model: &Model,
    anchor: Option<Anchor<'_>>,
    tokenizer: Tokenizer,
) -> Measured {
    let _ = (conversation, model, anchor, tokenizer);
    let tokens = body.len() as u64 / 4;
    let breakdown = Breakdown { messages: tokens, ..Breakdown::default() };
    let estimate = Estimate {
        tokens,
        method: Method::Estimated,
        counting: super::Counting::Length,
        new: tokens,
        gone: 0,
        breakdown,
    };
    Measured { estimate, sketch: Sketch::default() }
}

/// What each keyed part of a reply will cost when the client sends it back: the reported output
/// less its reasoning, shared among them. Kept as [`Turn::reply`].
pub fn reply(reply: &Reply, dialect: Dialect, tokenizer: Tokenizer) -> Vec<Sketched> {
    let _ = (reply, dialect, tokenizer);
    Vec::new()
}

/// A breakdown whose sum is `total`: messages are what system and tools leave, never below 0.
fn fit(parts: Breakdown, total: u64) -> Breakdown {
    let head = parts.system.saturating_add(parts.tools);
    let capped = head > total;
    let (system, tools) = if capped {
        let system = u128::from(parts.system) * u128::from(total) / u128::from(head);
        (system as u64, total - system as u64)
    } else {
        (parts.system, parts.tools)
    };
    let messages = total - system - tools;
    Breakdown { system, tools, messages, reasoning: parts.reasoning.min(messages), capped }
}
