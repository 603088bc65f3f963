//! What compaction makes a client wait: sessions that fill their window again and again, a summariser that
//! takes 20 s, and three Plimsolls side by side at the same time: summaries prepared in the background
//! (the default), written once they are needed (`prepare = 1`), and none at all.
//!
//! The provider answers at once, so what a client waits is the proxy's doing.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use crate::load::Load;
use crate::process::{self, Part, Plimsoll};

/// Tokens; the output reserve takes a quarter of it.
const WINDOW: usize = 30_000;
/// How long a summary takes to be written.
const WRITING: Duration = Duration::from_secs(20);
/// From one request of a session to the next: a model that thinks, a tool that runs.
const PACE: Duration = Duration::from_secs(3);
/// What a turn adds, tokens, up to the prepare mark and past it.
const STEPS: (usize, usize) = (1_800, 200);
/// Sessions of each server, and their turns: two windows full.
const SESSIONS: usize = 8;
const TURNS: usize = 52;
/// Part of every request for a summary.
const ASKS: &[u8] = b"Write a summary of the conversation";

/// Serves until killed: a turn is answered at once, a summary takes its time.
pub(crate) fn serve() {
    crate::floor::accept(|stream| {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer))
    });
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let words = match memchr::memmem::find(&body, ASKS) {
        Some(_) => {
            tokio::time::sleep(WRITING).await;
            "<summary>Much was read, and all of it was of use.</summary>".to_owned()
        }
        None => format!("That was answer {}.", NUMBER.fetch_add(1, Ordering::Relaxed)),
    };
    let reply = serde_json::json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": words}], "stop_reason": "end_turn",
        "usage": {"input_tokens": tokens(body.len()), "output_tokens": 20},
    });
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::from(reply.to_string())).unwrap())
}

/// Words of four letters and a blank are a token each.
fn tokens(bytes: usize) -> usize {
    bytes / 5
}

/// What the sessions of one server waited, seconds.
struct Row {
    name: &'static str,
    waits: Vec<f64>,
    /// Requests that took a summary into use, and those that the window could not hold.
    compacted: usize,
    over: usize,
}

/// Prints the table.
pub(crate) async fn print() {
    let provider = Part::start("slow-summariser", &[]);
    let models = format!("[model.\"claude-sonnet-4-5\"]\nwindow_tokens = {WINDOW}\n");
    let server = |compact: &str| Plimsoll::with(&provider.address, &format!("{models}{compact}"));
    let servers = [
        ("prepared", server("")),
        ("prepare = 1", server("[compact]\nprepare = 1.0\n")),
        ("none", server("[compact]\nengine = \"off\"\n")),
    ];
    let playing = servers.iter().map(|(name, server)| row(name, Load::new(&server.address)));
    let rows = futures_util::future::join_all(playing).await;
    println!(
        "compaction: {SESSIONS} sessions of {TURNS} turns, one every {} s, window {WINDOW}, a summary takes {} s",
        PACE.as_secs(),
        WRITING.as_secs()
    );
    println!(
        "{:<14}{:>10}{:>12}{:>10}{:>10}{:>10}{:>14}{:>13}",
        "", "requests", "compacted", "p50 ms", "p99 ms", "max ms", "waited > 1 s", "over window"
    );
    for Row { name, mut waits, compacted, over } in rows {
        waits.sort_by(f64::total_cmp);
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize] * 1e3;
        let long = waits.iter().filter(|wait| **wait > 1.0).count();
        let (p50, p99, most) = (at(0.5), at(0.99), at(1.0));
        let count = waits.len();
        println!(
            "{name:<14}{count:>10}{compacted:>12}{p50:>10.1}{p99:>10.1}{most:>10.1}{long:>14}{over:>13}"
        );
    }
    println!("({})\n", process::machine());
}

async fn row(name: &'static str, load: Load) -> Row {
    let sessions = (0..SESSIONS).map(|number| tokio::spawn(session(load.clone(), number)));
    let mut row = Row { name, waits: Vec::new(), compacted: 0, over: 0 };
    for session in futures_util::future::join_all(sessions).await {
        let (waits, compacted, over) = session.unwrap();
        row.waits.extend(waits);
        row.compacted += compacted;
        row.over += over;
    }
    row
}

/// One session: what each request waited, how often its context shrank, how often it was too large.
async fn session(load: Load, number: usize) -> (Vec<f64>, usize, usize) {
    tokio::time::sleep(PACE * number as u32 / SESSIONS as u32).await;
    let usable = WINDOW - WINDOW / 4;
    let mark = usable * 8 / 10;
    let (mut messages, mut waits) = (Vec::new(), Vec::new());
    let (mut input, mut compacted, mut over) = (0, 0, 0);
    for turn in 0..TURNS {
        let step = if input < mark { STEPS.0 } else { STEPS.1 };
        let words = format!("Session {number}, turn {turn}: {}", "read ".repeat(step));
        messages.push(serde_json::json!({"role": "user", "content": words}));
        let body = serde_json::json!({"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": messages});
        let began = Instant::now();
        let answer = load.say(&format!("bench-{number}"), body.to_string()).await;
        waits.push(began.elapsed().as_secs_f64());
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        messages.push(serde_json::json!({"role": "assistant", "content": answer["content"]}));
        let before = std::mem::replace(
            &mut input,
            answer["usage"]["input_tokens"].as_u64().unwrap() as usize,
        );
        compacted += usize::from(input < before);
        over += usize::from(input > WINDOW);
        tokio::time::sleep_until((began + PACE).into()).await;
    }
    (waits, compacted, over)
}
