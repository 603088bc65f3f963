//! Where pruning, preparing, compacting and refusing begin, as the context view shows it in every preset.

use plimsoll::config::presets::Preset;
use plimsoll::context::budget::ContextView;
use plimsoll::context::policy::Mode;
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::presets::play;
use crate::shown::shown;

const MODEL: &str = "claude-sonnet-4-5";

async fn view(play: &mut Play) -> ContextView {
    let content = json!([{"type": "text", "text": "Three metres."}]);
    let history = [message("user", json!("How deep is she?"))];
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, content))
        .await;
    shown(play, &scene.exchange).await
}

fn tokens(view: &ContextView) -> Value {
    let json = serde_json::to_value(view).unwrap();
    let at = |name: &str| json["thresholds"][name]["tokens"].clone();
    json!([json["usable"], at("pruning"), at("preparing"), at("compacting"), at("refusing")])
}

/// The window is 200,000, of which 180,000 are effective and 167,000 the threshold: the JSON has all of them.
#[tokio::test]
async fn context_view_has_all_thresholds_of_micro_compact() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    let view = view(&mut play).await;
    assert_eq!(view.total, 1_850);
    assert_eq!(view.window, 200_000);
    assert_eq!(tokens(&view), json!([180_000, 0, 150_300, 167_000, 200_000]));
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!(json["thresholds"]["compacting"]["percent"], json!(83.5));
    let text = "\
Free space: 178,150 tokens (after 20,000 output buffer)

Thresholds:
  Pruning:       with every call
  Preparing:     150,300 tokens (75.2%)
  Compacting:    167,000 tokens (83.5%)
  Refusing:      200,000 tokens (100.0%)";
    assert!(view.to_string().ends_with(text), "{view}");
}

/// The buffer is a category of its own. Free space is the window less the used tokens less the buffer.
#[tokio::test]
async fn claude_code_shows_its_buffer_and_what_is_free_before_it() {
    let mut play = play(Preset::ClaudeCode, &[]).await;
    let view = view(&mut play).await;
    assert_eq!(view.autocompact_buffer, Some(33_000));
    assert_eq!(view.free, 200_000 - view.total - 33_000);
    let free =
        "\n\nAutocompact buffer: 33,000 tokens\nFree space: 165,150 tokens (after the buffer)\n\n";
    assert!(view.to_string().contains(free), "{view}");
    assert_eq!(serde_json::to_value(&view).unwrap()["autocompact_buffer"], json!(33_000));
}

/// Without automatic compaction, 500 tokens are kept free for the user's own command.
#[tokio::test]
async fn claude_codes_buffer_is_small_where_nothing_is_compacted() {
    let mut play = play(Preset::ClaudeCode, &[("PLIMSOLL_COMPACT_ENGINE", "off")]).await;
    let view = view(&mut play).await;
    assert_eq!(view.autocompact_buffer, Some(500));
    assert_eq!(view.free, 200_000 - view.total - 500);
    assert_eq!(view.thresholds.unwrap().compacting, None);
}

#[tokio::test]
async fn context_view_shows_thresholds_of_every_preset() {
    for (preset, points) in [
        (Preset::MicroCompact, json!([180_000, 0, 150_300, 167_000, 200_000])),
        (Preset::Opencode, json!([168_000, 0, 151_200, 168_000, 200_000])),
        (Preset::GeminiCli, json!([200_000, null, 90_000, 100_000, 200_000])),
        (Preset::Dexto, json!([168_000, 0, null, 168_000, 200_000])),
        (Preset::ClaudeCode, json!([180_000, 167_000, 150_300, 167_000, 200_000])),
        (Preset::Llxprt, json!([136_000, null, 104_040, 115_600, 200_000])),
    ] {
        let mut play = play(preset, &[]).await;
        assert_eq!(tokens(&view(&mut play).await), points, "{}", preset.name());
    }
}

/// Without decisions no limit is shown, except that of the provider.
#[tokio::test]
async fn no_pruning_or_compaction_limit_is_shown_if_nothing_is_decided() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    play.config.mode = Mode::Observe;
    play.restart().await;
    let view = view(&mut play).await;
    assert_eq!(tokens(&view), json!([180_000, null, null, null, 200_000]));
}
