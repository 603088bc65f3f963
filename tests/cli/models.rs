//! `plimsoll models`, and the configured table of models.

use serde_json::json;

use super::program::{Serving, run};
use super::support::http1::Provider;

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
    assert!(done.out.contains("times 0.5 at batch, 2 at fast\n"), "{}", done.out);
    assert!(done.out.contains("times 1.1 in a region\n"), "{}", done.out);
    assert!(done.out.contains("  source:     built in (2026-"), "{}", done.out);
    assert!(done.out.contains("window: a guess; output: a guess"), "{}", done.out);
    let deepseek = run(&["models", "deepseek-v4-flash", "gpt-6.1-sol"]).await;
    assert!(
        deepseek.out.contains("outside peak hours (01:00:00 to 04:00:00 and"),
        "{}",
        deepseek.out
    );
    let step = "$4 input, $15 output, $0.2 cache read, $5 cache write for prompts above 272,000";
    assert!(deepseek.out.contains(step), "{}", deepseek.out);
    let retiring = run(&["models", "gpt-5"]).await;
    assert!(retiring.out.contains("  retires:    2026-12-11: its maker"), "{}", retiring.out);
    let json = run(&["models", "gemini-4-argon", "--json"]).await;
    let value: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(value[0]["price"]["change"]["from"], "2026-12-01");
    assert_eq!(value[0]["sources"]["window"]["from"], "built-in");
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
    assert!(done.out.contains("models.json (20"), "{}", done.out);
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
    assert!(done.out.contains("names are in both; differences: 1.\n"), "{}", done.out);
    let left_out =
        "Left out: 2 names with a vendor before them, and 1 that are not known here (gpt-9).\n";
    assert!(done.out.ends_with(left_out), "{}", done.out);
}

#[tokio::test]
async fn used_models_that_nobody_knows_are_listed() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let serving = Serving::start(&provider.base(), &["--data", data]).await;
    let none = run(&["models", "--missing", "--data", data]).await;
    assert!(none.out.starts_with("Window and price of all models"), "{}{}", none.out, none.err);
    for model in ["claude-opus-5-5", "our-own-model"] {
        let body = json!({
            "model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "Hail."}],
        });
        let mut client = serving.post("/v1/messages", &body.to_string(), &[]).await;
        let reply = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": "Aye."}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 5},
        });
        provider.call().await.answer("200 OK", &reply.to_string()).await;
        client.response().await;
    }
    let missing = run(&["models", "--missing", "--data", data]).await;
    assert_eq!(missing.code, 0, "{}", missing.err);
    assert!(missing.out.contains("our-own-model  1      window (a guess"), "{}", missing.out);
    assert!(missing.out.contains("[model.\"our-own-model\"]"), "{}", missing.out);
    assert!(!missing.out.contains("claude"), "{}", missing.out);
    // Wherever its window is shown, it is labelled.
    let line = run(&["line", "--data", data]).await;
    assert!(line.out.contains(" / 128,000, a guess ("), "{}{}", line.out, line.err);
    for command in ["line", "sessions", "context"] {
        let json = run(&[command, "--data", data, "--json"]).await.out.replace(' ', "");
        assert!(json.contains("\"window_guessed\":true"), "{command}: {json}");
    }
}

/// A table at a URL is fetched, and its copy is what commands and the next start read.
#[tokio::test]
async fn table_at_a_url_is_fetched() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let text = format!("catalogue = \"{}/models.json\"\n", provider.base());
    std::fs::write(&file, text).unwrap();
    let config = file.to_str().unwrap();
    let data = folder.path().join("data");
    let places = ["--config", config, "--data", data.to_str().unwrap()];
    let about = [["models", "gpt-9"].as_slice(), &places].concat();
    assert!(run(&about).await.out.contains("a guess"), "nothing was fetched yet");
    let mut serving = Serving::start(&provider.base(), &places).await;
    let mut asked = provider.call().await;
    assert!(asked.message.head.starts_with("GET /models.json "), "{}", asked.message.head);
    asked.answer("200 OK", TABLE).await;
    serving.wait_for_log("has 4 models").await;
    let done = run(&about).await;
    assert!(done.out.contains("window:     500,000 tokens of input\n"), "{}", done.out);
    for wrong in [
        "http://tables.example/a.json",
        "ftp://tables.example/a.json",
        "https://me:secret@tables.example/a.json",
    ] {
        std::fs::write(&file, format!("catalogue = \"{wrong}\"\n")).unwrap();
        let refused = run(&["check", "--config", config]).await;
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("is no address of a table"), "{}", refused.err);
        assert!(!refused.err.contains("secret"), "{}", refused.err);
    }
}

/// A number that cannot be and a key that nobody knows are refused with the file, the model and the key.
#[tokio::test]
async fn impossible_table_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, "catalogue = \"mine.toml\"\n").unwrap();
    let rates = "output = 1, cache_read = 1, cache_write = 1";
    for (entry, told) in [
        ("window = 0".to_owned(), "window = 0 is not"),
        (format!("price = {{ input = nan, {rates} }}"), "price.input = NaN is not"),
        (format!("price = {{ input = 1, {rates}, serach = 3 }}"), "unknown field `serach`"),
        ("colour = \"red\"".to_owned(), "unknown field `colour`"),
    ] {
        let table = format!("[models]\n\"gpt-9\" = {{ {entry} }}\n");
        std::fs::write(folder.path().join("mine.toml"), table).unwrap();
        let refused = run(&["check", "--config", file.to_str().unwrap()]).await;
        assert_eq!(refused.code, 1, "{entry}");
        let expected = format!("mine.toml: model \"gpt-9\": {told}");
        assert!(refused.err.contains(&expected), "{entry}: {}", refused.err);
    }
    let table = r#"{"gpt-9": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 500000,
        "input_cost_per_token": -1}}"#;
    std::fs::write(folder.path().join("mine.toml"), table).unwrap();
    let noted = run(&["check", "--config", file.to_str().unwrap()]).await;
    assert_eq!(noted.code, 0, "{}", noted.err);
    assert!(noted.out.contains("openai/gpt-9: input_cost_per_token = -1"), "{}", noted.out);
}

/// What only asks the running server needs no table, and the server goes on with the one that it has.
#[tokio::test]
async fn queries_need_no_table() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let table = folder.path().join("models.json");
    std::fs::write(&table, TABLE).unwrap();
    std::fs::write(&file, "catalogue = \"models.json\"\n").unwrap();
    let data = folder.path().join("data");
    let places = ["--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()];
    let _serving = Serving::start(&provider.base(), &places).await;
    for damage in [Some("{\"a\""), None] {
        match damage {
            Some(text) => std::fs::write(&table, text).unwrap(),
            None => std::fs::remove_file(&table).unwrap(),
        }
        for command in [&["spend"][..], &["sessions"], &["line"], &["caps"], &["lessons"]] {
            let done = run(&[command, &places].concat()).await;
            assert_eq!(done.code, 0, "{command:?}: {}", done.err);
        }
    }
    let check = run(&["check", "--config", places[1]]).await;
    assert_eq!(check.code, 1, "{}", check.out);
}

/// What the server's list of models taught is shown with its place and its end, and is not missing.
#[tokio::test]
async fn listed_windows_are_known() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let upstream = format!("vllm={}", provider.base());
    let mut serving =
        Serving::start(&provider.base(), &["--data", data, "--upstream", &upstream]).await;
    let mut client = serving.get("/vllm/v1/models", &[("authorization", "Bearer k")]).await;
    let list = json!({"object": "list", "data": [{"id": "our-own-model", "object": "model", "max_model_len": 77_000}]});
    provider.call().await.answer("200 OK", &list.to_string()).await;
    client.response().await;
    serving.wait_for_log("lists other windows").await;
    let body =
        json!({"model": "our-own-model", "messages": [{"role": "user", "content": "Hail."}]});
    let headers = [("authorization", "Bearer k")];
    let mut client = serving.post("/vllm/v1/chat/completions", &body.to_string(), &headers).await;
    let reply = json!({
        "id": "c", "object": "chat.completion", "model": "our-own-model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Aye."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    });
    provider.call().await.answer("200 OK", &reply.to_string()).await;
    client.response().await;
    let told = run(&["models", "our-own-model", "--data", data]).await;
    let expected =
        "window:     77,000 tokens of input through vllm, as its list of models says, until 20";
    assert!(told.out.contains(expected), "{}{}", told.out, told.err);
    assert!(!told.out.contains("the name is not known"), "{}", told.out);
    let missing = run(&["models", "--missing", "--data", data]).await;
    assert!(
        missing.out.contains("our-own-model  1      price\n"),
        "{}{}",
        missing.out,
        missing.err
    );
}

/// A table of another year goes over the built-in one, and says so.
#[tokio::test]
async fn old_table_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let table = "# Date: 2023-01-05\n[models]\n\"gpt-4o\" = { window = 9_000 }\n";
    std::fs::write(folder.path().join("mine.toml"), table).unwrap();
    std::fs::write(&file, "catalogue = \"mine.toml\"\n").unwrap();
    let config = file.to_str().unwrap();
    let noted = run(&["check", "--config", config]).await;
    assert_eq!(noted.code, 0, "{}", noted.err);
    assert_eq!(noted.out.matches("it is of 2023-01-05").count(), 1, "{}", noted.out);
    let shown = run(&["models", "gpt-4o", "--config", config]).await;
    assert!(shown.out.contains("mine.toml (2023-01-05); output: built in (2026-"), "{}", shown.out);
}
