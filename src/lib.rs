//! Plimsoll: a transparent LLM proxy sidecar. This file is the map.
//!
//! A request arrives at [`proxy`], is parsed by [`dialect`] on top of [`wire`], measured by [`tokens`],
//! planned by [`context`], stored by [`store`], and reported by [`telemetry`]. [`admin`] shows the state;
//! [`cli`] starts everything and calls [`admin`]; [`config`] is the configuration; [`demo`] plays client and
//! provider on top of everything. The package `replay` plays recorded sessions, and stands on `core` alone.
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
//! | 4 | [`clock`] | the time | requests |
//! | 5 | [`proxy`], [`admin`], `otel`, [`warehouse`] | sockets | each other |
//!
//! `docs/architecture.md` describes the life of a request, what is stored, the invariants and the glossary.
//!
//! Lower floors never import upper ones (`tests/tidy.rs`). Floors 0–3 are the package `core`, and pure: no
//! sockets, no tokio, no tracing, no clock, and no panic on any bytes.
//!
//! # Reading order
//! [`wire::json`], [`dialect`], [`context`], [`context::budget`], [`context::plan`],
//! `proxy/exchange/mod.rs`.

#![forbid(unsafe_code)]

mod activity;
pub mod admin;
pub mod cli;
mod clock;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
#[cfg(feature = "otel")]
pub mod otel;
pub mod proxy;
pub mod store;
pub mod telemetry;
mod tls;
pub mod warehouse;

pub use plimsoll_core::{context, dialect, tokens, wire};
