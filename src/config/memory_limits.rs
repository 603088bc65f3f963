//! How much memory the process may use if that is not configured, and what follows from it for traffic.
//!
//! On Linux the process's cgroup has the limit, as a container's or a service's. If there is none, a part of the
//! machine's memory applies.

use std::path::{Path, PathBuf};

/// The least for a process without a cgroup's limit.
const LEAST: u64 = 512 << 20;
/// Without a cgroup's limit, the process gets this part of the machine's memory.
const PART: u64 = 8;
/// What a connection takes at most, with its headers, its request and the upstream's connection, bytes.
const CONNECTION: u64 = 170 << 10;
/// Most connections by default.
const CONNECTIONS: u64 = 4096;

/// The default of `limits.process_bytes`.
pub(super) fn process_bytes() -> u64 {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let granted = granted(&cgroups, |file| std::fs::read_to_string(file).ok());
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    default_limit(granted, meminfo.as_deref().and_then(total))
}

pub(super) fn memory_bytes(process: u64) -> usize {
    // Bodies use about twice what is counted for them.
    size(process / 32 * 5)
}

/// The default of `limits.connections` for a process with this much memory.
pub(super) fn connections(process: u64) -> usize {
    size(CONNECTIONS.min(process / CONNECTION))
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn default_limit(granted: Option<u64>, machine: Option<u64>) -> u64 {
    let part = machine.map_or(LEAST, |machine| LEAST.max(machine / PART));
    // A cgroup may grant more than the machine has.
    granted.map_or(part, |granted| granted.min(machine.unwrap_or(granted)))
}

/// The memory of the machine. `meminfo` is the text of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let kib: u64 = meminfo.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
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
    fn smallest_cgroup_limit_applies() {
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
    fn limit_is_cgroup_or_share() {
        assert_eq!(default_limit(None, None), 512 << 20);
        assert_eq!(default_limit(None, Some(2 << 30)), 512 << 20);
        assert_eq!(
            default_limit(None, total("MemTotal:       16777216 kB\nMemFree: 1 kB\n")),
            2 << 30
        );
        assert_eq!(default_limit(Some(256 << 20), Some(64 << 30)), 256 << 20);
        assert_eq!(default_limit(Some(64 << 30), Some(16 << 30)), 16 << 30, "a limit that is none");
    }

    #[test]
    fn limits_follow_from_memory() {
        assert_eq!(memory_bytes(256 << 20), 40 << 20);
        assert_eq!(memory_bytes(u64::MAX), usize::MAX / 32 * 5, "whatever is said");
        assert_eq!(connections(256 << 20), 1542);
        assert_eq!(connections(2 << 30), 4096);
    }
}
