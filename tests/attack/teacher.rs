//! The stranger here is a client that wants to teach everybody a lie.
