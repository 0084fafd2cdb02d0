//! Recovery from an unclean stop when a log is opened: torn tails are cut, damaged segments are copied to
//! `quarantine/`, and both are recorded.

use std::path::{Path, PathBuf};

use scorer_proto::v1::RecoveryRecord;
use serde::Serialize;

use crate::config::LogConfig;
use crate::directory::{LOCK, QUARANTINE};
use crate::error::LogError;
use crate::finding::{Finding, FindingKind};
use crate::format::{HEADER_LEN, Seal};
use crate::fs::{DirLock, Env, write_all_at};
use crate::outcomes::OutcomeIndex;
use crate::reader::{Reader, SegmentSummary};
use crate::segment::{is_temporary, write_seal};
use crate::shared::recovery_record;
use crate::writer::Writer;

/// The findings and actions when the log was opened.
#[derive(Debug, Serialize)]
pub struct Recovery {
    /// The findings.
    pub findings: Vec<Finding>,
    /// Whether the last writer stopped without sealing.
    pub unclean: bool,
    /// Bytes of incomplete records that were cut off.
    pub bytes_cut: u64,
    /// Copies made in `quarantine/` now, relative to the log directory.
    pub quarantined: Vec<String>,
    /// The first sequence that this writer assigns.
    pub next_sequence: u64,
    /// Records read back for the index.
    pub replayed: u64,
    /// Outcomes and decisions of the newest records.
    #[serde(skip)]
    pub outcomes: OutcomeIndex,
}

/// The result of recovery for the log.
pub(crate) struct Recovered {
    pub(crate) writer: Writer,
    pub(crate) lock: Box<dyn DirLock>,
    pub(crate) leftovers: Leftovers,
    pub(crate) recovery: Recovery,
}

pub(crate) fn recover(env: &Env, config: &LogConfig) -> Result<Recovered, LogError> {
    let dir = &config.dir;
    env.fs.create_dir_all(dir).map_err(LogError::io(dir, "make the directory"))?;
    let lock = env.fs.lock(&dir.join(LOCK)).map_err(LogError::io(dir.join(LOCK), "lock"))?;
    let Some(lock) = lock else { return Err(LogError::Locked { dir: dir.clone() }) };
    for entry in env.fs.list(dir).map_err(LogError::io(dir, "list"))? {
        if is_temporary(&entry.name) {
            let path = dir.join(&entry.name);
            env.fs.remove(&path).map_err(LogError::io(path, "remove"))?;
        }
    }

    let outcomes = OutcomeIndex::new(config.index_capacity);
    let mut reader = Reader::open(env.fs.clone(), dir)?;
    reader.skip_before_last(config.index_capacity as u64);
    let mut replayed = 0;
    while let Some(record) = reader.next_record()? {
        outcomes.replay(record.payload);
        replayed += 1;
    }

    let next_sequence = reader.expected().unwrap_or(1).max(1);
    let log = reader.log_id().unwrap_or_else(|| env.random.uuid());
    let mut recovery = Recovery {
        findings: reader.findings().to_vec(),
        unclean: false,
        bytes_cut: 0,
        quarantined: Vec::new(),
        next_sequence,
        replayed,
        outcomes,
    };
    let (leftovers, mut owed) = settle(env, dir, &reader, &mut recovery)?;
    quarantine(env, dir, &mut recovery, &mut owed)?;
    env.fs.sync_dir(dir).map_err(LogError::io(dir, "sync"))?;
    let mut writer = Writer::new(env.clone(), config, log, reader.last_number() + 1, next_sequence);
    let at_us = env.clock.unix_us();
    writer.owed =
        owed.into_iter().map(|record| recovery_record(RecoveryRecord { at_us, ..record })).collect();
    Ok(Recovered { writer, lock, leftovers, recovery })
}

/// The work that remains after the new writer has recorded the reasons.
pub(crate) struct Leftovers {
    /// Segments to cut and seal.
    open: Vec<Leftover>,
    /// Segments without a record.
    empty: Vec<PathBuf>,
}

struct Leftover {
    path: PathBuf,
    uuid: [u8; 16],
    end: u64,
    seal: Seal,
}

impl Leftovers {
    /// Cuts, seals and removes segments. This is optional: readers can read the segments as they are, and a failure is
    /// found again at the next start.
    pub(crate) fn tidy(self, env: &Env, dir: &Path) {
        for leftover in self.open {
            let _ = leftover.close(env);
        }
        for path in self.empty {
            let _ = env.fs.remove(&path);
        }
        let _ = env.fs.sync_dir(dir);
    }
}

impl Leftover {
    fn close(&self, env: &Env) -> std::io::Result<()> {
        let file = env.fs.open(&self.path, true)?;
        file.truncate(self.end)?;
        write_seal(&*file, &self.uuid, self.end, self.seal)?;
        file.sync_data()
    }
}

/// Brings segments that the last writer did not seal to stable storage, and returns those to cut and seal.
fn settle(
    env: &Env,
    dir: &Path,
    reader: &Reader,
    recovery: &mut Recovery,
) -> Result<(Leftovers, Vec<RecoveryRecord>), LogError> {
    let mut owed = Vec::new();
    let mut leftovers = Leftovers { open: Vec::new(), empty: Vec::new() };
    for summary in reader.segments() {
        if reader.perhaps_unsynced(summary) {
            sync_segment(env, dir, summary)?;
        }
        let corrupt = |finding: &Finding| {
            finding.segment == summary.name && matches!(finding.kind, FindingKind::CorruptHeader)
        };
        if summary.sealed || summary.damaged || recovery.findings.iter().any(corrupt) {
            continue; // Finished, or evidence that stays as it is.
        }
        let path = dir.join(&summary.name);
        let (Some(header_first), Some(uuid)) = (summary.first, reader.uuid_of(&summary.name)) else {
            // The segment was never used: its header is not complete.
            if reader.is_last(summary) {
                leftovers.empty.push(path);
            }
            continue;
        };
        let (first, next) =
            summary.sequences.map_or((header_first, header_first), |(first, last)| (first, last + 1));
        if next - first != summary.records {
            continue; // It holds void records, which a seal would contradict.
        }
        let cut = summary.torn;
        if summary.records == 0 && !loss(&recovery.findings) {
            leftovers.empty.push(path);
        } else {
            let resume = resume(&recovery.findings, next);
            let seal = Seal { records: summary.records, first, next, resume };
            leftovers.open.push(Leftover { path, uuid, end: summary.good_end, seal });
        }
        if summary.records == 0 && cut == 0 {
            continue; // Made and never used.
        }
        recovery.unclean = true;
        recovery.bytes_cut += cut;
        let finding = if cut > 0 { "unclean stop: torn tail cut" } else { "unclean stop: nothing to cut" };
        owed.push(RecoveryRecord {
            at_us: 0,
            segment: summary.name.clone(),
            bytes_cut: cut,
            last_sequence: next.saturating_sub(1),
            finding: finding.to_owned(),
        });
    }
    Ok((leftovers, owed))
}

/// Whether the machine lost records that were not on stable storage.
fn loss(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.kind == FindingKind::UnsyncedLoss)
}

/// Returns the sequence at which the log continues after `next`.
fn resume(findings: &[Finding], next: u64) -> u64 {
    let unsynced = findings.iter().filter(|finding| finding.kind == FindingKind::UnsyncedLoss);
    unsynced.filter_map(|finding| finding.lost).find(|lost| lost.0 == next).map_or(next, |lost| lost.1 + 1)
}

fn sync_segment(env: &Env, dir: &Path, summary: &SegmentSummary) -> Result<(), LogError> {
    let path = dir.join(&summary.name);
    let file = env.fs.open(&path, true).map_err(LogError::io(&path, "open"))?;
    file.sync_data().map_err(LogError::io(&path, "sync"))
}

/// Copies each damaged segment, once, and records every new finding with lost records.
fn quarantine(
    env: &Env,
    dir: &Path,
    recovery: &mut Recovery,
    owed: &mut Vec<RecoveryRecord>,
) -> Result<(), LogError> {
    let aside = dir.join(QUARANTINE);
    for finding in &recovery.findings {
        let kept = match (finding.kind, finding.lost) {
            (FindingKind::CorruptMiddle | FindingKind::CorruptHeader, _) => finding.segment.clone(),
            (FindingKind::Gap | FindingKind::UnsyncedLoss, Some((first, last))) => {
                format!("lost-{first}-{last}.txt")
            }
            _ => continue,
        };
        env.fs.create_dir_all(&aside).map_err(LogError::io(&aside, "make the directory"))?;
        let known = env.fs.list(&aside).map_err(LogError::io(&aside, "list"))?;
        if known.iter().any(|entry| entry.name == kept) {
            continue;
        }
        let path = aside.join(&kept);
        let copied = if kept.ends_with(".txt") {
            env.fs.create(&path).and_then(|file| write_all_at(&*file, finding.detail.as_bytes(), 0))
        } else {
            env.fs.copy(&dir.join(&finding.segment), &path)
        };
        if copied.is_ok() {
            recovery.quarantined.push(format!("{QUARANTINE}/{kept}"));
        } else {
            // There is no space for the copy. The original stays, and the next start tries again.
            let _ = env.fs.remove(&path);
        }
        owed.push(RecoveryRecord {
            at_us: 0,
            segment: finding.segment.clone(),
            bytes_cut: 0,
            last_sequence: finding.lost.map_or(0, |(first, _)| first.saturating_sub(1)),
            finding: finding.detail.clone(),
        });
    }
    Ok(())
}

const _: () = assert!(HEADER_LEN.is_multiple_of(crate::format::ALIGN));
