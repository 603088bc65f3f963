//! What responses teach, and the requests made to learn more: lessons and counts.
//!
//! Never delays a client's request: if it is late or fails, only the knowledge is lost.

pub(super) mod counting;
pub(super) mod lessons;
pub(super) mod questions;
pub(super) mod request_info;
