//! A provider for tests and the demo: four protocols on one port, scripted or strict.
//!
//! [`ScriptedProvider`] replies by a script, with real streams, tool calls and usage that adds up, and
//! fails on demand. [`strict`] checks what real providers check and returns their errors. Neither imports
//! anything of Plimsoll: they are written from `docs/protocols.md`, so that a rule that the product
//! reads wrongly is not read wrongly here, too.

#![forbid(unsafe_code)]

mod dialect;
mod provider;
mod script;
pub mod strict;
#[cfg(test)]
mod tests;
mod websocket;

pub use provider::ScriptedProvider;
pub use script::TokenizerFn;

/// One token for every four bytes.
#[cfg(test)]
fn by_length(text: &str) -> usize {
    text.len().div_ceil(4)
}
