//! A provider that checks what real ones check, and returns their errors: the oracle of the tests.
//!
//! Written from `docs/protocols.md` (cited at each rule), without the product's readers: it imports
//! nothing of Plimsoll. It keeps what it issued (signatures, encrypted reasoning, replies) and what it
//! cached, and reports every silent loss. [`StrictProvider::validate`] checks a request, and depends
//! only on what is kept; [`serve()`] listens on a socket.

mod anthropic;
mod cache;
mod clock;
mod endings;
mod gemini;
mod limits;
mod miscount;
mod odd_reply;
mod openai_chat;
mod openai_responses;
mod prompt;
mod reply;
mod reply_store;
mod request;
mod request_log;
mod rules;
mod serve;
#[cfg(test)]
mod tests;
mod verdict;
mod wording;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use cache::{CachePolicy, CachePrompt, PromptCache};
use endings::StoredReplies;
use prompt::{PromptPiece, hash};
use reply::{ReplyContext, ReplyGenerator};
use reply_store::{IdGenerator, Prefix, ReplyStore};
use request_log::RequestLog;
use rules::ModelRules;
use wording::Excess;

pub use cache::{CacheUsage, MissReason, MissedPrefix};
pub use clock::Clock;
pub use endings::{ReplyEnding, UsageSum};
pub use miscount::Miscount;
pub use odd_reply::{OddReply, Stub};
pub use prompt::{MEDIA_TOKENS, PIECE_OVERHEAD_TOKENS, PROMPT_TOKENS, Place, Ttl};
pub use reply::{ScriptedPart, ScriptedReply};
pub use request::{Dialect, Operation, ReceivedRequest};
pub use request_log::LoggedRequest;
pub use rules::{ReasoningEcho, Rules, SignatureRule};
pub use serve::{StrictServer, serve};
pub use verdict::{
    AcceptedRequest, ApiError, DropReason, Loss, RequestVerdict, Rule, Transformation,
};
pub use wording::OVERFLOW_WORDINGS;

/// The strict provider. Copies share their state.
#[derive(Clone)]
pub struct StrictProvider {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for StrictProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StrictProvider").field("clock", &self.clock).finish_non_exhaustive()
    }
}

struct State {
    rules: Rules,
    store: ReplyStore,
    cache: PromptCache,
    ids: IdGenerator,
    generator: ReplyGenerator,
    queued_replies: VecDeque<ScriptedReply>,
    matched_replies: Vec<MatchedReply>,
    /// The next stream breaks off after this many events.
    cut_after: Option<usize>,
    /// How the next stream ends.
    ending: Option<ReplyEnding>,
    stored: StoredReplies,
    /// How the usage of the next reply is odd.
    miscount: Option<Miscount>,
    /// How the next reply that can be is odd.
    odd_reply: Option<OddReply>,
    log: RequestLog,
}

/// The reply to each request that contains a text.
struct MatchedReply {
    text: String,
    reply: ScriptedReply,
}

/// A response body, with the tokens of each piece of reasoning in it.
struct WrittenResponse {
    body: Value,
    reasoning_tokens: Vec<u64>,
}

/// A request that its dialect accepts.
struct ParsedRequest {
    /// The prompt as the model reads it.
    pieces: Vec<PromptPiece>,
    /// Requests with different keys share no cache, nor do those of different accounts and models.
    cache_key: u128,
    cache_policy: CachePolicy,
    /// The prefix that new reasoning will be bound to.
    prefix: Prefix,
    /// Number of the newest signature in the conversation.
    last_signature: Option<usize>,
    /// Number of the issued reply that the request continues.
    parent: Option<usize>,
    context: ReplyContext,
    /// Whether new thinking is shown without its text.
    omits_thinking: bool,
    transformations: Vec<Transformation>,
    edits: Vec<Value>,
    /// Where the provider itself removed or replaced what was sent.
    provider_edits: Vec<Place>,
    losses: Vec<Loss>,
    /// Tokens before the provider's own edits.
    unedited_tokens: u64,
}

/// The part of a [`ParsedRequest`] that the reply needs.
#[derive(Clone, Debug, Default)]
struct ReplyBasis {
    prefix: Prefix,
    last_signature: Option<usize>,
    context: ReplyContext,
    omits_thinking: bool,
    cached_prefix: Option<cache::CachedPrefix>,
}

/// The response to a request.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// HTTP status.
    pub status: u16,
    /// Headers besides `content-type`.
    pub headers: Vec<(&'static str, String)>,
    /// The response body as JSON. If a stream was requested and the status is 200, the stream has the same
    /// content in parts.
    pub body: Value,
}

impl StrictProvider {
    /// A provider on the machine's clock; `seed` determines its replies, ids and signatures.
    pub fn new(rules: Rules, seed: u64) -> Self {
        Self::with_clock(rules, seed, Clock::real())
    }

    /// The same on another clock.
    pub fn with_clock(rules: Rules, seed: u64, clock: Clock) -> Self {
        let state = State {
            rules,
            store: ReplyStore::default(),
            cache: PromptCache::default(),
            ids: IdGenerator::new(seed),
            generator: ReplyGenerator::new(seed),
            queued_replies: VecDeque::new(),
            matched_replies: Vec::new(),
            cut_after: None,
            ending: None,
            stored: StoredReplies::default(),
            miscount: None,
            odd_reply: None,
            log: RequestLog::default(),
        };
        Self { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Changes the rules from now on.
    pub fn set_rules(&self, rules: Rules) {
        self.state().rules = rules;
    }

    /// Queues a reply; generated replies follow when the queue is empty. Only accepted requests for a reply
    /// take one.
    pub fn queue_reply(&self, reply: ScriptedReply) {
        self.state().queued_replies.push_back(reply);
    }

    /// Drops the replies that wait, because the request that they were for was refused.
    pub fn clear_queue(&self) {
        self.state().queued_replies.clear();
    }

    /// Sets the reply to each request that contains `text`; such a request takes no queued reply.
    pub fn reply_to_matching(&self, text: &str, reply: ScriptedReply) {
        self.state().matched_replies.push(MatchedReply { text: text.to_owned(), reply });
    }

    /// The next streamed reply breaks off after this many events.
    pub fn cut_next_stream_after(&self, events: usize) {
        self.state().cut_after = Some(events);
    }

    /// The usage of the next reply is odd in this way, or in none.
    pub fn miscount_next(&self, how: Option<Miscount>) {
        self.state().miscount = how;
    }

    /// The next reply is odd in this way if it can be, or in none. Returns the oddity that was set and did not happen.
    pub fn odd_reply_next(&self, how: Option<OddReply>) -> Option<OddReply> {
        std::mem::replace(&mut self.state().odd_reply, how)
    }

    /// Takes the requests that were validated since the last time, oldest first.
    pub fn take_log(&self) -> Vec<LoggedRequest> {
        self.state().log.take()
    }

    /// Validates a request: what a real provider would refuse, and what it would silently lose. Reads and
    /// writes the prompt cache (not for a count), and logs the request.
    pub fn validate(&self, request: &ReceivedRequest) -> RequestVerdict {
        self.state().validate(request)
    }

    /// Validates a request without changing, caching or logging anything; returns what would be lost. The
    /// prompt cache is not read.
    ///
    /// # Errors
    /// The [`ApiError`] that it would get.
    pub fn dry_run(
        &self,
        path: &str,
        headers: &HeaderMap,
        bytes: Bytes,
    ) -> Result<Vec<Loss>, Box<ApiError>> {
        let state = self.state();
        let Some(request) = ReceivedRequest::parse(path, headers, bytes, self.clock.now()) else {
            return Ok(Vec::new());
        };
        let model = state.rules.for_model(request.dialect, &request.model);
        state.parse(&request, &model).map(|parsed| parsed.losses).map_err(Box::new)
    }

    /// The same by a provider that does not bind reasoning to its prefix.
    ///
    /// # Errors
    /// The [`ApiError`] that it would get.
    pub fn dry_run_unbound(
        &self,
        path: &str,
        headers: &HeaderMap,
        bytes: Bytes,
    ) -> Result<Vec<Loss>, Box<ApiError>> {
        let state = self.state();
        let Some(request) = ReceivedRequest::parse(path, headers, bytes, self.clock.now()) else {
            return Ok(Vec::new());
        };
        let mut model = state.rules.for_model(request.dialect, &request.model);
        model.binding = false;
        state.parse(&request, &model).map(|parsed| parsed.losses).map_err(Box::new)
    }

    /// Validates a request and returns the error, the count, or the next reply with new signatures, which are
    /// recorded.
    pub fn respond(&self, request: &ReceivedRequest) -> HttpResponse {
        self.state().respond(request)
    }

    /// Records a reply that was written elsewhere: its signatures, ids and texts count as issued for this
    /// request.
    pub fn record_reply(
        &self,
        request: &ReceivedRequest,
        accepted: &AcceptedRequest,
        body: &Value,
    ) {
        self.state().record_reply(request, accepted, body, &[]);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the provider itself changed the prompt at `place`, the first difference, or between it and the
/// piece before.
fn is_provider_edit(edits: &[Place], pieces: &[PromptPiece], place: Place) -> bool {
    let index = pieces.iter().position(|piece| piece.place == place).unwrap_or(pieces.len());
    let previous = index.checked_sub(1).map(|index| pieces[index].place);
    edits.iter().any(|edit| *edit <= place && previous.is_none_or(|previous| *edit > previous))
}

impl State {
    fn validate(&mut self, request: &ReceivedRequest) -> RequestVerdict {
        let model = self.rules.for_model(request.dialect, &request.model);
        // Only a request for a reply uses it up.
        let is_implausible = request.operation == Operation::Reply
            && std::mem::take(&mut self.rules.implausible_overflow);
        let parsed = self.parse(request, &self.without_window(&model));
        let parsed = parsed.and_then(|parsed| {
            let overflow = self.overflow(request, &model, &parsed);
            overflow.map_or(Ok(parsed), Err)
        });
        let verdict = match parsed {
            Ok(_) if is_implausible => {
                RequestVerdict::Refused(limits::implausible_overflow(request))
            }
            Ok(parsed) => self.accept(request, &model, parsed),
            Err(error) => RequestVerdict::Refused(error),
        };
        self.log.add(request, &verdict);
        verdict
    }

    fn without_window(&self, model: &ModelRules) -> ModelRules {
        // The model without its own check of the window, if a wording replaces it.
        let mut model = model.clone();
        if self.rules.overflow_wording.is_some() {
            model.window = u64::MAX / 4;
        }
        model
    }

    /// The error if prompt and output exceed the window, if a wording replaces the provider's own check.
    fn overflow(
        &self,
        request: &ReceivedRequest,
        model: &ModelRules,
        parsed: &ParsedRequest,
    ) -> Option<ApiError> {
        let wording = self.rules.overflow_wording?;
        let input = PROMPT_TOKENS + parsed.pieces.iter().map(|piece| piece.tokens).sum::<u64>();
        let output = limits::requested_output(request).unwrap_or(0);
        let excess = Excess { input, output, window: model.window };
        let exceeds = request.operation == Operation::Reply && input + output >= model.window;
        exceeds.then(|| wording::overflow(wording, excess))
    }

    fn parse(
        &self,
        request: &ReceivedRequest,
        model: &ModelRules,
    ) -> Result<ParsedRequest, ApiError> {
        limits::check(request, &self.rules)?;
        match request.dialect {
            Dialect::Anthropic => anthropic::parse(request, model, &self.store),
            Dialect::Chat => openai_chat::parse(request, model, &self.store),
            Dialect::Responses => openai_responses::parse(request, model, &self.store),
            Dialect::Gemini => gemini::parse(request, model, &self.store),
        }
    }

    fn accept(
        &mut self,
        request: &ReceivedRequest,
        model: &ModelRules,
        parsed: ParsedRequest,
    ) -> RequestVerdict {
        let mut accepted = AcceptedRequest {
            input_tokens: PROMPT_TOKENS
                + parsed.pieces.iter().map(|piece| piece.tokens).sum::<u64>(),
            unedited_tokens: parsed.unedited_tokens,
            cache_usage: CacheUsage::default(),
            transformations: parsed.transformations,
            edits: parsed.edits,
            losses: parsed.losses,
            basis: Arc::default(),
        };
        let mut basis = ReplyBasis {
            prefix: parsed.prefix,
            last_signature: parsed.last_signature,
            context: parsed.context,
            omits_thinking: parsed.omits_thinking,
            cached_prefix: None,
        };
        // A count reads and writes no cache.
        if request.operation != Operation::CountTokens {
            let account = request.account.unwrap_or_default();
            let namespace = [hash(&[&model.name]), account, parsed.cache_key];
            let namespace = namespace.into_iter().fold(0, prompt::link);
            let parent = parsed.parent.and_then(|reply| self.store.reply(reply));
            let previous = parent.and_then(|reply| reply.cached_prefix.as_ref());
            let prompt = CachePrompt {
                namespace,
                pieces: &parsed.pieces,
                fixed_tokens: PROMPT_TOKENS,
                policy: parsed.cache_policy,
            };
            let mut result = self.cache.read_and_write(&prompt, previous, request.received_at);
            basis.cached_prefix = Some(result.cached_prefix);
            if let Some(missed) = &mut result.usage.missed {
                match missed.reason {
                    MissReason::Changed(place)
                        if is_provider_edit(&parsed.provider_edits, &parsed.pieces, place) =>
                    {
                        // What the provider changed itself is no loss that the client caused.
                        missed.reason = MissReason::ProviderEdit(place);
                    }
                    reason => {
                        accepted.losses.push(Loss::CacheMissed { tokens: missed.tokens, reason });
                    }
                }
            }
            accepted.cache_usage = result.usage;
        }
        accepted.basis = Arc::new(basis);
        RequestVerdict::Accepted(accepted)
    }

    fn respond(&mut self, request: &ReceivedRequest) -> HttpResponse {
        let accepted = match self.validate(request) {
            RequestVerdict::Refused(ApiError { status, headers, body, .. }) => {
                return HttpResponse { status, headers, body: *body };
            }
            RequestVerdict::Accepted(accepted) => accepted,
        };
        let body = match (request.operation, request.dialect) {
            (Operation::CountTokens, Dialect::Responses) => openai_responses::count(&accepted),
            (Operation::CountTokens, Dialect::Gemini) => gemini::count(&accepted),
            (Operation::CountTokens, _) => anthropic::count(&accepted),
            (Operation::Compact, Dialect::Responses) => {
                let model = self.rules.for_model(request.dialect, &request.model);
                let (store, ids) = (&mut self.store, &mut self.ids);
                openai_responses::compact(request, &model, &accepted, store, ids)
            }
            (Operation::Compact, _) => {
                let model = self.rules.for_model(request.dialect, &request.model);
                let (store, ids) = (&mut self.store, &mut self.ids);
                anthropic::compact(request, &model, &accepted, store, ids)
            }
            (Operation::Reply, _) => {
                let body = self.reply(request, &accepted);
                self.log.set_reply(&body);
                body
            }
        };
        HttpResponse { status: 200, headers: vec![("request-id", self.ids.id("req_"))], body }
    }

    /// The next reply as the request's dialect writes it, with as many choices as were asked for.
    fn reply(&mut self, request: &ReceivedRequest, accepted: &AcceptedRequest) -> Value {
        let reply = self.next_reply(request, &accepted.basis.context);
        let mut body = self.write_choice(request, accepted, &reply);
        for nth in 1..odd_reply::requested_replies(request) {
            let other = self.write_choice(request, accepted, &reply.alternative(nth));
            odd_reply::add_choice(request.dialect, &mut body, other);
        }
        body
    }

    /// The next reply: one that was set, or a generated one.
    fn next_reply(&mut self, request: &ReceivedRequest, context: &ReplyContext) -> ScriptedReply {
        let matched = self.matched_replies.iter().find(|matched| {
            memchr::memmem::find(&request.bytes, matched.text.as_bytes()).is_some()
        });
        let matched = matched.map(|matched| matched.reply.clone());
        let is_matched = matched.is_some();
        let scripted = matched.or_else(|| self.queued_replies.pop_front());
        let reply = scripted.unwrap_or_else(|| self.generator.generate(context));
        let hides = matches!(self.odd_reply, Some(OddReply::HiddenReasoning { .. }));
        // A reply that was set for a text comes as it is.
        let may_hide = !is_matched && !context.must_begin_with_thinking;
        if context.thinks && !(hides && may_hide) { reply } else { reply.without_thinking() }
    }

    /// One reply as the request's dialect writes it, recorded as issued.
    fn write_choice(
        &mut self,
        request: &ReceivedRequest,
        accepted: &AcceptedRequest,
        reply: &ScriptedReply,
    ) -> Value {
        let model = self.rules.for_model(request.dialect, &request.model);
        let ids = &mut self.ids;
        let WrittenResponse { body, reasoning_tokens } = match request.dialect {
            Dialect::Anthropic => anthropic::write_response(request, accepted, reply, ids),
            Dialect::Chat => openai_chat::write_response(request, &model, accepted, reply, ids),
            Dialect::Responses => {
                openai_responses::write_response(request, &model, accepted, reply, ids)
            }
            Dialect::Gemini => gemini::write_response(request, &model, accepted, reply, ids),
        };
        self.record_reply(request, accepted, &body, &reasoning_tokens);
        body
    }

    fn record_reply(
        &mut self,
        request: &ReceivedRequest,
        accepted: &AcceptedRequest,
        body: &Value,
        reasoning_tokens: &[u64],
    ) {
        let model = self.rules.for_model(request.dialect, &request.model);
        let store = &mut self.store;
        match request.dialect {
            Dialect::Anthropic => {
                anthropic::record_reply(request, &model, accepted, body, reasoning_tokens, store);
            }
            Dialect::Chat => openai_chat::record_reply(request, &model, accepted, body, store),
            Dialect::Responses => {
                openai_responses::record_reply(
                    request,
                    &model,
                    accepted,
                    body,
                    reasoning_tokens,
                    store,
                );
            }
            Dialect::Gemini => {
                gemini::record_reply(request, &model, accepted, body, reasoning_tokens, store);
            }
        }
    }
}
