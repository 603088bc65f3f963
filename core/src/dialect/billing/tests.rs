use super::*;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{Dialect, Usage};

fn usage(dialect: Dialect, body: &str) -> Usage {
    let mut reader = ResponseReader::new(dialect, 200, Framing::Unknown, 1 << 20);
    reader.push(body.as_bytes());
    reader.finish(BodyEnd::Whole).usage
}

fn billing(dialect: Dialect, body: &str) -> Billing {
    usage(dialect, body).billing
}

fn message(usage: &str) -> Billing {
    let body = format!(
        r#"{{"id":"m","type":"message","role":"assistant","model":"c","content":[],"stop_reason":"end_turn","usage":{{"input_tokens":9,"output_tokens":1,{usage}}}}}"#
    );
    billing(Dialect::Anthropic, &body)
}

fn completion(rest: &str) -> Billing {
    let body = format!(
        r#"{{"id":"c","object":"chat.completion","model":"g","choices":[{{"index":0,"message":{{"role":"assistant","content":"a"}},"finish_reason":"stop"}}],{rest}}}"#
    );
    billing(Dialect::OpenaiChat, &body)
}

fn response(output: &str, rest: &str) -> Billing {
    let body = format!(
        r#"{{"id":"r","object":"response","status":"completed","model":"g","output":[{output}],{rest}}}"#
    );
    billing(Dialect::OpenaiResponses, &body)
}

fn content(candidate: &str, usage: &str) -> Billing {
    let body = format!(
        r#"{{"candidates":[{{"content":{{"role":"model","parts":[{{"text":"a"}}]}},"finishReason":"STOP"{candidate}}}],"usageMetadata":{{"promptTokenCount":9,"candidatesTokenCount":1{usage}}}}}"#
    );
    billing(Dialect::Gemini, &body)
}

#[test]
fn messages_say_speed_and_place() {
    let fast = message(r#""service_tier":"standard","speed":"fast","inference_geo":"us""#);
    assert_eq!(fast.tier, ServiceTier::Fast);
    assert!(fast.regional);
    let usual = message(r#""service_tier":"standard","speed":"standard","inference_geo":"global""#);
    assert_eq!(usual, Billing::default());
    let older = message(r#""service_tier":"priority","inference_geo":"not_available""#);
    assert_eq!(older, Billing { tier: ServiceTier::Priority, ..Billing::default() });
}

#[test]
fn messages_count_searches() {
    let searched = message(r#""server_tool_use":{"web_search_requests":3,"web_fetch_requests":7}"#);
    assert_eq!(searched.searches, 3, "fetching a page is free");
}

#[test]
fn impossible_searches_have_untold_fee() {
    for number in ["9223372036854775808", "4000000000", "-1", "0.5", "1e300"] {
        let tools = format!(r#""server_tool_use":{{"web_search_requests":{number}}}"#);
        let usage = format!(r#""usage":{{"prompt_tokens":9,"completion_tokens":1,{tools}}}"#);
        for billing in [message(&tools), completion(&usage)] {
            assert_eq!((billing.searches, billing.unmetered), (0, 1), "{number}");
        }
    }
}

#[test]
fn completions_say_their_tier_beside_usage() {
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"audio_tokens":4}}"#;
    let flex = completion(&format!(r#""service_tier":"flex",{usage}"#));
    assert_eq!(flex, Billing { tier: ServiceTier::Flex, audio_input: 4, ..Billing::default() });
    assert_eq!(
        completion(&format!(r#""service_tier":"default",{usage}"#)).tier,
        ServiceTier::Standard
    );
}

#[test]
fn stated_price_is_read_in_each_spelling() {
    let stated = |usage: &str| {
        completion(&format!(r#""usage":{{"prompt_tokens":9,"completion_tokens":1,{usage}}}"#))
            .stated
    };
    // OpenRouter; with a key of one's own at the provider; a free model.
    assert_eq!(
        stated(r#""cost":0.00123,"cost_details":{"upstream_inference_cost":null}"#),
        Some(1_230_000)
    );
    assert_eq!(
        stated(r#""cost":0.0001,"is_byok":true,"cost_details":{"upstream_inference_cost":0.002}"#),
        Some(2_100_000)
    );
    assert_eq!(stated(r#""cost":0,"is_byok":false"#), Some(0));
    // xAI, Perplexity.
    assert_eq!(stated(r#""cost_in_usd_ticks":2709000"#), Some(270_900));
    assert_eq!(stated(r#""cost":{"input_tokens_cost":0.1,"total_cost":0.25}"#), Some(250_000_000));
    for nonsense in [r#""cost":-1"#, r#""cost":"1.5""#, r#""cost":1e30"#, r#""cost":null"#] {
        assert_eq!(stated(nonsense), None, "{nonsense}");
    }
}

#[test]
fn responses_count_searches_but_not_opened_pages() {
    let output = r#"
        {"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q"}},
        {"type":"web_search_call","id":"ws_2","status":"completed","action":{"type":"open_page","url":"u"}},
        {"type":"web_search_call","id":"ws_3","status":"completed"},
        {"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}]}"#;
    let rest = r#""service_tier":"priority","usage":{"input_tokens":9,"output_tokens":1,"cost_in_usd_ticks":10}"#;
    let expected =
        Billing { tier: ServiceTier::Priority, searches: 2, stated: Some(1), ..Billing::default() };
    assert_eq!(response(output, rest), expected);
}

#[test]
fn tools_with_fees_are_counted() {
    let output = r#"
        {"type":"file_search_call","id":"fs_1","status":"completed","queries":["a","b"]},
        {"type":"file_search_call","id":"fs_2","status":"completed"},
        {"type":"code_interpreter_call","id":"ci_1","status":"completed","code":"1","container_id":"c"},
        {"type":"image_generation_call","id":"ig_1","status":"completed"},
        {"type":"shell_call","id":"sh_1","call_id":"s","status":"completed","action":{"commands":["ls"]}},
        {"type":"shell_call_output","id":"so_1","call_id":"s","output":[]},
        {"type":"mcp_call","id":"m_1","name":"n","server_label":"l","arguments":"{}"}"#;
    let billed = response(output, r#""usage":{"input_tokens":9,"output_tokens":1}"#);
    assert_eq!(billed, Billing { file_searches: 2, unmetered: 3, ..Billing::default() });
    assert!(billed.is_lower_bound());
    let ran = message(r#""server_tool_use":{"code_execution_requests":2}"#);
    assert_eq!(ran, Billing { unmetered: 2, ..Billing::default() });
    let maps = content(
        r#","groundingMetadata":{"groundingChunks":[{"maps":{"uri":"u"}},{"maps":{}}]}"#,
        "",
    );
    assert_eq!(maps, Billing { unmetered: 1, ..Billing::default() });
    let stated = Billing { stated: Some(1), ..ran };
    assert!(!stated.is_lower_bound(), "the provider knows");
}

#[test]
fn gemini_says_its_tier_audio_and_searches() {
    let grounding = r#","groundingMetadata":{"webSearchQueries":["a","b"]}"#;
    let usage = r#","trafficType":"ON_DEMAND_PRIORITY","promptTokensDetails":[{"modality":"TEXT","tokenCount":2},{"modality":"AUDIO","tokenCount":7}],"cacheTokensDetails":[{"modality":"AUDIO","tokenCount":3}]"#;
    let expected = Billing {
        tier: ServiceTier::Priority,
        searches: 2,
        audio_input: 4,
        audio_cached: 3,
        ..Billing::default()
    };
    assert_eq!(content(grounding, usage), expected);
    assert_eq!(content("", r#","trafficType":"ON_DEMAND""#), Billing::default());
}

/// "Priority inference", Gemini API: the header says what served it, as the reply may do itself.
#[test]
fn gemini_says_its_tier_in_a_header() {
    let mut headers = HeaderMap::new();
    headers.insert("x-gemini-service-tier", "flex".parse().expect("a value"));
    let tier = |body: &str| {
        let mut reader = ResponseReader::new(Dialect::Gemini, 200, Framing::Unknown, 1 << 20);
        reader.set_tier(ServiceTier::from_headers(&headers));
        reader.push(body.as_bytes());
        reader.finish(BodyEnd::Whole).usage.billing.tier
    };
    let usage = r#""usageMetadata":{"promptTokenCount":9}"#;
    assert_eq!(tier(&format!("{{{usage}}}")), ServiceTier::Flex);
    let said = format!(r#"{{{usage},"serviceTier":"priority"}}"#);
    assert_eq!(tier(&said), ServiceTier::Priority);
    assert_eq!(ServiceTier::from_headers(&HeaderMap::new()), None);
    let interaction = r#"{"object":"interaction","id":"i","status":"completed","service_tier":"priority","usage":{"total_input_tokens":9}}"#;
    assert_eq!(tier(interaction), ServiceTier::Priority);
}

/// A turn stored before this was read says nothing of it.
#[test]
fn what_is_usual_is_not_stored() {
    let stored =
        serde_json::to_string(&Usage { input: Some(1), ..Usage::default() }).expect("json");
    assert_eq!(stored, r#"{"input":1}"#);
}
