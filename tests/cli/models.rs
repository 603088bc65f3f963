//! `plimsoll models`, and the configured table of models.

use super::program::run;

const TABLE: &str = r#"{
  "gpt-9": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 500000,
    "max_output_tokens": 64000, "input_cost_per_token": 3e-06, "output_cost_per_token": 9e-06},
  "claude-opus-5": {"litellm_provider": "anthropic", "mode": "chat", "max_input_tokens": 200000,
    "input_cost_per_token": 5e-06, "output_cost_per_token": 2.5e-05}
}"#;

#[tokio::test]
async fn models_facts_are_shown() {
    let done = run(&["models", "claude-opus-5-5", "my-model"]).await;
    assert_eq!(done.code, 0);
    assert_eq!(done.err.as_str(), "");
    assert!(done.out.contains("window:     1,000,000 tokens of input\n"), "{}", done.out);
    assert!(done.out.contains("$4 input, $20 output, $0.2 cache read"), "{}", done.out);
    assert!(done.out.contains("128,000 tokens of input (a guess"), "{}", done.out);
    let json = run(&["models", "gemini-4-argon", "--json"]).await;
    let value: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(value[0]["price"]["change"]["from"], "2026-12-01");
}

#[tokio::test]
async fn table_brings_models_that_are_not_built_in() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("models.json");
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&table, TABLE).unwrap();
    std::fs::write(&file, "catalogue = \"models.json\"\n").unwrap();
    let config = file.to_str().unwrap();
    let done = run(&["models", "gpt-9", "--config", config]).await;
    assert_eq!(done.code, 0);
    assert_eq!(done.err.as_str(), "");
    assert!(done.out.contains("window:     500,000 tokens of input\n"), "{}", done.out);
    assert!(done.out.contains("$3 input, $9 output"), "{}", done.out);
    std::fs::write(&table, "{\"a\"").unwrap();
    let broken = run(&["check", "--config", config]).await;
    assert_eq!(broken.code, 1);
    assert!(broken.err.contains("models.json: it is neither JSON nor TOML"), "{}", broken.err);
}

#[tokio::test]
async fn table_of_others_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("models.json");
    std::fs::write(&table, TABLE).unwrap();
    let done = run(&["models", "--compare", table.to_str().unwrap()]).await;
    assert_eq!(done.code, 0);
    assert_eq!(done.err.as_str(), "");
    let lines: Vec<Vec<&str>> =
        done.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.contains(&vec!["claude-opus-5", "window", "1000000", "200000"]), "{}", done.out);
    assert!(done.out.ends_with("names are in both; 2 differences.\n"), "{}", done.out);
}
