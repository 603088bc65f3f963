//! The data folder belongs to one user: its mode is 0700, and that of its files 0600, whatever the umask.
//!
//! Wider modes from an older version are narrowed, with a warning. What belongs to another user is left as it
//! is, with a warning: a volume mounted by Kubernetes belongs to root, and must still work.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::StoreError;

/// The store's file in the data folder.
pub(crate) const DATABASE: &str = "plimsoll.db";
/// Locked by the process that uses the folder.
const LOCK: &str = "plimsoll.lock";
/// How long a start waits for the lock: a process that is killed keeps it for a moment.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How often it tries meanwhile.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// The log of `plimsoll run`.
pub(crate) const RUN_LOG: &str = "run.log";
/// The log before it, once it was too large.
const OLD_RUN_LOG: &str = "run.log.1";
/// A log of `plimsoll run` that is larger than this is not appended to, bytes.
const RUN_LOG_BYTES: u64 = 16 << 20;

/// The mode of a folder that only one user may enter.
const FOLDER_MODE: u32 = 0o700;
/// The mode of a file that only one user may read.
pub(super) const FILE_MODE: u32 = 0o600;
/// The sticky bit, which marks folders shared by many users, such as `/tmp`.
const STICKY: u32 = 0o1000;
/// The permissions of group and others.
const OTHERS: u32 = 0o077;

/// Makes the folder if it is missing, and narrows the mode of it and of our files in it. Returns warnings for
/// the log; none if everything was fine.
///
/// # Errors
/// If the folder cannot be made or read.
pub(crate) fn prepare(folder: &Path) -> io::Result<Vec<String>> {
    make(folder)?;
    let mut warnings = Vec::new();
    warnings.extend(narrow(folder, FOLDER_MODE)?);
    // SQLite gives its additional files the same mode as the main one.
    let wal = format!("{DATABASE}-wal");
    let shm = format!("{DATABASE}-shm");
    for name in [DATABASE, &wal, &shm, RUN_LOG] {
        match narrow(&folder.join(name), FILE_MODE) {
            Ok(warning) => warnings.extend(warning),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(warnings)
}

/// Locks the folder for this process, until the returned file is dropped or the process ends in any way: two processes
/// would not know each other's decisions, and decide twice.
///
/// # Errors
/// [`StoreError::InUse`] if another process has locked it; [`StoreError::Unusable`] if it is not writable, or if its
/// file system has no locks.
pub(super) fn lock(folder: &Path) -> Result<File, StoreError> {
    use rustix::fs::{FlockOperation, flock};
    let file = append(&folder.join(LOCK)).map_err(|error| {
        StoreError::Unusable(format!(
            "the data folder {} cannot be used: it cannot be written ({error}); check the owner and the mode of the \
             folder and the room on its disk, or choose another folder with --data",
            folder.display()
        ))
    })?;
    let began = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if began.elapsed() < LOCK_WAIT => thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(not_locked(folder, error)),
        }
    }
}

fn not_locked(folder: &Path, error: Errno) -> StoreError {
    let folder = folder.display();
    if error == Errno::WOULDBLOCK {
        return StoreError::InUse(format!(
            "another Plimsoll process uses {folder}, and only one may. Send clients to that one, stop it, or choose \
             another folder with --data"
        ));
    }
    StoreError::Unusable(format!(
        "the data folder {folder} cannot be used: its file system has no locks ({error}), so that a second process \
         would not be noticed; choose a folder on another file system with --data"
    ))
}

/// Makes a folder, and missing ones above it, for this user only.
///
/// # Errors
/// If it cannot be made.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)
}

/// Opens a file for appending; a new file is for this user only.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(FILE_MODE).open(path)
}

/// Writes a whole file in one step, so that a reader never sees half of it; its permissions stay. A new one is for this user
/// only. New bytes are made beside the old ones, so the folder must be writable.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
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

/// Opens the log of `plimsoll run` for appending. One that is too large is renamed first, and replaces the one
/// before it. One that cannot be renamed, for example because another process just did, stops nothing.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn run_log(folder: &Path) -> io::Result<File> {
    let path = folder.join(RUN_LOG);
    if fs::metadata(&path).is_ok_and(|found| found.len() > RUN_LOG_BYTES) {
        let _ = fs::rename(&path, folder.join(OLD_RUN_LOG));
    }
    append(&path)
}

/// Removes the permissions of others; returns a warning if there is one.
pub(super) fn narrow(path: &Path, mode: u32) -> io::Result<Option<String>> {
    let metadata = fs::metadata(path)?;
    let was = metadata.mode() & 0o7777;
    let path_text = path.display();
    if metadata.file_type().is_socket() {
        // Its mode is set where it is opened.
        return Ok(None);
    }
    let owner = metadata.uid();
    // Root can see everything anyhow; any other owner can, whatever the mode.
    let is_strangers = owner != 0 && owner != rustix::process::geteuid().as_raw();
    if was & OTHERS == 0 && !is_strangers {
        return Ok(None);
    }
    if owner != rustix::process::geteuid().as_raw() {
        return Ok(Some(format!(
            "{path_text} belongs to another user (id {owner}), and its mode is {was:04o}: others may see or \
             change what is kept here. It was left as it is",
        )));
    }
    if is_shared(&metadata) {
        return Ok(Some(format!(
            "{path_text} is a folder that many users share (mode {was:04o}). It was left as it is: name \
             a folder of your own with --data"
        )));
    }
    Ok(Some(match std::fs::set_permissions(path, Permissions::from_mode(mode)) {
        Ok(()) => {
            format!("{path_text} was open to others (mode {was:04o}); its mode is now {mode:04o}")
        }
        Err(error) => format!(
            "{path_text} is open to others (mode {was:04o}), and that cannot be changed: {error}. Run \
             `chmod {mode:o} {path_text}`"
        ),
    }))
}

fn is_shared(metadata: &Metadata) -> bool {
    metadata.is_dir() && metadata.mode() & STICKY != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::SqliteStore;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn widen(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn new_data_folder_is_private() {
        let home = crate::store::conformance::folder();
        let folder = home.path().join("share/plimsoll");
        assert_eq!(prepare(&folder).unwrap(), Vec::<String>::new());
        let store = SqliteStore::open(&folder.join(DATABASE)).unwrap();
        drop(append(&folder.join(RUN_LOG)).unwrap());
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(folder.parent().unwrap()), 0o700);
        let mut files = 0;
        for file in std::fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            assert_eq!(mode(&file), 0o600, "{}", file.display());
            files += 1;
        }
        assert_eq!(files, 4, "the database, the two files beside it, and the log");
        drop(store);
    }

    #[test]
    fn wide_modes_are_narrowed_once() {
        let home = crate::store::conformance::folder();
        let folder = home.path().join("data");
        std::fs::create_dir(&folder).unwrap();
        let log = folder.join(RUN_LOG);
        std::fs::write(&log, "").unwrap();
        std::fs::write(folder.join("of-the-user.txt"), "").unwrap();
        widen(&folder, 0o755);
        widen(&log, 0o644);
        widen(&folder.join("of-the-user.txt"), 0o644);
        let warnings = prepare(&folder).unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].ends_with("was open to others (mode 0755); its mode is now 0700"));
        assert!(
            warnings[1].ends_with("run.log was open to others (mode 0644); its mode is now 0600")
        );
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&log), 0o600);
        assert_eq!(mode(&folder.join("of-the-user.txt")), 0o644, "not ours to change");
        assert_eq!(prepare(&folder).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn shared_folder_keeps_its_mode() {
        let folder = crate::store::conformance::folder();
        widen(folder.path(), 0o1777);
        let warnings = prepare(folder.path()).unwrap();
        assert!(warnings[0].contains("many users share (mode 1777)"), "{warnings:?}");
        assert_eq!(mode(folder.path()), 0o1777);
    }

    /// Another process may have renamed it a moment ago, or the name may be taken.
    #[test]
    fn log_without_rotation_is_used() {
        let home = crate::store::conformance::folder();
        let [log, old] = [RUN_LOG, OLD_RUN_LOG].map(|name| home.path().join(name));
        File::create(&log).unwrap().set_len(RUN_LOG_BYTES + 1).unwrap();
        std::fs::create_dir(&old).unwrap();
        let opened = run_log(home.path()).unwrap();
        assert_eq!(opened.metadata().unwrap().len(), RUN_LOG_BYTES + 1);
    }

    /// A volume in Kubernetes belongs to root, with one of our groups. It must be usable.
    #[test]
    fn strangers_folder_is_reported() {
        if !rustix::process::geteuid().is_root() {
            // Only root can give a folder away, so a folder of root's is used instead.
            let warnings = narrow(Path::new("/usr"), FOLDER_MODE).unwrap().unwrap();
            assert!(warnings.contains("belongs to another user (id 0)"), "{warnings}");
            return;
        }
        let folder = crate::store::conformance::folder();
        widen(folder.path(), 0o2777);
        std::os::unix::fs::chown(folder.path(), Some(12_345), None).unwrap();
        let warnings = prepare(folder.path()).unwrap();
        assert!(warnings[0].contains("belongs to another user (id 12345)"), "{warnings:?}");
        assert_eq!(mode(folder.path()), 0o2777);
        SqliteStore::open(&folder.path().join(DATABASE)).unwrap();
    }

    #[test]
    fn one_process_locks_folder() {
        let home = crate::store::conformance::folder();
        let held = lock(home.path()).unwrap();
        let in_use = lock(home.path()).unwrap_err();
        assert!(matches!(in_use, StoreError::InUse(_)), "{in_use}");
        drop(held);
        lock(home.path()).unwrap();
        let missing = lock(&home.path().join("missing")).unwrap_err().to_string();
        assert!(missing.contains("cannot be written"), "{missing}");
    }

    #[test]
    fn start_waits_for_end() {
        let home = crate::store::conformance::folder();
        let held = lock(home.path()).unwrap();
        let ending = thread::spawn(move || {
            thread::sleep(LOCK_PAUSE * 3);
            drop(held);
        });
        lock(home.path()).unwrap();
        ending.join().unwrap();
    }

    #[test]
    fn missing_locks_are_reported() {
        let error = not_locked(Path::new("/data"), Errno::OPNOTSUPP);
        assert!(matches!(error, StoreError::Unusable(_)));
        assert!(error.to_string().contains("/data cannot be used: its file system has no locks"));
    }

    /// A symbolic link to itself is an error, not a missing file.
    #[test]
    fn unreadable_metadata_is_error() {
        let home = crate::store::conformance::folder();
        let file = home.path().join(DATABASE);
        std::os::unix::fs::symlink(&file, &file).unwrap();
        assert!(prepare(home.path()).is_err());
    }
}
