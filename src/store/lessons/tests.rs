//! Whom a lesson holds for, until when, and that processes on one store agree.

use std::time::Duration;

use super::*;
use crate::store::memory::MemoryStore;

const NOW: Millis = 20_000 * DAY;
const PATIENCE: Duration = Duration::from_secs(10);

struct House {
    store: Arc<dyn Store>,
    lessons: Lessons,
}

impl House {
    async fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        Self::over(store, NOW).await
    }

    async fn over(store: Arc<dyn Store>, now: Millis) -> Self {
        let lessons = Lessons::new(store.clone(), LessonTerms::default());
        assert_eq!(lessons.ready(&ReadBudget::new(PATIENCE), now).await, Recalled::Known);
        Self { store, lessons }
    }

    async fn restarted(&self, now: Millis) -> Self {
        Self::over(self.store.clone(), now).await
    }

    async fn met(&self, tenant: &str, lesson: Lesson, now: Millis) -> LessonOffer {
        self.lessons.learn(&by(tenant), lesson, None, now).await
    }

    async fn said(&self, tenant: &str, (believed, window): (u64, u64), now: Millis) -> LessonOffer {
        self.lessons.learn(&by(tenant), Lesson::Window(window), Some(believed), now).await
    }

    fn window(&self, tenant: &str, now: Millis) -> u64 {
        self.lessons.window(&by(tenant), 200_000, now)
    }

    fn holds(&self, tenant: &str, now: Millis) -> bool {
        self.lessons.holds(&by(tenant), Lesson::UsageRefused, now)
    }
}

fn by(tenant: &str) -> LessonSource<'_> {
    LessonSource { tenant: Some(tenant), upstream: "up", model: "m", vouched: true }
}

#[tokio::test]
async fn tenants_whom_the_upstream_does_not_know_apart_never_agree() {
    let house = House::new().await;
    for made_up in ["x", "y", "z"] {
        house.met(made_up, Lesson::UsageRefused, NOW).await;
        house.lessons.answered(&LessonSource { vouched: false, ..by(made_up) }, None, NOW);
    }
    assert!(house.holds("x", NOW) && !house.holds("b", NOW));
    for vouched in ["x", "y", "z"] {
        house.lessons.answered(&by(vouched), None, NOW);
    }
    assert!(house.holds("b", NOW), "real ones do");
}

#[tokio::test]
async fn a_lesson_is_its_tenants_and_all_mens_once_enough_agree_who_were_answered() {
    let house = House::new().await;
    assert_eq!(house.met("a", Lesson::UsageRefused, NOW).await, LessonOffer::New);
    assert_eq!(house.met("a", Lesson::UsageRefused, NOW).await, LessonOffer::Known);
    assert!(house.holds("a", NOW) && !house.holds("b", NOW));
    for made_up in ["x", "y", "z", "0"] {
        assert_eq!(house.met(made_up, Lesson::UsageRefused, NOW).await, LessonOffer::New);
    }
    assert!(!house.holds("b", NOW), "who was never answered does not count");
    for (tenant, all) in [("a", false), ("x", false), ("y", true)] {
        house.lessons.answered(&by(tenant), None, NOW);
        assert_eq!(house.holds("b", NOW), all, "{tenant}");
    }
    let nobody = LessonSource { tenant: None, ..by("") };
    let outcome = house.lessons.learn(&nobody, Lesson::EditingRefused, None, NOW).await;
    assert_eq!(outcome, LessonOffer::Nothing);
    assert!(house.lessons.holds(&nobody, Lesson::UsageRefused, NOW), "it holds for all");
    tokio::task::yield_now().await;
    let again = house.restarted(NOW).await;
    assert!(again.holds("b", NOW) && !again.lessons.holds(&by("a"), Lesson::EditingRefused, NOW));
    let line = &again.lessons.list(NOW).await.unwrap()[0];
    assert_eq!((line.reach, line.tenants, line.agree), (LessonScope::Agreed, 5, 3));
}

#[tokio::test]
async fn it_ends_after_its_days_and_is_met_again() {
    let house = House::new().await;
    house.met("a", Lesson::UsageRefused, NOW).await;
    let last = NOW + 7 * DAY - 1;
    assert!(house.holds("a", last) && !house.holds("a", last + 1));
    assert!(house.restarted(last).await.holds("a", last));
    let late = house.restarted(last + DAY).await;
    assert!(
        !late.holds("a", last + DAY) && late.lessons.list(last + DAY).await.unwrap().is_empty()
    );
    assert_eq!(late.met("a", Lesson::UsageRefused, last + DAY).await, LessonOffer::New);
    assert!(late.holds("a", last + 2 * DAY));
    let day = scope_of(NOW / DAY);
    late.lessons.expire(NOW + 8 * DAY).await.unwrap();
    assert_eq!(late.store.scan(day.clone(), 9).await.unwrap().len(), 1, "at the limit");
    late.lessons.expire(NOW + 9 * DAY).await.unwrap();
    assert!(late.store.scan(day, 9).await.unwrap().is_empty(), "past it");
}

#[tokio::test]
async fn what_is_forgotten_is_gone_at_once_for_good_and_can_be_met_again() {
    let house = House::new().await;
    house.met("a", Lesson::UsageRefused, NOW).await;
    house.met("b", Lesson::UsageRefused, NOW).await;
    let id = house.lessons.list(NOW).await.unwrap()[0].id.clone();
    assert!(!house.lessons.forget("0123", NOW).await.unwrap());
    assert!(house.lessons.forget(&id, NOW + 1).await.unwrap());
    assert!(!house.holds("a", NOW + 1) && !house.holds("b", NOW + 1));
    assert!(!house.lessons.forget(&id, NOW + 1).await.unwrap(), "it is gone");
    assert!(!house.restarted(NOW + 2).await.holds("a", NOW + 2));
    assert_eq!(house.met("a", Lesson::UsageRefused, NOW + 1).await, LessonOffer::New);
    assert!(house.holds("a", NOW + 3) && !house.holds("b", NOW + 3));
    let again = house.restarted(NOW + 3).await;
    assert!(again.holds("a", NOW + 3) && !again.holds("b", NOW + 3));
}

#[tokio::test]
async fn what_is_shared_holds_for_all_until_it_is_forgotten() {
    let house = House::new().await;
    house.met("a", Lesson::UsageRefused, NOW).await;
    let id = house.lessons.list(NOW).await.unwrap()[0].id.clone();
    assert!(house.lessons.share(&id, NOW).await.unwrap());
    let year = NOW + 365 * DAY;
    let later = house.restarted(year).await;
    assert!(house.holds("b", NOW) && later.holds("b", year));
    let line = &later.lessons.list(year).await.unwrap()[0];
    assert_eq!((line.reach, line.expires), (LessonScope::Shared, None));
    assert!(later.lessons.forget(&id, year).await.unwrap());
    assert!(!later.holds("b", year) && !house.restarted(year).await.holds("b", year));
}

#[tokio::test]
async fn a_window_is_what_was_said_last_and_of_a_waverer_the_smallest() {
    let house = House::new().await;
    house.said("a", (200_000, 64_000), NOW).await;
    house.said("a", (64_000, 96_000), NOW).await;
    assert_eq!(house.said("a", (96_000, 96_000), NOW).await, LessonOffer::Nothing);
    assert_eq!((house.window("a", NOW), house.window("b", NOW)), (96_000, 200_000));
    assert_eq!(house.lessons.window(&by("a"), 150_000, NOW), 150_000, "another is believed");
    let other = LessonSource { model: "n", ..by("a") };
    assert_eq!(house.lessons.window(&other, 200_000, NOW), 200_000);
    house.said("a", (96_000, 64_000), NOW).await;
    assert_eq!(house.window("a", NOW), 64_000);
    assert_eq!(house.restarted(NOW).await.window("a", NOW), 64_000);
}

#[tokio::test]
async fn an_answer_that_a_window_could_not_hold_unteaches_it() {
    let house = House::new().await;
    for tenant in ["a", "b", "c"] {
        house.lessons.answered(&by(tenant), Some(8_000), NOW);
        house.said(tenant, (200_000, 9_000), NOW).await;
    }
    assert_eq!(house.window("d", NOW), 9_000, "they agree");
    house.lessons.answered(&by("d"), Some(9_000), NOW + 1);
    assert_eq!(house.window("d", NOW + 1), 9_000, "that fits");
    house.lessons.answered(&by("d"), Some(9_001), NOW + 2);
    assert_eq!((house.window("d", NOW + 2), house.window("a", NOW + 2)), (200_000, 9_000));
    house.lessons.answered(&by("a"), Some(9_001), NOW + 3);
    assert_eq!(house.window("a", NOW + 3), 200_000);
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    let again = house.restarted(NOW + 4).await;
    assert_eq!((again.window("d", NOW + 4), again.window("a", NOW + 4)), (200_000, 200_000));
    // Who is refused after that knows it for himself, and it is shared with nobody.
    for tenant in ["a", "b", "c", "e"] {
        house.lessons.answered(&by(tenant), None, NOW + 4);
        house.said(tenant, (200_000, 9_000), NOW + 4).await;
    }
    assert_eq!((house.window("a", NOW + 4), house.window("d", NOW + 4)), (9_000, 200_000));
}

#[tokio::test]
async fn processes_on_one_store_know_the_same_in_the_end() {
    let house = House::new().await;
    let other = house.restarted(NOW).await;
    house.met("a", Lesson::UsageRefused, NOW).await;
    other.met("b", Lesson::UsageRefused, NOW).await;
    assert!(!other.holds("a", NOW));
    let id = other.lessons.list(NOW).await.unwrap()[0].id.clone();
    assert!(other.holds("a", NOW), "the list is of all");
    house.lessons.forget(&id, NOW + 5).await.unwrap();
    let later = NOW + REFRESH + 1;
    let asked = async {
        while other.holds("a", later) {
            other.lessons.ready(&ReadBudget::new(PATIENCE), later).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it was forgotten elsewhere");
}

/// What a client can make up does not fill the memory, nor push out what others know.
#[tokio::test]
async fn memory_is_bounded() {
    let house = House::new().await;
    house.met("honest", Lesson::UsageRefused, NOW).await;
    for window in 0..100 {
        house.said("a", (200_000, 1_000 + window), NOW).await;
    }
    let of_model = house.lessons.list(NOW).await.unwrap().into_iter().filter(|it| it.model == "m");
    assert_eq!(of_model.count(), 32, "of one model");
    let (mut fit, mut full) = (0, 0);
    for number in 0..100 {
        let model = format!("m{number}");
        let source = LessonSource { model: &model, ..by("b") };
        match house.lessons.learn(&source, Lesson::ReasoningBound, None, NOW).await {
            LessonOffer::New => fit += 1,
            _ => full += 1,
        }
    }
    assert_eq!((fit, full), (64, 36), "of one tenant");
    let long = "m".repeat(257);
    let source = LessonSource { model: &long, ..by("c") };
    let outcome = house.lessons.learn(&source, Lesson::ReasoningBound, None, NOW).await;
    assert_eq!(outcome, LessonOffer::Full);
    for number in 0..9_000 {
        house.met(&format!("t{number}"), Lesson::UsageRefused, NOW).await;
    }
    let met: usize = house.lessons.list(NOW).await.unwrap().iter().map(|line| line.tenants).sum();
    assert_eq!(met, 8192);
    assert!(house.holds("honest", NOW));
}

/// An earlier version's lessons held for all, and may have been dictated.
#[tokio::test]
async fn what_an_earlier_version_kept_is_not_believed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let scope = Scope { tenant: Box::default(), session: "~learned".into() };
    let old = [
        ("window of 200000 corrected by up for m", "9000"),
        ("include_usage refused by up", "true"),
    ];
    for (name, value) in old {
        let key = xxh3_128(name.as_bytes());
        let record = Record { kind: RecordKind::Learned, key, value: value.into(), at: NOW };
        store.put_if_absent(scope.clone(), vec![record]).await.unwrap();
    }
    let house = House::over(store, NOW).await;
    assert_eq!((house.window("a", NOW), house.holds("a", NOW)), (200_000, false));
}

/// A store that does not answer costs what it knows, for so long; and that is not gone.
#[tokio::test]
async fn what_cannot_be_read_in_time_is_not_waited_for() {
    let house = House::new().await;
    house.met("a", Lesson::UsageRefused, NOW).await;
    let lessons = Lessons::new(house.store.clone(), LessonTerms::default());
    let held = lessons.0.loading.lock().await;
    for now in [NOW, NOW + 1] {
        let budget = ReadBudget::new(Duration::from_millis(1));
        assert_eq!(lessons.ready(&budget, now).await, Recalled::Late);
    }
    assert!(!lessons.holds(&by("a"), Lesson::UsageRefused, NOW + 1));
    drop(held);
    assert_eq!(lessons.ready(&ReadBudget::new(PATIENCE), NOW + 2).await, Recalled::Known);
    assert!(lessons.holds(&by("a"), Lesson::UsageRefused, NOW + 2));
}
