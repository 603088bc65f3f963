//! Sums of spending, which all processes add up: one step for all sums of a call, whatever others add at the same time.
//!
//! A sum outlives its period by a day. Knows nothing of caps and their limits.

use super::keys::capped;
use super::{Access, RedisStore, scripts};
use crate::clock::now;
use crate::context::caps::{Spending, SumChange, SumKey};
use crate::store::StoreError;

/// How long a sum lives after its period: a call that began in it may end later, ms.
const AFTER: u64 = 24 * 3600 * 1000;
/// How long an addition is remembered, so that it may be sent again, ms.
const REMEMBERED: u64 = 3600 * 1000;

impl RedisStore {
    pub(super) async fn change(
        &self,
        id: u128,
        sums: &[(SumKey, Spending)],
        change: SumChange,
    ) -> Result<Vec<Spending>, StoreError> {
        let word = match change {
            SumChange::Add => "add",
            SumChange::Raise => "raise",
        };
        let mut keys = vec![self.keys.added(id)];
        let mut arguments = vec![word.to_owned(), REMEMBERED.to_string()];
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
}
