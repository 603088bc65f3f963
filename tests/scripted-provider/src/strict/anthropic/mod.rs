//! Checks of Anthropic Messages (`docs/protocols.md` 1): from headers to the last block, in the order of
//! the real provider's errors.
//!
//! A request becomes a flat list of blocks; each file beside this one checks one thing of it.

mod compaction;
mod edits;
mod fields;
mod pairs;
mod programs;
mod response;
mod thinking;

use serde_json::{Value, json};

use super::cache::CachePolicy;
use super::prompt::{
    PROMPT_TOKENS, PieceContent, Place, PromptPiece, Ttl, hash, items, link, measure,
    measure_encrypted, measure_text, text,
};
use super::reply::ReplyContext;
use super::reply_store::{Prefix, ReplyStore};
use super::rules::ModelRules;
use super::verdict::{AcceptedRequest, ApiError, Rule};
use super::{Dialect, Operation, ParsedRequest, ReceivedRequest};
use demo_provider::ToolDefinition;

pub(super) use compaction::compact;
pub(super) use response::{record_reply, write_response};

/// A content block of a message, as it is in the request.
struct Block<'c> {
    message: usize,
    block: usize,
    role: &'c str,
    kind: &'c str,
    /// `None` if the content is a plain string.
    value: Option<&'c Value>,
    measured: PieceContent,
    breakpoint: Option<Ttl>,
}

impl Block<'_> {
    fn place(&self) -> Place {
        Place::Message { message: self.message, block: self.block }
    }

    fn field(&self, name: &str) -> &Value {
        self.value.map_or(&Value::Null, |value| &value[name])
    }

    fn is_thinking(&self) -> bool {
        matches!(self.kind, "thinking" | "redacted_thinking")
    }

    /// `messages.1.content.0`.
    fn path(&self) -> String {
        self.place().to_string()
    }
}

/// Consecutive messages of one role, which the API merges (`docs/protocols.md` 1.2).
struct MessageRun<'c> {
    role: &'c str,
    blocks: std::ops::Range<usize>,
}

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError::anthropic(rule, message.into()))
}

/// Checks and parses a request.
pub(super) fn parse(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
) -> Result<ParsedRequest, ApiError> {
    check_headers(request)?;
    let betas = request.header("anthropic-beta").unwrap_or_default();
    fields::check(request, model, &betas)?;
    edits::check(request)?;
    let blocks = blocks(&request.body);
    let turns = turns(&blocks);
    compaction::check(request, model, store, &blocks, &betas)?;
    fields::check_messages(request, model, &blocks)?;
    pairs::check(&blocks, &turns)?;
    programs::check(&request.body, &blocks, &turns)?;
    let prefix = Prefix {
        system: system_pieces(&request.body).fold(0, |chain, piece| link(chain, piece.hash)),
        tools: tool_pieces(&request.body).fold(0, |chain, piece| link(chain, piece.hash)),
        messages: 0,
    };
    let config = thinking::ThinkingConfig::new(request, model);
    let checked = thinking::check(request, model, store, &config, &blocks, prefix, &betas)?;
    let mut rendered = Vec::with_capacity(blocks.len());
    for (at, block) in blocks.iter().enumerate() {
        let mut measured = block.measured;
        if programs::is_hidden(&blocks, block) {
            continue;
        }
        measured.tokens += programs::loaded_tokens(&request.body, &blocks, at);
        if block.is_thinking() {
            // Thinking that the model does not see costs nothing.
            let Some(tokens) = checked.visible(at) else { continue };
            measured = measure_encrypted("thinking", text(signature_field(block)), tokens);
        }
        rendered
            .push((at, PromptPiece { breakpoint: block.breakpoint, ..measured.at(block.place()) }));
    }
    let front: Vec<PromptPiece> = tool_pieces(&request.body)
        .chain(system_pieces(&request.body))
        .chain([settings(&request.body, &config, &blocks)])
        .collect();
    let front_tokens: u64 = PROMPT_TOKENS + front.iter().map(|piece| piece.tokens).sum::<u64>();
    let unedited_tokens =
        front_tokens + rendered.iter().map(|(_, piece)| piece.tokens).sum::<u64>();
    let mut provider_edits = checked.not_kept.clone();
    let edits = edits::apply(
        request,
        &blocks,
        &mut rendered,
        unedited_tokens,
        &checked,
        &mut provider_edits,
    );
    let mut pieces = front;
    pieces.extend(rendered.into_iter().map(|(_, piece)| piece));
    add_top_level_breakpoint(&request.body["cache_control"], &mut pieces);
    let input = PROMPT_TOKENS + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    let max_output = check_window(request, model, input)?;
    Ok(ParsedRequest {
        pieces,
        cache_key: 0,
        cache_policy: CachePolicy::Breakpoints { min: model.cache_min },
        prefix: Prefix { messages: checked.chain, ..prefix },
        last_signature: checked.last_signature,
        parent: checked.parent,
        context: reply_context(request, &config, &blocks, &turns, max_output),
        omits_thinking: config.omits_thinking,
        transformations: checked.transformations,
        edits,
        provider_edits,
        losses: checked.losses,
        unedited_tokens,
    })
}

fn check_headers(request: &ReceivedRequest) -> Result<(), ApiError> {
    // `docs/protocols.md` 1.1: a credential and a version.
    if request.account.is_none() {
        let message = "x-api-key header is required".to_owned();
        let kind = "authentication_error";
        return Err(ApiError::anthropic_kind(Rule::Authentication, 401, kind, message));
    }
    match request.header("anthropic-version").as_deref() {
        Some("2023-06-01" | "2026-10-21") => Ok(()),
        Some(other) => refuse(
            Rule::VersionHeader,
            format!("anthropic-version: \"{other}\" is not a valid version"),
        ),
        None => refuse(Rule::VersionHeader, "anthropic-version: header is required"),
    }
}

/// Returns the room for output, tokens.
fn check_window(
    request: &ReceivedRequest,
    model: &ModelRules,
    input: u64,
) -> Result<Option<u64>, ApiError> {
    // `docs/protocols.md` 1.6.
    let max_tokens = request.body["max_tokens"].as_u64();
    if request.operation == Operation::CountTokens {
        return Ok(None);
    }
    if input > model.window {
        let message = format!("prompt is too long: {input} tokens > {} maximum", model.window);
        return refuse(Rule::Overflow, message);
    }
    let room = model.window - input;
    match max_tokens {
        Some(max) if model.max_tokens_must_fit && max > room => refuse(
            Rule::Overflow,
            format!(
                "input length and `max_tokens` exceed context limit: {input} + {max} > {}, decrease input length or `max_tokens` and try again",
                model.window
            ),
        ),
        max => Ok(Some(max.unwrap_or(room).min(room))),
    }
}

/// The field that holds a thinking block's signature.
fn signature_field<'b>(block: &'b Block<'_>) -> &'b Value {
    block.field(if block.kind == "thinking" { "signature" } else { "data" })
}

fn blocks(body: &Value) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    for (at, message) in items(&body["messages"]).enumerate() {
        let role = text(&message["role"]);
        if let Some(content) = message["content"].as_str() {
            let measured = measure_text(role, content);
            blocks.push(Block {
                message: at,
                block: 0,
                role,
                kind: "text",
                value: None,
                measured,
                breakpoint: None,
            });
        }
        for (block, value) in items(&message["content"]).enumerate() {
            let nested = items(&value["content"]).find_map(breakpoint);
            // The model reads only the text of a summary.
            let measured = match value["content"].as_str() {
                Some(summary) if value["type"] == "compaction" => measure_text(role, summary),
                _ => measure(role, value),
            };
            blocks.push(Block {
                message: at,
                block,
                role,
                kind: text(&value["type"]),
                value: Some(value),
                measured,
                breakpoint: breakpoint(value).or(nested),
            });
        }
    }
    blocks
}

fn turns<'c>(blocks: &[Block<'c>]) -> Vec<MessageRun<'c>> {
    let mut turns: Vec<MessageRun<'c>> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        match turns.last_mut().filter(|turn| turn.role == block.role) {
            Some(turn) => turn.blocks.end = at + 1,
            None => turns.push(MessageRun { role: block.role, blocks: at..at + 1 }),
        }
    }
    turns
}

/// The cache marker of a block, tool or system block.
fn breakpoint(value: &Value) -> Option<Ttl> {
    let marker = value.get("cache_control").filter(|marker| marker.is_object())?;
    Some(if marker["ttl"] == "1h" { Ttl::Hour1 } else { Ttl::Minutes5 })
}

fn tool_pieces(body: &Value) -> impl Iterator<Item = PromptPiece> + '_ {
    // Tools as they are rendered: those whose loading is deferred are not (`docs/protocols.md` 1.5.3).
    let loaded =
        items(&body["tools"]).enumerate().filter(|(_, tool)| tool["defer_loading"] != true);
    loaded.map(|(at, tool)| PromptPiece {
        breakpoint: breakpoint(tool),
        ..measure("tool", tool).at(Place::Tool(at))
    })
}

/// The beginning of Claude Code's first system block.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

fn system_pieces(body: &Value) -> impl Iterator<Item = PromptPiece> + '_ {
    // System blocks as they are rendered: the attribution line is removed if it is a first block of its own
    // (`docs/protocols.md` 1.2).
    let string = body["system"].as_str().map(|system| measure_text("system", system));
    let string = string.map(|measured| measured.at(Place::System(0)));
    let blocks = items(&body["system"])
        .enumerate()
        .filter(|(at, block)| *at > 0 || !text(&block["text"]).starts_with(ATTRIBUTION));
    string.into_iter().chain(blocks.map(|(at, block)| PromptPiece {
        breakpoint: breakpoint(block),
        ..measure("system", block).at(Place::System(at))
    }))
}

fn settings(body: &Value, config: &thinking::ThinkingConfig, blocks: &[Block<'_>]) -> PromptPiece {
    // Settings that the cache of the messages depends on: tool choice, thinking, images (`docs/protocols.md`
    // 7.1).
    let has_images = blocks.iter().any(|block| block.kind == "image");
    let choice = body["tool_choice"].to_string();
    let values = [
        choice.as_str(),
        config.cache_setting,
        if has_images { "pictures" } else { "" },
        text(&body["speed"]),
    ];
    PieceContent { hash: hash(&values), tokens: 0 }.at(Place::Settings)
}

fn add_top_level_breakpoint(marker: &Value, pieces: &mut [PromptPiece]) {
    // A marker at the top belongs to the last cacheable block (`docs/protocols.md` 1.2).
    if !marker.is_object() {
        return;
    }
    let ttl = if marker["ttl"] == "1h" { Ttl::Hour1 } else { Ttl::Minutes5 };
    if let Some(last) = pieces.iter_mut().rfind(|piece| piece.place != Place::Settings) {
        last.breakpoint.get_or_insert(ttl);
    }
}

/// Whether a turn has text of the user, not only tool results.
fn is_user_turn(blocks: &[Block<'_>], turn: &MessageRun<'_>) -> bool {
    turn.role == "user" && blocks[turn.blocks.clone()].iter().any(|b| b.kind != "tool_result")
}

/// Index of the last turn with text of the user.
fn last_user_turn(blocks: &[Block<'_>], turns: &[MessageRun<'_>]) -> Option<usize> {
    turns.iter().rposition(|turn| is_user_turn(blocks, turn))
}

fn reply_context(
    request: &ReceivedRequest,
    config: &thinking::ThinkingConfig,
    blocks: &[Block<'_>],
    turns: &[MessageRun<'_>],
    max_output: Option<u64>,
) -> ReplyContext {
    let last_user = last_user_turn(blocks, turns).unwrap_or(0);
    let user_blocks = turns.get(last_user).map_or(0..0, |turn| turn.blocks.clone());
    let user_hash =
        blocks[user_blocks].iter().fold(0, |chain, block| link(chain, block.measured.hash));
    let later_turns = turns.get(last_user + 1..).unwrap_or_default();
    let tools = items(&request.body["tools"]).filter(|tool| tool["input_schema"].is_object());
    let may_call = request.body["tool_choice"]["type"] != "none";
    let tools = tools.filter(|tool| may_call && programs::is_loaded(tool, blocks));
    ReplyContext {
        thinks: config.thinks,
        must_begin_with_thinking: config.mandatory,
        tools: tools
            .map(|tool| ToolDefinition {
                name: text(&tool["name"]).to_owned(),
                parameters: tool["input_schema"].clone(),
            })
            .collect(),
        user_hash,
        rounds: later_turns.iter().filter(|turn| turn.role == "assistant").count() as u64,
        max_output,
    }
}

/// `docs/protocols.md` 1.7: the tokens after the provider's own edits.
pub(super) fn count(accepted: &AcceptedRequest) -> Value {
    let mut count = json!({"input_tokens": accepted.input_tokens});
    if accepted.unedited_tokens != accepted.input_tokens {
        count["context_management"] = json!({"original_input_tokens": accepted.unedited_tokens});
    }
    count
}

const DIALECT: Dialect = Dialect::Anthropic;

#[cfg(test)]
mod tests;
