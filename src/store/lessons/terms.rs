//! What a lesson is about, who met it, for whom it applies, and for how long.
//!
//! Values only; the ids of lessons are in stored keys and never change.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::context::{Millis, TenantId};
use crate::dialect::door::Door;
use crate::dialect::lesson::Lesson;

/// Milliseconds.
pub(super) const DAY: Millis = 24 * 3600 * 1000;

/// How long a lesson lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessonTerms {
    /// How long a lesson applies after it was met, days.
    pub days: u64,
}

impl Default for LessonTerms {
    fn default() -> Self {
        Self { days: 7 }
    }
}

impl LessonTerms {
    pub(super) fn life(self) -> Millis {
        self.days.saturating_mul(DAY)
    }
}

/// The source of a lesson, also to look one up.
#[derive(Clone, Copy, Debug)]
pub struct LessonSource<'a> {
    /// The tenant; `None` if unknown: it then teaches nothing.
    pub tenant: Option<&'a TenantId>,
    /// The configured name of the upstream.
    pub upstream: &'a str,
    /// The model; empty if a lesson is about the whole upstream.
    pub model: &'a str,
    /// The door through which it was asked: windows depend on it.
    pub door: Door,
    /// Whether the upstream can tell the tenant from others. If clients use the operator's credential, anybody
    /// could make up tenants: each then has a calibration of its own.
    pub vouched: bool,
}

/// What a lesson is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LessonSubject {
    pub(super) upstream: Box<str>,
    pub(super) model: Box<str>,
    pub(super) lesson: Lesson,
    /// For a window: the assumed window that it corrects, tokens. A different configured window starts
    /// afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) believed: Option<u64>,
    /// For a window: the door at which it holds.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub(super) door: Door,
}

fn is_usual(door: &Door) -> bool {
    *door == Door::Api
}

impl LessonSubject {
    /// A lesson from this source. `believed`: the window that it corrects.
    pub(super) fn new(source: &LessonSource<'_>, lesson: Lesson, believed: Option<u64>) -> Self {
        let model = if lesson.is_about_all_models() { "" } else { source.model };
        let door = if lesson.window().is_some() { source.door } else { Door::default() };
        Self { upstream: source.upstream.into(), model: model.into(), lesson, believed, door }
    }

    pub(super) fn id(&self) -> String {
        // It must not change, because stored keys contain it.
        let Self { upstream, model, lesson, believed, door } = self;
        let name = match door {
            Door::Api => serde_json::to_string(&(upstream, model, lesson, believed)),
            Door::Chatgpt | Door::Copilot => {
                serde_json::to_string(&(upstream, model, lesson, believed, door))
            }
        };
        let name = name.unwrap_or_default();
        format!("{:016x}", xxh3_64(name.as_bytes()))
    }
}

/// For whom a lesson applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LessonScope {
    /// For each tenant that met it.
    Tenants,
    /// For all, until it is forgotten: the operator shared it.
    Shared,
}

/// A lesson as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LessonLine {
    /// 16 hex digits, the same in every process.
    pub id: String,
    /// The configured name of the upstream.
    pub upstream: String,
    /// The model; empty if it is about all models of the upstream.
    pub model: String,
    /// What was learned.
    pub lesson: Lesson,
    /// For a window: the assumed window that it corrects, tokens.
    pub believed: Option<u64>,
    /// For a window: the door at which it holds.
    pub door: Door,
    /// How many tenants met it.
    pub tenants: usize,
    /// When it was first met or shared, ms since 1970.
    pub since: Millis,
    /// When it expires, ms since 1970; absent if it does not.
    pub expires: Option<Millis>,
    /// For whom it applies.
    pub reach: LessonScope,
}
