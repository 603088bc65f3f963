//! What Plimsoll learns from refusals: judged by complete messages, stored per tenant, and counted.
//!
//! A refusal is compared with its request, so that no client can make up a provider's message. What every
//! request needs to know is in memory.

use std::time::Duration;

use bytes::Bytes;
use http::request;

use crate::clock::now;
use crate::context::EstimateMethod;
use crate::dialect::ProviderError;
use crate::dialect::lesson::{self, Lesson, LessonMatch, QuotableText, RefusalBody};
use crate::proxy::offload::{OFF_THREAD, long_work_soon};
use crate::proxy::state::Proxy;
use crate::proxy::state::request_info::RequestInfo;
use crate::store::lessons::{LessonOffer, LessonSource};
use crate::telemetry::LessonOutcome;

/// A window is not believed if it contradicts an estimate by more than this factor.
const DOUBT: u64 = 3;

/// A provider's response instead of a reply.
#[derive(Clone, Copy)]
pub(crate) enum RefusalResponse<'a> {
    /// A refusal.
    Refused { status: u16, body: &'a [u8] },
    /// An error inside a reply.
    InReply { status: u16, error: &'a ProviderError },
}

/// The lessons of an error that are not quoted from the request: `body`, sent with `head`, if that is still known.
pub(crate) async fn taught(
    error: RefusalResponse<'_>,
    info: &RequestInfo,
    body: &Bytes,
    head: Option<&request::Parts>,
) -> LessonMatch {
    let tenant = info.tenant.as_ref();
    // A provider may quote all that it was sent, headers included.
    let mut texts = vec![info.model_name().to_owned()];
    if let Some(head) = head {
        texts.extend(head.uri.path_and_query().map(|target| target.as_str().to_owned()));
        let values = head.headers.values().filter_map(|value| value.to_str().ok());
        texts.extend(values.map(str::to_owned));
    }
    let body = body.clone();
    if body.len() <= OFF_THREAD {
        return read_lessons(error, &body, &texts);
    }
    // Searching a large request for quotes takes time, and other streams must not wait for it.
    let lessons = match error {
        RefusalResponse::Refused { status, body: refusal } => {
            let refusal = refusal.to_vec();
            long_work_soon(tenant, move || {
                read_lessons(RefusalResponse::Refused { status, body: &refusal }, &body, &texts)
            })
            .await
        }
        RefusalResponse::InReply { status, error } => {
            let error = error.clone();
            long_work_soon(tenant, move || {
                read_lessons(RefusalResponse::InReply { status, error: &error }, &body, &texts)
            })
            .await
        }
    };
    lessons.unwrap_or_default()
}

fn read_lessons(error: RefusalResponse<'_>, body: &[u8], texts: &[String]) -> LessonMatch {
    let texts = texts.iter().map(String::as_str).collect();
    let request = QuotableText { body, texts };
    match error {
        RefusalResponse::Refused { status, body } => {
            lesson::taught(&RefusalBody { status, body }, &request)
        }
        RefusalResponse::InReply { status, error } => {
            lesson::taught_in_reply(error, status, &request)
        }
    }
}

impl Proxy {
    pub(crate) fn knows(&self, source: &LessonSource<'_>, lesson: Lesson) -> bool {
        self.ledgers.lessons().holds(source, lesson, now())
    }

    /// `believed`: for a lesson about the window, the window assumed so far.
    pub(crate) async fn learn(
        &self,
        source: &LessonSource<'_>,
        lesson: Lesson,
        believed: Option<u64>,
    ) {
        let upstream = source.upstream;
        let outcome = self.ledgers.lessons().learn(source, lesson, believed, now()).await;
        let report = match outcome {
            LessonOffer::New => LessonOutcome::Learned,
            LessonOffer::Full => LessonOutcome::Full,
            LessonOffer::Known | LessonOffer::Nothing => return,
        };
        self.telemetry.lesson(upstream, report);
        if outcome == LessonOffer::New {
            tracing::info!("{upstream} {}", LessonNotice(lesson));
        }
    }

    /// Runs `storing`, and waits for it no longer than a request may. If the store is slow, it goes on without the request.
    pub(crate) async fn store_in_time(&self, storing: impl Future<Output = ()> + Send + 'static) {
        let timeout = Duration::from_millis(self.config.limits.store_ms);
        let _ = tokio::time::timeout(timeout, tokio::spawn(storing)).await;
    }

    pub(crate) fn count_quoted(&self, upstream: &str, taught: &LessonMatch) {
        // What stands in the request, its client may have made up.
        for _ in &taught.quoted {
            self.telemetry.lesson(upstream, LessonOutcome::Quoted);
        }
    }
}

impl RequestInfo {
    /// `estimate`: that of the request as sent.
    pub(crate) fn window_to_learn(
        &self,
        taught: &LessonMatch,
        estimate: Option<(u64, EstimateMethod)>,
        proxy: &Proxy,
    ) -> Option<u64> {
        self.count_unlearned(taught, estimate, proxy);
        taught.window().filter(|window| self.is_plausible(*window, estimate))
    }

    pub(crate) fn count_unlearned(
        &self,
        taught: &LessonMatch,
        estimate: Option<(u64, EstimateMethod)>,
        proxy: &Proxy,
    ) {
        proxy.count_quoted(&self.upstream.name, taught);
        if taught.window().is_some_and(|window| !self.is_plausible(window, estimate)) {
            proxy.telemetry.lesson(&self.upstream.name, LessonOutcome::Implausible);
        }
    }

    fn is_plausible(&self, window: u64, estimate: Option<(u64, EstimateMethod)>) -> bool {
        // The tokens sent and the output requested must have been too large for it. If the provider holds the
        // history, its size is unknown here, so any window is plausible.
        let Some((tokens, method)) = estimate else { return true };
        if self.is_held || method == EstimateMethod::Held {
            return true;
        }
        let output = self.max_output.unwrap_or(0);
        tokens.saturating_mul(DOUBT).saturating_add(output) >= window
    }
}

/// A lesson as text for the log.
struct LessonNotice(Lesson);

impl std::fmt::Display for LessonNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Lesson::UsageRefused => {
                "refuses stream_options.include_usage: Plimsoll does not ask for usage"
            }
            Lesson::ReasoningDemanded => {
                "requires its reasoning back: Plimsoll puts it back if it is known"
            }
            Lesson::ReasoningRefused => "refuses its reasoning: Plimsoll does not put it back",
            Lesson::ReasoningBound => "binds reasoning to its prefix: nothing before it is changed",
            Lesson::EditingRefused => {
                "refuses context_management: Plimsoll does not ask it to clear"
            }
            Lesson::IncludeRefused => {
                "refuses reasoning.encrypted_content: Plimsoll does not ask for reasoning"
            }
            Lesson::DisplayRefused => "refuses to show thinking: Plimsoll does not ask for it",
            Lesson::DiagnosisRefused => {
                "refuses to say why its cache was missed: Plimsoll does not ask"
            }
            Lesson::CompactionRefused => {
                "does not compact by itself: Plimsoll asks the model for summaries"
            }
            Lesson::CountMissing => "has no token counting endpoint: Plimsoll does not ask it",
            Lesson::Window(window) => return write!(f, "reports a window of {window} tokens"),
            Lesson::ListedWindow(window) => return write!(f, "lists a window of {window} tokens"),
            Lesson::MaxOutput(most) => {
                return write!(
                    f,
                    "reports an output limit of {most} tokens: Plimsoll asks for no more"
                );
            }
        })
    }
}
