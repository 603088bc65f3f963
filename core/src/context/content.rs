//! The text of an exchange, stored only if configured (`content.keep`), which is off by default.
//!
//! It consists of what a request adds to its parent, and of the reply as it was read, part by part, in the
//! format of recorded transcripts (`replay::transcript`). Of images and documents only the sizes are stored.
//! Pure and bounded: if a text does not fit, its size is stored and marked. Must not know where it is stored.

use serde::{Deserialize, Serialize};

use super::lineage::Placement;
use crate::dialect::{Chain, Conversation, Part, PartKind, Reply, ReplyPart, Role, Span};
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
    #[serde(rename = "said")]
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
        let head = conversation.tools.iter().chain(&conversation.system);
        let (parent, now) = (placed.parent.as_deref(), &placed.position);
        let has_same_head = parent.is_some_and(|turn| {
            (turn.position.system, turn.position.tools) == (now.system, now.tools)
        });
        let head = if has_same_head { Vec::new() } else { writing.parts(head) };
        let grown = parent.and_then(|parent| end_of(conversation, parent.position.chain));
        let follows = match (grown, parent, &conversation.held) {
            (Some(_), _, _) => ContentLink::Request,
            (None, Some(_), Some(_)) => ContentLink::Reply,
            (None, _, _) => ContentLink::Nothing,
        };
        let new_parts: Vec<&Part> = conversation.parts().skip(grown.unwrap_or(0)).collect();
        let others = |part: &&Part| part.role != Role::Assistant && part.key.is_some();
        let answered = match follows {
            ContentLink::Request => new_parts.iter().position(others).unwrap_or(new_parts.len()),
            ContentLink::Nothing | ContentLink::Reply => 0,
        };
        let (answer, request) = new_parts.split_at(answered);
        let mut messages = writing.parts(answer.iter().copied());
        messages.iter_mut().for_each(|part| part.reply = part.role == TranscriptSpeaker::Assistant);
        messages.append(&mut writing.parts(request.iter().copied()));
        Self { follows, head, messages, reply: Vec::new() }
    }

    /// Adds the reply, in at most `most` bytes in all; if there is too much, the end of the request is left
    /// out.
    pub fn answered(self, reply: &Reply, most: usize) -> Self {
        let mut writing = ContentWriter { body: &[], left: most, document: Document::default() };
        let reply = writing.reply(reply);
        let (head, messages) = (writing.copied(self.head), writing.copied(self.messages));
        Self { head, messages, reply, ..self }
    }
}

/// How many parts of a history end at `chain`; `None` if the history does not contain it.
fn end_of(conversation: &Conversation, chain: Chain) -> Option<usize> {
    let mut so_far = Chain::START;
    let ends = |part: &Part| {
        so_far = part.key.map_or(so_far, |key| so_far.then(key));
        part.key.is_some() && so_far == chain
    };
    conversation.parts().position(ends).map(|at| at + 1)
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
        let mut out = Vec::new();
        parts.for_each(|part| self.part(part, &mut out));
        out
    }

    fn part(&mut self, part: &Part, out: &mut Vec<TranscriptPart>) {
        let outline = self.without_text(part);
        // Without its quotes.
        let signature_len = part.signature.map_or(0, |it| it.len().saturating_sub(2) as u64);
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
            ..TranscriptPart::of(kind(part.kind))
        };
        if let Some(of) = &part.media {
            outline.mime.clone_from(&of.mime);
            outline.chars = of.data.map_or(0, |data| data.len().saturating_sub(2) as u64);
            let data = of.data.map(|data| data.slice(self.body));
            let size = data.and_then(media::size).filter(|_| part.kind == PartKind::Image);
            (outline.width, outline.height) =
                size.map_or((0, 0), |it| (it.width as u64, it.height as u64));
        }
        outline
    }

    /// A part with the text of these values, if there is room for it.
    fn text(&mut self, outline: TranscriptPart, values: &[Span], out: &mut Vec<TranscriptPart>) {
        let length: usize = values.iter().map(Span::len).sum();
        let chars = length as u64;
        if !self.has_room(&outline, length) {
            return self.add(TranscriptPart { chars, redacted: 1, ..outline }, 0, out);
        }
        let text: String = values.iter().map(|value| self.decoded(*value)).collect();
        self.add(TranscriptPart { chars: text.len() as u64, text, ..outline }, length, out);
    }

    /// The text of a JSON string; other values as they are in the body.
    fn decoded(&mut self, value: Span) -> String {
        let bytes = value.slice(self.body);
        let read = self.document.reread(bytes).is_ok();
        let root = self.document.root(bytes).filter(|_| read);
        let text = root.and_then(|value| value.text().map(std::borrow::Cow::into_owned));
        text.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Adds parts that were copied before, as far as there is room.
    fn copied(&mut self, parts: Vec<TranscriptPart>) -> Vec<TranscriptPart> {
        let mut out = Vec::new();
        for part in parts {
            let length = part.text.len();
            match self.has_room(&part, length) {
                true => self.add(part, length, &mut out),
                false => {
                    self.add(
                        TranscriptPart { text: String::new(), redacted: 1, ..part },
                        0,
                        &mut out,
                    );
                }
            }
        }
        out
    }

    fn reply(&mut self, reply: &Reply) -> Vec<TranscriptPart> {
        let mut out = Vec::new();
        for part in &reply.parts {
            let ReplyPart { text, id, name, signature, .. } = part;
            let signature_len = signature.as_ref().map_or(0, |it| it.len() as u64);
            let (name, id) = (name.clone(), id.clone());
            let role = TranscriptSpeaker::Assistant;
            let (chars, kind) = (text.len() as u64, kind(part.kind));
            let one =
                TranscriptPart { role, name, id, signature_len, chars, ..TranscriptPart::of(kind) };
            let fits = self.has_room(&one, text.len());
            let (text, redacted) = if fits { (text.clone(), 0) } else { (String::new(), 1) };
            let length = text.len();
            self.add(TranscriptPart { text, redacted, ..one }, length, &mut out);
        }
        out
    }

    fn has_room(&self, part: &TranscriptPart, length: usize) -> bool {
        self.left >= part.beside().saturating_add(length)
    }

    /// Adds a part. If there is no room even for its size, the size is added to the last part.
    fn add(&mut self, part: TranscriptPart, length: usize, out: &mut Vec<TranscriptPart>) {
        if self.has_room(&part, length) {
            self.left -= part.beside() + length;
            return out.push(part);
        }
        let left_out = TranscriptPart { redacted: 1, ..TranscriptPart::of(TranscriptKind::Other) };
        match out.last_mut() {
            Some(last) if *last == (TranscriptPart { chars: last.chars, ..left_out.clone() }) => {
                last.chars = last.chars.saturating_add(part.chars);
            }
            _ => out.push(TranscriptPart { chars: part.chars, ..left_out }),
        }
    }
}

impl TranscriptPart {
    fn of(kind: TranscriptKind) -> Self {
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

    /// An empty part with the same speaker and kind.
    fn empty(of: &Self) -> Self {
        Self { role: of.role, ..Self::of(of.kind) }
    }

    /// Its size beside its text, bytes, roughly.
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
mod tests {
    use super::*;
    use crate::context::ledger::Ledger;
    use crate::context::lineage::place;
    use crate::dialect::{self, Dialect};

    fn exchanged(body: &str, most: usize) -> ExchangeContent {
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
        let part = ReplyPart { text: "Aye.".into(), ..ReplyPart::new(PartKind::Text) };
        let reply = Reply { parts: vec![part], ..Reply::default() };
        let placed = place(&Ledger::default(), &read, &"r".into(), None);
        ExchangeContent::of_request(&read, body.as_bytes(), &placed, most).answered(&reply, most)
    }

    fn request(text: &str) -> String {
        let text = serde_json::Value::from(text);
        format!(r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":{text}}}]}}"#)
    }

    #[test]
    fn a_text_one_byte_too_long_is_not_kept_but_its_size_is() {
        // The reply, the part, and its text.
        let room = BESIDE + 4 + BESIDE + 100;
        let text = "é".repeat(50);
        let kept = exchanged(&request(&text), room);
        assert_eq!((&*kept.messages[0].text, kept.messages[0].redacted), (&*text, 0));
        let left_out = exchanged(&request(&text), room - 1);
        assert_eq!((&*left_out.messages[0].text, left_out.messages[0].redacted), ("", 1));
        assert_eq!(left_out.messages[0].chars, 100);
        assert_eq!(left_out.reply[0].text, "Aye.");
    }

    #[test]
    fn many_small_parts_stay_within_the_content_limit() {
        let block = r#"{"type":"text","text":"x"}"#;
        let blocks = vec![block; 10_000].join(",");
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{blocks}]}}]}}"#);
        let kept = exchanged(&body, 10_000);
        assert!(kept.messages.len() <= 10_000 / BESIDE + 1, "{}", kept.messages.len());
        let written = serde_json::to_string(&kept).unwrap().len();
        assert!(written <= 11_000, "{written}");
        assert_eq!(kept.messages.last().unwrap().redacted, 1);
    }

    #[test]
    fn texts_are_kept_as_sent_and_pictures_leave_their_size() {
        let png = "iVBORw0KGgoAAAANSUhEUgAABQAAAALQCAIAAAA=";
        let body = format!(
            r#"{{"model":"m","system":"Be \"kind\".","tools":[{{"name":"look","input_schema":{{}}}}],
            "messages":[{{"role":"user","content":[{{"type":"text","text":"a\nb"}},
            {{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{png}"}}}}]}},
            {{"role":"assistant","content":[{{"type":"tool_use","id":"t","name":"look","input":{{"n":1}}}}]}},
            {{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t","content":[
            {{"type":"text","text":"one"}},{{"type":"text","text":"two"}}]}}]}}]}}"#
        );
        let kept = exchanged(&body, 1 << 20);
        assert_eq!(kept.follows, ContentLink::Nothing);
        let contents = |parts: &[TranscriptPart]| -> Vec<(TranscriptKind, String)> {
            parts.iter().map(|parts| (parts.kind, parts.text.clone())).collect()
        };
        assert_eq!(kept.head[0].kind, TranscriptKind::Tools);
        assert_eq!(kept.head[1].text, "Be \"kind\".");
        let expected = [
            (TranscriptKind::Text, "a\nb"),
            (TranscriptKind::Image, ""),
            (TranscriptKind::ToolUse, r#"{"n":1}"#),
            (TranscriptKind::ToolResult, "one"),
            (TranscriptKind::ToolResult, "two"),
        ];
        assert_eq!(contents(&kept.messages), expected.map(|(kind, text)| (kind, text.to_owned())));
        let picture = &kept.messages[1];
        assert_eq!((picture.width, picture.height, picture.chars), (1280, 720, png.len() as u64));
        assert!(!kept.messages[3].continues && kept.messages[4].continues);
        // The names that transcripts use.
        let written = serde_json::to_value(&kept.messages).unwrap();
        assert_eq!((&written[1]["w"], &written[1]["h"]), (&1280.into(), &720.into()));
        assert_eq!(written[4]["cont"], true);
    }

    /// What is exported of an exchange: the role of each part, its name and id, and the length of its signature.
    #[test]
    fn parts_keep_role_name_id_and_signature_length() {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"Look."},
            {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"c2lnbmVk"},
            {"type":"tool_use","id":"t","name":"look","input":{}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"ok"}]}]}"#;
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
        let part = |kind| ReplyPart::new(kind);
        let reply = Reply {
            parts: vec![
                ReplyPart {
                    text: "So.".into(),
                    signature: Some("12345".into()),
                    ..part(PartKind::Reasoning)
                },
                ReplyPart {
                    text: "{}".into(),
                    id: Some("u".into()),
                    name: Some("go".into()),
                    ..part(PartKind::ToolCall)
                },
            ],
            ..Reply::default()
        };
        let placed = place(&Ledger::default(), &read, &"r".into(), None);
        let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
        let kept = kept.answered(&reply, 1 << 20);
        let written = |parts: &[TranscriptPart]| serde_json::to_value(parts).unwrap();
        assert_eq!(
            written(&kept.messages),
            serde_json::json!([
                {"role": "user", "kind": "text", "chars": 5, "text": "Look."},
                {"role": "assistant", "kind": "thinking", "chars": 3, "text": "Hm.", "sig": 8},
                {"role": "assistant", "kind": "tool_use", "chars": 2, "text": "{}", "name": "look", "id": "t"},
                {"role": "user", "kind": "tool_result", "chars": 2, "text": "ok", "id": "t"},
            ])
        );
        assert_eq!(
            written(&kept.reply),
            serde_json::json!([
                {"role": "assistant", "kind": "thinking", "chars": 3, "text": "So.", "sig": 5},
                {"role": "assistant", "kind": "tool_use", "chars": 2, "text": "{}", "name": "go", "id": "u"},
            ])
        );
        // If there is no room for the text, the length of the signature and the names remain.
        let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
        let short = kept.answered(&reply, 2 * BESIDE + 3);
        assert_eq!((&*short.reply[0].text, short.reply[0].redacted), ("So.", 0));
        assert_eq!((short.reply[1].kind, short.reply[1].redacted), (TranscriptKind::Other, 1));
        assert_eq!(short.reply[1].chars, 2);
    }

    /// Gemini signs the part that follows its thoughts: the signature is exported as a thought before that part.
    #[test]
    fn a_signature_on_a_call_is_exported_as_reasoning_before_it() {
        let body = r#"{"contents":[{"role":"user","parts":[{"text":"Look."}]},{"role":"model","parts":[
            {"functionCall":{"name":"look","args":{}},"thoughtSignature":"c2lnbmVk"}]},
            {"role":"user","parts":[{"functionResponse":{"name":"look","response":{"a":1}}}]}]}"#;
        let path = "/v1beta/models/gemini-2.5-pro:generateContent";
        let read = dialect::read(Dialect::Gemini, path, body.as_bytes());
        let placed = place(&Ledger::default(), &read, &"r".into(), None);
        let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
        let listed: Vec<_> =
            kept.messages.iter().map(|part| (part.role, part.kind, part.signature_len)).collect();
        let (user, model) = (TranscriptSpeaker::User, TranscriptSpeaker::Assistant);
        let expected = [
            (user, TranscriptKind::Text, 0),
            (model, TranscriptKind::Thinking, 8),
            (model, TranscriptKind::ToolUse, 0),
            (user, TranscriptKind::ToolResult, 0),
        ];
        assert_eq!(listed, expected);
    }

    /// What a request contains that its parent did not: the reply as the client sends it, then what is new. System
    /// prompt and tools are written again if they changed; if the history changed, all of it is written.
    #[test]
    fn content_of_the_parent_turn_is_not_stored_again() {
        use serde_json::{Value, json};

        use crate::context::scene::SessionFixture;
        const MODEL: &str = "claude-opus-4-6";
        let user = |text: &str| json!({"role": "user", "content": text});
        let model = |text: &str| json!({"role": "assistant", "content": text});
        let body = |system: &str, messages: &Value| {
            let tools = json!([{"name": "look", "input_schema": {}}]);
            json!({"model": MODEL, "system": system, "tools": tools, "messages": messages})
        };
        let first = body("Be kind.", &json!([user("Words.")]));
        let mut scene = SessionFixture::read(Dialect::Anthropic, "/v1/messages", MODEL, &first);
        scene.answered(&json!([{"type": "text", "text": "Said."}]));
        let mut next = |body: &Value| {
            scene.body = body.to_string().into_bytes();
            scene.conversation = dialect::read(Dialect::Anthropic, "/v1/messages", &scene.body);
            let (conversation, body) = (&scene.conversation, &scene.body);
            let kept = ExchangeContent::of_request(conversation, body, &scene.placed(), 1 << 20);
            let texts = |parts: Vec<TranscriptPart>| -> Vec<(String, bool)> {
                parts.into_iter().map(|parts| (parts.text, parts.reply)).collect()
            };
            (kept.follows, kept.head.len(), texts(kept.messages))
        };
        let expected = |texts: &[(&str, bool)]| -> Vec<(String, bool)> {
            texts.iter().map(|(text, reply)| ((*text).to_owned(), *reply)).collect()
        };
        let grown =
            json!([user("Words."), model("Said."), user("More."), model("So."), user("On.")]);
        let new = expected(&[("Said.", true), ("More.", false), ("So.", false), ("On.", false)]);
        assert_eq!(next(&body("Be kind.", &grown)), (ContentLink::Request, 0, new.clone()));
        assert_eq!(next(&body("Be brief.", &grown)), (ContentLink::Request, 2, new));
        let bare = json!([user("Words."), model("Said.")]);
        let reply = expected(&[("Said.", true)]);
        assert_eq!(next(&body("Be kind.", &bare)), (ContentLink::Request, 0, reply));
        let other = json!([user("Others."), model("Said."), user("More.")]);
        let all = expected(&[("Others.", false), ("Said.", false), ("More.", false)]);
        assert_eq!(next(&body("Be kind.", &other)).2, all);
        assert_eq!(next(&body("Be kind.", &other)).0, ContentLink::Nothing);
        // The provider holds the earlier request and its reply.
        let held = json!({"model": "gpt-5", "previous_response_id": "msg_1", "input": "More."});
        scene.body = held.to_string().into_bytes();
        scene.conversation = dialect::read(Dialect::OpenaiResponses, "/v1/responses", &scene.body);
        let (conversation, body) = (&scene.conversation, &scene.body);
        let kept = ExchangeContent::of_request(conversation, body, &scene.placed(), 1 << 20);
        assert_eq!((kept.follows, kept.messages.len()), (ContentLink::Reply, 1));
        assert_eq!((&*kept.messages[0].text, kept.messages[0].reply), ("More.", false));
    }

    /// If a text does not fit, its size is kept, in a request and in a reply. Several texts of one thought are one
    /// part.
    #[test]
    fn of_a_text_that_does_not_fit_only_the_size_is_kept() {
        let body = request(&"x".repeat(100));
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
        let placed = place(&Ledger::default(), &read, &"r".into(), None);
        let kept = |most| ExchangeContent::of_request(&read, body.as_bytes(), &placed, most);
        let part = TranscriptPart::of(TranscriptKind::Text);
        let whole = TranscriptPart { text: "x".repeat(100), chars: 100, ..part.clone() };
        // The length as it is in the body, with quotes.
        assert_eq!(kept(BESIDE + 102).messages, [whole]);
        let cut = TranscriptPart { chars: 102, redacted: 1, ..part };
        assert_eq!(kept(BESIDE + 101).messages, std::slice::from_ref(&cut));
        let nothing = TranscriptPart { kind: TranscriptKind::Other, ..cut.clone() };
        assert_eq!(kept(BESIDE - 1).messages, [nothing]);
        let part = ReplyPart { text: "y".repeat(100), ..ReplyPart::new(PartKind::Text) };
        let reply = Reply { parts: vec![part], ..Reply::default() };
        let answered = kept(0).answered(&reply, BESIDE + 99);
        let cut = TranscriptPart { role: TranscriptSpeaker::Assistant, chars: 100, ..cut };
        assert_eq!(answered.reply, [cut]);
        let body = r#"{"input":[{"type":"reasoning","encrypted_content":"AAAA","summary":[
            {"type":"summary_text","text":"One. "},{"type":"summary_text","text":"Two."}]}]}"#;
        let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
        let placed = place(&Ledger::default(), &read, &"r".into(), None);
        let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
        let texts: Vec<&str> = kept.messages.iter().map(|part| &*part.text).collect();
        assert_eq!(texts, ["One. Two."]);
    }
}
