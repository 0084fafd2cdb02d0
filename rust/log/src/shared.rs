//! What the callers of a log and its background threads share: the writer behind its lock, and the turns in which
//! somebody syncs or repairs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use scorer_proto::v1::{LogRecord, RecoveryRecord, log_record};

use crate::error::LogError;
use crate::fs::Env;
use crate::queue::{Batch, Queue};
use crate::writer::{Fault, Writer, rewrite};

/// `Async` records are gathered this long, so that many go into one write.
const GATHER: Duration = Duration::from_millis(1);
/// Pause of the writer thread while the log is unavailable.
const HOLD: Duration = Duration::from_millis(20);
/// Most bytes written under the lock at once by the writer thread.
const CHUNK: usize = 64 << 10;

/// The inside of a `Log`.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) dir: PathBuf,
    pub(crate) max_payload: usize,
    pub(crate) writer: Mutex<Writer>,
    /// Mirrors "no fault and not closed" for readers that must not wait.
    pub(crate) available: AtomicBool,
    pub(crate) queue: Queue,
    /// What a drain has taken from the queue and not yet written.
    pub(crate) batch: Mutex<Batch>,
    /// Whether a round of `fdatasync`, or a repair, is under way: one at a time.
    pub(crate) turn: Mutex<bool>,
    pub(crate) turned: Condvar,
    pub(crate) signal: Mutex<Signal>,
    pub(crate) signalled: Condvar,
}

/// What the sync thread is woken for.
#[derive(Default)]
pub(crate) struct Signal {
    pub(crate) stop: bool,
    /// Much is unsynced: do not wait for the end of the pause.
    pub(crate) hurry: bool,
}

impl Shared {
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        lock(&self.writer)
    }

    /// Keeps `available` in step; called with the writer's lock held.
    fn publish(&self, writer: &Writer) {
        self.available.store(writer.fault.is_none() && !writer.closed, Ordering::Release);
    }

    pub(crate) fn append(&self, payload: &[u8]) -> Result<u64, LogError> {
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

    pub(crate) fn drain(&self) -> Result<(), LogError> {
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
    pub(crate) fn in_turn<T>(&self, work: impl FnOnce(&Self) -> T) -> T {
        let busy = lock(&self.turn);
        let mut busy = self.turned.wait_while(busy, |busy| *busy).unwrap_or_else(PoisonError::into_inner);
        *busy = true;
        drop(busy);
        let _turn = Turn(self);
        work(self)
    }

    /// Returns once `sequence` is on stable storage. Whoever comes first syncs for all who wait meanwhile.
    pub(crate) fn sync_through(&self, sequence: u64) -> Result<(), LogError> {
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

    pub(crate) fn sync_now(&self) -> Result<(), LogError> {
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

    pub(crate) fn maintain(&self) {
        self.in_turn(|shared| {
            let due = shared.writer().repair_due();
            if due {
                // It stays unavailable and says why in its status.
                let _ = shared.repair();
            }
            let _ = shared.sync_now();
        });
    }

    pub(crate) fn write_loop(&self) {
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

    pub(crate) fn sync_loop(&self, pause: Duration) {
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

    pub(crate) fn finish(&self) -> Result<(), LogError> {
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
