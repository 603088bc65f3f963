//! How many files the process may open: each connection is one.
//!
//! Many systems allow 1,024 by default, which is less than a thousand streams need. So the limit is raised as
//! far as the system allows; if that is not enough, a warning is printed.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that the process opens besides connections.
const OTHERS: u64 = 256;

/// Raises the limit as needed for that many client connections, each with one to an upstream. Returns a
/// warning if the system allows fewer.
pub(super) fn allow(connections: usize) -> Option<String> {
    let wanted = 2 * connections as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    // `None` means unlimited.
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let mut current = limit.current.unwrap_or(u64::MAX);
    let target = wanted.min(maximum);
    if current < target && setrlimit(Resource::Nofile, raised(limit, target)).is_ok() {
        current = target;
    }
    too_few(current, connections)
}

fn raised(limit: Rlimit, files: u64) -> Rlimit {
    Rlimit { current: Some(files), maximum: limit.maximum }
}

fn too_few(files: u64, connections: usize) -> Option<String> {
    // Each client's connection has one to an upstream.
    let enough = files.saturating_sub(OTHERS) / 2;
    if enough >= connections as u64 {
        return None;
    }
    Some(format!(
        "this process may have {files} files open, enough for {enough} clients at once, and \
         limits.connections is {connections}; raise the limit (ulimit -Hn) or lower limits.connections"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_are_reported() {
        assert_eq!(too_few(2 * 4096 + OTHERS, 4096), None);
        let warning = too_few(1024, 4096).unwrap();
        assert!(warning.contains("1024 files open, enough for 384 clients"), "{warning}");
        assert!(too_few(0, 1).is_some());
    }

    #[test]
    fn open_file_limit_is_raised() {
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let connections = 100;
        assert_eq!(allow(connections).is_none(), most >= 2 * 100 + OTHERS);
        assert!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) >= most.min(456));
    }
}
