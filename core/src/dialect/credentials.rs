//! Where requests carry credentials: one list to find a request's tenant, to remove credentials before an
//! upstream with its own key, and to keep them out of the log.
//!
//! Something that is not on the list may still be a credential. A request with such a thing has no tenant, so
//! that nothing learned from it reaches another one. Credentials leave this module only as keyed hashes.

mod harmless;

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName};
use memchr::memmem;

use super::ids::TenantId;
use super::percent::decoded;
pub use harmless::is_harmless_header;
use harmless::is_harmless_parameter;

/// The tenant of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// The holder of its credentials: a keyed hash of them, 16 hex digits.
    Known(TenantId),
    /// The request has no credential, and nothing that could be one.
    Everyone,
    /// The request has something that may be a credential, but may be shared with others.
    Unknown,
}

/// The header of the client token, which is always removed. SDKs that cannot send it use their key's place.
const TOKEN: HeaderName = HeaderName::from_static("x-plimsoll-token");

/// Headers of providers, gateways and web servers that carry a credential. In alphabetical order.
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

/// Query parameters that carry a credential. In alphabetical order.
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

/// Prefixes of cookies that content delivery networks set. They change, and do not identify the client.
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

/// Prefixes of keys that some gateways take as a path segment.
const KEYS_BEGIN: &[&str] =
    &["sk-", "sk_", "pk-", "gsk_", "xai-", "hf_", "ghp_", "gho_", "github_pat_", "AIza", "eyJ"];
/// A shorter segment is a name, bytes.
const SHORTEST_KEY: usize = 16;

/// The rules that find credentials.
#[derive(Clone, Default)]
pub struct CredentialRules {
    /// Headers added by the configuration.
    more: Vec<HeaderName>,
    /// The hash of the client token, if there is one.
    token: Option<blake3::Hash>,
}

impl CredentialRules {
    /// The built-in list and more headers; `token` is the client token, which only Plimsoll sees.
    pub fn new(more: &[HeaderName], token: Option<&str>) -> Self {
        Self { more: more.to_vec(), token: token.map(|token| blake3::hash(token.as_bytes())) }
    }

    /// Whether a header carries a credential. A cookie may be one if there is no other.
    pub fn is_header(&self, name: &HeaderName) -> bool {
        HEADERS.binary_search(&name.as_str()).is_ok() || self.more.contains(name)
    }

    /// Whether a client token is required.
    pub fn wants_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a request has the client token: in its own header, or in the place of a credential.
    pub fn has_token(&self, headers: &HeaderMap, target: &str) -> bool {
        headers.iter().any(|(name, value)| self.is_token(name, value.as_bytes()))
            || pairs(target).any(|pair| self.is_token_pair(pair))
    }

    /// Whether a header has the client token.
    pub fn is_token(&self, name: &HeaderName, value: &[u8]) -> bool {
        (*name == TOKEN || self.token.is_some() && self.is_header(name))
            && self.equals_token(bare_secret(value))
    }

    fn is_token_pair(&self, pair: &str) -> bool {
        let value = pair.split_once('=').map_or("", |(_, value)| value);
        self.token.is_some() && is_parameter(pair) && self.equals_token(decoded(value).as_bytes())
    }

    fn equals_token(&self, given: &[u8]) -> bool {
        // By hashes, so that the time says nothing about how much of it is right.
        self.token.is_some_and(|token| token == blake3::hash(given))
    }

    /// The tenant of a request. All its credentials count together, so that a valid one beside someone else's
    /// does not give access to the other's data. The scheme does not count: SDKs send the same key as
    /// `x-api-key` and as bearer token. The client token does not count, because all clients share it. `key`
    /// is 32 random bytes from the store, which make the hashes useless elsewhere.
    pub fn tenant(&self, key: &[u8; 32], headers: &HeaderMap, target: &str) -> Tenant {
        self.found(headers, target).tenant(key)
    }

    /// Whether a text contains a credential of a request, or a part of one.
    pub fn appear_in(&self, text: &str, headers: &HeaderMap, target: &str) -> bool {
        let RequestCredentials { secrets, cookies, .. } = self.found(headers, target);
        let mut values = secrets.iter().map(AsRef::as_ref).chain(cookies);
        self.equals_token(text.as_bytes()) || values.any(|secret| gives_away(text, secret))
    }

    fn found<'r>(&self, headers: &'r HeaderMap, target: &'r str) -> RequestCredentials<'r> {
        let mut credentials = RequestCredentials::default();
        for (name, value) in headers {
            self.look_at_header(name, value.as_bytes(), &mut credentials);
        }
        for pair in pairs(target) {
            self.look_at_parameter(pair, &mut credentials);
        }
        // Some clients have the key in the path.
        // Decoded, none gets longer.
        let segments = path_of(target).split('/').filter(|segment| segment.len() >= SHORTEST_KEY);
        let keys = segments.map(decoded).filter(|segment| is_key(segment));
        credentials.secrets.extend(keys.map(bytes_of));
        credentials
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
            // What is not known to be harmless may be a credential.
            found.is_unknown |= !is_harmless_header(name.as_str());
        } else if !self.is_token(name, value) {
            let amazon = if *name == AUTHORIZATION { amazon_id(value) } else { None };
            match amazon {
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
        // Decoded, so that one key has one hash however it is written.
        let secret = bytes_of(decoded(value));
        match &*name {
            // A signature differs in each request, and its key id is no secret.
            "x-amz-credential" | "x-goog-credential" => found.amazon = Some(secret),
            "x-amz-signature" | "x-goog-signature" => {
                found.amazon.get_or_insert(Cow::Borrowed(b""));
            }
            _ if self.is_token_pair(pair) => {}
            _ => found.secrets.push(secret),
        }
    }

    /// A path and query without the client token; `beside_own`: as they may stand beside the upstream's own
    /// credential.
    pub fn without<'t>(&self, target: &'t str, beside_own: bool) -> Cow<'t, str> {
        let Some((path, query)) = target.split_once('?') else { return Cow::Borrowed(target) };
        let (removed, remaining): (Vec<&str>, Vec<&str>) = query
            .split('&')
            .partition(|pair| beside_own && !may_join_credential(pair) || self.is_token_pair(pair));
        if removed.is_empty() {
            Cow::Borrowed(target)
        } else if remaining.is_empty() {
            path.into()
        } else {
            format!("{path}?{}", remaining.join("&")).into()
        }
    }
}

/// A path for the log: segments that may have a credential are replaced.
pub fn redact(path: &str) -> Cow<'_, str> {
    if !path.split('/').any(may_have_credential) {
        return Cow::Borrowed(path);
    }
    let segments = path.split('/');
    let shown: Vec<&str> = segments
        .map(|segment| if may_have_credential(segment) { HIDDEN } else { segment })
        .collect();
    Cow::Owned(shown.join("/"))
}

fn may_have_credential(segment: &str) -> bool {
    // Nearly all segments.
    if segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return is_key(segment);
    }
    let text = decoded(segment);
    // `user:password@host`; `model@version:generateContent` is none.
    let has_user = text.split_once('@').is_some_and(|(user, _)| user.contains(':'));
    // `;key=…`, `Bearer …`
    has_user || is_key(&text) || text.contains([';', '=', ' '])
}

const HIDDEN: &str = "REDACTED";

/// A shorter piece of a secret may occur by chance, bytes.
const SHORTEST_PIECE: usize = 8;

/// Whether a text contains a secret, or is a piece of it.
pub fn gives_away(text: &str, secret: &[u8]) -> bool {
    let text = text.as_bytes();
    let is_piece = text.len() >= SHORTEST_PIECE && memmem::find(secret, text).is_some();
    is_piece || !secret.is_empty() && memmem::find(text, secret).is_some()
}

#[derive(Default)]
struct RequestCredentials<'r> {
    secrets: Vec<Cow<'r, [u8]>>,
    cookies: Vec<&'r [u8]>,
    /// The access key id of a signed request; empty if it has none.
    amazon: Option<Cow<'r, [u8]>>,
    /// There is something that may be a credential.
    is_unknown: bool,
}

impl RequestCredentials<'_> {
    fn tenant(mut self, key: &[u8; 32]) -> Tenant {
        self.secrets.retain(|secret| !secret.is_empty() && !is_placeholder(secret));
        if let Some(id) = self.amazon {
            // Access key ids appear in policies and logs: by itself, one proves nothing about the client.
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
        // With its length, so that two secrets do not hash like their concatenation.
        hasher.update(&(secret.len() as u64).to_le_bytes());
        hasher.update(secret);
    }
    hasher.finalize().to_hex()[..16].into()
}

fn bare_secret(value: &[u8]) -> &[u8] {
    // In any other value with several words, all of them count.
    let value = value.trim_ascii();
    let space = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at(space);
    let is_scheme = SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known.as_bytes()));
    if is_scheme { rest.trim_ascii() } else { value }
}

/// Schemes before a key in `authorization` and similar headers.
const SCHEMES: &[&str] = &["bearer", "basic", "token", "apikey"];

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
    cookie.is_empty()
        || ROTATING_COOKIES.iter().any(|name| {
            let start = cookie.get(..name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
        })
}

/// What people write where a client insists on a key and the server wants none: strangers would share it. Letters and
/// digits only, in alphabetical order.
const PLACEHOLDERS: &[&str] = &[
    "",
    "anything",
    "apikey",
    "changeme",
    "dummy",
    "dummyapikey",
    "dummykey",
    "empty",
    "fake",
    "fakeapikey",
    "fakekey",
    "ignored",
    "llamacpp",
    "lmstudio",
    "local",
    "localai",
    "na",
    "noapikey",
    "nokey",
    "nokeyneeded",
    "nokeyrequired",
    "none",
    "notarealkey",
    "notneeded",
    "notrequired",
    "notused",
    "null",
    "ollama",
    "placeholder",
    "test",
    "testkey",
    "undefined",
    "unused",
    "vllm",
    "whatever",
    "yourapikey",
    "yourapikeyhere",
    "yourkeyhere",
];
/// A longer secret is no placeholder, bytes.
const LONGEST_PLACEHOLDER: usize = 32;

fn is_placeholder(secret: &[u8]) -> bool {
    if secret.len() > LONGEST_PLACEHOLDER {
        return false;
    }
    let letters = secret.iter().filter(|byte| byte.is_ascii_alphanumeric());
    let word: String = letters.map(|byte| char::from(byte.to_ascii_lowercase())).collect();
    let word = word.strip_prefix("sk").unwrap_or(&word);
    // `xxx`, `sk-0000`
    let is_one_letter = word.len() > 2 && word.bytes().all(|byte| byte == word.as_bytes()[0]);
    is_one_letter || PLACEHOLDERS.binary_search(&word).is_ok()
}

fn is_key(segment: &str) -> bool {
    segment.len() >= SHORTEST_KEY
        && KEYS_BEGIN.iter().any(|with| {
            let start = segment.as_bytes().get(..with.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
        })
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn pairs(target: &str) -> impl Iterator<Item = &str> {
    // Few targets have any.
    let has_pairs = memchr::memchr2(b'?', b';', target.as_bytes()).is_some();
    let target = if has_pairs { target } else { "" };
    let query = target.split_once('?').map_or("", |(_, query)| query);
    // Also what follows a semicolon in a segment of the path: `;key=…`.
    let segments = path_of(target).split('/');
    let after_semicolon =
        segments.chain(query.split('&')).flat_map(|piece| piece.split(';').skip(1));
    query.split('&').chain(after_semicolon).filter(|pair| !pair.is_empty())
}

fn is_parameter(pair: &str) -> bool {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    is_credential(&decoded(name).to_ascii_lowercase())
}

fn may_join_credential(pair: &str) -> bool {
    // Gateways read addresses and accounts from the query too (`api_base=…`), and some servers separate
    // parameters by semicolons.
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    !pair.contains(';') && is_harmless_parameter(&decoded(name).to_ascii_lowercase())
}

fn is_credential(name: &str) -> bool {
    PARAMETERS.binary_search(&name).is_ok()
}

#[cfg(test)]
mod tests;
