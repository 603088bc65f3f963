//! The replies that were issued, and the signatures on their reasoning.
//!
//! For each signature the exact text, the model, the account, the prefix and its neighbours are kept, so
//! that each can be checked when it comes back (`docs/protocols.md` 1.5, 3.5, 5.4). A reply is found again
//! by its tool ids, its text or its signatures, so that what is missing from it can be reported.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::Dialect;
use super::cache::CachedPrefix;
use super::prompt::{hash, items, text};

/// Hashes of everything before a piece of reasoning, which it is bound to; thinking is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) system: u128,
    pub(super) tools: u128,
    pub(super) messages: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignatureKind {
    /// Anthropic `thinking`, also as OpenRouter carries it.
    Thinking,
    /// Anthropic `redacted_thinking`.
    RedactedThinking,
    /// Responses `encrypted_content`.
    EncryptedReasoning,
    /// Gemini `thoughtSignature`.
    ThoughtSignature,
}

/// One signature, or one piece of encrypted reasoning.
#[derive(Clone, Debug)]
pub(super) struct IssuedSignature {
    pub(super) kind: SignatureKind,
    pub(super) account: u128,
    pub(super) model: String,
    /// Hash of what it signs: the visible text, or the part it was on.
    pub(super) content_hash: u128,
    pub(super) prefix: Prefix,
    /// The signature before it in its conversation.
    pub(super) previous: Option<usize>,
    pub(super) reply: usize,
    pub(super) run: SignatureRun,
    /// Blocks of its reply before it that are not thinking.
    pub(super) blocks_before: usize,
    /// Tokens of the reasoning.
    pub(super) tokens: u64,
    /// The item's id (Responses).
    pub(super) item_id: String,
}

/// The signatures of consecutive thinking blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SignatureRun {
    /// Number of the first signature.
    pub(super) first: usize,
    pub(super) length: usize,
}

impl SignatureRun {
    /// A run of one signature.
    pub(super) fn single(number: usize) -> Self {
        Self { first: number, length: 1 }
    }
}

/// An output item with an id (Responses).
#[derive(Clone, Debug)]
pub(super) struct IssuedItem {
    pub(super) id: String,
    /// Ids of the reasoning items directly before it.
    pub(super) reasoning: Vec<String>,
    /// Id of the item that follows a reasoning item.
    pub(super) following: Option<String>,
    pub(super) phase: Option<String>,
    /// Its text; empty for a call.
    pub(super) text: String,
}

/// A reply as it was issued.
#[derive(Clone, Debug)]
pub(super) struct IssuedReply {
    /// Numbers of its signatures, in order.
    pub(super) signatures: Vec<usize>,
    /// Hash of its plain reasoning text (Chat Completions).
    pub(super) reasoning_hash: Option<u128>,
    /// Its items (Responses).
    pub(super) items: Vec<IssuedItem>,
    /// The part of its request that the cache held.
    pub(super) cached_prefix: Option<CachedPrefix>,
}

/// A stored response with its request (`docs/protocols.md` 3.2).
#[derive(Debug)]
struct StoredResponse {
    account: u128,
    previous: Option<String>,
    request: Arc<Value>,
    output: Value,
}

/// A stored item of an account.
#[derive(Debug)]
struct StoredItem {
    account: u128,
    item: Value,
}

/// Where an issued item stands: the number of its reply, and its index there.
#[derive(Clone, Copy, Debug)]
struct ItemPosition {
    reply: usize,
    index: usize,
}

/// A summary of a history that the provider wrote (`docs/protocols.md` 1.3, 3.3).
#[derive(Clone, Debug)]
pub(super) struct IssuedSummary {
    pub(super) account: u128,
    /// Hash of its text.
    pub(super) content_hash: u128,
    /// The history that it stands for.
    pub(super) prefix: Prefix,
    /// Whether later reasoning stays bound to that history (`docs/protocols.md` 1.5.7).
    pub(super) keeps_prefix: bool,
    /// The role of the last message in it.
    pub(super) last_role: String,
}

/// The newest replies for which the cached prefix is kept.
const MAX_CACHED_PREFIXES: usize = 512;

/// Everything issued so far. It is kept as long as the provider lives, as tests need it; of a request
/// only the body itself, and only if it is stored.
#[derive(Debug, Default)]
pub(super) struct ReplyStore {
    signatures: Vec<IssuedSignature>,
    replies: Vec<IssuedReply>,
    signature_numbers: HashMap<u128, usize>,
    /// Numbers of replies by the hash of a tool id, a text or an item's id.
    reply_numbers: HashMap<u128, usize>,
    item_positions: HashMap<String, ItemPosition>,
    stored_responses: HashMap<String, StoredResponse>,
    stored_items: HashMap<String, StoredItem>,
    /// Summaries by their signatures.
    summaries: HashMap<u128, IssuedSummary>,
}

impl ReplyStore {
    /// What is known of a signature, with its number.
    pub(super) fn find_signature(
        &self,
        dialect: Dialect,
        signature: &str,
    ) -> Option<(usize, &IssuedSignature)> {
        let number = *self.signature_numbers.get(&key(dialect, signature))?;
        Some((number, self.signatures.get(number)?))
    }

    /// A signature by its number.
    pub(super) fn signature(&self, number: usize) -> Option<&IssuedSignature> {
        self.signatures.get(number)
    }

    pub(super) fn reply(&self, number: usize) -> Option<&IssuedReply> {
        self.replies.get(number)
    }

    /// Number of the newest reply with that key: a tool id, a text or an item's id.
    pub(super) fn find_reply(&self, dialect: Dialect, kind: &str, key: &str) -> Option<usize> {
        self.reply_numbers.get(&hash(&[dialect.name(), kind, key])).copied()
    }

    /// An item that we issued, by its id.
    pub(super) fn item(&self, id: &str) -> Option<&IssuedItem> {
        let position = self.item_positions.get(id)?;
        self.replies.get(position.reply)?.items.get(position.index)
    }

    /// A stored item of this account.
    pub(super) fn stored_item(&self, id: &str, account: Option<u128>) -> Option<&Value> {
        let stored = self.stored_items.get(id)?;
        (Some(stored.account) == account).then_some(&stored.item)
    }

    /// All items up to the end of a stored response of this account.
    pub(super) fn conversation(&self, id: &str, account: Option<u128>) -> Option<Vec<Value>> {
        let mut responses = Vec::new();
        let mut next_id = Some(id);
        while let Some(id) = next_id {
            let response = self.stored_responses.get(id);
            let response = response.filter(|response| Some(response.account) == account)?;
            responses.push(response);
            next_id = response.previous.as_deref();
        }
        let mut conversation = Vec::new();
        for response in responses.iter().rev() {
            if let Some(text) = response.request["input"].as_str() {
                conversation.push(json!({"type": "message", "role": "user", "content": text}));
            }
            for item in items(&response.request["input"]).chain(items(&response.output)) {
                conversation.extend(match text(&item["type"]) {
                    "item_reference" => self.stored_item(text(&item["id"]), account).cloned(),
                    _ => Some(item.clone()),
                });
            }
        }
        Some(conversation)
    }

    /// Stores a response with its request and its items.
    pub(super) fn store_response(&mut self, response: &Value, request: &Arc<Value>, account: u128) {
        for item in items(&response["output"]).chain(items(&request["input"])) {
            let Some(id) = item["id"].as_str() else { continue };
            if item["type"] == "item_reference" {
                continue;
            }
            if !self.stored_items.contains_key(id) {
                self.stored_items.insert(id.to_owned(), StoredItem { account, item: item.clone() });
            }
        }
        let previous = request["previous_response_id"].as_str().map(str::to_owned);
        let output = response["output"].clone();
        let stored = StoredResponse { account, previous, request: request.clone(), output };
        self.stored_responses.insert(text(&response["id"]).to_owned(), stored);
    }

    /// The summary with a signature.
    pub(super) fn summary(&self, dialect: Dialect, signature: &str) -> Option<&IssuedSummary> {
        self.summaries.get(&key(dialect, signature))
    }

    pub(super) fn add_summary(
        &mut self,
        dialect: Dialect,
        signature: &str,
        summary: IssuedSummary,
    ) {
        self.summaries.insert(key(dialect, signature), summary);
    }

    /// The number that the next reply will have.
    pub(super) fn next_reply(&self) -> usize {
        self.replies.len()
    }

    /// The number that the next signature will have.
    pub(super) fn next_signature(&self) -> usize {
        self.signatures.len()
    }

    pub(super) fn add_signature(
        &mut self,
        dialect: Dialect,
        signature: &str,
        record: IssuedSignature,
    ) {
        self.signature_numbers.insert(key(dialect, signature), self.signatures.len());
        self.signatures.push(record);
    }

    pub(super) fn add_reply_key(&mut self, dialect: Dialect, kind: &str, key: &str) {
        self.reply_numbers.insert(hash(&[dialect.name(), kind, key]), self.replies.len());
    }

    /// The newest reply broke off after this many of its signatures were delivered: the client has not seen the others.
    pub(super) fn truncate_last_reply(&mut self, delivered: usize) {
        self.replies.last_mut().into_iter().for_each(|reply| reply.signatures.truncate(delivered));
    }

    /// Adds a reply whose signatures and keys were added before.
    pub(super) fn add_reply(&mut self, reply: IssuedReply) {
        for (index, item) in reply.items.iter().enumerate() {
            let position = ItemPosition { reply: self.replies.len(), index };
            self.item_positions.insert(item.id.clone(), position);
        }
        self.replies.push(reply);
        if let Some(old) = self.replies.len().checked_sub(MAX_CACHED_PREFIXES + 1) {
            self.replies[old].cached_prefix = None;
        }
    }
}

fn key(dialect: Dialect, signature: &str) -> u128 {
    // A signature's key: Gemini's are the same in both alphabets of base64 (`docs/protocols.md` 10.8), the
    // others are compared as they stand.
    if dialect != Dialect::Gemini {
        return hash(&[dialect.name(), signature]);
    }
    let engines = [STANDARD, URL_SAFE, STANDARD_NO_PAD, URL_SAFE_NO_PAD];
    match engines.iter().find_map(|engine| engine.decode(signature).ok()) {
        Some(bytes) => hash(&["gemini", &STANDARD.encode(bytes)]),
        None => hash(&["gemini", signature]),
    }
}

/// Makes ids and signatures that look random, the same for the same seed.
#[derive(Debug)]
pub(super) struct IdGenerator {
    seed: u64,
    count: u64,
}

impl IdGenerator {
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
        let mut id = prefix.to_owned();
        for byte in self.bytes(24) {
            id.push(char::from(LETTERS[usize::from(byte) % LETTERS.len()]));
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemini_signatures_are_same_in_both_alphabets() {
        let bytes = [0xfb, 0xff, 0xbe, 0x01];
        let (standard, safe) = (STANDARD.encode(bytes), URL_SAFE_NO_PAD.encode(bytes));
        assert_ne!(standard, safe);
        assert_eq!(key(Dialect::Gemini, &standard), key(Dialect::Gemini, &safe));
        assert_ne!(key(Dialect::Anthropic, &standard), key(Dialect::Anthropic, &safe));
    }

    #[test]
    fn ids_repeat_with_same_seed() {
        let (mut one, mut two) = (IdGenerator::new(7), IdGenerator::new(7));
        assert_eq!(one.id("toolu_"), two.id("toolu_"));
        assert_ne!(one.id("toolu_"), one.id("toolu_"));
        assert_ne!(one.signature(30), IdGenerator::new(8).signature(30));
    }

    #[test]
    fn only_newest_replies_keep_their_cached_prefix() {
        let mut store = ReplyStore::default();
        for _ in 0..MAX_CACHED_PREFIXES {
            store.add_reply(IssuedReply {
                signatures: Vec::new(),
                reasoning_hash: None,
                items: Vec::new(),
                cached_prefix: Some(CachedPrefix::default()),
            });
        }
        assert!(store.replies[0].cached_prefix.is_some(), "at the limit");
        store.add_reply(IssuedReply { cached_prefix: None, ..store.replies[0].clone() });
        assert!(store.replies[0].cached_prefix.is_none());
        assert!(store.replies[1].cached_prefix.is_some());
    }
}
