//! Sessions in memory: which ones are dropped if there are too many or they are too large, and what remains of a deleted
//! one.

use super::super::session_cache::{BYTES, LoadedLedger, SESSIONS, SessionCaches};
use super::*;
use crate::store::LogPlace;

fn scope(number: usize) -> Scope {
    Scope { tenant: "t".into(), session: format!("s{number}").into() }
}

fn texts_of(bytes: usize) -> Vec<Fact> {
    vec![Fact::Cut(Box::new(cut(1, &"w".repeat(bytes))))]
}

fn holds(caches: &SessionCaches, number: usize) -> bool {
    caches.held(&scope(number)).is_some()
}

#[test]
fn idle_sessions_are_dropped_first() {
    let mut caches = SessionCaches::default();
    let in_use = caches.cache(&scope(0));
    for number in 1..SESSIONS {
        caches.cache(&scope(number));
    }
    caches.cache(&scope(1));
    caches.cache(&scope(SESSIONS - 1));
    assert!((0..SESSIONS).all(|number| holds(&caches, number)), "at the limit");
    caches.cache(&scope(SESSIONS));
    // An eighth of the room was freed, and the new cache takes one place.
    let kept: Vec<usize> = (0..=SESSIONS).filter(|number| holds(&caches, *number)).collect();
    let expected = [0, 1].into_iter().chain(SESSIONS / 8 + 2..=SESSIONS);
    assert!(kept.into_iter().eq(expected));
    assert!(Arc::ptr_eq(&in_use, &caches.cache(&scope(0))));
}

#[test]
fn cached_bytes_are_limited() {
    let mut caches = SessionCaches::default();
    caches.cache(&scope(0)).add_stored(texts_of(1 << 20));
    let each = caches.bytes();
    let most = BYTES / each;
    for number in 1..=most {
        caches.cache(&scope(number)).add_stored(texts_of(1 << 20));
    }
    assert_eq!(caches.bytes(), (most + 1) * each, "it was not too much before the last");
    caches.cache(&scope(most + 1));
    // An eighth of the room was freed, and no more.
    let stay = (BYTES - BYTES / 8) / each;
    assert_eq!(caches.bytes(), stay * each);
    let kept: Vec<usize> = (0..=most + 1).filter(|number| holds(&caches, *number)).collect();
    assert!(kept.into_iter().eq(most + 1 - stay..=most + 1), "the least recently used went");
}

#[test]
fn tenants_keep_their_cached_sessions() {
    for bytes in [0, 1 << 20] {
        let mut caches = SessionCaches::default();
        let other = Scope { tenant: "other".into(), session: "s".into() };
        caches.cache(&other).add_stored(texts_of(2 << 20));
        for number in 0..2 * SESSIONS {
            caches.cache(&scope(number)).add_stored(texts_of(bytes));
        }
        assert!(caches.held(&other).is_some(), "{bytes} bytes each");
        assert!(!holds(&caches, 0), "{bytes} bytes each");
        assert!(holds(&caches, 2 * SESSIONS - 1), "{bytes} bytes each");
    }
}

/// Sessions in use stay, so others are dropped, whoever has them.
#[test]
fn busy_tenants_drop_others() {
    let mut caches = SessionCaches::default();
    let other = Scope { tenant: "other".into(), session: "s".into() };
    caches.cache(&other);
    let in_use: Vec<_> = (0..SESSIONS).map(|number| caches.cache(&scope(number))).collect();
    assert!(caches.held(&other).is_none());
    assert!(in_use.len() == SESSIONS);
}

#[tokio::test]
async fn deleted_sessions_leave_memory() {
    let mut caches = SessionCaches::default();
    let cache = caches.cache(&scope(0));
    cache.add_stored(texts_of(1000));
    assert!(caches.bytes() > 1000);
    let mut ran = false;
    cache.unless_forgotten(|| ran = true);
    assert!(ran);
    drop(cache.forget(|| Box::pin(std::future::ready(Ok(())))));
    assert!(cache.look(Ledger::is_empty), "{}", caches.bytes());
    assert!(caches.bytes() < 1000, "{}", caches.bytes());
    cache.unless_forgotten(|| panic!("it is deleted"));
    assert!(!cache.add_stored(texts_of(1000)), "what comes late is not added");
    let mut late = Ledger::default();
    texts_of(1000).into_iter().for_each(|fact| late.add(fact));
    cache.join(&late);
    cache.loaded(LoadedLedger { ledger: late, has_unread: true }, LogPlace::default());
    assert!(cache.look(Ledger::is_empty));
    assert!(!cache.take_unread());
    drop((caches.remove(&scope(0)), cache));
    assert_eq!(caches.bytes(), 0);
}

/// A cache can only be removed by a caller that holds it. If the name now has another cache, that one stays.
#[test]
fn caches_in_use_are_not_released() {
    let mut caches = SessionCaches::default();
    let (first, other) = (caches.cache(&scope(0)), caches.cache(&scope(1)));
    caches.release(&[scope(0), scope(2)]);
    assert!(holds(&caches, 0), "it is in use");
    caches.remove_cache(&scope(0), &other);
    assert!(holds(&caches, 0), "the name has another cache");
    caches.remove_cache(&scope(0), &first);
    assert!(!holds(&caches, 0));
    drop(other);
    caches.release(&[scope(1)]);
    assert!(!holds(&caches, 1));
}

/// A name is found if there is anything under it: a turn, or an exchange that is not over yet.
#[tokio::test]
async fn open_sessions_are_found_by_name() {
    let ours = ledgers(&Arc::new(MemoryStore::default()));
    let named = |name: &str| lock(&ours.caches).named(&name.into());
    drop(ours.handle(&scope(0)));
    assert_eq!(named("s0"), [], "somebody has only asked for it");
    let opened = ours.open(lookup("t", Some("s0"), "1"), &conversation(&user("hi"))).await.unwrap();
    assert_eq!(named("s0"), [scope(0)]);
    let fact = turn(&opened, "A");
    drop(opened);
    assert_eq!(named("s0"), [], "it ended without a turn");
    assert!(ours.handle(&scope(0)).cache.add_stored(vec![fact]));
    assert_eq!(named("s0"), vec![scope(0)]);
    assert_eq!(named("s1"), vec![]);
}

/// The store knows nothing of a session that begins here, so it is not read.
#[tokio::test]
async fn new_sessions_are_not_read() {
    let store = Slow::new();
    let ours = Ledgers::new(store.clone());
    let opened = ours.open(lookup("t", None, "1"), &conversation(&user("hi"))).await.unwrap();
    assert!(!opened.store_missed);
    assert!(opened.cache.is_loaded());
    assert_eq!(store.scans.load(Relaxed), 0);
}
