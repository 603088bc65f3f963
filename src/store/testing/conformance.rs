//! What every store must do; each backend's tests run all of it.
//!
//! Those that need a server are in `tests/fleet`.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::drafts::Draft;
use super::precondition::{Precondition, WriteToken};
use super::{Record, RecordKind, Scope, ScopePage, Store, StoreError, SweepStep, WriteOutcome};
use crate::context::Millis;

/// A folder for a test: where `PLIMSOLL_TEST_DATA` says, else where temporary files are.
#[cfg(test)]
pub(super) fn folder() -> tempfile::TempDir {
    let data = std::env::var_os("PLIMSOLL_TEST_DATA").map_or_else(std::env::temp_dir, Into::into);
    tempfile::tempdir_in(data).unwrap()
}

pub(super) fn scope(tenant: &str, session: &str) -> Scope {
    Scope { tenant: tenant.into(), session: session.into() }
}

pub(super) fn turn(key: u128, value: &str, at: u64) -> Record {
    let value = Bytes::copy_from_slice(value.as_bytes());
    Record { kind: RecordKind::Turn, key, value, at, turn: None }
}

/// Runs the suite on fresh stores.
///
/// # Panics
/// If the store does something else.
pub async fn check<S: Store>(fresh: impl Fn() -> S) {
    the_first_write_wins(&fresh()).await;
    races_have_one_winner(Arc::new(fresh())).await;
    invariant_11_tenants_do_not_see_each_other(&fresh()).await;
    scans_are_whole_and_in_order(&fresh()).await;
    words_are_asked_for_by_name_alone(&fresh()).await;
    scopes_are_paged_newest_first(&fresh()).await;
    a_page_begins_after_any_line(&fresh()).await;
    a_line_sums_up_what_its_turns_report(&fresh()).await;
    a_session_is_found_by_its_name(&fresh()).await;
    of_a_series_the_newest_stays(&fresh()).await;
    the_holder_of_a_fact_is_found(&fresh()).await;
    a_dropped_scope_is_gone(&fresh()).await;
    what_is_old_expires(&fresh()).await;
    what_is_too_much_expires(&fresh()).await;
    a_session_goes_as_a_whole(&fresh()).await;
    drafts_of_who_is_gone_become_turns(&fresh()).await;
    a_turn_takes_its_draft_away(&fresh()).await;
    a_draft_goes_with_its_turn_alone(&fresh()).await;
    a_turn_takes_the_place_of_one_that_was_interrupted(&fresh()).await;
    a_whole_reply_takes_the_place_of_a_part_of_it(&fresh()).await;
    drafts_go_with_their_scope(&fresh()).await;
    a_deleted_scope_stays_deleted(&fresh()).await;
    what_is_appended_is_seen(&fresh()).await;
    nothing_is_appended_to_a_deleted_scope(&fresh()).await;
    a_cancelled_write_is_void(&fresh()).await;
    the_tenant_key_stays(&fresh()).await;
    work_is_held_by_one(&fresh()).await;
    fresh().ready().await.unwrap();
}

async fn the_first_write_wins(store: &impl Store) {
    let here = scope("t", "s");
    let puts = store.put_if_absent(here.clone(), vec![turn(1, "a", 1), turn(2, "b", 2)]).await;
    assert_eq!(puts.unwrap(), [WriteOutcome::Written, WriteOutcome::Written]);
    let puts = store.put_if_absent(here.clone(), vec![turn(1, "other", 3), turn(3, "c", 3)]).await;
    assert_eq!(puts.unwrap(), [WriteOutcome::Existed("a".into()), WriteOutcome::Written]);
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
            WriteOutcome::Written => written += 1,
            WriteOutcome::Existed(value) => adopted.push(value),
        }
    }
    let kept = store.get(scope("t", "race"), RecordKind::Turn, 7).await.unwrap().unwrap();
    assert_eq!(written, 1);
    assert!(adopted.iter().all(|value| *value == kept));
}

async fn words_are_asked_for_by_name_alone(store: &impl Store) {
    let here = scope("t", "s");
    let words = |key, value| Record { kind: RecordKind::Content, ..turn(key, value, 5) };
    let records = vec![turn(1, "a", 1), words(1, "é one"), words(2, "two")];
    store.put_if_absent(here.clone(), records).await.unwrap();
    let other = scope("u", "s");
    store.put_if_absent(other.clone(), vec![words(1, "another's")]).await.unwrap();
    assert_eq!(store.scan(here.clone(), 1).await.unwrap(), [turn(1, "a", 1)]);
    let one = store.get(here.clone(), RecordKind::Content, 1).await.unwrap();
    assert_eq!(one, Some("é one".into()));
    assert_eq!(store.size(here.clone(), RecordKind::Content).await.unwrap(), 9);
    assert_eq!(store.size(here.clone(), RecordKind::Reasoning).await.unwrap(), 0);
    store.drop_scope(here.clone()).await.unwrap();
    assert_eq!(store.get(here, RecordKind::Content, 1).await.unwrap(), None);
    assert_eq!(store.size(other, RecordKind::Content).await.unwrap(), 9);
}

async fn invariant_11_tenants_do_not_see_each_other(store: &impl Store) {
    store.put_if_absent(scope("a", "s"), vec![turn(1, "a's", 1)]).await.unwrap();
    store.put_if_absent(scope("b", "s"), vec![turn(2, "b's", 2)]).await.unwrap();
    let b = scope("b", "s");
    assert_eq!(store.get(b.clone(), RecordKind::Turn, 1).await.unwrap(), None);
    assert_eq!(store.scan(b.clone(), 99).await.unwrap(), [turn(2, "b's", 2)]);
    let fingerprint = Record { kind: RecordKind::Fingerprint, ..turn(9, "", 1) };
    store.put_if_absent(scope("a", "s"), vec![fingerprint.clone()]).await.unwrap();
    store.put_if_absent(scope("a", "s later"), vec![fingerprint]).await.unwrap();
    assert_eq!(store.session_by_fingerprint("b".into(), vec![8, 9]).await.unwrap(), None);
    assert_eq!(
        store.session_by_fingerprint("a".into(), vec![8, 9]).await.unwrap(),
        Some("s later".into()),
        "the session that left it last"
    );
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
    let page = store.scopes(ScopePage { after: None, skip: 1, count: 2 }).await.unwrap();
    let names: Vec<&str> = page.iter().map(|line| line.scope.session.as_str()).collect();
    assert_eq!(names, ["s3", "s2"]);
    assert_eq!(page[0].newest, 103);
    assert_eq!(page[0].records, 1);
    assert_eq!(store.scopes(ScopePage::first(99)).await.unwrap().len(), 5);
}

async fn a_page_begins_after_any_line(store: &impl Store) {
    for n in 0..7 {
        // Two of them were used at the same time.
        let record = turn(1, "x", 100 + n / 2);
        store.put_if_absent(scope("t", &format!("s{n}")), vec![record]).await.unwrap();
    }
    let all = store.scopes(ScopePage::first(99)).await.unwrap();
    assert_eq!(all.len(), 7);
    assert!(all.iter().all(|line| i64::try_from(line.cursor.id).is_ok()), "any client can read it");
    for (at, line) in all.iter().enumerate() {
        let page = ScopePage { after: Some(line.cursor), skip: 0, count: 99 };
        assert_eq!(store.scopes(page).await.unwrap(), all[at + 1..]);
    }
}

async fn a_line_sums_up_what_its_turns_report(store: &impl Store) {
    let reported = |input: u64| {
        format!(r#"{{"kind":"turn","usage":{{"input":{input},"output":7,"cache_read":3}}}}"#)
    };
    let here = scope("t", "s");
    let records = vec![turn(1, &reported(100), 10), turn(2, &reported(50), 30), turn(3, "odd", 20)];
    store.put_if_absent(here.clone(), records).await.unwrap();
    // Records that existed before are not counted again.
    let cut = Record { kind: RecordKind::Cut, ..turn(9, "c", 40) };
    store.put_if_absent(here, vec![turn(1, &reported(100), 10), cut]).await.unwrap();
    let line = store.scopes(ScopePage::first(1)).await.unwrap().remove(0);
    assert_eq!(line.began, 10);
    assert_eq!(line.newest, 30);
    assert_eq!(line.cursor.used, 40);
    assert_eq!(line.turns, 3);
    assert_eq!(line.records, 4);
    assert_eq!(line.input, 150);
    assert_eq!(line.output, 14);
    assert_eq!(line.cache_read, 6);
    // What is billed counts: calls of other models too, no refusal for which nothing is charged, and no number that
    // cannot be.
    let advice =
        r#""attempts":[{"kind":"advisor_message","model":"m","usage":{"input":20,"output":1}}]"#;
    let usages = [
        format!(r#"{{"input":{},"output":{},"cache_read":3}}"#, i64::MAX, u64::MAX),
        format!(r#"{{"input":{},"output":4,{advice}}}"#, 1u64 << 63),
        r#"{"input":412,"output":0,"unbilled":true}"#.to_owned(),
    ];
    let turns = usages
        .iter()
        .zip(11..)
        .map(|(usage, key)| turn(key, &format!(r#"{{"kind":"turn","usage":{usage}}}"#), 50));
    store.put_if_absent(scope("t", "s"), turns.collect()).await.unwrap();
    let line = store.scopes(ScopePage::first(1)).await.unwrap().remove(0);
    assert_eq!(line.turns, 6);
    assert_eq!(line.input, 170);
    assert_eq!(line.output, 19);
    assert_eq!(line.cache_read, 9);
}

async fn a_session_is_found_by_its_name(store: &impl Store) {
    for (tenant, session) in [("a", "s"), ("b", "s"), ("a", "other")] {
        store.put_if_absent(scope(tenant, session), vec![turn(1, "x", 1)]).await.unwrap();
    }
    let decided = Record { kind: RecordKind::Cut, ..turn(1, "c", 1) };
    store.put_if_absent(scope("c", "s"), vec![decided]).await.unwrap();
    let learned = Record { kind: RecordKind::Learned, ..turn(1, "l", 1) };
    store.put_if_absent(scope("", "s"), vec![learned]).await.unwrap();
    store.put_drafts(THEM, vec![draft(7, 1)], Vec::new()).await.unwrap();
    let mut found = store.scopes_named("s".into()).await.unwrap();
    found.sort();
    let all = ["a", "b", "c", "t"].map(|tenant| scope(tenant, "s"));
    assert_eq!(found, all, "those without turns too, and what is on its way");
    assert_eq!(store.scopes_named("none".into()).await.unwrap(), []);
}

async fn of_a_series_the_newest_stays(store: &impl Store) {
    let here = Scope::series("counting");
    for at in 1..100 {
        let state = Record { kind: RecordKind::Learned, ..turn(at.into(), &format!("{at}"), at) };
        store.put_if_absent(here.clone(), vec![state]).await.unwrap();
    }
    assert_eq!(store.scan(here.clone(), 1).await.unwrap()[0].value, "99");
    let kept = store.scan(here.clone(), 999).await.unwrap().len();
    assert!(kept < 10);
    assert_eq!(store.drop_scope(here).await.unwrap(), kept as u64, "what went is not counted");
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

/// Deletes until there is nothing more to delete, and returns what was deleted.
async fn expire(store: &impl Store, before: Millis, max_bytes: u64) -> SweepStep {
    let mut gone = SweepStep::default();
    loop {
        let step = store.expire(before, max_bytes).await.unwrap();
        let more = step.more;
        gone.join(step);
        if !more {
            return gone;
        }
        tokio::task::yield_now().await;
    }
}

async fn learned(store: &impl Store) {
    let learned = Record { kind: RecordKind::Learned, ..turn(1, "kept", 0) };
    store.put_if_absent(scope("", "~"), vec![learned]).await.unwrap();
}

async fn what_is_old_expires(store: &impl Store) {
    learned(store).await;
    for n in 0..200 {
        let here = scope("t", &format!("s{n}"));
        // The session began long ago and was last used at the time in its name.
        store.put_if_absent(here.clone(), vec![turn(1, "first", 0)]).await.unwrap();
        store.put_if_absent(here, vec![turn(2, "last", n)]).await.unwrap();
    }
    let gone = expire(store, 150, u64::MAX).await;
    assert_eq!(gone.records, 300);
    assert_eq!(gone.scopes.len(), 150);
    assert!(gone.scopes.contains(&scope("t", "s149")));
    assert_eq!(store.scan(scope("t", "s149"), 99).await.unwrap(), []);
    assert_eq!(store.scan(scope("t", "s150"), 99).await.unwrap().len(), 2, "it is whole");
    assert_eq!(store.scopes(ScopePage::first(999)).await.unwrap().len(), 50);
    let learned = store.get(scope("", "~"), RecordKind::Learned, 1).await.unwrap();
    assert_eq!(learned, Some("kept".into()));
    // A session in use is kept whatever the time limit is.
    expire(store, Millis::MAX, u64::MAX).await;
    assert_eq!(store.scopes(ScopePage::first(999)).await.unwrap().len(), 1);
}

async fn what_is_too_much_expires(store: &impl Store) {
    learned(store).await;
    for n in 0..100 {
        let words = Record { kind: RecordKind::Content, ..turn(1, &"x".repeat(10_000), n) };
        let here = scope("t", &format!("s{n}"));
        store.put_if_absent(here, vec![turn(1, "x", n), words]).await.unwrap();
    }
    let gone = expire(store, 0, 500_000).await.scopes.len();
    assert!((45..70).contains(&gone), "{gone} went");
    let left = store.scopes(ScopePage::first(999)).await.unwrap();
    assert_eq!(left.len(), 100 - gone);
    let names: Vec<_> = left.iter().map(|line| line.scope.session.to_string()).collect();
    let newest: Vec<_> = (gone..100).rev().map(|n| format!("s{n}")).collect();
    assert_eq!(names, newest, "the ones used longest ago went");
    let learned = store.get(scope("", "~"), RecordKind::Learned, 1).await.unwrap();
    assert_eq!(learned, Some("kept".into()));
}

/// While a session is in use, its decisions and what they depend on (reasoning, summaries, texts) stay, however old
/// they are. They are deleted with the session.
async fn a_session_goes_as_a_whole(store: &impl Store) {
    let kinds = RecordKind::ALL.iter().copied().filter(|kind| *kind != RecordKind::Learned);
    let old = |kind| Record { kind, ..turn(1, "old", 1) };
    let records: Vec<Record> = kinds.clone().map(old).collect();
    let (used, unused) = (scope("t", "in use"), scope("t", "unused"));
    store.put_if_absent(used.clone(), records.clone()).await.unwrap();
    store.put_if_absent(used.clone(), vec![turn(2, "new", 30)]).await.unwrap();
    let mut elsewhere = records.clone();
    elsewhere.retain(|record| record.kind != RecordKind::Fingerprint);
    elsewhere.push(Record { kind: RecordKind::Fingerprint, ..turn(7, "", 1) });
    store.put_if_absent(unused.clone(), elsewhere).await.unwrap();
    assert_eq!(
        store.session_by_fingerprint("t".into(), vec![7]).await.unwrap(),
        Some("unused".into())
    );
    let gone = expire(store, 10, u64::MAX).await;
    assert_eq!(gone.scopes, std::slice::from_ref(&unused));
    for kind in kinds.filter(|kind| *kind != RecordKind::Fingerprint) {
        let get = |scope: &Scope| store.get(scope.clone(), kind, 1);
        assert_eq!(get(&used).await.unwrap(), Some("old".into()), "{kind:?}");
        assert_eq!(get(&unused).await.unwrap(), None, "{kind:?}");
    }
    assert_eq!(
        store.session_by_fingerprint("t".into(), vec![1]).await.unwrap(),
        Some("in use".into())
    );
    assert_eq!(store.session_by_fingerprint("t".into(), vec![7]).await.unwrap(), None);
    // If the name is used again, that is a new session. It may leave the same fingerprints as the deleted one.
    let again =
        vec![turn(5, "again", 40), Record { kind: RecordKind::Fingerprint, ..turn(7, "", 40) }];
    store.put_if_absent(unused.clone(), again).await.unwrap();
    assert_eq!(store.scan(unused, 99).await.unwrap(), [turn(5, "again", 40)]);
    assert_eq!(
        store.session_by_fingerprint("t".into(), vec![7]).await.unwrap(),
        Some("unused".into())
    );
}

/// Two instances. `US` is the one that adopts drafts.
const US: u64 = 1;
const THEM: u64 = u64::MAX;

fn draft(key: u128, input: u64) -> Draft {
    let value = format!(r#"{{"kind":"turn","usage":{{"input":{input}}},"outcome":"interrupted"}}"#);
    Draft { scope: scope("t", "s"), record: turn(key, &value, 10), since: Instant::now() }
}

async fn drafts_of_who_is_gone_become_turns(store: &impl Store) {
    store.put_drafts(THEM, vec![draft(1, 1), draft(2, 2)], Vec::new()).await.unwrap();
    // Of draft 1 the newer version counts, draft 2 ended, and neither is a fact yet.
    store.put_drafts(THEM, vec![draft(1, 40)], vec![2]).await.unwrap();
    store.put_drafts(US, vec![draft(3, 3)], Vec::new()).await.unwrap();
    assert_eq!(store.scopes(ScopePage::first(9)).await.unwrap(), []);
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap(), []);
    assert_eq!(store.adopt_drafts(US).await.unwrap(), [scope("t", "s")]);
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap(), [draft(1, 40).record]);
    let line = store.scopes(ScopePage::first(9)).await.unwrap().remove(0);
    assert_eq!(line.turns, 1);
    assert_eq!(line.input, 40);
    assert_eq!(line.records, 1);
    assert_eq!(store.holder(RecordKind::Turn, 1).await.unwrap(), Some(scope("t", "s")));
    assert_eq!(store.adopt_drafts(US).await.unwrap(), [], "once");
}

async fn a_turn_takes_its_draft_away(store: &impl Store) {
    store.put_drafts(THEM, vec![draft(1, 40)], Vec::new()).await.unwrap();
    let ended = turn(1, r#"{"kind":"turn","usage":{"input":50},"outcome":"complete"}"#, 10);
    let put = store.put_if_absent(scope("t", "s"), vec![ended.clone()]).await.unwrap();
    assert_eq!(put, [WriteOutcome::Written]);
    // A draft that arrives at the store too late is ignored.
    store.put_drafts(THEM, vec![draft(1, 45)], Vec::new()).await.unwrap();
    assert_eq!(store.adopt_drafts(US).await.unwrap(), []);
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap(), [ended]);
    let line = store.scopes(ScopePage::first(9)).await.unwrap().remove(0);
    assert_eq!(line.turns, 1);
    assert_eq!(line.input, 50);
}

/// A turn that expired does not come back from its draft. Another kind of record with the same key does not remove a
/// draft.
async fn a_draft_goes_with_its_turn_alone(store: &impl Store) {
    let other = Draft { scope: scope("t", "other"), ..draft(2, 7) };
    store.put_drafts(THEM, vec![draft(1, 40), other], Vec::new()).await.unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, "ended", 10)]).await.unwrap();
    let cut = Record { kind: RecordKind::Cut, ..turn(2, "{}", 10) };
    store.put_if_absent(scope("t", "other"), vec![cut]).await.unwrap();
    store.put_if_absent(scope("t", "in use"), vec![turn(3, "new", 90)]).await.unwrap();
    expire(store, 50, u64::MAX).await;
    assert_eq!(store.adopt_drafts(US).await.unwrap(), [scope("t", "other")]);
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap(), []);
}

/// An instance was taken for dead, but was alive: the turn that it writes at the end counts, once.
async fn a_turn_takes_the_place_of_one_that_was_interrupted(store: &impl Store) {
    store.put_drafts(THEM, vec![draft(1, 40)], Vec::new()).await.unwrap();
    assert_eq!(store.adopt_drafts(US).await.unwrap().len(), 1);
    let ended = turn(1, r#"{"kind":"turn","usage":{"input":50},"outcome":"complete"}"#, 10);
    let put = || store.put_if_absent(scope("t", "s"), vec![ended.clone()]);
    assert_eq!(put().await.unwrap(), [WriteOutcome::Written]);
    assert_eq!(put().await.unwrap(), [WriteOutcome::Existed(ended.value.clone())]);
    let again = store.put_if_absent(scope("t", "s"), vec![draft(1, 60).record]).await.unwrap();
    assert_eq!(again, [WriteOutcome::Existed(ended.value.clone())], "not the other way round");
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap(), std::slice::from_ref(&ended));
    let line = store.scopes(ScopePage::first(9)).await.unwrap().remove(0);
    assert_eq!(line.turns, 1);
    assert_eq!(line.records, 1);
    assert_eq!(line.input, 50);
}

/// A reply that came after its exchange had ended counts, once.
async fn a_whole_reply_takes_the_place_of_a_part_of_it(store: &impl Store) {
    for (outcome, input, is_written) in [
        ("client_left", 10, true),
        ("upstream_failed", 20, false),
        ("complete", 50, true),
        ("complete", 60, false),
        ("client_left", 70, false),
    ] {
        let advice = r#"[{"kind":"advisor_message","usage":{"input":7,"output":3}}]"#;
        let usage = format!(r#""usage":{{"input":{input},"attempts":{advice}}}"#);
        let value = format!(r#"{{"kind":"turn",{usage},"outcome":"{outcome}"}}"#);
        let put = store.put_if_absent(scope("t", "s"), vec![turn(1, &value, 10)]).await.unwrap();
        assert_eq!(put == [WriteOutcome::Written], is_written, "{outcome} {input}");
    }
    let line = store.scopes(ScopePage::first(9)).await.unwrap().remove(0);
    assert_eq!(line.turns, 1);
    assert_eq!(line.records, 1);
    assert_eq!(line.input, 57);
    assert_eq!(line.output, 3);

    // A provider may say that it has ended before it says what it used.
    for (usage, is_written) in [
        ("", true),
        (r#""usage":{"output":4},"#, false),
        (r#""usage":{"input":80},"#, true),
        (r#""usage":{"input":90},"#, false),
        ("", false),
    ] {
        let value = format!(r#"{{"kind":"turn",{usage}"outcome":"complete"}}"#);
        let put = store.put_if_absent(scope("t", "s"), vec![turn(2, &value, 10)]).await.unwrap();
        assert_eq!(put == [WriteOutcome::Written], is_written, "{usage}");
    }
    let line = store.scopes(ScopePage::first(9)).await.unwrap().remove(0);
    assert_eq!(line.turns, 2);
    assert_eq!(line.records, 2);
    assert_eq!(line.input, 137);
}

async fn drafts_go_with_their_scope(store: &impl Store) {
    let other = Draft { scope: scope("u", "s"), ..draft(2, 7) };
    store.put_drafts(THEM, vec![draft(1, 40), other], Vec::new()).await.unwrap();
    store.drop_scope(scope("t", "s")).await.unwrap();
    assert_eq!(store.adopt_drafts(US).await.unwrap(), [scope("u", "s")]);
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap(), []);
}

/// What was in flight when a scope was deleted is not kept. What begins afterwards is.
async fn a_deleted_scope_stays_deleted(store: &impl Store) {
    let (here, before) = (scope("t", "s"), Instant::now());
    store.put_if_absent(here.clone(), vec![turn(1, "a", 1)]).await.unwrap();
    // A server counts back from when it runs a script, which on a busy machine is some milliseconds later.
    tokio::time::sleep(Duration::from_millis(200)).await;
    store.drop_scope(here.clone()).await.unwrap();
    let put = |records, since| store.put(here.clone(), records, Precondition::since(since));
    let late = put(vec![turn(2, "late", 2)], before).await;
    assert!(matches!(late, Err(StoreError::Deleted)), "{late:?}");
    let old = Draft { since: before, ..draft(3, 7) };
    store.put_drafts(THEM, vec![old.clone()], Vec::new()).await.unwrap();
    assert_eq!(store.scopes_named("s".into()).await.unwrap(), []);
    assert_eq!(store.adopt_drafts(US).await.unwrap(), []);
    // A new session of the same name begins.
    let after = Instant::now();
    assert_eq!(put(vec![turn(4, "new", 4)], after).await.unwrap(), [WriteOutcome::Written]);
    store.put_drafts(THEM, vec![old, draft(5, 7)], Vec::new()).await.unwrap();
    assert_eq!(store.adopt_drafts(US).await.unwrap(), std::slice::from_ref(&here));
    let late = put(vec![turn(6, "later", 2)], before).await;
    assert!(matches!(late, Err(StoreError::Deleted)), "{late:?}");
    let keys: Vec<u128> = store.scan(here, 9).await.unwrap().iter().map(|it| it.key).collect();
    assert_eq!(keys, [4, 5]);
    // Another tenant's session of that name is another session.
    let put = store.put(scope("u", "s"), vec![turn(1, "u", 1)], Precondition::since(before)).await;
    assert_eq!(put.unwrap(), [WriteOutcome::Written]);
}

/// Each query sees what was appended before, and a later write meets it.
async fn what_is_appended_is_seen(store: &impl Store) {
    let append = |session: &str, key| {
        let fingerprint = Record { kind: RecordKind::Fingerprint, ..turn(key, "", 1) };
        let content = Record { kind: RecordKind::Content, ..turn(key, "é", 1) };
        let records = vec![turn(key, "a", 1), content, fingerprint];
        store.append(scope("t", session), records, Precondition::default())
    };
    append("get", 1).await.unwrap();
    let got = store.get(scope("t", "get"), RecordKind::Turn, 1).await.unwrap();
    assert_eq!(got, Some("a".into()));
    append("size", 2).await.unwrap();
    assert_eq!(store.size(scope("t", "size"), RecordKind::Content).await.unwrap(), 2);
    append("scan", 3).await.unwrap();
    assert_eq!(store.scan(scope("t", "scan"), 9).await.unwrap(), [turn(3, "a", 1)]);
    append("fingerprint", 4).await.unwrap();
    let found = store.session_by_fingerprint("t".into(), vec![9, 4]).await.unwrap();
    assert_eq!(found, Some("fingerprint".into()));
    append("holder", 5).await.unwrap();
    let holder = store.holder(RecordKind::Turn, 5).await.unwrap();
    assert_eq!(holder, Some(scope("t", "holder")));
    append("scopes", 6).await.unwrap();
    assert_eq!(store.scopes(ScopePage::first(9)).await.unwrap().len(), 6);
    append("named", 7).await.unwrap();
    let named = store.scopes_named("named".into()).await.unwrap();
    assert_eq!(named, [scope("t", "named")]);
    append("put", 8).await.unwrap();
    let put = store.put_if_absent(scope("t", "put"), vec![turn(8, "b", 1)]).await.unwrap();
    assert_eq!(put, [WriteOutcome::Existed("a".into())]);
    store.put_drafts(THEM, vec![draft(9, 40)], Vec::new()).await.unwrap();
    append("s", 9).await.unwrap();
    assert_eq!(store.adopt_drafts(US).await.unwrap(), [], "it takes its draft away");
    assert_eq!(expire(store, 2, 0).await.scopes.len(), 8, "all but one");
}

async fn nothing_is_appended_to_a_deleted_scope(store: &impl Store) {
    let here = scope("t", "s");
    let append = |key, since| {
        store.append(here.clone(), vec![turn(key, "a", 1)], Precondition::since(since))
    };
    let before = Instant::now();
    append(1, before).await.unwrap();
    assert_eq!(store.drop_scope(here.clone()).await.unwrap(), 1);
    let late = append(2, before).await;
    assert!(matches!(late, Err(StoreError::Deleted)), "{late:?}");
    append(3, Instant::now()).await.unwrap();
    assert_eq!(store.scan(here.clone(), 9).await.unwrap(), [turn(3, "a", 1)]);
}

async fn a_cancelled_write_is_void(store: &impl Store) {
    let here = scope("t", "s");
    let put = |token: &WriteToken| {
        let only_if = Precondition { since: None, token: Some(token.clone()) };
        store.put(here.clone(), vec![turn(1, "a", 1)], only_if)
    };
    let token = WriteToken::default();
    assert!(token.cancel());
    assert!(matches!(put(&token).await, Err(StoreError::Cancelled)));
    assert_eq!(store.scan(here.clone(), 9).await.unwrap(), []);
    let token = WriteToken::default();
    assert_eq!(put(&token).await.unwrap(), [WriteOutcome::Written]);
    assert!(!token.cancel(), "it is kept");
}

/// Where several processes may do a piece of work, one at a time does.
async fn work_is_held_by_one(store: &impl Store) {
    let lasts = if store.is_shared() { Duration::from_millis(200) } else { Duration::ZERO };
    assert!(store.claim(7, US, lasts).await.unwrap());
    assert!(store.claim(7, US, lasts).await.unwrap(), "its own");
    assert!(store.claim(8, THEM, lasts).await.unwrap(), "other work");
    let is_free = async || store.claim(7, THEM, lasts).await.unwrap();
    assert_eq!(is_free().await, !store.is_shared());
    tokio::time::sleep(lasts * 2).await;
    assert!(is_free().await, "it has run out");
    store.release(7, US).await.unwrap();
    assert_eq!(store.claim(7, US, lasts).await.unwrap(), !store.is_shared(), "not the holder");
    store.release(7, THEM).await.unwrap();
    assert!(store.claim(7, US, lasts).await.unwrap());
}

async fn the_tenant_key_stays(store: &impl Store) {
    let key = store.tenant_key().await.unwrap();
    assert_eq!(store.tenant_key().await.unwrap(), key);
    assert_ne!(key, [0; 32]);
}
