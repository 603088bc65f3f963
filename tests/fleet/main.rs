//! Several processes on one Redis or Valkey: real servers, which `scripts/tools` fetches and each test starts for itself.
//!
//! Only `scripts/test fleet` runs it.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod acks;
mod chaos;
mod cluster;
mod conforms;
mod fleet;
mod postgres;
mod process;
mod program;
mod replicas;
mod sentinel;
mod server;
mod spending;
mod tls;
mod together;
mod warehouse;
