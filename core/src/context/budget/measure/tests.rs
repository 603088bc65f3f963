use proptest::prelude::*;

use super::*;
use crate::context::budget::{ContextView, reply};
use crate::context::records::CarryOver;
use crate::context::{Band, CountingMethod, Outcome, Position};
use crate::dialect::editing::{ClearingReport, ContextEditing};
use crate::dialect::models::{Catalogue, Family};
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{self, Dialect, Reply, ReplyPart, Usage};

/// A request of Anthropic's dialect, to be measured.
struct Case {
    body: String,
    model: &'static str,
}

impl Case {
    fn new(system: &str, tools: &str, messages: &str) -> Self {
        let body = format!(
            r#"{{"model":"m","max_tokens":9,"system":"{system}","tools":[{tools}],"messages":[{messages}]}}"#
        );
        Self { body, model: "claude-opus-4-5" }
    }

    fn of(self, model: &'static str) -> Self {
        Self { model, ..self }
    }

    fn model(&self) -> Model {
        Catalogue::new(Vec::new()).model(self.model, "")
    }

    fn measure(&self, before: Option<&Before>) -> MeasuredEstimate {
        self.measure_by(Tokenizer::whole(self.model().family), before)
    }

    fn measure_by(&self, tokenizer: Tokenizer, before: Option<&Before>) -> MeasuredEstimate {
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", self.body.as_bytes());
        let model = self.model();
        let anchor = before.map(|before| Anchor { turn: &before.turn, sketch: &before.sketch });
        measure(
            &read,
            self.body.as_bytes(),
            &Overlay::default(),
            &model,
            anchor,
            tokenizer,
            &EstimatorState::new(model.family),
        )
    }

    /// The turn of this request, with this reply and reported usage.
    fn answered(&self, content: &str, usage: Usage) -> Before {
        let measured = self.measure(None);
        let model = self.model();
        let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Json, 1 << 20);
        reading.push(format!(r#"{{"id":"msg","content":[{content}]}}"#).as_bytes());
        let mut message = reading.finish(BodyEnd::Whole);
        message.usage = usage.clone();
        let turn = Turn {
            exchange: "before".into(),
            position: Position { thread: "t".into(), ..Position::default() },
            response: message.id.clone(),
            upstream: "u".into(),
            model: "m".into(),
            estimate: Some(measured.estimate),
            usage,
            outcome: Outcome::Complete,
            window: 200_000,
            reserve: 16_000,
            sketch: measured.sketch.clone(),
            reply: reply(&message, Tokenizer::whole(model.family)),
            ..Turn::empty(Dialect::Anthropic, model.family)
        };
        Before { turn, sketch: measured.sketch.added }
    }
}

/// The parent turn, with its full sketch.
struct Before {
    turn: Turn,
    sketch: Vec<SketchPart>,
}

fn usage(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

fn model(content: &str) -> String {
    format!(r#"{{"role":"assistant","content":[{content}]}}"#)
}

const TEXT: &str = r#"{"type":"text","text":"Three metres and a half."}"#;
const CALL: &str = r#"{"type":"tool_use","id":"t1","name":"Read","input":{"path":"a"}}"#;
const RESULT: &str = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"three and a half metres"}]}"#;
const THINKING: &str = r#"{"type":"thinking","thinking":"Let me see.","signature":"c2lnbmF0dXJl"}"#;
const TOOL: &str =
    r#"{"name":"Read","description":"Reads a file.","input_schema":{"type":"object"}}"#;

/// A new process has no vocabulary yet. What was counted by length in its first request was never counted again: 13,906
/// tokens were estimated for 25,267.
#[test]
fn parts_counted_by_length_are_recounted_once_vocabulary_is_loaded() {
    let signs = "let x = a[i];\\n".repeat(400);
    let first = Case::new(&signs, TOOL, &user(&signs));
    let whole = first.answered(TEXT, usage(9_000, 50));
    let unloaded = Tokenizer { encoding: None, ..Tokenizer::whole(first.model().family) };
    let sketch = first.measure_by(unloaded, None).sketch;
    let turn = Turn { sketch: sketch.clone(), ..whole.turn.clone() };
    let before = Before { turn, sketch: sketch.added };
    // All but the instructions on how to call tools, whose cost is known.
    assert_eq!(before.sketch.iter().filter(|part| !part.by_length).count(), 1);
    let weights = |parts: &[SketchPart]| parts.iter().map(|part| part.tokens).collect::<Vec<_>>();
    assert_ne!(weights(&before.sketch), weights(&whole.sketch));

    let next = [user(&signs), model(TEXT), user("And unloaded?")].join(",");
    let next = Case::new(&signs, TOOL, &next);
    let (measured, usual) = (next.measure(Some(&before)), next.measure(Some(&whole)));
    assert_eq!(measured.parts, usual.parts);
    assert_eq!(measured.estimate, usual.estimate, "what stays changes no estimate");
    assert_eq!(measured.seen, usual.seen);
    assert_eq!(measured.contents, usual.contents);
    // The sketch is stored from the first changed token count on; later ones are stored as usual.
    assert_eq!(measured.sketch.kept, 0);
    assert_eq!(measured.sketch.added, measured.parts.clone());
    let turn = Turn { sketch: Sketch::default(), ..before.turn.clone() };
    let remeasured = next.measure(Some(&Before { turn, sketch: measured.parts.clone() }));
    assert_eq!(remeasured.sketch.kept as usize, measured.parts.len());
    // While the vocabulary is not loaded, the counts stay as they are.
    let still = next.measure_by(unloaded, Some(&before));
    assert_eq!(still.parts[..before.sketch.len()], before.sketch);
}

/// Only parts counted by length have the mark in the store. Parts stored before the mark existed can be read.
#[test]
fn method_is_stored_with_each_part() {
    let counted = Case::new("S", TOOL, &user("How deep?")).measure(None).parts[0];
    let saved = serde_json::to_string(&counted).unwrap();
    assert!(!saved.contains("by_length"), "{saved}");
    assert_eq!(serde_json::from_str::<SketchPart>(&saved).unwrap(), counted);
    let guessed = SketchPart { by_length: true, ..counted };
    let saved = serde_json::to_string(&guessed).unwrap();
    assert_eq!(serde_json::from_str::<SketchPart>(&saved).unwrap(), guessed);
}

fn check_sum(measured: &MeasuredEstimate) {
    let Breakdown { system, tools, messages, .. } = measured.estimate.breakdown;
    assert_eq!(system + tools + messages, measured.estimate.tokens);
}

/// MCP tools are recognised by their names; memory files, skills and agents by the headings of their reminders.
#[test]
fn prompt_sections_are_recognised() {
    let mcp = r#"{"name":"mcp__git__log","description":"Shows the log.","input_schema":{"type":"object"}}"#;
    let reminder = |content: &str| {
        let text = format!("<system-reminder>\\n{content}\\n</system-reminder>");
        format!(r#"{{"type":"text","text":"{text}"}}"#)
    };
    let blocks = [
        reminder("Use these:\\n# claudeMd\\nContents of /repo/CLAUDE.md: be brief and calm."),
        reminder("The following skills are available for use with the Skill tool:\\n- a: b"),
        reminder("Available agent types for the Agent tool:\\n- claude: catch-all."),
        reminder("# currentDate\\nToday's date is 2026-05-15."),
        r##"{"type":"text","text":"What does # claudeMd mean?"}"##.to_owned(),
    ];
    let message = format!(r#"{{"role":"user","content":[{}]}}"#, blocks.join(","));
    let measured = Case::new("S", &format!("{TOOL},{mcp}"), &message).measure(None);
    let Breakdown { tools, messages, sections, .. } = measured.estimate.breakdown;
    let each: Vec<u64> = measured.parts.iter().map(|part| u64::from(part.tokens)).collect();
    // Tools and how to call them first, then the system prompt, then the blocks.
    assert_eq!(sections.mcp_tools, each[1]);
    assert_eq!([sections.memory, sections.skills, sections.agents], each[4..7]);
    assert!(each[1] > 0);
    assert!(each[1] < tools);
    assert!(each[4..7].iter().sum::<u64>() < messages);
    check_sum(&measured);
    // Without any of these, the sections are empty.
    let bare = Case::new("S", TOOL, &user("How deep is she?")).measure(None);
    assert_eq!(bare.estimate.breakdown.sections, SectionTokens::default());
}

#[test]
fn first_request_is_estimated_in_full() {
    let measured = Case::new("You are calm.", TOOL, &user("How deep is she?")).measure(None);
    assert_eq!(measured.estimate.method, EstimateMethod::Estimated);
    assert_eq!(measured.estimate.new, measured.estimate.tokens);
    assert!(measured.estimate.breakdown.system > 0);
    assert!(measured.estimate.breakdown.tools > 0);
    check_sum(&measured);
}

#[test]
fn estimate_is_usage_plus_new_parts() {
    let before = Case::new("S", TOOL, &user("How deep?")).answered(TEXT, usage(50_000, 20));
    let next = [user("How deep?"), model(TEXT), user("And unloaded?")].join(",");
    let measured = Case::new("S", TOOL, &next).measure(Some(&before));
    let estimate = &measured.estimate;
    assert_eq!(estimate.method, EstimateMethod::Anchored);
    assert_eq!(estimate.tokens, 50_020 + estimate.new - estimate.gone);
    assert!((1..20).contains(&estimate.new), "{estimate:?}");
    assert!(estimate.gone == 0, "{estimate:?}");
    assert_eq!(measured.sketch.base, Some("before".into()));
    assert_eq!(measured.sketch.kept, 4);
    assert_eq!(measured.sketch.added.len(), 2);
    check_sum(&measured);
}

/// What the provider clears of a prompt is missing in its count, but is in the sketch.
#[test]
fn cleared_tokens_stay_out_while_request_asks_for_clearing() {
    let reported = Usage {
        cleared: Some(ClearingReport { tool_uses: 9, input_tokens: 60_000 }),
        ..usage(50_000, 20)
    };
    let before = Case::new("S", TOOL, &user("How deep?")).answered(TEXT, reported);
    let next = [user("How deep?"), model(TEXT), user("And unloaded?")].join(",");
    let with_editing = |past: Option<u64>, of: &'static str| {
        let mut case = Case::new("S", TOOL, &next).of(of);
        let editing =
            past.map(|trigger| ContextEditing { trigger, keep: 3, at_least: 0, except: vec![] });
        if let Some(edit) = editing.and_then(|editing| editing.ask(case.body.as_bytes())) {
            case.body.insert_str(edit.at.start, std::str::from_utf8(&edit.with).unwrap());
        }
        case.measure(Some(&before)).estimate
    };
    let same = "claude-sonnet-4-5";
    let cleared = with_editing(Some(100_000), same);
    assert_eq!(cleared.tokens, 50_020 + cleared.new - cleared.gone);
    assert!((1..20).contains(&cleared.new), "{cleared:?}");
    assert!(cleared.gone == 0, "{cleared:?}");
    // If the request does not ask for clearing, or the prompt is too small for it (after a rewind), the whole prompt
    // counts.
    for whole in [with_editing(None, same), with_editing(Some(200_000), same)] {
        assert_eq!(whole.tokens, cleared.tokens + 60_000);
        assert_eq!(whole.tokens, 50_020 + whole.new - whole.gone);
    }
    // Another tokenizer rescales the whole, and what was cleared is subtracted from that.
    let (across, across_whole) =
        (with_editing(Some(1), "claude-opus-4-7"), with_editing(None, "claude-opus-4-7"));
    assert_eq!(across.tokens + 60_000, across_whole.tokens);
    assert!(across_whole.tokens > 100_000);
}

#[test]
fn shrunk_history_lowers_estimate() {
    let long = "deep and deeper ".repeat(500);
    let history = [user(&long), model(TEXT), user("go")].join(",");
    let before = Case::new("S", TOOL, &history).answered(TEXT, usage(3_000, 20));
    let shrunk = [user("(cleared)"), model(TEXT), user("go"), model(TEXT), user("on")].join(",");
    let estimate = Case::new("S", TOOL, &shrunk).measure(Some(&before)).estimate;
    assert!(estimate.tokens < 1_500, "{estimate:?}");
    assert!(estimate.gone > 1_500, "{estimate:?}");
}

/// An error teaches only if all earlier parts are still there: not if the history shrank, has parts that no exchange
/// showed, was counted by another tokenizer, or has no anchor.
#[test]
fn only_history_that_plainly_grew_teaches_estimator() {
    let long = "deep and deeper ".repeat(500);
    let history = [user(&long), model(TEXT), user("go")];
    let of = |messages: &[String]| Case::new("S", TOOL, &messages.join(","));
    let before = of(&history).answered(TEXT, usage(3_000, 20));
    let teaches =
        |next: Case| next.measure(Some(&before)).seen.is_some_and(|seen| !seen.is_changed);
    let grown = [&history[..], &[model(TEXT), user("on")]].concat();
    assert!(teaches(of(&grown)));
    assert!(teaches(of(&grown).of("claude-sonnet-4-5")), "the same tokenizer");
    assert!(!teaches(of(&grown).of("claude-opus-4-8")), "another one");
    let shrunk = [&[user("(cleared)")], &grown[1..]].concat();
    assert!(!teaches(of(&shrunk)));
    let unseen = r#"{"type":"text","text":"Words of a turn that went another way."}"#;
    let forked = [&grown[..], &[model(unseen), user("and on")]].concat();
    assert!(!teaches(of(&forked)));
    // Without usage an estimate cannot be right or wrong. The next call is measured as a first call, and teaches the
    // head.
    let silent = of(&history).answered(TEXT, Usage::default());
    let first = of(&grown).measure(Some(&silent)).seen.and_then(|seen| seen.new_content.head);
    assert!(first.is_some(), "measured as a first call");
}

/// A long history was counted a fifth too low. When most of it leaves, that error leaves with it, and the rest costs
/// what it costs when counted alone.
#[test]
fn removed_parts_take_their_share_of_counting_error_along() {
    let long = "deep and deeper ".repeat(2_000);
    let case = Case::new("S", "", &[user(&long), model(TEXT), user("go")].join(","));
    let counted = case.measure(None).estimate.tokens;
    let before = case.answered(TEXT, usage(counted * 6 / 5, 20));
    let rest = [user("(cleared)"), model(TEXT), user("go"), model(TEXT), user("on")].join(",");
    let rest = Case::new("S", "", &rest);
    let (grown, alone) = (rest.measure(Some(&before)).estimate, rest.measure(None).estimate);
    assert_eq!(grown.method, EstimateMethod::Anchored);
    assert!(grown.tokens.abs_diff(alone.tokens) < 60, "{grown:?} {alone:?}");
}

#[test]
fn message_tokens_of_breakdown_are_never_negative() {
    let before = Case::new(&"calm ".repeat(400), TOOL, &user("hi")).answered(TEXT, usage(30, 5));
    let next = [user("hi"), model(TEXT), user("go")].join(",");
    let measured = Case::new(&"calm ".repeat(400), TOOL, &next).measure(Some(&before));
    assert!(measured.estimate.breakdown.capped);
    assert_eq!(measured.estimate.breakdown.messages, 0);
    check_sum(&measured);
    assert!(ContextView::after(&before.turn).to_string().contains("capped"), "the text says so");
    // The parts of a capped breakdown are not taken for whole ones in the next views.
    let mut turn = before.turn.clone();
    turn.estimate = Some(measured.estimate);
    for input in [100, 200] {
        turn.usage = usage(input, 5);
        let view = ContextView::after(&turn).breakdown;
        assert!(view.capped, "{view:?}");
        assert!(view.messages == 0, "{view:?}");
    }
}

#[test]
fn changed_system_prompt_or_tool_list_changes_estimate() {
    let before = Case::new("Short.", TOOL, &user("hi")).answered(TEXT, usage(1_000, 10));
    let next = [user("hi"), model(TEXT), user("go")].join(",");
    let same = Case::new("Short.", TOOL, &next).measure(Some(&before)).estimate.tokens;
    let system = "A much longer system prompt than there was. ".repeat(20);
    let longer = Case::new(&system, TOOL, &next).measure(Some(&before)).estimate;
    assert!(longer.tokens > same + 150, "{longer:?}");
    assert!(longer.method == EstimateMethod::Anchored, "{longer:?}");
    let without = Case::new("Short.", "", &next).measure(Some(&before)).estimate;
    assert!(without.tokens < same, "{without:?}");
    assert!(without.gone > 0, "{without:?}");
}

/// Forcing a tool costs the difference that the provider documents, in the request that forces it. The forced call is
/// reported 12 tokens short.
#[test]
fn forced_tool_costs_its_instruction() {
    let forced = |case: Case| {
        let body = case.body.replacen('{', r#"{"tool_choice":{"type":"any"},"#, 1);
        Case { body, ..case }
    };
    let first = || Case::new("S", TOOL, &user("How deep?"));
    let next = || Case::new("S", TOOL, &[user("How deep?"), model(CALL), RESULT.into()].join(","));
    let tokens = |case: Case, before: Option<&Before>| case.measure(before).estimate.tokens;
    assert_eq!(tokens(forced(first()), None), tokens(first(), None) + 92);
    let free = first().answered(CALL, usage(700, 40));
    let bound = forced(first()).answered(CALL, usage(792, 40));
    let expected = tokens(next(), Some(&free));
    assert_eq!(tokens(forced(next()), Some(&free)), expected + 92);
    assert_eq!(tokens(forced(next()), Some(&bound)), expected + 92 + 12);
    assert_eq!(tokens(next(), Some(&bound)), expected + 12);
}

/// A response schema that was counted as 590 tokens left a prompt of 341: the next prompt was estimated at 0.
#[test]
fn anchored_estimate_is_not_zero_after_schema_is_removed() {
    let fields = (0..90).map(|at| format!(r#""field_{at}":{{"type":"string"}}"#));
    let format = fields.collect::<Vec<_>>().join(",");
    let format = format!(
        r#"{{"type":"json_schema","schema":{{"type":"object","properties":{{{format}}}}}}}"#
    );
    let question = user("Where does the tram to the harbour stop?");
    let answer = r#"{"type":"text","text":"At the market."}"#;
    let first = Case {
        body: format!(
            r#"{{"model":"m","output_config":{{"format":{format}}},"messages":[{question}]}}"#
        ),
        ..Case::new("", "", "")
    };
    let counted = first.measure(None).estimate.tokens;
    let reported = counted / 3;
    let before = first.answered(answer, usage(reported, 6));
    let next = format!("{question},{},{}", model(answer), user("And when does it leave?"));
    let next = Case { body: format!(r#"{{"model":"m","messages":[{next}]}}"#), ..first };
    let estimate = next.measure(Some(&before)).estimate;
    let actual = next.measure(None).estimate.tokens;
    assert_eq!(estimate.method, EstimateMethod::Anchored);
    assert!(estimate.tokens > 0, "{estimate:?}");
    let Band { low, high } = estimate.band().unwrap();
    assert!((low..=high).contains(&actual), "{actual} in {low}..={high}");
    assert!(low > 0, "{actual} in {low}..={high}");
    check_sum(&next.measure(Some(&before)));
}

/// A response schema is not a tool: the provider adds no instructions on how to call it.
#[test]
fn response_schema_is_no_tool() {
    let format = r#"{"type":"json_schema","schema":{"type":"object"}}"#;
    let of = |head: &str| Case {
        body: format!(r#"{{"model":"m",{head}"messages":[{}]}}"#, user("Hi")),
        ..Case::new("", "", "")
    };
    let plain = of("").measure(None).estimate.tokens;
    let with = of(&format!(r#""output_config":{{"format":{format}}},"#)).measure(None).estimate;
    let tool = of(&format!(r#""tools":[{format}],"#)).measure(None).estimate.tokens;
    assert!(with.tokens < plain + 200, "{} of {plain}", with.tokens);
    assert!(tool > plain + 400, "{tool} of {plain}");
}

#[test]
fn same_tokenizer_keeps_anchor() {
    let before = Case::new("S", "", &user("hi")).answered(TEXT, usage(9_000, 10));
    let next = [user("hi"), model(TEXT), user("go")].join(",");
    let within = Case::new("S", "", &next).of("claude-sonnet-4-5").measure(Some(&before)).estimate;
    assert_eq!(within.method, EstimateMethod::Anchored);
}

#[test]
fn other_tokenizer_rescales_whole() {
    let text = "How deep is this ship when she is fully loaded? ".repeat(50);
    let case = Case::new("S", "", &user(&text));
    let estimated = case.measure(None).estimate.tokens;
    let before = case.answered(TEXT, usage(estimated * 2, 10));
    let next = Case::new("S", "", &user(&text)).of("claude-opus-4-8");
    let alone = next.measure(None).estimate.tokens;
    let across = next.measure(Some(&before));
    assert_eq!(across.estimate.method, EstimateMethod::Estimated);
    assert!(across.estimate.tokens.abs_diff(alone * 2) <= alone / 20, "{:?}", across.estimate);
    assert_eq!(across.sketch.base, None, "another tokenizer's sketch is no base");
}

#[test]
fn reasoning_that_is_not_sent_back_is_not_counted() {
    let reply = [THINKING, CALL].join(",");
    let reported = Usage { reasoning: Some(700), ..usage(1_000, 800) };
    let before = Case::new("S", TOOL, &user("hi")).answered(&reply, reported);
    let with = [user("hi"), model(&reply), RESULT.into()].join(",");
    let without = [user("hi"), model(CALL), RESULT.into()].join(",");
    let [with, without] =
        [with, without].map(|next| Case::new("S", TOOL, &next).measure(Some(&before)).estimate);
    assert_eq!(with.tokens, without.tokens + 700);
    assert_eq!(with.breakdown.reasoning, 700);
    assert_eq!(without.gone, 700);
}

#[test]
fn reasoning_of_earlier_turns_is_counted_where_model_reads_it() {
    let reply = [THINKING, TEXT].join(",");
    let next = [user("hi"), model(&reply), user("go")].join(",");
    let estimate = |name| {
        let reported = Usage { reasoning: Some(700), ..usage(1_000, 720) };
        let before = Case::new("S", "", &user("hi")).of(name).answered(&reply, reported);
        Case::new("S", "", &next).of(name).measure(Some(&before)).estimate
    };
    let (keeps, drops) = (estimate("claude-opus-4-6"), estimate("claude-sonnet-4-5"));
    assert_eq!(keeps.breakdown.reasoning, 700);
    assert_eq!(drops.breakdown.reasoning, 0);
}

#[test]
fn empty_reasoning_makes_no_tokens() {
    let empty = r#"{"type":"thinking","thinking":"","signature":""}"#;
    let next = [user("hi"), model(&[empty, TEXT].join(",")), user("go")].join(",");
    let before = Case::new("S", "", &user("hi")).answered(TEXT, usage(1_000, 20));
    let estimate = Case::new("S", "", &next).of("claude-opus-4-5").measure(Some(&before)).estimate;
    assert_eq!(estimate.breakdown.reasoning, 0);
}

#[test]
fn aborted_call_anchors_by_input_that_it_reported_at_start() {
    let cut = Usage { lower_bound: true, ..usage(1_000, 1) };
    let mut before = Case::new("S", "", &user("hi")).answered(TEXT, cut);
    let next = [user("hi"), model(TEXT), user("go")].join(",");
    let measured = |before: &Before| Case::new("S", "", &next).measure(Some(before)).estimate;
    let estimate = measured(&before);
    // What arrived of the reply counts as counted, not as the one reported token.
    let reply_tokens = sum(&before.turn.reply);
    assert!(reply_tokens > 3, "{reply_tokens}");
    assert_eq!(estimate.method, EstimateMethod::Anchored);
    assert_eq!(estimate.tokens, 1_000 + reply_tokens + estimate.new);
    let view = ContextView::after(&before.turn);
    let basis = view.basis.unwrap();
    assert_eq!(basis.input, 1_000);
    assert_eq!(basis.output, reply_tokens);
    assert!(basis.cut);
    assert!(view.to_string().contains("tokens (estimated, the reply was cut)"), "{view}");
    before.turn.usage.input = None;
    assert_eq!(measured(&before).method, EstimateMethod::Estimated);
    assert!(ContextView::after(&before.turn).to_string().contains("(estimated)\n"));
}

#[test]
fn concurrent_calls_on_one_thread_do_not_see_each_other() {
    let before = Case::new("S", "", &user("hi")).answered(TEXT, usage(1_000, 20));
    let [a, b] = ["left", "right, and further on"].map(|way| {
        let next = [user("hi"), model(TEXT), user(way)].join(",");
        Case::new("S", "", &next).measure(Some(&before)).estimate
    });
    assert_eq!(a.tokens - a.new, b.tokens - b.new);
}

#[test]
fn hosted_tools_measured_by_last_call() {
    use crate::dialect::LastCall;
    let last_call = Some(LastCall { input: 15_000, output: 17 });
    let reported = Usage { hosted_tools: true, last_call, ..usage(21_023, 400) };
    let before = Case::new("S", "", &user("hi")).answered(TEXT, reported);
    let next = [user("hi"), model(TEXT), user("go")].join(",");
    let estimate = Case::new("S", "", &next).measure(Some(&before)).estimate;
    assert!((15_017..15_040).contains(&estimate.tokens), "{estimate:?}");
}

#[test]
fn request_with_unknown_held_history_is_estimated_as_held() {
    let body = r#"{"messages":[],"thread":{"type":"continue","previous_message_id":"m"}}"#;
    let case = Case { body: body.into(), model: "claude-opus-4-5" };
    assert_eq!(case.measure(None).estimate.method, EstimateMethod::Held);
}

/// In a stream with parallel calls, some providers report the first call only. The client sends all of them back all
/// the same.
#[test]
fn reply_is_counted_itself_if_far_fewer_tokens_were_reported() {
    let case = Case::new("", "", &user("Go."));
    let call = |id: &str| {
        let text = "every word of the file that is to be written ".repeat(30);
        format!(r#"{{"type":"tool_use","id":"{id}","name":"Write","input":{{"text":"{text}"}}}}"#)
    };
    let content = format!("{},{}", call("a"), call("b"));
    let reply_tokens = |output: u64| sum(&case.answered(&content, usage(1_000, output)).turn.reply);
    let plain = reply_tokens(40);
    assert!(plain > 600, "{plain}");
    assert_eq!(
        [reply_tokens(plain - 100), reply_tokens(plain), reply_tokens(plain + 100)],
        [plain - 100, plain, plain + 100]
    );
    // A single call is reported, however long its text is by our count.
    assert_eq!(sum(&case.answered(&call("a"), usage(1_000, 40)).turn.reply), 40);
}

/// Claude writes the arguments of a call as they are; GPT writes them as JSON. In recorded replies of Claude of 800 tokens and
/// more, the count with escapes was 0.89 to 1.52 times the reported output, without them 0.81 to 0.92 times.
#[test]
fn claude_arguments_have_no_escapes() {
    let code = r#"let path = \"a\";\n"#.repeat(40);
    let call =
        format!(r#"{{"type":"tool_use","id":"a","name":"Write","input":{{"text":"{code}"}}}}"#);
    let text = format!(r#"{{"type":"text","text":"{code}"}}"#);
    let more = |name| {
        let case = Case::new("", "", &user("Go.")).of(name);
        let counted = |content| sum(&case.answered(content, Usage::default()).turn.reply);
        counted(&call) - counted(&text)
    };
    assert!(more("claude-opus-4-5") < 12);
    assert!(more("claude-opus-5") < 12);
    assert!(more("gpt-5") > 80);
}

/// Some providers neither send nor report reasoning. It was carried over as if the text were as long: an estimate of 2,578
/// for 580.
#[test]
fn output_beyond_parts_was_reasoning() {
    let text = "The main file prints a greeting and ends. ".repeat(5);
    let text = format!(r#"{{"type":"text","text":"{text}"}}"#);
    for name in ["claude-opus-4-6", "gpt-4.1", "gemini-2.5-pro", "nobody-knows"] {
        let case = Case::new("S", TOOL, &user("hi")).of(name);
        for content in [&text, CALL] {
            let next = [
                user("hi"),
                model(content),
                if content == CALL { RESULT.into() } else { user("go") },
            ];
            let next = Case::new("S", TOOL, &next.join(",")).of(name);
            let estimate = |output: u64, reasoning: Option<u64>| {
                let reported = Usage { reasoning, ..usage(500, output) };
                next.measure(Some(&case.answered(content, reported))).estimate.tokens
            };
            let plain =
                estimate(sum(&case.answered(content, usage(500, 0)).turn.reply).max(20), None);
            for reasoning in [None, Some(0), Some(40)] {
                let hidden = estimate(2_060, reasoning);
                assert!(hidden.abs_diff(plain) <= 60, "{name}: {hidden} for {plain}");
            }
        }
    }
}

/// Of several replies, the client continues with one. What the others cost is no part of the next request.
#[test]
fn estimate_after_any_of_several_replies_is_that_after_one() {
    let reply = |word: &str| format!(r#"{{"type":"text","text":"{}"}}"#, word.repeat(60));
    let case = Case::new("S", TOOL, &user("hi"));
    let one = case.answered(&reply("left "), usage(500, 60));
    let mut three = case.answered(&reply("left "), usage(500, 190));
    let mut message = Reply { usage: usage(500, 190), ..Reply::default() };
    let part = |word: &str| ReplyPart {
        text: word.repeat(60),
        key: dialect::read(
            Dialect::Anthropic,
            "/v1/messages",
            format!(r#"{{"messages":[{}]}}"#, model(&reply(word))).as_bytes(),
        )
        .parts()
        .next()
        .and_then(|part| part.key),
        ..ReplyPart::new(PartKind::Text)
    };
    message.parts = vec![part("left ")];
    message.choices = vec![vec![part("right ")], vec![part("ahead ")]];
    let tokenizer = Tokenizer::whole(three.turn.family);
    three.turn.reply = crate::context::budget::reply(&message, tokenizer);
    three.turn.others =
        crate::context::budget::other_forms(&message, three.turn.position.chain, tokenizer);
    assert_eq!(three.turn.others.len(), 2);
    assert!(three.turn.context().unwrap().output.abs_diff(60) < 10, "{:?}", three.turn.context());
    let estimate = |before: &Before, word: &str| {
        let next = [user("hi"), model(&reply(word)), user("go")].join(",");
        Case::new("S", TOOL, &next).measure(Some(before)).estimate.tokens
    };
    for word in ["left ", "right ", "ahead "] {
        let tokens = estimate(&three, word);
        assert!(tokens.abs_diff(estimate(&one, "left ")) < 10, "{word}: {tokens}");
    }
}

#[test]
fn reply_shares_output_among_parts() {
    let before = Case::new("S", "", &user("hi"))
        .answered(&[TEXT, CALL].join(","), Usage { reasoning: Some(50), ..usage(100, 150) });
    assert_eq!(sum(&before.turn.reply), 100);
    assert_eq!(before.turn.reply.len(), 2);
    assert_eq!(reasoning_of(&before.turn), 50);
}

/// Reasoning that the client sends again cost the 2,000 tokens that the reply before it had been billed for.
#[test]
fn hidden_reasoning_is_of_its_reply() {
    let history = |old: &str| [user("hi"), model(&[old, TEXT].join("")), user("go")];
    let before = |hidden| {
        let mut before = Case::new("S", "", &history("").join(","))
            .answered(TEXT, Usage { reasoning: Some(2_000), ..usage(100, 2_020) });
        before.turn.carry = Some(CarryOver { hidden, ..CarryOver::default() });
        before
    };
    let thought = format!("{THINKING},");
    let next = [&history(&thought)[..], &[model(TEXT), user("on")]].concat().join(",");
    let estimate =
        |hidden| Case::new("S", "", &next).measure(Some(&before(hidden))).estimate.tokens;
    assert!((100..300).contains(&estimate(true)), "{}", estimate(true));
    assert!(estimate(false) > 2_000, "reasoning of the reply itself");
}

/// A reply of 2,060 tokens, 2,000 of them reasoning that is neither sent nor reported, made the next estimate 2,000 too
/// high where code of the provider had ended in it.
#[test]
fn hidden_reasoning_beside_result_of_code_is_not_carried_over() {
    const RESULT: &str = r#"{"type":"code_execution_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"code_execution_result","stdout":"17","stderr":"","return_code":0,"content":[]}}"#;
    let before =
        Case::new("S", "", &user("hi")).answered(&[RESULT, TEXT].join(","), usage(100, 2_060));
    assert!(sum(&before.turn.reply) < 100, "{:?}", before.turn.reply);
}

proptest! {
    /// Whatever is sent and reported, nothing panics and the parts sum to the total.
    #[test]
    fn invariant_8_always_sums(
        first in "[a-z \\\\n]{0,40}", second in "[a-zA-Z {}]{0,40}", system in "[a-z ]{0,200}",
        input in any::<Option<u64>>(), output in any::<Option<u64>>(), reasoning in any::<Option<u64>>(),
    ) {
        let reported = Usage { input, output, reasoning, ..Usage::default() };
        let before = Case::new("S", TOOL, &user(&first)).answered(TEXT, reported);
        let next = [user(&first), model(TEXT), user(&second)].join(",");
        let measured = Case::new(&system, TOOL, &next).measure(Some(&before));
        let Breakdown { system, tools, messages, .. } = measured.estimate.breakdown;
        prop_assert_eq!(system + tools + messages, measured.estimate.tokens);
    }
}

/// Measures a request of OpenAI's Responses.
fn responses(body: &str, before: Option<&Before>) -> MeasuredEstimate {
    let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
    let model = Catalogue::default().model("gpt-5", "");
    let anchor = before.map(|before| Anchor { turn: &before.turn, sketch: &before.sketch });
    let sent = Overlay::default();
    let learned = EstimatorState::new(model.family);
    measure(&read, body.as_bytes(), &sent, &model, anchor, Tokenizer::whole(model.family), &learned)
}

/// The cost of an encrypted compaction is a guess, so the error of such a request says nothing about the head.
#[test]
fn encrypted_compaction_teaches_estimator_nothing() {
    let with = |item: &str| {
        responses(&format!(r#"{{"instructions":"Be calm.","input":[{item}{}]}}"#, user("hi")), None)
    };
    let (plain, encrypted) = (
        with(""),
        with(&format!(r#"{{"type":"compaction","encrypted_content":"{}"}},"#, "g".repeat(9_000))),
    );
    assert!(plain.seen.is_some());
    assert!(!plain.estimate.encrypted_compaction);
    assert!(encrypted.seen.is_none());
    assert!(encrypted.estimate.encrypted_compaction);
    assert!(encrypted.estimate.tokens > plain.estimate.tokens + 1_000);
}

#[test]
fn history_that_provider_holds_is_measured_from_its_turn() {
    let first = r#"{"input":"hi","instructions":"Be calm."}"#;
    let mut before = Case::new("", "", &user("hi"))
        .of("gpt-5")
        .answered(&[THINKING, TEXT].join(","), Usage { reasoning: Some(600), ..usage(9_000, 620) });
    before.sketch = responses(first, None).sketch.added;
    let message = r#"{"previous_response_id":"msg","instructions":"Be calm.","input":"And then?"}"#;
    let result = r#"{"previous_response_id":"msg","instructions":"Be calm.","input":[
        {"type":"function_call_output","call_id":"c","output":"three"}]}"#;
    let [message, result] = [message, result].map(|body| responses(body, Some(&before)));
    assert_eq!(message.estimate.method, EstimateMethod::Held);
    assert_eq!(result.estimate.method, EstimateMethod::Held);
    // The user's message begins a turn: GPT-5 no longer reads its old reasoning.
    assert!((9_015..9_035).contains(&message.estimate.tokens), "{:?}", message.estimate);
    assert!((9_620..9_640).contains(&result.estimate.tokens), "{:?}", result.estimate);
    assert_eq!(message.estimate.tokens, 9_620 + message.estimate.new - message.estimate.gone);
    check_sum(&message);
    // The sketch grows too, so that the next turn can be measured.
    assert!(message.sketch.kept as usize + message.sketch.added.len() >= before.sketch.len() + 2);
}

/// Items at the start of a history are held with it; `instructions` and `tools` are sent with each request.
#[test]
fn items_at_start_of_held_history_count_as_held() {
    let item = |text: &str| {
        format!(
            r#"{{"type":"message","role":"developer","content":[{{"type":"input_text","text":"{text}"}}]}}"#
        )
    };
    let tools = r#"{"type":"additional_tools","tools":[{"type":"function","name":"Look","parameters":{"type":"object"}}]}"#;
    let care = item("Work with care.");
    let hi = r#"{"role":"user","content":"hi"}"#;
    let mut before = Case::new("", "", &user("hi")).of("gpt-5").answered(TEXT, usage(9_000, 20));
    let first = format!(r#"{{"instructions":"Be calm.","input":[{tools},{care},{hi}]}}"#);
    before.sketch = responses(&first, None).sketch.added;
    let go = r#"{"role":"user","content":"go"}"#;
    let next = |head: &str, id: &str, input: &str| {
        let body = format!(r#"{{{head}"previous_response_id":"{id}","input":[{input}]}}"#);
        responses(&body, Some(&before)).estimate
    };
    let plain = next(r#""instructions":"Be calm.","#, "msg", go);
    assert_eq!(plain.tokens, 9_020 + plain.new);
    assert_eq!(plain.gone, 0);
    let without = next("", "msg", go);
    assert!(without.tokens < plain.tokens, "{without:?}");
    assert!(without.breakdown.system > 0, "{without:?}");
    assert_eq!(without.breakdown.tools, plain.breakdown.tools);
    // The turn in between was not measured. What is known to be held counts as held.
    assert_eq!(next(r#""instructions":"Be calm.","#, "between", go), plain);
    // After a warm-up the client may send the messages again, with or without the items before them: nothing counts
    // twice.
    let whole = format!(
        r#"{hi},{{"role":"assistant","content":[{{"type":"output_text","text":"Three metres and a half."}}]}},{go}"#
    );
    for input in [whole.clone(), format!("{tools},{care},{whole}")] {
        let warmed = next(r#""instructions":"Be calm.","#, "warm", &input);
        assert_eq!(warmed, plain);
    }
}

#[test]
fn repeated_user_text_counts_as_new() {
    let before = Case::new("S", "", &user("go on")).answered(TEXT, usage(1_000, 20));
    let next = [user("go on"), model(TEXT), user("go on")].join(",");
    let estimate = Case::new("S", "", &next).measure(Some(&before)).estimate;
    assert!(estimate.new > 0, "{estimate:?}");
    assert!(estimate.gone == 0, "{estimate:?}");
    assert_eq!(estimate.tokens, 1_020 + estimate.new);
}

#[test]
fn reasoning_that_is_not_read_is_not_counted_in_tool_loop_either() {
    let reply = [THINKING, CALL].join(",");
    let reported = Usage { reasoning: Some(700), ..usage(1_000, 800) };
    let before = Case::new("S", "", &user("hi")).of("gemini-2.5-pro").answered(&reply, reported);
    let next = [user("hi"), model(&reply), RESULT.into()].join(",");
    let estimate = Case::new("S", "", &next).of("gemini-2.5-pro").measure(Some(&before)).estimate;
    assert_eq!(estimate.gone, 700);
    assert_eq!(estimate.breakdown.reasoning, 0);
}

proptest! {
    /// Any bytes, in any dialect, after any turn.
    #[test]
    fn invariant_8_never_panics_on_any_body(
        bytes in prop::collection::vec(any::<u8>(), 0..200), pick in 0usize..4,
        words in "\\PC{0,40}", held in any::<bool>(),
    ) {
        let targets = [
            (Dialect::Anthropic, "/v1/messages"),
            (Dialect::OpenaiChat, "/v1/chat/completions"),
            (Dialect::OpenaiResponses, "/v1/responses"),
            (Dialect::Gemini, "/v1beta/models/gemini-2.5-pro:generateContent"),
        ];
        let (dialect, target) = targets[pick];
        let quoted = serde_json::to_string(&words).unwrap();
        let messages = format!(
            r#"{{"messages":[{{"role":"user","content":{quoted}}}],"input":{quoted},"tools":[{quoted}],
            "contents":[{{"parts":[{{"text":{quoted}}}]}}]{}}}"#,
            if held { r#","previous_response_id":"r""# } else { "" },
        );
        let before = Case::new("S", TOOL, &user("hi")).answered(TEXT, usage(1_000, 20));
        for body in [&bytes[..], messages.as_bytes()] {
            let read = dialect::read(dialect, target, body);
            for name in ["claude-opus-4-5", "gemini-2.5-pro", "nobody-knows"] {
                let model = Catalogue::default().model(name, "");
                let anchor = Some(Anchor { turn: &before.turn, sketch: &before.sketch });
                for anchor in [None, anchor] {
                    let tokenizer = Tokenizer::whole(model.family);
                    let learned = EstimatorState::new(model.family);
                    let sent = Overlay::default();
                    check_sum(&measure(&read, body, &sent, &model, anchor, tokenizer, &learned));
                }
            }
        }
    }
}

#[test]
fn context_after_turn_leaves_out_reasoning_that_cannot_come_back() {
    let reported = Usage { reasoning: Some(700), ..usage(1_000, 720) };
    let mut before = Case::new("S", "", &user("hi")).of("gpt-5").answered(TEXT, reported);
    before.turn.dialect = Dialect::OpenaiChat;
    let view = ContextView::after(&before.turn);
    assert_eq!(view.total, 1_020);
    assert_eq!(view.basis.unwrap().gone, 700);
    before.turn.dialect = Dialect::OpenaiResponses;
    assert_eq!(ContextView::after(&before.turn).total, 1_720, "a client may send it back");
    before.turn.usage.input = None;
    let aborted = ContextView::after(&before.turn);
    let estimated = before.turn.estimate.as_ref().unwrap().tokens;
    assert_eq!(aborted.total, estimated);
    assert_eq!(aborted.basis, None);
}

/// A user's message with a picture of this size. The file has a header and no pixels.
fn pictured(width: u32, height: u32) -> String {
    use base64::Engine as _;
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    png.extend_from_slice(&width.to_be_bytes());
    png.extend_from_slice(&height.to_be_bytes());
    png.extend_from_slice(b"\x08\x06\0\0\0\0\0\0\0");
    let data = base64::engine::general_purpose::STANDARD.encode(png);
    format!(
        r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}"#
    )
}

/// What cannot be counted by a tokenizer has another method and a wider band.
#[test]
fn uncountable_content_has_its_own_method_and_wider_band() {
    let before = Case::new("Be brief.", "", &user("Hello.")).answered(TEXT, usage(1_000, 7));
    let grown = |more: &str| {
        let messages = format!("{},{},{more}", user("Hello."), model(TEXT));
        Case::new("Be brief.", "", &messages).measure(Some(&before)).estimate
    };
    let width = |estimate: &Estimate| estimate.guess.high - estimate.guess.low;
    let plain = grown(&user("And how deep?"));
    assert_eq!(plain.counting, CountingMethod::Ratio);
    assert_eq!(plain.method, EstimateMethod::Anchored);

    let base64 = grown(&user(&"mFq3Zk9+/Xw7".repeat(5 << 20 >> 3)));
    assert_eq!(base64.counting, CountingMethod::Length);
    assert!(width(&base64) * 4 > base64.new, "{base64:?}");

    let honest = grown(&pictured(1280, 800));
    assert_eq!(honest.counting, CountingMethod::Ratio);
    assert_eq!(honest.new, 1334 + 2);
    for (claimed_width, claimed_height) in [(u32::MAX, u32::MAX), (400_000, 3), (0, 900)] {
        let lies = grown(&pictured(claimed_width, claimed_height));
        assert_eq!(lies.counting, CountingMethod::Length);
        assert!(lies.new < 4_800, "{lies:?}");
        assert!(width(&lies) > 2 * width(&honest), "{lies:?}");
    }
}

/// The parts of a breakdown add up to the total. If the provider counted less than the estimates of system prompt and
/// tools, these share the total in proportion, and the breakdown is marked as capped.
#[test]
fn breakdown_adds_up() {
    let parts = Breakdown { system: 300, tools: 100, reasoning: 40, ..Breakdown::default() };
    let of = |total| {
        let fitted = fit(parts, total);
        let Breakdown { system, tools, messages, reasoning, capped, .. } = fitted;
        assert_eq!(system + tools + messages, total);
        (system, tools, messages, reasoning, capped)
    };
    assert_eq!(of(1_000), (300, 100, 600, 40, false));
    assert_eq!(of(430), (300, 100, 30, 30, false), "reasoning is part of the messages");
    assert_eq!(of(400), (300, 100, 0, 0, false));
    assert_eq!(of(200), (150, 50, 0, 0, true));
    assert_eq!(of(0), (0, 0, 0, 0, true));
    let huge = Breakdown { system: u64::MAX, tools: u64::MAX, ..Breakdown::default() };
    assert_eq!(fit(huge, 10).messages, 0);
    assert!(fit(huge, 10).capped);
}

/// New content is counted by kind. A single result has the name of its tool.
#[test]
fn new_content_has_kind_and_tool() {
    let before = Case::new("S", TOOL, &user("hi")).answered(CALL, usage(1_000, 20));
    let seen = |messages: &[&str]| {
        let history = [user("hi"), model(CALL), messages.join(",")];
        let next = history.join(",");
        Case::new("S", TOOL, &next).measure(Some(&before))
    };
    let counts = |of: &MeasuredEstimate| {
        let new = &of.seen.as_ref().unwrap().new_content;
        (new.results, new.texts, new.calls, new.media, new.head)
    };
    let alone = seen(&[RESULT]);
    assert_eq!(counts(&alone), (1, 0, 0, 0, None));
    let tool = |of: &MeasuredEstimate| of.seen.as_ref().unwrap().new_content.tool;
    assert_eq!(tool(&alone), Some(xxh3_64(b"Read")));
    let others = seen(&[RESULT, &user("one"), &user("two"), &pictured(280, 56)]);
    assert_eq!(counts(&others), (1, 2, 0, 20, None));
    assert_eq!(tool(&others), None);
    let twice = seen(&[RESULT, &RESULT.replace("three", "four")]);
    assert_eq!(counts(&twice), (2, 0, 0, 0, None));
    assert_eq!(tool(&twice), None);
    let new = twice.seen.unwrap().new_content;
    assert_eq!(new.tokens, twice.estimate.new);
    assert!(new.text_tokens > 0);
    assert!(new.tally.tokens() > 0);
    let result = alone.contents.tool_results.iter().map(|it| &*it.tool).collect::<Vec<_>>();
    assert_eq!(result, vec!["Read"]);
    assert!(alone.contents.tool_calls > 0);
    // Without an anchor, the head is identified by system prompt and tools, and by nothing else.
    let head = |system: &str, tools: &str, text: &str| {
        Case::new(system, tools, &user(text)).measure(None).seen.unwrap().new_content.head.unwrap()
    };
    assert_eq!(head("S", TOOL, "hi"), head("S", TOOL, "ho"));
    assert_ne!(head("S", TOOL, "hi"), head("T", TOOL, "hi"));
    assert_ne!(head("S", TOOL, "hi"), head("S", "", "hi"));
}

/// Tools that are not loaded are listed, and cost nothing.
#[test]
fn deferred_tools_are_recognised() {
    let late = r#"{"name":"Late","defer_loading":true,"input_schema":{"type":"object"}}"#;
    let with = Case::new("S", &format!("{TOOL},{late}"), &user("hi")).measure(None);
    let without = Case::new("S", TOOL, &user("hi")).measure(None);
    assert_eq!(with.estimate.tokens, without.estimate.tokens);
    let named = with.contents.deferred.iter().map(|it| &*it.tool).collect::<Vec<_>>();
    assert_eq!(named, vec!["Late"]);
    assert_eq!(without.contents.deferred.len(), 0);
    let user_tokens = u64::from(with.parts.last().unwrap().tokens);
    assert_eq!(with.contents.user, user_tokens);
    assert_eq!(with.contents.assistant, 0);
}

/// What prompts cost in which a tool is not loaded says nothing about one that loads it.
#[test]
fn loaded_tool_is_another_head() {
    let late = r#"{"name":"Late","defer_loading":true,"input_schema":{"type":"object"}}"#;
    let head = |messages: &str| {
        let seen = Case::new("S", late, messages).measure(None).seen;
        seen.unwrap().new_content.head.unwrap()
    };
    let load = r#"{"role":"system","content":[{"type":"tool_addition",
        "tool":{"type":"tool_reference","name":"Late"}}]}"#;
    assert_ne!(head(&user("hi")), head(&[user("hi"), load.to_owned()].join(",")));
    assert_eq!(head(&user("hi")), head(&user("ho")));
}

/// As recorded: the prompt with a tool that nothing had loaded cost 661 tokens, the next one, which loaded it, 763. The
/// instructions on how to call tools came with the search for tools already.
#[test]
fn tool_that_is_loaded_brings_no_instructions() {
    let tools = r#"{"defer_loading":true,"description":"Look up an exchange rate.","input_schema":{"type":"object"},
        "name":"lookup_exchange_rate"},{"name":"tool_search_tool_bm25","type":"tool_search_tool_bm25_20251119"}"#;
    let question = user("Reply only with: ready");
    let ready = r#"{"type":"text","text":"ready"}"#;
    let case = |messages: &str| Case::new("", tools, messages).of("claude-opus-4-8");
    let before = case(&question).answered(ready, usage(661, 4));
    let load = r#"{"role":"system","content":[{"type":"tool_addition",
        "tool":{"type":"tool_reference","name":"lookup_exchange_rate"}}]}"#;
    let next = case(&[&question, &*model(ready), &user("."), load].join(","));
    let tokens = next.measure(Some(&before)).estimate.tokens;
    assert!(tokens.abs_diff(763) < 25, "{tokens}");
}

/// As recorded: 392 tokens with a tool that nothing had loaded, 142 once it was.
#[test]
fn search_for_tools_costs_its_instructions() {
    let tools = r#"{"type":"tool_search"},{"type":"function","name":"refund","defer_loading":true,"parameters":{}}"#;
    let tokens = |item: &str| {
        let input = user("Reply only with: ready");
        let body = format!(r#"{{"model":"gpt-5.6","tools":[{tools}],"input":[{input}{item}]}}"#);
        responses(&body, None).estimate.tokens
    };
    let loads = r#",{"type":"additional_tools","tools":[{"type":"function","name":"refund","parameters":{}}]}"#;
    assert!((310..430).contains(&tokens("")), "{}", tokens(""));
    assert!((90..170).contains(&tokens(loads)), "{}", tokens(loads));
}

/// As recorded: 684 tokens for a document of 60 tokens.
#[test]
fn citations_cost_their_instructions() {
    let tokens = |citations: &str| {
        let text = r#""source":{"type":"text","media_type":"text/plain","data":"Rust is fast."}"#;
        let content = format!(r#"[{{"type":"document",{citations}{text}}}]"#);
        let messages = format!(r#"{{"role":"user","content":{content}}}"#);
        Case::new("S", "", &messages).measure(None).estimate.tokens
    };
    assert_eq!(tokens(r#""citations": {"enabled": true},"#), tokens("") + 530);
    assert_eq!(tokens(r#""citations":{"enabled":false},"#), tokens(""));
    assert_eq!(tokens(r#""title":"citations","#), tokens(""));
}

/// As recorded: what searches had found, 10,614 tokens, was in the prompt until the user wrote again.
#[test]
fn findings_may_leave_with_users_text() {
    let search = r#"{"type":"web_search_call","status":"completed","action":{"type":"search","query":"tides"}}"#;
    let body = |items: &str| format!(r#"{{"input":[{},{search}{items}]}}"#, user("Look it up."));
    let first = responses(&body(""), None);
    let turn = Case::new("S", "", &user("hi")).answered(TEXT, usage(12_000, 0)).turn;
    let turn = Turn { family: Family::O200k, reply: Vec::new(), estimate: None, ..turn };
    let before = Before { turn, sketch: first.sketch.added };
    let low = |items: &str| responses(&body(items), Some(&before)).estimate.band().unwrap().low;
    assert!(low(&format!(",{}", user("Go on."))) < 1_000);
    let result = r#",{"type":"function_call_output","call_id":"c","output":"Done."}"#;
    assert!(low(result) > 11_000);
    let later = [user("Go on."), user("On."), user("And on.")].join(",");
    assert!(low(&format!(",{later}")) > 11_000, "they stayed when the user wrote before");
}
