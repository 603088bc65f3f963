//! What was played, for a line at the end: a play in which nothing happened proves nothing.

use std::collections::BTreeMap;
use std::fmt;

/// What was played.
#[derive(Default)]
pub struct Counts {
    pub conversations: u64,
    pub exchanges: u64,
    pub cuts: u64,
    pub put_back: u64,
    pub stripped: u64,
    pub restarts: u64,
    pub forks: u64,
    pub rewinds: u64,
    pub edits: u64,
    /// Exchanges that repeated what went out before, in meaning.
    pub repeated_prefixes: u64,
    pub deserved_refusals: u64,
    /// Refusals after which a request was sent as those before it.
    pub revoked: u64,
    /// Requests at the same time as another of their session.
    pub siblings: u64,
    /// Streams that broke off.
    pub broken_streams: u64,
    /// Exchanges whose history begins with a summary, and conversations that have one.
    pub compacted: u64,
    pub compacted_conversations: u64,
    /// Overflows that a smaller request recovered from.
    pub recovered_overflows: u64,
    /// Requests whose client asked for a mode that changes nothing.
    pub passive: u64,
    /// Refusals with an impossible token count.
    pub implausible_overflows: u64,
    /// Results that are no context and went out as they came.
    pub kept_out: u64,
    /// Requests that did not fit with reasoning put back, and in which no room could be made.
    pub without_room: u64,
    /// Replies with odd usage.
    pub miscounts: u64,
    /// Replies in odd forms, by kind.
    pub odd_replies: BTreeMap<String, u64>,
    /// How many of the estimates that a count anchors hold the actual one in their band, and of those right after a reply
    /// whose reasoning was only billed.
    pub anchored: Share,
    pub anchored_after_hidden: Share,
    /// Requests that a model declined.
    pub declined: u64,
    /// Stand-ins for reasoning that nobody knows.
    pub stand_ins: u64,
    /// Calls whose known signature or reasoning the client dropped, where a stand-in would be wrong.
    pub dropped_signatures: u64,
    /// Moves of the hostile tenant.
    pub hostile_moves: u64,
    /// The rules that clients broke by themselves, with how often.
    pub broken_rules: BTreeMap<String, u64>,
}

/// How many of all.
#[derive(Default)]
pub struct Share {
    pub part: u64,
    pub all: u64,
}

impl Share {
    pub fn count(&mut self, is_part: bool) {
        self.part += u64::from(is_part);
        self.all += 1;
    }

    fn add(&mut self, other: &Self) {
        self.part += other.part;
        self.all += other.all;
    }

    /// From 0 to 1; 1 if there is none.
    pub fn ratio(&self) -> f64 {
        if self.all == 0 { 1.0 } else { self.part as f64 / self.all as f64 }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.part, self.all)
    }
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.conversations += other.conversations;
        self.exchanges += other.exchanges;
        self.cuts += other.cuts;
        self.put_back += other.put_back;
        self.stripped += other.stripped;
        self.restarts += other.restarts;
        self.forks += other.forks;
        self.rewinds += other.rewinds;
        self.edits += other.edits;
        self.repeated_prefixes += other.repeated_prefixes;
        self.deserved_refusals += other.deserved_refusals;
        self.revoked += other.revoked;
        self.siblings += other.siblings;
        self.broken_streams += other.broken_streams;
        self.compacted += other.compacted;
        self.compacted_conversations += other.compacted_conversations;
        self.recovered_overflows += other.recovered_overflows;
        self.passive += other.passive;
        self.without_room += other.without_room;
        self.implausible_overflows += other.implausible_overflows;
        self.kept_out += other.kept_out;
        self.miscounts += other.miscounts;
        self.declined += other.declined;
        self.stand_ins += other.stand_ins;
        self.dropped_signatures += other.dropped_signatures;
        self.hostile_moves += other.hostile_moves;
        self.anchored.add(&other.anchored);
        self.anchored_after_hidden.add(&other.anchored_after_hidden);
        add_all(&mut self.broken_rules, &other.broken_rules);
        add_all(&mut self.odd_replies, &other.odd_replies);
    }
}

fn add_all(counts: &mut BTreeMap<String, u64>, others: &BTreeMap<String, u64>) {
    for (name, count) in others {
        *counts.entry(name.clone()).or_default() += count;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} conversations, {} exchanges: {} with cuts, {} with reasoning put back, {} with \
             reasoning taken out, {} compacted in {} conversations; {} overflows mended, {} without room for reasoning that was put back; {} times \
             sent as before; {} at the same time as another; {} broken off; {} prefixes repeated; {} restarts, {} forks, {} rewinds, {} edits; \
             {} in shadow or observe; {} wild refusals; {} results that are no context; {} replies with odd usage; \
             {} anchored estimates in their band, {} after hidden reasoning; \
             {} declined; {} stand-ins, {} not needed; {} moves of a hostile tenant; \
             {} refusals that their clients earned, 0 that they did not",
            self.conversations,
            self.exchanges,
            self.cuts,
            self.put_back,
            self.stripped,
            self.compacted,
            self.compacted_conversations,
            self.recovered_overflows,
            self.without_room,
            self.revoked,
            self.siblings,
            self.broken_streams,
            self.repeated_prefixes,
            self.restarts,
            self.forks,
            self.rewinds,
            self.edits,
            self.passive,
            self.implausible_overflows,
            self.kept_out,
            self.miscounts,
            self.anchored,
            self.anchored_after_hidden,
            self.declined,
            self.stand_ins,
            self.dropped_signatures,
            self.hostile_moves,
            self.deserved_refusals
        )
    }
}
