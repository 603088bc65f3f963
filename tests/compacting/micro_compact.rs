//! All steps of micro-compaction, over sockets: old results are cleared, the threshold is checked, a summary with an
//! analysis is requested, a tail stays, and a boundary names type and count. Each step has its own key and can be
//! switched off.

use std::sync::{Arc, Mutex};

use plimsoll::config::presets::Preset;
use plimsoll::context::plan::{Change, Decision};
use serde_json::{Value, json};

use crate::play::{Play, Scene};

/// Tokens. 80,000 are effective, and the threshold is 67,000.
const WINDOW: u64 = 100_000;
const CLEARED: &str = "[Old tool result content cleared]";
const BOUNDARY: &str = "[CompactBoundary] type=auto messages=";
const SUMMARY: &str = "Files are read one by one.";
const WRITTEN: &str =
    "<analysis>\nMany files.\n</analysis>\n\n<summary>\nFiles are read one by one.\n</summary>";

/// A user who asks for one file after the other: four messages each, results of 1,500 characters.
struct Reader {
    play: Play,
    questions: Arc<Mutex<Vec<Value>>>,
    turns: usize,
}

impl Reader {
    async fn under(also: &str) -> Self {
        let mut play = Play::under(Preset::MicroCompact, also, WINDOW).await;
        let questions = play.write_every_summary(WRITTEN);
        Self { play, questions, turns: 0 }
    }

    /// The user asks with this many words, the model reads a file, and a reply is requested.
    async fn turn(&mut self, count: usize) -> Scene {
        let id = format!("toolu_{:08}AbCd", self.turns);
        self.turns += 1;
        self.play.add_user_message(self.turns, count);
        let call = json!([{"type": "tool_use", "id": id, "name": "Read", "input": {}}]);
        self.play.history.push(json!({"role": "assistant", "content": call}));
        let result = format!("Read:{}", "line of the file\n".repeat(90));
        let result = json!([{"type": "tool_result", "tool_use_id": id, "content": result}]);
        self.play.history.push(json!({"role": "user", "content": result}));
        let client = self.play.send_request().await;
        self.play.read_reply(client).await
    }

    /// Plays turns until something is compacted.
    async fn fill(&mut self) -> Scene {
        for _ in 0..40 {
            let scene = self.turn(8_000).await;
            if is_compacted(&scene) {
                return scene;
            }
        }
        panic!("nothing was compacted")
    }
}

fn is_compacted(scene: &Scene) -> bool {
    let mut steps = scene.exchange.done.steps.iter();
    steps.any(|step| (step.change, step.decision) == (Change::Compacted, Decision::New))
}

fn messages(body: &Value) -> &[Value] {
    body["messages"].as_array().unwrap()
}

/// How many results of a body are cleared, and how many are whole.
fn results(body: &Value) -> (usize, usize) {
    let contents = messages(body).iter().filter_map(|it| it["content"].as_array());
    let results = contents.flatten().filter(|part| part["type"] == "tool_result");
    let (cleared, whole): (Vec<_>, Vec<_>) = results.partition(|it| it["content"] == CLEARED);
    (cleared.len(), whole.len())
}

#[tokio::test]
async fn micro_compact_clears_checks_summarises_keeps_tail_and_marks_boundary() {
    let mut reader = Reader::under("").await;
    // Clearing: from 10 messages on, all results except those in the newest 8 messages.
    for turn in 1..=4usize {
        let scene = reader.turn(30).await;
        let sent = turn * 4 - 1;
        assert_eq!(messages(&scene.sent).len(), sent);
        let cleared = if sent < 10 { 0 } else { turn - 2 };
        assert_eq!(results(&scene.sent), (cleared, turn - cleared), "turn {turn}");
        assert!(!is_compacted(&scene));
    }
    // The check: below the threshold, no summary is requested.
    assert!(reader.questions.lock().unwrap().is_empty());

    let scene = reader.fill().await;
    // The summary: its request is the history with cleared results, otherwise unchanged, and the instruction at its
    // end.
    let question = reader.questions.lock().unwrap()[0].clone();
    let (cleared, whole) = results(&question);
    assert!(cleared >= 2, "{cleared} cleared, {whole} whole");
    assert!(whole <= 2, "{cleared} cleared, {whole} whole");
    let last = messages(&question).last().unwrap()["content"].to_string();
    assert!(last.contains("<analysis> and </analysis>"), "{last}");
    assert!(last.contains("call no tool"), "{last}");
    // Nothing else is kept of what the user said, and the summariser is told so.
    assert!(last.contains("in place of the user's own messages"), "{last}");
    assert!(!last.contains("word for word"), "{last}");
    // The summary without its analysis replaces it, and no text of the user is quoted.
    let sent = messages(&scene.sent);
    let first = sent[0]["content"].as_str().unwrap();
    assert!(first.contains(SUMMARY), "{first}");
    assert!(!first.contains("Many files."), "{first}");
    assert!(!scene.bytes.contains("Question 1:"), "none of the first words");
    // The tail is the client's: at least the newest 8 messages at the time of writing.
    let all = messages(&reader.play.request()).to_vec();
    let tail = &sent[1..];
    assert!(tail.len() >= 8, "{}", tail.len());
    let whole = &all[all.len() - 1 - tail.len()..all.len() - 1];
    for (sent, came) in tail.iter().zip(whole) {
        assert!(sent == came || sent.to_string().contains(CLEARED), "{sent}");
    }
    let open = tail[0]["content"].to_string().contains("tool_result");
    assert!(!open, "no result without its call: {}", tail[0]);
    // A message of the model follows, so the boundary ends the summary's own message.
    let (_, count) = first.rsplit_once(BOUNDARY).unwrap();
    assert!(count.parse::<usize>().unwrap() >= 8, "{first}");
    assert_eq!(tail[0]["role"], "assistant");
    let roles: Vec<&str> = sent.iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert!(roles.windows(2).all(|pair| pair[0] != pair[1]), "{roles:?}");
    // It stays the same, except for what is cleared next.
    let next = reader.turn(30).await;
    assert_eq!(messages(&next.sent)[0], sent[0]);
}

/// Without clearing, the history is summarised as it came.
#[tokio::test]
async fn micro_compact_clears_nothing_without_its_gate() {
    let mut reader = Reader::under("prune.gate = []").await;
    for turn in 1..=5 {
        assert_eq!(results(&reader.turn(30).await.sent), (0, turn));
    }
    reader.fill().await;
    let question = reader.questions.lock().unwrap()[0].clone();
    assert_eq!(results(&question).0, 0);
}

/// Another threshold leads to another moment.
#[tokio::test]
async fn micro_compact_checks_by_configured_threshold() {
    let mut reader = Reader::under("").await;
    reader.fill().await;
    assert!(reader.turns >= 7, "{} turns to 67,000", reader.turns);
    let mut reader = Reader::under("compact.threshold_tokens = 30000").await;
    reader.fill().await;
    assert!(reader.turns <= 6, "{} turns to 30,000", reader.turns);
}

/// Without a summary engine results are cleared, and no summary is requested however full the context is.
#[tokio::test]
async fn micro_compact_writes_no_summary_without_its_engine() {
    let mut reader = Reader::under("compact.engine = \"off\"").await;
    for turn in 1..=12usize {
        let scene = reader.turn(8_000).await;
        assert!(!is_compacted(&scene));
        assert!(messages(&scene.sent).len() == turn * 4 - 1);
    }
    assert!(reader.questions.lock().unwrap().is_empty());
}

/// Without the tagged analysis, another prompt is used, and its reply is used as a whole.
#[tokio::test]
async fn micro_compact_asks_as_configured() {
    let prompt = "Write a summary of the conversation, in one line.";
    let mut reader = Reader::under(&format!("compact.prompt = {prompt:?}")).await;
    let scene = reader.fill().await;
    let question = reader.questions.lock().unwrap()[0].to_string();
    assert!(question.contains(prompt));
    assert!(!question.contains("<analysis>"));
    assert!(scene.bytes.contains(SUMMARY));
}

/// The tail: at least the configured number of messages stays, or as few as the policy says otherwise.
#[tokio::test]
async fn micro_compact_keeps_its_tail() {
    let tail = async |also: &str| {
        let mut reader = Reader::under(also).await;
        let scene = reader.fill().await;
        let sent = messages(&scene.sent);
        // Messages that came since the summary was written stay, too.
        let written = messages(&reader.questions.lock().unwrap()[0]).len();
        let all = messages(&reader.play.request()).len() - 1; // less the reply to it
        let since = all.saturating_sub(written);
        sent.len() - 1 - usize::from(sent[1].to_string().contains(BOUNDARY)) - since
    };
    let eight = tail("").await;
    let twelve = tail("compact.keep_messages = 12").await;
    assert!((8..twelve).contains(&eight), "{eight}, {twelve}");
    assert!(twelve >= 12, "{eight}, {twelve}");
    let with_few_tokens = tail("compact.keep_tokens = 100").await;
    assert_eq!(with_few_tokens, eight, "at least eight messages stay, however large");
}

/// The boundary names type and count if the user speaks next. If it is switched off, none is sent, and no empty message
/// instead of it.
#[tokio::test]
async fn micro_compact_sends_no_boundary_where_none_is_configured() {
    // The eleventh message from the end is the user's.
    for (also, is_there) in [("", true), ("compact.boundary = \"\"", false)] {
        let mut reader = Reader::under(&format!("compact.keep_messages = 11\n{also}")).await;
        let scene = reader.fill().await;
        let sent = messages(&scene.sent);
        assert!(sent[0]["content"].as_str().unwrap().contains(SUMMARY));
        assert!(sent.iter().all(|it| it["content"] != ""), "{sent:?}");
        assert_eq!(scene.bytes.contains("CompactBoundary"), is_there);
        assert_eq!(sent[1]["role"], if is_there { "assistant" } else { "user" });
        if is_there {
            let boundary = sent[1]["content"].as_str().unwrap();
            let count: usize = boundary.strip_prefix(BOUNDARY).unwrap().parse().unwrap();
            // The number of messages in the request that was summarised, which may be the one before this one.
            assert!((8..reader.play.history.len()).contains(&count), "{count}");
            assert!(count % 4 == 3, "{count}");
        }
    }
}
