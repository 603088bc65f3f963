//! Context editing by the provider: expresses policy in the terms of the provider's own feature.
//!
//! Made only from policy, model and the names of tools, so that every request of a thread asks for the same.
//! `context_management` is not part of the prompt: neither the cache nor bound reasoning depends on it, and
//! changing the policy changes no prefix. Pure.

use super::plan::PlanRequest;
use super::policy::{Mode, PruneGate, PruneMethod};
use crate::dialect::editing::ContextEditing;
use crate::dialect::models::Family;
use crate::dialect::{Dialect, Part, PartKind, Purpose};

/// What the provider keeps by default (`docs/protocols.md` 1.3). With fewer, it would clear results that the
/// model has not read yet.
const LEAST_KEPT: u64 = 3;

/// What to request from the provider; `None` if policy requests nothing. Of the gates, only `pressure` and
/// `always` can be expressed. The provider keeps neither errors nor images.
pub fn wanted(request: &PlanRequest<'_>) -> Option<ContextEditing> {
    let prune = &request.policy.prune;
    let conversation = request.conversation;
    let claude = matches!(request.model.family, Family::Claude | Family::ClaudeNew);
    let is_its = match prune.method {
        PruneMethod::Rewrite => false,
        PruneMethod::Provider => true,
        PruneMethod::Auto => claude && request.is_bound(),
    };
    // The client's own compaction reads the whole history: what is cleared cannot be summarised.
    let is_turn = matches!(conversation.purpose, Purpose::Turn | Purpose::Count);
    let speaks = conversation.dialect == Dialect::Anthropic && conversation.held.is_none();
    if !is_its || !is_turn || !speaks || request.mode != Mode::Active {
        return None;
    }
    // Below this, no cut is large enough.
    let least = prune.protect_tokens.saturating_add(prune.min_saving_tokens).max(1);
    let pressure = prune.threshold(request.fillable()) as u64;
    let trigger = match prune.gate.as_slice() {
        gates if gates.contains(&PruneGate::Always) => least,
        // Without a known window, the pressure is unknown.
        gates if gates.contains(&PruneGate::Pressure) && request.model.known => pressure.max(least),
        _ => return None,
    };
    Some(ContextEditing {
        trigger,
        // As many tool uses as messages: one message can have several.
        keep: u64::from(prune.protect_messages).max(LEAST_KEPT),
        at_least: prune.min_saving_tokens,
        except: except(request),
    })
}

/// The names of tools whose results stay. The provider knows no patterns, and no list of tools to cut.
fn except(request: &PlanRequest<'_>) -> Vec<Box<str>> {
    let conversation = request.conversation;
    let called = conversation.parts().filter(|part| part.kind == PartKind::ToolCall);
    let names =
        conversation.tools.iter().chain(called).filter_map(|part: &Part| part.name.as_ref());
    let mut except: Vec<Box<str>> = Vec::new();
    for name in names.filter(|name| !request.policy.prune.covers(Some(name))) {
        if !except.contains(name) {
            except.push(name.clone());
        }
    }
    except
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::policy::{Policy, PrunePolicy, ReasoningRule};
    use crate::dialect::models::Catalogue;
    use crate::dialect::{self, Conversation};
    use crate::tokens::Tokenizer;

    const BODY: &str = r#"{"max_tokens":9,"tools":[{"name":"Read"},{"name":"mcp__a"},
        {"name":"Write"}],"messages":[{"role":"user","content":"Hm."},{"role":"assistant",
        "content":[{"type":"tool_use","id":"t","name":"Gone","input":{}}]}]}"#;

    fn read() -> Conversation {
        dialect::read(Dialect::Anthropic, "/v1/messages", BODY.as_bytes())
    }

    fn editing_of(
        of: &Conversation,
        name: &str,
        mode: Mode,
        prune: PrunePolicy,
    ) -> Option<ContextEditing> {
        let policy = Policy { prune, ..Policy::default() };
        let model = Catalogue::default().model(name, "");
        wanted(&PlanRequest {
            exchange: &"r".into(),
            conversation: of,
            body: BODY.as_bytes(),
            model: &model,
            name,
            upstream: "up",
            reasoning_rule: ReasoningRule::Wanted,
            compaction_refused: false,
            policy: &policy,
            client_compacts: None,
            mode,
            clears_past: None,
            tokenizer: Tokenizer::now(model.family),
            reserve: 16_000,
            now: 0,
        })
    }

    fn by(method: PruneMethod) -> PrunePolicy {
        PrunePolicy { method, ..PrunePolicy::default() }
    }

    const FREE: &str = "claude-sonnet-4-5";
    const BOUND: &str = "claude-sonnet-5-5";

    #[test]
    fn the_default_policy_gives_the_expected_context_editing() {
        let editing = editing_of(&read(), FREE, Mode::Active, by(PruneMethod::Provider)).unwrap();
        // 0.6 of the fillable window, which is 200,000 less 16,000.
        let expected =
            ContextEditing { trigger: 110_400, keep: 8, at_least: 20_000, except: Vec::new() };
        assert_eq!(editing, expected);
    }

    #[test]
    fn tools_that_may_not_be_cut_are_named_one_by_one() {
        let tools = |tools: &[&str], except_tools: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let prune = by(PruneMethod::Provider);
            let prune =
                PrunePolicy { tools: list(tools), except_tools: list(except_tools), ..prune };
            let except = editing_of(&read(), FREE, Mode::Active, prune).unwrap().except;
            except.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(tools(&[], &["mcp__*", "Elsewhere"]), ["mcp__a"]);
        assert_eq!(tools(&["Read"], &[]), ["mcp__a", "Write", "Gone"]);
    }

    #[test]
    fn editing_is_requested_if_policy_wants_it_and_the_provider_can() {
        let some = |method, name| editing_of(&read(), name, Mode::Active, by(method)).is_some();
        assert!(some(PruneMethod::Provider, FREE));
        let clone = |gate: PruneGate| {
            let prune = PrunePolicy { gate: vec![gate], ..by(PruneMethod::Provider) };
            editing_of(&read(), "some-clone", Mode::Active, prune).is_some()
        };
        assert!(clone(PruneGate::Always) && !clone(PruneGate::Pressure), "its window is not known");
        assert!(some(PruneMethod::Auto, BOUND) && !some(PruneMethod::Auto, FREE));
        // An unknown model counts as one that binds reasoning, but it is no Claude.
        assert!(!some(PruneMethod::Auto, "some-clone") && !some(PruneMethod::Rewrite, BOUND));
        for mode in [Mode::Observe, Mode::Shadow] {
            assert_eq!(editing_of(&read(), FREE, mode, by(PruneMethod::Provider)), None);
        }
        for (purpose, may) in [
            (Purpose::Count, true),
            (Purpose::Compaction, false),
            (Purpose::Side, false),
            (Purpose::WarmUp, false),
        ] {
            let of = Conversation { purpose, ..read() };
            let editing = editing_of(&of, FREE, Mode::Active, by(PruneMethod::Provider));
            assert_eq!(editing.is_some(), may, "{purpose:?}");
        }
        let held = Some(dialect::HeldHistory::After("msg".into()));
        let held = Conversation { held, ..read() };
        assert_eq!(editing_of(&held, FREE, Mode::Active, by(PruneMethod::Provider)), None);
        let chat = Conversation { dialect: Dialect::OpenaiChat, ..read() };
        assert_eq!(editing_of(&chat, FREE, Mode::Active, by(PruneMethod::Provider)), None);
    }

    #[test]
    fn only_gates_that_a_provider_can_watch_are_sent() {
        let trigger = |gate: &[PruneGate], pressure| {
            let prune = PrunePolicy { gate: gate.to_vec(), pressure, ..by(PruneMethod::Provider) };
            editing_of(&read(), FREE, Mode::Active, prune).map(|editing| editing.trigger)
        };
        assert_eq!(trigger(&[], 0.8), None);
        assert_eq!(trigger(&[PruneGate::ColdCache, PruneGate::PaysBack], 0.8), None);
        // Never below the smallest useful size: 20,000 protected tokens and 20,000 to save.
        assert_eq!(trigger(&[PruneGate::ColdCache, PruneGate::Pressure], 0.1), Some(40_000));
        assert_eq!(trigger(&[PruneGate::Pressure, PruneGate::Always], 0.8), Some(40_000));
    }
}
