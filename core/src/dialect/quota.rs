//! How much of a limit is left, as a response's headers say it, or Gemini's refusal (`docs/protocols.md` 14).
//!
//! One form for all providers. What is not said is `None`; a header that cannot be understood says nothing. Which
//! credential a limit belongs to, and what follows from it, is not known here.

use http::HeaderMap;
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use crate::wire::json::Value;

/// Hours, ms.
const HOUR: u64 = 60 * 60 * 1000;

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum QuotaKind {
    /// Requests, usually per minute.
    Requests,
    /// Requests per day.
    DailyRequests,
    /// Tokens, usually per minute.
    Tokens,
    /// Input tokens, usually per minute.
    InputTokens,
    /// Output tokens, usually per minute.
    OutputTokens,
    /// Input tokens of Anthropic's priority tier.
    PriorityInputTokens,
    /// Output tokens of Anthropic's priority tier.
    PriorityOutputTokens,
    /// Input tokens of Claude's fast mode.
    FastInputTokens,
    /// Output tokens of Claude's fast mode.
    FastOutputTokens,
    /// A subscription's window of five hours: Claude's and Codex's.
    FiveHours,
    /// A subscription's window of seven days: Claude's and Codex's.
    SevenDays,
    /// Claude's window of seven days for some models alone; of several, the most used one.
    SevenDaysOfModel,
    /// A subscription's window of a month: Codex's, of some plans.
    Month,
    /// What a subscription pays beyond its windows.
    Overage,
    /// Copilot's premium requests of a month.
    Premium,
    /// One that a refusal does not name: it says only how long to wait.
    Unnamed,
}

/// One limit, as last reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Quota {
    /// What it counts.
    pub kind: QuotaKind,
    /// How many are allowed in a window; `None` if only the share is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The share that is used, 0 to 1; more if a limit may be exceeded.
    pub used: f64,
    /// When it is whole again, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<u64>,
}

/// Anthropic's limits of a minute, and OpenAI's, which others repeat: xAI, Groq, OpenRouter, Azure.
const COUNTED: [(QuotaKind, &str, &str); 4] = [
    (QuotaKind::Requests, "anthropic-ratelimit-requests", "requests"),
    (QuotaKind::Tokens, "anthropic-ratelimit-tokens", "tokens"),
    (QuotaKind::InputTokens, "anthropic-ratelimit-input-tokens", "input-tokens"),
    (QuotaKind::OutputTokens, "anthropic-ratelimit-output-tokens", "output-tokens"),
];

/// Anthropic's limits of tiers that are bought apart.
const TIERS: [(QuotaKind, &str); 4] = [
    (QuotaKind::PriorityInputTokens, "anthropic-priority-input-tokens"),
    (QuotaKind::PriorityOutputTokens, "anthropic-priority-output-tokens"),
    (QuotaKind::FastInputTokens, "anthropic-fast-input-tokens"),
    (QuotaKind::FastOutputTokens, "anthropic-fast-output-tokens"),
];

/// How the windows of seven days for some models begin, and end: `7d_sonnet`, `7d_opus`.
const MODEL_WINDOW: (&str, &str) = ("anthropic-ratelimit-unified-7d_", "-utilization");

/// The windows of a subscription: their shares, and when they are whole again.
const WINDOWS: [(QuotaKind, &str, &str); 3] = [
    (
        QuotaKind::FiveHours,
        "anthropic-ratelimit-unified-5h-utilization",
        "anthropic-ratelimit-unified-5h-reset",
    ),
    (
        QuotaKind::SevenDays,
        "anthropic-ratelimit-unified-7d-utilization",
        "anthropic-ratelimit-unified-7d-reset",
    ),
    (
        QuotaKind::Overage,
        "anthropic-ratelimit-unified-overage-utilization",
        "anthropic-ratelimit-unified-overage-reset",
    ),
];

/// Codex's two windows, and what each usually is: a response also says how many minutes it has.
const CODEX: [(&str, QuotaKind); 2] =
    [("x-codex-primary", QuotaKind::FiveHours), ("x-codex-secondary", QuotaKind::SevenDays)];

/// Copilot's premium requests: `ent=300&ov=0.0&ovPerm=false&rem=99.5&rst=2026-12-01T00%3A00%3A00Z`.
const PREMIUM: &str = "x-quota-snapshot-premium_interactions";

/// How the names of all these headers begin.
const STARTS: [&str; 6] = [
    "anthropic-ratelimit-",
    "anthropic-priority-",
    "anthropic-fast-",
    "x-ratelimit-",
    "x-codex-",
    "x-quota-",
];

/// Minutes of a day.
const DAY_MINUTES: f64 = 1_440.0;

/// A share above this is nonsense.
const MOST_USED: f64 = 100.0;

/// The limits that a response's headers tell of. `now`: when they came, milliseconds since 1970.
pub fn from_headers(headers: &HeaderMap, now: u64) -> Vec<Quota> {
    let mut quotas = Vec::new();
    // Most responses of local servers have none of them.
    if !headers.keys().any(|name| STARTS.iter().any(|start| name.as_str().starts_with(start))) {
        return quotas;
    }
    for (kind, anthropic, suffix) in COUNTED {
        let own_names = anthropic_names(anthropic);
        let common =
            ["limit", "remaining", "reset"].map(|what| format!("x-ratelimit-{what}-{suffix}"));
        let quota = counted(headers, kind, &own_names, now);
        quotas.extend(quota.or_else(|| counted(headers, kind, &common, now)));
    }
    for (kind, tier) in TIERS {
        quotas.extend(counted(headers, kind, &anthropic_names(tier), now));
    }
    // OpenRouter's have no name.
    let unnamed =
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"].map(String::from);
    if quotas.is_empty() {
        quotas.extend(counted(headers, QuotaKind::Requests, &unnamed, now));
    }
    for (kind, used, reset) in WINDOWS {
        let Some(share) = number(headers, used) else { continue };
        let resets_at = text(headers, reset).and_then(|reset| moment(reset, now));
        quotas.extend(Quota::new(kind, None, share, resets_at));
    }
    quotas.extend(model_window(headers, now));
    for (name, usual) in CODEX {
        let Some(percent) = number(headers, &format!("{name}-used-percent")) else { continue };
        let kind = match number(headers, &format!("{name}-window-minutes")) {
            Some(minutes) if minutes <= DAY_MINUTES => QuotaKind::FiveHours,
            Some(minutes) if minutes <= 7.0 * DAY_MINUTES => QuotaKind::SevenDays,
            Some(_) => QuotaKind::Month,
            None => usual,
        };
        let moment = text(headers, &format!("{name}-reset-at")).and_then(|at| moment(at, now));
        let after = number(headers, &format!("{name}-reset-after-seconds"));
        let after = after.map(|seconds| now.saturating_add((seconds * 1000.0) as u64));
        quotas.extend(Quota::new(kind, None, percent / 100.0, moment.or(after)));
    }
    quotas.extend(text(headers, PREMIUM).and_then(premium));
    quotas
}

/// The limit of a refusal that says how long to wait, and names no limit that is used up.
pub fn unnamed(headers: &HeaderMap, told: &[Quota], now: u64) -> Option<Quota> {
    if told.iter().any(|quota| quota.used >= 1.0) {
        return None;
    }
    let wait = text(headers, "retry-after")?;
    // A number of seconds or a date (RFC 9110, 10.2.3).
    let resets_at = moment(wait, now)
        .or_else(|| u64::try_from(rfc2822::parse(wait).ok()?.timestamp().as_millisecond()).ok())?;
    Quota::new(QuotaKind::Unnamed, None, 1.0, Some(resets_at))
}

/// A limit that is used up, as a refusal names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExhaustedQuota {
    /// What it counts.
    pub kind: QuotaKind,
    /// How many are allowed.
    pub limit: Option<u64>,
    /// How soon it is whole again, milliseconds; `None` if at midnight in California.
    pub wait_ms: Option<u64>,
}

/// How long a limit holds whose refusal does not say it: those of a minute are the usual ones.
const MINUTE_MS: u64 = 60_000;

/// The limits that a refusal of Google's names: `details` has `QuotaFailure`, and `RetryInfo` how long to wait. Those of a
/// day are whole again at midnight in California, whatever it says ("Rate limits", Gemini API).
pub(super) fn in_refusal(error: Value<'_>) -> Vec<ExhaustedQuota> {
    let Some(details) = error.get("details") else { return Vec::new() };
    let delays = details.items().filter_map(|detail| detail.get_text("retryDelay"));
    let wait = delays.filter_map(|delay| moment(&delay, 0)).max().unwrap_or(MINUTE_MS);
    let violations = details.items().filter_map(|detail| detail.get("violations"));
    let quotas = violations.flat_map(|all| all.items()).filter_map(|violation| {
        let id = violation.get_text("quotaId")?;
        let is_daily = id.contains("PerDay");
        let kind = match &*id {
            id if id.contains("InputTokens") => QuotaKind::InputTokens,
            id if id.contains("Tokens") => QuotaKind::Tokens,
            id if id.contains("Requests") && is_daily => QuotaKind::DailyRequests,
            id if id.contains("Requests") => QuotaKind::Requests,
            _ => return None,
        };
        let wait_ms = if is_daily { None } else { Some(wait) };
        let limit = violation.get_text("quotaValue").and_then(|limit| limit.parse().ok());
        Some(ExhaustedQuota { kind, limit, wait_ms })
    });
    quotas.collect()
}

impl ExhaustedQuota {
    /// The limit as of `now`, milliseconds since 1970.
    pub fn at(self, now: u64) -> Quota {
        let resets_at = match self.wait_ms {
            Some(wait) => Some(now.saturating_add(wait)),
            None => next_midnight(now),
        };
        Quota { kind: self.kind, limit: self.limit, used: 1.0, resets_at }
    }
}

fn next_midnight(now: u64) -> Option<u64> {
    // Its rule in full: the image has no table of time zones, and nothing is read here.
    let california = TimeZone::posix("PST8PDT,M3.2.0,M11.1.0").ok()?;
    let now = Timestamp::from_millisecond(i64::try_from(now).ok()?).ok()?;
    let now = now.to_zoned_datetime(california);
    let midnight = now.tomorrow().and_then(|tomorrow| tomorrow.start_of_day()).ok()?;
    u64::try_from(midnight.timestamp().as_millisecond()).ok()
}

impl QuotaKind {
    /// How long a subscription's window is, ms; `None` if that is not told, or too short to run out in.
    fn window(self) -> Option<u64> {
        match self {
            Self::FiveHours => Some(5 * HOUR),
            Self::SevenDays | Self::SevenDaysOfModel => Some(7 * 24 * HOUR),
            _ => None,
        }
    }
}

impl Quota {
    /// When it is used up if it is used as fast as since its window began; `None` if not before it is whole again, or if
    /// too little of the window has passed to tell, a twentieth. `at`: when it was reported, milliseconds since 1970.
    pub fn used_up_at(&self, at: u64) -> Option<u64> {
        let resets_at = self.resets_at?;
        let window = self.kind.window()?;
        let start = resets_at.checked_sub(window)?;
        let elapsed = at.checked_sub(start).filter(|elapsed| *elapsed >= window / 20)?;
        if self.used <= 0.0 || self.used >= 1.0 {
            return None;
        }
        let end = start.saturating_add((elapsed as f64 / self.used) as u64);
        Some(end).filter(|end| *end < resets_at)
    }

    fn new(kind: QuotaKind, limit: Option<u64>, used: f64, resets_at: Option<u64>) -> Option<Self> {
        (0.0..=MOST_USED).contains(&used).then_some(Self { kind, limit, used, resets_at })
    }
}

fn anthropic_names(limit: &str) -> [String; 3] {
    ["limit", "remaining", "reset"].map(|what| format!("{limit}-{what}"))
}

/// The most used window of seven days that only some models have.
fn model_window(headers: &HeaderMap, now: u64) -> Option<Quota> {
    let (start, end) = MODEL_WINDOW;
    let windows = headers.keys().filter_map(|name| {
        let model = name.as_str().strip_prefix(start)?.strip_suffix(end)?;
        let share = number(headers, name.as_str())?;
        let reset = text(headers, &format!("{start}{model}-reset"));
        let resets_at = reset.and_then(|reset| moment(reset, now));
        Quota::new(QuotaKind::SevenDaysOfModel, None, share, resets_at)
    });
    windows.max_by(|one, other| one.used.total_cmp(&other.used))
}

fn number(headers: &HeaderMap, name: &str) -> Option<f64> {
    text(headers, name)?.parse().ok()
}

/// `names`: of the limit, of what remains, and of when it is whole again.
fn counted(headers: &HeaderMap, kind: QuotaKind, names: &[String; 3], now: u64) -> Option<Quota> {
    let [limit, remaining, reset] = names.each_ref().map(|name| text(headers, name));
    let limit: u64 = limit?.parse().ok().filter(|limit| *limit > 0)?;
    let remaining: u64 = remaining?.parse().ok()?;
    let used = 1.0 - remaining.min(limit) as f64 / limit as f64;
    Quota::new(kind, Some(limit), used, reset.and_then(|reset| moment(reset, now)))
}

fn premium(snapshot: &str) -> Option<Quota> {
    let limit = member(snapshot, "ent").and_then(|limit| limit.parse().ok());
    let remaining: f64 = member(snapshot, "rem")?.parse().ok()?;
    let reset = member(snapshot, "rst")
        .and_then(|at| percent_encoding::percent_decode_str(at).decode_utf8().ok());
    let resets_at = reset.and_then(|reset| moment(&reset, 0));
    Quota::new(QuotaKind::Premium, limit, 1.0 - remaining / 100.0, resets_at)
}

fn member<'s>(snapshot: &'s str, name: &str) -> Option<&'s str> {
    let mut pairs = snapshot.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Seconds since 1970 have at least so many digits' worth; fewer are seconds from now.
const SECONDS: f64 = 1e9;
/// Milliseconds since 1970.
const MILLISECONDS: f64 = 1e12;

/// When a limit is whole again: a time (Anthropic), seconds or milliseconds since 1970 (Claude's and Codex' windows,
/// OpenRouter), or how long it takes (`6m0s`, `1.5s`, `20ms`, `60`).
fn moment(text: &str, now: u64) -> Option<u64> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return u64::try_from(at.as_millisecond()).ok();
    }
    if let Ok(number) = text.parse::<f64>() {
        return match number {
            ..0.0 => None,
            ..SECONDS => Some(now.saturating_add((number * 1e3) as u64)),
            ..MILLISECONDS => Some((number * 1e3) as u64),
            _ => Some(number as u64),
        };
    }
    let wait: SignedDuration = text.parse().ok()?;
    Some(now.saturating_add(u64::try_from(wait.as_millis()).ok()?))
}

#[cfg(test)]
mod tests;
