//! One observe lane: what it observes with, its queue, its records, its numbers.

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

/// Records that may wait for the supervisor, and their bytes.
const MAX_RECORDS: usize = 8192;
const MAX_BYTES: usize = 16 << 20;

/// One observe lane. A table that leaves it as it is keeps it, with its thread and its counters.
pub struct Lane {
    /// Name of its checkpoint.
    pub checkpoint: String,
    /// As the table has it.
    pub table: ObserveLane,
    pub(crate) digest: Digest,
    pub(crate) counters: Counters,
    pub(crate) place: Place,
    /// It is not active any more.
    closed: AtomicBool,
    /// One evaluation has taken too long: nothing more is put into its queue.
    stuck: AtomicBool,
}

/// Where a lane evaluates.
pub(crate) enum Place {
    Here(Box<Here>),
    /// In the shadow pool: one way leads there, whichever lane takes a request.
    Pool,
}

/// A lane of this process.
pub(crate) struct Here {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) queue: Queue<Job>,
    /// Encoded records on their way to the supervisor.
    records: Mutex<Records>,
    /// The lane's thread.
    pub(crate) thread: OnceLock<Thread>,
    /// The thread has ended.
    ended: AtomicBool,
}

/// Encoded records one behind the other, and where each ends.
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

    /// Whether it is the same as a lane of a new table.
    pub(crate) fn is(&self, checkpoint: &str, table: &ObserveLane) -> bool {
        self.checkpoint == checkpoint && self.table == *table
    }

    /// The bundle that it observes with, if that is in this process.
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

    /// Puts a request that was taken into the lane's queue, if there is room. It neither blocks nor wakes a thread.
    pub(crate) fn try_enqueue(&self, observed: &Observed<'_>) -> bool {
        let Some(here) = self.as_here() else { return false };
        let schema = here.loaded.bundle.schema();
        let reads = |name: &str| {
            let place = schema.index_of(name);
            place.is_some_and(|at| lacks(observed.answered.shape, &schema.features()[at]))
        };
        let queued = !self.is_stuck() && here.queue.push(|job| job.fill(observed, reads));
        if !queued {
            self.dropped();
        }
        queued
    }

    /// There was no room for what it took.
    pub(crate) fn dropped(&self) {
        self.counters.offered.dropped.fetch_add(1, Relaxed);
    }

    /// It is not active any more: its thread ends.
    pub(crate) fn close(&self) {
        self.closed.store(true, Release);
        self.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Lets its thread read the queue now.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.as_here().and_then(|here| here.thread.get()) {
            thread.unpark();
        }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Relaxed)
    }

    /// Returns whether that is a change.
    pub(crate) fn set_stuck(&self, stuck: bool) -> bool {
        self.stuck.swap(stuck, Relaxed) != stuck
    }

    /// How long its evaluations took.
    #[must_use]
    pub fn exec(&self) -> &Histogram {
        &self.counters.done.exec
    }

    pub(crate) fn waiting(&self) -> usize {
        self.as_here().map_or(0, |here| here.queue.len())
    }

    /// Processor time of its thread, as far as it is known now.
    pub(crate) fn cpu_time(&self) -> Duration {
        let done = &self.counters.done;
        // A thread that is stuck does not report its time.
        let now = cpu_time_of(done.thread.load(Relaxed));
        now.unwrap_or_else(|| Duration::from_nanos(done.cpu_ns.load(Relaxed)))
    }

    /// What it has counted.
    #[must_use]
    pub fn status(&self) -> ObserverStatus {
        let Counters { offered, done } = &self.counters;
        // Those that end a request before those that begin it, so that none ended that did not begin.
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
    /// Hands an encoded record over; false if the supervisor has too many already.
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

    /// Exchanges an empty store for the records; false if the thread is writing one now.
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
