//! Drafts of turns in flight: what is kept of an exchange that was interrupted.

use super::*;

/// The draft of an exchange that never ended.
fn drafted(opened: &OpenedSession) -> Turn {
    let Fact::Turn(turn) = turn(opened, "A") else { unreachable!() };
    let turn = Turn::clone(&turn);
    Turn { outcome: Outcome::Interrupted, usage: Usage::default(), response: None, ..turn }
}

async fn interrupted(store: &Arc<MemoryStore>) -> Vec<Turn> {
    let after = ledgers(store);
    let count = after.adopt_drafts().await.unwrap();
    let mut turns = Vec::new();
    for line in after.sessions(ScopePage::first(99)).await.unwrap() {
        let of = |ledger: &Ledger| ledger.turns().map(|turn| Turn::clone(turn)).collect::<Vec<_>>();
        turns.extend(after.look(&line.scope, of).await.unwrap());
    }
    turns.retain(|turn| turn.outcome == Outcome::Interrupted);
    assert_eq!(turns.len(), count);
    turns
}

const HEAD: &str = concat!(
    r#"data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":40,"output_tokens":1}}}"#,
    "\n\ndata: ",
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    "\n\n",
);

/// The reply arrives piece by piece. The draft has the newest progress, also of pieces of which only the length is
/// recorded.
#[tokio::test]
async fn drafts_have_what_has_arrived() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let guard = ours.draft(&opened, drafted(&opened), Duration::ZERO);
    let latest = guard.latest();
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 1 << 20);
    reading.push(HEAD.as_bytes());
    latest.note(&reading);
    let delta =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"four"}}"#;
    for _ in 0..20 {
        reading.push(format!("data: {delta}\n\n").as_bytes());
        latest.note(&reading);
    }
    ours.write_drafts(7).await.unwrap();
    std::mem::forget(guard);
    let turn = interrupted(&store).await.remove(0);
    let started = ledgers(&store);
    started.caps().price_by(Arc::new(|_| Some(0.5)));
    assert_eq!(started.read_spending(turn.at + 1).await, 0);
    let spent = started.caps().today(turn.at + 1);
    assert!(spent.dollars == 0.5, "{spent:?}");
    let whole = |turn: &Turn| {
        let outcome = Outcome::Complete;
        Some(Turn { outcome, dollars: Some(0.75), ..turn.clone() })
    };
    assert!(started.complete_turn(&"t".into(), "m", whole).await.unwrap().is_some());
    let spent = started.caps().today(turn.at + 1);
    assert!(spent.dollars == 0.75, "its rest is added, not all of it: {spent:?}");
    assert_eq!(turn.usage.input, Some(40));
    assert_eq!(turn.usage.output, Some(20));
    assert!(turn.usage.lower_bound);
    assert!(turn.usage.context().is_none());
    assert_eq!(turn.response.as_deref(), Some("m"));
    assert_eq!(turn.ended, 7.max(turn.at));
}

#[tokio::test]
async fn only_long_exchanges_leave_drafts() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let open = async |session, request| {
        ours.open(lookup("t", Some(session), request), &conversation(&user("hi"))).await.unwrap()
    };
    // One draft ends with its turn, one without a turn, one was forgotten, and one is never due.
    let opened = open("a", "1").await;
    let kept = ours.draft(&opened, drafted(&opened), Duration::ZERO);
    let refused = open("b", "2").await;
    let dropped = ours.draft(&refused, drafted(&refused), Duration::ZERO);
    let forgotten = open("c", "3").await;
    let void = ours.draft(&forgotten, drafted(&forgotten), Duration::ZERO);
    let short = open("d", "4").await;
    let _short = ours.draft(&short, drafted(&short), LONG);
    let goes_on = open("e", "5").await;
    let _goes_on = ours.draft(&goes_on, drafted(&goes_on), Duration::ZERO);
    ours.write_drafts(7).await.unwrap();
    let fact = turn(&opened, "A");
    ours.commit(opened, vec![fact]).await.unwrap();
    kept.release();
    drop(dropped);
    ours.forget(&forgotten.scope).await.unwrap();
    void.release();
    ours.write_drafts(8).await.unwrap();
    let left: Vec<_> = interrupted(&store).await.into_iter().map(|turn| turn.exchange).collect();
    assert_eq!(left, ["5"]);
}

/// If the store takes no drafts, exchanges continue without them.
#[tokio::test]
async fn exchanges_continue_without_drafts() {
    let ours = Ledgers::new(Arc::new(Dead::default()));
    let timeout = Duration::from_millis(1);
    let ask = SessionLookup { timeout, ..lookup("t", Some("s"), "1") };
    let opened = ours.open(ask, &conversation(&user("hi"))).await.unwrap();
    let guard = ours.draft(&opened, drafted(&opened), Duration::ZERO);
    assert!(ours.write_drafts(7).await.is_err());
    drop(guard);
    assert!(ours.write_drafts(8).await.is_ok(), "nothing was written, so nothing has to go");
}

/// An exchange may end while its draft is written: the draft is removed again.
#[tokio::test]
async fn late_drafts_are_removed() {
    let ours = ledgers(&Arc::new(MemoryStore::default()));
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let key = turn_key(&opened.exchange);
    let begin = || ours.draft(&opened, drafted(&opened), Duration::ZERO);
    let due = || ours.drafts.due().map(|batch| (batch.due.len(), batch.ended));
    let guard = begin();
    assert_eq!(due(), Some((1, vec![])));
    assert_eq!(due(), None, "a draft is written once a second");
    guard.release();
    assert_eq!(due(), None, "its turn removed it");
    ours.drafts.wrote(&[key]);
    assert_eq!(due(), Some((0, vec![key])));
    // A draft that was never written need not be removed. A failed removal is tried again.
    let guard = begin();
    assert_eq!(due(), Some((1, vec![])));
    ours.drafts.failed(&[key], vec![7]);
    drop(guard);
    assert_eq!(due(), Some((0, vec![7])));
    ours.drafts.failed(&[], (0..5_000).collect());
    assert_eq!(due().map(|(_, ended)| ended.len()), Some(4_096), "of so many");
    // The written drafts of a deleted session are removed.
    let _guard = begin();
    assert_eq!(due(), Some((1, vec![])));
    ours.drafts.forget(&Scope { tenant: "t".into(), session: "other".into() });
    assert_eq!(due(), None);
    ours.drafts.forget(&opened.scope);
    assert_eq!(due(), Some((0, vec![key])));
}

/// The process is killed while a reply streams; what comes of it later completes the turn, once, and for its tenant alone.
#[tokio::test]
async fn interrupted_replies_are_completed() {
    let store = Arc::new(MemoryStore::default());
    for session in [Some("s"), None] {
        let (ours, theirs) = (ledgers(&store), ledgers(&store));
        let opened =
            ours.open(lookup("t", session, "1"), &conversation(&user("hi"))).await.unwrap();
        let guard = ours.draft(&opened, drafted(&opened), Duration::ZERO);
        let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 1 << 20);
        reading.push(HEAD.replace("\"m\"", "\"resp\"").as_bytes());
        guard.latest().note(&reading);
        let whole = |turn: &Turn| {
            let is_part = turn.outcome.is_completed_by(Outcome::Complete);
            is_part.then(|| Turn { outcome: Outcome::Complete, ..turn.clone() })
        };
        let unknown = ours.complete_turn(&"u".into(), "resp", whole).await.unwrap();
        assert_eq!(unknown, None, "another tenant, in flight");
        ours.write_drafts(7).await.unwrap();
        std::mem::forget(guard);
        assert_eq!(theirs.complete_turn(&"t".into(), "resp", whole).await.unwrap(), None);
        assert_eq!(theirs.adopt_drafts().await.unwrap(), 1);
        assert_eq!(theirs.complete_turn(&"u".into(), "resp", whole).await.unwrap(), None);
        let turn = theirs.complete_turn(&"t".into(), "resp", whole).await.unwrap().unwrap();
        assert_eq!(turn.outcome, Outcome::Complete);
        assert_eq!(theirs.complete_turn(&"t".into(), "resp", whole).await.unwrap(), None, "once");
        let scope = opened.scope.clone();
        theirs.forget(&scope).await.unwrap();
    }
}

/// Turns wait while drafts are written, so one write has only some of them: those that have waited longest.
#[tokio::test]
async fn oldest_drafts_are_written_first() {
    let ours = ledgers(&Arc::new(MemoryStore::default()));
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let begin = |number: usize| {
        let turn = Turn { exchange: number.to_string().into(), ..drafted(&opened) };
        ours.draft(&opened, turn, Duration::ZERO)
    };
    let written = || {
        let due = ours.drafts.due()?.due;
        Some(due.iter().map(super::super::drafts::DueDraft::key).collect::<Vec<_>>())
    };
    let guards: Vec<_> = (0..64).map(begin).collect();
    assert_eq!(written().map(|keys| keys.len()), Some(64), "at the limit");
    drop(guards);
    ours.drafts.due();
    let _guards: Vec<_> = (0..94).map(begin).collect();
    let first = written().unwrap();
    assert_eq!(first.len(), 64);
    let longest = (0..30).map(|number: usize| turn_key(&number.to_string().into()));
    assert!(longest.into_iter().all(|key| first.contains(&key)));
    assert_eq!(written().unwrap().len(), 30);
}

#[tokio::test]
async fn draft_writer_sleeps() {
    use futures_util::FutureExt as _;
    let ours = ledgers(&Arc::new(MemoryStore::default()));
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let mut sleeps = Box::pin(ours.wait_for_drafts());
    assert!((&mut sleeps).now_or_never().is_none());
    let guard = ours.draft(&opened, drafted(&opened), LONG);
    assert!((&mut sleeps).now_or_never().is_some(), "it is woken");
    assert!(ours.wait_for_drafts().now_or_never().is_some());
    drop(guard);
    let mut sleeps = Box::pin(ours.wait_for_drafts());
    assert!((&mut sleeps).now_or_never().is_none(), "nothing was written");
    let guard = ours.draft(&opened, drafted(&opened), Duration::ZERO);
    ours.write_drafts(7).await.unwrap();
    drop(guard);
    assert!(sleeps.now_or_never().is_some(), "a draft has to go");
}

/// A draft is written again only if more has arrived. Of most pieces only the length is recorded, until the next
/// write.
#[tokio::test]
async fn unchanged_drafts_are_not_written() {
    let ours = ledgers(&Arc::new(MemoryStore::default()));
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let guard = ours.draft(&opened, drafted(&opened), Duration::ZERO);
    let latest = guard.latest();
    let mut due = ours.drafts.due().unwrap().due.remove(0);
    assert!(due.is_first);
    assert!(due.draft(7).is_some());
    due.is_first = false;
    assert_eq!(due.draft(8), None);
    let drafted = || {
        let record = due.draft(9)?.record;
        serde_json::from_slice(&record.value).ok().map(|fact| match fact {
            Fact::Turn(turn) => Turn::clone(&turn),
            other => panic!("{other:?}"),
        })
    };
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 1 << 20);
    for _ in 0..4 {
        latest.note(&reading);
        assert!(drafted().is_some(), "it is read in full");
        assert_eq!(drafted(), None);
    }
    reading.push(HEAD.as_bytes());
    latest.note(&reading);
    assert_eq!(drafted(), None, "of the fifth only the length, which is the same");
    let delta = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"fourfour"}}"#;
    reading.push(format!("data: {delta}\n\n").as_bytes());
    latest.note(&reading);
    let turn = drafted().unwrap();
    assert_eq!(turn.usage.input, None);
    assert_eq!(turn.usage.output, Some(2));
    assert_eq!(turn.response, None);
    assert!(ours.drafts.due().is_none());
    latest.note(&reading);
    let turn = drafted().unwrap();
    assert_eq!(turn.usage.input, Some(40));
    assert_eq!(turn.response.as_deref(), Some("m"));
}

/// The fingerprints of a turn: the end of its reply, or if it has none, the end of its request.
#[tokio::test]
async fn turns_are_found_by_their_end() {
    let ours = ledgers(&Arc::new(MemoryStore::default()));
    let opened = ours.open(lookup("t", None, "1"), &conversation(&user("hi"))).await.unwrap();
    let (answered, unanswered) = (turn(&opened, "A"), drafted(&opened));
    let request = opened.placed.position.chain;
    let keys =
        |fact: &Fact| fingerprint_keys::left_by(fact).iter().map(|it| it.key).collect::<Vec<_>>();
    let Fact::Turn(turn) = &answered else { unreachable!() };
    assert!(keys(&answered).contains(&turn.after.0));
    assert!(!keys(&answered).contains(&request.0));
    let unanswered = Turn { after: request, ..unanswered };
    let left = keys(&Fact::Turn(Arc::new(unanswered)));
    assert_eq!(left.iter().filter(|key| **key == request.0).count(), 1, "once");
}
