use bytes::Bytes;

use super::*;
use crate::wire::splice::splice;

mod cut;
mod put_back;
mod random;
mod recorded;
mod take_out;

/// The body after the edits; `-` if there are none.
fn spliced(body: &str, edits: Vec<Edit>) -> String {
    if edits.is_empty() {
        return "-".to_owned();
    }
    let slices = splice(&Bytes::copy_from_slice(body.as_bytes()), edits).unwrap();
    String::from_utf8(slices.concat()).unwrap()
}

/// What is between a head and a tail that must not have changed.
fn inside(out: &str, head: &str, tail: &str) -> String {
    let inner = out.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail));
    inner.unwrap_or(out).to_owned()
}

#[test]
fn encrypted_reasoning_asked_once() {
    const WANTED: &str = r#""reasoning.encrypted_content""#;
    for (body, expected) in [
        (r#"{"model":"m"}"#, format!(r#"{{"include":[{WANTED}],"model":"m"}}"#)),
        ("{ }", format!(r#"{{"include":[{WANTED}] }}"#)),
        (r#"{"include":[ ]}"#, format!(r#"{{"include":[{WANTED} ]}}"#)),
        (r#"{"include":["a"]}"#, format!(r#"{{"include":[{WANTED},"a"]}}"#)),
        (r#"{"a":1,"include":null}"#, format!(r#"{{"a":1,"include":[{WANTED}]}}"#)),
        (r#"{"include":["reasoning.encrypted\u005fcontent"]}"#, "-".into()),
        (r#"{"include":["a","reasoning.encrypted_content"]}"#, "-".into()),
        (r#"{"include":{"a":1}}"#, "-".into()),
        ("[]", "-".into()),
        ("", "-".into()),
        ("{", "-".into()),
    ] {
        let edit = include_encrypted_reasoning(body.as_bytes());
        assert_eq!(spliced(body, edit.into_iter().collect()), expected, "{body}");
    }
}
