//! What carries a credential in a request: one list for whose a request is, for what is taken out before an
//! upstream with a key of its own, and for what is never logged.
//!
//! What the list does not know may be a credential all the same. Such a request belongs to nobody, so that
//! nothing learned of it reaches another. Credentials leave here only as keyed hashes.

mod harmless;

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName};

use super::ids::TenantId;
use super::percent::decoded;
use harmless::{is_harmless_header, is_harmless_parameter};

/// Whose memory a request may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// Of whoever holds its credentials: a keyed hash of them, 16 hex digits.
    Known(TenantId),
    /// It has no credential, and nothing that could be one.
    Everyone,
    /// It has something that may be a credential, and cannot be told from another's.
    Unknown,
}

/// The client token: its header, always taken out. SDKs that cannot send it put it where their key goes.
const TOKEN: HeaderName = HeaderName::from_static("x-plimsoll-token");

/// Headers that carry a credential, of providers, gateways and web servers. In alphabetical order.
const HEADERS: &[&str] = &[
    "api-key",
    "api-token",
    "apikey",
    "auth-token",
    "authorization",
    "cf-access-client-secret",
    "cf-access-jwt-assertion",
    "cf-access-token",
    "cf-aig-authorization",
    "dapr-api-token",
    "gateway-authorization",
    "helicone-auth",
    "helicone-openai-api-key",
    "ocp-apim-subscription-key",
    "private-token",
    "proxy-authorization",
    "subscription-key",
    "x-access-token",
    "x-amz-security-token",
    "x-amzn-oidc-data",
    "x-api-key",
    "x-api-token",
    "x-apikey",
    "x-auth-key",
    "x-auth-token",
    "x-authorization",
    "x-bf-api-key",
    "x-bf-vk",
    "x-braintrust-api-key",
    "x-consumer-key",
    "x-forwarded-access-token",
    "x-functions-key",
    "x-goog-api-key",
    "x-goog-authenticated-user-id",
    "x-goog-iam-authorization-token",
    "x-goog-iap-jwt-assertion",
    "x-id-token",
    "x-jwt-assertion",
    "x-key",
    "x-litellm-api-key",
    "x-litellm-key",
    "x-llm-key",
    "x-model-authorization",
    "x-openai-api-key",
    "x-portkey-api-key",
    "x-portkey-config",
    "x-portkey-forward-headers",
    "x-portkey-virtual-key",
    "x-rapidapi-key",
    "x-serverless-authorization",
    "x-session-token",
    "x-subscription-key",
    "x-token",
    "x-user-token",
    "x-vault-token",
    "x-watson-authorization-token",
];

/// Parameters of a query that carry a credential. In alphabetical order.
const PARAMETERS: &[&str] = &[
    "access_token",
    "api-key",
    "api_key",
    "api_token",
    "apikey",
    "auth",
    "auth_token",
    "authorization",
    "code",
    "id_token",
    "jwt",
    "key",
    "ocp-apim-subscription-key",
    "secret",
    "sig",
    "signature",
    "subscription-key",
    "subscription_key",
    "token",
    "x-amz-credential",
    "x-amz-security-token",
    "x-amz-signature",
    "x-api-key",
    "x-goog-credential",
    "x-goog-signature",
];

/// Cookies that a content delivery network sets by itself, by how they begin. They rotate, and say nothing
/// of who is asking.
const ROTATING_COOKIES: &[&str] = &[
    "__cf",
    "_cfuvid",
    "cf_clearance",
    "cf_chl_",
    "cf_ob_info",
    "awsalb",
    "ak_bmsc",
    "bm_",
    "_abck",
    "incap_ses_",
    "visid_incap_",
    "nlbi_",
    "arraffinity",
    "gclb",
    "_ga",
];

/// How keys begin that some gateways take as a segment of the path.
const KEYS_BEGIN: &[&str] =
    &["sk-", "sk_", "pk-", "gsk_", "xai-", "hf_", "ghp_", "gho_", "github_pat_", "AIza", "eyJ"];
/// A shorter segment is a name.
const SHORTEST_KEY: usize = 16;

/// The list.
#[derive(Clone, Default)]
pub struct CredentialRules {
    /// Headers that the configuration adds.
    more: Vec<HeaderName>,
    /// Hash of the client token, where there is one.
    token: Option<blake3::Hash>,
}

impl CredentialRules {
    /// The built-in list with more headers; `token` is what clients show to us and to nobody else.
    pub fn new(more: &[HeaderName], token: Option<&str>) -> Self {
        Self { more: more.to_vec(), token: token.map(|token| blake3::hash(token.as_bytes())) }
    }

    /// Whether a header carries a credential. A cookie may, where nothing else does.
    pub fn is_header(&self, name: &HeaderName) -> bool {
        HEADERS.binary_search(&name.as_str()).is_ok() || self.more.contains(name)
    }

    /// Whether a client token is wanted.
    pub fn wants_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a request carries the client token: in its own header, or as any credential.
    pub fn has_token(&self, headers: &HeaderMap, target: &str) -> bool {
        let mut sent = headers.iter();
        sent.any(|(name, value)| self.is_token(name, value.as_bytes()))
            || pairs(target).any(|pair| self.is_token_pair(pair))
    }

    /// Whether a header shows the client token.
    pub fn is_token(&self, name: &HeaderName, value: &[u8]) -> bool {
        (*name == TOKEN || self.token.is_some() && self.is_header(name))
            && self.equals_token(bare_secret(value))
    }

    fn is_token_pair(&self, pair: &str) -> bool {
        let value = pair.split_once('=').map_or("", |(_, value)| value);
        self.token.is_some() && is_parameter(pair) && self.equals_token(decoded(value).as_bytes())
    }

    /// Compares in a time that says nothing about where they differ: hashes are compared whole.
    fn equals_token(&self, given: &[u8]) -> bool {
        self.token.is_some_and(|token| token == blake3::hash(given))
    }

    /// Whose a request is. All credentials of a request count together, so that a valid one beside a
    /// stranger's never opens the stranger's scope. The scheme does not count: SDKs send the same key as
    /// `x-api-key` and as bearer. The client token does not count, because all share it. `key` is 32 random
    /// bytes that the store keeps, so that hashes tell nothing elsewhere.
    pub fn tenant(&self, key: &[u8; 32], headers: &HeaderMap, target: &str) -> Tenant {
        self.found(headers, target).tenant(key)
    }

    /// Whether a text gives away a credential of a request, or a part of one.
    pub fn are_told_by(&self, text: &str, headers: &HeaderMap, target: &str) -> bool {
        let RequestCredentials { secrets, cookies, .. } = self.found(headers, target);
        let mut all = secrets.iter().map(AsRef::as_ref).chain(cookies);
        self.equals_token(text.as_bytes()) || all.any(|secret| gives_away(text, secret))
    }

    fn found<'r>(&self, headers: &'r HeaderMap, target: &'r str) -> RequestCredentials<'r> {
        let mut found = RequestCredentials::default();
        for (name, value) in headers {
            self.look_at_header(name, value.as_bytes(), &mut found);
        }
        for pair in pairs(target) {
            self.look_at_parameter(pair, &mut found);
        }
        let segments = path_of(target).split('/').filter(|segment| is_key(segment));
        found.secrets.extend(segments.map(|segment| Cow::Borrowed(segment.as_bytes())));
        found
    }

    fn look_at_header<'h>(
        &self,
        name: &HeaderName,
        value: &'h [u8],
        found: &mut RequestCredentials<'h>,
    ) {
        if *name == COOKIE {
            let cookies = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            found.cookies.extend(cookies.filter(|cookie| !is_rotating(cookie)));
        } else if !self.is_header(name) {
            found.is_unknown |= !is_harmless_header(name.as_str());
        } else if !self.is_token(name, value) {
            match amazon_id(value).filter(|_| *name == AUTHORIZATION) {
                Some(id) => found.amazon = Some(Cow::Borrowed(id)),
                None => found.secrets.push(Cow::Borrowed(bare_secret(value))),
            }
        }
    }

    fn look_at_parameter<'t>(&self, pair: &'t str, found: &mut RequestCredentials<'t>) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(name).to_ascii_lowercase();
        if !is_credential(&name) {
            found.is_unknown |= !is_harmless_parameter(&name);
            return;
        }
        let secret = || match decoded(value) {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        };
        match &*name {
            // A signature is another with every request, and what it was made with is no secret.
            "x-amz-credential" | "x-goog-credential" => found.amazon = Some(secret()),
            "x-amz-signature" | "x-goog-signature" => {
                found.amazon.get_or_insert(Cow::Borrowed(b""));
            }
            _ if self.is_token_pair(pair) => {}
            _ => found.secrets.push(secret()),
        }
    }

    /// A path and query without the client token; `all`: without any credential in its query.
    pub fn without<'t>(&self, target: &'t str, all: bool) -> Cow<'t, str> {
        let Some((path, query)) = target.split_once('?') else { return Cow::Borrowed(target) };
        let goes = |pair: &&str| all && is_parameter(pair) || self.is_token_pair(pair);
        if !query.split('&').any(|pair| goes(&pair)) {
            return Cow::Borrowed(target);
        }
        let kept: Vec<&str> = query.split('&').filter(|pair| !goes(pair)).collect();
        if kept.is_empty() { path.into() } else { format!("{path}?{}", kept.join("&")).into() }
    }
}

/// A path, with or without query, as it may be logged: credentials in it are replaced.
pub fn redact(target: &str) -> Cow<'_, str> {
    let has_key = path_of(target).split('/').any(is_key);
    if !has_key && !pairs(target).any(is_parameter) {
        return Cow::Borrowed(target);
    }
    let segments = path_of(target).split('/');
    let segments: Vec<&str> = segments.map(|it| if is_key(it) { HIDDEN } else { it }).collect();
    let path = segments.join("/");
    let hidden: Vec<Cow<'_, str>> = pairs(target).map(hidden_pair).collect();
    Cow::Owned(if hidden.is_empty() { path } else { format!("{path}?{}", hidden.join("&")) })
}

const HIDDEN: &str = "REDACTED";

/// A piece of a secret that is shorter than this may be there by chance, bytes.
const SHORTEST_PIECE: usize = 8;

/// Whether a text holds a secret, or is a piece of it.
pub fn gives_away(text: &str, secret: &[u8]) -> bool {
    let holds = |all: &[u8], piece: &[u8]| all.windows(piece.len()).any(|it| it == piece);
    let text = text.as_bytes();
    let is_piece = text.len() >= SHORTEST_PIECE && holds(secret, text);
    is_piece || !secret.is_empty() && holds(text, secret)
}

/// What was found in a request.
#[derive(Default)]
struct RequestCredentials<'r> {
    secrets: Vec<Cow<'r, [u8]>>,
    cookies: Vec<&'r [u8]>,
    /// The access key's id of a signed request; empty where it names none.
    amazon: Option<Cow<'r, [u8]>>,
    /// Something that may be a credential.
    is_unknown: bool,
}

impl RequestCredentials<'_> {
    fn tenant(mut self, key: &[u8; 32]) -> Tenant {
        self.secrets.retain(|secret| !secret.is_empty());
        if let Some(id) = self.amazon {
            // Access key ids are written in policies and logs: one alone says nothing of who is asking.
            if self.secrets.is_empty() {
                return Tenant::Unknown;
            }
            self.secrets.push(id);
        } else if self.secrets.is_empty() {
            self.secrets = self.cookies.into_iter().map(Cow::Borrowed).collect();
        }
        self.secrets.sort_unstable();
        self.secrets.dedup();
        match (self.secrets.is_empty(), self.is_unknown) {
            (false, _) => Tenant::Known(hash(key, &self.secrets)),
            (true, true) => Tenant::Unknown,
            (true, false) => Tenant::Everyone,
        }
    }
}

fn hash(key: &[u8; 32], secrets: &[Cow<'_, [u8]>]) -> TenantId {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for secret in secrets {
        hasher.update(&(secret.len() as u64).to_le_bytes());
        hasher.update(secret);
    }
    hasher.finalize().to_hex()[..16].into()
}

/// The secret without its scheme. Of what else has several words, each one counts.
fn bare_secret(value: &[u8]) -> &[u8] {
    let value = value.trim_ascii();
    let space = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at(space);
    let is_scheme = SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known.as_bytes()));
    if is_scheme { rest.trim_ascii() } else { value }
}

/// What may stand before a key in `authorization` and its like.
const SCHEMES: &[&str] = &["bearer", "basic", "token", "apikey"];

/// The access key's id in an `authorization` of Amazon's.
fn amazon_id(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    if !value.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"AWS4-")) {
        return None;
    }
    let space = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let id = value[space..].trim_ascii();
    let id = id.strip_prefix(b"Credential=").unwrap_or(id);
    id.split(|byte| matches!(byte, b'/' | b',')).next()
}

fn is_rotating(cookie: &[u8]) -> bool {
    let begins = |with: &&str| {
        cookie.get(..with.len()).is_some_and(|it| it.eq_ignore_ascii_case(with.as_bytes()))
    };
    cookie.is_empty() || ROTATING_COOKIES.iter().any(begins)
}

fn is_key(segment: &str) -> bool {
    segment.len() >= SHORTEST_KEY && KEYS_BEGIN.iter().any(|with| segment.starts_with(with))
}

fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn pairs(target: &str) -> impl Iterator<Item = &str> {
    let query = target.split_once('?').map(|(_, query)| query);
    query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty())
}

fn is_parameter(pair: &str) -> bool {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    is_credential(&decoded(name).to_ascii_lowercase())
}

fn is_credential(name: &str) -> bool {
    PARAMETERS.binary_search(&name).is_ok()
}

fn hidden_pair(pair: &str) -> Cow<'_, str> {
    if !is_parameter(pair) {
        return Cow::Borrowed(pair);
    }
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    Cow::Owned(format!("{name}={HIDDEN}"))
}

#[cfg(test)]
mod tests;
