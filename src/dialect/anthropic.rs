//! stub

use super::{Conversation, Dialect};

/// Reads a request. `path` tells purpose and model where the dialect puts them there.
pub fn read(path: &str, body: &[u8]) -> Conversation {
    let _ = (path, body);
    Conversation::empty(Dialect::Anthropic)
}
