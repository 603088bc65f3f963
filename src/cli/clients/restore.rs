//! Takes our values out of a configuration file again, and leaves what else was changed in it since.
//!
//! Pure. Where one of our values was replaced, it is not ours any more. What cannot be told apart is refused.

use serde_json::{Map, Value};

use super::edit::{FileFormat, PathStep, env_value};

/// The current text without our values, and with those that they replaced in `original`. Says why if that cannot be done.
pub(crate) fn without_values(
    format: FileFormat,
    current: &str,
    original: &str,
    values: &[(String, String)],
) -> Result<String, String> {
    match format {
        FileFormat::Json => without_json_values(current, original, values),
        FileFormat::Toml => without_toml_values(current, values),
        FileFormat::Env => Ok(without_env_values(current, original, values)),
    }
}

/// Whether a text says nothing, so that its file is not needed.
pub(crate) fn is_blank(format: FileFormat, text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || format == FileFormat::Json && text == "{}"
}

fn without_json_values(
    current: &str,
    original: &str,
    values: &[(String, String)],
) -> Result<String, String> {
    let mut root = json(current)?;
    let original_root = if original.trim().is_empty() { Value::Null } else { json(original)? };
    for (path, value) in values {
        restore(&mut root, &original_root, path, value)?;
    }
    if root == original_root {
        return Ok(original.to_owned());
    }
    let text = serde_json::to_string_pretty(&root).map_err(|error| error.to_string())?;
    Ok(if current.ends_with('\n') { text + "\n" } else { text })
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("is not plain JSON ({error})"))
}

fn restore(place: &mut Value, original: &Value, path: &str, value: &str) -> Result<(), String> {
    let (step, rest) = PathStep::split(path);
    let Some(members) = place.as_object_mut() else { return Ok(()) };
    match step {
        PathStep::Member { name, .. } if rest.is_empty() => {
            if members.get(name).is_some_and(|current| current == value) {
                match original.get(name) {
                    Some(before) => members.insert(name.to_owned(), before.clone()),
                    // The others keep their order.
                    None => members.shift_remove(name),
                };
            }
            Ok(())
        }
        PathStep::Member { name, .. } => {
            let original = original.get(name);
            let Some(below) = members.get_mut(name) else { return Ok(()) };
            restore(below, original.unwrap_or(&Value::Null), rest, value)?;
            // We made it.
            if original.is_none() && below.as_object().is_some_and(Map::is_empty) {
                members.shift_remove(name);
            }
            Ok(())
        }
        PathStep::Elements { name, key, value: wanted } => {
            let Some(elements) = members.get_mut(name).and_then(Value::as_array_mut) else {
                return Ok(());
            };
            let originals = original.get(name).and_then(Value::as_array);
            let originals = originals.map(Vec::as_slice).unwrap_or_default();
            for (at, element) in elements.iter_mut().enumerate() {
                if element[key] == wanted && element[rest] == value {
                    let twin = twin(element, originals, at, rest);
                    let twin = twin.ok_or_else(|| format!("has other elements in {name}"))?;
                    restore(element, twin, rest, value)?;
                }
            }
            Ok(())
        }
    }
}

/// What an element was: the one that differs only in this member, or else the one at its place.
fn twin<'o>(element: &Value, originals: &'o [Value], at: usize, member: &str) -> Option<&'o Value> {
    let others = without_member(element, member);
    let mut candidates = originals.iter();
    candidates
        .find(|original| without_member(original, member) == others)
        .or_else(|| originals.get(at))
}

fn without_member(element: &Value, member: &str) -> Map<String, Value> {
    let mut members = element.as_object().cloned().unwrap_or_default();
    members.shift_remove(member);
    members
}

fn without_toml_values(current: &str, values: &[(String, String)]) -> Result<String, String> {
    let mut wanted: toml::Table = current
        .parse()
        .map_err(|error: toml::de::Error| format!("is not TOML ({})", error.message()))?;
    let mut text = String::new();
    for line in current.split_inclusive('\n') {
        let table = line.parse::<toml::Table>().unwrap_or_default();
        let is_ours = table.len() == 1
            && values.iter().any(|(key, value)| {
                table.get(key).is_some_and(|known| known.as_str() == Some(value))
            });
        if !is_ours {
            text += line;
        }
    }
    for (key, value) in values {
        if wanted.get(key).is_some_and(|known| known.as_str() == Some(value)) {
            wanted.remove(key);
        }
    }
    // A line like ours may be in a table or in a text.
    match text.parse::<toml::Table>() {
        Ok(table) if table == wanted => Ok(text),
        _ => Err("is written in another way".to_owned()),
    }
}

fn without_env_values(current: &str, original: &str, values: &[(String, String)]) -> String {
    let mut text = String::new();
    for line in current.split_inclusive('\n') {
        let ours = values.iter().find(|(name, value)| env_value(line, name) == Some(value));
        match ours {
            Some((name, _)) => {
                let mut lines = original.split_inclusive('\n');
                text += lines.find(|line| env_value(line, name).is_some()).unwrap_or_default();
            }
            None => text += line,
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::edit::with_values;
    use super::*;

    /// What `setup` writes, what the agent makes of it, and what is left.
    fn left(format: FileFormat, original: &str, path: &str, agent: fn(&str) -> String) -> String {
        let written = with_values(format, original, &[(path, "http://p".to_owned())]).unwrap();
        let values = [(path.to_owned(), "http://p".to_owned())];
        without_values(format, &agent(&written), original, &values).unwrap()
    }

    #[test]
    fn json_keeps_what_agent_added() {
        let agent = |text: &str| text.replacen('{', "{\"new\":[1],", 1);
        let text = left(FileFormat::Json, "", "env.url", agent);
        assert_eq!(text, "{\n  \"new\": [\n    1\n  ]\n}\n");
        let text = left(FileFormat::Json, r#"{"env":{"url":"mine"},"b":2}"#, "env.url", agent);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, serde_json::json!({"new": [1], "env": {"url": "mine"}, "b": 2}));
    }

    #[test]
    fn equal_json_is_as_before() {
        let original = "{\"a\":1,\r\n\"b\":{}}";
        let agent = |text: &str| text.replace('\n', "");
        assert_eq!(left(FileFormat::Json, original, "b.url", agent), original);
    }

    #[test]
    fn replaced_value_stays() {
        let agent = |text: &str| text.replace("http://p", "http://other");
        let text = left(FileFormat::Json, "", "env.url", agent);
        assert!(text.contains("http://other"), "{text}");
    }

    #[test]
    fn elements_are_found_again() {
        let original = r#"{"m":[{"k":"x","n":1,"url":"one"},{"k":"x","n":2,"url":"two"}]}"#;
        let agent = |text: &str| {
            let mut value: Value = serde_json::from_str(text).unwrap();
            value["m"].as_array_mut().unwrap().reverse();
            value.to_string()
        };
        let text = left(FileFormat::Json, original, "m[k=x].url", agent);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["m"][0]["url"], "two");
        assert_eq!(value["m"][1]["url"], "one");
    }

    #[test]
    fn toml_loses_only_our_line() {
        let agent = |text: &str| format!("{text}[projects.\"/x\"]\nurl = \"http://p\"\n");
        let values = [("url".to_owned(), "http://p".to_owned())];
        let written = with_values(FileFormat::Toml, "# mine\n", &[("url", "http://p".to_owned())]);
        let changed = agent(&written.unwrap());
        let refused = without_values(FileFormat::Toml, &changed, "# mine\n", &values);
        assert_eq!(refused.unwrap_err(), "is written in another way");
        let agent = |text: &str| format!("{text}[projects.\"/x\"]\ntrust = true\n");
        let text = left(FileFormat::Toml, "# mine\n", "url", agent);
        assert_eq!(text, "# mine\n[projects.\"/x\"]\ntrust = true\n");
    }

    #[test]
    fn variables_get_their_value_back() {
        let agent = |text: &str| format!("{text}NEW=1\n");
        assert_eq!(
            left(FileFormat::Env, "A=1\r\nURL=old\r\n", "URL", agent),
            "A=1\r\nURL=old\r\nNEW=1\n"
        );
        assert_eq!(left(FileFormat::Env, "", "URL", agent), "NEW=1\n");
    }
}
