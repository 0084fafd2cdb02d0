//! Removes segments that are beyond the limits of age or size.
//!
//! Segments are removed from the front, one by one, and never out of order. Three segments are never removed: the one
//! that is being written, the newest finished one (recovery takes the next sequence from it), and one that a reader
//! holds. Records that were not shipped ([`mark_shipped`]) are kept too, unless the owner has allowed their removal.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::directory::{Directory, SHIPPED};
use crate::error::LogError;
use crate::fs::{Env, Fs, read_full_at, write_all_at};

/// Number of finished segments that are always kept.
const ALWAYS: usize = 1;
/// Greatest length of the mark's file in bytes, more than the decimal digits of a sequence.
const LONGEST_MARK: usize = 32;

/// The limits of a log. Without a limit all segments are kept.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Greatest age. A segment whose newest record is older is removed.
    #[serde(default)]
    pub max_age: Option<Duration>,
    /// Greatest total size in bytes. The oldest segments are removed while all together are larger.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// Whether records that are not marked as shipped may be removed too.
    #[serde(default)]
    pub unshipped: bool,
}

/// The result of a round of retention.
#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
pub struct Pruned {
    /// Segments that were removed (or would be, in a dry run), oldest first.
    pub removed: Vec<String>,
    /// Total size of the removed segments in bytes.
    pub removed_bytes: u64,
    /// Number of segments that are left.
    pub segments: u64,
    /// Total size of the segments that are left in bytes.
    pub bytes: u64,
    /// The lowest sequence that is left, if it is known.
    pub first_sequence: Option<u64>,
    /// Records below this sequence are marked as shipped.
    pub shipped: u64,
    /// Number of bytes beyond a limit that are kept.
    pub blocked_bytes: u64,
    /// The reason why they are kept.
    pub blocked: Option<Blocked>,
}

/// The reason why a segment beyond a limit is kept.
#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Blocked {
    /// Some of its records are not marked as shipped.
    NotShipped,
    /// A reader holds it.
    BeingRead,
    /// Its header is damaged, so its records are not known.
    Damaged,
}

/// A segment that retention considers.
struct Candidate {
    name: String,
    bytes: u64,
    /// Upper limit of its sequences, exclusive; `None` if a later header is damaged.
    ends: Option<u64>,
    /// Upper limit of the time of its newest record, in microseconds since the Unix epoch.
    ended_us: i64,
}

// === impl Retention ===

impl Retention {
    /// Whether there is a limit.
    #[must_use]
    pub fn limits(&self) -> bool {
        self.max_age.is_some() || self.max_bytes.is_some()
    }

    /// Removes segments beyond the limits, or with `dry_run` only reports them. It can run beside the writer and in
    /// another process.
    ///
    /// # Errors
    /// Fails if the directory cannot be read or a file cannot be removed.
    pub fn apply(&self, env: &Env, dir: &Path, dry_run: bool) -> Result<Pruned, LogError> {
        let candidates = candidates(&*env.fs, dir)?;
        let mut pruned = Pruned {
            segments: candidates.len() as u64,
            bytes: candidates.iter().map(|candidate| candidate.bytes).sum(),
            shipped: shipped(&*env.fs, dir),
            ..Pruned::default()
        };
        let now = env.clock.unix_us();
        let removable = candidates.len().saturating_sub(1 + ALWAYS);
        for candidate in candidates.iter().take(removable) {
            if !self.is_beyond(candidate, pruned.bytes, now) {
                break;
            }
            if let Some(blocked) = self.remove(env, dir, candidate, pruned.shipped, dry_run)? {
                pruned.blocked = Some(blocked);
                break;
            }
            pruned.removed.push(candidate.name.clone());
            pruned.removed_bytes += candidate.bytes;
            pruned.segments -= 1;
            pruned.bytes -= candidate.bytes;
            pruned.first_sequence = candidate.ends;
        }
        if pruned.blocked.is_some() {
            pruned.blocked_bytes =
                self.beyond(&candidates[pruned.removed.len()..removable], pruned.bytes, now);
        }
        if !pruned.removed.is_empty() && !dry_run {
            env.fs.sync_dir(dir).map_err(LogError::io(dir, "sync"))?;
        }
        Ok(pruned)
    }

    /// Removes one segment, or returns the reason why it is kept.
    fn remove(
        &self,
        env: &Env,
        dir: &Path,
        candidate: &Candidate,
        shipped: u64,
        dry_run: bool,
    ) -> Result<Option<Blocked>, LogError> {
        match candidate.ends {
            None => return Ok(Some(Blocked::Damaged)),
            Some(ends) if ends > shipped && !self.unshipped => return Ok(Some(Blocked::NotShipped)),
            Some(_) => {}
        }
        let path = dir.join(&candidate.name);
        // The lock is held until the file is removed, so a reader that starts now finds either the lock or no file.
        let Some(_lock) = env.fs.hold(&path, false).map_err(LogError::io(&path, "lock"))? else {
            return Ok(Some(Blocked::BeingRead));
        };
        if !dry_run {
            env.fs.remove(&path).map_err(LogError::io(&path, "remove"))?;
        }
        Ok(None)
    }

    fn is_beyond(&self, candidate: &Candidate, bytes: u64, now: i64) -> bool {
        let age = now.saturating_sub(candidate.ended_us);
        let old = self.max_age.is_some_and(|most| u128::from(age.max(0).unsigned_abs()) > most.as_micros());
        old || self.max_bytes.is_some_and(|most| bytes > most)
    }

    /// Number of bytes of the oldest segments that are beyond a limit.
    fn beyond(&self, candidates: &[Candidate], mut bytes: u64, now: i64) -> u64 {
        let mut beyond = 0;
        for candidate in candidates {
            if !self.is_beyond(candidate, bytes, now) {
                break;
            }
            beyond += candidate.bytes;
            bytes -= candidate.bytes;
        }
        beyond
    }
}

fn candidates(fs: &dyn Fs, dir: &Path) -> Result<Vec<Candidate>, LogError> {
    let segments = Directory::read(fs, dir)?.segments;
    let mut candidates = Vec::with_capacity(segments.len());
    for (at, listed) in segments.iter().enumerate() {
        let path = dir.join(&listed.name);
        let bytes = match fs.open(&path, false) {
            Ok(file) => file.len().map_err(LogError::io(&path, "measure"))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(LogError::io(&path, "open")(error)),
        };
        let next = segments.get(at + 1).and_then(|next| next.header);
        candidates.push(Candidate {
            name: listed.name.clone(),
            bytes,
            ends: listed.header.and(next).map(|next| next.first),
            ended_us: next.map_or(i64::MAX, |next| next.created_us),
        });
    }
    Ok(candidates)
}

/// Returns the mark of a log: records below this sequence have been shipped. 0 without a mark.
#[must_use]
pub fn shipped(fs: &dyn Fs, dir: &Path) -> u64 {
    let mut text = [0; LONGEST_MARK];
    let read = fs.open(&dir.join(SHIPPED), false).and_then(|file| read_full_at(&*file, &mut text, 0));
    let text = read.ok().and_then(|length| std::str::from_utf8(text.get(..length)?).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Marks all records below `sequence` as shipped or exported. The mark never decreases.
///
/// # Errors
/// Fails if the mark cannot be written.
pub fn mark_shipped(env: &Env, dir: &Path, sequence: u64) -> Result<u64, LogError> {
    let before = shipped(&*env.fs, dir);
    if sequence <= before {
        return Ok(before);
    }
    let (path, temporary) = (dir.join(SHIPPED), dir.join(format!("{SHIPPED}.tmp")));
    // A crash may have left the file behind.
    let _ = env.fs.remove(&temporary);
    let write = || {
        let file = env.fs.create(&temporary)?;
        write_all_at(&*file, format!("{sequence}\n").as_bytes(), 0)?;
        file.sync_data()?;
        env.fs.rename(&temporary, &path)?;
        env.fs.sync_dir(dir)
    };
    write().map_err(LogError::io(&path, "write"))?;
    Ok(sequence)
}
