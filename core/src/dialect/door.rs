//! The door through which a model is reached: what kind of account pays for it.
//!
//! The same model behind the same upstream has another window with a login than with an API key (`docs/protocols.md` 9).

use http::HeaderMap;
use serde::{Deserialize, Serialize};

/// How a client reaches a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// With an API key, or in a way that does not matter.
    #[default]
    Api,
    /// With a login to ChatGPT, as Codex does.
    Chatgpt,
    /// With a login to GitHub Copilot.
    Copilot,
}

/// Only requests with a login to ChatGPT have it.
const CHATGPT_ACCOUNT: &str = "chatgpt-account-id";
/// Only requests to GitHub Copilot have it; some of its clients leave it out.
const COPILOT_CLIENT: &str = "copilot-integration-id";
/// Copilot's host, below which each kind of account has its own.
const COPILOT_HOST: &str = "githubcopilot.com";

impl Door {
    /// The door of a request with this path and these headers to an upstream's host.
    pub fn from_request(host: &str, path: &str, headers: &HeaderMap) -> Self {
        let is_chatgpt = headers.contains_key(CHATGPT_ACCOUNT)
            || path.split('/').any(|segment| segment == "backend-api");
        let is_copilot = headers.contains_key(COPILOT_CLIENT)
            || host
                .strip_suffix(COPILOT_HOST)
                .is_some_and(|below| below.is_empty() || below.ends_with('.'));
        match (is_chatgpt, is_copilot) {
            (true, _) => Self::Chatgpt,
            (false, true) => Self::Copilot,
            (false, false) => Self::Api,
        }
    }

    /// Whether a request with this path has to stay in a region, which costs more: Vertex AI's regional endpoints, and
    /// Bedrock's models of a region or of a part of the world ("Pricing", Anthropic's documentation).
    pub fn is_regional(path: &str, model: &str) -> bool {
        let places = path.split_once("/locations/").and_then(|(_, rest)| rest.split('/').next());
        let is_of_region =
            model.split_once("anthropic.claude").is_some_and(|(area, _)| area != "global.");
        places.is_some_and(|place| place != "global") || is_of_region
    }

    /// The door as it is shown; `None` for the usual one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Api => None,
            Self::Chatgpt => Some("ChatGPT login"),
            Self::Copilot => Some("GitHub Copilot"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_in_path_or_models_name() {
        let vertex =
            "/v1/projects/p/locations/europe-west1/publishers/anthropic/models/m:rawPredict";
        assert!(Door::is_regional(vertex, "m"));
        assert!(!Door::is_regional(&vertex.replace("europe-west1", "global"), "m"));
        assert!(Door::is_regional("/model/x/invoke", "us.anthropic.claude-opus-4-6-v1"));
        assert!(Door::is_regional("/model/x/invoke", "anthropic.claude-opus-4-6-v1"));
        assert!(!Door::is_regional("/model/x/invoke", "global.anthropic.claude-opus-4-6-v1"));
        assert!(!Door::is_regional("/v1/messages", "claude-opus-4-6"));
    }

    #[test]
    fn login_is_told_by_host_path_or_header() {
        let headers = |name: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static("acc"),
            )])
        };
        let of = |host, path, name| Door::from_request(host, path, &headers(name));
        let usual = "api.openai.com";
        assert_eq!(of(usual, "/backend-api/codex/responses", "x"), Door::Chatgpt);
        assert_eq!(of(usual, "/up/backend-api/codex/models", "x"), Door::Chatgpt);
        assert_eq!(of(usual, "/v1/responses", CHATGPT_ACCOUNT), Door::Chatgpt);
        assert_eq!(of(usual, "/v1/responses", "originator"), Door::Api);
        assert_eq!(of(usual, "/v1/my-backend-api", "x"), Door::Api);
        assert_eq!(of("api.individual.githubcopilot.com", "/responses", "x"), Door::Copilot);
        assert_eq!(of("githubcopilot.com", "/responses", "x"), Door::Copilot);
        assert_eq!(of("notgithubcopilot.com", "/responses", "x"), Door::Api);
        assert_eq!(of("gateway", "/chat/completions", COPILOT_CLIENT), Door::Copilot);
    }
}
