//! What a status by itself says about a request.
//!
//! The message may say otherwise: code that has it judges by it.

use http::StatusCode;

pub(crate) fn blames_request(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Whether a response with this status may say that a request does not fit; its message decides.
pub(crate) fn may_not_fit(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 413 | 422 | 424 | 500)
}
