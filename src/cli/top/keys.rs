//! Keys as they are pressed: the terminal shows none of them and waits for no line, until it is given back.
//!
//! Ctrl-C stays a signal.

use std::io::Read as _;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Enter,
    Escape,
    Backspace,
    Letter(char),
}

/// What terminals send for keys without a letter.
const SEQUENCES: [(&str, Key); 10] = [
    ("\x1b[A", Key::Up),
    ("\x1bOA", Key::Up),
    ("\x1b[B", Key::Down),
    ("\x1bOB", Key::Down),
    ("\x1b[5~", Key::PageUp),
    ("\x1b[6~", Key::PageDown),
    ("\r", Key::Enter),
    ("\n", Key::Enter),
    ("\x7f", Key::Backspace),
    ("\x08", Key::Backspace),
];

/// The keys of what was read at once.
fn decoded(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut keys = Vec::new();
    let mut rest = &*text;
    while let Some(first) = rest.chars().next() {
        let entry = SEQUENCES.iter().find(|(sequence, _)| rest.starts_with(sequence));
        if let Some((sequence, key)) = entry {
            keys.push(*key);
            rest = &rest[sequence.len()..];
        } else if let Some(unknown) = rest.strip_prefix("\x1b[") {
            // Another key: it ends with a letter or `~`.
            let end = unknown.find(|c: char| c.is_ascii_alphabetic() || c == '~');
            rest = end.map_or("", |end| &unknown[end + 1..]);
        } else {
            match first {
                '\x1b' => keys.push(Key::Escape),
                letter if !letter.is_control() => keys.push(Key::Letter(letter)),
                _ => {}
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    keys
}

/// The keys that are pressed until this is dropped.
pub(super) struct KeyInput {
    /// How the terminal was before; `None` if standard input is none.
    before: Option<Termios>,
    keys: mpsc::Receiver<Vec<Key>>,
}

impl KeyInput {
    pub(super) fn begin() -> Self {
        let (sender, keys) = mpsc::channel(16);
        let settings = tcgetattr(std::io::stdin()).ok();
        if let Some(mut termios) = settings.clone() {
            termios.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &termios);
            // A thread of its own: the end of the program does not wait for the next key.
            std::thread::spawn(move || {
                let mut pressed = [0; 256];
                while let Ok(length @ 1..) = std::io::stdin().read(&mut pressed) {
                    if sender.blocking_send(decoded(&pressed[..length])).is_err() {
                        return;
                    }
                }
            });
        }
        Self { before: settings, keys }
    }

    /// Whether there is somebody to press keys.
    pub(super) fn is_terminal(&self) -> bool {
        self.before.is_some()
    }

    /// The next keys; never returns if there are none.
    pub(super) async fn next(&mut self) -> Vec<Key> {
        match self.keys.recv().await {
            Some(keys) => keys,
            None => std::future::pending().await,
        }
    }
}

impl Drop for KeyInput {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        use Key::{Backspace, Down, Enter, Escape, Letter, PageUp, Up};
        let pressed = b"q\x1b[A\x1bOB\r\x7f\x1b[5~\x1b[1;5Cx\x1b\x01\xc3\xa9";
        let keys =
            [Letter('q'), Up, Down, Enter, Backspace, PageUp, Letter('x'), Escape, Letter('é')];
        assert_eq!(decoded(pressed), keys);
    }
}
