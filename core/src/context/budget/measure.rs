//! Our own estimate: what each part of a request costs, and the sum on top of an anchor.
//!
//! A part that the anchor's request or reply has keeps the count it had there, so that it cancels out; the
//! others are counted. The parts become the request's sketch.

mod inserted;

use foldhash::HashSet;
use xxhash_rust::xxh3::xxh3_64;

use super::anchor::{Anchor, cache_blocks, evidence_of, sum, uncounted};
use super::classic::ClassicEstimate;
use super::known::KnownCosts;
use super::recounted::{first_loaded, recounted};
use super::sums::{
    FEW, TokenSums, fit, floored, gone_history, grown, moved, places, reasoning_of, rescaled,
    returned_reasoning, thoughts,
};
use crate::context::plan::{Overlay, RemovedTokens};
use crate::context::records::MessageTokens;
use crate::context::records::SectionTokens;
use crate::context::turn_start::{is_users, last_user_text, turn_start};
use crate::context::{
    Breakdown, Estimate, EstimateMethod, PromptSection, Sketch, SketchPart, Turn,
};
use crate::dialect::models::Model;
use crate::dialect::{Audience, Chain, Conversation, HeldHistory, Part, PartKey, PartKind, Role};
use crate::tokens::learn::{CostPrediction, EstimatorState, NewContent, Observation};
use crate::tokens::retention::ReasoningRetention;
use crate::tokens::{TokenCounter, Tokenizer, unsent::UnsentReasoning};

/// An estimate, and the sketch it was made from, which is stored with its turn.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredEstimate {
    /// What the request will cost.
    pub estimate: Estimate,
    /// The parts that are sent, as the difference from the anchor's sketch.
    pub sketch: Sketch,
    /// The parts that are sent, all of them.
    pub parts: Vec<SketchPart>,
    /// The tokens of the messages, by kind of content.
    pub contents: MessageTokens,
    /// The estimate by the rules of an agent, if they are configured.
    pub classic: Option<ClassicEstimate>,
    /// What is not sent, by the rules of an agent if they decide.
    pub removed: Option<RemovedTokens>,
    /// What can be learned from the reported usage; `None` if the new parts are not known.
    pub seen: Option<Box<Observation>>,
}

/// Estimates the input tokens of `conversation`, read from `body`, for `model`, with the changes in `sent`.
/// `tokenizer` is that of the model's family; `learned` is what is known about the model behind this
/// upstream.
pub fn measure(
    conversation: &Conversation,
    body: &[u8],
    sent: &Overlay,
    model: &Model,
    anchor: Option<Anchor<'_>>,
    tokenizer: Tokenizer,
    learned: &EstimatorState,
) -> MeasuredEstimate {
    let anchor = anchor.filter(|anchor| anchor.turn.context().is_some());
    // Token counts of another family's tokenizer cannot be used for single parts.
    let stored = anchor.filter(|anchor| anchor.turn.family == model.family);
    let recount =
        stored.and_then(|anchor| recounted(conversation, body, model, tokenizer, anchor.sketch));
    let same = stored
        .map(|anchor| Anchor { sketch: recount.as_deref().unwrap_or(anchor.sketch), ..anchor });
    let mut scale = PartScale::new(conversation, body, sent, model, same, tokenizer);
    let parts = match (&conversation.held, same) {
        (Some(held), Some(anchor)) => scale.weigh_held(held, &anchor),
        _ => scale.weigh(),
    };
    let clears_past = sent.clears_past().or(conversation.clears_past);
    let history_left = same.map_or(0, |anchor| scale.sent.left(anchor.sketch, is_history));
    let mut observation =
        scale.observation(model, anchor, same, history_left, clears_past, learned);
    let method = scale.method();
    let evidence = same.map(|anchor| evidence_of(anchor.turn)).unwrap_or_default();
    // Whether the history changed shows in a first prediction; the range of the second depends on it.
    let draft = learned.guess(&observation, evidence);
    observation.is_changed = same.is_some_and(|anchor| {
        scale.is_changed(&anchor, &draft, observation.counted[draft.retention as usize])
    });
    let predicted = match observation.is_changed {
        true => learned.guess(&observation, evidence),
        false => draft,
    };
    let guess = match (method, same) {
        (EstimateMethod::Anchored, Some(anchor)) if clears_past.is_none() => {
            let head_left = scale.sent.left(anchor.sketch, is_head);
            floored(predicted, &anchor, &scale.sums, head_left)
        }
        _ => predicted,
    };
    let low = match scale.may_lose_findings() {
        true => guess.low.min(scale.sums.read(guess.retention)),
        false => guess.low,
    };
    let uncounted = same.map_or(0, |anchor| uncounted(anchor.turn));
    let guess = CostPrediction { low, uncounted, ..guess };
    let tokens = guess.tokens;
    let retention = guess.retention;
    let counted = observation.counted[retention as usize];
    let added = scale.added(retention);
    let (new, gone) = same.map_or((tokens, 0), |anchor| moved(&anchor, counted, tokens, added));
    let mut parts_of = Breakdown { sections: scale.sections, ..places(&parts, retention) };
    parts_of.reasoning += observation.unsent.input();
    let estimate = Estimate {
        tokens,
        method,
        counting: observation.counting,
        new,
        gone,
        gone_history: same.map_or(0, |anchor| gone_history(&anchor, retention, history_left)),
        encrypted_compaction: scale.counter.guesses_compaction(),
        breakdown: fit(parts_of, tokens),
        guess,
    };
    let is_instructive = scale.is_instructive(&estimate, anchor, same);
    MeasuredEstimate {
        estimate,
        // The stored sketch, not the recount: the difference must apply to what the ledger has.
        sketch: difference(stored, &parts),
        parts,
        contents: scale.contents,
        classic: None,
        removed: None,
        seen: if is_instructive { Some(observation.into()) } else { None },
    }
}

/// Assigns tokens to the parts of one request: known parts keep their earlier count, others are counted.
struct PartScale<'a> {
    conversation: &'a Conversation,
    body: &'a [u8],
    /// What is sent in place of what the client sent.
    now: &'a Overlay,
    counter: TokenCounter<'a>,
    /// The parts of the anchor's request.
    sent: KnownCosts,
    /// The parts of the anchor's reply.
    brought: KnownCosts,
    /// Whether there is an anchor.
    grows: bool,
    /// Tokens of the last reply's reasoning, and in how many pieces it is sent back, less the pieces already
    /// found. Without an anchor, and if that reply showed none, each piece is counted.
    reasoning_left: Option<(u64, u64)>,
    /// Tokens of the last reply's reasoning as reported, if none of it is sent back.
    unsent: u64,
    /// The message that begins the user's last turn: reasoning before it is old.
    turn_start: usize,
    /// The message with the user's last text: reasoning before it, but in the same turn, is steered.
    last_user_text: usize,
    sums: TokenSums,
    /// The sections that are known within tools and messages.
    sections: SectionTokens,
    /// The tokens of the messages, by kind of content.
    contents: MessageTokens,
    /// There are messages of the model that are not in the anchor's reply: a turn in between is unknown.
    is_poor: bool,
    /// The history begins with a summary that the anchor's history did not have.
    compacts: bool,
    new_content: NewContent,
    /// The last new tool result.
    last_result: Option<&'a Part>,
}

impl<'a> PartScale<'a> {
    fn new(
        conversation: &'a Conversation,
        body: &'a [u8],
        now: &'a Overlay,
        model: &Model,
        anchor: Option<Anchor<'_>>,
        tokenizer: Tokenizer,
    ) -> Self {
        let mut scale = Self {
            conversation,
            body,
            now,
            counter: tokenizer.counter(conversation, body, model),
            sent: KnownCosts::default(),
            brought: KnownCosts::default(),
            grows: anchor.is_some(),
            reasoning_left: None,
            unsent: 0,
            turn_start: turn_start(conversation),
            last_user_text: last_user_text(conversation),
            sums: TokenSums::default(),
            sections: SectionTokens::default(),
            contents: MessageTokens::default(),
            is_poor: false,
            compacts: false,
            new_content: NewContent::default(),
            last_result: None,
        };
        if let Some(anchor) = anchor {
            scale.sent = KnownCosts::from_parts(anchor.sketch);
            scale.brought = KnownCosts::of_reply(anchor.turn);
            let parts = conversation.parts().filter(|part| !now.is_gone(part.span));
            let thoughts = parts.filter_map(|part| scale.thoughts(part)).chain(now.all_back());
            // Most requests have no reasoning that could be among the anchor's parts.
            let mut costs = None;
            let mut pieces = 0;
            for key in thoughts {
                let costs = costs.get_or_insert_with(|| KnownCosts::from_parts(anchor.sketch));
                pieces += u64::from(costs.take(key).is_none());
            }
            // Reasoning that was only billed is in none of the pieces: they are of other replies.
            let is_hidden = anchor.turn.carry.as_ref().is_some_and(|carry| carry.hidden);
            if !is_hidden {
                scale.reasoning_left = Some((returned_reasoning(anchor.turn), pieces));
            }
            if (pieces == 0 || is_hidden) && conversation.held.is_none() {
                scale.unsent = reasoning_of(anchor.turn);
            }
        }
        scale
    }

    fn weigh(&mut self) -> Vec<SketchPart> {
        let mut parts = Vec::with_capacity(self.conversation.parts().count() + 16);
        self.head(&mut parts);
        self.new_content.headed = sum(&parts);
        self.history(&mut parts);
        // What changes with each request comes last, so that the stored difference is small.
        self.tail(&mut parts);
        parts
    }

    fn weigh_held(&mut self, held: &HeldHistory, anchor: &Anchor<'_>) -> Vec<SketchPart> {
        let mut parts = Vec::with_capacity(anchor.sketch.len() + 16);
        // Instructions and tools are sent with each request (`docs/protocols.md` 3).
        self.head(&mut parts);
        if is_after(held, anchor.turn) || !self.repeats(anchor.turn) {
            self.held(anchor, &mut parts);
        } else {
            // The anchor's history is sent again, after a warm-up that may hold what came before it.
            let sent_keys: HashSet<PartKey> = parts.iter().map(|part| part.key).collect();
            let items = anchor.sketch.iter().filter(|part| is_item(part.place));
            parts.extend(items.filter(|part| !sent_keys.contains(&part.key)));
            self.sums = TokenSums { new: self.sums.new, ..TokenSums::from_parts(&parts) };
        }
        self.history(&mut parts);
        self.tail(&mut parts);
        parts
    }

    fn method(&self) -> EstimateMethod {
        match &self.conversation.held {
            Some(_) => EstimateMethod::Held,
            None if self.grows && self.compacts => EstimateMethod::Compacted,
            None if self.grows => EstimateMethod::Anchored,
            None => EstimateMethod::Estimated,
        }
    }

    fn repeats(&self, turn: &Turn) -> bool {
        let mut keys = self.conversation.parts().filter_map(|part| part.key);
        keys.any(|key| turn.has_in_reply(key))
    }

    /// The anchor's history and reply, to which this request adds.
    fn held(&mut self, anchor: &Anchor<'_>, parts: &mut Vec<SketchPart>) {
        let history = anchor.sketch.iter().filter(|part| !is_head(part.place));
        parts.extend(history.chain(&anchor.turn.reply));
        let contents = anchor.turn.carry.as_ref().map(|carry| carry.contents.clone());
        self.contents = contents.unwrap_or_default();
        let reasoning = u32::try_from(returned_reasoning(anchor.turn)).unwrap_or(u32::MAX);
        if reasoning > 0 {
            let key = PartKey::of_bytes(anchor.turn.exchange.as_str().as_bytes());
            parts.push(SketchPart {
                key,
                tokens: reasoning,
                place: PromptSection::Reasoning,
                by_length: false,
            });
        }
        // A user's message ends the turn that the reasoning belongs to.
        if self.conversation.messages.iter().any(is_users) {
            for part in parts.iter_mut() {
                if matches!(part.place, PromptSection::Reasoning | PromptSection::SteeredReasoning)
                {
                    part.place = PromptSection::OldReasoning;
                }
            }
        }
        self.sums = TokenSums { new: self.sums.new, ..TokenSums::from_parts(&*parts) };
        // All of it is counted now: a part of this request that is equal to one of them is another one.
        self.sent = KnownCosts::default();
        self.brought = KnownCosts::default();
    }

    fn head(&mut self, parts: &mut Vec<SketchPart>) {
        let conversation = self.conversation;
        let loaded = first_loaded(conversation);
        for (index, tool) in conversation.tools.iter().enumerate() {
            // Its definition is not in the prompt until it is loaded.
            if tool.audience == Audience::Nobody {
                self.contents.defers(tool.name.as_deref());
                continue;
            }
            let extra = if loaded == Some(index) { self.counter.structure.loading } else { 0 };
            let place =
                if tool.in_history { PromptSection::ToolsItem } else { PromptSection::Tools };
            parts.push(self.weighed(tool, place, extra));
        }
        self.instructions(parts);
        for part in conversation.system.iter().filter(|part| part.key.is_some()) {
            let place =
                if part.in_history { PromptSection::SystemItem } else { PromptSection::System };
            parts.push(self.part(part, place));
        }
    }

    fn history(&mut self, parts: &mut Vec<SketchPart>) {
        let conversation = self.conversation;
        parts.extend(self.now.summary().map(|(key, counted)| self.summary(key, counted)));
        for (index, message) in conversation.messages.iter().enumerate() {
            let place = match index {
                _ if index >= self.last_user_text => PromptSection::Reasoning,
                _ if index >= self.turn_start => PromptSection::SteeredReasoning,
                _ => PromptSection::OldReasoning,
            };
            for part in &message.parts {
                self.put_back(part.span.start, place, parts);
                if self.now.is_gone(part.span) {
                    continue;
                }
                if part.kind != PartKind::Reasoning {
                    parts.push(self.part(part, PromptSection::History));
                }
                if let Some(key) = self.thoughts(part) {
                    parts.push(self.reasoning(Some(part), key, place));
                }
                self.injected(part.span, parts);
            }
            self.put_back(message.span.end, place, parts);
        }
    }

    /// What changes with each request, and the structure around the new parts.
    fn tail(&mut self, parts: &mut Vec<SketchPart>) {
        let conversation = self.conversation;
        for part in conversation.system.iter().filter(|part| part.key.is_none()) {
            parts.push(self.part(part, PromptSection::System));
        }
        if self.grows {
            let structure = self.counter.growing(self.new_content.results) + self.forced_call();
            let read = self.counter.read;
            // In non-streamed Gemini requests, results are read as JSON whatever the reasoning retention. In
            // streamed ones, they are only if reasoning is read.
            if conversation.stream {
                self.sums.around = structure;
                self.sums.around_read = read;
            } else {
                self.sums.around = structure.saturating_add_unsigned(read);
            }
            self.sums.new = self.sums.new.saturating_add_signed(self.sums.around);
        } else {
            self.sums.around = self.counter.structure.prompt as i64;
        }
    }

    /// What a prediction is made from, and later learned from. `same`: the anchor if its parts were counted with this
    /// tokenizer. `history_left`: tokens of its history that this request has not.
    fn observation(
        &self,
        model: &Model,
        anchor: Option<Anchor<'_>>,
        same: Option<Anchor<'_>>,
        history_left: u64,
        clears_past: Option<u64>,
        learned: &EstimatorState,
    ) -> Observation {
        let streams = self.conversation.stream;
        let unsent = UnsentReasoning {
            tokens: if self.compacts { 0 } else { self.unsent },
            counted: learned.counts_unsent(streams),
        };
        let counted = self.sums.by_retention().map(|(retention, all)| match (same, anchor) {
            (Some(anchor), _) => {
                let new = self.added(retention);
                grown(&anchor, retention, all, new, history_left, clears_past)
                    .saturating_add(unsent.input())
            }
            (None, Some(anchor)) => rescaled(&anchor, all, clears_past),
            (None, None) => all,
        });
        let cache = anchor.and_then(|anchor| cache_blocks(anchor.turn));
        Observation {
            counted,
            belief: ReasoningRetention::prior(model, streams, cache),
            new_content: self.new_content(anchor),
            counting: self.counter.counting,
            streams,
            cache,
            is_changed: false,
            unsent,
        }
    }

    /// Whether the error of this estimate says something.
    fn is_instructive(
        &self,
        estimate: &Estimate,
        anchor: Option<Anchor<'_>>,
        same: Option<Anchor<'_>>,
    ) -> bool {
        // It does not in four cases: the anchor was counted by another family's tokenizer, the provider holds
        // the history, a summary was just inserted, or a part can only be read by the provider.
        matches!(estimate.method, EstimateMethod::Anchored | EstimateMethod::Estimated)
            && !estimate.encrypted_compaction
            && same.is_some() == anchor.is_some()
    }

    /// Whether more than reasoning was removed, or the model's messages include some that no known reply
    /// contained: an error of the estimate says nothing about the new parts then.
    fn is_changed(&self, anchor: &Anchor<'_>, guess: &CostPrediction, counted: u64) -> bool {
        let (_, gone) = moved(anchor, counted, guess.tokens, self.added(guess.retention));
        self.is_poor || gone > thoughts(anchor) + FEW
    }

    /// Tokens of the new parts, as a model with this retention reads them.
    fn added(&self, retention: ReasoningRetention) -> u64 {
        match retention {
            ReasoningRetention::Drops => self.sums.new,
            _ => self.sums.new.saturating_add(self.sums.around_read),
        }
    }

    fn new_content(&self, anchor: Option<Anchor<'_>>) -> NewContent {
        let mut content = self.new_content.clone();
        content.tally = self.counter.tally;
        content.tokens = self.sums.new;
        content.text_tokens = self.counter.worded;
        content.guessed = self.counter.guessed;
        // The error is a tool's own only if a single result of it is all that is new.
        if (content.results, content.texts, content.calls, content.media) == (1, 0, 0, 0) {
            let tool = self.last_result.and_then(|result| self.counter.tool_of(result));
            content.tool = tool.map(|name| xxh3_64(name.as_bytes()));
        }
        if anchor.is_none() {
            content.head = Some(head_of(self.conversation, self.body));
        }
        content
    }

    fn part(&mut self, part: &'a Part, place: PromptSection) -> SketchPart {
        self.weighed(part, place, 0)
    }

    fn weighed(&mut self, part: &'a Part, place: PromptSection, extra: u32) -> SketchPart {
        let replaced = self.now.replaced(part.span);
        let key = match replaced {
            Some((key, _)) => key,
            None => part.key.unwrap_or_else(|| PartKey::of_bytes(part.span.slice(self.body))),
        };
        // Taken even if it costs nothing, so that what is left over at the end is what was removed.
        let earlier = self.sent.take(key).or_else(|| self.brought.take(key));
        if part.audience != Audience::Model {
            return SketchPart { key, tokens: 0, place, by_length: false };
        }
        let (tokens, by_length) = match (earlier, replaced) {
            (Some(tokens), _) => (tokens, self.sent.is_by_length(key)),
            (None, Some((_, tokens))) => (tokens, false),
            (None, None) => {
                // A repeated part keeps the count of the earlier one, but is new all the same.
                let counted = self.counter.part(part).saturating_add(extra);
                let tokens = self.sent.tokens(key).unwrap_or(counted);
                self.sums.new += u64::from(tokens);
                self.came(part, tokens);
                (tokens, self.counter.is_by_length(part))
            }
        };
        self.sections.add(part, self.body, tokens);
        self.holds(part, place, tokens);
        let sketched = SketchPart { key, tokens, place, by_length };
        self.sums.add(&sketched);
        sketched
    }

    fn holds(&mut self, part: &Part, place: PromptSection, tokens: u32) {
        if place == PromptSection::History {
            self.contents.add(part, self.counter.tool_of(part), u64::from(tokens));
        }
    }

    fn came(&mut self, part: &'a Part, tokens: u32) {
        self.is_poor |= self.grows && part.role == Role::Assistant;
        let content = &mut self.new_content;
        match part.kind {
            PartKind::ToolResult => {
                content.results += 1;
                self.last_result = Some(part);
            }
            PartKind::Text => content.texts += 1,
            PartKind::ToolCall => content.calls += 1,
            PartKind::Image | PartKind::Document => {
                content.media = content.media.saturating_add(tokens);
            }
            PartKind::Tool | PartKind::Reasoning | PartKind::Opaque => {}
        }
    }

    fn put_back(&mut self, at: usize, place: PromptSection, parts: &mut Vec<SketchPart>) {
        for key in self.now.back(at) {
            parts.push(self.reasoning(None, *key, place));
        }
    }

    /// A reasoning part, with the tokens that it costs if it is read.
    fn reasoning(&mut self, part: Option<&Part>, key: PartKey, place: PromptSection) -> SketchPart {
        // A client may send one signature several times: each one takes the tokens of its own place.
        let earlier = self.sent.take(key).or_else(|| self.reasoning_piece());
        let part = part.filter(|part| part.kind == PartKind::Reasoning);
        let (tokens, by_length) = match (earlier, part) {
            (Some(tokens), _) => (tokens, self.sent.is_by_length(key)),
            (None, Some(part)) => (self.counter.part(part), self.counter.is_by_length(part)),
            // How much reasoning a signature on another part stands for is unknown.
            (None, None) => (0, false),
        };
        let sketched = SketchPart { key, tokens, place, by_length };
        self.sums.add(&sketched);
        sketched
    }

    fn reasoning_piece(&mut self) -> Option<u32> {
        let (left, pieces) = self.reasoning_left.as_mut()?;
        // Split evenly: how much of it is in which piece is not reported.
        let piece = left.checked_div(*pieces).unwrap_or(0);
        *left -= piece;
        *pieces = pieces.saturating_sub(1);
        Some(u32::try_from(piece).unwrap_or(u32::MAX))
    }

    fn thoughts(&self, part: &Part) -> Option<PartKey> {
        match part.kind {
            PartKind::Reasoning => part.reasoning_key.map(PartKey),
            // Gemini: the signature on another part stands for the reasoning.
            _ => part.signature_key,
        }
    }
}

fn head_of(conversation: &Conversation, body: &[u8]) -> u128 {
    let parts = conversation.system.iter().filter(|part| part.key.is_some());
    let keys = parts.chain(&conversation.tools).flat_map(|part| {
        let key = part.key.unwrap_or_else(|| PartKey::of_bytes(part.span.slice(body)));
        // A tool that is not loaded costs something else: twice its key is another digest.
        let times = if part.audience == Audience::Nobody { 2 } else { 1 };
        std::iter::repeat_n(key, times)
    });
    keys.fold(Chain::START, Chain::then).0
}

fn is_history(place: PromptSection) -> bool {
    place == PromptSection::History
}

fn is_head(place: PromptSection) -> bool {
    // Tools include a response schema.
    matches!(place, PromptSection::System | PromptSection::Tools)
}

fn is_item(place: PromptSection) -> bool {
    matches!(place, PromptSection::SystemItem | PromptSection::ToolsItem)
}

fn is_after(held: &HeldHistory, turn: &Turn) -> bool {
    matches!(held, HeldHistory::After(id) if turn.response.as_ref() == Some(id))
}

/// A sketch, stored as the difference from the anchor's.
fn difference(anchor: Option<Anchor<'_>>, parts: &[SketchPart]) -> Sketch {
    let Some(anchor) = anchor else {
        return Sketch { base: None, kept: 0, added: parts.to_vec() };
    };
    // What changes with each request comes last, so the equal beginning is nearly all of it.
    let prefix = anchor.sketch.iter().zip(parts).take_while(|(a, b)| a == b).count();
    let added = parts[prefix..].to_vec();
    Sketch { base: Some(anchor.turn.exchange.clone()), kept: prefix as u32, added }
}

#[cfg(test)]
mod rewritten_tests;
#[cfg(test)]
mod tests;
