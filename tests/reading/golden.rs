//! Golden cases: each is a folder with what was on the wire and what we read in it.
//!
//! `PLIMSOLL_BLESS=1` writes the expectations; changes are then reviewed as a diff. A new provider quirk is a new
//! folder, and no Rust.

use std::path::{Path, PathBuf};

use plimsoll::dialect::{self, Conversation, Part, Reply};
use serde_json::{Value, json};

use crate::corpus::{DIALECTS, files, read};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden")
}

#[test]
fn golden_cases_read_as_expected() {
    let bless = std::env::var_os("PLIMSOLL_BLESS").is_some();
    let (mut count, mut wrong) = (0, Vec::new());
    for (dialect, name) in DIALECTS {
        for case in files(&cases().join(name)) {
            let seen = outline(dialect, &case);
            let expected = case.join("expected.json");
            let text = format!("{seen:#}\n");
            if bless {
                std::fs::write(&expected, &text).unwrap();
            }
            if std::fs::read_to_string(&expected).unwrap_or_default() != text {
                wrong.push(case.display().to_string());
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "not read as expected:\n{}", wrong.join("\n"));
    assert!(count >= 50, "golden cases are missing: {count}");
}

fn outline(dialect: plimsoll::dialect::Dialect, case: &Path) -> Value {
    let mut all = serde_json::Map::new();
    if let Ok(request) = std::fs::read(case.join("request.json")) {
        let target = std::fs::read_to_string(case.join("target.txt")).unwrap_or_default();
        let read = dialect::read(dialect, target.trim(), &request);
        all.insert("conversation".into(), conversation(&read, &request));
    }
    for (name, status) in [("response.sse", 200), ("response.json", 200), ("error.json", 400)] {
        if let Ok(response) = std::fs::read(case.join(name)) {
            all.insert("reply".into(), reply(&read(dialect, status, &response, usize::MAX, true)));
        }
    }
    assert!(!all.is_empty(), "{case:?} holds neither request nor response");
    all.into()
}

fn conversation(read: &Conversation, body: &[u8]) -> Value {
    let parts = |parts: &[Part]| parts.iter().map(|p| part(p, body)).collect::<Vec<_>>();
    let messages = read.messages.iter().map(|message| parts(&message.parts)).collect::<Vec<_>>();
    json!({
        "model": read.model, "purpose": read.purpose, "stream": read.stream,
        "max_output": read.max_output, "held": read.held.as_ref().map(|held| format!("{held:?}")),
        "session": read.session, "notes": read.notes,
        "chain": read.chains().last(),
        "system": parts(&read.system), "tools": parts(&read.tools), "messages": messages,
    })
}

/// A part in one line: kind, role, ids, the length of each text, its media and its key.
fn part(part: &Part, body: &[u8]) -> Value {
    let texts: Vec<usize> = part.texts.iter().map(|text| text.slice(body).len()).collect();
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let mut line = format!("{} of {}", word(json!(part.kind)), word(json!(part.role)));
    for (name, value) in [("id", &part.id), ("name", &part.name)] {
        if let Some(value) = value {
            line += &format!(", {name} {value}");
        }
    }
    line += &format!(", texts {texts:?}");
    if let Some(sealed) = part.signature {
        line += &format!(", sealed {}", sealed.len());
    }
    if let Some(media) = &part.media {
        let bytes = media.data.map_or("elsewhere".into(), |data| data.len().to_string());
        line += &format!(", media {} {bytes}", media.mime.as_deref().unwrap_or("?"));
    }
    if part.is_error {
        line += ", error";
    }
    line += &part.key.map_or(", no key".into(), |key| format!(", key {key}"));
    line.into()
}

fn reply(reply: &Reply) -> Value {
    let parts = reply.parts.iter().map(|part| {
        json!({
            "kind": part.kind, "text": part.text.len(), "id": part.id, "name": part.name,
            "sealed": part.signature.as_ref().map(|sealed| sealed.len()),
            "raw": part.raw.as_ref().map(|raw| raw.len()), "key": part.key,
        })
    });
    json!({
        "id": reply.id, "model": reply.model, "stop": reply.stop, "complete": reply.complete,
        "error": reply.error.as_ref().map(|error| json!({"kind": error.kind, "has_message": error.message.is_some()})),
        "counted": reply.counted, "notes": reply.notes, "usage": reply.usage,
        "parts": parts.collect::<Vec<_>>(),
    })
}
