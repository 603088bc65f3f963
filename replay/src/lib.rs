//! Replays recorded sessions through the estimator, strictly causally: how wrong it would have been.
//!
//! Calls of all sessions are taken in order of time. Each is parsed, placed and measured by the code that
//! serves live traffic, before its reported usage is looked at. Writes nothing; must not know how results are
//! displayed.

pub mod score;
pub mod transcript;
pub mod what_if;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use plimsoll_core::context::budget::{self, Anchor};
use plimsoll_core::context::edited::reply_keys;
use plimsoll_core::context::ledger::Ledger;
use plimsoll_core::context::lineage::place;
use plimsoll_core::context::plan::Overlay;
use plimsoll_core::context::{Estimate, EstimateMethod, ExchangeId, Fact, Outcome, Turn};
use plimsoll_core::dialect::models::{Catalogue, Family, Model};
use plimsoll_core::dialect::reading::{BodyEnd, Framing};
use plimsoll_core::dialect::{self, Conversation, Dialect, Reply, ResponseReader};
use plimsoll_core::tokens::Tokenizer;
use plimsoll_core::tokens::classic::{ClassicRules, SentContent};
use plimsoll_core::tokens::costs::FamilyCosts;
use plimsoll_core::tokens::learn::EstimatorState;
use score::EstimatePair;
use transcript::{ClientHistory, TranscriptLine};

/// The most bytes of one reply that are read.
const REPLY: usize = 64 << 20;

/// Replays `lines` (any order, any number of sessions); `rules` are classic rules to compare with, `costs` those of one
/// family instead of its own. `each` hears how many are done, after each line.
pub fn play(
    lines: &[TranscriptLine],
    catalogue: &Catalogue,
    rules: &[ClassicRules],
    costs: Option<FamilyCosts>,
    mut each: impl FnMut(usize),
) -> Vec<EstimatePair> {
    let mut sessions: HashMap<&str, ReplaySession<'_>> = HashMap::new();
    let mut pairs = Vec::new();
    let mut learned = LearnedModels::default();
    let excesses = transcript::excesses(lines);
    for (done, (at, line)) in in_order(lines).enumerate() {
        let session = sessions.entry(&line.session).or_default();
        let model = catalogue.model(&line.model, "");
        let state = learned.state(line, model.family);
        let tokenizer = Tokenizer::whole(model.family).with_costs(costs);
        let pair = session.call(line, &model, tokenizer, state, rules);
        let excess = excesses[at];
        pairs.extend(pair.map(|pair| EstimatePair {
            visible: pair.visible && excess.is_none(),
            excess,
            ..pair
        }));
        each(done + 1);
    }
    pairs
}

/// What responses taught, by provider and model, as live traffic does.
#[derive(Default)]
struct LearnedModels<'l>(BTreeMap<&'l str, BTreeMap<&'l str, EstimatorState>>);

impl<'l> LearnedModels<'l> {
    /// The state of the model that a line names.
    fn state(&mut self, line: &'l TranscriptLine, family: Family) -> &mut EstimatorState {
        let models = self.0.entry(&line.provider).or_default();
        if !models.contains_key(line.model.as_str()) {
            // Live traffic lets a new model begin with what its provider's other models taught.
            let state = EstimatorState::beside(family, models.values());
            models.insert(&line.model, state);
        }
        models.entry(&line.model).or_insert_with(|| EstimatorState::new(family))
    }
}

/// Calls in order of time, with their indices.
fn in_order(lines: &[TranscriptLine]) -> impl Iterator<Item = (usize, &TranscriptLine)> {
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let mut ranks: HashMap<&str, u64> = HashMap::new();
    // Within a session the order is that of its lines, whatever its clock says.
    let times: Vec<u64> = lines
        .iter()
        .map(|line| {
            let rank = ranks.entry(&line.session).or_default();
            *rank = line.at().max(*rank);
            *rank
        })
        .collect();
    order.sort_by_key(|at| times[*at]);
    order.into_iter().map(|at| (at, &lines[at]))
}

fn recorded(
    line: &TranscriptLine,
    estimate: &Estimate,
    model: &Model,
    call: u64,
    actual: u64,
) -> EstimatePair {
    // A call of an export: it has no text, but the estimate that was made at the time.
    let guess = estimate.guess;
    EstimatePair {
        source: line.source.clone(),
        session: line.session.clone(),
        call,
        model: line.model.clone(),
        provider: line.provider.clone(),
        visible: true,
        excess: None,
        tokens: estimate.tokens,
        low: guess.low,
        high: guess.high,
        retention: guess.retention,
        by_retention: guess.by_retention,
        expert: guess.expert,
        new: estimate.new,
        actual,
        classic: Vec::new(),
        family: model.family,
        counted: guess.by_retention,
        text_tokens: 0,
        tally: Vec::new(),
        ranks: Vec::new(),
        structure: [0; 4],
        reasoning: None,
    }
}

/// The state of one session.
#[derive(Default)]
struct ReplaySession<'l> {
    history: ClientHistory,
    ledger: Ledger,
    /// The previous call, whose reply comes with the next line.
    pending_call: Option<ReplayCall<'l>>,
    /// Each rule's base: what the first call cost in addition to its messages.
    bases: Vec<i64>,
    calls: u64,
}

/// A request that was measured and waits for its reply.
struct ReplayCall<'l> {
    line: &'l TranscriptLine,
    turn: Turn,
    tokenizer: Tokenizer,
}

impl<'l> ReplaySession<'l> {
    /// Replays the next call; returns its estimate with the reported tokens, if they can be compared.
    fn call(
        &mut self,
        line: &'l TranscriptLine,
        model: &Model,
        tokenizer: Tokenizer,
        learned: &mut EstimatorState,
        rules: &[ClassicRules],
    ) -> Option<EstimatePair> {
        if let Some(estimate) = &line.estimate {
            self.calls += 1;
            // Only an estimate that was based on an earlier call is one that we stand by.
            if estimate.method != EstimateMethod::Anchored || !line.is_measured() {
                return None;
            }
            return Some(recorded(line, estimate, model, self.calls, line.actual()?));
        }
        let dialect = line.dialect()?;
        let reply_texts = self.history.add(line);
        let has_base = self.add_reply(&reply_texts);
        let (path, body) = self.history.request(line, dialect);
        let conversation = dialect::read(dialect, &path, &body);
        self.calls += 1;
        let exchange = ExchangeId::from(self.calls.to_string());
        let placed = place(&self.ledger, &conversation, &exchange, None);
        let parent =
            placed.parent.as_ref().and_then(|parent| self.ledger.anchor_at(parent)).cloned();
        let anchor = parent.and_then(|turn| Some((self.ledger.sketch(&turn)?, turn)));
        let anchor = anchor.as_ref().map(|(sketch, turn)| Anchor { turn, sketch });
        let measured = budget::measure(
            &conversation,
            &body,
            &Overlay::default(),
            model,
            anchor,
            tokenizer,
            learned,
        );
        let estimate = measured.estimate.clone();
        let classic = self.classic(line, &conversation, &body, anchor, rules);
        let turn = turn_of(exchange, line, &conversation, model, &placed.position);
        let turn = Turn { estimate: Some(estimate.clone()), sketch: measured.sketch, ..turn };
        self.pending_call = Some(ReplayCall { line, turn, tokenizer });
        // The estimate stands: only now the reported tokens are looked at.
        let actual = line.actual()?;
        if let Some(evidence) = &measured.seen
            && (has_base || anchor.is_none())
        {
            *learned = learned.clone().after(evidence, &estimate.guess, actual);
        }
        if estimate.method != EstimateMethod::Anchored || !has_base {
            return None;
        }
        let evidence = measured.seen.unwrap_or_default();
        let content = evidence.new_content;
        let guess = estimate.guess;
        Some(EstimatePair {
            family: model.family,
            counted: evidence.counted,
            text_tokens: content.text_tokens,
            tally: content.tally.0.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect(),
            ranks: ranks(line, tokenizer),
            structure: [content.results, content.texts, content.calls, content.media],
            reasoning: anchor.and_then(|anchor| anchor.turn.usage.reasoning),
            source: line.source.clone(),
            model: line.model.clone(),
            provider: line.provider.clone(),
            visible: line.is_visible(),
            excess: None,
            session: line.session.clone(),
            call: self.calls,
            low: guess.low,
            high: guess.high,
            by_retention: guess.by_retention,
            retention: guess.retention,
            expert: guess.expert,
            tokens: estimate.tokens,
            new: estimate.new,
            actual,
            classic,
        })
    }

    /// Adds the reply of the previous call; returns whether that call can be the base of an estimate.
    fn add_reply(&mut self, reply_texts: &[String]) -> bool {
        let Some(ReplayCall { line, mut turn, tokenizer }) = self.pending_call.take() else {
            return false;
        };
        let mut reply = answer_of(line, turn.dialect, reply_texts);
        // A call without a usable measurement is no base.
        reply.usage.lower_bound |= !line.is_measured();
        reply.usage.hosted_tools |= !line.is_measured();
        turn.after = reply.chain_after(turn.position.chain);
        turn.reply = budget::reply(&reply, tokenizer);
        turn.anchor_keys = reply_keys(&turn.position, &reply);
        turn.usage = reply.usage;
        self.ledger.add(Fact::Turn(Arc::new(turn)));
        line.is_measured()
    }

    fn classic(
        &mut self,
        line: &TranscriptLine,
        conversation: &Conversation,
        body: &[u8],
        anchor: Option<Anchor<'_>>,
        rules: &[ClassicRules],
    ) -> Vec<u64> {
        let mut counts: Vec<i64> = Vec::with_capacity(rules.len());
        for rules in rules {
            let count =
                budget::classic(rules, conversation, body, anchor, 0.0, |_| SentContent::Whole);
            counts.push(count.tokens as i64);
        }
        if self.bases.is_empty()
            && let Some(actual) = line.actual()
        {
            // System prompt and tools are not recorded: rules that count the whole request get them for free.
            for (rules, count) in rules.iter().zip(&counts) {
                self.bases.push(if rules.anchored { 0 } else { actual as i64 - count });
            }
        }
        let sums = counts.iter().zip(&self.bases).map(|(count, base)| count + base);
        sums.map(|sum| sum.max(0) as u64).collect()
    }
}

/// The tokens of a line's new text, if they are estimated by what each costs.
fn ranks(line: &TranscriptLine, tokenizer: Tokenizer) -> Vec<(u32, u32)> {
    let mut ranks = BTreeMap::new();
    // Without the costs of single tokens, their ranks say nothing.
    let (Some(encoding), Some(_)) = (tokenizer.encoding, &tokenizer.costs) else {
        return Vec::new();
    };
    for text in line.new_texts() {
        for (rank, count) in encoding.ranks(text) {
            *ranks.entry(rank).or_default() += count;
        }
    }
    ranks.into_iter().collect()
}

/// A call as the ledger stores it, before its reply.
fn turn_of(
    exchange: ExchangeId,
    line: &TranscriptLine,
    conversation: &Conversation,
    model: &Model,
    position: &plimsoll_core::context::Position,
) -> Turn {
    Turn {
        exchange,
        after: position.chain,
        position: position.clone(),
        at: line.at(),
        ended: line.at(),
        upstream: line.provider.as_str().into(),
        model: line.model.as_str().into(),
        purpose: conversation.purpose,
        outcome: Outcome::Complete,
        window: model.window,
        ..Turn::empty(conversation.dialect, model.family)
    }
}

/// The reply of a call, as it was recorded.
fn answer_of(line: &TranscriptLine, dialect: Dialect, reply_texts: &[String]) -> Reply {
    let body = transcript::response(line, dialect, reply_texts);
    let mut reading = ResponseReader::new(dialect, 200, Framing::Json, REPLY);
    reading.push(&body);
    reading.finish(BodyEnd::Whole)
}
