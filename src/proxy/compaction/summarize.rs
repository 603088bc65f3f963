//! Writes a summary: sends the request for it, and reads, checks and stores the response (`docs/rewriting.md`
//! "Compaction").
//!
//! Runs as a task of its own, limited in time and size, and holds the client's credentials only during the
//! call. A failure costs the compaction only; the client notices nothing.

mod provider;
mod send;
mod sums;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request;
use xxhash_rust::xxh3::xxh3_128;

use crate::clock::now;
use crate::config::Upstream;
use crate::context::compact::schedule::WritingEnd;
use crate::context::compact::{
    self, CompactionNeed, CutPoint, HistoryChunk, SummaryDraft, SummaryMessage, SummarySizes,
};
use crate::context::cost;
use crate::context::plan::{DecisionReason, RecordedDecisions};
use crate::context::policy::{DecisionMode, SummaryAuthor};
use crate::context::{CompactionRecord, Fact, ForwardedHistory, SketchPart};
use crate::dialect::lesson::Lesson;
use crate::dialect::repair::SummaryOutput;
use crate::dialect::summary::{self, SummaryQuestion};
use crate::dialect::{PartKind, ReplyPart, Usage, rewrite};
use crate::proxy::offload::{OFF_THREAD, off_thread};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::proxy::state::summaries::SummaryGuard;
use crate::store::ledgers::{ClaimedCompaction, SessionHandle};
use crate::store::lessons::LessonSource;
use crate::store::{Scope, StoreError};
use crate::telemetry::{Compaction, SummaryOutcome};
use crate::tokens::Tokenizer;
use crate::wire::splice::{Edit, splice};
use sums::SummarySpending;
pub(super) use sums::head_tokens;

/// Output tokens that are reserved for a summary, at most.
const OUTPUT: u64 = 8192;
/// The share (1/n) by which a provider may count more than we estimate.
const MARGIN: u64 = 50;
/// A stream has at most this many times the bytes of its text.
const FRAMING: usize = 64;
/// The structure around one message, tokens, roughly.
const STRUCTURE: u64 = 8;
/// How long releasing claims may take.
pub(super) const RELEASING: Duration = Duration::from_secs(1);
/// How often the store is read for another replica's summary.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A summary that is to be written.
pub(crate) struct SummaryJob {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) prepared: Arc<PreparedRequest>,
    /// The session that it is stored in.
    pub(crate) handle: SessionHandle,
    /// The decisions applied to the request that the summariser reads: as it is sent, or as the provider has
    /// it cached.
    pub(crate) known: Arc<RecordedDecisions>,
    /// The parts of the request in that form.
    pub(crate) parts: Vec<SketchPart>,
    /// The tokens of the request as it is sent.
    pub(crate) tokens: u64,
    /// The edits of the request for the summariser.
    pub(crate) edits: Arc<[Edit]>,
    /// The request's head, with its credentials.
    pub(crate) head: request::Parts,
    /// Who may write it, the first choice first.
    pub(crate) choices: Vec<SummaryChoice>,
    pub(crate) due: CompactionNeed,
    /// The compaction that an operator requested. If no summary is written, it waits again.
    pub(crate) claim: Option<ClaimedCompaction>,
    pub(crate) writing: SummaryGuard,
}

/// Who may write a summary, and where it would then cut.
pub(crate) struct SummaryChoice {
    pub(crate) by: SummaryAuthor,
    pub(crate) point: CutPoint,
}

/// The upstream and model that write a summary.
struct SummaryTarget<'a> {
    /// The upstream, if policy names another one than the request's.
    other: Option<&'a Arc<Upstream>>,
    upstream: &'a str,
    model: &'a str,
}

/// A request for the summary of a chunk.
struct SummaryRequest<'a> {
    piece: HistoryChunk,
    /// The summary of the chunks before it.
    before: Option<&'a str>,
    /// The instruction.
    instruction: &'a str,
    /// The output that it asks for.
    output: SummaryOutput,
    /// If the chunk is too large: the most tokens that the request may have.
    most_tokens: Option<u64>,
}

/// The response to such a request.
struct SummaryResponse {
    text: String,
    usage: Usage,
}

/// Why there is no summary.
#[derive(Debug)]
enum SummaryError {
    /// The upstream refused, failed or was unreachable.
    Upstream,
    /// It took too long.
    TimedOut,
    /// Reasoning is bound to its prefix, which differs in this request.
    Bound {
        /// The provider's message is one that teaches a lesson.
        is_taught: bool,
    },
    /// The response is not a usable summary.
    Rejected,
    /// The provider has no compaction of its own.
    NotOffered,
    /// It is not smaller than what it replaces, or leaves too much.
    TooLarge,
    /// Another replica writes one, or the store does not answer.
    NotOurs,
    /// The store did not save it, or one that was given up in this branch stands in its place.
    NotStored,
}

impl SummaryJob {
    /// Begins to write.
    pub(crate) fn begin(mut self) {
        // The client may leave meanwhile.
        self.writing.set_requested();
        tokio::spawn(self.write());
    }

    async fn write(mut self) {
        let began = Instant::now();
        let at = now();
        let timeout = Duration::from_secs(self.prepared.info.policy.compact.timeout_s);
        let deadline = tokio::time::Instant::now() + timeout;
        let claim = self.claim_key();
        // The claim ends with the attempt, also if this process does not live to release it.
        let written = match self.proxy.ledgers.claim(claim, self.proxy.run, timeout).await {
            Ok(true) => {
                self.proxy.summaries.add_claim(claim);
                let written = self.write_with_first_able(at, deadline).await;
                self.release_claim(claim).await;
                written
            }
            Ok(false) => {
                self.writing.set_elsewhere();
                self.wait_for_other_replica(deadline).await
            }
            // It is unknown whether another replica writes it: the next request tries again.
            Err(_) => Err(SummaryError::NotOurs),
        };
        if let (Err(SummaryError::NotOurs), Some(choice)) = (&written, self.choices.first()) {
            self.report(choice, &written, Usage::default(), began);
        }
        // A summary that another replica wrote is used first.
        if let (Ok(Some(_)) | Err(SummaryError::TooLarge), Some(claim)) =
            (&written, &mut self.claim)
        {
            claim.close();
            if written.is_err() {
                let session = &self.handle.scope.session;
                tracing::warn!(
                    "session {session} was not compacted as requested: the summary is no smaller"
                );
            }
        }
        drop(self.claim);
        let end = match written {
            Ok(_) => WritingEnd::Written,
            // This is no failure of the thread.
            Err(SummaryError::NotOurs) => WritingEnd::Cancelled,
            Err(_) => WritingEnd::Failed,
        };
        // Before the requests here that wait for it go on, and begin the next one.
        let (thread, cools_until) = self.writing.if_failed();
        self.proxy.ledgers.note_summary_end(&self.handle, thread, end, cools_until).await;
        self.writing.end(end);
    }

    /// Lets others write the next summary, or try again.
    async fn release_claim(&self, claim: u128) {
        // If the store hangs, the claim expires by itself.
        let releasing = self.proxy.ledgers.release(claim, self.proxy.run);
        let _ = tokio::time::timeout(RELEASING, releasing).await;
        self.proxy.summaries.remove_claim(claim);
    }

    /// Lets each choice try to write the summary, until one succeeds, and stores it.
    async fn write_with_first_able(
        &self,
        at: u64,
        deadline: tokio::time::Instant,
    ) -> Result<Option<CompactionRecord>, SummaryError> {
        let mut stored = Err(SummaryError::Rejected);
        for choice in &self.choices {
            let began = Instant::now();
            let mut spent = SummarySpending::default();
            let writing = async {
                match choice.by {
                    SummaryAuthor::Provider => self.by_provider(&choice.point, &mut spent).await,
                    SummaryAuthor::Summary => self.by_model(&choice.point, &mut spent).await,
                }
            };
            let written = tokio::time::timeout_at(deadline, writing).await;
            stored = match written.unwrap_or(Err(SummaryError::TimedOut)) {
                Ok(compact) => {
                    let took = now().saturating_sub(at);
                    let SummarySpending { usage: spent, dollars } = spent.clone();
                    let compact = CompactionRecord { spent, dollars, took, ..compact };
                    let fact = Fact::Summary(Box::new(compact.clone()));
                    let stored = self.proxy.ledgers.store_fact_if_absent(&self.handle, fact).await;
                    match stored {
                        // One that was given up in this branch stays so: another attempt would be paid for nothing.
                        Ok(_) if self.has_summary().await.unwrap_or(true) => Ok(Some(compact)),
                        _ => Err(SummaryError::NotStored),
                    }
                }
                Err(failed) => Err(failed),
            };
            self.report(choice, &stored, spent.usage, began);
            // Another author would have no time left, or meet the same store.
            if matches!(stored, Ok(_) | Err(SummaryError::TimedOut | SummaryError::NotStored)) {
                break;
            }
        }
        stored
    }

    /// Reports how one attempt ended, and what it cost.
    fn report(
        &self,
        choice: &SummaryChoice,
        written: &Result<Option<CompactionRecord>, SummaryError>,
        usage: Usage,
        began: Instant,
    ) {
        let SummaryTarget { upstream, model, .. } = self.target_of(choice.by);
        self.proxy.telemetry.compacted(&Compaction {
            upstream: upstream.into(),
            model: model.into(),
            engine: choice.by,
            outcome: match written {
                Ok(_) => SummaryOutcome::Written,
                Err(SummaryError::Upstream | SummaryError::Bound { .. }) => {
                    SummaryOutcome::UpstreamFailed
                }
                Err(SummaryError::TimedOut) => SummaryOutcome::TimedOut,
                Err(SummaryError::Rejected) => SummaryOutcome::Rejected,
                Err(SummaryError::NotOffered) => SummaryOutcome::NotOffered,
                Err(SummaryError::TooLarge) => SummaryOutcome::TooLarge,
                Err(SummaryError::NotOurs | SummaryError::NotStored) => SummaryOutcome::NotKept,
            },
            before: choice.point.was,
            after: match written {
                Ok(Some(summary)) => Some(summary.tokens.into()),
                Ok(None) | Err(_) => None,
            },
            seconds: began.elapsed().as_secs_f64(),
            usage,
        });
    }

    /// What a call with this usage cost.
    fn dollars(&self, by: SummaryAuthor, usage: &Usage) -> Option<f64> {
        let SummaryTarget { upstream, model, .. } = self.target_of(by);
        let price = self.proxy.price(upstream, model, model)?;
        cost::call(usage, &price, self.prepared.conversation.dialect, now())
    }

    fn why(&self) -> DecisionReason {
        match self.due {
            _ if self.claim.is_some() => DecisionReason::Requested,
            CompactionNeed::Must => DecisionReason::Window,
            CompactionNeed::No | CompactionNeed::Prepare | CompactionNeed::Swap => {
                DecisionReason::Threshold
            }
        }
    }

    /// The key of the claim: only one replica at a time writes a summary for conversations with the same beginning.
    fn claim_key(&self) -> u128 {
        let in_use = self.known.compact().map(|(_, compact)| compact.about).unwrap_or_default();
        let begins = self.prepared.conversation.chains().first().copied().unwrap_or_default();
        let Scope { tenant, session } = &self.handle.scope;
        // A digest, because names of tenants and sessions are private.
        xxh3_128(format!("summary {tenant} {session} {begins} {in_use}").as_bytes())
    }

    /// Waits for a summary of this history that another replica writes.
    async fn wait_for_other_replica(
        &self,
        until: tokio::time::Instant,
    ) -> Result<Option<CompactionRecord>, SummaryError> {
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(POLL_INTERVAL).await;
            // Without the store, nobody else's summary can be seen.
            if self.proxy.ledgers.refresh(&self.handle.scope).await.is_err() {
                break;
            }
            if self.has_summary().await.unwrap_or(false) {
                return Ok(None);
            }
        }
        Err(SummaryError::NotOurs)
    }

    /// Whether there is a summary now that the request could use, and did not know of.
    ///
    /// # Errors
    /// The store's [`StoreError`]: then it is not known.
    async fn has_summary(&self) -> Result<bool, StoreError> {
        let conversation = &self.prepared.conversation;
        let look = self.proxy.ledgers.look(&self.handle.scope, |ledger| {
            self.known.has_new_summary(ledger, conversation, DecisionMode::Active)
        });
        look.await
    }

    /// The upstream and model that write it.
    fn target_of(&self, by: SummaryAuthor) -> SummaryTarget<'_> {
        // A provider's own summary is for the request's model.
        let own_model = self.prepared.info.model_name();
        if by == SummaryAuthor::Provider {
            let upstream = &*self.prepared.info.upstream.name;
            return SummaryTarget { other: None, upstream, model: own_model };
        }
        let policy = &self.prepared.info.policy.compact;
        let other = self.proxy.summariser(policy, self.prepared.conversation.dialect);
        let upstream = &*other.unwrap_or(&self.prepared.info.upstream).name;
        SummaryTarget { other, upstream, model: policy.model.as_deref().unwrap_or(own_model) }
    }

    /// Has a model write the summary, in chunks if the history is too long for one request.
    async fn by_model(
        &self,
        point: &CutPoint,
        spent: &mut SummarySpending,
    ) -> Result<CompactionRecord, SummaryError> {
        let request = self.prepared.plan_request();
        let window = self.prepared.info.model.window;
        let instruction = self.instruction();
        let counted = self.count(&instruction);
        // A small window has to leave room for what is summarised.
        let output = OUTPUT.min(window / 6);
        let available = window.saturating_sub(output).saturating_sub(counted);
        let everything =
            HistoryChunk { from: 0, through: self.prepared.conversation.messages.len() };
        // No text may follow what still runs at the provider.
        let fits = self.tokens <= available
            && self.due < CompactionNeed::Must
            && !self.prepared.conversation.is_open_at_provider();
        let head = head_tokens(&self.parts);
        let quoted = output.saturating_add(compact::most_quoted(&request));
        let history = available.saturating_sub(head).saturating_sub(quoted).max(available / 4);
        let pieces = match fits {
            // Unchanged, because the provider has it in its cache.
            true => vec![everything],
            false => compact::pieces(&request, &self.known, &self.parts, point.cut, history),
        };
        let mut summary: Option<String> = None;
        for piece in pieces {
            let weight = compact::weigh(&request, &self.known, &self.parts, piece);
            // If everything fits, nothing is shortened: the provider has the unchanged prefix in its cache.
            let most_tokens = if !fits && weight > history { Some(available) } else { None };
            let read = match fits {
                true => self.tokens,
                false => head.saturating_add(quoted).saturating_add(weight).min(available),
            };
            let output = self.output(output, read.saturating_add(counted));
            let request = SummaryRequest {
                piece,
                before: summary.as_deref(),
                instruction: &instruction,
                output,
                most_tokens,
            };
            let answer = self.summarize_chunk(&request).await?;
            spent.add(&answer.usage, self.dollars(SummaryAuthor::Summary, &answer.usage));
            summary = Some(answer.text);
        }
        let text = summary.unwrap_or_default();
        let draft = SummaryDraft {
            cut: point.cut,
            summary: &text,
            seed: seed()?,
            is_requested: self.claim.is_some(),
        };
        let written = compact::lay_out(&request, &self.known, draft);
        let tokens = self.count(&written.raw);
        self.accept(point, written, tokens, None)
    }

    /// The output that a summary needs, if the request for it has so many tokens by our estimate.
    fn output(&self, text: u64, tokens: u64) -> SummaryOutput {
        // The provider may count more than we do, and refuses what does not fit beside the output.
        let input = tokens.saturating_add(tokens / MARGIN);
        SummaryOutput { text, room: self.prepared.info.model.window.saturating_sub(input) }
    }

    /// Requests a summary of a chunk.
    async fn summarize_chunk(
        &self,
        request: &SummaryRequest<'_>,
    ) -> Result<SummaryResponse, SummaryError> {
        // If its reasoning turns out to be bound to the omitted prefix, that is learned, and the request is
        // repeated without the reasoning.
        let SummaryTarget { upstream, model, .. } = self.target_of(SummaryAuthor::Summary);
        let source = LessonSource { upstream, model, ..self.prepared.info.lesson_source() };
        // The request for an earlier chunk may have taught it.
        let is_bound = self.prepared.plan_request().is_bound()
            || self.proxy.knows(&source, Lesson::ReasoningBound);
        let body = self.body(request, is_bound).await.ok_or(SummaryError::Rejected)?;
        match self.call(body).await {
            Err(SummaryError::Bound { is_taught }) if request.before.is_some() && !is_bound => {
                if is_taught {
                    self.proxy.learn(&source, Lesson::ReasoningBound, None).await;
                }
                let is_bound = true;
                let body = self.body(request, is_bound).await.ok_or(SummaryError::Rejected)?;
                self.call(body).await
            }
            answer => answer,
        }
    }

    /// What the summary should focus on.
    fn focuses(&self) -> impl Iterator<Item = &str> {
        let requested = self.claim.as_ref().and_then(ClaimedCompaction::focus);
        let focus = [self.prepared.info.policy.compact.focus.as_deref(), requested];
        focus.into_iter().flatten().filter(|focus| !focus.trim().is_empty())
    }

    fn instruction(&self) -> String {
        let policy = &self.prepared.info.policy.compact;
        let mut instruction = policy.prompt.clone();
        for focus in self.focuses() {
            instruction.push_str(&format!("\n\nLook above all at this: {}", focus.trim()));
        }
        format!("{instruction}\n\n{}", summary::record(policy.quote_tokens > 0))
    }

    fn count(&self, text: &str) -> u64 {
        let part = ReplyPart { text: text.to_owned(), ..ReplyPart::new(PartKind::Text) };
        u64::from(Tokenizer::now(self.prepared.info.model.family).reply().reply_part(&part))
            + STRUCTURE
    }

    /// The body that requests a summary of a chunk, after the summary `before` of the chunks before it.
    /// `bound`: the model binds its reasoning to its prefix.
    async fn body(&self, request: &SummaryRequest<'_>, bound: bool) -> Option<Bytes> {
        let SummaryRequest { piece, before, instruction, output, most_tokens } = *request;
        let edits = self.edits_of(piece, before, most_tokens)?;
        let is_later_chunk = before.is_some();
        let ends = piece.through;
        let prepared = self.prepared.clone();
        let instruction = instruction.to_owned();
        let size = prepared.body.len();
        let tenant = self.prepared.info.tenant.as_ref();
        let model = self.prepared.info.policy.compact.model.clone();
        let target = self.target();
        // Another model has nothing of the request in its cache, and a later chunk was never sent before.
        let marks = !is_later_chunk && self.is_of_its_model();
        let made = off_thread(size.max(OFF_THREAD + 1), tenant, move || {
            let slices = splice(&prepared.body, edits).ok()?;
            let mut body = Bytes::from(slices.concat());
            let conversation = &prepared.conversation;
            if is_later_chunk {
                // Its reasoning is bound to a prefix that this request leaves out.
                body = summary::without_signed(conversation.dialect, &target, body, bound);
            }
            let mut marker = None;
            if marks {
                marker = summary::marker(conversation, &prepared.body, ends);
            }
            let question = SummaryQuestion {
                instruction: &instruction,
                model: model.as_deref(),
                output,
                usage: true,
                marker: marker.as_deref(),
            };
            summary::ask(conversation.dialect, &target, &body, &question)
        });
        made.await.ok().flatten()
    }

    /// Whether the summary is written by the request's own model, which has the request cached.
    fn is_of_its_model(&self) -> bool {
        let policy = &self.prepared.info.policy.compact;
        policy.model.is_none() && policy.upstream.is_none()
    }

    /// The request's own path and query.
    fn target(&self) -> String {
        let target = self.head.uri.path_and_query();
        target.map_or("/", |target| target.as_str()).to_owned()
    }

    /// The edits that leave only this chunk in the request's body.
    fn edits_of(
        &self,
        piece: HistoryChunk,
        before: Option<&str>,
        most_tokens: Option<u64>,
    ) -> Option<Vec<Edit>> {
        let conversation = &self.prepared.conversation;
        let body = &self.prepared.body[..];
        let messages = &conversation.messages;
        let begins = messages.first()?.span.start;
        let from = messages.get(piece.from)?.span.start;
        let ends = messages.get(piece.through).map_or(usize::MAX, |message| message.span.start);
        let history_ends = messages.last()?.span.end;
        // A summary replaces what is before `from`, so an edit there has nothing to change.
        let first_edited = if before.is_some() { from } else { begins };
        let mut edits = Vec::new();
        for edit in self.edits.iter() {
            let is_in_chunk = edit.at.start >= first_edited && edit.at.end <= ends;
            let is_outside_history = edit.at.end < begins || edit.at.start > history_ends;
            if is_in_chunk || is_outside_history {
                edits.push(edit.clone());
            }
        }
        if let Some(summary) = before {
            let seed = seed().ok()?;
            let draft = SummaryDraft { cut: piece.from, summary, seed, is_requested: false };
            let raw = compact::lay_out(&self.prepared.plan_request(), &self.known, draft).raw;
            edits.extend(rewrite::compact(conversation, body, piece.from, &raw)?);
        }
        if piece.through < messages.len() {
            edits.extend(rewrite::end_before(conversation, body, piece.through)?);
        }
        if let Some(most) = most_tokens {
            let request = self.prepared.plan_request();
            edits.extend(compact::shorten(&request, &self.known, &self.parts, piece, most / 4));
        }
        Some(edits)
    }

    /// The record of a written summary.
    ///
    /// # Errors
    /// [`SummaryError::TooLarge`], if it does not save enough.
    fn accept(
        &self,
        point: &CutPoint,
        written: SummaryMessage,
        tokens: u64,
        carries: Option<ForwardedHistory>,
    ) -> Result<CompactionRecord, SummaryError> {
        let why = self.why();
        let sizes = SummarySizes { whole: self.tokens, was: point.was, tokens };
        let needed = if self.due == CompactionNeed::Must { DecisionReason::Window } else { why };
        if !compact::is_accepted(&self.prepared.plan_request(), sizes, needed) {
            return Err(SummaryError::TooLarge);
        }
        let SummaryTarget { upstream, model, .. } = self.target_of(written.by);
        Ok(CompactionRecord {
            about: point.about,
            near: point.near.clone(),
            is_own: point.is_own,
            at: now(),
            exchange: self.prepared.info.exchange.clone(),
            raw: written.raw.into(),
            was: point.was,
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            by: written.by,
            why,
            upstream: upstream.into(),
            model: model.into(),
            spent: Usage::default(),
            dollars: None,
            took: 0,
            carries,
            shadow: false,
            epoch: self.known.epoch,
        })
    }
}

fn seed() -> Result<u32, SummaryError> {
    // A random number, so that nobody could guess the summary's frame when they wrote its content.
    getrandom::u32().map_err(|_| SummaryError::Rejected)
}
