//! What a picture costs, by model.
//!
//! The inputs are in `tests/data/cases`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::server::TestServer;

/// A provider and the proxy in front of it.
struct Stage {
    provider: Provider,
    server: TestServer,
}

impl Stage {
    async fn open() -> Self {
        let provider = Provider::start().await;
        let server = TestServer::before(&provider.base()).await;
        Self { provider, server }
    }

    /// The record of an exchange with this request.
    async fn exchange(&mut self, target: &str, body: &Value) -> Arc<Exchange> {
        let (mut client, body) = (Wire::connect(self.server.address).await, body.to_string());
        let length = body.len();
        client
            .send(format!(
                "POST {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            ))
            .await;
        self.provider.call().await.answer("200 OK", "{}").await;
        client.response().await;
        self.server.next_exchange().await
    }

    async fn estimate(&mut self, target: &str, body: &Value) -> u64 {
        let exchange = self.exchange(target, body).await;
        exchange.estimate.as_ref().unwrap().tokens
    }
}

/// The head of a PNG of this size.
fn png(width: u32, height: u32) -> String {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend_from_slice(&width.to_be_bytes());
    bytes.extend_from_slice(&height.to_be_bytes());
    bytes.extend_from_slice(&[8, 2, 0, 0, 0, 0, 0, 0, 0]);
    STANDARD.encode(bytes)
}

fn pdf(pages: usize, has_text: bool) -> String {
    let page = if has_text {
        "<< /Type /Page /Resources << /Font << /F1 9 0 R >> >> >>\n"
    } else {
        "<< /Type /Page /Resources << /XObject << /I1 9 0 R >> >> >>\n"
    };
    STANDARD.encode(format!("%PDF-1.4\n<< /Type /Pages /Count {pages} >>\n{}", page.repeat(pages)))
}

fn request(file: &str) -> String {
    let folder = format!("{}/tests/data/cases/picture-sizes", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(format!("{folder}/{file}")).unwrap()
}

/// Where a model is asked, and the request with a picture for it.
fn asking(model: &str, detail: &str, picture: &str) -> (String, Value) {
    let (target, file) = if model.starts_with("claude") {
        ("/v1/messages".to_owned(), "request-claude.json")
    } else if model.starts_with("gemini") {
        (format!("/v1beta/models/{model}:generateContent"), "request-gemini.json")
    } else {
        ("/v1/responses".to_owned(), "request-responses.json")
    };
    let body = request(file).replace("BASE64 OF THE PNG", picture);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    if !model.starts_with("gemini") {
        body["model"] = json!(model);
    }
    if !detail.is_empty() {
        body["input"][0]["content"][0]["detail"] = json!(detail);
    }
    (target, body)
}

/// The rows of a table: the cells by the names of their columns.
fn table(file: &str) -> Vec<Vec<(String, String)>> {
    let path = format!("{}/tests/data/cases/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split('\t').map(str::to_owned));
    let names: Vec<String> = lines.next().unwrap().collect();
    lines.map(|cells| names.iter().cloned().zip(cells).collect()).collect()
}

fn is_near(estimate: u64, measured: &str) -> bool {
    measured.split(" or ").any(|measured| {
        let measured: u64 = measured.parse().unwrap();
        let off = estimate.abs_diff(measured);
        off <= 80 || off * 10 <= measured
    })
}

/// Claude 5.5 was estimated up to 42 % too low, Haiku 4.5 up to 42 % too high, and GPT up to 88 % too low.
#[tokio::test]
async fn picture_costs_as_measured() {
    let mut stage = Stage::open().await;
    for row in table("picture-sizes/measured.tsv") {
        let (width, height) = row[0].1.split_once('x').unwrap();
        let picture = png(width.parse().unwrap(), height.parse().unwrap());
        for (model, measured) in &row[1..] {
            let (model, detail) = model.split_once(" detail=").unwrap_or((model, ""));
            let (target, body) = asking(model, detail, &picture);
            let estimate = stage.estimate(&target, &body).await;
            let what = format!("{model} {detail} {width}x{height}: {estimate} for {measured}");
            assert!(is_near(estimate, measured), "{what}");
        }
    }
}

/// Every document was 2,000 tokens, but those of Gemini.
#[tokio::test]
async fn pdf_costs_as_measured() {
    let mut stage = Stage::open().await;
    for row in table("pdf-pages/measured.tsv") {
        let (pages, has_text) = (row[0].1.parse().unwrap(), row[1].1 == "yes");
        let document = pdf(pages, has_text);
        for (model, measured) in &row[2..] {
            let (target, mut body) = asking(model, "", &document);
            if model.starts_with("claude") {
                let block = &mut body["messages"][0]["content"][0];
                block["type"] = json!("document");
                block["source"]["media_type"] = json!("application/pdf");
            } else {
                body["contents"][0]["parts"][0]["inlineData"]["mimeType"] =
                    json!("application/pdf");
            }
            let estimate = stage.estimate(&target, &body).await;
            let what = format!("{model} {pages} pages: {estimate} for {measured}");
            assert!(is_near(estimate, measured), "{what}");
        }
    }
}

/// A picture of 1,920 by 1,080 at every place where a request may have one.
#[tokio::test]
async fn picture_costs_same_everywhere() {
    let mut stage = Stage::open().await;
    let picture = png(1_920, 1_080);
    let address = format!("data:image/png;base64,{picture}");
    let chat = |model: &str, detail: &str| {
        let image = json!({"type": "image_url", "image_url": {"url": address, "detail": detail}});
        json!({"model": model, "messages": [{"role": "user", "content": [image]}]})
    };
    let output = |output: Value| {
        json!({"model": "gpt-5.5", "store": false, "input": [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}, output]})
    };
    let input = json!({"type": "input_image", "image_url": address, "detail": "high"});
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}});
    let inline = json!({"inlineData": {"mimeType": "image/png", "data": picture}});
    let claude = |content: Value| {
        json!({"model": "anthropic/claude-opus-4.8", "max_tokens": 9, "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}]})
    };
    let (responses, chats) = ("/v1/responses", "/v1/chat/completions");
    let gemini = "/v1beta/models/gemini-3.8-flash:generateContent";
    for (target, body, tokens) in [
        (chats, chat("gpt-4o", "high"), 1_105),
        (chats, chat("gpt-4o", "low"), 85),
        (chats, chat("gpt-4o-mini", "low"), 2_833),
        (chats, chat("gpt-5.2", "auto"), 2_448),
        (chats, chat("openai/gpt-5.6-terra", "low"), 173),
        (chats, chat("anthropic/claude-opus-4.8", "auto"), 2_691),
        (chats, chat("google/gemini-3.5-flash", "high"), 1_100),
        (
            chats,
            json!({"model": "gpt-5.4", "messages": [
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": {"url": address}}]}]}),
            2_448,
        ),
        (
            responses,
            output(json!({"type": "function_call_output", "call_id": "c", "output": [input]})),
            2_448,
        ),
        (
            responses,
            output(json!({"type": "computer_call_output", "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": address, "detail": "original"}})),
            2_448,
        ),
        (
            responses,
            output(
                json!({"role": "user", "content": [{"type": "input_image", "detail": "low", "image_url": address}]}),
            ),
            173,
        ),
        ("/v1/messages", claude(json!([block])), 2_691),
        (gemini, json!({"contents": [{"role": "user", "parts": [inline]}]}), 1_100),
        (
            gemini,
            json!({"contents": [{"role": "user", "parts": [inline]}],
            "generationConfig": {"mediaResolution": "MEDIA_RESOLUTION_LOW"}}),
            264,
        ),
        (
            gemini,
            json!({"contents": [{"role": "user", "parts": [
            {"inlineData": inline["inlineData"], "mediaResolution": {"level": "media_resolution_medium"}}]}]}),
            527,
        ),
        (
            gemini,
            json!({"contents": [{"role": "user", "parts": [{"functionResponse":
            {"name": "look", "response": {"seen": "it"}, "parts": [inline]}}]}]}),
            1_100,
        ),
    ] {
        let estimate = stage.estimate(target, &body).await;
        assert!((tokens..tokens + 100).contains(&estimate), "{estimate} for {tokens}: {body}");
    }
}

/// Claude's documents may be made of texts and pictures.
#[tokio::test]
async fn picture_in_document_is_no_text() {
    let mut stage = Stage::open().await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": png(1_920, 1_080)});
    let blocks = json!([{"type": "text", "text": "x"}, {"type": "image", "source": source}]);
    let document = json!({"type": "document", "source": {"type": "content", "content": blocks}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [document]});
    let call = json!({"type": "tool_use", "id": "t", "name": "look", "input": {}});
    for messages in [
        json!([{"role": "user", "content": [document]}]),
        json!([{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]),
    ] {
        let body = json!({"model": "claude-opus-4-8", "max_tokens": 9, "messages": messages});
        let estimate = stage.estimate("/v1/messages", &body).await;
        // The document costs some tokens by itself.
        assert!((2_760..2_860).contains(&estimate), "{estimate}: {body}");
    }
}

/// A picture by URL or file id is counted as one of 512 pixels, with the detail that was asked for.
#[tokio::test]
async fn picture_of_unknown_size_is_counted_as_small_one() {
    let mut stage = Stage::open().await;
    let url = "https://example.com/cat.png";
    let chat = json!([{"type": "image_url", "image_url": {"url": url}}]);
    let by_file = json!([{"type": "input_image", "file_id": "file-1", "detail": "low"}]);
    let source = json!([{"type": "image", "source": {"type": "url", "url": url}}]);
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    for (target, body, tokens) in [
        ("/v1/chat/completions", json!({"model": "gpt-4.1", "messages": user(chat)}), 255),
        ("/v1/responses", json!({"model": "gpt-4.1", "input": user(by_file)}), 85),
        (
            "/v1/messages",
            json!({"model": "claude-opus-5", "max_tokens": 9, "messages": user(source)}),
            361,
        ),
        (
            "/v1beta/models/gemini-3.8-flash:generateContent",
            json!({"contents": [{"role": "user", "parts": [{"fileData": {"mimeType": "image/png", "fileUri": url}}]}]}),
            1_089,
        ),
    ] {
        let estimate = stage.estimate(target, &body).await;
        assert!((tokens..tokens + 40).contains(&estimate), "{estimate} for {tokens}: {body}");
    }
}
