//! Checks thinking that comes back (`docs/protocols.md` 1.5): unmodified, in its place, its run complete,
//! by a model and an account that may read it, after the prefix it is bound to.
//!
//! What is wrong is refused with the real error; what is only not read, or did not come back at all,
//! is a loss.

use std::collections::HashMap;
use std::ops::Range;

use super::{Block, DIALECT, compaction, is_user_turn, refuse, signature_field, turns};
use crate::strict::ReceivedRequest;
use crate::strict::prompt::{PIECE_OVERHEAD_TOKENS, Place, hash, items, link, text};
use crate::strict::reply_store::{IssuedSignature, Prefix, ReplyStore, SignatureKind};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{ApiError, DropReason, Loss, Rule, Transformation};

/// The thinking settings of a request, with the model's defaults.
pub(super) struct ThinkingConfig {
    /// Whether the model may think.
    pub(super) thinks: bool,
    /// Whether thinking must stand at the start of an open tool loop (`docs/protocols.md` 1.2).
    pub(super) mandatory: bool,
    /// Whether new thinking comes without its text (`docs/protocols.md` 1.5).
    pub(super) omits_thinking: bool,
    /// The setting that the cache depends on (`docs/protocols.md` 7.1).
    pub(super) cache_setting: &'static str,
    /// Blocks that do not fit their prefix are dropped, not refused (`docs/protocols.md` 1.5.6).
    drops_mismatched: bool,
    /// Binding is in force, or requested (`docs/protocols.md` 1.5.4).
    enforces_binding: bool,
    keep: KeptThinking,
}

/// Which earlier thinking the model sees.
#[derive(Clone, Copy)]
enum KeptThinking {
    All,
    /// That after the newest text of the user.
    CurrentLoop,
    /// The thinking of this many newest turns that have any (`docs/protocols.md` 1.3).
    Turns(usize),
}

impl ThinkingConfig {
    pub(super) fn new(request: &ReceivedRequest, model: &ModelRules) -> Self {
        let thinking = &request.body["thinking"];
        let kind = text(&thinking["type"]);
        let forced = ["any", "tool"].contains(&text(&request.body["tool_choice"]["type"]));
        // Missing `thinking` equals adaptive if reasoning is bound (`docs/protocols.md` 1.5.6).
        let thinks = match kind {
            "" => model.binding && !forced,
            "disabled" => false,
            _ => true,
        };
        let behavior = &thinking["block_binding"]["prefix_mismatch_behavior"];
        let omits_thinking = match text(&thinking["display"]) {
            "" => model.omits_thinking,
            display => display == "omitted",
        };
        let edits = items(&request.body["context_management"]["edits"]);
        let clear = edits.into_iter().find(|edit| edit["type"] == super::edits::CLEAR_THINKING);
        let keep = match clear.map(|edit| &edit["keep"]) {
            None if model.keeps_reasoning => KeptThinking::All,
            None => KeptThinking::CurrentLoop,
            Some(keep) if keep == "all" || keep["type"] == "all" => KeptThinking::All,
            Some(keep) => KeptThinking::Turns(keep["value"].as_u64().unwrap_or(1) as usize),
        };
        Self {
            thinks,
            mandatory: model.thinking_mandatory.unwrap_or(kind == "enabled") && thinks,
            omits_thinking,
            cache_setting: if thinks { "thinking" } else { "" },
            drops_mismatched: behavior == "drop_block",
            enforces_binding: model.binding && (model.binding_enforced || behavior.is_string()),
            keep,
        }
    }
}

/// The result of checking a request's thinking.
#[derive(Default)]
pub(super) struct ThinkingOutcome {
    /// Blocks that the model reads, by their index, with their tokens.
    visible: HashMap<usize, u64>,
    pub(super) transformations: Vec<Transformation>,
    pub(super) losses: Vec<Loss>,
    /// Number of the newest signature in the request.
    pub(super) last_signature: Option<usize>,
    /// The chain of all messages, thinking left out.
    pub(super) chain: u128,
    /// Number of the newest issued reply in the request.
    pub(super) parent: Option<usize>,
    pub(super) cleared: ClearedThinking,
    /// Where thinking stands that this model, or the request, does not keep.
    pub(super) not_kept: Vec<Place>,
}

/// What `clear_thinking` removed.
#[derive(Default)]
pub(super) struct ClearedThinking {
    pub(super) turns: usize,
    pub(super) tokens: u64,
}

impl ThinkingOutcome {
    /// Tokens of a thinking block; `None` if the model does not read it.
    pub(super) fn visible(&self, at: usize) -> Option<u64> {
        self.visible.get(&at).copied()
    }
}

/// An assistant message that is being checked.
struct AssistantMessage {
    index: usize,
    blocks: Range<usize>,
    /// The chain before each of its blocks that are not thinking, and after the last.
    chains: Vec<u128>,
    /// Number of the newest signature before it.
    last_signature: Option<usize>,
}

struct ThinkingChecker<'a> {
    request: &'a ReceivedRequest,
    model: &'a ModelRules,
    store: &'a ReplyStore,
    config: &'a ThinkingConfig,
    blocks: &'a [Block<'a>],
    prefix: Prefix,
    has_beta: bool,
    /// The newest assistant message.
    latest: Option<usize>,
    /// The first block after the newest text of the user.
    current: usize,
    outcome: ThinkingOutcome,
}

/// Checks all thinking of a request.
pub(super) fn check(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
    config: &ThinkingConfig,
    blocks: &[Block<'_>],
    prefix: Prefix,
    betas: &str,
) -> Result<ThinkingOutcome, ApiError> {
    let turns = turns(blocks);
    let last_user = turns.iter().rfind(|turn| is_user_turn(blocks, turn));
    let latest = blocks.iter().rfind(|block| block.role == "assistant");
    let mut checker = ThinkingChecker {
        request,
        model,
        store,
        config,
        blocks,
        prefix,
        has_beta: betas.contains("thinking-binding-controls-2026-08-01"),
        latest: latest.map(|block| block.message),
        current: last_user.map_or(0, |turn| turn.blocks.end),
        outcome: ThinkingOutcome::default(),
    };
    checker.check_open_loop()?;
    let mut start = 0;
    while start < blocks.len() {
        let end = start
            + blocks[start..].iter().take_while(|b| b.message == blocks[start].message).count();
        checker.check_message(start..end)?;
        start = end;
    }
    checker.clear_thinking();
    Ok(checker.outcome)
}

impl<'a> ThinkingChecker<'a> {
    fn check_message(&mut self, range: Range<usize>) -> Result<(), ApiError> {
        let mut message = AssistantMessage {
            index: self.blocks[range.start].message,
            blocks: range.clone(),
            chains: vec![self.outcome.chain],
            last_signature: self.outcome.last_signature,
        };
        let mut signatures = Vec::new();
        let thinking = |at: &usize| self.blocks[*at].is_thinking();
        // An edited block is refused before any other fault of its message.
        range.clone().filter(thinking).try_for_each(|at| self.issued_signature(at).map(|_| ()))?;
        for at in range {
            let block = &self.blocks[at];
            if block.is_thinking() {
                signatures.push(self.check_block(at, message.chains.len() - 1)?);
            } else if block.kind == "compaction" {
                let next_block = self.blocks.get(at + 1);
                self.outcome.chain =
                    compaction::chain(self.store, block, next_block, self.outcome.chain);
                message.chains.push(self.outcome.chain);
            } else {
                self.outcome.chain = link(self.outcome.chain, block.measured.hash);
                message.chains.push(self.outcome.chain);
            }
        }
        if self.blocks[message.blocks.start].role == "assistant" {
            self.check_reply(&message, &signatures)?;
        }
        Ok(())
    }

    /// The signature of a thinking block, if the block is as it was issued.
    fn issued_signature(&self, at: usize) -> Result<(usize, &'a IssuedSignature), ApiError> {
        let block = &self.blocks[at];
        let kind = if block.kind == "thinking" {
            SignatureKind::Thinking
        } else {
            SignatureKind::RedactedThinking
        };
        let content_hash = hash(&[text(block.field("thinking"))]);
        match self.store.find_signature(DIALECT, text(signature_field(block))) {
            Some((number, signature))
                if signature.kind == kind && signature.content_hash == content_hash =>
            {
                Ok((number, signature))
            }
            _ => self.refuse_modified(block),
        }
    }

    /// Checks a thinking block that is preceded by this many others in its message; returns the number of its
    /// signature.
    fn check_block(&mut self, at: usize, blocks_before: usize) -> Result<usize, ApiError> {
        let block = &self.blocks[at];
        let (number, signature) = self.issued_signature(at)?;
        if self.latest == Some(block.message)
            && (signature.blocks_before == 0) != (blocks_before == 0)
        {
            return self.refuse_modified(block);
        }
        self.check_run(at, number, signature)?;
        let reason = self
            .unreadable_reason(signature)
            .or_else(|| self.prefix_mismatch(signature).map(|_| DropReason::Prefix));
        self.outcome.last_signature = Some(number);
        let place = block.place();
        match reason {
            Some(DropReason::Prefix) if !self.config.enforces_binding => {
                self.add_transformation(place, DropReason::Prefix, true);
            }
            Some(DropReason::Prefix) if !self.config.drops_mismatched => {
                return self.refuse_bound(block, signature);
            }
            Some(reason) => {
                self.add_transformation(place, reason, false);
                self.outcome.losses.push(Loss::ReasoningDropped { place, reason });
                return Ok(number);
            }
            None => {}
        }
        if self.config.thinks {
            self.outcome.visible.insert(at, signature.tokens);
        }
        Ok(number)
    }

    fn add_transformation(&mut self, place: Place, reason: DropReason, allowed: bool) {
        let transformation = Transformation { place, id: None, reason, allowed };
        self.outcome.transformations.push(transformation);
    }

    fn unreadable_reason(&self, signature: &IssuedSignature) -> Option<DropReason> {
        // The model check and the account check (`docs/protocols.md` 1.5.1, 1.5.2).
        match () {
            () if !self.model.reads(&signature.model) => Some(DropReason::Model),
            () if self.model.account_bound && Some(signature.account) != self.request.account => {
                Some(DropReason::Account)
            }
            () => None,
        }
    }

    /// The prefix check (`docs/protocols.md` 1.5.3): everything before, and the order of the thinking
    /// before. Returns what the error says of the cause.
    fn prefix_mismatch(&self, signature: &IssuedSignature) -> Option<&'static str> {
        let prefix = Prefix { messages: self.outcome.chain, ..self.prefix };
        let in_order = self.outcome.last_signature.is_none()
            || self.outcome.last_signature == signature.previous;
        match () {
            () if !self.model.binding || prefix == signature.prefix && in_order => None,
            () if prefix.system != signature.prefix.system => {
                Some(" The `system` prompt differs from the one this block was created with.")
            }
            () if prefix.tools != signature.prefix.tools => {
                Some(" The `tools` list differs from the one this block was created with.")
            }
            () => Some(""),
        }
    }

    fn check_run(
        &self,
        at: usize,
        number: usize,
        signature: &IssuedSignature,
    ) -> Result<(), ApiError> {
        // Consecutive thinking blocks stay the full original run (`docs/protocols.md` 1.5).
        let block = &self.blocks[at];
        let offset = number - signature.run.first;
        let is_beside = |away: isize, expected: usize| {
            let other = at.checked_add_signed(away).and_then(|at| self.blocks.get(at));
            let other = other.filter(|other| other.message == block.message && other.is_thinking());
            let signature = other
                .and_then(|other| self.store.find_signature(DIALECT, text(signature_field(other))));
            signature.is_some_and(|(number, _)| number == expected)
        };
        let complete = (offset == 0 || is_beside(-1, number - 1))
            && (offset + 1 == signature.run.length || is_beside(1, number + 1));
        match complete {
            true => Ok(()),
            false if self.latest == Some(block.message) => self.refuse_modified(block),
            false => refuse(Rule::RunIncomplete, format!("{}: {INVALID}", block.path())),
        }
    }

    /// Refuses a block that was edited, or that was not issued here.
    fn refuse_modified<T>(&self, block: &Block<'_>) -> Result<T, ApiError> {
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

    fn refuse_bound<T>(
        &self,
        block: &Block<'_>,
        signature: &IssuedSignature,
    ) -> Result<T, ApiError> {
        // The error of `docs/protocols.md` 1.5.5.
        let mut message = format!(
            "{}: {INVALID}. The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\".",
            block.path()
        );
        if !self.has_beta {
            message += " That setting requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` header.";
        }
        // `last_signature` is this block by now; the order before it was checked already.
        message += self.prefix_mismatch(signature).unwrap_or_default();
        refuse(Rule::BoundElsewhere, message)
    }

    fn check_reply(
        &mut self,
        message: &AssistantMessage,
        signatures: &[usize],
    ) -> Result<(), ApiError> {
        // Checks a whole assistant message: the latest one keeps all its thinking or none; what an earlier one
        // lost is reported.
        let first_signature = signatures.first().and_then(|number| self.store.signature(*number));
        let Some(number) =
            first_signature.map(|found| found.reply).or_else(|| self.find_reply(message))
        else {
            return Ok(());
        };
        self.outcome.parent = Some(number);
        let Some(issued) = self.store.reply(number) else { return Ok(()) };
        let first_block = &self.blocks[message.blocks.start];
        if self.latest == Some(message.index)
            && !signatures.is_empty()
            && signatures != issued.signatures
        {
            return refuse(
                Rule::LatestThinkingModified,
                format!("{}: {MODIFIED}", first_block.path()),
            );
        }
        let absent = issued.signatures.iter().find(|number| !signatures.contains(number));
        let Some(signature) = absent.and_then(|number| self.store.signature(*number)) else {
            return Ok(());
        };
        let is_expected = match self.config.keep {
            KeptThinking::All => true,
            KeptThinking::CurrentLoop | KeptThinking::Turns(_) => {
                message.blocks.start >= self.current
            }
        };
        // What is not read anyway is no loss.
        if !self.config.thinks || !is_expected {
            return Ok(());
        }
        let prefix = message
            .chains
            .get(signature.blocks_before)
            .map(|chain| Prefix { messages: *chain, ..self.prefix });
        let in_order =
            message.last_signature.is_none() || message.last_signature == signature.previous;
        let is_readable = !self.model.binding || prefix == Some(signature.prefix) && in_order;
        self.outcome.losses.push(Loss::ReasoningAbsent {
            place: first_block.place(),
            issued: issued.signatures.len(),
            present: signatures.len(),
            readable: is_readable && self.unreadable_reason(signature).is_none(),
        });
        Ok(())
    }

    /// Number of the issued reply that a message is, by its tool ids or its text.
    fn find_reply(&self, message: &AssistantMessage) -> Option<usize> {
        let blocks = &self.blocks[message.blocks.clone()];
        let mut calls = blocks.iter().filter(|block| block.kind == "tool_use");
        calls.find_map(|call| self.store.find_reply(DIALECT, "id", text(call.field("id")))).or_else(
            || {
                let text_blocks = blocks.iter().filter(|block| block.kind == "text");
                let content = &self.request.body["messages"][message.index]["content"];
                let full_text: String = match content.as_str() {
                    Some(content) => content.to_owned(),
                    None => text_blocks.map(|block| text(block.field("text"))).collect(),
                };
                self.store.find_reply(DIALECT, "text", &full_text)
            },
        )
    }

    fn check_open_loop(&self) -> Result<(), ApiError> {
        // Manual mode: an open tool loop starts with thinking (`docs/protocols.md` 1.2), unless it was issued
        // without.
        let open = self.blocks.last().is_some_and(|block| block.kind == "tool_result");
        let is_reply = |block: &&Block<'_>| block.role == "assistant" && block.kind != "compaction";
        let first = self.blocks[self.current..].iter().find(is_reply);
        let Some(first) =
            first.filter(|block| self.config.mandatory && open && !block.is_thinking())
        else {
            return Ok(());
        };
        let mut blocks = self.blocks.iter().filter(|block| block.message == first.message);
        let call = blocks
            .find_map(|block| self.store.find_reply(DIALECT, "id", block.field("id").as_str()?));
        let issued = call.and_then(|number| self.store.reply(number));
        if issued.is_some_and(|issued| issued.signatures.is_empty()) {
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

    /// Removes the thinking that this model, or the request, does not keep.
    fn clear_thinking(&mut self) {
        let turns = turns(self.blocks);
        let has_thinking =
            |range: &Range<usize>| range.clone().any(|at| self.outcome.visible.contains_key(&at));
        let turns_with_thinking: Vec<Range<usize>> = turns
            .iter()
            .map(|turn| turn.blocks.clone())
            .filter(|range| has_thinking(range))
            .collect();
        let first_kept = match self.config.keep {
            KeptThinking::All => 0,
            KeptThinking::CurrentLoop => self.current,
            KeptThinking::Turns(keep) => {
                let first_kept = turns_with_thinking.len().saturating_sub(keep);
                let cleared = &turns_with_thinking[..first_kept];
                let tokens = cleared.iter().cloned().flatten();
                let tokens = tokens
                    .filter_map(|at| self.outcome.visible(at))
                    .map(|t| t + PIECE_OVERHEAD_TOKENS);
                self.outcome.cleared = ClearedThinking { turns: first_kept, tokens: tokens.sum() };
                turns_with_thinking.get(first_kept).map_or(self.blocks.len(), |range| range.start)
            }
        };
        let (kept, removed) = self.outcome.visible.drain().partition(|(at, _)| *at >= first_kept);
        self.outcome.visible = kept;
        let removed: HashMap<usize, u64> = removed;
        self.outcome.not_kept = removed.keys().map(|at| self.blocks[*at].place()).collect();
    }
}

const INVALID: &str = "Invalid `signature` in `thinking` block";
const MODIFIED: &str = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.";
