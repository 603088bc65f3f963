//! SQLite's errors as errors of the store: whose fault it is, and what to do.
//!
//! Knows nothing of tables and threads.

use std::path::Path;

use crate::store::StoreError;

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

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn error(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn errors_say_what_to_do() {
        let told = [
            (ffi::SQLITE_NOTADB, "not a database", "move it away"),
            (ffi::SQLITE_CORRUPT, "damaged", "move it away"),
            (ffi::SQLITE_CANTOPEN, "cannot be written", "check the owner and the mode"),
            (ffi::SQLITE_READONLY, "cannot be written", "check the owner and the mode"),
            (ffi::SQLITE_PERM, "cannot be written", "check the owner and the mode"),
            (ffi::SQLITE_BUSY, "another program has locked it", "end that program"),
            (ffi::SQLITE_LOCKED, "another program has locked it", "end that program"),
            (ffi::SQLITE_FULL, "the disk is full", "make room"),
            (ffi::SQLITE_INTERRUPT, "took too long", "ask for less"),
        ];
        for (code, cause, advice) in told {
            let trouble = trouble_with(Path::new("/data/p.db"), &error(code));
            let is_damaged = matches!(trouble, StoreError::Damaged(_));
            assert_eq!(is_damaged, [ffi::SQLITE_NOTADB, ffi::SQLITE_CORRUPT].contains(&code));
            let trouble = trouble.to_string();
            for part in [cause, advice, "/data/p.db", "--data"] {
                assert!(trouble.contains(part), "{part} is missing: {trouble}");
            }
            let is_full = matches!(failed(error(code)), StoreError::Full(_));
            assert_eq!(is_full, code == ffi::SQLITE_FULL, "{cause}");
        }
        let other = error(ffi::SQLITE_IOERR);
        assert_eq!(because(&other), other.to_string(), "as SQLite says it");
    }
}
