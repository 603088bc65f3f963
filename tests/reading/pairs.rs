//! Recorded conversations: requests are read completely, and usage agrees with the corpus's table.

use std::collections::HashMap;

use plimsoll::dialect::{self, Note, Usage};

use crate::corpus::{Call, DIALECTS, calls, corpus, files};

#[test]
fn recorded_requests_are_read_with_valid_ranges() {
    let Some(corpus) = corpus() else { return };
    let mut count = 0;
    for (dialect, name) in DIALECTS {
        for folder in ["conversations", "conversations_partial"] {
            for path in files(&corpus.join(folder).join(name)) {
                for call in calls(dialect, &path) {
                    let read = dialect::read(dialect, &call.target, &call.request);
                    assert!(!read.notes.contains(&Note::NotJson), "{path:?}");
                    let something = read.all_parts().next().is_some() || read.held.is_some();
                    assert!(something, "{path:?}: nothing was understood");
                    ranges_fit(&read, &call);
                    count += 1;
                }
            }
        }
    }
    println!("{count} requests read");
    assert!(count > 1500, "the corpus is not whole: {count}");
}

fn ranges_fit(read: &dialect::Conversation, call: &Call) {
    for part in read.all_parts() {
        assert!(part.span.end <= call.request.len());
        assert!(part.span.start < part.span.end);
        for text in &part.texts {
            assert!(part.span.start <= text.start);
            assert!(text.end <= part.span.end);
        }
    }
}

/// A row of the table: the tokens of both calls of a pair.
struct Row<'t>(HashMap<&'t str, &'t str>);

impl Row<'_> {
    fn number(&self, column: &str) -> Option<u64> {
        self.0.get(column)?.parse().ok()
    }
}

type Column = (&'static str, fn(&Usage) -> Option<u64>);

/// The columns of a pair's first call, and of its second.
const FIRST: &[Column] = &[
    ("input_k", |usage| usage.input),
    ("cached_k", |usage| usage.cache_read),
    ("cachewrite_k", |usage| usage.cache_write),
    ("output_k", |usage| usage.output),
    ("reasoning_k", |usage| usage.reasoning),
];
const SECOND: &[Column] = &[
    ("input_k1", |usage| usage.input),
    ("cached_k1", |usage| usage.cache_read),
    ("cachewrite_k1", |usage| usage.cache_write),
];

#[test]
fn usage_agrees_with_recorded_pairs() {
    let Some(corpus) = corpus() else { return };
    let table = std::fs::read_to_string(corpus.join("PAIRS.tsv")).unwrap();
    let mut lines = table.lines();
    let columns: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let mut read: HashMap<String, Vec<Call>> = HashMap::new();
    let (mut count, mut numbers, mut wrong) = (0, 0, Vec::new());
    for line in lines {
        let row = Row(columns.iter().copied().zip(line.split('\t')).collect());
        let dialect = DIALECTS.iter().find(|(_, name)| *name == row.0["dialect"]).unwrap().0;
        let path = row.0["path"];
        let calls = read.entry(path.into()).or_insert_with(|| calls(dialect, &corpus.join(path)));
        let step = row.number("step").unwrap() as usize;
        for (index, columns) in [(step - 1, FIRST), (step, SECOND)] {
            let usage = &calls[index].reply.usage;
            for (column, ours) in columns.iter().map(|(column, ours)| (*column, ours(usage))) {
                let Some(theirs) = row.number(column) else { continue };
                if ours.unwrap_or(0) != theirs && !is_explained(column, &row, usage) {
                    wrong.push(format!("{path} step {step} {column}: {ours:?}, table {theirs}"));
                }
                numbers += 1;
            }
            count += 1;
        }
    }
    println!("{numbers} numbers of {count} calls compared");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 2000, "the corpus is not whole: {count}");
}

/// Where the table has the provider's raw number and ours is normalised: Gemini's tool-use prompt is part of our input;
/// Mistral reports cached tokens in fields that the table does not have; a gateway counts reasoning beside the
/// completion, and for us it is part of it.
fn is_explained(column: &str, row: &Row<'_>, usage: &Usage) -> bool {
    match (row.0["provider"], column) {
        ("google", "input_k" | "input_k1") => {
            let context = usage.last_call.map(|call| call.input);
            usage.hosted_tools && context == row.number(column)
        }
        ("mistral", "cached_k" | "cached_k1") => {
            row.number(column) == Some(0) && usage.cache_read < usage.input
        }
        (_, "output_k") => {
            let beside = row.number("output_k").zip(row.number("reasoning_k"));
            beside.is_some_and(|(completion, reasoning)| {
                reasoning > completion && usage.output == Some(completion + reasoning)
            })
        }
        _ => false,
    }
}
