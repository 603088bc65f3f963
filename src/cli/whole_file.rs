//! Files that appear whole: a reader never sees half of one.
//!
//! The folder must be one that may be written to, because the new bytes are made beside the old ones.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Writes a whole file in one step; its permissions stay. A new one is for this user only.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut beside = tempfile::Builder::new().prefix(".plimsoll-").tempfile_in(folder)?;
    beside.write_all(bytes)?;
    if let Ok(metadata) = fs::metadata(path) {
        beside.as_file().set_permissions(metadata.permissions())?;
    }
    beside.as_file().sync_all()?;
    beside.persist(path)?;
    Ok(())
}
