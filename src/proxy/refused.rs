//! A refusal that may be due to what we changed: whose it is, and what else is sent
//! (`docs/rewriting.md` "What is always so").
//!
//! What does not fit has room made in it, once. Anything else is sent as it came, and if that is refused
//! too, as the requests before it were, without what was decided for it. What is learned on the way
//! spares the next request the refusal.

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::{Response, StatusCode};

use super::account::{About, Account};
use super::added::Addition;
use super::body::{Begun, Outgoing};
use super::lessons;
use super::outbound::{Original, sent};
use super::turn::Measure;
use super::upstream::Unanswered;
use super::{Proxy, early};
use crate::context::{Anew, Fact};
use crate::dialect::Purpose;
use crate::dialect::lesson::{Lesson, Taught};
use crate::dialect::overflow::{Answered, Overflow, overflow};
use crate::dialect::refusal::{self, Cause};
use crate::store::ledgers::Room;
use crate::telemetry::{FailOpen, LessonOutcome};
use crate::wire::json::Document;

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
const CAUSE_BYTES: usize = 64 * 1024;

/// The start of a refusal that may be mended: no longer than the start of an accepted answer is waited for,
/// and no longer than until it is whole.
pub(super) async fn start(response: Response<Outgoing>, account: &Account) -> Begun {
    Begun::until(response, (CAUSE_BYTES, early::PATIENCE), &account.memory, |head, start| {
        let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
        is_plain && start.trim_ascii_end().ends_with(b"}") && Document::read(start).is_ok()
    })
    .await
}

/// What a refusal says of the window.
pub(super) fn does_not_fit(refused: &Begun, account: &Account) -> Option<Overflow> {
    let host = account.upstream_host().unwrap_or_default();
    let status = refused.head.status.as_u16();
    overflow(&Answered { status, host: &host, body: &refused.start })
}

/// What a refusal teaches, whole and not quoted from what was sent.
pub(super) async fn lessons_of(
    refused: &Begun,
    original: &Original,
    measure: Option<&Measure>,
) -> Taught {
    // What counts tokens has no measure, and teaches nothing.
    let Some(measure) = measure else { return Taught::default() };
    let (status, body) = (refused.head.status.as_u16(), &*refused.start);
    let error = lessons::Error::Refused { status, body };
    lessons::taught(error, measure.subject().quotable(), Some(&original.head)).await
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
        return Some(response);
    }
    let again = start(response, account).await;
    if does_not_fit(&again, account).is_none() {
        // What made room is refused for another reason: it is not repeated.
        let cause = refusal::cause(&again.start);
        measure.was_refused(cause);
        let taught = lessons_of(&again, original, Some(measure)).await;
        let fact = measure.takes_back(measure.room_is_void(&room), anew(cause));
        let learned = Learned { fact, ..Learned::by(taught, of_the_model(cause)) };
        learned.keep(account.proxy.clone(), account.about()).await;
    }
    None
}

/// A request that was refused for `cause`, with what it asked for on our behalf.
pub(super) struct Refused {
    pub(super) cause: Cause,
    /// What it teaches beyond this request, once it is known whose fault it was.
    pub(super) taught: Taught,
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
            let changed = self.is_sent_as_it_came(measure, account).await;
            match status.is_success() {
                true => self.is_ours(changed, account).await,
                // Who was to blame is not told.
                false => self.is_theirs(None, changed, account).await,
            }
            return Ok((response, false));
        }
        let refused = start(response, account).await;
        if let Some(measure) = measure.as_mut().filter(|_| self.unfit.is_none())
            && let Some(response) = self.as_before(&original, measure, account).await
        {
            return Ok((response, true));
        }
        let theirs = refusal::cause(&refused.start);
        let changed = self.is_sent_as_it_came(measure, account).await;
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
            let again = start(response, account).await;
            self.unfit = does_not_fit(&again, account).map(|_| again);
            return None;
        }
        let void = measure.is_sent_as_before(before, cause, account);
        let is_ours = status.is_success();
        account.event.refused = is_ours.then_some(cause);
        let fact = measure.takes_back(void, if is_ours { anew(cause) } else { Anew::Next });
        let lesson = of_what_is_sent(cause).filter(|lesson| {
            is_ours && !(*lesson == Lesson::ReasoningRefused && measure.puts_back())
        });
        let lesson = lesson.or(of_the_model(cause));
        let learned = Learned { fact, ..Learned::by(self.taught.clone(), lesson) };
        learned.keep(account.proxy.clone(), account.about()).await;
        Some(response)
    }

    /// What is known of it is of the original; answers it where it was rewritten.
    async fn is_sent_as_it_came<'m>(
        &self,
        measure: &'m mut Option<Measure>,
        account: &mut Account,
    ) -> Option<&'m mut Measure> {
        account.event.done.resent = self.rewritten.then_some(self.cause);
        let measure = measure.as_mut()?;
        measure.is_sent_as_it_came(account).await;
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
        let (mut fact, mut lesson) = (None, None);
        if rewritten {
            fact = measure.filter(|_| !cause.is_beside()).map(Measure::sets_aside);
            lesson = of_what_is_sent(cause).or(of_the_model(cause));
        }
        // With nothing else to blame, it was what we asked for.
        let added = adds.filter(|adds| adds.cause() == cause || !rewritten);
        let lesson = added.map(Addition::lesson).or(lesson);
        let learned = Learned { fact, ..Learned::by(self.taught.clone(), lesson) };
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
        let takes_back = || measure.takes_back(measure.decided(), Anew::Never);
        let fact = (!is_innocent).then(takes_back).flatten();
        // That is so, whoever moved what the reasoning is bound to.
        let lesson = of_the_model(self.cause).filter(|it| *it == Lesson::ReasoningBound);
        let learned = Learned { fact, ..Learned::by(self.taught.clone(), lesson) };
        learned.keep(account.proxy.clone(), account.about()).await;
    }
}

/// When what was refused for it may be decided again, where the request is accepted without.
fn anew(cause: Cause) -> Anew {
    if cause.teaches() { Anew::Next } else { Anew::Cold }
}

/// What a refusal that names `cause` says of the model, whoever is to blame.
fn of_the_model(cause: Cause) -> Option<Lesson> {
    match cause {
        Cause::Bound => Some(Lesson::ReasoningBound),
        Cause::ReasoningDemanded => Some(Lesson::ReasoningDemanded),
        _ => None,
    }
}

/// What it says of what we sent, where that is to blame.
fn of_what_is_sent(cause: Cause) -> Option<Lesson> {
    match cause {
        Cause::ReasoningRefused => Some(Lesson::ReasoningRefused),
        Cause::Compaction => Some(Lesson::CompactionRefused),
        _ => None,
    }
}

/// What a refusal taught.
#[derive(Default)]
struct Learned {
    /// What its blame points at. It is learned where the words teach it.
    lesson: Option<Lesson>,
    taught: Taught,
    /// What it says of decisions.
    fact: Option<(Room, Fact)>,
}

impl Learned {
    fn by(taught: Taught, lesson: Option<Lesson>) -> Self {
        Self { lesson, taught, fact: None }
    }

    /// Remembers it, across restarts. A store that cannot keep it costs one more refusal.
    async fn keep(self, proxy: Arc<Proxy>, about: About) {
        let patience = Duration::from_millis(proxy.config.limits.save_ms);
        let keeping = tokio::spawn(self.kept(proxy, about));
        let _ = tokio::time::timeout(patience, keeping).await;
    }

    async fn kept(self, proxy: Arc<Proxy>, about: About) {
        if let Some((room, fact)) = self.fact {
            let _ = proxy.ledgers.note(&room, fact).await;
        }
        let Some(lesson) = self.lesson else { return };
        if self.taught.holds(lesson) {
            return proxy.learn(&about.source(), lesson, None).await;
        }
        let is_quoted = self.taught.quoted.contains(&lesson);
        let why = if is_quoted { LessonOutcome::Quoted } else { LessonOutcome::Unknown };
        proxy.telemetry.lesson(&about.upstream, why);
    }
}
