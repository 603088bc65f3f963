//! The stranger here is a client that tries to teach everybody something false.
//!
//! The provider's refusal quotes the client's own text, in every place that a provider quotes, and with the text of
//! every lesson. Requests of others must stay the same afterwards.

use std::sync::{Arc, Mutex};

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::policy::{CountSchedule, Policy, PruneGate, PruneMethod, PrunePolicy};
use plimsoll::dialect::models::Family;
use plimsoll::store::Store;
use plimsoll::store::sqlite::SqliteStore;
use plimsoll::tokens::bpe;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::program::Serving;
use super::support::http1::{Message, Wire};
use super::support::server::{TestServer, config};

/// The false messages, as real providers would write them.
const WINDOW: &str = "prompt is too long: 10000 tokens > 9000 maximum";
const OPENAI_WINDOW: &str = "This model's maximum context length is 9000 tokens.";
const GEMINI_WINDOW: &str =
    "The input token count (10000) exceeds the maximum number of tokens allowed (9000).";
const LLAMA_WINDOW: &str =
    "request (10000 tokens) exceeds the available context size (9000 tokens), try increasing it";
/// The status and body of the response to a path and a body.
type Judge = dyn Fn(&str, &str) -> (u16, Value) + Send + Sync;

/// A provider that responds to each request as `judge` says.
struct Provider {
    base: String,
    seen: Arc<Mutex<Vec<(String, String)>>>,
}

impl Provider {
    async fn start(judge: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (judge, kept): (Arc<Judge>, _) = (Arc::new(judge), seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, judge.clone(), kept.clone()));
            }
        });
        Self { base, seen }
    }

    /// The requests since the last call.
    fn seen(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// Reads one request, responds and closes.
async fn answer(
    mut stream: TcpStream,
    judge: Arc<Judge>,
    seen: Arc<Mutex<Vec<(String, String)>>>,
) -> Option<()> {
    let mut read = Vec::new();
    let (path, body) = loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).into_owned();
        let lines = head.lines().map(str::to_ascii_lowercase);
        let length = lines
            .filter_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let body = &read[end + 4..];
        if body.len() >= length.clone().next().unwrap_or(0) {
            let path = head.split(' ').nth(1)?.to_owned();
            break (path, String::from_utf8_lossy(body).into_owned());
        }
    };
    let (status, answer) = judge(&path, &body);
    seen.lock().unwrap().push((path, body));
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).await.ok()
}

/// A proxy in front of a provider, with a store on disk.
struct Shared {
    server: TestServer,
    store: Arc<dyn Store>,
    config: Config,
    _data: tempfile::TempDir,
}

impl Shared {
    async fn before(provider: &Provider) -> Self {
        let mut policy = Policy::default();
        policy.estimate.count = CountSchedule::Off;
        Self::by(provider, policy).await
    }

    async fn by(provider: &Provider, policy: Policy) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut config = config(&provider.base);
        (config.mode, config.policy) = (Mode::Active, Arc::new(policy));
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&data.path().join("db")).unwrap());
        let server =
            TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await;
        Self { server, store, config, _data: data }
    }

    async fn restart(&mut self) {
        let (store, config) = (self.store.clone(), self.config.clone());
        self.server = TestServer::over(store, config, Matcher::builder().build()).await;
    }

    async fn send(&self, key: &str, path: &str, body: &str, header: &str) -> Message {
        send(self.server.address, key, path, body, header).await
    }

    async fn lessons(&self) -> usize {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        self.server.ledgers.lessons().list(now.as_millis() as u64).await.unwrap().len()
    }
}

async fn send(
    to: std::net::SocketAddr,
    key: &str,
    path: &str,
    body: &str,
    header: &str,
) -> Message {
    let mut wire = Wire::connect(to).await;
    let length = body.len();
    wire.send(format!(
        "POST {path} HTTP/1.1\r\nhost: {to}\r\nx-api-key: {key}\r\n{header}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
    .await;
    wire.response().await
}

fn anthropic(content: Value) -> Value {
    json!({"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [{"role": "user", "content": content}]})
}

fn chat(content: Value) -> Value {
    json!({"model": "some-model", "messages": [{"role": "user", "content": content}]})
}

fn gemini(content: Value) -> Value {
    json!({"contents": [{"role": "user", "parts": [{"text": content}]}]})
}

/// A reply whose usage matches the size of the request.
fn reply(path: &str, body: &str) -> Value {
    let tokens = body.len() / 4;
    match path {
        _ if path.contains("generateContent") => {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "Yes."}]}, "finishReason": "STOP"}],
                   "usageMetadata": {"promptTokenCount": tokens, "candidatesTokenCount": 2, "totalTokenCount": tokens + 2}})
        }
        _ if path.contains("chat") => {
            json!({"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
                   "usage": {"prompt_tokens": tokens, "completion_tokens": 2, "total_tokens": tokens + 2}})
        }
        _ => {
            json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": "Yes."}], "usage": {"input_tokens": tokens, "output_tokens": 2}})
        }
    }
}

fn anthropic_error(message: &str) -> Value {
    json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}})
}

fn openai_error(message: &str) -> Value {
    json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": null}})
}

fn gemini_error(message: &str) -> Value {
    json!([{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}])
}

/// Large enough to be cut or summarised if the window is 9,000 tokens.
fn long() -> Value {
    json!("The tide comes in at six and goes out at noon. ".repeat(2_500))
}

/// The path, the false text, the attacker's request, and the provider's refusal of it.
type Lie = (&'static str, &'static str, Value, Value);

/// False windows in each place that a provider quotes.
fn windows() -> Vec<Lie> {
    let messages = "/v1/messages";
    let chats = "/v1/chat/completions";
    let models = "/v1beta/models/gemini-3-pro:generateContent";
    let with = |mut body: Value, at: &str, to: Value| {
        body[at] = to;
        body
    };
    let pad = || json!("x ".repeat(2_000));
    let escaped = |lie: &str| lie.replace('"', "\\\"");
    let mut all = vec![
        (
            messages,
            WINDOW,
            with(anthropic(pad()), WINDOW, json!(1)),
            anthropic_error(&format!("{WINDOW}: Extra inputs are not permitted")),
        ),
        (
            messages,
            WINDOW,
            with(anthropic(pad()), "model", json!(WINDOW)),
            anthropic_error(&format!("model: {WINDOW}")),
        ),
        (
            messages,
            WINDOW,
            with(anthropic(pad()), "tools", json!([{"name": WINDOW}])),
            anthropic_error(&format!(
                "tools.0.custom.name: String should match pattern, not '{WINDOW}'"
            )),
        ),
        (
            messages,
            WINDOW,
            with(anthropic(pad()), "metadata", json!({"user_id": WINDOW})),
            anthropic_error(&format!("metadata.user_id: {WINDOW}")),
        ),
        (
            chats,
            OPENAI_WINDOW,
            with(chat(pad()), OPENAI_WINDOW, json!(1)),
            openai_error(&format!("Unknown parameter: '{OPENAI_WINDOW}'.")),
        ),
        (
            chats,
            OPENAI_WINDOW,
            with(chat(pad()), "model", json!(OPENAI_WINDOW)),
            openai_error(&format!("The model `{OPENAI_WINDOW}` does not exist")),
        ),
        (
            chats,
            OPENAI_WINDOW,
            with(chat(pad()), OPENAI_WINDOW, json!(1)),
            json!({"detail": [{"type": "extra_forbidden", "loc": ["body", OPENAI_WINDOW], "msg": "Extra inputs are not permitted", "input": 1}]}),
        ),
        (
            chats,
            LLAMA_WINDOW,
            chat(json!(LLAMA_WINDOW.repeat(50))),
            json!({"error": {"code": 500, "message": format!("Failed to parse input at pos 0: {LLAMA_WINDOW}"), "type": "server_error"}}),
        ),
        (
            chats,
            WINDOW,
            with(chat(pad()), WINDOW, json!(1)),
            json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"provider_name": "x",
            "raw": anthropic_error(&format!("{WINDOW}: Extra inputs are not permitted")).to_string()}}}),
        ),
        (
            models,
            GEMINI_WINDOW,
            with(gemini(pad()), GEMINI_WINDOW, json!(1)),
            gemini_error(&format!(
                "Invalid JSON payload received. Unknown name \"{}\": Cannot find field.",
                escaped(GEMINI_WINDOW)
            )),
        ),
    ];
    all.extend(bare_windows());
    all
}

/// Refusals of servers that write only the quoted text.
fn bare_windows() -> Vec<Lie> {
    let pad = || json!("x ".repeat(2_000));
    let lies = [
        ("/v1/messages", WINDOW, anthropic(pad()), anthropic_error(WINDOW)),
        ("/v1/chat/completions", OPENAI_WINDOW, chat(pad()), openai_error(OPENAI_WINDOW)),
        (
            "/v1beta/models/gemini-3-pro:generateContent",
            GEMINI_WINDOW,
            gemini(pad()),
            gemini_error(GEMINI_WINDOW),
        ),
    ];
    let cases = lies.into_iter().map(|(path, lie, mut body, refusal)| {
        body[lie] = json!(1);
        (path, lie, body, refusal)
    });
    cases.collect()
}

fn honest(path: &str) -> Value {
    match path {
        _ if path.contains("gemini") => gemini(long()),
        _ if path.contains("chat") => chat(long()),
        _ => anthropic(long()),
    }
}

/// Once, after such a refusal of one client, every other client's window was 9,000, and a request of 118 kB was sent as
/// a summary.
#[tokio::test]
async fn window_dictated_by_clients_text_is_not_learned() {
    for (path, lie, body, refusal) in windows() {
        let answered = refusal.clone();
        let provider = Provider::start(move |path, body| match body.contains(lie) {
            true => (400, answered.clone()),
            false => (200, reply(path, body)),
        })
        .await;
        let mut shared = Shared::before(&provider).await;
        let theirs = honest(path).to_string();
        let before = shared.send("victim", path, &theirs, "").await;
        assert_eq!(before.status(), 200, "{refusal}");
        let window = shared.server.next_exchange().await.window;
        for key in ["liar", "another", "a-third", "a-fourth"] {
            // Each client has had an accepted request, so that its lesson would count.
            shared.send(key, path, &honest(path).to_string(), "").await;
            shared.server.next_exchange().await;
            let refused = shared.send(key, path, &body.to_string(), "").await;
            assert_eq!(refused.status(), 400);
            assert_eq!(refused.text(), &*refusal.to_string());
            shared.server.next_exchange().await;
        }
        assert_eq!(shared.lessons().await, 0, "{refusal}");
        provider.seen();
        for restarts in [false, true] {
            if restarts {
                shared.restart().await;
            }
            for key in ["victim", "liar"] {
                shared.send(key, path, &theirs, "").await;
                let exchange = shared.server.next_exchange().await;
                assert_eq!(exchange.window, window, "{key}: {refusal}");
                assert_eq!(exchange.done.overflow, None, "{key}: {refusal}");
            }
            let seen: Vec<String> = provider.seen().into_iter().map(|(_, body)| body).collect();
            assert_eq!(seen, [theirs.clone(), theirs.clone()], "{refusal}");
        }
    }
}

/// A header or a path may be quoted, too.
#[tokio::test]
async fn window_dictated_in_header_or_path_is_not_learned() {
    let provider = Provider::start(|path, body| match body.contains("a lie") {
        true => (
            400,
            if path.contains("gemini") {
                gemini_error(GEMINI_WINDOW)
            } else {
                anthropic_error(WINDOW)
            },
        ),
        false => (200, reply(path, body)),
    })
    .await;
    let shared = Shared::before(&provider).await;
    let lie = json!(format!("a lie {}", "x ".repeat(12_000)));
    let header = format!("anthropic-beta: {WINDOW}\r\n");
    shared.send("liar", "/v1/messages", &anthropic(lie.clone()).to_string(), &header).await;
    let escaped = GEMINI_WINDOW.replace(' ', "%20");
    let path = format!("/v1beta/models/gemini-3-pro:generateContent?x={escaped}");
    shared.send("liar", &path, &gemini(lie).to_string(), "").await;
    assert_eq!(shared.lessons().await, 0);
}

/// A window that contradicts the size of the request is not believed, whoever reports it.
#[tokio::test]
async fn window_larger_than_refused_request_is_not_learned() {
    let provider = Provider::start(|path, body| match body.contains("short") {
        true => (400, anthropic_error("prompt is too long: 100001 tokens > 100000 maximum")),
        false => (200, reply(path, body)),
    })
    .await;
    let mut shared = Shared::before(&provider).await;
    let body = anthropic(json!(format!("short {}", "x ".repeat(2_000))));
    shared.send("liar", "/v1/messages", &body.to_string(), "").await;
    shared.server.next_exchange().await;
    assert_eq!(shared.lessons().await, 0);
    let metrics = shared.server.telemetry.render();
    assert!(metrics.contains(r#"plimsoll_lessons_total{outcome="implausible",upstream="up"} 1"#));
}

/// The messages of all other lessons, as members, values and names of models.
#[tokio::test]
async fn no_other_lesson_can_be_dictated() {
    const LIES: [&str; 9] = [
        "The reasoning_content in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "property 'reasoning_content' is unsupported",
        "stream_options: Extra inputs are not permitted",
        "Unknown parameter: 'stream_options'.",
        "context_management: Extra inputs are not permitted",
        "Unknown parameter: 'include'.",
        "compaction: Extra inputs are not permitted",
        "The block is bound to a different conversation.",
    ];
    let provider = Provider::start(|path, body| {
        let lie = LIES.iter().find(|lie| body.contains(**lie));
        let Some(lie) = lie else { return (200, reply(path, body)) };
        let is_whole = body.contains("nothing around it");
        let around =
            if is_whole { (*lie).to_owned() } else { format!("Unknown parameter: '{lie}'.") };
        (400, if path.contains("chat") { openai_error(&around) } else { anthropic_error(&around) })
    })
    .await;
    let mut shared = Shared::before(&provider).await;
    for key in ["liar", "another", "a-third"] {
        for lie in LIES {
            for (path, body) in
                [("/v1/messages", anthropic as fn(Value) -> Value), ("/v1/chat/completions", chat)]
            {
                for text in ["x ".repeat(2_000), "nothing around it ".repeat(200)] {
                    let mut request = body(json!(text));
                    (request[lie], request["stream"]) = (json!(1), json!(true));
                    shared.send(key, path, &request.to_string(), "").await;
                    let mut request = body(json!(text));
                    request["model"] = json!(lie);
                    shared.send(key, path, &request.to_string(), "").await;
                }
            }
        }
        shared.send(key, "/v1/messages", &anthropic(json!("Yes?")).to_string(), "").await;
    }
    assert_eq!(shared.lessons().await, 0);
    shared.restart().await;
    assert_eq!(shared.lessons().await, 0);
}

/// A policy under which the provider edits instead of Plimsoll.
fn edited() -> Policy {
    let mut policy = Policy::default();
    policy.estimate.count = CountSchedule::Off;
    policy.prune = PrunePolicy {
        method: PruneMethod::Provider,
        gate: vec![PruneGate::Always],
        protect_tokens: 100,
        protect_messages: 2,
        min_saving_tokens: 50,
        min_messages: 4,
        ..PrunePolicy::default()
    };
    policy
}

/// Calls whose results are old enough to be cleared by the provider.
fn calls() -> Value {
    let mut body = anthropic(json!("Read them all."));
    let messages = body["messages"].as_array_mut().unwrap();
    for number in 0..6 {
        let id = format!("toolu_01AbCdEf{number:04}");
        let call = json!({"type": "tool_use", "id": id, "name": "Read", "input": {"path": number}});
        let text = format!("Line {number} of the log. ").repeat(20);
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": text});
        messages.push(json!({"role": "assistant", "content": [call]}));
        messages.push(json!({"role": "user", "content": [result]}));
    }
    body
}

/// Requests of others keep the same bytes, whatever was dictated: usage, reasoning and context editing are still
/// requested. (Compaction and counting have tests elsewhere.)
#[tokio::test]
async fn requests_of_other_clients_stay_same_after_dictated_refusals() {
    let at_stake = [
        "include_usage",
        "reasoning_content",
        "reasoning.encrypted_content",
        "clear_tool_uses_20250919",
    ];
    let dictated = [
        ("/v1/chat/completions", "stream_options: Extra inputs are not permitted"),
        ("/v1/chat/completions", "Unknown parameter: 'stream_options'."),
        (
            "/v1/chat/completions",
            "The reasoning_content in the thinking mode must be passed back to the API.",
        ),
        ("/v1/chat/completions", "property 'reasoning_content' is unsupported"),
        ("/v1/messages", "context_management: Extra inputs are not permitted"),
        ("/v1/messages", "compaction: Extra inputs are not permitted"),
        ("/v1/responses", "Unknown parameter: 'include'."),
        ("/v1/responses", "Encrypted content is not supported with this model."),
        ("/v1/messages", "Not Found"),
    ];
    let provider = Provider::start(move |path, body| {
        let lied = dictated.iter().find(|(_, lie)| body.contains(*lie));
        match lied {
            None => (200, reply(path, body)),
            Some((_, lie)) if path.contains("messages") => (400, anthropic_error(lie)),
            Some((_, lie)) => (400, openai_error(lie)),
        }
    })
    .await;
    let mut shared = Shared::by(&provider, edited()).await;
    let mut stream = chat(json!("Yes?"));
    stream["stream"] = json!(true);
    let thought = json!({"model": "some-model", "messages": [{"role": "user", "content": "Yes?"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}, {"role": "user", "content": "So?"}]});
    let responses = json!({"model": "gpt-5.4", "store": false, "input": "Yes?"});
    let honest = [
        ("/v1/chat/completions", stream),
        ("/v1/chat/completions", thought),
        ("/v1/messages", anthropic(json!("Yes?"))),
        ("/v1/responses", responses),
        ("/v1/messages", calls()),
    ];
    // Each time in a new session, so that nothing is decided yet.
    let mut session = 0;
    let mut sends = async |shared: &Shared, key: &str| {
        session += 1;
        provider.seen();
        for (path, body) in &honest {
            let header = format!("x-plimsoll-session: {session}-{}\r\n", body.to_string().len());
            let answer = shared.send(key, path, &body.to_string(), &header).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
        }
        provider.seen()
    };
    let before = sends(&shared, "victim").await;
    for member in at_stake {
        let is_sent = before.iter().any(|(_, body)| body.contains(member));
        assert!(is_sent, "{member} is not sent, so nothing is tested: {before:?}");
    }
    for key in ["liar", "another", "a-third", "a-fourth"] {
        sends(&shared, key).await;
        for (path, lie) in dictated {
            for (member, value) in [(lie, "1"), ("note", lie)] {
                let mut body = match path {
                    "/v1/chat/completions" => chat(json!("Yes?")),
                    "/v1/responses" => json!({"model": "gpt-5.4", "store": false, "input": "Yes?"}),
                    _ => anthropic(json!("Yes?")),
                };
                (body[member], body["stream"]) = (json!(value), json!(true));
                shared.send(key, path, &body.to_string(), "").await;
            }
        }
    }
    assert_eq!(sends(&shared, "victim").await, before);
    assert_eq!(shared.lessons().await, 0);
    shared.restart().await;
    assert_eq!(sends(&shared, "victim").await, before, "after a restart");
}

/// A false count of one client's prompt affects no other client, however absurd it is.
#[tokio::test]
async fn false_token_count_affects_only_client_that_asked() {
    for lie in
        [json!({"input_tokens": 9_000_000_000_u64}), json!({"input_tokens": -1}), json!("a lie")]
    {
        let counts = lie.clone();
        let provider = Provider::start(move |path, body| {
            match (path.contains("count_tokens"), body.contains("a lie")) {
                (true, true) => (200, counts.clone()),
                (true, false) => (200, json!({"input_tokens": 900})),
                (false, true) => (400, anthropic_error("no such thing")),
                (false, false) => (200, reply(path, body)),
            }
        })
        .await;
        let mut policy = Policy::default();
        policy.estimate.count = CountSchedule::Cold;
        let mut shared = Shared::by(&provider, policy).await;
        let theirs = anthropic(long()).to_string();
        for key in ["liar", "another", "a-third"] {
            shared.send(key, "/v1/messages", &anthropic(json!("a lie")).to_string(), "").await;
            shared.server.next_exchange().await;
        }
        assert_eq!(shared.lessons().await, 0, "{lie}");
        for restarts in [false, true] {
            if restarts {
                shared.restart().await;
            }
            provider.seen();
            let answer = shared.send("victim", "/v1/messages", &theirs, "").await;
            assert_eq!(answer.status(), 200, "{lie}");
            let exchange = shared.server.next_exchange().await;
            assert_eq!(exchange.done.overflow, None, "{lie}");
            let seen = provider.seen();
            let turn = seen.iter().find(|(path, _)| !path.contains("count_tokens"));
            assert_eq!(turn.map(|(_, body)| body), Some(&theirs), "{lie}");
        }
    }
}

/// In front of a provider that gets the operator's key.
async fn before_the_operators_key(provider: &Provider) -> Shared {
    let mut shared = Shared::before(provider).await;
    let name = http::HeaderName::from_static("x-api-key");
    for upstream in &mut shared.config.upstreams {
        let secret = plimsoll::config::Secret("the-operators".into());
        upstream.credential = Some((name.clone(), secret));
    }
    shared.restart().await;
    shared
}

/// If the key is the operator's, a client can invent tenants. They do not change the estimates of others.
#[tokio::test]
async fn invented_tenants_behind_one_credential_skew_no_other_estimates() {
    // Until it is loaded, a first estimate is made without it.
    bpe::load(Family::Claude);
    let provider = Provider::start(|path, body| {
        let mut answer = reply(path, body);
        // Text that costs far more than it seems, and not absurdly much; and a reply without usage.
        match body.contains("odd") {
            true => answer["usage"]["input_tokens"] = json!(body.len() * 3 / 4),
            false => drop(answer.as_object_mut().unwrap().remove("usage")),
        }
        (200, answer)
    })
    .await;
    let mut shared = before_the_operators_key(&provider).await;
    let theirs = anthropic(long()).to_string();
    let estimated = async |shared: &mut Shared, key: &str, body: &str| {
        shared.send(key, "/v1/messages", body, "").await;
        shared.server.next_exchange().await.estimate.as_ref().unwrap().tokens
    };
    let before = estimated(&mut shared, "victim", &theirs).await;
    let mut skewed = 0;
    for round in 0..12 {
        for made_up in ["a", "b", "c"] {
            let odd =
                anthropic(json!(format!("odd {round} {}", "tide ".repeat(2_000)))).to_string();
            skewed = estimated(&mut shared, made_up, &odd).await;
        }
    }
    assert!(skewed > 4_000, "who sends it learns from it: {skewed}");
    assert_eq!(estimated(&mut shared, "victim", &theirs).await, before);
    shared.restart().await;
    assert_eq!(estimated(&mut shared, "victim", &theirs).await, before, "after a restart");
}

/// A field that the client wrote with a JSON escape is there already. If we add it, it is there twice, and a strict
/// server refuses that. This teaches nothing about `stream_options`.
#[tokio::test]
async fn refused_duplicate_of_escaped_field_teaches_nothing() {
    let provider = Provider::start(|path, body| {
        let is_twice = body.contains("stream_options") && body.contains("stream\\u005foptions");
        match is_twice {
            true => (400, openai_error("duplicate field `stream_options` at line 1 column 9")),
            false => (200, reply(path, body)),
        }
    })
    .await;
    let shared = Shared::before(&provider).await;
    let mut plain = chat(json!("Yes?"));
    plain["stream"] = json!(true);
    let plain = plain.to_string();
    let hidden = format!("{},\"stream\\u005foptions\":{{}}}}", &plain[..plain.len() - 1]);
    for key in ["liar", "another", "a-third"] {
        let answer = shared.send(key, "/v1/chat/completions", &hidden, "").await;
        assert_eq!(answer.status(), 200, "it is healed all the same");
    }
    provider.seen();
    shared.send("victim", "/v1/chat/completions", &plain, "").await;
    let seen = provider.seen();
    assert!(
        seen[0].1.contains("\"include_usage\":true"),
        "others are still asked for usage: {seen:?}"
    );
    assert_eq!(shared.lessons().await, 0);
}

/// A model that does not exist cannot be counted. This says nothing about the counting endpoint.
#[tokio::test]
async fn missing_model_does_not_disable_counting_endpoint() {
    let provider = Provider::start(|path, body| {
        let missing =
            json!({"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}});
        match (body.contains("no-such-model"), path.contains("count_tokens")) {
            (true, _) => (404, missing),
            (false, true) => (200, json!({"input_tokens": 900})),
            (false, false) => (200, reply(path, body)),
        }
    })
    .await;
    let mut policy = Policy::default();
    policy.estimate.count = CountSchedule::Cold;
    let shared = Shared::by(&provider, policy).await;
    for key in ["liar", "another", "a-third"] {
        let mut lie = anthropic(json!("Yes?"));
        lie["model"] = json!("no-such-model");
        shared.send(key, "/v1/messages", &lie.to_string(), "").await;
        counted(&provider).await;
    }
    assert_eq!(shared.lessons().await, 0);
    shared.send("victim", "/v1/messages", &anthropic(json!("Yes?")).to_string(), "").await;
    counted(&provider).await;
}

/// Waits until the provider was asked for a count.
async fn counted(provider: &Provider) {
    let counting = async {
        while !provider.seen().iter().any(|(path, _)| path.contains("count_tokens")) {
            tokio::task::yield_now().await;
        }
    };
    super::support::within("a question to count", counting).await;
}

/// A true window is learned by whoever met it, however many others met it, too: they may all be one person.
#[tokio::test]
async fn window_holds_for_each_tenant_that_met_it_and_for_nobody_else() {
    let provider = Provider::start(refuses_long).await;
    let mut shared = Shared::before(&provider).await;
    let small = anthropic(json!("Yes?")).to_string();
    let large = anthropic(long()).to_string();
    let window = async |shared: &mut Shared, key: &str, body: &str, header: &str| {
        shared.send(key, "/v1/messages", body, header).await;
        shared.server.next_exchange().await.window.unwrap()
    };
    let believed = window(&mut shared, "victim", &small, "").await;
    for key in ["a", "b", "c", "d"] {
        for body in [&small, &large] {
            window(&mut shared, key, body, "").await;
        }
        assert_eq!(window(&mut shared, key, &small, "").await, 9_000, "{key} has met it");
        let header = format!("x-auth-token: junk-{key}\r\n");
        for body in [&small, &large] {
            window(&mut shared, "victims-colleague", body, &header).await;
        }
    }
    assert_eq!(window(&mut shared, "victim", &small, "").await, believed);
    shared.restart().await;
    assert_eq!(window(&mut shared, "victim", &small, "").await, believed, "after a restart");
    assert_eq!(window(&mut shared, "a", &small, "").await, 9_000, "after a restart");
}

/// A router has backends with other windows. What one of them says is no fact about the model.
#[tokio::test]
async fn window_of_chosen_backend_holds_for_that_choice() {
    let provider = Provider::start(refuses_long).await;
    let mut shared = Shared::before(&provider).await;
    let window = async |shared: &mut Shared, content: Value, only: Option<&str>| {
        let mut body = anthropic(content);
        if let Some(only) = only {
            body["provider"] = json!({"only": [only]});
        }
        shared.send("a", "/v1/messages", &body.to_string(), "").await;
        shared.server.next_exchange().await.window.unwrap()
    };
    let believed = window(&mut shared, json!("Yes?"), None).await;
    window(&mut shared, long(), Some("small")).await;
    assert_eq!(window(&mut shared, json!("Yes?"), Some("small")).await, 9_000);
    assert_eq!(window(&mut shared, json!("Yes?"), Some("large")).await, believed);
    assert_eq!(window(&mut shared, json!("Yes?"), None).await, believed);
}

fn refuses_long(path: &str, body: &str) -> (u16, Value) {
    match body.len() > 60_000 {
        true => (400, anthropic_error("prompt is too long: 27512 tokens > 9000 maximum")),
        false => (200, reply(path, body)),
    }
}

/// The operator can list lessons, share one with all tenants, and delete one.
#[tokio::test]
async fn operator_manages_lessons() {
    let provider = Provider::start(refuses_long).await;
    let serving = Serving::start(&provider.base, &[]).await;
    let large = anthropic(long()).to_string();
    let none = serving.look(&["lessons"]).await;
    assert_eq!(none.code, 0);
    assert_eq!(none.out.trim(), "There are no lessons.");
    send(serving.clients, "a", "/v1/messages", &large, "").await;
    let listed = serving.look(&["lessons", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let lesson = &listed["lessons"][0];
    assert_eq!(lesson["window"], json!(9000), "{listed}");
    assert_eq!(lesson["reach"], json!("tenants"), "{listed}");
    assert!(!listed.to_string().contains("tide"), "no word of a request");
    let id = lesson["id"].as_str().unwrap();
    let table = serving.look(&["lessons"]).await.out;
    assert!(table.contains(id), "{table}");
    assert!(table.contains("those who got it"), "{table}");
    let shared = serving.look(&["lessons", "--share", id]).await;
    assert_eq!(shared.code, 0, "{}", shared.err);
    assert!(serving.look(&["lessons"]).await.out.contains("all: shared"));
    let forgotten = serving.look(&["lessons", "--forget", id]).await;
    assert_eq!(forgotten.code, 0, "{}", forgotten.err);
    assert_eq!(serving.look(&["lessons"]).await.out.trim(), "There are no lessons.");
    let twice = serving.look(&["lessons", "--forget", id]).await;
    assert!(twice.code == 1, "{}", twice.err);
    assert!(twice.err.contains("There is no lesson"), "{}", twice.err);
}
