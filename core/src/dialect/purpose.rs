//! What a request is for, where only its words say it: titles, routers' questions, compactions.
//!
//! Clients mark such calls by nothing but their instructions (`docs/protocols.md` 10.11, 10.12). A table of how
//! those begin; a request with tools is a turn whatever it says. A miss costs little: the call is
//! then a thread of its own that never grows.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{Conversation, Purpose, Role};

/// What the instructions, or the first or last message, of such a request hold near their start.
const TELLING: &[(&str, Purpose)] = &[
    // opencode; aider and Open WebUI ask for titles in their own words.
    ("You are a title generator", Purpose::Side),
    ("Generate a title for this conversation", Purpose::Side),
    ("Generate a concise, 3-5 word title", Purpose::Side),
    // Gemini CLI's router, next-speaker check and loop check, and Qwen Code's suggestions.
    ("You are a specialized Task Routing AI", Purpose::Side),
    ("\"next_speaker\"", Purpose::Side),
    ("\"unproductive_state_confidence\"", Purpose::Side),
    ("[SUGGESTION MODE", Purpose::Side),
    // Gemini CLI and Qwen Code; opencode; pi; Codex.
    ("<state_snapshot>", Purpose::Compaction),
    ("tasked with summarizing conversations", Purpose::Compaction),
    ("You are a context summarization assistant", Purpose::Compaction),
    ("CONTEXT CHECKPOINT COMPACTION", Purpose::Compaction),
];

/// [`TELLING`], ready to be looked for.
static FINDERS: LazyLock<Vec<(Finder<'static>, Purpose)>> = LazyLock::new(|| {
    TELLING.iter().map(|(words, purpose)| (Finder::new(*words), *purpose)).collect()
});

/// How far into a text is looked, bytes: instructions say at once what they want.
const NEAR: usize = 4096;

/// What the words say the request is for, if they say anything.
pub(super) fn told(conversation: &Conversation, body: &[u8]) -> Option<Purpose> {
    let has_tools = conversation.tools.iter().any(|tool| tool.name.is_some());
    if has_tools {
        return None;
    }
    let mut user = conversation.messages.iter().filter(|message| message.role == Role::User);
    let (first, last) = (user.next(), user.next_back());
    let schemas = &conversation.tools;
    let parts = conversation.system.iter().chain(schemas);
    let parts = parts.chain(first.into_iter().chain(last).flat_map(|message| &message.parts));
    let texts = parts.flat_map(|part| &part.texts).map(|text| text.of(body));
    texts.map(|text| &text[..text.len().min(NEAR)]).find_map(|text| {
        let mut fitting = FINDERS.iter().filter(|(words, _)| words.needle().len() <= text.len());
        let told = fitting.find(|(words, _)| words.find(text).is_some());
        told.map(|(_, purpose)| *purpose)
    })
}
