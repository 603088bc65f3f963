//! Anthropic Messages, judged (`docs/protocols.md` 1): from headers to the last block, in the order in
//! which the real one complains.
//!
//! A request becomes a flat list of blocks; each file beside this one checks one thing of it.

mod compaction;
mod edits;
mod fields;
mod pairs;
mod response;
mod thinking;

use serde_json::{Value, json};

use super::cache::Policy;
use super::prompt::{
    PROMPT, Piece, Place, Ttl, Weighed, hash, items, link, text, weigh, weigh_sealed, weigh_text,
};
use super::reply::Scene;
use super::reply_store::{Book, Prefix};
use super::rules::Model;
use super::verdict::{Accepted, Refusal, Rule};
use super::{Call, Dialect, Purpose, Reading};

pub(super) use compaction::compact;
pub(super) use response::{remember, write};

/// A content block of a message, as it stands in the request.
struct Block<'c> {
    message: usize,
    block: usize,
    role: &'c str,
    kind: &'c str,
    /// `None` where the content is a plain string.
    value: Option<&'c Value>,
    weighed: Weighed,
    mark: Option<Ttl>,
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
struct Turn<'c> {
    role: &'c str,
    blocks: std::ops::Range<usize>,
}

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::anthropic(rule, message.into()))
}

/// Judges a request.
pub(super) fn read(call: &Call, model: &Model, book: &Book) -> Result<Reading, Refusal> {
    headers(call)?;
    let betas = call.header("anthropic-beta").unwrap_or_default();
    fields::check(call, model, &betas)?;
    edits::check(call)?;
    let blocks = blocks(&call.body);
    let turns = turns(&blocks);
    compaction::check(call, model, book, &blocks, &betas)?;
    fields::check_messages(call, model, &blocks)?;
    pairs::check(&blocks, &turns)?;
    let prefix = Prefix {
        system: system_pieces(&call.body).fold(0, |chain, piece| link(chain, piece.hash)),
        tools: tool_pieces(&call.body).fold(0, |chain, piece| link(chain, piece.hash)),
        messages: 0,
    };
    let config = thinking::Config::of(call, model);
    let thought = thinking::check(call, model, book, &config, &blocks, prefix, &betas)?;
    let mut rendered = Vec::with_capacity(blocks.len());
    for (at, block) in blocks.iter().enumerate() {
        let mut weighed = block.weighed;
        if block.is_thinking() {
            let Some(tokens) = thought.visible(at) else { continue };
            weighed = weigh_sealed("thinking", text(seal_field(block)), tokens);
        }
        rendered.push((at, Piece { mark: block.mark, ..weighed.at(block.place()) }));
    }
    let before: Vec<Piece> = tool_pieces(&call.body)
        .chain(system_pieces(&call.body))
        .chain([settings(&call.body, &config, &blocks)])
        .collect();
    let fixed: u64 = PROMPT + before.iter().map(|piece| piece.tokens).sum::<u64>();
    let unedited = fixed + rendered.iter().map(|(_, piece)| piece.tokens).sum::<u64>();
    let mut own = thought.not_kept.clone();
    let edits = edits::apply(call, &blocks, &mut rendered, unedited, &thought, &mut own);
    let mut pieces = before;
    pieces.extend(rendered.into_iter().map(|(_, piece)| piece));
    mark_last(&call.body["cache_control"], &mut pieces);
    let input = PROMPT + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    let max_output = overflow(call, model, input)?;
    Ok(Reading {
        pieces,
        cache_key: 0,
        policy: Policy::Marked { min: model.cache_min },
        prefix: Prefix { messages: thought.chain, ..prefix },
        last_seal: thought.last,
        parent: thought.parent,
        scene: scene(call, &config, &blocks, &turns, max_output),
        omits: config.omits,
        transformations: thought.transformations,
        edits,
        own,
        losses: thought.losses,
        unedited,
    })
}

/// `docs/protocols.md` 1.1: a credential and a version.
fn headers(call: &Call) -> Result<(), Refusal> {
    if call.account.is_none() {
        let message = "x-api-key header is required".to_owned();
        let kind = "authentication_error";
        return Err(Refusal::anthropic_kind(Rule::Authentication, 401, kind, message));
    }
    match call.header("anthropic-version").as_deref() {
        Some("2023-06-01" | "2026-10-21") => Ok(()),
        Some(other) => refuse(
            Rule::VersionHeader,
            format!("anthropic-version: \"{other}\" is not a valid version"),
        ),
        None => refuse(Rule::VersionHeader, "anthropic-version: header is required"),
    }
}

/// `docs/protocols.md` 1.6. Answers how many tokens of output there is room for.
fn overflow(call: &Call, model: &Model, input: u64) -> Result<Option<u64>, Refusal> {
    let max_tokens = call.body["max_tokens"].as_u64();
    if call.purpose == Purpose::Count {
        return Ok(None);
    }
    if input > model.window {
        let message = format!("prompt is too long: {input} tokens > {} maximum", model.window);
        return refuse(Rule::Overflow, message);
    }
    let room = model.window - input;
    match max_tokens {
        Some(most) if model.max_tokens_must_fit && most > room => refuse(
            Rule::Overflow,
            format!(
                "input length and `max_tokens` exceed context limit: {input} + {most} > {}, decrease input length or `max_tokens` and try again",
                model.window
            ),
        ),
        most => Ok(Some(most.unwrap_or(room).min(room))),
    }
}

/// The field that holds a thinking block's seal.
fn seal_field<'b>(block: &'b Block<'_>) -> &'b Value {
    block.field(if block.kind == "thinking" { "signature" } else { "data" })
}

fn blocks(body: &Value) -> Vec<Block<'_>> {
    let mut all = Vec::new();
    for (at, message) in items(&body["messages"]).enumerate() {
        let role = text(&message["role"]);
        if let Some(content) = message["content"].as_str() {
            let weighed = weigh_text(role, content);
            all.push(Block {
                message: at,
                block: 0,
                role,
                kind: "text",
                value: None,
                weighed,
                mark: None,
            });
        }
        for (block, value) in items(&message["content"]).enumerate() {
            let nested = items(&value["content"]).find_map(mark);
            // Of a summary the model reads the words.
            let summary = value["content"].as_str().filter(|_| value["type"] == "compaction");
            let weighed = summary.map_or_else(|| weigh(role, value), |it| weigh_text(role, it));
            all.push(Block {
                message: at,
                block,
                role,
                kind: text(&value["type"]),
                value: Some(value),
                weighed,
                mark: mark(value).or(nested),
            });
        }
    }
    all
}

fn turns<'c>(blocks: &[Block<'c>]) -> Vec<Turn<'c>> {
    let mut turns: Vec<Turn<'c>> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        match turns.last_mut().filter(|turn| turn.role == block.role) {
            Some(turn) => turn.blocks.end = at + 1,
            None => turns.push(Turn { role: block.role, blocks: at..at + 1 }),
        }
    }
    turns
}

/// The cache marker of a block, tool or system block.
fn mark(value: &Value) -> Option<Ttl> {
    let marker = value.get("cache_control").filter(|marker| marker.is_object())?;
    Some(if marker["ttl"] == "1h" { Ttl::Hour1 } else { Ttl::Minutes5 })
}

/// Tools as they are rendered: those whose loading is deferred are not (`docs/protocols.md` 1.5.3).
fn tool_pieces(body: &Value) -> impl Iterator<Item = Piece> + '_ {
    let loaded =
        items(&body["tools"]).enumerate().filter(|(_, tool)| tool["defer_loading"] != true);
    loaded.map(|(at, tool)| Piece { mark: mark(tool), ..weigh("tool", tool).at(Place::Tool(at)) })
}

/// What Claude Code's first system block begins with.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// System blocks as they are rendered: the attribution line is stripped where it is the first entry
/// of its own (`docs/protocols.md` 1.2).
fn system_pieces(body: &Value) -> impl Iterator<Item = Piece> + '_ {
    let whole = body["system"].as_str().map(|system| weigh_text("system", system));
    let whole = whole.map(|weighed| weighed.at(Place::System(0)));
    let listed = items(&body["system"])
        .enumerate()
        .filter(|(at, block)| *at > 0 || !text(&block["text"]).starts_with(ATTRIBUTION));
    whole.into_iter().chain(listed.map(|(at, block)| Piece {
        mark: mark(block),
        ..weigh("system", block).at(Place::System(at))
    }))
}

/// What else the messages' cache depends on: tool choice, thinking, pictures (`docs/protocols.md` 7.1).
fn settings(body: &Value, config: &thinking::Config, blocks: &[Block<'_>]) -> Piece {
    let pictures = blocks.iter().any(|block| block.kind == "image");
    let choice = body["tool_choice"].to_string();
    let words = [
        choice.as_str(),
        config.word,
        if pictures { "pictures" } else { "" },
        text(&body["speed"]),
    ];
    Weighed { hash: hash(&words), tokens: 0 }.at(Place::Settings)
}

/// A marker at the top places itself on the last cacheable block (`docs/protocols.md` 1.2).
fn mark_last(marker: &Value, pieces: &mut [Piece]) {
    if !marker.is_object() {
        return;
    }
    let ttl = if marker["ttl"] == "1h" { Ttl::Hour1 } else { Ttl::Minutes5 };
    if let Some(last) = pieces.iter_mut().rfind(|piece| piece.place != Place::Settings) {
        last.mark.get_or_insert(ttl);
    }
}

/// Whether a turn holds words of a person, not tool results alone.
fn is_said(blocks: &[Block<'_>], turn: &Turn<'_>) -> bool {
    turn.role == "user" && blocks[turn.blocks.clone()].iter().any(|b| b.kind != "tool_result")
}

/// Index of the turn in which a person spoke last.
fn last_said(blocks: &[Block<'_>], turns: &[Turn<'_>]) -> Option<usize> {
    turns.iter().rposition(|turn| is_said(blocks, turn))
}

fn scene(
    call: &Call,
    config: &thinking::Config,
    blocks: &[Block<'_>],
    turns: &[Turn<'_>],
    max_output: Option<u64>,
) -> Scene {
    let said = last_said(blocks, turns).unwrap_or(0);
    let words = turns.get(said).map_or(0..0, |turn| turn.blocks.clone());
    let said_hash = blocks[words].iter().fold(0, |chain, block| link(chain, block.weighed.hash));
    let after = turns.get(said + 1..).unwrap_or_default();
    let tools = items(&call.body["tools"]).filter(|tool| tool["input_schema"].is_object());
    let none = call.body["tool_choice"]["type"] == "none";
    Scene {
        thinks: config.thinks,
        begins_thinking: config.mandatory,
        tools: tools
            .filter(|_| !none)
            .map(|tool| (text(&tool["name"]).to_owned(), tool["input_schema"].clone()))
            .collect(),
        said: said_hash,
        rounds: after.iter().filter(|turn| turn.role == "assistant").count() as u64,
        max_output,
    }
}

/// `docs/protocols.md` 1.7: what was counted is what is left after the provider's own edits.
pub(super) fn count(accepted: &Accepted) -> Value {
    let mut count = json!({"input_tokens": accepted.input_tokens});
    if accepted.unedited_tokens != accepted.input_tokens {
        count["context_management"] = json!({"original_input_tokens": accepted.unedited_tokens});
    }
    count
}

const DIALECT: Dialect = Dialect::Anthropic;

#[cfg(test)]
mod tests;
