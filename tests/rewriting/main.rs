//! Requests are rewritten as policy says, byte by byte where decided, and never otherwise.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod beside;
mod branches;
mod checked;
mod client_usage;
mod contents;
mod counted;
mod cut_again;
mod deleted;
mod early;
mod editing;
mod encrypted;
mod explained;
mod first_load;
mod healed;
mod healed_rest;
mod injected;
mod kept;
mod lasting;
mod learned;
mod limits;
mod overflow;
mod own_summary;
mod pictures;
mod play;
mod presets;
mod pruned;
mod put_back;
mod refused;
mod retried;
mod shown;
mod smaller;
mod spared;
mod stage;
mod stripped;
mod summary_cache;
mod thinking;
mod transcript;
mod trouble;
mod unanswered;
mod waits;
