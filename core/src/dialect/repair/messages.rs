//! Where the history is in a request's body, for edits that need no more than its JSON.
//!
//! A body may be refused for its form, so an edit does not ask for a conversation.

use crate::dialect::Dialect;
use crate::wire::json::{Kind, Value};

pub(super) fn history<'d>(dialect: Dialect, root: Value<'d>) -> Option<Value<'d>> {
    let name = match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat => "messages",
        Dialect::OpenaiResponses => "input",
        Dialect::Gemini => "contents",
    };
    root.get(name).filter(|list| list.kind() == Kind::Array)
}
