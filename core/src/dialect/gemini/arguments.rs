//! Tool call arguments that arrive in pieces, each with a path (`docs/protocols.md` 5.2).
//!
//! `{"jsonPath": "$.list[0].name", "stringValue": "…", "willContinue": true}`: strings are appended, other
//! values are set. Bounded: lists grow by one item at a time, nesting is limited to [`MAX_DEPTH`], and a reply
//! has room for a number of places.

use serde_json::{Map, Value as Json};

use crate::wire::json::Value;

/// The deepest path that is followed. Real arguments have less than 10 levels.
const MAX_DEPTH: usize = 64;

/// Puts one piece at its path; false if that is not possible. `room`: how many more places may be made.
pub(super) fn put(arguments: &mut Json, piece: Value<'_>, room: &mut usize) -> bool {
    let path = piece.get_any(&["jsonPath", "json_path"]).and_then(|path| path.text());
    let (Some(path), Some(value)) = (path, value_of(piece)) else { return false };
    let Some(steps) = steps(&path) else { return false };
    let mut place = arguments;
    for step in steps {
        let Some(inner) = descend(place, step, room) else { return false };
        place = inner;
    }
    match (place, value) {
        (Json::String(text), Json::String(more)) => text.push_str(&more),
        (place, value) => *place = value,
    }
    true
}

fn value_of(piece: Value<'_>) -> Option<Json> {
    const NAMES: [&str; 6] =
        ["stringValue", "string_value", "numberValue", "number_value", "boolValue", "bool_value"];
    if let Some(value) = NAMES.iter().find_map(|name| piece.get(name)) {
        return serde_json::from_slice(value.raw()).ok();
    }
    // Its presence says that the argument is null, whatever its own value is.
    let has_null = piece.get("nullValue").or_else(|| piece.get("null_value")).is_some();
    if has_null { Some(Json::Null) } else { None }
}

enum ArgumentStep {
    Member(String),
    Item(usize),
}

fn steps(path: &str) -> Option<Vec<ArgumentStep>> {
    // `$.a.b[0]['c d']`
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == MAX_DEPTH {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, after) = inner.split_once(']')?;
            let name = inside.strip_prefix(['\'', '"']).and_then(|n| n.strip_suffix(['\'', '"']));
            steps.push(match name {
                Some(name) => ArgumentStep::Member(name.to_owned()),
                None => ArgumentStep::Item(inside.parse().ok()?),
            });
            rest = after;
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            if end == 0 {
                return None;
            }
            steps.push(ArgumentStep::Member(name[..end].to_owned()));
            rest = &name[end..];
        }
    }
    Some(steps)
}

fn descend<'j>(place: &'j mut Json, step: ArgumentStep, room: &mut usize) -> Option<&'j mut Json> {
    match step {
        ArgumentStep::Member(name) => {
            if place.is_null() {
                *place = Json::Object(Map::new());
            }
            let members = place.as_object_mut()?;
            if !members.contains_key(&name) {
                *room = room.checked_sub(1)?;
            }
            Some(members.entry(name).or_insert(Json::Null))
        }
        ArgumentStep::Item(index) => {
            if place.is_null() {
                *place = Json::Array(Vec::new());
            }
            let items = place.as_array_mut()?;
            if index == items.len() {
                *room = room.checked_sub(1)?;
                items.push(Json::Null);
            }
            items.get_mut(index)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::Document;

    fn put_all(pieces: &[&str]) -> (Json, bool) {
        let mut arguments = Json::Null;
        let mut all = true;
        let mut room = 200;
        for piece in pieces {
            let document = Document::read(piece.as_bytes()).unwrap();
            all &= put(&mut arguments, document.root(piece.as_bytes()).unwrap(), &mut room);
        }
        (arguments, all)
    }

    #[test]
    fn pieces_go_to_their_json_paths() {
        let (arguments, all) = put_all(&[
            r#"{"jsonPath":"$.a[0].name","stringValue":"x","willContinue":true}"#,
            r#"{"jsonPath":"$.a[0].name","stringValue":"y"}"#,
            r#"{"jsonPath":"$.a[1]['the price']","numberValue":0.5}"#,
            r#"{"jsonPath":"$.done","boolValue":true}"#,
            r#"{"jsonPath":"$.none","nullValue":"NULL_VALUE"}"#,
        ]);
        let expected = r#"{"a":[{"name":"xy"},{"the price":0.5}],"done":true,"none":null}"#;
        assert_eq!(arguments.to_string().as_str(), expected);
        assert!(all);
    }

    #[test]
    fn argument_pieces_with_invalid_json_path_are_refused() {
        for path in ["$.a[7]", "$.a[99999999999999999999]", "$..", "$.a[", "$[x]"] {
            let piece = format!(r#"{{"jsonPath":"{path}","stringValue":"x"}}"#);
            assert!(!put_all(&[&piece]).1, "{path}");
        }
        let deep = format!(r#"{{"jsonPath":"${}","stringValue":"x"}}"#, "[0]".repeat(65));
        assert!(!put_all(&[&deep]).1);
        let deepest = format!(r#"{{"jsonPath":"${}","stringValue":"x"}}"#, "[0]".repeat(64));
        assert!(put_all(&[&deepest]).1);
        let through = [
            r#"{"jsonPath":"$.a","stringValue":"x"}"#,
            r#"{"jsonPath":"$.a.b","stringValue":"x"}"#,
        ];
        assert!(!put_all(&through).1);
    }

    #[test]
    fn places_past_room_are_not_made() {
        let items = |count: usize| -> Vec<String> {
            let item = |at| format!(r#"{{"jsonPath":"$[{at}]","numberValue":{at}}}"#);
            (0..count).map(item).collect()
        };
        let put_items = |count| {
            let items = items(count);
            put_all(&items.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert!(put_items(200).1);
        let (arguments, all) = put_items(201);
        assert!(!all);
        assert_eq!(arguments.as_array().unwrap().len(), 200);
    }
}
