//! Lessons from upstreams' refusals: list them, share them with all tenants, forget them.
//!
//! The proxy learns them; here an operator reviews them and decides. Of the tenants that met a lesson, only
//! the number is shown.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::responses::{AdminError, AdminResponse, json};
use super::state::Admin;
use crate::clock::now;
use crate::context::Millis;
use crate::dialect::lesson::Lesson;
use crate::store::lessons::{LessonLine, LessonScope};

/// All lessons, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct LessonList {
    pub lessons: Vec<LessonView>,
}

/// A lesson.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct LessonView {
    pub id: String,
    /// The upstream that taught it.
    pub upstream: String,
    /// The model that it is about; empty if it is about all models of the upstream.
    pub model: String,
    /// What was learned.
    pub lesson: String,
    /// For a lesson about a window: its size in tokens.
    pub window: Option<u64>,
    /// For a lesson about a window: the size that was assumed before, in tokens.
    pub believed: Option<u64>,
    /// The number of credentials that met it.
    pub tenants: usize,
    /// When it was first met, ms since 1970.
    pub since: Millis,
    /// When it expires, ms since 1970; absent if it does not.
    pub expires: Option<Millis>,
    /// For whom it holds.
    pub reach: LessonScope,
}

/// The outcome of a decision about a lesson.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct LessonDecision {
    pub id: String,
    /// Whether it now holds for all; otherwise it is forgotten.
    pub shared: bool,
}

impl From<LessonLine> for LessonView {
    fn from(line: LessonLine) -> Self {
        let LessonLine { id, upstream, model, believed, tenants, since, expires, reach, .. } = line;
        let (lesson, window) = match line.lesson {
            Lesson::UsageRefused => ("include_usage refused", None),
            Lesson::ReasoningDemanded => ("reasoning demanded", None),
            Lesson::ReasoningRefused => ("reasoning refused", None),
            Lesson::ReasoningBound => ("reasoning bound", None),
            Lesson::EditingRefused => ("context editing refused", None),
            Lesson::IncludeRefused => ("encrypted reasoning refused", None),
            Lesson::DisplayRefused => ("thinking display refused", None),
            Lesson::DiagnosisRefused => ("cache diagnosis refused", None),
            Lesson::CountMissing => ("token counting missing", None),
            Lesson::CompactionRefused => ("compaction refused", None),
            Lesson::Window(window) => ("window", Some(window)),
            Lesson::ListedWindow(window) => ("listed window", Some(window)),
            Lesson::MaxOutput(most) => ("most output", Some(most)),
        };
        let lesson = match line.door.name() {
            Some(door) => format!("{lesson} ({door})"),
            None => lesson.to_owned(),
        };
        Self { id, upstream, model, lesson, window, believed, tenants, since, expires, reach }
    }
}

pub(super) async fn list(admin: &Admin) -> AdminResponse {
    let lines = admin.ledgers.lessons().list(now()).await?;
    Ok(json(&LessonList { lessons: lines.into_iter().map(LessonView::from).collect() }))
}

pub(super) async fn forget(admin: &Admin, id: &str) -> AdminResponse {
    let is_known = admin.ledgers.lessons().forget(id, now()).await?;
    report_decision(is_known, LessonDecision { id: id.to_owned(), shared: false })
}

pub(super) async fn share(admin: &Admin, id: &str) -> AdminResponse {
    let is_known = admin.ledgers.lessons().share(id, now()).await?;
    report_decision(is_known, LessonDecision { id: id.to_owned(), shared: true })
}

fn report_decision(is_known: bool, decision: LessonDecision) -> AdminResponse {
    let LessonDecision { id, shared } = &decision;
    // It may have expired since it was listed.
    if !is_known {
        let what = format!("There is no lesson {id:?}; GET /api/v1/lessons lists them.");
        return Err(AdminError::new(StatusCode::NOT_FOUND, "not_found", what));
    }
    let what = if *shared { "shared with all" } else { "deleted" };
    tracing::info!("lesson {id} was {what} by the operator");
    Ok(json(&decision))
}
