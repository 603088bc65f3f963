//! From a request and its reply to a turn: what an exchange taught, and the keeping of it.
//!
//! Measured before the request leaves, built and kept once the ending is known. What is not known
//! stays absent; a store that fails costs the turn after a restart, never the client its answer.

mod build;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{StatusCode, request};

use super::account::Account;
use super::analysis::long_work;
use super::compacting::Attended;
use super::counting::Awaited;
use super::outbound::Rewrite;
use super::planned::{Planned, Subject};
use super::refused::may_not_fit;
use super::retold::Unpruned;
use super::tap::Settle;
use super::unheard::{Unheard, wait_again};
use super::{Proxy, calibration, drafts, lessons, now};
use crate::context::budget::Classic;
use crate::context::overflow::{self, Overflowed, Sign};
use crate::context::policy::{Mode, Told as ToldUsage};
use crate::context::savings::{Exchanged, Saved};
use crate::context::words::Words;
use crate::context::{Anew, Aside, Estimate, Fact, Millis, Outcome, TakenBack, say};
use crate::dialect::lesson::{Lesson, Taught};
use crate::dialect::models::Binding;
use crate::dialect::overflow::{Answered, Overflow, overflow as told_overflow};
use crate::dialect::refusal::{self, Cause};
use crate::dialect::{PartKey, ProviderError, Purpose, Reply, Usage};
use crate::store::ledgers::{DraftGuard, Latest, Opened, Room};
use crate::telemetry::{Exchange, FailOpen, Flight, LessonOutcome};
use crate::wire::splice::Edit;
use build::Ending;

/// Replies of more bytes than this are counted off the async threads: with an exact vocabulary that
/// takes 1 ms and more, and other streams must not wait meanwhile.
const LARGE: usize = 32 * 1024;

/// What a turn is made of before its reply is known.
pub(crate) struct Measure {
    opened: Opened,
    subject: Arc<Subject>,
    planned: Planned,
    counted: Option<Awaited>,
    /// What stays of it where this process ends first.
    draft: Option<DraftGuard>,
    /// What it says, until it is answered.
    unheard: Option<Unheard>,
}

impl Measure {
    pub(crate) fn new(
        opened: Opened,
        subject: Arc<Subject>,
        planned: Planned,
        unheard: Option<Unheard>,
    ) -> Self {
        Self { opened, subject, planned, counted: None, draft: None, unheard }
    }

    /// What is measured.
    pub(crate) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Whether other bytes are sent than came.
    pub(crate) fn is_rewritten(&self) -> bool {
        self.planned.done.is_sent()
    }

    /// A count by the provider is on its way.
    pub(crate) fn awaits(&mut self, counted: Option<Awaited>) {
        self.counted = counted;
    }

    /// What the request will cost.
    pub(crate) fn estimate(&self) -> Option<&Estimate> {
        self.planned.measured.as_ref().map(|measured| &measured.estimate)
    }

    /// What is seen of it while it is on its way.
    pub(crate) fn flight(&self, at: Millis) -> Option<Flight> {
        let scope = &self.opened.scope;
        Some(Flight {
            id: self.subject.id.clone(),
            tenant: scope.tenant.clone(),
            session: scope.session.clone(),
            thread: self.opened.placed.standing.thread.clone(),
            at,
            purpose: self.subject.conversation.purpose,
            view: self.planned.view(&self.subject)?,
        })
    }

    /// From now on it is known that it began, at this time.
    pub(crate) fn begin(&mut self, proxy: &Proxy, at: Millis) {
        let streams = self.subject.conversation.stream;
        let delay = if streams { drafts::STREAM } else { drafts::UNARY };
        self.draft = Some(proxy.ledgers.draft(&self.opened, self.draft(at), delay));
    }

    /// Where is noted how far its reply is.
    pub(crate) fn latest(&self) -> Option<Arc<Latest>> {
        self.draft.as_ref().map(DraftGuard::latest)
    }

    /// What an agent's rules say that it will cost, where they are asked.
    pub(crate) fn classic(&self) -> Option<&Classic> {
        self.planned.measured.as_ref()?.classic.as_ref()
    }

    /// What the head has to list for them.
    pub(crate) fn beta(&self) -> Option<&'static str> {
        self.planned.beta(&self.subject)
    }

    /// The changes of bytes, once.
    pub(crate) fn edits(&mut self) -> Vec<Edit> {
        std::mem::take(&mut self.planned.edits)
    }

    /// The original is sent in place of what was refused.
    pub(crate) async fn is_sent_as_it_came(&mut self, account: &mut Account) {
        self.planned.is_sent_as_it_came(&self.subject).await;
        account.event.estimate = self.estimate().cloned();
        account.event.classic = self.classic().cloned();
    }

    /// The provider said that the request does not fit: what it said of the window holds for this
    /// request, and is learned where its words teach.
    ///
    /// `taught`: what the same words teach, if anything.
    pub(crate) async fn overflowed(
        &mut self,
        (sign, said): (Sign, Overflow),
        taught: &Taught,
        account: &mut Account,
    ) {
        let overflowed = Overflowed { sign, said, saved: false };
        account.event.done.overflow = Some(overflowed);
        self.planned.done.overflow = Some(overflowed);
        let Some(window) = said.window else { return };
        let subject = Arc::make_mut(&mut self.subject);
        let believed = std::mem::replace(&mut subject.model.window, window);
        let proxy = account.proxy.clone();
        subject.reserve = subject.model.reserve(proxy.config.output_reserve);
        account.event.window = Some(window);
        let Some(window) = self.believes(taught, &proxy) else { return };
        let patience = Duration::from_millis(proxy.config.limits.save_ms);
        let subject = self.subject.clone();
        let learning = tokio::spawn(async move {
            proxy.learn(&subject.source(), Lesson::Window(window), Some(believed)).await;
        });
        let _ = tokio::time::timeout(patience, learning).await;
    }

    /// The window that a message teaches, where it agrees with what was sent.
    fn believes(&self, taught: &Taught, proxy: &Proxy) -> Option<u64> {
        let subject = &self.subject;
        proxy.count_quoted(&subject.upstream, taught);
        let estimate = self.estimate().map(|estimate| (estimate.tokens, estimate.method));
        let window = taught.window()?;
        let is_plausible = lessons::is_plausible(window, subject, estimate);
        if !is_plausible {
            proxy.telemetry.lesson(&subject.upstream, LessonOutcome::Implausible);
        }
        is_plausible.then_some(window)
    }

    /// Room in a request that does not fit: by cutting what can be cut, else, or where that is too
    /// little, by a summary. `None` where there is none. `head`: the request's, as it goes out.
    pub(crate) async fn make_room(
        &mut self,
        said: Overflow,
        head: &request::Parts,
        account: &mut Account,
    ) -> Option<Replanned> {
        let (subject, proxy) = (&self.subject, &account.proxy.clone());
        let making = self.planned.with_room(proxy, subject, &self.opened, said);
        let pruned = AssertUnwindSafe(making).catch_unwind().await.ok().flatten();
        let is_pruned = pruned.is_some();
        let mut planned = match pruned {
            Some(planned) => planned,
            // Its edits went out with it.
            None => self.planned.again(subject).await,
        };
        let (opened, patience) = (&mut self.opened, subject.policy.compact.wait_s);
        // All its waits together are bounded.
        let waited = account.event.compaction_wait_us.unwrap_or(0);
        let patience = Duration::from_secs(patience);
        let patience = patience.saturating_sub(Duration::from_micros(waited));
        let planning = &mut planned;
        let mut attended =
            Attended { proxy, subject, opened, planned: planning, head, waited: None };
        let compacting = attended.compact_now(patience, !is_pruned);
        let compacted = AssertUnwindSafe(compacting).catch_unwind().await.unwrap_or(false);
        let more = attended.waited.map(|waited| waited.as_micros() as u64);
        if let Some(more) = more {
            account.event.compaction_wait_us = Some(waited.saturating_add(more));
        }
        let plain = subject.body.clone();
        let beta = planned.beta(subject);
        (compacted || is_pruned).then_some(Replanned { plain, beta, planned })
    }

    /// What the provider answered is the answer to the request with room in it.
    pub(crate) fn has_room(&mut self, room: Replanned, saved: bool, account: &mut Account) {
        let said = self.planned.done.overflow.take();
        self.planned = room.planned;
        self.planned.done.overflow = said.map(|said| Overflowed { saved, ..said });
        self.tells(account);
    }

    fn tells(&self, account: &mut Account) {
        let event = &mut account.event;
        event.done = self.planned.done.clone();
        event.estimate = self.estimate().cloned();
        event.classic = self.classic().cloned();
    }

    /// Whether it is large enough that its answer, though accepted, may turn out to say that it does not
    /// fit: past half of the window, or where nobody knows the window, past what any holds.
    pub(crate) fn may_overflow(&self) -> bool {
        let model = &self.subject.model;
        let least = if model.known { model.window / 2 } else { overflow::ANY_HOLDS };
        let is_turn = self.subject.conversation.purpose == Purpose::Turn;
        is_turn && self.estimate().is_some_and(|estimate| estimate.tokens > least)
    }

    /// Whether it may be sent again with room made in it, should it not fit.
    pub(crate) fn may_make_room(&self) -> bool {
        let subject = &self.subject;
        subject.mode == Mode::Active && !subject.held_out && !subject.signed
    }

    /// Whether something was put into the request that its client left out.
    pub(crate) fn puts_back(&self) -> bool {
        self.planned.done.made.put_back > 0
    }

    /// The request as those before it were sent, where a refusal that names `cause` may be due to what was
    /// decided for it; what the refusal says of the model holds for it already.
    pub(crate) async fn as_before(&mut self, cause: Cause) -> Option<Replanned> {
        if cause == Cause::Bound {
            Arc::make_mut(&mut self.subject).model.binding = Binding::Prefix;
        }
        let replanning = self.planned.as_before(&self.subject, cause);
        let planned = AssertUnwindSafe(replanning).catch_unwind().await.ok().flatten()?;
        let (plain, beta) = (self.subject.body.clone(), planned.beta(&self.subject));
        Some(Replanned { plain, beta, planned })
    }

    /// What the provider answered is the answer to the request as those before it were sent: answers what
    /// it decided beside, which is void.
    pub(crate) fn is_sent_as_before(
        &mut self,
        before: Replanned,
        cause: Cause,
        account: &mut Account,
    ) -> Vec<PartKey> {
        let void = self.planned.decided_beyond(Some(&before.planned), &self.subject.id);
        self.planned = before.planned;
        self.planned.done.taken_back = Some(cause);
        self.tells(account);
        void
    }

    /// What making room decided, which is void: it was refused.
    pub(crate) fn room_is_void(&self, room: &Replanned) -> Vec<PartKey> {
        room.planned.decided_beyond(Some(&self.planned), &self.subject.id)
    }

    /// What the request decided.
    pub(crate) fn decided(&self) -> Vec<PartKey> {
        self.planned.decided_beyond(None, &self.subject.id)
    }

    /// It was the rewrite that was refused.
    pub(crate) fn was_refused(&mut self, cause: Cause) {
        self.planned.done.resent = Some(cause);
    }

    /// What grows from it is set aside: answers the fact that says so.
    pub(crate) fn sets_aside(&mut self) -> (Room, Fact) {
        let at = now();
        let standing = &mut self.opened.placed.standing;
        standing.aside = Some(at);
        let (thread, parent) = (standing.thread.clone(), standing.parent.clone());
        let aside = Aside { request: self.subject.id.clone(), thread, parent, at };
        (self.opened.room(), Fact::Aside(Box::new(aside)))
    }

    /// What it decided about these is void, if they are any: answers the fact that says so.
    pub(crate) fn takes_back(&self, about: Vec<PartKey>, anew: Anew) -> Option<(Room, Fact)> {
        let (request, at) = (self.subject.id.clone(), now());
        let standing = &self.opened.placed.standing;
        let (thread, parent) = (standing.thread.clone(), standing.parent.clone());
        let taken = TakenBack { request, thread, parent, at, about, anew };
        (!taken.about.is_empty()).then(|| (self.opened.room(), Fact::TakenBack(Box::new(taken))))
    }

    /// Keeps the turn once its reply is known.
    pub(crate) fn settle(mut self, proxy: Arc<Proxy>) -> Settle {
        let unsaid = self.unsaid();
        // From now on its ending says whether they were heard.
        self.unheard.take().into_iter().for_each(Unheard::end);
        self.revise_draft();
        self.planned.decides_no_more();
        Box::new(move |event: &mut Exchange, reply: Reply| {
            let host = proxy.host_of(event.upstream.as_deref()).unwrap_or_default();
            if event.outcome == Outcome::Refused {
                // Nothing was answered: there is no turn, and who waits for it may go on.
                let outgrew = self.outgrew(event, &host, &reply);
                let status = event.status.unwrap_or_default();
                return Box::pin(self.refused(proxy, (status, reply), unsaid, outgrew));
            }
            self.shown(event, &host, &reply);
            event.saved = Some(self.saved(&reply.usage));
            let told = Ending::of(event);
            let content = proxy.config.content;
            Box::pin(async move {
                self.learns(&proxy, told.outcome, &reply).await;
                let (subject, draft) = (self.subject.clone(), self.draft.take());
                let lesson = self.lesson(&told, &reply);
                let words: usize = reply.parts.iter().map(|part| part.text.len()).sum();
                let at = told.at;
                let is_large = words > LARGE || content.keep && subject.body.len() > LARGE;
                let learned = calibration::Lesson::after(lesson.as_ref(), &subject.learned);
                let build = move || {
                    let said = content.keep.then(|| self.words(&reply, content.exchange_bytes));
                    let (opened, facts) = self.facts(told, &reply, unsaid, &learned);
                    (said.map(|said| (opened.room(), said)), opened, facts)
                };
                let (said, opened, facts) = match is_large {
                    // A panic goes where one on this thread would.
                    true => long_work(build)
                        .await
                        .unwrap_or_else(|panicked| resume_unwind(panicked.into_panic())),
                    false => build(),
                };
                let mut kept = proxy.ledgers.commit(opened, facts).await;
                draft.into_iter().for_each(DraftGuard::release);
                if let Some(lesson) = lesson {
                    proxy.calibration.learn(&proxy.ledgers, &subject, &lesson);
                }
                if let Some((room, said)) = said.filter(|_| kept.is_ok()) {
                    let most = content.session_bytes;
                    kept = proxy.ledgers.keep_words(room, &said, at, most).await;
                }
                kept.is_err().then_some(FailOpen::Store)
            })
        })
    }

    /// An overflow that the reply shows; one that was told before it stays.
    fn shown(&mut self, event: &mut Exchange, host: &str, reply: &Reply) {
        if self.planned.done.overflow.is_some() {
            return;
        }
        let evidence = self.planned.evidence(&self.subject, host);
        let shown = overflow::shown(reply, self.subject.conversation.purpose, &evidence);
        self.planned.done.overflow = shown;
        event.done.overflow = shown;
    }

    /// What a reply says of its upstream: an error in it may teach a window, and an answer shows what the
    /// model holds, and what is missing beside it.
    async fn learns(&self, proxy: &Proxy, outcome: Outcome, reply: &Reply) {
        let (subject, status) = (&self.subject, StatusCode::OK.as_u16());
        let source = subject.source();
        let in_reply = self.planned.done.overflow.filter(|seen| seen.sign == Sign::InReply);
        if let (Some(error), Some(_)) = (&reply.error, in_reply) {
            let error = lessons::Error::InReply { status, error };
            let taught = lessons::taught(error, subject, None).await;
            if let Some(window) = self.believes(&taught, proxy) {
                let believed = Some(subject.model.window);
                proxy.learn(&source, Lesson::Window(window), believed).await;
            }
        }
        if outcome != Outcome::Complete {
            return;
        }
        let held = reply.usage.context();
        let held = held.map(|held| held.input.saturating_add(held.output));
        proxy.ledgers.lessons().answered(&source, held, now());
        if self.counted.as_ref().is_some_and(Awaited::is_missing) {
            proxy.learn(&source, Lesson::CountMissing, None).await;
        }
    }

    /// Whether a refusal that went through unread says that the request does not fit; tells of it.
    fn outgrew(&mut self, event: &mut Exchange, host: &str, reply: &Reply) -> bool {
        let overflowed = self.overflow_in(event, host, reply);
        if let Some(overflowed) = overflowed {
            event.done.overflow = Some(overflowed);
            event.window = overflowed.said.window.or(event.window);
        }
        overflowed.is_some()
    }

    fn overflow_in(&self, event: &Exchange, host: &str, reply: &Reply) -> Option<Overflowed> {
        let status = StatusCode::from_u16(event.status?).ok()?;
        if self.may_make_room() || self.planned.done.overflow.is_some() || !may_not_fit(status) {
            return None;
        }
        let is_empty = event.response_bytes == 0;
        let error = reply.error.as_ref().map(ProviderError::words);
        let words = error.or(is_empty.then(String::new))?;
        let status = status.as_u16();
        let said = told_overflow(&Answered { status, host, body: words.as_bytes() })?;
        Some(Overflowed { sign: Sign::Refused, said, saved: false })
    }

    /// What its client is told of usage beyond what is reported, where policy says so and there is any.
    pub(crate) fn unpruned(&self) -> Option<Unpruned> {
        let (done, conversation) = (&self.planned.done, &self.subject.conversation);
        let wants = self.subject.policy.client_usage == ToldUsage::Unpruned && done.is_sent();
        let tokens = done.tokens_removed.saturating_add(done.tokens_compacted);
        let tokens = tokens.saturating_sub(done.tokens_added);
        let (dialect, streams) = (conversation.dialect, conversation.stream);
        (wants && tokens > 0).then_some(Unpruned { dialect, tokens, streams })
    }

    /// What rewriting did for it.
    fn saved(&self, usage: &Usage) -> Saved {
        let parent = self.opened.placed.parent.as_ref();
        let exchanged = Exchanged {
            done: &self.planned.done,
            usage,
            counted: self.counted.as_ref().and_then(Awaited::here),
            estimate: self.estimate(),
            before: parent.map(|parent| &parent.usage),
            price: self.subject.model.price,
            dialect: self.subject.conversation.dialect,
        };
        exchanged.saved()
    }

    /// Words that were said at the end of the request, to wait again if nobody heard them.
    fn unsaid(&self) -> Vec<Fact> {
        let is_in_vain = self.planned.done.resent.is_some();
        say::again(&self.planned.known, &self.subject.id, now(), is_in_vain)
    }

    /// Nobody answered the request: what it said waits again. Its client waits for an answer of ours, and
    /// no longer for the store than for a decision.
    pub(crate) async fn unheard(&mut self, proxy: &Proxy) {
        let patience = Duration::from_millis(proxy.config.limits.save_ms);
        let (room, unsaid) = (self.opened.room(), self.unsaid());
        let keeping = async {
            for fact in unsaid {
                wait_again(proxy, &room, fact).await;
            }
        };
        if tokio::time::timeout(patience, keeping).await.is_ok() {
            self.unheard.take().into_iter().for_each(Unheard::end);
        }
    }

    /// A refusal is no turn; it may be a lesson.
    async fn refused(
        self,
        proxy: Arc<Proxy>,
        (status, reply): (u16, Reply),
        unsaid: Vec<Fact>,
        outgrew: bool,
    ) -> Option<FailOpen> {
        let room = self.opened.room();
        for fact in unsaid {
            wait_again(&proxy, &room, fact).await;
        }
        let error = reply.error.as_ref()?;
        let words = error.message.as_deref().unwrap_or_default();
        let demands = refusal::cause(words.as_bytes()) == Cause::ReasoningDemanded;
        if !demands && !outgrew {
            return None;
        }
        let error = lessons::Error::InReply { status, error };
        let taught = lessons::taught(error, &self.subject, None).await;
        let window = self.believes(&taught, &proxy).filter(|_| outgrew);
        let source = self.subject.source();
        if demands && taught.holds(Lesson::ReasoningDemanded) {
            proxy.learn(&source, Lesson::ReasoningDemanded, None).await;
        }
        if let Some(window) = window {
            let believed = Some(self.subject.model.window);
            proxy.learn(&source, Lesson::Window(window), believed).await;
        }
        None
    }

    /// What the answer teaches about counting, where what was reported measures what was estimated.
    fn lesson(&mut self, told: &Ending, reply: &Reply) -> Option<calibration::Lesson> {
        let usage = &reply.usage;
        let measures = !usage.lower_bound
            && !usage.hosted_tools
            && usage.last_call.is_none()
            && usage.cleared.is_none()
            && told.outcome == Outcome::Complete
            && self.subject.conversation.purpose == Purpose::Turn;
        let measured = self.planned.measured.as_mut()?;
        let seen = measured.seen.take()?;
        let actual = usage.input.filter(|input| *input > 0 && measures)?;
        Some(calibration::Lesson { seen, guess: measured.estimate.guess, actual })
    }

    /// What was said in the exchange that was not said in the turn before it.
    fn words(&self, reply: &Reply, most: usize) -> Words {
        let Subject { conversation, body, .. } = &*self.subject;
        Words::of(conversation, body, &self.opened.placed, reply, most)
    }
}

/// A request that is planned otherwise after it was refused, and is not sent yet.
pub(crate) struct Replanned {
    /// The body without its encoding.
    plain: Bytes,
    /// What the head has to list.
    beta: Option<&'static str>,
    planned: Planned,
}

impl Replanned {
    /// What is changed in the body.
    pub(crate) fn rewrite(&self) -> Rewrite {
        let (plain, edits) = (self.plain.clone(), self.planned.edits.clone());
        Rewrite { plain, edits, beta: self.beta }
    }
}
