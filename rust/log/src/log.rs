//! The interface of the log: opening, appending, sealing.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::config::{Durability, LogConfig};
use crate::error::LogError;
use crate::fs::{DirLock, Env};
use crate::receipt::{self, Receipt};
use crate::recovery::{self, Recovered, Recovery};
use crate::shared::{Shared, lock};
use crate::sync::Mutex;
use crate::upkeep::Upkeep;
use crate::writer::Writer;

/// Whether records can be stored now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogState {
    /// Records can be stored.
    Ok,
    /// Records cannot be stored; `LogStatus::error` states the reason. The log recovers by itself.
    Unavailable,
    /// The log was sealed.
    Closed,
}

/// The status of a log.
#[derive(Debug, Clone, Serialize)]
pub struct LogStatus {
    /// Whether records can be stored now.
    pub state: LogState,
    /// The reason if they cannot.
    pub error: Option<String>,
    /// The segment being written.
    pub segment: String,
    /// The next record's sequence.
    pub next_sequence: u64,
    /// Every sequence below this is on stable storage.
    pub durable_sequence: u64,
    /// Number of bytes that are written and not yet on stable storage.
    pub unsynced_bytes: u64,
    /// Number of waiting `Async` records.
    pub queued: u64,
    /// Number of `Async` records dropped since the log was opened.
    pub dropped: u64,
    /// Number of records refused since the log was opened, because it was unavailable.
    pub refused: u64,
}

/// An open decision log, the only writer of its directory.
pub struct Log {
    pub(crate) shared: Arc<Shared>,
    /// Whether the background threads are running.
    background: bool,
    /// The latest result of [`Log::status`].
    last: Mutex<Option<LogStatus>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<Box<dyn DirLock>>>,
}

impl Log {
    /// Opens a directory for writing: takes its lock, recovers from an unclean stop, and starts a new segment. If the
    /// disk cannot be written, the call succeeds and the log is unavailable.
    ///
    /// # Errors
    /// Fails if another process holds the directory, it cannot be read, or a setting is out of range.
    pub fn open(env: Env, config: LogConfig) -> Result<(Self, Recovery), LogError> {
        config.check()?;
        let Recovered { mut writer, lock, leftovers, recovery } = recovery::recover(&env, &config)?;
        let available = writer.start().is_ok();
        if available {
            leftovers.tidy(&env, &config.dir);
        }
        let last = Mutex::new(Some(describe(&writer)));
        let shared = Arc::new(Shared::new(env, &config, writer, available));
        let background = config.background;
        let log = Self { shared, background, threads: Mutex::default(), lock: Mutex::new(Some(lock)), last };
        if config.background {
            log.spawn("scorer-log-write", move |shared| {
                (config.on_writer_start)();
                shared.write_loop();
            })?;
            let pause = Duration::from_millis(config.sync_ms);
            log.spawn("scorer-log-sync", move |shared| shared.sync_loop(pause))?;
            let every = config.upkeep_every;
            log.spawn("scorer-log-keep", move |shared| shared.upkeep_loop(every))?;
        }
        Ok((log, recovery))
    }

    fn spawn(&self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> Result<(), LogError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&shared))
            .map_err(LogError::io(&self.shared.dir, "start a thread for"))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Appends a record (an encoded `scorer.v1.LogRecord`) and blocks until it has the requested durability. Threads of
    /// an asynchronous runtime must call [`Log::submit`] instead. Returns the record's sequence; `None` for `Async`,
    /// whose sequence is assigned when it is written.
    ///
    /// # Errors
    /// The record does not count: it is not in the log or, if it was written (`NotDurable`, `Withdrawn`), the log
    /// appends its withdrawal as soon as it can write.
    pub fn append(&self, payload: &[u8], durability: Durability) -> Result<Option<u64>, LogError> {
        let shared = &*self.shared;
        match durability {
            _ if payload.len() > shared.max_payload => Err(self.too_large(payload)),
            Durability::Async => shared.queue.push(payload).map(|()| None),
            Durability::Written | Durability::Sync if self.background => {
                self.submit(payload, durability)?.map(Receipt::wait).transpose()
            }
            Durability::Written => shared.append(payload).map(Some),
            Durability::Sync => {
                let sequence = shared.append(payload)?;
                match shared.sync_through(sequence) {
                    Ok(()) => Ok(Some(sequence)),
                    Err(error) => {
                        shared.withdraw(payload, sequence);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Passes a record (an encoded `scorer.v1.LogRecord`) to the writer thread without waiting. Returns a receipt,
    /// which resolves when the record has the requested durability; `None` for `Async`.
    ///
    /// # Errors
    /// Fails if the record is too large, the queue is full, or the log is closed.
    pub fn submit(&self, payload: &[u8], durability: Durability) -> Result<Option<Receipt>, LogError> {
        if payload.len() > self.shared.max_payload {
            return Err(self.too_large(payload));
        }
        if durability == Durability::Async {
            return self.shared.queue.push(payload).map(|()| None);
        }
        let (ticket, receipt) = receipt::slot(payload.to_vec(), durability == Durability::Sync);
        self.shared.queue.push_awaited(ticket)?;
        Ok(Some(receipt))
    }

    fn too_large(&self, payload: &[u8]) -> LogError {
        LogError::TooLarge { bytes: payload.len(), max: self.shared.max_payload }
    }

    /// Appends a record as [`Durability::Async`] does, at lower priority: if half of the queue is used, it is refused
    /// and not counted as dropped. Use it for records that must not take the space of others.
    ///
    /// # Errors
    /// Fails if the record is not in the log.
    pub fn append_spare(&self, payload: &[u8]) -> Result<(), LogError> {
        if payload.len() > self.shared.max_payload {
            return Err(self.too_large(payload));
        }
        self.shared.queue.push_spare(payload)
    }

    /// Whether the log can store a record now: it has no fault and no write is stalled. It does not wait. Exploration
    /// checks it first, because its draws must be logged.
    #[must_use]
    pub fn available(&self) -> bool {
        self.shared.available.load(Ordering::Acquire) && !self.shared.stalled()
    }

    /// Returns the status of the log. It does not wait for a write: during a write, all values except those of the
    /// queue are those of the previous call.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        let (queued, dropped) = self.shared.queue.counts();
        let mut last = lock(&self.last);
        let writer = match self.shared.writer.try_lock() {
            Ok(writer) => Some(writer),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let mut status = match (writer, last.take()) {
            (None, Some(status)) => status,
            (writer, _) => describe(&writer.unwrap_or_else(|| self.shared.writer())),
        };
        *last = Some(status.clone());
        (status.queued, status.dropped) = (queued as u64, dropped);
        if status.state == LogState::Ok && self.shared.stalled() {
            status.state = LogState::Unavailable;
            status.error = Some(format!(
                "a write in {} has not returned for {} ms; check the disk, recording resumes by itself",
                self.shared.dir.display(),
                self.shared.stall.as_millis()
            ));
        }
        status
    }

    /// Returns the state of the log's disk at the latest round of upkeep.
    #[must_use]
    pub fn upkeep(&self) -> Upkeep {
        self.shared.keeper.latest()
    }

    /// Number of completed rounds of upkeep.
    #[must_use]
    pub fn upkeep_rounds(&self) -> u64 {
        self.shared.keeper.rounds()
    }

    /// Runs one round of upkeep: retention and the measurement of free space. A thread of the log calls it every
    /// [`LogConfig::upkeep_every`].
    pub fn keep(&self) {
        self.shared.keep();
    }

    /// Writes the waiting records. The writer thread calls it; without background threads the owner does.
    ///
    /// # Errors
    /// Fails if the log is unavailable; the records stay in the queue.
    pub fn drain(&self) -> Result<(), LogError> {
        self.shared.drain()
    }

    /// Brings all written records to stable storage.
    ///
    /// # Errors
    /// Fails if that is not possible and writing the records to another file failed too.
    pub fn sync(&self) -> Result<(), LogError> {
        let result = self.shared.in_turn(Shared::sync_now);
        self.shared.report_synced();
        result
    }

    /// Runs one round of background work: `fdatasync`, and an attempt to recover if one is due.
    pub fn maintain(&self) {
        self.shared.maintain();
        self.shared.report_synced();
    }

    /// Writes the queued records, brings all records to stable storage, seals the segment and releases the directory.
    /// Further appends are refused. A second call has no effect.
    ///
    /// # Errors
    /// Fails if records could not be written or synced. They are lost when this process ends.
    pub fn seal(&self) -> Result<(), LogError> {
        self.shared.stop();
        for thread in lock(&self.threads).drain(..) {
            // The code below does the work of a thread that panicked.
            let _ = thread.join();
        }
        let mut guard = lock(&self.lock);
        if guard.is_none() {
            return Ok(());
        }
        let result = self.shared.finish();
        *guard = None;
        result
    }
}

fn describe(writer: &Writer) -> LogStatus {
    let state = match (writer.closed, &writer.fault) {
        (true, _) => LogState::Closed,
        (false, Some(_)) => LogState::Unavailable,
        (false, None) => LogState::Ok,
    };
    LogStatus {
        state,
        error: writer.fault.as_ref().map(|fault| fault.reason.to_string()),
        segment: writer.segment_name().to_owned(),
        next_sequence: writer.next_sequence,
        durable_sequence: writer.durable,
        unsynced_bytes: writer.unsynced_bytes() as u64,
        queued: 0,
        dropped: 0,
        refused: writer.refused,
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // A drop cannot report the error; `seal` does.
        let _ = self.seal();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}
