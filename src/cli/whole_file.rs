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
    let mut temp_file = tempfile::Builder::new().prefix(".plimsoll-").tempfile_in(folder)?;
    temp_file.write_all(bytes)?;
    if let Ok(metadata) = fs::metadata(path) {
        temp_file.as_file().set_permissions(metadata.permissions())?;
    }
    temp_file.as_file().sync_all()?;
    temp_file.persist(path)?;
    Ok(())
}
