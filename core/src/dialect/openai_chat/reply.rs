//! Reads Chat Completions replies, streams and bodies (`docs/protocols.md` 2.1, 2.3, 2.4, 4).
//!
//! The stream ends with `[DONE]`, at which clients close. A reply is complete if a finish reason was seen and the
//! stream has come to its end, with `[DONE]` or without. Tool calls are assembled however a server
//! splits them. Reasoning is kept as the received member.

use super::reasoning::ReplyReasoning;
use super::usage::UsageFields;
use super::{known, signature, think};
use crate::dialect::key::{Keyer, ToolArguments};
use crate::dialect::note::note_once;
use crate::dialect::provider_error::{ProviderError, error_in};
use crate::dialect::reply::{KeptSize, MOST_PARTS, add_other_id};
use crate::dialect::{Audience, Note, PartKind, Reply, ReplyPart, Role, StopReason, Usage};
use crate::wire::json::{Document, Kind, Nesting, Value, members};
use crate::wire::member::first;
use crate::wire::steps;

/// The state of a stream that is being read.
#[derive(Default)]
pub struct ReplyStream {
    /// The request asks for several replies, one in each choice. Otherwise all choices are parts of one.
    pub(in crate::dialect) several: bool,
    /// The replies, with the indexes of their choices, the first one seen first.
    replies: Vec<(u64, ChoiceContent)>,
    usage: UsageFields,
    keyer: Keyer,
    /// Deltas that are kept.
    pub(in crate::dialect) kept: KeptSize,
    /// A finish reason was seen.
    finished: bool,
    /// The first choice said that it has none yet (`null`).
    has_no_reason_yet: bool,
    /// An empty one was seen.
    has_blank_reason: bool,
}

/// The content of a reply so far.
#[derive(Default)]
struct ChoiceContent {
    text: String,
    refusal: String,
    /// Id and transcript of audio.
    audio: Option<(Box<str>, String)>,
    thoughts: ReplyReasoning,
    calls: Vec<StreamCall>,
    /// Tools ran at the provider.
    hosted: bool,
    /// It said why it stopped.
    finished: bool,
}

/// A tool call that is being assembled.
struct StreamCall {
    /// The choice that it began in.
    choice: u64,
    index: Option<u64>,
    id: Option<Box<str>>,
    /// Ids of later pieces that differ.
    other_ids: Vec<Box<str>>,
    name: Option<Box<str>>,
    arguments: CallArguments,
    signature: Option<Box<str>>,
    audience: Audience,
}

impl ReplyStream {
    /// Reads the next chunk. `name` is `error` for a bare `error:` line and for `event: error`.
    pub(crate) fn event(&mut self, name: &str, value: Value<'_>, reply: &mut Reply) {
        let answer = ResponseMembers::from_value(value);
        if !answer.has_choices() && (name == "error" || is_error(value)) {
            reply.error = Some(error_in(value));
            return;
        }
        let ResponseMembers {
            choices,
            usage,
            id,
            error,
            x_groq,
            timings,
            prompt_filter_results,
            ..
        } = answer;
        let telling = [choices, usage, id, error, x_groq, timings, prompt_filter_results];
        if first(telling).is_none() {
            note_once(&mut reply.notes, Note::UnknownEvent);
        }
        self.answer(&answer, value, reply);
    }

    /// Reads a whole body.
    pub(crate) fn body(&mut self, value: Value<'_>, reply: &mut Reply) {
        let answer = ResponseMembers::from_value(value);
        if answer.has_choices() {
            self.answer(&answer, value, reply);
        } else if is_error(value) {
            reply.error = Some(error_in(value));
        } else if !refused(value, reply) && !is_deferred(value, reply) {
            return note_once(&mut reply.notes, Note::UnknownStructure);
        }
        reply.complete = true;
    }

    /// Called at the end of the stream or body. `done`: the stream ended with `[DONE]`.
    pub(crate) fn finish(&mut self, whole: bool, done: bool, reply: &mut Reply) {
        let is_blank = (done || reply.complete) && self.never_says_why();
        // Of several replies, each says why it stopped; the choices of one reply need not (Copilot).
        let is_finished = match self.several {
            true => self.finished && self.replies.iter().all(|(_, content)| content.finished),
            false => self.finished,
        };
        let ended = is_finished || is_blank || reply.complete;
        reply.complete |= ended && (done || whole && reply.error.is_none());
        let replies = std::mem::take(&mut self.replies);
        let refused = replies.first().is_some_and(|(_, content)| !content.refusal.is_empty());
        let mut forms =
            replies.into_iter().map(|(_, content)| content.parts(ended, &mut self.keyer));
        reply.parts = forms.next().unwrap_or_default();
        reply.choices = forms.collect();
        let has_calls = reply.parts.iter().any(|part| part.kind == PartKind::ToolCall);
        if reply.stop.is_none() && is_blank && reply.error.is_none() {
            reply.stop = Some(StopReason::End);
        }
        if reply.stop == Some(StopReason::End) && has_calls {
            reply.stop = Some(StopReason::ToolUse); // a forced tool choice ends with `stop`
        } else if reply.stop == Some(StopReason::End) && refused {
            reply.stop = Some(StopReason::Refused);
        }
        reply.usage = self.usage.normalised(&mut reply.notes);
        // Without its end, a reply may have cost more than was reported so far.
        reply.usage.lower_bound = !(ended || done) && self.usage.is_known();
    }

    fn never_says_why(&self) -> bool {
        // It is always empty, or there is no such member (Snowflake). Then only the usage shows
        // that a reply is whole.
        self.has_blank_reason || !self.has_no_reason_yet && self.usage.is_known()
    }

    /// The usage if the reply ended here.
    pub(crate) fn usage_so_far(&self, reply: &Reply) -> Usage {
        let mut usage = self.usage.normalised(&mut Vec::new());
        usage.lower_bound = !(self.finished || reply.complete) && self.usage.is_known();
        usage
    }

    pub(crate) fn content_bytes(&self) -> usize {
        self.replies.iter().map(|(_, content)| content.bytes()).sum()
    }

    fn answer(&mut self, answer: &ResponseMembers<'_>, value: Value<'_>, reply: &mut Reply) {
        if self.finished && known(answer.id).is_some_and(|id| reply.id.as_deref() != Some(&id)) {
            self.restart(answer.choices, reply);
        }
        reply.id = reply.id.take().or_else(|| known(answer.id));
        reply.model = reply.model.take().or_else(|| known(answer.model));
        if first([answer.error]).is_some() {
            reply.error = Some(error_in(value));
        }
        for choice in answer.choices.iter().flat_map(Value::items) {
            self.choice(choice, reply);
        }
        self.usage.read_tier(answer.service_tier);
        let groq = answer.x_groq.and_then(|groq| groq.get("usage"));
        for usage in [groq, answer.usage].into_iter().flatten() {
            self.usage.merge(usage);
        }
        if let Some(timings) = first([answer.timings]) {
            self.usage.timings(timings);
        }
    }

    fn restart(&mut self, choices: Option<Value<'_>>, reply: &mut Reply) {
        // Recordings splice replies, and the last one counts. A new id by itself means nothing:
        // some servers give the chunk with usage its own.
        let mut choices = choices.iter().flat_map(Value::items);
        if !choices.any(|choice| choice.get("delta").is_some_and(has_content)) {
            return;
        }
        note_once(&mut reply.notes, Note::SeveralReplies);
        reply.id = None;
        reply.model = None;
        reply.stop = None;
        reply.error = None;
        let keyer = std::mem::take(&mut self.keyer);
        *self = Self { keyer, several: self.several, ..Self::default() };
    }

    fn choice(&mut self, choice: Value<'_>, reply: &mut Reply) {
        let ChoiceMembers { index, delta, message, usage, error, finish_reason } =
            ChoiceMembers::from_value(choice);
        let index = index.and_then(|index| index.as_u64()).unwrap_or(0);
        let form = self
            .replies
            .iter()
            .position(|(choice, _)| !self.several || *choice == index)
            .unwrap_or(self.replies.len());
        if form == MOST_CHOICES {
            return note_once(&mut reply.notes, Note::TooLong);
        }
        if form == self.replies.len() {
            self.replies.push((index, ChoiceContent::default()));
        }
        // Perplexity repeats the whole message beside each delta.
        if let Some(message) = first([delta, message]) {
            if self.kept.add(message.span().len()) {
                let content = &mut self.replies[form].1;
                content.message(index, message);
                if content.hosted {
                    self.usage.record_hosted_tools(); // Groq
                }
            } else {
                note_once(&mut reply.notes, Note::TooLong);
            }
        }
        if let Some(usage) = first([usage]) {
            self.usage.merge(usage); // Moonshot
        }
        if first([error]).is_some() {
            reply.error = Some(error_in(choice)); // OpenRouter
        }
        match finish_reason.and_then(|reason| reason.text()).filter(|reason| reason != "null") {
            Some(reason) if reason.is_empty() => self.has_blank_reason = true,
            Some(reason) => {
                self.finished = true;
                self.replies[form].1.finished = true;
                if form == 0 {
                    reply.stop = Some(stop(&reason));
                }
            }
            None => self.has_no_reason_yet |= finish_reason.is_some(),
        }
    }
}

/// Most replies of one request that are read; OpenAI allows as many.
const MOST_CHOICES: usize = 128;

impl ChoiceContent {
    fn bytes(&self) -> usize {
        let calls: usize = self.calls.iter().map(|call| call.arguments.text.len()).sum();
        self.text.len() + self.refusal.len() + self.thoughts.bytes() + calls
    }

    fn parts(mut self, ended: bool, keyer: &mut Keyer) -> Vec<ReplyPart> {
        let (thought, content) = think::split(&self.text);
        let content = content.to_owned();
        let thoughts = std::mem::take(&mut self.thoughts);
        let mut parts = thoughts.parts(thought, &self.text, ended, !self.calls.is_empty());
        for text in [content, self.refusal] {
            if !text.is_empty() {
                let key = keyer.text(Role::Assistant, &text);
                parts.push(ReplyPart { text, key, ..ReplyPart::new(PartKind::Text) });
            }
        }
        if let Some((id, text)) = self.audio {
            let key = keyer.media(PartKind::Document, Role::Assistant, &id);
            let id = Some(id);
            parts.push(ReplyPart { text, id, key, ..ReplyPart::new(PartKind::Document) });
        }
        parts.extend(self.calls.into_iter().map(|call| finished(call, keyer)));
        parts
    }

    fn message(&mut self, choice: u64, message: Value<'_>) {
        let MessageMembers { content, refusal, audio, tool_calls, function_call, executed_tools } =
            MessageMembers::from_value(message);
        match content {
            Some(content) if content.kind() == Kind::Array => {
                content.items().for_each(|block| self.block(block));
            }
            Some(content) => self.text.push_str(&content.text().unwrap_or_default()),
            None => {}
        }
        let refusal = refusal.and_then(|refusal| refusal.text());
        self.refusal.push_str(&refusal.unwrap_or_default());
        self.thoughts.take(message);
        if let Some(audio) = first([audio]) {
            self.audio(audio);
        }
        for call in tool_calls.iter().flat_map(Value::items) {
            self.call(choice, call);
        }
        // The older form of a call.
        if let Some(call) = first([function_call]) {
            self.call(choice, call);
        }
        self.hosted |= executed_tools.is_some_and(|tools| tools.items().next().is_some());
    }

    fn block(&mut self, block: Value<'_>) {
        // Mistral and Databricks stream content as lists.
        match block.get_text("type").as_deref() {
            Some("thinking" | "reasoning" | "redacted_thinking") => self.thoughts.block(block),
            _ => {
                let text = block.get("text").and_then(|text| text.text()).or_else(|| block.text());
                self.text.push_str(&text.unwrap_or_default());
            }
        }
    }

    fn audio(&mut self, audio: Value<'_>) {
        if let Some(id) = audio.get_text("id").filter(|id| !id.is_empty()) {
            self.audio.get_or_insert_with(|| (id.into(), String::new()));
        }
        if let Some((_, content)) = &mut self.audio
            && let Some(more) = audio.get_text("transcript")
        {
            content.push_str(&more);
        }
    }

    /// Reads a piece of a tool call, or a whole one.
    fn call(&mut self, choice: u64, piece: Value<'_>) {
        let [function, custom, index, id] = piece.members(["function", "custom", "index", "id"]);
        let inner = first([function, custom]).unwrap_or(piece);
        let [name, arguments, input] = inner.members(["name", "arguments", "input"]);
        let index = index.and_then(|index| index.as_u64());
        let id = known(id);
        let name = known(name);
        let arguments = first([arguments, input]);
        let arguments = arguments.map(|arguments| match arguments.text() {
            Some(text) => text.into_owned(),
            None => String::from_utf8_lossy(arguments.raw()).into_owned(),
        });
        let arguments = arguments.unwrap_or_default();
        let position =
            match self.continued(choice, index, id.as_deref(), name.as_deref(), &arguments) {
                Some(position) => position,
                // Snowflake sends an empty call with every message.
                None if id.is_none() && name.is_none() && arguments.is_empty() => return,
                None if self.calls.len() == MOST_PARTS => return,
                None => {
                    self.calls.push(StreamCall {
                        choice,
                        index,
                        id: None,
                        other_ids: Vec::new(),
                        name: None,
                        arguments: CallArguments::default(),
                        signature: None,
                        audience: Audience::Model,
                    });
                    self.calls.len() - 1
                }
            };
        let call = &mut self.calls[position];
        match (&call.id, id) {
            (None, id) => call.id = id,
            (Some(first), Some(id)) => add_other_id(&mut call.other_ids, Some(first), &id),
            (Some(_), None) => {}
        }
        // The first name stays: later pieces repeat it, or have none.
        call.name = call.name.take().or(name);
        // Some servers send the whole call again at the end.
        if call.arguments.text != arguments || !is_json(&arguments) {
            call.arguments.push(&arguments);
        }
        if piece.get("caller").is_some() {
            call.audience = Audience::by_caller(piece);
        }
        let signature = signature(piece).and_then(|signature| signature.text());
        call.signature = signature.map(Into::into).or(call.signature.take());
    }

    fn continued(
        &self,
        choice: u64,
        index: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
    ) -> Option<usize> {
        // As `docs/protocols.md` 2.3 has it. A new id with a name is a new call even with a known
        // index (Cerebras). Without ids, so is a name that is repeated after complete arguments
        // (Gemini's compatible API, where all calls have index 0).
        // Each choice may number its calls; other servers give each piece a choice of its own.
        let position = self
            .calls
            .iter()
            .rposition(|call| call.choice == choice && call.may_be(index, id))
            .or_else(|| self.calls.iter().rposition(|call| call.may_be(index, id)))?;
        let call = &self.calls[position];
        let other_id = id.is_some() && call.id.is_some() && id != call.id.as_deref();
        let is_named_twice = name.is_some() && call.name.is_some();
        let is_new = match (other_id, is_named_twice) {
            (true, true) => true,
            (false, true) if id.is_none() || call.id.is_none() => {
                name != call.name.as_deref() || (!arguments.is_empty() && call.arguments.is_whole())
            }
            _ => false,
        };
        if is_new { None } else { Some(position) }
    }
}

impl StreamCall {
    fn may_be(&self, index: Option<u64>, id: Option<&str>) -> bool {
        steps::count(1);
        match (index, self.index, id, self.id.as_deref()) {
            (Some(index), Some(other), _, _) => index == other,
            (_, _, Some(id), Some(other)) => id == other,
            _ => true,
        }
    }
}

members! {
    /// The members of a chunk or body that are read.
    ResponseMembers {
        id,
        model,
        choices,
        usage,
        service_tier,
        error,
        x_groq,
        timings,
        prompt_filter_results,
    }
}

impl ResponseMembers<'_> {
    fn has_choices(&self) -> bool {
        first([self.choices]).is_some()
    }
}

members! {
    /// The members of a choice that are read.
    ChoiceMembers { index, delta, message, usage, error, finish_reason }
}

members! {
    /// The members of a delta or message that are read, besides its reasoning.
    MessageMembers { content, refusal, audio, tool_calls, function_call, executed_tools }
}

fn has_content(message: Value<'_>) -> bool {
    let members = message.members(["content", "reasoning", "reasoning_content", "tool_calls"]);
    // An empty string or list has only its delimiters.
    members.into_iter().flatten().any(|value| !value.is_null() && value.span().len() > 2)
}

fn finished(call: StreamCall, keyer: &mut Keyer) -> ReplyPart {
    let name = call.name.as_deref().unwrap_or_default();
    let key = keyer.tool_call(call.id.as_deref(), name, ToolArguments::Text(&call.arguments.text));
    ReplyPart {
        text: call.arguments.text,
        id: call.id,
        name: call.name,
        signature: call.signature,
        audience: call.audience,
        key,
        other_ids: call.other_ids,
        ..ReplyPart::new(PartKind::ToolCall)
    }
}

fn stop(reason: &str) -> StopReason {
    // All finish reasons that were seen or are documented (`docs/protocols.md` 2.1, 4.3).
    match reason {
        "stop" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "complete" | "COMPLETE"
        | "STOP" | "end" => StopReason::End,
        "tool_calls" | "function_call" | "tool_use" | "tool_call" => StopReason::ToolUse,
        "length" | "max_tokens" | "max_output_tokens" | "MAX_TOKENS" => StopReason::MaxTokens,
        "model_context_window_exceeded" | "model_length" | "context_length" => {
            StopReason::WindowFull
        }
        "content_filter" | "content-filter" | "refusal" | "safety" | "SAFETY" | "sensitive"
        | "recitation" => StopReason::Refused,
        "pause_turn" | "compaction" => StopReason::Paused,
        "error" | "abort" | "network_error" | "insufficient_system_resource" => StopReason::Failed,
        _ => StopReason::Other,
    }
}

fn is_error(value: Value<'_>) -> bool {
    // Besides `error`, the forms of vLLM and Mistral, without a wrapper.
    let object = value.get_any(&["object", "type"]).and_then(|object| object.text());
    value.get_any(&["error"]).is_some()
        || object.as_deref() == Some("error")
        || (value.get("message").is_some() && value.get_any(&["code", "type"]).is_some())
        || value.get("detail").is_some()
}

fn is_deferred(value: Value<'_>, reply: &mut Reply) -> bool {
    // xAI says only under which id the reply will be (`docs/protocols.md` 3.7).
    let Some(id) = known(value.get("request_id")) else { return false };
    reply.id = Some(id);
    reply.pending = true;
    true
}

fn refused(value: Value<'_>, reply: &mut Reply) -> bool {
    // MiniMax refuses with status 200.
    let Some(base) = value.get_any(&["base_resp"]) else { return false };
    let code = base.get("status_code").and_then(|code| code.as_u64()).unwrap_or(0);
    if code != 0 {
        reply.error = Some(ProviderError {
            kind: Some(code.to_string().into()),
            message: base.get_text("status_msg").map(Into::into),
            ..ProviderError::default()
        });
    }
    code != 0
}

/// The arguments of a call, with how far they have come: pieces are looked at once, however many come.
#[derive(Default)]
struct CallArguments {
    text: String,
    nesting: Nesting,
}

impl CallArguments {
    fn push(&mut self, piece: &str) {
        steps::count(piece.len());
        for byte in piece.bytes() {
            self.nesting.read(byte);
        }
        self.text.push_str(piece);
    }

    fn is_whole(&self) -> bool {
        self.nesting.is_closed() || self.text.len() <= SHORT && is_json(&self.text)
    }
}

/// Arguments of so few bytes are parsed each time: they may be a value without brackets.
const SHORT: usize = 64;

fn is_json(text: &str) -> bool {
    Document::read(text.as_bytes()).is_ok()
}
