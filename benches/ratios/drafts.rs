//! What it costs that an exchange which was begun is known: streams in a server that writes drafts, beside
//! one that writes none, interleaved.
//!
//! A stream of 3 s is what providers send, and is written each second; one of 0.3 s is the least that is
//! written at all; those that are flat out are over before.

use std::time::Duration;

use super::load::Load;
use super::process::{self, Part};
use super::{Size, median};

/// Events of one stream.
const EVENTS: usize = 50;
/// Between two of them, where a stream is paced.
const PACE: Duration = Duration::from_millis(6);
/// How many times as long a stream of a provider is, with as many times the events at half the pace.
const LONGER: u32 = 5;
/// Streams at once.
const WIDTH: usize = 32;

/// Measures both, and prints the ratio of their CPU.
pub(crate) async fn print(size: &Size) {
    let provider = Part::start("provider", &[]);
    let data = tempfile::tempdir().unwrap();
    let servers = ["undrafted", "whole"].map(|kind| {
        let own = data.path().join(kind);
        std::fs::create_dir(&own).unwrap();
        Part::start("server", &[kind, &provider.address, &own.to_string_lossy()])
    });
    let mut samples = [const { Vec::new() }; 6];
    for round in 0..=size.rounds {
        // Who is first has no advantage.
        for at in [round % 2, 1 - round % 2] {
            let server = &servers[at];
            let load = Load::new(&server.address);
            let before = process::cpu_seconds(server.id());
            for _ in 0..size.rounds {
                load.paced_streams(WIDTH, EVENTS, PACE).await;
            }
            let paced = process::cpu_seconds(server.id());
            let flat = size.streams * 20;
            load.flat_out_streams(flat, EVENTS, 8).await;
            let over = process::cpu_seconds(server.id());
            load.paced_streams(WIDTH, EVENTS * LONGER as usize, PACE * 2).await;
            let long = process::cpu_seconds(server.id());
            if round > 0 {
                samples[at].push((paced - before) / (size.rounds * WIDTH) as f64);
                samples[2 + at].push((over - paced) / flat as f64);
                samples[4 + at].push((long - over) / WIDTH as f64);
            }
        }
    }
    let figures = samples.each_mut().map(|samples| median(samples) * 1e6);
    println!("a stream, CPU                               µs   with drafts     ratio");
    for (name, at) in
        [("250 events in 3 s", 4), ("50 events in 0.3 s", 0), ("50 events flat out", 2)]
    {
        let [without, with] = [figures[at], figures[at + 1]];
        println!("{name:<36}{without:>10.1}{with:>14.1}{:>9.3}×   (bar: 1.03×)", with / without);
    }
    println!();
}
