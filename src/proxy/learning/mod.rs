//! What answers teach, and what is asked of providers so as to know more: counts, lessons, calibration.
//!
//! Never in a request's way: what is late or fails costs nothing but itself.

pub(super) mod by_model;
pub(super) mod calibration;
pub(super) mod count_cache;
pub(super) mod counting;
pub(super) mod lessons;
pub(super) mod questions;
pub(super) mod request_info;
