//! Which upstream a request is for, and its address there.
//!
//! In this order: a configured prefix, Azure's own paths, `/name/…`, the host; then, only for paths that a
//! provider's API has, the path's dialect, hints in the headers, the only upstream. So a misspelled name
//! sends no key to another provider. Paths are joined as received: not decoded, normalised or re-ordered
//! (`docs/configuration.md` "Which upstream"). Pure: no sockets.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Method, Uri};

use crate::config::{Upstream, errors};
use crate::dialect::Dialect;
use crate::dialect::credentials::CredentialRules;
use crate::dialect::paths::{self, Provider, endpoint};

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'u, 'p> {
    /// The upstream.
    pub(crate) upstream: &'u Arc<Upstream>,
    /// The path and query, without the part that selected the upstream.
    pub(crate) path: &'p str,
}

/// The route of a request, if any upstream takes it. `client_dialect`: the dialect that the path shows.
pub(crate) fn route<'u, 'p>(
    upstreams: &'u [Arc<Upstream>],
    method: &Method,
    uri: &'p Uri,
    headers: &HeaderMap,
    client_dialect: Option<Dialect>,
) -> Option<Route<'u, 'p>> {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if let Some(route) = by_prefix(upstreams, path) {
        return Some(route);
    }
    // Azure's paths begin with `/openai/`, which is also the usual name of another upstream.
    if is_azure(path, headers) {
        let by_host = by_host(upstreams, uri, headers).map(|upstream| Route { upstream, path });
        return by_host.or_else(|| by_azure(upstreams, path));
    }
    if let Some(route) = by_name(upstreams, path) {
        return Some(route);
    }
    let upstream = match by_host(upstreams, uri, headers) {
        Some(upstream) => upstream,
        None if paths::is_known(method, path) => by_path(upstreams, path, headers, client_dialect)?,
        None => return None,
    };
    Some(Route { upstream, path })
}

/// The request's address at the upstream, without the client's credentials if the upstream has its own.
/// `came`: the client's path, which is reused unchanged if possible.
pub(crate) fn address(
    route: &Route<'_, '_>,
    came: Option<&PathAndQuery>,
    credentials: &CredentialRules,
) -> Option<Uri> {
    let base = route.upstream.base.path().trim_end_matches('/');
    let path = with_version(base, without_overlap(base, route.path));
    let path = credentials.without(&path, route.upstream.credential.is_some());
    let joined = match came {
        Some(unchanged) if base.is_empty() && unchanged.as_str() == path => unchanged.clone(),
        _ => PathAndQuery::try_from([base, &path].concat()).ok()?,
    };
    let mut parts = route.upstream.base.clone().into_parts();
    parts.path_and_query = Some(joined);
    Uri::from_parts(parts).ok()
}

fn by_prefix<'u, 'p>(upstreams: &'u [Arc<Upstream>], path: &'p str) -> Option<Route<'u, 'p>> {
    let fitting = upstreams.iter().filter_map(|upstream| {
        let prefix = upstream.prefix.as_deref()?.trim_end_matches('/');
        Some((prefix.len(), Route { upstream, path: stripped(path, prefix)? }))
    });
    // Of several prefixes with the same length, the last one.
    fitting.max_by_key(|(length, _)| *length).map(|(_, route)| route)
}

/// Routes by `/name/…`.
fn by_name<'u, 'p>(upstreams: &'u [Arc<Upstream>], path: &'p str) -> Option<Route<'u, 'p>> {
    // The name is removed, unless that upstream's own paths begin with it.
    let named = path.strip_prefix('/')?;
    upstreams.iter().find_map(|upstream| {
        let rest = stripped(named, &upstream.name)?;
        let path = if begins_with_its_name(upstream, rest) { path } else { rest };
        Some(Route { upstream, path })
    })
}

/// Hosts whose paths begin with a word that is also the name of an upstream.
const BEGINNINGS: [(&str, &[&str]); 2] = [
    ("openai", &["azure.com", "groq.com", "api.aws", "amazonaws.com"]),
    (
        "anthropic",
        &[
            "azure.com",
            "api.aws",
            "deepseek.com",
            "moonshot.ai",
            "moonshot.cn",
            "minimax.io",
            "minimaxi.com",
        ],
    ),
];

fn begins_with_its_name(upstream: &Upstream, rest: &str) -> bool {
    let name = &*upstream.name;
    // Such a name in a path is the provider's own word, unless it stands there twice or the base has it
    // already.
    let own_host = upstream.base.host().unwrap_or_default();
    let begins = BEGINNINGS
        .iter()
        .any(|(word, hosts)| *word == name && hosts.iter().any(|host| is_under(own_host, host)));
    let is_in_base = upstream.base.path().split('/').any(|segment| segment == name);
    let first_segment = rest.split(['/', '?']).find(|segment| !segment.is_empty());
    begins && !is_in_base && first_segment != Some(name)
}

fn is_at(upstream: &Upstream, host: &str) -> bool {
    upstream.base.host().is_some_and(|own_host| is_under(own_host, host))
}

fn is_under(own_host: &str, host: &str) -> bool {
    // `.` before it: `notazure.com` is somebody else's.
    own_host.strip_suffix(host).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_azure(path: &str, headers: &HeaderMap) -> bool {
    // Azure's clients send a key in a header of its own instead of a bearer token, a deployment, or an
    // `api-version`.
    let has_key = headers.contains_key(API_KEY) && !headers.contains_key(AUTHORIZATION);
    path.starts_with("/openai/") && (has_key || has_azure_form(path))
}

fn has_azure_form(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/openai/") else { return false };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let has_version = query.split('&').any(|pair| pair.starts_with("api-version="));
    has_version || path.starts_with("deployments/")
}

fn by_azure<'u, 'p>(upstreams: &'u [Arc<Upstream>], path: &'p str) -> Option<Route<'u, 'p>> {
    // Preferably the upstream at Azure that is named `openai`; else one of that name that is not OpenAI itself
    // (a gateway to Azure), else the only upstream. OpenAI never gets a key for Azure.
    let openai = upstreams.iter().find(|upstream| &*upstream.name == "openai");
    let openai_at_azure = openai.filter(|upstream| is_at(upstream, "azure.com"));
    if let Some(upstream) = openai_at_azure.or_else(|| at_azure(upstreams)) {
        return Some(Route { upstream, path });
    }
    let upstream = openai.or_else(|| only(upstreams))?;
    if is_at(upstream, "openai.com") {
        return None;
    }
    if openai.is_some() && !has_azure_form(path) {
        return by_name(upstreams, path);
    }
    Some(Route { upstream, path })
}

fn at_azure(upstreams: &[Arc<Upstream>]) -> Option<&Arc<Upstream>> {
    upstreams.iter().find(|upstream| is_at(upstream, "azure.com"))
}

fn only(upstreams: &[Arc<Upstream>]) -> Option<&Arc<Upstream>> {
    match upstreams {
        [only] => Some(only),
        _ => None,
    }
}

/// What follows `prefix` in `path`, if the prefix ends with a whole segment.
fn stripped<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(prefix)?;
    match rest.as_bytes().first() {
        None => Some("/"),
        Some(b'/' | b'?') => Some(rest),
        Some(_) => None,
    }
}

fn by_path<'u>(
    upstreams: &'u [Arc<Upstream>],
    path: &str,
    headers: &HeaderMap,
    client_dialect: Option<Dialect>,
) -> Option<&'u Arc<Upstream>> {
    if headers.contains_key(API_KEY)
        && let Some(upstream) = at_azure(upstreams)
    {
        return Some(upstream);
    }
    if let Some(dialect) = client_dialect
        && let Some(upstream) = speaking(upstreams, &[dialect])
    {
        return Some(upstream);
    }
    if let Some(provider) = owner(path, headers)
        && let Some(upstream) = speaking(upstreams, provider.dialects())
    {
        return Some(upstream);
    }
    only(upstreams)
}

fn speaking<'u>(upstreams: &'u [Arc<Upstream>], dialects: &[Dialect]) -> Option<&'u Arc<Upstream>> {
    upstreams.iter().find(|upstream| dialects.iter().any(|d| upstream.dialects.contains(d)))
}

/// The upstream that a request without a route may have meant: the one whose name or prefix is most similar
/// to the start of its path.
pub(crate) fn nearest<'u>(upstreams: &'u [Arc<Upstream>], path: &str) -> Option<&'u str> {
    let first_segment = path.split('/').find(|segment| !segment.is_empty())?;
    let mut names: Vec<&str> = Vec::new();
    for upstream in upstreams {
        let prefix = upstream.prefix.as_deref().unwrap_or_default();
        names.extend(prefix.split('/').find(|segment| !segment.is_empty()));
        names.push(&upstream.name);
    }
    errors::nearest(first_segment, names)
}

fn by_host<'a>(
    upstreams: &'a [Arc<Upstream>],
    uri: &Uri,
    headers: &HeaderMap,
) -> Option<&'a Arc<Upstream>> {
    let host = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(HOST)?.to_str().ok()?,
    };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    upstreams.iter().find(|upstream| {
        let mut hosts = upstream.hosts.iter();
        hosts.any(|known| known.eq_ignore_ascii_case(host) || known.eq_ignore_ascii_case(name))
    })
}

/// Only Azure's clients send this header.
const API_KEY: HeaderName = HeaderName::from_static("api-key");

fn owner(path: &str, headers: &HeaderMap) -> Option<Provider> {
    // A path without any hint belongs to no provider, so that no key is sent to one by guess.
    let provider = paths::provider(path, headers);
    let is_declared = provider != Provider::Openai
        || headers.contains_key(AUTHORIZATION)
        || paths::hinted(path, headers).is_some();
    if is_declared { Some(provider) } else { None }
}

fn without_overlap<'p>(base: &str, path: &'p str) -> &'p str {
    // Clients may be configured with base URLs with or without the base's path (`/openai/v1`), or its version
    // at the end.
    if !base.is_empty()
        && let Some(rest) = stripped(path, base)
    {
        return rest;
    }
    let Some((_, last)) = base.rsplit_once('/') else { return path };
    if !is_version(last) {
        return path;
    }
    path.strip_prefix('/').and_then(|path| stripped(path, last)).unwrap_or(path)
}

/// A path of Anthropic or Gemini with its version, if neither the base nor the path has one: the AI SDK appends
/// `/messages` to `ANTHROPIC_BASE_URL`, and LiteLLM `/models/…` to `GEMINI_API_BASE`.
fn with_version<'p>(base: &str, path: &'p str) -> Cow<'p, str> {
    // Those of OpenAI's protocols stay as they are, because some providers have no version there.
    let version = match path.split(['/', '?']).nth(1) {
        Some("messages") => "/v1",
        Some("models") => "/v1beta",
        _ => return Cow::Borrowed(path),
    };
    // Somebody else's path that begins alike stays as it is.
    if base.split('/').any(is_version) || endpoint(&Method::POST, path).is_none() {
        return Cow::Borrowed(path);
    }
    Cow::Owned([version, path].concat())
}

/// `v1`, `v1beta`, `v2`, …
fn is_version(segment: &str) -> bool {
    let mut bytes = segment.bytes();
    bytes.next() == Some(b'v') && bytes.next().is_some_and(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
