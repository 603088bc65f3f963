//! The stranger here is a page in the user's browser.
