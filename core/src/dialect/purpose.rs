//! The purpose of a request that only its text shows: titles, routers' questions, compactions.
//!
//! Clients mark such calls only by their instructions (`docs/protocols.md` 10.11, 10.12), whose beginnings
//! are listed here. A request with tools is always a turn. A miss costs little: the call is then a thread of
//! its own that never grows.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{Conversation, Purpose, Role};

/// Texts near the start of the instructions, or of the first or last message, of such requests.
const PURPOSE_TEXTS: &[(&str, Purpose)] = &[
    // opencode; aider, Open WebUI and Hermes have their own texts for titles.
    ("You are a title generator", Purpose::Side),
    ("Generate a title for this conversation", Purpose::Side),
    ("Generate a concise, 3-5 word title", Purpose::Side),
    ("Generate a short, descriptive title", Purpose::Side),
    // Gemini CLI's router, next-speaker check and loop check, and Qwen Code's suggestions.
    ("You are a specialized Task Routing AI", Purpose::Side),
    ("\"next_speaker\"", Purpose::Side),
    ("\"unproductive_state_confidence\"", Purpose::Side),
    ("[SUGGESTION MODE", Purpose::Side),
    // Gemini CLI and Qwen Code; opencode; pi; Codex; LangChain and Deep Agents; Hermes; CrewAI.
    ("<state_snapshot>", Purpose::Compaction),
    ("tasked with summarizing conversations", Purpose::Compaction),
    ("You are a context summarization assistant", Purpose::Compaction),
    ("CONTEXT CHECKPOINT COMPACTION", Purpose::Compaction),
    ("Context Extraction Assistant", Purpose::Compaction),
    ("You are a summarization agent creating a context checkpoint", Purpose::Compaction),
    ("creates structured summaries of agent conversations", Purpose::Compaction),
];

/// Searchers for [`PURPOSE_TEXTS`].
static FINDERS: LazyLock<Vec<(Finder<'static>, Purpose)>> = LazyLock::new(|| {
    PURPOSE_TEXTS.iter().map(|(text, purpose)| (Finder::new(*text), *purpose)).collect()
});

/// How many bytes of a text are searched: instructions state their purpose early.
const NEAR: usize = 4096;

pub(super) fn by_text(conversation: &Conversation, body: &[u8]) -> Option<Purpose> {
    let has_tools = conversation.tools.iter().any(|tool| tool.name.is_some());
    if has_tools {
        return None;
    }
    let mut user = conversation.messages.iter().filter(|message| message.role == Role::User);
    let first_message = user.next();
    let last_message = user.next_back();
    let schemas = &conversation.tools;
    let parts = conversation.system.iter().chain(schemas);
    let parts = parts
        .chain(first_message.into_iter().chain(last_message).flat_map(|message| &message.parts));
    let texts = parts.flat_map(|part| &part.texts).map(|text| text.slice(body));
    texts.map(|text| &text[..text.len().min(NEAR)]).find_map(|text| {
        let mut fitting = FINDERS.iter().filter(|(finder, _)| finder.needle().len() <= text.len());
        let row = fitting.find(|(finder, _)| finder.find(text).is_some());
        row.map(|(_, purpose)| *purpose)
    })
}
