//! Lessons: what upstreams taught by refusing, windows among it, remembered across restarts.
//!
//! Asked of the store once a process and kept in memory. A store that cannot keep one costs one more
//! refusal, never an answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::by_model::ByModel;
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
    /// It has no endpoint that counts tokens.
    CountMissing,
    /// It does not compact a model's context itself.
    CompactionRefused,
}

/// All that was learned.
#[derive(Default)]
pub(crate) struct Lessons(Mutex<ByModel<OfModel>>);

/// What was asked of the store about one model, or learned since; these are few.
#[derive(Default)]
struct OfModel(Vec<(What, Option<Bytes>)>);

/// What can be learned about a model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// A lesson.
    Lesson(Lesson),
    /// What its window is where this one, tokens, was believed.
    Window(u64),
}

impl Lessons {
    /// Whether this was learned. `model`: empty where it holds for all.
    pub(crate) async fn knows(
        &self,
        ledgers: &Ledgers,
        lesson: Lesson,
        upstream: &str,
        model: &str,
    ) -> bool {
        self.recall(ledgers, What::Lesson(lesson), upstream, model).await.is_some()
    }

    /// Keeps a lesson.
    pub(crate) async fn learn(
        &self,
        ledgers: &Ledgers,
        lesson: Lesson,
        upstream: &str,
        model: &str,
    ) {
        let (what, is_so) = (What::Lesson(lesson), Bytes::from_static(b"true"));
        if self.keep(ledgers, what, (upstream, model), is_so).await {
            tracing::info!("{upstream} {}", lesson.told());
        }
    }

    /// The window of a model, tokens, where `believed` is what catalogue and configuration say: what
    /// the upstream said in its place, and in place of that again. A lesson is about the number it
    /// puts right, so that whoever configures another starts afresh.
    pub(crate) async fn window(
        &self,
        ledgers: &Ledgers,
        upstream: &str,
        model: &str,
        believed: u64,
    ) -> u64 {
        let mut passed = Vec::new();
        let mut window = believed;
        while passed.len() < CORRECTIONS {
            let said = self.recall(ledgers, What::Window(window), upstream, model).await;
            let said = said.and_then(|said| std::str::from_utf8(&said).ok()?.parse().ok());
            let Some(said) = said else { break };
            if said == believed || passed.contains(&said) {
                // It says now this and now that, as a router does: the smallest always fits.
                return passed.iter().copied().fold(said, u64::min);
            }
            passed.push(said);
            window = said;
        }
        window
    }

    /// Keeps that the upstream said `said` where `believed` was taken for a model's window.
    pub(crate) async fn learn_window(
        &self,
        ledgers: &Ledgers,
        upstream: &str,
        model: &str,
        (believed, said): (u64, u64),
    ) {
        if believed == said {
            return;
        }
        let (what, so_many) = (What::Window(believed), Bytes::from(said.to_string()));
        if self.keep(ledgers, what, (upstream, model), so_many).await {
            tracing::info!("{upstream} says that a window is {said} tokens, not {believed}");
        }
    }

    /// What was learned, from memory, else from the store.
    async fn recall(
        &self,
        ledgers: &Ledgers,
        what: What,
        upstream: &str,
        model: &str,
    ) -> Option<Bytes> {
        if let Some(known) = self.known().get(upstream, model).and_then(|known| known.get(what)) {
            return known.clone();
        }
        let known = ledgers.learned(&what.name(upstream, model)).await.ok().flatten();
        let mut all = self.known();
        let of_model = all.begun(upstream, model);
        // Somebody may have learned it meanwhile.
        if let Some(known) = of_model.get(what) {
            return known.clone();
        }
        of_model.set(what, known.clone());
        known
    }

    /// Keeps what was learned; answers whether it is new.
    async fn keep(
        &self,
        ledgers: &Ledgers,
        what: What,
        (upstream, model): (&str, &str),
        lesson: Bytes,
    ) -> bool {
        let before = self.known().begun(upstream, model).set(what, Some(lesson.clone()));
        let is_new = before.as_ref() != Some(&lesson);
        if is_new {
            // One that is not kept is learned again.
            let _ = ledgers.learn(&what.name(upstream, model), lesson, now()).await;
        }
        is_new
    }

    fn known(&self) -> MutexGuard<'_, ByModel<OfModel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a window can be put right before it is taken as it is.
const CORRECTIONS: usize = 8;
/// Most lessons about one model in memory, so that an upstream that says ever other windows cannot fill
/// it; past it they are asked for again.
const OF_MODEL: usize = 64;

impl OfModel {
    fn get(&self, what: What) -> Option<&Option<Bytes>> {
        self.0.iter().find(|(known, _)| *known == what).map(|(_, lesson)| lesson)
    }

    /// Answers what was known before.
    fn set(&mut self, what: What, lesson: Option<Bytes>) -> Option<Bytes> {
        if let Some((_, known)) = self.0.iter_mut().find(|(known, _)| *known == what) {
            return std::mem::replace(known, lesson);
        }
        if self.0.len() >= OF_MODEL {
            self.0.clear();
        }
        self.0.push((what, lesson));
        None
    }
}

impl What {
    /// Its name in stores: these may not change.
    fn name(self, upstream: &str, model: &str) -> String {
        let lesson = match self {
            What::Window(believed) => {
                return format!("window of {believed} corrected by {upstream} for {model}");
            }
            What::Lesson(lesson) => lesson,
        };
        match lesson {
            Lesson::UsageRefused => format!("include_usage refused by {upstream}"),
            Lesson::EchoDemanded => format!("reasoning demanded by {upstream} for {model}"),
            Lesson::EchoRefused => format!("reasoning refused by {upstream} for {model}"),
            Lesson::Binds => format!("reasoning bound by {upstream} for {model}"),
            Lesson::EditingRefused => format!("context editing refused by {upstream} for {model}"),
            Lesson::IncludeRefused => {
                format!("encrypted reasoning refused by {upstream} for {model}")
            }
            Lesson::CompactionRefused => format!("compaction refused by {upstream} for {model}"),
            Lesson::CountMissing => format!("token counting missing at {upstream}"),
        }
    }
}

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
            Lesson::CompactionRefused => {
                "does not compact by itself: summaries are asked of the model"
            }
            Lesson::CountMissing => "has no endpoint that counts tokens: it is not asked to",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::memory::Memory;

    #[tokio::test]
    async fn a_window_is_what_was_said_last_and_of_a_waverer_the_smallest() {
        let ledgers = Ledgers::new(Arc::new(Memory::default()));
        let lessons = Lessons::default();
        let window =
            async |lessons: &Lessons, believed| lessons.window(&ledgers, "up", "m", believed).await;
        let learn = async |pair| lessons.learn_window(&ledgers, "up", "m", pair).await;
        assert_eq!(window(&lessons, 200_000).await, 200_000);
        learn((200_000, 64_000)).await;
        learn((64_000, 96_000)).await;
        assert_eq!(window(&lessons, 200_000).await, 96_000);
        assert_eq!(window(&lessons, 150_000).await, 150_000, "another is believed");
        assert_eq!(lessons.window(&ledgers, "up", "n", 200_000).await, 200_000);
        learn((96_000, 64_000)).await;
        assert_eq!(window(&lessons, 200_000).await, 64_000);
        let restarted = Lessons::default();
        assert_eq!(window(&restarted, 200_000).await, 64_000);
    }
    /// Windows that an upstream says do not fill the memory; what is dropped is in the store.
    #[tokio::test]
    async fn memory_is_bounded_and_the_store_remembers() {
        let ledgers = Ledgers::new(Arc::new(Memory::default()));
        let lessons = Lessons::default();
        let held = || lessons.known().get("up", "m").map_or(0, |known| known.0.len());
        for window in 0..OF_MODEL as u64 {
            lessons.learn_window(&ledgers, "up", "m", (window, 1_000)).await;
        }
        assert_eq!(held(), OF_MODEL, "at the limit all of them are there");
        lessons.learn_window(&ledgers, "up", "m", (999, 1_000)).await;
        assert_eq!(held(), 1, "past it they are forgotten");
        assert_eq!(lessons.window(&ledgers, "up", "m", 3).await, 1_000);
    }
}
