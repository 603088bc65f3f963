//! What an HTTP status by itself says about a request.
//!
//! The message may say otherwise: code that has it judges by it. What kind of error a status in a message is, says
//! [`ErrorKind`](super::error_kind::ErrorKind).

/// Whether the request is at fault: a rewrite may be the cause.
pub fn blames_request(status: u16) -> bool {
    matches!(status, 400 | 404 | 422)
}

/// Whether a response with this status may say that a request does not fit; routers answer 424 and 500, too.
pub fn may_not_fit(status: u16) -> bool {
    matches!(status, 400 | 413 | 422 | 424 | 500)
}

/// Whether a response with this status may blame what the request contains, which a repair can change.
pub fn may_blame_content(status: u16) -> bool {
    matches!(status, 400 | 413 | 422)
}

/// Whether it is about keys, money, names and rates, and not about what the request contains.
pub(super) fn is_elsewhere(status: u64) -> bool {
    matches!(status, 401..=404 | 429)
}

/// Whether a number in a message may be a status: pages of proxies begin with one, and none is a number of tokens.
pub(super) fn is_status(number: u64) -> bool {
    matches!(number, 400 | 413 | 422 | 424 | 500) || is_elsewhere(number)
}
