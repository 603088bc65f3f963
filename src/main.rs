//! The binary: arguments → config → build → serve → drain.

fn main() {}
