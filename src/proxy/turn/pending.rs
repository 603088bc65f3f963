//! An exchange in flight, from its plan to its accepted form: the request, and the forms in which it was sent.
//!
//! What was added, cut, revoked or made room for on the way is kept in its [`PlacedRequest`] until the response has
//! begun. Then [`PlacedRequest::open`] makes an [`OpenTurn`](super::open::OpenTurn) of it, which lasts until the reply
//! has ended. An [`OpenExchange`] is only what the page shows of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{build, drafts};
use crate::clock::now;
use crate::context::inject::DeliveryFailure;
use crate::context::overflow::{self, OverflowReport};
use crate::context::policy::ReportedUsage;
use crate::context::{Fact, Millis, Renewal, Revocation, Suspension, repair};
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::models::ReasoningBinding;
use crate::dialect::overflow::Overflow;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::{Refusal, RepairCause};
use crate::dialect::{PartKey, Purpose};
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::plan::undelivered::UndeliveredMessages;
use crate::proxy::response::usage_rewrite::UsageAddition;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::store::ledgers::DraftGuard;
use crate::telemetry::{OpenExchange, StepKind, micros};

impl PlacedRequest {
    /// Begins its draft. Called once it is planned.
    pub(crate) fn begin_draft(&mut self, at: Millis) {
        let streams = self.planned.prepared.conversation.stream;
        let delay = if streams { drafts::STREAM } else { drafts::UNARY };
        let draft = build::draft(self, at);
        self.draft = Some(self.proxy.ledgers.draft(&self.opened, draft, delay));
    }

    pub(super) fn revise_draft(&self, draft: &DraftGuard) {
        // Another form than the planned one may have been sent in the end.
        draft.revise(|turn| {
            let is_same = turn.done == self.planned.done
                && turn.estimate.as_ref() == self.estimate()
                && turn.position == self.opened.placed.position;
            if is_same { None } else { Some(build::draft(self, turn.at)) }
        });
    }

    /// Records how long it waited for summaries, if it did since it had waited for `earlier`.
    pub(crate) fn record_summary_wait(&self, earlier: Duration, recorder: &mut ExchangeRecorder) {
        let waited = self.summary_wait;
        if waited > earlier {
            recorder.event.timing.compaction_wait_us = Some(micros(waited));
            recorder.record_wait(StepKind::Compaction, waited - earlier);
        }
    }

    pub(crate) fn open_exchange(&self, at: Millis) -> Option<OpenExchange> {
        let scope = &self.opened.scope;
        Some(OpenExchange {
            id: self.planned.prepared.info.exchange.clone(),
            tenant: scope.tenant.clone(),
            session: scope.session.clone(),
            position: self.opened.placed.position.clone(),
            hints: self.planned.prepared.info.hints.clone(),
            at,
            purpose: self.planned.prepared.conversation.purpose,
            view: self.planned.view()?,
        })
    }

    /// `cause`: why it was sent again, if it had been rewritten.
    pub(crate) async fn set_sent_as_original(
        &mut self,
        cause: Option<RefusalCause>,
        recorder: &mut ExchangeRecorder,
    ) {
        self.planned.done.resent = cause;
        let unmeasured = self.planned.set_sent_as_original().await;
        if let Some(why) = unmeasured {
            recorder.event.add_fail_open(why);
        }
        if let Some(count) = &self.counted {
            count.set_replaced();
        }
        self.record_plan(recorder);
    }

    /// `taught`: the lessons of the same message.
    pub(crate) async fn record_overflow(
        &mut self,
        overflow: OverflowReport,
        taught: &LessonMatch,
        recorder: &mut ExchangeRecorder,
    ) {
        self.planned.done.overflow = Some(overflow);
        self.record_plan(recorder);
        // The window in the message applies to this request, and is learned if the message teaches it.
        let Some(window) = overflow.reported.window else { return };
        let proxy = recorder.proxy.clone();
        let info = Arc::make_mut(&mut Arc::make_mut(&mut self.planned.prepared).info);
        let believed = info.set_named_window(window, proxy.config.output_reserve);
        recorder.record_request(&self.planned.prepared.info);
        let estimate = self.estimate().map(|estimate| (estimate.tokens, estimate.method));
        let info = self.planned.prepared.info.clone();
        let Some(window) = info.window_to_learn(taught, estimate, &proxy) else { return };
        let storing = recorder.proxy.store_in_time(async move {
            proxy.learn(&info.lesson_source(), Lesson::Window(window), Some(believed)).await;
        });
        storing.await;
    }

    /// Whether the numbers in a message cannot be those of this request.
    pub(crate) fn contradicts_estimate(&self, stated: &Overflow) -> bool {
        let conversation = &self.planned.prepared.conversation;
        let pictures = &self.planned.prepared.info.model.pictures;
        self.estimate()
            .is_some_and(|estimate| overflow::contradicts(stated, estimate, conversation, pictures))
    }

    pub(crate) fn confirms(&self, stated: &Overflow) -> bool {
        // Whether the numbers in a message, which has nothing else to say, may be those of this request.
        self.estimate().is_some() && !self.contradicts_estimate(stated)
    }

    /// Counts what a message about something else would teach.
    pub(crate) fn count_unlearned(&self, taught: &LessonMatch) {
        let size = self.estimate().map(|estimate| (estimate.tokens, estimate.method));
        self.planned.prepared.info.count_unlearned(taught, size, &self.proxy);
    }

    pub(crate) fn output_refused(&self, stated: &Overflow) -> Option<Refusal> {
        let estimate = self.estimate()?.tokens;
        repair::refused_output(&self.planned.prepared.plan_request(), stated, estimate)
    }

    /// `taught`: the lessons of its message.
    pub(crate) async fn learn_max_output(&self, taught: &LessonMatch, recorder: &ExchangeRecorder) {
        let requested = self.planned.prepared.conversation.max_output;
        let max_output = taught
            .max_output()
            .filter(|limit| requested.is_some_and(|requested| requested > *limit));
        let info = self.planned.prepared.info.clone();
        let proxy = recorder.proxy.clone();
        proxy.count_quoted(&self.planned.prepared.info.upstream.name, taught);
        // Once the provider accepted a request with no more than that, no other request is to be refused for
        // it.
        let Some(max_output) = max_output else { return };
        let storing = recorder.proxy.store_in_time(async move {
            proxy.learn(&info.lesson_source(), Lesson::MaxOutput(max_output), None).await;
        });
        storing.await;
    }

    pub(crate) fn may_repair(&self) -> bool {
        self.may_make_room() && !self.planned.prepared.store_missed
    }

    pub(crate) fn allows_repair(&self, cause: RepairCause) -> bool {
        self.planned.prepared.info.policy.heal.causes.contains(&cause)
    }

    pub(crate) fn set_repaired(
        &mut self,
        repaired: PlannedRequest,
        healed: &[RepairCause],
        recorder: &mut ExchangeRecorder,
    ) {
        self.replace_planned(repaired);
        self.planned.done.healed = healed.to_vec();
        self.record_plan(recorder);
    }

    pub(crate) fn set_room(
        &mut self,
        room: PlannedRequest,
        accepted: bool,
        recorder: &mut ExchangeRecorder,
    ) {
        // The report is of the request, whatever form it has.
        let overflow = self.planned.done.overflow.take();
        self.replace_planned(room);
        self.planned.done.overflow =
            overflow.map(|overflow| OverflowReport { saved: accepted, ..overflow });
        self.record_plan(recorder);
    }

    fn replace_planned(&mut self, mut revised: PlannedRequest) {
        // What responses said about the request holds for each of its forms.
        revised.prepared = self.planned.prepared.clone();
        self.planned = revised;
        if let Some(count) = &self.counted {
            count.set_replaced();
        }
    }

    pub(crate) fn record_plan(&self, recorder: &mut ExchangeRecorder) {
        recorder.record_plan(&self.planned.done, self.planned.measured.as_deref());
    }

    pub(crate) fn may_overflow(&self) -> bool {
        let model = &self.planned.prepared.info.model;
        // Above half of the window, or if that is unknown, above what every window holds.
        let least = if model.known { model.window / 2 } else { overflow::ANY_HOLDS };
        let is_turn = self.planned.prepared.conversation.purpose == Purpose::Turn;
        is_turn && self.estimate().is_some_and(|estimate| estimate.tokens > least)
    }

    pub(crate) fn may_make_room(&self) -> bool {
        self.planned.prepared.may_rewrite()
    }

    pub(crate) fn has_changes_beyond_repairs(&self) -> bool {
        // The client's reasoning may depend on them.
        let made = &self.planned.done.made;
        let decisions = &self.planned.known;
        made.count() > made.repaired + made.removed || decisions.takes_out_unrefused()
    }

    pub(crate) async fn as_last_accepted(&mut self, cause: RefusalCause) -> Option<PlannedRequest> {
        // What the refusal says about the model already applies to the form of the last accepted request.
        if cause == RefusalCause::Bound {
            let prepared = Arc::make_mut(&mut self.planned.prepared);
            Arc::make_mut(&mut prepared.info).model.binding = ReasoningBinding::Prefix;
        }
        let replanning = self.planned.without_own_decisions(cause);
        AssertUnwindSafe(replanning).catch_unwind().await.ok().flatten()
    }

    /// Returns the keys of the decisions that the form left out, which are void.
    pub(crate) fn set_sent_as_last_accepted(
        &mut self,
        revised: PlannedRequest,
        cause: RefusalCause,
        recorder: &mut ExchangeRecorder,
    ) -> Vec<PartKey> {
        let void = self.planned.decided_beyond(Some(&revised));
        self.replace_planned(revised);
        self.planned.done.revoked = Some(cause);
        self.record_plan(recorder);
        void
    }

    pub(crate) fn suspend_branch(&mut self) -> Fact {
        let at = now();
        let position = &mut self.opened.placed.position;
        position.suspended = Some(at);
        let suspension = Suspension {
            exchange: self.planned.prepared.info.exchange.clone(),
            thread: position.thread.clone(),
            parent: position.parent.clone(),
            at,
        };
        Fact::Suspension(Box::new(suspension))
    }

    pub(crate) fn revoke(&self, about: Vec<PartKey>, renewal: Renewal) -> Option<Fact> {
        if about.is_empty() {
            return None;
        }
        let position = &self.opened.placed.position;
        let revocation = Revocation {
            exchange: self.planned.prepared.info.exchange.clone(),
            thread: position.thread.clone(),
            parent: position.parent.clone(),
            at: now(),
            about,
            renewal,
        };
        Some(Fact::Revocation(Box::new(revocation)))
    }

    pub(crate) fn usage_addition(&self, hides_diagnosis: bool) -> Option<UsageAddition> {
        let done = &self.planned.done;
        let mut tokens = 0;
        if self.planned.prepared.info.policy.client_usage == ReportedUsage::Unpruned
            && done.is_sent()
        {
            let removed_tokens = done.tokens_removed.saturating_add(done.tokens_compacted);
            tokens = removed_tokens.saturating_sub(done.tokens_added);
        }
        if tokens == 0 && !hides_diagnosis {
            return None;
        }
        Some(UsageAddition {
            dialect: self.planned.prepared.conversation.dialect,
            tokens,
            hides_diagnosis,
            streams: self.planned.prepared.conversation.stream,
        })
    }

    pub(super) fn unsent_messages(&self) -> Option<UndeliveredMessages> {
        let failure = match self.is_blamed {
            true => DeliveryFailure::Refused,
            false => DeliveryFailure::NoReply,
        };
        self.undelivered(&self.planned.known, failure)
    }

    pub(crate) async fn requeue_messages(&mut self) {
        // The client waits for our response, so the wait for the store is as short as for a decision.
        let timeout = Duration::from_millis(self.proxy.config.limits.store_ms);
        let requeuing = async {
            if let Some(messages) = self.unsent_messages() {
                messages.requeue().await;
            }
        };
        if tokio::time::timeout(timeout, requeuing).await.is_ok()
            && let Some(messages) = self.undelivered.take()
        {
            messages.end();
        }
    }
}
