//! Spending caps that were set while Plimsoll ran: kept in a file of the data folder, over those of the configuration.
//!
//! One with the name of a configured cap replaces it. A cap that adds up what none did before is told what the kept turns
//! spent of it; a request in flight meanwhile may count twice.

use std::io;
use std::path::Path;

use super::Ledgers;
use super::lock::lock;
use crate::context::Millis;
use crate::context::caps::{Cap, CapSums};
use crate::store::folder::write_whole;

/// The file in the data folder.
const FILE: &str = "caps.json";

impl Ledgers {
    /// Reads which caps were set before this start, and keeps in `folder` what is set from now on.
    ///
    /// # Errors
    /// If the file is there and cannot be read: then only the configured caps hold.
    pub async fn read_caps(&self, folder: &Path) -> io::Result<()> {
        let mut set_caps = self.caps.set_caps.lock().await;
        set_caps.folder = Some(folder.to_owned());
        match std::fs::read(folder.join(FILE)) {
            Ok(text) => set_caps.caps = serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let caps = set_caps.over(self.caps.configured());
        lock(&self.caps.sums).replace(caps, "");
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
    ) -> io::Result<()> {
        let mut set_caps = self.caps.set_caps.lock().await;
        let mut list = set_caps.caps.clone();
        list.retain(|cap| *cap.name != *name);
        list.extend(cap);
        let Some(folder) = set_caps.folder.clone() else {
            return Err(io::Error::other("there is no data folder"));
        };
        let text = serde_json::to_vec_pretty(&list)?;
        tokio::task::spawn_blocking(move || write_whole(&folder.join(FILE), &text)).await??;
        set_caps.caps = list;
        let caps = set_caps.over(self.caps.configured());
        let named = caps.iter().find(|cap| *cap.name == *name).cloned();
        let begins_at_zero = lock(&self.caps.sums).replace(caps, name);
        if let Some(cap) = named
            && begins_at_zero
        {
            let mut sums = CapSums::new(vec![cap]);
            let unread = self.add_past_spending(now, &mut sums).await;
            if unread > 0 {
                tracing::warn!("what {unread} sessions spent of cap {name} is not counted");
            }
            lock(&self.caps.sums).join(sums);
            self.raise_common_sums(now).await;
        }
        Ok(())
    }
}
