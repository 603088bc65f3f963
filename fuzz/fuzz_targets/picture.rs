//! Fuzzes `dialect::repair::shrink` by the function beside its code.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::dialect::repair::shrink::fuzz(bytes));
