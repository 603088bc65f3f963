//! Lists of models, and what they say of windows (`docs/protocols.md` 9).
//!
//! Providers agree neither on the list nor on the member. What is not understood is left out. Pure.

use http::Method;

use super::numbers::WINDOWS;
use super::paths::segments;
use crate::wire::json::{Document, Kind, Value};

/// A model with its window, as a list names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// The model's name; empty if the server has one window, whatever a client calls its model.
    pub name: Box<str>,
    /// Tokens that may be sent.
    pub window: u64,
}

/// Members with a window, where several say it the first one. What is sent counts, not what may be sent and written.
const WINDOW: [&str; 9] = [
    "max_input_tokens",      // Anthropic, LiteLLM
    "inputTokenLimit",       // Gemini
    "context_window",        // ChatGPT, Groq, Vercel
    "context_length",        // OpenRouter, Together, Fireworks
    "max_model_len",         // vLLM, SGLang
    "loaded_context_length", // LM Studio, which may load less than the model can
    "max_context_length",    // Mistral, LM Studio
    "context_size",          // Novita
    "n_ctx",                 // llama.cpp
];

/// Objects inside a model's that may have it instead.
const INSIDE: [&[&str]; 3] =
    [&["meta"], &["capabilities", "limits"], &["default_generation_settings"]];

/// How GitHub Copilot calls it, inside.
const COPILOT: [&str; 2] = ["max_prompt_tokens", "max_context_window_tokens"];

/// Whether the response to this request may name windows: a list of models, one model, or llama.cpp's properties.
pub fn is_list(method: &Method, target: &str) -> bool {
    *method == Method::GET
        && match segments(target).as_slice() {
            [.., "models" | "props"] => true,
            [.., "models", name] => !name.contains(':'),
            // A router's names have slashes: `models/openai/gpt-4o`.
            [.., "models", _, _] => true,
            _ => false,
        }
}

/// The models of a list that have a window.
pub fn read(target: &str, body: &[u8]) -> Vec<ListedModel> {
    let Ok(document) = Document::read(body) else { return Vec::new() };
    let Some(root) = document.root(body) else { return Vec::new() };
    let is_server = segments(target).last() == Some(&"props");
    let mut models = Vec::new();
    if is_server {
        models.extend(window(root).map(|window| ListedModel { name: "".into(), window }));
        return models;
    }
    let lists = [root.get("data"), root.get("models"), Some(root)];
    for entry in
        lists.iter().flatten().filter(|list| list.kind() == Kind::Array).flat_map(Value::items)
    {
        add(entry, &mut models);
    }
    add(root, &mut models);
    models
}

fn add(entry: Value<'_>, found: &mut Vec<ListedModel>) {
    let named = ["slug", "id", "name", "model"].iter().find_map(|member| entry.get_text(member));
    let (Some(name), Some(window)) = (named, window(entry)) else { return };
    let name = name.strip_prefix("models/").unwrap_or(&name).to_owned();
    // Also under its name without a date, if that is not listed itself: clients call it so.
    let undated = name.len().checked_sub(9).and_then(|at| name.split_at_checked(at));
    let undated = undated.filter(|(_, date)| {
        date.starts_with('-') && date[1..].bytes().all(|byte| byte.is_ascii_digit())
    });
    for name in [Some(&*name), undated.map(|(name, _)| name)].into_iter().flatten() {
        if !name.is_empty() && !found.iter().any(|listed| *listed.name == *name) {
            found.push(ListedModel { name: name.into(), window });
        }
    }
}

fn window(entry: Value<'_>) -> Option<u64> {
    if let Some(window) = window_in(entry, &WINDOW) {
        return Some(window);
    }
    let inside = INSIDE
        .iter()
        .filter_map(|path| path.iter().try_fold(entry, |value, member| value.get(member)));
    for value in inside {
        // A limit of the prompt is what refuses, so it comes before the window.
        let window = window_in(value, &COPILOT).or_else(|| window_in(value, &WINDOW));
        if window.is_some() {
            return window;
        }
    }
    None
}

fn window_in(value: Value<'_>, members: &[&str]) -> Option<u64> {
    let mut numbers = members.iter().filter_map(|member| value.get(member)?.as_u64());
    numbers.find(|window| WINDOWS.contains(window))
}

/// Fuzz target: no bytes make the reader panic.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    for target in ["/v1/models", "/props", "/v1beta/models/m"] {
        for listed in read(target, bytes) {
            assert!(WINDOWS.contains(&listed.window));
        }
    }
}

/// Whether a name is this one with a date behind it: `gpt-5.5-2026-04-23`, `claude-sonnet-4-5-20250929`.
pub fn is_dated(name: &str, plain: &str) -> bool {
    let date = name.strip_prefix(plain).and_then(|rest| rest.strip_prefix(['-', '@']));
    date.is_some_and(|date| {
        let digits = date.bytes().filter(u8::is_ascii_digit).count();
        (6..=8).contains(&digits) && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(target: &str, body: &str) -> Vec<(String, u64)> {
        let found = read(target, body.as_bytes());
        found.into_iter().map(|model| (model.name.into(), model.window)).collect()
    }

    #[test]
    fn each_provider_names_windows_in_its_own_member() {
        for (target, body, name, window) in [
            (
                "/backend-api/codex/models?client_version=1",
                r#"{"models":[{"slug":"gpt-5.6-sol","context_window":372000,"max_context_window":872000}]}"#,
                "gpt-5.6-sol",
                372_000,
            ),
            (
                "/v1/models",
                r#"{"data":[{"type":"model","id":"claude-opus-5-5","max_input_tokens":1000000,"max_tokens":128000}],"has_more":false}"#,
                "claude-opus-5-5",
                1_000_000,
            ),
            (
                "/v1beta/models",
                r#"{"models":[{"name":"models/gemini-2.5-pro","inputTokenLimit":1048576,"outputTokenLimit":65536}]}"#,
                "gemini-2.5-pro",
                1_048_576,
            ),
            (
                "/v1beta/models/gemini-2.5-pro",
                r#"{"name":"models/gemini-2.5-pro","inputTokenLimit":1048576}"#,
                "gemini-2.5-pro",
                1_048_576,
            ),
            (
                "/api/v1/models",
                r#"{"data":[{"id":"openai/gpt-5.5","context_length":1050000}]}"#,
                "openai/gpt-5.5",
                1_050_000,
            ),
            (
                "/v1/models",
                r#"{"object":"list","data":[{"id":"qwen","object":"model","max_model_len":40960}]}"#,
                "qwen",
                40_960,
            ),
            (
                "/v1/models",
                r#"{"data":[{"id":"m.gguf","meta":{"n_ctx":8192,"n_ctx_train":131072}}]}"#,
                "m.gguf",
                8_192,
            ),
            (
                "/v1/models",
                r#"[{"id":"meta/llama","context_length":131072}]"#,
                "meta/llama",
                131_072,
            ),
            (
                "/models",
                r#"{"data":[{"id":"gpt-5","capabilities":{"limits":{"max_context_window_tokens":264000,"max_prompt_tokens":128000}}}]}"#,
                "gpt-5",
                128_000,
            ),
            (
                "/api/v0/models",
                r#"{"data":[{"id":"devstral","state":"loaded","max_context_length":131072,"loaded_context_length":4096}]}"#,
                "devstral",
                4_096,
            ),
            (
                "/props",
                r#"{"default_generation_settings":{"n_ctx":4096},"total_slots":1}"#,
                "",
                4_096,
            ),
        ] {
            assert_eq!(listed(target, body), [(name.to_owned(), window)], "{body}");
        }
    }

    #[test]
    fn dated_name_stands_for_plain_name() {
        let body = r#"{"data":[{"id":"a-20250929","max_input_tokens":1000},{"id":"b-20250929","max_input_tokens":2000},
            {"id":"b","max_input_tokens":3000},{"id":"c-2025","max_input_tokens":4000}]}"#;
        let found = listed("/v1/models", body);
        assert!(found.contains(&("a".to_owned(), 1_000)), "{found:?}");
        assert_eq!(found.iter().filter(|(name, _)| name == "b").count(), 1);
        assert_eq!(found.len(), 5, "{found:?}");
    }

    #[test]
    fn name_may_have_a_date() {
        for (name, plain, expected) in [
            ("gpt-5.5-2026-04-23", "gpt-5.5", true),
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5", true),
            ("gpt-5.5-pro", "gpt-5.5", false),
            ("gpt-5.5", "gpt-5.5", false),
            ("gpt-5-405", "gpt-5", false),
        ] {
            assert_eq!(is_dated(name, plain), expected, "{name}");
        }
    }

    #[test]
    fn what_is_no_window_is_left_out() {
        for body in [
            r#"{"data":[{"id":"m"}]}"#,
            r#"{"data":[{"id":"m","context_length":null}]}"#,
            r#"{"data":[{"id":"m","context_length":-5}]}"#,
            r#"{"data":[{"id":"m","context_length":9223372036854775807}]}"#,
            r#"{"data":[{"id":"m","context_length":0}]}"#,
            r#"{"data":[{"context_length":9000}]}"#,
            r#"{"data":{}}"#,
            "[",
            "",
        ] {
            assert_eq!(listed("/v1/models", body), [], "{body}");
        }
    }

    #[test]
    fn lists_are_known_by_their_path() {
        let get = |target| is_list(&Method::GET, target);
        for target in [
            "/v1/models",
            "/v1/models/claude-opus-5",
            "/backend-api/codex/models?client_version=1",
            "/props",
            "/v1beta/models/gemini-3-pro",
            "/api/v1/models",
            "/v1/models/openai/gpt-4o",
        ] {
            assert!(get(target), "{target}");
        }
        for target in ["/v1/messages", "/v1beta/models/m:generateContent", "/v1/files", "/"] {
            assert!(!get(target), "{target}");
        }
        assert!(!is_list(&Method::POST, "/v1/models"));
    }
}
