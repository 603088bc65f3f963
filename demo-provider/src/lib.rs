//! The provider of the demo: four protocols on one port, by a script.
//!
//! [`ScriptedProvider`] replies with real streams, tool calls and usage that adds up. It imports nothing of Plimsoll: it is written from `docs/protocols.md`, so that a rule that the product reads
//! wrongly is not read wrongly here, too. Tests add a [`Judge`] that is as strict as real providers are.

#![forbid(unsafe_code)]

pub mod dialect;
mod provider;
mod script;
#[cfg(test)]
mod tests;
mod websocket;

pub use provider::{
    Body, Judge, OnReply, ScriptedProvider, event_stream, full_body, json_response,
};
pub use script::{TokenizerFn, ToolDefinition};

/// One token for every four bytes.
#[cfg(test)]
fn by_length(text: &str) -> usize {
    text.len().div_ceil(4)
}
