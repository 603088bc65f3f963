//! Invariant 9: no prompt, reply or key in logs, metrics or what the admin listener shows.

use super::program::Serving;
use super::support::http1::{Provider, Wire};

const PROMPT: &str = "the-prompt-that-nobody-may-read";
const SYSTEM: &str = "the-system-prompt-that-nobody-may-read";
const REPLY: &str = "the-reply-that-nobody-may-read";
const KEY: &str = "sk-the-key-that-nobody-may-read";
const QUERY: &str = "query-key-that-nobody-may-read";
const ERROR: &str = "the-error-that-quotes-a-prompt";

fn body() -> String {
    format!(
        r#"{{"model":"claude-sonnet-4-5","max_tokens":9,"system":"{SYSTEM}","messages":[{{"role":"user","content":"{PROMPT}"}}]}}"#
    )
}

fn reply() -> String {
    format!(
        r#"{{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{{"type":"thinking","thinking":"{REPLY}","signature":"{REPLY}"}},{{"type":"text","text":"{REPLY}"}}],"stop_reason":"end_turn","usage":{{"input_tokens":20,"output_tokens":5}}}}"#
    )
}

#[tokio::test]
async fn nothing_private_is_shown() {
    for form in ["text", "json"] {
        let provider = Provider::start().await;
        let mut serving = Serving::start(&provider.base(), &["--log", form]).await;
        let path = format!("/v1/messages?key={QUERY}");
        let bearer = format!("Bearer {KEY}");
        let headers =
            [("x-api-key", KEY), ("authorization", bearer.as_str()), ("x-plimsoll-session", "s")];
        let error = format!(
            r#"{{"type":"error","error":{{"type":"invalid_request_error","message":"{ERROR}"}}}}"#
        );
        let odd = format!("{{\"model\": \"{PROMPT}, which is no JSON");
        for (sent, status, answer) in [
            (body(), "200 OK", reply()),
            (body(), "400 Bad Request", error.clone()),
            (odd, "400 Bad Request", error),
            (body(), "502 Bad Gateway", format!("<html>{ERROR}")),
        ] {
            let mut client = serving.post(&path, &sent, &headers).await;
            provider.call().await.answer(status, &answer).await;
            client.response().await;
        }
        serving.counted("plimsoll_store_operations_total{operation=\"put\"}").await;
        // Every exchange is logged once the server has ended; the views are read before that.
        let list = serving.ask("/api/v1/sessions").await.text().to_owned();
        let listed: serde_json::Value = serde_json::from_str(&list).unwrap();
        let mut shown = vec![list, serving.ask("/metrics").await.text().to_owned()];
        for line in listed["sessions"].as_array().unwrap() {
            let id = line["id"].as_str().unwrap();
            for path in [
                format!("/api/v1/sessions/{id}"),
                format!("/api/v1/sessions/{id}/threads/latest/context"),
            ] {
                shown.push(serving.ask(&path).await.text().to_owned());
            }
        }
        serving.signal("TERM").await;
        assert_eq!(serving.ended().await, 0);
        let log = serving.log();
        assert!(log.lines().filter(|line| line.contains("/v1/messages")).count() >= 4, "{log}");
        assert!(shown.len() > 2, "no session was shown: {shown:?}");
        shown.push(log);
        for text in shown {
            for private in [PROMPT, SYSTEM, REPLY, KEY, QUERY, ERROR] {
                assert!(!text.contains(private), "{private} is in:\n{text}");
            }
        }
    }
}

/// Some gateways have the key in the path, which may also be mistyped.
#[tokio::test]
async fn key_in_path_is_not_shown() {
    const IN_PATH: &str = "sk-in-the-path-that-nobody-may-read-0123456789";
    let provider = Provider::start().await;
    // The base URL may have one of the operator's.
    let base = format!("{}/{IN_PATH}", provider.base());
    let mut serving = Serving::start(&base, &[]).await;
    let body = body();
    let shouted = IN_PATH.to_uppercase();
    let escaped = IN_PATH.replace('-', "%2D");
    let user = format!("anna:{IN_PATH}@host");
    let bearer = format!("Bearer%20{}", IN_PATH.replace("sk-", ""));
    let parameter = format!("v1;key={}", IN_PATH.replace("sk-", ""));
    let mut kept: Option<Wire> = None;
    for segment in [IN_PATH, &shouted, &escaped, &user, &bearer, &parameter] {
        let target = format!("/anthropic/{segment}/v1/messages");
        let mut client = serving.post(&target, &body, &[]).await;
        let mut call = match kept {
            None => provider.call().await,
            Some(wire) => wire.request().await,
        };
        call.answer("200 OK", &reply()).await;
        assert_eq!(client.response().await.status(), 200);
        kept = Some(call.wire);
    }
    let mistyped = format!("/anthropi/{IN_PATH}/v1/messages");
    let refused = serving.post(&mistyped, &body, &[]).await.response().await;
    assert_eq!(refused.status(), 404);
    let mut shown = vec![refused.text().to_owned()];
    for path in ["/api/v1/about", "/api/v1/sessions", "/metrics"] {
        shown.push(serving.ask(path).await.text().to_owned());
    }
    serving.signal("TERM").await;
    assert_eq!(serving.ended().await, 0);
    assert!(serving.log().contains(" 404 "), "{}", serving.log());
    shown.push(serving.log());
    for text in shown {
        let text = text.to_lowercase().replace("%2d", "-");
        assert!(!text.contains(&IN_PATH[3..]), "it is in:\n{text}");
    }
}

/// A rewritten request: what is shown of the rewrite are places and sizes only.
#[tokio::test]
async fn explanation_of_rewrite_shows_nothing_private() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let eager = "[prune]\ngate = [\"always\"]\nprotect_tokens = 100\nprotect_messages = 2\n\
                 min_saving_tokens = 50\nmin_messages = 4\n";
    std::fs::write(&file, eager).unwrap();
    let provider = Provider::start().await;
    let more = ["--config", file.to_str().unwrap()];
    let mut serving = Serving::start(&provider.base(), &more).await;
    let result = |number: usize| {
        let text = format!("{PROMPT} ").repeat(40);
        format!(
            r#",{{"role":"assistant","content":[{{"type":"tool_use","id":"toolu_01AbCd{number:04}","name":"{SYSTEM}","input":{{"path":"{QUERY}"}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"toolu_01AbCd{number:04}","content":"{text}"}}]}}"#
        )
    };
    let results: String = (0..6).map(result).collect();
    let sent = body().replace("}]}", &format!("}}{results}]}}"));
    let mut client = serving.post("/v1/messages", &sent, &[("x-api-key", KEY)]).await;
    provider.call().await.answer("200 OK", &reply()).await;
    client.response().await;
    serving.wait_for_log(" cut=").await;
    let log = serving.log();
    let id = log.split(" id=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let mut shown = vec![log, serving.ask("/metrics").await.text().to_owned()];
    for path in ["", "/explain", "/explain?format=text"] {
        let answer = serving.ask(&format!("/api/v1/requests/{id}{path}")).await;
        assert!(answer.status() == 200, "{}", answer.text());
        assert!(answer.text().contains("cut"), "{}", answer.text());
        shown.push(answer.text().to_owned());
    }
    for path in ["/api/v1/savings", "/api/v1/savings?format=text"] {
        shown.push(serving.ask(path).await.text().to_owned());
    }
    for text in shown {
        for private in [PROMPT, SYSTEM, REPLY, KEY, QUERY] {
            assert!(!text.contains(private), "{private} is in:\n{text}");
        }
    }
}
