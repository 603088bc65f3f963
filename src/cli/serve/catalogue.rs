//! The configured table of models is read again when its file changes, and fetched again if it is at a URL, so that a new
//! model needs no restart.
//!
//! What cannot be read or fetched leaves the table as it is, and is told once for each change.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, SystemTime};

use http::Uri;

use crate::cli::whole_file::write_whole;
use crate::config::Config;
use crate::dialect::models::{Catalogue, ModelTable};
use crate::proxy::Proxy;

/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(30);
/// How often the table is fetched, and how soon again if that failed.
const FETCHED: Duration = Duration::from_secs(6 * 60 * 60);
const AGAIN: Duration = Duration::from_secs(5 * 60);
/// The largest table, bytes. LiteLLM's has two million.
const LARGEST: usize = 16 << 20;

/// Never ends. Without a table there is nothing to do.
pub(super) async fn follow(config: &Config, proxy: &Proxy) -> Infallible {
    let Some(file) = config.catalogue_file.as_deref() else { return std::future::pending().await };
    match &config.catalogue_url {
        Some(url) => follow_url(url, file, &config.catalogue, proxy).await,
        None => follow_file(file, &config.catalogue).await,
    }
}

async fn follow_url(url: &Uri, copy: &Path, catalogue: &Catalogue, proxy: &Proxy) -> Infallible {
    let mut failed = false;
    loop {
        match proxy.fetch(url, LARGEST).await {
            Ok(bytes) if set(url, catalogue, &String::from_utf8_lossy(&bytes)) => {
                failed = false;
                if let Err(error) = write_whole(copy, &bytes) {
                    tracing::warn!("catalogue: {}: {error}", copy.display());
                }
            }
            Ok(_) => failed = true,
            Err(reason) => {
                if !failed {
                    tracing::warn!("catalogue: {url} stays as it was: {reason}");
                }
                failed = true;
            }
        }
        tokio::time::sleep(if failed { AGAIN } else { FETCHED }).await;
    }
}

async fn follow_file(file: &Path, catalogue: &Catalogue) -> Infallible {
    let mut seen = changed_at(file).await;
    loop {
        tokio::time::sleep(EVERY).await;
        let now = changed_at(file).await;
        if now == seen || now.is_none() {
            continue;
        }
        seen = now;
        match tokio::fs::read_to_string(file).await {
            Ok(text) => {
                set(file.display(), catalogue, &text);
            }
            Err(error) => tracing::warn!("catalogue: {}: {error}", file.display()),
        }
    }
}

/// Whether the table could be used.
fn set(place: impl std::fmt::Display, catalogue: &Catalogue, text: &str) -> bool {
    match ModelTable::read(text) {
        Ok(table) => {
            let models = table.models.len();
            tracing::info!("catalogue: {place} has {models} models");
            catalogue.set_table(table);
            true
        }
        Err(error) => {
            tracing::warn!("catalogue: {place} stays as it was: {error}");
            false
        }
    }
}

async fn changed_at(file: &Path) -> Option<SystemTime> {
    tokio::fs::metadata(file).await.ok()?.modified().ok()
}
