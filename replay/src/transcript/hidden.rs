//! Input that a recording lacks: a client may send more than it logs.
//!
//! Only the recording itself is asked, never an estimate of ours: else an error of the estimate could pass for
//! hidden input. A call is proven to have more if an identical call of its session cost much less.

use std::collections::HashMap;

use xxhash_rust::xxh3::Xxh3;

use super::{AddedPart, TranscriptLine};
use plimsoll_core::dialect::Dialect;

/// Reports of two identical calls differ by a few tokens, and by 24 or so in some clients; what is hidden is
/// larger.
const LEAST: i64 = 60;

impl TranscriptLine {
    /// Whether the line has everything that was added as it was sent: nothing redacted, rewritten by the
    /// recorder, expanded by the provider, or answered inside it.
    pub(crate) fn is_visible(&self) -> bool {
        let hidden = |part: &&AddedPart| {
            part.redacted > 0 && !part.reply
                || part.attachment.is_some()
                || part.tool_reference.is_some()
                || part.kind == "other"
        };
        !self.new_parts.iter().any(|part| hidden(&part))
    }

    /// A digest of what the call visibly adds, the same for identical calls of one kind: the tools that the
    /// reply before it calls, whether that reply thinks, and the text of the results. `None` if it adds
    /// anything but results, or not everything is visible.
    fn added(&self) -> Option<u64> {
        let mut digest = Xxh3::new();
        let mut add = |text: &str| {
            digest.update(&text.len().to_le_bytes());
            digest.update(text.as_bytes());
        };
        add(&self.model);
        let reply = self.new_parts.iter().filter(|part| part.reply);
        let thinks = reply.clone().any(|part| part.kind == "thinking");
        add(if thinks { "thinks" } else { "" });
        for call in reply.filter(|part| part.kind == "tool_use") {
            add(call.name.as_deref().unwrap_or_default());
        }
        add("");
        let mut results = self.new_parts.iter().filter(|part| !part.reply).peekable();
        results.peek()?;
        for part in results {
            let is_plain = part.kind == "tool_result" && !part.text.is_empty();
            if !is_plain || part.cleared_later {
                return None;
            }
            add(if part.cont { "more" } else { "result" });
            add(&part.text);
        }
        self.is_visible().then(|| digest.digest())
    }

    /// What the call cost beyond the call before it and its reply, both as reported: at least, and at most,
    /// because a recording does not say whether the reasoning of that reply was read.
    fn cost_after(&self, before: &Self) -> Option<(i64, i64)> {
        let base = before.usage.input_total.checked_add(before.usage.output)?;
        let is_base = before.is_measured() && before.model == self.model;
        let cost = self.actual().filter(|_| is_base)?.checked_signed_diff(base)?;
        let reasoning = i64::try_from(before.usage.reasoning.unwrap_or(0)).ok()?;
        // Gemini reports reasoning beside the output, the others as a part of it.
        let range = match self.dialect()? {
            Dialect::Gemini => (cost.saturating_sub(reasoning), cost),
            _ => (cost, cost.saturating_add(reasoning)),
        };
        (range.1 > 0).then_some(range)
    }
}

/// For each of `lines` (sessions may alternate): how many tokens more than the cheapest identical call of its
/// session it cost, whatever became of reasoning, if they are many.
pub(crate) fn excesses(lines: &[TranscriptLine]) -> Vec<Option<u64>> {
    let mut latest: HashMap<&str, &TranscriptLine> = HashMap::new();
    let mut least: HashMap<(&str, u64), i64> = HashMap::new();
    let costs: Vec<_> = lines
        .iter()
        .map(|line| {
            let before = latest.insert(&line.session, line)?;
            let cost = line.cost_after(before)?;
            let of = (line.session.as_str(), line.added()?);
            let cheapest = least.entry(of).or_insert(cost.1);
            *cheapest = cost.1.min(*cheapest);
            Some((of, cost.0))
        })
        .collect();
    let excess = |it: Option<((&str, u64), i64)>| {
        let (of, cost) = it?;
        let more = cost - least[&of];
        (more >= LEAST).then_some(more.unsigned_abs())
    };
    costs.into_iter().map(excess).collect()
}
