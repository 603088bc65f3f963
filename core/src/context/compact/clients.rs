//! Clients that are left to compact their history by themselves: those known to do it by their headers, before they do it
//! for the first time (`docs/protocols.md` 10.12), and those that were seen to.
//!
//! A user agent proves nothing, and nothing depends on it but how long compaction waits. Pure.

use http::{HeaderMap, HeaderName, header};

use crate::context::plan::PlanRequest;

/// How a client shows what it is.
enum Sign {
    /// Its user agent begins so.
    UserAgent(&'static str),
    /// Only it sends this header.
    Header(HeaderName),
}

/// The clients that compact before their window is full.
const COMPACTING: [Sign; 6] = [
    // Claude Code and Qwen Code.
    Sign::UserAgent("claude-cli/"),
    // Codex.
    Sign::UserAgent("codex_"),
    // Gemini CLI.
    Sign::UserAgent("GeminiCLI"),
    // opencode.
    Sign::UserAgent("opencode/"),
    // Qwen Code.
    Sign::UserAgent("QwenCode/"),
    // Copilot, which says who began a request.
    Sign::Header(HeaderName::from_static("x-initiator")),
];

/// Whether a client with these headers compacts by itself.
pub fn compacts_by_itself(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    COMPACTING.iter().any(|sign| match sign {
        Sign::UserAgent(start) => agent.is_some_and(|agent| agent.starts_with(start)),
        Sign::Header(name) => headers.contains_key(name),
    })
}

/// Whether the client of a request is left to compact until its provider refuses a request. `was_seen`: it was seen to
/// compact in this session.
pub fn is_left_to_client(request: &PlanRequest<'_>, was_seen: bool) -> bool {
    request.client_compacts.unwrap_or(was_seen)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn clients_that_compact_are_known_by_their_headers() {
        let of = |name, value| {
            compacts_by_itself(&HeaderMap::from_iter([(name, HeaderValue::from_static(value))]))
        };
        for agent in [
            "claude-cli/2.1.332 (external, cli)",
            "codex_exec/0.169.0 (Debian 12.0.0; x86_64)",
            "GeminiCLI-tui/0.61.0/gemini-3.1-pro-preview (linux; x64; terminal)",
            "opencode/1.18.33 ai-sdk/provider-utils/4.0.46 runtime/bun/1.3.14",
        ] {
            assert!(of(header::USER_AGENT, agent), "{agent}");
        }
        assert!(of(HeaderName::from_static("x-initiator"), "agent"));
        for agent in ["litellm/1.81.10", "OpenAI/Python 3.52.0", "Anthropic/JS 1.11.0", ""] {
            assert!(!of(header::USER_AGENT, agent), "{agent}");
        }
        assert!(!compacts_by_itself(&HeaderMap::new()));
    }
}
