//! The log: appending, the background work, sealing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use prost::Message;
use scorer_proto::v1::{LogRecord, RecoveryRecord, log_record};
use serde::Serialize;

use crate::config::{Durability, LogConfig};
use crate::error::LogError;
use crate::fs::{DirLock, Env};
use crate::queue::{Batch, Queue};
use crate::recovery::{self, Recovered, Recovery};
use crate::writer::{Fault, Writer, rewrite};

/// `Async` records are gathered this long, so that many go into one write.
const GATHER: Duration = Duration::from_millis(1);
/// Pause of the writer thread while the log is unavailable.
const HOLD: Duration = Duration::from_millis(20);
/// Most bytes written under the lock at once by the writer thread.
const CHUNK: usize = 64 << 10;

/// Whether records can be kept now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogState {
    /// Yes.
    Ok,
    /// No; `LogStatus::error` says why. It recovers by itself.
    Unavailable,
    /// The log was sealed.
    Closed,
}

/// A log's condition.
#[derive(Debug, Clone, Serialize)]
pub struct LogStatus {
    /// Whether records can be kept now.
    pub state: LogState,
    /// Why not.
    pub error: Option<String>,
    /// The segment being written.
    pub segment: String,
    /// The next record's sequence.
    pub next_sequence: u64,
    /// Every sequence below is on stable storage.
    pub durable_sequence: u64,
    /// Bytes written that are not yet on stable storage.
    pub unsynced_bytes: u64,
    /// `Async` records waiting.
    pub queued: u64,
    /// `Async` records dropped since the log was opened.
    pub dropped: u64,
    /// Records refused while unavailable since the log was opened.
    pub refused: u64,
}

/// An open decision log; the only writer of its directory.
pub struct Log {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<Box<dyn DirLock>>>,
}

struct Shared {
    env: Env,
    dir: std::path::PathBuf,
    max_payload: usize,
    writer: Mutex<Writer>,
    /// Mirrors "no fault and not closed" for readers that must not wait.
    available: AtomicBool,
    queue: Queue,
    /// What a drain has taken from the queue and not yet written.
    batch: Mutex<Batch>,
    /// Whether a round of `fdatasync`, or a repair, is under way: one at a time.
    turn: Mutex<bool>,
    turned: Condvar,
    signal: Mutex<Signal>,
    signalled: Condvar,
}

/// What the sync thread is woken for.
#[derive(Default)]
struct Signal {
    stop: bool,
    /// Much is unsynced: do not wait for the end of the pause.
    hurry: bool,
}

impl Log {
    /// Opens a directory for writing: takes its lock, recovers what an unclean stop left behind, begins a new
    /// segment. A disk that cannot be written makes the log unavailable, not the call fail.
    ///
    /// # Errors
    /// Somebody else holds the directory, it cannot be read, or a setting is out of range.
    pub fn open(env: Env, config: LogConfig) -> Result<(Self, Recovery), LogError> {
        config.check()?;
        let Recovered { mut writer, lock, leftovers, recovery } = recovery::recover(&env, &config)?;
        let available = writer.start().is_ok();
        if available {
            leftovers.tidy(&env, &config.dir);
        }
        let shared = Arc::new(Shared {
            env,
            dir: config.dir.clone(),
            max_payload: config.max_payload(),
            writer: Mutex::new(writer),
            available: AtomicBool::new(available),
            queue: Queue::new(config.queue_records, config.queue_bytes),
            batch: Mutex::default(),
            turn: Mutex::default(),
            turned: Condvar::new(),
            signal: Mutex::default(),
            signalled: Condvar::new(),
        });
        let log = Self { shared, threads: Mutex::default(), lock: Mutex::new(Some(lock)) };
        if config.background {
            log.spawn("scorer-log-write", |shared| shared.write_loop())?;
            let pause = Duration::from_millis(config.sync_ms);
            log.spawn("scorer-log-sync", move |shared| shared.sync_loop(pause))?;
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

    /// Appends a record (an encoded `scorer.v1.LogRecord`). Returns its sequence; `None` for `Async`, which gets
    /// one when it is written.
    ///
    /// # Errors
    /// The record is not in the log, except for `NotDurable`, where it is but may not outlive a power loss.
    pub fn append(&self, payload: &[u8], durability: Durability) -> Result<Option<u64>, LogError> {
        let shared = &*self.shared;
        if payload.len() > shared.max_payload {
            return Err(LogError::TooLarge { bytes: payload.len(), max: shared.max_payload });
        }
        match durability {
            Durability::Async => shared.queue.push(payload).map(|()| None),
            Durability::Written => shared.append(payload).map(Some),
            Durability::Sync => {
                let sequence = shared.append(payload)?;
                shared.sync_through(sequence)?;
                Ok(Some(sequence))
            }
        }
    }

    /// Whether the log can keep a record now, without waiting for anything. What depends on being logged
    /// (exploration) asks this first.
    #[must_use]
    pub fn available(&self) -> bool {
        self.shared.available.load(Ordering::Acquire)
    }

    /// The log's condition.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        let (queued, dropped) = self.shared.queue.counts();
        let writer = self.shared.writer();
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
            queued: queued as u64,
            dropped,
            refused: writer.refused,
        }
    }

    /// Writes the `Async` records that are waiting. The writer thread does this; without it the owner does.
    ///
    /// # Errors
    /// The log is unavailable; the records stay in the queue.
    pub fn drain(&self) -> Result<(), LogError> {
        self.shared.drain()
    }

    /// Brings everything written to stable storage.
    ///
    /// # Errors
    /// It could not be, and writing it again elsewhere failed too.
    pub fn sync(&self) -> Result<(), LogError> {
        self.shared.in_turn(Shared::sync_now)
    }

    /// One round of background work: `fdatasync`, and an attempt to recover if one is due.
    pub fn maintain(&self) {
        self.shared.maintain();
    }

    /// Writes what is queued, brings everything to stable storage, seals the segment and gives up the directory.
    /// Further appends are refused. Doing it again does nothing.
    ///
    /// # Errors
    /// Records could not be written or synced; they are lost with this process.
    pub fn seal(&self) -> Result<(), LogError> {
        self.shared.queue.close();
        lock(&self.shared.signal).stop = true;
        self.shared.signalled.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // A panicked thread leaves its work to the lines below.
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

impl Drop for Log {
    fn drop(&mut self) {
        // Nobody is left to tell; `seal` is there for those who want to know.
        let _ = self.seal();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}

impl Shared {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        lock(&self.writer)
    }

    /// Keeps `available` in step; called with the writer's lock held.
    fn publish(&self, writer: &Writer) {
        self.available.store(writer.fault.is_none() && !writer.closed, Ordering::Release);
    }

    fn append(&self, payload: &[u8]) -> Result<u64, LogError> {
        let crc = crc32c::crc32c(payload);
        let mut writer = self.writer();
        let result = writer.append(payload, crc);
        if result.is_err() {
            self.publish(&writer);
        }
        let hurry = writer.hurry();
        drop(writer);
        self.hurry_if(hurry);
        result
    }

    fn drain(&self) -> Result<(), LogError> {
        let mut batch = lock(&self.batch);
        loop {
            if batch.left() == 0 {
                self.queue.take(&mut batch);
            }
            if batch.left() == 0 {
                return Ok(());
            }
            let (written, result) = self.write_chunk(&batch);
            let bytes = batch.consume(written);
            self.queue.done(written, bytes);
            result?;
        }
    }

    /// Writes the front of a batch; returns how many records of it are in the log.
    fn write_chunk(&self, batch: &Batch) -> (usize, Result<(), LogError>) {
        let mut writer = self.writer();
        let before = writer.next_sequence;
        let mut size = 0;
        let mut result = writer.admit();
        if result.is_ok() {
            for payload in batch.payloads() {
                size += payload.len();
                result = writer.stage(payload, crc32c::crc32c(payload)).map(|_| ());
                if result.is_err() || size >= CHUNK {
                    break;
                }
            }
            result = writer.commit().and(result);
        }
        self.publish(&writer);
        let written = writer.next_sequence.saturating_sub(before);
        let hurry = writer.hurry();
        drop(writer);
        self.hurry_if(hurry);
        (usize::try_from(written).unwrap_or(usize::MAX), result)
    }

    /// Runs `work` when nobody else syncs or repairs.
    fn in_turn<T>(&self, work: impl FnOnce(&Self) -> T) -> T {
        let busy = lock(&self.turn);
        let mut busy = self.turned.wait_while(busy, |busy| *busy).unwrap_or_else(PoisonError::into_inner);
        *busy = true;
        drop(busy);
        let _turn = Turn(self);
        work(self)
    }

    /// Returns once `sequence` is on stable storage. Whoever comes first syncs for all who wait meanwhile.
    fn sync_through(&self, sequence: u64) -> Result<(), LogError> {
        self.in_turn(|shared| {
            if shared.writer().durable > sequence {
                return Ok(());
            }
            let result = shared.sync_now();
            let writer = shared.writer();
            if writer.durable > sequence {
                return Ok(());
            }
            let reason = match (result, &writer.fault) {
                (_, Some(fault)) => Arc::clone(&fault.reason),
                (Err(error), None) => error.to_string().into(),
                (Ok(()), None) => "the log was closed".into(),
            };
            Err(LogError::NotDurable { sequence, reason })
        })
    }

    fn sync_now(&self) -> Result<(), LogError> {
        let job = {
            let mut writer = self.writer();
            match writer.begin_sync() {
                Some(job) => job,
                None => {
                    return match &writer.fault {
                        Some(fault) if fault.rewrite => {
                            Err(LogError::Unavailable { reason: Arc::clone(&fault.reason) })
                        }
                        _ => Ok(()),
                    };
                }
            }
        };
        let result = job.run(&self.env, &self.dir);
        let ended = {
            let mut writer = self.writer();
            let ended = writer.end_sync(&job, result);
            self.publish(&writer);
            ended
        };
        ended.or_else(|_| self.repair())
    }

    /// Makes good what is broken, if it can be.
    fn repair(&self) -> Result<(), LogError> {
        let rewriting = {
            let mut writer = self.writer();
            let needed = writer.fault.as_ref().is_some_and(|fault| fault.rewrite);
            needed.then(|| writer.begin_rewrite())
        };
        if let Some((header, frames)) = rewriting {
            let result = rewrite(&self.env, &self.dir, &header, &frames);
            let mut writer = self.writer();
            writer.end_rewrite(frames, result)?;
        }
        let now = self.env.clock.unix_us();
        let mut writer = self.writer();
        let result = writer.probe(|fault, last| report(fault, last, now));
        self.publish(&writer);
        result
    }

    fn maintain(&self) {
        self.in_turn(|shared| {
            let due = shared.writer().repair_due();
            if due {
                // It stays unavailable and says why in its status.
                let _ = shared.repair();
            }
            let _ = shared.sync_now();
        });
    }

    fn write_loop(&self) {
        while self.queue.wait() {
            self.queue.pause(GATHER);
            if self.drain().is_err() {
                self.queue.pause(HOLD);
            }
        }
    }

    /// Wakes the sync thread early.
    fn hurry_if(&self, hurry: bool) {
        if hurry && !std::mem::replace(&mut lock(&self.signal).hurry, true) {
            self.signalled.notify_all();
        }
    }

    fn sync_loop(&self, pause: Duration) {
        loop {
            let signal = lock(&self.signal);
            let waited =
                self.signalled.wait_timeout_while(signal, pause, |signal| !signal.stop && !signal.hurry);
            let (mut signal, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if signal.stop {
                return;
            }
            signal.hurry = false;
            drop(signal);
            self.maintain();
        }
    }

    fn finish(&self) -> Result<(), LogError> {
        self.in_turn(|shared| {
            let drained = shared.drain_fully();
            let synced = shared.sync_now();
            let mut writer = shared.writer();
            writer.close();
            shared.publish(&writer);
            drop(writer);
            drained.and(synced).and(shared.sync_now())
        })
    }

    /// Empties the queue, making room for it as often as that helps. Called in turn.
    fn drain_fully(&self) -> Result<(), LogError> {
        let mut stuck = false;
        loop {
            let (before, _) = self.queue.counts();
            let Err(error) = self.drain() else { return Ok(()) };
            let faulty = self.writer().fault.is_some();
            let room = if faulty { self.repair() } else { self.sync_now() };
            let (left, _) = self.queue.counts();
            if room.is_err() || (left == before && stuck) {
                return Err(error);
            }
            stuck = left == before;
        }
    }
}

/// Ends a turn however the work in it ended.
struct Turn<'a>(&'a Shared);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.turn) = false;
        self.0.turned.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(fault: &Fault, last_sequence: u64, now_us: i64) -> Vec<u8> {
    let finding = format!(
        "recording resumed after {} ms, {} records refused: {}",
        (now_us - fault.since_us) / 1000,
        fault.refused(),
        fault.reason
    );
    recovery_record(RecoveryRecord {
        at_us: now_us,
        segment: String::new(),
        bytes_cut: 0,
        last_sequence,
        finding,
    })
}

/// An encoded record of what recovery did.
pub(crate) fn recovery_record(record: RecoveryRecord) -> Vec<u8> {
    LogRecord { record: Some(log_record::Record::Recovery(record)) }.encode_to_vec()
}
