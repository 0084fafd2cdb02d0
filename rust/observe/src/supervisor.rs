//! Supervises the lanes' threads: starts and ends them, appends their records to the decision log, and reports stuck
//! lanes.
//!
//! The lanes' own threads run in the idle scheduling class. If one of them held a lock of the log, it could hold it for
//! as long as other threads need the processor. This thread, of normal priority, therefore appends their records.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use scorer_engine::{Engine, Level};

use crate::lane::{Lane, Records};
use crate::thread::{self, Env};

/// Interval at which every lane is checked while there are lanes.
const ROUND: Duration = Duration::from_millis(10);
/// A lane with an evaluation that takes longer is reported as stuck.
const STUCK: Duration = Duration::from_secs(2);
/// Time that lanes have, when the server stops, for requests in their queues.
const FINISH_WITHIN: Duration = Duration::from_millis(250);

/// The threads of all observe lanes.
pub(crate) struct ObserverSupervisor {
    engine: Arc<Engine>,
    env: Env,
    lanes: Mutex<Lanes>,
    changed: Condvar,
    started: AtomicU64,
}

#[derive(Default)]
struct Lanes {
    /// Every lane whose thread has not ended or whose records are not all collected.
    running: Vec<Arc<Lane>>,
    stop: bool,
}

// === impl ObserverSupervisor ===

impl ObserverSupervisor {
    pub(crate) fn new(engine: Arc<Engine>, env: Env) -> ObserverSupervisor {
        ObserverSupervisor {
            engine,
            env,
            lanes: Mutex::default(),
            changed: Condvar::new(),
            started: AtomicU64::new(0),
        }
    }

    /// Starts the threads of the lanes that have none yet.
    ///
    /// # Errors
    /// Fails if a thread cannot be started; those that were started are ended.
    pub(crate) fn start<'a>(
        &self,
        lanes: impl Iterator<Item = &'a Arc<Lane>>,
    ) -> Result<(), (Arc<Lane>, std::io::Error)> {
        let mut running = self.lock();
        let mut begun = Vec::new();
        let mut result = Ok(());
        for lane in lanes {
            if lane.as_here().is_none_or(|here| here.thread.get().is_some()) {
                continue;
            }
            if let Err(error) = thread::start(lane, self.env.clone(), self.started.fetch_add(1, Relaxed)) {
                result = Err((Arc::clone(lane), error));
                begun.iter().for_each(|lane: &Arc<Lane>| lane.close());
                break;
            }
            begun.push(Arc::clone(lane));
        }
        running.running.extend(begun);
        drop(running);
        self.changed.notify_all();
        result
    }

    /// Runs until [`ObserverSupervisor::finish`].
    pub(crate) fn run(&self) {
        let mut records = Records::default();
        loop {
            let mut lanes = self.lock();
            while lanes.running.is_empty() && !lanes.stop {
                lanes = self.changed.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            }
            if lanes.stop {
                return;
            }
            let running = lanes.running.clone();
            drop(lanes);
            for lane in &running {
                self.supervise(lane, &mut records);
            }
            drop(running);
            let lanes = self.lock();
            let _ = self.changed.wait_timeout_while(lanes, ROUND, |lanes| !lanes.stop);
        }
    }

    fn supervise(&self, lane: &Arc<Lane>, records: &mut Records) {
        let Some(here) = lane.as_here() else { return };
        // `ended` is read before the records are collected, because a thread that has ended adds no more.
        let ended = here.has_ended();
        let collected = here.collect(records);
        if collected {
            let unlogged = records.iter().filter(|record| !self.append(record)).count();
            lane.counters.done.unlogged.fetch_add(unlogged as u64, Relaxed);
            records.clear();
        }
        let busy_for = self.busy_for(lane);
        let stuck = busy_for >= STUCK;
        if lane.set_stuck(stuck) {
            let fields = json!({
                "checkpoint": lane.checkpoint,
                "lane": lane.table.name,
                "bundle": lane.table.bundle,
                "seconds": busy_for.as_secs_f64(),
            });
            let (level, event) =
                if stuck { (Level::Warning, "observer_stuck") } else { (Level::Info, "observer_came_back") };
            self.engine.events.push(level, event, fields);
        }
        if ended && collected {
            self.lock().running.retain(|other| !Arc::ptr_eq(other, lane));
        }
    }

    fn busy_for(&self, lane: &Lane) -> Duration {
        let since = lane.counters.done.busy_since.load(Relaxed);
        let now = self.env.since_start(Instant::now());
        if since == 0 { Duration::ZERO } else { Duration::from_micros(now.saturating_sub(since)) }
    }

    /// Ends all lanes after the server has answered the last request. Requests in the queues are evaluated if there is
    /// enough time. The thread of a stuck lane is not waited for.
    pub(crate) fn finish(&self, within: Duration) {
        let until = Instant::now() + within.min(FINISH_WITHIN);
        self.env.finishing.store(true, Release);
        let running = self.lock().running.clone();
        running.iter().for_each(|lane| lane.wake());
        let mut records = Records::default();
        loop {
            let mut left = false;
            for lane in &running {
                self.supervise(lane, &mut records);
                left |= lane.as_here().is_some_and(|here| !here.has_ended()) && !lane.is_stuck();
            }
            if !left || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        running.iter().for_each(|lane| lane.close());
        // Collects records that were added between the last check and the end of a thread.
        running.iter().for_each(|lane| self.supervise(lane, &mut records));
        self.lock().stop = true;
        self.changed.notify_all();
    }

    fn append(&self, record: &[u8]) -> bool {
        self.engine.log.as_ref().is_some_and(|log| log.append_best_effort(record).is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
