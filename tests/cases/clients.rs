//! Who speaks: clients that name no session, edit replies, or say what a request is for.

mod diagnosis;
mod edits;
mod hints;
mod stage;
mod versions;
