//! What is known about a model.
//!
//! Must not know where it comes from.

use jiff::civil::Date;
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::family::Family;
use super::pictures::PictureRule;
use super::price::Price;
use super::{door_windows, names};
use crate::dialect::door::Door;

/// Whether reasoning is bound to the prefix it was made from (`docs/protocols.md` 1.5, 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningBinding {
    /// Old parts may change.
    Free,
    /// A changed prefix invalidates the reasoning after it (`docs/protocols.md` 1.5, 3.5).
    Prefix,
}

/// What is known about a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Context window, tokens.
    pub window: u64,
    /// Largest output, tokens.
    pub max_output: u64,
    /// Which tokenizer counts its tokens.
    pub family: Family,
    /// Whether its reasoning is bound to the prefix.
    #[serde(default = "free")]
    pub binding: ReasoningBinding,
    /// Whether reasoning of earlier turns stays in the context (Claude Opus 4.5+, Sonnet 4.6+, GPT-5.6+;
    /// `docs/estimates.md` 2).
    #[serde(default)]
    pub keeps_reasoning: bool,
    /// Whether reasoning that is sent back is read at all, even in a tool loop (not by Gemini up to 2.5;
    /// `docs/estimates.md` 2).
    #[serde(default = "yes")]
    pub reads_reasoning: bool,
    /// Whether a turn's reasoning is more often dropped than kept if user text comes with tool results: GPT-5.5
    /// dropped it in 25 of 32 recorded cases (`docs/estimates.md` 2).
    #[serde(default)]
    pub drops_steered: bool,
    /// Whether tool results cost only their text and their tool's name (Gemini up to 2.0; later models read
    /// them as JSON).
    #[serde(default)]
    pub plain_results: bool,
    /// The additional cost of the first tool (the instructions for tool calls), tokens, if it differs from
    /// that of the family.
    #[serde(default)]
    pub tool_offering: Option<u32>,
    /// What the model's template puts before every prompt, tokens (the system message of gpt-oss).
    #[serde(default)]
    pub prompt_overhead: u64,
    /// How pictures are counted: by the name and the family.
    #[serde(skip)]
    pub pictures: PictureRule,
    /// Prices, US dollars per million tokens; `None` if unknown.
    #[serde(default)]
    pub price: Option<Price>,
    /// The smallest prefix that is cached, tokens.
    #[serde(default)]
    pub cache_min: u64,
    /// How long an unused cached prefix lives, seconds; 0 if nothing is promised.
    #[serde(default)]
    pub cache_ttl_s: u64,
    /// The day from which its maker no longer offers it, as far as that is announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retires: Option<Date>,
    /// The door that the window belongs to.
    #[serde(skip)]
    pub door: Door,
    /// Whether the request has to stay in a region.
    #[serde(skip)]
    pub is_regional: bool,
    /// Whether the configuration names the price: nothing else then changes it.
    #[serde(skip)]
    pub has_own_price: bool,
    /// Whether the configuration names the window: nothing else then changes it but a refusal.
    #[serde(skip)]
    pub is_configured: bool,
    /// Whether the name was found. If not, window and limits are safe guesses, and the caller logs the name
    /// once.
    #[serde(skip, default = "yes")]
    pub known: bool,
}

fn free() -> ReasoningBinding {
    ReasoningBinding::Free
}

fn yes() -> bool {
    true
}

/// How long before its last day a model is warned of, days.
const NOTICE_DAYS: i64 = 30;

impl Model {
    /// The day from which it is no longer offered, if that is at most 30 days away, or past. `now`: milliseconds since 1970.
    pub fn retires_soon(&self, now: u64) -> Option<Date> {
        let day = self.retires?;
        let time = Timestamp::from_millisecond(i64::try_from(now).ok()?).ok()?;
        let notice = time.checked_add(SignedDuration::from_hours(24 * NOTICE_DAYS)).ok()?;
        if Offset::UTC.to_datetime(notice).date() >= day { Some(day) } else { None }
    }

    /// Safe defaults for a model that is not in the catalogue: a window that most models have today, and
    /// reasoning treated as bound, so that nothing is cut that it may depend on.
    pub fn unknown() -> Self {
        Self {
            window: 128_000,
            max_output: 16_384,
            family: Family::Other,
            binding: ReasoningBinding::Prefix,
            keeps_reasoning: true,
            reads_reasoning: true,
            drops_steered: false,
            plain_results: false,
            tool_offering: None,
            prompt_overhead: 0,
            pictures: PictureRule::default(),
            price: None,
            cache_min: 1024,
            cache_ttl_s: 300,
            retires: None,
            door: Door::default(),
            is_regional: false,
            has_own_price: false,
            is_configured: false,
            known: false,
        }
    }

    pub(super) fn with_pictures(self, names: &[String]) -> Self {
        // By its names, else by its family.
        Self { pictures: PictureRule::by_name(names, self.family), ..self }
    }

    /// Whether a carriage return before a line feed costs nothing: Gemini from 3 on reads both as one.
    pub(crate) fn folds_line_ends(&self) -> bool {
        self.family == Family::Gemini && self.reads_reasoning
    }

    /// The same model behind an upstream with its own window or prices.
    #[must_use]
    pub fn behind(mut self, window: Option<u64>, price: Option<Price>) -> Self {
        self.known |= window.is_some();
        self.is_configured |= window.is_some();
        self.window = window.unwrap_or(self.window);
        self.has_own_price |= price.is_some();
        self.price = price.or(self.price);
        self
    }

    /// The same model, called `name`, with the window that it has at this door.
    #[must_use]
    pub fn through(mut self, door: Door, name: &str) -> Self {
        self.door = door;
        if door != Door::Api && !self.is_configured {
            let names = names::spellings(&name.trim().to_lowercase());
            self.window = door_windows::window(door, &names).unwrap_or(self.window);
        }
        self
    }

    /// The same model, asked in a region or not.
    #[must_use]
    pub fn in_region(self, is_regional: bool) -> Self {
        Self { is_regional, ..self }
    }

    /// The output tokens to reserve: the model's maximum output, at most `limit`, and at most half of the
    /// window.
    pub fn reserve(&self, limit: u64) -> u64 {
        self.max_output.min(limit).min(self.window / 2)
    }
}
