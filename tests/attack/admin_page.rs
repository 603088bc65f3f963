//! The stranger here is a page in the user's browser that sends requests to the admin listener.

use super::program::Serving;
use super::support::http1::{Message, Provider, Wire};

/// Sends a request with the right token: it has to be refused for another reason.
async fn send(serving: &Serving, first_line: &str, headers: &[&str]) -> Message {
    let mut wire = Wire::connect(serving.admin).await;
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let token = format!("authorization: Bearer {}\r\n", serving.token);
    wire.send(format!("{first_line} HTTP/1.1\r\n{headers}{token}content-length: 0\r\n\r\n")).await;
    wire.response().await
}

#[tokio::test]
async fn ambiguous_or_foreign_host_is_refused_by_admin_listener() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let own = format!("host: {}", serving.admin);
    let own = own.as_str();
    let absolute = format!("GET http://{}/api/v1/sessions", serving.admin);
    let plain = "GET /api/v1/sessions";
    assert_eq!(send(&serving, plain, &[own]).await.status(), 200);
    assert_eq!(send(&serving, &absolute, &[own]).await.status(), 200);
    for (first_line, headers) in [
        ("GET http://evil.example/api/v1/sessions", &[own][..]),
        (&absolute, &["host: evil.example"]),
        (plain, &[own, "host: evil.example"]),
        (plain, &["host: evil.example", own]),
        (plain, &[own, own]),
        (plain, &["host: evil.example"]),
        (plain, &["host: 127.0.0.1:80@evil.example"]),
        (plain, &["host: 127.0.0.1.evil.example"]),
        (plain, &[]),
    ] {
        let status = send(&serving, first_line, headers).await.status();
        assert!(status == 421 || status == 400, "{first_line} {headers:?}: {status}");
    }
}

#[tokio::test]
async fn page_of_another_site_cannot_use_admin_listener() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let own = format!("host: {}", serving.admin);
    let own = own.as_str();
    let link = ["sec-fetch-mode: navigate", "sec-fetch-dest: document"];
    for site in ["sec-fetch-site: cross-site", "sec-fetch-site: same-site"] {
        for first_line in ["GET /api/v1/sessions", "GET /metrics", "GET /healthz", "GET /"] {
            let answer = send(&serving, first_line, &[own, site]).await;
            assert_eq!(answer.status(), 403, "{first_line} {site}");
            assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"));
        }
        let path = "POST /api/v1/sessions/x/say";
        assert_eq!(send(&serving, path, &[own, site]).await.status(), 403);
        // A link on another page may open ours, which shows nothing by itself and cannot be framed.
        let page = send(&serving, "GET /", &[own, site, link[0], link[1]]).await;
        assert_eq!(page.status(), 200);
        assert_eq!(page.header("x-frame-options"), Some("DENY"));
        let sessions = send(&serving, "GET /api/v1/sessions", &[own, site, link[0], link[1]]).await;
        assert_eq!(sessions.status(), 403);
    }
    let foreign = [own, "origin: http://127.0.0.1:1"];
    assert_eq!(send(&serving, "GET /api/v1/sessions", &foreign).await.status(), 403);
    let near = [own, "sec-fetch-site: same-origin"];
    assert_eq!(send(&serving, "GET /api/v1/sessions", &near).await.status(), 200);
}
