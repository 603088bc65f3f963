//! The upstreams that exist without any configuration.
//!
//! Settings for one of these names override it.

use crate::dialect::Dialect;

/// An upstream that exists without being configured.
pub(super) struct BuiltInUpstream {
    pub(super) name: &'static str,
    pub(super) base_url: &'static str,
    pub(super) dialects: &'static [Dialect],
}

/// The providers that always exist.
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
