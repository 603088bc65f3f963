//! Reads Gemini's replies: streams, streamed arrays and bodies (`docs/protocols.md` 5.1, 5.3, 5.4).
//!
//! There is no terminal event: parts, usage and even another finish reason may follow the first. A reply is
//! complete if a finish reason (or a blocked prompt) was seen and the whole body has arrived, so never before
//! its end. A signed part is never joined with another.

use serde_json::{Value as Json, json};

use super::interactions::InteractionReply;
use super::usage::UsageFields;
use super::{
    MediaPart, PartData, arguments, data, file_media, hosted_key, hosted_text, inline_media,
    signature,
};
use crate::dialect::count::Count;
use crate::dialect::key::{Keyer, ToolArguments};
use crate::dialect::note::note_once;
use crate::dialect::provider_error::error_in;
use crate::dialect::reply::{KeptSize, MOST_VALUES};
use crate::dialect::{Note, PartKind, Reply, ReplyPart, Role, StopReason, Usage};
use crate::wire::json::{Kind, Value, members};
use crate::wire::member::{first, owned_text};

/// The state of a stream that is being read.
#[derive(Default)]
pub struct ReplyStream {
    /// The request asks for several replies, one in each candidate. Otherwise all candidates are parts of one.
    pub(in crate::dialect) several: bool,
    /// The replies, with the indexes of their candidates, the first one seen first.
    replies: Vec<(u64, CandidateContent)>,
    usage: UsageFields,
    /// It is a reply of the Interactions API.
    interaction: Option<Box<InteractionReply>>,
    /// Parts that are kept.
    pub(in crate::dialect) kept: KeptSize,
    /// A finish reason was seen, or the prompt was blocked.
    finished: bool,
}

/// The content of a reply so far.
#[derive(Default)]
struct CandidateContent {
    parts: Vec<ReplyPart>,
    /// The last part is a call whose arguments are still arriving.
    open: Option<Json>,
    /// Places in arguments that came by their paths.
    places: usize,
    keyer: Keyer,
}

/// Most replies of one request that are read.
const MOST_CANDIDATES: usize = 128;

impl ReplyStream {
    /// Reads the next frame or array element; Code Assist wraps it in `response`.
    pub(crate) fn event(&mut self, _name: &str, value: Value<'_>, reply: &mut Reply) {
        if InteractionReply::is_one(value) {
            return self.interaction(value, reply);
        }
        // Code Assist wraps it in `response`.
        let value = unwrapped(value);
        let answer = ResponseMembers::from_value(value);
        if first([answer.error]).is_some() {
            reply.error = Some(error_in(value));
        } else if !answer.is_known() {
            note_once(&mut reply.notes, Note::UnknownEvent);
        }
        self.answer(&answer, reply);
    }

    /// Reads a whole body: a reply, or the response of the count endpoint.
    pub(crate) fn body(&mut self, value: Value<'_>, reply: &mut Reply) {
        if InteractionReply::is_one(value) {
            self.interaction(value, reply);
            reply.complete = true;
            return;
        }
        let value = unwrapped(value);
        let answer = ResponseMembers::from_value(value);
        let counted = value.get_any(&["totalTokens", "total_tokens"]);
        if let Some(count) = counted {
            reply.counted = Count::from_member(Some(count)).value();
        } else if first([answer.error]).is_some() {
            reply.error = Some(error_in(value));
        } else if answer.is_known() {
            self.answer(&answer, reply);
        } else {
            return note_once(&mut reply.notes, Note::UnknownStructure);
        }
        self.finished |= first([answer.candidates]).is_some();
        reply.complete = true;
    }

    pub(crate) fn finish(&mut self, whole: bool, reply: &mut Reply) {
        if let Some(interaction) = &mut self.interaction {
            return interaction.finish(reply);
        }
        reply.complete |= whole && self.finished && reply.error.is_none();
        let replies = std::mem::take(&mut self.replies);
        let mut forms = replies.into_iter().map(|(_, content)| content.finished(self.finished));
        reply.parts = forms.next().unwrap_or_default();
        reply.choices = forms.collect();
        let has_calls = reply.parts.iter().any(|part| part.kind == PartKind::ToolCall);
        if reply.stop == Some(StopReason::End) && has_calls {
            reply.stop = Some(StopReason::ToolUse);
        }
        reply.usage = self.usage.normalised(&mut reply.notes);
        reply.usage.lower_bound = !self.finished && self.usage.is_known();
    }

    /// The usage if the reply ended here.
    pub(crate) fn usage_so_far(&self, reply: &Reply) -> Usage {
        if let Some(interaction) = &self.interaction {
            return interaction.usage_so_far(reply);
        }
        let mut usage = self.usage.normalised(&mut Vec::new());
        usage.lower_bound = !self.finished && self.usage.is_known();
        usage
    }

    pub(crate) fn content_bytes(&self) -> usize {
        // Bytes of text so far.
        if let Some(interaction) = &self.interaction {
            return interaction.content_bytes();
        }
        let parts = self.replies.iter().flat_map(|(_, content)| &content.parts);
        parts.map(|part| part.text.len()).sum()
    }

    fn interaction(&mut self, value: Value<'_>, reply: &mut Reply) {
        let interaction = self.interaction.get_or_insert_default();
        interaction.event(value, reply);
        self.kept = interaction.kept;
    }

    fn answer(&mut self, answer: &ResponseMembers<'_>, reply: &mut Reply) {
        let id = first([answer.id, answer.snake_id]);
        reply.id = reply.id.take().or_else(|| owned_text(id));
        let model = first([answer.model, answer.snake_model]);
        reply.model = reply.model.take().or_else(|| owned_text(model));
        for candidate in answer.candidates.iter().flat_map(Value::items) {
            self.candidate(candidate, reply);
        }
        let feedback = first([answer.feedback, answer.snake_feedback]);
        if feedback.is_some_and(|f| f.get_any(&["blockReason", "block_reason"]).is_some()) {
            self.finished = true;
            reply.stop = Some(StopReason::Refused);
        }
        self.usage.read_tier(first([answer.tier, answer.snake_tier]));
        if let Some(usage) = first([answer.usage, answer.snake_usage]) {
            self.usage.merge(usage);
        }
    }

    fn candidate(&mut self, candidate: Value<'_>, reply: &mut Reply) {
        let CandidateMembers { index, content, reason, snake_reason, grounding, snake_grounding } =
            CandidateMembers::from_value(candidate);
        if let Some(grounding) = first([grounding, snake_grounding]) {
            self.usage.count_searches(grounding);
        }
        let index = index.and_then(|index| index.as_u64()).unwrap_or(0);
        let form = self
            .replies
            .iter()
            .position(|(other, _)| !self.several || *other == index)
            .unwrap_or(self.replies.len());
        if form == MOST_CANDIDATES {
            return note_once(&mut reply.notes, Note::TooLong);
        }
        if form == self.replies.len() {
            self.replies.push((index, CandidateContent::default()));
        }
        let parts = content.and_then(|content| content.get("parts"));
        for part in parts.iter().flat_map(Value::items) {
            let content = &mut self.replies[form].1;
            let parts_before = content.size();
            if self.kept.add(part.span().len()) && self.kept.has_room() {
                content.part(part, reply);
            } else {
                note_once(&mut reply.notes, Note::TooLong);
            }
            self.kept.add_parts(content.size() - parts_before);
        }
        if let Some(reason) = first([reason, snake_reason]) {
            // The first form decides how the reply ends; the others are kept beside it.
            let numbered = reason.as_u64().map(numbered);
            if let Some(stop) = numbered.unwrap_or_else(|| stop(&reason.text().unwrap_or_default()))
            {
                self.finished = true;
                if form == 0 {
                    reply.stop = Some(stop);
                }
            }
        }
    }
}

impl CandidateContent {
    fn size(&self) -> usize {
        self.parts.len()
    }

    fn finished(mut self, ended: bool) -> Vec<ReplyPart> {
        self.close();
        // Makes the same runs of texts as the request reader.
        let mut run = String::new();
        let mut last_text = None;
        for at in 0..self.parts.len() {
            let part = &mut self.parts[at];
            match part.kind {
                PartKind::Text => {
                    run.push_str(&part.text);
                    last_text = Some(at);
                }
                PartKind::Reasoning if !ended => part.raw = None,
                PartKind::Reasoning => {}
                _ if part.key.is_some() => {
                    self.end_run(&std::mem::take(&mut run), last_text.take());
                }
                _ => {}
            }
        }
        self.end_run(&run, last_text);
        for part in &mut self.parts {
            // Incomplete reasoning cannot be sent back.
            if part.kind == PartKind::Reasoning && part.raw.is_none() && ended {
                part.raw = Some(json!({ "text": part.text, "thought": true }).to_string().into());
            }
        }
        self.parts
    }

    fn end_run(&mut self, output_text: &str, last: Option<usize>) {
        // Gives a run of texts its key, at its last piece.
        if let Some(part) = last.and_then(|at| self.parts.get_mut(at)) {
            part.key = self.keyer.text(Role::Assistant, output_text);
        }
    }

    fn part(&mut self, value: Value<'_>, reply: &mut Reply) {
        let signature = signature(value).and_then(|s| s.text()).filter(|text| !text.is_empty());
        let mut part = match data(value) {
            PartData::Text(text) => {
                return self.text(PartKind::Text, text, signature.as_deref(), value);
            }
            PartData::Thought(Some(text)) => {
                return self.text(PartKind::Reasoning, text, signature.as_deref(), value);
            }
            // A thought without text is kept as it came, because its signature may have to come back.
            PartData::Thought(None) => ReplyPart {
                raw: Some(String::from_utf8_lossy(value.raw()).into()),
                ..ReplyPart::new(PartKind::Reasoning)
            },
            PartData::Call(call) => return self.call(call, signature.as_deref(), reply),
            PartData::Inline(inline) => {
                let MediaPart { kind, key, .. } =
                    inline_media(&mut self.keyer, Role::Assistant, inline);
                ReplyPart { key, ..ReplyPart::new(kind) }
            }
            PartData::File(file) => {
                let MediaPart { kind, key, .. } =
                    file_media(&mut self.keyer, Role::Assistant, file);
                ReplyPart { key, ..ReplyPart::new(kind) }
            }
            PartData::Hosted(hosted) => {
                let output_text = hosted_text(hosted);
                let text = output_text.and_then(|output_text| output_text.text());
                let text =
                    text.unwrap_or_else(|| String::from_utf8_lossy(hosted.raw())).into_owned();
                let key = hosted_key(&mut self.keyer, hosted);
                ReplyPart { text, key, ..ReplyPart::new(PartKind::Opaque) }
            }
            PartData::Response(_) | PartData::Unknown => {
                note_once(&mut reply.notes, Note::UnknownPart);
                let text = String::from_utf8_lossy(value.raw()).into_owned();
                let key = self.keyer.value(PartKind::Opaque, Role::Assistant, value);
                ReplyPart { text, key, ..ReplyPart::new(PartKind::Opaque) }
            }
        };
        self.close();
        part.signature = signature.map(Into::into);
        self.parts.push(part);
    }

    fn text(&mut self, kind: PartKind, text: Value<'_>, signature: Option<&str>, value: Value<'_>) {
        let text = text.text().unwrap_or_default();
        if text.is_empty() && signature.is_none() {
            return;
        }
        self.close();
        // Unless one of them is signed: a signature belongs to the text that it came with.
        if let (None, Some(last)) = (signature, self.parts.last_mut())
            && last.kind == kind
            && last.signature.is_none()
        {
            return last.text.push_str(&text);
        }
        let raw = match kind {
            PartKind::Reasoning if signature.is_some() => {
                Some(String::from_utf8_lossy(value.raw()).into())
            }
            _ => None,
        };
        self.parts.push(ReplyPart {
            text: text.into_owned(),
            signature: signature.map(Into::into),
            raw,
            ..ReplyPart::new(kind)
        });
    }

    fn call(&mut self, call: Value<'_>, signature: Option<&str>, reply: &mut Reply) {
        let name = super::known(call, "name");
        let id = super::known(call, "id");
        let goes_on =
            call.get_any(&["willContinue", "will_continue"]).and_then(|more| more.as_bool());
        let pieces = call.get_any(&["partialArgs", "partial_args"]);
        // Pieces have no name, and an empty one ends the call.
        if name.is_some() || self.open.is_none() {
            self.close();
            let is_empty = call.kind() == Kind::Object && call.entries().next().is_none();
            if is_empty && signature.is_none() {
                return;
            }
            let arguments = call.get_any(&["args"]);
            let text = arguments.map(|given| String::from_utf8_lossy(given.raw()).into_owned());
            let text = text.unwrap_or_default();
            self.parts.push(ReplyPart { text, name, ..ReplyPart::new(PartKind::ToolCall) });
            self.open = Some(Json::Null);
        }
        if let Some(part) = self.parts.last_mut() {
            part.id = id.or(part.id.take());
            part.signature = signature.map(Into::into).or(part.signature.take());
        }
        if let Some(open) = &mut self.open {
            let mut room = MOST_VALUES.saturating_sub(self.places);
            for piece in pieces.iter().flat_map(Value::items) {
                if !arguments::put(open, piece, &mut room) {
                    note_once(&mut reply.notes, Note::UnknownPart);
                }
            }
            self.places = MOST_VALUES - room;
        }
        if goes_on != Some(true) {
            self.close();
        }
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Some(part) = self.parts.last_mut() else { return };
        if !open.is_null() {
            part.text = open.to_string();
        }
        let name = part.name.as_deref().unwrap_or_default();
        part.key = self.keyer.tool_call(None, name, ToolArguments::Text(&part.text));
    }
}

members! {
    /// The members of a response that are read, in both key styles.
    ResponseMembers {
        candidates,
        error,
        usage = "usageMetadata",
        snake_usage = "usage_metadata",
        feedback = "promptFeedback",
        snake_feedback = "prompt_feedback",
        id = "responseId",
        snake_id = "response_id",
        model = "modelVersion",
        snake_model = "model_version",
        tier = "serviceTier",
        snake_tier = "service_tier",
    }
}

members! {
    /// The members of a candidate that are read, in both key styles.
    CandidateMembers {
        index,
        content,
        reason = "finishReason",
        snake_reason = "finish_reason",
        grounding = "groundingMetadata",
        snake_grounding = "grounding_metadata",
    }
}

impl ResponseMembers<'_> {
    fn is_known(&self) -> bool {
        let Self { candidates, usage, snake_usage, feedback, snake_feedback, .. } = *self;
        let Self { id, snake_id, model, snake_model, .. } = *self;
        let reported = first([candidates, usage, snake_usage, feedback, snake_feedback]);
        reported.is_some() || first([id, snake_id, model, snake_model]).is_some()
    }
}

fn unwrapped(value: Value<'_>) -> Value<'_> {
    value.get_any(&["response"]).filter(|inner| inner.kind() == Kind::Object).unwrap_or(value)
}

/// Finish reasons by name; `None` for the unspecified one.
fn stop(reason: &str) -> Option<StopReason> {
    Some(match reason {
        "" | "FINISH_REASON_UNSPECIFIED" => return None,
        "STOP" => StopReason::End,
        "MAX_TOKENS" => StopReason::MaxTokens,
        "SAFETY"
        | "RECITATION"
        | "LANGUAGE"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "MODEL_ARMOR"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => StopReason::Refused,
        "MALFORMED_FUNCTION_CALL"
        | "UNEXPECTED_TOOL_CALL"
        | "TOO_MANY_TOOL_CALLS"
        | "MISSING_THOUGHT_SIGNATURE"
        | "MALFORMED_RESPONSE" => StopReason::Failed,
        "CONTINUATION" => StopReason::Paused,
        _ => StopReason::Other,
    })
}

fn numbered(reason: u64) -> Option<StopReason> {
    // As protobuf recorders write them. From 5 on, AI Studio and Vertex differ, but 6 to 8 are
    // refusals in both.
    Some(match reason {
        0 => return None,
        1 => StopReason::End,
        2 => StopReason::MaxTokens,
        3 | 4 | 6..=8 => StopReason::Refused,
        _ => StopReason::Other,
    })
}
