//! Fuzzes `dialect::openai_chat` by the function beside its code, and the reader of replies in that dialect.
#![no_main]

use plimsoll::dialect::{Dialect, openai_chat, reading};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    openai_chat::fuzz(bytes);
    reading::fuzz(Dialect::OpenaiChat, bytes);
});
