//! Who reads a part of a request: the model, a program of the provider, or nobody yet (`docs/protocols.md` 12).
//!
//! The readers of the dialects say who called a tool, which tools are deferred, and what loads them. Here the
//! audience follows from that, in one pass for all dialects. What is counted, cut, summarised, added or shown asks
//! the part for its audience, and for nothing else.

use foldhash::{HashMap, HashSet};

use super::conversation::Conversation;
use super::kinds::{Dialect, PartKind, Role};
use super::part::Part;
use crate::wire::json::Value;

/// Who reads a part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// The model: it is in the context.
    #[default]
    Model,
    /// A program that the model wrote, which runs at the provider: calls that it made, and their results. They are
    /// not in the context, and their bytes are data.
    Program,
    /// Nobody: a tool that is not loaded. It is not in the context until something loads it.
    Nobody,
}

impl Audience {
    /// The audience of a call or a result, by its member `caller`: the model calls directly, everything else is a
    /// program.
    pub(super) fn by_caller(item: Value<'_>) -> Self {
        let caller = item.get("caller").and_then(|caller| caller.get("type"));
        match caller.and_then(|kind| kind.text()).as_deref() {
            None | Some("direct") => Self::Model,
            Some(_) => Self::Program,
        }
    }
}

/// Gives each part its audience, from what its dialect's reader found.
pub(super) fn assign(conversation: &mut Conversation) {
    answer_programs(conversation);
    load_tools(conversation);
}

/// The results of a program's calls are read by the program. A result follows its call; an id may occur again.
fn answer_programs(conversation: &mut Conversation) {
    let mut callers: HashMap<Box<str>, Audience> = HashMap::default();
    for message in &mut conversation.messages {
        // What is inside a result, such as its images, belongs to it.
        let mut program_data = 0;
        for part in &mut message.parts {
            match (part.kind, part.id.as_deref()) {
                (PartKind::ToolCall, Some(id)) => drop(callers.insert(id.into(), part.audience)),
                (PartKind::ToolResult, Some(id)) if callers.get(id) == Some(&Audience::Program) => {
                    part.audience = Audience::Program;
                }
                _ => {}
            }
            if part.span.end <= program_data {
                part.audience = Audience::Program;
            }
            if part.audience == Audience::Program {
                part.content = None;
                program_data = program_data.max(part.span.end);
            }
        }
    }
}

/// A tool that something in the history loads is in the context from then on.
fn load_tools(conversation: &mut Conversation) {
    if conversation.tools.iter().all(|tool| tool.audience != Audience::Nobody) {
        return;
    }
    let dialect = conversation.dialect;
    let parts = conversation.messages.iter().flat_map(|message| &message.parts);
    let mut loaded: HashSet<Box<str>> = HashSet::default();
    for part in parts {
        loaded.extend(part.loads.iter().cloned());
        // Gateways that search for tools in Chat Completions do not show what they found.
        if dialect == Dialect::OpenaiChat && part.kind == PartKind::ToolCall {
            loaded.extend(part.name.clone());
        }
    }
    let is_loaded = |tool: &Part| tool.name.as_ref().is_some_and(|name| loaded.contains(name));
    match dialect {
        // The item that loads a function repeats its definition.
        Dialect::OpenaiResponses => {
            conversation.tools.retain(|tool| tool.audience != Audience::Nobody || !is_loaded(tool))
        }
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::Gemini => {
            for tool in conversation.tools.iter_mut().filter(|tool| is_loaded(tool)) {
                tool.audience = Audience::Model;
            }
        }
    }
}

/// What a part is of a step that runs at the provider and may take longer than one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// A call of the provider's own tool, or a program.
    Begins,
    /// Its result, which has the same id.
    Ends,
}

impl Conversation {
    /// Before each message, and at the end: whether a step is open that runs at the provider. A text of the user ends
    /// the turn, and what was open in it.
    pub(crate) fn open_server_steps(&self) -> Vec<bool> {
        let mut open: Vec<Option<&str>> = Vec::new();
        let mut is_open = Vec::with_capacity(self.messages.len() + 1);
        for message in &self.messages {
            let answers = message.parts.iter().any(|part| part.kind == PartKind::ToolResult);
            if message.role == Role::User && !answers {
                open.clear();
            }
            is_open.push(!open.is_empty());
            for part in &message.parts {
                let id = part.id.as_deref();
                match part.server_step {
                    Some(ServerStep::Begins) => open.push(id),
                    Some(ServerStep::Ends) => open.retain(|begun| *begun != id),
                    None => {}
                }
            }
        }
        is_open.push(!open.is_empty());
        is_open
    }
}
