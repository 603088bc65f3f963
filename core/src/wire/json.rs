//! JSON read in place: one pass over the bytes yields the range of every value.
//!
//! Nothing is converted: keys keep their order, numbers their form, strings their escapes, and duplicate keys
//! stay. Checks structure, not every control character, as providers do. It must not know what a key means,
//! must not recurse, and does not panic.

mod lists;
mod most;
mod nesting;
mod scan;
mod strings;

use std::borrow::Cow;

use lists::NoElements;
pub(crate) use lists::{KnownElement, KnownElements};
pub use most::most_values;
pub(crate) use nesting::Nesting;
use scan::Node;
pub use scan::{JsonError, Kind, Span};
use strings::{append_unescaped, meaning};
pub(crate) use strings::{text_of, unescape};

/// Every value of one JSON text, in document order; object keys are nodes before their values.
#[derive(Debug, Default)]
pub struct Document {
    nodes: Vec<Node>,
    /// The values inside known elements, which have no nodes.
    hidden: usize,
}

impl Document {
    /// Reads one JSON value that is surrounded only by white space.
    ///
    /// # Errors
    /// A [`JsonError`] with the byte at which the text stops being JSON.
    pub fn read(bytes: &[u8]) -> Result<Self, JsonError> {
        Self::read_most(bytes, most_values(bytes.len()))
    }

    /// Like [`Document::read`], with at most `most` values.
    /// # Errors
    /// As [`Document::read`].
    pub fn read_most(bytes: &[u8], most: usize) -> Result<Self, JsonError> {
        Self::read_new(bytes, most, &mut NoElements)
    }

    /// Like [`Document::read_most`], but passes over the elements of lists that `elements` knows.
    pub(crate) fn read_new(
        bytes: &[u8],
        most: usize,
        elements: &mut impl KnownElements,
    ) -> Result<Self, JsonError> {
        let mut document = Self::default();
        document.fill(bytes, 0, most, elements)?;
        Ok(document)
    }

    /// Reads the value at `span` alone; its ranges are those in `bytes`.
    pub(crate) fn read_within(bytes: &[u8], span: Span) -> Result<Self, JsonError> {
        let mut document = Self::default();
        let end = span.end.min(bytes.len());
        document.fill(&bytes[..end], span.start, most_values(span.len()), &mut NoElements)?;
        Ok(document)
    }

    /// Like [`Document::read`], into the same allocation: for streams of small texts.
    ///
    /// # Errors
    /// As [`Document::read`]; the document is then empty.
    pub fn reread(&mut self, bytes: &[u8]) -> Result<(), JsonError> {
        self.fill(bytes, 0, most_values(bytes.len()), &mut NoElements)
    }

    fn fill(
        &mut self,
        bytes: &[u8],
        start: usize,
        most: usize,
        elements: &mut impl KnownElements,
    ) -> Result<(), JsonError> {
        self.nodes.clear();
        // Short texts have a value every eight bytes; long ones consist mostly of strings.
        let length = bytes.len().saturating_sub(start);
        self.nodes.reserve((length / 8).clamp(8, 64).max(length / 64));
        let outcome = scan::scan(bytes, start, most, &mut self.nodes, elements);
        if outcome.is_err() {
            self.nodes.clear();
        }
        self.hidden = outcome?;
        Ok(())
    }

    /// The bytes that `values` values occupy.
    pub fn bytes_of(values: usize) -> usize {
        values * size_of::<Node>()
    }

    /// Bytes of memory that it occupies, the body aside.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    pub(crate) fn values(&self) -> usize {
        self.nodes.len() + self.hidden
    }

    /// The outermost value. `bytes` must be the text that was read.
    pub fn root<'d>(&'d self, bytes: &'d [u8]) -> Option<Value<'d>> {
        (!self.nodes.is_empty()).then_some(Value { bytes, nodes: &self.nodes, index: 0 })
    }
}

/// One value of a [`Document`].
#[derive(Clone, Copy)]
pub struct Value<'d> {
    bytes: &'d [u8],
    nodes: &'d [Node],
    index: usize,
}

impl<'d> Value<'d> {
    fn node(&self) -> Node {
        self.nodes[self.index]
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.node().kind
    }

    /// Its range, quotes and brackets included.
    pub fn span(&self) -> Span {
        let node = self.node();
        Span::new(node.start as usize, node.end as usize)
    }

    /// The number of values in it, itself and keys included.
    pub(crate) fn values(&self) -> usize {
        self.node().next as usize - self.index
    }

    /// Whether it is an element of a list that was passed over, because it is known: its members are not here.
    pub(crate) fn is_closed(&self) -> bool {
        self.node().passed_over
    }

    /// Calls `read` with the value, whose members are read first if it was passed over.
    pub(crate) fn opened<T>(self, read: impl FnOnce(Value<'_>) -> T) -> T {
        if self.is_closed()
            && let Ok(document) = Document::read_within(self.bytes, self.span())
            && let Some(value) = document.root(self.bytes)
        {
            return read(value);
        }
        read(self)
    }

    /// Its bytes as written.
    pub(crate) fn raw(&self) -> &'d [u8] {
        self.span().slice(self.bytes)
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.kind() == Kind::Null
    }

    /// The text of a string, with escapes resolved, and with broken UTF-8 and lone surrogates as U+FFFD.
    pub(crate) fn text(&self) -> Option<Cow<'d, str>> {
        let node = self.node();
        if node.kind != Kind::String {
            return None;
        }
        let raw = Span::new(node.start as usize + 1, node.end as usize - 1).slice(self.bytes);
        Some(meaning(raw, node.escaped))
    }

    /// Whether it is the string `text`.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind() == Kind::String && ObjectKey(*self).is(text)
    }

    /// Appends the text of a string to `out`, with escapes resolved and broken UTF-8 unchanged: for hashing
    /// without an allocation. Returns whether the value is a string.
    pub(crate) fn append_text(&self, out: &mut Vec<u8>) -> bool {
        let node = self.node();
        if node.kind != Kind::String {
            return false;
        }
        let raw = Span::new(node.start as usize + 1, node.end as usize - 1).slice(self.bytes);
        if node.escaped {
            append_unescaped(raw, out);
        } else {
            out.extend_from_slice(raw);
        }
        true
    }

    /// A whole number that fits into `u64`; `12.0` and `1.2e1` count as 12.
    pub fn as_u64(&self) -> Option<u64> {
        let text = self.number()?;
        text.parse().ok().or_else(|| {
            let number: f64 = text.parse().ok()?;
            // Past 2^53, a float is not exact.
            (number >= 0.0 && number.fract() == 0.0 && number < 9.0e15).then_some(number as u64)
        })
    }

    /// A number as a float.
    pub(crate) fn as_f64(&self) -> Option<f64> {
        self.number()?.parse().ok()
    }

    fn number(&self) -> Option<&'d str> {
        if self.kind() != Kind::Number {
            return None;
        }
        std::str::from_utf8(self.raw()).ok()
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if self.kind() == Kind::Bool { Some(self.raw() == b"true") } else { None }
    }

    /// The member called `name`; the last one if a key occurs twice, as in most parsers.
    pub fn get(&self, name: &str) -> Option<Value<'d>> {
        let [member] = self.members([name]);
        member
    }

    /// Like [`Value::get`], for several names in one pass over the members. See [`members!`] for many.
    #[inline]
    pub(crate) fn members<const N: usize>(&self, names: [&str; N]) -> [Option<Value<'d>>; N] {
        let node = self.node();
        let end = if node.kind == Kind::Object { node.next as usize } else { 0 };
        let mut index = self.index + 1;
        let mut values = [None; N];
        // By index instead of an iterator, because no other function is called more often.
        while index + 1 < end {
            let key = ObjectKey(Value { index, ..*self });
            for (name, value) in names.iter().zip(&mut values) {
                if key.is(name) {
                    *value = Some(Value { index: index + 1, ..*self });
                    break;
                }
            }
            index = self.nodes[index + 1].next as usize;
        }
        values
    }

    /// Like [`Value::get`], along a path of names.
    pub(crate) fn path(&self, names: &[&str]) -> Option<Value<'d>> {
        names.iter().try_fold(*self, |value, name| value.get(name))
    }

    /// Like [`Value::get`], for a member with several spellings; a `null` counts as absent.
    pub(crate) fn get_any<const N: usize>(&self, names: &[&str; N]) -> Option<Value<'d>> {
        self.members(*names).into_iter().flatten().find(|value| !value.is_null())
    }

    /// The text of the string member called `name`.
    pub(crate) fn get_text(&self, name: &str) -> Option<Cow<'d, str>> {
        self.get(name)?.text()
    }

    /// The members of an object in written order; empty for other kinds.
    pub fn entries(&self) -> impl Iterator<Item = (ObjectKey<'d>, Value<'d>)> + use<'d> {
        let mut children = self.children(Kind::Object);
        std::iter::from_fn(move || Some((ObjectKey(children.next()?), children.next()?)))
    }

    /// The elements of an array; empty for other kinds.
    pub fn items(&self) -> impl Iterator<Item = Value<'d>> + use<'d> {
        self.children(Kind::Array)
    }

    fn children(&self, kind: Kind) -> impl Iterator<Item = Value<'d>> + use<'d> {
        // Each node knows where its subtree ends, so none is walked through.
        let parent = *self;
        let mut next_index = self.index + 1;
        let end = if self.node().kind == kind { self.node().next as usize } else { next_index };
        std::iter::from_fn(move || {
            if next_index >= end {
                return None;
            }
            let child = Value { index: next_index, ..parent };
            next_index = child.node().next as usize;
            Some(child)
        })
    }
}

/// Declares a struct of an object's members, each an `Option<Value>` under its own name or the given one;
/// `from_value` finds them all in one pass, like [`Value::members`].
macro_rules! members {
    ($(#[$doc:meta])* $name:ident { $($field:ident $(= $key:literal)?),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Default)]
        struct $name<'d> {
            $($field: Option<$crate::wire::json::Value<'d>>),+
        }

        impl<'d> $name<'d> {
            fn from_value(value: $crate::wire::json::Value<'d>) -> Self {
                let keys = [$($crate::wire::json::members!(@ $field $($key)?)),+];
                let [$($field),+] = value.members(keys);
                Self { $($field),+ }
            }
        }
    };
    (@ $field:ident) => { stringify!($field) };
    (@ $field:ident $key:literal) => { $key };
}
pub(crate) use members;

impl std::fmt::Debug for Value<'_> {
    /// Prints kind and position, never content: a prompt must not reach a log through `{:?}`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}@{}..{}", self.kind(), self.span().start, self.span().end)
    }
}

/// The key of an object member.
#[derive(Clone, Copy)]
pub struct ObjectKey<'d>(Value<'d>);

impl<'d> ObjectKey<'d> {
    /// Whether the key equals `name`; for nearly all keys the length alone decides.
    #[inline]
    pub fn is(&self, name: &str) -> bool {
        let span = self.span();
        let plain = Span::new(span.start + 1, span.end - 1).slice(self.0.bytes);
        if self.0.node().escaped { self.text() == name } else { plain == name.as_bytes() }
    }

    /// The key, escapes resolved.
    pub(crate) fn text(&self) -> Cow<'d, str> {
        self.0.text().unwrap_or_default()
    }

    /// The range of the key, quotes included.
    pub fn span(&self) -> Span {
        self.0.span()
    }

    /// Appends the key to `out`, with escapes resolved.
    pub(crate) fn append_text(&self, out: &mut Vec<u8>) {
        self.0.append_text(out);
    }
}

/// Fuzz: no bytes make it panic; every value lies inside its parent, in order, and reads the same alone as in
/// its place.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let mut document = Document::default();
    if document.reread(bytes).is_err() {
        return assert!(document.root(bytes).is_none());
    }
    let Some(root) = document.root(bytes) else { return assert!(document.nodes.is_empty()) };
    let mut open = vec![root];
    while let Some(value) = open.pop() {
        let (parent, mut at) = (value.span(), value.span().start);
        assert!(parent.start < parent.end);
        assert!(parent.end <= bytes.len());
        let alone = Document::read(value.raw()).map(|document| document.nodes.len());
        assert_eq!(alone, Ok(value.node().next as usize - value.index));
        let (mut appended, numbers) = (Vec::new(), (value.as_u64(), value.as_f64()));
        let text = value.text();
        assert_eq!(value.append_text(&mut appended), text.is_some());
        assert_eq!(text.is_some(), value.kind() == Kind::String);
        assert!(numbers.0.is_none() || numbers.1.is_some());
        assert_eq!(text_of(value.raw()), text);
        assert!(text.is_none_or(|text| text == String::from_utf8_lossy(&appended)));
        let members = value.entries().flat_map(|(key, value)| [key.0, value]);
        for child in members.chain(value.items()) {
            assert!(at < child.span().start);
            assert!(child.span().end < parent.end);
            at = child.span().end;
            if open.len() < 1000 {
                open.push(child);
            }
        }
        // (A key of broken UTF-8 has no name by which it could be found.)
        let last = value.entries().last().map(|(key, _)| (key, key.text()));
        if let Some((key, name)) = last.filter(|(_, name)| !name.contains('\u{fffd}')) {
            assert!(key.is(&name));
            assert!(value.get(&name).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scan::MAX_DEPTH;
    use super::*;
    use proptest::prelude::*;

    fn same(value: Value<'_>, truth: &serde_json::Value) -> bool {
        match truth {
            serde_json::Value::Null => value.is_null(),
            serde_json::Value::Bool(b) => value.as_bool() == Some(*b),
            serde_json::Value::Number(n) => value.as_f64() == n.as_f64(),
            serde_json::Value::String(s) => value.text().as_deref() == Some(s.as_str()),
            serde_json::Value::Array(items) => {
                value.kind() == Kind::Array
                    && value.items().count() == items.len()
                    && value.items().zip(items).all(|(v, t)| same(v, t))
            }
            serde_json::Value::Object(map) => {
                value.kind() == Kind::Object
                    && value.entries().count() == map.len()
                    && value.entries().zip(map).all(|((k, v), (n, t))| k.text() == *n && same(v, t))
            }
        }
    }

    fn check(text: &str) {
        let document = Document::read(text.as_bytes()).unwrap();
        let root = document.root(text.as_bytes()).unwrap();
        let truth: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(same(root, &truth), "{text}");
    }

    #[test]
    fn json_reader_agrees_with_serde_json() {
        for text in [
            "{}",
            "[]",
            " [ ] ",
            "null",
            "true",
            "-1.5e3",
            r#""""#,
            r#"{"a":{}}"#,
            r#"{"a":[1,2,{"b":"c\n\"\\\u00e9\ud83d\ude00"}],"d":null , "e":[[],[[]]]}"#,
            r#"{"aé":"日本語 \u65e5","\"":1}"#,
        ] {
            check(text);
        }
    }

    #[test]
    fn json_error_names_its_position() {
        for (text, fault) in [
            ("", JsonError::Ends(0)),
            ("{", JsonError::Ends(1)),
            ("[1,]", JsonError::Unexpected(3)),
            ("[,1]", JsonError::Unexpected(1)),
            (r#"{"a" 1}"#, JsonError::Unexpected(5)),
            ("[1}", JsonError::Unexpected(2)),
            ("1 2", JsonError::Unexpected(2)),
            (r#""ab"#, JsonError::Ends(3)),
            (r#""ab\"#, JsonError::Ends(4)),
            ("tru", JsonError::Ends(3)),
            ("<html>", JsonError::Unexpected(0)),
        ] {
            assert_eq!(Document::read(text.as_bytes()).unwrap_err(), fault, "{text}");
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        assert_eq!(Document::read(deep.as_bytes()).unwrap_err(), JsonError::TooDeep(MAX_DEPTH));
    }

    #[test]
    fn last_of_two_equal_keys_counts() {
        let text = br#"{"a":1,"a":2}"#;
        let document = Document::read(text).unwrap();
        assert_eq!(document.root(text).unwrap().get("a").unwrap().as_u64(), Some(2));
    }

    #[test]
    fn invalid_characters_in_json_string_are_replaced() {
        for (raw, text) in [
            (&b"\"\xff\""[..], "\u{fffd}"),
            (br#""\ud800x""#, "\u{fffd}x"),
            (br#""\uZZZZ""#, "\u{fffd}ZZZZ"),
            (b"\"a\0b\"", "a\0b"),
        ] {
            let document = Document::read(raw).unwrap();
            assert_eq!(document.root(raw).unwrap().text().unwrap(), text);
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(5, 64, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                proptest::collection::btree_map(".*", inner, 0..6)
                    .prop_map(|m| m.into_iter().collect::<serde_json::Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_reader_agrees_with_serde_json_on_any_value(value in json(), pretty: bool) {
            let write = if pretty { serde_json::to_string_pretty } else { serde_json::to_string };
            check(&write(&value).unwrap());
        }

        /// Invariant 8.
        #[test]
        fn invariant_8_never_panics(bytes in proptest::collection::vec(prop_oneof![
            proptest::sample::select(br#"{}[]",:\u0dtrfn1e-. "#.to_vec()), any::<u8>()], 0..64)) {
            fuzz(&bytes);
        }

        #[test]
        fn invariant_8_never_panics_on_json(value in json()) {
            fuzz(value.to_string().as_bytes());
        }
    }
}
