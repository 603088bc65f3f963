//! stub

use super::{Conversation, Dialect, Reply};
use crate::wire::json::Value;

/// Reads a request. `path` tells purpose and model where the dialect puts them there.
pub fn read(path: &str, body: &[u8]) -> Conversation {
    let _ = (path, body);
    Conversation::empty(Dialect::OpenaiChat)
}

/// The stream's state.
#[derive(Default)]
pub struct Stream {}

impl Stream {
    /// The next event.
    pub fn event(&mut self, name: &str, value: Value<'_>, reply: &mut Reply) {
        let _ = (name, value, reply);
    }

    /// A whole body.
    pub fn body(&mut self, value: Value<'_>, reply: &mut Reply) {
        let _ = (value, reply);
    }

    /// The stream or body has ended.
    pub fn finish(&mut self, whole: bool, reply: &mut Reply) {
        let _ = (whole, reply);
    }
}
