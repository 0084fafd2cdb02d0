//! Lists a log directory: its segments in order, and files that do not belong there.

use std::path::Path;

use crate::error::LogError;
use crate::finding::{Finding, FindingKind};
use crate::format::{HEADER_LEN, Header, parse_segment_name};
use crate::fs::{Fs, read_full_at};

/// The file whose `flock` ensures that there is only one writer.
pub(crate) const LOCK: &str = "LOCK";
/// The file with the sequence below which all records have been shipped.
pub(crate) const SHIPPED: &str = "SHIPPED";
/// The file that lists the entities which readers leave out. `scorer.log.erasure` reads and writes it.
const ERASED: &str = "ERASED";
/// The directory for copies of damaged segments.
pub(crate) const QUARANTINE: &str = "quarantine";

/// A directory's segments.
pub(crate) struct Directory {
    pub(crate) segments: Vec<Listed>,
    pub(crate) findings: Vec<Finding>,
    /// The first sequence, if it is known without reading records.
    pub(crate) begins: Option<u64>,
}

/// One segment file.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) number: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) header: Option<Header>,
    /// Records from this sequence on are void, because a later segment contains them again.
    pub(crate) limit: u64,
}

impl Directory {
    /// Lists a directory and reads its headers.
    pub(crate) fn read(fs: &dyn Fs, dir: &Path) -> Result<Self, LogError> {
        let entries = fs.list(dir).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                LogError::NotADirectory { dir: dir.to_owned() }
            }
            _ => LogError::Io { path: dir.to_owned(), op: "list", source },
        })?;
        let mut findings = Vec::new();
        let mut segments = Vec::new();
        let mut is_log = false;
        for entry in entries {
            match (entry.name.as_str(), entry.directory) {
                (LOCK | SHIPPED | ERASED, false) => is_log = true,
                // A crash left the file behind.
                (name, false) if name.strip_suffix(".tmp") == Some(SHIPPED) => {}
                (QUARANTINE, true) => {
                    is_log = true;
                    quarantined(fs, dir, &mut findings);
                }
                (name, false) => match parse_segment_name(name) {
                    Some((number, uuid)) => {
                        segments.push(Listed {
                            name: name.to_owned(),
                            number,
                            uuid,
                            header: None,
                            limit: u64::MAX,
                        });
                    }
                    None if name.ends_with(".seg.tmp") => {}
                    None => findings.push(foreign(name)),
                },
                (name, true) => findings.push(foreign(name)),
            }
        }
        if segments.is_empty() && !is_log {
            return Err(LogError::NotALog { dir: dir.to_owned() });
        }
        segments.sort_by_key(|segment| segment.number);
        findings.sort_by(|a, b| a.segment.cmp(&b.segment));
        let mut directory = Self { segments, findings, begins: None };
        directory.read_headers(fs, dir)?;
        Ok(directory)
    }

    /// Reads the headers, removes files that do not belong to this log from the list, and determines the void records.
    fn read_headers(&mut self, fs: &dyn Fs, dir: &Path) -> Result<(), LogError> {
        let mut log = None;
        let mut kept = Vec::with_capacity(self.segments.len());
        for mut listed in std::mem::take(&mut self.segments) {
            let path = dir.join(&listed.name);
            let mut raw = [0_u8; HEADER_LEN];
            let (got, len) = match fs.open(&path, false) {
                Ok(file) => read_full_at(&*file, &mut raw, 0)
                    .and_then(|got| Ok((got, file.len()?)))
                    .map_err(LogError::io(&path, "read"))?,
                // A writer removes a segment without records.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(LogError::io(&path, "open")(error)),
            };
            match Header::decode(raw.get(..got).unwrap_or_default()) {
                Ok(header) if header.segment == listed.uuid && header.number == listed.number => {
                    if *log.get_or_insert(header.log) != header.log {
                        let detail = format!(
                            "segment {} belongs to another decision log and is not read; move it back to its own directory",
                            listed.name
                        );
                        self.findings.push(Finding::new(FindingKind::ForeignSegment, &listed.name, detail));
                        continue;
                    }
                    listed.header = Some(header);
                }
                Ok(_) => {
                    self.findings.push(bad_header(&listed.name, "it was written under another file name"))
                }
                // The segment was never used: a crash came before its header was on the disk.
                Err(_) if len <= HEADER_LEN as u64 => {}
                Err(reason) => self.findings.push(bad_header(&listed.name, reason)),
            }
            kept.push(listed);
        }
        if kept.first().is_some_and(|listed| listed.number == 1) {
            // No segment was removed from the front, and sequences start at 1.
            self.begins = Some(1);
        }
        let mut limit = u64::MAX;
        for listed in kept.iter_mut().rev() {
            listed.limit = limit;
            limit = listed.header.map_or(limit, |header| limit.min(header.first));
        }
        self.segments = kept;
        Ok(())
    }
}

fn foreign(name: &str) -> Finding {
    let detail = format!("{name} does not belong to a decision log and is not read; move it elsewhere");
    Finding::new(FindingKind::ForeignFile, name, detail)
}

fn bad_header(name: &str, reason: &str) -> Finding {
    let detail = format!("segment {name}: {reason}; its records are read by the name of the file");
    Finding::new(FindingKind::CorruptHeader, name, detail).at(0, HEADER_LEN as u64)
}

fn quarantined(fs: &dyn Fs, dir: &Path, findings: &mut Vec<Finding>) {
    for entry in fs.list(&dir.join(QUARANTINE)).unwrap_or_default() {
        let name = format!("{QUARANTINE}/{}", entry.name);
        let detail = format!("{name} records damage found earlier; it is evidence and is not read");
        findings.push(Finding::new(FindingKind::Quarantined, &name, detail));
    }
}
