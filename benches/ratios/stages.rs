//! stub
/// Prints.
pub(crate) fn print() {}
