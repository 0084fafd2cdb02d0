//! Threads that evaluate what would hold up the threads that read and write.
//!
//! A request's task waits for its evaluation and nothing else; whoever is first of the evaluation, the deadline
//! and the caller's leaving decides what becomes of it ([`meeting`]).

mod job;
mod meeting;
mod one;
mod watchdog;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use scorer_admission::Queue;

pub(crate) use job::{Job, evaluate};
pub(crate) use meeting::{Expire, Meeting, Met, Told};
pub(crate) use one::One;
pub(crate) use watchdog::Watchdog;

use crate::state::Shared;

/// Something to evaluate, in one go or chunk by chunk.
pub(crate) trait Work: Send {
    /// Which work it goes before.
    fn queue(&self) -> Queue;

    /// Does the next part; true if there is more.
    fn run(&mut self, shared: &Shared) -> bool;
}

/// What waits for a thread. Admission bounds it: everything here holds a ticket.
#[derive(Default)]
pub(crate) struct Pool {
    waiting: Mutex<Waits>,
    ready: Condvar,
}

#[derive(Default)]
struct Waits {
    queues: [VecDeque<Box<dyn Work>>; 3],
    closed: bool,
}

// === impl Pool ===

impl Pool {
    /// Adds work behind that of its queue; a closed pool drops it.
    pub(crate) fn push(&self, work: Box<dyn Work>) {
        let mut waits = self.lock();
        if !waits.closed {
            waits.queues[work.queue() as usize].push_back(work);
            drop(waits);
            self.ready.notify_one();
        }
    }

    /// A thread's life, until the pool is closed.
    pub(crate) fn serve(&self, shared: &Shared) {
        while let Some(mut work) = self.next() {
            let more = catch_unwind(AssertUnwindSafe(|| work.run(shared)));
            match more {
                // In front of its queue: what is first has begun.
                Ok(true) => self.again(work),
                Ok(false) => {}
                // Evaluations catch their own; this is a defect, and the request is told as work is dropped.
                Err(panic) => _ = shared.panicked("pool", panic.as_ref()),
            }
        }
    }

    /// Drops what waits and lets the threads end.
    pub(crate) fn close(&self) {
        let queues = {
            let mut waits = self.lock();
            waits.closed = true;
            std::mem::take(&mut waits.queues)
        };
        self.ready.notify_all();
        drop(queues);
    }

    fn again(&self, work: Box<dyn Work>) {
        let mut waits = self.lock();
        if !waits.closed {
            waits.queues[work.queue() as usize].push_front(work);
        }
    }

    fn next(&self) -> Option<Box<dyn Work>> {
        let mut waits = self.lock();
        loop {
            if waits.closed {
                return None;
            }
            if let Some(work) = waits.queues.iter_mut().find_map(VecDeque::pop_front) {
                return Some(work);
            }
            waits = self.ready.wait(waits).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Tells its name when it is dropped, which it is when it has been taken.
    struct Named(Queue, &'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Work for Named {
        fn queue(&self) -> Queue {
            self.0
        }

        fn run(&mut self, _: &Shared) -> bool {
            false
        }
    }

    impl Drop for Named {
        fn drop(&mut self) {
            self.2.lock().unwrap().push(self.1);
        }
    }

    #[derive(Default)]
    struct Test {
        pool: Pool,
        order: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Test {
        fn work(&self, queue: Queue, name: &'static str) -> Box<dyn Work> {
            Box::new(Named(queue, name, Arc::clone(&self.order)))
        }

        fn push(&self, queue: Queue, name: &'static str) {
            self.pool.push(self.work(queue, name));
        }

        /// The order in which one thread takes all that waits.
        fn taken(self) -> Vec<&'static str> {
            while self.pool.lock().queues.iter().any(|queue| !queue.is_empty()) {
                drop(self.pool.next());
            }
            std::mem::take(&mut self.order.lock().unwrap())
        }
    }

    #[test]
    fn who_keeps_to_a_share_goes_before_all_that_waits_of_others() {
        let test = Test::default();
        test.push(Queue::Last, "noisy 1");
        test.push(Queue::Second, "busy 1");
        test.push(Queue::Last, "noisy 2");
        test.push(Queue::First, "quiet 1");
        test.push(Queue::Second, "busy 2");
        test.push(Queue::First, "quiet 2");
        assert_eq!(test.taken(), ["quiet 1", "quiet 2", "busy 1", "busy 2", "noisy 1", "noisy 2"]);
    }

    #[test]
    fn long_work_goes_on_where_it_was_unless_somebody_goes_before_it() {
        let test = Test::default();
        test.push(Queue::Last, "second batch");
        test.pool.again(test.work(Queue::Last, "first batch"));
        test.push(Queue::First, "one row");
        assert_eq!(test.taken(), ["one row", "first batch", "second batch"]);
    }

    #[test]
    fn a_closed_pool_drops_what_waits_and_what_comes() {
        let test = Test::default();
        test.push(Queue::First, "waited");
        test.pool.close();
        test.push(Queue::First, "came");
        test.pool.again(test.work(Queue::Last, "came back"));
        assert!(test.pool.next().is_none());
        assert_eq!(test.taken(), ["waited", "came", "came back"]);
    }
}
