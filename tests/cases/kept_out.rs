//! What the model does not read: results for programs, and tools that are not loaded.
//!
//! The inputs are in `tests/data/cases`.

use std::path::Path;
use std::sync::Arc;

use plimsoll::config::presets::Preset;
use plimsoll::config::{Config, Mode};
use plimsoll::context::budget::ContextView;
use plimsoll::context::policy::{Policy, PruneGate, PrunePolicy};
use plimsoll::context::{Fact, QueuedMessage};
use plimsoll::store::Scope;
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config, resolved, upstream};

/// The parsed input of a case.
fn input(case: &str, file: &str) -> Value {
    let path = Path::new("tests/data/cases").join(case).join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// One client, one proxy, one scripted provider.
struct Play {
    provider: Provider,
    server: TestServer,
    target: &'static str,
}

/// The record of one exchange.
struct Scene {
    /// What the client and the provider saw of the request, as bytes.
    asked: String,
    sent: String,
    exchange: Arc<Exchange>,
}

impl Play {
    async fn of(target: &'static str, mode: Mode, policy: Policy) -> Self {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        (config.mode, config.policy) = (mode, Arc::new(policy));
        Self::with(provider, target, config).await
    }

    async fn preset(target: &'static str, preset: Preset) -> Self {
        let provider = Provider::start().await;
        let mut config = resolved(preset, &[("PLIMSOLL_MODE", "active")]);
        config.upstreams = vec![upstream("provider", &provider.base())];
        Self::with(provider, target, config).await
    }

    async fn with(provider: Provider, target: &'static str, config: Config) -> Self {
        let server = TestServer::with(config).await;
        Self { provider, server, target }
    }

    /// The client sends `request`, the provider returns `reply`.
    async fn exchange(&mut self, request: &Value, reply: &Value) -> Scene {
        let (mut client, asked) = (Wire::connect(self.server.address).await, request.to_string());
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-plimsoll-session: s-1\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.target,
            asked.len()
        );
        client.send(format!("{head}{asked}")).await;
        let mut call = self.provider.call().await;
        let sent = call.message.text().to_owned();
        call.answer("200 OK", &reply.to_string()).await;
        client.response().await;
        Scene { asked, sent, exchange: self.server.next_exchange().await }
    }

    async fn queue(&self, scene: &Scene, text: &str) {
        let queued =
            QueuedMessage { id: text.into(), number: 1, at: 1, text: text.into(), repeats: None };
        let (ledgers, scope) = (&self.server.ledgers, scene.scope());
        let fact = Fact::Queued(Box::new(queued));
        assert!(ledgers.store_fact_if_absent(&ledgers.handle(&scope), fact).await.is_ok());
    }

    async fn view(&self, scene: &Scene) -> ContextView {
        let id = scene.exchange.id.clone();
        let view = move |ledger: &plimsoll::context::ledger::Ledger| {
            ContextView::after(ledger.turn(&id).unwrap())
        };
        self.server.ledgers.look(&scene.scope(), view).await.unwrap()
    }
}

impl Scene {
    fn scope(&self) -> Scope {
        let Exchange { tenant, session, .. } = &*self.exchange;
        Scope { tenant: tenant.clone().unwrap(), session: session.clone().unwrap() }
    }

    fn estimate(&self) -> u64 {
        self.exchange.estimate.as_ref().unwrap().tokens
    }

    /// Nothing was changed, saved or taken for an overflow.
    fn check_untouched(&self) {
        // A member may be added on the client's behalf, at the beginning (`include`).
        assert!(self.sent.ends_with(&self.asked[1..]), "{:?}", self.exchange.done.steps);
        assert_eq!(self.exchange.done.made.cut, 0);
        assert!(self.exchange.done.overflow.is_none(), "{:?}", self.exchange.done.overflow);
    }
}

/// A policy that cuts and trims whatever it may.
fn eager() -> Policy {
    let prune = PrunePolicy {
        gate: vec![PruneGate::Always],
        protect_tokens: 0,
        protect_messages: 0,
        protect_turns: 0,
        min_saving_tokens: 1,
        max_result_tokens: Some(400),
        ..PrunePolicy::default()
    };
    Policy { prune, ..Policy::default() }
}

const REGIONS: [&str; 4] = ["north", "south", "east", "west"];

/// Rows as JSON, as the case says.
fn rows(count: usize) -> String {
    let row = |i: usize| {
        let (revenue, region) = (i * 37 % 9_973, REGIONS[i % 4]);
        format!(
            r#"{{"id": {i}, "customer": "C{i:04}", "revenue": {revenue}, "region": "{region}"}}"#
        )
    };
    format!("[{}]", (0..count).map(row).collect::<Vec<_>>().join(", "))
}

const PROGRAMMATIC: &str = "programmatic-tools";
const MODES: [Mode; 3] = [Mode::Observe, Mode::Shadow, Mode::Active];

/// The messages and replies of `turns` turns in Messages, each with code that reads `count` rows: request and reply of
/// each exchange.
fn code_turns(turns: usize, count: usize) -> Vec<(Value, Value)> {
    let [begun, waiting] = ["request-1.json", "request-2.json"].map(|it| input(PROGRAMMATIC, it));
    let [calls, ends] = ["reply-1.json", "reply-2.json"].map(|it| input(PROGRAMMATIC, it));
    let of = |value: &Value, turn: usize| -> Value {
        let text = value.to_string();
        let text = text.replace("_000", &format!("_{turn:03}"));
        let text = text.replace("part 0", &format!("part {turn}"));
        let text = text.replace("Part 0", &format!("Part {turn}"));
        serde_json::from_str(&text.replace("part = 0", &format!("part = {turn}"))).unwrap()
    };
    let mut exchanges = Vec::new();
    let mut history: Vec<Value> = Vec::new();
    let grown = 113 + 58 + 22;
    for turn in 0..turns {
        let mut request = of(&begun, turn);
        history.extend(request["messages"].as_array().unwrap().clone());
        request["messages"] = json!(history);
        let mut reply = of(&calls, turn);
        reply["usage"]["input_tokens"] = json!(246 + turn * grown);
        exchanges.push((request.clone(), reply.clone()));
        history.push(json!({"role": "assistant", "content": reply["content"]}));
        let mut result = of(&waiting, turn)["messages"][2].clone();
        result["content"][0]["content"] = json!(rows(count));
        history.push(result);
        request["messages"] = json!(history);
        let mut reply = of(&ends, turn);
        reply["usage"]["input_tokens"] = json!(359 + turn * grown);
        history.push(json!({"role": "assistant", "content": reply["content"]}));
        exchanges.push((request, reply));
    }
    exchanges
}

/// The estimates of all exchanges, each of which must leave its request alone.
async fn estimates(play: &mut Play, exchanges: &[(Value, Value)]) -> Vec<u64> {
    let mut estimates = Vec::new();
    for (request, reply) in exchanges {
        let scene = play.exchange(request, reply).await;
        scene.check_untouched();
        estimates.push(scene.estimate());
    }
    estimates
}

fn is_near(estimate: u64, expected: u64) -> bool {
    estimate.abs_diff(expected) <= 60.max(expected / 20)
}

/// However long a result for code is, it reaches the provider byte for byte, costs nothing, and the reply that waits for
/// it anchors the next estimate.
#[tokio::test]
async fn code_results_are_no_context() {
    for mode in MODES {
        let mut by_size = Vec::new();
        for count in [0, 120, 9_000] {
            let mut play = Play::of("/v1/messages", mode, eager()).await;
            let exchanges = code_turns(3, count);
            let estimates = estimates(&mut play, &exchanges).await;
            for (estimate, (_, reply)) in estimates.iter().zip(&exchanges).skip(1) {
                let reported = reply["usage"]["input_tokens"].as_u64().unwrap();
                assert!(is_near(*estimate, reported), "{mode:?}, {count} rows: {estimates:?}");
            }
            by_size.push(estimates);
        }
        let last: Vec<u64> = by_size.iter().filter_map(|it| it.last().copied()).collect();
        assert!(last.iter().all(|it| *it == last[0]), "{mode:?}: {by_size:?}");
    }
}

#[tokio::test]
async fn no_preset_touches_results_for_code() {
    for preset in Preset::ALL {
        let mut play = Play::preset("/v1/messages", preset).await;
        for (request, reply) in code_turns(2, 9_000) {
            let scene = play.exchange(&request, &reply).await;
            let result = json!(rows(9_000)).to_string();
            let there = |text: &str| text.matches(&result).count();
            assert_eq!(there(&scene.sent), there(&scene.asked), "{preset:?}");
            assert!(scene.exchange.done.overflow.is_none(), "{preset:?}");
        }
    }
}

/// The same for a program of OpenAI's.
#[tokio::test]
async fn program_results_are_no_context() {
    let [first, mut second] =
        ["openai-request-1.json", "openai-request-2.json"].map(|it| input(PROGRAMMATIC, it));
    let [calls, ends] =
        ["openai-reply-1.json", "openai-reply-2.json"].map(|it| input(PROGRAMMATIC, it));
    for mode in MODES {
        let mut by_size = Vec::new();
        for (count, names_caller) in [(0, true), (120, true), (20_000, true), (20_000, false)] {
            let mut play = Play::of("/v1/responses", mode, eager()).await;
            second["input"][3]["output"] = json!(rows(count));
            let mut third = second.clone();
            if !names_caller {
                third["input"][3].as_object_mut().unwrap().remove("caller");
            }
            let exchanges = [(first.clone(), calls.clone()), (third, ends.clone())];
            by_size.push(estimates(&mut play, &exchanges).await);
        }
        assert!(by_size.iter().all(|it| is_near(it[1], 520)), "{mode:?}: {by_size:?}");
    }
}

/// A message waits while code runs, and is sent with the user's next text.
#[tokio::test]
async fn messages_wait_while_code_runs() {
    let mut play = Play::of("/v1/messages", Mode::Active, Policy::default()).await;
    let turns = code_turns(2, 3);
    let scene = play.exchange(&turns[0].0, &turns[0].1).await;
    play.queue(&scene, "Mind the tide.").await;
    let scene = play.exchange(&turns[1].0, &turns[1].1).await;
    scene.check_untouched();
    let scene = play.exchange(&turns[2].0, &turns[2].1).await;
    assert!(scene.sent.contains("Mind the tide."), "{:?}", scene.exchange.done.steps);
    let scene = play.exchange(&turns[3].0, &turns[3].1).await;
    assert!(scene.sent.contains("Mind the tide."), "it stays where it was");
}

/// The provider runs a tool of its own with the next request, which must bring nothing but the client's results.
#[tokio::test]
async fn queued_messages_wait_while_tool_runs_at_provider() {
    let mut play = Play::of("/v1/messages", Mode::Active, Policy::default()).await;
    let user = json!({"role": "user", "content": "Read that page, and look what machine this is."});
    let mut request = input(PROGRAMMATIC, "request-1.json");
    request["messages"] = json!([user]);
    let content = json!([
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {"url": "u"}},
        {"type": "tool_use", "id": "toolu_1", "name": "run_command", "input": {"command": "uname"}}
    ]);
    let mut reply = input(PROGRAMMATIC, "reply-1.json");
    reply["content"] = content.clone();
    let scene = play.exchange(&request, &reply).await;
    play.queue(&scene, "Mind the tide.").await;
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": "Linux"});
    request["messages"] = json!([user, {"role": "assistant", "content": content},
        {"role": "user", "content": [result]}]);
    let scene = play.exchange(&request, &input(PROGRAMMATIC, "reply-2.json")).await;
    scene.check_untouched();
}

const DEFERRED: &str = "deferred-tools";

/// A case's request with 60 tools of its form.
fn sixty(file: &str) -> Value {
    let mut request = input(DEFERRED, file);
    let is_namespace = file.contains("namespace");
    let place = if is_namespace { "/tools/0/tools" } else { "/tools" };
    let tools = request.pointer_mut(place).unwrap().as_array_mut().unwrap();
    let (first, rest) = (tools[0].clone(), tools.split_off(2));
    let numbered = |n: usize| -> Value {
        let text = first.to_string().replace("tool_0", &format!("tool_{n}"));
        serde_json::from_str(&text.replace("task 0", &format!("task {n}"))).unwrap()
    };
    *tools = (0..60).map(numbered).chain(rest).collect();
    request
}

/// Of deferred functions the model reads names and descriptions, of a namespace its own, in Chat Completions nothing.
#[tokio::test]
async fn deferred_tools_cost_what_is_shown() {
    let chat = json!({"id": "c", "object": "chat.completion", "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 3, "total_tokens": 203}});
    let mut response = input(PROGRAMMATIC, "openai-reply-2.json");
    response["output"] = json!([response["output"][1]]);
    let cases = [
        ("request-functions.json", "/v1/responses", 700..2_500, &response),
        ("request-namespace.json", "/v1/responses", 20..700, &response),
        ("request-chat.json", "/v1/chat/completions", 20..2_500, &chat),
    ];
    for (file, target, expected, reply) in cases {
        let mut play = Play::of(target, Mode::Observe, Policy::default()).await;
        let scene = play.exchange(&sixty(file), reply).await;
        assert!(expected.contains(&scene.estimate()), "{file}: {}", scene.estimate());
        let view = play.view(&scene).await;
        let contents = view.contents.as_ref().unwrap();
        assert_eq!(contents.deferred.len() as u64 + contents.deferred_more, 60, "{view}");
        // OpenAI's instructions on the search for tools cost some 300, the sixty definitions thousands.
        assert!(view.breakdown.tools < 400 || file.contains("functions"), "{view}");
    }
}

/// A tool of Messages that is deferred, about 1,000 tokens.
fn long_tool(name: &str) -> Value {
    let text = "what this parameter means, and when it may be left out; ".repeat(8);
    let property = json!({"type": "string", "description": text});
    let properties: serde_json::Map<String, Value> =
        (0..10).map(|n| (format!("p{n}"), property.clone())).collect();
    json!({"name": name, "description": "Does much.", "defer_loading": true,
        "input_schema": {"type": "object", "properties": properties}})
}

/// What a reference loads costs its definition from then on. The result that loads it is not cut.
#[tokio::test]
async fn reference_costs_what_it_loads() {
    let mut play = Play::of("/v1/messages", Mode::Active, eager()).await;
    let mut request = input(PROGRAMMATIC, "request-1.json");
    request["tools"] = json!([{"name": "find", "input_schema": {"type": "object"}},
        long_tool("far"), long_tool("near")]);
    let call =
        |id: &str, name: &str| json!([{"type": "tool_use", "id": id, "name": name, "input": {}}]);
    let result = |id: &str, content: Value| json!([{"type": "tool_result", "tool_use_id": id, "content": content}]);
    let mut reply = input(PROGRAMMATIC, "reply-1.json");
    (reply["content"], reply["usage"]) =
        (call("toolu_1", "find"), json!({"input_tokens": 650, "output_tokens": 50}));
    let before = play.exchange(&request, &reply).await;
    assert!(before.estimate() < 1_000, "{}", before.estimate());
    let grow = |request: &mut Value, role: &str, content: Value| {
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": role, "content": content}));
    };
    grow(&mut request, "assistant", reply["content"].clone());
    let reference = json!([{"type": "tool_reference", "tool_name": "near"}]);
    grow(&mut request, "user", result("toolu_1", reference));
    (reply["content"], reply["usage"]) =
        (call("toolu_2", "near"), json!({"input_tokens": 1_900, "output_tokens": 50}));
    let loaded = play.exchange(&request, &reply).await;
    loaded.check_untouched();
    let added = loaded.estimate() - before.estimate();
    assert!((800..2_000).contains(&added), "{added}");
    let view = play.view(&loaded).await;
    let deferred: Vec<_> =
        view.contents.as_ref().unwrap().deferred.iter().map(|it| it.tool.to_string()).collect();
    assert_eq!(deferred, ["far"], "{view}");
    grow(&mut request, "assistant", reply["content"].clone());
    grow(&mut request, "user", result("toolu_2", json!("Here.")));
    let later = play.exchange(&request, &input(PROGRAMMATIC, "reply-2.json")).await;
    later.check_untouched();
    assert!(is_near(later.estimate(), 1_960), "{}", later.estimate());
}

/// A paused turn is sent back as it is, and a message waits for its end.
#[tokio::test]
async fn messages_wait_while_paused() {
    let mut play = Play::of("/v1/messages", Mode::Active, Policy::default()).await;
    let mut request = input(PROGRAMMATIC, "request-1.json");
    let content = json!([
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {"query": "r"}}
    ]);
    let mut reply = input(PROGRAMMATIC, "reply-1.json");
    (reply["content"], reply["stop_reason"]) = (content.clone(), json!("pause_turn"));
    let scene = play.exchange(&request, &reply).await;
    play.queue(&scene, "Mind the tide.").await;
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": content}));
    play.exchange(&request, &input(PROGRAMMATIC, "reply-2.json")).await.check_untouched();
}

/// Also while a tool of an MCP server runs, in whichever order the calls stand, and not after it has ended.
#[tokio::test]
async fn messages_wait_for_every_tool_at_provider() {
    let user = json!({"role": "user", "content": "Read that page, and look what machine this is."});
    let ran = |id: &str, kind: &str| json!({"type": kind, "id": id, "name": "fetch", "server_name": "s", "input": {}});
    let own = json!({"type": "tool_use", "id": "toolu_1", "name": "run_command", "input": {}});
    let ended = json!({"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": false, "content": []});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": "Linux"});
    let reminder = json!({"role": "system", "content": "Be brief."});
    let (mcp, search) = (ran("mcptoolu_1", "mcp_tool_use"), ran("srvtoolu_1", "server_tool_use"));
    for (content, more, waits) in [
        (json!([mcp, own]), vec![], true),
        (json!([own, mcp]), vec![], true),
        (json!([own, search]), vec![reminder.clone()], true),
        (json!([mcp, ended, search, own]), vec![], true),
        (json!([mcp, ended, own]), vec![], false),
        (json!([mcp, ended, own]), vec![reminder], false),
    ] {
        let mut play = Play::of("/v1/messages", Mode::Active, Policy::default()).await;
        let mut request = input(PROGRAMMATIC, "request-1.json");
        request["messages"] = json!([user]);
        let mut reply = input(PROGRAMMATIC, "reply-1.json");
        reply["content"] = content.clone();
        let scene = play.exchange(&request, &reply).await;
        play.queue(&scene, "Mind the tide.").await;
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": content}));
        messages.push(json!({"role": "user", "content": [result]}));
        messages.extend(more);
        let scene = play.exchange(&request, &input(PROGRAMMATIC, "reply-2.json")).await;
        assert_eq!(!scene.sent.contains("Mind the tide."), waits, "{content}");
    }
}
