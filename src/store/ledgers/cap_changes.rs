//! Spending caps that are set or lifted while Plimsoll runs: one document over the configuration, in a file of the data folder,
//! or on the store that processes share.
//!
//! There every process reads it each second, so what is changed at one of them holds at all. A cap that adds up what none did
//! before is told what the kept turns spent of it; a request in flight meanwhile may count twice.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::Ledgers;
use super::caps::KeptCapChanges;
use super::lock::lock;
use crate::clock::now;
use crate::context::Millis;
use crate::context::caps::{Cap, CapChanges, CapSums, Spending, UnknownCap};
use crate::store::StoreError;
use crate::store::folder::write_whole;

/// The file in the data folder.
const FILE: &str = "caps.json";
/// How often the document on a shared store is read.
const EVERY: Duration = Duration::from_secs(1);

/// Why a cap cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CapChangeError {
    /// There is nothing to lift.
    #[error("the cap is not known")]
    Unknown(UnknownCap),
    /// The change cannot be kept: then nothing changes.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Ledgers {
    /// Reads which caps were changed before this start, and keeps in `folder` what is changed from now on, if the store is
    /// not shared.
    ///
    /// # Errors
    /// If the changes cannot be read: then only the configured caps hold.
    pub async fn read_caps(&self, folder: &Path) -> Result<(), StoreError> {
        let mut kept = self.caps.kept.lock().await;
        kept.folder = Some(folder.to_owned());
        let text = self.kept_cap_changes(&kept).await?;
        let changes = parsed(text.as_ref())?;
        lock(&self.caps.sums).change_caps(self.caps.configured(), &changes);
        kept.text = text;
        Ok(())
    }

    /// Follows what other processes change of the caps, if the store is shared.
    pub async fn follow_caps(&self) -> Infallible {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(EVERY).await;
            // While it cannot be read, what was read last holds.
            let _ = self.learn_cap_changes(now()).await;
        }
    }

    async fn learn_cap_changes(&self, now: Millis) -> Result<(), StoreError> {
        let mut kept = self.caps.kept.lock().await;
        let text = self.kept_cap_changes(&kept).await?;
        if text != kept.text {
            let changes = parsed(text.as_ref())?;
            kept.text = text;
            self.apply_cap_changes(&changes, now).await;
        }
        Ok(())
    }

    /// Sets a cap from now on; `None`: takes back what was set under this name.
    ///
    /// # Errors
    /// If it cannot be kept: then nothing changes.
    pub(crate) async fn set_cap(
        &self,
        name: &str,
        cap: Option<Cap>,
        now: Millis,
    ) -> Result<(), StoreError> {
        self.change_caps(|changes| changes.set(name, cap.clone()), now).await
    }

    /// Lets a cap stop nothing until its period ends: for one subject, or for all.
    ///
    /// # Errors
    /// If it is not known, or cannot be kept.
    pub(crate) async fn lift_cap(
        &self,
        name: &str,
        subject: Option<&str>,
        now: Millis,
    ) -> Result<(), CapChangeError> {
        let key = subject.and_then(|subject| lock(&self.caps.sums).key(name, subject, now));
        if self.is_shared() {
            // It may have spent at another process alone.
            self.read_sums(key.into_iter().collect(), now).await;
        }
        let lift = lock(&self.caps.sums).lift(name, subject, now);
        let lift = lift.map_err(CapChangeError::Unknown)?;
        Ok(self.change_caps(|changes| changes.lift(&lift), now).await?)
    }

    async fn change_caps(
        &self,
        change: impl Fn(&mut CapChanges),
        now: Millis,
    ) -> Result<(), StoreError> {
        let mut kept = self.caps.kept.lock().await;
        loop {
            let known = self.kept_cap_changes(&kept).await?;
            let mut changes = parsed(known.as_ref())?;
            change(&mut changes);
            let text = serde_json::to_vec_pretty(&changes).map_err(io::Error::from);
            let text = Bytes::from(text.map_err(failed)?);
            if self.is_shared() {
                // Another process was faster: its change stays.
                if !self.store.replace_cap_changes(known, text.clone()).await? {
                    continue;
                }
            } else {
                write(&kept, text.clone()).await.map_err(failed)?;
            }
            kept.text = Some(text);
            self.apply_cap_changes(&changes, now).await;
            return Ok(());
        }
    }

    async fn kept_cap_changes(&self, kept: &KeptCapChanges) -> Result<Option<Bytes>, StoreError> {
        if self.is_shared() {
            return self.store.cap_changes().await;
        }
        let Some(folder) = &kept.folder else { return Ok(None) };
        match std::fs::read(folder.join(FILE)) {
            Ok(text) => Ok(Some(text.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn apply_cap_changes(&self, changes: &CapChanges, now: Millis) {
        let new_caps = lock(&self.caps.sums).change_caps(self.caps.configured(), changes);
        if new_caps.is_empty() {
            return;
        }
        for cap in new_caps {
            let name = cap.name.clone();
            let mut sums = CapSums::new(vec![cap]);
            let unread = self.add_past_spending(now, &mut sums).await;
            if unread > 0 {
                tracing::warn!("what {unread} sessions spent of cap {name} is not counted");
            }
            lock(&self.caps.sums).join(sums);
        }
        self.raise_common_sums(now).await;
    }

    /// What all processes that share the store spent today, UTC.
    pub(crate) async fn today(&self, now: Millis) -> Spending {
        if self.is_shared() {
            self.read_sums(vec![CapSums::day_key(now)], now).await;
        }
        self.caps.today(now)
    }
}

fn parsed(text: Option<&Bytes>) -> Result<CapChanges, StoreError> {
    let Some(text) = text else { return Ok(CapChanges::default()) };
    serde_json::from_slice(text).map_err(|error| failed(error.into()))
}

async fn write(kept: &KeptCapChanges, text: Bytes) -> io::Result<()> {
    let Some(folder) = kept.folder.clone() else {
        return Err(io::Error::other("there is no data folder"));
    };
    tokio::task::spawn_blocking(move || write_whole(&folder.join(FILE), &text)).await?
}

fn failed(error: io::Error) -> StoreError {
    StoreError::Failed(error.to_string())
}
