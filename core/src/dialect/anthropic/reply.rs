//! Reads Anthropic's replies, streamed or not (`docs/protocols.md` 1.1, 1.4, 1.5).
//!
//! Blocks are kept by index, because several may be open. Thinking is kept raw, also an empty text with a signature.

use super::compaction_key;
use super::usage::UsageFields;
use crate::dialect::cache::CacheMiss;
use crate::dialect::count::Count;
use crate::dialect::editing::ClearingReport;
use crate::dialect::key::{Keyer, ToolArguments};
use crate::dialect::note::note_once;
use crate::dialect::provider_error::error_in;
use crate::dialect::reply::KeptSize;
use crate::dialect::{
    Audience, BodyElements, Note, PartKind, Reply, ReplyPart, Role, StopReason, Usage,
};
use crate::wire::json::{Document, Kind, Value, members};
use crate::wire::member::first;
use crate::wire::steps;

/// The state of a stream that is being read.
#[derive(Default)]
pub struct ReplyStream {
    /// Open and finished blocks with the stream's index, in the order of their start.
    blocks: Vec<StreamBlock>,
    usage: UsageFields,
    keyer: Keyer,
    /// A stop reason was seen, so usage is final even if `message_stop` is missing.
    stopped: bool,
    /// A `message_delta` was seen. Without one, a `message_stop` is only how a broken stream was closed.
    has_delta: bool,
    /// Blocks and deltas that are kept.
    pub(in crate::dialect) kept: KeptSize,
}

struct StreamBlock {
    index: u64,
    part: ReplyPart,
    /// The tool runs at the provider.
    hosted: bool,
    /// A summary of the earlier conversation.
    compaction: bool,
    /// What deltas add to its signature.
    signature: String,
    /// The block as it started, which is complete if no delta follows. Empty for text and calls, where it is
    /// not needed.
    whole: Box<str>,
    /// At least one delta has arrived.
    grown: bool,
    /// Its end event has arrived.
    ended: bool,
}

impl ReplyStream {
    /// Reads the next event. Its `type` in the data decides; the `event:` line only repeats it.
    pub(crate) fn event(&mut self, _name: &str, value: Value<'_>, reply: &mut Reply) {
        let [kind, index, delta] = value.members(["type", "index", "delta"]);
        match kind.and_then(|kind| kind.text()).as_deref() {
            Some("content_block_delta") => self.delta(index, delta, reply),
            Some("message_start") => self.start(value, reply),
            Some("content_block_start") => self.open(value, reply),
            Some("content_block_stop") => self.end(index),
            Some("ping") => {}
            Some("message_delta") => {
                self.has_delta = true;
                self.stop(delta.and_then(|delta| delta.get("stop_reason")), reply);
                self.usage.cleared = ClearingReport::from_reply(value).or(self.usage.cleared);
                self.count(value.get("usage"));
            }
            Some("message_stop") => reply.complete = self.has_delta,
            Some("error") => reply.error = Some(error_in(value)),
            _ => note_once(&mut reply.notes, Note::UnknownEvent),
        }
    }

    /// Reads a whole body: a message, or the response of the count endpoint.
    pub(crate) fn body(&mut self, value: Value<'_>, reply: &mut Reply) {
        let message = MessageMembers::from_value(value);
        if message.kind.and_then(|kind| kind.text()).as_deref() == Some("error") {
            reply.error = Some(error_in(value));
        } else if message.content.is_some() {
            self.begin(&message, value, reply);
            self.stop(message.stop_reason, reply);
            self.count(message.usage);
            reply.complete = true;
        } else if let Some(count) = first([value.get("input_tokens")]) {
            reply.counted = Count::from_member(Some(count)).value();
            reply.complete = true;
        } else {
            note_once(&mut reply.notes, Note::UnknownStructure);
        }
    }

    /// Called at the end of the stream or body.
    pub(crate) fn finish(&mut self, whole: bool, reply: &mut Reply) {
        reply.complete |= whole && self.stopped && reply.error.is_none();
        self.usage.hosted |= self.ran_hosted_tool();
        for block in self.blocks.drain(..) {
            // A stream that was cut after its stop reason lacks only its last event.
            let is_open = block.grown && !block.ended && !self.stopped;
            let mut part = finished(block, &mut self.keyer);
            if part.kind == PartKind::Reasoning && is_open {
                // The provider refuses a thought whose signature was cut.
                part.raw = None;
            }
            reply.parts.push(part);
        }
        let is_empty = reply.parts.iter().all(|part| part.text.is_empty());
        reply.usage = self.usage.normalised(reply.stop == Some(StopReason::Refused) && is_empty);
        // The start of a stream reports the input; the output is a placeholder until the stop.
        reply.usage.lower_bound = !self.stopped && reply.usage.input.is_some();
        if self.usage.has_impossible() {
            note_once(&mut reply.notes, Note::ImpossibleCount);
        }
    }

    /// The usage if the reply ended here.
    pub(crate) fn usage_so_far(&self) -> Usage {
        let mut usage = self.usage.normalised(false);
        usage.hosted_tools |= self.ran_hosted_tool();
        usage.lower_bound = !self.stopped && usage.input.is_some();
        usage
    }

    fn ran_hosted_tool(&self) -> bool {
        // Then the model was called again in this reply. Code that waits for a result of the
        // client, and a tool that runs with the next request, have no result yet.
        let results = self.blocks.iter().filter(|block| block.part.kind == PartKind::ToolResult);
        let ended: Vec<_> = results.filter_map(|block| block.part.id.as_deref()).collect();
        let mut calls = self.blocks.iter().filter(|block| block.hosted);
        calls.any(|call| call.part.id.as_deref().is_some_and(|id| ended.contains(&id)))
    }

    /// Bytes of text so far.
    pub(crate) fn content_bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.part.text.len()).sum()
    }

    fn start(&mut self, value: Value<'_>, reply: &mut Reply) {
        let Some(value) = value.get("message") else { return };
        if reply.id.is_some() {
            // Several replies in one stream, as in spliced recordings: the last one counts.
            note_once(&mut reply.notes, Note::SeveralReplies);
            *self = Self { keyer: std::mem::take(&mut self.keyer), ..Self::default() };
            reply.stop = None;
        }
        let message = MessageMembers::from_value(value);
        self.begin(&message, value, reply);
        self.count(message.usage);
    }

    /// Reads a message, `value`, as it is at the start of a stream, or whole.
    fn begin(&mut self, message: &MessageMembers<'_>, value: Value<'_>, reply: &mut Reply) {
        reply.id = message.id.and_then(|id| id.text()).map(Into::into);
        reply.model = message.model.and_then(|model| model.text()).map(Into::into);
        for (index, block) in message.content.iter().flat_map(Value::items).enumerate() {
            if !self.kept.add_parts(1) {
                note_once(&mut reply.notes, Note::TooLong);
                break;
            }
            self.blocks.push(StreamBlock { ended: true, ..block_of(index as u64, block) });
        }
        if let Some(transformations) = message.input_transformations {
            withheld(transformations, reply);
        }
        self.usage.miss = message.diagnostics.and_then(|_| CacheMiss::in_message(value));
        self.usage.cleared =
            message.context_management.and_then(|_| ClearingReport::from_reply(value));
    }

    fn keeps(&mut self, bytes: usize, reply: &mut Reply) -> bool {
        // Past the limit, text is dropped; usage is still read.
        let keeps = self.kept.add(bytes);
        if !keeps {
            note_once(&mut reply.notes, Note::TooLong);
        }
        keeps
    }

    fn open(&mut self, value: Value<'_>, reply: &mut Reply) {
        let Some(block) = value.get("content_block") else { return };
        if !self.kept.add_parts(1) || !self.keeps(block.raw().len(), reply) {
            return note_once(&mut reply.notes, Note::TooLong);
        }
        let index = value.get("index").and_then(|index| index.as_u64()).unwrap_or(u64::MAX);
        let mut block = block_of(index, block);
        if block.part.kind == PartKind::ToolCall && block.part.text == "{}" {
            block.part.text.clear(); // the deltas write it
        }
        self.blocks.push(block);
    }

    fn end(&mut self, index: Option<Value<'_>>) {
        let index = index.and_then(|index| index.as_u64()).unwrap_or(u64::MAX);
        if let Some(block) = self.find(index) {
            block.ended = true;
        }
    }

    fn find(&mut self, index: u64) -> Option<&mut StreamBlock> {
        // From the end: deltas belong to the block that was opened last.
        let mut blocks = self.blocks.iter_mut().rev().inspect(|_| steps::count(1));
        blocks.find(|block| block.index == index)
    }

    fn delta(&mut self, index: Option<Value<'_>>, delta: Option<Value<'_>>, reply: &mut Reply) {
        let index = index.and_then(|index| index.as_u64()).unwrap_or(u64::MAX);
        if !self.keeps(delta.map_or(0, |delta| delta.raw().len()), reply) {
            return;
        }
        let (Some(block), Some(delta)) = (self.find(index), delta) else {
            return note_once(&mut reply.notes, Note::UnknownEvent);
        };
        let delta = DeltaMembers::from_value(delta);
        if is_rewritten(block, &delta) {
            block.part.text.clear();
        }
        let pieces =
            [delta.text, delta.partial_json, delta.thinking, delta.signature, delta.content];
        block.grown = block.grown || pieces.into_iter().any(is_nonempty_text);
        match delta.kind.and_then(|kind| kind.text()).as_deref() {
            Some("text_delta") => append(&mut block.part.text, delta.text),
            Some("input_json_delta") => append(&mut block.part.text, delta.partial_json),
            Some("thinking_delta") => append(&mut block.part.text, delta.thinking),
            Some("signature_delta") => append(&mut block.signature, delta.signature),
            Some("compaction_delta") => {
                append(&mut block.part.text, delta.content);
                let signature = delta.encrypted_content.and_then(|signature| signature.text());
                let signature = signature.map(Into::into);
                block.part.signature = signature.or(block.part.signature.take());
            }
            Some("citations_delta") => {}
            _ => note_once(&mut reply.notes, Note::UnknownEvent),
        }
    }

    fn stop(&mut self, reason: Option<Value<'_>>, reply: &mut Reply) {
        let Some(reason) = reason.and_then(|reason| reason.text()) else { return };
        self.stopped = true;
        reply.stop = Some(match reason.as_ref() {
            "end_turn" | "stop_sequence" => StopReason::End,
            "tool_use" => StopReason::ToolUse,
            "max_tokens" => StopReason::MaxTokens,
            "model_context_window_exceeded" => StopReason::WindowFull,
            "refusal" => StopReason::Refused,
            "pause_turn" | "compaction" => StopReason::Paused,
            _ => StopReason::Other,
        });
    }

    fn count(&mut self, usage: Option<Value<'_>>) {
        if let Some(usage) = usage {
            self.usage.merge(usage);
        }
    }
}

members! {
    /// The members of a message that are read.
    MessageMembers {
        kind = "type",
        id,
        model,
        content,
        stop_reason,
        usage,
        input_transformations,
        diagnostics,
        context_management,
    }
}

members! {
    /// The members of a delta that are read.
    DeltaMembers {
        kind = "type",
        text,
        partial_json,
        thinking,
        signature,
        content,
        encrypted_content,
    }
}

members! {
    /// The members of a block that are read.
    BlockMembers {
        kind = "type",
        text,
        thinking,
        content,
        input,
        id,
        tool_use_id,
        name,
        signature,
        data,
        encrypted_content,
    }
}

fn block_of(index: u64, block: Value<'_>) -> StreamBlock {
    let members = BlockMembers::from_value(block);
    let kind = members.kind.and_then(|kind| kind.text()).unwrap_or_default();
    let mut part = ReplyPart::new(match kind.as_ref() {
        "text" => PartKind::Text,
        "thinking" | "redacted_thinking" => PartKind::Reasoning,
        "tool_use" | "server_tool_use" | "mcp_tool_use" => PartKind::ToolCall,
        _ if kind.ends_with("tool_result") => PartKind::ToolResult,
        _ => PartKind::Opaque,
    });
    let text = match part.kind {
        PartKind::ToolCall => members.input.map(|input| String::from_utf8_lossy(input.raw())),
        _ => first([members.text, members.thinking, members.content]).and_then(|text| text.text()),
    };
    part.audience = Audience::by_caller(block);
    part.text = text.map(Into::into).unwrap_or_default();
    let id = first([members.id, members.tool_use_id]);
    part.id = id.and_then(|id| id.text()).map(Into::into);
    part.name = members.name.and_then(|name| name.text()).map(Into::into);
    let signature = first([members.signature, members.data, members.encrypted_content]);
    part.signature = signature.and_then(|signature| signature.text()).map(Into::into);
    // Reasoning is sent back as it came, so its bytes are kept; text and calls can be written anew.
    let raw = match part.kind {
        PartKind::Text | PartKind::ToolCall => Box::default(),
        _ => String::from_utf8_lossy(block.raw()).into(),
    };
    let hosted = matches!(kind.as_ref(), "server_tool_use" | "mcp_tool_use");
    let compaction = kind == "compaction";
    StreamBlock {
        index,
        part,
        hosted,
        compaction,
        signature: String::new(),
        whole: raw,
        grown: false,
        ended: false,
    }
}

fn finished(block: StreamBlock, keyer: &mut Keyer) -> ReplyPart {
    let StreamBlock { mut part, compaction, signature, whole, grown, .. } = block;
    if !signature.is_empty() {
        part.signature =
            Some((part.signature.map(String::from).unwrap_or_default() + &signature).into());
    }
    part.key = match part.kind {
        PartKind::Text => keyer.text(Role::Assistant, &part.text),
        PartKind::ToolCall => {
            let name = part.name.as_deref().unwrap_or_default();
            keyer.tool_call(part.id.as_deref(), name, ToolArguments::Text(&part.text))
        }
        PartKind::Reasoning => None,
        PartKind::Opaque if compaction => compaction_key(keyer, &part.text),
        PartKind::ToolResult | PartKind::Opaque => block_key(part.kind, &whole),
        PartKind::Tool | PartKind::Image | PartKind::Document => None,
    };
    // A thinking block without its signature is incomplete, and cannot be sent back.
    if part.kind == PartKind::Reasoning
        && let Some(signature) = part.signature.as_deref().filter(|signature| !signature.is_empty())
    {
        part.raw = Some(if grown {
            serde_json::json!({"type": "thinking", "thinking": part.text, "signature": signature})
                .to_string()
                .into()
        } else {
            whole
        });
    }
    part
}

fn append(text: &mut String, piece: Option<Value<'_>>) {
    if let Some(piece) = piece.and_then(|piece| piece.text()) {
        text.push_str(&piece);
    }
}

fn is_rewritten(block: &StreamBlock, delta: &DeltaMembers<'_>) -> bool {
    // A stream may begin a call with its whole input, and write it again in deltas.
    let begun = !block.grown && block.part.kind == PartKind::ToolCall;
    begun && is_nonempty_text(delta.partial_json)
}

fn is_nonempty_text(piece: Option<Value<'_>>) -> bool {
    piece.is_some_and(|piece| piece.kind() == Kind::String && piece.span().len() > 2)
}

fn withheld(transformations: Value<'_>, reply: &mut Reply) {
    // Notes reasoning that the provider dropped instead of giving it to the model (`docs/protocols.md` 1.5).
    for transformed in transformations.items() {
        if transformed.get_text("type").is_some_and(|kind| kind.ends_with("_dropped")) {
            note_once(&mut reply.notes, Note::InputWithheld);
        }
    }
}

fn block_key(kind: PartKind, block: &str) -> Option<crate::dialect::PartKey> {
    // Read as a request, so that a block that the client sends back has the same key.
    let request = format!(r#"{{"messages":[{{"role":"assistant","content":[{block}]}}]}}"#);
    let document = Document::read(request.as_bytes()).ok()?;
    let root = document.root(request.as_bytes())?;
    let conversation = super::read(root, request.as_bytes(), &mut BodyElements::none());
    conversation.parts().find(|part| part.kind == kind).and_then(|part| part.key)
}
