//! WebSocket frames of one direction, read while they pass (RFC 6455, RFC 7692).
//!
//! Takes bytes in any cuts, and yields text messages, unmasked, joined and inflated. Others handle the
//! connection: nothing here is sent, answered or refused. What cannot be read ends the reading, never the
//! connection. Bounded. Must not know what the messages mean.

use std::borrow::Cow;

use flate2::{Decompress, FlushDecompress, Status};

use super::memory::Memory;

/// Why a connection is not read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Reserved bits or opcodes, which an unknown extension may use.
    #[error("a WebSocket frame uses bits or opcodes that were not negotiated")]
    Reserved,
    /// A continuation without a message, or a message inside another.
    #[error("WebSocket fragments do not follow each other")]
    Fragments,
    /// A control frame that is long or fragmented, or an invalid length.
    #[error("a WebSocket frame has a length that is not allowed")]
    Length,
    /// A payload that should be a deflate stream is not one.
    #[error("a WebSocket message does not inflate")]
    Deflate,
    /// A compressed message is past the limit, and later messages depend on it.
    #[error("a compressed WebSocket message is too long to be read")]
    TooLong,
    /// There is no memory for a compressed message, and later messages depend on it.
    #[error("there is no memory to inflate a WebSocket message")]
    NoMemory,
}

/// How the messages of one direction are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    Plain,
    /// `permessage-deflate`.
    Deflate {
        /// Whether each message depends on those before it.
        keeps_context: bool,
    },
    /// An unknown extension: nothing is read.
    Unknown,
}

/// The compression that a server's `Sec-WebSocket-Extensions` settles: of the client's messages, and of the
/// server's own. Several header lines are given as one, joined by commas.
pub fn negotiated(extensions: &str) -> (Compression, Compression) {
    let mut client = Compression::Plain;
    let mut server = Compression::Plain;
    for extension in extensions.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let mut parameters = extension.split(';').map(str::trim);
        if !parameters.next().is_some_and(|name| name.eq_ignore_ascii_case("permessage-deflate")) {
            return (Compression::Unknown, Compression::Unknown);
        }
        let parameters: Vec<String> = parameters.map(str::to_ascii_lowercase).collect();
        let resets_client = parameters.iter().any(|name| name == "client_no_context_takeover");
        let resets_server = parameters.iter().any(|name| name == "server_no_context_takeover");
        client = Compression::Deflate { keeps_context: !resets_client };
        server = Compression::Deflate { keeps_context: !resets_server };
    }
    (client, server)
}

/// Decodes the messages of one direction of a connection.
pub struct MessageDecoder {
    limit: usize,
    state: FrameState,
    /// The part of the next frame's header that has arrived.
    header: Vec<u8>,
    /// The message whose frames are being joined.
    open: Option<OpenMessage>,
    text: Vec<u8>,
    inflate: Option<Inflate>,
    memory: Box<dyn Memory>,
}

enum FrameState {
    /// Between frames, or inside a header.
    Header,
    /// Inside a payload.
    Payload(FrameHeader),
    /// A close frame was seen.
    Closed,
    Failed(FrameError),
}

#[derive(Clone, Copy)]
struct FrameHeader {
    last: bool,
    control: Option<u8>,
    left: u64,
    mask: Option<[u8; 4]>,
    /// The payload bytes seen so far, which position the mask.
    seen: usize,
}

#[derive(Clone, Copy)]
struct OpenMessage {
    is_text: bool,
    compressed: bool,
    /// Past the limit or the memory, and not compressed: skipped.
    too_long: bool,
}

struct Inflate {
    /// Created with the first compressed message: most connections have none.
    stream: Option<Decompress>,
    keeps_context: bool,
}

/// The bytes that inflating holds for a direction from its first compressed message on: a window and tables.
const INFLATING: usize = 64 << 10;
/// A text buffer of at most this size is reused for the next message.
const KEPT_BETWEEN: usize = 64 << 10;

impl MessageDecoder {
    /// A direction at its first byte after the upgrade. `limit` is the most bytes of one message, inflated.
    /// `memory` grants memory before messages are joined and inflated.
    pub fn new(limit: usize, compression: Compression, memory: Box<dyn Memory>) -> Self {
        let (state, inflate) = match compression {
            Compression::Plain => (FrameState::Header, None),
            Compression::Deflate { keeps_context } => {
                (FrameState::Header, Some(Inflate { stream: None, keeps_context }))
            }
            Compression::Unknown => (FrameState::Failed(FrameError::Reserved), None),
        };
        Self { limit, state, header: Vec::new(), open: None, text: Vec::new(), inflate, memory }
    }

    /// Takes the next bytes, cut anywhere; `each` receives every text message that they complete. A large one is
    /// given away, and its memory is no longer held here.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Cow<'_, [u8]>)) {
        while !bytes.is_empty() {
            let used = match self.state {
                FrameState::Header => self.header(bytes),
                FrameState::Payload(frame) => self.payload(frame, bytes),
                FrameState::Closed | FrameState::Failed(_) => return,
            };
            match used {
                Ok(used) => bytes = &bytes[used.min(bytes.len())..],
                Err(fault) => return self.fail(fault),
            }
            if let FrameState::Payload(FrameHeader { left: 0, last, control, .. }) = self.state {
                self.state =
                    if control == Some(CLOSE) { FrameState::Closed } else { FrameState::Header };
                if last
                    && control.is_none()
                    && let Err(fault) = self.end_message(&mut each)
                {
                    return self.fail(fault);
                }
            }
        }
    }

    /// Whether its sender has said that it sends no more.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, FrameState::Closed)
    }

    /// Why the reading stopped, if it did.
    pub fn fault(&self) -> Option<FrameError> {
        match self.state {
            FrameState::Failed(fault) => Some(fault),
            FrameState::Header | FrameState::Payload(_) | FrameState::Closed => None,
        }
    }

    fn fail(&mut self, fault: FrameError) {
        self.state = FrameState::Failed(fault);
        self.text = Vec::new();
        self.header = Vec::new();
        self.inflate = None;
        self.memory.hold(0);
    }

    /// Takes header bytes; once the header is complete, its frame begins.
    fn header(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        let mut used = 0;
        while self.header.len() < header_length(&self.header) {
            let Some(byte) = bytes.get(used) else { return Ok(used) };
            self.header.push(*byte);
            used += 1;
        }
        let frame = self.begin()?;
        self.header.clear();
        self.state = FrameState::Payload(frame);
        Ok(used)
    }

    fn begin(&mut self) -> Result<FrameHeader, FrameError> {
        let [first, second, rest @ ..] = self.header.as_slice() else {
            return Err(FrameError::Length);
        };
        let first = *first;
        let is_masked = second & 0x80 != 0;
        let (length, mask) = rest.split_at(rest.len() - if is_masked { 4 } else { 0 });
        let left = match second & 0x7f {
            126 | 127 => length.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            short => u64::from(short),
        };
        let frame = FrameHeader {
            last: first & 0x80 != 0,
            control: if first & 0x08 != 0 { Some(first & 0x0f) } else { None },
            left,
            mask: if is_masked { mask.try_into().ok() } else { None },
            seen: 0,
        };
        // A control frame is short and whole; a length never has its highest bit set.
        if left >> 63 != 0 || frame.control.is_some() && (left > 125 || !frame.last) {
            return Err(FrameError::Length);
        }
        self.check(first)?;
        Ok(frame)
    }

    fn check(&mut self, first: u8) -> Result<(), FrameError> {
        // Checks whether the frame is allowed here; opens the message that it begins.
        let reserved = first & 0x70;
        let opcode = first & 0x0f;
        match (opcode, self.open) {
            (CLOSE..=PONG, _) if reserved == 0 => Ok(()),
            (0, Some(_)) if reserved == 0 => Ok(()),
            (TEXT | BINARY, None)
                if reserved == 0 || reserved == RSV1 && self.inflate.is_some() =>
            {
                let compressed = reserved == RSV1;
                self.open =
                    Some(OpenMessage { is_text: opcode == TEXT, compressed, too_long: false });
                Ok(())
            }
            (0, None) | (TEXT | BINARY, Some(_)) => Err(FrameError::Fragments),
            _ => Err(FrameError::Reserved),
        }
    }

    fn payload(&mut self, mut frame: FrameHeader, bytes: &[u8]) -> Result<usize, FrameError> {
        let used = usize::try_from(frame.left).unwrap_or(usize::MAX).min(bytes.len());
        let piece = &bytes[..used];
        if frame.control.is_none() {
            match frame.mask {
                None => self.take(piece)?,
                Some(mask) => {
                    let mut unmasked = piece.to_vec();
                    for (index, byte) in unmasked.iter_mut().enumerate() {
                        *byte ^= mask[(frame.seen + index) % 4];
                    }
                    self.take(&unmasked)?;
                }
            }
        }
        frame.left -= used as u64;
        // The mask goes on where it was, however the payload is cut.
        frame.seen = (frame.seen + used) % 4;
        self.state = FrameState::Payload(frame);
        Ok(used)
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), FrameError> {
        // Takes the next bytes of the open message.
        let Some(open) = &mut self.open else { return Ok(()) };
        let mut text = MessageBuffer {
            bytes: &mut self.text,
            beside: if self.inflate.is_some() { INFLATING } else { 0 },
            limit: self.limit,
            memory: &mut *self.memory,
        };
        match &mut self.inflate {
            Some(inflate) if open.compressed => inflate.push(piece, &mut text, false),
            _ if open.too_long => Ok(()),
            _ => {
                if text.add(piece).is_err() {
                    open.too_long = true;
                    text.clear();
                }
                Ok(())
            }
        }
    }

    fn end_message(&mut self, each: &mut impl FnMut(Cow<'_, [u8]>)) -> Result<(), FrameError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if open.compressed
            && let Some(inflate) = &mut self.inflate
        {
            let mut text = MessageBuffer {
                bytes: &mut self.text,
                beside: INFLATING,
                limit: self.limit,
                memory: &mut *self.memory,
            };
            inflate.push(TAIL, &mut text, true)?;
            inflate.end_message();
        }
        let mut large = Vec::new();
        if self.text.capacity() > KEPT_BETWEEN {
            // A large text is given away, so that an idle connection holds little.
            large = std::mem::take(&mut self.text);
            self.memory.hold(if self.inflate.is_some() { INFLATING } else { 0 });
        }
        match (open.too_long, open.is_text, large.is_empty()) {
            (false, true, true) => each(Cow::Borrowed(&self.text)),
            (false, true, false) => each(Cow::Owned(large)),
            (true, ..) | (false, false, _) => {}
        }
        self.text.clear();
        Ok(())
    }
}

/// The message that is being joined, and the limits on it.
struct MessageBuffer<'m> {
    bytes: &'m mut Vec<u8>,
    /// Bytes that are held besides it.
    beside: usize,
    limit: usize,
    memory: &'m mut dyn Memory,
}

impl MessageBuffer<'_> {
    fn add(&mut self, piece: &[u8]) -> Result<(), FrameError> {
        // Adds a piece, if it is within the limit and there is memory for it.
        let length = self.bytes.len() + piece.len();
        if length > self.limit {
            return Err(FrameError::TooLong);
        }
        let mut capacity = self.bytes.capacity();
        if length > capacity {
            capacity = length.max(capacity + capacity / 2).min(self.limit);
            if !self.memory.hold(self.beside + capacity) {
                return Err(FrameError::NoMemory);
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn clear(&mut self) {
        *self.bytes = Vec::new();
        self.memory.hold(self.beside);
    }
}

impl Inflate {
    fn push(
        &mut self,
        mut piece: &[u8],
        out: &mut MessageBuffer<'_>,
        tail: bool,
    ) -> Result<(), FrameError> {
        // The tail is added by us and not sent: it flushes the message.
        let mut scratch = [0; 8 << 10];
        let stream = self.stream.get_or_insert_with(|| Decompress::new(false));
        loop {
            let total_read = stream.total_in();
            let total_written = stream.total_out();
            let status = stream
                .decompress(piece, &mut scratch, FlushDecompress::None)
                .map_err(|_| FrameError::Deflate)?;
            let read = (stream.total_in() - total_read) as usize;
            let written = (stream.total_out() - total_written) as usize;
            out.add(&scratch[..written])?;
            piece = &piece[read..];
            if status == Status::StreamEnd {
                // A sender may end its deflate stream with a message; the next message begins another.
                stream.reset(false);
                if tail || piece.is_empty() {
                    return Ok(());
                }
            } else if piece.is_empty() && written < scratch.len() || read == 0 && written == 0 {
                return Ok(());
            }
        }
    }

    fn end_message(&mut self) {
        if !self.keeps_context
            && let Some(stream) = &mut self.stream
        {
            stream.reset(false);
        }
    }
}

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PONG: u8 = 10;

/// The bit that marks a compressed message.
const RSV1: u8 = 0x40;

/// The bytes that every sender omits from the end of a compressed message (RFC 7692 §7.2.1).
const TAIL: &[u8] = &[0, 0, 0xff, 0xff];

fn header_length(header: &[u8]) -> usize {
    // The length of a header, as far as its first bytes determine it.
    let Some(second) = header.get(1) else { return 2 };
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + extended + if second & 0x80 != 0 { 4 } else { 0 }
}

/// Fuzz: no bytes make the reading panic, and the cuts do not change the messages.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let deflate = |keeps_context| Compression::Deflate { keeps_context };
    for compression in [Compression::Plain, deflate(true), deflate(false)] {
        let read = |size: usize| {
            let memory = Box::new(super::memory::MemoryLimit(usize::MAX));
            let mut messages = MessageDecoder::new(1 << 16, compression, memory);
            let mut texts = Vec::new();
            bytes.chunks(size).for_each(|c| messages.push(c, |text| texts.push(text.to_vec())));
            (texts, messages.fault())
        };
        let whole = read(bytes.len().max(1));
        assert_eq!(read(1), whole);
        assert_eq!(read(5), whole);
    }
}

#[cfg(test)]
mod tests;
