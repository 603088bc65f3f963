//! A store in long use, with the built program and real sockets: `make soak MINUTES=60`.
//!
//! Agents' sessions of 2 to 40 turns, one-shots, streams that break off, a small limit on the store, and queries of the
//! admin API. Resources are measured all the time. At the end the program is killed, and every acknowledged turn is
//! looked up. A run of half a minute is part of all tests: it asserts counts and bytes, and only prints times.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod load;
mod process;
mod scale;
mod verdicts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use load::Load;
use process::Running;
use scripted_provider::ScriptedProvider;
use verdicts::{Measured, Sample};

/// The parameters of a run.
struct Plan {
    /// Whether times are judged, too.
    is_long: bool,
    lasts: Duration,
    /// Exchanges a second.
    rate: u32,
    /// `retention.bytes`.
    bound: u64,
    /// The interval of admin queries, and the length of a `minute` in the tables.
    minute: Duration,
}

impl Plan {
    /// From the environment: `PLIMSOLL_SOAK_MINUTES`, `PLIMSOLL_SOAK_RATE`.
    fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().unwrap());
        let minutes = number("PLIMSOLL_SOAK_MINUTES");
        let short = Duration::from_secs(24);
        Self {
            is_long: minutes.is_some(),
            lasts: minutes.map_or(short, |minutes| Duration::from_secs(60 * u64::from(minutes))),
            rate: number("PLIMSOLL_SOAK_RATE").unwrap_or(if minutes.is_some() { 200 } else { 50 }),
            bound: if minutes.is_some() { 64 << 20 } else { 256 << 10 },
            minute: Duration::from_secs(if minutes.is_some() { 60 } else { 3 }),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_run_keeps_resources_bounded_and_loses_no_turn() {
    let plan = Plan::from_env();
    let provider =
        ScriptedProvider::start(([127, 0, 0, 1], 0).into(), plimsoll::demo::count_tokens)
            .await
            .unwrap();
    let data = std::env::var_os("PLIMSOLL_TEST_DATA").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(data).unwrap();
    let mut running = Running::start(folder.path(), provider.address(), &plan).await;

    let load = Arc::new(Load::new(running.clients));
    let clients = load.clone().start(plan.rate, plan.lasts);
    let mut measured = Measured::new(&plan);
    let began = Instant::now();
    let (mut next_look, mut looked) = (plan.minute / 2, Vec::new());
    while began.elapsed() < plan.lasts {
        tokio::time::sleep(Duration::from_millis(250)).await;
        measured.samples.push(Sample::of(&running, began.elapsed()));
        if began.elapsed() >= next_look {
            next_look += plan.minute;
            looked.push(running.look_in().await);
        }
    }
    // Killed in the middle of everything.
    running.kill().await;
    let (answers, known) = clients.end().await;
    measured.answers = answers;
    measured.looks = looked;
    measured.missing = load::missing(folder.path(), &known).await;
    measured.judge(&plan);
}
