//! The configured table of models is read again when its file changes, and fetched again if it is at a URL, so that a new
//! model needs no restart.
//!
//! What cannot be read or fetched leaves the table as it is, and is told once for each change.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Uri;

use crate::config::{Config, day};
use crate::dialect::credentials::redact;
use crate::dialect::models::{Catalogue, ModelTable};
use crate::proxy::Proxy;
use crate::store::folder::write_whole;

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
            Ok(bytes) => {
                use_table(&place, bytes, Some(SystemTime::now()), Some(copy), catalogue).await
            }
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
    let mut last_change = changed_at(file).await;
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(reason) = look(file, &mut last_change, catalogue).await {
            tracing::warn!("catalogue: {}: {reason}; the table stays as it is", file.display());
        }
    }
}

/// Reads the file again if it changed since it was `seen`. That it vanished is a change.
async fn look(
    file: &Path,
    seen: &mut Option<SystemTime>,
    catalogue: &Catalogue,
) -> Result<(), String> {
    let change = changed_at(file).await;
    if change == *seen {
        return Ok(());
    }
    *seen = change;
    let bytes = tokio::fs::read(file).await.map_err(|error| error.to_string())?;
    use_table(&file.display().to_string(), bytes.into(), change, None, catalogue).await
}

/// Uses the table from now on, and keeps a copy.
async fn use_table(
    place: &str,
    bytes: Bytes,
    changed: Option<SystemTime>,
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
    let table = table.at(place, changed.and_then(day));
    for oddity in table.oddities() {
        tracing::warn!("catalogue: {place}: {oddity}");
    }
    tracing::info!("catalogue: {place} has {} models", table.models.len());
    catalogue.set_table(table);
    Ok(())
}

async fn changed_at(file: &Path) -> Option<SystemTime> {
    tokio::fs::metadata(file).await.ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[models]\n\"gpt-9\" = { window = 500_000 }";

    /// A table that is broken, wrong or gone is told once for each change, and the last good one stays in use.
    #[tokio::test]
    async fn good_table_outlives_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("models.toml");
        let catalogue = Catalogue::default();
        let mut seen = None;
        std::fs::write(&file, GOOD).expect("written");
        assert_eq!(look(&file, &mut seen, &catalogue).await, Ok(()));
        let bad = "[models]\n\"gpt-9\" = { price = { input = -1000, output = 1, cache_read = 1, cache_write = 1 } }";
        std::fs::write(&file, bad).expect("written");
        // Both were written within one tick of the file's clock, perhaps.
        seen = None;
        let told = look(&file, &mut seen, &catalogue).await.expect_err("a bad price");
        assert_eq!(told, "model \"gpt-9\": price.input = -1000 is not a number from 0 to 100,000");
        assert_eq!(look(&file, &mut seen, &catalogue).await, Ok(()), "told once");
        std::fs::remove_file(&file).expect("removed");
        let told = look(&file, &mut seen, &catalogue).await.expect_err("no file");
        assert!(told.contains("No such file"), "{told}");
        assert_eq!(look(&file, &mut seen, &catalogue).await, Ok(()), "told once");
        assert_eq!(catalogue.model("gpt-9", "").window, 500_000);
    }
}
