//! Recorded sessions are replayed through the estimator: how wrong it is, and that it cannot look ahead.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll::dialect::models::Catalogue;
use plimsoll::dialect::{self, Dialect, PartKind};
use plimsoll::tokens::classic::ClassicRules;
use plimsoll_replay as replay;
use plimsoll_replay::score::{EstimatePair, SIZES_BELOW, Scores};
use plimsoll_replay::transcript::{ClientHistory, TranscriptLine};

/// The project's own recordings.
fn recorded() -> Vec<String> {
    recorded_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/transcripts"))
}

fn recorded_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|is| is == "zst")).collect();
    files.sort();
    let unpack = |path| zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let texts = files.iter().map(|path| String::from_utf8(unpack(path)).unwrap());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn lines(texts: &[String]) -> Vec<TranscriptLine> {
    texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn played(texts: &[String], rules: &[ClassicRules]) -> Vec<EstimatePair> {
    replay::play(&lines(texts), &Catalogue::new(Vec::new()), rules, None, |_| ())
}

fn of(pairs: &[EstimatePair], provider: &str) -> Scores {
    Scores::from_pairs(pairs.iter().filter(|pair| pair.visible && pair.provider == provider))
}

/// Measured values with a small margin: if a rule breaks, it shows here.
#[test]
fn recordings_are_estimated_well() {
    let pairs = played(&recorded(), &[ClassicRules::default()]);
    let openai = of(&pairs, "openai");
    assert!(openai.pairs >= 15, "{openai:?}");
    assert!(openai.median_abs_pct == 0.0, "{openai:?}");
    assert!(openai.exact_share > 0.8, "{openai:?}");
    let anthropic = of(&pairs, "anthropic");
    assert!(anthropic.pairs >= 35, "{anthropic:?}");
    assert!(anthropic.median_abs_pct < 0.05, "{anthropic:?}");
    let gemini = of(&pairs, "gemini");
    assert!(gemini.pairs >= 70, "{gemini:?}");
    assert!(gemini.median_abs_pct < 0.1, "{gemini:?}");
    let classic = pairs.iter().filter(|pair| pair.visible);
    let classic: Vec<EstimatePair> =
        classic.map(|pair| EstimatePair { tokens: pair.classic[0], ..pair.clone() }).collect();
    let ours = Scores::from_pairs(pairs.iter().filter(|pair| pair.visible));
    assert!(ours.median_abs_pct * 2.0 < Scores::from_pairs(&classic).median_abs_pct);
}

/// The band of a call with an anchor holds by model and by the size of what is new, not only on average.
#[test]
fn estimate_bands_hold_for_each_model_and_size_of_new_input() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/transcripts");
    let texts = [recorded_in(&folder), recorded_in(&folder.join("long"))].concat();
    // Few of these calls have comparable usage: most only take time.
    let mut lines = lines(&texts);
    lines.retain(|line| line.source != "entireio-cc");
    let pairs = replay::play(&lines, &Catalogue::new(Vec::new()), &[], None, |_| ());
    let mut models: BTreeMap<&str, Vec<&EstimatePair>> = BTreeMap::new();
    for pair in pairs.iter().filter(|pair| pair.visible) {
        models.entry(&pair.model).or_default().push(pair);
    }
    let mut checked = 0;
    for (model, pairs) in models {
        for (below, band) in SIZES_BELOW.into_iter().zip(Scores::from_pairs(pairs).bands_by_size) {
            let (calls, share) = (band.pairs, band.share());
            println!(
                "{model}, new part below {below}: {calls} calls, {:.1} % in band",
                share * 100.0
            );
            // Fewer calls would show chance, not the band.
            if calls >= 40 {
                checked += 1;
                assert!(
                    (0.88..=0.99).contains(&share),
                    "{model}, below {below}: {share:.3} of {calls}"
                );
            }
        }
    }
    assert!(checked >= 8, "{checked} groups are large enough");
}

/// A client may send more than it records. That is proven only if an identical call of the session cost much less.
/// Estimates prove nothing.
#[test]
fn unrecorded_input_is_proven_by_cheaper_identical_call() {
    let call = |tool: &str, result: &str, cost: u64| (tool.to_owned(), result.to_owned(), cost);
    let excesses = |calls: &[(String, String, u64)]| {
        let mut input = 9_000;
        let mut texts = vec![
            serde_json::json!({ "session": "s", "model": "claude-opus-4-5", "provider": "anthropic",
                "new_parts": [{ "role": "user", "kind": "text", "text": "Go." }],
                "usage": { "input_total": input, "output": 50 } })
            .to_string(),
        ];
        for (tool, result, cost) in calls {
            input += 50 + cost;
            let parts = serde_json::json!([
                { "role": "assistant", "kind": "tool_use", "name": tool, "text": "{}", "reply": true },
                { "role": "user", "kind": "tool_result", "text": result },
            ]);
            texts.push(
                serde_json::json!({ "session": "s", "model": "claude-opus-4-5", "new_parts": parts,
                    "provider": "anthropic", "usage": { "input_total": input, "output": 50 } })
                .to_string(),
            );
        }
        let pairs = played(&texts, &[]);
        assert_eq!(pairs.len(), calls.len());
        assert!(pairs.iter().all(|pair| pair.visible == pair.excess.is_none()));
        pairs.iter().map(|pair| pair.excess).collect::<Vec<_>>()
    };
    let [ok, more] = [45, 149].map(|cost| call("Edit", "The file has been updated.", cost));
    let other = |cost| call("Edit", "Another file has been updated.", cost);
    let dear = [ok.clone(), more.clone(), other(400), more.clone(), ok.clone()];
    assert_eq!(excesses(&dear), [None, Some(104), None, Some(104), None]);
    // The cheaper call may come later. Another tool's call, or a few tokens, prove nothing.
    let late = [more.clone(), call("Bash", "The file has been updated.", 20), ok];
    assert_eq!(excesses(&late), [Some(104), None, None]);
    assert_eq!(excesses(&[other(40), other(99), other(100)]), [None, None, Some(60)]);
    // Equal calls with the same high cost prove nothing.
    assert_eq!(excesses(&[more.clone(), more]), [None, None]);
}

/// Gemini may read the reasoning of its last reply or not, and reports it beside the output. What it may have read proves
/// nothing.
#[test]
fn call_that_may_have_read_reasoning_is_not_proven_to_have_hidden_input() {
    let excesses = |calls: &[(u64, u64)]| {
        let mut input = 9_000;
        let mut texts = Vec::new();
        for (cost, next) in calls {
            let parts = match texts.is_empty() {
                true => serde_json::json!([{ "role": "user", "kind": "text", "text": "Go." }]),
                false => serde_json::json!([
                    { "role": "assistant", "kind": "thinking", "text": "", "reply": true },
                    { "role": "assistant", "kind": "tool_use", "name": "replace", "text": "{}", "reply": true },
                    { "role": "user", "kind": "tool_result", "text": "The file has been updated." },
                ]),
            };
            input += cost;
            let usage =
                serde_json::json!({ "input_total": input, "output": 50, "reasoning": next });
            let line = serde_json::json!({ "session": "s", "model": "gemini-3-pro-preview", "provider": "gemini",
                "new_parts": parts, "usage": usage });
            texts.push(line.to_string());
        }
        played(&texts, &[]).iter().map(|pair| pair.excess).collect::<Vec<_>>()
    };
    // Each reply thinks for so many tokens, which the next call reads, or does not.
    let read = [(0, 100), (50 + 40 + 100, 300), (50 + 40 + 300, 300), (50 + 40, 7)];
    assert_eq!(excesses(&read), [None; 3]);
    // 75 tokens more than all of it.
    assert_eq!(excesses(&[(0, 0), (50 + 40, 100), (50 + 40 + 175, 7)]), [None, Some(75)]);
}

/// The usage and the text of a session's last call change no earlier estimate.
#[test]
fn later_calls_change_no_estimate() {
    let texts = recorded();
    let whole = played(&texts, &[]);
    let latest =
        |lines: &[TranscriptLine]| (0..lines.len()).max_by_key(|at| lines[*at].at()).unwrap();
    let last = latest(&lines(&texts));
    let mut changed: serde_json::Value = serde_json::from_str(&texts[last]).unwrap();
    changed["usage"]["input_total"] = 7.into();
    changed["usage"]["output"] = 7.into();
    let mut other = texts.clone();
    other[last] = changed.to_string();
    let other = played(&other, &[]);
    assert_eq!(whole.len(), other.len());
    let tokens = |pairs: &[EstimatePair]| pairs.iter().map(|pair| pair.tokens).collect::<Vec<_>>();
    assert_eq!(tokens(&whole), tokens(&other));
}

/// A call of an invented session.
fn line(provider: &str, parts: &serde_json::Value) -> TranscriptLine {
    serde_json::from_value(serde_json::json!({
        "session": "s", "model": "m", "provider": provider, "new_parts": parts,
        "usage": { "input_total": 900, "output": 9 },
    }))
    .unwrap()
}

/// Calls whose results are only pictures were once read as text of the user, and counted 17 tokens or more too low
/// each.
#[test]
fn results_with_only_pictures_are_read_as_tool_results() {
    for (provider, dialect) in [
        ("anthropic", Dialect::Anthropic),
        ("openai", Dialect::OpenaiResponses),
        ("gemini", Dialect::Gemini),
    ] {
        for (calls, pictures) in [(1, 1), (2, 2), (3, 3), (1, 3)] {
            let call = serde_json::json!({ "role": "assistant", "kind": "tool_use", "name": "look",
                "text": "{}", "reply": true });
            let picture = serde_json::json!({ "role": "user", "kind": "image", "w": 320, "h": 200,
                "mime": "image/png", "in_tool_result": true });
            let mut parts = vec![call; calls];
            parts.extend(vec![picture; pictures]);
            let mut history = ClientHistory::default();
            let question = [serde_json::json!({ "role": "user", "kind": "text", "text": "Look." })];
            history.add(&line(provider, &serde_json::json!(question)));
            let last = line(provider, &serde_json::json!(parts));
            history.add(&last);
            let (path, body) = history.request(&last, dialect);
            let read = dialect::read(dialect, &path, &body);
            let all = |kind| read.parts().filter(|part| part.kind == kind).count();
            let text = String::from_utf8_lossy(&body);
            assert_eq!(all(PartKind::ToolResult), calls, "{provider}: {text}");
            assert_eq!(text.matches("iVBOR").count(), pictures, "{provider}: {text}");
        }
    }
}

/// A recording marks what its client cleared later: from the turn on that the client's rule says, the replay sends the
/// cleared result.
#[test]
fn results_that_client_cleared_later_are_cleared_in_replay() {
    let result = |at: usize| {
        serde_json::json!([
            { "role": "assistant", "kind": "tool_use", "name": "read", "text": "{}", "reply": true },
            { "role": "user", "kind": "tool_result", "text": format!("<{at}>{}", "x".repeat(100_000)),
              "cleared_later": at < 2 },
        ])
    };
    let says = serde_json::json!([{ "role": "user", "kind": "text", "text": "Go on." }]);
    let mut history = ClientHistory::default();
    let mut cleared = |parts: &serde_json::Value| {
        let line = line("openai", parts);
        history.add(&line);
        let (_, body) = history.request(&line, Dialect::OpenaiResponses);
        let body = String::from_utf8(body).unwrap();
        let left = (0..4).filter(|at| body.contains(&format!("<{at}>"))).collect::<Vec<_>>();
        (body.matches("[Old tool result content cleared]").count(), left)
    };
    cleared(&says);
    (0..4).for_each(|at| assert_eq!(cleared(&result(at)).0, 0, "in the turn itself"));
    assert_eq!(cleared(&says).0, 0, "the last turn is protected");
    assert_eq!(cleared(&says).0, 0, "and the one before it");
    assert_eq!(cleared(&says), (2, vec![2, 3]));
}
