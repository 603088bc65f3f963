//! The paths for which a key other than the client's own may be used.
//!
//! Such a key gives access to more than its owner wanted to share: files, batches, stored responses, the
//! organisation. So only a fixed list is allowed: paths that call a model and store nothing, and those that
//! list models.

use http::Method;

use super::endpoints::{endpoint, segments, verb};
use super::known::{are_roots, before_end};
use crate::dialect::percent::decoded;

/// Ends of `POST` paths without a conversation that call a model and store nothing.
const POSTED: &[&[&str]] = &[&["completions"], &["embeddings"], &["moderations"], &["rerank"]];

/// Methods of Google's models besides conversations.
const VERBS: &[&str] = &["embedContent", "batchEmbedContents", "computeTokens"];

/// How often a path is decoded; one that is escaped more often hides something.
const ESCAPES: usize = 3;

/// Whether a request only calls a model, counts tokens, or lists models. `upgrades`: it asks for an upgrade.
pub fn is_inference(method: &Method, target: &str, upgrades: bool) -> bool {
    let segments = segments(target);
    if has_dot_segment(target) || has_parameters(target) {
        return false;
    }
    if *method == Method::GET || *method == Method::HEAD {
        let lists = match segments[..] {
            [ref roots @ .., "models"] | [ref roots @ .., "models", _] => are_roots(roots),
            _ => false,
        };
        return lists || *method == Method::GET && upgrades && holds(method, target, &segments);
    }
    let is_post = *method == Method::POST;
    is_post && (holds(method, target, &segments) || asks(&segments))
}

fn holds(method: &Method, target: &str, segments: &[&str]) -> bool {
    let calls = endpoint(method, target).is_some_and(|endpoint| endpoint.stored.is_none());
    calls && are_roots(before_end(segments))
}

fn asks(segments: &[&str]) -> bool {
    let posted = POSTED.iter().any(|end| segments.ends_with(end));
    let of_google = segments.last().and_then(|last| verb(last));
    let embeds = of_google.is_some_and(|(_, method)| VERBS.contains(&&*method));
    (posted || embeds) && are_roots(before_end(segments))
}

fn has_parameters(target: &str) -> bool {
    // What follows a semicolon in a segment is a parameter for some servers, such as a key or an address.
    target.split('?').next().is_some_and(|path| path.contains(';'))
}

fn has_dot_segment(target: &str) -> bool {
    // Escaped once or more, with `\` for `/`, or with parameters after it. A server that resolves
    // it would reach another path than the one judged here.
    let mut path = target.split_once('?').map_or(target, |(path, _)| path).to_owned();
    for _ in 0..=ESCAPES {
        for segment in path.split(['/', '\\']) {
            let name = segment.split([';', '#', '?', '\0']).next().unwrap_or_default();
            if matches!(name.trim(), "." | "..") {
                return true;
            }
        }
        let twice = decoded(&path).into_owned();
        if twice == path {
            return false;
        }
        path = twice;
    }
    // Nobody escapes a path so often for an honest reason.
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_to_model_are_inference() {
        let azure = "/openai/deployments/my%20gpt/chat/completions?api-version=1";
        let vertex = "/v1/projects/p/locations/global/publishers";
        let claude = format!("{vertex}/anthropic/models/claude-opus-5%4020261001:streamRawPredict");
        let openapi = "/v1/projects/p/locations/l/endpoints/openapi/chat/completions";
        let arn = "/model/arn%3Aaws%3Abedrock%3Aus%3A1%3Ainference-profile%2Fus.anthropic.x/invoke";
        for target in [
            "/v1/messages?beta=true",
            "//v1//messages",
            "/messages",
            "/v1/messages/count_tokens",
            "/v1/chat/completions",
            "/api/v1/chat/completions",
            "/v1/responses",
            "/v1/responses/compact",
            "/v1/responses/input_tokens",
            "/backend-api/codex/responses",
            "/v1beta/models/g:generateContent",
            "/v1beta/models/g:countTokens",
            "/v1beta/models/g:embedContent",
            "/v1/embeddings",
            "/v1/completions",
            "/v1/moderations",
            "/openai/deployments/e/embeddings",
            azure,
            &claude,
            openapi,
            arn,
        ] {
            assert!(is_inference(&Method::POST, target, false), "{target}");
            assert!(!is_inference(&Method::DELETE, target, false), "{target}");
        }
        for target in ["/v1/models", "/v1/models/gpt-5", "/v1beta/models?pageSize=9"] {
            assert!(is_inference(&Method::GET, target, false), "{target}");
            assert!(!is_inference(&Method::DELETE, target, false), "{target}");
        }
        assert!(is_inference(&Method::GET, "/v1/responses", true));
    }

    #[test]
    fn other_requests_are_no_inference() {
        for target in [
            "/",
            "/v1/files",
            "/v1/files/f/content",
            "/v1/messages/batches",
            "/v1/batches",
            "/v1/organizations/api_keys",
            "/v1/organization/messages",
            "/v1/fine_tuning/jobs/responses",
            "/v1/threads/t/messages",
            "/v1/responses/resp_1",
            "/v1/uploads/chat/completions",
            "/v1%2Ffiles/messages",
            "/v1beta/cachedContents",
            "/v1beta/files/f:generateContent",
            "/v1beta/models/g;api_base=x:generateContent",
            "/openai/deployments/e;key=x/embeddings",
        ] {
            for method in [Method::POST, Method::GET, Method::DELETE] {
                assert!(!is_inference(&method, target, false), "{method} {target}");
            }
        }
        assert!(!is_inference(&Method::GET, "/v1/responses", false), "no list of what was stored");
        assert!(!is_inference(&Method::GET, "/v1/files/models", false));
    }

    #[test]
    fn dots_are_found_in_any_spelling() {
        for dots in [
            "..",
            ".",
            "%2e%2e",
            ".%2E",
            "%2E.",
            "%252e%252e",
            "%25252e.",
            "..;",
            "..;a=b",
            "..%3b",
            "..%5cx",
            "x%2f..",
            "x%5C..",
            "%2e",
            "..\\x",
            "..%00",
            "..%23",
            ".. ",
            "..%20",
        ] {
            let target = format!("/v1/{dots}/messages");
            assert!(has_dot_segment(&target), "{target}");
            assert!(!is_inference(&Method::POST, &target, false), "{target}");
        }
        assert!(has_dot_segment("/v1/messages/.."));
        assert!(has_dot_segment("/v1/%2525252525252e/messages"), "what goes on hides something");
        for target in ["/v1/messages", "/v1/a.b/messages", "/v1/.../x", "/v1/x?y=/../", "/%zz", ""]
        {
            assert!(!has_dot_segment(target), "{target}");
        }
    }

    proptest! {
        /// A path with dot segments is not inference, however the dots are escaped.
        #[test]
        fn no_path_with_dots_is_inference(before in "[a-z/]{0,8}", dots in "(\\.|%2e|%2E|%252e){1,2}", sep in "(/|\\\\|%2f|%5C)", after in "[a-z/]{0,8}") {
            for end in ["messages", "models", "chat/completions"] {
                let target = format!("/{before}{sep}{dots}{sep}{after}/{end}");
                prop_assert!(!is_inference(&Method::POST, &target, false));
                prop_assert!(!is_inference(&Method::GET, &target, true));
            }
        }
    }
}
