use proptest::prelude::*;

use super::*;

const KEY: [u8; 32] = [7; 32];

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())
    };
    pairs.iter().map(pair).collect()
}

fn of(pairs: &[(&str, &str)], target: &str) -> Tenant {
    CredentialRules::default().tenant(&KEY, &headers(pairs), target)
}

#[test]
fn credential_tables_are_sorted() {
    assert!(HEADERS.is_sorted());
    assert!(PARAMETERS.is_sorted());
    assert!(PLACEHOLDERS.is_sorted());
}

#[test]
fn placeholder_is_no_credential() {
    for placeholder in [
        "EMPTY",
        "ollama",
        "Dummy",
        "sk-no-key-required",
        "test",
        "sk_test",
        "lm-studio",
        "not a real key",
        "<your-api-key-here>",
        "xxxx",
        "sk-xxxxxxxxxxxxxxxx",
        "-",
        "sk-",
    ] {
        let bearer = format!("Bearer {placeholder}");
        assert_eq!(of(&[("authorization", &bearer)], "/"), Tenant::Everyone, "{placeholder}");
        let both = [("authorization", &*bearer), ("x-api-key", "sk-1")];
        assert_eq!(of(&both, "/"), of(&[("x-api-key", "sk-1")], "/"), "{placeholder}");
    }
    assert!(matches!(of(&[("x-api-key", "dummy-1")], "/"), Tenant::Known(_)));
}

#[test]
fn tenant_is_credential_alone() {
    let secret = of(&[("x-api-key", "sk-1")], "/");
    assert!(matches!(&secret, Tenant::Known(hash) if hash.as_str().len() == 16));
    assert_eq!(of(&[("authorization", "Bearer sk-1")], "/"), secret);
    assert_eq!(of(&[("authorization", "bearer  sk-1"), ("x-api-key", "sk-1")], "/"), secret);
    assert_eq!(of(&[("x-goog-api-key", "sk-1")], "/v1"), secret);
    assert_eq!(of(&[], "/v1?alt=sse&key=sk-1"), secret);
    assert_eq!(of(&[], "/v1?key=sk%2D1"), secret);
    assert_eq!(of(&[("x-api-key", "sk-1"), ("x-corp-team", "red")], "/"), secret);
    assert_eq!(of(&[("x-api-key", "sk-1"), ("cookie", "sid=1")], "/"), secret);
    assert_ne!(of(&[("x-api-key", "sk-2")], "/"), secret);
    assert_ne!(of(&[("x-api-key", "sk-1"), ("authorization", "Bearer sk-2")], "/"), secret);
    let elsewhere =
        CredentialRules::default().tenant(&[8; 32], &headers(&[("x-api-key", "sk-1")]), "/");
    assert_ne!(elsewhere, secret);
}

#[test]
fn every_known_place_of_credential_tells_tenants_apart() {
    for name in HEADERS {
        let (one, other) = (of(&[(name, "one")], "/"), of(&[(name, "other")], "/"));
        assert!(matches!((&one, &other), (Tenant::Known(a), Tenant::Known(b)) if a != b), "{name}");
    }
    let signs = |name: &&&str| name.starts_with("x-amz-") || name.starts_with("x-goog-");
    for name in PARAMETERS.iter().filter(|name| !signs(name)) {
        let of = |value: &str| of(&[], &format!("/v1/messages?{name}={value}"));
        assert!(matches!((of("a"), of("b")), (Tenant::Known(a), Tenant::Known(b)) if a != b));
    }
    let path = |key: &str| of(&[], &format!("/{key}/v1/messages"));
    assert_ne!(path("sk-0123456789abcdef"), path("sk-0123456789abcdeg"));
    let more = CredentialRules::new(&[HeaderName::from_static("x-corp-user")], None);
    let of = |user: &str| more.tenant(&KEY, &headers(&[("x-corp-user", user)]), "/");
    assert_ne!(of("anna"), of("bert"));
}

#[test]
fn possible_credential_of_unknown_kind_is_unknown_tenant() {
    for (pairs, target, tenant) in [
        (&[][..], "/", Tenant::Everyone),
        (&[("user-agent", "x"), ("content-type", "y")], "/v1/messages?beta=true", Tenant::Everyone),
        (&[("authorization", "Bearer")], "/?key=", Tenant::Everyone),
        (&[("x-corp-key", "anna")], "/", Tenant::Unknown),
        (&[("x-forwarded-for", "192.0.2.1")], "/", Tenant::Unknown),
        (&[], "/v1/messages?user=anna", Tenant::Unknown),
        (&[("cookie", "__cf_bm=1; _cfuvid=2; AWSALBCORS=3")], "/", Tenant::Everyone),
        (&[("cookie", "__cf_bm=1"), ("x-corp-key", "anna")], "/", Tenant::Unknown),
    ] {
        assert_eq!(of(pairs, target), tenant, "{pairs:?} {target}");
    }
}

/// Values that differ only before the first blank are distinguished, too.
#[test]
fn every_word_of_credential_header_tells_tenants_apart() {
    let config =
        |key: &str| of(&[("x-portkey-config", &format!(r#"{{"api_key":"{key}", "a": 1}}"#))], "/");
    assert_ne!(config("one"), config("other"));
}

#[test]
fn cookies_identify_tenant_except_for_rotating_ones() {
    let one = of(&[("cookie", "sid=anna; __cf_bm=1")], "/");
    assert!(matches!(one, Tenant::Known(_)));
    assert_eq!(of(&[("cookie", "__cf_bm=2;sid=anna")], "/"), one);
    assert_eq!(of(&[("cookie", "__cf_bm=2"), ("cookie", "sid=anna")], "/"), one);
    assert_ne!(of(&[("cookie", "sid=bert; __cf_bm=1")], "/"), one);
}

#[test]
fn key_id_alone_is_no_tenant() {
    let signed = |id: &str, signature: &str, more: &[(&str, &str)]| {
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={id}/20261121/us-east-1/bedrock/aws4_request, Signature={signature}"
        );
        of(&[&[("authorization", &*value)], more].concat(), "/")
    };
    assert_eq!(signed("AKIA1", "aa", &[]), Tenant::Unknown);
    assert_eq!(signed("AKIA1", "aa", &[("cookie", "sid=1")]), Tenant::Unknown);
    let token = ("x-amz-security-token", "session-1");
    let session = signed("AKIA1", "aa", &[token]);
    assert_eq!(session, signed("AKIA1", "bb", &[token]));
    assert_ne!(session, signed("AKIA2", "aa", &[token]));
    assert_ne!(session, signed("AKIA1", "aa", &[("x-amz-security-token", "session-2")]));
    for query in ["X-Amz-Credential=AKIA1%2F2026&X-Amz-Signature=aa", "x-amz-signature=aa"] {
        assert_eq!(of(&[], &format!("/model/m/invoke?{query}")), Tenant::Unknown);
        let with = format!("/model/m/invoke?{query}&X-Amz-Security-Token=s");
        assert!(matches!(of(&[], &with), Tenant::Known(_)));
    }
}

#[test]
fn client_token_is_found_and_removed_and_identifies_no_tenant() {
    let token = "a-token-of-some-length";
    let list = CredentialRules::new(&[HeaderName::from_static("x-corp-user")], Some(token));
    let bearer = format!("Bearer {token}");
    for (pairs, target) in [
        (&[("x-plimsoll-token", token)][..], "/"),
        (&[("authorization", &*bearer)], "/"),
        (&[("x-api-key", token)], "/"),
        (&[("x-corp-user", token)], "/"),
        (&[], "/v1/models?alt=sse&key=a-token-of-some-length"),
        (&[], "/v1/models?API_KEY=a-token-of-some%2Dlength"),
    ] {
        assert!(list.has_token(&headers(pairs), target), "{pairs:?} {target}");
        assert_eq!(list.tenant(&KEY, &headers(pairs), target), Tenant::Everyone);
        assert!(!list.without(target, false).contains("some"), "{target}");
    }
    for (pairs, target) in [
        (&[][..], "/"),
        (&[("x-plimsoll-token", "")], "/"),
        (&[("x-plimsoll-token", "a-token-of-some-lengt")], "/"),
        (&[("x-corp-key", token)], "/"),
        (&[("cookie", token)], "/"),
        (&[("authorization", "Bearer")], "/?key"),
        (&[], "/v1/messages?name=a-token-of-some-length"),
    ] {
        assert!(!list.has_token(&headers(pairs), target), "{pairs:?} {target}");
    }
    let own = of(&[("x-api-key", "sk-1")], "/");
    let both = headers(&[("x-api-key", "sk-1"), ("x-plimsoll-token", token)]);
    assert_eq!(list.tenant(&KEY, &both, "/"), own);
    assert!(!CredentialRules::default().has_token(&headers(&[("x-plimsoll-token", "")]), "/?key="));
}

#[test]
fn credentials_in_path_are_hidden() {
    for (path, shown) in [
        ("/v1/messages", "/v1/messages"),
        ("/v1/models;key=AIza/1", "/v1/REDACTED/1"),
        ("/v1/models;jsessionid=1/x", "/v1/REDACTED/x"),
        ("/v1/models%3bkey=1", "/v1/REDACTED"),
        ("/key=1", "/REDACTED"),
        ("/Bearer%20abc/v1/messages", "/REDACTED/v1/messages"),
        ("/user:secret@host/v1", "/REDACTED/v1"),
        ("/sk-0123456789abcdef/v1/messages", "/REDACTED/v1/messages"),
        ("/SK-0123456789abcdef/v1/messages", "/REDACTED/v1/messages"),
        ("/s%6b-0123456789abcdef/v1/messages", "/REDACTED/v1/messages"),
        ("/v1/models/sk-small", "/v1/models/sk-small"),
        (
            "/v1/models/claude-opus@20250101:rawPredict",
            "/v1/models/claude-opus@20250101:rawPredict",
        ),
    ] {
        assert_eq!(redact(path), shown);
    }
}

#[test]
fn only_harmless_parameters_join_own_credential() {
    let list = CredentialRules::default();
    for (target, rest) in [
        ("/v1/models?key=c", "/v1/models"),
        ("/v1/models?alt=sse&key=c&PageSize=%2F", "/v1/models?alt=sse&PageSize=%2F"),
        ("/v1/models?access_token=c&%61pi_key=d&beta", "/v1/models?beta"),
        ("/v1/messages?beta=true&api_base=https://evil", "/v1/messages?beta=true"),
        ("/v1/messages?beta=true;api_base=https://evil", "/v1/messages"),
        ("/v1/messages?keys=c&&%2561lt=d", "/v1/messages"),
        ("/v1beta/models?pageSize=9&pageToken=c", "/v1beta/models?pageSize=9&pageToken=c"),
        ("/v1/responses?api-version=preview", "/v1/responses?api-version=preview"),
    ] {
        assert_eq!(list.without(target, true), rest);
        assert_eq!(list.without(target, false), target, "the client's own stays");
    }
}

proptest! {
    #[test]
    fn credential_rules_never_panic(target in ".{0,60}", value in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = redact(&target);
        let list = CredentialRules::new(&[], Some("t"));
        let _ = list.without(&target, true);
        if let Ok(value) = http::HeaderValue::from_bytes(&value) {
            let names = ["authorization", "cookie", "x-plimsoll-token", "x-corp-key"];
            let map: HeaderMap =
                names.into_iter().map(|name| (HeaderName::from_static(name), value.clone())).collect();
            let _ = (list.tenant(&KEY, &map, &target), list.has_token(&map, &target));
        }
    }
}
