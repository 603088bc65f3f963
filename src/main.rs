//! The binary: arguments in, an exit code out.
//!
//! `src/cli/serve.rs` is the list to read: config → build → serve → drain.

use std::process::ExitCode;

use clap::Parser as _;
use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;
use plimsoll::cli;

/// A small request is hundreds of allocations, a sixth of its instructions with the system's allocator
/// and a third of that with this one. Without huge pages, which would double what is resident, and of its
/// second line, which gives memory back after 10 ms; the third keeps it for a second. In place of the C
/// library's too, so that what SQLite and zstd free goes back to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_arena_purge_mult` of the allocator's second line, which the bindings do not name: whole segments
/// that are freed stay for so many times 10 ms, 10 by default.
const ARENA_PURGE_MULT: mi_option_t = 24;

/// Has the allocator give back at once what large bodies are freed from. A flood of all kinds takes up to 295 MiB
/// without this and up to 219 with it; a request takes as long. `MIMALLOC_ARENA_PURGE_MULT` goes over it.
#[expect(unsafe_code, reason = "the bindings have no safe way to set an option")]
fn give_memory_back_at_once() {
    // SAFETY: sets a number that the allocator reads; no other thread has been started.
    unsafe { mi_option_set_default(ARENA_PURGE_MULT, 0) };
}

fn main() -> ExitCode {
    give_memory_back_at_once();
    match cli::Arguments::try_parse() {
        Ok(arguments) => cli::run(&arguments),
        Err(error) => cli::misused(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another release of the allocator may number its options otherwise.
    #[test]
    #[expect(unsafe_code, reason = "the bindings have no safe way to read an option")]
    fn the_option_is_the_one_whose_default_is_ten() {
        // SAFETY: reads a number.
        let multiplier = || unsafe { libmimalloc_sys::mi_option_get(ARENA_PURGE_MULT) };
        assert_eq!(multiplier(), 10);
        give_memory_back_at_once();
        assert_eq!(multiplier(), 0);
    }
}
