//! Settings of a log.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::LogError;
use crate::format::{MAX_PAYLOAD, span};
use crate::retention::Retention;

/// The state that a record must have reached before `append` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Written by the writer thread, with one write for all waiting records. The record survives the end of the
    /// process, and after the next background `fdatasync` also a crash of the machine.
    Written,
    /// Added to a bounded queue, without waiting for the file. The record is lost if the process ends. It is dropped
    /// and counted if the queue is full.
    Async,
    /// On stable storage. Concurrent callers share one `fdatasync`.
    Sync,
}

/// Settings of a log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// The directory, which is created if it does not exist.
    pub dir: PathBuf,
    /// Greatest size of a segment in bytes. A record that would exceed it starts a new segment.
    pub segment_bytes: u64,
    /// Pause between background `fdatasync` calls, in milliseconds.
    pub sync_ms: u64,
    /// Greatest number of waiting `Async` records.
    pub queue_records: usize,
    /// Greatest number of payload bytes of waiting `Async` records.
    pub queue_bytes: usize,
    /// Greatest number of `Written` and `Sync` records that wait for the writer thread.
    pub awaited_records: usize,
    /// Greatest number of payload bytes of these records.
    pub awaited_bytes: usize,
    /// A write that takes longer than this, in milliseconds, makes the log unavailable until it has returned.
    pub stall_ms: u64,
    /// Greatest number of bytes that are written and not yet on stable storage. They are kept in memory until then, so
    /// that they can be written again if `fdatasync` fails. If the disk falls this far behind, the log becomes
    /// unavailable.
    pub max_unsynced_bytes: usize,
    /// Number of outcomes, and of decisions, that the index holds. Opening the log rebuilds it from at least as many of
    /// the newest records.
    pub index_capacity: usize,
    /// The rules for removing old segments.
    pub retention: Retention,
    /// Pause between two rounds of upkeep: retention and the measurement of free space.
    pub upkeep_every: Duration,
    /// Whether to run background threads. Without them, appends write on the calling thread, and the owner calls
    /// `drain`, `sync` and `maintain`.
    pub background: bool,
    /// Called at the start of the writer thread, for example to set its scheduling.
    pub on_writer_start: fn(),
}

impl LogConfig {
    /// Creates the default settings for a directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            segment_bytes: 64 << 20,
            sync_ms: 50,
            queue_records: 65_536,
            queue_bytes: 32 << 20,
            awaited_records: 4096,
            awaited_bytes: 8 << 20,
            stall_ms: 100,
            max_unsynced_bytes: 32 << 20,
            index_capacity: 1 << 18,
            retention: Retention::default(),
            upkeep_every: Duration::from_secs(10),
            background: true,
            on_writer_start: || (),
        }
    }

    /// Returns the greatest payload of a record in bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        MAX_PAYLOAD.min(self.max_unsynced_bytes / 4)
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        let rules: [(&'static str, u64, bool, &'static str); 6] = [
            (
                "segment_bytes",
                self.segment_bytes,
                self.segment_bytes >= 4096,
                "below the smallest segment, 4096",
            ),
            ("sync_ms", self.sync_ms, (1..=60_000).contains(&self.sync_ms), "outside 1 to 60000"),
            ("queue", self.queue_records as u64, self.queue_records > 0, "no queue at all; give at least 1"),
            (
                "max_unsynced_bytes",
                self.max_unsynced_bytes as u64,
                self.max_unsynced_bytes >= span(1024) * 4,
                "too little to hold one record; give at least 4160",
            ),
            (
                "retain_bytes",
                self.retention.max_bytes.unwrap_or(0),
                self.retention.max_bytes.is_none_or(|most| most / 4 >= self.segment_bytes),
                "less than four segments; make it larger, or segments smaller",
            ),
            (
                "index_capacity",
                self.index_capacity as u64,
                self.index_capacity >= 64,
                "below the smallest index, 64",
            ),
        ];
        match rules.into_iter().find(|(_, _, ok, _)| !ok) {
            Some((setting, value, _, rule)) => Err(LogError::Config { setting, value, rule }),
            None => Ok(()),
        }
    }
}
