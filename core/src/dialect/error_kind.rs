//! The kinds of errors that providers report: a few, so that they can be counted.
//!
//! Recognised by the provider's name for the error, which is stable, not by its message. Pure; must not know
//! what happens next.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::{ProviderError, Reply, StopReason};

/// The kind of an error; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ErrorKind {
    /// The provider is overloaded.
    Overloaded,
    /// Too many requests or tokens per time, or the quota is used up.
    RateLimit,
    /// The account must be paid for, or has no credit left: waiting does not help.
    Billing,
    /// The credential is wrong, or lacks a permission.
    Credential,
    /// A filter stopped the prompt or the reply.
    Filter,
    /// The context is too long.
    TooLong,
    /// Something took too long.
    Timeout,
    /// The request is invalid.
    Request,
    /// The provider failed.
    Provider,
    /// Unknown.
    Other,
}

/// Parts of names in lower case, the most certain first; numbers are whole names.
const NAMES: &[(&[&str], ErrorKind)] = &[
    (&["overloaded", "capacity", "unavailable"], ErrorKind::Overloaded),
    (&["billing", "insufficient_quota", "payment", "credit", "balance"], ErrorKind::Billing),
    (&["rate_limit", "ratelimit", "quota", "exhausted", "too_many"], ErrorKind::RateLimit),
    (&["context_length", "too_long", "too_large"], ErrorKind::TooLong),
    (&["filter", "safety", "policy", "moderation", "prohibited"], ErrorKind::Filter),
    (&["auth", "permission", "api_key", "forbidden"], ErrorKind::Credential),
    (&["timeout", "deadline"], ErrorKind::Timeout),
    (&["invalid", "not_found", "bad_request", "badrequest", "unsupported"], ErrorKind::Request),
    (&["server", "internal", "api_error", "upstream", "provider"], ErrorKind::Provider),
];

impl ErrorKind {
    /// The kind of the error that ended a reply; `None` if none did. A reply may say that it failed without an
    /// error (`docs/protocols.md` 4.3, 5.1).
    pub fn in_reply(reply: &Reply) -> Option<Self> {
        match &reply.error {
            Some(error) => Some(Self::from_error(error)),
            None if reply.stop == Some(StopReason::Failed) => Some(Self::Provider),
            None => None,
        }
    }

    /// The kind of an error.
    pub(super) fn from_error(error: &ProviderError) -> Self {
        let Some(name) = error.kind.as_deref().map(str::to_ascii_lowercase) else {
            return Self::Other;
        };
        if let Ok(status) = name.parse::<u16>() {
            return Self::of_status(status);
        }
        let row = NAMES
            .iter()
            .find(|(fragments, _)| fragments.iter().any(|fragment| name.contains(fragment)));
        row.map_or(Self::Other, |(_, kind)| *kind)
    }

    fn of_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::Credential,
            402 => Self::Billing,
            429 => Self::RateLimit,
            408 | 504 => Self::Timeout,
            413 => Self::TooLong,
            503 | 529 => Self::Overloaded,
            400..=499 => Self::Request,
            500..=599 => Self::Provider,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_reply_has_error_kind() {
        let reply = |stop, error: Option<&str>| Reply {
            stop,
            error: error
                .map(|kind| ProviderError { kind: Some(kind.into()), ..ProviderError::default() }),
            ..Reply::default()
        };
        let of = |stop, error| ErrorKind::in_reply(&reply(stop, error));
        assert_eq!(of(Some(StopReason::Failed), None), Some(ErrorKind::Provider));
        assert_eq!(of(Some(StopReason::Failed), Some("429")), Some(ErrorKind::RateLimit));
        assert_eq!(of(None, Some("hm")), Some(ErrorKind::Other));
        for stop in
            [None, Some(StopReason::End), Some(StopReason::Refused), Some(StopReason::Other)]
        {
            assert_eq!(of(stop, None), None, "{stop:?}");
        }
    }

    #[test]
    fn error_names_of_providers_are_mapped_to_their_kind() {
        for (name, kind) in [
            ("overloaded_error", ErrorKind::Overloaded),
            ("UNAVAILABLE", ErrorKind::Overloaded),
            ("rate_limit_exceeded", ErrorKind::RateLimit),
            ("RESOURCE_EXHAUSTED", ErrorKind::RateLimit),
            ("billing_error", ErrorKind::Billing),
            ("insufficient_quota", ErrorKind::Billing),
            ("402", ErrorKind::Billing),
            ("content_filter", ErrorKind::Filter),
            ("context_length_exceeded", ErrorKind::TooLong),
            ("authentication_error", ErrorKind::Credential),
            ("DEADLINE_EXCEEDED", ErrorKind::Timeout),
            ("invalid_request_error", ErrorKind::Request),
            ("api_error", ErrorKind::Provider),
            ("502", ErrorKind::Provider),
            ("429", ErrorKind::RateLimit),
            ("2013", ErrorKind::Other),
            ("hm", ErrorKind::Other),
        ] {
            let error = ProviderError { kind: Some(name.into()), ..ProviderError::default() };
            assert_eq!(ErrorKind::from_error(&error), kind, "{name}");
        }
        assert_eq!(ErrorKind::from_error(&ProviderError::default()), ErrorKind::Other);
    }
}
