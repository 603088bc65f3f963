//! What the log says about an OpenTelemetry collector that takes nothing.

use super::program::Serving;
use super::support::http1::Provider;
use super::support::wire;

/// Plimsoll from its start to its end, with one exchange: each signal was sent at least once. The lines about the collector.
async fn warnings(collector: &str) -> Vec<String> {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("plimsoll.toml");
    std::fs::write(&config, format!("[otel]\nendpoint = \"{collector}\"\n")).unwrap();
    let more = ["--config", config.to_str().unwrap()];
    let mut serving = Serving::start(&provider.base(), &more).await;
    let script = wire::anthropic();
    let asking = serving.post(script.path, script.request, &[("x-api-key", "sk-test")]);
    let (mut client, mut call) = tokio::join!(asking, provider.call());
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    assert_eq!(client.response().await.status(), 200);
    serving.signal("TERM").await;
    assert_eq!(serving.ended().await, 0);
    let log = serving.log_to_its_end().await;
    let about = |line: &&str| line.contains("WARN") && line.contains("OpenTelemetry: ");
    log.lines().filter(about).map(str::to_owned).collect()
}

#[tokio::test]
async fn unreachable_collector_is_one_warning_for_all_signals() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let warnings = warnings(&base).await;
    let [warning] = warnings.as_slice() else { panic!("{warnings:#?}") };
    assert!(warning.contains(&format!("OpenTelemetry: {base}: ")), "{warning}");
}

/// Some take only traces.
#[tokio::test]
async fn refused_signal_is_a_warning_of_its_own() {
    let collector = Provider::start().await;
    let base = collector.base();
    let answering = tokio::spawn(async move {
        loop {
            collector.call().await.answer("404 Not Found", "").await;
        }
    });
    let warnings = warnings(&base).await;
    answering.abort();
    for signal in ["traces", "metrics", "logs"] {
        let place = format!("OpenTelemetry: {base}/v1/{signal}: it answered 404 Not Found.");
        let told = warnings.iter().filter(|warning| warning.contains(&place)).count();
        assert_eq!(told, 1, "{warnings:#?}");
    }
    assert_eq!(warnings.len(), 3, "{warnings:#?}");
}
