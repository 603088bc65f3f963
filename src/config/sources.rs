//! Where a configuration comes from: a file, the environment, flags.
//!
//! A file in the working directory is never read unless it is named.

use std::path::{Path, PathBuf};

/// The name of a configuration file.
const FILE: &str = "plimsoll.toml";

/// The sources of a configuration: a file, overridden by the environment, overridden by flags.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The file that was named explicitly.
    pub file: Option<PathBuf>,
    /// Other files to try, the first existing one is used; none of them need exist.
    pub search: Vec<PathBuf>,
    /// A file that people might take for ours: reported if it exists, never read.
    pub stray: Option<PathBuf>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
    /// Flags of the command line.
    pub flags: Vec<ConfigFlag>,
}

/// A flag that sets a key.
#[derive(Clone, Debug)]
pub struct ConfigFlag {
    /// The name as typed, such as `--listen`.
    pub name: String,
    /// The dotted key.
    pub key: String,
    /// The value as typed.
    pub value: String,
}

impl ConfigSources {
    /// The sources of this process: the file that was named, or else the one in the user's configuration folder, or
    /// else the system's; and the environment.
    pub(crate) fn of_process(file: Option<PathBuf>, flags: Vec<ConfigFlag>) -> Self {
        // The working directory may belong to anybody (a cloned repository), so a file in it is read only if it
        // is named.
        let variables: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut sources =
            Self { variables, flags, stray: Some(PathBuf::from(FILE)), ..Self::default() };
        let folder = sources.folder("XDG_CONFIG_HOME");
        let folder = folder.or_else(|| Some(sources.folder("HOME")?.join(".config")));
        let folders = folder.into_iter().chain([PathBuf::from("/etc")]);
        sources.search = folders.map(|folder| folder.join("plimsoll").join(FILE)).collect();
        sources.file = file.or_else(|| sources.variable("PLIMSOLL_CONFIG").map(PathBuf::from));
        sources
    }

    pub(super) fn folder(&self, name: &str) -> Option<PathBuf> {
        // A relative path would lead into the working directory; the XDG Base Directory Specification requires
        // it to be ignored.
        self.variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let (_, value) = self.variables.iter().find(|(known, _)| known == name)?;
        Some(value).filter(|value| !value.is_empty()).map(String::as_str)
    }

    pub(super) fn ignored(&self, read: Option<&Path>) -> Vec<String> {
        let mut ignored = Vec::new();
        for name in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            if self.variable(name).is_some() && self.folder(name).is_none() {
                ignored.push(format!("{name} is not an absolute path; it is ignored"));
            }
        }
        if let Some(stray) = &self.stray
            && stray.symlink_metadata().is_ok()
            && !read.is_some_and(|read| is_same_file(read, stray))
        {
            let stray = stray.display();
            ignored.push(format!("./{stray} is not read; name it with --config if it is yours"));
        }
        ignored
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    one.canonicalize().ok() == other.canonicalize().ok()
}
