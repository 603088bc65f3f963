//! The messages for a summary, as they are sent in place of the history before the cut.
//!
//! Pure. Where the history is cut, and whether, is decided in `compact.rs`.

use super::loaded;
use super::quotes::{self, Quotes};
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::policy::SummaryAuthor;
use crate::dialect::summary::frame::SummaryFrame;
use crate::dialect::{Role, rewrite};

/// A summary in the form in which it is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryMessage {
    /// The messages as JSON for the body.
    pub raw: String,
    /// Who wrote it.
    pub by: SummaryAuthor,
}

/// A summary that we asked for, before it has the form in which it is sent.
#[derive(Clone, Copy, Debug)]
pub struct SummaryDraft<'a> {
    /// The first message that stays.
    pub cut: usize,
    /// The text as written.
    pub summary: &'a str,
    /// Drawn at random once the summary is written.
    pub seed: u32,
    /// By an operator.
    pub is_requested: bool,
}

/// The messages for a summary that we asked for, with quotes of the user; they replace those before the cut.
pub fn lay_out(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    draft: SummaryDraft<'_>,
) -> SummaryMessage {
    let SummaryDraft { cut, summary, seed, is_requested } = draft;
    let Quotes { quotes, messages } = quotes::quotes(request, known, cut);
    let mut summary_text = SummaryFrame { summary, quotes: &quotes, messages }.text(seed);
    let messages = &request.conversation.messages;
    let mut boundary = request.policy.compact.boundary(messages.len(), is_requested);
    // Before a reply of the model, a message of its own would be a second reply in a row.
    if messages.get(cut).is_some_and(|message| message.role == Role::Assistant)
        && let Some(boundary) = boundary.take()
    {
        summary_text = rewrite::with_boundary(&summary_text, &boundary);
    }
    let steps = loaded::repeated(request.conversation, request.body, cut);
    let dialect = request.conversation.dialect;
    let raw = rewrite::continued(dialect, &summary_text, &steps, boundary.as_deref());
    SummaryMessage { raw, by: SummaryAuthor::Summary }
}
