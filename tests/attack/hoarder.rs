//! The stranger here is a client that wants to hold more memory than its share.
