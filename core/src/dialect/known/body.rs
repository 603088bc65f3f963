//! The elements of one body: which are known, and what is read of the others, to be known in the next one.
//!
//! A list is followed element by element: after one comes the one that came after it before. One that changed is read, and
//! the next few are tried behind it. Where nothing is expected, a list is found by the hash of an element.

use std::sync::{Arc, LazyLock};

use memchr::memmem::{self, Finder};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::element::{self, CacheMarks, ElementHead, ElementReading};
use super::list::{ElementList, is_sample};
use super::memory::{ElementMemory, ListSample};
use crate::dialect::{Dialect, Part, Role, Span, size};
use crate::wire::json::{Document, JsonError, Kind, KnownElement, KnownElements, Value};

/// Shorter bodies are read whole: that takes less time than to remember them.
pub(super) const SHORT: usize = 16 << 10;
/// How many elements are tried where one is expected: some may have been changed or left out.
const TRIED: usize = 4;
/// A list replaces the one that it continues if it has all but so many of its elements.
const CHANGED: usize = 4;

/// The lists whose elements are known again: dialect, member, and in how many arrays and objects it is.
const LISTS: [(Dialect, &[u8], usize); 13] = [
    (Dialect::Anthropic, b"messages", 1),
    (Dialect::Anthropic, b"system", 1),
    (Dialect::Anthropic, b"tools", 1),
    (Dialect::OpenaiChat, b"messages", 1),
    (Dialect::OpenaiChat, b"tools", 1),
    (Dialect::OpenaiResponses, b"input", 1),
    (Dialect::OpenaiResponses, b"tools", 1),
    // Code Assist wraps the request.
    (Dialect::Gemini, b"contents", 1),
    (Dialect::Gemini, b"contents", 2),
    (Dialect::Gemini, b"functionDeclarations", 3),
    (Dialect::Gemini, b"functionDeclarations", 4),
    (Dialect::Gemini, b"function_declarations", 3),
    (Dialect::Gemini, b"function_declarations", 4),
];

/// The elements of a body.
#[derive(Debug)]
pub struct BodyElements {
    memory: Option<Arc<ElementMemory>>,
    dialect: Dialect,
    /// Of this owner and dialect.
    seed: u64,
    /// The lists of the body, as they are remembered.
    lists: Vec<BodyList>,
    /// Remembered lists that elements of this body were found in.
    sources: Vec<Arc<ElementList>>,
    /// The elements of all lists, by their place.
    elements: Vec<BodyElement>,
    /// Index into `elements`: they are mostly asked for in order.
    next: usize,
    /// Where the next element is expected: a source, and an index in it.
    expected: Option<ElementPlace>,
    /// The bytes of elements that were read.
    fresh: usize,
    /// The bytes that were hashed in vain.
    pub(super) wasted: usize,
    /// What [`ElementHead::items`] says of those that were passed over.
    items: usize,
}

#[derive(Debug)]
struct BodyList {
    /// Of this list.
    seed: u64,
    /// In how many arrays and objects its elements are.
    depth: usize,
    elements: usize,
    remembered: ElementList,
}

#[derive(Clone, Copy, Debug)]
struct BodyElement {
    span: Span,
    hash: u128,
    list: u32,
    known: Option<ElementPlace>,
}

/// An element of a remembered list.
#[derive(Clone, Copy, Debug)]
struct ElementPlace {
    source: usize,
    index: usize,
}

impl BodyElements {
    /// Nothing is known, and nothing remembered.
    pub fn none() -> Self {
        Self {
            memory: None,
            dialect: Dialect::Anthropic,
            seed: 0,
            lists: Vec::new(),
            sources: Vec::new(),
            elements: Vec::new(),
            next: 0,
            expected: None,
            fresh: 0,
            wasted: 0,
            items: 0,
        }
    }

    /// Those of a body of so many bytes. `owner` names whose it is: nobody else's elements are recognised in it.
    pub fn for_body(
        memory: &Arc<ElementMemory>,
        dialect: Dialect,
        owner: &[u8],
        length: usize,
    ) -> Self {
        if length < SHORT {
            return Self::none();
        }
        Self::new(memory.clone(), dialect, memory.seed(owner, dialect as u64))
    }

    pub(super) fn new(memory: Arc<ElementMemory>, dialect: Dialect, seed: u64) -> Self {
        Self { memory: Some(memory), dialect, seed, ..Self::none() }
    }

    /// Reads the body, up to so many values, but not the elements that are known.
    ///
    /// # Errors
    /// As [`Document::read_most`].
    pub fn document(&mut self, body: &[u8], most: usize) -> Result<Document, JsonError> {
        let Some(memory) = self.memory.take() else { return Document::read_most(body, most) };
        *self = Self::new(memory, self.dialect, self.seed);
        Document::read_new(body, most, self)
    }

    /// What [`RequestSize`](size::RequestSize) counts in the elements that were passed over; it is told so.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Bytes of the elements that had to be read.
    pub fn fresh_bytes(&self) -> usize {
        self.fresh
    }

    /// Remembers the lists of the body.
    pub fn remember(mut self) {
        let Some(memory) = &self.memory else { return };
        for (index, mut list) in std::mem::take(&mut self.lists).into_iter().enumerate() {
            let source = self.continued(index);
            // A request that repeats another adds nothing.
            let is_known = source.is_some_and(|source| {
                let elements = self.elements.iter().filter(|it| it.list as usize == index);
                let mut places = elements.map(|element| element.known).enumerate();
                source.elements.len() == list.elements
                    && places.all(|(at, place)| {
                        place.is_some_and(|ElementPlace { source: of, index }| {
                            index == at && Arc::ptr_eq(&self.sources[of], source)
                        })
                    })
            });
            if !is_known && !list.remembered.elements.is_empty() {
                list.remembered.elements.shrink_to_fit();
                list.remembered.readings.shrink_to_fit();
                memory.add(list.seed, list.remembered, source);
            }
        }
    }

    /// The remembered list that a list continues: all but a few of its elements are in it.
    fn continued(&self, list: usize) -> Option<&Arc<ElementList>> {
        let elements = self.elements.iter().filter(|element| element.list as usize == list);
        let places = elements.filter_map(|element| element.known);
        let source = places.clone().next_back()?.source;
        let shared = places.filter(|place| place.source == source).count();
        let list = &self.sources[source];
        if shared + CHANGED >= list.elements.len() { Some(list) } else { None }
    }

    /// What was read of an element before; it is remembered again.
    pub(in crate::dialect) fn reading(
        &mut self,
        value: Value<'_>,
        body: &[u8],
    ) -> Option<ElementReading> {
        let BodyElement { span, hash, list, known } = self.element(value)?;
        let ElementPlace { source, index } = known?;
        let reading = self.sources[source].reading(index);
        let read = element::read(reading, body, span.start)?;
        let list = &mut self.lists[list as usize].remembered;
        let start = list.readings.len();
        list.readings.extend_from_slice(reading);
        list.push(hash, span.len(), start);
        Some(read)
    }

    /// Who speaks in an element that is known.
    pub(in crate::dialect) fn role(&mut self, value: Value<'_>) -> Option<Role> {
        let ElementPlace { source, index } = self.element(value)?.known?;
        Some(element::head(self.sources[source].reading(index))?.1)
    }

    /// Remembers what was read of an element, which took no note.
    pub(in crate::dialect) fn keep(
        &mut self,
        value: Value<'_>,
        body: &[u8],
        role: Role,
        parts: &mut [Part],
    ) {
        if self.memory.is_none() {
            return;
        }
        let Some(BodyElement { span, hash, list, known: None }) = self.element(value) else {
            return;
        };
        // Behind a brace nothing can belong to it.
        if value.kind() != Kind::Object {
            return;
        }
        for part in parts.iter_mut() {
            part.hash_reasoning(body);
        }
        let BodyList { depth, remembered, .. } = &mut self.lists[list as usize];
        let cache = match self.dialect {
            Dialect::Anthropic => cache_marks(body, span),
            Dialect::OpenaiChat | Dialect::OpenaiResponses | Dialect::Gemini => Default::default(),
        };
        let items = size::items_in(value, *depth);
        let head = ElementHead { values: value.values(), items, cache };
        let start = remembered.readings.len();
        let written = element::write(&mut remembered.readings, body, span, head, role, parts);
        if written.is_some() {
            remembered.push(hash, span.len(), start);
        }
    }

    /// The cache markers in the whole body (Anthropic).
    pub(in crate::dialect) fn cache_marks(&self, body: &[u8]) -> CacheMarks {
        let mut marks = CacheMarks::default();
        let mut start = 0;
        for (span, head) in self.known_heads() {
            marks.add(cache_marks(body, Span::new(start, span.start)));
            marks.add(head.cache);
            start = span.end;
        }
        marks.add(cache_marks(body, Span::new(start, body.len())));
        marks
    }

    /// The known elements by their place.
    fn known_heads(&self) -> impl Iterator<Item = (Span, ElementHead)> + '_ {
        self.elements.iter().filter_map(|element| {
            let ElementPlace { source, index } = element.known?;
            let (head, _) = element::head(self.sources[source].reading(index))?;
            Some((element.span, head))
        })
    }

    fn element(&mut self, value: Value<'_>) -> Option<BodyElement> {
        let start = value.span().start;
        if self.elements.get(self.next).is_none_or(|element| element.span.start != start) {
            let place = self.elements.binary_search_by_key(&start, |element| element.span.start);
            self.next = place.ok()?;
        }
        let element = self.elements[self.next];
        self.next += 1;
        Some(element)
    }

    fn place(&mut self, ListSample { list, index }: ListSample) -> ElementPlace {
        let source = self.sources.iter().position(|source| Arc::ptr_eq(source, &list));
        let source = source.unwrap_or_else(|| {
            self.sources.push(list);
            self.sources.len() - 1
        });
        ElementPlace { source, index }
    }

    fn hash(&self, bytes: &[u8]) -> u128 {
        let seed = self.lists.last().map_or(self.seed, |list| list.seed);
        xxh3_128_with_seed(bytes, seed)
    }

    fn push(&mut self, span: Span, hash: u128, known: Option<ElementPlace>) {
        let list = self.lists.len() as u32 - 1;
        self.elements.push(BodyElement { span, hash, list, known });
        if let Some(list) = self.lists.last_mut() {
            list.elements += 1;
        }
    }
}

impl KnownElements for BodyElements {
    const EXIST: bool = true;

    fn begin(&mut self, name: &[u8], depth: usize) -> bool {
        let place = LISTS.iter().position(|list| *list == (self.dialect, name, depth));
        let Some(place) = place else { return false };
        let seed = self.seed.wrapping_add(place as u64 + 1);
        self.lists.push(BodyList { seed, depth, elements: 0, remembered: ElementList::default() });
        let newest = self.memory.as_ref().and_then(|memory| memory.find(u128::from(seed)));
        self.expected = newest.map(|newest| self.place(newest));
        true
    }

    fn known(&mut self, bytes: &[u8], at: usize) -> Option<KnownElement> {
        let ElementPlace { source, index: expected } = self.expected?;
        for index in expected..expected + TRIED {
            let candidate = *self.sources[source].elements.get(index)?;
            let span = Span::new(at, at + candidate.length as usize);
            if !ends(bytes, span.end) {
                continue;
            }
            let hash = self.hash(span.slice(bytes));
            if hash != candidate.hash() {
                self.wasted += span.len();
                // Trying never takes longer than reading it all.
                if self.wasted > bytes.len() {
                    self.expected = None;
                    return None;
                }
                continue;
            }
            let (head, _) = element::head(self.sources[source].reading(index))?;
            self.items += head.items;
            self.push(span, hash, Some(ElementPlace { source, index }));
            self.expected = Some(ElementPlace { source, index: index + 1 });
            return Some(KnownElement { end: span.end, values: head.values });
        }
        None
    }

    fn add(&mut self, bytes: &[u8], start: usize, end: usize) {
        let element = Span::new(start, end);
        self.fresh += element.len();
        let hash = self.hash(element.slice(bytes));
        let index = self.lists.last().map_or(0, |list| list.elements);
        let sample = match &self.memory {
            Some(memory) if is_sample(index, hash) => memory.find(hash),
            _ => None,
        };
        let place = sample.map(|sample| self.place(sample));
        self.push(element, hash, place);
        if let Some(place) = place {
            self.expected = Some(ElementPlace { index: place.index + 1, ..place });
        }
    }
}

/// Made once: each element is searched.
static MARKER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"cache_control\""));

/// Whether an object may end here: an element of a list that others follow, or that is the last.
fn ends(bytes: &[u8], end: usize) -> bool {
    let Some(b'}') = end.checked_sub(1).and_then(|last| bytes.get(last)) else { return false };
    let rest = bytes[end..].iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(rest, Some(b',' | b']'))
}

/// The cache markers that begin in `at`. Their objects hold no others, so each ends at the next brace.
fn cache_marks(body: &[u8], at: Span) -> CacheMarks {
    let mut marks = CacheMarks::default();
    for start in MARKER.find_iter(at.slice(body)) {
        marks.has_marker = true;
        let rest = &body[at.start + start..];
        let end = memchr::memchr(b'}', rest).unwrap_or(rest.len());
        if memmem::find(&rest[..end], b"\"1h\"").is_none() {
            marks.has_short = true;
            break;
        }
    }
    marks
}

impl CacheMarks {
    fn add(&mut self, other: Self) {
        self.has_marker |= other.has_marker;
        self.has_short |= other.has_short;
    }

    /// Whether every cache marker asks for an hour.
    pub(in crate::dialect) fn asks_long(self) -> bool {
        self.has_marker && !self.has_short
    }
}
