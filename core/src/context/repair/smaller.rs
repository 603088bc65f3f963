//! Replaces a refused image by a smaller one, if policy asks for that instead of text.
//!
//! Decoding images takes long: the caller runs this outside the async threads, one image at a time. An image
//! that cannot be made smaller is replaced by text.

use super::pictures::{base64_of, sent_base64};
use super::refused::decided;
use crate::context::Fact;
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::policy::ImageRepair;
use crate::dialect::repair::shrink::{Goal, shrink};
use crate::dialect::repair::{Refusal, RefusalDetail, Repair, media};
use crate::dialect::{Part, PartKey, PartKind};
use crate::tokens::media::base64_size;

/// The longer side in pixels if the refusal names none: accepted for many images at once (`docs/protocols.md`
/// 1.8), and about as much as models look at (`docs/estimates.md` 1.4).
const SIDE: u32 = 2_000;
/// Most base64 bytes of one image: it is stored in the session, and held in memory.
const KEPT: usize = 512 * 1024;
/// If the whole request has too many bytes, an image is reduced to this fraction (1/n).
const SHARE: usize = 4;
/// Most images that are decoded for one refusal.
const AT_ONCE: usize = 8;

/// Whether policy asks for smaller images after this refusal.
pub fn may_be_smaller(request: &PlanRequest<'_>, refusal: &Refusal) -> bool {
    let is_of_size = matches!(
        refusal.detail,
        Some(RefusalDetail::Bytes | RefusalDetail::Pixels | RefusalDetail::Request)
    );
    request.policy.heal.images == ImageRepair::Shrink && is_of_size
}

/// The same decisions, with a smaller image instead of text where one can be made. `room`: bytes that all of
/// them together may take.
pub fn smaller(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    refusal: &Refusal,
    mut facts: Vec<Fact>,
    mut room: usize,
) -> Vec<Fact> {
    for fact in facts.iter_mut().take(AT_ONCE) {
        let Some((key, data)) = picture(request, known, refusal, fact) else { continue };
        let Some(remaining) = room.checked_sub(data.len()) else { continue };
        let smaller = decided(request, Repair::Picture { part: key, data: data.into() });
        // If the smaller one was refused as well, text remains.
        if known.may_decide(&smaller) {
            room = remaining;
            *fact = smaller;
        }
    }
    facts
}

fn picture(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    refusal: &Refusal,
    fact: &Fact,
) -> Option<(PartKey, String)> {
    let Fact::Repair(one) = fact else { return None };
    let Repair::Media { part: key, .. } = one.repair else { return None };
    let part = request.conversation.parts().find(|part| part.key == Some(key))?;
    if part.kind != PartKind::Image {
        return None;
    }
    let goal = goal(request, known, refusal, part)?;
    let file = media::file(base64_of(part, request.body))?;
    let mime = part.media.as_ref().and_then(|media| media.mime.as_deref());
    Some((key, media::base64(&shrink(&file, mime, goal)?)))
}

/// The required size; `None` if the image was already reduced to it.
fn goal(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    refusal: &Refusal,
    part: &Part,
) -> Option<Goal> {
    let data = sent_base64(request, known, part);
    // One that was already reduced to the goal and refused all the same is not reduced again.
    let is_smaller = data.len() != base64_of(part, request.body).len();
    let limit = refusal.limit.unwrap_or(u64::MAX);
    let mut side = SIDE;
    let mut bytes = KEPT;
    match refusal.detail? {
        RefusalDetail::Pixels => {
            side = refusal.limit.map_or(SIDE, |limit| u32::try_from(limit).unwrap_or(SIDE));
            let pixels = base64_size(data).map_or(0, |size| size.width.max(size.height));
            if is_smaller && pixels <= side as usize {
                return None;
            }
        }
        RefusalDetail::Bytes => {
            bytes = bytes.min(usize::try_from(limit).unwrap_or(KEPT));
            if is_smaller && data.len() <= bytes {
                return None;
            }
        }
        RefusalDetail::Request => {
            bytes = bytes.min(data.len() / SHARE);
            if is_smaller {
                return None;
            }
        }
        _ => return None,
    }
    // The limit counts either the base64 data or the file, which is smaller; this meets both.
    Some(Goal { side, bytes: bytes / 4 * 3 })
}

#[cfg(test)]
mod tests;
