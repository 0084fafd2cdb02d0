//! Findings: facts about the state of a log that users should know.

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The state is normal.
    Info,
    /// There is damage, but no acknowledged record is lost.
    Warning,
    /// Records are lost, or the log is not consistent.
    Error,
}

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The last segment ends in the middle of a record, because the writer was stopped there or is writing it.
    TornTail,
    /// Records that were not on stable storage are lost because the machine stopped.
    UnsyncedLoss,
    /// Bytes are damaged and records in them are lost.
    CorruptMiddle,
    /// Bytes are damaged; every record is accounted for.
    DamagedBytes,
    /// A segment's header is damaged; its records are readable.
    CorruptHeader,
    /// Sequences are missing and there is no damage, so a segment was removed.
    Gap,
    /// A sequence occurs twice.
    Duplicate,
    /// A segment of another log is in this directory. It is not read.
    ForeignSegment,
    /// A file in this directory does not belong to a decision log. It is not read.
    ForeignFile,
    /// A copy of a damaged segment is kept in `quarantine/`.
    Quarantined,
}

impl FindingKind {
    /// The severity of findings of this kind.
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
    /// The kind.
    pub kind: FindingKind,
    /// The severity.
    pub severity: Severity,
    /// File name, relative to the log directory.
    pub segment: String,
    /// Offset of the damage in the file.
    pub offset: u64,
    /// Number of bytes that are not a record.
    pub bytes: u64,
    /// First and last lost sequence, inclusive.
    pub lost: Option<(u64, u64)>,
    /// A description in one line.
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
