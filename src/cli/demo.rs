//! `plimsoll demo`: a server, a scripted provider behind it and an agent in front of it, in one process on
//! free loopback ports.
//!
//! Data is stored in a temporary folder that is deleted at the end. Nothing leaves the machine.

use std::net::SocketAddr;
use std::path::Path;

use demo_provider::ScriptedProvider;

use super::print::{self, CliError};
use super::serve::{self, Ports, Server};
use super::style;
use crate::config::{self, ConfigFlag, ConfigSources};
use crate::demo;
use crate::telemetry::log::{Log, LogFormat};

/// Plays the sessions; with `provider`, only serves the scripted provider at that address.
pub(super) fn run(provider: Option<SocketAddr>, keep: bool, is_full: bool) -> Result<(), CliError> {
    serve::block_on(async {
        match provider {
            Some(address) => provide(address).await,
            None => play(keep, is_full).await,
        }
    })
}

async fn provide(address: SocketAddr) -> Result<(), CliError> {
    let mut stop = serve::signals()?;
    let provider = ScriptedProvider::start(address, demo::count_tokens).await?;
    print::line(&format!("plimsoll: scripted provider on http://{}", provider.address()));
    let _ = stop.wait_for(|stop| *stop).await;
    Ok(())
}

async fn play(keep: bool, is_full: bool) -> Result<(), CliError> {
    let mut stopped = serve::signals()?;
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let provider = ScriptedProvider::start(address, demo::count_tokens).await?;
    // It has a random name, belongs only to this process, and is deleted when it is dropped.
    let data = tempfile::Builder::new().prefix("plimsoll-demo-").tempdir()?;
    let loaded = config::load(&sources(&provider, data.path()))?;
    let server =
        Server::build(loaded, Log::to(LogFormat::Text, std::io::sink())?, Ports::Configured)
            .await?;
    let listen = server.listen;
    let admin = server.admin_at;
    let token = server.access.admin.0.clone();
    let page = server.page();
    // The server is consumed by serving.
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(server.serve(stopping));
    print::line(&format!(
        "clients http://{listen}  admin http://{admin}\nprovider http://{}\n",
        provider.address()
    ));
    if keep {
        print::line(&format!("Sessions: {page}\nMetrics: http://{admin}/metrics\n"));
    }
    let mut tell = |text: &str| print::styled(&style::with_gauges(text));
    let played = demo::play(listen, admin, &token, is_full, &mut tell).await;
    match (keep, &played) {
        (true, Ok(())) => {
            let data = data.path().display();
            print::line(&format!(
                "\nStill serving: {page}\nIn another terminal: plimsoll context --data {data}\nCtrl-C ends it."
            ));
            let _ = stopped.wait_for(|stop| *stop).await;
        }
        (false, Ok(())) => print::line(
            "\nIts page is gone with it. `plimsoll demo --keep` (`make demo ARGS=--keep`) keeps it open.",
        ),
        (_, Err(_)) => {}
    }
    stop.send_replace(true);
    let _ = serving.await;
    Ok(played?)
}

fn flag(key: &str, value: String) -> ConfigFlag {
    ConfigFlag { name: format!("--{key}"), key: key.to_owned(), value }
}

fn sources(provider: &ScriptedProvider, data: &Path) -> ConfigSources {
    // Free loopback ports, all upstreams at the provider, and nothing from this machine's files or environment.
    let base = format!("http://{}", provider.address());
    let upstreams =
        ["anthropic", "openai", "gemini"].map(|name| flag("upstream", format!("{name}={base}")));
    let mut flags = vec![
        flag("listen", "127.0.0.1:0".into()),
        flag("admin", "127.0.0.1:0".into()),
        flag("data", data.display().to_string()),
        // The demo has no private data.
        flag("metrics_open", "true".into()),
        // Shows what length divided by four would have estimated beside the estimate.
        flag("estimate.classic", "true".into()),
    ];
    flags.extend(upstreams);
    ConfigSources { flags, ..ConfigSources::default() }
}
