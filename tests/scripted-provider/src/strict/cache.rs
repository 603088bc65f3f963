//! The prompt cache: which prefix of a prompt is read from it, and what is written to it.
//!
//! A prompt is a chain of piece hashes in the order it is rendered, tools → system → messages
//! (`docs/protocols.md` 7.1). A prefix is one link. Automatic caches match whole pieces here, which is a
//! little less than real ones may find inside a piece. Knows nothing of protocols; time is passed in.

use std::collections::HashMap;
use std::time::Duration;

use super::prompt::{Place, PromptPiece, Ttl, link};

/// Prefixes kept at most; past it the expired ones go, then all, as real caches lose entries.
const MAX_ENTRIES: usize = 1_000_000;
/// Blocks that a breakpoint looks back, itself included (`docs/protocols.md` 7.1).
const LOOKBACK: usize = 20;

/// How a provider caches.
#[derive(Clone, Copy, Debug)]
pub(super) enum CachePolicy {
    /// At the breakpoints of the request (`docs/protocols.md` 7.1).
    Breakpoints {
        /// Smallest prefix, tokens.
        min: u64,
    },
    /// Every prefix (`docs/protocols.md` 7.2, 7.3).
    Automatic {
        /// Smallest prefix, tokens.
        min: u64,
        /// Reads are a multiple of this, tokens.
        step: u64,
        /// How long a prefix lives unused.
        ttl: Duration,
    },
}

/// The reason why a prefix that was cached for this conversation was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// The first difference from the previous request is here.
    Changed(Place),
    /// The provider itself removed something here: thinking of earlier turns that the model does not keep,
    /// or what its context editing cleared. The client lost nothing.
    ProviderEdit(Place),
    /// It was not used in time.
    Expired,
    /// It is there, but no breakpoint looks back so far.
    OutOfReach,
    /// The previous request was for another model, account or cache key.
    OtherCache,
}

/// Tokens of one prompt that were read from the cache, written to it, or missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Read from the cache.
    pub read: u64,
    /// Written for five minutes (or for as long as an automatic cache keeps it).
    pub written_5m: u64,
    /// Written for one hour.
    pub written_1h: u64,
    /// What was cached for the previous request and not read now.
    pub missed: Option<MissedPrefix>,
}

/// A part of a cached prefix that was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedPrefix {
    /// Tokens of it.
    pub tokens: u64,
    /// Why it was not read.
    pub reason: MissReason,
}

/// A prompt as the cache sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachePrompt<'p> {
    /// Account, model and whatever else keeps caches apart.
    pub(super) namespace: u128,
    pub(super) pieces: &'p [PromptPiece],
    /// Tokens before all pieces.
    pub(super) fixed_tokens: u64,
    pub(super) policy: CachePolicy,
}

/// How the cache served a prompt.
#[derive(Clone, Debug)]
pub(super) struct CacheResult {
    pub(super) usage: CacheUsage,
    pub(super) cached_prefix: CachedPrefix,
}

/// The part of a request that the cache holds, which the next one of the conversation should find.
#[derive(Clone, Debug, Default)]
pub(super) struct CachedPrefix {
    namespace: u128,
    /// The chain up to the longest cached prefix.
    links: Vec<u128>,
    tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct CacheEntry {
    expires_at: Duration,
    ttl: Duration,
}

/// All prefixes of all accounts and models.
#[derive(Debug)]
pub(super) struct PromptCache {
    entries: HashMap<u128, CacheEntry>,
    max_entries: usize,
}

impl Default for PromptCache {
    fn default() -> Self {
        Self { entries: HashMap::new(), max_entries: MAX_ENTRIES }
    }
}

/// A link of the chain, with the tokens up to there.
#[derive(Clone, Copy)]
struct ChainLink {
    hash: u128,
    total_tokens: u64,
    breakpoint: Option<Ttl>,
    place: Place,
}

impl PromptCache {
    /// Reads and writes one prompt. `previous` is what was cached for the conversation's previous request.
    pub(super) fn read_and_write(
        &mut self,
        prompt: &CachePrompt<'_>,
        previous: Option<&CachedPrefix>,
        now: Duration,
    ) -> CacheResult {
        let (namespace, policy) = (prompt.namespace, prompt.policy);
        let links = chain(prompt);
        let hit = match policy {
            CachePolicy::Breakpoints { .. } => self.longest_in_lookback(&links, now),
            CachePolicy::Automatic { .. } => self.longest(&links, now),
        };
        let mut cached = CacheUsage::default();
        let (min, step) = match policy {
            CachePolicy::Breakpoints { min } => (min, 1),
            CachePolicy::Automatic { min, step, .. } => (min, step),
        };
        // Automatic caches are read in whole steps (`docs/protocols.md` 7.2).
        let read = hit.map_or(0, |hit| links[hit].total_tokens / step * step);
        cached.read = if read >= min { read } else { 0 };
        cached.missed = previous.and_then(|previous| {
            let hit_tokens = hit.map_or(0, |hit| links[hit].total_tokens);
            let tokens = previous.tokens.checked_sub(hit_tokens).filter(|tokens| *tokens > 0)?;
            Some(MissedPrefix {
                tokens,
                reason: self.miss_reason(previous, namespace, &links, now),
            })
        });
        let longest_cached = match policy {
            CachePolicy::Breakpoints { min } => {
                self.write_at_breakpoints(&links, hit, min, now, &mut cached)
            }
            CachePolicy::Automatic { min, ttl, .. } => {
                self.write_all(&links, hit, min, ttl, now, &mut cached)
            }
        };
        self.evict(now);
        let length = longest_cached.map_or(0, |longest_cached| longest_cached + 1);
        let cached_prefix = CachedPrefix {
            namespace,
            links: links[..length].iter().map(|link| link.hash).collect(),
            tokens: longest_cached.map_or(0, |longest_cached| links[longest_cached].total_tokens),
        };
        CacheResult { usage: cached, cached_prefix }
    }

    fn is_alive(&self, hash: u128, now: Duration) -> bool {
        self.entries.get(&hash).is_some_and(|entry| entry.expires_at > now)
    }

    /// The longest entry that a breakpoint finds by looking back.
    fn longest_in_lookback(&self, links: &[ChainLink], now: Duration) -> Option<usize> {
        let breakpoints = (0..links.len()).filter(|at| links[*at].breakpoint.is_some());
        let hits = breakpoints.filter_map(|breakpoint| {
            // Settings are not a block.
            let blocks = (0..=breakpoint)
                .rev()
                .filter(|at| links[*at].place != Place::Settings)
                .take(LOOKBACK);
            blocks.into_iter().find(|at| self.is_alive(links[*at].hash, now))
        });
        hits.max()
    }

    fn longest(&self, links: &[ChainLink], now: Duration) -> Option<usize> {
        (0..links.len()).rev().find(|at| self.is_alive(links[*at].hash, now))
    }

    fn miss_reason(
        &self,
        previous: &CachedPrefix,
        namespace: u128,
        links: &[ChainLink],
        now: Duration,
    ) -> MissReason {
        if previous.namespace != namespace {
            return MissReason::OtherCache;
        }
        let changed = previous
            .links
            .iter()
            .enumerate()
            .find(|(at, hash)| links.get(*at).is_none_or(|link| link.hash != **hash));
        match (changed, previous.links.last()) {
            (Some((at, _)), _) => {
                MissReason::Changed(links.get(at).map_or(Place::End, |l| l.place))
            }
            // It is still there, further back than a breakpoint looks.
            (None, Some(last)) if self.is_alive(*last, now) => MissReason::OutOfReach,
            _ => MissReason::Expired,
        }
    }

    /// Writes at each breakpoint past the hit; returns the longest link that is cached now.
    fn write_at_breakpoints(
        &mut self,
        links: &[ChainLink],
        hit: Option<usize>,
        min: u64,
        now: Duration,
        cached: &mut CacheUsage,
    ) -> Option<usize> {
        if let Some(hit) = hit {
            self.refresh(links[hit].hash, now);
        }
        let mut total_tokens = cached.read;
        let mut longest_cached = hit;
        for (at, link) in links.iter().enumerate() {
            let Some(ttl) = link.breakpoint else { continue };
            if link.total_tokens < min {
                continue;
            }
            if hit.is_some_and(|hit| at <= hit) {
                self.refresh(link.hash, now);
                continue;
            }
            match ttl {
                Ttl::Minutes5 => cached.written_5m += link.total_tokens - total_tokens,
                Ttl::Hour1 => cached.written_1h += link.total_tokens - total_tokens,
            }
            total_tokens = link.total_tokens;
            longest_cached = Some(at);
            self.put(link.hash, lifetime(ttl), now);
        }
        longest_cached
    }

    /// Writes every prefix; returns the longest link.
    fn write_all(
        &mut self,
        links: &[ChainLink],
        hit: Option<usize>,
        min: u64,
        ttl: Duration,
        now: Duration,
        cached: &mut CacheUsage,
    ) -> Option<usize> {
        let shortest = links.iter().position(|link| link.total_tokens >= min)?;
        for link in &links[shortest..] {
            self.put(link.hash, ttl, now);
        }
        let read = hit.map_or(0, |hit| links[hit].total_tokens);
        cached.written_5m = links.last()?.total_tokens - read;
        Some(links.len() - 1)
    }

    fn put(&mut self, hash: u128, ttl: Duration, now: Duration) {
        self.entries.insert(hash, CacheEntry { expires_at: now + ttl, ttl });
    }

    fn refresh(&mut self, hash: u128, now: Duration) {
        // Use prolongs the life of an entry (`docs/protocols.md` 7.1).
        if let Some(entry) = self.entries.get_mut(&hash).filter(|entry| entry.expires_at > now) {
            entry.expires_at = now + entry.ttl;
        }
    }

    fn evict(&mut self, now: Duration) {
        if self.entries.len() > self.max_entries {
            self.entries.retain(|_, entry| entry.expires_at > now);
        }
        if self.entries.len() > self.max_entries {
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

fn chain(prompt: &CachePrompt<'_>) -> Vec<ChainLink> {
    let (mut hash, mut total_tokens) = (prompt.namespace, prompt.fixed_tokens);
    prompt
        .pieces
        .iter()
        .map(|piece| {
            hash = link(hash, piece.hash);
            total_tokens += piece.tokens;
            ChainLink { hash, total_tokens, breakpoint: piece.breakpoint, place: piece.place }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = 1000;
    const BREAKPOINTS: CachePolicy = CachePolicy::Breakpoints { min: MIN };
    const AUTOMATIC: CachePolicy =
        CachePolicy::Automatic { min: MIN, step: 128, ttl: Duration::from_secs(600) };

    /// Pieces of 500 tokens each, named by letters; `!` after one marks it, `+` for an hour.
    fn prompt(text: &str) -> Vec<PromptPiece> {
        let mut pieces: Vec<PromptPiece> = Vec::new();
        for letter in text.chars() {
            let at = pieces.len();
            match letter {
                '!' => pieces[at - 1].breakpoint = Some(Ttl::Minutes5),
                '+' => pieces[at - 1].breakpoint = Some(Ttl::Hour1),
                letter => pieces.push(PromptPiece {
                    place: Place::Message { message: at, block: 0 },
                    hash: letter as u128,
                    tokens: 500,
                    breakpoint: None,
                }),
            }
        }
        pieces
    }

    /// One conversation through the cache.
    #[derive(Default)]
    struct CacheConversation {
        cache: PromptCache,
        cached_prefix: Option<CachedPrefix>,
        now: Duration,
    }

    impl CacheConversation {
        fn send(&mut self, text: &str, policy: CachePolicy) -> CacheUsage {
            self.send_in(1, text, policy)
        }

        fn send_in(&mut self, namespace: u128, text: &str, policy: CachePolicy) -> CacheUsage {
            let pieces = prompt(text);
            let prompt = CachePrompt { namespace, pieces: &pieces, fixed_tokens: 0, policy };
            let previous = self.cached_prefix.as_ref();
            let result = self.cache.read_and_write(&prompt, previous, self.now);
            self.cached_prefix = Some(result.cached_prefix);
            result.usage
        }
    }

    fn missed(tokens: u64, reason: MissReason) -> Option<MissedPrefix> {
        Some(MissedPrefix { tokens, reason })
    }

    fn place(message: usize) -> Place {
        Place::Message { message, block: 0 }
    }

    #[test]
    fn breakpoint_is_read_next_time() {
        let mut conversation = CacheConversation::default();
        let first = conversation.send("abc!", BREAKPOINTS);
        assert_eq!(first.read, 0);
        assert_eq!(first.written_5m, 1500);
        assert_eq!(first.missed, None);
        // The marker moved; what it marked before is found by looking back.
        let second = conversation.send("abcde!", BREAKPOINTS);
        assert_eq!(second.read, 1500);
        assert_eq!(second.written_5m, 1000);
        assert_eq!(second.missed, None);
        let third = conversation.send("abcde", BREAKPOINTS);
        assert_eq!(
            third,
            CacheUsage { missed: missed(2500, MissReason::OutOfReach), ..CacheUsage::default() }
        );
    }

    #[test]
    fn prefix_below_minimum_is_not_cached() {
        let mut conversation = CacheConversation::default();
        assert_eq!(conversation.send("a!", BREAKPOINTS), CacheUsage::default());
        assert_eq!(conversation.send("a!", BREAKPOINTS), CacheUsage::default());
        assert_eq!(conversation.send("ab!", BREAKPOINTS).written_5m, 1000);
    }

    #[test]
    fn edit_misses_cache_from_its_place() {
        let mut conversation = CacheConversation::default();
        conversation.send("ab!cdef!", BREAKPOINTS);
        let edited = conversation.send("ab!cXef!", BREAKPOINTS);
        assert_eq!(edited.read, 1000);
        assert_eq!(edited.written_5m, 2000);
        assert_eq!(edited.missed, missed(2000, MissReason::Changed(place(3))));
        let shorter = conversation.send("ab!cX!", BREAKPOINTS);
        assert_eq!(shorter.missed, missed(2000, MissReason::Changed(Place::End)));
    }

    #[test]
    fn breakpoint_looks_back_20_blocks() {
        for (more, found) in [("0123456789012345678", true), ("01234567890123456789", false)] {
            let mut conversation = CacheConversation::default();
            conversation.send("ab!", BREAKPOINTS);
            let next = conversation.send(&format!("ab{more}!"), BREAKPOINTS);
            assert_eq!(next.read == 1000, found, "{more}");
            let missed =
                (!found).then_some(MissedPrefix { tokens: 1000, reason: MissReason::OutOfReach });
            assert_eq!(next.missed, missed);
        }
    }

    #[test]
    fn entry_lives_while_it_is_used() {
        let mut conversation = CacheConversation::default();
        conversation.send("ab!", BREAKPOINTS);
        for _ in 0..3 {
            conversation.now += Duration::from_secs(299);
            assert_eq!(conversation.send("ab!", BREAKPOINTS).read, 1000);
        }
        conversation.now += Duration::from_secs(300);
        let late = conversation.send("ab!", BREAKPOINTS);
        assert_eq!(late.read, 0);
        assert_eq!(late.missed, missed(1000, MissReason::Expired));
        let mut long = CacheConversation::default();
        assert_eq!(
            long.send("ab+cd!", BREAKPOINTS),
            CacheUsage { written_1h: 1000, written_5m: 1000, ..CacheUsage::default() }
        );
        long.now += Duration::from_secs(3599);
        let later = long.send("ab+cd!", BREAKPOINTS);
        assert_eq!(later.read, 1000);
        assert_eq!(later.written_5m, 1000);
        assert_eq!(later.written_1h, 0);
    }

    #[test]
    fn cache_namespaces_are_separate() {
        let mut conversation = CacheConversation::default();
        conversation.send("abc!", BREAKPOINTS);
        let other = conversation.send_in(2, "abc!", BREAKPOINTS);
        assert_eq!(other.read, 0);
        assert_eq!(other.missed, missed(1500, MissReason::OtherCache));
    }

    #[test]
    fn automatic_cache_reads_in_steps() {
        let mut conversation = CacheConversation::default();
        let first = conversation.send("abc", AUTOMATIC);
        assert_eq!(first.read, 0);
        assert_eq!(first.written_5m, 1500);
        let second = conversation.send("abcd", AUTOMATIC);
        assert_eq!(second.read, 1408);
        assert_eq!(second.written_5m, 500);
        assert_eq!(second.missed, None);
        let edited = conversation.send("aXcd", AUTOMATIC);
        assert_eq!(edited.read, 0);
        assert_eq!(edited.missed, missed(2000, MissReason::Changed(place(1))));
        conversation.now += Duration::from_secs(600);
        assert_eq!(conversation.send("aXcd", AUTOMATIC).missed, missed(2000, MissReason::Expired));
    }

    #[test]
    fn past_its_limit_cache_evicts_expired_then_all() {
        let mut conversation = CacheConversation {
            cache: PromptCache { max_entries: 4, ..PromptCache::default() },
            ..CacheConversation::default()
        };
        conversation.send("abcd", AUTOMATIC);
        conversation.now += Duration::from_secs(600);
        conversation.send("ABCD", AUTOMATIC);
        assert_eq!(conversation.cache.entries.len(), 3, "the expired went");
        conversation.send("xyz", AUTOMATIC);
        assert_eq!(conversation.cache.entries.len(), 0, "all were alive, and too many");
    }
}
