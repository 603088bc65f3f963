//! The data folder, as the root of trust: what is made in it is this user's alone.
//!
//! Folders that are there already are left as they are.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Makes a folder that nobody else may look into, if it is not there.
pub(super) fn prepare(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Opens a file to write at its end, making it and its folder if they are not there.
pub(super) fn append(path: &Path) -> io::Result<File> {
    prepare(path.parent().unwrap_or(path))?;
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The user id that this process acts as.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}
