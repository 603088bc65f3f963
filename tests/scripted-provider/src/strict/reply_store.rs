//! What was issued: seals on reasoning, and the replies they came in.
//!
//! A seal remembers the exact text, the model, the account, the prefix and its neighbours, so that
//! each can be checked when it comes back (`docs/protocols.md` 1.5, 3.5, 5.4). A reply is found again
//! by its tool ids, its text or its seals, so that what is missing from it can be told.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::Dialect;
use super::cache::Trail;
use super::prompt::{hash, items, text};

/// What a piece of reasoning is bound to: all that stood before it, thinking left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) system: u128,
    pub(super) tools: u128,
    pub(super) messages: u128,
}

/// What kind of thing a seal closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anthropic `thinking`, also as OpenRouter carries it.
    Thinking,
    /// Anthropic `redacted_thinking`.
    Redacted,
    /// Responses `encrypted_content`.
    Encrypted,
    /// Gemini `thoughtSignature`.
    Thought,
}

/// One signature, or one piece of encrypted reasoning.
#[derive(Clone, Debug)]
pub(super) struct Seal {
    pub(super) kind: Kind,
    pub(super) account: u128,
    pub(super) model: String,
    /// Hash of what it signs: the visible text, or the part it sat on.
    pub(super) text: u128,
    pub(super) prefix: Prefix,
    /// The seal before it in the conversation it was made in.
    pub(super) before: Option<usize>,
    pub(super) reply: usize,
    /// First seal and length of the run of consecutive thinking blocks it belongs to.
    pub(super) run: (usize, usize),
    /// Blocks of its reply before it that are not thinking.
    pub(super) lead: usize,
    /// What it weighs when it is read, tokens.
    pub(super) tokens: u64,
    /// The item's id (Responses).
    pub(super) id: String,
}

/// An output item with an id (Responses).
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: String,
    /// The reasoning items directly before it.
    pub(super) reasoning: Vec<String>,
    /// The item that a reasoning item led to.
    pub(super) led_to: Option<String>,
    pub(super) phase: Option<String>,
}

/// A reply as it was issued.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    /// Its seals, in order.
    pub(super) seals: Vec<usize>,
    /// Hash of its plain reasoning text (Chat Completions).
    pub(super) reasoning: Option<u128>,
    /// Its items (Responses).
    pub(super) items: Vec<Item>,
    /// What of its request the cache held.
    pub(super) trail: Option<Trail>,
}

/// A stored response: what it was asked, what it answered (`docs/protocols.md` 3.2).
#[derive(Debug)]
struct Stored {
    account: u128,
    before: Option<String>,
    request: Arc<Value>,
    output: Value,
}

/// A history that the provider summarised (`docs/protocols.md` 1.3, 3.3).
#[derive(Clone, Debug)]
pub(super) struct Summarised {
    pub(super) account: u128,
    /// Hash of what it says.
    pub(super) words: u128,
    /// What was summarised.
    pub(super) prefix: Prefix,
    /// Whether that holds on for what comes after (`docs/protocols.md` 1.5.7).
    pub(super) binds: bool,
    /// The role that spoke last in it.
    pub(super) last_role: String,
}

/// Trails kept; older replies forget what the cache held for them.
const TRAILS: usize = 512;

/// Everything issued so far. It is kept as long as the provider lives, as tests need it; of a request
/// only the body itself, and only where it is stored.
#[derive(Debug, Default)]
pub(super) struct Book {
    seals: Vec<Seal>,
    replies: Vec<Issued>,
    by_signature: HashMap<u128, usize>,
    by_trace: HashMap<u128, usize>,
    /// Reply and index of an item, by its id.
    by_item: HashMap<String, (usize, usize)>,
    responses: HashMap<String, Stored>,
    /// Stored items with their accounts, by id.
    stored: HashMap<String, (u128, Value)>,
    /// Summaries, by their seals.
    summarised: HashMap<u128, Summarised>,
}

impl Book {
    /// The seal of a signature, with its number.
    pub(super) fn seal(&self, dialect: Dialect, signature: &str) -> Option<(usize, &Seal)> {
        let number = *self.by_signature.get(&key(dialect, signature))?;
        Some((number, self.seals.get(number)?))
    }

    /// A seal by its number.
    pub(super) fn numbered(&self, number: usize) -> Option<&Seal> {
        self.seals.get(number)
    }

    pub(super) fn reply(&self, number: usize) -> Option<&Issued> {
        self.replies.get(number)
    }

    /// The newest reply that left that trace (a tool id, a text, an item's id).
    pub(super) fn trace(&self, dialect: Dialect, kind: &str, trace: &str) -> Option<usize> {
        self.by_trace.get(&hash(&[dialect.word(), kind, trace])).copied()
    }

    /// An item that we issued, by its id.
    pub(super) fn item(&self, id: &str) -> Option<&Item> {
        let (reply, item) = self.by_item.get(id)?;
        self.replies.get(*reply)?.items.get(*item)
    }

    /// A stored item of this account.
    pub(super) fn stored_item(&self, id: &str, account: Option<u128>) -> Option<&Value> {
        let (owner, item) = self.stored.get(id)?;
        (Some(*owner) == account).then_some(item)
    }

    /// All items up to the end of a stored response of this account.
    pub(super) fn conversation(&self, id: &str, account: Option<u128>) -> Option<Vec<Value>> {
        let mut turns = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let one = self.responses.get(id).filter(|one| Some(one.account) == account)?;
            turns.push(one);
            next = one.before.as_deref();
        }
        let mut all = Vec::new();
        for one in turns.iter().rev() {
            if let Some(said) = one.request["input"].as_str() {
                all.push(json!({"type": "message", "role": "user", "content": said}));
            }
            for item in items(&one.request["input"]).chain(items(&one.output)) {
                all.extend(match text(&item["type"]) {
                    "item_reference" => self.stored_item(text(&item["id"]), account).cloned(),
                    _ => Some(item.clone()),
                });
            }
        }
        Some(all)
    }

    /// Stores a response with its request and its items.
    pub(super) fn store(&mut self, response: &Value, request: &Arc<Value>, account: u128) {
        for item in items(&response["output"]).chain(items(&request["input"])) {
            let Some(id) = item["id"].as_str().filter(|_| item["type"] != "item_reference") else {
                continue;
            };
            if !self.stored.contains_key(id) {
                self.stored.insert(id.to_owned(), (account, item.clone()));
            }
        }
        let before = request["previous_response_id"].as_str().map(str::to_owned);
        let output = response["output"].clone();
        let stored = Stored { account, before, request: request.clone(), output };
        self.responses.insert(text(&response["id"]).to_owned(), stored);
    }

    /// The history that a sealed summary stands for.
    pub(super) fn summarised(&self, dialect: Dialect, seal: &str) -> Option<&Summarised> {
        self.summarised.get(&key(dialect, seal))
    }

    pub(super) fn add_summarised(&mut self, dialect: Dialect, seal: &str, one: Summarised) {
        self.summarised.insert(key(dialect, seal), one);
    }

    /// The number that the next reply will have.
    pub(super) fn next_reply(&self) -> usize {
        self.replies.len()
    }

    /// The number that the next seal will have.
    pub(super) fn next_seal(&self) -> usize {
        self.seals.len()
    }

    pub(super) fn add_seal(&mut self, dialect: Dialect, signature: &str, seal: Seal) {
        self.by_signature.insert(key(dialect, signature), self.seals.len());
        self.seals.push(seal);
    }

    pub(super) fn add_trace(&mut self, dialect: Dialect, kind: &str, trace: &str) {
        self.by_trace.insert(hash(&[dialect.word(), kind, trace]), self.replies.len());
    }

    /// The newest reply broke off when so many of its seals had left: the others nobody has seen.
    pub(super) fn broke_off(&mut self, delivered: usize) {
        self.replies.last_mut().into_iter().for_each(|reply| reply.seals.truncate(delivered));
    }

    /// Ends a reply whose seals and traces were added before.
    pub(super) fn add_reply(&mut self, reply: Issued) {
        for (at, item) in reply.items.iter().enumerate() {
            self.by_item.insert(item.id.clone(), (self.replies.len(), at));
        }
        self.replies.push(reply);
        if let Some(old) = self.replies.len().checked_sub(TRAILS + 1) {
            self.replies[old].trail = None;
        }
    }
}

/// A signature's key: Gemini's are the same in both alphabets of base64 (`docs/protocols.md` 10.8), the
/// others are compared as they stand.
fn key(dialect: Dialect, signature: &str) -> u128 {
    if dialect != Dialect::Gemini {
        return hash(&[dialect.word(), signature]);
    }
    let engines = [STANDARD, URL_SAFE, STANDARD_NO_PAD, URL_SAFE_NO_PAD];
    match engines.iter().find_map(|engine| engine.decode(signature).ok()) {
        Some(bytes) => hash(&["gemini", &STANDARD.encode(bytes)]),
        None => hash(&["gemini", signature]),
    }
}

/// Fresh random-looking bytes, the same for the same seed.
#[derive(Debug)]
pub(super) struct Mint {
    seed: u64,
    count: u64,
}

impl Mint {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.count += 1;
        let mut bytes = vec![0; length];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes()).update(&self.count.to_le_bytes());
        hasher.finalize_xof().fill(&mut bytes);
        bytes
    }

    /// A signature of about that many bytes, in standard base64.
    pub(super) fn signature(&mut self, length: usize) -> String {
        STANDARD.encode(self.bytes(length))
    }

    /// An id of 24 letters and digits after the prefix.
    pub(super) fn id(&mut self, prefix: &str) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz123456789";
        let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
        format!("{prefix}{}", self.bytes(24).iter().map(letter).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemini_signatures_are_the_same_in_both_alphabets() {
        let bytes = [0xfb, 0xff, 0xbe, 0x01];
        let (standard, safe) = (STANDARD.encode(bytes), URL_SAFE_NO_PAD.encode(bytes));
        assert_ne!(standard, safe);
        assert_eq!(key(Dialect::Gemini, &standard), key(Dialect::Gemini, &safe));
        assert_ne!(key(Dialect::Anthropic, &standard), key(Dialect::Anthropic, &safe));
    }

    #[test]
    fn a_mint_repeats_itself_only_from_the_start() {
        let (mut one, mut two) = (Mint::new(7), Mint::new(7));
        assert_eq!(one.id("toolu_"), two.id("toolu_"));
        assert_ne!(one.id("toolu_"), one.id("toolu_"));
        assert_ne!(one.signature(30), Mint::new(8).signature(30));
    }

    #[test]
    fn only_the_newest_replies_keep_a_trail() {
        let mut book = Book::default();
        for _ in 0..TRAILS {
            book.add_reply(Issued {
                seals: Vec::new(),
                reasoning: None,
                items: Vec::new(),
                trail: Some(Trail::default()),
            });
        }
        assert!(book.replies[0].trail.is_some(), "at the limit");
        book.add_reply(Issued { trail: None, ..book.replies[0].clone() });
        assert!(book.replies[0].trail.is_none() && book.replies[1].trail.is_some());
    }
}
