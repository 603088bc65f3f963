//! From the client's body to the body that is sent: read, prepared, planned.
//!
//! Nothing is sent that is not saved. Only the store is asked in here.

pub(super) mod added_option;
mod choose_option;
pub(super) mod parsed_body;
pub(super) mod placed_request;
pub(super) mod planned_request;
pub(super) mod prepared_request;
pub(super) mod request_usage;
pub(super) mod undelivered;
