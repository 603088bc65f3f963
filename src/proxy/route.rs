//! Which upstream a request is for, and its address there.
//!
//! In this order: a configured prefix, `/name/…`, the host; then, for paths that a provider's API has and for no
//! others, the dialect of the path, what the headers hint at, the only upstream there is. So a name with a
//! letter wrong takes no key to another provider. Paths are joined as they came: nothing is decoded,
//! cleaned or re-ordered. Pure: no sockets.

use http::header::{AUTHORIZATION, HOST};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, Method, Uri};

use crate::config::{Upstream, faults};
use crate::dialect::Dialect;
use crate::dialect::credentials::Credentials;
use crate::dialect::paths::{self, Provider};

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'u, 'p> {
    /// The upstream.
    pub(crate) upstream: &'u Upstream,
    /// The path without what selected the upstream; query included.
    pub(crate) path: &'p str,
}

/// The route of a request, if any upstream takes it. `spoken`: the dialect that its path tells.
pub(crate) fn route<'u, 'p>(
    upstreams: &'u [Upstream],
    method: &Method,
    uri: &'p Uri,
    headers: &HeaderMap,
    spoken: Option<Dialect>,
) -> Option<Route<'u, 'p>> {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if let Some(route) = by_prefix(upstreams, path).or_else(|| by_name(upstreams, path)) {
        return Some(route);
    }
    let upstream = match by_host(upstreams, uri, headers) {
        Some(upstream) => upstream,
        None if paths::is_known(method, path) => by_path(upstreams, path, headers, spoken)?,
        None => return None,
    };
    Some(Route { upstream, path })
}

/// The request's address at the upstream, without the client's credentials where the upstream has its own.
/// `came`: what it asked for, which needs no reading again where it goes on as it is.
pub(crate) fn address(
    route: &Route<'_, '_>,
    came: Option<&PathAndQuery>,
    credentials: &Credentials,
) -> Option<Uri> {
    let base = route.upstream.base.path().trim_end_matches('/');
    let path = without_overlap(base, route.path);
    let path = credentials.without(path, route.upstream.credential.is_some());
    let joined = match came.filter(|came| base.is_empty() && came.as_str() == path) {
        Some(as_it_came) => as_it_came.clone(),
        None => PathAndQuery::try_from([base, &path].concat()).ok()?,
    };
    let mut parts = route.upstream.base.clone().into_parts();
    parts.path_and_query = Some(joined);
    Uri::from_parts(parts).ok()
}

fn by_prefix<'u, 'p>(upstreams: &'u [Upstream], path: &'p str) -> Option<Route<'u, 'p>> {
    let fitting = upstreams.iter().filter_map(|upstream| {
        let prefix = upstream.prefix.as_deref()?.trim_end_matches('/');
        Some((prefix.len(), Route { upstream, path: stripped(path, prefix)? }))
    });
    // Of several of the same length the last.
    fitting.max_by_key(|(length, _)| *length).map(|(_, route)| route)
}

/// `/name/…`; but `/openai/deployments/…` is Azure's own path, whatever upstreams are called.
fn by_name<'u, 'p>(upstreams: &'u [Upstream], path: &'p str) -> Option<Route<'u, 'p>> {
    if path.starts_with("/openai/deployments/") {
        return None;
    }
    let named = path.strip_prefix('/')?;
    upstreams.iter().find_map(|upstream| {
        let path = stripped(named, &upstream.name)?;
        Some(Route { upstream, path })
    })
}

/// What follows `prefix` in `path`, if it ends at a segment's end.
fn stripped<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(prefix)?;
    match rest.as_bytes().first() {
        None => Some("/"),
        Some(b'/' | b'?') => Some(rest),
        Some(_) => None,
    }
}

/// The upstream for a path that a provider's API has.
fn by_path<'u>(
    upstreams: &'u [Upstream],
    path: &str,
    headers: &HeaderMap,
    spoken: Option<Dialect>,
) -> Option<&'u Upstream> {
    let speaks = |dialects: &[Dialect]| {
        upstreams.iter().find(|upstream| dialects.iter().any(|d| upstream.dialects.contains(d)))
    };
    azure(upstreams, headers)
        .or_else(|| spoken.and_then(|dialect| speaks(&[dialect])))
        .or_else(|| owner(path, headers).and_then(|provider| speaks(provider.dialects())))
        .or_else(|| <&[Upstream; 1]>::try_from(upstreams).ok().map(|[only]| only))
}

/// The upstream that a request without a route may have meant: the one whose name or prefix is most like the
/// beginning of its path.
pub(crate) fn nearest<'u>(upstreams: &'u [Upstream], path: &str) -> Option<&'u str> {
    let said = path.split('/').find(|segment| !segment.is_empty())?;
    let prefix =
        |upstream: &'u Upstream| upstream.prefix.as_deref()?.split('/').find(|it| !it.is_empty());
    let known = upstreams.iter().flat_map(|it| prefix(it).into_iter().chain([&*it.name]));
    faults::nearest(said, known)
}

fn by_host<'a>(upstreams: &'a [Upstream], uri: &Uri, headers: &HeaderMap) -> Option<&'a Upstream> {
    let named = || headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(Authority::as_str).or_else(named)?;
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    upstreams.iter().find(|upstream| {
        let mut hosts = upstream.hosts.iter();
        hosts.any(|known| known.eq_ignore_ascii_case(host) || known.eq_ignore_ascii_case(name))
    })
}

/// Azure's clients alone send it.
const API_KEY: HeaderName = HeaderName::from_static("api-key");

/// An upstream of Azure's, for a client of Azure's.
fn azure<'a>(upstreams: &'a [Upstream], headers: &HeaderMap) -> Option<&'a Upstream> {
    if !headers.contains_key(API_KEY) {
        return None;
    }
    upstreams
        .iter()
        .find(|upstream| upstream.base.host().is_some_and(|host| host.ends_with(".azure.com")))
}

/// Whose a path is that holds no conversation. What nothing speaks for is nobody's, rather than
/// sent to a provider by guess.
fn owner(path: &str, headers: &HeaderMap) -> Option<Provider> {
    let provider = paths::provider(path, headers);
    let spoken_for = provider != Provider::Openai
        || headers.contains_key(AUTHORIZATION)
        || paths::hinted(path, headers).is_some();
    spoken_for.then_some(provider)
}

/// `path` without the version segment that `base` already ends in: clients are given base URLs
/// with and without `/v1`.
fn without_overlap<'p>(base: &str, path: &'p str) -> &'p str {
    let Some((_, last)) = base.rsplit_once('/') else { return path };
    if !is_version(last) {
        return path;
    }
    path.strip_prefix('/').and_then(|path| stripped(path, last)).unwrap_or(path)
}

/// `v1`, `v1beta`, `v2`, …
fn is_version(segment: &str) -> bool {
    let mut bytes = segment.bytes();
    bytes.next() == Some(b'v') && bytes.next().is_some_and(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
