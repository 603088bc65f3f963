//! What processes on one store know of each other beside their turns.

use std::sync::atomic::AtomicUsize;

use super::super::latest_requests::tests::latest;
use super::*;
use crate::context::ThreadId;
use crate::context::caps::{AdditionId, Cap, CapOrigin, CapPeriod, CapSubject};
use crate::context::caps::{Spender, Spending, SumChange, SumKey};
use crate::context::compact::schedule::WritingEnd;

fn two() -> [Arc<Ledgers>; 2] {
    let store = Arc::new(MemoryStore::default());
    [Arc::new(ledgers(&store)), Arc::new(ledgers(&store))]
}

async fn opened(ledgers: &Ledgers, exchange: &str, messages: &str) -> OpenedSession {
    let lookup = lookup("t", Some("s"), exchange);
    ledgers.open(lookup, &conversation(messages)).await.unwrap()
}

/// A request is the latest until another process has got the next one.
#[tokio::test]
async fn later_request_elsewhere_is_not_at_hand() {
    let [here, there] = two();
    let first = opened(&here, "1", &user("hi")).await;
    let scope = first.scope.clone();
    here.keep_latest_request(&first, latest("1", 1));
    assert!(here.latest_request(&scope).await.is_some(), "it is in flight");
    let fact = turn(&first, "A");
    here.commit(first, vec![fact]).await.unwrap();
    assert!(here.latest_request(&scope).await.is_some());
    assert!(there.latest_request(&scope).await.is_none());
    let next = opened(&there, "2", &[user("hi"), model("A"), user("go")].join(",")).await;
    let Fact::Turn(mut later) = turn(&next, "B") else { panic!() };
    Arc::make_mut(&mut later).at = 3;
    there.commit(next, vec![Fact::Turn(later)]).await.unwrap();
    assert!(here.latest_request(&scope).await.is_none());
}

/// Whoever gets the next request carries out a compaction, and nobody does it again.
#[tokio::test]
async fn pending_compactions_are_common() {
    let [here, there] = two();
    let scope = opened(&here, "1", &user("hi")).await.scope.clone();
    opened(&there, "2", &user("hi")).await;
    assert!(here.request_compaction(scope.clone(), Some("the ship".into())).await.unwrap());
    assert!(!there.has_pending_compaction(&scope), "it is read with the next request");
    let next = opened(&there, "3", &user("hi")).await;
    assert!(there.has_focus(&scope));
    let mut claimed = there.claim_compaction(next.handle()).unwrap();
    opened(&there, "4", &user("hi")).await;
    assert!(!there.has_pending_compaction(&scope), "it is claimed");
    assert_eq!(claimed.focus(), Some("the ship"));
    claimed.close();
    while here.has_pending_compaction(&scope) {
        tokio::task::yield_now().await;
        opened(&here, "5", &user("hi")).await;
    }
    opened(&there, "6", &user("hi")).await;
    assert!(!there.has_pending_compaction(&scope));
}

#[tokio::test]
async fn failures_of_summaries_are_common() {
    let [here, there] = two();
    let thread = ThreadId::from("main");
    let failures = |ledgers: &Ledgers, opened: &OpenedSession| {
        ledgers.summary_failures(&opened.handle(), &thread).unwrap().count
    };
    let first = opened(&here, "1", &user("hi")).await;
    let fact = turn(&first, "A");
    let handle = first.handle();
    here.commit(first, vec![fact]).await.unwrap();
    here.note_summary_end(&handle, &thread, WritingEnd::Failed, 5).await;
    let next = opened(&there, "2", &user("hi")).await;
    assert_eq!(failures(&there, &next), 1);
    assert_eq!(there.summary_failures(&next.handle(), &"other".into()).unwrap().count, 0);
    there.note_summary_end(&next.handle(), &thread, WritingEnd::Cancelled, 9).await;
    assert_eq!(failures(&there, &next), 1);
    there.note_summary_end(&next.handle(), &thread, WritingEnd::Written, 9).await;
    assert_eq!(failures(&there, &next), 0);
    let mut last = opened(&here, "3", &user("hi")).await;
    while failures(&here, &last) > 0 {
        tokio::task::yield_now().await;
        last = opened(&here, "4", &user("hi")).await;
    }
}

/// Counts how often sums are read or changed.
#[derive(Default)]
struct CountedSums {
    inner: MemoryStore,
    changes: AtomicUsize,
}

impl StoreWrapper for CountedSums {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        Ok(&self.inner)
    }

    fn change_sums(
        &self,
        id: AdditionId,
        sums: Vec<(SumKey, Spending)>,
        change: SumChange,
    ) -> StoreFuture<'_, Vec<Spending>> {
        self.changes.fetch_add(1, Relaxed);
        self.inner.change_sums(id, sums, change)
    }
}

/// The sums of caps are read beside the session, and not once more.
#[tokio::test]
async fn caps_are_read_with_the_session() {
    let store = Arc::new(CountedSums::default());
    let ledgers = Ledgers::new(store.clone());
    let cap = |of| Cap {
        name: format!("{of:?}").into(),
        origin: CapOrigin::Configuration,
        of,
        only: None,
        per: CapPeriod::Month,
        dollars: None,
        tokens: Some(9),
    };
    let subjects = [CapSubject::All, CapSubject::Session, CapSubject::Project];
    ledgers.caps().configure(subjects.map(cap).to_vec());
    let spender = Some(Spender { upstream: "u".into(), ..Spender::default() });
    let lookup = SessionLookup { spender, ..lookup("t", Some("s"), "1") };
    let mut opened = ledgers.open(lookup, &conversation(&user("hi"))).await.unwrap();
    assert_eq!(store.changes.load(Relaxed), 1);
    let check = async |opened: &OpenedSession| {
        ledgers.fullest_cap(&opened.spender("u"), opened.fresh_sums(), budget(LONG)).await
    };
    check(&opened).await;
    assert_eq!(store.changes.load(Relaxed), 1);
    // What is only known with the session is read then.
    opened.origin.project = Some("tides".into());
    check(&opened).await;
    assert_eq!(store.changes.load(Relaxed), 2);
}

/// A rewound conversation shows a signature of the one before it, which another process asked the store for.
#[tokio::test]
async fn signature_does_not_keep_session() {
    let [here, there] = two();
    let signed = |text: &str| {
        format!(
            r#"{{"role":"assistant","content":[{{"type":"thinking","thinking":"","signature":"c2ln"}},{{"type":"text","text":"{text}"}}]}}"#
        )
    };
    let (first, _) = add_turn(&here, lookup("t", None, "1"), &user("hi"), "A").await;
    let next = [user("hi"), signed("A"), user("go")].join(",");
    assert_eq!(add_turn(&there, lookup("t", None, "2"), &next, "B").await.0, first);
    let (rewound, _) = add_turn(&here, lookup("t", None, "3"), &user("ho"), "C").await;
    assert_ne!(rewound, first);
    let next = [user("ho"), signed("C"), user("go")].join(",");
    assert_eq!(add_turn(&there, lookup("t", None, "4"), &next, "D").await.0, rewound);
}
