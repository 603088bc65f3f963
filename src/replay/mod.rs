//! Recorded sessions through the estimator, strictly causal: how wrong it would have been.
//!
//! Calls of all sessions are taken in the order of time. Each is read, placed and measured by the code
//! that serves live traffic, before what was reported of it is looked at. Writes nothing; must not
//! know how results are shown.

pub mod score;
pub mod transcript;
pub mod what_if;

use std::collections::HashMap;

use crate::context::budget::{self, Anchor};
use crate::context::ledger::{Ledger, anchor_keys};
use crate::context::lineage::place;
use crate::context::plan::Overlay;
use crate::context::{Estimate, EstimateMethod, ExchangeId, Fact, Outcome, Turn};
use crate::dialect::models::{Catalogue, Model};
use crate::dialect::{self, Conversation, Dialect, Reply, ResponseReader, reading::Framing};
use crate::tokens::Tokenizer;
use crate::tokens::classic::{ClassicRules, SentContent};
use crate::tokens::costs::FamilyCosts;
use crate::tokens::learn::EstimatorState;
use score::EstimatePair;
use transcript::{ClientHistory, TranscriptLine};

/// Most bytes kept of one reply.
const REPLY: usize = 64 << 20;

/// Plays `lines` (any order, any number of sessions); `rules`: classic heuristics to set beside.
pub fn play(
    lines: &[TranscriptLine],
    catalogue: &Catalogue,
    rules: &[ClassicRules],
) -> Vec<EstimatePair> {
    play_with(lines, catalogue, rules, None)
}

/// The same with one family's costs as given.
pub fn play_with(
    lines: &[TranscriptLine],
    catalogue: &Catalogue,
    rules: &[ClassicRules],
    costs: Option<FamilyCosts>,
) -> Vec<EstimatePair> {
    let mut sessions: HashMap<&str, ReplaySession<'_>> = HashMap::new();
    let mut pairs = Vec::new();
    let mut learned = HashMap::new();
    for line in in_order(lines) {
        let session = sessions.entry(&line.session).or_default();
        let model = catalogue.model(&line.model, "");
        let known = learned
            .entry((line.provider.as_str(), line.model.as_str()))
            .or_insert_with(|| EstimatorState::new(model.family));
        let tokenizer = Tokenizer::whole(model.family).with_costs(costs);
        pairs.extend(session.call(line, &model, tokenizer, known, rules));
    }
    pairs
}

/// Calls in the order of time.
fn in_order(lines: &[TranscriptLine]) -> impl Iterator<Item = &TranscriptLine> {
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let mut ranks: HashMap<&str, u64> = HashMap::new();
    // A session's own order is that of its lines, whatever its clock says.
    let times: Vec<u64> = lines
        .iter()
        .map(|line| {
            let rank = ranks.entry(&line.session).or_default();
            *rank = line.at().max(*rank);
            *rank
        })
        .collect();
    order.sort_by_key(|at| times[*at]);
    order.into_iter().map(|at| &lines[at])
}

/// A call of an export: its text is not there, but what was estimated at the time is.
fn recorded(
    line: &TranscriptLine,
    told: &Estimate,
    model: &Model,
    call: u64,
    actual: u64,
) -> EstimatePair {
    let guess = told.guess;
    EstimatePair {
        source: line.source.clone(),
        session: line.session.clone(),
        call,
        model: line.model.clone(),
        provider: line.provider.clone(),
        visible: true,
        tokens: told.tokens,
        low: guess.low,
        high: guess.high,
        retention: guess.retention,
        by_retention: guess.by_retention,
        expert: guess.expert,
        new: told.new,
        actual,
        classic: Vec::new(),
        family: model.family,
        counted: guess.by_retention,
        words: 0,
        tally: Vec::new(),
        structure: [0; 4],
        reasoning: None,
    }
}

/// One session as far as it has come.
#[derive(Default)]
struct ReplaySession<'l> {
    history: ClientHistory,
    ledger: Ledger,
    /// The call before, whose reply comes with the next line.
    asked: Option<ReplayCall<'l>>,
    /// Each rule's base: what the first call cost beside its messages.
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
    /// The next call: answers how wrong its estimate was, where that can be known.
    fn call(
        &mut self,
        line: &'l TranscriptLine,
        model: &Model,
        tokenizer: Tokenizer,
        learned: &mut EstimatorState,
        rules: &[ClassicRules],
    ) -> Option<EstimatePair> {
        if let Some(told) = &line.estimate {
            self.calls += 1;
            let anchored = told.method == EstimateMethod::Anchored;
            let actual = line.actual().filter(|_| anchored && line.is_measured())?;
            return Some(recorded(line, told, model, self.calls, actual));
        }
        let dialect = line.dialect()?;
        let said = self.history.add(line);
        let before = self.answered(&said);
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
        self.asked = Some(ReplayCall { line, turn, tokenizer });
        let actual = line.actual()?;
        if let Some(seen) = measured.seen.as_ref().filter(|_| before || anchor.is_none()) {
            *learned = learned.clone().after(seen, &estimate.guess, actual);
        }
        if estimate.method != EstimateMethod::Anchored || !before {
            return None;
        }
        let seen = measured.seen.unwrap_or_default();
        let news = seen.news;
        let guess = estimate.guess;
        Some(EstimatePair {
            family: model.family,
            counted: seen.counted,
            words: news.words,
            tally: news.tally.0.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect(),
            structure: [news.results, news.texts, news.calls, news.media],
            reasoning: anchor.and_then(|anchor| anchor.turn.usage.reasoning),
            source: line.source.clone(),
            model: line.model.clone(),
            provider: line.provider.clone(),
            visible: line.is_visible(),
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

    /// The call before is answered; says whether it can be grown from.
    fn answered(&mut self, said: &[String]) -> bool {
        let Some(ReplayCall { line, mut turn, tokenizer }) = self.asked.take() else {
            return false;
        };
        let mut reply = answer_of(line, turn.dialect, said);
        // What was not measured is nothing to grow from.
        reply.usage.lower_bound |= !line.is_measured();
        reply.usage.hosted_tools |= !line.is_measured();
        turn.after = reply.chain_after(turn.position.chain);
        turn.reply = budget::reply(&reply, tokenizer);
        turn.anchor_keys = anchor_keys(&reply);
        turn.usage = reply.usage;
        self.ledger.add(Fact::Turn(Box::new(turn)));
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
        let count = |rules: &ClassicRules| {
            budget::classic(rules, conversation, body, anchor, 0.0, |_| SentContent::Whole).tokens
                as i64
        };
        let counts: Vec<i64> = rules.iter().map(count).collect();
        if self.bases.is_empty()
            && let Some(actual) = line.actual()
        {
            // System and tools are not recorded: whoever counts everything gets them for nothing.
            let base = |(rules, count): (&ClassicRules, &i64)| {
                if rules.anchored { 0 } else { actual as i64 - count }
            };
            self.bases = rules.iter().zip(&counts).map(base).collect();
        }
        let based = counts.iter().zip(&self.bases).map(|(count, base)| count + base);
        based.map(|count| count.max(0) as u64).collect()
    }
}

/// A call as the ledger keeps it, before it is answered.
fn turn_of(
    exchange: ExchangeId,
    line: &TranscriptLine,
    conversation: &Conversation,
    model: &Model,
    position: &crate::context::Position,
) -> Turn {
    Turn {
        exchange,
        after: position.chain,
        position: position.clone(),
        done: <_>::default(),
        response: None,
        at: line.at(),
        ended: line.at(),
        upstream: line.provider.as_str().into(),
        dialect: conversation.dialect,
        model: line.model.as_str().into(),
        family: model.family,
        purpose: conversation.purpose,
        estimate: None,
        usage: <_>::default(),
        counted: None,
        stop: None,
        outcome: Outcome::Complete,
        window: model.window,
        reserve: 0,
        sketch: <_>::default(),
        reply: Vec::new(),
        anchor_keys: Vec::new(),
        provider_request_id: None,
        repeated_calls: None,
        carry: None,
    }
}

/// What a call was answered, as it was recorded.
fn answer_of(line: &TranscriptLine, dialect: Dialect, said: &[String]) -> Reply {
    let body = transcript::response(line, dialect, said);
    let mut reading = ResponseReader::new(dialect, 200, Framing::Json, REPLY);
    reading.push(&body);
    reading.finish(true)
}
