//! An overflow in the words and shapes of many servers, which count output towards the window, too
//! (`docs/protocols.md` 4.3).
//!
//! With numbers and without, with an `error` object and without, wrapped by routers and in plain text.

use serde_json::{Value, json};

use super::verdict::{ApiError, Rule};

/// The numbers of a request that does not fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excess {
    /// Tokens of the prompt.
    pub input: u64,
    /// Tokens of the requested output.
    pub output: u64,
    /// The context window, tokens.
    pub window: u64,
}

/// How many wordings there are.
pub const OVERFLOW_WORDINGS: usize = 16;

/// The error with this wording.
pub(super) fn overflow(wording: usize, excess: Excess) -> ApiError {
    let Excess { input, output, window } = excess;
    let total = input + output;
    let sglang = format!(
        "Requested token count exceeds the model's maximum context length of {window} tokens. You requested a total of {total} tokens: {input} tokens from the input messages and {output} tokens for the completion."
    );
    let counted = match input > window {
        true => format!(
            "Input length ({input} tokens) exceeds the maximum allowed length ({window} tokens)."
        ),
        false => sglang.clone(),
    };
    let error = |message: &str| json!({"error": {"message": message, "type": "invalid_request_error", "code": null}});
    let (status, body) = match wording % OVERFLOW_WORDINGS {
        0 => (400, error(&sglang)),
        1 => (
            400,
            json!({"object": "error", "message": counted, "type": "BadRequestError", "code": 400}),
        ),
        2 => (400, json!({"detail": counted})),
        3 => (400, Value::String(counted)),
        4 => (400, json!({"error": {"code": "context_length_exceeded", "message": ""}})),
        5 => (400, json!({"error": "context_length_exceeded"})),
        6 => (400, json!({"error": {"code": "1261", "message": "Prompt exceeds max length"}})),
        7 => (
            413,
            json!({"error": {"message": format!("Request body too large for m model. Max size: {window} tokens."), "code": "tokens_limit_reached"}}),
        ),
        8 => (
            400,
            json!({"error": {"message": "No.", "type": "context_exceeded", "n_prompt_tokens": input, "n_ctx": window}}),
        ),
        9 => (
            400,
            json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": error(&sglang).to_string()}}}),
        ),
        10 => {
            (500, error(&format!("litellm.BadRequestError: OpenAIException - {}", error(&sglang))))
        }
        11 => (
            413,
            json!({"success": false, "errors": [{"code": 5021, "message": format!("AiError: The estimated number of input and maximum output tokens ({total}) exceeded this model context window limit ({window})")}]}),
        ),
        12 => (
            400,
            error(&format!(
                "input length and `max_tokens` exceed context limit: {input} + {output} > {window}"
            )),
        ),
        13 => (
            400,
            error(&format!(
                "You passed {input} input tokens and requested {output} output tokens. However, the model's context length is only {window} tokens."
            )),
        ),
        14 => (
            400,
            error(&format!(
                "This deployment takes up to {window} tokens; the conversation has {input} tokens, and {output} tokens of output were requested."
            )),
        ),
        _ => (400, error("Your input exceeds the context window of this model.")),
    };
    let message = body.to_string();
    ApiError { status, headers: Vec::new(), body: Box::new(body), rule: Rule::Overflow, message }
}
