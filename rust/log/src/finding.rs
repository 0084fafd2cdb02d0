//! What a look at the log found that is worth telling.

use serde::Serialize;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Part of normal life.
    Info,
    /// Something broke; no acknowledged record is lost.
    Warning,
    /// Records are lost or the log is not what it should be.
    Error,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The last segment ends in the middle of a record: the writer was stopped there (or is writing it).
    TornTail,
    /// Records that were never on stable storage are gone with the power.
    UnsyncedLoss,
    /// Bytes are damaged and records in them are lost.
    CorruptMiddle,
    /// Bytes are damaged; every record is accounted for.
    DamagedBytes,
    /// A segment's header is damaged; its records are readable.
    CorruptHeader,
    /// Sequences are missing with no damage in sight: a segment was removed.
    Gap,
    /// A sequence occurs twice.
    Duplicate,
    /// A segment of another log lies in this directory; it is not read.
    ForeignSegment,
    /// A file that does not belong to a decision log; it is not read.
    ForeignFile,
    /// A copy of a damaged segment is kept in `quarantine/`.
    Quarantined,
}

impl FindingKind {
    /// How much it matters.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::TornTail | Self::ForeignFile | Self::Quarantined => Severity::Info,
            Self::UnsyncedLoss | Self::DamagedBytes => Severity::Warning,
            Self::CorruptMiddle
            | Self::CorruptHeader
            | Self::Gap
            | Self::Duplicate
            | Self::ForeignSegment => Severity::Error,
        }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was found.
    pub kind: FindingKind,
    /// How much it matters.
    pub severity: Severity,
    /// File name, relative to the log directory.
    pub segment: String,
    /// Where the damage begins in the file.
    pub offset: u64,
    /// How many bytes are no record.
    pub bytes: u64,
    /// First and last lost sequence, both included.
    pub lost: Option<(u64, u64)>,
    /// One line for people.
    pub detail: String,
}

impl Finding {
    pub(crate) fn new(kind: FindingKind, segment: &str, detail: String) -> Self {
        let severity = kind.severity();
        Self { kind, severity, segment: segment.to_owned(), offset: 0, bytes: 0, lost: None, detail }
    }

    pub(crate) fn at(mut self, offset: u64, bytes: u64) -> Self {
        self.offset = offset;
        self.bytes = bytes;
        self
    }

    pub(crate) fn losing(mut self, first: u64, last: u64) -> Self {
        self.lost = Some((first, last));
        self
    }
}
