//! Clients that compact their history by themselves, known by their headers before they do it for the first time
//! (`docs/protocols.md` 10.12).
//!
//! A user agent proves nothing, and nothing depends on it but how long compaction waits. A client that is not listed
//! is known once its own compaction was seen. Pure.

use http::{HeaderMap, HeaderName, header};

/// The beginnings of their user agents: Claude Code and Qwen Code, Codex, Gemini CLI, opencode, Qwen Code.
const USER_AGENTS: [&str; 5] = ["claude-cli/", "codex_", "GeminiCLI", "opencode/", "QwenCode/"];
/// Only Copilot says who began a request.
const COPILOT: HeaderName = HeaderName::from_static("x-initiator");

/// Whether a client with these headers compacts by itself.
pub fn compacts_by_itself(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let is_listed = |agent: &str| USER_AGENTS.iter().any(|listed| agent.starts_with(listed));
    agent.is_some_and(is_listed) || headers.contains_key(COPILOT)
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
        assert!(of(COPILOT, "agent"));
        for agent in ["litellm/1.81.10", "OpenAI/Python 3.52.0", "Anthropic/JS 1.11.0", ""] {
            assert!(!of(header::USER_AGENT, agent), "{agent}");
        }
        assert!(!compacts_by_itself(&HeaderMap::new()));
    }
}
