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

pub(super) fn propose(refused: &RefusedRequest<'_>, place: Option<&PathTarget>) -> Vec<Fact> {
    let request = refused.request;
    let all: Vec<&Part> = request
        .conversation
        .parts()
        .filter(|part| matches!(part.kind, PartKind::Image | PartKind::Document))
        .filter(|part| part.media.is_some())
        // What text replaces already is not what was refused.
        .filter(|part| part.key.is_some_and(|key| !refused.known.has_text_for(request, key)))
        .collect();
    let named = place.map(|place| named(refused, place, &all)).unwrap_or_default();
    if place.is_some() && named.is_empty() {
        return Vec::new();
    }
    let mut chosen: Vec<&Part> = named.clone();
    chosen.extend(breaking(refused, &all, named.first().copied()));
    if chosen.is_empty() {
        // Earlier ones were accepted before, so the newest is to blame.
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

fn named<'p>(refused: &RefusedRequest<'_>, place: &PathTarget, all: &[&'p Part]) -> Vec<&'p Part> {
    let conversation =
        crate::dialect::read(refused.request.conversation.dialect, "/", refused.sent);
    let keys: Vec<PartKey> = conversation
        .parts()
        .filter(|part| part.media.is_some() && meets(part.span, place.span))
        .filter_map(|part| part.key)
        .collect();
    let mut parts = all.to_vec();
    parts.retain(|part| part.key.is_some_and(|key| keys.contains(&key)));
    if !parts.is_empty() {
        return parts;
    }
    // An image that was made smaller has another key in the sent body.
    let span = splice::origin(refused.edits, place.span);
    let mut parts = all.to_vec();
    parts.retain(|part| {
        let smaller = part.key.and_then(|key| refused.known.smaller_picture(refused.request, key));
        smaller.is_some() && meets(part.span, span)
    });
    parts
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

fn breaking<'p>(
    refused: &RefusedRequest<'_>,
    all: &[&'p Part],
    named: Option<&Part>,
) -> Vec<&'p Part> {
    let body = refused.request.body;
    let refusal = refused.refusal;
    let mut parts = all.to_vec();
    match (refusal.detail, refusal.limit) {
        (Some(RefusalDetail::Bytes), Some(limit)) => {
            // Some providers count the base64 data, some the decoded bytes.
            let is_plain = named.zip(refusal.count).is_some_and(|(part, count)| {
                let bytes = refused.sent_bytes(part);
                bytes.abs_diff(count) > (bytes / 4 * 3).abs_diff(count)
            });
            parts.retain(|part| {
                let bytes = refused.sent_bytes(part);
                if is_plain { bytes / 4 * 3 > limit } else { bytes > limit }
            });
            parts
        }
        (Some(RefusalDetail::Pixels), Some(limit)) => {
            parts.retain(|part| {
                let data = sent_base64(refused.request, refused.known, part);
                base64_size(data).is_some_and(|size| size.width.max(size.height) as u64 > limit)
            });
            parts
        }
        (Some(RefusalDetail::Count), limit) => {
            let limit = limit.unwrap_or(all.len() as u64).min(all.len() as u64);
            let stay = limit.saturating_sub((limit / SPARE).max(1));
            all[..all.len().saturating_sub(stay as usize)].to_vec()
        }
        (Some(RefusalDetail::Request), _) => {
            let goal =
                parts.iter().map(|part| refused.sent_bytes(part)).sum::<u64>() / SHARE as u64;
            let mut removed = 0;
            parts.retain(|part| {
                let goes = removed <= goal;
                removed += refused.sent_bytes(part);
                goes
            });
            parts
        }
        (Some(RefusalDetail::Format), _) => {
            parts.retain(|part| !has_declared_type(part, body));
            parts
        }
        // The refusal is of a document, so no picture is replaced. If none is named: the invalid ones, or else
        // the newest.
        (Some(RefusalDetail::Document), _) => {
            parts.retain(|part| part.kind == PartKind::Document);
            let newest = parts.last().copied();
            parts.retain(|part| !has_declared_type(part, body));
            if parts.is_empty() && named.is_none() {
                parts.extend(newest);
            }
            parts
        }
        (Some(RefusalDetail::Unsupported), _) => parts,
        _ => Vec::new(),
    }
}

impl RefusedRequest<'_> {
    fn sent_bytes(&self, part: &Part) -> u64 {
        sent_base64(self.request, self.known, part).len() as u64
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

fn description(request: &PlanRequest<'_>, part: &Part, detail: Option<RefusalDetail>) -> String {
    let what = if part.kind == PartKind::Image { "An image" } else { "A document" };
    let mut about = Vec::new();
    let media = part.media.as_ref();
    about.extend(media.and_then(|media| media.mime.as_deref()).map(str::to_owned));
    let pixels = media.and_then(|media| size(media.data?.slice(request.body)));
    if let Some(size) = pixels {
        about.push(format!("{} by {} pixels", size.width, size.height));
    }
    // Three bytes in four characters.
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
