//! Responses: forwarded at once, and observed.
//!
//! Observing changes no byte, except for usage: usage that Plimsoll requested, or that policy changes.

mod event_data;
pub(super) mod model_list;
pub(super) mod observe;
pub(super) mod request_body;
pub(super) mod response_body;
pub(super) mod silence;
pub(super) mod tap;
pub(super) mod usage_rewrite;
pub(super) mod usage_strip;
