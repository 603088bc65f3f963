//! What the structure around parts costs, by model and protocol, as it was measured (`docs/estimates.md` 1.3). The
//! tokens of the parts' texts are subtracted.

use super::*;
use crate::dialect::models::Catalogue;
use crate::dialect::{self, Dialect, Role};

/// What a model's provider adds around parts, tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Around {
    text: u32,
    call: u32,
    /// Around a result whose tool has no name, and what reading it as JSON adds.
    result: (u32, u64),
    /// What the tool's name adds to a result.
    named: u32,
    /// Around a tool; what a response schema adds to that; and the share of a tool's text that is counted, percent.
    tools: (u32, u32, u32),
    /// Added once with the first tool, and with the first tool in the history.
    first: (u32, u32),
    reasoning: u32,
    /// Added to a first prompt.
    opening: u64,
    /// Added to a prompt with an anchor, with no, one and two results.
    growing: [i64; 3],
}

const BODY: &str = r#"{"model":"m","input":[
    {"role":"user","content":"How deep is the harbour?"},
    {"type":"reasoning","encrypted_content":"AAAAAAAAAAAAAAAAAAAAAAAAAAAA","summary":[]},
    {"type":"function_call","call_id":"c","name":"shell","arguments":"{}"},
    {"type":"function_call_output","call_id":"c","output":"Three metres and a half."},
    {"type":"function_call_output","call_id":"d","output":"Three metres and a half."}],
    "tools":[{"type":"function","name":"shell","description":"Runs a command of the shell and tells what it wrote, to its end.","parameters":{"type":"object"}}]}"#;

fn around(name: &str, dialect: Dialect) -> Around {
    let mut read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", BODY.as_bytes());
    read.dialect = dialect;
    let model = Catalogue::default().model(name, "");
    let whole = Tokenizer::whole(model.family);
    let text_tokens = |text: &str| whole.reply().text(text);
    let counter = || whole.counter(&read, BODY.as_bytes(), &model);
    let part = |at: usize| read.parts().nth(at).unwrap();
    let result = text_tokens("Three metres and a half.");
    let mut unnamed = counter();
    let bare = unnamed.part(part(4)) - result;
    let mut named = counter();
    let by_name = named.part(part(3)) - result;
    let tool = &read.tools[0];
    let text = String::from_utf8_lossy(tool.span.slice(BODY.as_bytes()));
    let (tool_text, tool_tokens) = (text_tokens(&text), counter().part(tool));
    let schema = Part { is_schema: true, ..tool.clone() };
    // A tool without text costs only its structure.
    let blank = Part { texts: vec![part(2).texts[0]], ..tool.clone() };
    let kept = counter().structure.tool_percent;
    let rest = u64::from(text_tokens("{}")) * u64::from(kept) / 100;
    let tool_around = counter().part(&blank) - rest as u32;
    let left = (u64::from(tool_text) * u64::from(kept) / 100) as u32;
    assert_eq!(tool_tokens, left + tool_around, "{name}: the counted share of its text is left");
    Around {
        text: counter().part(part(0)) - text_tokens("How deep is the harbour?"),
        call: counter().part(part(2)) - text_tokens("{}") - text_tokens("shell"),
        result: (bare, unnamed.read),
        named: by_name - bare,
        tools: (tool_around, counter().part(&schema) - tool_tokens, kept),
        first: (counter().structure.offering, counter().structure.loading),
        reasoning: counter().part(part(1)) - 4, // 30 characters with the quotes, divided by seven
        opening: counter().structure.prompt,
        growing: [0, 1, 2].map(|results| counter().growing(results)),
    }
}

/// GPT: six tokens and the name around a result. The wrapper of parallel calls is not sent back (1.3).
#[test]
fn gpt_parts_cost_their_measured_structure_tokens() {
    let gpt_5 = Around {
        text: 4,
        call: 6,
        result: (6, 0),
        named: 2, // `functions.shell`
        tools: (8, 0, 60),
        first: (0, 80),
        reasoning: 2,
        opening: 3,
        growing: [2, 2, 2],
    };
    assert_eq!(around("gpt-5", Dialect::OpenaiResponses), gpt_5);
    let in_chat = Around { result: (5, 0), first: (80, 0), growing: [-3, -3, -12], ..gpt_5 };
    assert_eq!(around("gpt-5", Dialect::OpenaiChat), in_chat);
    let without_instructions = Around { first: (0, 0), ..in_chat };
    assert_eq!(around("openai/gpt-5", Dialect::OpenaiChat), without_instructions);
    assert_eq!(around("o3-mini", Dialect::OpenaiChat), without_instructions);
    let of_4o = Around { result: (3, 0), growing: [3, 2, -20], ..gpt_5 };
    assert_eq!(around("gpt-4o", Dialect::OpenaiResponses), of_4o);
    let in_chat = Around { first: (0, 0), growing: [4, 2, -4], ..of_4o };
    assert_eq!(around("gpt-4o", Dialect::OpenaiChat), in_chat);
    let of_oss = Around { first: (12, 0), opening: 63, ..in_chat };
    assert_eq!(around("gpt-oss:120b", Dialect::OpenaiChat), of_oss);
    // An older vocabulary, and an unknown one, whose results have no names.
    let old = around("gpt-4", Dialect::OpenaiResponses);
    assert_eq!(old.growing, [3, 2, 2]);
    assert_eq!(old.result, (3, 0));
    let others =
        Around { named: 0, tools: (8, 0, 100), first: (100, 0), growing: [4, 2, 2], ..in_chat };
    assert_eq!(around("deepseek-chat", Dialect::OpenaiChat), others);
    let unknown = Around { result: (5, 0), growing: [-3; 3], ..others };
    assert_eq!(around("nobody-knows", Dialect::OpenaiChat), unknown, "it may reason");
}

#[test]
fn claude_parts_cost_their_measured_structure_tokens() {
    let claude = Around {
        text: 0,
        call: 30,
        result: (38, 0),
        named: 0,
        tools: (20, 95, 100),
        first: (487, 0),
        reasoning: 0,
        opening: 7,
        growing: [2, -25, -25],
    };
    assert_eq!(around("claude-opus-4-5", Dialect::Anthropic), claude);
    let new = Around {
        call: 36,
        result: (48, 0),
        tools: (28, 95, 100),
        first: (283, 0),
        growing: [2, -43, -43],
        ..claude
    };
    assert_eq!(around("claude-opus-5", Dialect::Anthropic), new);
    let opus_4_7 = Around { first: (645, 0), ..new };
    assert_eq!(around("claude-opus-4-7", Dialect::Anthropic), opus_4_7, "the catalogue says more");
}

#[test]
fn forced_tool_costs_claude_its_instruction() {
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", b"{}");
    let forcing = |name: &str| {
        let model = Catalogue::default().model(name, "");
        Tokenizer::now(model.family).counter(&read, b"{}", &model).structure.forcing
    };
    assert_eq!(forcing("claude-sonnet-4-5"), 92);
    assert_eq!(forcing("claude-sonnet-4"), 2);
    assert_eq!(forcing("claude-opus-5"), 120);
    assert_eq!(forcing("gpt-5"), 0);
}

/// Gemini reads results as JSON, except those models that stop doing so in streams. Some gateways pass results on as
/// text.
#[test]
fn gemini_parts_cost_their_measured_structure_tokens() {
    let is_exact = bpe::is_exact(Family::Gemini);
    let (text, plain, less) = if is_exact { (0, 2, 0) } else { (1, 1, 3) };
    let name = Tokenizer::whole(Family::Gemini).reply().text("shell");
    let gemini = |read: u32, by_result| Around {
        text,
        call: 8,
        result: (0, read.saturating_sub(less).into()),
        named: name,
        tools: (12, 0, 45),
        first: (0, 0),
        reasoning: 0,
        opening: 0,
        growing: [0, by_result, 2 * by_result],
    };
    assert_eq!(around("gemini-3-pro-preview", Dialect::Gemini), gemini(13, -3));
    assert_eq!(around("gemini-2.5-pro", Dialect::Gemini), gemini(9, 1));
    assert_eq!(around("gemini-2.5-pro", Dialect::OpenaiChat), gemini(9, 1));
    assert_eq!(around("gemini-2.0-flash", Dialect::Gemini), gemini(1, 1));
    assert_eq!(around("gemini-2.0-flash", Dialect::OpenaiChat), gemini(9, 1));
    let plain = Around { result: (plain, 0), named: 0, ..gemini(0, 0) };
    assert_eq!(around("gemini-2.5-pro", Dialect::OpenaiResponses), plain);
}

/// A user's text costs more where Gemini 3 reads reasoning.
#[test]
fn gemini_text_costs_more_beside_reasoning() {
    let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", BODY.as_bytes());
    let reading = |name| {
        let model = Catalogue::default().model(name, "");
        let whole = Tokenizer::whole(model.family);
        let gemini = Conversation { dialect: Dialect::Gemini, ..read.clone() };
        let mut counter = whole.counter(&gemini, BODY.as_bytes(), &model);
        counter.part(read.parts().next().unwrap());
        counter.read
    };
    assert_eq!(reading("gemini-2.5-pro"), 0);
    assert_eq!(reading("gemini-3-pro-preview"), if bpe::is_exact(Family::Gemini) { 2 } else { 1 });
}

/// A marker, and a part that is contained in another part, are not in the prompt.
#[test]
fn what_is_not_sent_costs_nothing() {
    let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", BODY.as_bytes());
    let model = Catalogue::default().model("gpt-5", "");
    let mut counter = Tokenizer::whole(model.family).counter(&read, BODY.as_bytes(), &model);
    let bare = |kind| Part { kind, texts: Vec::new(), ..read.tools[0].clone() };
    assert_eq!([PartKind::Tool, PartKind::Opaque].map(|kind| counter.part(&bare(kind))), [0, 0]);
    assert_eq!(counter.part(&bare(PartKind::Text)), 4, "other parts cost what stands around them");
    let opaque = Part { kind: PartKind::Opaque, role: Role::User, ..read.tools[0].clone() };
    let text = String::from_utf8_lossy(opaque.span.slice(BODY.as_bytes()));
    assert_eq!(counter.part(&opaque), Tokenizer::whole(model.family).reply().text(&text));
    // The results of a client's own tool search are tools in the history.
    let result = read.parts().nth(4).unwrap();
    let found = Part { name: Some("tool_search".into()), ..result.clone() };
    let named = Part { name: Some("tool_find".into()), ..result.clone() };
    assert_eq!(counter.part(&found) - counter.part(&named), 80);
}

/// Past the limit of tokenised bytes, a short text is counted by its length: at the rate of the text counted so far, or
/// at the family's rate if there is none.
#[test]
fn text_that_is_not_tokenised_costs_by_its_length() {
    let text = "a word ".repeat(30); // 210 bytes
    let limited = |family, limit| Tokenizer { limit, ..Tokenizer::whole(family) };
    let by_length = [
        (Family::O200k, 51),
        (Family::Cl100k, 51),
        (Family::Gemini, 59),
        (Family::Claude, 59),
        (Family::ClaudeNew, 80),
        (Family::Other, 56),
    ];
    for (family, tokens) in by_length {
        assert_eq!(limited(family, 0).reply().text(&text), tokens, "{family:?}");
        let unloaded = Tokenizer { encoding: None, ..Tokenizer::whole(family) };
        assert_eq!(unloaded.reply().text(&text), tokens, "{family:?}");
    }
    let mut counter = limited(Family::O200k, 20).reply();
    let counted = counter.text("0 1 2 3 4 5 6 7 8 9 "); // 20 bytes
    assert_eq!(counted, counter.worded as u32);
    assert_eq!(counter.counting, CountingMethod::Exact);
    let short = counter.text(&text);
    assert_eq!(short, (210.0 * f64::from(counted) / 20.0).round() as u32);
    assert_eq!(counter.counting, CountingMethod::Length);
    assert_eq!(counter.worded, u64::from(counted + short));
    // With an unknown tokenizer, each token counts as 1.1.
    let plain = Tokenizer::whole(Family::O200k).reply().text(&text);
    let unknown = Tokenizer::whole(Family::Other).reply().text(&text);
    assert_eq!(unknown, (f64::from(plain) * 1.1).round() as u32);
}

/// A long text is counted from samples of equal size, evenly spread, never more than remain for the request.
#[test]
fn samples_are_spread_evenly() {
    let text: String = (0..20_000).map(|n| format!("{n:05} ")).collect();
    let begins: Vec<&str> = samples(&text, 4).map(|sample| &sample[..6]).collect();
    assert_eq!(begins, ["00000 ", "05000 ", "10000 ", "15000 "]);
    assert!(samples(&text, 4).all(|sample| sample.len() == SAMPLE_BYTES));
    let mut counter = Tokenizer { limit: 0, ..Tokenizer::whole(Family::Claude) }.reply();
    let whole =
        Tokenizer { limit: usize::MAX, ..Tokenizer::whole(Family::Claude) }.reply().text(&text);
    let sampled = counter.text(&text);
    assert!(sampled.abs_diff(whole) < whole / 50, "{sampled} for {whole}");
    assert_eq!(counter.looked, 120_000 / (2 * SAMPLE_BYTES) * SAMPLE_BYTES);
    assert_eq!(counter.samples, SAMPLES - 14);
    // The samples have the same token classes as the whole.
    let mut all = Tokenizer { limit: usize::MAX, ..Tokenizer::whole(Family::Claude) }.reply();
    all.text(&text);
    let [sampled, is] = [counter.tally.tokens(), all.tally.tokens()];
    assert!(sampled.abs_diff(is) < is / 50, "{sampled} for {is}");
}

/// A tool's name is structure: it is not in the tally of the text.
#[test]
fn tool_name_is_not_in_tally_of_text() {
    let mut read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", BODY.as_bytes());
    read.dialect = Dialect::Gemini;
    let model = Catalogue::default().model("gemini-2.5-pro", "");
    let whole = Tokenizer::whole(Family::Gemini);
    let mut counter = whole.counter(&read, BODY.as_bytes(), &model);
    counter.part(read.parts().nth(3).unwrap());
    let mut reply = whole.reply();
    reply.text("Three metres and a half.");
    assert_eq!(counter.worded, reply.worded);
    assert_eq!(counter.tally, reply.tally);
    let once = counter.read;
    counter.part(read.parts().nth(3).unwrap());
    assert!(once > 0);
    assert_eq!(counter.read, 2 * once);
}

/// Reasoning with a readable summary costs the summary's text, not its encrypted length.
#[test]
fn reasoning_costs_its_text() {
    let body = r#"{"input":[{"type":"reasoning","encrypted_content":"AAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "summary":[{"type":"summary_text","text":"Three metres and a half."}]}]}"#;
    let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
    let model = Catalogue::default().model("gpt-5", "");
    let whole = Tokenizer::whole(model.family);
    let part = read.parts().next().unwrap();
    let text_tokens = whole.reply().text("Three metres and a half.");
    assert_eq!(whole.counter(&read, body.as_bytes(), &model).part(part), text_tokens + 2);
    let text = Part { kind: PartKind::Text, texts: Vec::new(), ..part.clone() };
    assert_eq!(whole.counter(&read, body.as_bytes(), &model).part(&text), 4, "of reasoning alone");
}

/// The cost of a tool, and how much more it may cost.
fn tool_costs(dialect: Dialect, model: &str, tool: &str) -> (u32, u32) {
    let body = format!(r#"{{"model":"{model}","messages":[],"input":[],"tools":[{tool}]}}"#);
    let read = dialect::read(dialect, "/", body.as_bytes());
    let model = Catalogue::default().model(model, "");
    let whole = Tokenizer::whole(model.family);
    let mut counter = whole.counter(&read, body.as_bytes(), &model);
    (counter.part(&read.tools[0]), counter.guessed.more)
}

/// As recorded: Sonnet 4 with its tool for commands cost 566 tokens, with its search of the web 2,032, to fetch pages
/// 899; Sonnet 4.6 to run code 2,293; Opus 4.8 with a search for tools 661; Sonnet 5 with an advisor 1,128.
#[test]
fn own_tools_cost_their_definition() {
    let check = |model: &str, tool: &str, tokens: std::ops::Range<u32>| {
        let (counted, more) = tool_costs(Dialect::Anthropic, model, tool);
        assert!(tokens.contains(&counted), "{tool}: {counted}");
        assert_eq!(more, 0, "{tool}");
    };
    let old = "claude-sonnet-4";
    check(old, r#"{"type":"bash_20250124","name":"bash"}"#, 240..260);
    check(old, r#"{"type":"web_search_20250305","name":"web_search"}"#, 1_680..1_710);
    check(old, r#"{"type":"web_fetch_20250910","name":"web_fetch"}"#, 500..530);
    check(old, r#"{"type":"code_execution_20260120","name":"code_execution"}"#, 1_750..1_780);
    check(old, r#"{"type":"advisor_20260301","name":"advisor"}"#, 530..560);
    check("claude-sonnet-5", r#"{"type":"advisor_20260301","name":"advisor"}"#, 725..765);
    let search = r#"{"type":"tool_search_tool_bm25_20251119","name":"tool_search_tool_bm25"}"#;
    check("claude-opus-4-8", search, 330..360);
    // Programs filter what later versions find, unless only the model may call them.
    check(old, r#"{"type":"web_search_20260209","name":"web_search"}"#, 4_320..4_370);
    let direct =
        r#"{"type":"web_search_20260318","name":"web_search","allowed_callers":["direct"]}"#;
    check(old, direct, 1_680..1_730);
    // A client's own tool of the same name.
    check(old, r#"{"name":"bash","input_schema":{"type":"object"}}"#, 0..60);
}

#[test]
fn tools_that_nobody_recorded_may_cost_more() {
    let unknown = [
        (
            Dialect::Anthropic,
            "claude-opus-5",
            r#"{"type":"code_execution_20250522","name":"code_execution"}"#,
        ),
        (Dialect::OpenaiResponses, "gpt-5", r#"{"type":"file_search","vector_store_ids":["vs"]}"#),
        (Dialect::OpenaiResponses, "gpt-5", r#"{"type":"mcp","server_label":"maps"}"#),
        (Dialect::Gemini, "gemini-3-pro", r#"{"googleSearch":{}}"#),
    ];
    for (dialect, model, tool) in unknown {
        assert_eq!(tool_costs(dialect, model, tool).1, UNKNOWN_DEFINITION, "{tool}");
    }
    let known = [
        (r#"{"type":"code_interpreter","container":{"type":"auto"}}"#, 652),
        (r#"{"type":"image_generation"}"#, 329),
        (r#"{"type":"tool_search"}"#, 0),
        (r#"{"type":"function","name":"look","parameters":{}}"#, 0),
    ];
    for (tool, definition) in known {
        let (tokens, more) = tool_costs(Dialect::OpenaiResponses, "gpt-5", tool);
        assert!((definition..definition + 30).contains(&tokens), "{tool}: {tokens}");
        assert_eq!(more, 0, "{tool}");
    }
}

/// As recorded: ten results with 14,112 bytes cost 5,064 tokens with their titles, 95 with 209,764 cost 77,772.
#[test]
fn what_search_found_is_counted_from_its_encrypted_length() {
    let found = |results: usize, bytes: usize| {
        let sealed = "Eq".repeat(bytes / 2);
        let result = format!(
            r#"{{"type":"web_search_result","title":"Tides","encrypted_content":"{sealed}"}}"#
        );
        let results = vec![result; results].join(",");
        let body = format!(
            r#"{{"messages":[{{"role":"assistant","content":[{{"type":"web_search_tool_result","tool_use_id":"s",
                "content":[{results}]}}]}}]}}"#
        );
        let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
        let model = Catalogue::default().model("claude-sonnet-4-5", "");
        let whole = Tokenizer::whole(model.family);
        whole.counter(&read, body.as_bytes(), &model).part(read.parts().next().unwrap())
    };
    assert_eq!(found(1, 29_500) - found(1, 0), 10_000);
    assert_eq!(found(2, 14_750) - found(2, 0), 10_000);
}
