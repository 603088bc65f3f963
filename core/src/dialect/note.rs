//! What was found while reading, and what readers do not understand: told, never an error.
//!
//! The caller turns notes into events; what they are about passes through as it came.

use serde::{Deserialize, Serialize};

/// Something strange that was met while reading; a closed set, so that it can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The body is not JSON.
    NotJson,
    /// JSON, but not the shape of this dialect.
    UnknownShape,
    /// A part of a kind that is not known; it is opaque.
    UnknownPart,
    /// A stream event of a kind that is not known; it was passed on.
    UnknownEvent,
    /// An event's data is not JSON.
    BrokenEvent,
    /// Total is not input plus output; the larger reading was taken.
    UsageMismatch,
    /// Several responses in one stream; the last one counts.
    SeveralReplies,
    /// The reading gave up at its size limit.
    TooLong,
    /// The response's encoding cannot be read.
    UnknownEncoding,
    /// The provider kept part of what was sent from the model, reasoning above all
    /// (`input_transformations`, `docs/protocols.md` 1.5, 3.5).
    InputWithheld,
}

/// Adds a note that is not there yet.
pub(crate) fn note_once(notes: &mut Vec<Note>, note: Note) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}
