//! What is shown of a context: how full it is, with what, how certain that is, and how much is left.
//!
//! Made from a turn, and from the prediction after it. Text and JSON have the same numbers. The text's layout
//! is part of the product, and checked by tests.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::HiddenInput;
use super::limits::{Thresholds, percent};
use super::line::{grouped, line};
use super::sums::fit;
use crate::context::cost::NextInput;
use crate::context::overflow::OverflowReport;
use crate::context::plan::{ChangeCounts, RewriteSummary};
use crate::context::policy::{Mode, SummaryAuthor};
use crate::context::records::MessageTokens;
use crate::context::records::WindowLimits;
use crate::context::{Breakdown, Estimate, EstimateMethod, ProviderCount, Turn};
use crate::dialect::LastCall;

/// The context of a thread, as the page and `plimsoll context` show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ContextView {
    /// Tokens in the context.
    pub total: u64,
    /// The model's context window, tokens.
    pub window: u64,
    /// Nobody knows the model: its window is a guess, which decides nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub window_guessed: bool,
    /// Output tokens that are reserved.
    pub reserve: u64,
    /// Tokens that can still be added: window less reserve less total, never below 0. If the buffer is a
    /// category of its own, it is subtracted instead of the reserve.
    pub free: u64,
    /// Total in percent of the window.
    pub percent: f64,
    /// How the total was estimated; `None` if the provider reported it.
    pub method: Option<EstimateMethod>,
    /// How the tokens are split; the sum is `total`.
    pub breakdown: Breakdown,
    /// The messages by kind of content; the sum is `breakdown.messages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<MessageTokens>,
    /// Prompt tokens of tools that ran at the provider in the last call (Gemini): they are billed as input,
    /// but do not stay in the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_prompt: Option<u64>,
    /// What the total is based on; `None` without a call that reported its usage.
    pub basis: Option<EstimateBasis>,
    /// The error of the last estimate, percent of the reported number; above 0 if it was too high.
    pub last_error_percent: Option<f64>,
    /// Why the last call's input could not be known before it was reported; its estimate is then not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_input: Option<HiddenInput>,
    /// Tokens that may be filled before the history must be compacted.
    #[serde(default, rename = "usable", skip_serializing_if = "Option::is_none")]
    pub fillable: Option<u64>,
    /// The points at which pruning, preparing, compacting and refusing begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<Thresholds>,
    /// The part of the window past the point of compaction, if policy shows it as a category of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autocompact_buffer: Option<u64>,
    /// The provider's count of the last request, if its counting endpoint was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<ProviderCount>,
    /// What was done to the request.
    #[serde(default)]
    pub rewriting: RewriteView,
    /// What the next call's input will cost; `None` if its price or its cache is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_input: Option<NextInput>,
    /// The request is in flight: the numbers include it.
    #[serde(default)]
    pub in_flight: bool,
}

/// What was done to the request of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct RewriteView {
    /// The mode. In shadow mode nothing of it was sent.
    pub mode: Mode,
    /// The session is held out for comparison.
    pub held_out: bool,
    /// The provider refused the rewritten request, so the original was sent.
    pub resent: bool,
    /// The provider refused the new decisions, so the request was sent with the earlier ones only.
    #[serde(default)]
    pub revoked: bool,
    /// The window was too small: how that showed, and whether room was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<OverflowReport>,
    /// Changes, replayed and new.
    pub made: ChangeCounts,
    /// How many of them are new with this request.
    #[serde(default, skip_serializing_if = "ChangeCounts::is_nothing")]
    pub new: ChangeCounts,
    /// For a request in flight: who wrote the summary that is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_by: Option<SummaryAuthor>,
    /// For a request in flight with a new summary: the number that the compaction was decided by, tokens.
    #[serde(skip)]
    pub compacted_from: Option<u64>,
    /// Tokens of tool results that were not sent, by the count that decides.
    pub tokens_removed: u64,
    /// The share of these that is new with this request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tokens_pruned: u64,
    /// Tokens that a summary replaced, less its own, estimated.
    #[serde(default)]
    pub tokens_compacted: u64,
}

/// What a total is based on: `input + output + new − gone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EstimateBasis {
    /// Input of the last call, as reported.
    pub input: u64,
    /// Its output, as reported; if the reply broke off, an estimate of what was received.
    pub output: u64,
    /// The reply broke off before its output was reported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Tokens added since, estimated.
    pub new: u64,
    /// Tokens removed since, including reasoning that does not come back, estimated.
    pub gone: u64,
}

impl ContextView {
    /// A context after its newest turn: what the next request will contain of it ([`Turn::carried`]).
    pub fn after(turn: &Turn) -> Self {
        let estimate = turn.estimate.as_ref();
        let total = turn.carried().unwrap_or(0);
        let context = turn.context();
        let has_usage = context.is_some();
        // Without its own usage, it is based on the call that its request was based on.
        let call = context.or_else(|| turn.carry.as_ref()?.basis);
        let basis = call.map(|LastCall { input, output }| {
            let reported = input.saturating_add(output);
            EstimateBasis {
                input,
                output,
                cut: turn.usage.lower_bound && has_usage,
                new: total.saturating_sub(reported),
                gone: reported.saturating_sub(total),
            }
        });
        let mut breakdown = estimate.map(|estimate| estimate.breakdown).unwrap_or_default();
        if let Some(carry) = &turn.carry {
            breakdown.reasoning = carry.reasoning;
        }
        Self {
            method: if has_usage { None } else { estimate.map(|estimate| estimate.method) },
            basis,
            last_error_percent: error_percent(turn),
            hidden_input: hidden_input(turn),
            counted: turn.counted,
            tool_use_prompt: turn.usage.tool_use_prompt,
            rewriting: RewriteView::from_summary(&turn.done),
            ..Self::new(fit(breakdown, total), turn.window, turn.reserve)
        }
        .with(turn.carry.as_ref().and_then(|carry| carry.limits))
        .made_of(turn.carry.as_ref().map(|carry| &carry.contents))
    }

    /// Adds the points at which pruning, compaction and so on begin, if they are known.
    #[must_use]
    pub fn with(self, limits: Option<WindowLimits>) -> Self {
        let Some(limits) = limits else { return self };
        let free = match limits.buffer {
            Some(buffer) => self.window.saturating_sub(buffer).saturating_sub(self.total),
            None => self.free,
        };
        Self {
            free,
            window_guessed: limits.refusing.is_none(),
            fillable: Some(limits.fillable),
            thresholds: Some(limits.points(self.window)),
            autocompact_buffer: limits.buffer,
            ..self
        }
    }

    /// Adds the messages by kind of content, if known.
    #[must_use]
    pub fn made_of(self, contents: Option<&MessageTokens>) -> Self {
        let Breakdown { messages, reasoning, .. } = self.breakdown;
        let contents = contents.filter(|contents| !contents.is_nothing()).cloned();
        Self { contents: contents.map(|contents| contents.fit(messages, reasoning)), ..self }
    }

    /// A context as a request in flight will make it, after the rewrites `done`; `anchor` is the turn that
    /// the estimate is based on.
    pub fn before(
        estimate: &Estimate,
        window: u64,
        reserve: u64,
        anchor: Option<&Turn>,
        done: &RewriteSummary,
    ) -> Self {
        let basis = match anchor {
            Some(turn) if estimate.method != EstimateMethod::Estimated => {
                turn.context().map(|LastCall { input, output }| EstimateBasis {
                    input,
                    output,
                    cut: turn.usage.lower_bound,
                    new: estimate.new,
                    gone: estimate.gone,
                })
            }
            _ => None,
        };
        Self {
            method: Some(estimate.method),
            basis,
            last_error_percent: anchor.and_then(error_percent),
            hidden_input: anchor.and_then(hidden_input),
            rewriting: RewriteView::from_summary(done),
            in_flight: true,
            ..Self::new(estimate.breakdown, window, reserve)
        }
    }

    fn new(breakdown: Breakdown, window: u64, reserve: u64) -> Self {
        let total = breakdown.system + breakdown.tools + breakdown.messages;
        let usable = window.saturating_sub(reserve);
        Self {
            total,
            window,
            window_guessed: false,
            reserve,
            free: usable.saturating_sub(total),
            percent: percent(total, window),
            breakdown,
            ..Self::default()
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn hidden_input(turn: &Turn) -> Option<HiddenInput> {
    HiddenInput::from_usage(&turn.usage, turn.estimate.as_ref()?)
}

fn error_percent(turn: &Turn) -> Option<f64> {
    if hidden_input(turn).is_some() {
        return None;
    }
    let usage = &turn.usage;
    let actual = usage.input.filter(|input| *input > 0)?;
    let estimate = turn.estimate.as_ref()?.tokens;
    Some((estimate as f64 - actual as f64) * 100.0 / actual as f64)
}

impl fmt::Display for ContextView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without an earlier call everything is estimated; also after a summary that no call has read yet.
        let estimated = self.basis.is_none() || self.method == Some(EstimateMethod::Compacted);
        let parts = &self.breakdown;
        writeln!(
            f,
            "Context Usage: {} / {} tokens ({:.0}%){}",
            grouped(self.total),
            grouped(self.window),
            self.percent,
            match (estimated, self.in_flight) {
                (true, true) => " (estimated, in flight)",
                (true, false) => " (estimated)",
                (false, true) => " (in flight)",
                (false, false) => "",
            }
        )?;
        writeln!(f, "{}\n", "━".repeat(42))?;
        writeln!(f, "Breakdown:")?;
        let messages = match (parts.capped, estimated) {
            (true, _) => "capped: the other parts were estimated larger than the total",
            (false, true) => "estimated",
            (false, false) => "back-calculated",
        };
        line(f, "System prompt:", 22, parts.system, Some("estimated"))?;
        let [of_tools, of_messages] = parts.sections.named();
        line(f, "Tools:", 22, parts.tools, Some("estimated"))?;
        for (name, tokens) in of_tools {
            line(f, name, 22, tokens, Some("estimated"))?;
        }
        let deferred = self.contents.as_ref().filter(|contents| !contents.deferred.is_empty());
        if let Some(contents) = deferred {
            writeln!(f, "    Deferred:          0 tokens ({contents})")?;
        }
        line(f, "Messages:", 22, parts.messages, Some(messages))?;
        match &self.contents {
            Some(contents) => contents.lines(f, &of_messages)?,
            None => {
                for (name, tokens) in of_messages {
                    line(f, name, 22, tokens, Some("estimated"))?;
                }
            }
        }
        if parts.reasoning > 0 && self.contents.is_none() {
            line(f, "  Reasoning:", 22, parts.reasoning, Some("estimated"))?;
        }
        writeln!(f, "  {}", "─".repeat(29))?;
        line(f, "Total:", 22, self.total, if estimated { Some("estimated") } else { None })?;
        if let Some(basis) = self.basis {
            writeln!(f, "\nCalculation basis:")?;
            line(f, "Last actual input:", 26, basis.input, None)?;
            let note = if basis.cut { Some("estimated, the reply was cut") } else { None };
            line(f, "Last output:", 26, basis.output, note)?;
            line(f, "New since then:", 26, basis.new, Some("estimated"))?;
            if basis.gone > 0 {
                line(f, "Gone since then:", 26, basis.gone, Some("estimated"))?;
            }
        }
        if let Some(hidden) = self.hidden_input {
            writeln!(f, "\nLast estimate: not comparable, {}", hidden.description())?;
        } else if let (Some(error), Some(_)) = (self.last_error_percent, &self.basis) {
            writeln!(f, "\nLast estimate accuracy: {error:+.1}% error")?;
        }
        self.free_space(f)?;
        self.events(f)?;
        self.limits(f)
    }
}

impl ContextView {
    fn free_space(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = grouped(self.free);
        match self.autocompact_buffer {
            Some(buffer) => {
                writeln!(f, "\nAutocompact buffer: {} tokens", grouped(buffer))?;
                write!(f, "Free space: {free} tokens (after the buffer)")?;
            }
            None => {
                let reserve = grouped(self.reserve);
                write!(f, "\nFree space: {free} tokens (after {reserve} output buffer)")?;
            }
        }
        match &self.next_input {
            Some(next_input) => write!(f, "\n{next_input}"),
            None => Ok(()),
        }
    }

    /// What the provider counted, and what was done to the request.
    fn events(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        if let Some(tokens) = self.tool_use_prompt {
            let tokens = grouped(tokens);
            lines.push(format!(
                "Tool-use prompt: {tokens} tokens (for tools at the provider; they do not stay)"
            ));
        }
        if let Some(ProviderCount { of_original, tokens }) = self.counted {
            let how = if of_original { "as it came" } else { "as it was sent" };
            lines.push(format!("Counted by the provider: {} tokens, {how}", grouped(tokens)));
        }
        if self.rewriting != RewriteView::default() {
            lines.push(self.rewriting.to_string());
        }
        if let Some(overflow) = self.rewriting.overflow {
            lines.push(format!("Overflow: {overflow}"));
        }
        if lines.is_empty() {
            return Ok(());
        }
        write!(f, "\n\n{}", lines.join("\n"))
    }

    fn limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(thresholds) = &self.thresholds else { return Ok(()) };
        write!(f, "\n\n{thresholds}")?;
        if self.window_guessed {
            write!(f, "\n  The model is unknown: its window is a guess, and no decision uses it.")?;
        }
        Ok(())
    }
}

impl RewriteView {
    fn from_summary(done: &RewriteSummary) -> Self {
        let RewriteSummary { mode, held_out, overflow, made, new, .. } = *done;
        let removed = done.removed();
        Self {
            mode,
            held_out,
            resent: done.resent.is_some(),
            revoked: done.revoked.is_some(),
            overflow,
            made,
            new,
            summary_by: None,
            compacted_from: None,
            tokens_removed: removed.cut,
            tokens_pruned: removed.pruned,
            tokens_compacted: removed.compacted,
        }
    }
}

impl fmt::Display for RewriteView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Observe => "observe",
            Mode::Shadow => "shadow",
            Mode::Active => "active",
        };
        let note = if self.held_out { ", held out" } else { "" };
        write!(f, "Rewriting ({mode}{note}): ")?;
        if self.made.is_nothing() {
            return write!(f, "nothing");
        }
        write!(f, "{}", self.made.description(ChangeCounts::default()))?;
        let less = self.tokens_removed.saturating_add(self.tokens_compacted);
        if self.made.cut > 0 || self.made.compacted > 0 {
            write!(f, ", {} tokens less", grouped(less))?;
        }
        match (self.mode, self.resent) {
            (_, true) => write!(f, "; refused by the provider, sent as it came"),
            (Mode::Shadow, false) => write!(f, "; only measured, not sent"),
            _ if self.revoked => write!(f, "; the new changes were refused and revoked"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
