//! The budget: what the next call will cost, where it goes, how much is left (design §6.1).
//!
//! One truth: the number on the context page, in the metrics and in every decision is made here.
//! `estimate = anchor's actual input + its reply + Σ parts added − Σ parts removed`; without an
//! anchor the sum over all parts, and it says so. Breakdowns always sum to their total. Pure.

mod classic;
mod sections;
mod view;

pub use classic::{Classic, classic};
pub use sections::Sections;
pub use view::{Basis, Rewriting, View, grouped};

use std::collections::{HashMap, HashSet};

use super::plan::Sent;
use super::{Breakdown, Estimate, Method, Place, Sketch, Sketched, Turn};
use crate::dialect::models::{Family, Model};
use crate::dialect::{Conversation, Held, Message, Part, PartKey, PartKind, Reply, Role};
use crate::tokens::{Counter, Tokenizer};

/// The turn that a request grew from, and everything its request consisted of
/// (`Ledger::anchor_at`, `Ledger::sketch`).
#[derive(Clone, Copy, Debug)]
pub struct Anchor<'a> {
    /// The turn; its usage must be known.
    pub turn: &'a Turn,
    /// Its full sketch.
    pub sketch: &'a [Sketched],
}

/// An estimate, and the sketch it was made of, which its turn keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What the call will cost.
    pub estimate: Estimate,
    /// What is sent, part by part, as the difference from the anchor's.
    pub sketch: Sketch,
    /// What is sent, part by part, whole.
    pub parts: Vec<Sketched>,
    /// What an agent's rules say, where they are asked.
    pub classic: Option<Classic>,
}

/// Estimates what `conversation`, read from `body`, will cost as input of `model`, `sent` as the plan
/// says. `tokenizer`: of the model's family.
pub fn measure(
    conversation: &Conversation,
    body: &[u8],
    sent: &Sent,
    model: &Model,
    anchor: Option<Anchor<'_>>,
    tokenizer: Tokenizer,
) -> Measured {
    let anchor = anchor.filter(|anchor| anchor.turn.usage.context().is_some());
    // Tokens of another family's tokenizer say nothing about single parts.
    let same = anchor.filter(|anchor| anchor.turn.family == model.family);
    let mut scale = Scale::new(conversation, body, sent, model, same, tokenizer);
    let parts = match (&conversation.held, same) {
        (Some(held), Some(anchor)) => scale.weigh_held(held, &anchor),
        _ => scale.weigh(),
    };
    let Sums { all, new } = scale.sums;
    let clears_past = sent.clears_past().or(conversation.clears_past);
    let (tokens, new, gone) = match (same, anchor) {
        (Some(anchor), _) => grown(&anchor, all, new, clears_past),
        (None, Some(anchor)) => {
            let tokens = rescaled(&anchor, all, clears_past);
            (tokens, tokens, 0)
        }
        (None, None) => (all, all, 0),
    };
    let compacts = scale.compacts;
    let method = match (&conversation.held, same) {
        (Some(_), _) => Method::Held,
        (None, Some(_)) if compacts => Method::Compacted,
        (None, Some(_)) => Method::Anchored,
        (None, None) => Method::Estimated,
    };
    let counting = scale.counter.counting();
    let parts_of = Breakdown { sections: scale.sections, ..places(&parts) };
    let breakdown = fit(parts_of, tokens);
    let estimate = Estimate { tokens, method, counting, new, gone, breakdown };
    Measured { estimate, sketch: difference(same, &parts), parts, classic: None }
}

/// What each keyed part of a reply will cost when the client sends it back: the reported output
/// less its reasoning, shared among them. Kept as [`Turn::reply`].
pub fn reply(reply: &Reply, tokenizer: Tokenizer) -> Vec<Sketched> {
    let mut counter = tokenizer.reply();
    let keyed = reply.runs().map(|(key, run)| {
        let tokens = run.iter().fold(0, |sum: u32, part| sum.saturating_add(counter.said(part)));
        Sketched { key, tokens, place: Place::History }
    });
    let mut parts: Vec<Sketched> = keyed.collect();
    if let Some(context) = reply.usage.context() {
        let thoughts = reply.parts.iter().filter(|part| part.kind == PartKind::Reasoning).count();
        let reasoned = thoughts > 0;
        let marks = match tokenizer.family {
            Family::O200k => 2 * thoughts as u64, // what stands around each (`estimator.md` §2)
            _ => 0,
        };
        let visible = match reply.usage.reasoning {
            Some(reasoning) => context.output.saturating_sub(reasoning).saturating_sub(marks),
            // Not told apart, as older Claude does: what the words do not explain is thinking.
            None if reasoned => sum(&parts).min(context.output),
            None => context.output,
        };
        share(&mut parts, visible);
    }
    parts
}

/// Gives the parts `total` together, each in proportion to what it was.
fn share(parts: &mut [Sketched], total: u64) {
    let weights: u64 = parts.iter().map(|part| u64::from(part.tokens).max(1)).sum();
    let (mut left, last) = (total, parts.len());
    for (index, part) in parts.iter_mut().enumerate() {
        let weight = u128::from(part.tokens.max(1));
        let fair = (weight * u128::from(total) / u128::from(weights.max(1))) as u64;
        let given = if index + 1 == last { left } else { fair.min(left) };
        part.tokens = u32::try_from(given).unwrap_or(u32::MAX);
        left -= given;
    }
}

/// Weighs the parts of one request: what is known costs what it cost, the rest is counted.
struct Scale<'a> {
    conversation: &'a Conversation,
    body: &'a [u8],
    /// What is sent now in place of what came.
    now: &'a Sent,
    counter: Counter<'a>,
    /// What was sent before.
    sent: Known,
    /// What the last reply brought.
    brought: Known,
    /// Whether there is a turn to grow from.
    grows: bool,
    /// Tokens of each piece of the last reply's reasoning, if it is sent back; without an anchor
    /// each piece is counted.
    reasoning_each: Option<u32>,
    /// The message with which the person's last turn begins: reasoning before it is old.
    turn_began: usize,
    /// Whether old reasoning is read, too.
    keeps_reasoning: bool,
    /// Whether any is read.
    reads_reasoning: bool,
    sums: Sums,
    /// What can be told apart within.
    sections: Sections,
    brings_results: bool,
    /// A summary begins the history that the anchor's did not begin with.
    compacts: bool,
}

/// Sums of parts, tokens.
#[derive(Clone, Copy, Default)]
struct Sums {
    all: u64,
    /// Of those that neither the anchor's request nor its reply held.
    new: u64,
}

impl<'a> Scale<'a> {
    fn new(
        conversation: &'a Conversation,
        body: &'a [u8],
        now: &'a Sent,
        model: &Model,
        anchor: Option<Anchor<'_>>,
        tokenizer: Tokenizer,
    ) -> Self {
        let mut scale = Self {
            conversation,
            body,
            now,
            counter: tokenizer.counter(conversation, body, model),
            sent: Known::default(),
            brought: Known::default(),
            grows: anchor.is_some(),
            reasoning_each: None,
            turn_began: conversation.messages.iter().rposition(is_persons).unwrap_or(0),
            keeps_reasoning: model.keeps_reasoning,
            reads_reasoning: model.reads_reasoning,
            sums: Sums::default(),
            sections: Sections::default(),
            brings_results: false,
            compacts: false,
        };
        if let Some(anchor) = anchor {
            scale.sent = Known::of(anchor.sketch);
            scale.brought = Known::of(&anchor.turn.reply);
            let sent = conversation.parts().filter(|part| !now.is_gone(part.span));
            let news = sent.filter_map(|part| scale.thoughts(part)).chain(now.all_back());
            let news = news.filter(|key| scale.sent.tokens(*key).is_none()).count() as u64;
            let reasoning = reasoning_of(anchor.turn).checked_div(news).unwrap_or(0);
            scale.reasoning_each = Some(u32::try_from(reasoning).unwrap_or(u32::MAX));
        }
        scale
    }

    /// Every part in the order of its sketch: what changes with each call comes last.
    fn weigh(&mut self) -> Vec<Sketched> {
        let mut parts = Vec::with_capacity(self.conversation.parts().count() + 16);
        self.head(&mut parts);
        self.history(&mut parts);
        self.tail(&mut parts);
        parts
    }

    /// Where the provider holds the history. Instructions and tools are sent with each request
    /// (`providers.md` §3).
    fn weigh_held(&mut self, held: &Held, anchor: &Anchor<'_>) -> Vec<Sketched> {
        let mut parts = Vec::with_capacity(anchor.sketch.len() + 16);
        self.head(&mut parts);
        if is_after(held, anchor.turn) || !self.repeats(anchor.turn) {
            self.held(anchor, &mut parts);
        } else {
            // That turn's words come again, after a warm-up that may hold what came before them.
            let again: HashSet<PartKey> = parts.iter().map(|part| part.key).collect();
            let items = anchor.sketch.iter().filter(|part| is_item(part.place));
            parts.extend(items.filter(|part| !again.contains(&part.key)));
            self.sums.all = sum(&parts);
        }
        self.history(&mut parts);
        self.tail(&mut parts);
        parts
    }

    /// Whether something that the turn was answered is sent again.
    fn repeats(&self, turn: &Turn) -> bool {
        let said = |part: &Part| turn.reply.iter().any(|said| part.key == Some(said.key));
        self.conversation.parts().any(said)
    }

    /// The anchor's history and its reply, which this request adds to.
    fn held(&mut self, anchor: &Anchor<'_>, parts: &mut Vec<Sketched>) {
        let stays = |part: &&Sketched| !matches!(part.place, Place::System | Place::Tools);
        let held = anchor.sketch.iter().filter(stays);
        parts.extend(held.chain(&anchor.turn.reply));
        let reasoning = u32::try_from(reasoning_of(anchor.turn)).unwrap_or(u32::MAX);
        if reasoning > 0 {
            let key = PartKey::of_bytes(anchor.turn.request.as_bytes());
            parts.push(Sketched { key, tokens: reasoning, place: Place::Reasoning });
        }
        let is_new_turn = self.conversation.messages.iter().any(is_persons);
        if is_new_turn && !self.keeps_reasoning || !self.reads_reasoning {
            let old = parts.iter_mut().filter(|part| part.place == Place::Reasoning);
            old.for_each(|part| part.tokens = 0);
        }
        self.sums.all = sum(parts);
        (self.sent, self.brought) = <_>::default();
    }

    fn head(&mut self, parts: &mut Vec<Sketched>) {
        let conversation = self.conversation;
        for (index, tool) in conversation.tools.iter().enumerate() {
            let extra = if index == 0 { self.counter.offering() } else { 0 };
            let place = if tool.in_history { Place::ToolsItem } else { Place::Tools };
            parts.push(self.weighed(tool, place, extra));
        }
        for part in conversation.system.iter().filter(|part| part.key.is_some()) {
            let place = if part.in_history { Place::SystemItem } else { Place::System };
            parts.push(self.part(part, place));
        }
    }

    fn history(&mut self, parts: &mut Vec<Sketched>) {
        let conversation = self.conversation;
        parts.extend(self.now.summary().map(|summary| self.summary(summary)));
        for (index, message) in conversation.messages.iter().enumerate() {
            let recent = index >= self.turn_began || self.keeps_reasoning;
            let read = recent && self.reads_reasoning;
            for part in &message.parts {
                self.put_back(part.span.start, read, parts);
                if self.now.is_gone(part.span) {
                    continue;
                }
                if part.kind != PartKind::Reasoning {
                    parts.push(self.part(part, Place::History));
                }
                if let Some(key) = self.thoughts(part) {
                    parts.push(self.reasoning(Some(part), key, read));
                }
            }
            self.put_back(message.span.end, read, parts);
        }
    }

    /// What changes with each call, and what stands around the new parts.
    fn tail(&mut self, parts: &mut Vec<Sketched>) {
        let conversation = self.conversation;
        for part in conversation.system.iter().filter(|part| part.key.is_none()) {
            parts.push(self.part(part, Place::System));
        }
        let growing = self.counter.growing(self.brings_results);
        if self.grows {
            self.sums.new = self.sums.new.saturating_add_signed(growing);
            self.sums.all = self.sums.all.saturating_add_signed(growing);
        } else {
            self.sums.all += self.counter.opening();
        }
    }

    fn part(&mut self, part: &Part, place: Place) -> Sketched {
        self.weighed(part, place, 0)
    }

    /// A part, with what comes along with it where its cost is not known yet.
    fn weighed(&mut self, part: &Part, place: Place, extra: u32) -> Sketched {
        let replaced = self.now.replaced(part.span);
        let own = || part.key.unwrap_or_else(|| PartKey::of_bytes(part.span.of(self.body)));
        let key = replaced.map_or_else(own, |(key, _)| key);
        let known = self.sent.take(key).or_else(|| self.brought.take(key));
        let tokens = match (known, replaced) {
            (Some(tokens), _) => tokens,
            (None, Some((_, tokens))) => tokens,
            (None, None) => {
                // The same words again cost what they cost, and are new all the same.
                let tokens =
                    self.sent.tokens(key).unwrap_or_else(|| self.counter.part(part) + extra);
                self.sums.new += u64::from(tokens);
                self.brings_results |= part.kind == PartKind::ToolResult;
                tokens
            }
        };
        self.sums.all += u64::from(tokens);
        self.sections.add(part, self.body, tokens);
        Sketched { key, tokens, place }
    }

    /// A summary that begins the history.
    fn summary(&mut self, (key, counted): (PartKey, u32)) -> Sketched {
        let known = self.sent.take(key);
        self.compacts = known.is_none();
        let tokens = known.unwrap_or(counted);
        self.sums.new += if known.is_none() { u64::from(tokens) } else { 0 };
        self.sums.all += u64::from(tokens);
        Sketched { key, tokens, place: Place::History }
    }

    /// Reasoning that the plan put back at a place.
    fn put_back(&mut self, at: usize, read: bool, parts: &mut Vec<Sketched>) {
        let now = self.now;
        parts.extend(now.back(at).iter().map(|key| self.reasoning(None, *key, read)));
    }

    fn reasoning(&mut self, part: Option<&Part>, key: PartKey, read: bool) -> Sketched {
        let known = self.sent.tokens(key).or(self.reasoning_each);
        let part = part.filter(|part| part.kind == PartKind::Reasoning);
        let tokens = match (known, part) {
            _ if !read => 0,
            (Some(tokens), _) => tokens,
            (None, Some(part)) => self.counter.part(part),
            // Nothing tells what a signature beside a part stands for.
            (None, None) => 0,
        };
        self.sums.all += u64::from(tokens);
        Sketched { key, tokens, place: Place::Reasoning }
    }

    /// The identity of the reasoning that a part is, or (Gemini) that its signature stands for.
    fn thoughts(&self, part: &Part) -> Option<PartKey> {
        match part.kind {
            PartKind::Reasoning => {
                let text = part.sealed.or_else(|| part.texts.first().copied());
                Some(PartKey::of_bytes(text.unwrap_or(part.span).of(self.body)))
            }
            _ => part.sealed.map(|sealed| PartKey::of_bytes(sealed.of(self.body))),
        }
    }
}

/// Parts whose cost is known: tokens of each, and how many of its kind are not matched yet.
#[derive(Default)]
struct Known(HashMap<PartKey, (u32, u32)>);

impl Known {
    fn of(parts: &[Sketched]) -> Self {
        let mut known: HashMap<PartKey, (u32, u32)> = HashMap::with_capacity(parts.len());
        for part in parts {
            known.entry(part.key).or_insert((part.tokens, 0)).1 += 1;
        }
        Self(known)
    }

    /// What such a part costs.
    fn tokens(&self, key: PartKey) -> Option<u32> {
        self.0.get(&key).map(|(tokens, _)| *tokens)
    }

    /// The same, if one is left; it is then matched.
    fn take(&mut self, key: PartKey) -> Option<u32> {
        let (tokens, left) = self.0.get_mut(&key)?;
        *left = left.checked_sub(1)?;
        Some(*tokens)
    }
}

/// Whether a message is the person's own words, which begin a turn. Words together with tool results
/// go on with one: no signal tells (`estimator.md` §2), and to keep is the cautious guess.
pub(super) fn is_persons(message: &Message) -> bool {
    let is = |kind| message.parts.iter().any(|part| part.kind == kind);
    message.role == Role::User && is(PartKind::Text) && !is(PartKind::ToolResult)
}

fn is_item(place: Place) -> bool {
    matches!(place, Place::SystemItem | Place::ToolsItem)
}

/// Whether the history that is held ends with this turn's reply.
fn is_after(held: &Held, turn: &Turn) -> bool {
    matches!(held, Held::After(id) if turn.response.as_ref() == Some(id))
}

/// Reasoning tokens of a turn's reply: its output less what its parts cost.
fn reasoning_of(turn: &Turn) -> u64 {
    turn.usage.context().map_or(0, |context| context.output.saturating_sub(sum(&turn.reply)))
}

fn sum(parts: &[Sketched]) -> u64 {
    parts.iter().map(|part| u64::from(part.tokens)).sum()
}

/// What was reported, and what came and left since: the parts that stayed cancel out. Answers the
/// total, what came (with what was cleared, where it is read again), and what left of input and reply
/// together.
fn grown(anchor: &Anchor<'_>, all: u64, new: u64, clears_past: Option<u64>) -> (u64, u64, u64) {
    let context = anchor.turn.usage.context().unwrap_or_default();
    let whole = whole(anchor).saturating_add(all).saturating_sub(sum(anchor.sketch));
    let tokens = cleared(anchor, whole, clears_past);
    let before = context.input.saturating_add(context.output);
    let new = new.max(tokens.saturating_sub(before));
    (tokens, new, before.saturating_add(new).saturating_sub(tokens))
}

/// The parts' sum, by as much wrong as the last sum was for its tokenizer.
fn rescaled(anchor: &Anchor<'_>, all: u64, clears_past: Option<u64>) -> u64 {
    let whole = match sum(anchor.sketch) {
        0 => all,
        before => (u128::from(all) * u128::from(whole(anchor)) / u128::from(before)) as u64,
    };
    cleared(anchor, whole, clears_past)
}

/// The anchor's input with what the provider cleared of it, as its sketch has it.
fn whole(anchor: &Anchor<'_>) -> u64 {
    let context = anchor.turn.usage.context().unwrap_or_default();
    context.input.saturating_add(cleared_of(anchor))
}

/// What is left of a whole prompt: the client sends again what was cleared, and the provider clears
/// it again, where it is asked to and the prompt is large enough. What it clears for the first time
/// cannot be foretold.
fn cleared(anchor: &Anchor<'_>, whole: u64, clears_past: Option<u64>) -> u64 {
    let clears = clears_past.is_some_and(|past| whole > past);
    if clears { whole.saturating_sub(cleared_of(anchor)) } else { whole }
}

fn cleared_of(anchor: &Anchor<'_>) -> u64 {
    anchor.turn.usage.cleared.map_or(0, |cleared| cleared.input_tokens)
}

fn places(parts: &[Sketched]) -> Breakdown {
    let at = |place| {
        let there = parts.iter().filter(|part| part.place == place);
        there.map(|part| u64::from(part.tokens)).sum()
    };
    Breakdown {
        system: at(Place::System) + at(Place::SystemItem),
        tools: at(Place::Tools) + at(Place::ToolsItem),
        messages: at(Place::History),
        reasoning: at(Place::Reasoning),
        ..Breakdown::default()
    }
}

/// A sketch as the difference from the anchor's.
fn difference(anchor: Option<Anchor<'_>>, parts: &[Sketched]) -> Sketch {
    let Some(anchor) = anchor else {
        return Sketch { base: None, kept: 0, added: parts.to_vec() };
    };
    let kept = anchor.sketch.iter().zip(parts).take_while(|(a, b)| a == b).count();
    let added = parts[kept..].to_vec();
    Sketch { base: Some(anchor.turn.request.clone()), kept: kept as u32, added }
}

/// A breakdown whose sum is `total`: messages are what system and tools leave, never below 0.
fn fit(parts: Breakdown, total: u64) -> Breakdown {
    let head = parts.system.saturating_add(parts.tools);
    let capped = head > total;
    let (system, tools) = if capped {
        let system = u128::from(parts.system) * u128::from(total) / u128::from(head);
        (system as u64, total - system as u64)
    } else {
        (parts.system, parts.tools)
    };
    let messages = total - system - tools;
    let reasoning = parts.reasoning.min(messages);
    let whole = Breakdown { system, tools, messages, reasoning, capped, ..Breakdown::default() };
    Breakdown { sections: parts.sections.within(&whole), ..whole }
}

#[cfg(test)]
mod tests;
