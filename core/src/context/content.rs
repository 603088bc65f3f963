//! The text of an exchange, stored only if configured (`content.keep`), which is off by default.
//!
//! It consists of what a request adds to its parent, and of the reply as it was read, part by part, in the
//! format of recorded transcripts (`replay::transcript`). Of images and documents only the sizes are stored.
//! Pure and bounded: if a text does not fit, its size is stored and marked. Must not know where it is stored.

use serde::{Deserialize, Serialize};

use super::lineage::Placement;
use crate::dialect::{Chain, Conversation, Part, PartKind, Reply, Role, Span};
use crate::tokens::media;
use crate::wire::json::Document;

/// The stored text of one exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeContent {
    /// What `messages` continues.
    pub follows: ContentLink,
    /// Tools and system prompt; empty if they equal the parent's.
    pub head: Vec<TranscriptPart>,
    /// The stored part of the history.
    pub messages: Vec<TranscriptPart>,
    /// The parts of the reply, in order.
    pub reply: Vec<TranscriptPart>,
}

/// What comes before the stored part of a request's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentLink {
    /// Nothing: it is the whole history.
    #[default]
    Nothing,
    /// The parent's history. The parent's reply, in the form that the client sends back, is in the stored
    /// part.
    Request,
    /// The parent's history and reply, which the provider holds.
    Reply,
}

/// One part, as in a line of a transcript.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranscriptPart {
    /// Whose message it is in.
    pub role: TranscriptSpeaker,
    /// What it is to the model.
    pub kind: TranscriptKind,
    /// Its length, bytes: of the text, or of an image's data.
    pub chars: u64,
    /// The text; for a call its arguments, for a tool its definition.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// It belongs to the reply to the call before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reply: bool,
    /// The name of the called tool, if it is a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Box<str>>,
    /// The id that joins a call and its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Box<str>>,
    /// The second or a later block of one tool result.
    #[serde(rename = "cont", default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    /// Length of a signature, or of encrypted reasoning, bytes.
    #[serde(rename = "sig", default, skip_serializing_if = "is_zero")]
    pub signature_len: u64,
    /// The MIME type of an image or document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime: Option<Box<str>>,
    /// An image's width, pixels; 0 if unknown.
    #[serde(rename = "w", default, skip_serializing_if = "is_zero")]
    pub width: u64,
    /// An image's height, pixels; 0 if unknown.
    #[serde(rename = "h", default, skip_serializing_if = "is_zero")]
    pub height: u64,
    /// 1 if the text was too long and left out: transcripts treat such a part as inexact.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u64,
}

/// Three roles, as transcripts have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptSpeaker {
    /// Instructions and tools.
    System,
    /// The user, and tool results.
    User,
    /// The model, calls of tools included.
    Assistant,
}

/// The kinds of parts that transcripts distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptKind {
    /// Text of the user, the model or the instructions.
    Text,
    /// A tool's definition.
    Tools,
    /// Name and arguments of a call.
    ToolUse,
    /// One block of what a tool returned.
    ToolResult,
    /// Reasoning, or a signature on another part (Gemini).
    Thinking,
    /// An image, of which only the size is stored.
    Image,
    /// A document, or a part that is not understood.
    Other,
}

/// The least size of a part beside its text, bytes, so that many small parts are bounded as well.
const BESIDE: usize = 128;

impl ExchangeContent {
    /// What a request adds to its parent, in at most `most` bytes.
    pub fn of_request(
        conversation: &Conversation,
        body: &[u8],
        placed: &Placement,
        most: usize,
    ) -> Self {
        let mut writing = ContentWriter { body, left: most, document: Document::default() };
        let parent = placed.parent.as_deref();
        let position = &placed.position;
        let has_same_head = parent.is_some_and(|turn| {
            turn.position.system == position.system && turn.position.tools == position.tools
        });
        let head = if has_same_head {
            Vec::new()
        } else {
            writing.parts(conversation.tools.iter().chain(&conversation.system))
        };
        let grown = parent.and_then(|parent| end_of(conversation, parent.position.chain));
        let follows = match (grown, parent, &conversation.held) {
            (Some(_), _, _) => ContentLink::Request,
            (None, Some(_), Some(_)) => ContentLink::Reply,
            (None, _, _) => ContentLink::Nothing,
        };
        let new_parts: Vec<&Part> = conversation.parts().skip(grown.unwrap_or(0)).collect();
        // What follows the parent's request up to the next message of another is the parent's reply.
        let reply_len = match follows {
            ContentLink::Request => new_parts
                .iter()
                .position(|part| part.role != Role::Assistant && part.key.is_some())
                .unwrap_or(new_parts.len()),
            ContentLink::Nothing | ContentLink::Reply => 0,
        };
        let (answer, request) = new_parts.split_at(reply_len);
        let mut messages = writing.parts(answer.iter().copied());
        for part in &mut messages {
            part.reply = part.role == TranscriptSpeaker::Assistant;
        }
        messages.append(&mut writing.parts(request.iter().copied()));
        Self { follows, head, messages, reply: Vec::new() }
    }

    /// Adds the reply, in at most `most` bytes in all.
    pub fn answered(self, reply: &Reply, most: usize) -> Self {
        let mut writing = ContentWriter { body: &[], left: most, document: Document::default() };
        // The reply takes its room first: it is new, and the end of the request is left out.
        let reply = writing.reply(reply);
        let head = writing.copied(self.head);
        let messages = writing.copied(self.messages);
        Self { head, messages, reply, ..self }
    }
}

/// How many parts of a history end at `chain`; `None` if the history does not contain it.
fn end_of(conversation: &Conversation, chain: Chain) -> Option<usize> {
    let mut end = Chain::START;
    for (index, part) in conversation.parts().enumerate() {
        let Some(key) = part.key else { continue };
        end = end.then(key);
        if end == chain {
            return Some(index + 1);
        }
    }
    None
}

/// Copies text out of a body, as long as there is room.
struct ContentWriter<'b> {
    body: &'b [u8],
    /// Bytes that may still be stored.
    left: usize,
    document: Document,
}

impl ContentWriter<'_> {
    fn parts<'p>(&mut self, parts: impl Iterator<Item = &'p Part>) -> Vec<TranscriptPart> {
        let mut stored = Vec::new();
        for part in parts {
            self.part(part, &mut stored);
        }
        stored
    }

    fn part(&mut self, part: &Part, out: &mut Vec<TranscriptPart>) {
        let outline = self.without_text(part);
        // Without its quotes.
        let signature_len = part.signature.map_or(0, |span| span.len().saturating_sub(2) as u64);
        if signature_len > 0 && part.kind != PartKind::Reasoning {
            // Gemini puts signatures on the parts that its thoughts led to.
            self.add(
                TranscriptPart {
                    kind: TranscriptKind::Thinking,
                    signature_len,
                    ..TranscriptPart::empty(&outline)
                },
                0,
                out,
            );
        }
        let outline = TranscriptPart {
            signature_len: if outline.kind == TranscriptKind::Thinking { signature_len } else { 0 },
            ..outline
        };
        let has_blocks = part.kind == PartKind::ToolResult && part.texts.len() > 1;
        if part.media.is_some() {
            self.add(outline, 0, out);
        } else if has_blocks {
            for (at, text) in part.texts.iter().enumerate() {
                self.text(TranscriptPart { continues: at > 0, ..outline.clone() }, &[*text], out);
            }
        } else {
            self.text(outline, &part.texts, out);
        }
    }

    fn without_text(&self, part: &Part) -> TranscriptPart {
        let mut outline = TranscriptPart {
            role: match part.role {
                Role::System => TranscriptSpeaker::System,
                Role::User | Role::Tool => TranscriptSpeaker::User,
                Role::Assistant => TranscriptSpeaker::Assistant,
            },
            name: part.name.clone(),
            id: part.id.clone(),
            ..TranscriptPart::new(kind(part.kind))
        };
        if let Some(media) = &part.media {
            outline.mime.clone_from(&media.mime);
            if let Some(data) = media.data {
                // Without its quotes.
                outline.chars = data.len().saturating_sub(2) as u64;
                if part.kind == PartKind::Image
                    && let Some(size) = media::size(data.slice(self.body))
                {
                    outline.width = size.width as u64;
                    outline.height = size.height as u64;
                }
            }
        }
        outline
    }

    fn text(&mut self, outline: TranscriptPart, values: &[Span], out: &mut Vec<TranscriptPart>) {
        let length: usize = values.iter().map(Span::len).sum();
        let chars = length as u64;
        if !self.has_room(&outline, length) {
            return self.add(TranscriptPart { chars, redacted: 1, ..outline }, 0, out);
        }
        let text: String = values.iter().map(|value| self.decoded(*value)).collect();
        self.add(TranscriptPart { chars: text.len() as u64, text, ..outline }, length, out);
    }

    /// The text of a JSON string.
    fn decoded(&mut self, value: Span) -> String {
        let bytes = value.slice(self.body);
        if self.document.reread(bytes).is_ok()
            && let Some(text) = self.document.root(bytes).and_then(|value| value.text())
        {
            return text.into_owned();
        }
        // Arguments of calls may be JSON values: they are stored as they are in the body.
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn copied(&mut self, parts: Vec<TranscriptPart>) -> Vec<TranscriptPart> {
        let mut stored = Vec::new();
        for part in parts {
            let length = part.text.len();
            if self.has_room(&part, length) {
                self.add(part, length, &mut stored);
            } else {
                // Its size is known all the same.
                let outline = TranscriptPart { text: String::new(), redacted: 1, ..part };
                self.add(outline, 0, &mut stored);
            }
        }
        stored
    }

    fn reply(&mut self, reply: &Reply) -> Vec<TranscriptPart> {
        let mut stored = Vec::new();
        for part in &reply.parts {
            let mut outline = TranscriptPart {
                role: TranscriptSpeaker::Assistant,
                name: part.name.clone(),
                id: part.id.clone(),
                signature_len: part.signature.as_ref().map_or(0, |value| value.len() as u64),
                chars: part.text.len() as u64,
                ..TranscriptPart::new(kind(part.kind))
            };
            if self.has_room(&outline, part.text.len()) {
                outline.text.clone_from(&part.text);
            } else {
                outline.redacted = 1;
            }
            let length = outline.text.len();
            self.add(outline, length, &mut stored);
        }
        stored
    }

    fn has_room(&self, part: &TranscriptPart, length: usize) -> bool {
        self.left >= part.beside().saturating_add(length)
    }

    fn add(&mut self, part: TranscriptPart, length: usize, out: &mut Vec<TranscriptPart>) {
        if self.has_room(&part, length) {
            self.left -= part.beside() + length;
            return out.push(part);
        }
        // If there is no room even for the size of the part, the size is added to the last part.
        let left_out = TranscriptPart { redacted: 1, ..TranscriptPart::new(TranscriptKind::Other) };
        match out.last_mut() {
            Some(last) if *last == (TranscriptPart { chars: last.chars, ..left_out.clone() }) => {
                last.chars = last.chars.saturating_add(part.chars);
            }
            _ => out.push(TranscriptPart { chars: part.chars, ..left_out }),
        }
    }
}

impl TranscriptPart {
    fn new(kind: TranscriptKind) -> Self {
        Self {
            role: TranscriptSpeaker::User,
            kind,
            chars: 0,
            text: String::new(),
            reply: false,
            name: None,
            id: None,
            continues: false,
            signature_len: 0,
            mime: None,
            width: 0,
            height: 0,
            redacted: 0,
        }
    }

    fn empty(other: &Self) -> Self {
        Self { role: other.role, ..Self::new(other.kind) }
    }

    fn beside(&self) -> usize {
        let names = [&self.name, &self.id, &self.mime];
        BESIDE + names.into_iter().flatten().map(|word| word.len()).sum::<usize>()
    }
}

fn kind(kind: PartKind) -> TranscriptKind {
    match kind {
        PartKind::Text => TranscriptKind::Text,
        PartKind::Tool => TranscriptKind::Tools,
        PartKind::ToolCall => TranscriptKind::ToolUse,
        PartKind::ToolResult => TranscriptKind::ToolResult,
        PartKind::Reasoning => TranscriptKind::Thinking,
        PartKind::Image => TranscriptKind::Image,
        PartKind::Document | PartKind::Opaque => TranscriptKind::Other,
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests;
