//! What a user, or a table that others keep, says of a model: it is used instead of what the catalogue has.
//!
//! What nobody says stays as the catalogue has it.

use super::family::Family;
use super::price::Price;

/// What is said of models whose name matches. What is `None` is not said.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOverride {
    /// The model's name; a `*` at its end matches any rest.
    pub name: Box<str>,
    /// Context window, tokens.
    pub window: Option<u64>,
    /// Largest output, tokens.
    pub max_output: Option<u64>,
    /// The model's tokenizer.
    pub family: Option<Family>,
    /// The prices to use instead of the catalogue's.
    pub price: Option<Price>,
}
