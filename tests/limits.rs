//! Limits are what they are documented to be: `docs/limits.md` has the numbers of the code, and what is counted for a
//! session is what it takes.
//!
//! Numbers are read from the sources as text, so that constants can stay private. Memory is what the system reports for
//! this process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by failing")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use plimsoll::context::Fact;
use plimsoll::context::ledger::Ledger;
use serde_json::json;

/// Memory that another test takes at the same time would count for the session.
static ALONE: Mutex<()> = Mutex::new(());

/// For each number in a row's default, the constant that it comes from: file and name.
const ROWS: &[(&str, &[(&str, &str)])] = &[
    ("memory of the whole process", &[("src/config/memory_limits.rs", "LEAST")]),
    ("memory for traffic", &[("src/config/memory_limits.rs", "LEAST / 32 * 5")]),
    (
        "one parsed request",
        &[("src/proxy/plan/parsed_body.rs", "TIMES"), ("src/proxy/plan/parsed_body.rs", "SMALL")],
    ),
    ("parts of one request", &[("core/src/dialect/size.rs", "MOST_PARTS")]),
    (
        "one reply",
        &[
            ("core/src/dialect/reply.rs", "MOST_KEPT"),
            ("core/src/dialect/reply.rs", "MOST_PARTS"),
            ("core/src/dialect/reply.rs", "MOST_VALUES"),
            ("core/src/dialect/anthropic/usage.rs", "MOST_ATTEMPTS"),
        ],
    ),
    ("a request body", &[("src/config/settings.rs", "body_bytes:")]),
    ("a reply's body or event", &[("src/config/settings.rs", "reply_bytes:")]),
    ("stacked content encodings", &[("core/src/wire/encoding.rs", "MOST_CODINGS")]),
    ("a zstd window", &[("core/src/wire/encoding.rs", "1 << ZSTD_WINDOW_LOG")]),
    ("values of one JSON text", &[("core/src/wire/json/most.rs", "SHORT")]),
    (
        "requests on a WebSocket",
        &[
            ("src/proxy/exchange/websocket/frames.rs", "MAX_OPEN"),
            ("src/proxy/exchange/websocket/frames.rs", "MAX_READ"),
        ],
    ),
    ("a model's name", &[("core/src/dialect/size.rs", "LONGEST_NAME")]),
    (
        "newest requests in memory, parsed",
        &[
            ("src/store/ledgers/latest_requests.rs", "BYTES"),
            ("src/store/ledgers/latest_requests.rs", "MOST"),
        ],
    ),
    (
        "sessions in memory",
        &[
            ("src/store/ledgers/session_cache.rs", "BYTES"),
            ("src/store/ledgers/session_cache.rs", "SESSIONS"),
        ],
    ),
    ("turns of a session in memory", &[("core/src/context/ledger.rs", "TURNS")]),
    ("decisions of a session", &[("src/store/ledgers/session_cache.rs", "DECISIONS")]),
    (
        "smaller pictures among them (`heal.images`)",
        &[
            ("src/store/ledgers/session_cache.rs", "PICTURES"),
            ("core/src/context/repair/smaller.rs", "KEPT"),
        ],
    ),
    ("decoding a picture, in addition", &[("core/src/dialect/repair/shrink.rs", "DECODED")]),
    ("facts read of a session", &[("src/store/ledgers/session_cache.rs", "FACTS")]),
    (
        "turns before the database",
        &[("src/store/sqlite/queue.rs", "QUEUE_BYTES"), ("src/store/sqlite/queue.rs", "QUEUE")],
    ),
    (
        "the store's write queue",
        &[("src/store/sqlite/queue.rs", "QUEUE_BYTES"), ("src/store/sqlite/queue.rs", "QUEUE")],
    ),
    ("`run.log` of `plimsoll run`", &[("src/store/folder.rs", "RUN_LOG_BYTES")]),
    (
        "summaries being written",
        &[
            ("src/proxy/state/summaries.rs", "AT_ONCE"),
            ("src/proxy/state/summaries.rs", "AT_ONCE_IN_ALL"),
        ],
    ),
    ("interim responses (1xx) of an upstream", &[("src/proxy/http/interim.rs", "MOST")]),
    ("session fingerprints in memory", &[("src/store/ledgers/fingerprints.rs", "IN_MEMORY")]),
    (
        "unnamed sessions whose first words are known",
        &[
            ("src/store/ledgers/beside.rs", "IN_USE"),
            ("src/store/ledgers/beside.rs", "WORDS"),
            ("src/store/ledgers/beside.rs", "TEXT"),
        ],
    ),
    ("session look-ups in flight", &[("src/store/ledgers/fingerprints.rs", "LOOK_UPS")]),
    ("calibrations of an upstream in memory", &[("src/proxy/state/by_model.rs", "MODELS")]),
    ("calibrations in the store", &[("src/store/sqlite/facts.rs", "MOST_SERIES")]),
    ("pending compaction requests", &[("src/store/ledgers/pending_compactions.rs", "MOST")]),
    ("limits of providers", &[("src/telemetry/quotas.rs", "MOST_QUOTAS")]),
    ("sums of spending caps", &[("core/src/context/caps.rs", "MOST_SUMS")]),
    (
        "tags of a request (`x-plimsoll-tags`)",
        &[("src/proxy/http/headers.rs", "MOST_TAGS"), ("src/proxy/http/headers.rs", "LONGEST_TAG")],
    ),
    ("live events queued for a slow reader", &[("src/telemetry.rs", "BEHIND")]),
    ("sessions exported at once", &[("src/admin/state.rs", "EXPORTS")]),
    (
        "sessions and calls that the page sorts",
        &[("src/admin/index.rs", "MOST_SESSIONS"), ("src/admin/index.rs", "MOST_CALLS")],
    ),
    ("turns for the [warehouse](fleets.md)", &[("src/warehouse/queue.rs", "QUEUE_BYTES")]),
    ("headers of a request", &[("src/config/settings.rs", "header_bytes:")]),
    ("header lines over HTTP/1", &[("src/proxy/http/transport.rs", "MOST_HEADERS")]),
    ("client connections, tunnels included", &[("src/config/memory_limits.rs", "CONNECTIONS")]),
    ("idle tunnels", &[("src/proxy/http/tunnel_timeouts.rs", "half_closed:")]),
    ("HTTP/1 buffers of a connection, each way", &[("src/proxy/http/transport.rs", "BUFFER")]),
    ("HTTP/2: streams of a client's connection", &[("src/proxy/server/builder.rs", "STREAMS")]),
    (
        "HTTP/2: what waits for slow upstreams",
        &[
            ("src/proxy/server/builder.rs", "STREAM_WINDOW"),
            ("src/proxy/server/builder.rs", "WIDE_WINDOW"),
            ("src/proxy/server/builder.rs", "NARROW_WINDOW"),
        ],
    ),
    (
        "HTTP/2: what waits for a slow client",
        &[
            ("src/proxy/http/upstream/http2.rs", "STREAM_WINDOW"),
            ("src/proxy/server/builder.rs", "SEND_BUFFER"),
        ],
    ),
    ("HTTP/2 streams of a connection", &[("src/proxy/http/upstream/http2.rs", "STREAMS")]),
    ("HTTP/2 connections", &[("src/proxy/http/upstream/http2.rs", "CONNECTIONS")]),
    ("attempts of an unprocessed request", &[("src/proxy/http/upstream/limits.rs", "ATTEMPTS")]),
    (
        "idle HTTP/2 connections",
        &[
            ("src/proxy/http/upstream/http2.rs", "IDLE_CONNECTIONS"),
            ("src/proxy/http/upstream/limits.rs", "IDLE"),
        ],
    ),
    (
        "idle HTTP/1.1 connections",
        &[
            ("src/proxy/http/upstream/http1.rs", "IDLE_CONNECTIONS"),
            ("src/proxy/http/upstream/limits.rs", "IDLE"),
        ],
    ),
];

/// Tested over sockets only: there is no constant.
const NO_CONSTANT: &[&str] = &["a response in flight"];

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Rows of tables with a number as default: the subject, and the default.
fn documented() -> HashMap<String, String> {
    let limits = read("docs/limits.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = HashMap::new();
    let mut is_bound = false;
    for line in limits.lines().map(str::trim) {
        if !line.starts_with('|') {
            is_bound = false;
        } else if line.contains("| default |") || line.contains("| bound |") {
            is_bound = true;
        } else if is_bound && !line.starts_with("|---") {
            let cells = cells(line);
            if cells[1].contains(|sign: char| sign.is_ascii_digit()) {
                rows.insert(cells[0].clone(), cells[1].clone());
            }
        }
    }
    rows
}

/// The numbers in a text, in bytes if they have the unit KiB or MiB.
fn numbers(text: &str) -> Vec<u64> {
    let pieces: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| {
        let word = pieces[at].trim_end_matches([',', ';', ':']).replace(',', "");
        let number: u64 = word.parse().ok()?;
        let unit = pieces.get(at + 1).map_or("", |unit| unit.trim_end_matches([',', ';']));
        Some(match unit {
            "KiB" => number << 10,
            "MiB" => number << 20,
            _ => number,
        })
    };
    (0..pieces.len()).filter_map(number).collect()
}

/// The value of a constant in a file, or of an expression with one. A name that ends with a colon is a default.
fn constant(file: &str, name: &str) -> u64 {
    let source = read(file);
    let is_name = |word: &&str| {
        word.len() > 1
            && word.chars().all(|it| it.is_ascii_uppercase() || "_0123456789".contains(it))
            && word.contains(|it: char| it.is_ascii_uppercase())
    };
    let value = if name.ends_with(':') {
        // The default comes after the declaration.
        let limits = source.split("impl Default for RawLimits").nth(1);
        let defaults = limits.or(source.split("fn default()").nth(1)).unwrap();
        defaults.split(&format!("{name} ")).nth(1).unwrap().split(",\n").next().unwrap().to_owned()
    } else {
        let mut value = name.to_owned();
        for known in name.split_whitespace().filter(is_name) {
            let declared = source
                .lines()
                .find(|line| line.contains(&format!("const {known}: ")))
                .unwrap_or_else(|| panic!("{file} has no {known}"));
            let declared = declared.split(" = ").nth(1).unwrap().trim_end_matches(';');
            value = value.replace(known, declared);
        }
        value
    };
    let value = value.replace("Duration::from_secs(", "").replace([')', '_'], "");
    let mut terms = value.split_whitespace();
    let mut sum: u64 = terms.next().unwrap().parse().unwrap_or_else(|_| panic!("{name}: {value}"));
    while let (Some(sign), Some(by)) = (terms.next(), terms.next()) {
        let by: u64 = by.parse().unwrap();
        sum = match sign {
            "*" => sum * by,
            "<<" => sum << by,
            "/" => sum / by,
            other => panic!("{name}: what is {other}?"),
        };
    }
    sum
}

#[test]
fn documented_bounds_are_the_codes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let documented = documented();
    let mut wrong = Vec::new();
    for (row, constants) in ROWS {
        let Some(default) = documented.get(*row) else {
            wrong.push(format!("docs/limits.md has no row `{row}`"));
            continue;
        };
        let coded: Vec<u64> = constants.iter().map(|(file, name)| constant(file, name)).collect();
        let documented = numbers(default);
        // A window of 64 KiB is one byte less.
        let is_same =
            |(documented, coded): (&u64, &u64)| documented == coded || *documented == coded + 1;
        if documented.len() != coded.len() || !documented.iter().zip(&coded).all(is_same) {
            wrong.push(format!("`{row}`: {default} is {documented:?}, the code says {coded:?}"));
        }
    }
    for row in documented.keys().filter(|row| !NO_CONSTANT.contains(&row.as_str())) {
        if ROWS.iter().all(|(known, _)| known != row) {
            wrong.push(format!("`{row}` is compared with nothing: add it to this test"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A turn like an agent's: some new parts, a reply of two, and a tool call with an id of its own.
fn turn(number: usize) -> Fact {
    let part =
        |at: usize| json!({"key": key(number * 100 + at), "tokens": 250, "place": "history"});
    let fact = json!({"kind": "turn", "exchange": name(number),
        "position": {"thread": "1f2e3d4c5b6a7988", "parent": name(number.max(1) - 1),
            "chain": key(number * 7), "last": key(number * 11), "system": key(1), "tools": key(2)},
        "after": key(number * 13 + 1), "response": format!("chatcmpl-{number:029}"),
        "at": 1, "ended": 2, "upstream": "openai", "dialect": "openai-chat", "model": "gpt-5",
        "family": "o200k", "purpose": "turn", "estimate": null, "usage": {"input": 100, "output": 7},
        "stop": "end", "outcome": "complete", "window": 200_000, "reserve": 8_000,
        "sketch": {"base": name(number.max(1) - 1), "kept": 9, "added": [part(1), part(2), part(3)]},
        "reply": [part(4), part(5)], "anchor_keys": [key(number * 17)]});
    serde_json::from_value(fact).unwrap()
}

fn name(number: usize) -> String {
    format!("01980f6e-{number:04x}-7000-8000-000000000000")
}

fn key(number: usize) -> String {
    format!("{number:032x}")
}

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// So many sessions that other memory of the process matters little.
#[test]
#[cfg(target_os = "linux")]
fn session_uses_about_memory_that_is_counted_for_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Just below and just above the sizes at which the maps of a session double.
    for (sessions, turns) in [(150, 100), (18, 890), (18, 1_000), (5, 3_500), (5, 4_000)] {
        let before = resident();
        let mut ledgers: Vec<Ledger> = (0..sessions).map(|_| Ledger::default()).collect();
        for ledger in &mut ledgers {
            (0..turns).for_each(|number| ledger.add(turn(number)));
        }
        let takes = resident() - before;
        let counted: usize = ledgers.iter().map(Ledger::bytes).sum();
        let case = format!("{sessions} sessions of {turns} turns take {takes}, {counted} counted");
        println!("{case}");
        // The next case could reuse freed memory, which would not show as growth.
        std::mem::forget(ledgers);
        assert!(counted * 20 >= takes * 19, "{case}");
        assert!(counted <= takes * 3 / 2, "{case}");
    }
}

#[test]
fn long_session_keeps_its_newest_turns_in_memory() {
    const MOST: usize = 4096;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ledger = Ledger::default();
    let mut peak = 0;
    for number in 0..2 * MOST {
        ledger.add(turn(number));
        peak = peak.max(ledger.bytes());
        if number % 64 == 0 {
            let turns = ledger.turns().count();
            assert!(turns <= MOST, "{turns}");
            assert!((turns > MOST / 2 || number < MOST), "{turns}");
        }
        assert!(ledger.turn(&name(number).into()).is_some(), "the newest");
    }
    assert!(ledger.turn(&name(0).into()).is_none(), "the oldest is gone");
    assert!(peak < 16 << 20, "{peak} bytes");
    // What it would free, the other test could reuse: that would not show as growth.
    std::mem::forget(ledger);
}
