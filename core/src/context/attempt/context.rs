//! What is known of a request before it is sent, as far as retries depend on it.
//!
//! Filled in by the proxy; decides nothing.

use crate::dialect::lesson::Lesson;
use crate::dialect::refusal::RefusalCause;

/// An option that is requested on the client's behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusableOption {
    /// The cause that a refusal of it names.
    pub cause: RefusalCause,
    /// The lesson from that refusal.
    pub lesson: Lesson,
}

/// What is known of a request before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptContext<'a> {
    /// The plan changes what the client sent.
    pub is_rewritten: bool,
    /// It has changes beyond repairs, which the client's reasoning may depend on.
    pub changes_beyond_repairs: bool,
    /// The last form that was sent had reasoning put back that the client dropped.
    pub has_reasoning_back: bool,
    /// What is requested on the client's behalf.
    pub added: &'a [RefusableOption],
    /// It asks for a token count: the count endpoint may accept less than the model's own endpoint.
    pub is_count: bool,
}
