//! The state behind the log's lock: the position of the next record, the records that are not yet on stable storage,
//! and the current fault.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::config::LogConfig;
use crate::error::LogError;
use crate::format::{FRAME_LEN, Frame, Header, Kind, push_frame, span};
use crate::fs::{Env, File, write_all_at};
use crate::segment::Segment;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Free space in bytes below which the log does not try to write again.
const WORTH_TRYING: u64 = 64 << 10;

/// The reason why records cannot be stored now.
pub(crate) struct Fault {
    pub(crate) reason: Arc<str>,
    pub(crate) since_us: i64,
    /// Whether to continue in a new file, because the current one may end in an incomplete record.
    pub(crate) fresh: bool,
    /// Whether `fdatasync` failed, so that its records must be written again to another file.
    pub(crate) rewrite: bool,
    retry_at: Duration,
    pause: Duration,
    refused: u64,
}

impl Fault {
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

/// Files for one round of `fdatasync`.
pub(crate) struct SyncJob {
    files: Vec<Arc<dyn File>>,
    directory: bool,
    through: u64,
}

pub(crate) struct Writer {
    pub(crate) env: Env,
    pub(crate) dir: PathBuf,
    segment_bytes: u64,
    max_unsynced: usize,
    pub(crate) log: [u8; 16],
    current: Option<Segment>,
    /// Finished segments with bytes that are not synced.
    dirty: Vec<Arc<dyn File>>,
    dir_dirty: bool,
    pub(crate) next_number: u64,
    pub(crate) next_sequence: u64,
    /// Every sequence below this is on stable storage.
    pub(crate) durable: u64,
    /// Frames since the start of the last round of `fdatasync`. Those from `staged_from` on are not written yet.
    filling: Vec<u8>,
    /// Frames of the running round.
    syncing: Vec<u8>,
    staged_from: usize,
    staged: u64,
    pub(crate) fault: Option<Fault>,
    /// Payloads that must be written before any other record: findings of recovery and withdrawals.
    pub(crate) owed: Vec<Vec<u8>>,
    pub(crate) refused: u64,
    pub(crate) closed: bool,
}

impl Writer {
    pub(crate) fn new(
        env: Env,
        config: &LogConfig,
        log: [u8; 16],
        next_number: u64,
        next_sequence: u64,
    ) -> Self {
        Self {
            env,
            dir: config.dir.clone(),
            segment_bytes: config.segment_bytes,
            max_unsynced: config.max_unsynced_bytes,
            log,
            current: None,
            dirty: Vec::new(),
            dir_dirty: false,
            next_number,
            next_sequence,
            durable: next_sequence,
            // Untouched pages use no memory, and appending never moves the contents.
            filling: Vec::with_capacity(config.max_unsynced_bytes),
            syncing: Vec::with_capacity(config.max_unsynced_bytes),
            staged_from: 0,
            staged: 0,
            fault: None,
            owed: Vec::new(),
            refused: 0,
            closed: false,
        }
    }

    pub(crate) fn unsynced_bytes(&self) -> usize {
        self.filling.len() + self.syncing.len()
    }

    /// Whether more than half of the allowed bytes are not synced and no round is running.
    pub(crate) fn hurry(&self) -> bool {
        self.syncing.is_empty() && self.filling.len() > self.max_unsynced / 2
    }

    pub(crate) fn segment_name(&self) -> &str {
        self.current.as_ref().map_or("", |segment| segment.name.as_str())
    }

    /// Appends one record. `crc` is `crc32c(payload)`.
    pub(crate) fn append(&mut self, payload: &[u8], crc: u32) -> Result<u64, LogError> {
        self.admit()?;
        self.append_admitted(payload, crc)
    }

    fn append_admitted(&mut self, payload: &[u8], crc: u32) -> Result<u64, LogError> {
        let sequence = self.stage(payload, crc)?;
        self.commit()?;
        Ok(sequence)
    }

    /// Checks that a record may be appended now.
    pub(crate) fn admit(&mut self) -> Result<(), LogError> {
        if self.closed {
            return Err(LogError::Closed);
        }
        if let Some(fault) = &mut self.fault {
            fault.refused += 1;
            self.refused += 1;
            return Err(LogError::Unavailable { reason: Arc::clone(&fault.reason) });
        }
        Ok(())
    }

    /// Stages a frame after those already staged, and returns its sequence. `commit` writes all of them at once.
    pub(crate) fn stage(&mut self, payload: &[u8], crc: u32) -> Result<u64, LogError> {
        let size = span(payload.len());
        if self.unsynced_bytes() + size > self.max_unsynced {
            self.refused += 1;
            let reason = format!(
                "{} bytes wait for fdatasync, the limit is {}; the disk under {} is too slow",
                self.unsynced_bytes(),
                self.max_unsynced,
                self.dir.display()
            );
            return Err(LogError::Unavailable { reason: reason.into() });
        }
        let waiting = (self.filling.len() - self.staged_from) as u64;
        let full = match &self.current {
            None => true,
            Some(segment) => {
                let end = segment.offset + waiting;
                end + size as u64 > self.segment_bytes && segment.records + self.staged > 0
            }
        };
        if full {
            self.commit()?;
            self.rotate()?;
        }
        let Some(segment) = &self.current else {
            return Err(LogError::Unavailable { reason: "no segment is open".into() });
        };
        let sequence = self.next_sequence;
        push_frame(&mut self.filling, &segment.uuid, Kind::Record, sequence, payload, crc);
        self.next_sequence += 1;
        self.staged += 1;
        Ok(sequence)
    }

    /// Writes the staged frames with one `write`. After an error none of them counts, the file ends at its last good
    /// frame or is no longer used, and the log is unavailable.
    pub(crate) fn commit(&mut self) -> Result<(), LogError> {
        let bytes = self.filling.get(self.staged_from..).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(segment) = &mut self.current else { return Ok(()) };
        match write_all_at(&*segment.file, bytes, segment.offset) {
            Ok(()) => {
                segment.offset += bytes.len() as u64;
                segment.records += self.staged;
                self.staged_from = self.filling.len();
                self.staged = 0;
                Ok(())
            }
            Err(error) => {
                let cut = segment.file.truncate(segment.offset);
                let what = format!("cannot write segment {}", segment.name);
                self.unstage();
                Err(self.fail_write(&what, &error, cut.is_err()))
            }
        }
    }

    fn unstage(&mut self) {
        self.filling.truncate(self.staged_from);
        self.next_sequence -= self.staged;
        self.staged = 0;
    }

    fn rotate(&mut self) -> Result<(), LogError> {
        let header = self.header(self.next_sequence);
        match Segment::create(&self.env, &self.dir, &header, false) {
            Ok(segment) => {
                self.retire();
                self.dir_dirty = true;
                self.current = Some(segment);
                Ok(())
            }
            Err(error) => Err(self.fail_write("cannot create a segment", &error, false)),
        }
    }

    /// Finishes the current segment, which must still be synced.
    fn retire(&mut self) {
        if let Some(segment) = self.current.take() {
            let _ = segment.seal(self.next_sequence);
            self.dirty.push(segment.file);
        }
    }

    fn header(&mut self, first: u64) -> Header {
        let number = self.next_number;
        self.next_number += 1;
        Header {
            log: self.log,
            segment: self.env.random.uuid(),
            number,
            created_us: self.env.clock.unix_us(),
            first,
            durable: self.durable,
        }
    }

    fn fail_write(&mut self, what: &str, error: &io::Error, half_record: bool) -> LogError {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let remedy = if full { "free space there" } else { "check the disk" };
        self.fail(what, error, remedy, half_record || !full, false)
    }

    fn fail(&mut self, what: &str, error: &io::Error, remedy: &str, fresh: bool, rewrite: bool) -> LogError {
        let reason: Arc<str> =
            format!("{what} in {}: {error}; {remedy}, recording resumes by itself", self.dir.display())
                .into();
        let now = self.env.clock.monotonic();
        let before = self.fault.take();
        let pause = before.as_ref().map_or(FIRST_RETRY, |fault| (fault.pause * 2).min(LAST_RETRY));
        self.fault = Some(Fault {
            reason: Arc::clone(&reason),
            since_us: before.as_ref().map_or_else(|| self.env.clock.unix_us(), |fault| fault.since_us),
            fresh: fresh || before.as_ref().is_some_and(|fault| fault.fresh),
            rewrite: rewrite || before.as_ref().is_some_and(|fault| fault.rewrite),
            retry_at: now + pause,
            pause,
            refused: before.map_or(0, |fault| fault.refused),
        });
        LogError::Unavailable { reason }
    }

    /// Whether there is a fault and the next attempt to repair it is due.
    pub(crate) fn repair_due(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| self.env.clock.monotonic() >= fault.retry_at)
    }

    // --- fdatasync -------------------------------------------------------------------------------------------

    /// Starts a round of `fdatasync` and returns its files; `None` if all records are on stable storage.
    pub(crate) fn begin_sync(&mut self) -> Option<SyncJob> {
        if self.fault.as_ref().is_some_and(|fault| fault.rewrite) {
            return None;
        }
        if self.filling.is_empty() && self.dirty.is_empty() && !self.dir_dirty {
            return None;
        }
        std::mem::swap(&mut self.filling, &mut self.syncing);
        self.staged_from = 0;
        let mut files = std::mem::take(&mut self.dirty);
        files.extend(self.current.as_ref().map(|segment| Arc::clone(&segment.file)));
        let directory = std::mem::take(&mut self.dir_dirty);
        Some(SyncJob { files, directory, through: self.next_sequence })
    }

    /// Ends a round. After a failure the log is unavailable until the frames have been written to another file.
    pub(crate) fn end_sync(&mut self, job: &SyncJob, result: io::Result<()>) -> Result<(), LogError> {
        match result {
            Ok(()) => {
                self.syncing.clear();
                self.durable = job.through;
                Ok(())
            }
            Err(error) => Err(self.fail("fdatasync failed", &error, "check the disk", true, true)),
        }
    }

    // --- repair ----------------------------------------------------------------------------------------------

    /// Returns the frames that must be written again, and the header of their new segment.
    pub(crate) fn begin_rewrite(&mut self) -> (Header, Vec<u8>) {
        let mut frames = std::mem::take(&mut self.syncing);
        frames.append(&mut self.filling);
        self.staged_from = 0;
        let first = Frame::parse(&frames).map_or(self.next_sequence, |frame| frame.sequence);
        (self.header(first), frames)
    }

    /// Continues in the segment that now contains the frames, or keeps them for the next attempt.
    pub(crate) fn end_rewrite(
        &mut self,
        mut frames: Vec<u8>,
        result: io::Result<Segment>,
    ) -> Result<(), LogError> {
        match result {
            Ok(segment) => {
                frames.clear();
                self.syncing = frames;
                self.durable = self.next_sequence;
                self.current = Some(segment);
                self.dirty.clear();
                self.dir_dirty = false;
                if let Some(fault) = &mut self.fault {
                    fault.rewrite = false;
                    fault.fresh = false;
                }
                Ok(())
            }
            Err(error) => {
                self.syncing = frames;
                Err(self.fail(
                    "cannot write again what fdatasync lost,",
                    &error,
                    "check the disk",
                    true,
                    true,
                ))
            }
        }
    }

    /// Tries to write again, beginning with pending findings and withdrawals. The log is available if that succeeds.
    pub(crate) fn probe(&mut self, report: impl FnOnce(&Fault, u64) -> Vec<u8>) -> Result<(), LogError> {
        let Some(fault) = &self.fault else { return self.pay() };
        let (fresh, report) = (fault.fresh, report(fault, self.next_sequence.saturating_sub(1)));
        let free = self.env.fs.free(&self.dir).unwrap_or(u64::MAX);
        if free < WORTH_TRYING {
            let error = io::Error::from(io::ErrorKind::StorageFull);
            return Err(self.fail_write("cannot write", &error, false));
        }
        if fresh {
            self.rotate()?;
            if let Some(fault) = &mut self.fault {
                fault.fresh = false;
            }
        }
        self.pay()?;
        self.append_admitted(&report, crc32c::crc32c(&report))?;
        self.fault = None;
        Ok(())
    }

    /// Writes the pending findings of recovery and withdrawals.
    pub(crate) fn pay(&mut self) -> Result<(), LogError> {
        let mut owed = std::mem::take(&mut self.owed);
        let mut paid = 0;
        let result = owed.iter().try_for_each(|payload| {
            self.append_admitted(payload, crc32c::crc32c(payload))?;
            paid += 1;
            Ok(())
        });
        self.owed = owed.split_off(paid);
        result
    }

    /// Creates the first segment, so that a directory that cannot be written is detected at once.
    pub(crate) fn start(&mut self) -> Result<(), LogError> {
        self.rotate()?;
        self.pay()
    }

    /// Seals the current segment, or removes it if it has no record.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        match &self.current {
            Some(segment) if segment.records == 0 => {
                let _ = self.env.fs.remove(&self.dir.join(&segment.name));
                self.current = None;
                self.dir_dirty = true;
            }
            Some(_) => self.retire(),
            None => {}
        }
    }
}

impl SyncJob {
    /// Runs the slow part of a round, without the lock.
    pub(crate) fn run(&self, env: &Env, dir: &std::path::Path) -> io::Result<()> {
        for file in &self.files {
            file.sync_data()?;
        }
        if self.directory { env.fs.sync_dir(dir) } else { Ok(()) }
    }
}

/// Writes `frames` again under another header, brings them to stable storage, and only then makes them visible. A
/// reader finds either all of them or the rest in the old segment.
pub(crate) fn rewrite(
    env: &Env,
    dir: &std::path::Path,
    header: &Header,
    frames: &[u8],
) -> io::Result<Segment> {
    let mut segment = Segment::create(env, dir, header, true)?;
    let done = write_frames(&mut segment, frames)
        .and_then(|()| segment.file.sync_data())
        .and_then(|()| segment.reveal(env, dir));
    match done {
        Ok(()) => Ok(segment),
        Err(error) => {
            segment.discard_hidden(env, dir);
            Err(error)
        }
    }
}

fn write_frames(segment: &mut Segment, frames: &[u8]) -> io::Result<()> {
    let mut out = Vec::with_capacity(1 << 16);
    let mut rest = frames;
    while let Some(frame) = Frame::parse(rest) {
        let payload = rest.get(FRAME_LEN..FRAME_LEN + frame.len).unwrap_or_default();
        push_frame(&mut out, &segment.uuid, frame.kind, frame.sequence, payload, crc32c::crc32c(payload));
        segment.records += 1;
        rest = rest.get(frame.span()..).unwrap_or_default();
        if out.len() >= 1 << 16 || rest.is_empty() {
            write_all_at(&*segment.file, &out, segment.offset)?;
            segment.offset += out.len() as u64;
            out.clear();
        }
    }
    Ok(())
}
