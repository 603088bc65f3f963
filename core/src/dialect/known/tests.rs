use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::body::SHORT;
use super::*;
use crate::dialect::recordings::{DIALECTS, data, files};
use crate::dialect::size::RequestSize;
use crate::dialect::{self, Dialect, paths};
use crate::wire::json::{Document, most_values};
use crate::wire::memory::MemoryLimit;

fn memory() -> Arc<ElementMemory> {
    Arc::new(ElementMemory::new(1, 64 << 20, Box::new(MemoryLimit(64 << 20))))
}

/// Reads a body with what is known, compares it with a full reading, and remembers it. Returns how many bytes of
/// elements had to be read.
fn check(memory: &Arc<ElementMemory>, dialect: Dialect, target: &str, body: &[u8]) -> usize {
    let mut elements = BodyElements::new(memory.clone(), dialect, 7);
    let most = most_values(body.len());
    let known = elements.document(body, most);
    let full = Document::read_most(body, most);
    assert_eq!(known.as_ref().err(), full.as_ref().err(), "{}", shown(body));
    let (known, full) = (known.unwrap_or_default(), full.unwrap_or_default());
    let size = RequestSize::from_document(&known, body, elements.items());
    assert_eq!(size, RequestSize::from_document(&full, body, 0), "{}", shown(body));
    let read = dialect::read_in(&known, dialect, target, body, &mut elements);
    assert_eq!(read, dialect::read(dialect, target, body), "{}", shown(body));
    let fresh = elements.fresh_bytes();
    elements.remember();
    fresh
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

/// A request of a client: dialect, target, body.
type Recorded = (Dialect, String, Vec<u8>);

/// The requests of one recording each, in order.
fn recordings() -> Vec<Vec<Recorded>> {
    let mut recordings = Vec::new();
    let agents = files(&data("agents"));
    for path in agents.iter().filter(|path| path.extension().is_some_and(|it| it == "zst")) {
        let text = zstd::decode_all(std::fs::read(path).unwrap().as_slice()).unwrap();
        let mut requests = Vec::new();
        for line in String::from_utf8(text).unwrap().lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            let (target, body) = (line["target"].as_str(), line["body"].as_str());
            if let (Some(target), Some(body)) = (target, body)
                && let Some(endpoint) = paths::endpoint(&http::Method::POST, target)
            {
                requests.push((endpoint.dialect, target.to_owned(), body.as_bytes().to_vec()));
            }
        }
        recordings.push(requests);
    }
    for (dialect, name) in DIALECTS {
        for path in files(&data("conversations").join(name)) {
            let text = std::fs::read_to_string(path).unwrap();
            let requests = text.lines().map(|line| {
                let call: Json = serde_json::from_str(line).unwrap();
                let target = call["endpoint"].as_str().unwrap_or_default().to_owned();
                (dialect, target, serde_json::to_vec(&call["request"]).unwrap())
            });
            recordings.push(requests.collect());
        }
    }
    recordings
}

/// All recordings, twice: what is known never changes what is read.
#[test]
fn recorded_requests_read_the_same() {
    let memory = memory();
    let recordings = recordings();
    let mut read = [0; 2];
    for bytes in &mut read {
        for (dialect, target, body) in recordings.iter().flatten() {
            *bytes += check(&memory, *dialect, target, body);
        }
    }
    let whole: usize = recordings.iter().flatten().map(|(.., body)| body.len()).sum();
    // Also the second time, every recording begins with its shortest request.
    assert!(read[1] < read[0], "{read:?} of {whole}");
    assert!(read[0] * 2 < whole, "{read:?} of {whole}");
}

/// What a client may do to a request between two turns.
#[derive(Clone, Debug)]
enum ClientEdit {
    /// An element of a list goes, comes twice, or is exchanged with another.
    Remove(usize, usize),
    Double(usize, usize),
    Swap(usize, usize, usize),
    /// A text in it is another.
    Text(usize, usize, String),
    /// The cache marker is on another message.
    Mark(usize),
    /// Members in another order, so that tools or system come last.
    Turn(usize),
    /// White space.
    Pretty,
    /// Bytes: some go, others come.
    Bytes(usize, usize, Vec<u8>),
}

fn edit() -> impl Strategy<Value = ClientEdit> {
    let at = 0..1000usize;
    let list = 0..4usize;
    prop_oneof![
        (list.clone(), at.clone()).prop_map(|(list, at)| ClientEdit::Remove(list, at)),
        (list.clone(), at.clone()).prop_map(|(list, at)| ClientEdit::Double(list, at)),
        (list.clone(), at.clone(), at.clone())
            .prop_map(|(list, one, other)| ClientEdit::Swap(list, one, other)),
        (list, at.clone(), ".{0,12}").prop_map(|(list, at, text)| ClientEdit::Text(list, at, text)),
        at.clone().prop_map(ClientEdit::Mark),
        at.prop_map(ClientEdit::Turn),
        Just(ClientEdit::Pretty),
        (
            any::<usize>(),
            0..6usize,
            proptest::collection::vec(
                prop_oneof![proptest::sample::select(br#"{}[]",:\ 1"#.to_vec()), any::<u8>()],
                0..4
            )
        )
            .prop_map(|(at, gone, with)| ClientEdit::Bytes(at, gone, with)),
    ]
}

impl ClientEdit {
    fn apply(&self, body: &[u8]) -> Vec<u8> {
        if let Self::Bytes(at, gone, with) = self {
            let at = at % (body.len() + 1);
            let end = (at + gone).min(body.len());
            return [&body[..at], with, &body[end..]].concat();
        }
        let Ok(mut request) = serde_json::from_slice::<Json>(body) else { return body.to_vec() };
        let Some(members) = request.as_object_mut() else { return body.to_vec() };
        match self {
            Self::Pretty => return serde_json::to_vec_pretty(&request).unwrap(),
            Self::Turn(by) => {
                let by = by % members.len().max(1);
                let all: Vec<_> = std::mem::take(members).into_iter().collect();
                members.extend(all[by..].iter().chain(&all[..by]).cloned());
            }
            Self::Mark(at) => {
                if let Some(messages) = members.get_mut("messages").and_then(Json::as_array_mut)
                    && let count @ 1.. = messages.len()
                {
                    for message in messages.iter_mut().filter_map(Json::as_object_mut) {
                        message.shift_remove("cache_control");
                    }
                    if let Some(message) = messages[at % count].as_object_mut() {
                        let ttl = if at % 2 == 0 { "1h" } else { "5m" };
                        let marker = json!({"type": "ephemeral", "ttl": ttl});
                        message.insert("cache_control".into(), marker);
                    }
                }
            }
            Self::Remove(list, at) => {
                in_list(members, *list, |list| {
                    list.remove(at % list.len());
                });
            }
            Self::Double(list, at) => in_list(members, *list, |list| {
                let at = at % list.len();
                list.insert(at, list[at].clone());
            }),
            Self::Swap(list, one, other) => in_list(members, *list, |list| {
                let count = list.len();
                list.swap(one % count, other % count);
            }),
            Self::Text(list, at, text) => in_list(members, *list, |list| {
                let at = at % list.len();
                set_text(&mut list[at], text);
            }),
            Self::Bytes(..) => {}
        }
        serde_json::to_vec(&request).unwrap()
    }
}

fn in_list(
    members: &mut serde_json::Map<String, Json>,
    list: usize,
    change: impl FnOnce(&mut Vec<Json>),
) {
    let lists = members.values_mut().filter_map(Json::as_array_mut);
    let mut lists: Vec<_> = lists.filter(|list| !list.is_empty()).collect();
    let count = lists.len();
    if count > 0 {
        change(lists[list % count]);
    }
}

fn set_text(value: &mut Json, with: &str) {
    match value {
        Json::String(text) => *text = with.to_owned(),
        Json::Array(list) => list.iter_mut().for_each(|value| set_text(value, with)),
        Json::Object(members) => {
            for name in ["content", "text", "parts", "description", "output"] {
                if let Some(value) = members.get_mut(name) {
                    set_text(value, with);
                }
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Requests of all dialects, edited in any way, are read as if nothing were known.
    #[test]
    fn edited_requests_read_the_same(
        pick in any::<proptest::sample::Index>(),
        edits in proptest::collection::vec(edit(), 1..12),
    ) {
        thread_local!(static RECORDINGS: Vec<Vec<Recorded>> = recordings());
        RECORDINGS.with(|recordings| {
            let memory = memory();
            let requests = &recordings[pick.index(recordings.len())];
            for (dialect, target, body) in requests {
                check(&memory, *dialect, target, body);
                let mut body = body.clone();
                for edit in &edits {
                    body = edit.apply(&body);
                    check(&memory, *dialect, target, &body);
                }
            }
        });
    }
}

/// An agent's request: so many calls with results, of which the message at `marked` has the cache marker.
fn request(owner: &str, calls: usize, marked: usize) -> Vec<u8> {
    let mut messages = vec![json!({"role": "user", "content": format!("Do it, {owner}.")})];
    for call in 0..calls {
        let id = format!("toolu_{owner}_{call:08}");
        messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": format!("I look at {call}.")},
            {"type": "tool_use", "id": id, "name": "Read", "input": {"path": "src/lib.rs", "offset": call}}]}));
        messages
            .push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id,
            "content": format!("{call} {}", "The secret is out. ".repeat(50))}]}));
    }
    messages[marked]["cache_control"] = json!({"type": "ephemeral"});
    let tools: Vec<Json> = (0..20)
        .map(|tool| json!({"name": format!("t{tool}"), "description": "Does it. ".repeat(40), "input_schema": {}}))
        .collect();
    let request =
        json!({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages, "tools": tools});
    serde_json::to_vec(&request).unwrap()
}

#[test]
fn only_what_changed_is_read() {
    let memory = memory();
    let read = |body: &[u8]| check(&memory, Dialect::Anthropic, "/v1/messages", body);
    let whole = read(&request("a", 60, 0));
    assert!(whole > 60_000, "{whole}");
    // The first message and the first tool are looked at to find the rest.
    let first = read(&request("a", 60, 0));
    assert!(first < 1_000, "{first}");
    let one_more = read(&request("a", 61, 0)) - first;
    assert!(one_more < 2_000, "{one_more}: a step");
    let moved = read(&request("a", 61, 80)) - first;
    assert!(moved < 2_000, "{moved}: two messages, of which one is among the first");
    let moved = read(&request("a", 61, 100)) - first;
    assert!(moved < 3_000, "{moved}: two messages");
}

/// Two conversations that begin alike do not push each other out.
#[test]
fn branches_are_known_side_by_side() {
    let memory = memory();
    let read = |body: &[u8]| check(&memory, Dialect::Anthropic, "/v1/messages", body);
    let replaced = |body: Vec<u8>, text: &str| {
        let text = String::from_utf8(body).unwrap().replace("I look at 20.", text);
        text.into_bytes()
    };
    let [one, other] =
        ["I look.", "I do not look."].map(|text| replaced(request("a", 60, 0), text));
    read(&one);
    read(&other);
    for branch in [&one, &other, &one, &other] {
        let fresh = read(branch);
        assert!(fresh < 20_000, "{fresh}");
    }
}

#[test]
fn nobody_elses_elements_are_known() {
    let memory = memory();
    let body = request("a", 60, 0);
    for (owner, length) in [(&b"one"[..], body.len()), (b"other", body.len())] {
        let mut elements = BodyElements::for_body(&memory, Dialect::Anthropic, owner, length);
        let document = elements.document(&body, body.len()).unwrap();
        dialect::read_in(&document, Dialect::Anthropic, "", &body, &mut elements);
        assert!(elements.fresh_bytes() > 60_000);
        elements.remember();
    }
    let short = BodyElements::for_body(&memory, Dialect::Anthropic, b"one", SHORT - 1);
    assert_eq!(short.fresh_bytes(), 0);
}

#[test]
fn no_words_are_kept_in_64_bytes_a_part() {
    let memory = memory();
    let body = request("a", 300, 0);
    check(&memory, Dialect::Anthropic, "/v1/messages", &body);
    let parts = dialect::read(Dialect::Anthropic, "", &body).all_parts().count();
    assert!(memory.bytes() <= 64 * parts, "{} bytes, {parts} parts", memory.bytes());
    let lists = memory.lists();
    for sample in lists.newer.values() {
        for word in ["secret", "Read", "toolu", "user", "lib.rs"] {
            let found = memchr::memmem::find(&sample.list.readings, word.as_bytes());
            assert_eq!(found, None, "{word}");
        }
    }
}

/// A request replaces the one before it, also if the cache marker moves.
#[test]
fn only_newest_request_of_a_thread_is_kept() {
    let memory = memory();
    for calls in 100..160 {
        let body = request("a", calls, 2 * calls - 1);
        check(&memory, Dialect::Anthropic, "/v1/messages", &body);
    }
    let body = request("a", 160, 319);
    let parts = dialect::read(Dialect::Anthropic, "", &body).all_parts().count();
    assert!(memory.bytes() <= 64 * parts, "{} bytes, {parts} parts", memory.bytes());
}

/// Small elements, behind each of which a large one could end: no more than the body's bytes are hashed in vain.
#[test]
fn trying_takes_no_longer_than_reading() {
    let memory = memory();
    let large = json!({"role": "user", "content": "x".repeat(10_000)});
    let length = large.to_string().len();
    let body = json!({ "messages": vec![large; 5] }).to_string();
    check(&memory, Dialect::Anthropic, "/v1/messages", body.as_bytes());
    let mut most = 0;
    for pad in ["", "x", "xx"] {
        let small = "{},".repeat(2_000);
        let text = "{},".repeat(8_000);
        let last = format!(r#"{{"role":"user","content":"{pad}{text}"}}"#);
        let body = format!(r#"{{"messages":[{small}{last}]}}"#);
        let mut elements = BodyElements::new(memory.clone(), Dialect::Anthropic, 7);
        elements.document(body.as_bytes(), most_values(body.len())).unwrap();
        assert!(elements.wasted <= body.len() + length, "{}", elements.wasted);
        most = most.max(elements.wasted);
    }
    assert!(most > length, "{most}: some were tried");
}

#[test]
fn known_elements_have_a_limit() {
    let limit = 100_000;
    let memory = Arc::new(ElementMemory::new(1, limit, Box::new(MemoryLimit(usize::MAX))));
    for session in 0..40 {
        let body = request(&session.to_string(), 60, 0);
        check(&memory, Dialect::Anthropic, "/v1/messages", &body);
        assert!(memory.bytes() <= limit + 20_000, "{} bytes", memory.bytes());
    }
    assert!(memory.bytes() > limit / 4, "{} bytes", memory.bytes());
    let fresh = check(&memory, Dialect::Anthropic, "/v1/messages", &request("39", 60, 0));
    assert!(fresh < 1_000, "{fresh}: the newest is known");
    let fresh = check(&memory, Dialect::Anthropic, "/v1/messages", &request("0", 60, 0));
    assert!(fresh > 50_000, "{fresh}: the oldest is forgotten");
}

#[test]
fn without_memory_nothing_is_kept() {
    let memory = Arc::new(ElementMemory::new(1, 1 << 20, Box::new(MemoryLimit(0))));
    for _ in 0..2 {
        let fresh = check(&memory, Dialect::Anthropic, "/v1/messages", &request("a", 60, 0));
        assert!(fresh > 60_000, "{fresh}");
    }
    assert_eq!(memory.bytes(), 0);
}
