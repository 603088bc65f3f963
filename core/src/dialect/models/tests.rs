//! Spellings of models' names, and the models that they lead to.

use serde::Deserialize;

use foldhash::HashMap;

use super::*;
use crate::dialect::door::Door;

fn model(name: &str) -> Model {
    Catalogue::default().model(name, "")
}

#[test]
fn names_are_found_in_every_spelling() {
    let opus = model("claude-opus-4-5");
    assert!(opus.known);
    for name in [
        "claude-opus-4-5-20251101",
        "Claude-Opus-4-5",
        "anthropic/claude-opus-4.5",
        "us.anthropic.claude-opus-4-5-20251101-v1:0",
        "anthropic.claude-opus-4-5-20251101-v1:0",
        "global.anthropic.claude-opus-4-5-20251101-v1:0",
        "claude-opus-4-5@20251101",
    ] {
        assert_eq!(model(name), opus, "{name}");
    }
    assert_eq!(model("claude-opus-4-5[1m]"), opus);
    assert_eq!(model("models/gemini-2.5-flash"), model("gemini-2.5-flash"));
    assert_eq!(model("publishers/google/models/gemini-2.5-flash"), model("gemini-2.5-flash"));
    assert_eq!(model("gemini-3-pro-preview"), model("gemini-3-pro"));
    assert_eq!(model("gemini-2.0-flash-001"), model("gemini-2.0-flash"));
    let open = Model { price: None, ..model("gpt-oss-120b") };
    assert_eq!(model("openai/gpt-oss-120b:free"), open);
    assert_eq!(model("gpt-4o-mini-2024-07-18"), model("gpt-4o-mini"));
    let tuned = model("ft:gpt-4o-mini-2024-07-18:org::abc");
    assert_eq!(tuned.price.map(|price| price.input), Some(0.3));
    assert_eq!(Model { price: None, ..model("gpt-5-mini") }, model("ft:gpt-5-mini:org::abc"));
    assert_eq!(model("HuggingFaceTB/SmolLM2-135M-Instruct"), model("smollm2-135m"));
    assert_eq!(model("qwen3:8b"), model("qwen3"));
    assert_eq!(model("x-ai/grok-4"), model("grok-4"));
    assert_eq!(model("databricks-claude-opus-4-5"), opus);
    assert_eq!(model("anthropic-claude-opus-4.5"), opus);
    assert_eq!(model("openai-gpt-4o-mini"), model("gpt-4o-mini"));
    assert_eq!(model("databricks-gpt-oss-120b"), model("gpt-oss-120b"));
    assert!(!model("mistralai/Mixtral-8x7B-Instruct-v0.1").known);
}

#[test]
fn names_are_found_with_their_version_in_every_spelling() {
    for (name, same) in [
        ("x-ai/grok-4.1-fast", "grok-4-1-fast"),
        ("zai-glm-4.7", "glm-4.7"),
        ("databricks-meta-llama-3-3-70b-instruct", "llama-3.3-70b-instruct"),
        ("databricks-meta-llama-3-1-8b-instruct", "llama-3.1"),
        ("anthropic--claude-4.5-opus", "claude-opus-4-5"),
        ("accounts/fireworks/models/glm-4p7", "glm-4.7"),
        ("accounts/fireworks/models/kimi-k2p5", "kimi-k2.5"),
        ("accounts/fireworks/models/deepseek-v3p2", "deepseek-v3.2"),
        ("accounts/fireworks/models/llama-v3p3-70b-instruct", "llama-3.3-70b-instruct"),
        ("gpt-35-turbo", "gpt-3.5-turbo"),
        ("azure/gpt-35-turbo-16k", "gpt-3.5-turbo-16k"),
        (
            "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-4-5-20251101-v1:0",
            "claude-opus-4-5",
        ),
        (
            "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-opus-4-5-20251101-v1:0",
            "claude-opus-4-5",
        ),
    ] {
        assert!(model(name).known, "{name}");
        assert_eq!(model(name), model(same), "{name}");
    }
    // OpenRouter names Claude's version before its line, with the same tokenizer and binding.
    for (name, same, family, binding) in [
        (
            "anthropic/claude-4.5-haiku-20251001",
            "claude-haiku-4-5",
            Family::Claude,
            ReasoningBinding::Free,
        ),
        (
            "anthropic/claude-4.6-sonnet-20260217",
            "claude-sonnet-4-6",
            Family::Claude,
            ReasoningBinding::Free,
        ),
        ("claude-4.5-sonnet-20250929", "claude-sonnet-4-5", Family::Claude, ReasoningBinding::Free),
        (
            "anthropic/claude-4-sonnet-20250522",
            "claude-sonnet-4",
            Family::Claude,
            ReasoningBinding::Free,
        ),
        ("anthropic/claude-4.7-opus", "claude-opus-4-7", Family::ClaudeNew, ReasoningBinding::Free),
        (
            "anthropic/claude-5.5-sonnet",
            "claude-sonnet-5-5",
            Family::ClaudeNew,
            ReasoningBinding::Prefix,
        ),
        (
            "anthropic/claude-3.7-sonnet:thinking",
            "claude-3-7-sonnet",
            Family::Claude,
            ReasoningBinding::Free,
        ),
    ] {
        let found = model(name);
        assert!(found.known, "{name}");
        assert_eq!(found, model(same), "{name}");
        assert_eq!(found.family, family, "{name}");
        assert_eq!(found.binding, binding, "{name}");
    }
}

/// Another spelling of a name never leads to a model of another version.
#[test]
fn no_spelling_leads_to_another_model() {
    for name in [
        "claude-4.9-opus-20270101",
        "anthropic/claude-9-haiku",
        "x-ai/grok-4.9-fast",
        "x-ai/grok-4.1-slow-7",
        "x-ai/grok-4.0309",
        "zai-glm-4.9",
        "qwen3.9-max",
        "qwen3-9-max",
        "accounts/fireworks/models/deepseek-v3p1",
        "deepseek-v3-1",
        "accounts/fireworks/models/kimi-k2p9",
        "mistral-medium-3-1",
        "databricks-meta-llama-3-8b-instruct",
        "databricks-meta-llama-5-3-70b-instruct",
        "gpt-35-nano",
        "gpt-5-9-mini",
        "gpt-4-1-1-mini-9",
        "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/gpt5p4x0claude",
        "arn:aws:bedrock:us-east-1:123456789012:imported-model/llama-9",
    ] {
        assert!(!model(name).known, "{name}: {:?}", model(name));
    }
    // However long a name is, it has few spellings.
    for name in ["meta-".repeat(100_000), "a.".repeat(100_000), "4.4.".repeat(100_000)] {
        assert!(!model(&name).known);
        assert!(spellings(&name).len() == 1);
    }
    // Names that no rule covers get the safe defaults.
    for name in [
        "zai-",
        "claude-",
        "claude-4.5-",
        "4p7",
        "databricks-meta-",
        "arn:aws:bedrock",
        "p1p1",
        "é4p1",
    ] {
        assert!(!model(name).known, "{name}");
    }
}

#[test]
fn new_version_is_not_old_model() {
    for (name, family) in [
        ("claude-opus-4-9", Family::ClaudeNew),
        ("claude-opus-7", Family::ClaudeNew),
        ("gpt-5.9", Family::O200k),
        ("gpt-7", Family::O200k),
        ("gemini-5-pro", Family::Gemini),
    ] {
        let model = model(name);
        assert!(!model.known, "{name}");
        assert_eq!(model.family, family, "{name}");
    }
    assert_eq!(model("gpt-4-32k").family, Family::Cl100k);
    assert_eq!(model("gpt-4.1").family, Family::O200k);
    assert_eq!(model("claude-opus-4-6").family, Family::Claude);
    assert_eq!(model("claude-opus-4-7").family, Family::ClaudeNew);
}

#[test]
fn unknown_model_gets_safe_defaults() {
    for name in ["", "default", "my-local-thing", "/", "::", "é", "a.b.c/d-é-1", "-"] {
        assert_eq!(model(name), Model::unknown(), "{name}");
    }
}

#[test]
fn beta_for_million_tokens_has_ended_for_models_that_are_known() {
    let catalogue = Catalogue::default();
    let betas = "oauth-2025-04-20,context-1m-2025-08-07";
    for (name, window) in [
        ("claude-sonnet-4-5", 200_000),
        ("claude-sonnet-4-5[1m]", 200_000),
        ("claude-sonnet-4-20250514", 200_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("claude-sonnet-4-6", 1_000_000),
        ("claude-opus-9", 1_000_000),
        ("gpt-4o", 128_000),
    ] {
        assert_eq!(catalogue.model(name, betas).window, window, "{name}");
    }
    assert_eq!(catalogue.model("claude-opus-9", "").window, 200_000);
}

#[test]
fn copilot_has_own_windows() {
    let catalogue = Catalogue::default();
    for (name, window) in [
        ("claude-opus-5.5", 200_000),
        ("claude-haiku-4.5", 128_000),
        ("gpt-5.6-terra", 272_000),
        ("gpt-5.6-luna", 200_000),
        ("gpt-4o-mini-2024-07-18", 64_000),
        ("gpt-6.1-sol", 922_000),
    ] {
        assert_eq!(catalogue.model(name, "").through(Door::Copilot, name).window, window, "{name}");
    }
}

#[test]
fn chatgpt_login_has_own_windows() {
    let catalogue = Catalogue::default();
    for (name, window) in [
        ("gpt-5.6-sol", 272_000),
        ("gpt-5.5", 272_000),
        ("openai/gpt-6-astra", 272_000),
        ("gpt-5.3-codex-spark", 128_000),
        ("claude-opus-5", 1_000_000),
    ] {
        let model = catalogue.model(name, "");
        assert_eq!(model.clone().through(Door::Chatgpt, name).window, window, "{name}");
        assert_eq!(model.clone().through(Door::Api, name).window, model.window, "{name}");
        let configured = model.behind(Some(9_000), None).through(Door::Chatgpt, name);
        assert_eq!(configured.window, 9_000, "{name}");
    }
    assert_eq!(catalogue.model("gpt-5.6-sol", "").window, 922_000);
}

/// Input that fits, not the whole window with its output.
#[test]
fn gpt_window_is_what_input_may_fill() {
    for (name, window) in [
        ("gpt-5.4", 922_000),
        ("gpt-5.4-pro", 922_000),
        ("gpt-5.5", 922_000),
        ("gpt-5.5-pro", 922_000),
        ("gpt-5.1-codex", 272_000),
        ("gpt-5.1-codex-max", 272_000),
        ("gpt-5.1-codex-mini", 272_000),
        ("gpt-5-pro", 272_000),
        ("gpt-5.6-cyber", 272_000),
        ("gpt-5.3-codex-spark", 128_000),
        ("minimax-m2.1", 204_800),
        ("minimax-m2.5", 204_800),
        ("mistral-small-2506", 128_000),
    ] {
        let model = model(name);
        assert_eq!(model.window, window, "{name}");
        assert!(model.known, "{name}");
    }
}

#[test]
fn configured_models_win() {
    let better = |name: &str, window| ModelOverride {
        name: name.into(),
        window: Some(window),
        ..ModelOverride::default()
    };
    let catalogue = Catalogue::new(vec![
        better("my-*", 5_000),
        better("my-model", 6_000),
        better("GPT-4o", 7_000),
    ]);
    assert_eq!(catalogue.model("my-other", "").window, 5_000);
    assert_eq!(catalogue.model("my-model", "").window, 6_000);
    assert!(catalogue.model("my-model", "").known);
    assert_eq!(catalogue.model("openai/gpt-4o", "").window, 7_000);
    assert_eq!(catalogue.model("gpt-4o-mini", "").window, 128_000);
    assert_eq!(catalogue.model("gpt-4o", "").behind(Some(9), None).window, 9);
}

#[test]
fn reserve_is_capped_maximum_output() {
    assert_eq!(model("gpt-4o").reserve(20_000), 16_384);
    assert_eq!(model("claude-opus-4-5").reserve(16_000), 16_000);
}

/// Model names from recorded requests.
#[test]
fn recorded_models_are_known() {
    for (family, names) in [
        (
            Family::O200k,
            "gpt-4o-mini gpt-5-nano gpt-4.1-mini-2025-04-14 o3-mini openai/gpt-4o gpt-5.6-sol gpt-oss:120b \
             gpt-5.3-codex openai.gpt-oss-20b-1:0 gpt-5.4-nano-2026-03-17 gpt-6-astra o4-mini",
        ),
        (Family::Cl100k, "gpt-4 gpt-3.5-turbo-0125 gpt-4-turbo gpt-4-1106-preview"),
        (
            Family::Gemini,
            "gemini-2.0-flash-001 gemini-2.5-flash google/gemini-2.5-flash-lite gemini-3-flash-preview \
             gemini-3.1-pro-preview gemini-3-pro-preview gemini-2.0-flash-exp gemini-3.6-flash",
        ),
        (
            Family::Claude,
            "claude-haiku-4-5-20251001 claude-sonnet-4-0 claude-sonnet-4-20250514 anthropic/claude-haiku-4.5 \
             claude-3-5-haiku-latest us.anthropic.claude-sonnet-4-5-20250929-v1:0 claude-sonnet-4-6",
        ),
        (Family::ClaudeNew, "claude-opus-4-7 claude-sonnet-5 claude-opus-5-5 claude-fable-5-1"),
        (
            Family::Other,
            "grok-4-1-fast-non-reasoning grok-4.3 Qwen/Qwen3.5-397B-A17B-FP8 Qwen3-1.7B-Q4_K_M qwen3:latest \
             mistral-small-latest mistral-large-latest deepseek-v4-flash deepseek-chat kimi-k2.6 glm-5.3 \
             MiniMax-M3 sonar-reasoning-pro llama-3.3-70b-versatile mistral-small-3-2-24b-instruct \
             HuggingFaceTB/SmolLM2-1.7B-Instruct moonshotai/kimi-k2-instruct-0905",
        ),
    ] {
        for name in names.split_whitespace() {
            let model = model(name);
            assert!(model.known, "{name}");
            assert_eq!(model.family, family, "{name}");
        }
    }
}

#[test]
fn largest_window_is_known() {
    let small =
        ModelOverride { name: "gpt-5*".into(), window: Some(4_000), ..ModelOverride::default() };
    let catalogue = Catalogue::new(vec![small]);
    let known = Catalogue::default().model("gpt-5", "").window;
    assert_eq!(catalogue.model("gpt-5", "").window, 4_000);
    assert_eq!(catalogue.largest_window("gpt-5", None), Some(known));
    assert_eq!(catalogue.largest_window("gpt-5", Some(9_000_000)), Some(9_000_000));
    assert_eq!(catalogue.largest_window("unheard-of", None), None);
    assert_eq!(catalogue.largest_window("unheard-of", Some(5_000)), Some(5_000));
}

/// OpenAI's rule since GPT-5.4: above 272,000 tokens of input the whole call costs more.
#[test]
fn long_prompt_has_another_price() {
    let rates = |name: &str, prompt| {
        let price = model(name).price.expect("a price");
        price.rates(CallTerms { prompt, ..CallTerms::default() }).expect("a standard tier")
    };
    assert!((rates("gpt-6.1-sol", 272_000).input - 2.0).abs() < 1e-9, "at the step");
    let long = rates("gpt-6.1-sol", 272_001);
    assert!((long.input - 4.0).abs() < 1e-9, "{long:?}");
    assert!((long.output - 15.0).abs() < 1e-9, "{long:?}");
    assert!((rates("claude-haiku-5-5", 100_001).input - 0.5).abs() < 1e-9);
    for (prompt, output) in
        [(32_000, 5.0), (32_001, 9.0), (128_001, 15.0), (256_000, 15.0), (256_001, 60.0)]
    {
        let qwen = rates("qwen3-coder-plus", prompt);
        assert!((qwen.output - output).abs() < 1e-9, "{prompt}: {qwen:?}");
    }
}

/// A suffix that may be a product of its own has no price of another product.
#[test]
fn unknown_suffix_has_no_price() {
    for name in ["gpt-6-sol-cyber", "kimi-k3-highspeed", "glm-5.3-ultrax", "mistral-large-4-spark"]
    {
        let model = model(name);
        assert!(!model.known, "{name}: {model:?}");
        assert!(model.price.is_none(), "{name}: {model:?}");
        assert!(model.window > 100_000, "{name} keeps its family's window");
    }
    for name in ["llama-3.3-70b-instruct-fp8", "llama-4-scout-17b-16e-instruct", "o3-mini-high"] {
        assert!(model(name).known, "{name}");
    }
}

/// What no entry states is a guess: a date that never was, an effort, another's tag.
#[test]
fn only_stated_names_are_known() {
    for name in [
        "gpt-5.5-preview",
        "gpt-5.5-2019-01-01",
        "gpt-5.5-pro-high",
        "gpt-6.2-sol-latest",
        "gpt-6-sol-2026-08-01",
        "claude-opus-4-5-latest",
        "claude-opus-4-5-20190101",
        "anthropic/claude-opus-5-5:thinking",
        "openrouter/anthropic/claude-opus-4.5:beta",
        "x-ai/grok-4:free",
    ] {
        let model = model(name);
        assert!(!model.known, "{name}");
        assert_eq!(model.price, None, "{name}");
    }
    for name in ["deepseek/deepseek-v4-pro:free", "openai/gpt-oss-120b:free", "deepseek-v4-pro-fp8"]
    {
        let model = model(name);
        assert!(model.known, "{name}");
        assert_eq!(model.price, None, "{name}: each host has its own price");
    }
}

/// Facts that public tables of 2026-11 agree on and earlier versions of this catalogue had wrong, or not at all.
#[test]
fn corrections_stay_corrected() {
    for (name, input, output) in [
        ("mistral-large-4", 0.7, 2.1),
        ("mistral-medium-2505", 0.4, 2.0),
        ("gpt-5.5-cyber", 12.5, 75.0),
        ("kimi-k3.1-pro-highspeed", 4.0, 20.0),
        ("glm-5.3-flashx", 0.37, 1.25),
        ("gpt-6.2-sol", 2.0, 10.0),
        ("gpt-6.2-astra", 8.0, 40.0),
        ("claude-fable-5-2", 8.0, 40.0),
        ("gemini-4-hydrogen", 1.5, 7.5),
    ] {
        let price = model(name).price.unwrap_or_else(|| panic!("{name} has no price"));
        assert!((price.input - input).abs() < 1e-9, "{name}: {price:?}");
        assert!((price.output - output).abs() < 1e-9, "{name}: {price:?}");
    }
    for (name, window) in [
        ("gpt-6.2-sol", 922_000),
        ("muse-spark-1.3", 1_048_576),
        ("mimo-v2.6-pro", 1_048_576),
        ("minimax-m2.7", 204_800),
        ("deepseek-v4.1-flash", 1_000_000),
        ("qwen3.6-plus", 1_000_000),
        ("mistral-small-2506", 128_000),
        ("gpt-5.3-codex-spark", 128_000),
    ] {
        let model = model(name);
        assert!(model.known, "{name}");
        assert_eq!(model.window, window, "{name}");
    }
}

/// A table says what the built-in catalogue does not know yet, and the user's own word is above both.
#[test]
fn table_stands_between_catalogue_and_configuration() {
    let small = ModelOverride {
        name: "gpt-9-mini".into(),
        window: Some(4_000),
        ..ModelOverride::default()
    };
    let catalogue = Catalogue::new(vec![small.clone()]);
    let clone = catalogue.clone();
    assert!(!catalogue.model("openai/gpt-9", "").known);
    let mut table = ModelTable::default();
    for name in ["gpt-9", "gpt-9-mini"] {
        let facts = ModelOverride { name: name.into(), window: Some(500_000), ..small.clone() };
        table.models.insert(name.into(), facts);
    }
    catalogue.set_table(table);
    let model = clone.model("openai/gpt-9", "");
    assert!(model.known);
    assert_eq!(model.window, 500_000);
    assert!(!model.is_configured, "a refusal may know better");
    assert_eq!(clone.model("gpt-9-mini", "").window, 4_000);
}

/// Each fact says where it comes from: the built-in table, the configured one, the configuration, or nowhere.
#[test]
fn facts_say_where_they_come_from() {
    let mine = ModelOverride { name: "gpt-4o".into(), max_output: Some(9), ..Default::default() };
    let catalogue = Catalogue::new(vec![mine]);
    let text = "# Date: 2026-12-01\n[models]\n\"gpt-4o\" = { window = 9_000 }";
    catalogue.set_table(ModelTable::read(text).unwrap().at("mine.toml", None));
    let sources = catalogue.sources("openai/gpt-4o");
    let date = Some(jiff::civil::Date::constant(2026, 12, 1));
    assert_eq!(sources.window, FactSource::Table { place: "mine.toml".into(), date });
    assert_eq!(sources.max_output, FactSource::Configuration);
    assert!(matches!(sources.price, FactSource::BuiltIn { date: Some(_) }), "{sources:?}");
    let unknown = catalogue.sources("claude-opus-9");
    assert_eq!(unknown.window, FactSource::Guess);
    assert_eq!(unknown.price, FactSource::Unknown);
    assert!(matches!(unknown.family, FactSource::BuiltIn { .. }), "by the start of its name");
}

/// Why a public table says something else than ours (`tests/data/model-tables/differences.toml`).
#[derive(Deserialize)]
struct Explained {
    /// A name, or its start with `*` at the end.
    models: Vec<String>,
    what: Vec<String>,
    why: String,
}

impl Explained {
    fn covers(&self, difference: &Difference) -> bool {
        let named = self.models.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => difference.model.starts_with(start),
            None => **name == *difference.model,
        });
        named && self.what.iter().any(|what| what == difference.what)
    }
}

/// Retirement is told from 30 days before it on, of the model alone: not of a name that only begins like it.
#[test]
fn retirement_is_told_in_time() {
    let catalogue = Catalogue::default();
    let at = |time: &str| time.parse::<jiff::Timestamp>().unwrap().as_millisecond() as u64;
    let soon = |name: &str, time: &str| catalogue.model(name, "").retires_soon(at(time)).is_some();
    assert!(!soon("gpt-5", "2026-11-10T23:59:59Z"));
    assert!(soon("gpt-5", "2026-11-11T00:00:00Z"));
    assert!(soon("gpt-5", "2027-06-01T00:00:00Z"), "past");
    assert!(!soon("gpt-5-highspeed", "2027-06-01T00:00:00Z"), "a guess");
    assert!(!soon("gpt-6.2-sol", "2027-06-01T00:00:00Z"), "no day is announced");
}

/// Each difference from two well-known tables has its reason, and no reason is out of date.
#[test]
fn differences_from_public_tables_are_explained() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/model-tables");
    let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
    let explained: HashMap<String, Vec<Explained>> =
        toml::from_str(&read("differences.toml")).unwrap();
    for (table, least) in [("litellm", 300), ("models_dev", 150)] {
        let table_of_others = ModelTable::read(&read(&format!("{table}.json"))).unwrap();
        let TableComparison { compared, differences, .. } =
            Catalogue::default().compare(&table_of_others);
        assert!(compared >= least, "{table}: only {compared} names are in both");
        let reasons = &explained[table];
        let open: Vec<_> = differences
            .iter()
            .filter(|one| !reasons.iter().any(|reason| reason.covers(one)))
            .collect();
        assert!(open.is_empty(), "{table}: {open:#?}");
        for reason in reasons {
            assert!(differences.iter().any(|one| reason.covers(one)), "{table}: {}", reason.why);
        }
    }
}
