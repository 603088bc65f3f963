//! How tables write prices: one step without a list, and a factor that is one number.
//!
//! Each form refuses a key that it does not know, by its name: what is misspelled would be a price that does not count.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::price::TierFactor;
use super::price_steps::{LongPrice, PriceSteps};

// One step, or a list of them. Not `untagged`, whose errors name no key.
impl<'de> Deserialize<'de> for PriceSteps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Steps;
        impl<'de> Visitor<'de> for Steps {
            type Value = Vec<LongPrice>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a step, or a list of steps")
            }

            fn visit_map<A: MapAccess<'de>>(self, step: A) -> Result<Vec<LongPrice>, A::Error> {
                let step = LongPrice::deserialize(MapAccessDeserializer::new(step))?;
                Ok(vec![step])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, steps: A) -> Result<Vec<LongPrice>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(steps))
            }
        }
        let steps = deserializer.deserialize_any(Steps)?;
        Self::new(&steps).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for TierFactor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Apart {
            other: f64,
            cache_read: f64,
        }
        struct Factor;
        impl<'de> Visitor<'de> for Factor {
            type Value = TierFactor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or { other, cache_read }")
            }

            fn visit_f64<E>(self, factor: f64) -> Result<TierFactor, E> {
                Ok(TierFactor::All(factor))
            }

            fn visit_i64<E>(self, factor: i64) -> Result<TierFactor, E> {
                Ok(TierFactor::All(factor as f64))
            }

            fn visit_u64<E>(self, factor: u64) -> Result<TierFactor, E> {
                Ok(TierFactor::All(factor as f64))
            }

            fn visit_map<A: MapAccess<'de>>(self, factors: A) -> Result<TierFactor, A::Error> {
                let Apart { other, cache_read } =
                    Apart::deserialize(MapAccessDeserializer::new(factors))?;
                Ok(TierFactor::Apart { other, cache_read })
            }
        }
        deserializer.deserialize_any(Factor)
    }
}
