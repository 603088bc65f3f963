//! Claude Code's hint headers: what a request is for, who sends it, and why it compacts.

use plimsoll::context::{Fact, QueuedMessage};
use plimsoll::dialect::hints::{AgentType, CompactionCause, RequestClass};
use plimsoll::dialect::{Dialect, Purpose};
use plimsoll::store::Scope;
use serde_json::{Value, json};

use super::stage::{Stage, request, talkative};
use crate::support::http1::Message;

const TARGET: &str = "/v1/messages?beta=true";

/// The headers of a request of a class, with more of them.
fn headers(class: &str, more: &str) -> String {
    format!(
        "x-claude-code-session-id: 01a1fbfb-85a1\r\nx-claude-code-request-class: {class}\r\n\
         x-claude-code-prompt-id: p-1\r\n{more}"
    )
}

/// A request of Claude Code: all of them have the same instructions and tools, side calls and compactions, too.
fn asks(texts: &[&str]) -> Value {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let mut body = request(Dialect::Anthropic, "You are Claude Code.", &texts);
    body["tools"] = json!([{"name": "Read", "input_schema": {"type": "object"}}]);
    body
}

#[tokio::test]
async fn headers_tell_threads_and_purposes() {
    let mut stage = Stage::of(talkative, |_| {}).await;
    let main = stage.exchange(TARGET, &headers("main", ""), &asks(&["Go."])).await.1;
    assert_eq!(main.purpose, Some(Purpose::Turn));
    let agent = "x-claude-code-agent-type: Explore\r\nx-claude-code-agent-id: a2\r\n\
                 x-claude-code-parent-agent-id: a1\r\nx-claude-code-prev-tool-durations: Read=9;Bash=742\r\n";
    let sub = stage.exchange(TARGET, &headers("subagent", agent), &asks(&["Go."])).await.1;
    assert_eq!(sub.purpose, Some(Purpose::Turn));
    assert_eq!(sub.session, main.session);
    assert_ne!(sub.thread, main.thread, "the same words and instructions");
    let hints = sub.hints.as_deref().unwrap();
    assert_eq!(hints.class, Some(RequestClass::Subagent));
    assert_eq!(hints.agent_type, Some(AgentType::Explore));
    assert_eq!(hints.parent_agent.as_deref(), Some("a1"));
    assert_eq!(hints.tools.iter().map(|tool| tool.ms).collect::<Vec<_>>(), [9, 742]);
    let cause = "x-claude-code-compaction: reactive\r\n";
    let compacts = stage.exchange(TARGET, &headers("compaction", cause), &asks(&["Go."])).await.1;
    assert_eq!(compacts.purpose, Some(Purpose::Compaction));
    assert_eq!(compacts.hints.as_deref().unwrap().compaction, Some(CompactionCause::Reactive));
    let title = stage.exchange(TARGET, &headers("auxiliary", ""), &asks(&["Go."])).await.1;
    assert_eq!(title.purpose, Some(Purpose::Side));
    for exchange in [&compacts, &title] {
        assert_ne!(exchange.thread, main.thread, "it goes on no thread");
    }
    let workflow = stage.exchange(TARGET, &headers("workflow", ""), &asks(&["Go."])).await.1;
    assert_eq!(workflow.purpose, Some(Purpose::Turn));
    assert_ne!(workflow.thread, main.thread);
    let metrics = stage.server.telemetry.render();
    for line in [
        r#"plimsoll_client_requests_total{agent_type="explore",class="subagent",upstream="up"} 1"#,
        r#"plimsoll_client_requests_total{agent_type="none",class="main",upstream="up"} 1"#,
        r#"plimsoll_client_requests_total{agent_type="none",class="compaction",upstream="up"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

/// The headers reach the provider as they came: they are Claude Code's, and harmless.
#[tokio::test]
async fn headers_are_passed_on() {
    let mut stage = Stage::of(talkative, |_| {}).await;
    stage.exchange(TARGET, &headers("main", ""), &asks(&["Go."])).await;
    let sent = stage.last();
    assert_eq!(sent.header("x-claude-code-request-class"), Some("main"));
    assert_eq!(sent.header("x-claude-code-prompt-id"), Some("p-1"));
}

fn is_injected(sent: &Message) -> bool {
    sent.text().contains("Mind the tide.")
}

/// A message of the operator waits for the main line: compactions, side calls and sub-agents do not take it, though their
/// instructions and tools are those of the main line.
#[tokio::test]
async fn only_main_line_takes_messages() {
    let mut stage = Stage::of(talkative, |_| {}).await;
    let title = stage.exchange(TARGET, &headers("auxiliary", ""), &asks(&["Title?"])).await.1;
    let main = stage.exchange(TARGET, &headers("main", ""), &asks(&["Go."])).await.1;
    assert_eq!(title.session, main.session);
    let (tenant, session) = (main.tenant.clone().unwrap(), main.session.clone().unwrap());
    let scope = Scope { tenant, session };
    let text = "Mind the tide.".into();
    let queued = QueuedMessage { id: "one".into(), number: 1, at: 1, text, repeats: None };
    let queued = Fact::Queued(Box::new(queued));
    let handle = stage.server.ledgers.handle(&scope);
    assert!(stage.server.ledgers.store_fact_if_absent(&handle, queued).await.is_ok());
    for (class, more) in [
        ("auxiliary", ""),
        ("compaction", "x-claude-code-compaction: auto\r\n"),
        ("subagent", ""),
        ("workflow", ""),
        ("subagent", "x-claude-code-agent-id: a1\r\n"),
    ] {
        stage.exchange(TARGET, &headers(class, more), &asks(&["Go.", "Aye.", "On."])).await;
        assert!(!is_injected(&stage.last()), "{class} {more}");
    }
    // After the compaction the history begins anew.
    let more = "x-claude-code-context-compacted: auto\r\n";
    stage.exchange(TARGET, &headers("main", more), &asks(&["You had done much. On."])).await;
    assert!(is_injected(&stage.last()));
}

/// A count is a count, whatever is counted.
#[tokio::test]
async fn count_stays_count() {
    fn counts(_: &Message, _: usize) -> (&'static str, Value) {
        ("200 OK", json!({"input_tokens": 9}))
    }
    let mut stage = Stage::of(counts, |_| {}).await;
    let mut body = asks(&["Go."]);
    body.as_object_mut().unwrap().remove("max_tokens");
    let target = "/v1/messages/count_tokens";
    for class in ["main", "auxiliary", "compaction"] {
        let count = stage.exchange(target, &headers(class, ""), &body).await.1;
        assert_eq!(count.purpose, Some(Purpose::Count), "{class}");
    }
}
