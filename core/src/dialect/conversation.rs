//! A request in a form that is the same for all dialects: what the model is asked, part by part.
//!
//! What is not known is `None` or empty. Must not know how a dialect writes it.

use std::borrow::Cow;

use super::backend::model_behind;
use super::ids::SessionId;
use super::key::{Chain, PartKey, Sentence};
use super::kinds::{Dialect, PartKind, Purpose, Role};
use super::note::{Note, note_once};
use super::part::{Part, PartIndex};
use crate::wire::json::Span;

/// One message (or item) of the history.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks in it.
    pub role: Role,
    /// The range of the whole message in the body.
    pub span: Span,
    /// What it consists of, in the order of the body.
    pub parts: Vec<Part>,
    /// The provider's own count of it, if that was asked for.
    pub counted: Option<u64>,
}

impl Message {
    pub(super) fn new(role: Role, span: Span, parts: Vec<Part>) -> Self {
        Self { role, span, parts, counted: None }
    }

    /// Whether a picture or document is in it.
    pub fn has_media(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.kind, PartKind::Image | PartKind::Document))
    }
}

/// History that the provider holds, so that the request is not the whole conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldHistory {
    /// The request continues this response or message (`previous_response_id`, `thread: continue`).
    After(Box<str>),
    /// A named conversation or thread.
    Named(Box<str>),
}

/// A request in a form that is the same for all dialects.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The dialect that it was read as.
    pub dialect: Dialect,
    /// What it is for: a turn, a count, a side call, a compaction.
    pub purpose: Purpose,
    /// The requested model, from the body or the path.
    pub model: Option<Box<str>>,
    /// A hash of the backend that the request chose at a router, if it chose one.
    pub backend: Option<u64>,
    /// Whether a streamed response is requested.
    pub stream: bool,
    /// Whether it asks for several replies, of which the client continues with one.
    pub several: bool,
    /// The output limit, tokens.
    pub max_output: Option<u64>,
    /// Instructions outside the messages.
    pub system: Vec<Part>,
    /// Tool definitions, and whatever else is in the prompt's head (response format).
    pub tools: Vec<Part>,
    /// The history, oldest first.
    pub messages: Vec<Message>,
    /// See [`Conversation::chains`].
    pub(crate) chains: Vec<Chain>,
    /// Whether the request asks the model to think; `None` if it does not say.
    pub thinks: Option<bool>,
    /// The history that the provider holds, if any.
    pub held: Option<HeldHistory>,
    /// The session id in the body, if any (`docs/protocols.md` 8).
    pub session: Option<SessionId>,
    /// Chat Completions: the value of `stream_options.include_usage`.
    pub include_usage: Option<bool>,
    /// Responses: the value of `store`.
    pub stored: Option<bool>,
    /// Responses: the value of `reasoning.context` (`auto`, `current_turn`, `all_turns`).
    pub reasoning_context: Option<Box<str>>,
    /// Anthropic: the client asks the provider to clear old parts past this many input tokens.
    pub clears_past: Option<u64>,
    /// Anthropic: all its cache markers ask for the long lifetime.
    pub long_cache: bool,
    /// Anthropic: it repeats a declined request on another model (`fallback_credit_token`), and has to be the same.
    pub redeems_credit: bool,
    /// The sentences of the last reply in it, by which an edited one is recognised.
    pub last_reply: Vec<Sentence>,
    /// The first and the last sentence of the user's prompt, as long as at most one reply follows it.
    pub prompt: Option<[PartKey; 2]>,
    /// Anthropic: the model has to call a tool (`tool_choice` is `any` or `tool`).
    pub forces_tool: bool,
    /// What was unexpected.
    pub notes: Vec<Note>,
}

impl Conversation {
    /// Takes the notes so far, so that those of one element can be told from them.
    pub(super) fn begin_element(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Adds the notes of an element to the `earlier` ones. Whether it has none.
    pub(super) fn end_element(&mut self, earlier: Vec<Note>) -> bool {
        let notes = std::mem::replace(&mut self.notes, earlier);
        for note in &notes {
            note_once(&mut self.notes, *note);
        }
        notes.is_empty()
    }

    /// The part at a place in the history.
    pub(crate) fn part(&self, at: PartIndex) -> Option<&Part> {
        self.messages.get(at.message)?.parts.get(at.part)
    }

    /// Whether the request is a turn that brings its whole history: it is no call beside the conversation, and the
    /// provider holds none of it.
    pub fn is_whole_turn(&self) -> bool {
        self.held.is_none() && self.purpose == Purpose::Turn
    }

    /// The model that a refusal speaks of: its name, and the backend that the request chose.
    pub fn model_and_backend(&self) -> Cow<'_, str> {
        model_behind(self.model.as_deref().unwrap_or_default(), self.backend)
    }

    /// A conversation without content.
    pub fn empty(dialect: Dialect) -> Self {
        Self {
            dialect,
            purpose: Purpose::Turn,
            model: None,
            backend: None,
            stream: false,
            several: false,
            max_output: None,
            system: Vec::new(),
            tools: Vec::new(),
            messages: Vec::new(),
            chains: Vec::new(),
            thinks: None,
            long_cache: false,
            held: None,
            session: None,
            include_usage: None,
            stored: None,
            reasoning_context: None,
            clears_past: None,
            redeems_credit: false,
            last_reply: Vec::new(),
            prompt: None,
            forces_tool: false,
            notes: Vec::new(),
        }
    }

    /// All parts of the history, oldest first.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.messages.iter().flat_map(|message| &message.parts)
    }

    /// Whether it has several messages, and what has a key in them is the user's alone.
    pub fn has_only_user_messages(&self) -> bool {
        let messages = self.messages.iter();
        let keyed = messages.filter(|message| message.parts.iter().any(|part| part.key.is_some()));
        let mut parts = self.parts().filter(|part| part.key.is_some());
        keyed.count() > 1 && parts.all(|part| part.role != Role::Assistant)
    }

    /// All parts that use the window: system, tools, history.
    pub fn all_parts(&self) -> impl Iterator<Item = &Part> {
        self.system.iter().chain(&self.tools).chain(self.parts())
    }

    /// The same once its history is read, with the chains of that.
    pub(super) fn with_chains(self) -> Self {
        let mut chains = Vec::with_capacity(self.messages.len());
        let mut chain = Chain::START;
        for key in self.parts().filter_map(|part| part.key) {
            chain = chain.then(key);
            chains.push(chain);
        }
        Self { chains, ..self }
    }

    /// The chain after each part of the history that has a key, oldest first.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }
}
