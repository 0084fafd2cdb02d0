//! Looks after deadlines: tokio's timers have a resolution of a millisecond and its threads may be busy, so
//! one thread of our own sleeps until the next deadline and ends whatever is not done by then.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Expire;

/// Deadlines to come.
#[derive(Default)]
pub(crate) struct Watchdog {
    watched: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Default)]
struct Watched {
    deadlines: BinaryHeap<Reverse<Deadline>>,
    closed: bool,
}

struct Deadline {
    at: Instant,
    what: Weak<dyn Expire>,
}

// === impl Watchdog ===

impl Watchdog {
    /// Expires `what` at `at`, if it is still there.
    pub(crate) fn watch(&self, at: Instant, what: Weak<dyn Expire>) {
        let mut watched = self.lock();
        let first = watched.deadlines.peek().is_none_or(|Reverse(next)| at < next.at);
        watched.deadlines.push(Reverse(Deadline { at, what }));
        drop(watched);
        if first {
            self.changed.notify_one();
        }
    }

    /// The thread's life, until [`Watchdog::close`]; calls `tick` every `period`.
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
            let next = watched.deadlines.peek().map_or(next_tick, |Reverse(next)| next.at.min(next_tick));
            let wait = self.changed.wait_timeout(watched, next.saturating_duration_since(now));
            watched = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets the thread end.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
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

    struct Tells(u8, Sender<u8>);

    impl Expire for Tells {
        fn expire(&self) {
            self.1.send(self.0).unwrap();
        }
    }

    #[test]
    fn expires_what_is_still_there_in_the_order_of_deadlines() {
        let watchdog = Watchdog::default();
        let (tell, told) = channel();
        let kept: Vec<Arc<dyn Expire>> = (0..3).map(|n| Arc::new(Tells(n, tell.clone())) as _).collect();
        let gone: Arc<dyn Expire> = Arc::new(Tells(9, tell));
        let now = Instant::now();
        watchdog.watch(now + Duration::from_millis(20), Arc::downgrade(&kept[2]));
        watchdog.watch(now + Duration::from_millis(5), Arc::downgrade(&gone));
        watchdog.watch(now, Arc::downgrade(&kept[0]));
        drop(gone);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| watchdog.run(Duration::from_secs(3600), || ()));
            // While it sleeps: an earlier one wakes it up.
            assert_eq!(told.recv().unwrap(), 0);
            watchdog.watch(now + Duration::from_millis(10), Arc::downgrade(&kept[1]));
            assert_eq!((told.recv().unwrap(), told.recv().unwrap()), (1, 2));
            watchdog.close();
            running.join().unwrap();
        });
    }
}
