//! SQLite's errors as errors of the store: whose fault it is, and what to do.
//!
//! Knows nothing of tables and threads.

use std::path::Path;

use crate::store::StoreError;

/// The error for a file that cannot be used.
pub(super) fn trouble_with(path: &Path, error: &rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match (error.sqlite_error_code(), unusable(path, &because(error))) {
        (Some(NotADatabase | DatabaseCorrupt), StoreError::Unusable(what)) => {
            StoreError::Damaged(what)
        }
        (_, trouble) => trouble,
    }
}

pub(super) fn unusable(path: &Path, reason: &str) -> StoreError {
    let path = path.display();
    StoreError::Unusable(format!(
        "the store {path} cannot be used: {reason}, or choose another folder with --data"
    ))
}

pub(super) fn failed(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => StoreError::Full(because(&error)),
        _ => StoreError::Failed(because(&error)),
    }
}

/// What is wrong with the file, and what to do.
pub(super) fn because(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(Code::NotADatabase | Code::DatabaseCorrupt) => {
            format!(
                "it is not a database, or it is damaged ({error}); move it away to start with a new one"
            )
        }
        Some(Code::CannotOpen | Code::ReadOnly | Code::PermissionDenied) => {
            format!("it cannot be written ({error}); check the owner and the mode of its folder")
        }
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => {
            format!("another program has locked it ({error}); end that program")
        }
        Some(Code::DiskFull) => format!("the disk is full ({error}); make room"),
        Some(Code::OperationInterrupted) => {
            "the query took too long and was aborted; ask for less, or again".to_owned()
        }
        _ => error.to_string(),
    }
}
