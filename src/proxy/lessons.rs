//! Lessons: what upstreams taught by refusing, remembered across restarts.
//!
//! Asked of the store once a process and kept in memory. A store that cannot keep one costs one more
//! refusal, never an answer.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::now;
use crate::store::ledgers::Ledgers;

/// Something learned about an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lesson {
    /// It refuses `stream_options.include_usage`.
    UsageRefused,
    /// It answers 400 where a model's reasoning is not sent back.
    EchoDemanded,
    /// It refuses a model's reasoning when it is sent back.
    EchoRefused,
    /// It binds a model's reasoning to what stands before it.
    Binds,
    /// It refuses to edit a model's context.
    EditingRefused,
    /// It refuses to give out a model's reasoning encrypted.
    IncludeRefused,
}

/// All that was learned.
#[derive(Default)]
pub(crate) struct Lessons(Mutex<HashMap<String, bool>>);

impl Lessons {
    /// Whether this was learned. `model`: empty where it holds for all.
    pub(crate) async fn knows(
        &self,
        ledgers: &Ledgers,
        lesson: Lesson,
        upstream: &str,
        model: &str,
    ) -> bool {
        let name = name(lesson, upstream, model);
        if let Some(known) = self.known(&name) {
            return known;
        }
        let known = matches!(ledgers.learned(&name).await, Ok(Some(_)));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        *all.entry(name).or_insert(known)
    }

    /// Keeps a lesson.
    pub(crate) async fn learn(
        &self,
        ledgers: &Ledgers,
        lesson: Lesson,
        upstream: &str,
        model: &str,
    ) {
        let name = name(lesson, upstream, model);
        let before =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), true);
        if before == Some(true) {
            return;
        }
        tracing::info!("{upstream} {}", lesson.told());
        // One that is not kept is learned again.
        let _ = ledgers.learn(&name, Bytes::from_static(b"true"), now()).await;
    }

    fn known(&self, name: &str) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }
}

/// Most lessons in memory, so that models' names cannot fill it; past it they are asked for again.
const MOST: usize = 4096;

impl Lesson {
    fn told(self) -> &'static str {
        match self {
            Lesson::UsageRefused => {
                "refuses stream_options.include_usage: it is not asked for usage"
            }
            Lesson::EchoDemanded => "demands its reasoning back: it is put back where it is known",
            Lesson::EchoRefused => "refuses its reasoning back: it is not put back",
            Lesson::Binds => "binds reasoning to its prefix: nothing before it is changed",
            Lesson::EditingRefused => "refuses context_management: it is not asked to clear",
            Lesson::IncludeRefused => {
                "refuses reasoning.encrypted_content: it is not asked for reasoning"
            }
        }
    }
}

/// Names are kept in stores: they may not change.
fn name(lesson: Lesson, upstream: &str, model: &str) -> String {
    match lesson {
        Lesson::UsageRefused => format!("include_usage refused by {upstream}"),
        Lesson::EchoDemanded => format!("reasoning demanded by {upstream} for {model}"),
        Lesson::EchoRefused => format!("reasoning refused by {upstream} for {model}"),
        Lesson::Binds => format!("reasoning bound by {upstream} for {model}"),
        Lesson::EditingRefused => format!("context editing refused by {upstream} for {model}"),
        Lesson::IncludeRefused => format!("encrypted reasoning refused by {upstream} for {model}"),
    }
}
