//! A client without a session id that edits replies: request n+1 begins with all of request n, and that is proof enough
//! once there is a reply in it. After the first request it takes a sentence of the reply, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll::context::EstimateMethod;
use plimsoll::context::policy::{CompactPolicy, Policy, SummaryEngine};
use plimsoll::dialect::Dialect;
use plimsoll::telemetry::Exchange;
use serde_json::Value;

use super::stage::{Answer, DIALECTS, Stage, dialect_of, reply, request, talkative, target};
use crate::support::http1::Message;

/// Changes a reply.
type Edit = fn(&str) -> String;

/// What clients and their filters do to a reply before they send it back.
const EDITS: [(&str, Edit); 5] = [
    ("a footer", |reply| format!("{reply}\n\n---\nanswered by a model")),
    ("other line ends", |reply| reply.replace('\n', "\r\n")),
    ("another Unicode form", |reply| reply.replace('é', "e\u{301}")),
    ("a filter", |reply| reply.replace("sells maps of it; ", "")),
    ("trimmed", |reply| reply.trim().to_owned()),
];

/// The text of a reply.
fn text_of(dialect: Dialect, reply: &Value) -> String {
    let at = match dialect {
        Dialect::Anthropic => "/content/0/text",
        Dialect::OpenaiChat => "/choices/0/message/content",
        Dialect::OpenaiResponses => "/output/0/content/0/text",
        Dialect::Gemini => "/candidates/0/content/parts/0/text",
    };
    reply.pointer(at).unwrap().as_str().unwrap().to_owned()
}

/// A conversation of a client that edits each reply.
struct Chat {
    dialect: Dialect,
    edit: Edit,
    system: fn(usize) -> String,
    headers: &'static str,
    /// What its last message is in a request, which later requests do not have.
    augment: Edit,
    texts: Vec<String>,
}

impl Chat {
    fn of(dialect: Dialect, edit: Edit) -> Self {
        let system = |_| "You are calm.".to_owned();
        Self { dialect, edit, system, headers: "", augment: str::to_owned, texts: Vec::new() }
    }

    async fn turn(&mut self, stage: &mut Stage, text: &str) -> Arc<Exchange> {
        self.texts.push(text.to_owned());
        let system = (self.system)(self.texts.len());
        let mut sent = self.texts.clone();
        if let Some(last) = sent.last_mut() {
            *last = (self.augment)(text);
        }
        let body = request(self.dialect, &system, &sent);
        let (response, exchange) = stage.exchange(target(self.dialect), self.headers, &body).await;
        assert_eq!(response.status(), 200, "{}", response.text());
        let answer = serde_json::from_str(response.text()).unwrap();
        self.texts.push((self.edit)(&text_of(self.dialect, &answer)));
        exchange
    }
}

fn threads(exchanges: &[Arc<Exchange>]) -> usize {
    exchanges.iter().map(|one| one.thread.clone()).collect::<BTreeSet<_>>().len()
}

fn sessions(exchanges: &[Arc<Exchange>]) -> usize {
    exchanges.iter().map(|one| one.session.clone()).collect::<BTreeSet<_>>().len()
}

/// Sixteen turns are one session and one thread, and their estimates begin where the last one was measured.
#[tokio::test]
async fn edited_replies_stay_in_one_session() {
    for dialect in DIALECTS {
        for (what, edit) in EDITS {
            let mut stage = Stage::of(talkative, |_| {}).await;
            let mut chat = Chat::of(dialect, edit);
            let mut exchanges = Vec::new();
            for number in 0..16 {
                exchanges.push(chat.turn(&mut stage, &format!("Question {number}?")).await);
            }
            assert_eq!(sessions(&exchanges), 1, "{dialect:?}, {what}");
            assert_eq!(threads(&exchanges), 1, "{dialect:?}, {what}");
            for exchange in &exchanges[1..] {
                let estimate = exchange.estimate.as_ref().unwrap();
                assert_eq!(estimate.method, EstimateMethod::Anchored, "{dialect:?}, {what}");
            }
        }
    }
}

/// A client that sends no reply back: from the second request on, its own messages are the proof.
#[tokio::test]
async fn messages_without_replies_are_one_session() {
    for dialect in DIALECTS {
        let mut stage = Stage::of(talkative, |_| {}).await;
        let mut chat = Chat::of(dialect, |_| String::new());
        let mut exchanges = Vec::new();
        for number in 0..16 {
            exchanges.push(chat.turn(&mut stage, &format!("Question {number}?")).await);
        }
        assert_eq!(sessions(&exchanges[1..]), 1, "{dialect:?}");
        assert_eq!(threads(&exchanges[1..]), 1, "{dialect:?}");
    }
}

/// A summary is written once and used from then on: an edited reply costs no more summaries than one sent back as it was.
#[tokio::test]
async fn summaries_are_not_paid_for_again() {
    let compact = CompactPolicy {
        engine: SummaryEngine::Summary,
        threshold: 0.6,
        prepare: 0.6,
        keep_messages: 4,
        // On a busy machine, too, each request waits for the summary that it asks for.
        wait_s: 60,
        timeout_s: 60,
        ..CompactPolicy::default()
    };
    for dialect in DIALECTS {
        let mut summaries = Vec::new();
        for edit in [|reply: &str| reply.to_owned(), EDITS[0].1] {
            let policy = Policy { compact: compact.clone(), ..Policy::default() };
            let mut stage = Stage::of(talkative, |config| {
                config.policy = Arc::new(policy);
                config.upstreams[0].window = Some(4000);
            })
            .await;
            let mut chat = Chat::of(dialect, edit);
            for number in 0..16 {
                let text = format!("Question {number}: {}", "more of it ".repeat(40));
                chat.turn(&mut stage, &text).await;
            }
            let written = stage.summaries.lock().unwrap().len();
            summaries.push(written);
        }
        assert!(summaries[0] > 0, "{dialect:?}");
        // Whether the last one, which is prepared behind a request, has begun when the last reply is read is up to the
        // machine.
        assert!(summaries[1] <= summaries[0] + 1, "{dialect:?}: {summaries:?}");
    }
}

/// A clock in the instructions changes nothing: the messages are the proof.
#[tokio::test]
async fn edited_replies_under_other_instructions_stay_in_one_session() {
    for dialect in DIALECTS {
        let mut stage = Stage::of(talkative, |_| {}).await;
        let mut chat = Chat::of(dialect, EDITS[0].1);
        chat.system = |number| format!("You are calm. It is {number} o'clock.");
        let mut exchanges = Vec::new();
        for number in 0..6 {
            exchanges.push(chat.turn(&mut stage, &format!("Question {number}?")).await);
        }
        assert_eq!(sessions(&exchanges), 1, "{dialect:?}");
        assert_eq!(threads(&exchanges), 1, "{dialect:?}");
    }
}

fn each_its_own(request: &Message, number: usize) -> (&'static str, Value) {
    let text = format!("Reply {number}, which nobody else gets.");
    ("200 OK", reply(dialect_of(request.first_line()), 100, &text))
}

/// Two conversations with equal prompts, at once, each request over a connection of its own: they stay two, also where most
/// sentences of their replies are equal.
#[tokio::test]
async fn equal_prompts_stay_two_sessions() {
    for (dialect, answer) in
        DIALECTS.into_iter().flat_map(|it| [(it, each_its_own as Answer), (it, talkative)])
    {
        for (what, edit) in EDITS {
            let mut stage = Stage::of(answer, |_| {}).await;
            let mut chats = [Chat::of(dialect, edit), Chat::of(dialect, edit)];
            let mut exchanges = [Vec::new(), Vec::new()];
            for number in 0..4 {
                for (chat, own) in chats.iter_mut().zip(&mut exchanges) {
                    own.push(chat.turn(&mut stage, &format!("Question {number}?")).await);
                }
            }
            let [one, other] = &exchanges;
            assert_eq!(sessions(one), 1, "{dialect:?}, {what}");
            assert_eq!(sessions(other), 1, "{dialect:?}, {what}");
            assert_ne!(one[0].session, other[0].session, "{dialect:?}, {what}");
        }
    }
}

/// The beginning alone is no proof: another conversation with that prompt, whose reply has nothing of the first one.
#[tokio::test]
async fn equal_first_prompts_are_no_proof() {
    for dialect in DIALECTS {
        let mut stage = Stage::of(each_its_own, |_| {}).await;
        let begun = Chat::of(dialect, EDITS[0].1).turn(&mut stage, "Hi.").await;
        let texts = ["Hi.", "Something else was said.", "Go on."].map(str::to_owned);
        let body = request(dialect, "You are calm.", &texts);
        let other = stage.exchange(target(dialect), "", &body).await.1;
        assert_ne!(other.session, begun.session, "{dialect:?}");
    }
}

fn all_alike(request: &Message, _: usize) -> (&'static str, Value) {
    ("200 OK", reply(dialect_of(request.first_line()), 100, "The same for everybody."))
}

#[tokio::test]
async fn another_credential_never_finds_edited_conversation() {
    for dialect in DIALECTS {
        let mut stage = Stage::of(all_alike, |_| {}).await;
        let mut own = Chat::of(dialect, EDITS[0].1);
        own.headers = "x-api-key: k\r\n";
        let mut other = Chat::of(dialect, EDITS[0].1);
        other.headers = "x-api-key: another\r\n";
        for number in 0..4 {
            let text = format!("Question {number}?");
            let (own, other) =
                (own.turn(&mut stage, &text).await, other.turn(&mut stage, &text).await);
            assert_ne!(own.tenant, other.tenant);
            assert_ne!(own.session, other.session, "{dialect:?}");
        }
    }
}

/// What chat interfaces make of the user's message in the request that asks it (Open WebUI).
const AUGMENTS: [Edit; 2] = [
    |text| format!("Answer from the context.\n<context>On {text} see page 9.</context>\n\n{text}"),
    |text| format!("{text}\n\n<context>On {text} see page 9.</context>"),
];

/// The context is in the last message only, and the reply has a footer: nothing is as it was but what came before.
#[tokio::test]
async fn retrieved_context_stays_in_one_session() {
    for (dialect, augment) in DIALECTS.into_iter().flat_map(|it| AUGMENTS.map(|one| (it, one))) {
        let mut stage = Stage::of(talkative, |_| {}).await;
        let mut chats = [Chat::of(dialect, EDITS[0].1), Chat::of(dialect, EDITS[0].1)];
        let mut exchanges = [Vec::new(), Vec::new()];
        for number in 0..6 {
            for (chat, own) in chats.iter_mut().zip(&mut exchanges) {
                chat.augment = augment;
                own.push(chat.turn(&mut stage, &format!("Where is ship {number}?")).await);
            }
        }
        for own in &exchanges {
            assert_eq!(sessions(own), 1, "{dialect:?}");
            assert_eq!(threads(own), 1, "{dialect:?}");
        }
        assert_ne!(exchanges[0][0].session, exchanges[1][0].session, "{dialect:?}");
    }
}

/// Many requests begin with the same examples: a request that only repeats another one is no next turn of it.
#[tokio::test]
async fn same_examples_are_no_proof() {
    for dialect in DIALECTS {
        let mut stage = Stage::of(each_its_own, |_| {}).await;
        let examples = ["One?", "1", "Two?", "2", "Three?"].map(str::to_owned);
        let mut exchanges = Vec::new();
        for _ in 0..3 {
            let body = request(dialect, "Count.", &examples);
            exchanges.push(stage.exchange(target(dialect), "", &body).await.1);
        }
        assert_eq!(sessions(&exchanges), 3, "{dialect:?}");
    }
}
