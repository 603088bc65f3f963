//! With `heal.images = "shrink"`, a picture that is too large is made smaller once, and the smaller one is sent again
//! later (`docs/healing.md`).

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat};
use plimsoll::context::policy::{ImageRepair, Policy, RepairPolicy};
use plimsoll::dialect::repair::RepairCause;
use scripted_provider::strict::{Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::healed::{
    CHAT, CLAUDE, GEMINI, RESPONSES, chat, claude, gemini, goes_on, healed, image, picture,
    refusals, responses,
};
use crate::play::{Play, anthropic_reply};
use crate::stage::{RoundTrip, Stage};
use crate::support::http1::Call;
use crate::support::noise::noise;

fn shrinks() -> Policy {
    let heal = RepairPolicy { images: ImageRepair::Shrink, ..RepairPolicy::default() };
    Policy { heal, ..Policy::default() }
}

/// A first message with this picture and a text, in each protocol.
fn bodies(data: &str) -> [(&'static str, &'static str, Value); 4] {
    let url = format!("data:image/png;base64,{data}");
    [
        (
            CLAUDE,
            "/messages/0/content/0/source/data",
            claude(
                json!([{"role": "user", "content": [image(data), {"type": "text", "text": "What?"}]}]),
            ),
        ),
        (
            CHAT,
            "/messages/0/content/0/image_url/url",
            chat(json!([{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": url, "detail": "high"}}, {"type": "text", "text": "What?"}]}])),
        ),
        (
            RESPONSES,
            "/input/0/content/0/image_url",
            responses(json!([{"role": "user", "content": [
                {"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What?"}]}])),
        ),
        (
            GEMINI,
            "/contents/0/parts/0/inlineData/data",
            gemini(json!([{"role": "user", "parts": [
                {"inlineData": {"mimeType": "image/png", "data": data}}, {"text": "What?"}]}])),
        ),
    ]
}

/// The picture that was sent at this place.
fn sent_picture(trip: &RoundTrip, at: &str) -> (String, DynamicImage) {
    let sent = trip.sent().pointer(at).and_then(Value::as_str).unwrap();
    let data = sent.rsplit(',').next().unwrap().to_owned();
    let file = STANDARD.decode(&data).unwrap();
    assert_eq!(image::guess_format(&file).unwrap(), ImageFormat::Png, "the same type");
    (data, image::load_from_memory(&file).unwrap())
}

#[tokio::test]
async fn picture_that_is_too_large_is_made_smaller_and_stays_so() {
    let large = noise(200, 100, 7);
    let rules = Rules { max_image_bytes: 20_000, ..Rules::default() };
    for (target, at, body) in bodies(&large) {
        let mut stage = Stage::open(rules.clone(), shrinks()).await;
        let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
        assert_eq!(trip.status, 200, "{target}: {} {:?}", trip.answer, trip.exchange.refusal);
        assert_eq!(trip.log.len(), 2, "{target}");
        assert_eq!(refusals(&trip), 1, "{target}");
        assert_eq!(trip.exchange.refusal, healed(RepairCause::Media), "{target}");
        let (data, small) = sent_picture(&trip, at);
        assert!(data.len() <= 20_000, "{target}: {}", data.len());
        assert!(small.width() > 50, "{target}: {}", data.len());
        assert_eq!(small.width() / small.height(), 2, "{target}: its shape");
        // Only the picture's data is different.
        let (before, after) = (body.to_string(), trip.log[1].request.bytes.clone());
        let after = String::from_utf8(after.to_vec()).unwrap();
        let after = after.replace("\"include\":[\"reasoning.encrypted_content\"],", "");
        assert_eq!(after, before.replace(&large, &data), "{target}");
        let mut next = goes_on(&body, &trip.answer);
        for restarts in [false, true] {
            if restarts {
                stage.restart().await;
            }
            let later = stage.exchange(target, &next, ScriptedReply::text("Better.")).await;
            assert_eq!(later.status, 200, "{target}: {}", later.answer);
            assert_eq!(later.log.len(), 1, "{target}: {}", later.answer);
            assert_eq!(sent_picture(&later, at).0, data, "{target}: restarts {restarts}");
            next = goes_on(&next, &later.answer);
        }
    }
}

#[tokio::test]
async fn too_many_pixels_are_scaled_to_what_refusal_names() {
    let large = noise(300, 20, 1);
    let rules = Rules { max_image_side: 120, ..Rules::default() };
    let mut stage = Stage::open(rules, shrinks()).await;
    let (target, at, body) = bodies(&large)[0].clone();
    let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 200, "{}", trip.answer);
    assert_eq!(trip.log.len(), 2, "{}", trip.answer);
    let (_, small) = sent_picture(&trip, at);
    assert_eq!(small.width(), 120);
    assert_eq!(small.height(), 8);
}

/// The smaller picture may exceed another limit. The provider then names it by its place in what was sent.
#[tokio::test]
async fn smaller_picture_that_is_refused_again_is_made_smaller_still() {
    let rules = Rules { max_image_side: 100, ..Rules::default() };
    let store_twice = rules.clone();
    let mut stage = Stage::open(rules, shrinks()).await;
    let (target, at, body) = bodies(&noise(200, 100, 5))[0].clone();
    let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(sent_picture(&trip, at).1.width(), 100);
    let rules = Rules { max_image_side: 60, ..store_twice };
    stage.provider.set_rules(rules);
    let next = goes_on(&body, &trip.answer);
    let trip = stage.exchange(target, &next, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 200, "{}", trip.answer);
    assert_eq!(trip.log.len(), 2, "{}", trip.answer);
    assert_eq!(sent_picture(&trip, at).1.width(), 60);
    let next = goes_on(&next, &trip.answer);
    let trip = stage.exchange(target, &next, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.log.len(), 1);
    assert_eq!(sent_picture(&trip, at).1.width(), 60);
}

/// A picture that cannot be read, or that has too many pixels to decode, is replaced by text, as without the option.
#[tokio::test]
async fn picture_that_cannot_be_made_smaller_becomes_text() {
    let mut bomb = Cursor::new(Vec::new());
    let plain = DynamicImage::ImageLuma8(image::GrayImage::new(9_000, 9_000));
    plain.write_to(&mut bomb, ImageFormat::Png).unwrap();
    let bomb = STANDARD.encode(bomb.into_inner());
    let rules = Rules { max_image_bytes: 20_000, ..Rules::default() };
    for data in [picture(30_000), bomb, noise(200, 100, 3)[..100_000 / 4 * 4 / 2].to_owned()] {
        let mut stage = Stage::open(rules.clone(), shrinks()).await;
        let (target, _, body) = bodies(&data)[0].clone();
        let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
        assert_eq!(trip.status, 200, "{}", trip.answer);
        assert_eq!(trip.log.len(), 2, "{}", trip.answer);
        assert_eq!(trip.sent()["messages"][0]["content"][0]["type"], "text");
    }
}

/// A session stores a limited size of smaller pictures. After that, text is used, and the session continues.
#[tokio::test]
async fn past_limit_of_stored_pictures_session_gets_text() {
    let rules = Rules { max_image_bytes: 500_000, ..Rules::default() };
    let mut stage = Stage::open(rules, shrinks()).await;
    stage.config.limits.body_bytes = 32 << 20;
    stage.restart().await;
    let mut kinds = Vec::new();
    let mut messages = Vec::new();
    for at in 0..16 {
        messages.push(json!({"role": "user", "content": [image(&noise(420, 420, at)), {"type": "text", "text": "What?"}]}));
        let body = claude(json!(messages));
        let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
        assert_eq!(trip.status, 200, "{at}: {:?}", trip.exchange.refusal);
        let content = trip.sent()["messages"].as_array().unwrap();
        let newest = content.last().unwrap()["content"][0]["type"].as_str().unwrap();
        kinds.push(newest.to_owned());
        messages.push(json!({"role": "assistant", "content": trip.answer["content"]}));
    }
    assert_eq!(kinds[0].as_str(), "image", "{kinds:?}");
    assert_eq!(kinds[15].as_str(), "text", "{kinds:?}");
}

/// The smaller picture meets the limit, but is refused for it again: it is replaced by text for good.
#[tokio::test]
async fn smaller_picture_that_is_refused_for_same_limit_becomes_text() {
    let mut play = Play::of(CLAUDE, shrinks()).await;
    let (_, _, body) = bodies(&noise(200, 100, 9))[0].clone();
    let refused = |call: &Call| {
        let sent: Value = serde_json::from_str(call.message.text()).unwrap();
        let bytes = sent["messages"][0]["content"][0]["source"]["data"].as_str().unwrap().len();
        let message = format!(
            "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: {bytes} bytes > 20000 bytes"
        );
        (bytes, json!({"error": {"message": message}}).to_string())
    };
    let mut client = play.send_request(&body).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", &refused(&call).1).await;
    let mut call = call.wire.request().await;
    let (bytes, refusal) = refused(&call);
    assert!(bytes <= 20_000, "{bytes}");
    call.answer("400 Bad Request", &refusal).await;
    let mut call = call.wire.request().await;
    assert!(call.message.text().contains("It was left out"), "{}", call.message.text());
    let reply =
        anthropic_reply("m1", "claude-sonnet-4-6", json!([{"type": "text", "text": "Go on."}]));
    call.answer("200 OK", &reply.to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    let sent = call.message.text().to_owned();
    drop(call);
    play.server.next_exchange().await;
    assert_eq!(play.exchange(&body, &reply).await.bytes, sent, "it is repeated");
}
