//! The configured table of models is read again when its file changes, so that a new model needs no restart.
//!
//! A file that cannot be read leaves the table as it is, and is told once for each change.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::dialect::models::{Catalogue, ModelTable};

/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(30);

/// Never ends. Without a file there is nothing to do.
pub(super) async fn follow(file: Option<&Path>, catalogue: &Catalogue) -> Infallible {
    let Some(file) = file else { return std::future::pending().await };
    let mut seen = changed_at(file).await;
    loop {
        tokio::time::sleep(EVERY).await;
        let now = changed_at(file).await;
        if now == seen || now.is_none() {
            continue;
        }
        seen = now;
        match tokio::fs::read_to_string(file).await {
            Ok(text) => set(file, catalogue, &text),
            Err(error) => tracing::warn!("catalogue: {}: {error}", file.display()),
        }
    }
}

fn set(file: &Path, catalogue: &Catalogue, text: &str) {
    match ModelTable::read(text) {
        Ok(table) => {
            let models = table.models.len();
            tracing::info!("catalogue: {} has {models} models", file.display());
            catalogue.set_table(table);
        }
        Err(error) => {
            tracing::warn!("catalogue: {} stays as it was: {error}", file.display());
        }
    }
}

async fn changed_at(file: &Path) -> Option<SystemTime> {
    tokio::fs::metadata(file).await.ok()?.modified().ok()
}
