//! A place in a request, in the form that providers use: `messages.3.content.1`, `messages[3].content`,
//! `input[5]`.
//!
//! Providers put tags between the names that are not members (`content.1.image.source`), so an unknown name
//! is skipped; an unknown index means that there is no such place. Pure.

use crate::wire::json::{Kind, Span, Value};

/// One step of a [`JsonPath`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonPathStep {
    /// The member of an object with this name.
    Name(Box<str>),
    /// An index in a list.
    Number(usize),
}

/// Where in a body a refusal points, such as `messages.3.content.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(pub Vec<JsonPathStep>);

/// A place that was found in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathTarget {
    /// The deepest value on the path.
    pub span: Span,
    /// Its names, with `*` for indexes.
    pub pattern: String,
    /// Whether the last step of the path is the name of this value.
    pub is_whole: bool,
}

/// The lists that paths begin with.
const ROOTS: [&str; 5] = ["messages", "input", "contents", "system", "tools"];
/// A longer text is not a path.
const MOST_STEPS: usize = 24;

impl JsonPath {
    /// The first path in a text.
    pub(crate) fn first_in(text: &str) -> Option<Self> {
        let mut best: Option<(usize, Self)> = None;
        for root in ROOTS {
            for (at, _) in text.match_indices(root) {
                // The root has to be a word of its own.
                let previous = text[..at].bytes().next_back();
                if previous.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                    continue;
                }
                if best.as_ref().is_some_and(|(found, _)| *found <= at) {
                    break;
                }
                if let Some(path) = Self::read(&text[at..]) {
                    best = Some((at, path));
                    break;
                }
            }
        }
        best.map(|(_, path)| path)
    }

    /// The path at the start of a text; it must have an index.
    fn read(text: &str) -> Option<Self> {
        let steps = Self::steps(text);
        Self::with_index(steps)
    }

    fn with_index(steps: Vec<JsonPathStep>) -> Option<Self> {
        // Without an index, a word of the sentence may be taken for a path.
        let has_index = steps.iter().any(|step| matches!(step, JsonPathStep::Number(_)));
        if has_index { Some(Self(steps)) } else { None }
    }

    fn steps(text: &str) -> Vec<JsonPathStep> {
        let mut steps = Vec::new();
        let mut rest = text;
        while steps.len() < MOST_STEPS {
            let end = rest
                .bytes()
                .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
                .count();
            if end == 0 {
                break;
            }
            let word = &rest[..end];
            steps.push(match word.parse() {
                Ok(number) => JsonPathStep::Number(number),
                Err(_) => JsonPathStep::Name(word.into()),
            });
            rest = &rest[end..];
            rest = rest.strip_prefix(']').unwrap_or(rest);
            match rest.bytes().next() {
                Some(b'.' | b'[' | b'/') => rest = rest[1..].trim_start_matches('['),
                _ => break,
            }
        }
        steps
    }

    /// The path from the steps of a `loc` list.
    pub(super) fn of_list(list: Value<'_>) -> Option<Self> {
        let mut steps = Self::listed(list);
        let start = steps.iter().position(
            |step| matches!(step, JsonPathStep::Name(name) if ROOTS.contains(&&**name)),
        )?;
        steps.drain(..start);
        Self::with_index(steps)
    }

    fn listed(list: Value<'_>) -> Vec<JsonPathStep> {
        list.items().take(MOST_STEPS).filter_map(JsonPathStep::read).collect()
    }

    pub(super) fn member(text: &str) -> Option<Self> {
        let text = text.trim_start_matches("$.").trim_start_matches("body.");
        let steps = Self::steps(text);
        let has_name = matches!(steps.first(), Some(JsonPathStep::Name(_)));
        if has_name { Some(Self(steps)) } else { None }
    }

    pub(super) fn member_of_list(list: Value<'_>) -> Option<Self> {
        let steps = Self::listed(list);
        let is_body = matches!(steps.first(), Some(JsonPathStep::Name(name)) if &**name == "body");
        let steps = steps[usize::from(is_body)..].to_vec();
        if steps.is_empty() { None } else { Some(Self(steps)) }
    }

    pub(crate) fn find(&self, root: Value<'_>) -> Option<PathTarget> {
        let mut value = root;
        let mut pattern = Vec::new();
        let mut is_whole = true;
        for (at, step) in self.0.iter().enumerate() {
            let member = match step {
                JsonPathStep::Name(_) if is_tag(value, step, self.0.get(at + 1)) => None,
                JsonPathStep::Name(name) => member(value, name),
                JsonPathStep::Number(number) => {
                    if value.kind() != Kind::Array {
                        return None;
                    }
                    Some(("*".to_owned(), value.items().nth(*number)?))
                }
            };
            is_whole = member.is_some();
            let Some((name, inner)) = member else { continue };
            pattern.push(name);
            value = inner;
        }
        let is_found = pattern.len() > 1 || is_whole && !pattern.is_empty();
        if !is_found {
            return None;
        }
        Some(PathTarget { span: value.span(), pattern: pattern.join("."), is_whole })
    }
}

impl JsonPathStep {
    fn read(value: Value<'_>) -> Option<Self> {
        match value.as_u64() {
            Some(number) => Some(Self::Number(usize::try_from(number).ok()?)),
            None => Some(Self::Name(value.text()?.into())),
        }
    }
}

fn member<'d>(value: Value<'d>, name: &str) -> Option<(String, Value<'d>)> {
    // Gemini names `generation_config` if `generationConfig` was sent.
    if value.kind() != Kind::Object {
        return None;
    }
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        camel.extend(word.chars().take(1).map(|first| first.to_ascii_uppercase()));
        camel.extend(word.chars().skip(1));
    }
    let spellings = [name.to_owned(), camel];
    spellings.into_iter().find_map(|name| value.get(&name).map(|found| (name, found)))
}

fn is_tag(value: Value<'_>, step: &JsonPathStep, next: Option<&JsonPathStep>) -> bool {
    // A block's type may come before a member that is beside it, not inside it:
    // `content.0.text.text`.
    let JsonPathStep::Name(name) = step else { return false };
    let Some(JsonPathStep::Name(next)) = next else { return false };
    let inner = value.get(name);
    inner.is_some_and(|inner| inner.get(next).is_none()) && value.get(next).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::Document;

    const BODY: &str = r#"{"messages":[{"role":"user","content":"a"},{"content":[{"type":"image","source":{"data":"x"}}]}]}"#;

    fn found(text: &str) -> Option<(String, String, bool)> {
        let document = Document::read(BODY.as_bytes()).unwrap();
        let place = JsonPath::first_in(text)?.find(document.root(BODY.as_bytes()).unwrap())?;
        let bytes = place.span.slice(BODY.as_bytes()).to_vec();
        Some((place.pattern, String::from_utf8(bytes).unwrap(), place.is_whole))
    }

    #[test]
    fn paths_are_found_in_every_notation() {
        let source = r#"{"data":"x"}"#;
        for (text, pattern, bytes, whole) in [
            (
                "messages.1.content.0.image.source.base64: image exceeds 5 MB",
                "messages.*.content.*.source",
                source,
                false,
            ),
            ("at messages[1].content[0].source.", "messages.*.content.*.source", source, true),
            (
                "messages.1.content.0.type.source: extra",
                "messages.*.content.*.source",
                source,
                true,
            ),
            ("Invalid 'messages[0].content': empty", "messages.*.content", "\"a\"", true),
        ] {
            assert_eq!(found(text), Some((pattern.into(), bytes.into(), whole)), "{text}");
        }
    }

    #[test]
    fn path_to_missing_place_is_not_found() {
        for text in ["messages.7.content", "messages.0.content.3", "messages: at least one", "x"] {
            assert_eq!(found(text), None, "{text}");
        }
        assert!(JsonPath::first_in("my_messages.1.content").is_none());
    }
}
