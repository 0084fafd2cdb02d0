//! A lane's thread: it reads its queue every few milliseconds, works in short slices, and rests in between.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use scorer_admission::Pressure;
use scorer_engine::{Events, Gate, Privacy};
use scorer_log::Clock;
use scorer_os::sched::{set_idle_priority, thread_cpu_time};
use scorer_os::throttle::CpuThrottle;

use crate::evaluate::Evaluator;
use crate::lane::Lane;

/// How often an empty queue is read.
const LOOK: Duration = Duration::from_millis(5);
/// The longest it works without a rest.
const SLICE: Duration = Duration::from_millis(1);
/// What it may have saved up: a burst is worked off at once.
const BURST: Duration = Duration::from_millis(10);

/// What a lane's thread uses of the server. Nothing of it is locked while a request is answered.
#[derive(Clone)]
pub(crate) struct Env {
    pub(crate) started: Instant,
    pub(crate) gate: Arc<Gate>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<Events>,
    pub(crate) privacy: Arc<Privacy>,
    /// There is a log to keep records.
    pub(crate) logs: bool,
    /// Of one core.
    pub(crate) share: f64,
    /// The server answers no more requests: what waits is evaluated without rests, and then the thread ends.
    pub(crate) finishing: Arc<AtomicBool>,
    #[cfg(feature = "fault-injection")]
    pub(crate) faults: Arc<crate::fault::LaneFaults>,
}

/// How much processor time a thread has used beyond its share of the time that went by.
struct CpuBudget {
    share: f64,
    at: Instant,
    used: Duration,
    /// Seconds; negative: saved up.
    debt: f64,
}

/// Starts the thread.
pub(crate) fn start(lane: &Arc<Lane>, env: Env, number: u64) -> std::io::Result<()> {
    let Some(here) = lane.as_here() else { return Ok(()) };
    let own = Arc::clone(lane);
    let handle = thread::Builder::new().name(format!("scorer-obs-{number}")).spawn(move || {
        set_idle_priority();
        run(&own, &env);
        if let Some(here) = own.as_here() {
            here.end();
        }
    })?;
    // It is never joined: a stuck evaluation must not block the server's stop.
    let _ = here.thread.set(handle.thread().clone());
    Ok(())
}

fn run(lane: &Lane, env: &Env) {
    let Some(here) = lane.as_here() else { return };
    lane.counters.done.thread.store(number(), Relaxed);
    let mut evaluator = Evaluator::new(&here.loaded);
    let throttle = CpuThrottle::new();
    let mut budget = CpuBudget::new(env.share);
    while !lane.is_closed() {
        let finishing = env.finishing.load(Acquire);
        if !finishing && env.gate.pressure() >= Pressure::NoObserve {
            let shed = evaluator.discard(here);
            lane.counters.offered.shed.fetch_add(shed, Relaxed);
            thread::park_timeout(LOOK);
            continue;
        }
        if let Some(throttle) = &throttle {
            throttle.release();
        }
        let began = Instant::now();
        let mut empty = false;
        while !empty && !lane.is_closed() && began.elapsed() < SLICE {
            empty = !evaluator.next(lane, here, env);
        }
        lane.counters.done.cpu_ns.store(budget.note(), Relaxed);
        match (finishing, empty) {
            (true, true) => break,
            (true, false) => {}
            (false, true) => thread::park_timeout(budget.rest().max(LOOK)),
            (false, false) => thread::park_timeout(budget.rest()),
        }
    }
    let dropped = evaluator.discard(here);
    lane.counters.offered.dropped.fetch_add(dropped, Relaxed);
    lane.counters.done.cpu_ns.store(budget.note(), Relaxed);
    lane.counters.done.thread.store(0, Relaxed);
}

// === impl Env ===

impl Env {
    /// Microseconds, never 0.
    pub(crate) fn since_start(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started).as_micros()).unwrap_or(u64::MAX).max(1)
    }
}

// === impl CpuBudget ===

impl CpuBudget {
    fn new(share: f64) -> CpuBudget {
        CpuBudget { share, at: Instant::now(), used: thread_cpu_time(), debt: 0.0 }
    }

    /// Accounts for the time since the last call; returns the thread's nanoseconds so far.
    fn note(&mut self) -> u64 {
        let (now, used) = (Instant::now(), thread_cpu_time());
        let worked = used.saturating_sub(self.used).as_secs_f64();
        let earned = (now - self.at).as_secs_f64() * self.share;
        self.debt = (self.debt + worked - earned).max(-BURST.as_secs_f64());
        (self.at, self.used) = (now, used);
        u64::try_from(used.as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long to rest until what was used is earned.
    fn rest(&self) -> Duration {
        Duration::from_secs_f64((self.debt / self.share).max(0.0))
    }
}

/// Processor time of another thread of this process, where the system reports it.
pub(crate) fn cpu_time_of(thread: usize) -> Option<Duration> {
    if thread == 0 {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// The system's number of the calling thread.
fn number() -> usize {
    #[cfg(target_os = "linux")]
    return usize::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
    #[cfg(not(target_os = "linux"))]
    return 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_until_its_share_is_earned_and_saves_up_little() {
        let start = Instant::now();
        let mut budget = CpuBudget { share: 0.25, at: start, used: Duration::ZERO, debt: 0.0 };
        budget.debt = 0.004;
        assert_eq!(budget.rest(), Duration::from_millis(16));
        budget.debt = -1.0;
        assert_eq!(budget.rest(), Duration::ZERO);
        budget.note();
        assert!(budget.debt >= -BURST.as_secs_f64());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_of_another_thread_is_known() {
        let (own, theirs) = thread::spawn(|| {
            let own = thread_cpu_time();
            (own, cpu_time_of(number()).unwrap())
        })
        .join()
        .unwrap();
        assert!(theirs >= own || own - theirs < Duration::from_millis(20), "{own:?} {theirs:?}");
        assert_eq!(cpu_time_of(0), None);
    }
}
