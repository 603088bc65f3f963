//! The upstreams that are there without any configuration.
//!
//! What a configuration says under one of these names stands above it.

use crate::dialect::Dialect;

/// An upstream that is there without being said.
pub(super) struct BuiltInUpstream {
    pub(super) name: &'static str,
    pub(super) base_url: &'static str,
    pub(super) dialects: &'static [Dialect],
}

/// The providers that are always there.
pub(super) const BUILT_IN: [BuiltInUpstream; 3] = [
    BuiltInUpstream {
        name: "anthropic",
        base_url: "https://api.anthropic.com",
        dialects: &[Dialect::Anthropic],
    },
    BuiltInUpstream {
        name: "openai",
        base_url: "https://api.openai.com/v1",
        dialects: &[Dialect::OpenaiChat, Dialect::OpenaiResponses],
    },
    BuiltInUpstream {
        name: "gemini",
        base_url: "https://generativelanguage.googleapis.com",
        dialects: &[Dialect::Gemini],
    },
];
