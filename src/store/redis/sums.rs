//! Sums of spending, which all processes add up: one step for all sums of a call, whatever others add at the same time.
//!
//! A sum outlives its period by a day. What people changed of the caps is beside them, as one text. Knows nothing of caps and
//! their limits.

use bytes::Bytes;

use super::keys::capped;
use super::{Access, RedisStore, scripts};
use crate::clock::now;
use crate::context::caps::{AdditionId, Spending, SumChange, SumKey};
use crate::store::StoreError;

/// How long a sum lives after its period: a call that began in it may end later, ms.
const AFTER: u64 = 24 * 3600 * 1000;
/// How long the last addition of a process is remembered, so that it may be sent again, ms.
const REMEMBERED: u64 = 24 * 3600 * 1000;

impl RedisStore {
    pub(super) async fn change(
        &self,
        id: AdditionId,
        sums: &[(SumKey, Spending)],
        change: SumChange,
    ) -> Result<Vec<Spending>, StoreError> {
        let word = match change {
            SumChange::Add => "add",
            SumChange::Raise => "raise",
        };
        let mut keys = vec![self.keys.added(id.instance)];
        let mut arguments = vec![word.to_owned(), REMEMBERED.to_string(), id.number.to_string()];
        for (key, spending) in sums {
            keys.push(self.keys.sum(key));
            let life = match key.ends {
                Some(end) => end.saturating_sub(now()) + AFTER,
                // As long as the session.
                None => self.life.as_millis() as u64,
            };
            let Spending { dollars, tokens } = spending;
            arguments.extend([
                format!("{dollars:.9}"),
                capped(*tokens).to_string(),
                life.to_string(),
            ]);
        }
        let arguments: Vec<Vec<u8>> = arguments.into_iter().map(String::into_bytes).collect();
        let totals: Vec<String> =
            self.script(Access::Other, &scripts::SUMS, &keys, &arguments).await?;
        let totals = totals.chunks_exact(2).map(|total| Spending {
            dollars: total[0].parse().unwrap_or_default(),
            tokens: total[1].parse().unwrap_or_default(),
        });
        Ok(totals.collect())
    }

    pub(super) async fn kept_cap_changes(&self) -> Result<Option<Bytes>, StoreError> {
        let mut command = redis::cmd("GET");
        command.arg(self.keys.index("caps"));
        let text: Option<Vec<u8>> = self
            .run(Access::Other, async |mut connection| command.query_async(&mut connection).await)
            .await?;
        Ok(text.map(Bytes::from))
    }

    pub(super) async fn replace_kept_cap_changes(
        &self,
        known: Option<Bytes>,
        new: Bytes,
    ) -> Result<bool, StoreError> {
        let key = self.keys.index("caps");
        let arguments = [known.unwrap_or_default().to_vec(), new.to_vec()];
        let replaced: u64 =
            self.script(Access::Other, &scripts::REPLACE, &[key], &arguments).await?;
        Ok(replaced == 1)
    }
}
