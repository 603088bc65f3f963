//! Sections inside tools and messages: tools of MCP servers, and what Claude Code puts
//! before a conversation (memory files, skills, agents).
//!
//! Recognised by names and by the text of the reminders, which other agents use too. A part belongs to one
//! section as a whole. What is not recognised stays in its category.

use memchr::memmem;

use crate::context::records::SectionTokens;
use crate::dialect::{Part, PartKind, Role};

/// The beginning of a reminder, as a JSON string.
const REMINDER: &[u8] = b"\"<system-reminder>";

impl SectionTokens {
    pub(super) fn add(&mut self, part: &Part, body: &[u8], tokens: u32) {
        if let Some(section) = self.section_mut(part, body) {
            *section += u64::from(tokens);
        }
    }

    fn section_mut(&mut self, part: &Part, body: &[u8]) -> Option<&mut u64> {
        match (part.kind, part.role) {
            (PartKind::Tool, _) => {
                let is_mcp = part.name.as_deref()?.starts_with("mcp__");
                if is_mcp { Some(&mut self.mcp_tools) } else { None }
            }
            (PartKind::Text, Role::User) => {
                let raw = part.texts.first()?.slice(body);
                if !raw.starts_with(REMINDER) {
                    None
                } else if contains(raw, "# claudeMd") {
                    Some(&mut self.memory)
                } else if contains(raw, "skills are available for use with the Skill tool") {
                    Some(&mut self.skills)
                } else if contains(raw, "Available agent types") {
                    Some(&mut self.agents)
                } else {
                    None
                }
            }
            _ => None,
        }
    }

    pub(super) fn within(mut self, tools: u64, messages: u64) -> Self {
        self.mcp_tools = self.mcp_tools.min(tools);
        let mut rest = messages;
        for section in [&mut self.memory, &mut self.skills, &mut self.agents] {
            *section = (*section).min(rest);
            rest -= *section;
        }
        self
    }

    /// The sections that are not empty, with the names shown to people: first those of tools, then of
    /// messages.
    pub(super) fn named(&self) -> [Vec<(&'static str, u64)>; 2] {
        let mut sections = [
            vec![("  MCP tools:", self.mcp_tools)],
            vec![
                ("  Memory files:", self.memory),
                ("  Skills:", self.skills),
                ("  Agents:", self.agents),
            ],
        ];
        for section in &mut sections {
            section.retain(|(_, tokens)| *tokens > 0);
        }
        sections
    }
}

fn contains(raw: &[u8], text: &str) -> bool {
    memmem::find(raw, text.as_bytes()).is_some()
}
