//! The budget: what the next request will cost, where the tokens are, and how many are left
//! (`docs/estimates.md` 1.1).
//!
//! One truth: the number on the context page, in the metrics and in every decision is made here.
//! `estimate = anchor's actual input + its reply + Σ parts added − Σ parts removed`; without an anchor, the
//! sum over all parts, and the estimate says so. Breakdowns always sum to their total. Pure.

mod anchor;
mod carry;
mod classic;
mod contents;
mod decided;
mod hidden;
mod known;
mod limits;
mod line;
mod measure;
mod media;
mod recounted;
mod reply;
mod returned;
mod sections;
mod sums;
mod view;

pub use super::records::{MessageTokens, ToolTokens, WindowLimits};
pub use anchor::Anchor;
pub use carry::CarryOutlook;
pub use classic::{ClassicEstimate, classic};
pub use contents::{called, definitions};
pub use decided::estimate;
pub use hidden::HiddenInput;
pub use limits::Thresholds;
pub use line::grouped;
pub use measure::{MeasuredEstimate, measure};
pub use media::{UncountedMedia, media_chains};
pub use reply::{other_forms, reply};
pub use view::{ContextView, RewriteView};
