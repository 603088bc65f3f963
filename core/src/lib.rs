//! Floors 0 to 3 of Plimsoll: what a request is, what it costs, and what is to be done with it.
//!
//! Pure: no sockets, no tokio, no tracing, no clock, and no panic on any bytes. Time and policy are
//! arguments; findings are returned as notes. A crate of its own, so that the code that every byte runs
//! through can be optimised separately from configuration and display, and so that the compiler enforces the
//! floors.
//!
//! | floor | module | knows |
//! |---|---|---|
//! | 0 | [`wire`] | bytes |
//! | 1 | [`dialect`] | four protocols |
//! | 2 | [`tokens`] | tokenizers |
//! | 3 | [`context`] | conversations over time |

#![forbid(unsafe_code)]

pub mod context;
pub mod dialect;
pub mod tokens;
pub mod wire;
