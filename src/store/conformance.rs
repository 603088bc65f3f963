//! What every store must do; each backend's tests run all of it.

use std::sync::Arc;

use bytes::Bytes;

use super::{Put, Record, RecordKind, Scope, Store};

pub(super) fn scope(tenant: &str, session: &str) -> Scope {
    Scope { tenant: tenant.into(), session: session.into() }
}

pub(super) fn turn(key: u128, value: &str, at: u64) -> Record {
    let value = Bytes::copy_from_slice(value.as_bytes());
    Record { kind: RecordKind::Turn, key, value, at }
}

/// Runs the suite on fresh stores.
pub(super) async fn check<S: Store>(fresh: impl Fn() -> S) {
    the_first_write_wins(&fresh()).await;
    races_have_one_winner(Arc::new(fresh())).await;
    invariant_11_tenants_do_not_see_each_other(&fresh()).await;
    scans_are_whole_and_in_order(&fresh()).await;
    words_are_asked_for_by_name_alone(&fresh()).await;
    scopes_are_paged_newest_first(&fresh()).await;
    the_holder_of_a_fact_is_found(&fresh()).await;
    a_dropped_scope_is_gone(&fresh()).await;
    what_is_old_or_too_much_expires(&fresh()).await;
    decisions_outlast_what_they_were_made_from(&fresh()).await;
    the_tenant_key_stays(&fresh()).await;
    fresh().ready().await.unwrap();
}

async fn the_first_write_wins(store: &impl Store) {
    let here = scope("t", "s");
    let puts = store.put_if_absent(here.clone(), vec![turn(1, "a", 1), turn(2, "b", 2)]).await;
    assert_eq!(puts.unwrap(), [Put::Written, Put::Written]);
    let puts = store.put_if_absent(here.clone(), vec![turn(1, "other", 3), turn(3, "c", 3)]).await;
    assert_eq!(puts.unwrap(), [Put::Existed("a".into()), Put::Written]);
    let get = |key| store.get(here.clone(), RecordKind::Turn, key);
    assert_eq!(get(1).await.unwrap(), Some("a".into()));
    assert_eq!(get(9).await.unwrap(), None);
    assert_eq!(store.get(here.clone(), RecordKind::Reasoning, 1).await.unwrap(), None);
}

async fn races_have_one_winner<S: Store>(store: Arc<S>) {
    let tries = (0..16).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let record = turn(7, &format!("writer {n}"), n);
            store.put_if_absent(scope("t", "race"), vec![record]).await.unwrap().remove(0)
        })
    });
    let mut written = 0;
    let mut adopted = Vec::new();
    for one in tries.collect::<Vec<_>>() {
        match one.await.unwrap() {
            Put::Written => written += 1,
            Put::Existed(value) => adopted.push(value),
        }
    }
    let kept = store.get(scope("t", "race"), RecordKind::Turn, 7).await.unwrap().unwrap();
    assert_eq!(written, 1);
    assert!(adopted.iter().all(|value| *value == kept));
}

async fn words_are_asked_for_by_name_alone(store: &impl Store) {
    let here = scope("t", "s");
    let words = |key, value| Record { kind: RecordKind::Words, ..turn(key, value, 5) };
    let records = vec![turn(1, "a", 1), words(1, "é one"), words(2, "two")];
    store.put_if_absent(here.clone(), records).await.unwrap();
    let other = scope("u", "s");
    store.put_if_absent(other.clone(), vec![words(1, "another's")]).await.unwrap();
    assert_eq!(store.scan(here.clone(), 1).await.unwrap(), [turn(1, "a", 1)]);
    let one = store.get(here.clone(), RecordKind::Words, 1).await.unwrap();
    assert_eq!(one, Some("é one".into()));
    assert_eq!(store.size(here.clone(), RecordKind::Words).await.unwrap(), 9);
    assert_eq!(store.size(here.clone(), RecordKind::Reasoning).await.unwrap(), 0);
    store.drop_scope(here.clone()).await.unwrap();
    assert_eq!(store.get(here, RecordKind::Words, 1).await.unwrap(), None);
    assert_eq!(store.size(other, RecordKind::Words).await.unwrap(), 9);
}

async fn invariant_11_tenants_do_not_see_each_other(store: &impl Store) {
    store.put_if_absent(scope("a", "s"), vec![turn(1, "a's", 1)]).await.unwrap();
    store.put_if_absent(scope("b", "s"), vec![turn(2, "b's", 2)]).await.unwrap();
    let b = scope("b", "s");
    assert_eq!(store.get(b.clone(), RecordKind::Turn, 1).await.unwrap(), None);
    assert_eq!(store.scan(b.clone(), 99).await.unwrap(), [turn(2, "b's", 2)]);
    let sign = Record { kind: RecordKind::Sign, ..turn(9, "", 1) };
    store.put_if_absent(scope("a", "s"), vec![sign.clone()]).await.unwrap();
    store.put_if_absent(scope("a", "s later"), vec![sign]).await.unwrap();
    assert_eq!(store.signed("b".into(), vec![8, 9]).await.unwrap(), None);
    assert_eq!(store.signed("a".into(), vec![8, 9]).await.unwrap(), Some("s".into()));
    store.drop_scope(b).await.unwrap();
    assert_eq!(store.scan(scope("a", "s"), 99).await.unwrap().len(), 1);
}

async fn scans_are_whole_and_in_order(store: &impl Store) {
    let records = vec![turn(3, "late", 30), turn(1, "early", 10), turn(2, "{\"a\":\"ü\"}", 20)];
    store.put_if_absent(scope("t", "s"), records).await.unwrap();
    let found = store.scan(scope("t", "s"), 99).await.unwrap();
    assert_eq!(found, [turn(1, "early", 10), turn(2, "{\"a\":\"ü\"}", 20), turn(3, "late", 30)]);
    assert_eq!(store.scan(scope("t", "none"), 99).await.unwrap(), []);
}

async fn scopes_are_paged_newest_first(store: &impl Store) {
    for n in 0..5 {
        let record = turn(1, "x", 100 + n);
        store.put_if_absent(scope("t", &format!("s{n}")), vec![record]).await.unwrap();
    }
    let learned = Record { kind: RecordKind::Learned, ..turn(1, "x", 900) };
    store.put_if_absent(scope("t", "no turns"), vec![learned]).await.unwrap();
    let page = store.scopes(1, 2).await.unwrap();
    let names: Vec<&str> = page.iter().map(|line| &*line.scope.session).collect();
    assert_eq!(names, ["s3", "s2"]);
    assert_eq!((page[0].newest, page[0].records), (103, 1));
    assert_eq!(store.scopes(0, 99).await.unwrap().len(), 5);
}

async fn the_holder_of_a_fact_is_found(store: &impl Store) {
    store.put_if_absent(scope("a", "one"), vec![turn(1, "1", 1)]).await.unwrap();
    store.put_if_absent(scope("b", "two"), vec![turn(2, "2", 2)]).await.unwrap();
    let holder = |kind, key| store.holder(kind, key);
    assert_eq!(holder(RecordKind::Turn, 2).await.unwrap(), Some(scope("b", "two")));
    assert_eq!(holder(RecordKind::Turn, 3).await.unwrap(), None);
    assert_eq!(holder(RecordKind::Cut, 2).await.unwrap(), None);
}

async fn a_dropped_scope_is_gone(store: &impl Store) {
    let records = vec![turn(1, "a", 1), turn(2, "b", 2)];
    store.put_if_absent(scope("t", "s"), records).await.unwrap();
    assert_eq!(store.drop_scope(scope("t", "s")).await.unwrap(), 2);
    assert_eq!(store.drop_scope(scope("t", "s")).await.unwrap(), 0);
    assert_eq!(store.scan(scope("t", "s"), 99).await.unwrap(), []);
}

async fn what_is_old_or_too_much_expires(store: &impl Store) {
    let records = (0..20).map(|n| turn(n.into(), &"x".repeat(20_000), n)).collect();
    store.put_if_absent(scope("t", "s"), records).await.unwrap();
    let learned = Record { kind: RecordKind::Learned, ..turn(1, "kept", 0) };
    store.put_if_absent(scope("", "~"), vec![learned]).await.unwrap();
    assert_eq!(store.expire(5, u64::MAX).await.unwrap(), 5);
    assert!(store.expire(0, 200_000).await.unwrap() >= 5);
    let left = store.scan(scope("t", "s"), 99).await.unwrap();
    assert!(!left.is_empty() && left.len() <= 10);
    assert_eq!(left.last().unwrap().at, 19, "the newest stays");
    let learned = store.get(scope("", "~"), RecordKind::Learned, 1).await.unwrap();
    assert_eq!(learned, Some("kept".into()));
}

async fn decisions_outlast_what_they_were_made_from(store: &impl Store) {
    let kinds = ["cut", "echo", "aside", "summary", "compact", "queued", "said"]
        .map(|name| RecordKind::named(name).unwrap());
    for kind in kinds {
        assert!(kind.is_decision());
        of_a_kind(store, kind).await;
    }
}

async fn of_a_kind(store: &impl Store, kind: RecordKind) {
    let here = scope("t", &format!("decided {}", kind.name()));
    let cut = |key, at| Record { kind, ..turn(key, "cut", at) };
    let records = vec![cut(1, 1), turn(2, "old", 2), turn(3, "new", 30)];
    store.put_if_absent(here.clone(), records).await.unwrap();
    let ended = scope("t", &format!("ended {}", kind.name()));
    store.put_if_absent(ended.clone(), vec![cut(1, 1), turn(2, "old", 2)]).await.unwrap();
    assert_eq!(store.scan(here.clone(), 1).await.unwrap(), [cut(1, 1), turn(3, "new", 30)]);
    store.expire(10, u64::MAX).await.unwrap();
    assert_eq!(store.scan(here, 99).await.unwrap(), [cut(1, 1), turn(3, "new", 30)]);
    assert_eq!(store.scan(ended, 99).await.unwrap(), [], "nothing is left to be decided about");
}

async fn the_tenant_key_stays(store: &impl Store) {
    let key = store.tenant_key().await.unwrap();
    assert_eq!(store.tenant_key().await.unwrap(), key);
    assert_ne!(key, [0; 32]);
}
