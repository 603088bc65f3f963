//! Recorded provider traffic is read: nothing panics, no event is lost, cuts change nothing, and usage agrees with what
//! was recorded.
//!
//! Golden cases are in the project (`tests/data/golden`). A larger collection is read if `PLIMSOLL_CORPUS` names one.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod corpus;
mod golden;
mod look_alikes;
mod overflows;
mod pairs;
mod restored;
mod returns;
mod sockets;
mod streams;
