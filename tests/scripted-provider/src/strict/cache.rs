//! The prompt cache: which prefix of a prompt was there before, and what is written for next time.
//!
//! A prompt is a chain of piece hashes in the order it is rendered, tools → system → messages
//! (`docs/protocols.md` 7.1). A prefix is one link. Automatic caches match whole pieces here, which is a
//! little less than real ones may find inside a piece. Knows nothing of protocols; time is passed in.

use std::collections::HashMap;
use std::time::Duration;

use super::prompt::{Piece, Place, Ttl, link};

/// Prefixes remembered at most; past it the dead ones go, then all, as real caches lose entries.
const ENTRIES: usize = 1_000_000;
/// Blocks that a breakpoint looks back, itself included (`docs/protocols.md` 7.1).
const LOOKBACK: usize = 20;

/// How a provider caches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Policy {
    /// Where the request set breakpoints (`docs/protocols.md` 7.1).
    Marked {
        /// Smallest prefix, tokens.
        min: u64,
    },
    /// By itself, every prefix (`docs/protocols.md` 7.2, 7.3).
    Automatic {
        /// Smallest prefix, tokens.
        min: u64,
        /// Reads are a multiple of this, tokens.
        step: u64,
        /// How long a prefix lives unused.
        ttl: Duration,
    },
}

/// Why a prefix that was cached for this conversation was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The first byte that differs from the request before stands here.
    Changed(Place),
    /// The provider itself took something out here: thinking of earlier turns that the model does not
    /// keep, or what its context editing cleared. No loss of the client's making.
    Own(Place),
    /// Nobody used it in time.
    Expired,
    /// It is there, but no breakpoint is within reach of it.
    OutOfReach,
    /// The request before was for another model, account or cache key.
    Elsewhere,
}

/// Tokens of one prompt by what the cache did with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Read from the cache.
    pub read: u64,
    /// Written for five minutes (or for as long as an automatic cache keeps it).
    pub written_5m: u64,
    /// Written for one hour.
    pub written_1h: u64,
    /// What was cached for the request before and not read now, tokens, and why.
    pub missed: Option<(u64, Miss)>,
}

/// What the cache held of a request: what the next one of the conversation should find.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail {
    space: u128,
    /// The chain up to the longest cached prefix, with the tokens up to each link.
    links: Vec<u128>,
    tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ends: Duration,
    ttl: Duration,
}

/// All prefixes of all accounts and models.
#[derive(Debug)]
pub(super) struct Cache {
    entries: HashMap<u128, Entry>,
    most: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self { entries: HashMap::new(), most: ENTRIES }
    }
}

/// A link of the chain with what it costs up to there.
#[derive(Clone, Copy)]
struct Link {
    hash: u128,
    upto: u64,
    mark: Option<Ttl>,
    place: Place,
}

impl Cache {
    /// Reads and writes one prompt. `space` is account, model and whatever else keeps caches apart;
    /// `before` is what the conversation's request before left. `base` tokens precede all pieces.
    pub(super) fn pass(
        &mut self,
        space: u128,
        pieces: &[Piece],
        base: u64,
        policy: Policy,
        before: Option<&Trail>,
        now: Duration,
    ) -> (Cached, Trail) {
        let links = chain(space, pieces, base);
        let hit = match policy {
            Policy::Marked { .. } => self.reach(&links, now),
            Policy::Automatic { .. } => self.longest(&links, now),
        };
        let mut cached = Cached::default();
        let (min, step) = match policy {
            Policy::Marked { min } => (min, 1),
            Policy::Automatic { min, step, .. } => (min, step),
        };
        let read = hit.map_or(0, |hit| links[hit].upto / step * step);
        cached.read = if read >= min { read } else { 0 };
        cached.missed = before.and_then(|before| {
            let lost = before.tokens.checked_sub(hit.map_or(0, |hit| links[hit].upto))?;
            (lost > 0).then(|| (lost, self.why(before, space, &links, now)))
        });
        let held = match policy {
            Policy::Marked { min } => self.write_marked(&links, hit, min, now, &mut cached),
            Policy::Automatic { min, ttl, .. } => {
                self.write_all(&links, hit, min, ttl, now, &mut cached)
            }
        };
        self.shrink(now);
        let upto = held.map_or(0, |held| held + 1);
        let trail = Trail {
            space,
            links: links[..upto].iter().map(|link| link.hash).collect(),
            tokens: held.map_or(0, |held| links[held].upto),
        };
        (cached, trail)
    }

    fn alive(&self, hash: u128, now: Duration) -> bool {
        self.entries.get(&hash).is_some_and(|entry| entry.ends > now)
    }

    /// The longest entry that a breakpoint reaches.
    fn reach(&self, links: &[Link], now: Duration) -> Option<usize> {
        let marked = (0..links.len()).filter(|at| links[*at].mark.is_some());
        let found = marked.filter_map(|mark| {
            // Settings are no block.
            let blocks =
                (0..=mark).rev().filter(|at| links[*at].place != Place::Settings).take(LOOKBACK);
            blocks.into_iter().find(|at| self.alive(links[*at].hash, now))
        });
        found.max()
    }

    fn longest(&self, links: &[Link], now: Duration) -> Option<usize> {
        (0..links.len()).rev().find(|at| self.alive(links[*at].hash, now))
    }

    fn why(&self, before: &Trail, space: u128, links: &[Link], now: Duration) -> Miss {
        if before.space != space {
            return Miss::Elsewhere;
        }
        let changed = before
            .links
            .iter()
            .enumerate()
            .find(|(at, hash)| links.get(*at).is_none_or(|link| link.hash != **hash));
        match (changed, before.links.last()) {
            (Some((at, _)), _) => Miss::Changed(links.get(at).map_or(Place::End, |l| l.place)),
            (None, Some(last)) if self.alive(*last, now) => Miss::OutOfReach,
            _ => Miss::Expired,
        }
    }

    /// Writes at each breakpoint past the hit; answers the longest link that is held now.
    fn write_marked(
        &mut self,
        links: &[Link],
        hit: Option<usize>,
        min: u64,
        now: Duration,
        cached: &mut Cached,
    ) -> Option<usize> {
        if let Some(hit) = hit {
            self.refresh(links[hit].hash, now);
        }
        let mut upto = cached.read;
        let mut held = hit;
        for (at, link) in links.iter().enumerate() {
            let Some(ttl) = link.mark.filter(|_| link.upto >= min) else { continue };
            if hit.is_some_and(|hit| at <= hit) {
                self.refresh(link.hash, now);
                continue;
            }
            match ttl {
                Ttl::Minutes5 => cached.written_5m += link.upto - upto,
                Ttl::Hour1 => cached.written_1h += link.upto - upto,
            }
            upto = link.upto;
            held = Some(at);
            self.put(link.hash, lifetime(ttl), now);
        }
        held
    }

    /// Writes every prefix; answers the longest link.
    fn write_all(
        &mut self,
        links: &[Link],
        hit: Option<usize>,
        min: u64,
        ttl: Duration,
        now: Duration,
        cached: &mut Cached,
    ) -> Option<usize> {
        let first = links.iter().position(|link| link.upto >= min)?;
        for link in &links[first..] {
            self.put(link.hash, ttl, now);
        }
        let read = hit.map_or(0, |hit| links[hit].upto);
        cached.written_5m = links.last()?.upto - read;
        Some(links.len() - 1)
    }

    fn put(&mut self, hash: u128, ttl: Duration, now: Duration) {
        self.entries.insert(hash, Entry { ends: now + ttl, ttl });
    }

    /// A use prolongs a life (`docs/protocols.md` 7.1).
    fn refresh(&mut self, hash: u128, now: Duration) {
        if let Some(entry) = self.entries.get_mut(&hash).filter(|entry| entry.ends > now) {
            entry.ends = now + entry.ttl;
        }
    }

    fn shrink(&mut self, now: Duration) {
        if self.entries.len() > self.most {
            self.entries.retain(|_, entry| entry.ends > now);
        }
        if self.entries.len() > self.most {
            self.entries.clear();
        }
    }
}

fn lifetime(ttl: Ttl) -> Duration {
    match ttl {
        Ttl::Minutes5 => Duration::from_secs(300),
        Ttl::Hour1 => Duration::from_secs(3600),
    }
}

fn chain(space: u128, pieces: &[Piece], base: u64) -> Vec<Link> {
    let (mut hash, mut upto) = (space, base);
    pieces
        .iter()
        .map(|piece| {
            hash = link(hash, piece.hash);
            upto += piece.tokens;
            Link { hash, upto, mark: piece.mark, place: piece.place }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = 1000;
    const MARKED: Policy = Policy::Marked { min: MIN };
    const AUTOMATIC: Policy =
        Policy::Automatic { min: MIN, step: 128, ttl: Duration::from_secs(600) };

    /// Pieces of 500 tokens each, named by letters; `!` after one marks it, `+` for an hour.
    fn prompt(text: &str) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for letter in text.chars() {
            let at = pieces.len();
            match letter {
                '!' => pieces[at - 1].mark = Some(Ttl::Minutes5),
                '+' => pieces[at - 1].mark = Some(Ttl::Hour1),
                letter => pieces.push(Piece {
                    place: Place::Message { message: at, block: 0 },
                    hash: letter as u128,
                    tokens: 500,
                    mark: None,
                }),
            }
        }
        pieces
    }

    /// One conversation through the cache.
    #[derive(Default)]
    struct Talk {
        cache: Cache,
        trail: Option<Trail>,
        now: Duration,
    }

    impl Talk {
        fn pass(&mut self, text: &str, policy: Policy) -> Cached {
            self.pass_in(1, text, policy)
        }

        fn pass_in(&mut self, space: u128, text: &str, policy: Policy) -> Cached {
            let pieces = prompt(text);
            let before = self.trail.as_ref();
            let (cached, trail) = self.cache.pass(space, &pieces, 0, policy, before, self.now);
            self.trail = Some(trail);
            cached
        }
    }

    fn place(message: usize) -> Place {
        Place::Message { message, block: 0 }
    }

    #[test]
    fn a_breakpoint_writes_and_the_next_request_reads() {
        let mut talk = Talk::default();
        let first = talk.pass("abc!", MARKED);
        assert_eq!((first.read, first.written_5m, first.missed), (0, 1500, None));
        // The marker moved; what it marked before is found by looking back.
        let second = talk.pass("abcde!", MARKED);
        assert_eq!((second.read, second.written_5m, second.missed), (1500, 1000, None));
        let third = talk.pass("abcde", MARKED);
        assert_eq!(third, Cached { missed: Some((2500, Miss::OutOfReach)), ..Cached::default() });
    }

    #[test]
    fn what_is_too_short_is_not_cached() {
        let mut talk = Talk::default();
        assert_eq!(talk.pass("a!", MARKED), Cached::default());
        assert_eq!(talk.pass("a!", MARKED), Cached::default());
        assert_eq!(talk.pass("ab!", MARKED).written_5m, 1000);
    }

    #[test]
    fn an_edit_costs_from_where_it_stands() {
        let mut talk = Talk::default();
        talk.pass("ab!cdef!", MARKED);
        let edited = talk.pass("ab!cXef!", MARKED);
        assert_eq!((edited.read, edited.written_5m), (1000, 2000));
        assert_eq!(edited.missed, Some((2000, Miss::Changed(place(3)))));
        let shorter = talk.pass("ab!cX!", MARKED);
        assert_eq!(shorter.missed, Some((2000, Miss::Changed(Place::End))));
    }

    #[test]
    fn a_breakpoint_looks_back_twenty_blocks() {
        for (more, found) in [("0123456789012345678", true), ("01234567890123456789", false)] {
            let mut talk = Talk::default();
            talk.pass("ab!", MARKED);
            let next = talk.pass(&format!("ab{more}!"), MARKED);
            assert_eq!(next.read == 1000, found, "{more}");
            let missed = (!found).then_some((1000, Miss::OutOfReach));
            assert_eq!(next.missed, missed);
        }
    }

    #[test]
    fn an_entry_lives_while_it_is_used() {
        let mut talk = Talk::default();
        talk.pass("ab!", MARKED);
        for _ in 0..3 {
            talk.now += Duration::from_secs(299);
            assert_eq!(talk.pass("ab!", MARKED).read, 1000);
        }
        talk.now += Duration::from_secs(300);
        let late = talk.pass("ab!", MARKED);
        assert_eq!((late.read, late.missed), (0, Some((1000, Miss::Expired))));
        let mut long = Talk::default();
        assert_eq!(
            long.pass("ab+cd!", MARKED),
            Cached { written_1h: 1000, written_5m: 1000, ..Cached::default() }
        );
        long.now += Duration::from_secs(3599);
        let later = long.pass("ab+cd!", MARKED);
        assert_eq!((later.read, later.written_5m, later.written_1h), (1000, 1000, 0));
    }

    #[test]
    fn spaces_are_apart() {
        let mut talk = Talk::default();
        talk.pass("abc!", MARKED);
        let other = talk.pass_in(2, "abc!", MARKED);
        assert_eq!((other.read, other.missed), (0, Some((1500, Miss::Elsewhere))));
    }

    #[test]
    fn an_automatic_cache_reads_in_steps() {
        let mut talk = Talk::default();
        let first = talk.pass("abc", AUTOMATIC);
        assert_eq!((first.read, first.written_5m), (0, 1500));
        let second = talk.pass("abcd", AUTOMATIC);
        assert_eq!((second.read, second.written_5m, second.missed), (1408, 500, None));
        let edited = talk.pass("aXcd", AUTOMATIC);
        assert_eq!((edited.read, edited.missed), (0, Some((2000, Miss::Changed(place(1))))));
        talk.now += Duration::from_secs(600);
        assert_eq!(talk.pass("aXcd", AUTOMATIC).missed, Some((2000, Miss::Expired)));
    }

    #[test]
    fn past_its_limit_a_cache_forgets_the_dead_then_all() {
        let mut talk = Talk { cache: Cache { most: 4, ..Cache::default() }, ..Talk::default() };
        talk.pass("abcd", AUTOMATIC);
        talk.now += Duration::from_secs(600);
        talk.pass("ABCD", AUTOMATIC);
        assert_eq!(talk.cache.entries.len(), 3, "the dead went");
        talk.pass("xyz", AUTOMATIC);
        assert_eq!(talk.cache.entries.len(), 0, "all were alive, and too many");
    }
}
