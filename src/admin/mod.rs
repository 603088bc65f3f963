//! Floor 5, looking in: the admin listener's routes.
//!
//! Reads what the lower floors keep; never touches traffic, and does not know the proxy.

pub mod view;
