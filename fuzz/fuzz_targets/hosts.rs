//! Fuzzes `config::hosts` by the function beside its code.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::config::hosts::fuzz(bytes));
