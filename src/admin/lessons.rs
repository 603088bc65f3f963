//! What upstreams taught by refusing: listed, shared with all, forgotten.
//!
//! The proxy learns; here an operator looks and decides. Whose requests met a lesson is told as a number
//! alone.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Admin;
use super::answers::{AdminAnswer, AdminError, json};
use crate::context::Millis;
use crate::dialect::lesson::Lesson;
use crate::store::lessons::{LessonLine, LessonScope};
use crate::telemetry::clock::now;

/// All lessons, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LessonList {
    /// They.
    pub lessons: Vec<LessonView>,
}

/// A lesson.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LessonView {
    /// Its id.
    pub id: String,
    /// The upstream that taught it.
    pub upstream: String,
    /// The model that it is about; empty where it is about all of the upstream's.
    pub model: String,
    /// What it says.
    pub lesson: String,
    /// Of a window: how large it is, tokens.
    pub window: Option<u64>,
    /// Of a window: the one that was believed, tokens.
    pub believed: Option<u64>,
    /// How many credentials met it.
    pub tenants: usize,
    /// How many of them the upstream has answered too: they count where enough agree.
    pub agree: usize,
    /// When it was first met, ms since 1970.
    pub since: Millis,
    /// When it ends, ms since 1970; absent where it does not.
    pub expires: Option<Millis>,
    /// For whom it holds.
    pub reach: LessonScope,
}

/// What was decided about a lesson.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LessonDecision {
    /// Its id.
    pub id: String,
    /// Whether it now holds for all; else it is forgotten.
    pub shared: bool,
}

impl From<LessonLine> for LessonView {
    fn from(line: LessonLine) -> Self {
        let LessonLine {
            id, upstream, model, believed, tenants, agree, since, expires, reach, ..
        } = line;
        let (lesson, window) = match line.lesson {
            Lesson::UsageRefused => ("include_usage refused", None),
            Lesson::ReasoningDemanded => ("reasoning demanded", None),
            Lesson::ReasoningRefused => ("reasoning refused", None),
            Lesson::ReasoningBound => ("reasoning bound", None),
            Lesson::EditingRefused => ("context editing refused", None),
            Lesson::IncludeRefused => ("encrypted reasoning refused", None),
            Lesson::DisplayRefused => ("thinking display refused", None),
            Lesson::CountMissing => ("token counting missing", None),
            Lesson::CompactionRefused => ("compaction refused", None),
            Lesson::Window(window) => ("window", Some(window)),
            Lesson::MaxOutput(most) => ("most output", Some(most)),
        };
        let lesson = lesson.to_owned();
        Self {
            id,
            upstream,
            model,
            lesson,
            window,
            believed,
            tenants,
            agree,
            since,
            expires,
            reach,
        }
    }
}

pub(super) async fn list(admin: &Admin) -> AdminAnswer {
    let lines = admin.ledgers.lessons().list(now()).await?;
    Ok(json(&LessonList { lessons: lines.into_iter().map(LessonView::from).collect() }))
}

/// Forgets a lesson, at once and for all.
pub(super) async fn forget(admin: &Admin, id: &str) -> AdminAnswer {
    let is_known = admin.ledgers.lessons().forget(id, now()).await?;
    decided(is_known, id, false)
}

/// Has a lesson hold for all.
pub(super) async fn share(admin: &Admin, id: &str) -> AdminAnswer {
    let is_known = admin.ledgers.lessons().share(id, now()).await?;
    decided(is_known, id, true)
}

fn decided(is_known: bool, id: &str, shared: bool) -> AdminAnswer {
    if !is_known {
        let what = format!("There is no lesson {id:?}; GET /api/v1/lessons lists them.");
        return Err(AdminError::new(StatusCode::NOT_FOUND, "not_found", what));
    }
    let what = if shared { "shared with all" } else { "deleted" };
    tracing::info!("lesson {id} was {what} by the operator");
    Ok(json(&LessonDecision { id: id.to_owned(), shared }))
}
