//! Reads replies of the Responses dialect: streams, bodies, counts and compactions (`docs/protocols.md` 3.1,
//! 3.4, 3.5).
//!
//! Items are taken from `output_item.done`: in `added`, encrypted content may be incomplete, and in some
//! backends the `output` of the terminal response is empty. Deltas are used only for items that broke off.
//! Ids of items may change between their events, so the index identifies an item.

use super::items;
use super::output_item::{DeltaTarget, ItemFee, OutputItem, StreamedItems, is_empty_text};
use super::usage::UsageFields;
use crate::dialect::cache::CacheMiss;
use crate::dialect::count::Count;
use crate::dialect::key::Keyer;
use crate::dialect::note::note_once;
use crate::dialect::provider_error::error_in;
use crate::dialect::reply::{KeptSize, MOST_VALUES};
use crate::dialect::{Note, Part, PartKind, Reply, ReplyPart, ServerStep, Span, StopReason, Usage};
use crate::wire::json::{Value, members, text_of};
use crate::wire::member::{first, owned_text};
use crate::wire::steps;

/// The state of a stream that is being read.
#[derive(Default)]
pub struct ReplyStream {
    /// Items in the order in which they appeared.
    slots: Vec<OutputItem>,
    keyer: Keyer,
    /// Items and text that are kept.
    pub(in crate::dialect) kept: KeptSize,
    /// `response.created` was seen: another one begins another response.
    created: bool,
    /// Tools ran at the provider.
    hosted: bool,
    /// The programs that this reply began. While one waits for a tool, the model was called once.
    programs: Vec<Box<str>>,
    /// It contains a compaction.
    compacted: bool,
    /// The model refused.
    refused: bool,
    /// There was an item of an unknown kind.
    unknown: bool,
    usage: UsageFields,
    status: Option<Box<str>>,
    /// Why it is incomplete.
    reason: Option<Box<str>>,
}

/// How much of an item an event has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemStage {
    /// It opens (`added`).
    Opened,
    /// All of it (`done`).
    Complete,
}

fn is_response(value: Value<'_>) -> bool {
    // One that waits, or failed, need not have an output yet.
    value.get_text("object").is_some_and(|object| object == "response")
}

impl ReplyStream {
    /// Reads the next event. Its `type` in the data decides; some servers send it only in the `event:` line.
    pub(crate) fn event(&mut self, name: &str, value: Value<'_>, reply: &mut Reply) {
        let kind = value.get_text("type");
        let kind = kind.as_deref().unwrap_or(name);
        if let Some(event) = text_event(kind) {
            return self.write(event, value);
        }
        match kind {
            "response.created" => {
                if std::mem::replace(&mut self.created, true) {
                    self.restart(reply);
                }
                self.introduce(value, reply);
            }
            "response.in_progress" | "response.queued" => self.introduce(value, reply),
            "response.output_item.added" => self.show(value, ItemStage::Opened),
            "response.output_item.done" => self.show(value, ItemStage::Complete),
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.done"
            | "response.cancelled" => self.end(kind, value, reply),
            "error" => {
                reply.error = Some(error_in(value));
                reply.stop = Some(StopReason::Failed);
                reply.complete = true;
            }
            "keepalive" | "ping" | "response.steer" => {}
            _ if is_passing(kind) => {}
            // Servers that are compatible name the event otherwise.
            _ if value.get_any(&["error"]).is_some() => {
                reply.error = Some(error_in(value));
                reply.stop = Some(StopReason::Failed);
                reply.complete = true;
            }
            _ => note_once(&mut reply.notes, Note::UnknownEvent),
        }
    }

    /// Reads a whole body: a response, a compaction, a count, or an error with a status of success.
    pub(crate) fn body(&mut self, value: Value<'_>, reply: &mut Reply) {
        if let Some(count) = first([value.get("input_tokens")]) {
            reply.counted = Count::from_member(Some(count)).value();
            reply.complete = true;
        } else if value.get("output").is_some() || is_response(value) {
            self.respond(value, reply);
            reply.complete = true;
        } else if value.get_any(&["error"]).is_some() {
            reply.error = Some(error_in(value));
            reply.stop = Some(StopReason::Failed);
            reply.complete = true;
        } else {
            note_once(&mut reply.notes, Note::UnknownStructure);
        }
    }

    /// Called at the end of the stream or body.
    pub(crate) fn finish(&mut self, reply: &mut Reply) {
        reply.usage = self.usage_so_far(reply);
        let mut slots = std::mem::take(&mut self.slots);
        slots.sort_by_key(|slot| slot.index.unwrap_or(u64::MAX));
        let is_completed = reply.complete && self.status.as_deref() == Some("completed");
        for slot in slots {
            reply.parts.extend(slot.finished(is_completed, &mut self.keyer));
        }
        if self.kept.is_exceeded() {
            note_once(&mut reply.notes, Note::TooLong);
        }
        if self.unknown {
            note_once(&mut reply.notes, Note::UnknownPart);
        }
        if reply.complete && reply.stop.is_none() {
            reply.stop = self.stop(reply);
            reply.pending = reply.stop.is_none();
        }
    }

    pub(crate) fn usage_so_far(&self, reply: &Reply) -> Usage {
        let mut usage = reply.usage.clone();
        usage.hosted_tools = self.hosted;
        usage.compacted = self.compacted;
        let count = |fee| self.slots.iter().filter(|slot| slot.fee == fee).count() as u64;
        usage.billing.searches = count(ItemFee::Search);
        usage.billing.file_searches = count(ItemFee::FileSearch);
        usage.billing.unmetered = count(ItemFee::Untold);
        usage
    }

    pub(crate) fn content_bytes(&self) -> usize {
        self.slots.iter().map(OutputItem::bytes).sum()
    }

    fn restart(&mut self, reply: &mut Reply) {
        note_once(&mut reply.notes, Note::SeveralReplies);
        let notes = std::mem::take(&mut reply.notes);
        *reply = Reply { notes, ..Reply::default() };
        *self = Self { created: true, ..Self::default() };
    }

    fn introduce(&mut self, value: Value<'_>, reply: &mut Reply) {
        if let Some(response) = value.get("response") {
            let [id, model, usage] = response.members(["id", "model", "usage"]);
            identify(id, model, reply);
            // The last event may repeat it as 0.
            if let Some(usage) = first([usage]) {
                self.usage.merge(usage);
            }
        }
    }

    fn show(&mut self, value: Value<'_>, stage: ItemStage) {
        let [item, index] = value.members(["item", "output_index"]);
        let Some(item) = item else { return };
        let id = item.get_text("id");
        let indexed = index.is_some();
        let index = index.and_then(|index| index.as_u64());
        let done = stage == ItemStage::Complete;
        // A finished slot is only replaced by its own item: some servers give every item the index 0, some
        // give none.
        let position = self.find(index, id.as_deref()).filter(|at| {
            let slot = &self.slots[*at];
            if slot.done {
                done && id.is_some() && slot.id.as_deref() == id.as_deref()
            } else {
                done || indexed
            }
        });
        if let Some(at) = position.or_else(|| self.open(index)) {
            self.fill(at, item, stage);
        }
    }

    fn fill(&mut self, at: usize, item: Value<'_>, stage: ItemStage) {
        if item.values() > MOST_VALUES {
            self.kept.add_parts(MOST_VALUES);
            return;
        }
        let read = items::read(item, &mut self.keyer);
        self.hosted |= read.hosted || self.ends_own_program(&read.parts);
        self.refused |= read.refused;
        self.unknown |= read.unknown;
        self.compacted |= read.parts.iter().any(items::is_compaction);
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.id = item.get_text("id").map(Into::into);
        slot.fee = ItemFee::from_item(item);
        let shown: Vec<_> = read.parts.into_iter().map(|part| reply_part(part, item)).collect();
        slot.kind = item.get_text("type").map(Into::into);
        let earlier = std::mem::replace(&mut slot.shown, shown);
        for (part, before) in slot.shown.iter_mut().zip(earlier) {
            for id in before.id.into_iter().chain(before.other_ids) {
                part.add_id(items::own_id(&id));
            }
        }
        // Its first part was counted when it was opened.
        let more = slot.shown.len().saturating_sub(1);
        let keeps = self.kept.add(slot.shown.iter().map(bytes).sum());
        if !self.kept.add_parts(more) || !keeps {
            slot.shown.truncate(1);
            for part in &mut slot.shown {
                // Dropped, not cleared: its allocation is what is too large.
                part.text = String::new();
                part.signature = None;
                part.raw = None;
            }
        }
        if stage == ItemStage::Complete {
            slot.done = true;
            slot.grown.clear();
        }
    }

    fn ends_own_program(&mut self, parts: &[Part]) -> bool {
        // Then the model was called again in this reply.
        for part in parts.iter().filter(|part| part.server_step == Some(ServerStep::Begins)) {
            self.programs.extend(part.id.clone());
        }
        let mut results = parts.iter().filter(|part| part.server_step == Some(ServerStep::Ends));
        results.any(|part| part.id.as_ref().is_some_and(|id| self.programs.contains(id)))
    }

    /// Reads a piece of text, or all of it again.
    fn write(&mut self, event: TextEvent, value: Value<'_>) {
        let TextEvent { target, is_whole } = event;
        let written = DeltaMembers::from_value(value);
        let place = first([written.content_index, written.summary_index]);
        let place = place.and_then(|place| place.as_u64()).unwrap_or(0);
        let DeltaMembers { delta, text, refusal, arguments, input, code, .. } = written;
        let text = first([delta, text, refusal, arguments, input, code]);
        let Some(text) = text.and_then(|text| text.text()) else { return };
        let index = written.output_index.and_then(|index| index.as_u64());
        let id = written.item_id.and_then(|id| id.text());
        let position = self.find(index, id.as_deref());
        let Some(position) = position.or_else(|| self.open(index)) else { return };
        let Some(slot) = self.slots.get_mut(position).filter(|slot| !slot.done) else { return };
        let is_place_new = !slot.grown.contains_key(&(target, place));
        if !self.kept.add(text.len()) || !self.kept.add_parts(usize::from(is_place_new)) {
            return;
        }
        let grown = slot.grown.entry((target, place)).or_default();
        if is_whole {
            grown.clear();
        }
        grown.push_str(&text);
    }

    fn find(&self, index: Option<u64>, id: Option<&str>) -> Option<usize> {
        // The slot of an event: by index, else by id, else the last one opened.
        let mut slots = self.slots.iter().inspect(|_| steps::count(1));
        if let Some(index) = index {
            return slots.rposition(|slot| slot.index == Some(index));
        }
        match id {
            Some(id) => slots.rposition(|slot| slot.id.as_deref() == Some(id)),
            None => self.slots.len().checked_sub(1),
        }
    }

    fn open(&mut self, index: Option<u64>) -> Option<usize> {
        if !self.kept.add_parts(1) {
            return None;
        }
        self.slots.push(OutputItem { index, ..OutputItem::default() });
        Some(self.slots.len() - 1)
    }

    fn end(&mut self, kind: &str, value: Value<'_>, reply: &mut Reply) {
        if let Some(response) = value.get("response") {
            self.respond(response, reply);
        }
        if self.status.is_none() {
            self.status = kind.strip_prefix("response.").map(Into::into);
        }
        reply.complete = true;
    }

    fn respond(&mut self, value: Value<'_>, reply: &mut Reply) {
        let response = ResponseMembers::from_value(value);
        identify(response.id, response.model, reply);
        self.status = response.status.and_then(|status| status.text()).map(Into::into);
        let reason = response.incomplete_details.and_then(|details| details.get("reason"));
        self.reason = reason.and_then(|reason| reason.text()).map(Into::into);
        self.usage.read_tier(response.service_tier);
        if let Some(usage) = first([response.usage]) {
            self.usage.merge(usage);
            reply.usage = self.usage.normalised(&mut reply.notes);
        }
        let missed = response.prompt_cache_diagnostics;
        reply.usage.cache_miss = missed.and_then(|_| CacheMiss::in_response(value));
        if let Some(error) = first([response.error]) {
            reply.error = Some(error_in(error));
        }
        for transformed in response.input_transformations.iter().flat_map(Value::items) {
            if !transformed.is_null() {
                note_once(&mut reply.notes, Note::InputWithheld);
            }
        }
        self.complete_from(response.output);
    }

    fn complete_from(&mut self, output: Option<Value<'_>>) {
        // Some servers send only the response, or only `added`. What was streamed stays, because
        // the client has it: others list stubs here, or the same call with another id.
        let mut streamed = StreamedItems::new(&self.slots);
        for (index, item) in output.iter().flat_map(Value::items).enumerate() {
            if let Some(at) = streamed.take(item) {
                self.complete(at, item);
                continue;
            }
            let Some(at) = self.open(Some(index as u64)) else { return };
            self.fill(at, item, ItemStage::Complete);
            if !streamed.is_empty() {
                self.slots.pop_if(|slot| slot.shown.iter().all(is_empty_text));
            }
        }
    }

    /// Completes an item that was streamed with what the final response has of it.
    fn complete(&mut self, at: usize, item: Value<'_>) {
        let slot = &mut self.slots[at];
        if !slot.done {
            let listed = items::read(item, &mut self.keyer).parts;
            let listed = listed.into_iter().map(|part| reply_part(part, item).text.len());
            if listed.sum::<usize>() >= slot.bytes() {
                return self.fill(at, item, ItemStage::Complete);
            }
        }
        if let Some(id) = item.get_text("call_id") {
            for part in &mut slot.shown {
                part.add_id(items::own_id(&id));
            }
        }
    }

    fn stop(&self, reply: &Reply) -> Option<StopReason> {
        let has_calls = reply.parts.iter().any(|part| part.kind == PartKind::ToolCall);
        Some(match (self.status.as_deref(), self.reason.as_deref()) {
            (Some("failed"), _) => StopReason::Failed,
            (Some("incomplete"), Some("max_output_tokens")) => StopReason::MaxTokens,
            (Some("incomplete"), Some("content_filter")) => StopReason::Refused,
            (Some("incomplete" | "cancelled"), _) => StopReason::Other,
            (Some("queued" | "in_progress"), _) => return None,
            _ if reply.error.is_some() => StopReason::Failed,
            _ if has_calls => StopReason::ToolUse,
            _ if self.refused => StopReason::Refused,
            _ => StopReason::End,
        })
    }
}

members! {
    /// The members of a text event that are read.
    DeltaMembers {
        output_index,
        item_id,
        content_index,
        summary_index,
        delta,
        text,
        refusal,
        arguments,
        input,
        code,
    }
}

members! {
    /// The members of a response that are read.
    ResponseMembers {
        id,
        model,
        status,
        incomplete_details,
        usage,
        service_tier,
        prompt_cache_diagnostics,
        error,
        input_transformations,
        output,
    }
}

/// An event with text.
#[derive(Clone, Copy)]
struct TextEvent {
    target: DeltaTarget,
    /// It repeats the whole text.
    is_whole: bool,
}

fn text_event(kind: &str) -> Option<TextEvent> {
    let kind = kind.strip_prefix("response.")?;
    let (what, how) = kind.rsplit_once('.')?;
    let is_whole = match how {
        "delta" => false,
        "done" => true,
        _ => return None,
    };
    let target = match what {
        "output_text" | "refusal" => DeltaTarget::Text,
        "reasoning_summary_text" => DeltaTarget::Summary,
        "reasoning_text" => DeltaTarget::Reasoning,
        "function_call_arguments"
        | "custom_tool_call_input"
        | "mcp_call_arguments"
        | "code_interpreter_call_code" => DeltaTarget::Arguments,
        _ => return None,
    };
    Some(TextEvent { target, is_whole })
}

fn is_passing(kind: &str) -> bool {
    // `output_item.done` has it all again.
    const FAMILIES: &[&str] = &[
        "response.content_part.",
        "response.output_text.",
        "response.reasoning_",
        "response.refusal.",
        "response.web_search_call.",
        "response.file_search_call.",
        "response.code_interpreter_call",
        "response.image_generation_call.",
        "response.mcp_call",
        "response.mcp_list_tools.",
        "response.shell_call",
        "response.apply_patch_call",
        "response.audio.",
        "response.custom_tool_call",
        "response.tool_search_call.",
        "response.compaction.",
    ];
    FAMILIES.iter().any(|family| kind.starts_with(family))
}

fn identify(id: Option<Value<'_>>, model: Option<Value<'_>>, reply: &mut Reply) {
    reply.id = owned_text(id).or(reply.id.take());
    reply.model = owned_text(model).or(reply.model.take());
}

fn reply_part(part: Part, item: Value<'_>) -> ReplyPart {
    let raw = match part.kind {
        PartKind::Reasoning => Some(String::from_utf8_lossy(item.raw()).into()),
        _ => None,
    };
    ReplyPart {
        kind: part.kind,
        audience: part.audience,
        text: part.texts.iter().map(|span| text_at(*span, item)).collect(),
        id: part.id,
        name: part.name,
        signature: part.signature.map(|encrypted| text_at(encrypted, item).into()),
        raw,
        key: part.key,
        other_ids: Vec::new(),
    }
}

fn text_at(span: Span, item: Value<'_>) -> String {
    let start = item.span().start;
    let raw = Span::new(span.start.wrapping_sub(start), span.end.wrapping_sub(start));
    let raw = raw.slice(item.raw());
    text_of(raw).unwrap_or_else(|| String::from_utf8_lossy(raw)).into_owned()
}

fn bytes(part: &ReplyPart) -> usize {
    part.text.len()
        + part.signature.as_ref().map_or(0, |signature| signature.len())
        + part.raw.as_ref().map_or(0, |raw| raw.len())
}
