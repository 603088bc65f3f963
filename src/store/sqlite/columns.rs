//! Values as columns: how a key is written, and how a scope and bytes are read back.
//!
//! Knows no table.

use bytes::Bytes;
use rusqlite::Row;
use rusqlite::types::ValueRef;

use crate::store::Scope;

/// Tenant and session from the first two columns of a row.
pub(super) fn scope_in(row: &Row<'_>) -> rusqlite::Result<Scope> {
    let tenant: String = row.get(0)?;
    let session: String = row.get(1)?;
    Ok(Scope { tenant: tenant.into(), session: session.into() })
}

pub(super) fn bytes_in(row: &Row<'_>, index: usize) -> rusqlite::Result<Bytes> {
    Ok(match row.get_ref(index)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Bytes::copy_from_slice(bytes),
        _ => Bytes::new(),
    })
}

pub(super) fn blob(key: u128) -> [u8; 16] {
    key.to_be_bytes()
}
