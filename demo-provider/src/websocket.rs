//! Responses over WebSocket (`docs/protocols.md` 3.1).
//!
//! Each `response.create` gets the events of a stream as text frames. The connection keeps its
//! responses, so that a request needs only the new items and the id of the response before them.

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
use crate::provider::SharedState;
use crate::script;

/// Accepts an upgrade; `None` if the request has no key for one.
pub(crate) fn upgrade(request: &mut Request<Incoming>, state: SharedState) -> Option<Response<()>> {
    let accept = derive_accept_key(request.headers().get(SEC_WEBSOCKET_KEY)?.as_bytes());
    let upgrading = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrading.await {
            let socket =
                WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            answer_frames(socket, state).await;
        }
    });
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
    response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&accept).ok()?);
    Some(response)
}

type WebSocket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

async fn answer_frames(mut socket: WebSocket, state: SharedState) {
    let mut responses = HashMap::new();
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let Ok(body) = serde_json::from_str::<Value>(&text) else { continue };
        for event in answer_frame(body, &mut responses, &state) {
            if socket.send(Message::text(event)).await.is_err() {
                return;
            }
        }
    }
}

/// The events that answer one frame. `responses` has the items up to the end of each response, by its id.
fn answer_frame(
    mut body: Value,
    responses: &mut HashMap<String, Vec<Value>>,
    state: &SharedState,
) -> Vec<String> {
    if body["type"] != "response.create" {
        return Vec::new();
    }
    let previous = body["previous_response_id"].as_str().map(str::to_owned);
    let mut input = match previous.map(|id| responses.get(&id).cloned().ok_or(id)) {
        None => Vec::new(),
        Some(Ok(items)) => items,
        Some(Err(id)) => {
            let message = format!("Previous response with id '{id}' not found.");
            return vec![json!({"type": "error", "status": 400, "error": {"type": "invalid_request_error", "code": "previous_response_not_found", "message": message, "param": "previous_response_id"}}).to_string()];
        }
    };
    match body["input"].take() {
        Value::Array(items) => input.extend(items),
        Value::String(text) => input.push(json!({"role": "user", "content": text})),
        _ => {}
    }
    body["input"] = Value::Array(input.clone());
    let request = openai_responses::parse_request(state.tokenizer, &body);
    let mut reply = script::reply(&request, &mut state.script());
    if body["generate"] == false {
        (reply.reasoning, reply.call, reply.text) = (None, None, String::new());
        (reply.usage.output, reply.usage.reasoning) = (0, 0);
    }
    let response = openai_responses::response_body(&request, &reply);
    input.extend(response["output"].as_array().cloned().unwrap_or_default());
    responses.insert(response["id"].as_str().unwrap_or_default().to_owned(), input);
    openai_responses::stream_events(&response).into_iter().map(|event| event.data).collect()
}
