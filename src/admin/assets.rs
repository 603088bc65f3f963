//! The page and its files, which are part of the program: no build, no network.
//!
//! The policy allows nothing but these files and the API: no script or style inside the page, nothing from elsewhere. Addresses
//! in them are relative, so that the page works below any path of a reverse proxy.

use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderValue, Response, StatusCode};

use super::responses::{AdminBody, AdminError, AdminResponse, whole};

/// Allows the page its own files, and to connect only to us.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, content type and content of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("page.css", "text/css; charset=utf-8", include_str!("ui/page.css")),
    ("icon.svg", "image/svg+xml", include_str!("ui/icon.svg")),
    ("uplot.js", SCRIPT, include_str!("ui/uplot.js")),
    ("uplot.LICENSE", "text/plain; charset=utf-8", include_str!("ui/uplot.LICENSE")),
    ("page.js", SCRIPT, include_str!("ui/page.js")),
    ("api.js", SCRIPT, include_str!("ui/api.js")),
    ("dom.js", SCRIPT, include_str!("ui/dom.js")),
    ("charts.js", SCRIPT, include_str!("ui/charts.js")),
    ("overview.js", SCRIPT, include_str!("ui/overview.js")),
    ("range.js", SCRIPT, include_str!("ui/range.js")),
    ("sessions.js", SCRIPT, include_str!("ui/sessions.js")),
    ("session.js", SCRIPT, include_str!("ui/session.js")),
    ("words.js", SCRIPT, include_str!("ui/words.js")),
    ("live.js", SCRIPT, include_str!("ui/live.js")),
    ("models.js", SCRIPT, include_str!("ui/models.js")),
];

pub(super) fn page() -> Response<AdminBody> {
    let mut response = whole("text/html; charset=utf-8", include_str!("ui/index.html"));
    let policy = HeaderValue::from_static(POLICY);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response
}

pub(super) fn asset(name: &str) -> AdminResponse {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, content)) => Ok(whole(kind, *content)),
        None => {
            let what = "The page has no such file.";
            Err(AdminError::new(StatusCode::NOT_FOUND, "not_found", what))
        }
    }
}
