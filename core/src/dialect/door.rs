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
}

/// Only requests with a login to ChatGPT have it.
const ACCOUNT: &str = "chatgpt-account-id";

impl Door {
    /// The door of a request with this path and these headers.
    pub fn from_request(path: &str, headers: &HeaderMap) -> Self {
        let is_chatgpt = headers.contains_key(ACCOUNT)
            || path.split('/').any(|segment| segment == "backend-api");
        if is_chatgpt { Self::Chatgpt } else { Self::Api }
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
    fn login_with_chatgpt_is_told_by_its_path_or_its_account() {
        let with = |name: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static("acc"),
            )])
        };
        assert_eq!(
            Door::from_request("/backend-api/codex/responses", &HeaderMap::new()),
            Door::Chatgpt
        );
        assert_eq!(
            Door::from_request("/up/backend-api/codex/models", &HeaderMap::new()),
            Door::Chatgpt
        );
        assert_eq!(Door::from_request("/v1/responses", &with(ACCOUNT)), Door::Chatgpt);
        assert_eq!(Door::from_request("/v1/responses", &with("originator")), Door::Api);
        assert_eq!(Door::from_request("/v1/my-backend-api", &HeaderMap::new()), Door::Api);
    }
}
