//! `plimsoll mcp`: an agent asks for its own context, cost and limits.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::program::{Serving, plimsoll};
use super::support::http1::Provider;
use super::support::within;

/// A client on the command's standard input and output.
struct McpClient {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    asked: u64,
}

impl McpClient {
    async fn start(data: &str) -> Self {
        let mut command = plimsoll(&["mcp", "--data", data]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Self { child, stdin, lines, asked: 0 };
        let version = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let server = client.ask("initialize", version).await;
        assert_eq!(server["result"]["serverInfo"]["name"], "plimsoll", "{server}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        client
    }

    async fn send(&mut self, message: &Value) {
        self.stdin.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}))
            .await;
        let line = within("an answer", self.lines.next_line()).await.unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        answer["result"].clone()
    }

    /// The text of a tool's answer.
    async fn told(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], false, "{result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn agent_asks_for_its_own_context() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let body = json!({
        "model": "claude-opus-5-5", "max_tokens": 9,
        "messages": [{"role": "user", "content": "The secret words."}],
    });
    let headers = [("x-plimsoll-session", "the-session"), ("x-api-key", "sk-test")];
    let mut asking = serving.post("/v1/messages", &body.to_string(), &headers).await;
    let reply = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-5-5",
        "content": [{"type": "text", "text": "Aye."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5},
    });
    provider.call().await.answer("200 OK", &reply.to_string()).await;
    asking.response().await;

    let mut client = McpClient::start(serving.data.path().to_str().unwrap()).await;
    let listed = client.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["context", "sessions", "spend", "limits", "explain", "compare"]);
    for tool in tools {
        assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
    }
    let context = client.told("context", json!({})).await;
    assert!(context.starts_with("Context Usage: 15 / 1,000,000 tokens (0%)"), "{context}");
    let named = client.told("context", json!({"session": "the-session"})).await;
    assert_eq!(named, context);
    let spent = client.told("spend", json!({"by": "session"})).await;
    assert!(spent.contains("the-session"), "{spent}");
    let explained = client.told("explain", json!({})).await;
    assert!(explained.contains("Nothing was changed."), "{explained}");
    for tool in ["sessions", "limits"] {
        let told = client.told(tool, json!({})).await;
        assert!(!told.contains("secret words"), "{told}");
    }
    let alone = client.call("compare", json!({})).await;
    assert_eq!(alone["isError"], true);
    let reason = alone["content"][0]["text"].as_str().unwrap();
    assert!(reason.contains("continues no known request"), "{reason}");
    let unknown = client.ask("tools/call", json!({"name": "compact", "arguments": {}})).await;
    assert_eq!(unknown["error"]["message"], "there is no tool \"compact\"");
    drop(client.stdin);
    assert!(within("its end", client.child.wait()).await.unwrap().success());
}

/// A client starts its servers when it starts: the proxy may be there later, or again.
#[tokio::test]
async fn proxy_that_is_not_there_is_said_in_answers() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut client = McpClient::start(data).await;
    let refused = client.call("sessions", json!({})).await;
    assert_eq!(refused["isError"], true, "{refused}");
    let reason = refused["content"][0]["text"].as_str().unwrap();
    assert!(reason.contains("plimsoll serve"), "{reason}");
    let provider = Provider::start().await;
    let _serving = Serving::start(&provider.base(), &["--data", data]).await;
    let told = client.told("sessions", json!({})).await;
    assert!(told.contains("sessions"), "{told}");
}
