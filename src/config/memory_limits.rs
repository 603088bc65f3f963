//! How much memory the process may use if that is not configured, and the shares of it for traffic.
//!
//! On Linux the process's cgroup has the limit, as a container's or a service's. If it is larger, or there is
//! none, a fixed size applies. The shares leave room for what bodies use besides what is counted, for
//! sessions, and for the process itself.

use std::path::{Path, PathBuf};

/// The largest default: the limit in the shipped manifests.
const WHOLE: u64 = 256 << 20;

/// The default of `limits.process_bytes`: the cgroup's limit, at most [`WHOLE`].
pub(super) fn process_bytes() -> u64 {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    of(granted(&own, |file| std::fs::read_to_string(file).ok()))
}

/// The default of `limits.memory_bytes` for a process with this much memory. Bodies use about twice what is
/// counted for them.
pub(super) fn memory_bytes(process: u64) -> usize {
    size(process / 4)
}

/// The default of `limits.connection_bytes` for a process with this much memory.
pub(super) fn connection_bytes(process: u64) -> usize {
    size(process / 32 * 7)
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn of(granted: Option<u64>) -> u64 {
    granted.unwrap_or(WHOLE).min(WHOLE)
}

/// The smallest limit of the process's cgroups. `own` is the text of `/proc/self/cgroup`.
fn granted(own: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            some if some.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let below = Path::new(path.trim_start_matches('/'));
        let ancestors = below.ancestors().map(|at| PathBuf::from(root).join(at).join(file));
        files.extend(ancestors);
    }
    let limits = files.iter().filter_map(|file| read(file)?.trim().parse().ok());
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit_in(own: &str, files: &[(&str, &str)]) -> Option<u64> {
        granted(own, |at| {
            let found = files.iter().find(|(file, _)| Path::new(file) == at);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_smallest_limit_of_a_cgroup_and_its_parents_applies() {
        let files = [
            ("/sys/fs/cgroup/a/memory.max", "268435456\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
        ];
        assert_eq!(limit_in("0::/a/b\n", &files), Some(256 << 20));
        assert_eq!(limit_in("0::/\n", &files), None);
        assert_eq!(
            limit_in("0::/\n", &[("/sys/fs/cgroup/memory.max", "7")]),
            Some(7),
            "a container"
        );
        let old = [("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9")];
        assert_eq!(limit_in("4:cpu:/x\n9:hugetlb,memory:/x\n", &old), Some(9));
        assert_eq!(limit_in("nonsense", &files), None);
    }

    #[test]
    fn the_memory_limit_is_the_default_or_a_smaller_cgroup_limit() {
        assert_eq!(of(None), WHOLE);
        assert_eq!(of(Some(64 << 30)), WHOLE);
        assert_eq!(of(Some(128 << 20)), 128 << 20);
    }

    #[test]
    fn the_memory_shares_are_those_of_the_flood_tests() {
        assert_eq!(memory_bytes(WHOLE), 64 << 20);
        assert_eq!(connection_bytes(WHOLE), 56 << 20);
        assert_eq!(memory_bytes(u64::MAX), usize::MAX / 4, "whatever is said");
    }
}
