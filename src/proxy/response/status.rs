//! What a status alone says of a request.
//!
//! Words may say otherwise: who has them judges by them.

use http::StatusCode;

/// Whether a status blames what was sent.
pub(crate) fn blames_request(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Whether an answer may say that a request does not fit: what else it takes stands with the words.
pub(crate) fn may_not_fit(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 413 | 422 | 424 | 500)
}
