//! Which backend a request chose, at a router that has several for one model.
//!
//! Backends differ in windows and in what they accept, so what one refuses says nothing of another.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use crate::wire::json::Value;

/// Members with which routers let a request choose: `provider` and `models` at OpenRouter ("Provider Routing",
/// <https://openrouter.ai/docs/guides/routing/provider-selection>), `providerOptions` at Vercel's AI Gateway.
const CHOICES: [&str; 3] = ["provider", "models", "providerOptions"];

/// A hash of the choice in a request's body, if it makes one.
pub(super) fn choice_in(body: &[u8], root: Value<'_>) -> Option<u64> {
    let mut choice = Vec::new();
    for member in CHOICES {
        if let Some(value) = root.get(member) {
            choice.extend_from_slice(member.as_bytes());
            choice.extend_from_slice(value.span().slice(body));
        }
    }
    (!choice.is_empty()).then(|| xxh3_64(&choice))
}

/// The name by which a model is known behind a choice of backend.
pub(super) fn model_behind(model: &str, choice: Option<u64>) -> Cow<'_, str> {
    match choice {
        Some(choice) => format!("{model} (backend {choice:016x})").into(),
        None => model.into(),
    }
}
