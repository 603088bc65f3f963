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
    Ok(AdminAccess {
        admin: token(config.admin_token.as_ref(), &config.data.join(ADMIN_FILE))?,
        reader: token(config.admin_read_token.as_ref(), &config.data.join(READER_FILE))?,
        metrics_open: config.metrics_open,
    })
}

fn token(configured: Option<&Secret>, file: &Path) -> io::Result<Secret> {
    match configured {
        Some(token) => Ok(token.clone()),
        None => read_or_create(file),
    }
}

/// Writes the generated tokens, if the folder could not be written at the start.
pub(super) fn write_generated(config: &Config, access: &AdminAccess) {
    // Only the process that listens at the folder's socket may do so, because no other one serves from the
    // folder then.
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

fn read_or_create(path: &Path) -> io::Result<Secret> {
    let name = path.display();
    let is_there = match read(path) {
        Ok(token) => return Ok(token),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!("{name}: {error}; it is replaced by a new token");
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
                "{name} cannot be written: {error}; the admin listener's token will change after a restart"
            );
            Ok(Secret(token))
        }
    }
}

/// The token in a file that belongs to us and that nobody else may read.
fn read(path: &Path) -> io::Result<Secret> {
    // Symbolic links are refused, and so are pipes, which would block.
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Err(refused("it is not a file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.uid() != socket::user() {
        return Err(refused("it belongs to another user"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(refused("others may read it"));
    }
    let mut text = String::new();
    file.take(2 * CHARACTERS as u64).read_to_string(&mut text)?;
    let token = text.trim_end();
    let is_base64 =
        token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if token.len() != CHARACTERS || !is_base64 {
        return Err(refused("it contains no token of Plimsoll"));
    }
    Ok(Secret(token.to_owned()))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Overwrites an existing file only if `replace` is true.
fn write(path: &Path, token: &str, replace: bool) -> io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    folder::make(parent)?;
    // Atomically: a reader never sees half of it.
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
    fn token_files_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("made/by/us");
        let path = data.join(ADMIN_FILE);
        let token = read_or_create(&path).unwrap();
        assert_eq!(token.0.len(), CHARACTERS);
        assert_eq!(read_or_create(&path).unwrap(), token, "the second start has the same");
        assert_ne!(read_or_create(&data.join(READER_FILE)).unwrap(), token);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&data), 0o700);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 2, "nothing else is left there");
    }

    #[test]
    fn unsafe_token_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ADMIN_FILE);
        let first = read_or_create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let second = read_or_create(&path).unwrap();
        assert_ne!(first, second);
        assert_eq!(read_or_create(&path).unwrap(), second);
        std::fs::write(&path, "short").unwrap();
        let third = read_or_create(&path).unwrap();
        assert_eq!(third.0.len(), CHARACTERS);
        assert_eq!(read_or_create(&path).unwrap(), third);
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
    fn unwritable_folders_keep_tokens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("data").join(ADMIN_FILE);
        let token = read_or_create(&path).unwrap();
        assert_eq!(token.0.len(), CHARACTERS);
        assert_ne!(read_or_create(&path).unwrap(), token);
    }
}
