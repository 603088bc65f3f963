//! Times as the reader's clock shows them. The server's texts have UTC, because it does not know who reads them.
//!
//! JSON keeps UTC.

use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, civil};

use crate::context::Millis;

/// `2026-11-28T20:41:46Z`, and the same with milliseconds
const STAMPS: [usize; 2] = [20, 24];

/// The times of a text in the zone of this machine.
pub(super) fn local(text: &str) -> String {
    in_zone(text, &TimeZone::system(), Timestamp::now())
}

/// When something was: its time if that is today, else its day, too.
pub(super) fn when(at: Millis) -> String {
    let zone = TimeZone::system();
    let Some(then) = timestamp(at) else { return String::new() };
    let then = zone.to_datetime(then);
    let is_today = then.date() == zone.to_datetime(Timestamp::now()).date();
    then.strftime(if is_today { "%H:%M" } else { "%b %d %H:%M" }).to_string()
}

/// Its day, time and zone.
pub(super) fn full(at: Millis) -> String {
    let zone = TimeZone::system();
    let Some(then) = timestamp(at) else { return String::new() };
    let info = zone.to_offset_info(then);
    let time = zone.to_datetime(then).strftime("%Y-%m-%d %H:%M").to_string();
    format!("{time} {}", info.abbreviation())
}

fn timestamp(at: Millis) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()
}

fn in_zone(text: &str, zone: &TimeZone, now: Timestamp) -> String {
    if zone.to_offset(now) == Offset::UTC {
        return text.to_owned();
    }
    let mut local = String::with_capacity(text.len());
    for word in text.split_inclusive([' ', '\n', ',', ')', ';']) {
        let end = word.trim_end_matches([' ', '\n', ',', ')', '.', ';']);
        match end.parse::<Timestamp>() {
            Ok(at) if STAMPS.contains(&end.len()) => {
                local += &zone.to_datetime(at).strftime("%Y-%m-%d %H:%M:%S").to_string();
                local += &word[end.len()..];
            }
            _ => local += word,
        }
    }
    with_hours(&local, zone, now)
}

/// Replaces `20:46 UTC`, which is near `now`.
fn with_hours(text: &str, zone: &TimeZone, now: Timestamp) -> String {
    let mut pieces = text.split(" UTC");
    let mut local = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let hours = local.get(local.len().saturating_sub(5)..).unwrap_or_default();
        // A day before it makes it a time of that day, which the server wrote in full.
        let has_day = local.len() > 6 && local.as_bytes()[local.len() - 7].is_ascii_digit();
        let is_time = hours.contains(':') && !has_day;
        let time = if is_time { hours.parse::<civil::Time>().ok() } else { None };
        let today = Offset::UTC.to_datetime(now).date();
        let timestamp =
            time.and_then(|time| Offset::UTC.to_timestamp(today.to_datetime(time)).ok());
        match timestamp {
            Some(timestamp) => {
                local.truncate(local.len() - hours.len());
                local += &zone.to_datetime(timestamp).strftime("%H:%M").to_string();
            }
            None => local += " UTC",
        }
        local += piece;
    }
    local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_zone() {
        let now: Timestamp = "2026-11-28T20:00:00Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        for (utc, local) in [
            ("at 2026-11-28T22:41:46Z, for", "at 2026-11-29 00:41:46, for"),
            ("at 2026-11-28T22:41:46.123Z for", "at 2026-11-29 00:41:46 for"),
            ("(cached until 20:46 UTC, then $1)", "(cached until 22:46, then $1)"),
            ("until 2026-11-28 20:46 UTC", "until 2026-11-28 20:46 UTC"),
            ("Since 2026-10-29 UTC, 4 sessions.", "Since 2026-10-29 UTC, 4 sessions."),
            ("no time", "no time"),
        ] {
            assert_eq!(in_zone(utc, &zone, now), local);
            assert_eq!(in_zone(utc, &TimeZone::UTC, now), utc);
        }
    }
}
