//! The memory budget for bundles, checked before a bundle is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use scorer_core::bundle::FileEntry;

/// Upper estimate of the memory of loading a bundle, relative to the size of its files: their bytes while they are
/// read, and the compiled form.
const FILES_TO_MEMORY: u64 = 4;
/// Share of the system's memory, in percent, up to which bundles are loaded. The rest is for requests.
const SHARE: u64 = 85;

/// Memory limit of this process for loading bundles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Limit on the memory of the whole process, in bytes.
    pub(crate) bytes: u64,
    /// Source of the limit, for messages.
    pub(crate) source: String,
}

/// Estimates the memory, in bytes, that a bundle of these files needs in addition to the `loaded` bundles. A forest of
/// one of them is shared, so its file needs memory only while it is read and hashed.
pub(crate) fn needed<'a>(
    files: &BTreeMap<String, FileEntry>,
    loaded: impl Iterator<Item = &'a BTreeMap<String, FileEntry>> + Clone,
) -> u64 {
    let same = |of: &BTreeMap<String, FileEntry>, name: &str| of.get(name) == files.get(name);
    // A forest is specialised to a catalogue, so it is shared only with bundles of the same catalogue and schema.
    let shares = |of: &&BTreeMap<String, FileEntry>| same(of, "actions.json") && same(of, "schema.json");
    let shared = |entry: &FileEntry| {
        loaded.clone().filter(shares).any(|of| of.values().any(|known| known.sha256 == entry.sha256))
    };
    files.iter().fold(0, |sum: u64, (name, entry)| {
        let times = if name.ends_with(".bin") && shared(entry) { 1 } else { FILES_TO_MEMORY };
        sum.saturating_add(entry.bytes.saturating_mul(times))
    })
}

/// Returns the resident memory of this process in bytes; `None` if the system does not report it.
#[must_use]
pub fn resident() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

// === impl Budget ===

impl Budget {
    /// Returns the configured budget. Without one, it is 85 % of the container's limit or of the machine's memory,
    /// whichever is lower. `None` if neither is known; then no bundle is rejected.
    pub(crate) fn find(configured: Option<u64>) -> Option<Budget> {
        if let Some(bytes) = configured {
            return Some(Budget { bytes, source: "memory_budget_mb".to_owned() });
        }
        let of = |bytes: u64, what: &str| Budget {
            bytes: bytes / 100 * SHARE,
            source: format!("{SHARE} % of the {what}'s {} MiB", bytes >> 20),
        };
        let machine = machine(&fs::read_to_string("/proc/meminfo").ok()?)?;
        match container(
            &fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
            Path::new("/sys/fs/cgroup"),
        ) {
            Some(limit) if limit < machine => Some(of(limit, "container")),
            _ => Some(of(machine, "machine")),
        }
    }
}

/// Parses `MemTotal` of `/proc/meminfo`, in bytes.
fn machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the least memory limit of the process's control group and the groups above it, of cgroup version 1 or 2.
fn container(groups: &str, root: &Path) -> Option<u64> {
    let limit_of = |line: &str| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (base, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let own = PathBuf::from(group.trim_start_matches('/'));
        // "max" means no limit and is not parsed.
        let read = |group: &Path| fs::read_to_string(base.join(group).join(file)).ok()?.trim().parse().ok();
        own.ancestors().filter_map(read).min()
    };
    groups.lines().filter_map(limit_of).min()
}

#[cfg(test)]
mod tests {
    use scorer_core::bundle::Digest;

    use super::*;

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(container("0::/pod/scorer\n", root.path()), None);
        put("pod/scorer/memory.max", "max\n");
        assert_eq!(container("0::/pod/scorer\n", root.path()), None);
        put("pod/memory.max", "2147483648\n");
        assert_eq!(container("0::/pod/scorer\n", root.path()), Some(2 << 30));
        put("memory/a/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(container("5:cpuset:/x\n4:memory:/a\n0::/\n", root.path()), Some(1 << 30));
        assert_eq!(machine("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
    }

    #[test]
    fn a_shared_forest_takes_memory_only_while_it_is_read() {
        let files = |of: &[(&str, u8, u64)]| -> BTreeMap<String, FileEntry> {
            let entry = |&(name, hash, bytes): &(&str, u8, u64)| {
                (name.to_owned(), FileEntry { sha256: Digest([hash; 32]), bytes })
            };
            of.iter().map(entry).collect()
        };
        let first = files(&[("actions.json", 1, 10), ("forest.bin", 2, 1000), ("schema.json", 3, 100)]);
        let revision = files(&[
            ("actions.json", 1, 10),
            ("forest.bin", 2, 1000),
            ("overlay.json", 4, 1),
            ("schema.json", 3, 100),
        ]);
        let other = files(&[("actions.json", 9, 10), ("forest.bin", 2, 1000), ("schema.json", 3, 100)]);
        assert_eq!(needed(&first, [].into_iter()), 4 * 1110);
        assert_eq!(needed(&revision, [&other, &first].into_iter()), 4 * 111 + 1000);
        assert_eq!(needed(&other, [&first, &revision].into_iter()), 4 * 1110);
    }

    #[test]
    fn a_configured_budget_is_taken_as_it_is() {
        let budget = Budget::find(Some(123)).unwrap();
        assert_eq!((budget.bytes, &*budget.source), (123, "memory_budget_mb"));
        assert!(Budget::find(None).is_some_and(|budget| budget.bytes > 1 << 20));
        assert!(resident().is_some_and(|bytes| bytes > 1 << 20));
    }
}
