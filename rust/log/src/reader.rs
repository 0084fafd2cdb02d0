//! Reads a log directory in sequence order, also while a writer uses it, and reports damage.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::directory::{Directory, Listed};
use crate::error::LogError;
use crate::finding::{Finding, FindingKind};
use crate::format::{HEADER_LEN, Header, Seal};
use crate::fs::{DirLock, File, Fs};
use crate::scan::{SegmentScan, Step, read_seal};

/// One record.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// File name of its segment.
    pub segment: &'a str,
    /// Number of the record. Numbers within a log have no gaps.
    pub sequence: u64,
    /// An encoded `scorer.v1.LogRecord`.
    pub payload: &'a [u8],
}

/// Facts about a segment after it was read, or skipped because of its seal.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentSummary {
    /// File name, relative to the log directory.
    pub name: String,
    /// Bytes in the file.
    pub bytes: u64,
    /// Number of good records, including void records.
    pub records: u64,
    /// First and last sequence delivered from it.
    pub sequences: Option<(u64, u64)>,
    /// Time of its creation in microseconds since the Unix epoch.
    pub created_us: i64,
    /// First sequence according to its header. Records of earlier segments from this sequence on are void.
    pub first: Option<u64>,
    /// Every sequence below this was on stable storage when it was created.
    pub durable: Option<u64>,
    /// Whether it ends with a seal.
    pub sealed: bool,
    /// Offset after the last good frame.
    pub good_end: u64,
    /// Number of bytes at the end that are not a frame.
    pub torn: u64,
    /// Whether there is damage before a good frame.
    pub damaged: bool,
}

/// Damage whose lost records are not known before the next good record.
struct Open {
    segment: String,
    offset: u64,
    bytes: u64,
    /// Whether it is at the end of a segment without a seal.
    tail: bool,
}

/// Number of attempts to hold a first segment that is being removed.
const ATTEMPTS: u32 = 100;

/// Lists a directory and locks its first segment, so that retention removes none of the listed segments.
fn hold(fs: &dyn Fs, dir: &Path) -> Result<(Directory, Option<Box<dyn DirLock>>), LogError> {
    let mut attempt = 0;
    loop {
        let directory = Directory::read(fs, dir)?;
        let Some(first) = directory.segments.first() else { return Ok((directory, None)) };
        attempt += 1;
        match fs.hold(&dir.join(&first.name), true) {
            Ok(Some(held)) => return Ok((directory, Some(held))),
            // The segment is being removed, or was removed after it was listed.
            Ok(None) if attempt < ATTEMPTS => std::thread::sleep(Duration::from_millis(1)),
            Err(error) if attempt < ATTEMPTS && error.kind() == std::io::ErrorKind::NotFound => {}
            // The file system has no locks. Records may then be removed while they are read, which readers detect.
            Ok(None) | Err(_) => return Ok((directory, None)),
        }
    }
}

/// A reader of the records of a directory. It writes nothing. Until its end it holds a shared lock that prevents
/// retention from removing segments.
pub struct Reader {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    segments: Vec<Listed>,
    /// Segments before this one are skipped if their seal is good.
    scan_from: usize,
    /// Records before this sequence are not delivered.
    start: u64,
    at: usize,
    scan: Option<SegmentScan>,
    current: Option<SegmentSummary>,
    expected: Option<u64>,
    open: Vec<Open>,
    findings: Vec<Finding>,
    summaries: Vec<SegmentSummary>,
    /// Prevents the removal of the first segment, and so of all others, until the end was read.
    held: Option<Box<dyn DirLock>>,
}

impl Reader {
    /// Opens a log directory for reading.
    ///
    /// # Errors
    /// Fails if the path is not a directory, has no files of a log, or cannot be read.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path) -> Result<Self, LogError> {
        let (Directory { segments, findings, begins }, held) = hold(&*fs, dir)?;
        Ok(Self {
            fs,
            dir: dir.to_owned(),
            segments,
            scan_from: 0,
            start: 0,
            at: 0,
            scan: None,
            current: None,
            expected: begins,
            open: Vec::new(),
            findings,
            summaries: Vec::new(),
            held,
        })
    }

    /// Delivers records from this sequence on. Only headers and seals are read of the segments before it, so that
    /// continuing at the end of an earlier pass reads at most one segment. Damage inside of these segments is not
    /// detected.
    #[must_use]
    pub fn starting_at(mut self, sequence: u64) -> Self {
        // The last segment that is known to start at or before the sequence. One with a damaged header is not known.
        let before = |listed: &Listed| listed.header.is_some_and(|header| header.first <= sequence);
        self.scan_from = self.segments.iter().rposition(before).unwrap_or(0);
        self.start = sequence;
        self
    }

    /// Skips segments before the last `records` records if their seal is good, because recovery needs only their
    /// numbers.
    pub(crate) fn skip_before_last(&mut self, records: u64) {
        let newest = self.segments.iter().filter_map(|listed| listed.header).map(|header| header.first).max();
        let from = newest.unwrap_or(0).saturating_sub(records);
        let behind = |listed: &Listed| listed.header.is_some_and(|header| header.first > from);
        self.scan_from =
            self.segments.iter().position(behind).unwrap_or(self.segments.len()).saturating_sub(1);
    }

    /// Returns the next record in sequence order; `None` at the end of the bytes that existed when the segment was
    /// opened.
    ///
    /// # Errors
    /// Fails if a file could not be read.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, LogError> {
        let sequence = loop {
            if self.scan.is_none() && !self.open_segment()? {
                return Ok(None);
            }
            if let Some(sequence) = self.step()?
                && sequence >= self.start
            {
                break sequence;
            }
        };
        let dir = &self.dir;
        let name = self.current.as_ref().map_or("", |summary| summary.name.as_str());
        match self.scan.as_mut().map(SegmentScan::payload).transpose() {
            Ok(payload) => Ok(Some(Record { segment: name, sequence, payload: payload.unwrap_or_default() })),
            Err(source) => Err(LogError::Io { path: dir.join(name), op: "read", source }),
        }
    }

    /// The findings so far. They are complete after `next_record` has returned `None`.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The segments read so far.
    #[must_use]
    pub fn segments(&self) -> &[SegmentSummary] {
        &self.summaries
    }

    /// Number of bytes in all segments, for the display of progress.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let len =
            |listed: &Listed| self.fs.open(&self.dir.join(&listed.name), false).and_then(|file| file.len());
        self.segments.iter().filter_map(|listed| len(listed).ok()).sum()
    }

    /// Number of bytes read so far, including the part of the current segment.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        let done: u64 = self.summaries.iter().map(|summary| summary.bytes).sum();
        done + self.scan.as_ref().map_or(0, SegmentScan::good_end)
    }

    /// The sequence after the last one that was read, if there is one.
    pub(crate) fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// Number of the newest segment file.
    pub(crate) fn last_number(&self) -> u64 {
        self.segments.last().map_or(0, |listed| listed.number)
    }

    /// The log's identity, if a header is readable.
    pub(crate) fn log_id(&self) -> Option<[u8; 16]> {
        self.segments.iter().find_map(|listed| listed.header).map(|header| header.log)
    }

    /// Whether the machine could still lose records of this segment, because no later header states that they are on
    /// stable storage.
    pub(crate) fn perhaps_unsynced(&self, summary: &SegmentSummary) -> bool {
        let durable =
            self.segments.iter().filter_map(|listed| listed.header).map(|header| header.durable).max();
        !summary.sealed || summary.sequences.is_some_and(|(_, last)| last >= durable.unwrap_or(0))
    }

    /// Whether it is the newest segment.
    pub(crate) fn is_last(&self, summary: &SegmentSummary) -> bool {
        self.segments.last().is_some_and(|listed| listed.name == summary.name)
    }

    /// UUID of a segment by its file name.
    pub(crate) fn uuid_of(&self, name: &str) -> Option<[u8; 16]> {
        self.segments.iter().find(|listed| listed.name == name).map(|listed| listed.uuid)
    }

    /// Opens the next segment. Returns false at the end of the directory.
    fn open_segment(&mut self) -> Result<bool, LogError> {
        let Some(listed) = self.segments.get(self.at) else {
            self.close_open(None);
            self.held = None;
            return Ok(false);
        };
        let (name, uuid, header, limit) = (listed.name.clone(), listed.uuid, listed.header, listed.limit);
        let quick = self.at < self.scan_from;
        self.at += 1;
        let path = self.dir.join(&name);
        let file = match self.fs.open(&path, false) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(LogError::io(&path, "open")(error)),
        };
        let bytes = file.len().map_err(LogError::io(&path, "read"))?;
        if let Some(header) = header {
            self.enter(&header, limit, &name);
        }
        let summary = SegmentSummary {
            name,
            bytes,
            records: 0,
            sequences: None,
            created_us: header.map_or(0, |header| header.created_us),
            first: header.map(|header| header.first),
            durable: header.map(|header| header.durable),
            sealed: false,
            good_end: bytes.min(HEADER_LEN as u64),
            torn: 0,
            damaged: false,
        };
        if quick
            && header.is_some()
            && let Some(seal) = read_seal(&*file, &uuid).map_err(LogError::io(&path, "read"))?
        {
            self.skip(summary, seal, limit);
            return Ok(true);
        }
        self.current = Some(summary);
        self.scan = Some(self.start_scan(file, uuid, header).map_err(LogError::io(&path, "read"))?);
        Ok(true)
    }

    fn start_scan(
        &self,
        file: Arc<dyn File>,
        uuid: [u8; 16],
        header: Option<Header>,
    ) -> std::io::Result<SegmentScan> {
        SegmentScan::new(file, uuid, header.map_or(0, |header| header.first))
    }

    /// Resolves open damage of earlier segments with the first sequence of this segment.
    fn enter(&mut self, header: &Header, limit: u64, name: &str) {
        // All records of a segment may be void.
        let first = header.first.min(limit);
        let Some(expected) = self.expected else {
            self.expected = Some(first);
            return;
        };
        if first > expected {
            let unsynced = expected >= header.durable && !self.last_sealed();
            self.lose(expected, first - 1, unsynced, name);
            self.expected = Some(first);
        } else {
            self.close_open(Some(name));
        }
    }

    fn last_sealed(&self) -> bool {
        self.summaries.last().is_some_and(|summary| summary.sealed)
    }

    fn skip(&mut self, mut summary: SegmentSummary, seal: Seal, limit: u64) {
        let next = seal.next.min(limit);
        summary.sealed = true;
        summary.records = seal.records;
        summary.good_end = summary.bytes;
        summary.sequences = (seal.first < next).then(|| (seal.first, next - 1));
        self.expected = self.expected.max(Some(next));
        self.resume(&summary.name, seal, limit);
        self.summaries.push(summary);
    }

    /// Skips the sequences that an earlier recovery found missing after this segment.
    fn resume(&mut self, name: &str, seal: Seal, limit: u64) {
        let (next, resume) = (seal.next.min(limit), seal.resume.min(limit));
        if resume > next && self.expected == Some(next) {
            let range = sequences(next, resume - 1);
            let detail = format!(
                "after segment {name}: {range} never reached stable storage before the machine stopped"
            );
            self.findings
                .push(Finding::new(FindingKind::UnsyncedLoss, name, detail).losing(next, resume - 1));
            self.expected = Some(resume);
        }
    }

    /// Makes one step in the current segment. Returns a sequence if it is a record to deliver.
    fn step(&mut self) -> Result<Option<u64>, LogError> {
        let (Some(scan), Some(summary)) = (self.scan.as_mut(), self.current.as_mut()) else {
            return Ok(None);
        };
        let limit = self.segments.get(self.at - 1).map_or(u64::MAX, |listed| listed.limit);
        let step =
            scan.step().map_err(|source| LogError::io(self.dir.join(&summary.name), "read")(source))?;
        match step {
            Step::Record { sequence } if sequence >= limit => Ok(None),
            Step::Record { sequence } => {
                let expected = *self.expected.get_or_insert(sequence);
                if sequence < expected {
                    let detail = format!("segment {}: sequence {sequence} occurs twice", summary.name);
                    self.findings.push(Finding::new(FindingKind::Duplicate, &summary.name, detail));
                    return Ok(None);
                }
                let first = summary.sequences.map_or(sequence, |(first, _)| first);
                summary.sequences = Some((first, sequence));
                self.expected = Some(sequence + 1);
                if sequence > expected || !self.open.is_empty() {
                    let name = summary.name.clone();
                    self.settle(expected, sequence, &name);
                }
                Ok(Some(sequence))
            }
            Step::Damage { offset, bytes } => {
                summary.damaged = true;
                self.open.push(Open { segment: summary.name.clone(), offset, bytes, tail: false });
                Ok(None)
            }
            Step::End { seal, torn } => {
                summary.records = scan.records();
                summary.good_end = scan.good_end();
                summary.torn = torn;
                summary.sealed = seal.is_some();
                let name = summary.name.clone();
                if torn > 0 {
                    let tail = seal.is_none();
                    self.open.push(Open {
                        segment: name.clone(),
                        offset: summary.good_end,
                        bytes: torn,
                        tail,
                    });
                }
                self.summaries.extend(self.current.take());
                self.scan = None;
                if let Some(seal) = seal {
                    let next = seal.next.min(limit);
                    let expected = self.expected.unwrap_or(next);
                    if next > expected {
                        self.lose(expected, next - 1, false, &name);
                    }
                    self.expected = Some(next.max(expected));
                    self.resume(&name, seal, limit);
                }
                Ok(None)
            }
        }
    }

    /// Determines the lost sequences of open damage from the good record after it.
    fn settle(&mut self, expected: u64, sequence: u64, name: &str) {
        if sequence > expected {
            self.lose(expected, sequence - 1, false, name);
        } else {
            self.close_open(Some(name));
        }
    }

    /// Records that sequences `first..=last` are lost, because of the open damage if there is any.
    fn lose(&mut self, first: u64, last: u64, unsynced: bool, next: &str) {
        let range = sequences(first, last);
        let open = std::mem::take(&mut self.open);
        let Some((blamed, rest)) = open.split_last() else {
            let (kind, why) = if unsynced {
                (FindingKind::UnsyncedLoss, "never reached stable storage before the machine stopped")
            } else {
                (FindingKind::Gap, "missing and no damage explains it: was a segment file removed?")
            };
            let detail = format!("before segment {next}: {range} {why}");
            self.findings.push(Finding::new(kind, next, detail).losing(first, last));
            return;
        };
        for damage in rest {
            self.findings.push(harmless(damage));
        }
        let Open { segment, offset, bytes, tail } = blamed;
        let (kind, why) = if unsynced && *tail {
            (FindingKind::UnsyncedLoss, "never reached stable storage before the machine stopped")
        } else {
            (FindingKind::CorruptMiddle, "lost; restore the segment from a copy if there is one")
        };
        let detail =
            format!("segment {segment}: {bytes} bytes at offset {offset} are damaged: {range} {why}");
        self.findings.push(Finding::new(kind, segment, detail).at(*offset, *bytes).losing(first, last));
    }

    /// Reports open damage without lost records.
    fn close_open(&mut self, next: Option<&str>) {
        for damage in std::mem::take(&mut self.open) {
            let finding = if next.is_none() && damage.tail { torn_tail(&damage) } else { harmless(&damage) };
            self.findings.push(finding);
        }
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("dir", &self.dir).finish_non_exhaustive()
    }
}

fn sequences(first: u64, last: u64) -> String {
    if first == last { format!("sequence {first}") } else { format!("sequences {first} to {last}") }
}

fn torn_tail(damage: &Open) -> Finding {
    let Open { segment, offset, bytes, .. } = damage;
    let detail = format!(
        "segment {segment}: the last {bytes} bytes are no complete record: the writer was stopped there or is at work; \
         the next start cuts them"
    );
    Finding::new(FindingKind::TornTail, segment, detail).at(*offset, *bytes)
}

fn harmless(damage: &Open) -> Finding {
    let Open { segment, offset, bytes, .. } = damage;
    let detail =
        format!("segment {segment}: {bytes} bytes at offset {offset} are no record; no sequence is missing");
    Finding::new(FindingKind::DamagedBytes, segment, detail).at(*offset, *bytes)
}
