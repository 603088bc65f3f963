//! Live events: one list for all processes, and how many there ever were, which is a reader's place.
//!
//! Only the newest are kept, for a minute, and only while somebody listens at some process. Knows nothing of what they say.

use bytes::Bytes;
use redis::Value;

use super::{Access, RedisStore, scripts};
use crate::store::StoreError;
use crate::store::live_events::{ToldEvent, ToldEvents};

/// Most events that are kept.
const KEPT: &str = "1000";
/// How long they are kept after the newest, ms.
const LIFE: &str = "60000";
/// How long after it read who listens still counts, ms: it reads twice a second.
const LISTENS: &str = "10000";

impl RedisStore {
    pub(super) async fn tell(&self, events: &[ToldEvent]) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let [kept, count, listening] = self.keys.events();
        let mut command = redis::cmd("EXISTS");
        command.arg(listening);
        let is_heard: bool = self
            .run(Access::Other, async |mut connection| command.query_async(&mut connection).await)
            .await?;
        if !is_heard {
            return Ok(());
        }
        let mut arguments = vec![KEPT.into(), LIFE.into()];
        for ToldEvent { instance, text } in events {
            let mut event = format!("{instance:016x} ").into_bytes();
            event.extend_from_slice(text);
            arguments.push(event);
        }
        let _: u64 = self.script(Access::Other, &scripts::TELL, &[kept, count], &arguments).await?;
        Ok(())
    }

    pub(super) async fn told(&self, place: Option<u64>) -> Result<ToldEvents, StoreError> {
        let place = place.map(|place| place.to_string()).unwrap_or_default();
        let keys = self.keys.events();
        let reply: Vec<Value> = self
            .script(Access::Other, &scripts::TOLD, &keys, &[place.into_bytes(), LISTENS.into()])
            .await?;
        let mut reply = reply.into_iter();
        let mut number = || redis::from_redis_value::<u64>(reply.next().unwrap_or(Value::Nil));
        let (Ok(place), Ok(missed)) = (number(), number()) else {
            return Err(StoreError::Failed("Redis answered something else".to_owned()));
        };
        Ok(ToldEvents { place, missed, events: reply.filter_map(event).collect() })
    }

    /// Takes back all events: a session was deleted that they may tell of.
    pub(super) fn forget_events(&self) -> redis::Cmd {
        let [events, ..] = self.keys.events();
        let mut command = redis::cmd("DEL");
        command.arg(events);
        command
    }
}

fn event(value: Value) -> Option<ToldEvent> {
    let Value::BulkString(event) = value else { return None };
    let blank = event.iter().position(|byte| *byte == b' ')?;
    let instance = u64::from_str_radix(std::str::from_utf8(&event[..blank]).ok()?, 16).ok()?;
    Some(ToldEvent { instance, text: Bytes::from(event).slice(blank + 1..) })
}
