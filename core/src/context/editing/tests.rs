//! What is asked of the provider, and by which policy.

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
fn default_policy_gives_expected_context_editing() {
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
        let prune = PrunePolicy { tools: list(tools), except_tools: list(except_tools), ..prune };
        let except = editing_of(&read(), FREE, Mode::Active, prune).unwrap().except;
        except.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(tools(&[], &["mcp__*", "Elsewhere"]), ["mcp__a"]);
    assert_eq!(tools(&["Read"], &[]), ["mcp__a", "Write", "Gone"]);
}

#[test]
fn editing_is_requested_if_policy_wants_it_and_provider_can() {
    let some = |method, name| editing_of(&read(), name, Mode::Active, by(method)).is_some();
    assert!(some(PruneMethod::Provider, FREE));
    let clone = |gate: PruneGate| {
        let prune = PrunePolicy { gate: vec![gate], ..by(PruneMethod::Provider) };
        editing_of(&read(), "some-clone", Mode::Active, prune).is_some()
    };
    assert!(clone(PruneGate::Always), "its window is not known");
    assert!(!clone(PruneGate::Pressure), "its window is not known");
    assert!(some(PruneMethod::Auto, BOUND));
    assert!(!some(PruneMethod::Auto, FREE));
    // An unknown model counts as one that binds reasoning, but it is no Claude.
    assert!(!some(PruneMethod::Auto, "some-clone"));
    assert!(!some(PruneMethod::Rewrite, BOUND));
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
fn only_watchable_gates_are_sent() {
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
