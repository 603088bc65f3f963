//! Tags in a base URL: `/~team=core,env=ci/v1/messages` is `/v1/messages` with these tags in `x-plimsoll-tags`.
//!
//! For clients that send no headers of their own. The rest of the path stays as it came.

use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};

use super::headers;

/// Takes tags out of the request's path, and adds them to its header.
pub(crate) fn take<B>(request: &mut Request<B>) {
    let Some((value, uri)) = split(request.uri()) else { return };
    *request.uri_mut() = uri;
    headers::add_tags(request.headers_mut(), value);
}

fn split(uri: &Uri) -> Option<(HeaderValue, Uri)> {
    let target = uri.path_and_query()?.as_str().strip_prefix("/~")?;
    let (tags, rest) = target.split_at(target.find('/').unwrap_or(target.len()));
    if !tags.split(',').all(headers::is_tag) {
        return None;
    }
    let rest = PathAndQuery::try_from(if rest.is_empty() { "/" } else { rest }).ok()?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(rest);
    Some((HeaderValue::from_str(tags).ok()?, Uri::from_parts(parts).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(target: &str) -> (String, Vec<Box<str>>) {
        let mut request =
            Request::get(target).header("x-plimsoll-tags", "env=ci").body(()).unwrap();
        take(&mut request);
        (request.uri().to_string(), headers::tags(request.headers()))
    }

    #[test]
    fn tags_leave_the_path() {
        let both = ["env=ci".into(), "run=1".into()];
        for (target, rest) in [
            ("/~run=1/v1/messages?beta=true", "/v1/messages?beta=true"),
            ("/~run=1//x%2Fy/", "//x%2Fy/"),
            ("/~run=1/", "/"),
            ("/~run=1", "/"),
            ("http://host:1/~run=1/v1", "http://host:1/v1"),
        ] {
            assert_eq!(taken(target), (rest.to_owned(), both.to_vec()), "{target}");
        }
        assert_eq!(taken("/~a=1,b=2/x").1.len(), 3);
    }

    #[test]
    fn other_paths_stay() {
        for target in
            ["/", "/v1/messages", "/~", "/~user/v1", "/~run=/v1", "/~a=1,b/v1", "/x/~a=1/v1"]
        {
            assert_eq!(taken(target), (target.to_owned(), vec!["env=ci".into()]), "{target}");
        }
    }
}
