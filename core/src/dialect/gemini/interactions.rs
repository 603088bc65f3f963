//! Gemini's Interactions API (`docs/protocols.md` 5.6): reads its requests, replies and usage, so that they are metered.
//!
//! Its requests are never rewritten. A request is only as large as its new input if the provider holds what came
//! before. Older names of events and members are read, too.

use crate::dialect::billing::Billing;
use crate::dialect::count::Count;
use crate::dialect::key::Keyer;
use crate::dialect::note::note_once;
use crate::dialect::provider_error::error_in;
use crate::dialect::reply::KeptSize;
use crate::dialect::{
    Conversation, HeldHistory, LastCall, Message, Note, Part, PartKind, Reply, ReplyPart, Role,
    StopReason, Usage,
};
use crate::wire::json::{Kind, Value, members};
use crate::wire::member::{first, owned_text};

// Events have an `event_type`: `interaction.created`, `step.start`, `step.delta`, `step.stop`, and `interaction.completed`
// with the usage; then `[DONE]`. Statuses: `in_progress`, `requires_action` (a call waits), `completed`, `failed`,
// `cancelled`, `incomplete`, `budget_exceeded`.

/// Whether a request's body is of this API: it has an input, and no contents.
pub(super) fn is_request(root: Value<'_>) -> bool {
    root.get_any(&["input"]).is_some() && root.get_any(&["contents"]).is_none()
}

/// Reads a request's body.
pub(super) fn read(root: Value<'_>, mut conversation: Conversation) -> Conversation {
    let request = RequestMembers::from_value(root);
    let model = first([request.model, request.agent]).and_then(|model| model.text());
    conversation.model = model.map(|model| model.rsplit('/').next().unwrap_or_default().into());
    conversation.stream = request.stream.and_then(|stream| stream.as_bool()).unwrap_or(false);
    conversation.session = crate::dialect::identity::session_in_body(&root);
    let previous = request.previous_interaction_id.and_then(|id| id.text());
    conversation.held = previous.map(|id| HeldHistory::After(id.into()));
    let limit = request.generation_config.and_then(|config| config.get("max_output_tokens"));
    conversation.max_output = limit.and_then(|limit| limit.as_u64());

    let mut keyer = Keyer::default();
    if let Some(system) = first([request.system_instruction]) {
        conversation.system.push(part(Role::System, system, &mut keyer));
    }
    for tool in request.tools.iter().flat_map(Value::items) {
        let name = tool.get_text("name").or_else(|| tool.get_text("type")).map(Into::into);
        conversation.tools.push(Part::tool(tool, name, &mut keyer));
    }
    for input in request.input.iter().flat_map(one_or_more) {
        // A turn of the old form keeps its parts inside; a step is one itself.
        let role = role(input);
        let content = input.get_any(&["content"]).unwrap_or(input);
        let parts = one_or_more(&content).map(|value| part(role, value, &mut keyer)).collect();
        conversation.messages.push(Message::new(role, input.span(), parts));
    }
    conversation
}

members! {
    /// The members of a request that are read.
    RequestMembers {
        model,
        agent,
        input,
        stream,
        system_instruction,
        tools,
        generation_config,
        previous_interaction_id,
    }
}

fn one_or_more<'d>(value: &Value<'d>) -> impl Iterator<Item = Value<'d>> + use<'d> {
    let single = if value.kind() == Kind::Array { None } else { Some(*value) };
    value.items().chain(single)
}

fn role(input: Value<'_>) -> Role {
    // A turn of the old form has a role, a step a type.
    let spoken = input.get_text("role").or_else(|| input.get_text("type"));
    match spoken.as_deref() {
        Some("model" | "model_output" | "thought") => Role::Assistant,
        Some(kind) if kind.ends_with("_call") => Role::Assistant,
        Some("function_result") => Role::Tool,
        _ => Role::User,
    }
}

fn part(role: Role, value: Value<'_>, keyer: &mut Keyer) -> Part {
    let text = value.get("text").filter(|text| text.kind() == Kind::String);
    match text {
        _ if value.kind() == Kind::String => Part::text(role, value, keyer),
        Some(text) => Part { span: value.span(), ..Part::text(role, text, keyer) },
        None => Part::opaque(role, value, keyer),
    }
}

/// A reply that is being read, streamed or not.
#[derive(Default)]
pub(super) struct InteractionReply {
    parts: Vec<ReplyPart>,
    usage: UsageFields,
    /// Steps that are kept.
    pub(super) kept: KeptSize,
}

impl InteractionReply {
    pub(super) fn is_one(value: Value<'_>) -> bool {
        value.get_any(&["event_type"]).is_some()
            || value.get_text("object").as_deref() == Some("interaction")
    }

    /// Reads the next event, or a whole interaction.
    pub(super) fn event(&mut self, value: Value<'_>, reply: &mut Reply) {
        let EventMembers { event_type, interaction, step, delta, usage, error } =
            EventMembers::from_value(value);
        if let Some(usage) = first([usage]) {
            self.usage.merge(usage);
        }
        if first([error]).is_some() {
            reply.error = Some(error_in(value));
        }
        let kind = event_type.and_then(|kind| kind.text());
        match kind.as_deref() {
            None => self.interaction(value, reply),
            Some("step.start") => {
                if let Some(step) = step {
                    self.step(step, reply);
                }
            }
            Some("step.delta" | "content.delta") => {
                if let Some(delta) = delta {
                    self.delta(delta, reply);
                }
            }
            Some("error" | "step.stop" | "content.start" | "content.stop") => {}
            Some(kind) => {
                if let Some(interaction) = first([interaction]) {
                    self.interaction(interaction, reply);
                } else if kind != "interaction.status_update" {
                    note_once(&mut reply.notes, Note::UnknownEvent);
                }
            }
        }
    }

    pub(super) fn finish(&mut self, reply: &mut Reply) {
        reply.parts.append(&mut self.parts);
        reply.usage = self.usage_so_far(reply);
        if self.usage.has_impossible() {
            note_once(&mut reply.notes, Note::ImpossibleCount);
        }
    }

    /// The usage if the reply ended here.
    pub(super) fn usage_so_far(&self, reply: &Reply) -> Usage {
        let mut usage = self.usage.normalised();
        usage.lower_bound = !reply.complete && usage.input.is_some();
        usage
    }

    pub(super) fn content_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.text.len()).sum()
    }

    /// Reads an interaction object: the whole reply, or its head or end in a stream.
    fn interaction(&mut self, value: Value<'_>, reply: &mut Reply) {
        let InteractionMembers {
            id,
            model,
            agent,
            status,
            steps,
            outputs,
            usage,
            service_tier,
            error,
        } = InteractionMembers::from_value(value);
        reply.id = owned_text(id).or(reply.id.take());
        reply.model = owned_text(first([model, agent])).or(reply.model.take());
        for step in first([steps, outputs]).iter().flat_map(Value::items) {
            self.step(step, reply);
        }
        self.usage.billing.read_tier(service_tier);
        if let Some(usage) = first([usage]) {
            self.usage.merge(usage);
        }
        if first([error]).is_some() {
            reply.error = Some(error_in(value));
        }
        let status = status.and_then(|status| status.text());
        reply.pending = matches!(status.as_deref(), Some("in_progress" | "queued"));
        reply.stop = match status.as_deref() {
            None => return,
            Some(_) if reply.pending => return,
            Some("completed") => Some(StopReason::End),
            Some("requires_action") => Some(StopReason::ToolUse),
            Some("failed") => Some(StopReason::Failed),
            Some(_) => Some(StopReason::Other),
        };
        reply.complete = true;
    }

    fn step(&mut self, step: Value<'_>, reply: &mut Reply) {
        let [kind, content, id, name, arguments] =
            step.members(["type", "content", "id", "name", "arguments"]);
        let kind = match kind.and_then(|kind| kind.text()).as_deref() {
            Some("thought") => PartKind::Reasoning,
            Some("function_call") => PartKind::ToolCall,
            Some("model_output" | "text") | None => PartKind::Text,
            Some(other) => {
                // A call or result of a tool that runs at the provider.
                self.usage.hosted |= other.ends_with("_call") || other.ends_with("_result");
                // How often each of its calls searched is not told.
                if matches!(other, "google_search_call" | "google_maps_call" | "file_search_call") {
                    self.usage.billing.unmetered += 1;
                }
                PartKind::Opaque
            }
        };
        if !self.kept.add_parts(1) {
            return note_once(&mut reply.notes, Note::TooLong);
        }
        self.parts.push(ReplyPart {
            id: owned_text(id),
            name: owned_text(name),
            ..ReplyPart::new(kind)
        });
        match arguments.filter(|given| given.entries().next().is_some()) {
            Some(given) => self.write(&String::from_utf8_lossy(given.raw()), reply),
            None => {
                // In the old form the step itself is the content.
                for piece in content.unwrap_or(step).items().chain([content.unwrap_or(step)]) {
                    let written = piece.get_text("text").or_else(|| piece.text());
                    self.write(&written.unwrap_or_default(), reply);
                }
            }
        }
    }

    fn delta(&mut self, delta: Value<'_>, reply: &mut Reply) {
        // Reads more of the last step.
        let written = delta.get_text("text").or_else(|| delta.get_text("arguments"));
        let written = written.or_else(|| delta.path(&["content", "text"])?.text());
        if self.parts.is_empty() {
            self.parts.push(ReplyPart::new(PartKind::Text));
        }
        self.write(&written.unwrap_or_default(), reply);
    }

    fn write(&mut self, text: &str, reply: &mut Reply) {
        if !self.kept.add(text.len()) {
            return note_once(&mut reply.notes, Note::TooLong);
        }
        if let Some(part) = self.parts.last_mut() {
            part.text.push_str(text);
        }
    }
}

members! {
    /// The members of an event that are read.
    EventMembers { event_type, interaction, step, delta, usage, error }
}

members! {
    /// The members of an interaction that are read.
    InteractionMembers { id, model, agent, status, steps, outputs, usage, service_tier, error }
}

/// The API's own usage fields, before they are normalised. Tokens.
#[derive(Default)]
struct UsageFields {
    input: Count,
    output: Count,
    thought: Count,
    cached: Count,
    tool_use: Count,
    total: Count,
    /// Tools ran at the provider.
    hosted: bool,
    billing: Billing,
}

members! {
    /// The members of a report that are read.
    UsageMembers {
        input = "total_input_tokens",
        output = "total_output_tokens",
        thought = "total_thought_tokens",
        cached = "total_cached_tokens",
        tool_use = "total_tool_use_tokens",
        total = "total_tokens",
    }
}

impl UsageFields {
    fn merge(&mut self, usage: Value<'_>) {
        let reported = UsageMembers::from_value(usage);
        for (count, value) in [
            (&mut self.input, reported.input),
            (&mut self.output, reported.output),
            (&mut self.thought, reported.thought),
            (&mut self.cached, reported.cached),
            (&mut self.tool_use, reported.tool_use),
            (&mut self.total, reported.total),
        ] {
            count.grow(Count::from_member(value));
        }
    }

    fn has_impossible(&self) -> bool {
        let Self { input, output, thought, cached, tool_use, total, .. } = *self;
        Count::any_impossible(&[input, output, thought, cached, tool_use, total])
    }

    fn normalised(&self) -> Usage {
        let Self { input, output, thought, cached, tool_use, total, hosted, .. } = *self;
        // Agents report no prompts of tools, which are then the rest of the total.
        let visible = output.plus(thought);
        let spoken = input.plus(visible).value();
        let rest = total.value().zip(spoken).map(|(total, spoken)| total.saturating_sub(spoken));
        let is_known = !input.is_unknown() && !tool_use.is_unknown();
        let tool_use = tool_use.value().or(rest).filter(|tokens| is_known && *tokens > 0);
        let prompt = if is_known { input.value() } else { None };
        let output = visible.value();
        let last_call = if tool_use.is_some() { prompt.zip(output) } else { None };
        Usage {
            input: prompt.map(|input| input.saturating_add(tool_use.unwrap_or(0))),
            output,
            reasoning: thought.value(),
            cache_read: cached.value(),
            last_call: last_call.map(|(input, output)| LastCall { input, output }),
            hosted_tools: hosted || tool_use.is_some(),
            tool_use_prompt: tool_use,
            billing: self.billing.clone(),
            ..Usage::default()
        }
    }
}

#[cfg(test)]
mod tests;
