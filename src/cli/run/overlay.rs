//! A temporary copy of an agent's configuration folder: links to everything of the user's, and one changed file.
//!
//! The user's folder is not touched by us. What the agent itself writes belongs there, and is moved there at the end: agents replace
//! files by renaming new ones over them, which replaces a link. Of the changed file, all but our addresses is moved.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cli::clients::edit::{FileFormat, with_values};
use crate::cli::clients::restore::{is_blank, without_values};
use crate::cli::clients::{ClientFile, Environment, Template};
use crate::cli::print;
use crate::store::folder::write_whole;

/// The copy; it is gone when this is dropped.
pub(super) struct ConfigCopy {
    /// Private to this user, as the file may have keys.
    place: TempDir,
    /// The copy of the folder, in it.
    folder: PathBuf,
    /// The user's own.
    source: PathBuf,
    variable: (String, PathBuf),
    /// The changed file's path in the folder.
    file: PathBuf,
    format: FileFormat,
    /// What the user's file says.
    original: String,
    /// As we wrote it.
    text: String,
    /// What we set in it.
    values: Vec<(String, String)>,
}

impl ConfigCopy {
    /// Copies the folder. Says why if that cannot be done.
    pub(super) fn new(
        file: &ClientFile,
        environment: &Environment,
        template: Template<'_>,
    ) -> Result<Self, String> {
        let shown_path = file.shown();
        let source = file.folder(environment).ok_or_else(|| "there is no HOME".to_owned())?;
        let original = match fs::read_to_string(source.join(&file.name)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{shown_path} cannot be read: {error}")),
        };
        let values = file.values(&template);
        let text = with_values(file.format, &original, &values)
            .map_err(|why| format!("{shown_path} {why}, so its addresses stay as they are"))?;
        let values = values.into_iter().map(|(path, value)| (path.to_owned(), value)).collect();
        Self::copy(file, source, original, text, values)
            .map_err(|error| format!("{shown_path} cannot be copied: {error}"))
    }

    fn copy(
        file: &ClientFile,
        source: PathBuf,
        original: String,
        text: String,
        values: Vec<(String, String)>,
    ) -> io::Result<Self> {
        let place = tempfile::Builder::new().prefix("plimsoll-run-").tempdir()?;
        let folder = place.path().join(file.folder_name());
        fs::create_dir(&folder)?;
        let name = PathBuf::from(&file.name);
        link(&source, &folder, &name, &text)?;
        let (variable, value) =
            file.moved_to(&folder).ok_or_else(|| io::Error::other("nothing moves it"))?;
        let variable = (variable.to_owned(), value);
        let format = file.format;
        Ok(Self { place, folder, source, variable, file: name, format, original, text, values })
    }

    /// The variable that shows the agent its folder.
    pub(super) fn variable(&self) -> (&str, &Path) {
        (&self.variable.0, &self.variable.1)
    }

    /// Moves what the agent wrote to the user's folder, and removes the copy.
    pub(super) fn end(self) {
        if let Err(why) = self.merge() {
            let file = self.source.join(&self.file);
            let kept_folder = self.place.keep();
            print::note(&format!(
                "the agent changed its copy of {}, and that could not be moved there ({why}); it is in {}",
                file.display(),
                kept_folder.display()
            ));
            return;
        }
        if let Err(error) = give_back(&self.folder, &self.source, &self.file) {
            let kept_folder = self.place.keep();
            print::note(&format!(
                "what the agent wrote could not be moved to {} ({error}); it is in {}",
                self.source.display(),
                kept_folder.display()
            ));
        }
    }

    /// Writes what the agent changed in its file, such as a login, into the user's, without our addresses.
    fn merge(&self) -> Result<(), String> {
        let Ok(text) = fs::read_to_string(self.folder.join(&self.file)) else { return Ok(()) };
        if text == self.text {
            return Ok(());
        }
        let merged = without_values(self.format, &text, &self.original, &self.values)?;
        let is_nothing = self.original.is_empty() && is_blank(self.format, &merged);
        if merged == self.original || is_nothing {
            return Ok(());
        }
        let file = self.source.join(&self.file);
        // A link stays a link.
        let file = file.canonicalize().unwrap_or(file);
        let current = fs::read_to_string(&file).unwrap_or_default();
        if current != self.original {
            return Err("somebody else changed it, too".to_owned());
        }
        let folder = file.parent().unwrap_or(&self.source);
        let written =
            fs::create_dir_all(folder).and_then(|()| write_whole(&file, merged.as_bytes()));
        written.map_err(|error| error.to_string())
    }
}

/// Links what is in `source` from `folder`, which is there; `file` has this text.
fn link(source: &Path, folder: &Path, file: &Path, text: &str) -> io::Result<()> {
    let mut names = file.components();
    let Some(first) = names.next() else { return Ok(()) };
    let rest = names.as_path();
    match fs::read_dir(source) {
        Ok(entries) => {
            for entry in entries {
                let name = entry?.file_name();
                if name != first.as_os_str() {
                    symlink(std::path::absolute(source.join(&name))?, folder.join(&name))?;
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let changed = folder.join(first);
    if rest.as_os_str().is_empty() {
        let mut created =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&changed)?;
        return created.write_all(text.as_bytes());
    }
    fs::create_dir(&changed)?;
    link(&source.join(first), &changed, rest, text)
}

fn give_back(folder: &Path, source: &Path, file: &Path) -> io::Result<()> {
    // Moves what is no link of ours to `source`; the changed `file` stays.
    let mut names = file.components();
    let first_name = names.next();
    let rest = names.as_path();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let target = source.join(&name);
        if first_name.is_some_and(|first_name| name == first_name.as_os_str()) {
            if !rest.as_os_str().is_empty() {
                give_back(&entry.path(), &target, rest)?;
            }
        } else if !entry.file_type()?.is_symlink() {
            fs::create_dir_all(source)?;
            move_to(&entry.path(), &target)?;
        }
    }
    Ok(())
}

fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_symlink() {
        if fs::symlink_metadata(to).is_ok() {
            fs::remove_file(to)?;
        }
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            move_to(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    // A socket or a pipe is of no use to anybody else.
    if !kind.is_file() {
        return Ok(());
    }
    // The temporary folder may be on another disk; the file appears whole.
    let folder = to.parent().unwrap_or(Path::new("."));
    let temp_file = tempfile::Builder::new().prefix(".plimsoll-").tempfile_in(folder)?;
    fs::copy(from, temp_file.path())?;
    temp_file.persist(to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A link to the folder above would never end, and a socket cannot be copied.
    #[test]
    fn links_stay_links_and_sockets_are_left() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        let to = place.path().join("to");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("notes"), "kept").unwrap();
        symlink("..", from.join("up")).unwrap();
        let _socket = UnixListener::bind(from.join("hub")).unwrap();
        // Twice: what is there is replaced.
        for _ in 0..2 {
            move_to(&from, &to).unwrap();
            assert_eq!(fs::read_to_string(to.join("notes")).unwrap(), "kept");
            assert_eq!(fs::read_link(to.join("up")).unwrap(), Path::new(".."));
            assert!(!to.join("hub").exists());
        }
    }
}
