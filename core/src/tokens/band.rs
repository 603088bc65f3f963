//! The range around an estimate that contains the real number nine times in ten.
//!
//! How wide it is, is decided by who makes it: `cold` for a first call, `learn` for all others. Pure.

/// The bounds of an estimate: they hold nine times in ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// The lower bound, tokens.
    pub low: u64,
    /// The upper bound, tokens.
    pub high: u64,
}

/// How many tokens fewer or more parts may cost whose cost no part of the request shows: a picture by URL, what a
/// provider's search found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuessedTokens {
    /// How many fewer.
    pub less: u32,
    /// How many more.
    pub more: u32,
}
