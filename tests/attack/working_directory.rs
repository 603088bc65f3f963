//! The stranger here is a cloned repository, and files that others may write.
