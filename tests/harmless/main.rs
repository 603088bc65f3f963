//! Rewriting does no harm: random conversations of clients that behave like real ones, under random
//! policies, across restarts, against a provider that checks what real ones check.
//!
//! After every exchange: no 4xx and no silent loss that the untouched request would not have had, nor would have
//! had but for an earlier rewrite; no change of what went out before but where something new was decided; more
//! in `play/checks.rs`.
//! A hostile tenant of the same proxy changes nothing of that, and hears nothing.
//! `make harmless N=20000` plays that many conversations, and as many under presets; `FROM=5000` begins with that seed;
//! `PLIMSOLL_HARMLESS_SEED` plays one alone, with `PLIMSOLL_HARMLESS_BODIES=1` it shows what the client and
//! we sent, and the answer.
//! `make harmless REPLICAS=4` plays them before that many replicas on one Redis server, each request at another one.
//! `PLIMSOLL_PRESET_SEED` is the same for a conversation under a preset.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[path = "../support/mod.rs"]
mod support;

mod client;
mod counts;
mod defects;
mod dice;
mod endings;
mod endless;
mod hostile;
mod long;
mod overflow;
mod play;
mod presets;
mod proof;
mod provider_summary;
mod queued;
mod random;
mod stage;
mod strangers;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use counts::Counts;
use plimsoll::config::Config;

/// Conversations that `cargo test` plays.
const FEW: u64 = 60;
/// Each run has replies of all these kinds.
const ODD_REPLIES: [&str; 7] = [
    "HiddenReasoning",
    "OneOfSeveral",
    "SplitChoices",
    "CountingIndex",
    "FinalStub",
    "OtherId",
    "RepeatedCall",
];
/// The share of estimates whose band holds the actual count: nine in ten (`docs/estimates.md` 1.2).
const IN_BAND: f64 = 0.9;
/// Conversations that are played at once.
const AT_ONCE: u64 = 4;

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed that a play begins with: others find what the first ones do not.
fn first_seed() -> u64 {
    number("PLIMSOLL_HARMLESS_FROM").unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewriting_does_no_harm() {
    if let Some(seed) = number("PLIMSOLL_HARMLESS_SEED") {
        return println!("{}", play::conversation(seed, true).await.unwrap());
    }
    let counts = play_many(number("PLIMSOLL_HARMLESS").unwrap_or(FEW), |_, _| {}).await;
    // A test that nothing happens in proves nothing.
    assert!(counts.cuts > 0, "{counts}");
    assert!(counts.put_back > 0, "{counts}");
    assert!(counts.restarts > 0, "{counts}");
    assert!(counts.compacted > 0, "{counts}");
    assert!(counts.hostile_moves > 0, "{counts}");
    assert!(counts.broken_streams > 0, "{counts}");
    assert!(counts.passive > 0, "{counts}");
    assert!(counts.implausible_overflows > 0, "{counts}");
    assert!(counts.siblings > 0, "{counts}");
    assert!(counts.kept_out > 0, "{counts}");
    assert!(counts.miscounts > 0, "{counts}");
    assert!(counts.dropped_signatures > 0, "{counts}");
    for kind in ODD_REPLIES {
        assert!(counts.odd_replies.contains_key(kind), "no {kind}: {:?}", counts.odd_replies);
    }
    for share in [&counts.anchored, &counts.anchored_after_hidden] {
        assert!(share.ratio() >= IN_BAND, "{share} estimates in their band");
    }
}

/// Plays that many conversations, each with the configuration that `configure` makes of its own for the seed.
async fn play_many(count: u64, configure: fn(u64, &mut Config)) -> Counts {
    let first = first_seed();
    let next = Arc::new(AtomicU64::new(first));
    let players = (0..AT_ONCE).map(|_| {
        let next = next.clone();
        tokio::spawn(async move {
            let (mut counts, mut harm) = (Counts::default(), Vec::new());
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + count || harm.len() > 4 {
                    return (counts, harm);
                }
                let configure = |config: &mut Config| configure(seed, config);
                match play::conversation_with(seed, false, configure).await {
                    Ok(played) => counts.add(&played),
                    Err(message) => {
                        // Printed at once: the rest takes minutes.
                        println!("seed {seed} is harmed");
                        harm.push(format!("seed {seed}: {message}"));
                    }
                }
            }
        })
    });
    let (mut counts, mut harm) = (Counts::default(), Vec::new());
    for player in players.collect::<Vec<_>>() {
        let (played, harms) = player.await.unwrap();
        counts.add(&played);
        harm.extend(harms);
    }
    println!("{counts}\n{:?}\n{:?}", counts.broken_rules, counts.odd_replies);
    assert!(harm.is_empty(), "{} of {count}:\n{}", harm.len(), harm.join("\n\n"));
    counts
}

/// Lessons that hold for all, whoever met them: the play has to see that a hostile tenant teaches then.
#[tokio::test(flavor = "multi_thread")]
async fn lessons_shared_with_all_are_detected_as_harm() {
    // The loop ends with the first seed that notices it.
    for seed in 180..500 {
        if let Err(harm) = play::conversation_with_shared_lessons(seed).await {
            println!("seed {seed}");
            assert!(harm.contains("learned from a hostile tenant"), "seed {seed}: {harm}");
            return;
        }
    }
    panic!("nothing was noticed");
}
