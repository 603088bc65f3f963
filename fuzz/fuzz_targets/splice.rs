//! Fuzzes `wire::splice` by the function beside its code.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::wire::splice::fuzz(bytes));
