//! What tokens cost, and the steps in the length of a prompt above which all tokens of a call cost something else.
//!
//! OpenAI from GPT-5.4 on has one above 272,000 tokens, Gemini and xAI above 200,000, Claude Haiku 5.5 above 100,000, Qwen up
//! to three (their price pages, 2026-11).

use serde::{Deserialize, Serialize};

/// What all tokens of a call cost if its prompt is long, US dollars per million.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "KeysOfStep")]
pub struct LongPrice {
    /// A prompt with more tokens than this is long; those from the cache count.
    pub above: u64,
    /// What its tokens cost.
    #[serde(flatten)]
    pub rates: Rates,
}

// `flatten` and `deny_unknown_fields` exclude each other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysOfStep {
    above: u64,
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
}

impl From<KeysOfStep> for LongPrice {
    fn from(keys: KeysOfStep) -> Self {
        let KeysOfStep { above, input, output, cache_read, cache_write } = keys;
        Self { above, rates: Rates { input, output, cache_read, cache_write } }
    }
}

/// What the tokens of a call cost, US dollars per million.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Uncached input.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input read from the cache.
    pub cache_read: f64,
    /// Input written to the cache.
    pub cache_write: f64,
}

impl Rates {
    pub(super) fn times(self, factor: f64) -> Self {
        Self {
            input: self.input * factor,
            output: self.output * factor,
            cache_read: self.cache_read * factor,
            cache_write: self.cache_write * factor,
        }
    }
}

/// Most steps of a price.
const MOST_STEPS: usize = 3;

/// What all tokens of a call cost if its prompt is long, by how long it is, the shortest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(into = "Vec<LongPrice>")]
pub struct PriceSteps([Option<LongPrice>; MOST_STEPS]);

impl PriceSteps {
    /// No step.
    pub const NONE: Self = Self([None; MOST_STEPS]);

    /// Steps whose lengths rise.
    ///
    /// # Errors
    ///
    /// There are more than three, or a length is not above the one before.
    pub fn new(steps: &[LongPrice]) -> Result<Self, String> {
        if steps.len() > MOST_STEPS {
            return Err(format!("a price has at most {MOST_STEPS} steps, not {}", steps.len()));
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[0].above >= pair[1].above) {
            return Err(format!("the step above {} comes too late", pair[1].above));
        }
        let mut all = Self::NONE;
        for (place, step) in all.0.iter_mut().zip(steps) {
            *place = Some(*step);
        }
        Ok(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// The steps, the shortest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &LongPrice> {
        self.0.iter().flatten()
    }

    /// What tokens cost with a prompt of so many; `None` if it is not long.
    pub(super) fn at(&self, prompt: u64) -> Option<Rates> {
        self.iter().rev().find(|step| prompt > step.above).map(|step| step.rates)
    }
}

impl From<PriceSteps> for Vec<LongPrice> {
    fn from(steps: PriceSteps) -> Self {
        steps.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(above: u64, input: f64) -> LongPrice {
        LongPrice {
            above,
            rates: Rates { input, output: input * 5.0, cache_read: input, cache_write: input },
        }
    }

    #[test]
    fn each_step_begins_above_its_length() {
        let steps = PriceSteps::new(&[step(32, 2.0), step(128, 3.0)]).expect("they rise");
        let input = |prompt| steps.at(prompt).map(|rates| rates.input);
        assert_eq!(input(32), None);
        assert_eq!(input(33), Some(2.0));
        assert_eq!(input(128), Some(2.0));
        assert_eq!(input(129), Some(3.0));
    }

    #[test]
    fn steps_must_rise_and_be_few() {
        assert!(PriceSteps::new(&[step(128, 3.0), step(32, 2.0)]).is_err());
        assert!(PriceSteps::new(&[step(32, 3.0), step(32, 2.0)]).is_err());
        assert!(PriceSteps::new(&[1, 2, 3, 4].map(|above| step(above, 1.0))).is_err());
    }

    #[test]
    fn one_step_needs_no_list() {
        let one = r#"{"above": 32, "input": 1, "output": 5, "cache_read": 1, "cache_write": 1}"#;
        let alone: PriceSteps = serde_json::from_str(one).expect("a step");
        let listed: PriceSteps = serde_json::from_str(&format!("[{one}]")).expect("a list");
        assert_eq!(alone, listed);
        let written = serde_json::to_string(&alone).expect("JSON");
        assert_eq!(serde_json::from_str::<PriceSteps>(&written).expect("a list"), alone);
    }
}
