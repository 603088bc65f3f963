//! Input that a recording lacks: a client may send more than it logs.
//!
//! Only the recording itself is asked, never an estimate of ours: else an error of the estimate could pass for
//! hidden input. A call is proven to have more if an identical call of its session cost much less.

use std::collections::HashMap;

use xxhash_rust::xxh3::Xxh3;

use super::line::{AddedPart, TranscriptLine};
use plimsoll_core::dialect::Dialect;

/// Reports of two identical calls differ by a few tokens, and by 24 or so in some clients; what is hidden is
/// larger.
const LEAST: i64 = 60;

impl TranscriptLine {
    /// Whether the line has everything that was added as it was sent: nothing redacted, rewritten by the
    /// recorder, expanded by the provider, or answered inside it.
    pub(crate) fn is_visible(&self) -> bool {
        !self.new_parts.iter().any(AddedPart::is_hidden)
    }

    /// A digest of what the call visibly adds, the same for identical calls of one kind: the tools that the
    /// reply before it calls, whether that reply thinks, and the text of the results. `None` if it adds
    /// anything but results, or not everything is visible.
    fn added(&self) -> Option<u64> {
        let mut digest = Xxh3::new();
        add(&mut digest, &self.model);
        let reply = self.new_parts.iter().filter(|part| part.reply);
        let thinks = reply.clone().any(|part| part.kind == "thinking");
        add(&mut digest, if thinks { "thinks" } else { "" });
        for call in reply.filter(|part| part.kind == "tool_use") {
            add(&mut digest, call.name.as_deref().unwrap_or_default());
        }
        // The end of the calls, so that a call is not taken for a result.
        add(&mut digest, "");
        let mut results = self.new_parts.iter().filter(|part| !part.reply).peekable();
        results.peek()?;
        for part in results {
            let is_plain = part.kind == "tool_result" && !part.text.is_empty();
            if !is_plain || part.cleared_later {
                return None;
            }
            add(&mut digest, if part.cont { "more" } else { "result" });
            add(&mut digest, &part.text);
        }
        if self.is_visible() { Some(digest.digest()) } else { None }
    }

    fn cost_after(&self, before: &Self) -> Option<(i64, i64)> {
        // What the call cost beyond the call before it and its reply, both as reported: at least, and at most,
        // because a recording does not say whether the reasoning of that reply was read.
        let base = before.usage.input_total.checked_add(before.usage.output)?;
        if !before.is_measured() || before.model != self.model {
            return None;
        }
        let cost = self.actual()?.checked_signed_diff(base)?;
        let reasoning = i64::try_from(before.usage.reasoning.unwrap_or(0)).ok()?;
        // Gemini reports reasoning beside the output, the others as a part of it.
        let range = match self.dialect()? {
            Dialect::Gemini => (cost.saturating_sub(reasoning), cost),
            _ => (cost, cost.saturating_add(reasoning)),
        };
        if range.1 > 0 { Some(range) } else { None }
    }
}

impl AddedPart {
    fn is_hidden(&self) -> bool {
        self.redacted > 0 && !self.reply
            || self.attachment.is_some()
            || self.tool_reference.is_some()
            || self.kind == "other"
    }
}

fn add(digest: &mut Xxh3, text: &str) {
    // The length keeps two texts from being taken for one.
    digest.update(&text.len().to_le_bytes());
    digest.update(text.as_bytes());
}

/// For each of `lines` (sessions may alternate): how many tokens more than the cheapest identical call of its
/// session it cost, whatever became of reasoning, if they are many.
pub(crate) fn excesses(lines: &[TranscriptLine]) -> Vec<Option<u64>> {
    let mut latest: HashMap<&str, &TranscriptLine> = HashMap::new();
    let mut least: HashMap<(&str, u64), i64> = HashMap::new();
    let costs: Vec<_> = lines
        .iter()
        .map(|line| {
            let previous = latest.insert(&line.session, line)?;
            let (at_least, at_most) = line.cost_after(previous)?;
            let call = (line.session.as_str(), line.added()?);
            let cheapest = least.entry(call).or_insert(at_most);
            *cheapest = at_most.min(*cheapest);
            Some((call, at_least))
        })
        .collect();
    let mut excesses = Vec::with_capacity(lines.len());
    for cost in costs {
        let excess = cost.map(|(call, at_least)| at_least - least[&call]);
        excesses.push(excess.filter(|excess| *excess >= LEAST).map(i64::unsigned_abs));
    }
    excesses
}
