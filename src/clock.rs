//! The only place that reads the machine's clock: the time that facts are stored with continues if it is set back.
//!
//! Newer facts sort after older ones, and deadlines arrive, whatever happens to the clock while the process
//! runs. A clock that is set forward is believed. Each step back is logged once.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::context::Millis;

/// A step back of at most this many ms is normal clock synchronisation, and is not logged.
const SLIGHT: Millis = 1000;

static CLOCK: LazyLock<(Duration, Mutex<WallClock>)> =
    LazyLock::new(|| (since_boot(), Mutex::default()));

/// The time in ms since 1970; never earlier than it was before.
pub(crate) fn now() -> Millis {
    let wall = wall();
    let (began, clock) = &*CLOCK;
    let mut clock = clock.lock().unwrap_or_else(PoisonError::into_inner);
    let (now, step) = clock.tick(wall, since_boot().saturating_sub(*began).as_millis() as Millis);
    drop(clock);
    if let Some(back) = step {
        tracing::warn!(
            "this machine's clock was set back by {} s; until it has caught up or Plimsoll is restarted, \
             turns are stored with the time that it would have shown",
            back / 1000
        );
    }
    now
}

/// The time of the machine's clock, in ms since 1970: for comparison with times of other processes.
pub(crate) fn wall() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as Millis)
}

/// The same in microseconds, so that a request right after the response to a deletion is later than it.
pub(crate) fn wall_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// The time since the machine started, with the time that it slept: what was idle before a sleep is old after it.
/// [`std::time::Instant`] stands still meanwhile.
pub(crate) fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(BOOT_CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On macOS it counts sleep, too.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// A duration in microseconds.
pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// The current time, and when the machine's clock was last believed.
#[derive(Default)]
struct WallClock {
    /// The machine's time at that moment.
    wall: Millis,
    /// The time since the process began at that moment.
    passed: Millis,
    /// How far the machine's clock is behind, as last logged.
    behind: Millis,
}

impl WallClock {
    /// The time if the machine's clock shows `wall`, `passed` ms after the process began; and how far the
    /// clock was set back, if that is new.
    fn tick(&mut self, wall: Millis, passed: Millis) -> (Millis, Option<Millis>) {
        let expected = self.wall.saturating_add(passed.saturating_sub(self.passed));
        if wall >= expected {
            *self = Self { wall, passed, behind: 0 };
            return (wall, None);
        }
        let behind = expected - wall;
        let is_new = behind > self.behind.saturating_add(SLIGHT);
        if is_new {
            self.behind = behind;
        }
        (expected, is_new.then_some(behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Millis = 3_600_000;

    #[test]
    fn time_survives_clock_set_back() {
        let mut clock = WallClock::default();
        let start = 100 * HOUR;
        assert_eq!(clock.tick(start, 0), (start, None));
        assert_eq!(clock.tick(start + 5, 5), (start + 5, None));
        assert_eq!(clock.tick(start + 10 - HOUR, 10), (start + 10, Some(HOUR)), "told");
        assert_eq!(clock.tick(start + 20 - HOUR, 20), (start + 20, None), "once");
        assert_eq!(clock.tick(start + 30 - 3 * HOUR, 30), (start + 30, Some(3 * HOUR)), "again");
        assert_eq!(clock.tick(start + HOUR, 40), (start + HOUR, None), "forward is believed");
        assert_eq!(clock.tick(start + HOUR - 1, 40), (start + HOUR, None), "kept in time");
    }

    #[test]
    fn now_never_goes_backwards() {
        let mut last = 0;
        for _ in 0..1000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }
}
