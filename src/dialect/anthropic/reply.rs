//! Anthropic's replies: streams and bodies (`providers.md` §1.1, §1.4, §1.5).
//!
//! Blocks are kept by index, because several may be open. Usage is merged, never added: later
//! non-null fields overwrite. Thinking is kept raw, empty text with a signature included.

use super::compaction_key;
use crate::dialect::cache::CacheMiss;
use crate::dialect::editing::Cleared;
use crate::dialect::key::{Arguments, Keyer};
use crate::dialect::reading::{MOST_KEPT, error_in, note_once};
use crate::dialect::{LastCall, Note, PartKind, Reply, ReplyPart, Role, Stop, Usage};
use crate::wire::json::Value;

/// What a stream has told so far.
#[derive(Default)]
pub struct Stream {
    /// Open and finished blocks by the stream's index, in order of their start.
    blocks: Vec<Block>,
    usage: Counted,
    keyer: Keyer,
    /// A stop reason was seen, so usage is final even where `message_stop` is missing.
    stopped: bool,
    /// Bytes of blocks and deltas that were kept.
    kept: usize,
}

struct Block {
    index: u64,
    /// Its `type`.
    kind: Box<str>,
    part: ReplyPart,
    /// The block as it started, which is all of it where no delta follows.
    whole: Box<str>,
    /// Deltas came.
    grown: bool,
}

/// Anthropic's own fields, before normalising.
#[derive(Default)]
struct Counted {
    input: Option<u64>,
    created: Option<u64>,
    created_long: Option<u64>,
    read: Option<u64>,
    output: Option<u64>,
    thinking: Option<u64>,
    last_call: Option<LastCall>,
    aside: Option<u64>,
    hosted: bool,
    miss: Option<CacheMiss>,
    cleared: Option<Cleared>,
}

impl Stream {
    /// The next event. The data's own `type` decides; the `event:` line only repeats it.
    pub fn event(&mut self, _name: &str, value: Value<'_>, reply: &mut Reply) {
        let [kind, index, delta] = value.members(["type", "index", "delta"]);
        match kind.and_then(|kind| kind.text()).as_deref() {
            Some("content_block_delta") => self.delta(index, delta, reply),
            Some("message_start") => self.start(value, reply),
            Some("content_block_start") => self.open(value, reply),
            Some("content_block_stop" | "ping") => {}
            Some("message_delta") => {
                if let Some(delta) = delta {
                    self.stop(delta, reply);
                }
                self.usage.cleared = Cleared::of(value).or(self.usage.cleared);
                self.count(value.get("usage"), reply);
            }
            Some("message_stop") => reply.complete = true,
            Some("error") => reply.error = Some(error_in(value)),
            _ => note_once(&mut reply.notes, Note::UnknownEvent),
        }
    }

    /// A whole body: a message, or the answer to a counting call.
    pub fn body(&mut self, value: Value<'_>, reply: &mut Reply) {
        if value.get_text("type").as_deref() == Some("error") {
            reply.error = Some(error_in(value));
        } else if value.get("content").is_some() {
            reply.id = value.get_text("id").map(Into::into);
            reply.model = value.get_text("model").map(Into::into);
            for (index, block) in value.get("content").iter().flat_map(Value::items).enumerate() {
                self.blocks.push(block_of(index as u64, block));
            }
            withheld(value, reply);
            self.usage.miss = CacheMiss::in_message(value);
            self.usage.cleared = Cleared::of(value);
            self.stop(value, reply);
            self.count(value.get("usage"), reply);
            reply.complete = true;
        } else if let Some(count) = value.get("input_tokens").and_then(|count| count.as_u64()) {
            reply.counted = Some(count);
            reply.complete = true;
        } else {
            note_once(&mut reply.notes, Note::UnknownShape);
        }
    }

    /// The stream or body has ended.
    pub fn finish(&mut self, _whole: bool, reply: &mut Reply) {
        for block in self.blocks.drain(..) {
            let part = finished(block, &mut self.keyer);
            self.usage.hosted |= part.1;
            reply.parts.push(part.0);
        }
        reply.usage = self.usage.normalised();
        // The start of a stream tells the input; its output is a placeholder until the stop.
        reply.usage.lower_bound = !self.stopped && reply.usage.input.is_some();
    }

    fn start(&mut self, value: Value<'_>, reply: &mut Reply) {
        let Some(message) = value.get("message") else { return };
        if reply.id.is_some() {
            // Several responses in one stream: recordings splice them; the last one counts.
            note_once(&mut reply.notes, Note::SeveralReplies);
            *self = Self { keyer: std::mem::take(&mut self.keyer), ..Self::default() };
            reply.stop = None;
        }
        reply.id = message.get_text("id").map(Into::into);
        reply.model = message.get_text("model").map(Into::into);
        for (index, block) in message.get("content").iter().flat_map(Value::items).enumerate() {
            self.blocks.push(block_of(index as u64, block));
        }
        withheld(message, reply);
        self.usage.miss = CacheMiss::in_message(message);
        self.usage.cleared = Cleared::of(message);
        self.count(message.get("usage"), reply);
    }

    /// Whether so many bytes more may be kept. Past the limit words are dropped; usage is still read.
    fn keeps(&mut self, bytes: usize, reply: &mut Reply) -> bool {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept > MOST_KEPT {
            note_once(&mut reply.notes, Note::TooLong);
        }
        self.kept <= MOST_KEPT
    }

    fn open(&mut self, value: Value<'_>, reply: &mut Reply) {
        let Some(block) = value.get("content_block") else { return };
        if !self.keeps(block.raw().len(), reply) {
            return;
        }
        let index = value.get("index").and_then(|index| index.as_u64()).unwrap_or(u64::MAX);
        let mut block = block_of(index, block);
        if block.part.kind == PartKind::ToolCall && block.part.text == "{}" {
            block.part.text.clear(); // deltas write it
        }
        self.blocks.push(block);
    }

    fn delta(&mut self, index: Option<Value<'_>>, delta: Option<Value<'_>>, reply: &mut Reply) {
        let index = index.and_then(|index| index.as_u64()).unwrap_or(u64::MAX);
        if !self.keeps(delta.map_or(0, |delta| delta.raw().len()), reply) {
            return;
        }
        let block = self.blocks.iter_mut().rev().find(|block| block.index == index);
        let (Some(block), Some(delta)) = (block, delta) else {
            return note_once(&mut reply.notes, Note::UnknownEvent);
        };
        if is_rewritten(block, delta) {
            block.part.text.clear();
        }
        let append = |to: &mut String, name: &str| {
            if let Some(text) = delta.get_text(name) {
                to.push_str(&text);
            }
        };
        let piece = |name: &str| delta.get_text(name).is_some_and(|text| !text.is_empty());
        block.grown = block.grown
            || ["text", "partial_json", "thinking", "signature", "content"].into_iter().any(piece);
        match delta.get_text("type").as_deref() {
            Some("text_delta") => append(&mut block.part.text, "text"),
            Some("input_json_delta") => append(&mut block.part.text, "partial_json"),
            Some("thinking_delta") => append(&mut block.part.text, "thinking"),
            Some("signature_delta") => {
                let mut signature = block.part.sealed.take().map(String::from).unwrap_or_default();
                append(&mut signature, "signature");
                block.part.sealed = Some(signature.into());
            }
            Some("compaction_delta") => {
                append(&mut block.part.text, "content");
                let sealed = delta.get_text("encrypted_content").map(Into::into);
                block.part.sealed = sealed.or(block.part.sealed.take());
            }
            Some("citations_delta") => {}
            _ => note_once(&mut reply.notes, Note::UnknownEvent),
        }
    }

    fn stop(&mut self, from: Value<'_>, reply: &mut Reply) {
        let Some(reason) = from.get_text("stop_reason") else { return };
        self.stopped = true;
        reply.stop = Some(match reason.as_ref() {
            "end_turn" | "stop_sequence" => Stop::End,
            "tool_use" => Stop::ToolUse,
            "max_tokens" => Stop::MaxTokens,
            "model_context_window_exceeded" => Stop::WindowFull,
            "refusal" => Stop::Refused,
            "pause_turn" | "compaction" => Stop::Paused,
            _ => Stop::Other,
        });
    }

    fn count(&mut self, usage: Option<Value<'_>>, reply: &mut Reply) {
        if let Some(usage) = usage {
            self.usage.merge(usage);
            reply.usage = self.usage.normalised();
        }
    }
}

impl Counted {
    /// Every non-null field overwrites (`providers.md` §1.4).
    fn merge(&mut self, usage: Value<'_>) {
        const LONG: &[&str] = &["cache_creation", "ephemeral_1h_input_tokens"];
        let number = |names: &[&str]| usage.path(names).and_then(|number| number.as_u64());
        let keep = |to: &mut Option<u64>, names: &[&str]| *to = number(names).or(*to);
        keep(&mut self.input, &["input_tokens"]);
        let split = [&["cache_creation", "ephemeral_5m_input_tokens"], LONG].map(number);
        let created = split[0].map(|short| short.saturating_add(split[1].unwrap_or(0)));
        self.created = number(&["cache_creation_input_tokens"]).or(self.created).or(created);
        keep(&mut self.created_long, LONG);
        keep(&mut self.read, &["cache_read_input_tokens"]);
        keep(&mut self.output, &["output_tokens"]);
        keep(&mut self.thinking, &["output_tokens_details", "thinking_tokens"]);
        for count in usage.get("server_tool_use").iter().flat_map(Value::entries) {
            self.hosted |= count.1.as_u64().is_some_and(|count| count > 0);
        }
        if let Some(iterations) = usage.get_any(&["iterations"]) {
            self.iterations(iterations);
        }
    }

    /// Context size is the last message's; compaction and advice are billed aside.
    fn iterations(&mut self, iterations: Value<'_>) {
        let (mut messages, mut aside) = (0, 0u64);
        for each in iterations.items() {
            let mut one = Counted::default();
            one.merge(each);
            let usage = one.normalised();
            match each.get_text("type").as_deref() {
                Some("message" | "fallback_message") | None => {
                    messages += 1;
                    let (input, output) = (usage.input, usage.output.unwrap_or(0));
                    self.last_call = input.map(|input| LastCall { input, output });
                }
                Some(_) => aside = u64::saturating_add(aside, usage.total().unwrap_or(0)),
            }
        }
        self.aside = (aside > 0).then_some(aside);
        if messages == 1 && aside == 0 {
            self.last_call = None; // one call: the total says it
        }
    }

    fn normalised(&self) -> Usage {
        let cached = self.created.unwrap_or(0).saturating_add(self.read.unwrap_or(0));
        Usage {
            input: self.input.map(|input| input.saturating_add(cached)),
            output: self.output,
            reasoning: self.thinking,
            cache_read: self.read,
            cache_write: self.created,
            cache_write_long: self.created_long,
            aside: self.aside,
            last_call: self.last_call,
            lower_bound: false,
            hosted_tools: self.hosted,
            cache_miss: self.miss,
            cleared: self.cleared,
        }
    }
}

/// A block as it starts, or whole.
fn block_of(index: u64, block: Value<'_>) -> Block {
    let kind = block.get_text("type").unwrap_or_default();
    let mut part = ReplyPart::of(match kind.as_ref() {
        "text" => PartKind::Text,
        "thinking" | "redacted_thinking" => PartKind::Reasoning,
        "tool_use" | "server_tool_use" | "mcp_tool_use" => PartKind::ToolCall,
        _ if kind.ends_with("tool_result") => PartKind::ToolResult,
        _ => PartKind::Opaque,
    });
    let text = match part.kind {
        PartKind::ToolCall => block.get("input").map(|input| String::from_utf8_lossy(input.raw())),
        _ => block.get_any(&["text", "thinking", "content"]).and_then(|text| text.text()),
    };
    part.text = text.map(Into::into).unwrap_or_default();
    part.id = block.get_any(&["id", "tool_use_id"]).and_then(|id| id.text()).map(Into::into);
    part.name = block.get_text("name").map(Into::into);
    let sealed = block.get_any(&["signature", "data", "encrypted_content"]);
    part.sealed = sealed.and_then(|sealed| sealed.text()).map(Into::into);
    let whole = String::from_utf8_lossy(block.raw()).into();
    Block { index, kind: kind.into(), part, whole, grown: false }
}

/// The finished part, and whether it says that a tool ran at the provider.
fn finished(block: Block, keyer: &mut Keyer) -> (ReplyPart, bool) {
    let Block { mut part, kind, whole, grown, .. } = block;
    let hosted = matches!(kind.as_ref(), "server_tool_use" | "mcp_tool_use");
    part.key = match part.kind {
        PartKind::Text => keyer.text(Role::Assistant, &part.text),
        PartKind::ToolCall => {
            let name = part.name.as_deref().unwrap_or_default();
            keyer.tool_call(part.id.as_deref(), name, Arguments::Text(&part.text))
        }
        PartKind::Reasoning => None,
        PartKind::Opaque if kind.as_ref() == "compaction" => compaction_key(keyer, &part.text),
        PartKind::ToolResult | PartKind::Opaque => block_key(part.kind, &whole),
        PartKind::Tool | PartKind::Image | PartKind::Document => None,
    };
    // Without its signature a thinking block did not arrive whole, and cannot be sent back.
    if part.kind == PartKind::Reasoning
        && let Some(sealed) = part.sealed.as_deref().filter(|sealed| !sealed.is_empty())
    {
        part.raw = Some(if grown {
            let (text, sealed) = (part.text.as_str(), sealed);
            serde_json::json!({"type": "thinking", "thinking": text, "signature": sealed})
                .to_string()
                .into()
        } else {
            whole
        });
    }
    (part, hosted)
}

/// Whether a tool call that began with its input whole is now written by deltas.
fn is_rewritten(block: &Block, delta: Value<'_>) -> bool {
    let begun = !block.grown && block.part.kind == PartKind::ToolCall;
    begun && delta.get_text("partial_json").is_some_and(|text| !text.is_empty())
}

/// The provider kept reasoning that was sent from the model (`providers.md` §1.5).
fn withheld(message: Value<'_>, reply: &mut Reply) {
    for transformed in message.get("input_transformations").iter().flat_map(Value::items) {
        if transformed.get_text("type").is_some_and(|kind| kind.ends_with("_dropped")) {
            note_once(&mut reply.notes, Note::InputWithheld);
        }
    }
}

/// The key that the request reader would give the same block.
fn block_key(kind: PartKind, block: &str) -> Option<crate::dialect::PartKey> {
    let request = format!(r#"{{"messages":[{{"role":"assistant","content":[{block}]}}]}}"#);
    let conversation = super::read(request.as_bytes());
    conversation.parts().find(|part| part.kind == kind).and_then(|part| part.key)
}
