//! The state that the callers of a log and its background threads share: the writer behind its lock, and the turns in
//! which one thread syncs or repairs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use prost::Message;
use scorer_proto::v1::{LogRecord, OutcomeProof, RecoveryRecord, WithdrawnRecord, log_record};

use crate::config::LogConfig;
use crate::error::LogError;
use crate::fs::Env;
use crate::outcomes::Peek;
use crate::queue::{Batch, Bounds, Queue};
use crate::receipt::{Caller, Ticket};
use crate::retention::Retention;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::upkeep::Keeper;
use crate::writer::{Fault, Writer, rewrite};

/// Time for which `Async` records are collected, so that one write can store many.
const GATHER: Duration = Duration::from_millis(1);
/// Pause of the writer thread while the log is unavailable.
const HOLD: Duration = Duration::from_millis(20);
/// Greatest number of bytes that the writer thread writes at once under the lock.
const CHUNK: usize = 64 << 10;

/// The inside of a `Log`.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) dir: PathBuf,
    pub(crate) max_payload: usize,
    pub(crate) writer: Mutex<Writer>,
    /// Whether the writer has no fault and is not closed, for readers that must not wait for the lock.
    pub(crate) available: AtomicBool,
    /// Start of the writer thread's current write, in microseconds of the monotonic clock plus 1; 0 between writes.
    pub(crate) writing_since: AtomicU64,
    pub(crate) stall: Duration,
    pub(crate) queue: Queue,
    /// The records that the writer thread has taken and whose callers wait. The vector is kept so that its memory is
    /// used again.
    pub(crate) awaited: Mutex<Vec<Ticket>>,
    /// Written records whose callers wait for `fdatasync`, with their sequences.
    pub(crate) syncing: Mutex<Vec<(Ticket, u64)>>,
    pub(crate) keeper: Keeper,
    pub(crate) retention: Retention,
    /// The records that a drain has taken from the queue and not yet written.
    pub(crate) batch: Mutex<Batch>,
    /// Whether a round of `fdatasync` or a repair is running. Only one runs at a time.
    pub(crate) turn: Mutex<bool>,
    pub(crate) turned: Condvar,
    pub(crate) signal: Mutex<Signal>,
    pub(crate) signalled: Condvar,
}

/// The reasons for waking the sync thread.
#[derive(Default)]
pub(crate) struct Signal {
    pub(crate) stop: bool,
    /// Whether to end the pause early, because many bytes are not synced.
    pub(crate) hurry: bool,
}

impl Shared {
    pub(crate) fn new(env: Env, config: &LogConfig, writer: Writer, available: bool) -> Shared {
        Shared {
            env,
            dir: config.dir.clone(),
            max_payload: config.max_payload(),
            writer: Mutex::new(writer),
            available: AtomicBool::new(available),
            writing_since: AtomicU64::new(0),
            stall: Duration::from_millis(config.stall_ms),
            queue: Queue::new(
                Bounds { records: config.queue_records, bytes: config.queue_bytes },
                Bounds { records: config.awaited_records, bytes: config.awaited_bytes },
            ),
            awaited: Mutex::default(),
            syncing: Mutex::default(),
            keeper: Keeper::default(),
            retention: config.retention,
            batch: Mutex::default(),
            turn: Mutex::default(),
            turned: Condvar::new(),
            signal: Mutex::default(),
            signalled: Condvar::new(),
        }
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        lock(&self.writer)
    }

    /// Updates `available`. The caller holds the writer's lock.
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

    /// Whether the current write of the writer thread takes longer than the limit.
    pub(crate) fn stalled(&self) -> bool {
        let since = self.writing_since.load(Ordering::Relaxed);
        since != 0 && self.micros().saturating_sub(since - 1) > self.stall.as_micros() as u64
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.env.clock.monotonic().as_micros()).unwrap_or(u64::MAX - 1)
    }

    /// Writes everything that is queued.
    pub(crate) fn drain(&self) -> Result<(), LogError> {
        self.writing_since.store(self.micros() + 1, Ordering::Relaxed);
        let result = self.drain_both();
        self.writing_since.store(0, Ordering::Relaxed);
        result
    }

    fn drain_both(&self) -> Result<(), LogError> {
        self.write_awaited();
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
            // This comes between two chunks, so that callers do not wait for a long queue of `Async` records.
            self.write_awaited();
            result?;
        }
    }

    /// Writes all records whose callers wait with one write, and passes the result to each caller.
    fn write_awaited(&self) {
        let mut records = lock(&self.awaited);
        self.queue.take_awaited(&mut records);
        if records.is_empty() {
            return;
        }
        self.writing_since.store(self.micros() + 1, Ordering::Relaxed);
        let mut writer = self.writer();
        let mut staged = Vec::with_capacity(records.len());
        for ticket in records.drain(..) {
            // A record that was withdrawn while it waited is never written.
            if !ticket.begin() {
                continue;
            }
            let payload = &ticket.slot().payload;
            match writer.admit().and_then(|()| writer.stage(payload, crc32c::crc32c(payload))) {
                Ok(sequence) => staged.push((ticket, sequence)),
                Err(error) => _ = ticket.finish(Err(error)),
            }
        }
        // A failed write takes back the sequences of its records, and the fault contains the reason.
        let _ = writer.commit();
        let next = writer.next_sequence;
        let mut to_sync = Vec::new();
        for (ticket, sequence) in staged {
            if sequence >= next {
                let _ = ticket.finish(Err(unavailable(&writer)));
            } else if ticket.slot().sync {
                to_sync.push((ticket, sequence));
            } else if ticket.finish(Ok(sequence)) == Caller::Gone {
                writer.owed.extend(withdrawn(&ticket.slot().payload, sequence));
            }
        }
        self.pay(&mut writer);
        let hurry = writer.hurry() || !to_sync.is_empty();
        drop(writer);
        lock(&self.syncing).append(&mut to_sync);
        self.hurry_if(hurry);
    }

    /// Passes the results of a round of `fdatasync` to the waiting callers. A record that could not be brought to
    /// stable storage, or whose caller is gone, is withdrawn before any other record is written.
    pub(crate) fn report_synced(&self) {
        let waiting = std::mem::take(&mut *lock(&self.syncing));
        if waiting.is_empty() {
            return;
        }
        let mut left = Vec::new();
        let mut writer = self.writer();
        for (ticket, sequence) in waiting {
            let failed = writer.fault.as_ref().filter(|fault| fault.rewrite);
            let result = if sequence < writer.durable {
                Ok(sequence)
            } else if let Some(fault) = failed {
                Err(LogError::NotDurable { sequence, reason: Arc::clone(&fault.reason) })
            } else if writer.closed {
                Err(LogError::NotDurable { sequence, reason: "the log was closed".into() })
            } else {
                // The record was written after the round started, so the next round reports it.
                left.push((ticket, sequence));
                continue;
            };
            let failed = result.is_err();
            if ticket.finish(result) == Caller::Gone || failed {
                writer.owed.extend(withdrawn(&ticket.slot().payload, sequence));
            }
        }
        self.pay(&mut writer);
        drop(writer);
        if !left.is_empty() {
            lock(&self.syncing).append(&mut left);
            self.hurry_if(true);
        }
    }

    /// Withdraws a written record whose caller reports that it is not in the log.
    pub(crate) fn withdraw(&self, payload: &[u8], sequence: u64) {
        let mut writer = self.writer();
        writer.owed.extend(withdrawn(payload, sequence));
        self.pay(&mut writer);
    }

    /// Writes pending withdrawals and findings. If that fails now, they are written first when the log is available
    /// again.
    fn pay(&self, writer: &mut Writer) {
        if writer.fault.is_none() {
            let _ = writer.pay();
        }
        self.publish(writer);
    }

    /// Writes the front of a batch, and returns the number of its records that are in the log.
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

    /// Runs `work` when no other thread syncs or repairs.
    pub(crate) fn in_turn<T>(&self, work: impl FnOnce(&Self) -> T) -> T {
        let busy = lock(&self.turn);
        let mut busy = self.turned.wait_while(busy, |busy| *busy).unwrap_or_else(PoisonError::into_inner);
        *busy = true;
        drop(busy);
        let _turn = Turn(self);
        work(self)
    }

    /// Returns when `sequence` is on stable storage. The first caller syncs for all that wait meanwhile.
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

    /// Tries to repair a fault.
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
                // The log stays unavailable, and its status contains the reason.
                let _ = shared.repair();
            }
            let _ = shared.sync_now();
        });
    }

    pub(crate) fn write_loop(&self) {
        while self.queue.wait(GATHER) {
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
            self.report_synced();
        }
    }

    pub(crate) fn keep(&self) {
        self.keeper.round(&self.env, &self.dir, self.retention);
    }

    pub(crate) fn upkeep_loop(&self, every: Duration) {
        loop {
            self.keep();
            let signal = lock(&self.signal);
            let waited = self.signalled.wait_timeout_while(signal, every, |signal| !signal.stop);
            let (signal, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if signal.stop {
                return;
            }
        }
    }

    /// Refuses further records and lets the background threads end.
    pub(crate) fn stop(&self) {
        self.queue.close();
        lock(&self.signal).stop = true;
        self.signalled.notify_all();
    }

    pub(crate) fn finish(&self) -> Result<(), LogError> {
        self.in_turn(|shared| {
            let drained = shared.drain_fully();
            let synced = shared.sync_now();
            // This comes before the segment is sealed, because withdrawals must still be recorded.
            shared.report_synced();
            let mut writer = shared.writer();
            writer.close();
            shared.publish(&writer);
            drop(writer);
            let result = drained.and(synced).and(shared.sync_now());
            shared.report_synced();
            result
        })
    }

    /// Empties the queue, and syncs to make space as often as that helps. The caller has the turn.
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

/// Ends a turn when it is dropped, also after a panic.
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

fn unavailable(writer: &Writer) -> LogError {
    let reason =
        writer.fault.as_ref().map_or_else(|| "the write failed".into(), |fault| Arc::clone(&fault.reason));
    LogError::Unavailable { reason }
}

/// Creates the record that withdraws a decision or an outcome. Other records are not withdrawn.
fn withdrawn(payload: &[u8], sequence: u64) -> Option<Vec<u8>> {
    let record = match Peek::decode(payload).ok()? {
        Peek { decision: Some(decision), .. } => WithdrawnRecord {
            sequence,
            checkpoint: decision.checkpoint,
            decision_id: decision.decision_id,
            kind: String::new(),
            unproven: false,
        },
        Peek { outcome: Some(outcome), .. } => WithdrawnRecord {
            sequence,
            unproven: outcome.proof() == OutcomeProof::Unproven,
            checkpoint: outcome.checkpoint,
            decision_id: outcome.decision_id,
            kind: outcome.kind,
        },
        Peek { .. } => return None,
    };
    Some(LogRecord { record: Some(log_record::Record::Withdrawn(record)) }.encode_to_vec())
}

/// Encodes a record of recovery.
pub(crate) fn recovery_record(record: RecoveryRecord) -> Vec<u8> {
    LogRecord { record: Some(log_record::Record::Recovery(record)) }.encode_to_vec()
}
