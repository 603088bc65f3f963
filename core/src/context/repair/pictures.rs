//! Chooses the images or documents that text or a smaller image replaces. If a place is named: that one, and
//! all that break the same limit. If there are too many, the oldest; else the newest, because earlier ones
//! were accepted.

use super::refused::{RefusedRequest, decided};
use super::thoughts::meets;
use crate::context::Fact;
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::dialect::repair::path::PathTarget;
use crate::dialect::repair::{RefusalDetail, Repair, media};
use crate::dialect::{Part, PartKey, PartKind};
use crate::tokens::media::{base64_size, size};
use crate::wire::splice;

/// If there is one image too many, more are replaced, so that the next one is not too many again: this
/// fraction (1/n) of the allowed ones.
const SPARE: u64 = 10;
/// If a request has too many bytes, this fraction (1/n) of its media is replaced at once.
const SHARE: usize = 4;

/// Decisions that replace media by text.
pub(super) fn propose(refused: &RefusedRequest<'_>, place: Option<&PathTarget>) -> Vec<Fact> {
    let request = refused.request;
    let known = refused.known;
    let is_left = |part: &&Part| part.key.is_some_and(|key| !known.has_text_for(request, key));
    let is_media = |part: &&Part| {
        matches!(part.kind, PartKind::Image | PartKind::Document) && part.media.is_some()
    };
    let all: Vec<&Part> = request.conversation.parts().filter(is_media).filter(is_left).collect();
    let named = place.map(|place| named(refused, place, &all)).unwrap_or_default();
    if place.is_some() && named.is_empty() {
        return Vec::new();
    }
    let mut chosen: Vec<&Part> = named.clone();
    chosen.extend(breaking(refused, &all, named.first().copied()));
    if chosen.is_empty() {
        chosen.extend(all.last());
    }
    let mut keys: Vec<PartKey> = Vec::new();
    let mut facts = Vec::new();
    for part in chosen {
        let Some(key) = part.key.filter(|key| !keys.contains(key)) else { continue };
        keys.push(key);
        let text = description(request, part, refused.refusal.detail).into();
        facts.push(decided(request, Repair::Media { part: key, text }));
    }
    facts
}

/// The client's media at the named place.
fn named<'p>(refused: &RefusedRequest<'_>, place: &PathTarget, all: &[&'p Part]) -> Vec<&'p Part> {
    let sent = crate::dialect::read(refused.request.conversation.dialect, "/", refused.sent);
    let there = sent.parts().filter(|part| part.media.is_some() && meets(part.span, place.span));
    let there: Vec<PartKey> = there.filter_map(|part| part.key).collect();
    let is_there = |part: &&&Part| part.key.is_some_and(|key| there.contains(&key));
    let named: Vec<&Part> = all.iter().filter(is_there).copied().collect();
    if !named.is_empty() {
        return named;
    }
    // An image that was made smaller has another key in the sent body.
    let at = splice::origin(refused.edits, place.span);
    let is_smaller = |part: &&&Part| {
        let smaller = part.key.and_then(|key| refused.known.smaller_picture(refused.request, key));
        smaller.is_some() && meets(part.span, at)
    };
    all.iter().filter(is_smaller).copied().collect()
}

/// The base64 data of media as sent: if an image was made smaller, that of the smaller one.
pub(super) fn sent_base64<'a>(
    request: &PlanRequest<'a>,
    known: &'a RecordedDecisions,
    part: &Part,
) -> &'a [u8] {
    let smaller = part.key.and_then(|key| known.smaller_picture(request, key));
    smaller.map_or_else(|| base64_of(part, request.body), str::as_bytes)
}

/// Media that break the limit in the refusal.
fn breaking<'p>(
    refused: &RefusedRequest<'_>,
    all: &[&'p Part],
    named: Option<&Part>,
) -> Vec<&'p Part> {
    let (body, refusal) = (refused.request.body, refused.refusal);
    let sent = |part: &Part| sent_base64(refused.request, refused.known, part);
    let bytes = |part: &Part| sent(part).len() as u64;
    let all_that = |breaks: &dyn Fn(&Part) -> bool| {
        all.iter().filter(|part| breaks(part)).copied().collect::<Vec<_>>()
    };
    match (refusal.detail, refusal.limit) {
        (Some(RefusalDetail::Bytes), Some(limit)) => {
            // Some providers count the base64 data, some the decoded bytes.
            let is_plain = named.zip(refusal.count).is_some_and(|(part, count)| {
                bytes(part).abs_diff(count) > (bytes(part) / 4 * 3).abs_diff(count)
            });
            all_that(&|part| {
                if is_plain { bytes(part) / 4 * 3 > limit } else { bytes(part) > limit }
            })
        }
        (Some(RefusalDetail::Pixels), Some(limit)) => all_that(&|part| {
            base64_size(sent(part)).is_some_and(|size| size.width.max(size.height) as u64 > limit)
        }),
        (Some(RefusalDetail::Count), limit) => {
            let limit = limit.unwrap_or(all.len() as u64).min(all.len() as u64);
            let stay = limit.saturating_sub((limit / SPARE).max(1));
            all[..all.len().saturating_sub(stay as usize)].to_vec()
        }
        (Some(RefusalDetail::Request), _) => {
            let whole: u64 = all.iter().map(|part| bytes(part)).sum();
            let (mut gone, goal) = (0, whole / SHARE as u64);
            let goes = |part: &&&Part| {
                let goes = gone <= goal;
                gone += bytes(part);
                goes
            };
            all.iter().take_while(goes).copied().collect()
        }
        (Some(RefusalDetail::Format), _) => all_that(&|part| !has_declared_type(part, body)),
        // The refusal is of a document, so no picture is replaced. If none is named: the invalid ones, or else
        // the newest.
        (Some(RefusalDetail::Document), _) => {
            let documents = all.iter().filter(|part| part.kind == PartKind::Document);
            let invalid = documents.clone().filter(|part| !has_declared_type(part, body));
            let invalid: Vec<&Part> = invalid.copied().collect();
            let newest = || documents.copied().last().into_iter().collect();
            if invalid.is_empty() && named.is_none() { newest() } else { invalid }
        }
        (Some(RefusalDetail::Unsupported), _) => all.to_vec(),
        _ => Vec::new(),
    }
}

/// How the base64 data of each type begins.
const MAGIC_PREFIXES: [(&str, &str); 5] = [
    ("image/png", "iVBORw0KGgo"),
    ("image/jpeg", "/9j/"),
    ("image/gif", "R0lGOD"),
    ("image/webp", "UklGR"),
    ("application/pdf", "JVBERi"),
];

/// Whether media have the type that they declare, as far as that can be checked.
fn has_declared_type(part: &Part, body: &[u8]) -> bool {
    let data = base64_of(part, body);
    let declared = part.media.as_ref().and_then(|media| media.mime.as_deref());
    let declared =
        declared.map(|declared| if declared == "image/jpg" { "image/jpeg" } else { declared });
    match MAGIC_PREFIXES.iter().find(|(mime, _)| Some(*mime) == declared) {
        Some((_, begins)) => data.is_empty() || data.starts_with(begins.as_bytes()),
        // An unknown type is taken as wrong; without a declared type, any known format is fine.
        None if declared.is_none() => {
            data.is_empty()
                || MAGIC_PREFIXES.iter().any(|(_, begins)| data.starts_with(begins.as_bytes()))
        }
        None => false,
    }
}

/// The base64 data of media; empty if they are only linked.
pub(super) fn base64_of<'b>(part: &Part, body: &'b [u8]) -> &'b [u8] {
    media::base64_span(part, body).map_or(&[], |at| at.slice(body))
}

/// A description of the replaced media.
fn description(request: &PlanRequest<'_>, part: &Part, detail: Option<RefusalDetail>) -> String {
    let what = if part.kind == PartKind::Image { "An image" } else { "A document" };
    let mut about = Vec::new();
    let media = part.media.as_ref();
    about.extend(media.and_then(|media| media.mime.as_deref()).map(str::to_owned));
    let pixels = media.and_then(|media| size(media.data?.slice(request.body)));
    about.extend(pixels.map(|it| format!("{} by {} pixels", it.width, it.height)));
    let bytes = base64_of(part, request.body).len() / 4 * 3;
    if bytes > 0 {
        about.push(format!("{} KB", bytes.div_ceil(1000)));
    }
    let why = match detail {
        Some(RefusalDetail::Bytes) => "it is too large",
        Some(RefusalDetail::Pixels) => "it has too many pixels",
        Some(RefusalDetail::Count) => "there are too many of them",
        Some(RefusalDetail::Format | RefusalDetail::Document) => "it cannot be read",
        Some(RefusalDetail::Unsupported) => "this model reads none",
        Some(RefusalDetail::Request) => "the request is too large with it",
        _ => "the provider does not take it",
    };
    let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
    format!("[{what} stood here{about}. It was left out: {why}.]")
}

#[cfg(test)]
mod tests;
