//! The queue of records for the writer thread, bounded by count and bytes. Callers copy a record into it and never wait
//! for a write.
//!
//! It has two parts with separate bounds. Records whose callers wait for the result have one slot each and are written
//! first. `Async` records are collected in one buffer.

use std::sync::PoisonError;
use std::time::Duration;

use crate::error::LogError;
use crate::receipt::Ticket;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Payloads, one after the other, and their lengths.
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

    /// Number of payloads that were not consumed yet.
    pub(crate) fn left(&self) -> usize {
        self.lens.len() - self.next
    }

    /// Drops the first `count` payloads and returns their number of bytes.
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
    /// Number of records, including those that a running drain has taken and not yet written.
    records: usize,
    bytes: usize,
    dropped: u64,
    closed: bool,
    awaited: Vec<Ticket>,
    awaited_bytes: usize,
    /// Whether the writer thread sleeps or is about to sleep. Waking it is a system call, which a busy writer does not
    /// need.
    sleeps: bool,
}

/// Limits on the number of records of one part and on the bytes of their payloads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) records: usize,
    pub(crate) bytes: usize,
}

pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    bounds: Bounds,
    awaited: Bounds,
}

impl Queue {
    /// Creates a queue. `bounds` are those of `Async` records, `awaited` those of records whose callers wait.
    pub(crate) fn new(bounds: Bounds, awaited: Bounds) -> Self {
        Self { waiting: Mutex::default(), arrived: Condvar::new(), bounds, awaited }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a copy of `payload`. The lock is held only during the copy, never during a write.
    pub(crate) fn push(&self, payload: &[u8]) -> Result<(), LogError> {
        self.push_within(payload, 1, true)
    }

    fn push_within(&self, payload: &[u8], part: usize, counts: bool) -> Result<(), LogError> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(LogError::Closed);
        }
        let Bounds { records, bytes } = self.bounds;
        if waiting.records >= records / part || waiting.bytes + payload.len() > bytes / part {
            waiting.dropped += u64::from(counts);
            return Err(LogError::QueueFull { records: waiting.records });
        }
        let wake = waiting.sleeps && waiting.batch.left() == 0;
        waiting.batch.bytes.extend_from_slice(payload);
        waiting.batch.lens.push(payload.len() as u32);
        waiting.records += 1;
        waiting.bytes += payload.len();
        drop(waiting);
        if wake {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Adds a copy of a payload that may be lost, only while less than half of the queue is used. A refusal is not
    /// counted.
    pub(crate) fn push_spare(&self, payload: &[u8]) -> Result<(), LogError> {
        self.push_within(payload, 2, false)
    }

    /// Adds a record whose caller waits for the result.
    pub(crate) fn push_awaited(&self, ticket: Ticket) -> Result<(), LogError> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(LogError::Closed);
        }
        let bytes = waiting.awaited_bytes + ticket.slot().payload.len();
        if waiting.awaited.len() >= self.awaited.records || bytes > self.awaited.bytes {
            return Err(LogError::QueueFull { records: waiting.awaited.len() });
        }
        let wake = waiting.sleeps && waiting.awaited.is_empty();
        waiting.awaited.push(ticket);
        waiting.awaited_bytes = bytes;
        drop(waiting);
        if wake {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Swaps the records whose callers wait with an empty vector, so that both buffers are used again.
    pub(crate) fn take_awaited(&self, records: &mut Vec<Ticket>) {
        let mut waiting = self.lock();
        std::mem::swap(&mut waiting.awaited, records);
        waiting.awaited_bytes = 0;
    }

    /// Swaps the waiting `Async` records with an exhausted batch, so that both buffers are used again.
    pub(crate) fn take(&self, batch: &mut Batch) {
        std::mem::swap(&mut self.lock().batch, batch);
    }

    /// Subtracts written records from the counts.
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

    /// Waits until there are records to write. Returns false if the queue is closed. `Async` records are collected for
    /// the time `gather`, so that one write can store many; a record whose caller waits ends this time.
    pub(crate) fn wait(&self, gather: Duration) -> bool {
        let mut waiting = self.lock();
        waiting.sleeps = true;
        let empty = |waiting: &mut Waiting| {
            !waiting.closed && waiting.batch.left() == 0 && waiting.awaited.is_empty()
        };
        let waiting = self.arrived.wait_while(waiting, empty).unwrap_or_else(PoisonError::into_inner);
        let closed = waiting.closed;
        self.pause_locked(waiting, gather);
        !closed
    }

    /// Sleeps for `pause`, or until a caller waits for a record or the queue is closed.
    pub(crate) fn pause(&self, pause: Duration) {
        self.pause_locked(self.lock(), pause);
    }

    fn pause_locked(&self, mut waiting: MutexGuard<'_, Waiting>, pause: Duration) {
        waiting.sleeps = true;
        let idle = |waiting: &mut Waiting| !waiting.closed && waiting.awaited.is_empty();
        let waited = self.arrived.wait_timeout_while(waiting, pause, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.sleeps = false;
    }

    /// Returns the numbers of waiting records and of dropped records.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let waiting = self.lock();
        (waiting.records, waiting.dropped)
    }
}
