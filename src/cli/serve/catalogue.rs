//! The configured table of models is read again when its file changes, and fetched again if it is at a URL, so that a new
//! model needs no restart.
//!
//! What cannot be read or fetched leaves the table as it is, and is told once for each change.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Uri;

use crate::cli::whole_file::write_whole;
use crate::config::Config;
use crate::dialect::credentials::redact;
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
    // Its path may have a key.
    let place = redact(&url.to_string()).into_owned();
    let mut last_report = None;
    loop {
        let fetched = proxy.fetch(url, LARGEST).await;
        let used = match fetched {
            Ok(bytes) => use_table(&place, bytes, Some(copy), catalogue).await,
            Err(reason) => Err(reason),
        };
        let wait = if used.is_ok() { FETCHED } else { AGAIN };
        let reason = used.err();
        if let Some(reason) = &reason
            && last_report != Some(reason.clone())
        {
            tracing::warn!("catalogue: {place}: {reason}; the table stays as it is");
        }
        last_report = reason;
        tokio::time::sleep(wait).await;
    }
}

async fn follow_file(file: &Path, catalogue: &Catalogue) -> Infallible {
    let place = file.display().to_string();
    let mut last_change = changed_at(file).await;
    loop {
        tokio::time::sleep(EVERY).await;
        let change = changed_at(file).await;
        if change == last_change || change.is_none() {
            continue;
        }
        last_change = change;
        let used = match tokio::fs::read(file).await {
            Ok(bytes) => use_table(&place, bytes.into(), None, catalogue).await,
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = used {
            tracing::warn!("catalogue: {place}: {reason}; the table stays as it is");
        }
    }
}

/// Uses the table from now on, and keeps a copy.
async fn use_table(
    place: &str,
    bytes: Bytes,
    copy: Option<&Path>,
    catalogue: &Catalogue,
) -> Result<(), String> {
    // On a thread of its own: it may have megabytes.
    let copy = copy.map(Path::to_owned);
    let reading = tokio::task::spawn_blocking(move || {
        let table = ModelTable::read(&String::from_utf8_lossy(&bytes));
        let table = table.map_err(|error| error.to_string())?;
        if let Some(copy) = copy
            && let Err(error) = write_whole(&copy, &bytes)
        {
            tracing::warn!(
                "catalogue: there is no copy for the next start: {}: {error}",
                copy.display()
            );
        }
        Ok::<_, String>(table)
    });
    let table = reading.await.map_err(|error| error.to_string())??;
    tracing::info!("catalogue: {place} has {} models", table.models.len());
    catalogue.set_table(table);
    Ok(())
}

async fn changed_at(file: &Path) -> Option<SystemTime> {
    tokio::fs::metadata(file).await.ok()?.modified().ok()
}
