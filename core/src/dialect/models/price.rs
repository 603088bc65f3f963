//! What a call of a model costs: by its kinds of tokens, the length of its prompt, its tier, its place and its time.
//!
//! The facts are in `config/models.toml`, with their sources. Which terms a call had is said by its reply
//! ([`Billing`](crate::dialect::billing::Billing)). A term without a known price makes the price unknown, never a wrong one.

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::{Timestamp, tz::Offset};
use serde::{Deserialize, Serialize};

use super::price_steps::{PriceSteps, Rates};
use crate::dialect::billing::ServiceTier;

/// US dollars per million tokens, as everybody pays them unless one of the other members says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Uncached input.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input read from the cache.
    pub cache_read: f64,
    /// Input written to the cache.
    pub cache_write: f64,
    /// What all tokens of a long prompt cost instead.
    #[serde(default, skip_serializing_if = "PriceSteps::is_empty")]
    #[schemars(skip)]
    pub long: PriceSteps,
    /// Uncached audio of the input; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub audio: Option<f64>,
    /// Audio that is read from the cache; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub cached_audio: Option<f64>,
    /// Audio costs what text costs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(skip)]
    pub audio_as_text: bool,
    /// A search of the web, US dollars; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub search: Option<f64>,
    /// All searches of one prompt together, US dollars, where they are not billed one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub search_prompt: Option<f64>,
    /// A search of uploaded files, US dollars; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub file_search: Option<f64>,
    /// Each call, beside its tokens, US dollars: of models that always search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub call: Option<f64>,
    /// How many times as much each tier costs.
    #[serde(default, skip_serializing_if = "TierFactors::is_empty")]
    #[schemars(skip)]
    pub tiers: TierFactors,
    /// How many times as much a call costs that has to stay in a region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub regional: Option<f64>,
    /// When a call costs less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub off_peak: Option<OffPeak>,
    /// An announced change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub change: Option<PriceChange>,
}

/// How many times as much as the standard tier each other one costs; `None` if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierFactors {
    /// Served first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<TierFactor>,
    /// Served when there is room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flex: Option<TierFactor>,
    /// Served within a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TierFactor>,
    /// Claude's fast mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast: Option<TierFactor>,
    /// OpenAI's fastest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ultrafast: Option<TierFactor>,
}

/// How many times as much as at the standard tier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TierFactor {
    /// All tokens.
    All(f64),
    /// Those read from the cache have a factor of their own: Gemini up to 3.1 charges them alike at every tier.
    Apart {
        /// Other tokens.
        other: f64,
        /// Tokens read from the cache.
        cache_read: f64,
    },
}

struct TierParts {
    other: f64,
    cache_read: f64,
}

impl TierFactor {
    fn parts(self) -> TierParts {
        match self {
            Self::All(factor) => TierParts { other: factor, cache_read: factor },
            Self::Apart { other, cache_read } => TierParts { other, cache_read },
        }
    }
}

/// What audio costs, US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AudioRates {
    /// Uncached.
    pub input: f64,
    /// Read from the cache; `None` if that is not known.
    pub cached: Option<f64>,
}

/// Hours at which everything costs less: those that are not peak hours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffPeak {
    /// How many times as much as at peak hours.
    pub factor: f64,
    /// Peak hours from Monday to Friday, UTC: from the first time on, until just before the second.
    pub peak: [(Time, Time); 2],
}

/// What tokens cost from a day on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "KeysOfChange")]
pub struct PriceChange {
    /// The first day, UTC.
    pub from: Date,
    /// What they cost then.
    #[serde(flatten)]
    pub rates: Rates,
}

// `flatten` and `deny_unknown_fields` exclude each other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysOfChange {
    from: Date,
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
}

impl From<KeysOfChange> for PriceChange {
    fn from(keys: KeysOfChange) -> Self {
        let KeysOfChange { from, input, output, cache_read, cache_write } = keys;
        Self { from, rates: Rates { input, output, cache_read, cache_write } }
    }
}

/// What decides about the price of a call, beside its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTerms {
    /// The tokens of its prompt; those from the cache count.
    pub prompt: u64,
    /// The tier that served it.
    pub tier: ServiceTier,
    /// Whether it had to stay in a region.
    pub is_regional: bool,
    /// When it was made, milliseconds since 1970.
    pub at: u64,
}

impl Price {
    /// What the tokens of a call cost on these terms; `None` if its tier has no known price.
    #[must_use]
    pub fn rates(&self, terms: CallTerms) -> Option<Rates> {
        let mut rates = self.standard(terms);
        let TierParts { other, cache_read } = self.tiers.factor(terms.tier)?.parts();
        rates = Rates { cache_read: rates.cache_read * cache_read, ..rates.times(other) };
        if terms.is_regional {
            rates = rates.times(self.regional.unwrap_or(1.0));
        }
        match self.off_peak {
            Some(off_peak) if !off_peak.is_peak(terms.at) => Some(rates.times(off_peak.factor)),
            _ => Some(rates),
        }
    }

    /// What a million tokens of audio cost on these terms, uncached and from the cache; `None` if that is not known.
    #[must_use]
    pub fn audio_rates(&self, terms: CallTerms) -> Option<AudioRates> {
        if self.audio_as_text {
            let Rates { input, cache_read, .. } = self.rates(terms)?;
            return Some(AudioRates { input, cached: Some(cache_read) });
        }
        let region = if terms.is_regional { self.regional.unwrap_or(1.0) } else { 1.0 };
        let TierParts { other, cache_read } = self.tiers.factor(terms.tier)?.parts();
        Some(AudioRates {
            input: self.audio? * other * region,
            cached: self.cached_audio.map(|cached| cached * cache_read * region),
        })
    }

    /// A price that is the same on all terms, with no price for searches and audio, and no fees.
    #[must_use]
    pub const fn from_rates(rates: Rates) -> Self {
        let Rates { input, output, cache_read, cache_write } = rates;
        let tiers =
            TierFactors { priority: None, flex: None, batch: None, fast: None, ultrafast: None };
        Self {
            input,
            output,
            cache_read,
            cache_write,
            long: PriceSteps::NONE,
            audio: None,
            cached_audio: None,
            audio_as_text: false,
            search: None,
            search_prompt: None,
            file_search: None,
            call: None,
            tiers,
            regional: None,
            off_peak: None,
            change: None,
        }
    }

    /// What its tokens cost today if nothing else is known of a call.
    #[must_use]
    pub fn base(&self) -> Rates {
        let Self { input, output, cache_read, cache_write, .. } = *self;
        Rates { input, output, cache_read, cache_write }
    }

    fn standard(&self, terms: CallTerms) -> Rates {
        if let Some(rates) = self.long.at(terms.prompt) {
            return rates;
        }
        match self.change {
            Some(change) if civil(terms.at).is_some_and(|at| at.date() >= change.from) => {
                change.rates
            }
            _ => self.base(),
        }
    }
}

impl TierFactors {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn factor(&self, tier: ServiceTier) -> Option<TierFactor> {
        match tier {
            ServiceTier::Standard => Some(TierFactor::All(1.0)),
            ServiceTier::Priority => self.priority,
            ServiceTier::Flex => self.flex,
            ServiceTier::Batch => self.batch,
            ServiceTier::Fast => self.fast,
            ServiceTier::Ultrafast => self.ultrafast,
        }
    }
}

impl OffPeak {
    fn is_peak(&self, at: u64) -> bool {
        // A time that no clock has is priced as the dearer hour.
        let Some(at) = civil(at) else { return true };
        let is_weekend = matches!(at.weekday(), Weekday::Saturday | Weekday::Sunday);
        let time = at.time();
        !is_weekend && self.peak.iter().any(|(start, end)| (*start..*end).contains(&time))
    }
}

fn civil(at: u64) -> Option<DateTime> {
    let at = Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()?;
    Some(Offset::UTC.to_datetime(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Price =
        Price::from_rates(Rates { input: 2.0, output: 10.0, cache_read: 0.2, cache_write: 2.5 });

    fn millis(time: &str) -> u64 {
        time.parse::<Timestamp>().expect("a time").as_millisecond() as u64
    }

    fn input_at(price: &Price, time: &str) -> f64 {
        let terms = CallTerms { at: millis(time), ..CallTerms::default() };
        price.rates(terms).expect("a price").input
    }

    #[test]
    fn deepseek_costs_half_outside_its_hours() {
        let price: Price = toml::from_str(
            r#"input = 2
            output = 10
            cache_read = 0.2
            cache_write = 2.5
            off_peak = { factor = 0.5, peak = [["01:00", "04:00"], ["06:00", "10:00"]] }"#,
        )
        .expect("valid");
        for (time, input) in [
            // A Wednesday.
            ("2026-11-25T00:59:59.999Z", 1.0),
            ("2026-11-25T01:00:00Z", 2.0),
            ("2026-11-25T03:59:59Z", 2.0),
            ("2026-11-25T04:00:00Z", 1.0),
            ("2026-11-25T06:00:00Z", 2.0),
            ("2026-11-25T12:30:00Z", 1.0),
            // A Saturday, and a Sunday.
            ("2026-11-28T02:30:00Z", 1.0),
            ("2026-11-29T08:00:00Z", 1.0),
        ] {
            assert_eq!(input_at(&price, time), input, "{time}");
        }
    }

    #[test]
    fn announced_change_holds_from_its_day_on() {
        let change = PriceChange {
            from: Date::constant(2026, 12, 1),
            rates: Rates { input: 4.0, output: 20.0, cache_read: 0.4, cache_write: 5.0 },
        };
        let price = Price { change: Some(change), ..BASE };
        assert_eq!(input_at(&price, "2026-11-30T23:59:59.999Z"), 2.0);
        assert_eq!(input_at(&price, "2026-12-01T00:00:00Z"), 4.0);
    }

    #[test]
    fn tiers_and_regions_multiply_and_unknown_tiers_have_no_price() {
        let tiers = TierFactors {
            priority: Some(TierFactor::All(2.0)),
            flex: Some(TierFactor::Apart { other: 0.5, cache_read: 1.0 }),
            ..TierFactors::default()
        };
        let price = Price { tiers, regional: Some(1.1), ..BASE };
        let rates = |tier, is_regional| {
            price.rates(CallTerms { tier, is_regional, ..CallTerms::default() })
        };
        let priority = rates(ServiceTier::Priority, true).expect("a price");
        assert!((priority.output - 22.0).abs() < 1e-9);
        let flex = rates(ServiceTier::Flex, false).expect("a price");
        assert_eq!(flex.input, 1.0);
        assert_eq!(flex.cache_read, 0.2);
        assert_eq!(rates(ServiceTier::Fast, false), None);
    }
}
