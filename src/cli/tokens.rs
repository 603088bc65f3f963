//! The admin listener's tokens: the configured ones, or else two files in the data folder.
//!
//! A file is created at the first start and kept; one that others may read, or that belongs to somebody else,
//! is replaced. If the folder cannot be written, the token lives as long as the process: serving never fails
//! because of it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::socket;
use crate::admin::AdminAccess;
use crate::config::{Config, Secret};
use crate::store::folder;

/// The names of the files in the data folder.
const ADMIN_FILE: &str = "admin.token";
const READER_FILE: &str = "read.token";

/// The random bytes of a token, and its length in characters.
const BYTES: usize = 32;
const CHARACTERS: usize = 43;

/// The tokens of the admin listener.
///
/// # Errors
/// If the system has no random numbers.
pub(super) fn access(config: &Config) -> io::Result<AdminAccess> {
    let token = |configured: &Option<Secret>, file: &str| match configured {
        Some(token) => Ok(token.clone()),
        None => read_or_create(&config.data.join(file)),
    };
    Ok(AdminAccess {
        admin: token(&config.admin_token, ADMIN_FILE)?,
        reader: token(&config.admin_read_token, READER_FILE)?,
        metrics_open: config.metrics_open,
    })
}

/// Writes the generated tokens into their files, if the folder could not be written at the start. Only the
/// process that listens at the folder's socket may do so, because no other one serves from the folder then.
pub(super) fn write_generated(config: &Config, access: &AdminAccess) {
    let tokens = [
        (&config.admin_token, &access.admin, ADMIN_FILE),
        (&config.admin_read_token, &access.reader, READER_FILE),
    ];
    for (configured, token, file) in tokens {
        let path = config.data.join(file);
        let is_there = read(&path).is_ok_and(|stored| stored == *token);
        if configured.is_some() || is_there {
            continue;
        }
        let replace = true;
        if let Err(error) = write(&path, &token.0, replace) {
            tracing::warn!(
                "{} cannot be written: {error}; the admin listener's token will change after a restart",
                path.display()
            );
        }
    }
}

/// The token in a file, which is created if necessary.
fn read_or_create(path: &Path) -> io::Result<Secret> {
    let shown = path.display();
    let is_there = match read(path) {
        Ok(token) => return Ok(token),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!("{shown}: {error}; it is replaced by a new token");
            true
        }
    };
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let token = URL_SAFE_NO_PAD.encode(bytes);
    match write(path, &token, is_there) {
        Ok(()) => Ok(Secret(token)),
        // Another process created one meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.exists() => read(path),
        Err(error) => {
            tracing::warn!(
                "{shown} cannot be written: {error}; the admin listener's token will change after a restart"
            );
            Ok(Secret(token))
        }
    }
}

/// The token in a file that belongs to us and that nobody else may read.
fn read(path: &Path) -> io::Result<Secret> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    // Symbolic links are refused, and so are pipes, which would block.
    if !std::fs::symlink_metadata(path)?.is_file() {
        return refused("it is not a file");
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.uid() != socket::user() {
        return refused("it belongs to another user");
    }
    if metadata.mode() & 0o077 != 0 {
        return refused("others may read it");
    }
    let mut text = String::new();
    file.take(2 * CHARACTERS as u64).read_to_string(&mut text)?;
    let token = text.trim_end();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if token.len() != CHARACTERS || !token.bytes().all(is_plain) {
        return refused("it contains no token of Plimsoll");
    }
    Ok(Secret(token.to_owned()))
}

/// Writes a token into a file atomically; overwrites an existing file only if `replace` is true.
fn write(path: &Path, token: &str, replace: bool) -> io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    folder::make(parent)?;
    let mut file = tempfile::Builder::new().prefix(".token-").tempfile_in(parent)?;
    writeln!(file, "{token}")?;
    file.as_file().sync_all()?;
    let put = if replace { file.persist(path) } else { file.persist_noclobber(path) };
    put.map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_file_is_created_once_and_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("made/by/us");
        let path = data.join(ADMIN_FILE);
        let token = read_or_create(&path).unwrap();
        assert_eq!(token.0.len(), CHARACTERS);
        assert_eq!(read_or_create(&path).unwrap(), token, "the second start has the same");
        assert_ne!(read_or_create(&data.join(READER_FILE)).unwrap(), token);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&data), mode(&path)), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 2, "nothing else is left there");
    }

    #[test]
    fn a_token_file_that_is_unsafe_or_invalid_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ADMIN_FILE);
        let first = read_or_create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let second = read_or_create(&path).unwrap();
        assert_ne!(first, second);
        assert_eq!(read_or_create(&path).unwrap(), second);
        std::fs::write(&path, "short").unwrap();
        let third = read_or_create(&path).unwrap();
        assert_eq!((third.0.len(), read_or_create(&path).unwrap()), (CHARACTERS, third));
        std::fs::remove_file(&path).unwrap();
        let own = folder.path().join("of mine");
        std::fs::write(&own, "x".repeat(CHARACTERS)).unwrap();
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&own, &path).unwrap();
        assert_ne!(
            read_or_create(&path).unwrap().0,
            "x".repeat(CHARACTERS),
            "a link is not followed"
        );
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "x".repeat(CHARACTERS));
    }

    #[test]
    fn a_folder_that_cannot_be_written_leaves_a_token_in_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("data").join(ADMIN_FILE);
        let token = read_or_create(&path).unwrap();
        assert_eq!(token.0.len(), CHARACTERS);
        assert_ne!(read_or_create(&path).unwrap(), token);
    }
}
