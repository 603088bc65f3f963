//! For whom a lesson applies, until when, and that processes with the same store agree.

use std::time::Duration;

use super::state::REFRESH;
use super::*;
use crate::dialect::door::Door;
use crate::store::memory::MemoryStore;

const NOW: Millis = 20_000 * DAY;
const TIMEOUT: Duration = Duration::from_secs(10);

struct LessonsFixture {
    store: Arc<dyn Store>,
    lessons: Lessons,
}

impl LessonsFixture {
    async fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        Self::over(store, NOW).await
    }

    async fn over(store: Arc<dyn Store>, now: Millis) -> Self {
        let lessons = Lessons::new(store.clone(), LessonTerms::default());
        assert_eq!(lessons.ready(&ReadBudget::new(TIMEOUT), now).await, RecallOutcome::Known);
        Self { store, lessons }
    }

    async fn restarted(&self, now: Millis) -> Self {
        Self::over(self.store.clone(), now).await
    }

    async fn met(&self, tenant: &str, lesson: Lesson, now: Millis) -> LessonOffer {
        self.lessons.learn(&by(tenant), lesson, None, now).await
    }

    async fn offer_window(
        &self,
        tenant: &str,
        (believed, window): (u64, u64),
        now: Millis,
    ) -> LessonOffer {
        self.lessons.learn(&by(tenant), Lesson::Window(window), Some(believed), now).await
    }

    fn window(&self, tenant: &str, now: Millis) -> u64 {
        self.lessons.window(&by(tenant), 200_000, now)
    }

    fn holds(&self, tenant: &str, now: Millis) -> bool {
        self.lessons.holds(&by(tenant), Lesson::UsageRefused, now)
    }
}

fn by(tenant: &str) -> LessonSource<'static> {
    // Leaked, because a test process ends soon.
    let tenant = Box::leak(Box::new(tenant.into()));
    LessonSource {
        tenant: Some(tenant),
        upstream: "up",
        model: "m",
        door: Door::Api,
        vouched: true,
    }
}

#[tokio::test]
async fn lessons_apply_to_who_met_them() {
    let server = LessonsFixture::new().await;
    assert_eq!(server.met("a", Lesson::UsageRefused, NOW).await, LessonOffer::New);
    assert_eq!(server.met("a", Lesson::UsageRefused, NOW).await, LessonOffer::Known);
    for tenant in ["x", "y", "z"] {
        assert_eq!(server.met(tenant, Lesson::UsageRefused, NOW).await, LessonOffer::New);
    }
    assert!(server.holds("a", NOW));
    assert!(!server.holds("b", NOW));
    let nobody = LessonSource { tenant: None, ..by("") };
    let outcome = server.lessons.learn(&nobody, Lesson::EditingRefused, None, NOW).await;
    assert_eq!(outcome, LessonOffer::Nothing);
    let restarted_server = server.restarted(NOW).await;
    assert!(restarted_server.holds("a", NOW));
    assert!(!restarted_server.holds("b", NOW));
    let line = &restarted_server.lessons.list(NOW).await.unwrap()[0];
    assert_eq!(line.reach, LessonScope::Tenants);
    assert_eq!(line.tenants, 4);
}

#[tokio::test]
async fn max_output_prefers_tenants() {
    let server = LessonsFixture::new().await;
    let most = |tenant| server.lessons.max_output(&by(tenant), NOW + 2);
    assert_eq!(most("a"), None);
    server.met("a", Lesson::MaxOutput(8_192), NOW).await;
    assert_eq!(most("a"), Some(8_192));
    assert_eq!(most("b"), None);
    let id = server.lessons.list(NOW).await.unwrap()[0].id.clone();
    assert!(server.lessons.share(&id, NOW).await.unwrap());
    server.met("a", Lesson::MaxOutput(4_096), NOW + 1).await;
    assert_eq!(most("a"), Some(4_096));
    assert_eq!(most("b"), Some(8_192));
    let other = LessonSource { model: "other", ..by("a") };
    assert_eq!(server.lessons.max_output(&other, NOW + 2), None);
    let restarted_server = server.restarted(NOW + 2).await;
    assert_eq!(restarted_server.lessons.max_output(&by("a"), NOW + 2), Some(4_096));
}

#[tokio::test]
async fn lesson_expires_after_its_days() {
    let server = LessonsFixture::new().await;
    server.met("a", Lesson::UsageRefused, NOW).await;
    let last = NOW + 7 * DAY - 1;
    assert!(server.holds("a", last));
    assert!(!server.holds("a", last + 1));
    assert!(server.restarted(last).await.holds("a", last));
    let late = server.restarted(last + DAY).await;
    assert!(!late.holds("a", last + DAY));
    assert!(late.lessons.list(last + DAY).await.unwrap().is_empty());
    assert_eq!(late.met("a", Lesson::UsageRefused, last + DAY).await, LessonOffer::New);
    assert!(late.holds("a", last + 2 * DAY));
    let day = scope_of(NOW / DAY);
    late.lessons.expire(NOW + 8 * DAY).await.unwrap();
    assert_eq!(late.store.scan(day.clone(), 9).await.unwrap().len(), 1, "at the limit");
    late.lessons.expire(NOW + 9 * DAY).await.unwrap();
    assert!(late.store.scan(day, 9).await.unwrap().is_empty(), "past it");
}

#[tokio::test]
async fn forgotten_lessons_stay_gone() {
    let server = LessonsFixture::new().await;
    server.met("a", Lesson::UsageRefused, NOW).await;
    server.met("b", Lesson::UsageRefused, NOW).await;
    let id = server.lessons.list(NOW).await.unwrap()[0].id.clone();
    assert!(!server.lessons.forget("0123", NOW).await.unwrap());
    assert!(server.lessons.forget(&id, NOW + 1).await.unwrap());
    assert!(!server.holds("a", NOW + 1));
    assert!(!server.holds("b", NOW + 1));
    assert!(!server.lessons.forget(&id, NOW + 1).await.unwrap(), "it is gone");
    assert!(!server.restarted(NOW + 2).await.holds("a", NOW + 2));
    assert_eq!(server.met("a", Lesson::UsageRefused, NOW + 1).await, LessonOffer::New);
    assert!(server.holds("a", NOW + 3));
    assert!(!server.holds("b", NOW + 3));
    let restarted_server = server.restarted(NOW + 3).await;
    assert!(restarted_server.holds("a", NOW + 3));
    assert!(!restarted_server.holds("b", NOW + 3));
}

#[tokio::test]
async fn shared_lessons_apply_to_all() {
    let server = LessonsFixture::new().await;
    server.met("a", Lesson::UsageRefused, NOW).await;
    let id = server.lessons.list(NOW).await.unwrap()[0].id.clone();
    assert!(server.lessons.share(&id, NOW).await.unwrap());
    let year = NOW + 365 * DAY;
    let later = server.restarted(year).await;
    assert!(server.holds("b", NOW));
    assert!(later.holds("b", year));
    let line = &later.lessons.list(year).await.unwrap()[0];
    assert_eq!(line.reach, LessonScope::Shared);
    assert_eq!(line.expires, None);
    assert!(later.lessons.forget(&id, year).await.unwrap());
    assert!(!later.holds("b", year));
    assert!(!server.restarted(year).await.holds("b", year));
}

#[tokio::test]
async fn last_learned_window_applies() {
    let server = LessonsFixture::new().await;
    server.offer_window("a", (200_000, 64_000), NOW).await;
    server.offer_window("a", (64_000, 96_000), NOW).await;
    assert_eq!(server.offer_window("a", (96_000, 96_000), NOW).await, LessonOffer::Nothing);
    assert_eq!(server.window("a", NOW), 96_000);
    assert_eq!(server.window("b", NOW), 200_000);
    assert_eq!(server.lessons.window(&by("a"), 150_000, NOW), 150_000, "another is believed");
    let other = LessonSource { model: "n", ..by("a") };
    assert_eq!(server.lessons.window(&other, 200_000, NOW), 200_000);
    server.offer_window("a", (96_000, 64_000), NOW).await;
    assert_eq!(server.window("a", NOW), 64_000);
    assert_eq!(server.restarted(NOW).await.window("a", NOW), 64_000);
}

#[tokio::test]
async fn accepted_requests_end_windows() {
    let server = LessonsFixture::new().await;
    for tenant in ["a", "b"] {
        server.offer_window(tenant, (200_000, 9_000), NOW).await;
    }
    server.lessons.answered(&by("a"), 9_000, NOW + 1);
    assert_eq!(server.window("a", NOW + 1), 9_000, "that fits");
    server.lessons.answered(&by("a"), 9_001, NOW + 2);
    assert_eq!(server.window("a", NOW + 2), 200_000);
    assert_eq!(server.window("b", NOW + 2), 9_000, "another tenant's stays");
    tokio::task::yield_now().await;
    let restarted_server = server.restarted(NOW + 3).await;
    assert_eq!(restarted_server.window("a", NOW + 3), 200_000);
    assert_eq!(restarted_server.window("b", NOW + 3), 9_000);
    server.offer_window("a", (200_000, 9_000), NOW + 4).await;
    assert_eq!(server.window("a", NOW + 4), 9_000, "it was refused again");
}

#[tokio::test]
async fn processes_agree_on_lessons() {
    let server = LessonsFixture::new().await;
    let other = server.restarted(NOW).await;
    server.met("a", Lesson::UsageRefused, NOW).await;
    other.met("b", Lesson::UsageRefused, NOW).await;
    assert!(!other.holds("a", NOW));
    let id = other.lessons.list(NOW).await.unwrap()[0].id.clone();
    assert!(other.holds("a", NOW), "the list is of all");
    server.lessons.forget(&id, NOW + 5).await.unwrap();
    let later = NOW + REFRESH + 1;
    let waiting = async {
        while other.holds("a", later) {
            other.lessons.ready(&ReadBudget::new(TIMEOUT), later).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it was forgotten elsewhere");
}

/// What a client can make up does not fill the memory, and does not displace what others learned.
#[tokio::test]
async fn lessons_in_memory_are_bounded() {
    let server = LessonsFixture::new().await;
    server.met("honest", Lesson::UsageRefused, NOW).await;
    for window in 0..100 {
        server.offer_window("a", (200_000, 1_000 + window), NOW).await;
    }
    let of_model = server.lessons.list(NOW).await.unwrap().into_iter().filter(|it| it.model == "m");
    assert_eq!(of_model.count(), 32, "of one model");
    let (mut fit, mut full) = (0, 0);
    for number in 0..100 {
        let model = format!("m{number}");
        let source = LessonSource { model: &model, ..by("b") };
        match server.lessons.learn(&source, Lesson::ReasoningBound, None, NOW).await {
            LessonOffer::New => fit += 1,
            _ => full += 1,
        }
    }
    assert_eq!(fit, 64, "of one tenant");
    assert_eq!(full, 36, "of one tenant");
    let long = "m".repeat(257);
    let source = LessonSource { model: &long, ..by("c") };
    let outcome = server.lessons.learn(&source, Lesson::ReasoningBound, None, NOW).await;
    assert_eq!(outcome, LessonOffer::Full);
    for number in 0..9_000 {
        server.met(&format!("t{number}"), Lesson::UsageRefused, NOW).await;
    }
    let met: usize = server.lessons.list(NOW).await.unwrap().iter().map(|line| line.tenants).sum();
    assert_eq!(met, 8192);
    assert!(server.holds("honest", NOW));
}

/// An earlier version's lessons applied to all tenants, and a client may have dictated them.
#[tokio::test]
async fn lessons_without_tenant_are_ignored() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let scope = Scope { tenant: TenantId::default(), session: "~learned".into() };
    let old = [
        ("window of 200000 corrected by up for m", "9000"),
        ("include_usage refused by up", "true"),
    ];
    for (name, value) in old {
        let key = xxh3_128(name.as_bytes());
        let record =
            Record { kind: RecordKind::Learned, key, value: value.into(), at: NOW, turn: None };
        store.put_if_absent(scope.clone(), vec![record]).await.unwrap();
    }
    let server = LessonsFixture::over(store, NOW).await;
    assert_eq!(server.window("a", NOW), 200_000);
    assert!(!server.holds("a", NOW));
}

/// If the store does not answer in time, its lessons are missing for that long. They are not lost.
#[tokio::test]
async fn late_lessons_are_not_waited_for() {
    let server = LessonsFixture::new().await;
    server.met("a", Lesson::UsageRefused, NOW).await;
    let lessons = Lessons::new(server.store.clone(), LessonTerms::default());
    let held = lessons.0.loading.lock().await;
    for now in [NOW, NOW + 1] {
        let budget = ReadBudget::new(Duration::from_millis(1));
        assert_eq!(lessons.ready(&budget, now).await, RecallOutcome::Late);
    }
    assert!(!lessons.holds(&by("a"), Lesson::UsageRefused, NOW + 1));
    drop(held);
    assert_eq!(lessons.ready(&ReadBudget::new(TIMEOUT), NOW + 2).await, RecallOutcome::Known);
    assert!(lessons.holds(&by("a"), Lesson::UsageRefused, NOW + 2));
}

/// If a lesson was met and disproved or forgotten in the same millisecond, it is gone. Only a later refusal brings it
/// back.
#[tokio::test]
async fn end_beats_its_own_millisecond() {
    let server = LessonsFixture::new().await;
    for tenant in ["a", "b"] {
        server.offer_window(tenant, (200_000, 9_000), NOW).await;
    }
    server.lessons.answered(&by("a"), 9_001, NOW);
    assert_eq!(server.window("a", NOW), 200_000);
    tokio::task::yield_now().await;
    let again = server.restarted(NOW).await;
    assert_eq!(again.window("a", NOW), 200_000);
    assert_eq!(again.window("b", NOW), 9_000);
    server.met("a", Lesson::UsageRefused, NOW).await;
    let lines = server.lessons.list(NOW).await.unwrap();
    let id = &lines.iter().find(|line| line.lesson == Lesson::UsageRefused).unwrap().id;
    assert!(server.lessons.share(id, NOW).await.unwrap());
    assert!(server.lessons.forget(id, NOW).await.unwrap());
    assert!(!server.holds("a", NOW));
    assert!(!server.restarted(NOW).await.holds("a", NOW));
}

/// Listing the lessons in between shows that it is gone, and does not change that.
#[tokio::test]
async fn relearned_lessons_are_stored_again() {
    let server = LessonsFixture::new().await;
    server.met("a", Lesson::UsageRefused, NOW).await;
    let id = server.lessons.list(NOW).await.unwrap()[0].id.clone();
    server.lessons.forget(&id, NOW + 1).await.unwrap();
    assert_eq!(server.lessons.list(NOW + 1).await.unwrap(), []);
    assert_eq!(server.met("a", Lesson::UsageRefused, NOW + 2).await, LessonOffer::New);
    assert!(server.restarted(NOW + 3).await.holds("a", NOW + 3));
}

/// A lesson is stored once a day per tenant, in however many processes. A tenant that met none stores nothing.
#[tokio::test]
async fn repeated_lessons_are_stored_daily() {
    let server = LessonsFixture::new().await;
    let other = server.restarted(NOW).await;
    server.met("a", Lesson::UsageRefused, NOW).await;
    other.met("a", Lesson::UsageRefused, NOW + 5).await;
    server.lessons.answered(&by("b"), 9_000, NOW);
    tokio::task::yield_now().await;
    let stored = async |at: Millis| server.store.scan(scope_of(at / DAY), 99).await.unwrap().len();
    assert_eq!(stored(NOW).await, 1);
    // A day later it is met again, and lasts from then on, after a restart too.
    assert_eq!(server.met("a", Lesson::UsageRefused, NOW + DAY).await, LessonOffer::Known);
    assert_eq!(stored(NOW + DAY).await, 1);
    let last = NOW + 8 * DAY - 1;
    assert!(server.restarted(last).await.holds("a", last));
}

#[tokio::test]
async fn lessons_last_their_full_time() {
    let server = LessonsFixture::new().await;
    let met = NOW + DAY - 1;
    server.met("a", Lesson::UsageRefused, met).await;
    let last = met + 7 * DAY - 1;
    assert!(server.restarted(last).await.holds("a", last));
    let id = server.lessons.list(last).await.unwrap()[0].id.clone();
    assert!(!server.lessons.share(&id, last + 1).await.unwrap(), "nobody has it any more");
}

#[tokio::test]
async fn expired_lessons_make_room() {
    let server = LessonsFixture::new().await;
    for window in 0..32 {
        server.offer_window("a", (200_000, 1_000 + window), NOW).await;
    }
    let last = NOW + 7 * DAY - 1;
    assert_eq!(
        server.offer_window("b", (200_000, 7), last).await,
        LessonOffer::Full,
        "of one model"
    );
    assert_eq!(
        server.offer_window("b", (200_000, 1_000), last).await,
        LessonOffer::New,
        "it is known"
    );
    assert_eq!(server.offer_window("b", (200_000, 7), last + 1).await, LessonOffer::New);
    for number in 0..64 {
        let model = format!("m{number}");
        let source = LessonSource { model: &model, ..by("c") };
        server.lessons.learn(&source, Lesson::ReasoningBound, None, NOW).await;
    }
    assert_eq!(server.met("c", Lesson::UsageRefused, last).await, LessonOffer::Full, "of a tenant");
    assert_eq!(server.met("c", Lesson::UsageRefused, last + 1).await, LessonOffer::New);
}

/// A correction of the window is followed only a limited number of times.
#[tokio::test]
async fn window_corrections_are_limited() {
    let server = LessonsFixture::new().await;
    for step in 0..10 {
        let believed = 200_000 - 1_000 * step;
        server.offer_window("a", (believed, believed - 1_000), NOW).await;
    }
    assert_eq!(server.window("a", NOW), 192_000, "eight times");
}

fn listed(names: &[&str], window: u64) -> Vec<(ListedModel, u64)> {
    names.iter().map(|name| (ListedModel { name: (*name).into(), window }, 922_000)).collect()
}

#[tokio::test]
async fn latest_model_list_counts() {
    let lessons = LessonsFixture::new().await.lessons;
    let (source, other) = (by("a"), by("b"));
    for (at, window, learned) in
        [(0, 272_000, 1), (1, 272_000, 0), (2, 372_000, 1), (3, 272_000, 0)]
    {
        let count = lessons.learn_listed(&source, &listed(&["m"], window), 32, NOW + at).await;
        assert_eq!(count, learned, "{at}");
        assert_eq!(lessons.listed_window(&source, NOW + at), Some(window), "{at}");
    }
    assert_eq!(lessons.listed_window(&other, NOW + 3), None);
    let door = LessonSource { door: Door::Chatgpt, ..source };
    assert_eq!(lessons.listed_window(&door, NOW + 3), None);
    lessons.answered(&door, 300_000, NOW + 4);
    assert_eq!(lessons.listed_window(&source, NOW + 4), Some(272_000), "another door");
    lessons.answered(&source, 300_000, NOW + 5);
    assert_eq!(lessons.listed_window(&source, NOW + 5), Some(372_000), "it said so before");
    lessons.answered(&source, 400_000, NOW + 6);
    assert_eq!(lessons.listed_window(&source, NOW + 6), None);
}

#[tokio::test]
async fn long_model_lists_are_cut() {
    let lessons = LessonsFixture::new().await.lessons;
    let names: Vec<String> = (0..100).map(|at| format!("m{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(lessons.learn_listed(&by("a"), &listed(&names, 9_000), 32, NOW).await, 32);
    assert_eq!(lessons.learn_listed(&by("b"), &listed(&names, 922_000), 32, NOW).await, 0);
}
