//! The Unix socket in the data folder. Whoever connects to it is this user or root, and so is whoever answers
//! at it: the kernel tells each side the other's user id.
//!
//! A socket that a dead process left is replaced; one at which somebody answers is left alone.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::store::folder;

/// Its name in the data folder.
const NAME: &str = "admin.sock";
/// The longest folder path for which a socket address fits: systems allow 108 or 104 bytes.
const LONGEST_FOLDER: usize = 80;

/// The socket's file, which is deleted when this is dropped.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode: a file that somebody else put there stays.
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have put its own there meanwhile.
        let metadata = std::fs::symlink_metadata(&self.path);
        if metadata.is_ok_and(|metadata| inode(&metadata) == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Listens at the socket of a data folder.
///
/// # Errors
/// If another process already does, or the folder cannot be written.
pub(super) async fn listen(folder: &Path) -> io::Result<(UnixListener, SocketFile)> {
    folder::make(folder)?;
    let short = ShortPath::new(folder)?;
    match UnixStream::connect(short.path.join(NAME)).await {
        Err(error) if is_nobody(&error) => {}
        // A process that is too busy to answer, or does not admit us, is still there.
        Ok(_) | Err(_) => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there"));
        }
    }
    // It gets its final name only once it is private to us, replacing one that a dead process left.
    let made = tempfile::Builder::new().prefix(".admin-").make_in(&short.path, |path| {
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    })?;
    let inode = inode(&std::fs::symlink_metadata(made.path())?);
    let listener = made.persist(short.path.join(NAME)).map_err(|error| error.error)?;
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, SocketFile { path: path(folder), inode }))
}

/// Connects to the process of this user, or of root, that serves from a data folder.
///
/// # Errors
/// [`is_nobody`] if there is none; otherwise the reason why the process is not trusted.
pub(super) async fn connect(folder: &Path) -> io::Result<UnixStream> {
    let file = std::fs::symlink_metadata(path(folder))?;
    for (metadata, what) in [(std::fs::metadata(folder)?, "the data folder"), (file.clone(), NAME)]
    {
        if !is_ours(metadata.uid()) {
            return Err(foreign(format!("{what} belongs to user id {}", metadata.uid())));
        }
    }
    if !file.file_type().is_socket() {
        return Err(foreign(format!("{NAME} is not a socket")));
    }
    let short = ShortPath::new(folder)?;
    let stream = UnixStream::connect(short.path.join(NAME)).await?;
    match stream.peer_cred()?.uid() {
        user if is_ours(user) => Ok(stream),
        user => Err(foreign(format!("user id {user} answers at {NAME}"))),
    }
}

fn foreign(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

fn is_ours(user: u32) -> bool {
    user == self::user() || user == 0
}

pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(super) fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
    matches!(error.kind(), ConnectionRefused | NotADirectory | NotFound)
}

/// A path to a folder that is short enough for the address of a socket in it, with the open folder that makes
/// this possible.
struct ShortPath {
    path: PathBuf,
    _open: Option<File>,
}

impl ShortPath {
    fn new(folder: &Path) -> io::Result<Self> {
        if folder.as_os_str().len() <= LONGEST_FOLDER {
            return Ok(Self { path: folder.to_owned(), _open: None });
        }
        if !cfg!(target_os = "linux") {
            let what = format!("its path is longer than {LONGEST_FOLDER} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, what));
        }
        use std::os::fd::AsRawFd as _;
        let open = File::open(folder)?;
        let path = format!("/proc/self/fd/{}", open.as_raw_fd()).into();
        Ok(Self { path, _open: Some(open) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answers(folder: &Path) -> bool {
        connect(folder).await.is_ok()
    }

    #[tokio::test]
    async fn sockets_are_private_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than any socket's address may be.
        for data in [folder.path().join("data"), folder.path().join("x".repeat(120))] {
            assert!(!answers(&data).await);
            let (_listener, file) = listen(&data).await.unwrap();
            let metadata = std::fs::symlink_metadata(path(&data)).unwrap();
            assert_eq!(metadata.mode() & 0o777, 0o600);
            assert!(answers(&data).await, "{}", data.display());
            drop(file);
            assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "nothing is left");
        }
    }

    #[tokio::test]
    async fn only_dead_sockets_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (dead, file) = listen(folder.path()).await.unwrap();
        drop(dead);
        assert!(!answers(folder.path()).await);
        let (_live, live_file) = listen(folder.path()).await.unwrap();
        drop(file);
        assert!(answers(folder.path()).await, "the earlier process does not remove it");
        let refused = listen(folder.path()).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert!(answers(folder.path()).await);
        drop(live_file);
    }

    #[tokio::test]
    async fn socket_links_are_not_followed() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_listener, _file) = listen(one.path()).await.unwrap();
        std::os::unix::fs::symlink(path(one.path()), path(other.path())).unwrap();
        let refused = connect(other.path()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
