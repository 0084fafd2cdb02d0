//! The number of shards. A shard has at most about a mebibyte of state, so that its lock is held for less than a
//! millisecond while it is copied to a snapshot or its oldest entities are removed.

/// Memory of a shard in bytes.
const SHARD_BYTES: u64 = 1 << 20;
/// Least and greatest number of shards.
const LEAST: u64 = 64;
const GREATEST: u64 = 1 << 16;

/// The number of shards of this memory: a power of two.
pub(crate) fn count(bytes: u64) -> usize {
    (bytes / SHARD_BYTES).clamp(LEAST, GREATEST).next_power_of_two() as usize
}
