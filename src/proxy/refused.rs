//! A refusal that may be due to what we changed: whose it is, and what else is sent (design §4.8, §4.9).
//!
//! What does not fit has room made in it, once. Anything else is sent as it came, and if that is refused
//! too, as the requests before it were, without what was decided for it. What is learned on the way
//! spares the next request the refusal.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};

use super::account::{About, Account};
use super::added::Addition;
use super::body::{Begun, Outgoing};
use super::lessons::Lesson;
use super::outbound::{Original, sent};
use super::turn::Measure;
use super::upstream::Unanswered;
use super::{Proxy, early};
use crate::context::{Anew, Fact};
use crate::dialect::Purpose;
use crate::dialect::overflow::{Answered, Overflow, overflow};
use crate::dialect::refusal::{self, Cause};
use crate::telemetry::FailOpen;

/// Whether a refusal may be due to what we changed.
pub(super) fn may_be_ours(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Whether an answer may say that a request does not fit: what else it takes stands with the words.
pub(super) fn may_not_fit(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 413 | 422 | 424 | 500)
}

/// Most bytes of a refusal that are read for its cause.
pub(super) const CAUSE_BYTES: usize = 64 * 1024;

/// What a refusal says of the window.
pub(super) fn does_not_fit(refused: &Begun, account: &Account) -> Option<Overflow> {
    let host = account.upstream_host().unwrap_or_default();
    let status = refused.head.status.as_u16();
    overflow(&Answered { status, host: &host, body: &refused.start })
}

/// Makes room in a request that does not fit and sends it once more. `None` where there is no room
/// to be made, or it was refused again: then the provider's first answer is the client's.
pub(super) async fn made_fit(
    original: &Original,
    said: Overflow,
    measure: &mut Measure,
    account: &mut Account,
) -> Option<Response<Outgoing>> {
    let room = measure.make_room(said, &original.head, account).await?;
    let (head, body) = original.changed(Some(room.rewrite()))?;
    let response = sent(account, head, body).await.ok()?;
    let status = response.status();
    if status == StatusCode::OK {
        let (begun, said) = early::read(response, measure, account).await;
        return said.is_none().then(|| {
            measure.has_room(room, true, account);
            begun.into_response()
        });
    }
    if !may_be_ours(status) && !may_not_fit(status) {
        measure.has_room(room, status.is_success(), account);
        return Some(response.map(Outgoing::through));
    }
    let again = Begun::read(response, CAUSE_BYTES, &account.memory).await;
    if does_not_fit(&again, account).is_none() {
        // What made room is refused for another reason: it is not repeated.
        let cause = refusal::cause(&again.start);
        measure.was_refused(cause);
        let learned = Learned {
            fact: measure.takes_back(measure.room_is_void(&room), anew(cause)),
            binds: cause == Cause::Bound,
            demands: cause == Cause::ReasoningDemanded,
            ..Learned::default()
        };
        learned.keep(account.proxy.clone(), account.about()).await;
    }
    None
}

/// A request that was refused for `cause`, with what it asked for on our behalf.
pub(super) struct Refused {
    pub(super) cause: Cause,
    pub(super) adds: Option<Addition>,
    /// It was rewritten.
    pub(super) rewritten: bool,
    /// Where it does not fit: the answer that says so.
    pub(super) unfit: Option<Begun>,
}

impl Refused {
    /// Sends it as it came, which tells whose fault it was; where that is refused as well, as the requests
    /// before it were sent. Answers what the client hears, and whether that was asked with what we add.
    pub(super) async fn otherwise(
        mut self,
        original: Original,
        measure: &mut Option<Measure>,
        account: &mut Account,
    ) -> Result<(Response<Outgoing>, bool), Unanswered> {
        let (head, body) = original.untouched();
        let response = sent(account, head, body).await?;
        let status = response.status();
        account.stood_aside(FailOpen::RewriteRefused);
        if !may_be_ours(status) {
            let changed = self.is_sent_as_it_came(measure, account);
            match status.is_success() {
                true => self.is_ours(changed, account).await,
                // Who was to blame is not told.
                false => self.is_theirs(None, changed, account).await,
            }
            return Ok((response.map(Outgoing::through), false));
        }
        let refused = Begun::read(response, CAUSE_BYTES, &account.memory).await;
        if let Some(measure) = measure.as_mut().filter(|_| self.unfit.is_none())
            && let Some(response) = self.as_before(&original, measure, account).await
        {
            return Ok((response, true));
        }
        let theirs = refusal::cause(&refused.start);
        let changed = self.is_sent_as_it_came(measure, account);
        self.is_theirs(Some(theirs), changed, account).await;
        // Where it does not fit, what else the original lacks helps no client to make room; what it got
        // wrong by itself does.
        let unfit = self.unfit.filter(|_| theirs != Cause::Structure);
        Ok((unfit.unwrap_or(refused).into_response(), false))
    }

    /// Sends it as the requests before it were sent: reasoning may rest on what was changed then. `None`
    /// where that would be what was refused, or as it came, or it is refused too.
    async fn as_before(
        &mut self,
        original: &Original,
        measure: &mut Measure,
        account: &mut Account,
    ) -> Option<Response<Outgoing>> {
        let cause = self.cause;
        if !self.rewritten || cause.is_beside() {
            return None;
        }
        let before = measure.as_before(cause).await?;
        let (head, body) = original.changed(Some(before.rewrite()))?;
        let response = sent(account, head, body).await.ok()?;
        let status = response.status();
        if may_be_ours(status) {
            let again = Begun::read(response, CAUSE_BYTES, &account.memory).await;
            self.unfit = does_not_fit(&again, account).map(|_| again);
            return None;
        }
        let void = measure.is_sent_as_before(before, cause, account);
        let is_ours = status.is_success();
        account.event.refused = is_ours.then_some(cause);
        let learned = Learned {
            fact: measure.takes_back(void, if is_ours { anew(cause) } else { Anew::Next }),
            echo: is_ours && cause == Cause::ReasoningRefused && !measure.puts_back(),
            compacts_not: is_ours && cause == Cause::Compaction,
            ..Learned::of_the_model(cause)
        };
        learned.keep(account.proxy.clone(), account.about()).await;
        Some(response.map(Outgoing::through))
    }

    /// What is known of it is of the original; answers it where it was rewritten.
    fn is_sent_as_it_came<'m>(
        &self,
        measure: &'m mut Option<Measure>,
        account: &mut Account,
    ) -> Option<&'m mut Measure> {
        account.event.done.resent = self.rewritten.then_some(self.cause);
        let measure = measure.as_mut()?;
        measure.is_sent_as_it_came(account);
        if !self.rewritten {
            return None;
        }
        measure.was_refused(self.cause);
        Some(measure)
    }

    /// The original was answered.
    async fn is_ours(&self, measure: Option<&mut Measure>, account: &mut Account) {
        let Self { cause, adds, rewritten, .. } = *self;
        account.event.refused = Some(cause);
        // What counts tokens may know less than what answers.
        if account.event.purpose == Some(Purpose::Count) {
            return;
        }
        let mut learned = Learned::default();
        if rewritten {
            learned = Learned {
                echo: cause == Cause::ReasoningRefused,
                compacts_not: cause == Cause::Compaction,
                fact: measure.filter(|_| !cause.is_beside()).map(Measure::sets_aside),
                ..Learned::of_the_model(cause)
            };
        }
        // With nothing else to blame, it was what we asked for.
        learned.added = adds.filter(|adds| adds.cause() == cause || !rewritten);
        learned.keep(account.proxy.clone(), account.about()).await;
    }

    /// The original was refused as well, for `cause`, or was not answered. What may have been to blame all
    /// the same is not decided again: a session must not answer 400 for ever.
    async fn is_theirs(
        &self,
        cause: Option<Cause>,
        measure: Option<&mut Measure>,
        account: &Account,
    ) {
        let is_count = account.event.purpose == Some(Purpose::Count);
        let Some(measure) = measure.filter(|_| !is_count) else { return };
        let is_own_fault = cause == Some(self.cause) && self.cause.is_own_fault();
        let is_innocent = is_own_fault || self.cause.is_beside();
        let learned = Learned {
            fact: (!is_innocent)
                .then(|| measure.takes_back(measure.decided(), Anew::Never))
                .flatten(),
            // That is so, whoever moved what the reasoning is bound to.
            binds: self.cause == Cause::Bound,
            ..Learned::default()
        };
        learned.keep(account.proxy.clone(), account.about()).await;
    }
}

/// When what was refused for it may be decided again, where the request is accepted without.
fn anew(cause: Cause) -> Anew {
    if cause.teaches() { Anew::Next } else { Anew::Cold }
}

/// What a refusal taught.
#[derive(Default)]
struct Learned {
    added: Option<Addition>,
    echo: bool,
    demands: bool,
    binds: bool,
    compacts_not: bool,
    /// What it says of decisions.
    fact: Option<Fact>,
}

impl Learned {
    /// What a refusal that names `cause` says of the model.
    fn of_the_model(cause: Cause) -> Self {
        let (binds, demands) = (cause == Cause::Bound, cause == Cause::ReasoningDemanded);
        Self { binds, demands, ..Self::default() }
    }

    /// Remembers it, across restarts. A store that cannot keep it costs one more refusal.
    async fn keep(self, proxy: Arc<Proxy>, about: About) {
        let patience = Duration::from_millis(proxy.config.limits.save_ms);
        let keeping = tokio::spawn(self.kept(proxy, about));
        let _ = tokio::time::timeout(patience, keeping).await;
    }

    async fn kept(self, proxy: Arc<Proxy>, about: About) {
        let About { upstream, model, scope } = about;
        let lessons = &proxy.lessons;
        if let (Some(fact), Some(scope)) = (self.fact, scope) {
            let _ = proxy.ledgers.note(scope, fact).await;
        }
        if let Some(added) = self.added {
            let (lesson, model) = added.lesson(&model);
            lessons.learn(&proxy.ledgers, lesson, &upstream, model).await;
        }
        let of_model = [
            (self.echo, Lesson::EchoRefused),
            (self.demands, Lesson::EchoDemanded),
            (self.binds, Lesson::Binds),
            (self.compacts_not, Lesson::CompactionRefused),
        ];
        for (_, lesson) in of_model.into_iter().filter(|(is_learned, _)| *is_learned) {
            lessons.learn(&proxy.ledgers, lesson, &upstream, &model).await;
        }
    }
}
