//! What `plimsoll setup` changed: the bytes of each file before, and a hash of those after.
//!
//! It is in the data folder, for this user only, because a file may have keys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::cli::clients::TABLE;
use crate::cli::clients::edit::values_at;
use crate::cli::print::CliError;
use crate::store::folder;
use crate::store::folder::write_whole;

/// Its name in the data folder.
const FILE: &str = "setup.json";

/// All changes, the oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SetupRecord {
    changes: Vec<FileChange>,
}

/// One changed file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileChange {
    pub(super) agent: String,
    pub(super) file: PathBuf,
    /// Its bytes before, in base64; `None` if there was no file.
    original: Option<String>,
    /// The hash of its bytes after.
    written: String,
    /// What was set in it.
    pub(super) values: Vec<(String, String)>,
    /// The folders that were made for it, the innermost first.
    pub(super) folders: Vec<PathBuf>,
}

/// What became of a changed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeState {
    AsWritten,
    /// It has nothing of ours.
    Gone,
    ChangedSince,
}

impl FileChange {
    pub(super) fn new(
        agent: &str,
        file: &Path,
        original: Option<&[u8]>,
        written: &[u8],
        values: &[(&str, String)],
    ) -> Self {
        let above = file.ancestors().skip(1);
        Self {
            agent: agent.to_owned(),
            file: file.to_owned(),
            original: original.map(|bytes| STANDARD.encode(bytes)),
            written: hash(written),
            values: values
                .iter()
                .map(|(path, value)| ((*path).to_owned(), value.clone()))
                .collect(),
            folders: above.take_while(|folder| !folder.exists()).map(Path::to_owned).collect(),
        }
    }

    /// The bytes before; `None` if there was no file.
    pub(super) fn original(&self) -> Result<Option<Vec<u8>>, CliError> {
        let Some(text) = &self.original else { return Ok(None) };
        Ok(Some(STANDARD.decode(text)?))
    }

    pub(super) fn state(&self, current: Option<&[u8]>) -> ChangeState {
        let Some(bytes) = current else { return ChangeState::Gone };
        if hash(bytes) == self.written {
            return ChangeState::AsWritten;
        }
        let file = TABLE.by_name(&self.agent).and_then(|client| client.file.as_ref());
        let Some(file) = file else { return ChangeState::ChangedSince };
        let text = String::from_utf8_lossy(bytes);
        let has_any = self
            .values
            .iter()
            .any(|(path, value)| values_at(file.format, &text, path).contains(value));
        if has_any { ChangeState::ChangedSince } else { ChangeState::Gone }
    }
}

impl SetupRecord {
    pub(super) fn load(data: &Path) -> Result<Self, CliError> {
        let path = data.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| CliError(format!("{} is damaged: {error}", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(CliError(format!("{}: {error}", path.display()))),
        }
    }

    pub(super) fn save(&self, data: &Path) -> Result<(), CliError> {
        let path = data.join(FILE);
        if self.changes.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            };
        }
        folder::make(data)?;
        write_whole(&path, &serde_json::to_vec(self)?)?;
        Ok(())
    }

    pub(super) fn add(&mut self, change: FileChange) {
        // Written again before anybody else changed it: the first bytes count.
        if let Some(last) = self.changes.iter_mut().rev().find(|last| last.file == change.file)
            && change.original.as_ref().is_some_and(|bytes| {
                STANDARD.decode(bytes).is_ok_and(|bytes| hash(&bytes) == last.written)
            })
        {
            last.written = change.written;
            last.values = change.values;
            return;
        }
        self.changes.push(change);
    }

    pub(super) fn pop(&mut self) -> Option<FileChange> {
        self.changes.pop()
    }

    pub(super) fn replace(&mut self, changes: Vec<FileChange>) {
        self.changes = changes;
    }
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}
