//! Whether an HTTP/2 upstream has answered on a connection, by the frames that are read from it.
//!
//! Counted where bytes are read, so that no request learns of the connection's end before an answer that came
//! earlier counts. Must not know what the frames contain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The length of a frame's head (RFC 9113, 4.1).
const HEAD: usize = 9;
/// The type of the frame with which a response begins (RFC 9113, 6.2).
const HEADERS: u8 = 1;

/// How many responses have begun, or ended with trailers, on one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerCount(Arc<AtomicUsize>);

impl AnswerCount {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// What counts them.
    pub(super) fn reader(&self) -> AnswerReader {
        AnswerReader { count: self.clone(), head: [0; HEAD], filled: 0, left: 0 }
    }
}

/// The connection's side of an [`AnswerCount`].
pub(super) struct AnswerReader {
    count: AnswerCount,
    /// The head of the next frame, as far as it was read.
    head: [u8; HEAD],
    filled: usize,
    /// How many bytes of the current frame are to come.
    left: usize,
}

impl AnswerReader {
    /// Called with all bytes that are read, in order.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= payload.len();
            let (head, rest) = rest.split_at((HEAD - self.filled).min(rest.len()));
            self.head[self.filled..self.filled + head.len()].copy_from_slice(head);
            self.filled += head.len();
            bytes = rest;
            if self.filled == HEAD {
                let [high, middle, low, kind, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.filled = 0;
                if kind == HEADERS {
                    self.count.0.fetch_add(1, Ordering::Release);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 1], payload].concat()
    }

    /// Settings, a ping, data that looks like a frame with headers, and an empty frame are no answer.
    #[test]
    fn headers_are_counted_however_the_bytes_are_split() {
        let quiet = [frame(4, &[]), frame(6, &[1; 8]), frame(0, &frame(1, b"no"))].concat();
        let whole = [&*quiet, &frame(1, &[0x88]), &quiet, &frame(1, &[]), &quiet].concat();
        for (bytes, answers) in [(quiet, 0), (whole, 2)] {
            for cut in 0..bytes.len() {
                let count = AnswerCount::default();
                let (mut reader, (one, two)) = (count.reader(), bytes.split_at(cut));
                reader.read(one);
                reader.read(two);
                assert_eq!(count.get(), answers, "cut at {cut}");
            }
        }
    }
}
