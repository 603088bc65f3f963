//! Plimsoll: a transparent LLM proxy sidecar. This file is the map.
//!
//! A request comes in at [`proxy`], is read by [`dialect`] over [`wire`], measured by [`tokens`],
//! planned for by [`context`], kept by [`store`], and told of by [`telemetry`]. [`admin`] looks in;
//! [`cli`] brings it all up and asks [`admin`]; [`config`] is what was asked for; [`demo`] plays both
//! ends, and [`replay`] recorded sessions, above everything.
//!
//! | floor | module | knows | must not know |
//! |---|---|---|---|
//! | 0 | [`wire`] | bytes | providers |
//! | 1 | [`dialect`] | four wire protocols | clocks, sockets, state |
//! | 2 | [`tokens`] | tokenizers | sessions |
//! | 3 | [`context`] | conversations over time | sockets, stores |
//! | 4 | [`store`] | disks | traffic |
//! | 4 | [`tls`] | certificates | requests |
//! | 4 | [`activity`] | connections that nobody uses | requests |
//! | 5 | [`proxy`], [`admin`] | sockets | each other |
//!
//! `docs/architecture.md` has the way of a request, what is stored, the invariants and the glossary.
//!
//! Lower floors never import upper ones (`tests/tidy.rs`). Floors 0–3 are the package `core`, and pure: no
//! sockets, no tokio, no tracing, no clock, and no panic whatever the bytes.
//!
//! # Reading order
//! [`wire::json`], [`dialect`], [`context`], [`context::budget`], [`context::plan`],
//! `proxy/exchange/mod.rs`.

#![forbid(unsafe_code)]

mod activity;
pub mod admin;
pub mod cli;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod proxy;
pub mod replay;
pub mod store;
pub mod telemetry;
mod tls;

pub use plimsoll_core::{context, dialect, tokens, wire};
