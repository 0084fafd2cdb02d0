//! Ends work whose deadline has passed. Tokio's timers have a resolution of one millisecond and its threads may be
//! busy, so a separate thread sleeps until the next deadline.
//!
//! Work usually ends long before its deadline, which a caller may set to hours. Entries of finished work are therefore
//! removed before they outnumber the others, so the heap has at most about twice as many entries as there is running
//! work. The thread sleeps until the next deadline of running work and does not wake up for finished work. At thousands
//! of requests per second, it wakes up a few hundred times per second instead of once per request.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Expire;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Length up to which the heap is not compacted.
const FEW: usize = 64;

/// The deadlines of work.
#[derive(Default)]
pub(crate) struct Watchdog {
    watched: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Default)]
struct Watched {
    deadlines: BinaryHeap<Reverse<Deadline>>,
    /// Length at which the entries of finished work are removed.
    compact_at: usize,
    closed: bool,
}

struct Deadline {
    at: Instant,
    what: Weak<dyn Expire>,
}

// === impl Watchdog ===

impl Watchdog {
    /// Expires `what` at `at`, unless it is dropped before.
    pub(crate) fn watch(&self, at: Instant, what: Weak<dyn Expire>) {
        let mut watched = self.lock();
        let first = watched.deadlines.peek().is_none_or(|Reverse(next)| at < next.at);
        watched.add(Deadline { at, what });
        drop(watched);
        if first {
            self.changed.notify_one();
        }
    }

    /// Runs until [`Watchdog::close`], and calls `tick` every `period`.
    pub(crate) fn run(&self, period: Duration, mut tick: impl FnMut()) {
        let mut next_tick = Instant::now() + period;
        let mut due = Vec::new();
        let mut watched = self.lock();
        while !watched.closed {
            let now = Instant::now();
            while watched.deadlines.peek().is_some_and(|Reverse(next)| next.at <= now) {
                due.extend(watched.deadlines.pop().map(|Reverse(deadline)| deadline.what));
            }
            let ticks = now >= next_tick;
            if ticks || !due.is_empty() {
                drop(watched);
                due.drain(..).filter_map(|what| what.upgrade()).for_each(|what| what.expire());
                if ticks {
                    tick();
                    next_tick = Instant::now() + period;
                }
                watched = self.lock();
                continue;
            }
            let next = watched.next().map_or(next_tick, |at| at.min(next_tick));
            let wait = self.changed.wait_timeout(watched, next.saturating_duration_since(now));
            watched = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Number of entries of the heap.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) fn len(&self) -> usize {
        self.lock().deadlines.len()
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Watched ===

impl Watched {
    /// Returns the first deadline of running work, and removes the entries of finished work before it.
    fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse(next)) = self.deadlines.peek() {
            if next.what.strong_count() > 0 {
                return Some(next.at);
            }
            self.deadlines.pop();
        }
        None
    }

    fn add(&mut self, deadline: Deadline) {
        if self.deadlines.len() >= self.compact_at.max(FEW) {
            self.deadlines.retain(|Reverse(deadline)| deadline.what.strong_count() > 0);
            // The next compaction comes after as many new entries as this one left, so the cost per entry is constant.
            self.compact_at = self.deadlines.len() * 2;
        }
        self.deadlines.push(Reverse(deadline));
    }
}

// === impl Deadline ===

impl PartialEq for Deadline {
    fn eq(&self, other: &Deadline) -> bool {
        self.at == other.at
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Deadline) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Deadline) -> Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Time limit of a test, far above its expected duration.
    const LIMIT: Duration = Duration::from_secs(60);

    struct Reports(u8, Sender<u8>);

    impl Expire for Reports {
        fn expire(&self) {
            self.1.send(self.0).unwrap();
        }
    }

    #[test]
    fn ended_work_leaves_long_before_its_deadline() {
        let watchdog = Watchdog::default();
        let (sender, _receiver) = channel();
        let watched = || Arc::new(Reports(0, sender.clone())) as Arc<dyn Expire>;
        let in_an_hour = Instant::now() + Duration::from_secs(3600);
        let under_way: Vec<_> = (0..100).map(|_| watched()).collect();
        for what in &under_way {
            watchdog.watch(in_an_hour, Arc::downgrade(what));
        }
        for _ in 0..100_000 {
            watchdog.watch(in_an_hour, Arc::downgrade(&watched()));
        }
        let entries = watchdog.len();
        assert!((100..=2 * 100 + 1).contains(&entries), "{entries} entries for 100 under way");
    }

    #[test]
    fn the_next_deadline_is_that_of_work_under_way() {
        let mut watched = Watched::default();
        let (sender, _receiver) = channel();
        let work = || Arc::new(Reports(0, sender.clone())) as Arc<dyn Expire>;
        let (ended, under_way, later) = (work(), work(), work());
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        for (what, millis) in [(&ended, 1), (&later, 9), (&ended, 3), (&under_way, 5)] {
            watched.add(Deadline { at: at(millis), what: Arc::downgrade(what) });
        }
        assert_eq!(watched.next(), Some(at(1)));
        drop(ended);
        assert_eq!(watched.next(), Some(at(5)));
        assert_eq!(watched.deadlines.len(), 2, "entries of ended work are removed");
        drop((under_way, later));
        assert_eq!(watched.next(), None);
    }

    #[test]
    fn expires_what_is_still_there_in_the_order_of_deadlines() {
        let watchdog = Watchdog::default();
        let (sender, receiver) = channel();
        let kept: Vec<Arc<dyn Expire>> = (0..3).map(|n| Arc::new(Reports(n, sender.clone())) as _).collect();
        let gone: Arc<dyn Expire> = Arc::new(Reports(9, sender));
        let now = Instant::now();
        watchdog.watch(now + Duration::from_millis(20), Arc::downgrade(&kept[2]));
        watchdog.watch(now + Duration::from_millis(5), Arc::downgrade(&gone));
        watchdog.watch(now, Arc::downgrade(&kept[0]));
        drop(gone);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| watchdog.run(Duration::from_secs(3600), || ()));
            // An earlier deadline wakes up the sleeping thread.
            let next = || receiver.recv_timeout(LIMIT).unwrap();
            assert_eq!(next(), 0);
            watchdog.watch(now + Duration::from_millis(10), Arc::downgrade(&kept[1]));
            assert_eq!((next(), next()), (1, 2));
            watchdog.close();
            running.join().unwrap();
        });
    }

    #[test]
    fn ticks_every_period_whether_or_not_anything_is_watched() {
        let watchdog = Watchdog::default();
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| watchdog.run(Duration::from_millis(1), || sender.send(()).unwrap()));
            let ticks = [(); 3].map(|()| receiver.recv_timeout(LIMIT));
            watchdog.close();
            assert_eq!(ticks, [Ok(()); 3]);
        });
    }
}
