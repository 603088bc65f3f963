//! The context view and the explanation of a request show what was compacted: when, by whom, why, how much of it is
//! left, and what that cost.

use serde_json::{Value, json};

use crate::play::{MARK, MODEL, Play, Scene, policy, send_summary, tokens, without_a_pause};
use crate::support::looking::Looking;

const CONTEXT: &str = "/api/v1/sessions/s/threads/latest/context";

fn explain(scene: &Scene) -> String {
    format!("/api/v1/requests/{}/explain", scene.exchange.id)
}

/// Plays turns until this summary is used.
async fn compacted(play: &mut Play, summary: &str, number: u64) -> Scene {
    let question = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if tokens(&scene) > MARK {
            break play.next_summary_request().await;
        }
    };
    send_summary(question, summary).await;
    play.wait_until_written(number).await;
    loop {
        let scene = play.turn(play.history.len() / 2).await;
        if scene.bytes.contains(summary) {
            return scene;
        }
    }
}

#[tokio::test]
async fn waiting_summary_is_shown_and_used_one_with_its_cost() {
    let mut play = Play::of(without_a_pause()).await;
    let (_, question) = play.fill_to_mark().await;
    let looking = Looking::at(&play.server, &play.config).await;
    let before = looking.json(CONTEXT).await;
    assert_eq!(before["compactions"], json!({"used": [], "ready": null}));
    send_summary(question, "Numbered questions.").await;
    play.wait_until_written(1).await;
    let waits = looking.json(CONTEXT).await;
    let ready = &waits["compactions"]["ready"];
    assert_eq!(waits["compactions"]["used"], json!([]));
    assert_eq!(ready["why"], json!("threshold"));
    let text = looking.get(&format!("{CONTEXT}?format=text")).await;
    assert!(text.text().contains("\nA summary is ready, to be used past the threshold:\n  "));

    let first = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if scene.bytes.contains("Numbered questions.") {
            break scene;
        }
    };
    let compactions = &looking.json(CONTEXT).await["compactions"];
    assert_eq!(compactions["used"].as_array().unwrap().len(), 1);
    assert_eq!(compactions["ready"], Value::Null);
    let used = &compactions["used"][0];
    let step = &first.exchange.done.steps[0];
    let expected = json!({
        "engine": "summary", "upstream": "up", "model": MODEL, "why": "threshold",
        "at": used["at"], "request": first.exchange.id, "took_ms": used["took_ms"],
        "tokens_before": step.tokens_before, "tokens_after": step.tokens_after,
        "spent": {"input": 900, "output": 20}, "dollars": used["dollars"],
    });
    assert_eq!(*used, expected);
    // At the catalogue's prices of 3 and 15 dollars a million.
    assert!((used["dollars"].as_f64().unwrap() - (900.0 * 3.0 + 20.0 * 15.0) / 1e6).abs() < 1e-9);
    assert!(used["at"].as_u64().unwrap() >= ready["at"].as_u64().unwrap());

    // The second summary includes the first; after a restart too, and for a turn that only repeats it.
    compacted(&mut play, "Both of them.", 2).await;
    play.restart().await;
    let last = play.turn(80).await;
    let looking = Looking::at(&play.server, &play.config).await;
    let context = looking.json(CONTEXT).await;
    let explained = looking.json(&explain(&last)).await;
    assert_eq!(context["compactions"], explained["compactions"]);
    let used = context["compactions"]["used"].as_array().unwrap();
    assert_eq!(used.len(), 2);
    assert_eq!(used[0]["request"], json!(first.exchange.id));
    assert!(used[1]["tokens_before"].as_u64() > used[1]["tokens_after"].as_u64());
    let replayed = &explained["steps"][0];
    assert_eq!(replayed["change"], json!("compacted"));
    assert_eq!(replayed["decision"], json!("replayed"));
    assert_eq!(replayed["decided_by"], used[1]["request"]);
    assert_eq!(explained["unlisted"], 0);
    for path in [CONTEXT.to_owned(), explain(&last)] {
        let text = looking.get(&format!("{path}?format=text")).await.text().to_owned();
        for part in [
            "\nCompacted:\n  ",
            "  because the context fills past compact.threshold (docs/rewriting.md \"Compaction\")\n",
            "  written by the model at Plimsoll's request, claude-sonnet-4-5 at up\n",
            " s, 900 tokens read, 20 written, $0.0030\n",
            "  1 earlier summary is included in it; $0.0060 for all of them",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("Both of them."), "no text of a summary");
    }
}

/// The cost of summaries is subtracted from the savings, in a session and in the total.
#[tokio::test]
async fn cost_of_summaries_is_subtracted_from_savings() {
    let mut play = Play::of(without_a_pause()).await;
    compacted(&mut play, "Numbered questions.", 1).await;
    let last = compacted(&mut play, "Both of them.", 2).await;
    let looking = Looking::at(&play.server, &play.config).await;
    let all = looking.json("/api/v1/savings").await;
    let total = &all["total"];
    let summaries = &total["summaries"];
    let count = |name: &str| summaries[name].as_u64().unwrap();
    assert_eq!(count("written"), 2, "{all}");
    assert_eq!(count("priced"), 2, "{all}");
    assert_eq!(count("input"), 2 * 900, "{all}");
    assert_eq!(count("output"), 2 * 20, "{all}");
    assert!(count("tokens_compacted") > last.exchange.done.tokens_compacted, "on each turn: {all}");
    // At the catalogue's prices of 3 and 15 dollars a million. This provider caches nothing, so what the summaries
    // replaced would have cost 3 dollars a million.
    let cost = 2.0 * (900.0 * 3.0 + 20.0 * 15.0) / 1e6;
    let saved = count("tokens_compacted") as f64 * 3.0 / 1e6;
    let dollars = |of: &Value| of.as_f64().unwrap();
    assert!((dollars(&summaries["dollars"]) - cost).abs() < 1e-9, "{all}");
    assert!((dollars(&total["money"]["saved"]) - saved).abs() < 1e-9, "{all}");
    assert!((dollars(&total["net"]) - (saved - cost)).abs() < 1e-9, "{all}");
    assert_eq!(all["sessions"][0]["savings"], *total, "it is listed");
    let text = looking.get("/api/v1/sessions/s/savings?format=text").await.text().to_owned();
    for part in [
        "  Summaries:    $0.0060 on the 2 of 2 whose price is known\n",
        "                1,800 tokens read for them, 40 generated\n",
        &format!("  Net:          ${:.4}\n", saved - cost),
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

/// A turn before the cut depends on no summary.
#[tokio::test]
async fn rewind_shows_no_compaction() {
    let mut play = Play::of(policy()).await;
    compacted(&mut play, "Numbered questions.", 1).await;
    play.history.truncate(4);
    let scene = play.turn(50).await;
    let looking = Looking::at(&play.server, &play.config).await;
    let explained = looking.json(&explain(&scene)).await;
    assert_eq!(explained["compactions"], json!({"used": [], "ready": null}));
}
