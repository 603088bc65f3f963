//! Fuzzes `dialect::gemini` by the function beside its code, and the reader of replies in that dialect.
#![no_main]

use plimsoll::dialect::{Dialect, gemini, reading};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    gemini::fuzz(bytes);
    reading::fuzz(Dialect::Gemini, bytes);
});
