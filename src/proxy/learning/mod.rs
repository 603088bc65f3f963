//! What responses teach: lessons. And the headers of the requests that Plimsoll makes to learn more.
//!
//! Never delays a client's request: if it is late or fails, only the knowledge is lost.

pub(super) mod lessons;
pub(super) mod questions;
