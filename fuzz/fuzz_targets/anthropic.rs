//! Fuzzes `dialect::anthropic` by the function beside its code, and the reader of replies in that dialect.
#![no_main]

use plimsoll::dialect::{Dialect, anthropic, reading};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anthropic::fuzz(bytes);
    reading::fuzz(Dialect::Anthropic, bytes);
});
