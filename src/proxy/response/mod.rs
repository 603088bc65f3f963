//! Responses on their way to the client: passed on at once, and read along.
//!
//! What reading finds never changes a byte but usage that was asked for on our behalf, or told otherwise by policy.

pub(super) mod observe;
pub(super) mod request_body;
pub(super) mod silence;
pub(super) mod status;
pub(super) mod tap;
pub(super) mod usage_rewrite;
pub(super) mod usage_strip;
