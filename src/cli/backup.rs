//! `plimsoll backup`: the store as one complete file, whether Plimsoll runs or not.
//!
//! Reads the file in one consistent view, beside a process that may serve from it; nobody waits for it. Never
//! overwrites an existing file.

use std::path::Path;

use super::print::{self, CliError};
use crate::config::{self, ConfigSources};
use crate::store::{folder, sqlite};

/// Copies the store into `file`.
pub(super) fn run(sources: &ConfigSources, file: &Path) -> Result<(), CliError> {
    let store = config::load(sources)?.config.data.join(folder::DATABASE);
    let bytes = sqlite::backup(&store, file)?;
    print::line(&format!("{}: {bytes} bytes, a complete copy of the store", file.display()));
    Ok(())
}
