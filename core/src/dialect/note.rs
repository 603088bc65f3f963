//! Notes: unexpected things found while reading, which are reported and are never errors.
//!
//! The caller turns notes into events. What they are about is forwarded as it came.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

/// Something unexpected found while reading; a closed set, so that it can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Note {
    /// The body is not JSON.
    NotJson,
    /// The body is JSON, but not in this dialect's form.
    #[serde(rename = "unknown_shape")]
    #[strum(serialize = "unknown_shape")]
    UnknownStructure,
    /// A part of an unknown kind, which is opaque.
    UnknownPart,
    /// A stream event of an unknown kind, which was forwarded.
    UnknownEvent,
    /// An event's data is not JSON.
    BrokenEvent,
    /// The total is not input plus output; the larger number was used.
    UsageMismatch,
    /// A reported count cannot be: it is no whole number, or larger than what the model can read or write. It is
    /// unknown. Told once of each model.
    ImpossibleCount,
    /// Several replies in one stream; the last one counts.
    SeveralReplies,
    /// Reading stopped at its size limit.
    TooLong,
    /// A tag of the request is left out: it is too long, has another form than `name=value`, or there are too many.
    IgnoredTag,
    /// The response's encoding is not supported.
    UnknownEncoding,
    /// The provider dropped a part of the request instead of giving it to the model, usually reasoning
    /// (`input_transformations`, `docs/protocols.md` 1.5, 3.5).
    InputWithheld,
}

/// Adds a note, unless it is already there.
pub(super) fn note_once(notes: &mut Vec<Note>, note: Note) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}
