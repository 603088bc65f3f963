//! What a server says of itself when it starts, and to whoever opens its address: what it does with requests, where they go,
//! and where clients point.
//!
//! No secrets: everybody who reaches the listener may read it.

use std::fmt::Write as _;

use super::{Config, Mode};

/// How clients are told, by the name of an upstream.
const CLIENTS: [(&str, &str, &str); 3] = [
    ("anthropic", "ANTHROPIC_BASE_URL", ""),
    ("openai", "OPENAI_BASE_URL", "/v1"),
    ("gemini", "GOOGLE_GEMINI_BASE_URL", ""),
];

impl Config {
    /// `base`: the address of the server for clients.
    pub(crate) fn introduction(&self, base: &str) -> String {
        let mode = match self.mode {
            Mode::Active => {
                "active: may clear old tool results, put back dropped reasoning, compact and repair; \
                 --mode observe only watches"
            }
            Mode::Shadow => {
                "shadow: decides and measures, and changes nothing new; \
                 earlier changes of a conversation are repeated"
            }
            Mode::Observe => {
                "observe: only watches; earlier changes of a conversation are repeated"
            }
        };
        let mut text = format!("  mode {mode}\n  upstreams:");
        for upstream in &self.upstreams {
            // Writing to a string cannot fail.
            let _ = write!(text, " {} {},", upstream.name, upstream.shown_base());
        }
        text.pop();
        text += "\n  clients:";
        for (upstream, variable, path) in CLIENTS {
            if self.upstreams.iter().any(|known| *known.name == *upstream) {
                let _ = write!(text, " {variable}={base}{path}");
            }
        }
        text
    }
}
