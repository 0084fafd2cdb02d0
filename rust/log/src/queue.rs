//! Records on their way to the writer thread: bounded, and never in the way of the caller.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::LogError;

/// Payloads one behind the other, and their lengths.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    lens: Vec<u32>,
    next: usize,
    at: usize,
}

impl Batch {
    /// The next payload that was not consumed yet, after skipping `ahead` of them.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = self.at;
        self.lens.get(self.next..).unwrap_or_default().iter().map(move |len| {
            let start = at;
            at += *len as usize;
            self.bytes.get(start..at).unwrap_or_default()
        })
    }

    /// Payloads not yet consumed.
    pub(crate) fn left(&self) -> usize {
        self.lens.len() - self.next
    }

    /// Drops the first `count`; returns their bytes.
    pub(crate) fn consume(&mut self, count: usize) -> usize {
        let end = (self.next + count).min(self.lens.len());
        let bytes = self.lens.get(self.next..end).unwrap_or_default().iter().map(|len| *len as usize).sum();
        self.next = end;
        self.at += bytes;
        if self.left() == 0 {
            self.bytes.clear();
            self.lens.clear();
            self.next = 0;
            self.at = 0;
        }
        bytes
    }
}

#[derive(Default)]
struct Waiting {
    batch: Batch,
    /// Includes what a drain under way has taken and not yet written.
    records: usize,
    bytes: usize,
    dropped: u64,
    closed: bool,
}

pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    max_records: usize,
    max_bytes: usize,
}

impl Queue {
    pub(crate) fn new(max_records: usize, max_bytes: usize) -> Self {
        Self { waiting: Mutex::default(), arrived: Condvar::new(), max_records, max_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a copy of `payload`. The lock is held for the copy alone, never for a write.
    pub(crate) fn push(&self, payload: &[u8]) -> Result<(), LogError> {
        self.push_within(payload, 1, true)
    }

    fn push_within(&self, payload: &[u8], part: usize, counts: bool) -> Result<(), LogError> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(LogError::Closed);
        }
        if waiting.records >= self.max_records / part || waiting.bytes + payload.len() > self.max_bytes / part
        {
            waiting.dropped += u64::from(counts);
            return Err(LogError::QueueFull { records: waiting.records });
        }
        let first = waiting.batch.left() == 0;
        waiting.batch.bytes.extend_from_slice(payload);
        waiting.batch.lens.push(payload.len() as u32);
        waiting.records += 1;
        waiting.bytes += payload.len();
        drop(waiting);
        if first {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// The same for what may be lost: only while the queue is less than half full, and a refusal is not counted.
    pub(crate) fn push_spare(&self, payload: &[u8]) -> Result<(), LogError> {
        self.push_within(payload, 2, false)
    }

    /// Exchanges an exhausted batch for what is waiting; the buffers go round.
    pub(crate) fn take(&self, batch: &mut Batch) {
        std::mem::swap(&mut self.lock().batch, batch);
    }

    /// Accounts for records that are written.
    pub(crate) fn done(&self, records: usize, bytes: usize) {
        let mut waiting = self.lock();
        waiting.records -= records.min(waiting.records);
        waiting.bytes -= bytes.min(waiting.bytes);
    }

    /// Refuses further records.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Waits until there is something to write; false once closed.
    pub(crate) fn wait(&self) -> bool {
        let mut waiting = self.lock();
        while !waiting.closed && waiting.batch.left() == 0 {
            waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        !waiting.closed
    }

    /// Pauses, unless closed meanwhile.
    pub(crate) fn pause(&self, pause: Duration) {
        let waiting = self.lock();
        let closed = |waiting: &mut Waiting| !waiting.closed;
        drop(self.arrived.wait_timeout_while(waiting, pause, closed));
    }

    /// Records waiting, and records dropped so far.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let waiting = self.lock();
        (waiting.records, waiting.dropped)
    }
}
