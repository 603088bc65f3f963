//! The token counts at which pruning, preparing a summary, compacting and refusing begin; and the buffer that
//! is shown as a category of its own.
//!
//! These are the points that decisions use (`prune`, `compact`), not a second formula. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::line::grouped;
use crate::context::compact::is_left_to_client;
use crate::context::plan::PlanRequest;
use crate::context::policy::{PruneGate, SummaryEngine};
use crate::context::records::WindowLimits;

/// The buffer if nothing is compacted automatically, tokens: a user's own compaction command needs it.
const MANUAL_BUFFER: u64 = 500;

impl WindowLimits {
    /// The limits for `request`. `decides`: whether new decisions are made for its thread. `client_compacted`: whether its
    /// client was seen to compact.
    pub fn new(request: &PlanRequest<'_>, decides: bool, client_compacted: bool) -> Self {
        let prune = &request.policy.prune;
        let compact = &request.policy.compact;
        let window = request.model.window;
        let fillable = request.fillable();
        let is_known = request.model.known;
        let pruning = match &prune.gate {
            _ if !decides => None,
            gate if gate.contains(&PruneGate::Always) => Some(0),
            gate if is_known && gate.contains(&PruneGate::Pressure) => {
                Some(prune.threshold(fillable) as u64)
            }
            _ => None,
        };
        let compacts = decides && is_known && compact.engine != SummaryEngine::Off;
        let preparing = compact.prepare_threshold(fillable);
        let compacting = compact.threshold(fillable);
        let buffer = match compact.show_buffer {
            false => None,
            true if compacts => Some(window.saturating_sub(compacting)),
            true => Some(MANUAL_BUFFER.min(window)),
        };
        // Only a request that its provider refused is compacted then.
        let compacts = compacts && !is_left_to_client(request, client_compacted);
        Self {
            fillable,
            pruning,
            preparing: Some(preparing).filter(|tokens| compacts && *tokens < compacting),
            compacting: if compacts { Some(compacting) } else { None },
            refusing: if is_known { Some(window) } else { None },
            buffer,
        }
    }

    pub(super) fn points(&self, window: u64) -> Thresholds {
        let limits = [self.pruning, self.preparing, self.compacting, self.refusing];
        let [pruning, preparing, compacting, refusing] = limits.map(|tokens| {
            tokens.map(|tokens| WindowPoint { tokens, percent: percent(tokens, window) })
        });
        Thresholds { pruning, preparing, compacting, refusing }
    }
}

pub(super) fn percent(tokens: u64, window: u64) -> f64 {
    if window == 0 { 0.0 } else { tokens as f64 * 100.0 / window as f64 }
}

/// The limits as they are shown. `null`: it never begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Thresholds {
    /// Above it, old tool results are cut; 0: with every request.
    pub pruning: Option<WindowPoint>,
    /// From it on, a summary is written in the background.
    pub preparing: Option<WindowPoint>,
    /// From it on, a summary replaces the beginning of the history.
    pub compacting: Option<WindowPoint>,
    /// Above it, the provider refuses.
    pub refusing: Option<WindowPoint>,
}

/// How full a window is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WindowPoint {
    /// Tokens in the context.
    pub tokens: u64,
    /// The same in percent of the window.
    pub percent: f64,
}

impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thresholds:")?;
        for (name, point) in [
            ("Pruning:", self.pruning),
            ("Preparing:", self.preparing),
            ("Compacting:", self.compacting),
            ("Refusing:", self.refusing),
        ] {
            match point {
                Some(WindowPoint { tokens: 0, .. }) if name == "Pruning:" => {
                    write!(f, "\n  {name:<14} with every call")?;
                }
                Some(WindowPoint { tokens, percent }) => {
                    write!(f, "\n  {name:<14} {:>7} tokens ({percent:.1}%)", grouped(tokens))?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::scene::{SessionFixture, messages};

    /// A window of 10,000 tokens with a reserve of 2,000.
    fn scene() -> SessionFixture {
        let mut scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
        (scene.model.window, scene.reserve) = (10_000, 2_000);
        scene.policy.prune.gate = vec![PruneGate::Pressure];
        scene.policy.prune.pressure = 0.5;
        scene.policy.compact.engine = SummaryEngine::Summary;
        (scene.policy.compact.threshold, scene.policy.compact.prepare) = (0.9, 0.5);
        scene.policy.compact.show_buffer = true;
        scene
    }

    fn limits(change: fn(&mut SessionFixture), decides: bool) -> WindowLimits {
        let mut scene = scene();
        change(&mut scene);
        WindowLimits::new(&scene.request(), decides, false)
    }

    #[test]
    fn window_limits_follow_policy() {
        let of = limits(|_| {}, true);
        assert_eq!(of.fillable, 8_000);
        assert_eq!(of.pruning, Some(4_000));
        assert_eq!(of.refusing, Some(10_000));
        assert_eq!(of.preparing, Some(3_600));
        assert_eq!(of.compacting, Some(7_200));
        assert_eq!(of.buffer, Some(2_800));
        let at_once = limits(|scene| scene.policy.compact.prepare = 1.0, true);
        assert_eq!(at_once.preparing, None);
        assert_eq!(at_once.compacting, Some(7_200));
        let pruning = |gate: fn(&mut SessionFixture)| limits(gate, true).pruning;
        assert_eq!(pruning(|scene| scene.policy.prune.gate = vec![PruneGate::Always]), Some(0));
        assert_eq!(pruning(|scene| scene.policy.prune.gate = vec![PruneGate::ColdCache]), None);
        assert_eq!(limits(|scene| scene.policy.compact.show_buffer = false, true).buffer, None);
        let large = limits(|scene| scene.reserve = 5_000, true);
        assert_eq!(large.fillable, 7_500, "a share of the same");
        assert_eq!(large.pruning, Some(3_750), "a share of the same");
    }

    /// If nothing may be decided or the window is unknown, no limit is shown. The buffer, room for a user's own
    /// command, is shown anyway.
    #[test]
    fn no_pruning_or_compaction_limit_is_shown_if_nothing_is_decided() {
        let of = |limits: WindowLimits| {
            (limits.pruning, limits.preparing, limits.compacting, limits.buffer)
        };
        let nothing = (None, None, None, Some(500));
        assert_eq!(of(limits(|_| {}, false)), nothing);
        let unknown = limits(|scene| scene.model.known = false, true);
        assert_eq!(of(unknown), nothing);
        assert_eq!(unknown.refusing, None);
        let off = limits(|scene| scene.policy.compact.engine = SummaryEngine::Off, true);
        assert_eq!(of(off), (Some(4_000), None, None, Some(500)));
    }
}
