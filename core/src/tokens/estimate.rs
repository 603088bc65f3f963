//! Estimates the tokens of a part: text by tokenizer family, structure by dialect, images by patches.
//!
//! The constants are measured (`docs/estimates.md` 1.3). Work is bounded: past a limit of text per request
//! the tokens follow from the length, and the result says so. Must not know what was sent before.

use foldhash::HashMap;
use memchr::memmem;
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::band::GuessedTokens;
use super::bpe::{self, Encoding};
use super::costs::{self, FamilyCosts};
use super::features::ClassCounts;
use super::structure::StructureCost;
use super::token_costs::Costs;
use super::{media, own_tools};
use crate::dialect::models::{Family, Model};
use crate::dialect::{Audience, Conversation, Part, PartKind, ReplyPart, Role, Span};
use crate::wire::json::{text_of, unescape};

/// The most bytes of text that are tokenised for one request, at some 30 MB/s; past it, tokens are estimated
/// from the length.
const EXACT_BYTES: usize = 2 << 20;

/// How the tokens of new parts were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CountingMethod {
    /// With the model's own tokenizer.
    Exact,
    /// With a public tokenizer, times the ratio of the model's family to it.
    Ratio,
    /// From the length of the text: the tokenizer is not loaded yet, or the new text was longer than what is
    /// tokenised for one request. Also reported for an image whose header cannot be true.
    #[default]
    Length,
}

/// How text is counted for one family of models.
#[derive(Clone, Copy, Debug)]
pub struct Tokenizer {
    /// The family whose tokens are counted.
    pub family: Family,
    /// The vocabulary, if it is loaded.
    pub encoding: Option<&'static Encoding>,
    /// What each token costs, if the family's own vocabulary is not public.
    pub costs: Option<&'static Costs>,
    /// The most bytes that are tokenised for one request.
    pub limit: usize,
}

impl Tokenizer {
    /// The tokenizer of `family`, with the vocabulary if it is loaded; see [`bpe::is_wanted`].
    pub fn now(family: Family) -> Self {
        Self::new(family, bpe::loaded(family))
    }

    /// Like [`Self::now`], but waits until the vocabulary is loaded: for tests, and at startup.
    pub fn whole(family: Family) -> Self {
        Self::new(family, bpe::load(family))
    }

    fn new(family: Family, encoding: Option<&'static Encoding>) -> Self {
        let costs = encoding.and_then(|encoding| costs::fitted(family, encoding));
        Self { family, encoding, costs, limit: EXACT_BYTES }
    }

    /// The same with the given costs, if they are of its family.
    #[must_use]
    pub fn with_costs(self, given: Option<FamilyCosts>) -> Self {
        let given = given.filter(|given| given.family == self.family);
        Self { costs: given.map(|given| given.costs).or(self.costs), ..self }
    }

    pub(crate) fn counter<'c>(
        self,
        conversation: &'c Conversation,
        body: &'c [u8],
        model: &Model,
    ) -> TokenCounter<'c> {
        let calls = conversation.parts().filter(|part| part.kind == PartKind::ToolCall);
        let names = calls.filter_map(|call| Some((call.id.as_deref()?, call.name.as_deref()?)));
        let structure = StructureCost::new(model, conversation.dialect);
        TokenCounter { names: names.collect(), structure, ..self.counter_of(body) }
    }

    /// A counter for the content of a reply.
    pub fn reply(self) -> TokenCounter<'static> {
        self.counter_of(&[])
    }

    fn counter_of(self, body: &[u8]) -> TokenCounter<'_> {
        let counting =
            if bpe::is_exact(self.family) { CountingMethod::Exact } else { CountingMethod::Ratio };
        TokenCounter {
            tokenizer: self,
            body,
            names: HashMap::default(),
            structure: StructureCost::default(),
            left: self.limit,
            counting,
            tally: ClassCounts::default(),
            worded: 0,
            worded_bytes: 0,
            samples: SAMPLES,
            looked: 0,
            read: 0,
            guessed: GuessedTokens::default(),
            has_encrypted: false,
        }
    }
}

/// Counts the parts of one request, or of one reply.
pub struct TokenCounter<'c> {
    tokenizer: Tokenizer,
    body: &'c [u8],
    /// Tool names by call id: some dialects put the name in front of a result.
    names: HashMap<&'c str, &'c str>,
    /// What surrounds the parts.
    pub(crate) structure: StructureCost,
    /// Bytes that may still be tokenised.
    left: usize,
    /// How the parts so far were counted: the least exact method among them.
    pub(crate) counting: CountingMethod,
    /// Token classes of the text so far.
    pub(crate) tally: ClassCounts,
    /// The tokens of the text so far, and its length in bytes.
    pub(crate) worded: u64,
    worded_bytes: usize,
    /// Samples that may still be tokenised.
    samples: usize,
    /// Bytes tokenised so far.
    looked: usize,
    /// Additional tokens of the parts so far if reasoning is read, or if no stream is requested (Gemini).
    pub(crate) read: u64,
    /// How far the parts may be off whose cost no part of the request shows.
    pub(crate) guessed: GuessedTokens,
    /// Whether a compaction that only the provider can read was counted from its length.
    has_encrypted: bool,
}

impl TokenCounter<'_> {
    pub(crate) fn part(&mut self, part: &Part) -> u32 {
        if part.audience != Audience::Model {
            return 0; // not in the prompt
        }
        if let Some(media) = &part.media {
            let tokens = media::tokens(part, media, self.body, &self.structure.pictures);
            return tokens.unwrap_or_else(|guess| {
                self.guessed.less += guess.tokens - guess.least;
                self.guessed.more += guess.most - guess.tokens;
                if guess.is_impossible {
                    self.counting = CountingMethod::Length;
                }
                guess.tokens
            });
        }
        let mut count: u32 = part.texts.iter().map(|text| self.literal(*text, part.kind)).sum();
        if part.kind == PartKind::Reasoning && count == 0 {
            // Encrypted reasoning is about as long as its text.
            count =
                part.signature.map_or(0, |encrypted| (encrypted.len() / SIGNATURE_BYTES) as u32);
        }
        let is_compaction = part.kind == PartKind::Opaque
            && part.texts.is_empty()
            && part.name.as_deref() == Some("compaction");
        if is_compaction && let Some(encrypted) = part.signature {
            self.counting = CountingMethod::Length;
            self.has_encrypted = true;
            return (encrypted.len().saturating_sub(COMPACTION_AROUND) / COMPACTION_BYTES) as u32;
        }
        if is_search(part) {
            self.guessed.more += FOUND;
        }
        if part.texts.is_empty() && matches!(part.kind, PartKind::Tool | PartKind::Opaque) {
            return 0; // not in the prompt: a mere marker
        }
        // A deferred tool is shown by its name and description, which are text.
        if part.kind == PartKind::Tool && part.texts.len() == 1 {
            count = (u64::from(count) * u64::from(self.structure.tool_percent) / 100) as u32;
        }
        count + self.structure(part)
    }

    pub(crate) fn stands_for(&mut self, part: &Part, text: &str) -> u32 {
        self.text(text) + self.structure(part)
    }

    /// Counts the tokens of a part of a reply, without the structure that will surround it when it is sent
    /// back.
    pub fn reply_part(&mut self, part: &ReplyPart) -> u32 {
        let name = part.name.as_deref().map_or(0, |name| self.text(name));
        self.content(&part.text, part.kind) + name
    }

    /// What a request that continues another one costs in addition to its parts; `results`: the number of
    /// tool results that it brings.
    pub(crate) fn growing(&self, results: u32) -> i64 {
        let StructureCost { opening, answered, parallel, .. } = self.structure;
        let further = i64::from(results.saturating_sub(1));
        opening + if results > 0 { answered } else { 0 } + further * parallel
    }

    pub(crate) fn tool_of<'p>(&'p self, result: &'p Part) -> Option<&'p str> {
        let id = result.id.as_deref().unwrap_or_default();
        result.name.as_deref().or_else(|| self.names.get(id).copied())
    }

    pub(crate) fn guesses_compaction(&self) -> bool {
        // Its tokens follow from its length: only the provider can read it.
        self.has_encrypted
    }

    pub(crate) fn is_by_length(&self, part: &Part) -> bool {
        self.tokenizer.encoding.is_none() && part.media.is_none()
    }

    fn structure(&mut self, part: &Part) -> u32 {
        let structure = self.structure;
        match part.kind {
            PartKind::ToolResult => {
                self.read += u64::from(structure.result_read.unwrap_or(0));
                // The result of a client's own tool search holds tools, which then appear in the history.
                let is_search = self.tool_of(part) == Some("tool_search");
                let mut tokens = structure.result + if is_search { structure.loading } else { 0 };
                if let Some(prefix) = structure.result_name
                    && let Some(name) = self.tool_of(part)
                {
                    tokens += self.uncounted(&format!("{prefix}{name}"));
                }
                tokens
            }
            PartKind::ToolCall => {
                structure.call + part.name.as_deref().map_or(0, |name| self.text(name))
            }
            PartKind::Text => {
                if part.role == Role::User {
                    self.read += u64::from(structure.text_read);
                }
                structure.text
            }
            PartKind::Tool if part.is_schema => structure.tool + structure.schema,
            PartKind::Tool => structure.tool + self.definition(part),
            PartKind::Reasoning => structure.reasoning,
            PartKind::Document => structure.document,
            // What the provider's search for tools found appears in the history.
            PartKind::Opaque if !part.loads.is_empty() => structure.loading,
            PartKind::Image | PartKind::Opaque => 0,
        }
    }

    fn definition(&mut self, tool: &Part) -> u32 {
        let (true, Some(text)) = (self.structure.has_own_tools, tool.texts.first()) else {
            return 0;
        };
        let name = tool.name.as_deref().unwrap_or_default();
        let tokens = own_tools::definition(self.tokenizer.family, name, text.slice(self.body));
        tokens.unwrap_or_else(|| {
            self.guessed.more += UNKNOWN_DEFINITION;
            0
        })
    }

    /// Tokens of a JSON value as a model reads it: a string without quotes and escapes, anything else as
    /// written.
    fn literal(&mut self, at: Span, kind: PartKind) -> u32 {
        let raw = at.slice(self.body);
        let is_claude = matches!(self.tokenizer.family, Family::Claude | Family::ClaudeNew);
        if is_claude
            && kind == PartKind::ToolResult
            && let Some((shown, sealed)) = unsealed(raw)
        {
            return self.text(&shown) + (sealed as f64 / SEALED_BYTES) as u32;
        }
        let text = Some(raw).filter(|raw| raw.first() == Some(&b'"')).and_then(text_of);
        self.content(&text.unwrap_or_else(|| String::from_utf8_lossy(raw)), kind)
    }

    fn content(&mut self, text: &str, kind: PartKind) -> u32 {
        // Claude writes the arguments of a call without the escapes of JSON. Those of a custom tool are no JSON.
        let is_claude = matches!(self.tokenizer.family, Family::Claude | Family::ClaudeNew);
        let is_json = kind == PartKind::ToolCall && text.trim_start().starts_with(['{', '[']);
        if is_claude && is_json && text.contains('\\') {
            return self.text(&unescape(text.as_bytes()));
        }
        self.text(text)
    }

    fn uncounted(&mut self, text: &str) -> u32 {
        // A name is structure: nothing is learned from it about text.
        let totals = (self.tally, self.worded, self.worded_bytes);
        let tokens = self.text(text);
        (self.tally, self.worded, self.worded_bytes) = totals;
        tokens
    }

    fn text(&mut self, text: &str) -> u32 {
        let text = match self.structure.folds_line_ends && text.contains("\r\n") {
            true => &*text.replace("\r\n", "\n"),
            false => text,
        };
        let tokens = match self.tokenizer.encoding {
            Some(encoding) if text.len() <= self.left => {
                self.left -= text.len();
                self.looked_at(encoding, text)
            }
            Some(encoding) => self.sampled(encoding, text),
            None => text.len() as f64 / BYTES_A_TOKEN * ratio(self.tokenizer.family),
        };
        if self.tokenizer.encoding.is_none() {
            self.counting = CountingMethod::Length;
        }
        let tokens = tokens.round() as u32;
        self.worded += u64::from(tokens);
        self.worded_bytes += text.len();
        tokens
    }

    fn sampled(&mut self, encoding: &Encoding, text: &str) -> f64 {
        // A text too short for a sample is taken at the rate of the text so far.
        self.counting = CountingMethod::Length;
        let count = self.samples.min(text.len() / (2 * SAMPLE_BYTES));
        if count == 0 {
            let rate = match self.worded_bytes > 0 && self.worded > 0 {
                true => self.worded as f64 / self.worded_bytes as f64,
                false => ratio(self.tokenizer.family) / BYTES_A_TOKEN,
            };
            return text.len() as f64 * rate;
        }
        self.samples -= count;
        let tally = std::mem::take(&mut self.tally);
        let mut bytes = 0;
        let mut tokens = 0.0;
        for sample in samples(text, count) {
            bytes += sample.len();
            tokens += self.looked_at(encoding, sample);
        }
        let times = text.len() as f64 / bytes.max(1) as f64;
        let sampled = std::mem::replace(&mut self.tally, tally);
        self.tally.stretch(&sampled, times);
        tokens * times
    }

    /// Tokens of a text, all of which is tokenised.
    fn looked_at(&mut self, encoding: &Encoding, text: &str) -> f64 {
        self.looked += text.len();
        let family = self.tokenizer.family;
        if bpe::is_exact(family) {
            return encoding.count(text) as f64;
        }
        match self.tokenizer.costs {
            Some(costs) => encoding.weigh(text, &mut self.tally, costs),
            None => encoding.tally(text, &mut self.tally) as f64 * ratio(family),
        }
    }
}

fn samples(text: &str, count: usize) -> impl Iterator<Item = &str> {
    let step = text.len() / count.max(1);
    (0..count).filter_map(move |at| {
        let start = text.ceil_char_boundary(at * step);
        let end = text.floor_char_boundary((at * step + SAMPLE_BYTES).min(text.len()));
        text.get(start..end)
    })
}

/// The most samples of one request's texts that are too long to tokenise whole, and the bytes of each sample.
const SAMPLES: usize = 64;
const SAMPLE_BYTES: usize = 4096;

/// Bytes of text per token of o200k, measured over recorded agent sessions.
const BYTES_A_TOKEN: f64 = 4.1;
/// Bytes of base64 per token of encrypted reasoning.
const SIGNATURE_BYTES: usize = 7;
/// An encrypted compaction of OpenAI's: bytes that do not grow with its text, and bytes per token of the rest.
/// Six recorded ones took 8.2 bytes more per token that was written; one was recorded as it was read, at 262
/// tokens for 2,764 bytes (`docs/estimates.md` 1.3).
const COMPACTION_AROUND: usize = 640;
const COMPACTION_BYTES: usize = 8;

/// Bytes of the encrypted content of what Claude's search of the web found, for each token that it costs (2.9 and 3.1
/// in two recorded calls).
const SEALED_BYTES: f64 = 2.95;

/// A JSON text without its members `encrypted_content`, and their length; `None` if it has none.
fn unsealed(raw: &[u8]) -> Option<(String, usize)> {
    let member = b"\"encrypted_content\"";
    let (mut shown, mut sealed, mut rest) = (Vec::new(), 0, raw);
    while let Some(at) = memmem::find(rest, member) {
        let value = at + member.len();
        let start = value + memchr::memchr(b'"', &rest[value..])? + 1;
        let length = memchr::memchr(b'"', &rest[start..])?;
        shown.extend_from_slice(&rest[..at]);
        sealed += length;
        rest = &rest[start + length + 1..];
    }
    if rest.len() == raw.len() {
        return None;
    }
    shown.extend_from_slice(rest);
    Some((String::from_utf8_lossy(&shown).into_owned(), sealed))
}

/// What the definition of a provider's own tool may cost if nobody recorded it, and what a search of the provider's may
/// have found, which it puts into the prompt itself.
const UNKNOWN_DEFINITION: u32 = 1_000;
const FOUND: u32 = 5_000;

/// Whether the part is a search of the provider's, whose findings are in no request.
pub(crate) fn is_search(part: &Part) -> bool {
    let searches = ["web_search_call", "x_search_call", "file_search_call"];
    part.kind == PartKind::Opaque
        && part.name.as_deref().is_some_and(|name| searches.contains(&name))
}

/// A family's tokens per token of o200k (`docs/estimates.md` 1.3).
fn ratio(family: Family) -> f64 {
    match family {
        Family::O200k | Family::Cl100k => 1.0,
        Family::Gemini => 1.16,
        Family::Claude => 1.15,
        Family::ClaudeNew => 1.56,
        Family::Other => 1.1,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod structure_tests;
