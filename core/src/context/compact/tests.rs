//! When a history is compacted, where it is cut, and what is quoted beside its summary.

use serde_json::{Value, json};

use super::CompactionNeed::{Must, No, Prepare, Swap};
use super::*;
use crate::context::ledger::Ledger;
use crate::context::policy::{self, DecisionMode, Mode, Policy, ReasoningRule};
use crate::context::prune::{self, RequestCost};
use crate::context::scene::{self, messages};
use crate::context::{
    DecisionEpoch, ExchangeId, PromptSection, Renewal, Revocation, Turn, lineage,
};
use crate::dialect::models::{Catalogue, Model, ReasoningBinding};
use crate::dialect::{self, Conversation, Purpose};
use crate::tokens::Tokenizer;
use crate::wire::splice::splice;

/// Tokens of each part in these histories.
const EACH: u32 = 100;

/// A history, its model, and a policy.
struct Scene {
    conversation: Conversation,
    body: Vec<u8>,
    model: Model,
    policy: Policy,
    reasoning_rule: ReasoningRule,
    exchange: ExchangeId,
}

impl Scene {
    /// One message per letter: text of the user (`u`) or the model (`a`), one call (`c`), two calls at once (`d`),
    /// results of the open calls (`r`).
    fn new(letters: &str, compact: policy::CompactPolicy) -> Self {
        let (mut open, mut messages) = (Vec::new(), Vec::new());
        for (number, letter) in letters.chars().enumerate() {
            let call = |which: usize| {
                let id = format!("toolu_{number:02}AbCd{which:04}");
                json!({"type": "tool_use", "id": id, "name": "Read", "input": {}})
            };
            let (role, content): (_, Value) = match letter {
                'u' | 'a' => (
                    if letter == 'u' { "user" } else { "assistant" },
                    format!("Words {number}.").into(),
                ),
                'c' => ("assistant", json!([call(0)])),
                'd' => ("assistant", json!([call(0), call(1)])),
                _ => {
                    let result = |id: Value| json!({"type": "tool_result", "tool_use_id": id, "content": "It."});
                    ("user", open.drain(..).map(result).collect())
                }
            };
            let calls = content.as_array().into_iter().flatten();
            open.extend(calls.filter(|part| part["name"] == "Read").map(|part| part["id"].clone()));
            messages.push(json!({"role": role, "content": content}));
        }
        let name = "claude-sonnet-4-5";
        let body =
            json!({"model": name, "max_tokens": 9, "messages": messages}).to_string().into_bytes();
        Self::from_body(Dialect::Anthropic, "/v1/messages", body, compact)
    }

    fn from_body(
        dialect: Dialect,
        target: &str,
        body: Vec<u8>,
        compact: policy::CompactPolicy,
    ) -> Self {
        let conversation = dialect::read(dialect, target, &body);
        let name = "claude-sonnet-4-5";
        let model = Model { window: 10_000, ..Catalogue::default().model(name, "") };
        Self {
            conversation,
            body,
            model,
            policy: Policy { compact, ..Policy::default() },
            reasoning_rule: ReasoningRule::Wanted,
            exchange: "r".into(),
        }
    }

    fn request(&self) -> PlanRequest<'_> {
        PlanRequest {
            exchange: &self.exchange,
            conversation: &self.conversation,
            body: &self.body,
            model: &self.model,
            name: "claude-sonnet-4-5",
            upstream: "up",
            reasoning_rule: self.reasoning_rule,
            compaction_refused: false,
            policy: &self.policy,
            client_compacts: None,
            mode: Mode::Active,
            clears_past: None,
            tokenizer: Tokenizer::now(self.model.family),
            reserve: 0,
            now: 1,
        }
    }

    fn known(&self) -> RecordedDecisions {
        let ledger = Ledger::default();
        let placed = lineage::place(&ledger, &self.conversation, &self.exchange, None);
        RecordedDecisions::from_ledger(&ledger, &self.conversation, &placed, DecisionMode::Active)
    }

    fn parts(&self) -> Vec<SketchPart> {
        let keys = self.conversation.parts().filter_map(|part| part.key);
        let each =
            |key| SketchPart { key, tokens: EACH, place: PromptSection::History, by_length: false };
        keys.map(each).collect()
    }

    fn choice(&self, by: SummaryAuthor) -> Option<CutPoint> {
        let parts = self.parts();
        let tokens = u64::from(EACH) * parts.len() as u64;
        choose(&self.request(), &self.known(), &parts, tokens, by)
    }
}

/// A policy that keeps this many messages and this many tokens.
fn keeping(keep_messages: u64, keep_tokens: u64) -> policy::CompactPolicy {
    policy::CompactPolicy {
        keep_messages: keep_messages.try_into().unwrap(),
        keep_tokens,
        keep_share: 1.0,
        lasting_share: 0.0,
        ..policy::CompactPolicy::default()
    }
}

#[test]
fn history_is_cut_at_turn_where_all_pairs_are_closed() {
    for (letters, messages, tokens, cut) in [
        // At a user's message, if no more than the limit is kept then; else between two steps.
        ("uauauauau", 3, 9_000, Some(6)),
        ("uauauauau", 2, 9_000, Some(8)),
        ("uacracrac", 1, 9_000, Some(7)),
        ("ucrcrcr", 2, 9_000, Some(5)),
        // By tokens: two parts, three parts.
        ("uauauauau", 8, 250, Some(8)),
        ("uauauauau", 8, 300, Some(6)),
        // The newest step alone is more than the limit: it is kept whole.
        ("ucrcrcr", 1, 9_000, Some(5)),
        ("ucrcrdr", 8, 50, Some(5)),
        ("ucrcrcr", 8, 50, Some(5)),
        // A first turn, or an empty history, cannot be cut.
        ("u", 1, 9_000, None),
        ("", 1, 9_000, None),
    ] {
        let scene = Scene::new(letters, keeping(messages, tokens));
        let chosen = scene.choice(SummaryAuthor::Summary);
        let case = format!("{letters}, {messages} messages of {tokens} tokens");
        assert_eq!(chosen.as_ref().map(|choice| choice.cut), cut, "{case}");
        let Some(CutPoint { cut, was, .. }) = chosen else { continue };
        let gone = scene.conversation.messages[..cut].iter().flat_map(|it| &it.parts);
        assert_eq!(was, gone.count() as u64 * u64::from(EACH), "{case}");
    }
}

/// As micro-compaction does it: at least this many messages are kept, and more if a call would be separated from its
/// result.
#[test]
fn minimum_of_messages_stays_and_no_call_loses_its_result() {
    for (letters, messages, cut) in [
        ("ucrcrcrcrcr", 4, Some(7)),
        ("ucrcrcrcrcr", 5, Some(5)),
        ("uauauauau", 3, Some(6)),
        ("ucr", 4, None),
    ] {
        let policy = policy::CompactPolicy { keep_at_least: true, ..keeping(messages, 1) };
        let chosen = Scene::new(letters, policy).choice(SummaryAuthor::Summary);
        assert_eq!(chosen.map(|choice| choice.cut), cut, "{letters}, {messages}");
    }
}

/// After a summary the boundary is the model's reply, or ends the summary where the model speaks next.
#[test]
fn boundary_keeps_roles_alternating() {
    let turns = |member: &str, model: &str, content: fn(&str) -> String| {
        let message = |role: &str| format!(r#"{{"role":"{role}",{}}}"#, content("Words."));
        let messages = ["user", model, "user", model, "user"].map(message).join(",");
        format!(r#"{{"model":"m","{member}":[{messages}]}}"#)
    };
    let plain = |text: &str| format!(r#""content":"{text}""#);
    let parts = |text: &str| format!(r#""parts":[{{"text":"{text}"}}]"#);
    for (dialect, target, body) in [
        (Dialect::Anthropic, "/v1/messages", turns("messages", "assistant", plain)),
        (Dialect::OpenaiChat, "/v1/chat/completions", turns("messages", "assistant", plain)),
        (Dialect::OpenaiResponses, "/v1/responses", turns("input", "assistant", plain)),
        (Dialect::Gemini, "/v1beta/models/m:generateContent", turns("contents", "model", parts)),
    ] {
        let boundary = "[Boundary] {type} {messages}".to_owned();
        let policy = policy::CompactPolicy { boundary, ..keeping(3, 9_000) };
        let scene = Scene::from_body(dialect, target, body.into_bytes(), policy);
        for cut in [1, 2] {
            let draft = SummaryDraft { cut, summary: "The sum.", seed: 1, is_requested: false };
            let raw = lay_out(&scene.request(), &scene.known(), draft).raw;
            assert!(raw.contains(r#"[Boundary] auto 5""#), "{dialect:?}: {raw}");
            let edits = rewrite::compact(&scene.conversation, &scene.body, cut, &raw).unwrap();
            let body = splice(&scene.body.clone().into(), edits).unwrap().concat();
            let roles = dialect::read(dialect, target, &body).messages;
            assert_eq!(roles.len(), 5, "{dialect:?}");
            assert!(roles.windows(2).all(|pair| pair[0].role != pair[1].role), "{dialect:?}");
        }
    }
}

/// The boundary names the type and the number of messages.
#[test]
fn boundary_names_type_and_count() {
    let boundary = "[CompactBoundary] type={type} messages={messages}".to_owned();
    let policy = policy::CompactPolicy { boundary, ..keeping(3, 9_000) };
    let scene = Scene::new("uauauauau", policy);
    let choice = scene.choice(SummaryAuthor::Summary).unwrap();
    for (is_requested, expected) in
        [(false, "type=auto messages=9"), (true, "type=manual messages=9")]
    {
        let (request, known) = (scene.request(), scene.known());
        let draft = SummaryDraft { cut: choice.cut, summary: "The sum.", seed: 1, is_requested };
        let raw = lay_out(&request, &known, draft).raw;
        assert!(raw.contains(&format!("[CompactBoundary] {expected}")), "{raw}");
    }
}

/// A share of the window limits the tail as tokens do: 2 % of 10,000 tokens are two parts.
#[test]
fn kept_tail_is_also_limited_by_share_of_window() {
    let policy = policy::CompactPolicy { keep_share: 0.02, ..keeping(8, 9_000) };
    assert_eq!(Scene::new("uauauauau", policy).choice(SummaryAuthor::Summary).unwrap().cut, 8);
}

/// Of 10,000 tokens, 9,500 are the threshold. A third of that should stay free after a summary of 200 tokens: the larger
/// the head, the less of the history stays word for word. Where it cannot fit, none is written.
#[test]
fn less_of_history_stays_if_summary_would_not_last() {
    let policy = policy::CompactPolicy { lasting_share: 1.0 / 3.0, ..keeping(8, 9_000) };
    let scene = Scene::new("uauauauau", policy);
    let (request, known, parts) = (scene.request(), scene.known(), scene.parts());
    let cut = |head: u64, due| {
        let tokens = head + 900;
        let choice = choose(&request, &known, &parts, tokens, SummaryAuthor::Summary).unwrap();
        (choice.cut, is_worth_writing(&request, &known, &choice, tokens, due))
    };
    assert_eq!(cut(3_500, Swap), (2, true));
    assert_eq!(cut(4_000, Swap), (6, true), "three messages stay");
    assert_eq!(cut(4_330, Swap), (8, true), "one message stays");
    assert_eq!([cut(9_200, Swap), cut(9_201, Swap)], [(8, true), (8, false)], "the threshold");
    assert_eq!([cut(9_700, Must), cut(9_701, Must)], [(8, true), (8, false)], "the window");
}

/// A second summary is not written before a third of the threshold was added.
#[test]
fn two_summaries_are_far_apart() {
    let policy = policy::CompactPolicy { lasting_share: 0.5, ..keeping(1, 9_000) };
    let scene = Scene::new("uauauauau", policy);
    let (request, mut known, parts) = (scene.request(), scene.known(), scene.parts());
    let choice = choose(&request, &known, &parts, 8_600, SummaryAuthor::Summary).unwrap();
    let mut is_worth = |compacted_to| {
        known.compacted_to = compacted_to;
        is_worth_writing(&request, &known, &choice, 8_600, Swap)
    };
    assert_eq!([None, Some(3_850), Some(3_851)].map(&mut is_worth), [true, true, false]);
}

/// Nor is one ordered by the request that is the first to use a summary: nothing was added since.
#[test]
fn summary_just_put_to_use_is_not_followed_by_another() {
    let mut scene = scene::SessionFixture::new("claude-sonnet-4-5", &messages("uauauauau"));
    scene.model.window = 10_000;
    scene.ledger.add(Fact::Summary(Box::new(written(&scene, 2))));
    let (request, mut known, parts) = (scene.request(), scene.known(), scene.parts(|_| EACH));
    let is_worth = |known: &RecordedDecisions| {
        let choice = choose(&request, known, &parts, 9_600, SummaryAuthor::Summary).unwrap();
        is_worth_writing(&request, known, &choice, 9_600, Must)
    };
    assert!(is_worth(&known));
    known.add(propose(&request, &known, Must).unwrap());
    assert!(known.compact().is_some());
    assert!(!is_worth(&known));
}

/// A client that compacts by itself is left to do it until its provider refuses a request, also before it did so for the
/// first time.
#[test]
fn compacting_client_is_left_to_it() {
    let scene = Scene::new("uau", keeping(1, 1));
    let request = PlanRequest { client_compacts: Some(true), ..scene.request() };
    let need = |tokens| need_at(&request, &scene.known(), tokens);
    assert_eq!([9_600, 10_000, 10_001].map(need), [No; 3]);
    let refused = schedule::ScheduleState { overflows: true, ..Default::default() };
    assert_eq!(refused.need(&request, &scene.known(), Some(10_001), false), Must);
}

/// For a summary written by the provider, the cut is between messages of different roles.
#[test]
fn history_for_provider_summary_is_cut_between_roles() {
    let scene = Scene::new("uauuauu", keeping(1, 9_000));
    assert_eq!(scene.choice(SummaryAuthor::Summary).unwrap().cut, 6);
    assert_eq!(scene.choice(SummaryAuthor::Provider).unwrap().cut, 5);
}

/// The numbers of the user's messages that are quoted beside a summary.
fn quoted(letters: &str, policy: policy::CompactPolicy) -> Vec<usize> {
    let scene = Scene::new(letters, policy);
    let choice = scene.choice(SummaryAuthor::Summary).unwrap();
    let (cut, summary) = (choice.cut, " The sum. ");
    let draft = SummaryDraft { cut, summary, seed: 1, is_requested: false };
    let raw = lay_out(&scene.request(), &scene.known(), draft).raw;
    assert!(raw.contains("The sum."), "{raw}");
    (0..letters.len()).filter(|number| raw.contains(&format!("Words {number}."))).collect()
}

#[test]
fn first_and_pinned_are_quoted() {
    let quoted = |keep_first, pinned: &[&str]| {
        let pinned = pinned.iter().map(ToString::to_string).collect();
        let policy =
            policy::CompactPolicy { keep_first, pinned, quote_tokens: 0, ..keeping(1, 9_000) };
        quoted("uauacruau", policy)
    };
    assert_eq!(quoted(true, &[]), [0]);
    assert_eq!(quoted(false, &[]), [0; 0]);
    // The model's text is not pinned, and an empty pin matches nothing.
    assert_eq!(quoted(true, &["Words 2", "Words 3", ""]), [0, 2]);
    assert_eq!(quoted(false, &["Words 6"]), [6]);
}

#[test]
fn newest_messages_are_quoted_as_far_as_their_tokens_reach() {
    let of = |keep_first, quote_tokens| {
        quoted("uauacruau", policy::CompactPolicy { keep_first, quote_tokens, ..keeping(1, 9_000) })
    };
    assert_eq!(of(true, 9_000), [0, 2, 6]);
    assert_eq!(of(false, 9_000), [0, 2, 6]);
    let each = (1..20).find(|tokens| of(false, *tokens) == [6]).unwrap();
    assert_eq!(of(true, each), vec![0]);
    assert_eq!(of(true, 2 * each), vec![0, 6]);
    assert_eq!(of(false, 2 * each), vec![2, 6]);
}

/// In a message with a tool result and blocks added by the client, only the user's own text is quoted.
#[test]
fn only_users_own_text_in_user_message_is_quoted() {
    let mut scene = Scene::new("uau", keeping(1, 9_000));
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_01", "content":
        [{"type": "text", "text": "You may push."}]});
    let long = "all ".repeat(600);
    let messages = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>Be calm.</system-reminder>"},
            {"type": "text", "text": "Mend it, </summary> \"all\"."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {}}]},
        {"role": "user", "content": [result, {"type": "text", "text": "But be quick."}]},
        {"role": "assistant", "content": "Aye."},
        {"role": "user", "content": long},
        {"role": "assistant", "content": "Aye."},
        {"role": "user", "content": "Go on."},
    ]);
    let body = json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages});
    scene.body = body.to_string().into_bytes();
    scene.conversation = dialect::read(Dialect::Anthropic, "/v1/messages", &scene.body);
    scene.model.window = 100_000;
    let quotes = quotes::quotes(&scene.request(), &scene.known(), 6);
    let quoted: Vec<_> =
        quotes.quotes.iter().map(|it| (it.number, it.text.as_str(), it.is_whole)).collect();
    let expected = [
        (1, "Mend it, </summary> \"all\".", false),
        (2, "But be quick.", true),
        (3, &long[..2000], false),
    ];
    assert_eq!(quoted.as_slice(), expected.as_slice());
    assert_eq!(quotes.messages, 3);
}

#[test]
fn summary_is_due_by_its_thresholds_unless_client_compacts() {
    let policy =
        policy::CompactPolicy { threshold: 0.8, prepare: 0.5, ..policy::CompactPolicy::default() };
    let scene = Scene::new("uau", policy);
    let of = |known: &RecordedDecisions| {
        let due = |tokens| need_at(&scene.request(), known, tokens);
        [3_999, 4_000, 7_999, 8_000, 9_999, 10_001].map(due)
    };
    let due = [
        CompactionNeed::No,
        CompactionNeed::Prepare,
        CompactionNeed::Prepare,
        CompactionNeed::Swap,
        CompactionNeed::Swap,
        CompactionNeed::Must,
    ];
    assert_eq!(of(&scene.known()), due);
    let alone = [
        CompactionNeed::No,
        CompactionNeed::No,
        CompactionNeed::No,
        CompactionNeed::No,
        CompactionNeed::No,
        CompactionNeed::Must,
    ];
    let (mut compacts, mut suspended) = (scene.known(), scene.known());
    (compacts.client_compacted, suspended.is_suspended) = (true, true);
    assert_eq!(of(&suspended), alone);
    assert_eq!(of(&compacts), [No; 6], "its provider has not refused it");
    let unknown = Scene {
        model: Model { known: false, ..scene.model.clone() },
        ..Scene::new("uau", keeping(1, 1))
    };
    assert_eq!(super::need_at(&unknown.request(), &unknown.known(), 10_001), CompactionNeed::No);
}

#[test]
fn summary_that_saves_nothing_or_leaves_too_much_is_not_accepted() {
    let policy = policy::CompactPolicy { threshold: 0.8, ..policy::CompactPolicy::default() };
    let scene = Scene::new("uau", policy);
    let accepted = |whole, was, tokens, why| {
        is_accepted(&scene.request(), SummarySizes { whole, was, tokens }, why)
    };
    assert!(accepted(9_000, 2_000, 1_000, DecisionReason::Threshold));
    assert!(!accepted(9_000, 2_000, 1_001, DecisionReason::Threshold), "over the threshold");
    assert!(accepted(12_000, 4_000, 2_000, DecisionReason::Window), "in the window");
    assert!(!accepted(12_000, 4_000, 2_001, DecisionReason::Window));
    assert!(accepted(90_000, 4_000, 3_999, DecisionReason::Requested), "anywhere");
    for tokens in [0, 4_000, 4_001] {
        assert!(
            !accepted(5_000, 4_000, tokens, DecisionReason::Requested),
            "{tokens} instead of 4,000"
        );
    }
}

/// A request that a compaction would make fit is not trimmed first. If no compaction can be made, the answer is no.
#[test]
fn whether_summary_makes_request_fit_is_known_beforehand() {
    let policy = |engine| policy::CompactPolicy { engine, ..keeping(3, 9_000) };
    let fits = |scene: &Scene, mode, tokens| {
        let request = PlanRequest { mode, ..scene.request() };
        would_fit(&request, &scene.known(), &scene.parts(), tokens)
    };
    // Six parts of 100 tokens are replaced by a summary of a quarter of that.
    let scene = Scene::new("uauauauau", policy(SummaryEngine::Summary));
    assert!(fits(&scene, Mode::Active, 10_450));
    assert!(!fits(&scene, Mode::Active, 10_451));
    assert!(!fits(&scene, Mode::Shadow, 10_450), "shadow mode requests no summary");
    let by_provider = Scene::new("uauauauau", policy(SummaryEngine::Provider));
    assert!(fits(&by_provider, Mode::Active, 10_000));
    let refused = PlanRequest { compaction_refused: true, ..by_provider.request() };
    assert!(!would_fit(&refused, &by_provider.known(), &by_provider.parts(), 10_000));
    let off = Scene::new("uauauauau", policy(SummaryEngine::Off));
    assert!(!fits(&off, Mode::Active, 10_450));
    let nothing = Scene::new("u", policy(SummaryEngine::Summary));
    assert!(!fits(&nothing, Mode::Active, 10_450), "there is nothing to cut");
    let mut unknown = Scene::new("uauauauau", policy(SummaryEngine::Summary));
    unknown.model.known = false;
    assert!(!fits(&unknown, Mode::Active, 10_450));
    // It is known if the provider stated what fits.
    let (known, parts) = (unknown.known(), unknown.parts());
    let leaves = |most| would_leave(&unknown.request(), &known, &parts, 1_000, most);
    assert!(leaves(550));
    assert!(!leaves(549));
    // An open loop whose reasoning the provider demands prevents the summary.
    let mut bound = Scene::new("uauauauacr", policy(SummaryEngine::Summary));
    assert!(fits(&bound, Mode::Active, 10_000));
    (bound.model.binding, bound.reasoning_rule) =
        (ReasoningBinding::Prefix, ReasoningRule::Demanded);
    assert!(!fits(&bound, Mode::Active, 10_000));
}

/// If a summary would invalidate reasoning that an open loop demands, it is used after that turn.
#[test]
fn summary_waits_for_end_of_loop_that_demands_its_reasoning() {
    let most = |letters, reasoning_rule, binding| {
        let mut scene = Scene::new(letters, keeping(1, 9_000));
        scene.model.binding = binding;
        highest_need(&PlanRequest { reasoning_rule, ..scene.request() })
    };
    use ReasoningBinding::{Free, Prefix};
    assert_eq!(most("ucr", ReasoningRule::Demanded, Prefix), CompactionNeed::Swap);
    assert_eq!(most("ucru", ReasoningRule::Demanded, Prefix), CompactionNeed::Must);
    assert_eq!(most("ucr", ReasoningRule::Wanted, Prefix), CompactionNeed::Must);
    assert_eq!(most("ucr", ReasoningRule::Demanded, Free), CompactionNeed::Must);
}

/// A provider that demands reasoning in an open loop demands it where the rest of the loop begins behind a summary.
#[test]
fn loop_begins_with_demanded_reasoning() {
    let cut = |letters, reasoning_rule| {
        let scene = Scene { reasoning_rule, ..Scene::new(letters, keeping(2, 9_000)) };
        scene.choice(SummaryAuthor::Summary).map(|choice| choice.cut)
    };
    assert_eq!(cut("ucrcrcr", ReasoningRule::Wanted), Some(5));
    assert_eq!(cut("ucrcrcr", ReasoningRule::Demanded), None);
    assert_eq!(cut("uacrauc", ReasoningRule::Demanded), Some(5));
    assert_eq!(cut("ucrcrca", ReasoningRule::Demanded), Some(5));
}

/// A reserve of half of the window or more is taken as wrong.
#[test]
fn reserve_of_half_window_or_more_is_replaced_by_quarter() {
    let scene = Scene::new("u", keeping(1, 1));
    let of = |reserve| PlanRequest { reserve, ..scene.request() }.fillable();
    assert_eq!([0, 4_999, 5_000, 20_000].map(of), [10_000, 5_001, 7_500, 7_500]);
}

/// By the tokens that the last call read, less those that a summary has replaced since.
#[test]
fn summary_is_due_by_last_call_where_policy_watches_that() {
    let watching = |watches| {
        let mut scene = scene::SessionFixture::new("claude-sonnet-4-5", &messages("uau"));
        scene.model.window = 10_000;
        scene.policy.compact = policy::CompactPolicy {
            watches,
            threshold: 0.8,
            prepare: 0.5,
            ..policy::CompactPolicy::default()
        };
        scene
    };
    let of = |scene: &scene::SessionFixture, read: u64, tokens| {
        let known = scene.grown_from(|turn| turn.usage.input = Some(read));
        need_at(&scene.request(), &known, tokens)
    };
    let scene = watching(ThresholdBasis::LastCall);
    for (read, need) in [(4_000, No), (4_001, Prepare), (8_000, Prepare), (8_001, Swap)] {
        assert_eq!(of(&scene, read, 10_000), need, "{read}");
        assert_eq!(of(&watching(ThresholdBasis::Estimate), read, 100), No, "{read}");
    }
    assert_eq!(of(&scene, 1, 10_001), No, "the next call is not estimated");
    assert_eq!(of(&watching(ThresholdBasis::Estimate), 1, 10_001), Must);
    assert_eq!(need_at(&scene.request(), &scene.known(), 10_001), No, "there was no call");
    // At the limit itself, a request that fits is left alone.
    let mut full = watching(ThresholdBasis::Estimate);
    (full.policy.compact.threshold, full.policy.compact.prepare) = (1.0, 1.0);
    assert_eq!(of(&full, 1, 10_000), No);
}

fn written(scene: &scene::SessionFixture, cut: usize) -> CompactionRecord {
    CompactionRecord { is_own: true, at: 5, exchange: "writer".into(), ..scene.summary(cut) }
}

#[test]
fn usage_from_before_summary_does_not_make_another_one_due() {
    let settled = |at, exchange: &'static str, ended| {
        let mut scene = scene::SessionFixture::new("claude-sonnet-4-5", &messages("uauau"));
        scene.policy.compact.watches = ThresholdBasis::LastCall;
        let one = CompactionRecord {
            at,
            exchange: scene.request().exchange.clone(),
            ..written(&scene, 2)
        };
        scene.ledger.add(Fact::Compact(Box::new(one)));
        let known = scene.grown_from(|turn: &mut Turn| {
            (turn.exchange, turn.ended) = (exchange.into(), ended);
        });
        let is = is_settled(&scene.request(), &known);
        scene.policy.compact.watches = ThresholdBasis::Estimate;
        assert!(!is_settled(&scene.request(), &known), "what is sent now is estimated");
        is
    };
    assert!(settled(5, "before", 5));
    assert!(settled(5, "before", 4));
    assert!(!settled(5, "before", 6), "a call came since");
    assert!(!settled(5, "r1", 5), "it was sent with it");
}

#[test]
fn policy_chooses_who_writes_summary_if_provider_can() {
    let of = |engine, name: &'static str, focus, compaction_refused| {
        let mut scene = scene::SessionFixture::new(name, &messages("uau"));
        scene.policy.compact.engine = engine;
        let request = PlanRequest { compaction_refused, ..scene.request() };
        writers(&request, focus)
    };
    use SummaryAuthor::{Provider, Summary};
    use SummaryFocus::{OfOperator, OfPolicy};
    let claude = "claude-sonnet-4-5";
    assert_eq!(of(SummaryEngine::Auto, claude, OfPolicy, false), [Provider, Summary]);
    assert_eq!(
        of(SummaryEngine::Auto, claude, OfOperator, false),
        [Provider, Summary],
        "it takes instructions"
    );
    assert_eq!(of(SummaryEngine::Auto, claude, OfPolicy, true), [Summary], "it refused");
    assert_eq!(of(SummaryEngine::Auto, "some-clone", OfPolicy, false), [Summary], "a look-alike");
    assert_eq!(of(SummaryEngine::Provider, claude, OfPolicy, false), [Provider]);
    assert_eq!(
        of(SummaryEngine::Provider, "some-clone", OfPolicy, false),
        [Provider],
        "as it was asked"
    );
    assert_eq!(of(SummaryEngine::Provider, claude, OfPolicy, true), []);
    assert_eq!(of(SummaryEngine::Summary, claude, OfPolicy, false), [Summary]);
    let fixture = |dialect, path: &str, name| {
        let body = serde_json::json!({"model": name, "input": "Look.", "messages": []});
        let mut scene = scene::SessionFixture::read(dialect, path, name, &body);
        scene.policy.compact.engine = SummaryEngine::Auto;
        scene
    };
    let chat = fixture(Dialect::OpenaiChat, "/v1/chat/completions", "gpt-5.4");
    assert_eq!(writers(&chat.request(), OfPolicy), [Summary]);
    let mut responses = fixture(Dialect::OpenaiResponses, "/v1/responses", "gpt-5.4");
    assert_eq!(writers(&responses.request(), OfPolicy), [Provider, Summary]);
    assert_eq!(writers(&responses.request(), OfOperator), [Summary], "it takes no instructions");
    responses.policy.compact.focus = Some("the second question".to_owned());
    assert_eq!(writers(&responses.request(), OfPolicy), [Summary], "nor those of the policy");
}

/// Each part is 100 tokens. Pieces consist of whole steps and are as large as the room allows; a step that is too large
/// is a piece of its own.
#[test]
fn history_is_summarised_in_pieces_of_whole_steps() {
    let of = |letters, cut, room| {
        let scene = Scene::new(letters, keeping(1, 1));
        let parts = scene.conversation.parts().filter_map(|part| part.key);
        let parts: Vec<SketchPart> = parts
            .map(|key| SketchPart {
                key,
                tokens: EACH,
                place: PromptSection::History,
                by_length: false,
            })
            .collect();
        let (request, known) = (scene.request(), scene.known());
        let pieces = pieces(&request, &known, &parts, cut, room);
        let weighed = pieces.iter().map(|piece| weigh(&request, &known, &parts, *piece));
        assert_eq!(weighed.sum::<u64>(), 100 * cut as u64);
        pieces.iter().map(|piece| (piece.from, piece.through)).collect::<Vec<_>>()
    };
    assert_eq!(of("uauauau", 6, 600), [(0, 6)]);
    assert_eq!(of("uauauau", 6, 599), [(0, 5), (5, 6)]);
    assert_eq!(of("uauauau", 6, 200), [(0, 2), (2, 4), (4, 6)]);
    assert_eq!(of("ucrcrcra", 7, 300), [(0, 3), (3, 5), (5, 7)]);
    assert_eq!(
        of("ucrcrcra", 7, 1),
        [(0, 3), (3, 5), (5, 7)],
        "no call is separated from its result"
    );
    assert_eq!(of("u", 0, 1), [(0, 0)]);
}

/// Messages that a summary replaces are not summarised again: they are one step, with the tokens of the summary.
#[test]
fn summarised_messages_weigh_as_much_as_their_summary() {
    let mut scene = scene::SessionFixture::new("claude-sonnet-4-5", &messages("uauauau"));
    let one = CompactionRecord { exchange: scene.request().exchange.clone(), ..written(&scene, 2) };
    scene.ledger.add(Fact::Compact(Box::new(one)));
    let (known, parts) = (scene.known(), scene.parts(|_| EACH));
    let weights = MessageWeights::new(&scene.request(), &known, &parts).messages;
    assert_eq!(weights, [10, 0, 100, 100, 100, 100, 100]);
    let pieces = pieces(&scene.request(), &known, &parts, 6, 200);
    let pieces: Vec<_> = pieces.iter().map(|piece| (piece.from, piece.through)).collect();
    assert_eq!(pieces, [(0, 3), (3, 5), (5, 6)]);
}

/// Calls without ids are closed by the same number of results.
#[test]
fn calls_without_ids_are_open_until_as_many_results_came() {
    let call = |n: usize| json!({"functionCall": {"name": "ls", "args": {"n": n}}});
    let result = json!({"functionResponse": {"name": "ls", "response": {"output": "a"}}});
    let turn = |role, parts: Value| json!({"role": role, "parts": parts});
    let body = json!({"contents": [turn("user", json!([{"text": "Look."}])),
        turn("model", json!([call(1), call(2)])), turn("user", json!([result])),
        turn("user", json!([result])), turn("model", json!([{"text": "Aye."}])),
        turn("user", json!([{"text": "And?"}]))]});
    let path = "/v1beta/models/gemini-2.5-pro:generateContent";
    let scene = scene::SessionFixture::read(Dialect::Gemini, path, "gemini-2.5-pro", &body);
    let weights = MessageWeights::new(&scene.request(), &scene.known(), &[]);
    assert_eq!(weights.open, [false, false, true, true, false, false]);
}

/// A client was killed during a call, and goes on without its result: the history after it can still be cut.
#[test]
fn call_without_result_is_closed() {
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "ls", "input": {}});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "a"});
    let turn = |role: &str, parts: Value| json!({"role": role, "content": parts});
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let body = json!({"messages": [turn("user", text("Look.")), turn("assistant", json!([call("lost")])),
        turn("user", text("Go on.")), turn("assistant", json!([call("kept")])),
        turn("user", json!([result("kept")])), turn("assistant", text("Aye.")), turn("user", text("And?"))]});
    let path = "/v1/messages";
    let scene = scene::SessionFixture::read(Dialect::Anthropic, path, "claude-sonnet-4-5", &body);
    let weights = MessageWeights::new(&scene.request(), &scene.known(), &[]);
    assert_eq!(weights.open, [false, false, false, false, true, false, false]);
}

/// A call without an id may have a result with one.
#[test]
fn result_answers_call_without_id() {
    let call = json!({"functionCall": {"name": "ls", "args": {}}});
    let result =
        json!({"functionResponse": {"id": "x", "name": "ls", "response": {"output": "a"}}});
    let turn = |role, parts: Value| json!({"role": role, "parts": parts});
    let body = json!({"contents": [turn("user", json!([{"text": "Look."}])),
        turn("model", json!([call])), turn("user", json!([result])), turn("model", json!([{"text": "Aye."}]))]});
    let path = "/v1beta/models/gemini-2.5-pro:generateContent";
    let scene = scene::SessionFixture::read(Dialect::Gemini, path, "gemini-2.5-pro", &body);
    let weights = MessageWeights::new(&scene.request(), &scene.known(), &[]);
    assert_eq!(weights.open, [false, false, true, false]);
}

/// Results that are too large for the summary's request are shortened to head and tail, unless they are already cut.
#[test]
fn results_too_large_to_be_summarised_are_shortened() {
    let scene = scene::SessionFixture::new("claude-sonnet-4-5", &messages("ucrcrcra"));
    let tokens = |message| if message == 4 { 200 } else { 900 };
    let shortened = |known: &RecordedDecisions, from, through, most| {
        let parts = scene.parts(tokens);
        let piece = HistoryChunk { from, through };
        let edits = shorten(&scene.request(), known, &parts, piece, most);
        let messages = &scene.conversation.messages;
        let of = |edit: &Edit| {
            messages
                .iter()
                .position(|it| it.span.start <= edit.at.start && edit.at.end <= it.span.end)
        };
        edits.iter().filter_map(of).collect::<Vec<_>>()
    };
    let known = scene.known();
    assert_eq!(shortened(&known, 0, 8, 300), [2, 6]);
    assert_eq!(shortened(&known, 0, 8, 199), [2, 4, 6]);
    assert_eq!(shortened(&known, 0, 8, 900), [0; 0]);
    assert_eq!(shortened(&known, 3, 8, 300), vec![6]);
    assert_eq!(shortened(&known, 0, 6, 300), vec![2]);
    let mut cut = scene.known();
    cut.add([Fact::Cut(Box::new(scene.cut(2, "gone")))]);
    assert_eq!(shortened(&cut, 0, 8, 300), [6]);
}

/// The request that first uses a summary records why, and removes the reasoning that the summary invalidates. An open
/// loop keeps that reasoning as long as it can.
#[test]
fn summary_is_used_and_removes_reasoning_that_it_makes_void() {
    let of = |name, letters: &str, due, change: fn(&mut CompactionRecord)| {
        let mut scene = scene::SessionFixture::new(name, &messages(letters));
        (scene.now, scene.mode) = (9, Mode::Shadow);
        let mut one = CompactionRecord { shadow: true, ..written(&scene, 2) };
        change(&mut one);
        scene.ledger.add(Fact::Summary(Box::new(one)));
        let facts = propose(&scene.request(), &scene.known(), due)?;
        let Some((Fact::Compact(one), voided)) = facts.split_first() else { panic!("{facts:?}") };
        assert_eq!(one.at, 9);
        assert_eq!(&one.exchange, scene.request().exchange);
        assert!(one.shadow);
        Ok((one.why, voided.len()))
    };
    use CompactionNeed::{Must, Swap};
    use DecisionReason::{OpenLoop, Requested, Threshold, Window};
    let (free, bound) = ("claude-opus-4-6", "claude-opus-5-5");
    let plain: fn(&mut CompactionRecord) = |_| {};
    assert_eq!(of(free, "uautrau", Swap, plain), Ok((Threshold, 0)));
    assert_eq!(of(free, "uautrau", Must, plain), Ok((Window, 0)));
    assert_eq!(of(free, "uautrau", Swap, |one| one.why = Requested), Ok((Requested, 0)));
    assert_eq!(of(bound, "uautrau", Swap, plain), Ok((Threshold, 1)));
    assert_eq!(of(bound, "uautr", Swap, plain), Err(OpenLoop));
    assert_eq!(of(bound, "uautr", Must, plain), Ok((Window, 1)));
    assert_eq!(of(bound, "uaucr", Swap, plain), Ok((Threshold, 0)), "no reasoning becomes invalid");
    assert_eq!(of(free, "uautr", Swap, plain), Ok((Threshold, 0)));
    // Of several summaries the one with the latest cut is used; of equal ones, the first that was written.
    let mut scene = scene::SessionFixture::new(free, &messages("uauauau"));
    for (cut, at) in [(2, 1), (4, 7), (4, 8)] {
        let epoch = (at == 8).then_some(DecisionEpoch::of_suspension(3));
        scene.ledger.add(Fact::Summary(Box::new(CompactionRecord {
            at,
            epoch,
            ..written(&scene, cut)
        })));
    }
    let facts = propose(&scene.request(), &scene.known(), Swap).unwrap();
    let [Fact::Compact(one)] = &facts[..] else { panic!("{facts:?}") };
    assert_eq!(one.about, scene.known().at_cut(4).unwrap().0);
    // A provider's summary keeps the reasoning before it valid, as long as that is what was sent.
    let carried = |sent| {
        let mut scene = scene::SessionFixture::new(bound, &messages("uautrau"));
        let carries = crate::context::ForwardedHistory { sent, ..scene.known().carried(2) };
        let one = CompactionRecord { carries: Some(carries), ..written(&scene, 2) };
        scene.ledger.add(Fact::Summary(Box::new(one)));
        let facts = propose(&scene.request(), &scene.known(), Swap).unwrap();
        let Some(Fact::Compact(one)) = facts.first() else { panic!("{facts:?}") };
        (one.carries.is_some(), facts.len())
    };
    let read = scene::SessionFixture::new(bound, &messages("uautrau")).known().carried(2).sent;
    assert_eq!(carried(read), (true, 1));
    assert_eq!(carried(Chain(7)), (false, 2));
}

/// The removal of reasoning was refused for good: a summary, or a cut, that makes it void is not made either.
#[test]
fn change_waits_if_removal_that_it_needs_was_refused() {
    let mut scene = scene::SessionFixture::new("claude-opus-5-5", &messages("ucrautrau"));
    scene.policy.prune.accept_reasoning_loss = true;
    scene.ledger.add(Fact::Summary(Box::new(written(&scene, 4))));
    let made = |scene: &scene::SessionFixture| {
        let (request, known) = (scene.request(), scene.known());
        let parts = scene.parts(|_| 10_000);
        let cost = RequestCost { tokens: 90_000, parts: &parts, rules: None };
        let cuts = prune::clear_for_room(&request, &known, cost, 1);
        (propose(&request, &known, CompactionNeed::Must).map(|facts| facts.len()), cuts.len())
    };
    assert_eq!(made(&scene), (Ok(2), 3));
    let conversation = &scene.conversation;
    let about = conversation.parts().find_map(Part::removal_key).unwrap();
    let removal = reasoning::take_out(&scene.request(), about, DecisionReason::Bound);
    scene.ledger.add(removal);
    scene.ledger.add(Fact::Revocation(Box::new(Revocation {
        exchange: scene.request().exchange.clone(),
        thread: scene.placed().position.thread,
        parent: None,
        at: 2,
        about: vec![PartKey(about)],
        renewal: Renewal::Never,
    })));
    assert_eq!(made(&scene), (Err(DecisionReason::Suspended), 0));
}

#[test]
fn cut_that_gives_up_too_little_is_not_worth_summary() {
    let scene = scene::SessionFixture::new("claude-sonnet-4-5", &messages("uauau"));
    let choice = |last: u32, cut| {
        let parts = scene.parts(|message| if message == 4 { last } else { EACH });
        let weights = MessageWeights::new(&scene.request(), &scene.known(), &parts);
        weights.choice(&scene.request(), &scene.known(), cut, SummaryAuthor::Summary)
    };
    // An eighth of 1,600 is 200.
    assert_eq!(choice(1_200, 2).map(|choice| choice.was), Some(200));
    assert_eq!(choice(1_201, 2), None);
    for nothing in [0, 5, 6] {
        assert_eq!(choice(EACH, nothing), None, "{nothing}");
    }
    assert!(choice(EACH, 4).is_some());
    let mut held = scene::SessionFixture::new("claude-sonnet-4-5", &messages("uauau"));
    assert!(is_compactable(&held.request()));
    assert!(policy_allows(&held.request()));
    held.conversation.purpose = Purpose::Side;
    assert!(!is_compactable(&held.request()));
    held.conversation.purpose = Purpose::Turn;
    held.conversation.held = Some(crate::dialect::HeldHistory::After("r".into()));
    assert!(!is_compactable(&held.request()));
    assert!(!policy_allows(&held.request()));
}
