//! Who else could write a file that we obey, or read one that contains a secret.
//!
//! The rules are those of OpenSSH for its own files: the file and its folder belong to this user or to root,
//! and nobody else may write them. Symbolic links are followed, because Kubernetes mounts its files through
//! them. A read-only mount passes, because nobody can write to it.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::StatVfsMountFlags;

use super::settings::Tls;

/// In a folder with this bit (`/tmp`), nobody can move or replace a file of another user.
const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_READS: u32 = 0o040;
const OTHERS_READ: u32 = 0o004;

/// A fault of a file's owner or mode.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PermissionFault {
    /// What is wrong.
    pub(super) what: String,
    /// What to do about it.
    pub(super) todo: String,
}

/// Why somebody else could have written `file`; `None` if nobody could.
pub(super) fn writable(file: &Path) -> Option<PermissionFault> {
    // What is written to a device such as /dev/null is not what is read from it.
    if std::fs::metadata(file).is_ok_and(|found| found.file_type().is_char_device()) {
        return None;
    }
    let user = rustix::process::geteuid().as_raw();
    // Both the path as given and its target are checked, because either folder decides what is read.
    let real = file.canonicalize().ok();
    for path in [Some(file), real.as_deref()].into_iter().flatten() {
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => continue,
        };
        for part in [path, folder] {
            let Ok(found) = std::fs::symlink_metadata(part) else { continue };
            if !is_read_only(part)
                && let Some(finding) = fault_of(part, &FilePermissions::new(&found), user)
            {
                return Some(finding);
            }
        }
    }
    None
}

/// Why somebody else could read `file`, which contains a secret; `None` if nobody could.
pub(super) fn readable(file: &Path) -> Option<PermissionFault> {
    let metadata = std::fs::metadata(file).ok()?;
    let part = FilePermissions::new(&metadata);
    // The group may read files of root, because that is how a secret is given to one service.
    let group = part.mode & GROUP_READS != 0 && part.owner != 0 && !part.is_private_group();
    if is_read_only(file) || !(group || part.mode & OTHERS_READ != 0) {
        return None;
    }
    Some(PermissionFault {
        what: format!("{} can be read by other users (mode {:04o})", file.display(), part.mode),
        todo: format!("Make it yours and run `chmod 600 {}`", file.display()),
    })
}

/// Checks a certificate and its key when they are reloaded. Returns a warning if others may read the key.
///
/// # Errors
/// Why somebody else could have written them.
pub(crate) fn recheck(tls: &Tls) -> Result<Option<String>, String> {
    match writable(&tls.certificate).or_else(|| writable(&tls.key)) {
        Some(fault) => Err(fault.text()),
        None => Ok(readable(&tls.key).map(|fault| fault.text())),
    }
}

impl PermissionFault {
    fn text(&self) -> String {
        format!("{}. {}", self.what, self.todo)
    }
}

/// The properties of a file or folder that the rules check.
struct FilePermissions {
    owner: u32,
    group: u32,
    mode: u32,
    is_folder: bool,
    is_link: bool,
}

impl FilePermissions {
    fn new(metadata: &Metadata) -> Self {
        Self {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode() & 0o7777,
            is_folder: metadata.is_dir(),
            is_link: metadata.is_symlink(),
        }
    }

    fn is_private_group(&self) -> bool {
        // Distributions create a group with the number of each user, with no other member; files may be
        // writable for it.
        self.group == self.owner
    }
}

fn fault_of(path: &Path, part: &FilePermissions, user: u32) -> Option<PermissionFault> {
    let name = path.display();
    if part.owner != user && part.owner != 0 {
        return Some(PermissionFault {
            what: format!("{name} belongs to another user (id {})", part.owner),
            todo: "Name a file of your own, in a folder of your own; in a container, mount it \
                   read-only."
                .into(),
        });
    }
    // The mode of a symbolic link has no meaning, and in a sticky folder our files stay ours.
    if part.is_link || (part.is_folder && part.mode & STICKY != 0) {
        return None;
    }
    let group = part.mode & GROUP_WRITES != 0 && !part.is_private_group();
    if !group && part.mode & OTHERS_WRITE == 0 {
        return None;
    }
    Some(PermissionFault {
        what: format!("{name} can be written by other users (mode {:04o})", part.mode),
        todo: format!("Run `chmod go-w {name}`, and check its content."),
    })
}

fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u32 = 1000;

    fn file(owner: u32, group: u32, mode: u32) -> FilePermissions {
        FilePermissions { owner, group, mode, is_folder: false, is_link: false }
    }

    #[test]
    fn others_files_are_refused() {
        let folder = |part| FilePermissions { is_folder: true, ..part };
        let link = |part| FilePermissions { is_link: true, ..part };
        let refused =
            |part: FilePermissions| fault_of(Path::new("f"), &part, ME).map(|finding| finding.what);
        for fine in [
            file(ME, ME, 0o600),
            file(ME, 100, 0o644),
            file(0, 0, 0o644),
            // A user's private group, with umask 002.
            file(ME, ME, 0o664),
            // Kubernetes: a secret with fsGroup.
            file(0, ME, 0o440),
            folder(file(0, 0, 0o1777)),
            link(file(ME, 100, 0o777)),
        ] {
            assert_eq!(refused(fine), None);
        }
        for (part, why) in [
            (file(ME, ME, 0o666), "f can be written by other users (mode 0666)"),
            (file(ME, 100, 0o664), "f can be written by other users (mode 0664)"),
            (file(0, ME, 0o664), "f can be written by other users (mode 0664)"),
            (file(1001, 1001, 0o600), "f belongs to another user (id 1001)"),
            (folder(file(ME, ME, 0o777)), "f can be written by other users (mode 0777)"),
            (folder(file(1001, 0, 0o1777)), "f belongs to another user (id 1001)"),
            (link(file(1001, 0, 0o777)), "f belongs to another user (id 1001)"),
        ] {
            assert_eq!(refused(part).as_deref(), Some(why));
        }
    }

    #[test]
    fn readable_secrets_are_reported() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "secret").unwrap();
        let with = |mode| {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
            readable(&key).map(|finding| finding.todo)
        };
        assert_eq!(with(0o600), None);
        let todo = format!("Make it yours and run `chmod 600 {}`", key.display());
        assert_eq!(with(0o644), Some(todo));
        assert_eq!(readable(&folder.path().join("none")), None);
    }
}
