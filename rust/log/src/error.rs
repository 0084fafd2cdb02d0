//! The errors of the decision log. Each names the item, the rule and the remedy.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Errors of the decision log.
#[derive(Debug, Error)]
pub enum LogError {
    /// Another process (or another `Log` of this one) holds the directory.
    #[error(
        "decision log {}: another process is writing it; stop that process or give this one a log directory of its own",
        dir.display()
    )]
    Locked {
        /// The log directory.
        dir: PathBuf,
    },
    /// The path does not exist or is not a directory.
    #[error("decision log {}: no such directory; give the directory that the server's [log] dir names", dir.display())]
    NotADirectory {
        /// The path as given.
        dir: PathBuf,
    },
    /// The directory holds no files of a decision log.
    #[error(
        "decision log {}: the directory holds no segments (*.seg); give the directory that the server's [log] dir names",
        dir.display()
    )]
    NotALog {
        /// The path as given.
        dir: PathBuf,
    },
    /// An operation of the file system failed.
    #[error("decision log {}: cannot {op}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation, as a verb phrase.
        op: &'static str,
        /// The system's own error.
        #[source]
        source: io::Error,
    },
    /// A setting is out of range.
    #[error("decision log: {setting} {value} is {rule}")]
    Config {
        /// The setting's name.
        setting: &'static str,
        /// The value given.
        value: u64,
        /// The rule that it breaks and the remedy.
        rule: &'static str,
    },
    /// One record is larger than the log can hold.
    #[error(
        "decision log: a record of {bytes} bytes is above the limit of {max}; send fewer features or rows per record"
    )]
    TooLarge {
        /// Payload bytes.
        bytes: usize,
        /// The largest payload that this log accepts.
        max: usize,
    },
    /// The log cannot record now; it recovers by itself.
    #[error("decision log is unavailable: {reason}")]
    Unavailable {
        /// The failure that made the log unavailable.
        reason: Arc<str>,
    },
    /// The bounded queue is full; this record was dropped.
    #[error(
        "decision log: the queue of {records} records is full; the record was dropped, and the disk may be too slow"
    )]
    QueueFull {
        /// Number of waiting records.
        records: usize,
    },
    /// A `Sync` record could not be brought to stable storage. Its written bytes are withdrawn.
    #[error("decision log: record {sequence} is not on stable storage and is withdrawn: {reason}")]
    NotDurable {
        /// The record's sequence number.
        sequence: u64,
        /// The reason.
        reason: Arc<str>,
    },
    /// The record was withdrawn before it was written.
    #[error("decision log: the record was not written by its deadline and is withdrawn; check the disk")]
    Withdrawn,
    /// The log was sealed.
    #[error("decision log is closed; open it again to append")]
    Closed,
}

impl LogError {
    pub(crate) fn io(path: impl Into<PathBuf>, op: &'static str) -> impl FnOnce(io::Error) -> LogError {
        let path = path.into();
        move |source| LogError::Io { path, op, source }
    }
}
