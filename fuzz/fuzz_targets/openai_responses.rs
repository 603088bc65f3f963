//! Fuzzes `dialect::openai_responses` by the function beside its code, and the reader of replies in that dialect.
#![no_main]

use plimsoll::dialect::{Dialect, openai_responses, reading};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    openai_responses::fuzz(bytes);
    reading::fuzz(Dialect::OpenaiResponses, bytes);
});
