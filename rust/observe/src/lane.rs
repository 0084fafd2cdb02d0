//! One observe lane: its bundle, queue, records and counters.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;

use scorer_core::bundle::Digest;

use scorer_engine::{Histogram, Loaded, ObserveLane};

use crate::counters::Counters;
use crate::job::{Job, Observed};
use crate::mapping::lacks;
use crate::queue::Queue;
use crate::status::ObserverStatus;
use crate::thread::cpu_time_of;

/// Greatest number of records that wait for the supervisor.
const MAX_RECORDS: usize = 8192;
/// Greatest number of bytes of these records.
const MAX_BYTES: usize = 16 << 20;

/// One observe lane. A new lane table in which it is unchanged keeps it, with its thread and counters.
pub struct Lane {
    /// Name of its checkpoint.
    pub checkpoint: String,
    /// The lane's entry in the lane table.
    pub table: ObserveLane,
    pub(crate) digest: Digest,
    pub(crate) counters: Counters,
    pub(crate) place: Place,
    /// Whether the lane is no longer active.
    closed: AtomicBool,
    /// Whether an evaluation has taken too long. No more requests are then put into the queue.
    stuck: AtomicBool,
}

/// Where a lane's requests are evaluated.
pub(crate) enum Place {
    Here(Box<Here>),
    /// In the shadow pool. All lanes of the pool share one queue.
    Pool,
}

/// The state of a lane that is evaluated in this process.
pub(crate) struct Here {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) queue: Queue<Job>,
    /// Encoded records for the supervisor.
    records: Mutex<Records>,
    /// The lane's thread.
    pub(crate) thread: OnceLock<Thread>,
    /// Whether the thread has ended.
    ended: AtomicBool,
}

/// Encoded records, one after the other, and the end of each.
#[derive(Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

// === impl Lane ===

impl Lane {
    pub(crate) fn here(checkpoint: &str, table: &ObserveLane, loaded: Arc<Loaded>, places: usize) -> Lane {
        let digest = loaded.digest;
        let here = Here {
            loaded,
            queue: Queue::new(places),
            records: Mutex::default(),
            thread: OnceLock::new(),
            ended: AtomicBool::new(false),
        };
        Lane::new(checkpoint, table, digest, Place::Here(Box::new(here)))
    }

    pub(crate) fn in_pool(checkpoint: &str, table: &ObserveLane, digest: Digest) -> Lane {
        Lane::new(checkpoint, table, digest, Place::Pool)
    }

    fn new(checkpoint: &str, table: &ObserveLane, digest: Digest, place: Place) -> Lane {
        Lane {
            checkpoint: checkpoint.to_owned(),
            table: table.clone(),
            digest,
            counters: Counters::new(),
            place,
            closed: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
        }
    }

    /// Whether a lane of a new table equals this one.
    pub(crate) fn is(&self, checkpoint: &str, table: &ObserveLane) -> bool {
        self.checkpoint == checkpoint && self.table == *table
    }

    /// The lane's bundle, if it is evaluated in this process.
    #[must_use]
    pub fn loaded(&self) -> Option<&Arc<Loaded>> {
        self.as_here().map(|here| &here.loaded)
    }

    pub(crate) fn as_here(&self) -> Option<&Here> {
        match &self.place {
            Place::Here(here) => Some(here),
            Place::Pool => None,
        }
    }

    /// Puts a taken request into the lane's queue. Returns false if there is no room. It neither blocks nor wakes a
    /// thread.
    pub(crate) fn try_enqueue(&self, observed: &Observed<'_>) -> bool {
        let Some(here) = self.as_here() else { return false };
        let schema = here.loaded.bundle.schema();
        let reads = |name: &str| {
            let place = schema.index_of(name);
            place.is_some_and(|at| lacks(observed.answered.shape, &schema.features()[at]))
        };
        let queued = !self.is_stuck()
            && here.queue.push(|job| {
                job.fill(observed, reads);
                job.computed.read(&here.loaded, observed.answered, observed.answered_at_us);
            });
        if !queued {
            self.dropped();
        }
        queued
    }

    /// Counts a taken request for which there was no room.
    pub(crate) fn dropped(&self) {
        self.counters.offered.dropped.fetch_add(1, Relaxed);
    }

    /// Marks the lane as no longer active and ends its thread.
    pub(crate) fn close(&self) {
        self.closed.store(true, Release);
        self.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Wakes the lane's thread, so that it reads the queue now.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.as_here().and_then(|here| here.thread.get()) {
            thread.unpark();
        }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Relaxed)
    }

    /// Sets whether the lane is stuck. Returns whether that is a change.
    pub(crate) fn set_stuck(&self, stuck: bool) -> bool {
        self.stuck.swap(stuck, Relaxed) != stuck
    }

    /// The durations of its evaluations.
    #[must_use]
    pub fn exec(&self) -> &Histogram {
        &self.counters.done.exec
    }

    pub(crate) fn waiting(&self) -> usize {
        self.as_here().map_or(0, |here| here.queue.len())
    }

    /// CPU time of its thread: the system's value, or the thread's own latest report.
    pub(crate) fn cpu_time(&self) -> Duration {
        let done = &self.counters.done;
        // A stuck thread does not report its time, so the system is asked first.
        let now = cpu_time_of(done.thread.load(Relaxed));
        now.unwrap_or_else(|| Duration::from_nanos(done.cpu_ns.load(Relaxed)))
    }

    /// The lane's counters.
    #[must_use]
    pub fn status(&self) -> ObserverStatus {
        let Counters { offered, done } = &self.counters;
        // Counters of finished requests are read before the counter of taken requests, so they are never greater.
        let (evaluated, failures) = (done.evaluated.load(Relaxed), done.failures());
        let (dropped, shed) = (offered.dropped.load(Relaxed), offered.shed.load(Relaxed));
        let taken = offered.taken.load(Relaxed);
        let seen = offered.seen.load(Relaxed);
        let [p50, p99, p999] = done.quantiles.at([0.5, 0.99, 0.999]);
        ObserverStatus {
            checkpoint: self.checkpoint.clone(),
            lane: self.table.name.clone(),
            bundle: self.digest.to_string(),
            pool: self.table.pool,
            seen,
            left_out: seen.saturating_sub(taken),
            taken,
            dropped,
            shed,
            evaluated,
            failed: failures.into_iter().map(|(failure, count)| (failure.as_str(), count)).collect(),
            unlogged: done.unlogged.load(Relaxed),
            waiting: self.waiting() as u64,
            stuck: self.is_stuck(),
            exec_p50_us: p50 / 1e3,
            exec_p99_us: p99 / 1e3,
            exec_p999_us: p999 / 1e3,
            cpu_seconds: self.cpu_time().as_secs_f64(),
        }
    }
}

// === impl Here ===

impl Here {
    /// Passes an encoded record to the supervisor. Returns false if too many records wait already.
    pub(crate) fn hand_over(&self, payload: &[u8]) -> bool {
        let mut records = self.records();
        if records.ends.len() >= MAX_RECORDS || records.bytes.len() + payload.len() > MAX_BYTES {
            return false;
        }
        records.bytes.extend_from_slice(payload);
        let end = records.bytes.len();
        records.ends.push(end);
        true
    }

    /// Swaps the records with `with`. Returns false if the lane's thread holds the lock.
    pub(crate) fn collect(&self, with: &mut Records) -> bool {
        match self.records.try_lock() {
            Ok(mut records) => {
                std::mem::swap(&mut *records, with);
                true
            }
            Err(TryLockError::Poisoned(records)) => {
                std::mem::swap(&mut *records.into_inner(), with);
                true
            }
            Err(TryLockError::WouldBlock) => false,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Release);
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Records ===

impl Records {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |&end| &self.bytes[std::mem::replace(&mut from, end)..end])
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}
