//! Whether an HTTP/2 upstream has shown that it reads its connection, by the frames that are read from it.
//!
//! Counted where bytes are read, so that no request learns of the connection's end before a frame that came
//! earlier counts. Must not know what the frames contain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The length of a frame's head (RFC 9113, 4.1).
const HEAD: usize = 9;
/// The type of the frame with which a response begins (RFC 9113, 6.2).
const HEADERS: u8 = 1;
/// The types of frames that a peer sends whatever it was sent: SETTINGS and PING (RFC 9113, 6.5, 6.7).
const ANY_TIME: [u8; 2] = [4, 6];

/// What the frames of one connection show of its peer.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerActivity(Arc<SeenFrames>);

#[derive(Debug, Default)]
struct SeenFrames {
    has_answered: AtomicBool,
    telling: AtomicUsize,
}

impl PeerActivity {
    /// Whether it has begun a response.
    pub(super) fn has_answered(&self) -> bool {
        self.0.has_answered.load(Ordering::Acquire)
    }

    /// How many frames show that it reads: responses, credit, resets, and the announcement that the connection ends.
    pub(super) fn count(&self) -> usize {
        self.0.telling.load(Ordering::Acquire)
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
                let [high, middle, low, kind, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.filled = 0;
                let SeenFrames { has_answered, telling } = &*self.activity.0;
                if kind == HEADERS {
                    has_answered.store(true, Ordering::Release);
                }
                if !ANY_TIME.contains(&kind) {
                    telling.fetch_add(1, Ordering::Release);
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

    /// Settings and a ping, which contains what looks like headers, show nothing.
    #[test]
    fn telling_frames_are_counted_however_the_bytes_are_split() {
        let quiet = [frame(4, 0, &[]), frame(6, 0, &frame(1, 1, &[]))].concat();
        let [credit, end] = [frame(8, 0, &[1; 4]), frame(7, 0, &[0; 8])];
        let unanswered = [&*quiet, &credit, &end].concat();
        let answered = [&*unanswered, &frame(HEADERS, 1, &[0x88]), &quiet].concat();
        for (bytes, expected) in [(quiet, 0), (unanswered, 2), (answered, 3)] {
            for cut in 0..bytes.len() {
                let activity = PeerActivity::default();
                let (mut reader, (one, two)) = (activity.reader(), bytes.split_at(cut));
                reader.read(one);
                reader.read(two);
                let found = (activity.count(), activity.has_answered());
                assert_eq!(found, (expected, expected == 3), "cut at {cut}");
            }
        }
    }
}
