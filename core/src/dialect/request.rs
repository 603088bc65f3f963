//! Reads a request of any dialect: its body by the dialect's own reader, then what only its path says.
//!
//! Never fails: what is not understood becomes an opaque part and a note.

use foldhash::HashMap;

use super::audience::assign::assign;
use super::conversation::Conversation;
use super::kinds::{Dialect, Purpose};
use super::known::BodyElements;
use super::note::Note;
use super::{anthropic, gemini, openai_chat, openai_responses, paths, purpose, sentences, size};
use crate::wire::json::{Document, Kind};

/// Reads a request of `dialect`. `target` is its path and query, which has purpose, model and stream in some
/// dialects. Never fails.
pub fn read(dialect: Dialect, target: &str, body: &[u8]) -> Conversation {
    let document = Document::read(body).unwrap_or_default();
    read_in(&document, dialect, target, body, &mut BodyElements::none())
}

/// [`read`] for a body that is already parsed, with the elements in it that are known.
pub fn read_in(
    document: &Document,
    dialect: Dialect,
    target: &str,
    body: &[u8],
    elements: &mut BodyElements,
) -> Conversation {
    let mut conversation = match document.root(body) {
        Some(root) if root.kind() == Kind::Object => match dialect {
            Dialect::Anthropic => anthropic::read(root, body, elements),
            Dialect::OpenaiChat => openai_chat::read(root, body, elements),
            Dialect::OpenaiResponses => openai_responses::read(root, body, elements),
            Dialect::Gemini => gemini::read(root, body, elements),
        },
        root => {
            let mut conversation = Conversation::empty(dialect);
            let note = if root.is_some() { Note::UnknownStructure } else { Note::NotJson };
            conversation.notes.push(note);
            conversation
        }
    };
    assign(&mut conversation);
    if let Some(endpoint) = paths::endpoint(&http::Method::POST, target) {
        // A body that names its model is more exact than the path.
        conversation.model =
            conversation.model.or_else(|| endpoint.model.as_deref().map(Into::into));
        conversation.stream = endpoint.stream.unwrap_or(conversation.stream);
        if conversation.purpose == Purpose::Turn {
            conversation.purpose = endpoint.purpose;
        }
    }
    if conversation.purpose == Purpose::Turn {
        conversation.purpose = purpose::by_text(&conversation, body).unwrap_or_default();
    }
    conversation.model = conversation.model.map(size::name);
    key_reasoning(&mut conversation, body);
    conversation.last_reply = sentences::of_last_reply(&conversation, body);
    conversation.prompt = sentences::of_prompt(&conversation, body);
    conversation.with_chains()
}

fn key_reasoning(conversation: &mut Conversation, body: &[u8]) {
    // Equal reasoning is told apart by how often it came before.
    let mut counts: HashMap<u128, u32> = HashMap::default();
    for part in conversation.messages.iter_mut().flat_map(|message| &mut message.parts) {
        part.hash_reasoning(body);
        let Some(key) = part.reasoning_key else { continue };
        let repeats = counts.entry(key).or_default();
        part.repeats = *repeats;
        *repeats += 1;
    }
}
