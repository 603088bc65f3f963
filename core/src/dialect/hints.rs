//! What Claude Code says of a request in the hint headers of its LLM-gateway contract (`docs/protocols.md` 8.1).
//!
//! Values are closed sets, so that they can be labels of metrics; an unknown one is `Other` or absent. The
//! headers have no text of a prompt, and nothing here changes what is sent.

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::ids::is_name;
use super::percent::decoded;

/// What kind of request it is; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RequestClass {
    /// A turn of the main conversation.
    Main,
    /// A turn of a sub-agent.
    Subagent,
    /// A turn of an agent in a workflow.
    Workflow,
    /// The request that summarises the conversation.
    Compaction,
    /// A title, a classification, a summary: a call beside the conversation.
    Auxiliary,
    /// A class that is not known here.
    Other,
}

/// The kind of a sub-agent; a metric label. Names that users choose are never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum AgentType {
    /// Built in: it searches the code.
    Explore,
    /// Built in: it plans.
    Plan,
    /// Built in: for any task.
    GeneralPurpose,
    /// Defined by the user.
    Custom,
    /// A member of an agent team.
    Teammate,
    /// A fork of the conversation.
    Fork,
    /// A kind that is not known here.
    Other,
}

/// Why the client compacts; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CompactionCause {
    /// The window is nearly full.
    Auto,
    /// The user asked for it.
    Manual,
    /// The provider refused the request as too long.
    Reactive,
    /// A cause that is not known here.
    Other,
}

/// How long a tool ran whose result the request brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ToolTime {
    /// Its name.
    pub name: Box<str>,
    /// How long, ms, without hooks and the question for permission.
    pub ms: u64,
}

/// What the client says of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct ClientHints {
    /// What kind of request it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<RequestClass>,
    /// The kind of the sub-agent that sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_type: Option<AgentType>,
    /// The sub-agent that sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<str>>,
    /// The agent that started that one; none if the main conversation did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_agent: Option<Box<str>>,
    /// Why this request compacts the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionCause>,
    /// Why the conversation was compacted just before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compacted: Option<CompactionCause>,
    /// The user's prompt that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Box<str>>,
    /// How long the tools ran whose results it brings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolTime>,
}

/// Most tools that are read; Claude Code sends no more.
const MOST_TOOLS: usize = 32;

impl ClientHints {
    /// Reads the headers; `None` if they have no hint.
    pub fn from_headers(headers: &HeaderMap) -> Option<Box<Self>> {
        // Most requests have none of them, and each look-up by name takes longer than this one pass.
        if !headers.keys().any(|name| name.as_str().starts_with("x-claude-code-")) {
            return None;
        }
        let tools = text(headers, "x-claude-code-prev-tool-durations").map(tools);
        let hints = Self {
            class: text(headers, "x-claude-code-request-class").map(class),
            agent_type: text(headers, "x-claude-code-agent-type").map(agent_type),
            agent: name(headers, "x-claude-code-agent-id"),
            parent_agent: name(headers, "x-claude-code-parent-agent-id"),
            compaction: text(headers, "x-claude-code-compaction").map(cause),
            compacted: text(headers, "x-claude-code-context-compacted").map(cause),
            prompt: name(headers, "x-claude-code-prompt-id"),
            tools: tools.unwrap_or_default(),
        };
        if hints == Self::default() { None } else { Some(Box::new(hints)) }
    }

    /// Its memory, bytes.
    pub fn bytes(&self) -> usize {
        let names = [&self.agent, &self.parent_agent, &self.prompt].into_iter().flatten();
        let tools = self.tools.iter().map(|tool| tool.name.len() + size_of::<ToolTime>());
        size_of::<Self>() + names.map(|name| name.len()).sum::<usize>() + tools.sum::<usize>()
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn name(headers: &HeaderMap, header: &str) -> Option<Box<str>> {
    text(headers, header).filter(|text| is_name(text)).map(Into::into)
}

fn class(text: &str) -> RequestClass {
    match text {
        "main" => RequestClass::Main,
        "subagent" => RequestClass::Subagent,
        "workflow" => RequestClass::Workflow,
        "compaction" => RequestClass::Compaction,
        "auxiliary" => RequestClass::Auxiliary,
        _ => RequestClass::Other,
    }
}

fn agent_type(text: &str) -> AgentType {
    match text {
        "Explore" => AgentType::Explore,
        "Plan" => AgentType::Plan,
        "general-purpose" => AgentType::GeneralPurpose,
        "custom" => AgentType::Custom,
        "teammate" => AgentType::Teammate,
        "fork" => AgentType::Fork,
        _ => AgentType::Other,
    }
}

fn cause(text: &str) -> CompactionCause {
    match text {
        "auto" => CompactionCause::Auto,
        "manual" => CompactionCause::Manual,
        "reactive" => CompactionCause::Reactive,
        _ => CompactionCause::Other,
    }
}

/// `Bash=742;Read=9`, with names percent-encoded.
fn tools(text: &str) -> Vec<ToolTime> {
    text.split(';').filter_map(tool).take(MOST_TOOLS).collect()
}

fn tool(entry: &str) -> Option<ToolTime> {
    let (name, ms) = entry.split_once('=')?;
    let name = decoded(name.trim()).chars().take(128).collect::<String>().into();
    Some(ToolTime { name, ms: ms.trim().parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(pairs: &[(&'static str, &'static str)]) -> Option<Box<ClientHints>> {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
        };
        ClientHints::from_headers(&pairs.iter().map(pair).collect())
    }

    #[test]
    fn hint_headers_are_read() {
        let read = hints(&[
            ("x-claude-code-request-class", "subagent"),
            ("x-claude-code-agent-type", "general-purpose"),
            ("x-claude-code-agent-id", "a1"),
            ("x-claude-code-parent-agent-id", "a0"),
            ("x-claude-code-context-compacted", "auto"),
            ("x-claude-code-prompt-id", "p-1"),
            ("x-claude-code-prev-tool-durations", "Bash=742;mcp%3Bx=9;odd;Read=-1"),
        ])
        .unwrap();
        let tool = |name: &str, ms| ToolTime { name: name.into(), ms };
        let expected = ClientHints {
            class: Some(RequestClass::Subagent),
            agent_type: Some(AgentType::GeneralPurpose),
            agent: Some("a1".into()),
            parent_agent: Some("a0".into()),
            compaction: None,
            compacted: Some(CompactionCause::Auto),
            prompt: Some("p-1".into()),
            tools: vec![tool("Bash", 742), tool("mcp;x", 9)],
        };
        assert_eq!(*read, expected);
        let json = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<ClientHints>(&json).unwrap(), expected);
    }

    #[test]
    fn unknown_values_are_other_and_no_header_is_none() {
        let read = hints(&[
            ("x-claude-code-request-class", "A new kind"),
            ("x-claude-code-agent-type", "my-agent"),
            ("x-claude-code-compaction", "?"),
            ("x-claude-code-parent-agent-id", "../etc"),
        ])
        .unwrap();
        assert_eq!(read.class, Some(RequestClass::Other));
        assert_eq!(read.agent_type, Some(AgentType::Other));
        assert_eq!(read.compaction, Some(CompactionCause::Other));
        assert_eq!(read.parent_agent, None);
        assert_eq!(hints(&[("x-app", "cli")]), None);
    }

    #[test]
    fn at_most_32_tools_are_read() {
        let header: &'static str = Box::leak("Read=1;".repeat(40).into_boxed_str());
        let read = hints(&[("x-claude-code-prev-tool-durations", header)]).unwrap();
        assert_eq!(read.tools.len(), MOST_TOOLS);
    }
}
