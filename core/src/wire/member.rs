//! What is read of a member that may be absent.
//!
//! Knows no member by name.

use super::json::Value;

/// The first of several alternative members that is present and not `null`.
pub(crate) fn first<const N: usize>(members: [Option<Value<'_>>; N]) -> Option<Value<'_>> {
    members.into_iter().flatten().find(|value| !value.is_null())
}

/// The text of a member that is a string.
pub(crate) fn owned_text(member: Option<Value<'_>>) -> Option<Box<str>> {
    Some(member?.text()?.into())
}
