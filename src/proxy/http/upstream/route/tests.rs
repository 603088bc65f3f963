use super::*;
use crate::config::Secret;
use crate::proxy::tests::upstream;

fn known() -> Vec<Upstream> {
    vec![
        upstream("anthropic", "https://api.anthropic.com", &[Dialect::Anthropic]),
        upstream(
            "openai",
            "https://api.openai.com/v1",
            &[Dialect::OpenaiChat, Dialect::OpenaiResponses],
        ),
        upstream("gemini", "https://generativelanguage.googleapis.com", &[Dialect::Gemini]),
    ]
}

fn shared(upstreams: &[Upstream]) -> Vec<Arc<Upstream>> {
    upstreams.iter().cloned().map(Arc::new).collect()
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn check(upstreams: &[Upstream], path: &str, hints: &[(&'static str, &'static str)], want: &str) {
    let uri: Uri = path.parse().unwrap();
    let spoken = paths::endpoint(&http::Method::POST, path).map(|endpoint| endpoint.dialect);
    let upstreams = shared(upstreams);
    let route = route(&upstreams, &Method::POST, &uri, &headers(hints), spoken);
    let came = uri.path_and_query();
    let address = route
        .and_then(|route| address(&route, came, &CredentialRules::default()))
        .map(|uri| uri.to_string());
    assert_eq!(address.as_deref().unwrap_or("none"), want, "{path}");
}

#[test]
fn dialects_select_upstream() {
    let known = known();
    check(&known, "/v1/messages?beta=true", &[], "https://api.anthropic.com/v1/messages?beta=true");
    check(&known, "/v1/chat/completions", &[], "https://api.openai.com/v1/chat/completions");
    check(&known, "/chat/completions", &[], "https://api.openai.com/v1/chat/completions");
    check(
        &known,
        "/v1beta/models/m:generateContent",
        &[],
        "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent",
    );
}

#[test]
fn names_select_and_are_removed() {
    let known = known();
    check(&known, "/anthropic/x/y?z=%2F", &[], "https://api.anthropic.com/x/y?z=%2F");
    check(&known, "/openai/v1/models", &[], "https://api.openai.com/v1/models");
    check(&known, "/openai", &[], "https://api.openai.com/v1/");
    check(&known, "/openaix/v1/models", &[], "none");
}

#[test]
fn prefixes_precede_names() {
    let mut known = known();
    known[0].prefix = Some("/openai".into());
    known[2].prefix = Some("/openai/deep/".into());
    check(&known, "/openai/v1/m", &[], "https://api.anthropic.com/v1/m");
    check(&known, "/openai/deep/v1/m", &[], "https://generativelanguage.googleapis.com/v1/m");
    check(&known, "/openai/deeper", &[], "https://api.anthropic.com/deeper");
}

#[test]
fn hosts_precede_dialects() {
    let mut known = known();
    known[2].hosts = vec!["gemini.local".into()];
    let at = &[("host", "Gemini.local:8787")];
    check(&known, "/v1/messages", at, "https://generativelanguage.googleapis.com/v1/messages");
}

#[test]
fn headers_select_if_paths_do_not() {
    let known = known();
    check(
        &known,
        "/v1/models",
        &[("anthropic-version", "2023-06-01")],
        "https://api.anthropic.com/v1/models",
    );
    check(
        &known,
        "/v1/models",
        &[("authorization", "Bearer x")],
        "https://api.openai.com/v1/models",
    );
    check(
        &known,
        "/v1/models?key=x",
        &[],
        "https://generativelanguage.googleapis.com/v1/models?key=x",
    );
    check(&known, "/v1/models", &[], "none");
}

#[test]
fn azure_paths_and_keys_go_to_azure() {
    let mut known = known();
    known.push(upstream("az", "https://res.openai.azure.com", &[Dialect::OpenaiChat]));
    check(
        &known,
        "/openai/deployments/gpt/chat/completions?api-version=1",
        &[("api-key", "k")],
        "https://res.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=1",
    );
}

/// `/openai/…` may name an upstream, and paths of Azure, Groq and Bedrock begin with it, too.
#[test]
fn names_in_own_paths_stay() {
    const CHAT: &str = "/openai/v1/chat/completions";
    let bearer = &[("authorization", "Bearer k")];
    let chat = &[Dialect::OpenaiChat];
    // The default upstream: the name is removed.
    check(&known(), CHAT, bearer, "https://api.openai.com/v1/chat/completions");
    // An upstream of that name whose own paths begin with it: the name stays, whether or not the base URL has it.
    for (host, base) in [
        ("api.groq.com", ""),
        ("api.groq.com", "/openai/v1"),
        ("res.openai.azure.com", ""),
        ("res.openai.azure.com", "/openai/v1/"),
        ("bedrock-mantle.us-east-1.api.aws", "/openai"),
        ("bedrock-runtime.us-west-2.amazonaws.com", ""),
    ] {
        let want = format!("https://{host}{CHAT}");
        for name in ["openai", "other"] {
            let mut known = known();
            let base = format!("https://{host}{base}");
            match name {
                "openai" => known[1] = upstream(name, &base, chat),
                _ => known.push(upstream(name, &base, chat)),
            }
            // The base URL of the provider's documentation, after the upstream's name.
            check(&known, &format!("/{name}{CHAT}"), bearer, &want);
            if name == "openai" {
                check(&known, CHAT, bearer, &want);
            }
        }
    }
    for host in [
        "res.services.ai.azure.com",
        "api.deepseek.com",
        "api.moonshot.ai",
        "api.moonshot.cn",
        "api.minimax.io",
        "api.minimaxi.com",
    ] {
        let mut compatible = known();
        compatible[0] = upstream("anthropic", &format!("https://{host}"), &[Dialect::Anthropic]);
        let want = format!("https://{host}/anthropic/v1/messages");
        check(&compatible, "/anthropic/v1/messages", &[("x-api-key", "k")], &want);
    }
}

/// Requests that only Azure's clients write go to Azure or nowhere, whatever upstreams are called.
#[test]
fn azure_clients_stay_at_azure() {
    let key = &[("api-key", "k")];
    let entra = &[("authorization", "Bearer entra")];
    let deployment = "/openai/deployments/gpt/chat/completions?api-version=1";
    let preview = "/openai/responses?api-version=preview";
    let new = "/openai/v1/chat/completions";
    let azure = "https://res.openai.azure.com";
    let defaults = known();
    let mut known = known();
    for path in [deployment, preview] {
        check(&known, path, key, "none");
        check(&known, path, entra, "none");
    }
    check(&known, new, key, "none");
    check(&defaults[1..2], deployment, key, "none");
    known.push(upstream("deepseek", "https://api.deepseek.com", &[Dialect::OpenaiChat]));
    check(&known, deployment, key, "none");
    known.push(upstream("az", azure, &[Dialect::OpenaiChat]));
    for (path, hints) in [(deployment, key), (deployment, entra), (preview, entra), (new, key)] {
        check(&known, path, hints, &format!("{azure}{path}"));
        check(&known, &format!("/az{path}"), hints, &format!("{azure}{path}"));
    }
    // A gateway before Azure: under the name that its clients' paths begin with, or as the only upstream.
    known.truncate(3);
    known[1] = upstream("openai", "https://gateway.example/openai", &[Dialect::OpenaiChat]);
    check(&known, deployment, key, &format!("https://gateway.example{deployment}"));
    check(&known, new, key, "https://gateway.example/openai/v1/chat/completions");
    let alone = [upstream("corp", "https://gateway.example", &[Dialect::OpenaiChat])];
    check(&alone, deployment, key, &format!("https://gateway.example{deployment}"));
    // A host that is configured for an upstream is decisive.
    known[0].hosts = vec!["corp.local".into()];
    let at = &[("host", "corp.local"), ("api-key", "k")];
    check(&known, deployment, at, &format!("https://api.anthropic.com{deployment}"));
}

#[test]
fn sole_upstream_takes_known_paths() {
    let one = &known()[..1];
    check(one, "/api/hello", &[], "https://api.anthropic.com/api/hello");
    check(one, "/v1/models", &[], "https://api.anthropic.com/v1/models");
    check(one, "/", &[], "none");
    check(one, "/antropic/v1/messages", &[], "none");
}

#[test]
fn unknown_names_are_not_routed() {
    let mut known = known();
    known.push(upstream("deepseek", "https://api.deepseek.com", &[Dialect::OpenaiChat]));
    known.push(upstream("az", "https://res.openai.azure.com", &[Dialect::OpenaiChat]));
    for path in [
        "/deepseak/v1/chat/completions",
        "/deepseak/chat/completions",
        "/deepseak/v1/messages",
        "/deepseak/v1/responses",
        "/deepseak/v1beta/models/m:generateContent",
        "/deepseak/v1/models?key=x",
        "/v1/deepseak/chat/completions",
    ] {
        for hint in ["authorization", "x-api-key", "x-goog-api-key", "api-key"] {
            check(&known, path, &[(hint, "k")], "none");
        }
        assert!(
            path.starts_with("/v1") || nearest(&shared(&known), path) == Some("deepseek"),
            "{path}"
        );
    }
    let chat = "/v1/chat/completions";
    check(&known, &format!("/deepseek{chat}"), &[], "https://api.deepseek.com/v1/chat/completions");
    assert_eq!(nearest(&shared(&known), "/entirely-different/v1/messages"), None);
    known[3].prefix = Some("/team-a/".into());
    assert_eq!(nearest(&shared(&known), "/team-b/v1/messages"), Some("team-a"));
    known[3].hosts = vec!["deep.local".into()];
    let at = &[("host", "deep.local")];
    check(&known, "/any/x", at, "https://api.deepseek.com/any/x");
}

/// Clients whose base URL is to end with the version get a root address from a variable.
#[test]
fn missing_version_is_added() {
    let mut known = known();
    let anthropic = "https://api.anthropic.com/v1/messages";
    for path in
        ["/messages", "/messages?beta=true", "/messages/count_tokens", "/anthropic/messages"]
    {
        let end = path.split_once("messages").unwrap().1;
        check(&known, path, &[], &format!("{anthropic}{end}"));
    }
    check(
        &known,
        "/models/g:generateContent",
        &[],
        "https://generativelanguage.googleapis.com/v1beta/models/g:generateContent",
    );
    // Others have their versions elsewhere, or none.
    known.push(upstream("vertex", "https://a.example/v1/projects/p", &[]));
    check(
        &known,
        "/vertex/models/g:generateContent",
        &[],
        "https://a.example/v1/projects/p/models/g:generateContent",
    );
    known.push(upstream("copilot", "https://api.githubcopilot.com", &[]));
    for path in ["/chat/completions", "/responses", "/models"] {
        check(
            &known,
            &format!("/copilot{path}"),
            &[],
            &format!("https://api.githubcopilot.com{path}"),
        );
    }
    known.push(upstream("mail", "https://mail.example", &[]));
    check(&known, "/mail/messages/17", &[], "https://mail.example/messages/17");
    known[0] = upstream("anthropic", "https://gateway.example/team", &[Dialect::Anthropic]);
    check(&known, "/messages", &[], "https://gateway.example/team/v1/messages");
}

#[test]
fn base_paths_join_without_doubling() {
    let mut one = vec![upstream("r", "https://openrouter.ai/api/v1", &[])];
    check(&one, "/v1/chat/completions", &[], "https://openrouter.ai/api/v1/chat/completions");
    check(&one, "/chat/completions", &[], "https://openrouter.ai/api/v1/chat/completions");
    check(&one, "/r/v1", &[], "https://openrouter.ai/api/v1/");
    check(&one, "/r/v1beta/x", &[], "https://openrouter.ai/api/v1/v1beta/x");
    one[0].base = "http://127.0.0.1:1/team/".parse().unwrap();
    check(&one, "/r/v1/x", &[], "http://127.0.0.1:1/team/v1/x");
}

#[test]
fn own_credentials_drop_query_keys() {
    let mut one = vec![upstream("g", "https://g.example", &[])];
    check(&one, "/g/m?alt=sse&key=secret", &[], "https://g.example/m?alt=sse&key=secret");
    one[0].credential = Some((HeaderName::from_static("x-goog-api-key"), Secret("own".into())));
    check(&one, "/g/m?alt=sse&key=secret", &[], "https://g.example/m?alt=sse");
    check(&one, "/g/m?key=secret", &[], "https://g.example/m");
}

proptest::proptest! {
    /// Whatever the path is, a request goes to the host of an upstream, and the routed path is the end of the requested
    /// one.
    #[test]
    fn no_path_chooses_another_host(path in r"/(\PC|[/.@:?#%\\]|anthropic|openai|%2f|v1|\.\./){0,12}") {
        let Ok(uri) = path.parse::<Uri>() else { return Ok(()) };
        let known = shared(&known());
        for upstream in &known {
            let one = std::slice::from_ref(upstream);
            let spoken = paths::endpoint(&http::Method::POST, &path).map(|endpoint| endpoint.dialect);
            let Some(found) = route(one, &Method::POST, &uri, &HeaderMap::new(), spoken) else { continue };
            let came = uri.path_and_query().map_or("/", PathAndQuery::as_str);
            proptest::prop_assert!(came.ends_with(found.path) || found.path == "/");
            let known_credentials = CredentialRules::default();
            let came = uri.path_and_query();
            let Some(address) = address(&found, came, &known_credentials) else { continue };
            proptest::prop_assert_eq!(address.authority(), upstream.base.authority());
            proptest::prop_assert_eq!(address.scheme(), upstream.base.scheme());
        }
    }
}
