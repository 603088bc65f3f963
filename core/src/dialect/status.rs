//! What an HTTP status by itself says about a request.
//!
//! Every list of statuses is here, but the names of errors ([`ErrorKind`](super::error_kind::ErrorKind)). The message may say
//! otherwise: code that has it judges by it.

/// Whether it says that the request is at fault, whoever wrote that part of it.
pub fn blames_request(status: u16) -> bool {
    matches!(status, 400 | 404 | 422)
}

/// Whether a response with this status may say that a request does not fit; routers answer 424 and 500, too.
pub fn may_not_fit(status: u16) -> bool {
    matches!(status, 400 | 413 | 422 | 424 | 500)
}

/// Whether a response with this status may blame what the request contains, so that it can be mended.
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
