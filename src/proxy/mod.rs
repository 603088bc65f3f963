//! Floor 5, the wire: accept, limits, drain.
//!
//! Must never be in the way: whatever fails in here, the client gets what it would have got without
//! us. Does not know the admin listener.

pub mod exchange;
pub mod tap;
pub mod upstream;
