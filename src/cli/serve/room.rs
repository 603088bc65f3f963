//! Whether the disk has the space that the store may take.
//!
//! Queries the file system and changes nothing; without an answer, nothing is reported.

use std::path::Path;

use crate::context::budget::grouped;

fn most(bound: u64) -> u64 {
    // The most bytes that the store takes with this bound: a tenth more, and its log.
    bound.saturating_add(bound / 10).saturating_add(64 << 20)
}

/// What is missing if the store at `file` cannot grow to its bound in bytes.
pub(in crate::cli) fn missing(file: &Path, bound: u64) -> Option<String> {
    let folder = file.ancestors().skip(1).find(|folder| folder.is_dir())?;
    let disk = rustix::fs::statvfs(folder).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    // What the store has already taken counts as room for it.
    let file_bytes = std::fs::metadata(file).map_or(0, |file| file.len());
    too_little(folder, free.saturating_add(file_bytes), bound)
}

fn too_little(folder: &Path, room: u64, bound: u64) -> Option<String> {
    let needed = most(bound);
    if room >= needed {
        return None;
    }
    Some(format!(
        "{} has room for {} MiB and the store may take {} MiB (retention.bytes and a tenth of it, and \
         64 MiB for its WAL); lower retention.bytes to {}, or make room",
        folder.display(),
        grouped(room >> 20),
        grouped(needed >> 20),
        room.saturating_sub(64 << 20) / 11 * 10,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_byte_warns() {
        let bound = 100 << 20;
        let needed = most(bound);
        let folder = Path::new("/data");
        assert_eq!(too_little(folder, needed, bound), None);
        let warning = too_little(folder, needed - 1, bound).unwrap();
        assert!(
            warning.contains("/data has room for 173 MiB and the store may take 174 MiB"),
            "{warning}"
        );
        assert!(too_little(folder, 0, bound).is_some());
    }

    #[test]
    fn suggested_limit_fits() {
        for room in [64 << 20, 1 << 30, 5 << 30] {
            let named = (room - (64 << 20)) / 11 * 10;
            assert_eq!(too_little(Path::new("/"), room, named), None, "{room}");
        }
    }
}
