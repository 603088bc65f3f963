//! What is known of a request's parts: decisions that apply to them, replies that came back.
//!
//! Gathered from the ledger in one look, so that planning needs no lock; new facts join it once they
//! are saved. Replies are found by their chain, or by a mark where the client changed what stands
//! before them (design §5).

mod returned;
mod summaries;

use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::{Decision, Request, Sent, Why, about};
use crate::context::ledger::{self, Joint, Ledger};
use crate::context::lineage::Placed;
use crate::context::{
    Compact, Cut, Echo, Echoed, Fact, Millis, Queued, Reasoning, Said, Thought, ThreadId, Turn, say,
};
use crate::dialect::{Chain, Conversation, Dialect, Part, PartKey, PartKind, Role};

/// A keyed part of the history.
#[derive(Clone, Copy, Debug)]
struct Spot {
    /// Message and part.
    at: (usize, usize),
    key: PartKey,
    /// What decisions about it are kept by.
    about: u128,
    role: Role,
}

/// Everything known of one request.
#[derive(Clone, Debug, Default)]
pub struct Known {
    spots: Vec<Spot>,
    /// The chain of system prompt and tools.
    head: Chain,
    cuts: HashMap<u128, Arc<Cut>>,
    /// How far the history goes with the requests that decided them, by exchange: a part's place.
    ends: HashMap<Box<str>, (usize, usize)>,
    echoes: HashMap<u128, Arc<Echo>>,
    /// What decisions are kept by that were refused and taken back for good.
    given_up: HashSet<u128>,
    /// Replies whose reasoning is recorded, oldest first.
    pub replies: Vec<Returned>,
    /// The turn it grew from.
    pub parent: Option<Arc<Turn>>,
    /// A rewrite of its thread was refused then: what was decided before is not repeated.
    pub aside: Option<Millis>,
    /// Decisions of its thread were refused: nothing new is decided until its cache is cold.
    pub rests: bool,
    /// The summary that is in use, with the first message that stays.
    compact: Option<(usize, Arc<Compact>)>,
    /// Summaries that were written for it and are not in use, each with the first message that stays.
    pub summaries: Vec<(usize, Arc<Compact>)>,
    /// Its client was seen to compact by itself.
    pub client_compacts: bool,
    /// Words that were said in it: the number of the keyed part that they follow.
    said: Vec<(usize, Arc<Said>)>,
    /// Words that wait to be said, in order, if this is the request to say them in.
    pub(in crate::context) waiting: Vec<Arc<Queued>>,
    /// Its thread.
    pub(in crate::context) thread: ThreadId,
}

/// A reply that the client sent back, whose reasoning is recorded.
#[derive(Clone, Debug)]
pub struct Returned {
    /// What it thought.
    pub reasoning: Arc<Reasoning>,
    /// Where each of its keyed parts stands; `None` for those the client dropped.
    pub parts: Vec<Option<(usize, usize)>>,
    /// Its place among the known replies of the request.
    pub number: usize,
    /// The first keyed part of it, counted among all keyed parts of the history.
    pub spot: usize,
    /// The parts of the history that belong to it, keyed or not: message and part of the first, and
    /// one past the last, counted over all parts.
    region: ((usize, usize), (usize, usize)),
}

/// Reasoning that a client left out of a reply.
#[derive(Clone, Debug, Default)]
pub struct Missing<'r> {
    /// Blocks, in order.
    pub blocks: Vec<&'r Thought>,
    /// Signatures, by the number of the keyed part they stand on.
    pub seals: Vec<(u32, &'r str)>,
}

impl Missing<'_> {
    /// Whether the client sent everything.
    pub fn is_nothing(&self) -> bool {
        self.blocks.is_empty() && self.seals.is_empty()
    }
}

impl Known {
    /// Gathers what `ledger` knows. `shadow`: decisions of shadow mode in place of the real ones.
    pub fn of(ledger: &Ledger, conversation: &Conversation, placed: &Placed, shadow: bool) -> Self {
        let mut known = Self {
            parent: placed.parent.clone(),
            aside: placed.standing.aside,
            rests: placed.standing.aside.is_some()
                || ledger.rests(&placed.standing.thread, placed.parent.as_deref()),
            client_compacts: ledger.client_compacts(),
            waiting: say::waiting(ledger, placed),
            thread: placed.standing.thread.clone(),
            ..Self::bare(conversation)
        };
        known.find_summaries(ledger, conversation, shadow);
        if ledger.knows_reasoning() {
            known.find_replies(ledger, conversation);
        }
        if ledger.has_decided(shadow) {
            known.find_decisions(ledger, shadow);
            known.given_up = ledger.given_up(shadow, known.aside);
            known.find_ends(ledger, conversation);
        }
        if !shadow {
            ledger.taken().into_iter().for_each(|(said, _)| known.find_said(said));
        }
        known
    }

    /// Of a conversation of which nothing is known.
    pub(super) fn bare(conversation: &Conversation) -> Self {
        Self { head: head(conversation), spots: spots(conversation), ..Self::default() }
    }

    /// The place of words that were said, if this request has it.
    fn find_said(&mut self, said: &Arc<Said>) {
        let Some(taken) = said.taken() else { return };
        if taken.aside != self.aside {
            return;
        }
        let place = self.spots.iter().rposition(|spot| spot.about == taken.after.0);
        let Some(place) = place.or_else(|| self.joined(taken.joint?)) else { return };
        self.said.push((place, said.clone()));
        // In order of the parts they follow, and of being queued.
        let order = |of: &Said| of.taken().map(|taken| taken.number);
        self.said.sort_by_key(|(place, said)| (*place, order(said)));
    }

    /// The part that stands after the one it stood after before; `None` unless there is one alone.
    fn joined(&self, joint: PartKey) -> Option<usize> {
        let mut found = (1..self.spots.len()).filter(|place| self.joint(*place) == Some(joint));
        found.next().filter(|_| found.next().is_none())
    }

    /// A keyed part and the one before it.
    fn joint(&self, place: usize) -> Option<PartKey> {
        let before = self.spots.get(place.checked_sub(1)?)?.key;
        Some(PartKey(Joint::of(before, self.spots.get(place)?.key).0))
    }

    /// Where words can be said now: after the newest part, if the model has not answered it. Its
    /// place, what decisions about it are kept by, and its joint.
    pub(in crate::context) fn end(&self) -> Option<((usize, usize), u128, Option<PartKey>)> {
        let heard = |spot: &Spot| spot.role != Role::System;
        let place = self.spots.iter().rposition(heard)?;
        let spot = self.spots[place];
        let open = matches!(spot.role, Role::User | Role::Tool);
        open.then(|| (spot.at, spot.about, self.joint(place)))
    }

    /// Whether words stand in this request.
    pub(in crate::context) fn is_said(&self, id: &str) -> bool {
        self.said.iter().any(|(_, said)| *said.id == *id)
    }

    /// Words that follow the part at a place.
    pub(in crate::context) fn said_at(&self, at: (usize, usize)) -> impl Iterator<Item = &Said> {
        let here = self.said.iter().filter(move |(place, _)| self.spots[*place].at == at);
        here.map(|(_, said)| &**said)
    }

    /// Words that follow a part of a message, in order.
    pub(in crate::context) fn said_in(&self, message: usize) -> impl Iterator<Item = &Said> {
        let here = self.said.iter().filter(move |(place, _)| self.spots[*place].at.0 == message);
        here.map(|(_, said)| &**said)
    }

    /// Words that are said in this request: the place they follow, and all that follow it, in order.
    pub(in crate::context) fn said_here(
        &self,
    ) -> impl Iterator<Item = ((usize, usize), Vec<&Said>)> {
        let from = self.kept_from();
        let groups = self.said.chunk_by(|one, two| one.0 == two.0);
        let groups = groups.map(|group| {
            (self.spots[group[0].0].at, group.iter().map(|(_, said)| &**said).collect())
        });
        // What a summary stands for is not said again.
        groups.filter(move |(at, _): &(_, Vec<&Said>)| at.0 >= from)
    }

    fn find_decisions(&mut self, ledger: &Ledger, shadow: bool) {
        let aside = self.aside;
        for spot in &self.spots {
            let cut = ledger.cut(spot.about, shadow, aside);
            self.cuts.extend(cut.map(|cut| (spot.about, cut.clone())));
            let echo = ledger.echo(spot.about, shadow, aside);
            self.echoes.extend(echo.map(|echo| (spot.about, echo.clone())));
        }
        for returned in &self.replies {
            let about = returned.reasoning.after.0;
            let echo = ledger.echo(about, shadow, aside);
            self.echoes.extend(echo.map(|echo| (about, echo.clone())));
        }
        // What a client sends itself is known by its bytes, which are not at hand here.
        let out = ledger.taken_out(shadow, aside);
        self.echoes.extend(out.map(|echo| (echo.about.0, echo.clone())));
    }

    /// Replies by the chain after them, else by a mark.
    fn find_replies(&mut self, ledger: &Ledger, conversation: &Conversation) {
        let mut found: HashSet<Chain> = HashSet::default();
        let mut covered = vec![false; self.spots.len()];
        for (index, chain) in conversation.chains().enumerate() {
            let Some(reasoning) = ledger.reasoning(chain) else { continue };
            let count = reasoning.parts.len();
            let Some(first) = (index + 1).checked_sub(count) else { continue };
            if count == 0 {
                self.replies.extend(self.thought_only(conversation, reasoning, index));
                continue;
            }
            covered[first..=index].fill(true);
            found.insert(chain);
            let parts = self.spots[first..=index].iter().map(|spot| Some(spot.at)).collect();
            self.replies.push(self.returned(conversation, reasoning, parts, first, index));
        }
        for index in 0..self.spots.len() {
            let spot = self.spots[index];
            if covered[index] || spot.role != Role::Assistant {
                continue;
            }
            let Some(reasoning) = ledger.reasoning_marked(spot.key) else { continue };
            if found.insert(reasoning.after) {
                let aligned = self.aligned(reasoning, index);
                if let Some((parts, first, last)) = aligned {
                    covered[first..=last].fill(true);
                    self.replies.push(self.returned(conversation, reasoning, parts, first, last));
                }
            }
        }
        self.replies.sort_by_key(|returned| returned.spot);
        let replies = self.replies.iter_mut().enumerate();
        replies.for_each(|(number, returned)| returned.number = number);
        self.only_kept();
    }

    /// A reply that was nothing but reasoning, after the part at `index`, if its client sends that.
    fn thought_only(
        &self,
        conversation: &Conversation,
        reasoning: &Arc<Reasoning>,
        index: usize,
    ) -> Option<Returned> {
        let returned = self.returned(conversation, reasoning, Vec::new(), index + 1, index);
        let thought = returned.places(conversation).find(|(message, part)| {
            let part = conversation.messages.get(*message).and_then(|it| it.parts.get(*part));
            part.is_some_and(|it| (it.kind, it.role) == (PartKind::Reasoning, Role::Assistant))
        });
        Some(Returned { region: (thought?, returned.region.1), ..returned })
    }

    /// Where the parts of a reply stand around one of them, in order.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn aligned(
        &self,
        reasoning: &Reasoning,
        marked: usize,
    ) -> Option<(Vec<Option<(usize, usize)>>, usize, usize)> {
        let is_models = |index: &usize| self.spots[*index].role == Role::Assistant;
        let first = (0..marked).rev().take_while(is_models).last().unwrap_or(marked);
        let last = (marked..self.spots.len()).take_while(is_models).last()?;
        let (mut at, mut places) = (first, Vec::new());
        for key in &reasoning.parts {
            let place = (at..=last).find(|index| self.spots[*index].key == *key);
            places.push(place);
            at = place.map_or(at, |place| place + 1);
        }
        let mut there = places.iter().flatten().copied();
        let first = there.next()?;
        let last = there.next_back().unwrap_or(first);
        let parts = places.iter().map(|place| place.map(|at| self.spots[at].at)).collect();
        Some((parts, first, last))
    }

    fn returned(
        &self,
        conversation: &Conversation,
        reasoning: &Arc<Reasoning>,
        parts: Vec<Option<(usize, usize)>>,
        first: usize,
        last: usize,
    ) -> Returned {
        let before = first.checked_sub(1).map(|before| self.spots[before].at);
        let begin = before.map_or((0, 0), |(message, part)| (message, part + 1));
        let end = match self.spots.get(last + 1) {
            Some(next) => next.at,
            None => (conversation.messages.len(), 0),
        };
        Returned {
            reasoning: reasoning.clone(),
            parts,
            number: 0,
            spot: first,
            region: (begin, end),
        }
    }

    /// Adds facts once they are saved.
    pub fn add(&mut self, facts: impl IntoIterator<Item = Fact>) {
        for fact in facts {
            match fact {
                Fact::Cut(cut) => {
                    self.cuts.entry(cut.about.0).or_insert_with(|| Arc::new(*cut));
                }
                Fact::Echo(echo) => {
                    self.echoes.entry(echo.about.0).or_insert_with(|| Arc::new(*echo));
                }
                Fact::Compact(compact) => self.uses(*compact),
                Fact::Said(said) => {
                    if self.said.iter().all(|(_, known)| known.id != said.id) {
                        self.find_said(&Arc::new(*said));
                    }
                }
                Fact::Turn(_)
                | Fact::Reasoning(_)
                | Fact::Aside(_)
                | Fact::TakenBack(_)
                | Fact::Summary(_)
                | Fact::Queued(_) => {}
            }
        }
    }

    /// What an exchange decided: what that is kept by.
    pub fn decided_by(&self, request: &str) -> HashSet<PartKey> {
        let cuts = self.cuts.values().map(|cut| (&cut.request, cut.about));
        let echoes = self.echoes.values().map(|echo| (&echo.request, echo.about));
        let compact = self.compact().map(|(_, one)| (&one.request, PartKey(one.address().0)));
        let all = cuts.chain(echoes).chain(compact);
        all.filter(|(by, _)| ***by == *request).map(|(_, about)| about).collect()
    }

    /// Whether a decision may be made: it was not refused and taken back for good.
    pub fn may_decide(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Cut(cut) => !self.given_up.contains(&cut.about.0),
            Fact::Echo(echo) => !self.given_up.contains(&echo.about.0),
            _ => true,
        }
    }

    /// Takes over what an exchange decided when it first saw something: nothing rests on the absence
    /// of that, and no reasoning stands behind it.
    pub fn takes_births(&mut self, of: &Self, request: &str) {
        let is_birth = |by: &str, why| *by == *request && matches!(why, Why::Birth | Why::TooLarge);
        let cuts = of.cuts.iter().filter(|(_, cut)| is_birth(&cut.request, cut.why));
        self.cuts.extend(cuts.map(|(about, cut)| (*about, cut.clone())));
        let echoes = of.echoes.iter().filter(|(_, echo)| is_birth(&echo.request, echo.why));
        self.echoes.extend(echoes.map(|(about, echo)| (*about, echo.clone())));
    }

    /// Whether reasoning that clients send was decided to be taken out.
    pub(super) fn takes_out(&self) -> bool {
        self.echoes.values().any(|echo| echo.does == Echoed::Out)
    }

    /// What was decided about reasoning.
    pub fn echo(&self, about: u128) -> Option<&Echo> {
        self.echoes.get(&about).map(|echo| &**echo)
    }

    /// The cut that is kept by `about`.
    pub fn cut(&self, about: u128) -> Option<&Cut> {
        self.cuts.get(&about).map(|cut| &**cut)
    }

    /// What decisions about the part at a place are kept by; `None` for parts without a key.
    pub fn about(&self, at: (usize, usize)) -> Option<u128> {
        let found = self.spots.binary_search_by_key(&at, |spot| spot.at).ok()?;
        Some(self.spots[found].about)
    }

    /// The cuts of this request's results: place, key, cut.
    pub fn cuts_here(&self) -> impl Iterator<Item = ((usize, usize), PartKey, &Cut)> {
        let (none, from) = (self.cuts.is_empty(), self.kept_from());
        let spots = self.spots.iter().filter(move |spot| !none && spot.at.0 >= from);
        spots.filter_map(|spot| Some((spot.at, spot.key, &**self.cuts.get(&spot.about)?)))
    }

    pub(super) fn stand_ins(&self) -> impl Iterator<Item = ((usize, usize), &Echo)> {
        let (none, from) = (self.echoes.is_empty(), self.kept_from());
        let spots = self.spots.iter().filter(move |spot| !none && spot.at.0 >= from);
        spots.filter_map(|spot| Some((spot.at, &**self.echoes.get(&spot.about)?)))
    }

    /// Whether a decision of the exchange `of` is new to the exchange `here`.
    pub(super) fn decision(&self, of: &str, here: &str) -> Decision {
        if of == here { Decision::New } else { Decision::Replayed }
    }

    /// What is forwarded as far as cuts make it: chains, and no overlay yet.
    pub(in crate::context) fn sent(&self) -> Sent {
        let mut chains = Vec::with_capacity(self.spots.len() + 1);
        let mut chain = self.head;
        chains.push(chain);
        let gone = self.spots.partition_point(|spot| spot.at.0 < self.kept_from());
        if let Some((_, compact)) = self.compact().filter(|_| gone > 0) {
            chains.resize(gone, chain);
            let carried = compact.carries.filter(|it| it.head == self.head);
            chain = carried.map_or_else(|| chain.then(compact.key()), |it| it.sent);
            chains.push(chain);
        }
        let mut said = self.said.iter().skip_while(|(after, _)| *after < gone).peekable();
        for (place, spot) in self.spots.iter().enumerate().skip(gone) {
            let is_cut = !self.cuts.is_empty() && self.cuts.contains_key(&spot.about);
            chain = chain.then(if is_cut { spot.key.cut() } else { spot.key });
            while let Some((_, said)) = said.next_if(|(after, _)| *after == place) {
                chain = chain.then(said.key());
            }
            chains.push(chain);
        }
        Sent::of(chains)
    }
}

impl Returned {
    /// Whether all its keyed parts came back.
    pub fn is_whole(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    /// Message and part with which it begins.
    pub fn begins(&self) -> (usize, usize) {
        self.parts.iter().flatten().next().copied().unwrap_or(self.region.0)
    }

    /// Whether a place lies between its neighbours.
    pub fn spans(&self, at: (usize, usize)) -> bool {
        (self.region.0..self.region.1).contains(&at)
    }

    /// Whether one of its parts stands there.
    pub fn holds(&self, at: (usize, usize)) -> bool {
        self.parts.iter().flatten().any(|part| *part == at)
    }

    /// What the client left out. What it sends itself is left as it is: one signature that is there
    /// stands for its block, and in dialects of one reasoning field that field for all.
    pub fn missing(&self, request: &Request<'_>) -> Missing<'_> {
        let sent: Vec<&Part> = self.region(request.conversation);
        let is_reasoning = |part: &&&Part| part.kind == PartKind::Reasoning;
        let sent: Vec<&Part> = sent.iter().filter(is_reasoning).copied().collect();
        let one_field = request.conversation.dialect == Dialect::OpenaiChat;
        let is_there = |raw: &str| {
            sent.iter().any(|part| match part.sealed {
                Some(sealed) => {
                    let literal = sealed.of(request.body);
                    let words = literal.get(1..literal.len().saturating_sub(1));
                    words.is_some_and(|words| memchr::memmem::find(raw.as_bytes(), words).is_some())
                }
                None => true,
            })
        };
        let blocks = self.reasoning.blocks.iter();
        let blocks = blocks.filter(|block| match one_field {
            true => sent.is_empty(),
            false => !is_there(&block.raw),
        });
        let is_bare = |number: u32| {
            let at = self.parts.get(number as usize).copied().flatten();
            at.is_some_and(|at| is_bare(request, at))
        };
        let seals = self.reasoning.seals.iter().filter(|(number, _)| is_bare(*number));
        Missing {
            blocks: blocks.collect(),
            seals: seals.map(|(number, seal)| (*number, &**seal)).collect(),
        }
    }

    /// Message and part before which a block stood. `None` where what ran at the provider between
    /// did not come back: the block led to it, and alone it would be refused (`providers.md` §3.2).
    pub fn place(&self, conversation: &Conversation, thought: &Thought) -> Option<(usize, usize)> {
        let before = self.parts.len().min(thought.before as usize);
        let (earlier, later) = self.parts.split_at(before);
        let after = earlier.iter().flatten().next_back().copied();
        if !thought.leads {
            let last = after.map(|(message, part)| (message, part + 1));
            return later.iter().flatten().next().copied().or(last);
        }
        let all: Vec<(usize, usize)> = self.places(conversation).collect();
        let start = match after {
            Some(after) => all.iter().position(|at| *at == after)? + 1,
            None => 0,
        };
        let part = |at: &&(usize, usize)| conversation.messages.get(at.0)?.parts.get(at.1);
        let ran = all[start..].iter().filter(|at| part(at).is_some_and(is_hosted));
        ran.copied().nth(thought.hosted as usize)
    }

    fn places(&self, conversation: &Conversation) -> impl Iterator<Item = (usize, usize)> {
        let ((first, from), (last, to)) = self.region;
        let messages = conversation.messages.iter().enumerate().skip(first);
        let messages = messages.take_while(move |(index, _)| *index <= last);
        messages.flat_map(move |(index, message)| {
            let begin = if index == first { from } else { 0 };
            let end = if index == last { to } else { message.parts.len() };
            (begin..end).map(move |part| (index, part))
        })
    }

    /// Every part between the neighbours of the reply that is the model's.
    pub(in crate::context) fn region<'c>(&self, conversation: &'c Conversation) -> Vec<&'c Part> {
        let places = self.places(conversation);
        let parts = places
            .filter_map(|(message, part)| conversation.messages.get(message)?.parts.get(part));
        parts.filter(|part| part.role == Role::Assistant).collect()
    }
}

/// Whether a part of the model's ran at the provider: it has no key, and is neither words nor thought.
fn is_hosted(part: &Part) -> bool {
    let said = matches!(part.kind, PartKind::Text | PartKind::Reasoning);
    part.role == Role::Assistant && part.key.is_none() && !said
}

/// Whether a part carries no signature and can take one: words only where they came in one piece.
fn is_bare(request: &Request<'_>, at: (usize, usize)) -> bool {
    let Some(part) = request.part(at) else { return false };
    let before = at.1.checked_sub(1).and_then(|before| request.part((at.0, before)));
    let joined =
        part.kind == PartKind::Text && before.is_some_and(|before| before.kind == PartKind::Text);
    part.sealed.is_none() && !joined
}

fn head(conversation: &Conversation) -> Chain {
    let parts = conversation.system.iter().chain(&conversation.tools);
    parts.filter_map(|part| part.key).fold(Chain::START, Chain::then)
}

fn spots(conversation: &Conversation) -> Vec<Spot> {
    // Gemini's ids are the clients' own making and no identity.
    let ids_count = conversation.dialect != Dialect::Gemini;
    let mut own: HashMap<&str, bool> = HashMap::default();
    let mut chain = Chain::START;
    let mut spots = Vec::new();
    for (message, of) in conversation.messages.iter().enumerate() {
        for (index, part) in of.parts.iter().enumerate() {
            let Some(key) = part.key else { continue };
            chain = chain.then(key);
            let id = part.id.as_deref().filter(|id| ids_count && !id.is_empty());
            let is_own = id.is_some_and(|id| {
                let name = part.name.as_deref().unwrap_or_default();
                // A result rarely names its tool; its call, which came before it, does.
                *own.entry(id).or_insert_with(|| ledger::is_own(id, name))
            });
            let about = about(key, chain, is_own);
            spots.push(Spot { at: (message, index), key, about, role: part.role });
        }
    }
    spots
}
