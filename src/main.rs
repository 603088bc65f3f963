//! The binary: arguments in, an exit code out.
//!
//! `src/cli/serve.rs` has the sequence: config → build → serve → drain.

use std::process::ExitCode;

use clap::Parser as _;
use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;
use plimsoll::cli;

/// A small request makes hundreds of allocations, which take a sixth of its instructions with the system's
/// allocator and a third of that with this one. Without huge pages, which would double the resident memory.
/// Of the allocator's second line of versions, which returns memory after 10 ms; the third line keeps it for
/// a second. Also replaces the C library's allocator, so that memory freed by SQLite and zstd returns to the
/// system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The option `mi_option_arena_purge_mult` of the allocator's second line, for which the bindings have no
/// name: freed segments stay for this many times 10 ms, by default 10.
const ARENA_PURGE_MULT: mi_option_t = 24;

/// Makes the allocator return the memory of large bodies at once when it is freed.
#[expect(unsafe_code, reason = "the bindings have no safe way to set an option")]
fn give_memory_back_at_once() {
    // A flood of all kinds takes up to 295 MiB without this and up to 219 MiB with it; the time of a request
    // stays the same. `MIMALLOC_ARENA_PURGE_MULT` overrides it.
    // SAFETY: sets a number that the allocator reads; no other thread has been started.
    unsafe { mi_option_set_default(ARENA_PURGE_MULT, 0) };
}

fn main() -> ExitCode {
    give_memory_back_at_once();
    match cli::Arguments::try_parse() {
        Ok(arguments) => cli::run(&arguments),
        Err(error) => cli::usage_error(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another release of the allocator may number its options differently.
    #[test]
    #[expect(unsafe_code, reason = "the bindings have no safe way to read an option")]
    fn allocator_option_number_is_that_of_purge_multiplier() {
        // SAFETY: it only reads a number.
        let multiplier = || unsafe { libmimalloc_sys::mi_option_get(ARENA_PURGE_MULT) };
        assert_eq!(multiplier(), 10);
        give_memory_back_at_once();
        assert_eq!(multiplier(), 0);
    }
}
