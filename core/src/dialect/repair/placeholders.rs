//! The texts that an edit puts where a provider asks for something and there is nothing.
//!
//! They are stored with their edit, so that replaying it gives the same bytes.

/// The text in place of missing content.
pub(crate) const NO_CONTENT: &str = "(no content)";
/// The text in place of a missing result.
pub(crate) const NO_RESULT: &str = "(The tool was interrupted: there is no result.)";
/// The text of the user message after a model's message that the model does not continue.
pub(crate) const GO_ON: &str = "Continue.";
