//! Where unit tests find recorded traffic: the project's own copies, and a larger collection if `PLIMSOLL_CORPUS` names
//! one (`docs/estimates.md` 4).

use std::path::{Path, PathBuf};

use super::Dialect;

/// The four dialects, with the names of their folders.
pub(super) const DIALECTS: [(Dialect, &str); 4] = [
    (Dialect::Anthropic, "anthropic"),
    (Dialect::OpenaiChat, "openai-chat"),
    (Dialect::OpenaiResponses, "openai-responses"),
    (Dialect::Gemini, "gemini"),
];

/// A folder of the project's test data.
pub(super) fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(folder)
}

/// The larger collection, if there is one.
pub(super) fn corpus() -> Option<PathBuf> {
    let root = PathBuf::from(std::env::var_os("PLIMSOLL_CORPUS")?);
    Some(root.join("fixtures")).filter(|fixtures| fixtures.is_dir())
}

/// Files of a folder, by name.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).map(Iterator::flatten);
    let mut files: Vec<PathBuf> = entries.into_iter().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}
