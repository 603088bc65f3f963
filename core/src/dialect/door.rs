//! The door through which a model is reached: what kind of account pays for it.
//!
//! The same model behind the same upstream has another window with a login than with an API key (`docs/protocols.md` 9).

use http::{HeaderMap, HeaderName};
use memchr::memmem;
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
const CHATGPT_ACCOUNT: HeaderName = HeaderName::from_static("chatgpt-account-id");
/// Only requests to GitHub Copilot have it; some of its clients leave it out.
const COPILOT_CLIENT: HeaderName = HeaderName::from_static("copilot-integration-id");
/// Copilot's host, below which each kind of account has its own.
const COPILOT_HOST: &str = "githubcopilot.com";
/// What comes before the place in a path of Vertex AI.
const LOCATIONS: &str = "/locations/";

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
        let place = memmem::find(path.as_bytes(), LOCATIONS.as_bytes())
            .and_then(|at| path[at + LOCATIONS.len()..].split('/').next());
        let area = memmem::find(model.as_bytes(), b"anthropic.claude").map(|at| &model[..at]);
        place.is_some_and(|place| place != "global") || area.is_some_and(|area| area != "global.")
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
        let of = |host, path, name: &HeaderName| {
            let value = http::HeaderValue::from_static("acc");
            Door::from_request(host, path, &HeaderMap::from_iter([(name.clone(), value)]))
        };
        let [other, originator] = ["x", "originator"].map(HeaderName::from_static);
        let usual = "api.openai.com";
        assert_eq!(of(usual, "/backend-api/codex/responses", &other), Door::Chatgpt);
        assert_eq!(of(usual, "/up/backend-api/codex/models", &other), Door::Chatgpt);
        assert_eq!(of(usual, "/v1/responses", &CHATGPT_ACCOUNT), Door::Chatgpt);
        assert_eq!(of(usual, "/v1/responses", &originator), Door::Api);
        assert_eq!(of(usual, "/v1/my-backend-api", &other), Door::Api);
        assert_eq!(of("api.individual.githubcopilot.com", "/responses", &other), Door::Copilot);
        assert_eq!(of("githubcopilot.com", "/responses", &other), Door::Copilot);
        assert_eq!(of("notgithubcopilot.com", "/responses", &other), Door::Api);
        assert_eq!(of("gateway", "/chat/completions", &COPILOT_CLIENT), Door::Copilot);
    }
}
