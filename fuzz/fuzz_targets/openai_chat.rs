//! Fuzzes `dialect::openai_chat` by the function beside its code.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::dialect::openai_chat::fuzz(bytes));
