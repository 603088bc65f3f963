//! What a reply says about its price beside its counts of tokens (`docs/protocols.md` 13).
//!
//! Read where each dialect reports it. What is not said is the usual: the standard tier, no region, no searches.

use http::{HeaderMap, HeaderName};
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::count::Count;
use crate::wire::json::Value;

/// Where Google's API says the tier, if its reply does not.
const SERVICE_TIER: HeaderName = HeaderName::from_static("x-gemini-service-tier");

/// Beside the tokens: what else decides about the price of a reply. Where each dialect says it:
///
/// | | Messages | Chat Completions | Responses | Gemini |
/// |---|---|---|---|---|
/// | tier | `usage.service_tier`, `usage.speed` ("Fast mode") | `service_tier` | `response.service_tier` | `usageMetadata.trafficType` (Vertex), `serviceTier`, which may stand beside it; else the header `x-gemini-service-tier` |
/// | place | `usage.inference_geo`, unless `global` or `not_available` | – | – | – |
/// | searches | `usage.server_tool_use.web_search_requests` | the same at OpenRouter | `web_search_call` items, unless they open a page or look in it | `groundingMetadata.webSearchQueries` |
/// | searches of files | – | – | `file_search_call` items | – |
/// | fees that it does not tell | `server_tool_use.code_execution_requests` | Groq `executed_tools` | items of code, shells and pictures | `groundingChunks` from maps |
/// | audio | – | `prompt_tokens_details.audio_tokens` | – | `promptTokensDetails`, of which `cacheTokensDetails` are cached |
/// | price | – | OpenRouter `usage.cost`, with one's own key also `cost_details.upstream_inference_cost`; Perplexity `usage.cost.total_cost`; xAI `usage.cost_in_usd_ticks`, ten billion to the dollar | `cost`, `cost_in_usd_ticks` | – |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Billing {
    /// The tier that served it.
    #[serde(default, skip_serializing_if = "ServiceTier::is_standard")]
    pub tier: ServiceTier,
    /// It had to stay in a region.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub regional: bool,
    /// Searches of the web that the provider made for it, each with a price of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub searches: u64,
    /// Searches of uploaded files, each with a price of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub file_searches: u64,
    /// Calls of tools at the provider that cost more than tokens by what the reply does not tell, such as the time of a
    /// container: the cost is a lower bound.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unmetered: u64,
    /// The request asked that all it writes to the cache lives long. It decides where the reply does not say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub long_writes: bool,
    /// Tokens of audio in the uncached input.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub audio_input: u64,
    /// Tokens of audio that were read from the cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub audio_cached: u64,
    /// What it costs by the provider's own word, billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated: Option<u64>,
}

/// At which tier a reply was served, which decides about its price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ServiceTier {
    /// The usual one.
    #[default]
    Standard,
    /// Served first.
    Priority,
    /// Served when there is room.
    Flex,
    /// Served within a day.
    Batch,
    /// Claude's fast mode.
    Fast,
    /// OpenAI's fastest one.
    Ultrafast,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Billionths of a dollar in one.
const BILLION: f64 = 1e9;
/// xAI's ticks in a dollar.
const TICKS: f64 = 1e10;
/// A reply that claims to cost more than this, US dollars, is mistaken.
const MOST: f64 = 1e5;
/// No reply makes more searches than this.
const MOST_SEARCHES: u64 = 1_000;

impl ServiceTier {
    /// The tier that a provider calls so: OpenAI's `service_tier`, Anthropic's `service_tier` and `speed`, Google's
    /// `trafficType`. Every other name is the standard tier (`default`, `auto`, `standard`, `scale`, `ON_DEMAND`).
    pub fn from_name(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "priority" | "on_demand_priority" => Self::Priority,
            "flex" | "on_demand_flex" => Self::Flex,
            "batch" => Self::Batch,
            "fast" => Self::Fast,
            "ultrafast" => Self::Ultrafast,
            _ => Self::Standard,
        }
    }

    /// The tier that Google's API says in a header where the reply does not ("Priority inference", Gemini API).
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get(SERVICE_TIER)?.to_str().ok()?;
        Some(Self::from_name(name))
    }

    fn is_standard(&self) -> bool {
        *self == Self::Standard
    }

    fn read(&mut self, value: Option<Value<'_>>) {
        if let Some(name) = value.and_then(|value| value.text()) {
            *self = Self::from_name(&name);
        }
    }
}

impl Billing {
    pub(super) fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the tier, if it is said.
    pub(super) fn read_tier(&mut self, value: Option<Value<'_>>) {
        self.tier.read(value);
    }

    /// Reads where Anthropic says which tier, which speed and which place served the reply.
    pub(super) fn read_anthropic(
        &mut self,
        tier: Option<Value<'_>>,
        speed: Option<Value<'_>>,
        place: Option<Value<'_>>,
    ) {
        self.tier.read(tier);
        // Fast mode has its price at every tier.
        if speed.and_then(|speed| speed.text()).as_deref() == Some("fast") {
            self.tier = ServiceTier::Fast;
        }
        if let Some(place) = place.and_then(|place| place.text()) {
            self.regional = !matches!(&*place, "global" | "not_available" | "");
        }
    }

    /// Counts searches; reports are cumulative.
    pub(super) fn grow_searches(&mut self, searches: Option<Value<'_>>) {
        let searches = Count::from_member(searches);
        // A number that is no count stays one that cannot be, until the end of the reply.
        let unknown = if searches.is_unknown() { u64::MAX } else { 0 };
        self.searches = self.searches.max(searches.value().unwrap_or(unknown));
    }

    /// Forgets a number of searches that cannot be, and returns whether there was one: they have a fee that nobody knows.
    pub(super) fn forget_impossible(&mut self) -> bool {
        let has_impossible = self.searches > MOST_SEARCHES;
        if has_impossible {
            self.searches = 0;
            self.grow_unmetered(1);
        }
        has_impossible
    }

    /// Counts calls of tools whose price the reply does not tell; reports are cumulative.
    pub(super) fn grow_unmetered(&mut self, calls: u64) {
        self.unmetered = self.unmetered.max(calls);
    }

    /// Reads what a reply costs by a `usage` object: OpenRouter's `cost` and `cost_details`, Perplexity's `cost`, xAI's
    /// `cost_in_usd_ticks`.
    pub(super) fn read_cost(&mut self, usage: Value<'_>) {
        const NAMES: [&str; 4] = ["cost_in_usd_ticks", "cost", "cost_details", "is_byok"];
        let [ticks, cost, details, own_key] = usage.members(NAMES);
        let ticks = ticks.and_then(|ticks| ticks.as_f64()).map(|ticks| ticks / TICKS);
        let total =
            cost.and_then(|cost| cost.as_f64().or_else(|| cost.get("total_cost")?.as_f64()));
        let mut dollars = ticks.or(total);
        // With a key of one's own at the provider, OpenRouter's `cost` is its fee alone.
        if own_key.and_then(|own_key| own_key.as_bool()) == Some(true) {
            let upstream = details.and_then(|details| details.get("upstream_inference_cost"));
            let upstream = upstream.and_then(|upstream| upstream.as_f64());
            dollars = dollars.zip(upstream).map(|(fee, upstream)| fee + upstream);
        }
        if let Some(dollars) = dollars.filter(|dollars| (0.0..=MOST).contains(dollars)) {
            self.stated = Some((dollars * BILLION).round() as u64);
        }
    }

    /// Whether what can be told of its cost is a lower bound.
    pub fn is_lower_bound(&self) -> bool {
        self.unmetered > 0 && self.stated.is_none()
    }

    /// What the reply costs by the provider's own word, US dollars.
    pub fn stated_dollars(&self) -> Option<f64> {
        Some(self.stated? as f64 / BILLION)
    }
}

#[cfg(test)]
mod tests;
