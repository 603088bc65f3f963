//! What was read of one element, in few bytes: its parts, with ranges relative to it.
//!
//! Names and ids are ranges, too: the element is recognised by all its bytes, so the same bytes are there again. What
//! cannot be written like this is not remembered, and read each time.

use memchr::memmem;

use crate::dialect::{
    Audience, Media, Part, PartKey, PartKind, PictureDetail, Role, ServerStep, Span,
};

/// What was read of an element.
pub(in crate::dialect) struct ElementReading {
    /// Who speaks in it.
    pub(in crate::dialect) role: Role,
    pub(in crate::dialect) parts: Vec<Part>,
}

/// What is known of an element besides its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ElementHead {
    /// The values in it, itself and keys included.
    pub(super) values: usize,
    /// What [`RequestSize`](crate::dialect::size::RequestSize) counts in it.
    pub(super) items: usize,
    pub(super) cache: CacheMarks,
}

/// The cache markers in it (Anthropic).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::dialect) struct CacheMarks {
    /// A marker is in it.
    pub(in crate::dialect) has_marker: bool,
    /// A marker is in it that does not ask for an hour.
    pub(in crate::dialect) has_short: bool,
}

const KINDS: [PartKind; 8] = [
    PartKind::Text,
    PartKind::Tool,
    PartKind::ToolCall,
    PartKind::ToolResult,
    PartKind::Reasoning,
    PartKind::Image,
    PartKind::Document,
    PartKind::Opaque,
];
const ROLES: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Tool];
const AUDIENCES: [Audience; 3] = [Audience::Model, Audience::Program, Audience::Nobody];
const STEPS: [Option<ServerStep>; 3] = [None, Some(ServerStep::Begins), Some(ServerStep::Ends)];
const DETAILS: [Option<PictureDetail>; 5] = [
    None,
    Some(PictureDetail::Low),
    Some(PictureDetail::Medium),
    Some(PictureDetail::High),
    Some(PictureDetail::Original),
];

/// Appends what was read of the element at `at`. `None`, with nothing appended, if it cannot be written.
pub(super) fn write(
    out: &mut Vec<u8>,
    body: &[u8],
    at: Span,
    head: ElementHead,
    role: Role,
    parts: &[Part],
) -> Option<()> {
    let start = out.len();
    let mut writer = ReadingWriter { out, body, at };
    let written = writer.element(head, role, parts);
    if written.is_none() {
        out.truncate(start);
    }
    written
}

struct ReadingWriter<'w> {
    out: &'w mut Vec<u8>,
    body: &'w [u8],
    at: Span,
}

impl ReadingWriter<'_> {
    fn element(&mut self, head: ElementHead, role: Role, parts: &[Part]) -> Option<()> {
        let CacheMarks { has_marker, has_short } = head.cache;
        let marks = usize::from(has_marker) | usize::from(has_short) << 1;
        self.number(marks | index(&ROLES, role)? << 4);
        self.number(head.values);
        self.number(head.items);
        self.number(parts.len());
        parts.iter().try_for_each(|part| self.part(part))
    }

    fn part(&mut self, part: &Part) -> Option<()> {
        // Each member by name, so that none is forgotten.
        let Part {
            kind,
            role,
            audience,
            span,
            texts,
            content,
            id,
            name,
            is_error,
            loads,
            server_step,
            signature,
            media,
            in_history,
            is_schema,
            key,
            reasoning_key,
            signature_key,
            repeats,
        } = part;
        if !loads.is_empty() || *repeats > 0 {
            return None;
        }
        let is_text = content.is_some() && *content == texts.first().copied();
        let sets = [
            index(&KINDS, *kind)?,
            index(&ROLES, *role)? << 3,
            index(&AUDIENCES, *audience)? << 5,
            index(&STEPS, *server_step)? << 7,
        ];
        let mut flags = sets.iter().sum::<usize>();
        let bits = [
            *is_error,
            *in_history,
            *is_schema,
            content.is_some(),
            is_text,
            id.is_some(),
            name.is_some(),
            signature.is_some(),
            media.is_some(),
            key.is_some(),
            reasoning_key.is_some(),
            signature_key.is_some(),
        ];
        for (bit, is_set) in bits.into_iter().enumerate() {
            flags |= usize::from(is_set) << (bit + FLAGS);
        }
        self.number(flags);
        self.span(*span)?;
        self.number(texts.len());
        texts.iter().try_for_each(|text| self.span(*text))?;
        if let Some(content) = content
            && !is_text
        {
            self.span(*content)?;
        }
        for word in [id, name].into_iter().flatten() {
            self.word(word, *span)?;
        }
        if let Some(signature) = signature {
            self.span(*signature)?;
        }
        if let Some(media) = media {
            self.media(media, *span)?;
        }
        let reasoning_key = reasoning_key.map(PartKey);
        for key in [*key, reasoning_key, *signature_key].into_iter().flatten() {
            self.out.extend_from_slice(&key.0.to_le_bytes());
        }
        Some(())
    }

    fn media(&mut self, media: &Media, part: Span) -> Option<()> {
        let Media { data, mime, detail } = media;
        let bits = usize::from(data.is_some()) << 3 | usize::from(mime.is_some()) << 4;
        self.number(index(&DETAILS, *detail)? | bits);
        if let Some(data) = data {
            self.span(*data)?;
        }
        if let Some(mime) = mime {
            self.word(mime, part)?;
        }
        Some(())
    }

    /// A text that stands in the part, as it is.
    fn word(&mut self, word: &str, part: Span) -> Option<()> {
        let start = part.start + memmem::find(part.slice(self.body), word.as_bytes())?;
        self.span(Span::new(start, start + word.len()))
    }

    fn span(&mut self, span: Span) -> Option<()> {
        if span.end > self.at.end || span.end < span.start {
            return None;
        }
        self.number(span.start.checked_sub(self.at.start)?);
        self.number(span.len());
        Some(())
    }

    fn number(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }
}

/// The bits before those of the flags.
const FLAGS: usize = 9;

fn index<T: PartialEq>(all: &[T], one: T) -> Option<usize> {
    all.iter().position(|other| *other == one)
}

/// What is known of an element besides its parts, and who speaks in it.
pub(super) fn head(reading: &[u8]) -> Option<(ElementHead, Role)> {
    ReadingReader { rest: reading, body: &[], start: 0 }.head()
}

/// What was read of the element, now at `start` of `body`.
pub(super) fn read(reading: &[u8], body: &[u8], start: usize) -> Option<ElementReading> {
    let mut reader = ReadingReader { rest: reading, body, start };
    let (_, role) = reader.head()?;
    let count = reader.number()?;
    let mut parts = Vec::with_capacity(count.min(reading.len()));
    for _ in 0..count {
        reader.part(&mut parts)?;
    }
    Some(ElementReading { role, parts })
}

struct ReadingReader<'r> {
    rest: &'r [u8],
    body: &'r [u8],
    start: usize,
}

impl ReadingReader<'_> {
    fn head(&mut self) -> Option<(ElementHead, Role)> {
        let first = self.number()?;
        let cache = CacheMarks { has_marker: first & 1 > 0, has_short: first & 2 > 0 };
        let role = *ROLES.get(first >> 4)?;
        Some((ElementHead { values: self.number()?, items: self.number()?, cache }, role))
    }

    fn part(&mut self, parts: &mut Vec<Part>) -> Option<()> {
        let flags = self.number()?;
        let has = |bit: usize| flags >> (bit + FLAGS) & 1 > 0;
        let span = self.span()?;
        let count = self.number()?;
        let mut texts = Vec::with_capacity(count.min(self.rest.len()));
        for _ in 0..count {
            texts.push(self.span()?);
        }
        let content = match (has(3), has(4)) {
            (true, true) => texts.first().copied(),
            (true, false) => Some(self.span()?),
            (false, _) => None,
        };
        let id = if has(5) { Some(self.word()?) } else { None };
        let name = if has(6) { Some(self.word()?) } else { None };
        let signature = if has(7) { Some(self.span()?) } else { None };
        let media = if has(8) { Some(self.media()?) } else { None };
        parts.push(Part {
            kind: *KINDS.get(flags & 7)?,
            role: *ROLES.get(flags >> 3 & 3)?,
            audience: *AUDIENCES.get(flags >> 5 & 3)?,
            span,
            texts,
            content,
            id,
            name,
            is_error: has(0),
            loads: Vec::new(),
            server_step: *STEPS.get(flags >> 7 & 3)?,
            signature,
            media,
            in_history: has(1),
            is_schema: has(2),
            key: if has(9) { Some(self.key()?) } else { None },
            reasoning_key: if has(10) { Some(self.key()?.0) } else { None },
            signature_key: if has(11) { Some(self.key()?) } else { None },
            repeats: 0,
        });
        Some(())
    }

    fn media(&mut self) -> Option<Media> {
        let flags = self.number()?;
        Some(Media {
            detail: *DETAILS.get(flags & 7)?,
            data: if flags & 8 > 0 { Some(self.span()?) } else { None },
            mime: if flags & 16 > 0 { Some(self.word()?) } else { None },
        })
    }

    fn word(&mut self) -> Option<Box<str>> {
        let span = self.span()?;
        std::str::from_utf8(span.slice(self.body)).ok().map(Into::into)
    }

    fn key(&mut self) -> Option<PartKey> {
        let (key, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(PartKey(u128::from_le_bytes(*key)))
    }

    #[inline]
    fn span(&mut self) -> Option<Span> {
        let start = self.start + self.number()?;
        Some(Span::new(start, start + self.number()?))
    }

    #[inline]
    fn number(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            number |= usize::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}
