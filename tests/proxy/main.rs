//! The proxy over real sockets: what arrives is what was sent, when it was sent.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod counts;
mod crowd;
mod endings;
mod errors;
mod forwarding;
mod identity;
mod limits;
mod lines;
#[cfg(feature = "otel")]
mod otel;
mod reading;
mod routing;
mod silence;
mod streams;
mod tls;
mod tunnels;
mod turns;
mod twins;
mod usage;
