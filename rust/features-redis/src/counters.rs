//! Counters of reads.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Why a read has no replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFailure {
    /// There is no connection, or it ended before the reply.
    Away,
    /// Too many reads wait for a reply.
    Busy,
    /// The server refused the command.
    Refused,
    /// The state is not complete: no feed has built it, or the server lost it.
    Incomplete,
}

/// The state of one entity, as a read found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobResult {
    /// It was used.
    Found,
    /// There is none: the entity has no events, or its state expired or was evicted.
    Missing,
    /// It has another version, or is of another definition of the set.
    Version,
    /// Its checksum or its length is wrong.
    Corrupt,
}

/// Counters of the reads of one server.
#[derive(Debug, Default)]
pub struct RedisCounters {
    /// Number of reads with replies.
    pub reads: AtomicU64,
    /// Number of reads that were repeated on another connection.
    pub hedges: AtomicU64,
    /// Number of repeated reads whose second reply was used.
    pub hedges_won: AtomicU64,
    /// Number of reads that were not repeated because of the limit of their share.
    pub hedges_refused: AtomicU64,
    /// Number of connections that were opened.
    pub connects: AtomicU64,
    /// Number of connections that ended or could not be opened.
    pub disconnects: AtomicU64,
    /// Number of keys that the server evicted since its start, as it reported last.
    pub evicted_keys: AtomicU64,
    failures: [AtomicU64; ReadFailure::ALL.len()],
    blobs: [AtomicU64; BlobResult::ALL.len()],
}

// === impl ReadFailure ===

impl ReadFailure {
    /// All reasons, in the order of their counters.
    pub const ALL: [ReadFailure; 4] =
        [ReadFailure::Away, ReadFailure::Busy, ReadFailure::Refused, ReadFailure::Incomplete];

    /// The name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ReadFailure::Away => "away",
            ReadFailure::Busy => "busy",
            ReadFailure::Refused => "refused",
            ReadFailure::Incomplete => "incomplete",
        }
    }
}

// === impl BlobResult ===

impl BlobResult {
    /// All results, in the order of their counters.
    pub const ALL: [BlobResult; 4] =
        [BlobResult::Found, BlobResult::Missing, BlobResult::Version, BlobResult::Corrupt];

    /// The name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BlobResult::Found => "found",
            BlobResult::Missing => "missing",
            BlobResult::Version => "version",
            BlobResult::Corrupt => "corrupt",
        }
    }
}

// === impl RedisCounters ===

impl RedisCounters {
    /// Counts a read without replies.
    pub fn failed(&self, failure: ReadFailure) {
        if let Some(count) = self.failures.get(failure as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts the state of an entity.
    pub fn blob(&self, result: BlobResult) {
        if let Some(count) = self.blobs.get(result as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// The numbers of reads without replies, by reason.
    pub fn failures(&self) -> impl Iterator<Item = (ReadFailure, u64)> {
        ReadFailure::ALL.into_iter().zip(&self.failures).map(|(reason, count)| (reason, count.load(Relaxed)))
    }

    /// The numbers of states, by result.
    pub fn blobs(&self) -> impl Iterator<Item = (BlobResult, u64)> {
        BlobResult::ALL.into_iter().zip(&self.blobs).map(|(result, count)| (result, count.load(Relaxed)))
    }
}
