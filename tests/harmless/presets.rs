//! Random conversations under presets, as a user sets them: `preset = "…"` and nothing else.
//!
//! Their sizes are made for windows of 200,000 tokens. Here each has a window that leaves a few thousand, and a
//! twentieth of the tokens that it protects, so that a short conversation reaches them.

use std::sync::Arc;

use plimsoll::config::Config;
use plimsoll::config::presets::Preset;

use crate::dice::Dice;
use crate::endless::SUMMARY_REQUEST;
use crate::play;
use crate::support::server::resolved;
use crate::{number, play_many};

/// Conversations that `cargo test` plays, of all presets together.
const FEW: u64 = 60;
/// The tokens that a preset protects are divided by this.
const SMALLER: u64 = 20;

fn preset(seed: u64) -> Preset {
    Preset::ALL[(seed % Preset::ALL.len() as u64) as usize]
}

/// Sets the preset of the seed.
fn configure(seed: u64, config: &mut Config) {
    let preset = resolved(preset(seed), &[]);
    let mut policy = preset.policy.as_ref().clone();
    policy.prune.protect_tokens /= SMALLER;
    policy.prune.min_saving_tokens /= SMALLER;
    (policy.compact.wait_s, policy.compact.timeout_s) = (5, 5);
    // Requests for summaries are known by it.
    policy.compact.prompt = format!("{SUMMARY_REQUEST}. {}", policy.compact.prompt);
    let buffers = [policy.compact.threshold_buffer_tokens, policy.prune.pressure_buffer_tokens];
    let buffer = buffers.into_iter().flatten().max().unwrap_or_default();
    let room = Dice::new(seed).of(&[2_000, 6_000, 20_000]);
    config.upstreams[0].window = Some(preset.output_reserve + buffer + room);
    config.output_reserve = preset.output_reserve;
    config.policy = Arc::new(policy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presets_do_no_harm() {
    if let Some(seed) = number("PLIMSOLL_PRESET_SEED") {
        println!("{:?}", preset(seed));
        let configure = |config: &mut Config| configure(seed, config);
        return println!("{}", play::conversation_with(seed, true, configure).await.unwrap());
    }
    let counts = play_many(number("PLIMSOLL_HARMLESS").unwrap_or(FEW), configure).await;
    assert!(counts.cuts > 0, "{counts}");
    assert!(counts.put_back > 0, "{counts}");
    assert!(counts.compacted > 0, "{counts}");
    assert!(counts.restarts > 0, "{counts}");
    assert!(counts.repeated_prefixes > 0, "{counts}");
    assert!(counts.siblings > 0, "{counts}");
}
