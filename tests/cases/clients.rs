//! Who speaks: clients that name no session, edit replies, or say what a request is for.

mod edits;
mod stage;
