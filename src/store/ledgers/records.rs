//! Facts as records: the kind and key of each, and how it is written.
//!
//! A key is a hash of what a fact is about, so that a repeated decision meets the one before it. Keys never change,
//! because files are full of them.

use xxhash_rust::xxh3::xxh3_128;

use crate::context::{DecisionEpoch, ExchangeId, Fact};
use crate::store::{Record, RecordKind};

/// Most facts fit into this many bytes.
const RECORD_BYTES: usize = 2048;

pub(super) fn record(fact: &Fact) -> Option<Record> {
    let (kind, key, at) = match fact {
        Fact::Turn(turn) => (RecordKind::Turn, turn_key(&turn.exchange), turn.at),
        Fact::Reasoning(reasoning) => (RecordKind::Reasoning, reasoning.key(), reasoning.at),
        Fact::Cut(cut) => {
            (RecordKind::Cut, decision_address(cut.about.0, cut.shadow, cut.epoch), cut.at)
        }
        Fact::ReasoningDecision(decision) => (
            RecordKind::ReasoningDecision,
            decision_address(decision.about.0, decision.shadow, decision.epoch),
            decision.at,
        ),
        // Stored as a cut, because its key is a hash of what it changes, too.
        Fact::Repair(repair) => {
            (RecordKind::Cut, decision_address(repair.about.0, false, repair.epoch), repair.at)
        }
        Fact::Suspension(suspended) => {
            (RecordKind::Suspension, xxh3_128(suspended.exchange.as_str().as_bytes()), suspended.at)
        }
        Fact::Revocation(revoked) => (RecordKind::Suspension, revoked.key(), revoked.at),
        Fact::Summary(one) => {
            (RecordKind::Summary, decision_address(one.address().0, one.shadow, one.epoch), one.at)
        }
        Fact::Compact(one) => {
            (RecordKind::Compact, decision_address(one.address().0, one.shadow, one.epoch), one.at)
        }
        Fact::Queued(queued) => (RecordKind::Queued, xxh3_128(queued.id.as_bytes()), queued.at),
        Fact::InjectedMessage(message) => {
            (RecordKind::InjectedMessage, xxh3_128(message.id.as_bytes()), message.at)
        }
    };
    let mut value = Vec::with_capacity(RECORD_BYTES);
    serde_json::to_writer(&mut value, fact).ok()?;
    let turn = if let Fact::Turn(turn) = fact { Some(turn.clone()) } else { None };
    Some(Record { kind, key, value: value.into(), at, turn })
}

pub(super) fn turn_key(exchange: &ExchangeId) -> u128 {
    xxh3_128(exchange.as_str().as_bytes())
}

fn salted(about: u128, shadow: bool) -> u128 {
    // Decisions of shadow mode are stored beside the real ones.
    if shadow { !about } else { about }
}

fn decision_address(about: u128, shadow: bool, epoch: Option<DecisionEpoch>) -> u128 {
    // Decisions after a refusal are stored beside those before it.
    let about = salted(about, shadow);
    epoch.map_or(about, |epoch| about ^ xxh3_128(&epoch.to_le_bytes()))
}
