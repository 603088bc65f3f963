//! What a prompt has besides the parts that the client sent: a summary, injected messages, and what the provider tells
//! the model about tools.
//!
//! Each is a part of the sketch with a key of its own, so that it cancels out if the anchor's request had it, too.

use memchr::memmem;

use super::PartScale;
use crate::context::turn_start::is_users;
use crate::context::{PromptSection, SketchPart};
use crate::dialect::{Audience, Part, PartKey, PartKind, Span};
use crate::tokens::estimate::is_search;

/// The keys of the instructions on how to call tools, to call one, and to search for those that are not loaded.
const TOOLS: &[u8] = b"tools";
const FORCED_TOOL: &[u8] = b"tool_choice";
const SEARCH: &[u8] = b"tool_search";
/// That of the instruction to cite.
const CITATIONS: &[u8] = b"citations";
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

    /// What the provider tells the model about tools and citations.
    pub(super) fn instructions(&mut self, parts: &mut Vec<SketchPart>) {
        let conversation = self.conversation;
        let tools = conversation.tools.iter().filter(|tool| !tool.is_schema);
        if tools.clone().any(|tool| tool.audience == Audience::Model) {
            parts.extend(self.instruction(TOOLS, self.counter.structure.offering));
        }
        if conversation.forces_tool {
            parts.extend(self.instruction(FORCED_TOOL, self.counter.structure.forcing));
        }
        let has_waiting = tools.clone().any(|tool| {
            let mut added = conversation.tools.iter().filter(|added| added.in_history);
            tool.audience == Audience::Nobody && !added.any(|added| added.name == tool.name)
        });
        if has_waiting && tools.clone().any(|tool| self.searches_tools(tool)) {
            parts.extend(self.instruction(SEARCH, self.counter.structure.searching));
        }
        let mut documents = conversation.parts().filter(may_be_cited);
        if self.counter.structure.citing > 0
            && documents.any(|part| asks_for_citations(part.span.slice(self.body)))
        {
            parts.extend(self.instruction(CITATIONS, self.counter.structure.citing));
        }
    }

    fn searches_tools(&self, tool: &Part) -> bool {
        // Whether it is the provider's search for tools: a client's own has a schema.
        let definition = tool.span.slice(self.body);
        tool.name.as_deref() == Some("tool_search")
            && memmem::find(definition, b"\"parameters\"").is_none()
    }

    fn instruction(&mut self, name: &[u8], counted: u32) -> Option<SketchPart> {
        if counted == 0 {
            return None;
        }
        let key = PartKey::of_bytes(name);
        let earlier = self.sent.take(key);
        let tokens = earlier.unwrap_or(counted);
        if earlier.is_none() {
            self.sums.new += u64::from(tokens);
        }
        let sketched = SketchPart { key, tokens, place: PromptSection::Tools, by_length: false };
        self.sums.add(&sketched);
        Some(sketched)
    }

    /// Whether what the provider's searches found may leave the prompt with this request: that of two of six recorded
    /// turns with searches left it with the user's next text, or the one after it.
    pub(super) fn may_lose_findings(&self) -> bool {
        let speaks = self.grows && self.new_content.texts > 0;
        let mut texts = 0;
        let messages = self.conversation.messages.iter().rev();
        let mut recent = messages.take_while(|message| {
            texts += u32::from(is_users(message));
            texts <= 2
        });
        speaks && recent.any(|message| message.parts.iter().any(is_search))
    }

    /// What the last reply costs more than reported if it was forced to call a tool.
    pub(super) fn forced_call(&self) -> i64 {
        let was_forced = self.sent.tokens(PartKey::of_bytes(FORCED_TOOL)).is_some();
        if was_forced { OPENING } else { 0 }
    }
}

fn may_be_cited(part: &&Part) -> bool {
    // Whether it may be a document or a search result of the client's: nothing else is looked through.
    matches!(part.kind, PartKind::Document | PartKind::Opaque)
}

/// Whether a block says `"citations": {"enabled": true}`.
fn asks_for_citations(block: &[u8]) -> bool {
    let member = b"\"citations\"";
    memmem::find_iter(block, member).any(|at| {
        let rest =
            block[at + member.len()..].iter().filter(|byte| !byte.is_ascii_whitespace()).copied();
        rest.take(16).eq(*b":{\"enabled\":true")
    })
}
