//! Thinking that comes back (`docs/protocols.md` 1.5): unmodified, in its place, its run complete, by a
//! model and an account that may read it, after the prefix it was made from.
//!
//! What is wrong is refused in the real words; what is only not read, or did not come back at all,
//! is a loss.

use std::collections::HashMap;
use std::ops::Range;

use super::{Block, DIALECT, compaction, is_said, refuse, seal_field, turns};
use crate::strict::Call;
use crate::strict::prompt::{Place, STRUCTURE, hash, items, link, text};
use crate::strict::reply_store::{Book, Kind, Prefix, Seal};
use crate::strict::rules::Model;
use crate::strict::verdict::{Loss, Refusal, Rule, Transformation, Why};

/// What the request says of thinking, with the model's defaults.
pub(super) struct Config {
    /// Whether the model may think.
    pub(super) thinks: bool,
    /// Whether thinking must stand at the start of an open tool loop (`docs/protocols.md` 1.2).
    pub(super) mandatory: bool,
    /// Whether new thinking comes without its text (`docs/protocols.md` 1.5).
    pub(super) omits: bool,
    /// What of it the cache depends on (`docs/protocols.md` 7.1).
    pub(super) word: &'static str,
    /// Blocks that do not fit their prefix are dropped, not refused (`docs/protocols.md` 1.5.6).
    drops: bool,
    /// Binding is in force, or asked for (`docs/protocols.md` 1.5.4).
    enforced: bool,
    keep: Keep,
}

/// Which earlier thinking the model sees.
#[derive(Clone, Copy)]
enum Keep {
    All,
    /// What stands after the newest words of a person.
    CurrentLoop,
    /// That of so many newest turns that hold any (`docs/protocols.md` 1.3).
    Turns(usize),
}

impl Config {
    pub(super) fn of(call: &Call, model: &Model) -> Self {
        let thinking = &call.body["thinking"];
        let kind = text(&thinking["type"]);
        let forced = ["any", "tool"].contains(&text(&call.body["tool_choice"]["type"]));
        // Missing `thinking` equals adaptive where reasoning is bound (`docs/protocols.md` 1.5.6).
        let thinks = match kind {
            "" => model.binding && !forced,
            "disabled" => false,
            _ => true,
        };
        let behavior = &thinking["block_binding"]["prefix_mismatch_behavior"];
        let omits = match text(&thinking["display"]) {
            "" => model.omits_thinking,
            display => display == "omitted",
        };
        let edits = items(&call.body["context_management"]["edits"]);
        let clear = edits.into_iter().find(|edit| edit["type"] == super::edits::CLEAR_THINKING);
        let keep = match clear.map(|edit| &edit["keep"]) {
            None if model.keeps_reasoning => Keep::All,
            None => Keep::CurrentLoop,
            Some(keep) if keep == "all" || keep["type"] == "all" => Keep::All,
            Some(keep) => Keep::Turns(keep["value"].as_u64().unwrap_or(1) as usize),
        };
        Self {
            thinks,
            mandatory: model.thinking_mandatory.unwrap_or(kind == "enabled") && thinks,
            omits,
            word: if thinks { "thinking" } else { "" },
            drops: behavior == "drop_block",
            enforced: model.binding && (model.binding_enforced || behavior.is_string()),
            keep,
        }
    }
}

/// What came of a request's thinking.
#[derive(Default)]
pub(super) struct Thought {
    /// Blocks that the model reads, by their index, with what they weigh.
    visible: HashMap<usize, u64>,
    pub(super) transformations: Vec<Transformation>,
    pub(super) losses: Vec<Loss>,
    /// The newest seal in the request.
    pub(super) last: Option<usize>,
    /// The chain of all messages, thinking left out.
    pub(super) chain: u128,
    /// The newest reply of ours in the request.
    pub(super) parent: Option<usize>,
    /// Turns and tokens that `clear_thinking` took out.
    pub(super) cleared: (usize, u64),
    /// Where thinking stands that this model, or the request, does not keep.
    pub(super) not_kept: Vec<Place>,
}

impl Thought {
    /// What a thinking block weighs where the model reads it.
    pub(super) fn visible(&self, at: usize) -> Option<u64> {
        self.visible.get(&at).copied()
    }
}

/// One assistant message, while it is read.
struct Message {
    index: usize,
    blocks: Range<usize>,
    /// The chain before each of its blocks that are not thinking, and after the last.
    chains: Vec<u128>,
    /// The newest seal before it.
    last: Option<usize>,
}

struct Checker<'a> {
    call: &'a Call,
    model: &'a Model,
    book: &'a Book,
    config: &'a Config,
    blocks: &'a [Block<'a>],
    prefix: Prefix,
    has_beta: bool,
    /// The newest assistant message.
    latest: Option<usize>,
    /// The first block after the newest words of a person.
    current: usize,
    thought: Thought,
}

/// Checks all thinking of a request.
pub(super) fn check(
    call: &Call,
    model: &Model,
    book: &Book,
    config: &Config,
    blocks: &[Block<'_>],
    prefix: Prefix,
    betas: &str,
) -> Result<Thought, Refusal> {
    let turns = turns(blocks);
    let said = turns.iter().rfind(|turn| is_said(blocks, turn));
    let latest = blocks.iter().rfind(|block| block.role == "assistant");
    let mut checker = Checker {
        call,
        model,
        book,
        config,
        blocks,
        prefix,
        has_beta: betas.contains("thinking-binding-controls-2026-08-01"),
        latest: latest.map(|block| block.message),
        current: said.map_or(0, |turn| turn.blocks.end),
        thought: Thought::default(),
    };
    checker.starts_open_loop()?;
    let mut at = 0;
    while at < blocks.len() {
        let end = at + blocks[at..].iter().take_while(|b| b.message == blocks[at].message).count();
        checker.message(at..end)?;
        at = end;
    }
    checker.clear();
    Ok(checker.thought)
}

impl<'a> Checker<'a> {
    fn message(&mut self, range: Range<usize>) -> Result<(), Refusal> {
        let mut message = Message {
            index: self.blocks[range.start].message,
            blocks: range.clone(),
            chains: vec![self.thought.chain],
            last: self.thought.last,
        };
        let mut seals = Vec::new();
        let thinking = |at: &usize| self.blocks[*at].is_thinking();
        range.clone().filter(thinking).try_for_each(|at| self.genuine(at).map(|_| ()))?;
        for at in range {
            let block = &self.blocks[at];
            if block.is_thinking() {
                seals.push(self.block(at, message.chains.len() - 1)?);
            } else if block.kind == "compaction" {
                let next = self.blocks.get(at + 1);
                self.thought.chain = compaction::chain(self.book, block, next, self.thought.chain);
                message.chains.push(self.thought.chain);
            } else {
                self.thought.chain = link(self.thought.chain, block.weighed.hash);
                message.chains.push(self.thought.chain);
            }
        }
        if self.blocks[message.blocks.start].role == "assistant" {
            self.reply(&message, &seals)?;
        }
        Ok(())
    }

    /// The seal of a thinking block, which is as it was issued.
    fn genuine(&self, at: usize) -> Result<(usize, &'a Seal), Refusal> {
        let block = &self.blocks[at];
        let kind = if block.kind == "thinking" { Kind::Thinking } else { Kind::Redacted };
        let words = hash(&[text(block.field("thinking"))]);
        match self.book.seal(DIALECT, text(seal_field(block))) {
            Some((number, seal)) if seal.kind == kind && seal.text == words => Ok((number, seal)),
            _ => self.modified(block),
        }
    }

    /// One thinking block, with so many others before it in its message; answers its seal.
    fn block(&mut self, at: usize, lead: usize) -> Result<usize, Refusal> {
        let block = &self.blocks[at];
        let (number, seal) = self.genuine(at)?;
        if self.latest == Some(block.message) && (seal.lead == 0) != (lead == 0) {
            return self.modified(block);
        }
        self.run(at, number, seal)?;
        let why = self.unreadable(seal).or_else(|| self.mismatch(seal).map(|_| Why::Prefix));
        self.thought.last = Some(number);
        let place = block.place();
        match why {
            Some(Why::Prefix) if !self.config.enforced => {
                self.transform(place, Why::Prefix, true);
            }
            Some(Why::Prefix) if !self.config.drops => return self.bound(block, seal),
            Some(why) => {
                self.transform(place, why, false);
                self.thought.losses.push(Loss::ReasoningDropped { place, why });
                return Ok(number);
            }
            None => {}
        }
        if self.config.thinks {
            self.thought.visible.insert(at, seal.tokens);
        }
        Ok(number)
    }

    fn transform(&mut self, place: Place, why: Why, allowed: bool) {
        let transformation = Transformation { place, id: None, why, allowed };
        self.thought.transformations.push(transformation);
    }

    /// The model check and the account check (`docs/protocols.md` 1.5.1, 1.5.2).
    fn unreadable(&self, seal: &Seal) -> Option<Why> {
        match () {
            () if !self.model.reads(&seal.model) => Some(Why::Model),
            () if self.model.account_bound && Some(seal.account) != self.call.account => {
                Some(Why::Account)
            }
            () => None,
        }
    }

    /// The prefix check (`docs/protocols.md` 1.5.3): what stands before, and the order of the thinking
    /// before. Answers what can be said of the cause.
    fn mismatch(&self, seal: &Seal) -> Option<&'static str> {
        let now = Prefix { messages: self.thought.chain, ..self.prefix };
        let in_order = self.thought.last.is_none() || self.thought.last == seal.before;
        match () {
            () if !self.model.binding || now == seal.prefix && in_order => None,
            () if now.system != seal.prefix.system => {
                Some(" The `system` prompt differs from the one this block was created with.")
            }
            () if now.tools != seal.prefix.tools => {
                Some(" The `tools` list differs from the one this block was created with.")
            }
            () => Some(""),
        }
    }

    /// Consecutive thinking blocks stay the full original run (`docs/protocols.md` 1.5).
    fn run(&self, at: usize, number: usize, seal: &Seal) -> Result<(), Refusal> {
        let block = &self.blocks[at];
        let (first, length) = seal.run;
        let offset = number - first;
        let beside = |away: isize, expected: usize| {
            let other = at.checked_add_signed(away).and_then(|at| self.blocks.get(at));
            let other = other.filter(|other| other.message == block.message && other.is_thinking());
            let seal = other.and_then(|other| self.book.seal(DIALECT, text(seal_field(other))));
            seal.is_some_and(|(number, _)| number == expected)
        };
        let complete = (offset == 0 || beside(-1, number - 1))
            && (offset + 1 == length || beside(1, number + 1));
        match complete {
            true => Ok(()),
            false if self.latest == Some(block.message) => self.modified(block),
            false => refuse(Rule::RunIncomplete, format!("{}: {INVALID}", block.path())),
        }
    }

    /// Edited, foreign or made up.
    fn modified<T>(&self, block: &Block<'_>) -> Result<T, Refusal> {
        let path = block.path();
        if self.latest == Some(block.message) {
            return refuse(Rule::LatestThinkingModified, format!("{path}: {MODIFIED}"));
        }
        let what = match block.kind {
            "thinking" => INVALID,
            _ => "Invalid `data` in `redacted_thinking` block",
        };
        refuse(Rule::SignatureInvalid, format!("{path}: {what}"))
    }

    /// The error of `docs/protocols.md` 1.5.5.
    fn bound<T>(&self, block: &Block<'_>, seal: &Seal) -> Result<T, Refusal> {
        let mut message = format!(
            "{}: {INVALID}. The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\".",
            block.path()
        );
        if !self.has_beta {
            message += " That setting requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` header.";
        }
        // `last` is this block by now; the order before it was looked at already.
        message += self.cause(seal);
        refuse(Rule::BoundElsewhere, message)
    }

    fn cause(&self, seal: &Seal) -> &'static str {
        self.mismatch(seal).unwrap_or_default()
    }

    /// A whole assistant message: the latest one keeps all its thinking or none; what an earlier
    /// one lost is told.
    fn reply(&mut self, message: &Message, seals: &[usize]) -> Result<(), Refusal> {
        let sealed = seals.first().and_then(|number| self.book.numbered(*number));
        let Some(number) = sealed.map(|seal| seal.reply).or_else(|| self.trace(message)) else {
            return Ok(());
        };
        self.thought.parent = Some(number);
        let Some(issued) = self.book.reply(number) else { return Ok(()) };
        let first = &self.blocks[message.blocks.start];
        if self.latest == Some(message.index) && !seals.is_empty() && seals != issued.seals {
            return refuse(Rule::LatestThinkingModified, format!("{}: {MODIFIED}", first.path()));
        }
        let absent = issued.seals.iter().find(|seal| !seals.contains(seal));
        let Some(seal) = absent.and_then(|number| self.book.numbered(*number)) else {
            return Ok(());
        };
        let wanted = match self.config.keep {
            Keep::All => true,
            Keep::CurrentLoop | Keep::Turns(_) => message.blocks.start >= self.current,
        };
        if !self.config.thinks || !wanted {
            return Ok(());
        }
        let now =
            message.chains.get(seal.lead).map(|chain| Prefix { messages: *chain, ..self.prefix });
        let in_order = message.last.is_none() || message.last == seal.before;
        let fits = !self.model.binding || now == Some(seal.prefix) && in_order;
        self.thought.losses.push(Loss::ReasoningAbsent {
            place: first.place(),
            issued: issued.seals.len(),
            present: seals.len(),
            readable: fits && self.unreadable(seal).is_none(),
        });
        Ok(())
    }

    /// The reply that a message is, by its tool ids or its words.
    fn trace(&self, message: &Message) -> Option<usize> {
        let blocks = &self.blocks[message.blocks.clone()];
        let mut calls = blocks.iter().filter(|block| block.kind == "tool_use");
        calls.find_map(|call| self.book.trace(DIALECT, "id", text(call.field("id")))).or_else(
            || {
                let words = blocks.iter().filter(|block| block.kind == "text");
                let content = &self.call.body["messages"][message.index]["content"];
                let words: String = match content.as_str() {
                    Some(whole) => whole.to_owned(),
                    None => words.map(|block| text(block.field("text"))).collect(),
                };
                self.book.trace(DIALECT, "text", &words)
            },
        )
    }

    /// Manual mode: an open tool loop starts with thinking (`docs/protocols.md` 1.2), unless we wrote it
    /// without.
    fn starts_open_loop(&self) -> Result<(), Refusal> {
        let open = self.blocks.last().is_some_and(|block| block.kind == "tool_result");
        let is_reply = |block: &&Block<'_>| block.role == "assistant" && block.kind != "compaction";
        let first = self.blocks[self.current..].iter().find(is_reply);
        let Some(first) =
            first.filter(|block| self.config.mandatory && open && !block.is_thinking())
        else {
            return Ok(());
        };
        let mut here = self.blocks.iter().filter(|block| block.message == first.message);
        let call =
            here.find_map(|block| self.book.trace(DIALECT, "id", block.field("id").as_str()?));
        let issued = call.and_then(|number| self.book.reply(number));
        if issued.is_some_and(|issued| issued.seals.is_empty()) {
            return Ok(());
        }
        refuse(
            Rule::ThinkingMissing,
            format!(
                "messages.{}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid this requirement, disable `thinking`.",
                first.message, first.kind
            ),
        )
    }

    /// Takes out of sight what this model, or the request, does not keep.
    fn clear(&mut self) {
        let turns = turns(self.blocks);
        let holds =
            |range: &Range<usize>| range.clone().any(|at| self.thought.visible.contains_key(&at));
        let holding: Vec<Range<usize>> =
            turns.iter().map(|turn| turn.blocks.clone()).filter(|range| holds(range)).collect();
        let first_kept = match self.config.keep {
            Keep::All => 0,
            Keep::CurrentLoop => self.current,
            Keep::Turns(keep) => {
                let first = holding.len().saturating_sub(keep);
                let cleared = &holding[..first];
                let tokens = cleared.iter().cloned().flatten();
                let tokens =
                    tokens.filter_map(|at| self.thought.visible(at)).map(|t| t + STRUCTURE);
                self.thought.cleared = (first, tokens.sum());
                holding.get(first).map_or(self.blocks.len(), |range| range.start)
            }
        };
        let (kept, gone) = self.thought.visible.drain().partition(|(at, _)| *at >= first_kept);
        self.thought.visible = kept;
        let gone: HashMap<usize, u64> = gone;
        self.thought.not_kept = gone.keys().map(|at| self.blocks[*at].place()).collect();
    }
}

const INVALID: &str = "Invalid `signature` in `thinking` block";
const MODIFIED: &str = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.";
