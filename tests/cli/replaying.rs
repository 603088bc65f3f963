//! If a recording cannot be replayed, the error says why. Recordings are read in all the forms in which they are
//! stored.

use std::process::Stdio;

use serde_json::json;

use tokio::process::Command;

use super::program::run;
use super::running::{open_terminal, read_until};
use super::support::within;

/// Calls of a recording that takes minutes.
const CALLS: u64 = 5_000;

fn line(call: u64) -> String {
    json!({"session": "s", "source": "test", "model": "gpt-4.1", "provider": "openai", "ts": call,
        "flags": [], "new_parts": [{"role": "user", "kind": "text", "text": "Go on, please."}],
        "usage": {"input_total": 5000 + call * 10, "cache_read": 0, "output": 5}})
    .to_string()
}

/// A line of an export: sizes and the estimate, no text.
fn sized() -> String {
    json!({"session": "s", "source": "plimsoll", "model": "gpt-4.1", "provider": "openai", "ts": 1,
        "flags": [], "new_parts": [{"role": "user", "kind": "text", "tokens": 5}],
        "usage": {"input_total": 5000},
        "estimate": {"tokens": 5000, "method": "estimated", "counting": "exact", "new": 0, "gone": 0,
            "breakdown": {"system": 0, "tools": 0, "messages": 5000, "reasoning": 0}}})
    .to_string()
}

#[tokio::test]
async fn replaying_policy_without_recorded_text_is_error_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (export, policy) = (folder.path().join("export.jsonl"), folder.path().join("policy.toml"));
    std::fs::write(&export, format!("{}\n", sized())).unwrap();
    std::fs::write(&policy, "[prune]\ngate = [\"always\"]\n").unwrap();
    let (export, policy) = (export.to_str().unwrap(), policy.to_str().unwrap());
    let done = run(&["replay", "--policy", policy, export]).await;
    assert_eq!(done.code, 1, "{}", done.err);
    assert_eq!(done.out.as_str(), "", "{}", done.err);
    assert!(done.err.contains("these recordings have no content"), "{}", done.err);
    assert!(done.err.contains("--content"), "{}", done.err);
    // Its estimates can still be compared.
    let done = run(&["replay", export]).await;
    assert_eq!(done.code, 0, "{}", done.err);
}

#[tokio::test]
async fn export_is_played_under_policy() {
    let folder = tempfile::tempdir().unwrap();
    let (export, policy) = (folder.path().join("export.jsonl"), folder.path().join("policy.toml"));
    let mut first: serde_json::Value = serde_json::from_str(&sized()).unwrap();
    first["new_parts"][0]["text"] = json!("Go on, please.");
    std::fs::write(&export, format!("{first}\n{}\n", sized())).unwrap();
    std::fs::write(&policy, "").unwrap();
    let arguments = ["replay", "--policy", policy.to_str().unwrap(), export.to_str().unwrap()];
    let done = run(&arguments).await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.starts_with("1 calls with reported usage"), "{}", done.out);
    assert!(done.err.contains("1 of 2 calls have no recorded content"), "{}", done.err);
}

/// On a terminal a long replay says how far it is.
#[tokio::test]
async fn long_replay_shows_progress() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.jsonl");
    let lines: Vec<String> = (0..CALLS).map(line).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let (mut ours, terminal) = open_terminal();
    // Dropped, and so killed, once it has said so: how long the rest takes depends on the machine.
    let _replay = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["replay", "--json", file.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(terminal)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let looking = tokio::task::spawn_blocking(move || {
        read_until(&mut ours, &format!(" of {CALLS}"));
    });
    within("progress", looking).await.unwrap();
}

#[tokio::test]
async fn replaying_folder_without_recordings_is_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "no").unwrap();
    let done = run(&["replay", folder.path().to_str().unwrap()]).await;
    assert_eq!(done.code, 1);
    assert_eq!(done.out.as_str(), "");
    assert!(done.err.contains("contains no recorded session"), "{}", done.err);
    std::fs::write(folder.path().join("empty.jsonl"), "\n").unwrap();
    let done = run(&["replay", folder.path().to_str().unwrap()]).await;
    assert_eq!(done.code, 1);
    assert_eq!(done.out.as_str(), "");
    assert!(done.err.contains("no recorded call"), "{}", done.err);
}

#[tokio::test]
async fn compressed_recording_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{}\n{}\n{}\n", line(1), line(2), line(3));
    let plain = folder.path().join("plain.jsonl");
    std::fs::write(&plain, &text).unwrap();
    let within = folder.path().join("compressed");
    std::fs::create_dir(&within).unwrap();
    let packed = within.join("session.jsonl.zst");
    std::fs::write(&packed, zstd::encode_all(text.as_bytes(), 3).unwrap()).unwrap();
    let expected = run(&["replay", plain.to_str().unwrap()]).await;
    assert_eq!(expected.code, 0, "{}", expected.err);
    for path in [packed.as_path(), &within] {
        let done = run(&["replay", path.to_str().unwrap()]).await;
        assert_eq!(done.code, 0, "{}", done.err);
        assert_eq!(done.out, expected.out, "{}", done.err);
    }
    std::fs::write(&packed, "no frame").unwrap();
    let done = run(&["replay", packed.to_str().unwrap()]).await;
    assert!(done.code == 1, "{}", done.err);
    assert!(done.err.contains("cannot be read"), "{}", done.err);
}

fn costs_of(family: &str, cost: u32) -> serde_json::Value {
    json!({ "family": family, "classes": vec![cost; 240], "frequent": [] })
}

/// Fitted costs are judged by sessions that were left out of the fit: these are replayed with given costs.
#[tokio::test]
async fn token_costs_given_to_replay_replace_fitted_ones() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let claude =
        |call| line(call).replace("gpt-4.1", "claude-opus-5").replace("openai", "anthropic");
    std::fs::write(at("session.jsonl"), format!("{}\n{}\n", claude(1), claude(2))).unwrap();
    let mut counted = Vec::new();
    for cost in [2, 4] {
        let costs = costs_of("claude-new", cost);
        std::fs::write(at("costs.json"), costs.to_string()).unwrap();
        let arguments = ["replay", "--pairs", "--costs", &at("costs.json"), &at("session.jsonl")];
        let done = run(&arguments).await;
        assert_eq!(done.code, 0, "{}", done.err);
        let pair: serde_json::Value = serde_json::from_str(done.out.trim()).unwrap();
        counted.push(pair["words"].as_u64().unwrap());
    }
    assert!(counted[0] > 0, "{counted:?}");
    assert!(counted[1] == 2 * counted[0], "{counted:?}");
    for unfit in [costs_of("o200k", 2), json!([1]), json!("no")] {
        std::fs::write(at("costs.json"), unfit.to_string()).unwrap();
        let done = run(&["replay", "--costs", &at("costs.json"), &at("session.jsonl")]).await;
        assert_eq!(done.code, 1);
        assert_eq!(done.out.as_str(), "");
        assert!(done.err.contains("costs.json has no costs"), "{}", done.err);
    }
}
