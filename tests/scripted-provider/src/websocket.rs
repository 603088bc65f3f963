//! Responses over WebSocket, as the scripted provider speaks it (`docs/protocols.md` 3.1).
//!
//! Each `response.create` is answered with the events of a stream as text frames. The connection
//! remembers its responses, so that a turn needs only what is new and the id before it.

use std::collections::HashMap;

use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::dialect::openai_responses;
use crate::provider::Shared;
use crate::script;

/// Accepts an upgrade; `None` where the request asks for none.
pub(crate) fn upgrade(request: &mut Request<Incoming>, shared: Shared) -> Option<Response<()>> {
    let accept = derive_accept_key(request.headers().get(SEC_WEBSOCKET_KEY)?.as_bytes());
    let upgrading = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrading.await {
            let socket =
                WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            converse(socket, shared).await;
        }
    });
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
    response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&accept).ok()?);
    Some(response)
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

async fn converse(mut socket: Socket, shared: Shared) {
    let mut held = HashMap::new();
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let Ok(body) = serde_json::from_str::<Value>(&text) else { continue };
        for event in turn(body, &mut held, &shared) {
            if socket.send(Message::text(event)).await.is_err() {
                return;
            }
        }
    }
}

/// The events that answer one frame, and what the connection remembers of it.
fn turn(mut body: Value, held: &mut HashMap<String, Vec<Value>>, shared: &Shared) -> Vec<String> {
    if body["type"] != "response.create" {
        return Vec::new();
    }
    let before = body["previous_response_id"].as_str().map(str::to_owned);
    let mut input = match before.map(|id| held.get(&id).cloned().ok_or(id)) {
        None => Vec::new(),
        Some(Ok(items)) => items,
        Some(Err(id)) => {
            let message = format!("Previous response with id '{id}' not found.");
            return vec![json!({"type": "error", "status": 400, "error": {"type": "invalid_request_error", "code": "previous_response_not_found", "message": message, "param": "previous_response_id"}}).to_string()];
        }
    };
    match body["input"].take() {
        Value::Array(items) => input.extend(items),
        Value::String(said) => input.push(json!({"role": "user", "content": said})),
        _ => {}
    }
    body["input"] = Value::Array(input.clone());
    let ask = openai_responses::ask(shared.tokenizer, &body);
    let mut answer = script::answer(&ask, &mut shared.memory());
    if body["generate"] == false {
        (answer.reasoning, answer.call, answer.text) = (None, None, String::new());
        (answer.usage.output, answer.usage.reasoning) = (0, 0);
    }
    let whole = openai_responses::whole(&ask, &answer);
    input.extend(whole["output"].as_array().cloned().unwrap_or_default());
    held.insert(whole["id"].as_str().unwrap_or_default().to_owned(), input);
    openai_responses::stream(&whole).into_iter().map(|event| event.data).collect()
}
