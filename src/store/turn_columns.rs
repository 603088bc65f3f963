//! What the views show of a turn, taken from the turn or read from its value.
//!
//! Knows no table.

use std::borrow::Cow;
use std::ops::Deref;

use memchr::memmem;
use serde::Deserialize;

use crate::context::Turn;
use crate::dialect::Usage;

/// The columns of a turn that the views show. Missing or invalid values are empty.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct TurnColumns<'t> {
    #[serde(borrow)]
    pub(crate) exchange: Option<TextColumn<'t>>,
    #[serde(borrow)]
    pub(crate) upstream: Option<TextColumn<'t>>,
    #[serde(borrow)]
    pub(crate) model: Option<TextColumn<'t>>,
    #[serde(borrow)]
    pub(crate) purpose: Option<TextColumn<'t>>,
    #[serde(borrow)]
    pub(crate) outcome: Option<TextColumn<'t>>,
    #[serde(borrow)]
    pub(crate) position: Option<PositionColumns<'t>>,
    #[serde(borrow)]
    pub(crate) estimate: Option<EstimateColumns<'t>>,
    pub(crate) usage: Option<Cow<'t, Usage>>,
    pub(crate) window: Option<u64>,
    pub(crate) ended: Option<u64>,
    pub(crate) dollars: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct PositionColumns<'t> {
    #[serde(borrow)]
    pub(crate) thread: Option<TextColumn<'t>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct EstimateColumns<'t> {
    #[serde(borrow)]
    pub(crate) method: Option<TextColumn<'t>>,
    pub(crate) tokens: Option<u64>,
}

/// A text, which is copied only if it has escapes: an `Option<Cow<str>>` would always copy it.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct TextColumn<'t>(#[serde(borrow)] Cow<'t, str>);

impl Deref for TextColumn<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'t> From<&'t Turn> for TurnColumns<'t> {
    fn from(turn: &'t Turn) -> Self {
        Self {
            exchange: Some(turn.exchange.as_str().into()),
            upstream: Some((&*turn.upstream).into()),
            model: Some((&*turn.model).into()),
            purpose: Some(turn.purpose.as_ref().into()),
            outcome: Some(turn.outcome.as_ref().into()),
            position: Some(PositionColumns { thread: Some(turn.position.thread.as_str().into()) }),
            estimate: turn.estimate.as_ref().map(|estimate| EstimateColumns {
                method: Some(estimate.method.as_ref().into()),
                tokens: Some(estimate.tokens),
            }),
            usage: Some(Cow::Borrowed(&turn.usage)),
            window: Some(turn.window),
            ended: Some(turn.ended),
            dollars: turn.dollars,
        }
    }
}

impl<'t> From<&'t str> for TextColumn<'t> {
    fn from(text: &'t str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl TurnColumns<'_> {
    /// The columns of the JSON `turn`, which is checked to be UTF-8 as a whole: string by string it takes longer.
    pub(crate) fn read(turn: &[u8]) -> TurnColumns<'_> {
        let text = std::str::from_utf8(turn).ok();
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// The members of a turn that can be columns.
pub(crate) fn before_sketch(turn: &[u8]) -> Cow<'_, [u8]> {
    // What follows is most of a long turn, and none of it is in one.
    match memmem::find(turn, br#","sketch":"#) {
        Some(end) => Cow::Owned([&turn[..end], b"}"].concat()),
        None => Cow::Borrowed(turn),
    }
}
