//! Whether an HTTP/2 upstream has shown that it reads its connection, by the frames that are read from it.
//!
//! Counted where bytes are read, so that no request learns of the connection's end before a frame that came
//! earlier counts. Must not know what the frames contain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The length of a frame's head (RFC 9113, 4.1).
const HEAD: usize = 9;
/// The type of the frame that announces the end of a connection (RFC 9113, 6.8).
const GOAWAY: u8 = 7;

/// How many frames of one connection show that the peer was there: those of a stream (headers, data, credit, a reset),
/// and the announcement that the connection ends.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerActivity(Arc<AtomicUsize>);

impl PeerActivity {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// What counts them.
    pub(super) fn reader(&self) -> ActivityReader {
        ActivityReader { activity: self.clone(), head: [0; HEAD], filled: 0, left: 0 }
    }
}

/// The connection's side of a [`PeerActivity`].
pub(super) struct ActivityReader {
    activity: PeerActivity,
    /// The head of the next frame, as far as it was read.
    head: [u8; HEAD],
    filled: usize,
    /// How many bytes of the current frame are to come.
    left: usize,
}

impl ActivityReader {
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
                let [high, middle, low, kind, _, stream @ ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.filled = 0;
                if kind == GOAWAY || stream != [0; 4] {
                    self.activity.0.fetch_add(1, Ordering::Release);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, 0, 0, 0, 0, stream], payload].concat()
    }

    /// Settings, a ping, and credit for the whole connection may have been sent before the peer read anything.
    #[test]
    fn frames_of_streams_are_counted_however_the_bytes_are_split() {
        let quiet = [frame(4, 0, &[]), frame(6, 0, &frame(1, 1, &[])), frame(8, 0, &[1; 4])];
        let quiet = quiet.concat();
        let [headers, credit] = [frame(1, 1, &[0x88]), frame(8, 3, &[1; 4])];
        let whole = [&*quiet, &headers, &quiet, &credit, &frame(GOAWAY, 0, &[0; 8])].concat();
        for (bytes, expected) in [(quiet, 0), (whole, 3)] {
            for cut in 0..bytes.len() {
                let activity = PeerActivity::default();
                let (mut reader, (one, two)) = (activity.reader(), bytes.split_at(cut));
                reader.read(one);
                reader.read(two);
                assert_eq!(activity.count(), expected, "cut at {cut}");
            }
        }
    }
}
