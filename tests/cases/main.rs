//! What public bug reports taught: each case is a small input and what must be true of it.
//!
//! The inputs are in `tests/data/cases`, one folder a case, with its source. Each test plays one through the proxy over
//! real sockets, and looks at what reached the provider, what reached the client, and what was recorded.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod background;
mod caps;
mod clients;
mod counts;
mod door;
mod endings;
mod kept_out;
mod pictures;
mod prices;
mod refusals;
mod replies;
mod spending;
