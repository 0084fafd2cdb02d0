//! What opening a log does about an unclean stop: torn tails are cut, damage is copied aside, both go on record.

use std::path::Path;

use scorer_proto::v1::RecoveryRecord;
use serde::Serialize;

use crate::config::LogConfig;
use crate::error::LogError;
use crate::finding::{Finding, FindingKind};
use crate::format::{HEADER_LEN, Seal};
use crate::fs::{DirLock, Env, write_all_at};
use crate::log::recovery_record;
use crate::outcomes::OutcomeIndex;
use crate::reader::{LOCK, QUARANTINE, Reader, SegmentSummary};
use crate::segment::{is_temporary, write_seal};
use crate::writer::Writer;

/// What was found and done when the log was opened.
#[derive(Debug, Serialize)]
pub struct Recovery {
    /// What was wrong, as found.
    pub findings: Vec<Finding>,
    /// Whether the last writer stopped without sealing.
    pub unclean: bool,
    /// Bytes of incomplete records that were cut off.
    pub bytes_cut: u64,
    /// Copies made in `quarantine/` now, relative to the log directory.
    pub quarantined: Vec<String>,
    /// The first sequence that this writer gives.
    pub next_sequence: u64,
    /// Records read back for the index.
    pub replayed: u64,
    /// Outcomes and decisions of the newest records.
    #[serde(skip)]
    pub outcomes: OutcomeIndex,
}

pub(crate) fn recover(
    env: &Env,
    config: &LogConfig,
) -> Result<(Writer, Box<dyn DirLock>, Recovery), LogError> {
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
    let mut owed = settle(env, dir, &reader, &mut recovery)?;
    quarantine(env, dir, &mut recovery, &mut owed)?;
    env.fs.sync_dir(dir).map_err(LogError::io(dir, "sync"))?;
    let mut writer = Writer::new(env.clone(), config, log, reader.last_number() + 1, next_sequence);
    let at_us = env.clock.unix_us();
    writer.owed =
        owed.into_iter().map(|record| recovery_record(RecoveryRecord { at_us, ..record })).collect();
    Ok((writer, lock, recovery))
}

/// Cuts, seals and syncs what the last writer left open.
fn settle(
    env: &Env,
    dir: &Path,
    reader: &Reader,
    recovery: &mut Recovery,
) -> Result<Vec<RecoveryRecord>, LogError> {
    let mut owed = Vec::new();
    let mut trailing = true;
    for summary in reader.segments().iter().rev() {
        let empty = summary.records == 0 && !summary.damaged;
        let broken = recovery
            .findings
            .iter()
            .any(|finding| finding.segment == summary.name && finding.kind == FindingKind::CorruptHeader);
        if trailing && empty && !summary.sealed && !broken {
            recovery.bytes_cut += summary.torn;
            if summary.torn > 0 {
                recovery.unclean = true;
                owed.push(unclean(summary, recovery.next_sequence - 1));
            }
            let path = dir.join(&summary.name);
            env.fs.remove(&path).map_err(LogError::io(path, "remove"))?;
            continue;
        }
        if !empty {
            trailing = false;
        }
        if !summary.sealed && !empty {
            recovery.unclean = true;
            owed.push(unclean(summary, summary.sequences.map_or(0, |(_, last)| last)));
            close_segment(env, dir, reader, summary, recovery)?;
        }
        if reader.perhaps_unsynced(summary) {
            sync_segment(env, dir, summary)?;
        }
    }
    owed.reverse();
    Ok(owed)
}

fn unclean(summary: &SegmentSummary, last_sequence: u64) -> RecoveryRecord {
    let cut = if summary.damaged { 0 } else { summary.torn };
    let finding = if cut > 0 { "unclean stop: torn tail cut" } else { "unclean stop: nothing to cut" };
    RecoveryRecord {
        at_us: 0,
        segment: summary.name.clone(),
        bytes_cut: cut,
        last_sequence,
        finding: finding.to_owned(),
    }
}

/// Cuts a torn tail and seals. A damaged segment is evidence and stays as it is; so does one with void records,
/// whose seal would contradict them.
fn close_segment(
    env: &Env,
    dir: &Path,
    reader: &Reader,
    summary: &SegmentSummary,
    recovery: &mut Recovery,
) -> Result<(), LogError> {
    let Some((first, last)) = summary.sequences else { return Ok(()) };
    let Some(uuid) = reader.uuid_of(&summary.name) else { return Ok(()) };
    if summary.damaged || last - first + 1 != summary.records {
        return Ok(());
    }
    let path = dir.join(&summary.name);
    let file = env.fs.open(&path, true).map_err(LogError::io(&path, "open"))?;
    if summary.torn > 0 {
        file.truncate(summary.good_end).map_err(LogError::io(&path, "cut the torn tail of"))?;
        recovery.bytes_cut += summary.torn;
    }
    // A full disk must not keep the log from opening; unsealed, the segment is scanned again next time.
    let _ =
        write_seal(&*file, &uuid, summary.good_end, Seal { records: summary.records, first, next: last + 1 });
    file.sync_data().map_err(LogError::io(&path, "sync"))
}

fn sync_segment(env: &Env, dir: &Path, summary: &SegmentSummary) -> Result<(), LogError> {
    let path = dir.join(&summary.name);
    let file = env.fs.open(&path, true).map_err(LogError::io(&path, "open"))?;
    file.sync_data().map_err(LogError::io(&path, "sync"))
}

/// Keeps a copy of what is damaged, once, and puts every new finding that cost records on record.
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
            // No room for the copy: the original stays where it is, and the next start tries again.
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
