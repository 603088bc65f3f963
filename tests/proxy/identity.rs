//! Which session a request belongs to if its client does not say, what decided that, and what the session is called.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Config;
use plimsoll::context::{SessionNames, SessionWitness, Turn};
use plimsoll::dialect::Purpose;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};

/// A proxy and its provider.
pub(crate) struct Site {
    provider: Provider,
    server: TestServer,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::over(Arc::new(MemoryStore::default()), |_| {}).await
    }

    async fn over(store: Arc<dyn Store>, change: impl FnOnce(&mut Config)) -> Self {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        change(&mut config);
        let server = TestServer::over(store, config, Matcher::builder().build()).await;
        Self { provider, server }
    }

    pub(crate) async fn connect(&self) -> Wire {
        Wire::connect(self.server.address).await
    }

    /// Sends a request over a connection, answers it, and returns what was recorded of it.
    async fn ask(
        &mut self,
        wire: &mut Wire,
        headers: &str,
        body: &Value,
        reply: &Value,
    ) -> Arc<Exchange> {
        let path =
            if body.get("max_tokens").is_some() { "/v1/messages" } else { "/v1/chat/completions" };
        let headers = format!("authorization: Bearer k\r\n{headers}");
        self.ask_at(path, wire, &headers, body, "200 OK", reply).await.1
    }

    /// The same at any path, with any status. Returns what the provider got, too.
    pub(crate) async fn ask_at(
        &mut self,
        path: &str,
        wire: &mut Wire,
        headers: &str,
        body: &Value,
        status: &str,
        reply: &Value,
    ) -> (Value, Arc<Exchange>) {
        let (body, reply) = (body.to_string(), reply.to_string());
        let length = body.len();
        wire.send(format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ))
        .await;
        let mut call = self.provider.call().await;
        let length = reply.len();
        call.send(format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{reply}"
        ))
        .await;
        assert_eq!(wire.response().await.status().to_string(), status[..3]);
        let sent = serde_json::from_slice(&call.message.body).unwrap();
        (sent, self.server.next_exchange().await)
    }

    async fn step(&mut self, wire: &mut Wire, conversation: &mut ChatRun) -> Arc<Exchange> {
        let reply = conversation.reply();
        let body =
            json!({"model": "gpt-4.1", "messages": conversation.messages, "tools": [look_tool()]});
        let exchange = self.ask(wire, "", &body, &reply).await;
        conversation.go_on();
        exchange
    }

    async fn names(&self, exchange: &Exchange) -> SessionNames {
        self.look(exchange, SessionNames::from_ledger).await
    }

    async fn look<T>(
        &self,
        exchange: &Exchange,
        look: impl FnOnce(&plimsoll::context::ledger::Ledger) -> T,
    ) -> T {
        let scopes =
            self.server.ledgers.scopes_of(exchange.session.as_ref().unwrap()).await.unwrap();
        self.server.ledgers.look(&scopes[0], look).await.unwrap()
    }
}

fn look_tool() -> Value {
    json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}})
}

/// A client of Chat Completions that drops the text beside a call, whose ids only count. Equal runs send equal bytes.
struct ChatRun {
    messages: Vec<Value>,
    steps: usize,
}

impl ChatRun {
    fn new(prompt: &str) -> Self {
        Self {
            messages: vec![
                json!({"role": "system", "content": "You look."}),
                json!({"role": "user", "content": prompt}),
            ],
            steps: 0,
        }
    }

    fn call(&self) -> Value {
        let function = json!({"name": "look", "arguments": format!("{{\"n\":{}}}", self.steps)});
        json!([{"id": format!("functions.look:{}", self.steps), "type": "function", "function": function}])
    }

    fn reply(&self) -> Value {
        let message =
            json!({"role": "assistant", "content": "Let me look.", "tool_calls": self.call()});
        json!({"id": "c", "object": "chat.completion", "model": "gpt-4.1",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}})
    }

    fn go_on(&mut self) {
        let call = self.call();
        self.messages.push(json!({"role": "assistant", "content": null, "tool_calls": call}));
        self.messages.push(json!({"role": "tool", "tool_call_id": call[0]["id"], "content": "ok"}));
        self.steps += 1;
    }
}

pub(crate) fn place(exchange: &Exchange) -> (String, String) {
    let session = exchange.session.as_ref().unwrap().to_string();
    (session, exchange.thread.as_ref().unwrap().to_string())
}

#[tokio::test]
async fn client_that_drops_text_beside_counted_calls_has_one_session() {
    let mut site = Site::new().await;
    let (mut wire, mut run) = (site.connect().await, ChatRun::new("Look at all."));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(site.step(&mut wire, &mut run).await);
    }
    let places: Vec<_> = seen.iter().map(|exchange| place(exchange)).collect();
    assert_eq!(places, vec![places[0].clone(); 4]);
    let found_by: Vec<_> = seen.iter().map(|exchange| exchange.found_by.unwrap()).collect();
    let (prefix, end) = (SessionWitness::Prefix, SessionWitness::RequestEnd);
    assert_eq!(found_by, [SessionWitness::New, prefix, end, end]);
}

/// Two runs of an agent with the same prompt, whose requests are the same to the byte.
#[tokio::test]
async fn equal_runs_are_two_sessions() {
    let mut site = Site::new().await;
    let mut wires = [site.connect().await, site.connect().await];
    let mut runs = [ChatRun::new("Look at all."), ChatRun::new("Look at all.")];
    let mut places = [Vec::new(), Vec::new()];
    for turn in 0..5 {
        // Now one is first, now the other.
        for at in [turn % 2, 1 - turn % 2] {
            let exchange = site.step(&mut wires[at], &mut runs[at]).await;
            places[at].push(place(&exchange));
        }
    }
    for own in &places {
        assert_eq!(own, &vec![own[0].clone(); 5]);
    }
    assert_ne!(places[0][0].0, places[1][0].0);
}

/// Each request comes over a connection of its own, so only what nothing has continued yet tells the runs apart.
#[tokio::test]
async fn equal_runs_without_lasting_connections_are_two_sessions_of_equal_length() {
    let mut site = Site::new().await;
    let mut runs = [ChatRun::new("Look at all."), ChatRun::new("Look at all.")];
    let mut turns = std::collections::HashMap::new();
    for _ in 0..5 {
        for run in &mut runs {
            let mut wire = site.connect().await;
            let exchange = site.step(&mut wire, run).await;
            *turns.entry(place(&exchange)).or_insert(0) += 1;
        }
    }
    assert_eq!(turns.into_values().collect::<Vec<_>>(), [5, 5]);
}

/// Also if the first had ended, and if the process was started again in the middle of the second.
#[tokio::test]
async fn equal_run_after_another_is_session_of_its_own() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut site = Site::over(store.clone(), |_| {}).await;
    let mut wire = site.connect().await;
    let mut places = Vec::new();
    for _ in 0..2 {
        let mut run = ChatRun::new("Look at all.");
        let mut own = Vec::new();
        for step in 0..4 {
            if step == 2 {
                site = Site::over(store.clone(), |_| {}).await;
                wire = site.connect().await;
            }
            own.push(place(&*site.step(&mut wire, &mut run).await));
        }
        assert_eq!(own, vec![own[0].clone(); 4]);
        places.push(own[0].0.clone());
    }
    assert_ne!(places[0], places[1]);
}

/// Equal conversations whose reasoning a provider signed are told apart by the signatures, whoever comes first.
#[tokio::test]
async fn signatures_tell_twins_apart() {
    let mut site = Site::new().await;
    let body = |messages: Value| json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages});
    let prompt = json!({"role": "user", "content": "Think."});
    let answer = |sign: &str| {
        json!([
            {"type": "thinking", "thinking": "Hm.", "signature": sign}, {"type": "text", "text": "Done."}
        ])
    };
    let reply = |sign: &str| {
        json!({"id": format!("msg_{sign}"), "type": "message", "role": "assistant",
        "model": "claude-sonnet-4-5", "content": answer(sign), "stop_reason": "end_turn",
        "usage": {"input_tokens": 11, "output_tokens": 9}})
    };
    let mut wire = site.connect().await;
    let mut begun = Vec::new();
    for sign in ["QUFB", "QkJC"] {
        begun.push(place(&*site.ask(&mut wire, "", &body(json!([prompt])), &reply(sign)).await));
    }
    for (sign, first) in [("QUFB", &begun[0]), ("QkJC", &begun[1])] {
        let said = json!({"role": "assistant", "content": answer(sign)});
        let more = json!({"role": "user", "content": "More."});
        let next = site
            .ask(&mut wire, "", &body(json!([prompt, said, more])), &reply(&format!("{sign}x")))
            .await;
        assert_eq!(&place(&next), first);
        assert_eq!(next.found_by, Some(SessionWitness::Signature));
    }
}

const HERMES: &str = "user-agent: my-agent/1.2\r\n";

/// A conversation of an agent without session ids, and the call for its title.
async fn titled(site: &mut Site, prompt: &str) -> (Arc<Exchange>, Arc<Exchange>) {
    let mut wire = site.connect().await;
    let answer = |text: &str| {
        json!({"id": "c", "object": "chat.completion", "model": "gpt-4.1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}})
    };
    let system = json!({"role": "system", "content": "You help.\nWorking directory: /home/jane/sh\u{7}op <b>\n"});
    let asked = json!({"model": "gpt-4.1", "tools": [look_tool()],
        "messages": [system, {"role": "user", "content": prompt}]});
    let main = site.ask(&mut wire, HERMES, &asked, &answer("It is high at noon.")).await;
    let asked = json!({"model": "gpt-4.1", "messages": [
        {"role": "system", "content": "Generate a short, descriptive title (3-7 words) for a conversation."},
        {"role": "user", "content": format!("User: {prompt}\n\nAssistant: It is high at noon.")}]});
    let side =
        site.ask(&mut wire, HERMES, &asked, &answer("\"Tides <i>at noon\u{1b}[31m\"\nMore")).await;
    (main, side)
}

#[tokio::test]
async fn title_call_is_side_thread() {
    let mut site =
        Site::over(Arc::new(MemoryStore::default()), |config| config.content.names = true).await;
    let (main, side) = titled(&mut site, "When is high tide?").await;
    assert_eq!(side.purpose, Some(Purpose::Side));
    assert_eq!(side.found_by, Some(SessionWitness::Quote));
    assert_eq!(side.session, main.session);
    assert_ne!(side.thread, main.thread);
    let names = site.names(&main).await;
    assert_eq!(names.title.as_deref(), Some("Tides <i>at noon [31m"));
    assert_eq!(names.main_thread, main.thread);
    assert_eq!(names.agent.unwrap().to_string(), "my-agent 1.2");
    // Two conversations of the agent are in use: the call belongs to the one that it quotes.
    let (main, side) = titled(&mut site, "And low tide?").await;
    assert_eq!(side.session, main.session);
    assert_eq!(side.found_by, Some(SessionWitness::Quote));
}

/// Two agents at once, with the same prompt: each asks for a title before its first request.
#[tokio::test]
async fn title_call_before_its_conversation_begins_its_session() {
    let mut site = Site::new().await;
    let mut wires = [site.connect().await, site.connect().await];
    let reply = ChatRun::new("").reply();
    let title = json!({"model": "gpt-4.1", "messages": [
        {"role": "system", "content": "Generate a short, descriptive title (3-7 words) for a conversation."},
        {"role": "user", "content": "<chat>\nWhen is high tide?\n</chat>"}]});
    let mut titles = Vec::new();
    for wire in &mut wires {
        titles.push(site.ask(wire, HERMES, &title, &reply).await);
    }
    assert_ne!(titles[0].session, titles[1].session);
    let prompt = json!({"role": "user", "content": "When is high tide?"});
    let body = json!({"model": "gpt-4.1", "tools": [look_tool()], "messages": [prompt]});
    let mut sessions = Vec::new();
    for wire in &mut wires {
        let begun = site.ask(wire, HERMES, &body, &reply).await;
        assert_eq!(begun.found_by, Some(SessionWitness::Quote));
        sessions.push(begun.session.clone());
    }
    assert_eq!(sessions, [titles[0].session.clone(), titles[1].session.clone()]);
    let third = site.ask(&mut wires[0], HERMES, &body, &reply).await;
    assert_eq!(third.found_by, Some(SessionWitness::New));
}

/// A second run of an agent with the same prompt is a process of its own, with a connection of its own.
#[tokio::test]
async fn second_run_with_same_prompt_has_its_own_title_call() {
    let mut site = Site::new().await;
    let reply = ChatRun::new("").reply();
    let title = json!({"model": "gpt-4.1", "messages": [
        {"role": "system", "content": "Generate a short, descriptive title (3-7 words) for a conversation."},
        {"role": "user", "content": "<chat>\nWhen is high tide?\n</chat>"}]});
    let prompt = json!({"role": "user", "content": "When is high tide?"});
    let body = json!({"model": "gpt-4.1", "tools": [look_tool()], "messages": [prompt]});
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let mut wire = site.connect().await;
        let titled = site.ask(&mut wire, HERMES, &title, &reply).await;
        let begun = site.ask(&mut wire, HERMES, &body, &reply).await;
        assert_eq!(titled.session, begun.session);
        sessions.push(begun.session.clone());
    }
    assert_ne!(sessions[0], sessions[1]);
}

/// Hermes and CrewAI send the history that they summarise as the text of one message.
#[tokio::test]
async fn agents_own_summary_is_in_its_session() {
    let mut site = Site::new().await;
    let (mut wire, mut run) = (site.connect().await, ChatRun::new("Look at all."));
    let main = site.step(&mut wire, &mut run).await;
    for text in [
        "You are a summarization agent creating a context checkpoint. Treat the turns as source material.",
        "You are a precise assistant that creates structured summaries of agent conversations.",
    ] {
        let body = json!({"model": "gpt-4.1", "messages": [{"role": "user", "content": text}]});
        let summary = site.ask(&mut wire, "", &body, &ChatRun::new("").reply()).await;
        assert_eq!(summary.purpose, Some(Purpose::Compaction));
        assert_eq!(summary.session, main.session);
        assert_eq!(summary.found_by, Some(SessionWitness::Time));
        assert_ne!(summary.thread, main.thread);
    }
}

#[tokio::test]
async fn names_that_stand_in_prompts_and_replies_are_hashed_or_left_out_by_default() {
    let mut site = Site::new().await;
    let (main, _) = titled(&mut site, "When is high tide?").await;
    let names = site.names(&main).await;
    assert_eq!(names.title, None);
    let hash = names.project.unwrap();
    assert!(hash.len() == 9, "{hash}");
    assert!(hash.starts_with('#'), "{hash}");
    let again = titled(&mut site, "And low tide?").await.0;
    assert_eq!(site.names(&again).await.project, Some(hash), "the same folder");
    let stored = |ledger: &plimsoll::context::ledger::Ledger| {
        ledger.turns().map(|turn| Turn::clone(turn)).collect::<Vec<_>>()
    };
    let stored = serde_json::to_string(&site.look(&main, stored).await).unwrap();
    assert!(!stored.contains("jane"), "{stored}");
    assert!(!stored.contains("home"), "{stored}");
    assert!(!stored.contains("Tides"), "{stored}");
}

#[tokio::test]
async fn allowed_names_are_one_short_line() {
    let mut site =
        Site::over(Arc::new(MemoryStore::default()), |config| config.content.names = true).await;
    let (main, _) = titled(&mut site, "When is high tide?").await;
    assert_eq!(site.names(&main).await.project.as_deref(), Some("sh op"));
    let mut wire = site.connect().await;
    let folder = format!("Working directory: /home/jane/{}\n", "\u{e9}".repeat(200));
    let body = json!({"model": "gpt-4.1", "tools": [look_tool()], "messages": [
        {"role": "system", "content": folder}, {"role": "user", "content": "hi"}]});
    let agent = format!("user-agent: claude-cli/{}\r\n", "9".repeat(10_000));
    let long = site.ask(&mut wire, &agent, &body, &ChatRun::new("").reply()).await;
    let names = site.names(&long).await;
    assert_eq!(names.project.unwrap().len(), 80);
    assert_eq!(names.agent.unwrap().version.unwrap().len(), 32);
    let (agent, event) = (long.agent.as_ref().unwrap(), serde_json::to_string(&*long).unwrap());
    assert_eq!(&*agent.name, "Claude Code");
    assert!(!event.contains("jane"), "names of folders are in no event: {event}");
    assert!(!event.contains('\u{e9}'), "names of folders are in no event: {event}");
}
