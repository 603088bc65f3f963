use super::*;
use crate::context::ledger::marks;
use crate::context::{Place, Sketch};
use crate::dialect::models::Family;
use crate::dialect::reading::{Framing, Reading};
use crate::dialect::{self, Dialect, Purpose, Usage};
use crate::store::Answer;
use crate::store::memory::Memory;

const LONG: Duration = Duration::from_secs(20);

fn ledgers(store: &Arc<Memory>) -> Ledgers {
    Ledgers::new(store.clone())
}

fn asked<'a>(tenant: &'a str, session: Option<&'a str>, request: &'a str) -> Asked<'a> {
    Asked { tenant, session, lane: None, request, patience: LONG }
}

fn conversation(messages: &str) -> Conversation {
    let body = format!(r#"{{"model":"m","max_tokens":9,"messages":[{messages}]}}"#);
    dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes())
}

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

fn model(text: &str) -> String {
    format!(r#"{{"role":"assistant","content":"{text}"}}"#)
}

fn turn(opened: &Opened, answer: &str) -> Fact {
    let mut reading = Reading::new(Dialect::Anthropic, 200, Framing::Json, 1 << 20);
    reading.push(format!(r#"{{"id":"msg-{answer}","content":[{{"type":"text","text":"{answer}"}}],"stop_reason":"end_turn","usage":{{"input_tokens":9,"output_tokens":1}}}}"#).as_bytes());
    let reply = reading.finish(true);
    let sketched = |key| Sketched { key, tokens: 1, place: Place::History };
    Fact::Turn(Box::new(Turn {
        request: opened.request.clone(),
        standing: opened.placed.standing.clone(),
        after: reply.chain_after(opened.placed.standing.chain),
        response: reply.id.clone(),
        at: 1,
        ended: 2,
        upstream: "u".into(),
        dialect: Dialect::Anthropic,
        model: "m".into(),
        family: Family::Claude,
        purpose: Purpose::Turn,
        estimate: None,
        usage: Usage { input: Some(9), output: Some(1), ..Usage::default() },
        stop: reply.stop,
        outcome: Outcome::Complete,
        window: 0,
        reserve: 0,
        sketch: Sketch { added: vec![sketched(PartKey(1))], ..Sketch::default() },
        reply: reply.parts.iter().filter_map(|part| part.key).map(sketched).collect(),
        marks: marks(&reply),
    }))
}

/// Opens, answers and commits; the scope and the place.
async fn say(ledgers: &Ledgers, asked: Asked<'_>, messages: &str, answer: &str) -> (Scope, Placed) {
    let opened = ledgers.open(asked, &conversation(messages)).await;
    let seen = (opened.scope.clone(), opened.placed.clone());
    let fact = turn(&opened, answer);
    ledgers.commit(opened, vec![fact]).await.unwrap();
    seen
}

#[tokio::test]
async fn a_session_is_found_again_after_a_restart() {
    let store = Arc::new(Memory::default());
    let (_, first) = say(&ledgers(&store), asked("t", Some("s"), "1"), &user("hi"), "A").await;
    let next = [user("hi"), model("A"), user("go")].join(",");
    let opened = ledgers(&store).open(asked("t", Some("s"), "2"), &conversation(&next)).await;
    assert_eq!(opened.placed.standing.thread, first.standing.thread);
    assert_eq!(&*opened.anchor.as_ref().unwrap().turn.request, "1");
    assert!(!opened.store_missed);
}

#[tokio::test]
async fn a_session_without_a_name_is_found_by_its_words() {
    let store = Arc::new(Memory::default());
    let ours = ledgers(&store);
    let (first, _) = say(&ours, asked("t", None, "1"), &user("hi"), "A").await;
    let (alike, _) = say(&ours, asked("t", None, "2"), &user("hi"), "B").await;
    assert_ne!(first, alike, "what begins alike is not the same");
    let of_first = [user("hi"), model("A"), user("go")].join(",");
    let of_alike = [user("hi"), model("B"), user("go")].join(",");
    assert_eq!(say(&ours, asked("t", None, "3"), &of_first, "C").await.0, first);
    // In another process too: the store knows the signs.
    assert_eq!(say(&ledgers(&store), asked("t", None, "4"), &of_alike, "D").await.0, alike);
}

#[tokio::test]
async fn invariant_11_one_tenant_does_not_find_anothers_session() {
    let store = Arc::new(Memory::default());
    let ours = ledgers(&store);
    let (first, _) = say(&ours, asked("a", None, "1"), &user("hi"), "A").await;
    let next = [user("hi"), model("A"), user("go")].join(",");
    let (other, placed) = say(&ours, asked("b", None, "2"), &next, "B").await;
    assert_ne!(other.session, first.session);
    assert_eq!(placed.growth, Growth::Begins);
    let (_, placed) = say(&ours, asked("b", Some(&first.session), "3"), &next, "B").await;
    assert_eq!(placed.growth, Growth::Begins, "a guessed session id opens nothing");
}

#[tokio::test]
async fn a_request_waits_for_the_turn_before_it() {
    let store = Arc::new(Memory::default());
    let ours = Arc::new(ledgers(&store));
    let before = ours.open(asked("t", Some("s"), "1"), &conversation(&user("hi"))).await;
    let fact = turn(&before, "A");
    let waiting = {
        let ours = ours.clone();
        tokio::spawn(async move {
            let next = [user("hi"), model("A"), user("go")].join(",");
            let opened = ours.open(asked("t", Some("s"), "2"), &conversation(&next)).await;
            opened.placed.growth
        })
    };
    while Arc::strong_count(&before.shelf) <= 2 {
        tokio::task::yield_now().await; // until the other request holds the shelf too
    }
    assert!(!waiting.is_finished());
    ours.commit(before, vec![fact]).await.unwrap();
    assert_eq!(waiting.await.unwrap(), Growth::Grows);
}

#[tokio::test]
async fn a_request_does_not_wait_for_others_nor_for_long() {
    let store = Arc::new(Memory::default());
    let ours = ledgers(&store);
    let _open = ours.open(asked("t", Some("s"), "1"), &conversation(&user("hi"))).await;
    // Another conversation of the session goes on at once (this would take LONG).
    ours.open(asked("t", Some("s"), "2"), &conversation(&user("other"))).await;
    let next = conversation(&[user("hi"), model("A"), user("go")].join(","));
    let patience = Duration::from_millis(1);
    let opened = ours.open(Asked { patience, ..asked("t", Some("s"), "3") }, &next).await;
    assert_eq!(opened.placed.growth, Growth::Begins);
}

#[tokio::test]
async fn a_forgotten_session_is_gone() {
    let store = Arc::new(Memory::default());
    let ours = ledgers(&store);
    let (scope, _) = say(&ours, asked("t", None, "1"), &user("hi"), "A").await;
    assert_eq!(ours.look(&scope, |ledger| ledger.turns().count()).await.unwrap(), 1);
    assert!(ours.forget(&scope).await.unwrap() > 0);
    assert!(ours.look(&scope, Ledger::is_empty).await.unwrap());
    let next = [user("hi"), model("A"), user("go")].join(",");
    let (again, placed) = say(&ours, asked("t", None, "2"), &next, "B").await;
    assert_ne!(again, scope);
    assert_eq!(placed.growth, Growth::Begins);
}

#[tokio::test]
async fn what_is_learned_first_stays() {
    let store = Arc::new(Memory::default());
    let ours = ledgers(&store);
    assert_eq!(ours.learned("x").await.unwrap(), None);
    ours.learn("x", "1".into(), 5).await.unwrap();
    ours.learn("x", "2".into(), 6).await.unwrap();
    assert_eq!(ours.learned("x").await.unwrap(), Some("1".into()));
}

/// A store that never answers.
struct Dead;

impl Store for Dead {
    fn put_if_absent(&self, _: Scope, _: Vec<Record>) -> Answer<'_, Vec<crate::store::Put>> {
        Box::pin(std::future::ready(Err(Trouble::Closed)))
    }

    fn get(&self, _: Scope, _: RecordKind, _: u128) -> Answer<'_, Option<Bytes>> {
        Box::pin(std::future::pending())
    }

    fn signed(&self, _: Box<str>, _: u128) -> Answer<'_, Option<Box<str>>> {
        Box::pin(std::future::pending())
    }

    fn scan(&self, _: Scope) -> Answer<'_, Vec<Record>> {
        Box::pin(std::future::pending())
    }

    fn scopes(&self, _: usize, _: usize) -> Answer<'_, Vec<ScopeLine>> {
        Box::pin(std::future::pending())
    }

    fn drop_scope(&self, _: Scope) -> Answer<'_, u64> {
        Box::pin(std::future::pending())
    }

    fn expire(&self, _: Millis, _: u64) -> Answer<'_, u64> {
        Box::pin(std::future::pending())
    }

    fn ready(&self) -> Answer<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn tenant_key(&self) -> Answer<'_, [u8; 32]> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_dead_store_costs_knowledge_and_no_more() {
    let ours = Ledgers::new(Arc::new(Dead));
    let patience = Duration::from_millis(1);
    let ask = |request| Asked { patience, ..asked("t", Some("s"), request) };
    let opened = ours.open(ask("1"), &conversation(&user("hi"))).await;
    assert!(opened.store_missed);
    let fact = turn(&opened, "A");
    assert!(ours.commit(opened, vec![fact]).await.is_err());
    // What passed since is known all the same.
    let next = conversation(&[user("hi"), model("A"), user("go")].join(","));
    assert_eq!(ours.open(ask("2"), &next).await.placed.growth, Growth::Grows);
}

#[tokio::test]
async fn sessions_in_memory_are_bounded() {
    let store = Arc::new(Memory::default());
    let ours = ledgers(&store);
    for n in 0..SESSIONS_IN_MEMORY + 10 {
        let session = format!("s{n}");
        let patience = LONG;
        ours.open(Asked { patience, ..asked("t", Some(&session), "1") }, &conversation("")).await;
    }
    assert_eq!(lock(&ours.shelves).by_scope.len(), SESSIONS_IN_MEMORY);
}
