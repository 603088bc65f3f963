//! The scripted provider's numbers add up in each protocol: a reply costs as input what it cost as
//! output, so an estimate's error is the estimator's own.

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::dialect::{anthropic, gemini, openai_chat, openai_responses};
use crate::script::{self, ModelReply, ModelRequest, ScriptState, TokenizerFn};
use crate::{ScriptedProvider, by_length};

const USER_TEXT: &str = "Look at the project and tell me what it does.";
const TOOL_OUTPUT: &str = "total 72\n-rw-r--r-- 1 user user 241 Nov 21 02:53 README.md\n";

/// Replies to a request twice: as it is, then with the reply and a tool result added. The second
/// input has to be the first one, the reply, and the result.
fn check(
    read: impl Fn(TokenizerFn, &Value) -> ModelRequest,
    first: Value,
    grow: impl Fn(&mut Value, &ModelReply, &ModelRequest),
    result: u64,
) {
    let mut state = ScriptState::default();
    let request = read(by_length, &first);
    let reply = script::reply(&request, &mut state);
    assert!(reply.call.is_some(), "a tool is offered, so it is called");
    let mut second = first;
    grow(&mut second, &reply, &request);
    let next = read(by_length, &second);
    assert_eq!(next.tool_results, 1);
    let added = next.input_tokens() - reply.usage.input - reply.usage.output;
    assert_eq!(added, next.count_tokens(&tool_output(&next)) + result);
}

fn tool_output(request: &ModelRequest) -> String {
    if request.model.contains("gemini") {
        json!({"output": TOOL_OUTPUT}).to_string()
    } else {
        TOOL_OUTPUT.to_owned()
    }
}

#[test]
fn anthropic_input_grows_by_reply() {
    let schema = json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    let first = json!({
        "model": "claude-sonnet-4-6", "max_tokens": 1000, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "system": [{"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "bash", "input_schema": schema}], "messages": [{"role": "user", "content": USER_TEXT}],
    });
    let grow = |body: &mut Value, reply: &ModelReply, request: &ModelRequest| {
        let reply = anthropic::response_body(request, reply)["content"].clone();
        let id = reply.as_array().unwrap().last().unwrap()["id"].clone();
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": reply}));
        messages.push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": TOOL_OUTPUT}]}));
    };
    check(anthropic::parse_request, first, grow, 38);
}

#[test]
fn gemini_counts_pictures() {
    let tokens = |parts: Value| {
        let body = json!({"contents": [{"role": "user", "parts": parts}]});
        gemini::parse_request(by_length, "gemini-2.5-pro", false, &body).input_tokens()
    };
    let picture = json!({"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}});
    let text = json!({"text": USER_TEXT});
    assert_eq!(tokens(json!([text, picture])), tokens(json!([text])) + 258);
}

#[test]
fn chat_input_grows_by_reply() {
    let function = json!({"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}});
    let first = json!({
        "model": "gpt-4.1", "tools": [{"type": "function", "function": function}],
        "messages": [{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": USER_TEXT}],
    });
    let grow = |body: &mut Value, reply: &ModelReply, request: &ModelRequest| {
        let reply = openai_chat::response_body(request, reply)["choices"][0]["message"].clone();
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(
            json!({"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": TOOL_OUTPUT}),
        );
        let at = messages.len() - 1;
        messages.insert(at, reply);
    };
    check(openai_chat::parse_request, first, grow, 6);
}

#[test]
fn openai_responses_input_grows_by_reply_and_result() {
    let first = json!({
        "model": "gpt-5.5", "instructions": "You are a coding agent.", "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "exec_command", "parameters": {"properties": {"cmd": {"type": "string"}}}}],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": USER_TEXT}]}],
    });
    let grow = |body: &mut Value, reply: &ModelReply, request: &ModelRequest| {
        let output =
            openai_responses::response_body(request, reply)["output"].as_array().unwrap().clone();
        let call = output.last().unwrap()["call_id"].clone();
        let input = body["input"].as_array_mut().unwrap();
        input.extend(output);
        input.push(json!({"type": "function_call_output", "call_id": call, "output": TOOL_OUTPUT}));
    };
    // 10 around a result, 2 for the reasoning item that came back.
    check(openai_responses::parse_request, first, grow, 12);
}

#[test]
fn gemini_input_grows_by_reply() {
    let parameters = json!({"type": "OBJECT", "properties": {"command": {"type": "STRING"}}, "required": ["command"]});
    let first = json!({
        "systemInstruction": {"parts": [{"text": "You are a coding agent."}]},
        "tools": [{"functionDeclarations": [{"name": "run_shell_command", "parameters": parameters}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": true}},
        "contents": [{"role": "user", "parts": [{"text": USER_TEXT}]}],
    });
    let grow = |body: &mut Value, reply: &ModelReply, request: &ModelRequest| {
        let reply = gemini::response_body(request, reply)["candidates"][0]["content"].clone();
        let contents = body["contents"].as_array_mut().unwrap();
        contents.push(reply);
        let response = json!({"name": "run_shell_command", "response": {"output": TOOL_OUTPUT}});
        contents.push(json!({"role": "user", "parts": [{"functionResponse": response}]}));
    };
    check(
        |tokenizer, body| gemini::parse_request(tokenizer, "gemini-3-pro-preview", false, body),
        first,
        grow,
        15,
    );
}

fn http_client() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// The body of the stream that answers a request.
async fn stream(path: &str, is_cut: bool) -> Result<String, hyper::Error> {
    let provider = ScriptedProvider::start(([127, 0, 0, 1], 0).into(), by_length).await.unwrap();
    let body = json!({
        "model": "demo-model", "stream": true, "max_tokens": 100, "input": USER_TEXT,
        "messages": [{"role": "user", "content": USER_TEXT}],
    });
    let mut request = http::Request::post(format!("http://{}{path}", provider.address()));
    if is_cut {
        request = request.header("x-demo-cut", "1");
    }
    let request = request.body(Full::from(body.to_string())).unwrap();
    let body = http_client().request(request).await.unwrap().into_body();
    body.collect().await.map(|whole| String::from_utf8(whole.to_bytes().into()).unwrap())
}

#[tokio::test]
async fn streams_are_cut_on_demand() {
    for path in ["/v1/messages", "/v1/chat/completions", "/v1/responses"] {
        assert!(stream(path, true).await.is_err(), "{path}");
        assert!(stream(path, false).await.unwrap().contains("have read"), "{path}");
    }
}

#[tokio::test]
async fn socket_remembers_its_responses() {
    let provider = ScriptedProvider::start(([127, 0, 0, 1], 0).into(), by_length).await.unwrap();
    let stream = tokio::net::TcpStream::connect(provider.address()).await.unwrap();
    let address = format!("ws://{}/v1/responses", provider.address());
    let (mut socket, _) = tokio_tungstenite::client_async(address, stream).await.unwrap();
    let first = create_response(&mut socket, json!({"model": "gpt-5.5", "input": USER_TEXT})).await;
    let whole = create_response(&mut socket, json!({"model": "gpt-5.5", "input": [
        {"role": "user", "content": USER_TEXT}, first["output"][0], {"role": "user", "content": "And?"},
    ]}))
    .await;
    let grown = create_response(&mut socket, json!({
        "model": "gpt-5.5", "previous_response_id": first["id"], "input": [{"role": "user", "content": "And?"}],
    }))
    .await;
    assert_eq!(grown["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    let lost =
        create_response(&mut socket, json!({"model": "gpt-5.5", "previous_response_id": "resp_x"}))
            .await;
    assert_eq!(lost["code"], "previous_response_not_found");
}

/// Sends `response.create` and reads to the terminal event: its response, or its error.
async fn create_response(
    socket: &mut tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>,
    mut body: Value,
) -> Value {
    body["type"] = json!("response.create");
    socket.send(Message::text(body.to_string())).await.unwrap();
    loop {
        let message = socket.next().await.unwrap().unwrap();
        let event: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        match event["type"].as_str().unwrap() {
            "response.completed" => return event["response"].clone(),
            "error" => return event["error"].clone(),
            _ => {}
        }
    }
}
