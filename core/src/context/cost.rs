//! What a reply cost, US dollars: by the provider's own word, else by its tokens at the prices of the models that were
//! called for it (`docs/protocols.md` 13). Unknown is `None`, never 0. Pure.

mod next_input;

use strum::{AsRefStr, EnumIter, IntoEnumIterator as _};

pub use self::next_input::NextInput;
use super::{Millis, Turn};
use crate::dialect::billing::Billing;
use crate::dialect::models::{CallTerms, Price, Rates};
use crate::dialect::{Dialect, Usage};

/// What everything that is billed of a reply cost; `None` if the price of a part of it is unknown. `model`: the requested
/// one; `price`: that of a model; `at`: when the call was made.
pub fn billed(
    usage: &Usage,
    model: &str,
    dialect: Dialect,
    at: Millis,
    price: impl Fn(&str) -> Option<Price>,
) -> Option<f64> {
    believed(usage.billing.stated_dollars(), computed(usage, model, dialect, at, price))
}

/// The provider's own word, unless it is over a dollar and over a hundred times our price: then it is a mistake, or the wish
/// of whoever answers in the provider's name.
fn believed(stated: Option<f64>, ours: Option<f64>) -> Option<f64> {
    match (stated, ours) {
        (Some(stated), Some(ours)) if ours > 0.0 && stated > 1.0 && stated > 100.0 * ours => {
            Some(ours)
        }
        (Some(stated), _) => Some(stated),
        (None, ours) => ours,
    }
}

/// What a call cost by what it was for, US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostParts {
    /// Input that was in no cache, and is no audio.
    pub input: f64,
    /// Input read from a cache, but audio.
    pub cache_read: f64,
    /// Input written to a cache.
    pub cache_write: f64,
    /// Output, reasoning included.
    pub output: f64,
    /// Input that is audio, cached or not.
    pub audio: f64,
    /// Tools of the provider's: searches, and what a call costs beside its tokens.
    pub tools: f64,
    /// What the provider said of a call whose prices are not known.
    pub stated: f64,
}

/// What a part of a cost was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumIter, AsRefStr)]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "as the members of CostParts")]
pub enum CostKind {
    Input,
    CacheRead,
    CacheWrite,
    Output,
    Audio,
    Tools,
    Stated,
}

impl CostParts {
    /// All of it.
    pub fn total(&self) -> f64 {
        CostKind::iter().map(|kind| self.part(kind)).sum()
    }

    /// What one kind cost.
    pub fn part(&self, kind: CostKind) -> f64 {
        match kind {
            CostKind::Input => self.input,
            CostKind::CacheRead => self.cache_read,
            CostKind::CacheWrite => self.cache_write,
            CostKind::Output => self.output,
            CostKind::Audio => self.audio,
            CostKind::Tools => self.tools,
            CostKind::Stated => self.stated,
        }
    }

    /// The same in all, of `total` dollars.
    fn scaled_to(self, total: f64) -> Self {
        let sum = self.total();
        if sum <= 0.0 {
            return Self { stated: total, ..Self::default() };
        }
        let factor = total / sum;
        Self {
            input: self.input * factor,
            cache_read: self.cache_read * factor,
            cache_write: self.cache_write * factor,
            output: self.output * factor,
            audio: self.audio * factor,
            tools: self.tools * factor,
            stated: self.stated * factor,
        }
    }
}

/// What one model's calls for a reply cost.
#[derive(Clone, Copy, Debug)]
pub struct ModelCost<'t> {
    /// The name by which the model has its price.
    pub model: &'t str,
    /// What was billed.
    pub usage: &'t Usage,
    /// What that cost by what it was for; `None` if it is not known.
    pub parts: Option<CostParts>,
}

impl ModelCost<'_> {
    /// What they cost, US dollars.
    pub fn dollars(&self) -> Option<f64> {
        self.parts.map(|parts| parts.total())
    }
}

impl Turn {
    /// What it cost, US dollars: at the prices of its time if they were known then, else at these. `price`: that of a model.
    pub fn cost(&self, price: impl Fn(&str) -> Option<Price>) -> Option<f64> {
        self.dollars.and_then(known).or_else(|| {
            billed(&self.usage, self.answered_by(), self.dialect, self.at, |model| {
                self.price_of(model, &price)
            })
        })
    }

    /// The price of a model that was called for it. `price`: that of a model.
    pub fn price_of(&self, model: &str, price: impl Fn(&str) -> Option<Price>) -> Option<Price> {
        // A server's own name that nobody knows is only another name for what was requested.
        let is_answer = self.served.as_deref() == Some(model);
        price(model).or_else(|| if is_answer { price(&self.model) } else { None })
    }

    /// What each model's calls for it cost: together, what it cost. `price`: that of a model.
    pub fn costs_by_model(&self, price: impl Fn(&str) -> Option<Price>) -> Vec<ModelCost<'_>> {
        let mut costs = Vec::new();
        for (by, usage) in self.usage.billed() {
            let model = by.unwrap_or(self.answered_by());
            let parts = self.price_of(model, &price).and_then(|price| {
                let terms = terms(usage, &self.usage.billing, self.at);
                of_call(usage, terms, &price, self.dialect)
            });
            costs.push(ModelCost { model, usage, parts });
        }
        // What is known of the whole decides, and what others did for the reply is taken off.
        let others: Option<f64> = costs.iter().skip(1).map(ModelCost::dollars).sum();
        if let Some(answer) = costs.first_mut()
            && let Some(whole) = self.dollars
        {
            answer.parts = others.map(|others| {
                let at_our_prices = answer.parts.unwrap_or_default();
                at_our_prices.scaled_to((whole - others).max(0.0))
            });
        }
        costs
    }

    /// What it costs at our prices, US dollars, if the provider says its price, too. `price`: that of a model.
    pub fn cost_beside_stated(&self, price: impl Fn(&str) -> Option<Price>) -> Option<f64> {
        self.usage.billing.stated?;
        computed(&self.usage, self.answered_by(), self.dialect, self.at, |model| {
            self.price_of(model, &price)
        })
    }

    /// What the input of the model that answered cost, without tools, US dollars. `price`: that of a model.
    pub fn input_cost(&self, price: impl Fn(&str) -> Option<Price>) -> Option<f64> {
        let price = self.price_of(self.answered_by(), price)?;
        let terms = terms(&self.usage, &self.usage.billing, self.at);
        let billing = Billing { searches: 0, file_searches: 0, ..self.usage.billing.clone() };
        let input = Usage { output: None, billing, ..self.usage.clone() };
        let parts = of_call(&input, terms, &Price { call: None, ..price }, self.dialect)?;
        Some(parts.total())
    }

    /// The name by which the model that answered has its price.
    pub fn answered_by(&self) -> &str {
        self.served.as_deref().unwrap_or(&self.model)
    }
}

/// Like [`billed`], without the provider's own word.
pub fn computed(
    usage: &Usage,
    model: &str,
    dialect: Dialect,
    at: Millis,
    price: impl Fn(&str) -> Option<Price>,
) -> Option<f64> {
    // The tier and the place are those of the whole reply, also for what other models did for it.
    let calls = usage.billed().map(|(by, one)| {
        let price = price(by.unwrap_or(model))?;
        Some(of_call(one, terms(one, &usage.billing, at), &price, dialect)?.total())
    });
    // The sum of no calls is -0.0.
    calls.sum::<Option<f64>>().and_then(|dollars| known(dollars + 0.0))
}

/// The one rule for money: what is not a finite number of at least 0 is unknown, and is in no sum.
pub fn known(dollars: f64) -> Option<f64> {
    if dollars.is_finite() && dollars >= 0.0 { Some(dollars) } else { None }
}

/// What one model call cost at this price; `None` if its input was not reported.
pub fn call(usage: &Usage, price: &Price, dialect: Dialect, at: Millis) -> Option<f64> {
    let ours = of_call(usage, terms(usage, &usage.billing, at), price, dialect);
    believed(usage.billing.stated_dollars(), ours.map(|parts| parts.total()))
}

/// On which terms a call was made. `billing`: of the whole reply.
pub(super) fn terms(usage: &Usage, billing: &Billing, at: Millis) -> CallTerms {
    CallTerms {
        prompt: usage.input.unwrap_or(0),
        tier: billing.tier,
        is_regional: billing.regional,
        at,
    }
}

/// What a call cost by what it was for. Without one of its prices, the cost is unknown: a part would look like the whole.
fn of_call(usage: &Usage, terms: CallTerms, price: &Price, dialect: Dialect) -> Option<CostParts> {
    let rates = price.rates(terms)?;
    let billing = &usage.billing;
    let input = usage.input?;
    // Reported parts may be more than their sum: none is billed beyond the input.
    let read = usage.cache_read.unwrap_or(0).min(input);
    let written = usage.cache_write.unwrap_or(0).min(input - read);
    let uncached = input - read - written;
    let audio = billing.audio_input.min(uncached);
    let cached_audio = billing.audio_cached.min(read);
    let mut parts = CostParts {
        input: millionths(uncached - audio, rates.input),
        cache_read: millionths(read - cached_audio, rates.cache_read),
        cache_write: millionths(written, write_price(usage, rates, dialect)),
        output: millionths(usage.output.unwrap_or(0), rates.output),
        tools: of_tools(billing, price)?,
        ..CostParts::default()
    };
    if audio > 0 {
        parts.audio = millionths(audio, price.audio_rates(terms)?.input);
    }
    if cached_audio > 0 {
        parts.audio += millionths(cached_audio, price.audio_rates(terms)?.cached?);
    }
    known(parts.total())?;
    Some(parts)
}

/// What tools at the provider cost beside tokens; `None` if one of them has no known price.
fn of_tools(billing: &Billing, price: &Price) -> Option<f64> {
    let mut dollars = price.call.unwrap_or(0.0);
    if billing.searches > 0 {
        dollars += match price.search_prompt {
            Some(prompt) => prompt,
            None => billing.searches as f64 * price.search?,
        };
    }
    if billing.file_searches > 0 {
        dollars += billing.file_searches as f64 * price.file_search?;
    }
    Some(dollars)
}

/// The price of a token written to the cache, long and short lifetimes mixed as reported, else as requested. Without a fee in
/// the catalogue, a write costs what processing costs. A long lifetime costs a multiple of the input price: 2
/// at Anthropic, 2.5 at OpenAI (`docs/protocols.md` 7.1, 7.2).
pub(super) fn write_price(usage: &Usage, rates: Rates, dialect: Dialect) -> f64 {
    let short = if rates.cache_write > 0.0 { rates.cache_write } else { rates.input };
    let long = match dialect {
        Dialect::Anthropic => 2.0 * rates.input,
        Dialect::OpenaiChat | Dialect::OpenaiResponses => 2.5 * rates.input,
        Dialect::Gemini => short,
    };
    let written = usage.cache_write.unwrap_or(0);
    let share = match usage.cache_write_long {
        Some(tokens) if written > 0 => tokens.min(written) as f64 / written as f64,
        // Some gateways report one sum: it is what the request asked for.
        None if usage.billing.long_writes => 1.0,
        _ => 0.0,
    };
    short + share * (long - short).max(0.0)
}

pub(super) fn millionths(tokens: u64, price: f64) -> f64 {
    tokens as f64 * price / 1e6
}

#[cfg(test)]
mod tests;
