//! What a prompt has besides the parts that the client sent: a summary, injected messages, and the provider's
//! instruction to call a tool if the client forces that.
//!
//! Each is a part of the sketch with a key of its own, so that it cancels out if the anchor's request had it, too.

use super::PartScale;
use crate::context::{PromptSection, SketchPart};
use crate::dialect::{PartKey, Span};

/// The key of the instruction to call a tool.
const FORCED_TOOL: &[u8] = b"tool_choice";
/// Tokens of a call that are not in the reported output if the client forced it: its opening, which the provider
/// writes (7 to 16 in 8 recorded pairs).
const OPENING: i64 = 12;

impl PartScale<'_> {
    pub(super) fn summary(&mut self, key: PartKey, counted: u32) -> SketchPart {
        let earlier = self.sent.take(key);
        self.compacts = earlier.is_none();
        let tokens = earlier.unwrap_or(counted);
        if self.compacts {
            self.sums.new += u64::from(tokens);
        }
        self.contents.summaries += u64::from(tokens);
        let sketched = SketchPart { key, tokens, place: PromptSection::History, by_length: false };
        self.sums.add(&sketched);
        sketched
    }

    pub(super) fn injected(&mut self, span: Span, parts: &mut Vec<SketchPart>) {
        for &(key, counted) in self.now.injected_after(span) {
            let earlier = self.sent.take(key);
            let tokens = earlier.unwrap_or(counted);
            if earlier.is_none() {
                self.sums.new += u64::from(tokens);
                self.new_content.texts += 1;
            }
            self.contents.user += u64::from(tokens);
            let sketched =
                SketchPart { key, tokens, place: PromptSection::History, by_length: false };
            self.sums.add(&sketched);
            parts.push(sketched);
        }
    }

    pub(super) fn forced_tool(&mut self) -> Option<SketchPart> {
        let counted = self.counter.forcing();
        if !self.conversation.forces_tool || counted == 0 {
            return None;
        }
        let key = PartKey::of_bytes(FORCED_TOOL);
        let earlier = self.sent.take(key);
        let tokens = earlier.unwrap_or(counted);
        if earlier.is_none() {
            self.sums.new += u64::from(tokens);
        }
        let sketched = SketchPart { key, tokens, place: PromptSection::Tools, by_length: false };
        self.sums.add(&sketched);
        Some(sketched)
    }

    /// What the last reply costs more than reported if it was forced to call a tool.
    pub(super) fn forced_call(&self) -> i64 {
        let was_forced = self.sent.tokens(PartKey::of_bytes(FORCED_TOOL)).is_some();
        if was_forced { OPENING } else { 0 }
    }
}
