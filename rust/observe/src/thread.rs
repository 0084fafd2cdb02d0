//! A lane's thread. It reads its queue every few milliseconds, evaluates in short slices and sleeps in between.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use scorer_admission::Pressure;
use scorer_engine::{Events, Gate, ListTable, Privacy};
use scorer_log::Clock;
use scorer_os::sched::{set_idle_priority, thread_cpu_time};
use scorer_os::throttle::CpuThrottle;

use crate::evaluate::Evaluator;
use crate::lane::Lane;

/// Interval at which an empty queue is read.
const LOOK: Duration = Duration::from_millis(5);
/// Longest time of work without a check of the CPU budget.
const SLICE: Duration = Duration::from_millis(1);
/// Greatest unused CPU time that the budget accumulates, so that a burst is evaluated at once.
const BURST: Duration = Duration::from_millis(10);

/// The parts of the server that a lane's thread uses. Answering threads lock none of them.
#[derive(Clone)]
pub(crate) struct Env {
    pub(crate) started: Instant,
    pub(crate) gate: Arc<Gate>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<Events>,
    pub(crate) privacy: Arc<Privacy>,
    pub(crate) lists: Arc<ListTable>,
    /// Whether there is a decision log for records.
    pub(crate) logs: bool,
    /// Share of one core that the thread may use.
    pub(crate) share: f64,
    /// Whether the server has answered its last request. The thread then evaluates the rest of its queue without
    /// sleeping, and ends.
    pub(crate) finishing: Arc<AtomicBool>,
    #[cfg(feature = "fault-injection")]
    pub(crate) faults: Arc<crate::fault::LaneFaults>,
}

/// The CPU time that a thread has used beyond its share of the elapsed time.
struct CpuBudget {
    share: f64,
    at: Instant,
    used: Duration,
    /// Excess CPU time in seconds; negative if unused time has accumulated.
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
    // The thread is never joined, because a stuck evaluation must not block the stop of the server.
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
    /// Microseconds since the server's start, at least 1.
    pub(crate) fn since_start(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started).as_micros()).unwrap_or(u64::MAX).max(1)
    }
}

// === impl CpuBudget ===

impl CpuBudget {
    fn new(share: f64) -> CpuBudget {
        CpuBudget { share, at: Instant::now(), used: thread_cpu_time(), debt: 0.0 }
    }

    /// Accounts for the time since the last call. Returns the thread's total CPU time in nanoseconds.
    fn note(&mut self) -> u64 {
        let (now, used) = (Instant::now(), thread_cpu_time());
        let worked = used.saturating_sub(self.used).as_secs_f64();
        let earned = (now - self.at).as_secs_f64() * self.share;
        self.debt = (self.debt + worked - earned).max(-BURST.as_secs_f64());
        (self.at, self.used) = (now, used);
        u64::try_from(used.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns how long the thread must sleep until its excess CPU time is compensated.
    fn rest(&self) -> Duration {
        Duration::from_secs_f64((self.debt / self.share).max(0.0))
    }
}

/// CPU time of another thread of this process, if the system reports it.
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
