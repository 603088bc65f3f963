//! The structure that providers put around parts, by tokenizer family and dialect.
//!
//! Knows no text.

use super::bpe;
use crate::dialect::Dialect;
use crate::dialect::models::{Family, Model, PictureRule, ReasoningBinding};

/// Tokens of the structure around parts, measured (`docs/estimates.md` 1.3, and the recorded conversations
/// that `tests/estimate.rs` reads).
#[derive(Clone, Copy, Default)]
pub(crate) struct StructureCost {
    pub(super) text: u32,
    pub(super) call: u32,
    pub(super) result: u32,
    /// Additional tokens of a result if it is read as JSON (Gemini); `None` if it never is.
    pub(super) result_read: Option<u32>,
    /// Additional tokens of a user's text in a conversation whose reasoning is read.
    pub(super) text_read: u32,
    /// What stands in front of a result besides its tool's name; `None` if that does not, either.
    pub(super) result_name: Option<&'static str>,
    pub(super) tool: u32,
    /// Whether a tool without a schema may be one of the provider's own.
    pub(super) has_own_tools: bool,
    /// Additional tokens of a response schema besides its cost as a tool: the instruction to follow it.
    pub(super) schema: u32,
    /// The percentage of a tool's JSON that its shown form takes.
    pub(super) tool_percent: u32,
    /// Added if there are tools: instructions.
    pub(crate) offering: u32,
    /// Added if the model has to call a tool.
    pub(crate) forcing: u32,
    /// Added if the provider may search for tools that are not loaded.
    pub(crate) searching: u32,
    /// Added with the first tool that appears in the history.
    pub(crate) loading: u32,
    /// Added if a document is to be cited.
    pub(crate) citing: u32,
    /// Around a document that is sent as text.
    pub(super) document: u32,
    pub(super) reasoning: u32,
    pub(super) pictures: PictureRule,
    /// Whether a carriage return before a line feed costs nothing.
    pub(super) folds_line_ends: bool,
    /// Added once to every prompt.
    pub(crate) prompt: u64,
    /// Added once to a request that continues another one: what opens the reply.
    pub(super) opening: i64,
    /// Added once to a request that brings tool results: the reported cost of the end of the calls.
    pub(super) answered: i64,
    /// Added for each result after the first: the reported cost of wrapping parallel calls.
    pub(super) parallel: i64,
}

impl StructureCost {
    pub(super) fn new(model: &Model, dialect: Dialect) -> Self {
        let folds_line_ends = model.folds_line_ends();
        let structure = Self::around(model, dialect);
        Self {
            offering: model.tool_offering.unwrap_or(structure.offering),
            prompt: structure.prompt + model.prompt_overhead,
            pictures: model.pictures,
            folds_line_ends,
            has_own_tools: matches!(
                (dialect, model.family),
                (Dialect::Anthropic, Family::Claude | Family::ClaudeNew)
                    | (Dialect::OpenaiResponses, Family::O200k)
                    | (Dialect::Gemini, Family::Gemini)
            ),
            ..structure
        }
    }

    fn around(model: &Model, dialect: Dialect) -> Self {
        match model.family {
            Family::O200k | Family::Cl100k => Self::openai(model, dialect),
            Family::Other => Self {
                result_name: None,
                tool_percent: 100,
                offering: 100,
                ..Self::openai(model, dialect)
            },
            Family::Claude => Self {
                call: 30,
                result: 38,
                tool: 20,
                // 90 to 112 in recorded first calls of Sonnet 4.5, with other tools and without.
                schema: 95,
                tool_percent: 100,
                offering: 487,
                // 537 and 523 in two recorded calls (Sonnet 4.6, Haiku 4.5), and 47 around a document of two words.
                citing: 530,
                document: 47,
                // "Tool use with Claude" (platform.claude.com): 588 tokens of instructions in place of 496. Up to
                // Sonnet 4 it is 315 in place of 313.
                forcing: if model.tool_offering.is_some() { 2 } else { 92 },
                prompt: 7,
                opening: 2,
                answered: -27,
                ..Self::default()
            },
            Family::ClaudeNew => Self {
                call: 36,
                result: 48,
                tool: 28,
                schema: 95,
                tool_percent: 100,
                // The same page: 290 with the 7 of every prompt (Opus 4.8), 286 (Opus 5). Fable 5 was recorded with 290.
                offering: 283,
                // Not recorded: the same text takes so many more tokens.
                citing: 719,
                document: 64,
                // The same page: 410 in place of 290 (Opus 4.8), 474 in place of 354 (Sonnet 5).
                forcing: 120,
                prompt: 7,
                opening: 2,
                answered: -45,
                ..Self::default()
            },
            Family::Gemini => Self::gemini(model, dialect),
        }
    }

    fn gemini(model: &Model, dialect: Dialect) -> Self {
        let is_exact = bpe::is_exact(model.family);
        let structure = Self {
            // With Gemini's own vocabulary a text costs nothing more.
            text: if is_exact { 0 } else { 1 },
            call: 8,
            tool: 12,
            tool_percent: 45,
            ..Self::default()
        };
        // A gateway (OpenRouter) passes results on as text: 8 of 8 recorded pairs.
        if dialect == Dialect::OpenaiResponses {
            return Self { result: if is_exact { 2 } else { 1 }, ..structure };
        }
        // Besides the name, and what is added if results are read as JSON, with Gemini's own vocabulary. Where Gemini 3
        // drops reasoning: 246 of 363 results, eight tools, 15 sessions. Gemini 2.0: 13 of 14.
        let (around, read): (i64, u32) = match (model.reads_reasoning, model.plain_results) {
            (true, _) => (-3, 13),
            (false, true) if dialect == Dialect::Gemini => (1, 1),
            (false, _) => (1, 9),
        };
        let (read, text_read) = if is_exact { (read, 2) } else { (read.saturating_sub(3), 1) };
        Self {
            result_name: Some(""),
            result_read: Some(read),
            answered: around,
            parallel: around,
            // 11 of 19 recorded messages.
            text_read: if model.reads_reasoning { text_read } else { 0 },
            ..structure
        }
    }

    fn openai(model: &Model, dialect: Dialect) -> Self {
        // Models whose reasoning is bound to the prefix are GPT-5 and the o-series.
        let reasons = model.binding == ReasoningBinding::Prefix;
        let (result, opening, answered) = match (reasons, dialect) {
            (true, Dialect::OpenaiResponses) => (6, 2, 0),
            // The channel markers of a reply are reported as output, but are not sent back.
            (true, _) => (5, -3, 0),
            (false, Dialect::OpenaiResponses) => (3, 3, -1),
            (false, _) => (3, 4, -2),
        };
        // GPT's parallel calls are reported with their wrapping, which is not sent back. Over Responses it is
        // 22 tokens with GPT-4o (4 of 6 recorded pairs, 19 in one). Over Chat each further call takes 4 to 7
        // tokens (16 of 25 pairs of six projects), of GPT-5 8 to 12 (5 of 5).
        let parallel = match (model.family, dialect, reasons) {
            (Family::Other, ..) => 0,
            (Family::O200k, Dialect::OpenaiResponses, false) => -22,
            (_, Dialect::OpenaiChat, false) => -6,
            (_, Dialect::OpenaiChat, true) => -9,
            _ => 0,
        };
        Self {
            text: 4,
            call: 6,
            result,
            result_name: Some("functions."),
            tool: 8,
            tool_percent: 60,
            // 75 to 95 in recorded first calls of GPT-5 at OpenAI and Azure.
            offering: if reasons && dialect == Dialect::OpenaiChat { 80 } else { 0 },
            // 76 and 86 in recorded pairs: from a search's result, and from added tools.
            loading: if dialect == Dialect::OpenaiResponses { 80 } else { 0 },
            // 333 to 383 in four recorded calls whose tools were not loaded yet.
            searching: if dialect == Dialect::OpenaiResponses { 360 } else { 0 },
            reasoning: 2,
            prompt: 3,
            opening,
            answered,
            parallel,
            ..Self::default()
        }
    }
}
