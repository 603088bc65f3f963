//! What was read of the elements of earlier requests: clients send their whole history again with each request.
//!
//! An element of a list (a message, a tool, a block of the system prompt) is recognised by the keyed hash of its bytes, so
//! what was read of it is what would be read. No words are kept: hashes, keys, numbers and ranges. Lists belong to one
//! tenant, dialect and place. What was not used for long is forgotten first. Must not know what a list means.

mod body;
mod element;
mod list;
mod memory;

pub use body::BodyElements;
pub use memory::ElementMemory;

#[cfg(test)]
mod tests;
