//! The tokens of messages by kind of content: user and model text, calls, results by tool, media, summaries;
//! and the tools that are offered but not loaded.
//!
//! Estimated part by part, then scaled to the total of the messages. Of the request's text, it holds only
//! names of tools. Pure.

use std::fmt;

use foldhash::HashMap;

use super::line::{grouped, line};
use crate::context::records::{MessageTokens, PromptSection, SketchPart, ToolTokens};
use crate::dialect::reply::runs;
use crate::dialect::{Conversation, Part, PartKey, PartKind, Reply, Role};

/// At most this many tools are named; the others are summed up.
const MOST_TOOLS: usize = 12;
/// At most this many deferred tools are named.
const MOST_DEFERRED: usize = 16;
/// Most characters of a tool's name.
const NAME: usize = 64;
/// The name for the tools that are summed up.
const OTHERS: &str = "(others)";

impl MessageTokens {
    /// Adds a part of the history; `tool`: the name of the tool that a result comes from.
    pub(super) fn add(&mut self, part: &Part, tool: Option<&str>, tokens: u64) {
        let is_summary = part.name.as_deref() == Some("compaction");
        match (part.kind, part.role) {
            (PartKind::ToolResult, _) => self.add_result(tool.unwrap_or("?"), tokens),
            (PartKind::Opaque, _) if is_summary => self.summaries += tokens,
            (kind, role) => *self.place(kind, role) += tokens,
        }
    }

    /// Adds a reply, in the form in which its client will send it back: `parts` are its keyed parts.
    #[must_use]
    pub(super) fn with_reply(mut self, reply: &Reply, parts: &[SketchPart]) -> Self {
        for ((_, run), sketched) in runs(&reply.parts).zip(parts) {
            let kind = run.last().map_or(PartKind::Opaque, |part| part.kind);
            *self.place(kind, Role::Assistant) += u64::from(sketched.tokens);
        }
        self
    }

    pub(super) fn defers(&mut self, name: Option<&str>) {
        let Some(name) = name else { return };
        if self.deferred.len() < MOST_DEFERRED {
            self.deferred.push(ToolTokens { tool: plain(name), tokens: 0 });
        } else {
            self.deferred_more += 1;
        }
    }

    fn place(&mut self, kind: PartKind, role: Role) -> &mut u64 {
        match (kind, role) {
            (PartKind::ToolCall, _) => &mut self.tool_calls,
            (PartKind::Image | PartKind::Document, _) => &mut self.media,
            (PartKind::Text, Role::User) => &mut self.user,
            (PartKind::Text, Role::Assistant) => &mut self.assistant,
            _ => &mut self.other,
        }
    }

    fn add_result(&mut self, tool: &str, tokens: u64) {
        // Most results are of a tool whose name is known as it is.
        if let Some(known) = self.tool_results.iter_mut().find(|known| *known.tool == *tool) {
            known.tokens += tokens;
            return;
        }
        let name = plain(tool);
        if let Some(known) = self.tool_results.iter_mut().find(|known| known.tool == name) {
            known.tokens += tokens;
        } else {
            self.tool_results.push(ToolTokens { tool: name, tokens });
        }
    }

    /// Sorts tools by size, and sums up the small ones.
    #[must_use]
    pub fn with_few_tools(mut self) -> Self {
        let tools = &mut self.tool_results;
        tools.sort_by(|a, b| (b.tokens, &a.tool).cmp(&(a.tokens, &b.tool)));
        if tools.len() > MOST_TOOLS {
            let tokens = tools.drain(MOST_TOOLS - 1..).map(|tool| tool.tokens).sum();
            tools.push(ToolTokens { tool: OTHERS.into(), tokens });
        }
        self
    }

    /// Tokens of all results.
    pub fn results(&self) -> u64 {
        self.tool_results.iter().map(|tool| tool.tokens).sum()
    }

    /// Scales the numbers so that they sum to `messages` tokens, `reasoning` of them reasoning.
    #[must_use]
    pub(super) fn fit(mut self, messages: u64, reasoning: u64) -> Self {
        self.reasoning = reasoning.min(messages);
        let mut rest = messages.saturating_sub(reasoning);
        let Self { user, assistant, tool_calls, media, summaries, other, tool_results, .. } =
            &mut self;
        let mut numbers = vec![user, assistant, tool_calls, media, summaries];
        numbers.extend(tool_results.iter_mut().map(|tool| &mut tool.tokens));
        let mut weights =
            numbers.iter().map(|tokens| u128::from(**tokens)).sum::<u128>() + u128::from(*other);
        for tokens in numbers {
            let weight = u128::from(*tokens);
            // Each number gets its share of what is left, so that rounding never loses a token.
            *tokens = (u128::from(rest) * weight).checked_div(weights).unwrap_or(0) as u64;
            weights -= weight;
            rest -= *tokens;
        }
        *other = rest;
        self
    }

    /// The lines under "Messages"; `of_users`: the sections that are known within the user's part.
    pub(super) fn lines(
        &self,
        f: &mut fmt::Formatter<'_>,
        of_users: &[(&str, u64)],
    ) -> fmt::Result {
        tell(f, "  User:", self.user)?;
        for (name, tokens) in of_users {
            tell(f, &format!("  {name}"), *tokens)?;
        }
        tell(f, "  Assistant:", self.assistant)?;
        tell(f, "  Tool calls:", self.tool_calls)?;
        tell(f, "  Tool results:", self.results())?;
        for ToolTokens { tool, tokens } in &self.tool_results {
            tell(f, &format!("    {tool}:"), *tokens)?;
        }
        tell(f, "  Reasoning:", self.reasoning)?;
        tell(f, "  Media:", self.media)?;
        tell(f, "  Summaries:", self.summaries)?;
        tell(f, "  Other:", self.other)
    }
}

fn tell(f: &mut fmt::Formatter<'_>, name: &str, tokens: u64) -> fmt::Result {
    if tokens == 0 { Ok(()) } else { line(f, name, 22, tokens, Some("estimated")) }
}

/// The names of the tools that are not loaded.
impl fmt::Display for MessageTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.deferred.iter().map(|tool| &*tool.tool).collect();
        write!(f, "{}", names.join(", "))?;
        match self.deferred_more {
            0 => Ok(()),
            more => write!(f, " and {} more", grouped(more)),
        }
    }
}

/// The definitions of a request's tools, in their order; `parts` is what is sent.
pub fn definitions(conversation: &Conversation, parts: &[SketchPart]) -> Vec<ToolTokens> {
    let defined = parts.iter().filter(|part| part.place == PromptSection::Tools);
    let tokens: HashMap<PartKey, u32> = defined.map(|part| (part.key, part.tokens)).collect();
    let weighed = conversation.tools.iter().filter_map(|part| {
        let tokens = *tokens.get(&part.key?)?;
        Some(ToolTokens { tool: plain(part.name.as_deref()?), tokens: u64::from(tokens) })
    });
    weighed.collect()
}

/// The names of the tools that a reply calls, one for each call.
pub fn called(reply: &Reply) -> Vec<Box<str>> {
    let calls = reply.parts.iter().filter(|part| part.kind == PartKind::ToolCall);
    calls.filter_map(|part| part.name.as_deref()).map(plain).collect()
}

fn plain(name: &str) -> Box<str> {
    // Clients choose the names.
    let name: String = name
        .chars()
        .take(NAME)
        .map(|c| if c.is_ascii_alphanumeric() || "_-.:/".contains(c) { c } else { '_' })
        .collect();
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contents add up to the tokens of the messages, whatever was estimated. The unexplained rest has a line of its
    /// own.
    #[test]
    fn contents_add_up_to_messages() {
        let tool = |tool: &str, tokens| ToolTokens { tool: tool.into(), tokens };
        let tool_results = vec![tool("Read", 30), tool("Bash", 11)];
        let contents =
            MessageTokens { user: 7, assistant: 3, tool_results, ..MessageTokens::default() };
        for messages in [0, 1, 50, 51, 52, 1_000_003] {
            for reasoning in [0, 20, 2_000_000] {
                let fit = contents.clone().fit(messages, reasoning);
                let MessageTokens { user, assistant, reasoning, other, .. } = fit;
                assert_eq!(user + assistant + fit.results() + reasoning + other, messages);
            }
        }
        assert_eq!(contents.clone().fit(51, 0), contents);
        assert_eq!(MessageTokens::default().fit(9, 0).other, 9);
    }

    #[test]
    fn few_tools_are_listed_and_unusual_characters_are_replaced() {
        let mut contents = MessageTokens::default();
        for n in 0..20u64 {
            contents.add_result(&format!("tool\u{1b}{n}"), n + 1);
        }
        let contents = contents.with_few_tools();
        assert_eq!(contents.tool_results.len(), MOST_TOOLS);
        assert_eq!(&*contents.tool_results[0].tool, "tool_19");
        assert_eq!(contents.results(), 210);
        assert_eq!(&*contents.tool_results[MOST_TOOLS - 1].tool, OTHERS);
    }

    fn part(kind: PartKind, role: Role) -> Part {
        use crate::dialect::{self, Dialect};
        let body = br#"{"messages":[{"role":"user","content":"Hi."}]}"#;
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", body);
        Part { kind, role, ..read.parts().next().unwrap().clone() }
    }

    /// Each part of a history is counted once, by its role and its kind.
    #[test]
    fn parts_are_counted_by_role_and_kind() {
        let mut contents = MessageTokens::default();
        let parts = [
            (PartKind::Text, Role::User, None, 1),
            (PartKind::Text, Role::Assistant, None, 2),
            (PartKind::ToolCall, Role::Assistant, None, 4),
            (PartKind::ToolResult, Role::User, Some("Read"), 8),
            (PartKind::ToolResult, Role::Tool, Some("Read"), 16),
            (PartKind::ToolResult, Role::User, None, 32),
            (PartKind::Image, Role::User, None, 64),
            (PartKind::Document, Role::User, None, 128),
            (PartKind::Opaque, Role::User, None, 256),
            (PartKind::Text, Role::System, None, 512),
        ];
        for (kind, role, tool, tokens) in parts {
            contents.add(&part(kind, role), tool, tokens);
        }
        let named = |name: &str, kind| Part { name: Some(name.into()), ..part(kind, Role::User) };
        contents.add(&named("compaction", PartKind::Opaque), None, 1_024);
        contents.add(&named("other", PartKind::Opaque), None, 2_048);
        contents.add(&named("compaction", PartKind::Image), None, 4_096);
        let tool = |tool: &str, tokens| ToolTokens { tool: tool.into(), tokens };
        let expected = MessageTokens {
            user: 1,
            assistant: 2,
            tool_calls: 4,
            tool_results: vec![tool("Read", 24), tool("_", 32)],
            media: 64 + 128 + 4_096,
            summaries: 1_024,
            other: 256 + 512 + 2_048,
            ..MessageTokens::default()
        };
        assert_eq!(contents, expected);
        assert!(!contents.is_nothing());
        assert!(MessageTokens::default().is_nothing());
    }

    /// A reply's parts are counted as the client will send them back: consecutive texts are one part.
    #[test]
    fn reply_is_counted_as_it_comes_back() {
        use serde_json::json;

        use crate::context::scene::{SessionFixture, messages};
        let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
        let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}});
        let reply = scene.reply(&json!([{"type": "text", "text": "So."}, call]));
        let turn = scene.turn(&reply);
        assert_eq!(turn.reply.len(), 2);
        let before = MessageTokens { user: 5, ..MessageTokens::default() };
        let with = before.with_reply(&reply, &turn.reply);
        let [text, call] = [0, 1].map(|at| u64::from(turn.reply[at].tokens));
        let expected =
            MessageTokens { user: 5, assistant: text, tool_calls: call, ..<_>::default() };
        assert!(text > 0);
        assert!(call > 0);
        assert_eq!(with, expected);
    }

    /// Up to `MOST_DEFERRED` tools are named; of the others only the number is shown. Names are shortened, unusual
    /// characters replaced.
    #[test]
    fn few_deferred_tools_are_named() {
        let mut contents = MessageTokens::default();
        for n in 0..MOST_DEFERRED {
            contents.defers(Some(&format!("mcp__a.b-c:{n}/x")));
        }
        assert_eq!(contents.deferred.len(), MOST_DEFERRED);
        assert_eq!(contents.deferred_more, 0);
        assert!(!contents.to_string().contains(" more"), "{contents}");
        assert!(contents.to_string().starts_with("mcp__a.b-c:0/x, mcp__a.b-c:1/x, "));
        contents.defers(Some("one"));
        contents.defers(Some("two"));
        assert_eq!(contents.deferred.len(), MOST_DEFERRED);
        assert_eq!(contents.deferred_more, 2);
        assert!(contents.to_string().ends_with(":15/x and 2 more"), "{contents}");
        assert_eq!(plain(&"é(".repeat(80)).len(), NAME);
        assert_eq!(&*plain("a b\"é"), "a_b__");
    }

    /// Up to `MOST_TOOLS` tools are listed. If there is one more, the two smallest are summed up. Equal ones are
    /// ordered by name.
    #[test]
    fn smallest_tools_share_an_entry() {
        let mut contents = MessageTokens::default();
        let names = ["l", "k", "j", "i", "h", "g", "f", "e", "d", "c", "b", "a"];
        names.iter().for_each(|name| contents.add_result(name, 7));
        let mut sorted = names;
        sorted.sort_unstable();
        let few = contents.clone().with_few_tools();
        let listed: Vec<&str> = few.tool_results.iter().map(|it| &*it.tool).collect();
        assert_eq!(listed, sorted);
        contents.add_result("z", 5);
        let few = contents.with_few_tools();
        let others = few.tool_results.last().unwrap();
        assert_eq!(&*others.tool, OTHERS);
        assert_eq!(others.tokens, 12);
        assert_eq!(few.tool_results.len(), MOST_TOOLS);
        assert_eq!(few.results(), 89);
    }
}
