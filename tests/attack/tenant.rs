//! The stranger here is another client on a shared proxy.
