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
    pub taken_out: u64,
    pub restarts: u64,
    pub forks: u64,
    pub rewinds: u64,
    pub edits: u64,
    /// Exchanges that repeated what went out before, byte for meaning.
    pub stable: u64,
    pub earned: u64,
    /// Refusals after which a request was sent as those before it.
    pub taken_back: u64,
    /// Streams that broke off.
    pub broken_off: u64,
    /// Exchanges whose history begins with a summary, and conversations that have one.
    pub compacted: u64,
    pub outgrown: u64,
    /// Overflows that were mended.
    pub mended: u64,
    /// Requests whose client asked for a mode that changes nothing.
    pub unchanged: u64,
    /// Refusals that nobody can believe.
    pub wild: u64,
    /// What a hostile tenant beside did.
    pub hostile: u64,
    /// The rules that clients broke by themselves, with how often.
    pub broken: BTreeMap<String, u64>,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.conversations += other.conversations;
        self.exchanges += other.exchanges;
        self.cuts += other.cuts;
        self.put_back += other.put_back;
        self.taken_out += other.taken_out;
        self.restarts += other.restarts;
        self.forks += other.forks;
        self.rewinds += other.rewinds;
        self.edits += other.edits;
        self.stable += other.stable;
        self.earned += other.earned;
        self.taken_back += other.taken_back;
        self.broken_off += other.broken_off;
        self.compacted += other.compacted;
        self.outgrown += other.outgrown;
        self.mended += other.mended;
        self.unchanged += other.unchanged;
        self.wild += other.wild;
        self.hostile += other.hostile;
        for (rule, count) in &other.broken {
            *self.broken.entry(rule.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} conversations, {} exchanges: {} with cuts, {} with reasoning put back, {} with \
             reasoning taken out, {} compacted in {} conversations; {} overflows mended; {} times \
             sent as before; {} broken off; {} prefixes repeated; {} restarts, {} forks, {} rewinds, {} edits; \
             {} in shadow or observe; {} wild refusals; {} moves of a hostile tenant; \
             {} refusals that their clients earned, 0 that they did not",
            self.conversations,
            self.exchanges,
            self.cuts,
            self.put_back,
            self.taken_out,
            self.compacted,
            self.outgrown,
            self.mended,
            self.taken_back,
            self.broken_off,
            self.stable,
            self.restarts,
            self.forks,
            self.rewinds,
            self.edits,
            self.unchanged,
            self.wild,
            self.hostile,
            self.earned
        )
    }
}
