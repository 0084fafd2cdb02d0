//! A pool of threads for work that would block the threads that read and write connections.
//!
//! A task that passes work to the pool waits for its [`Completion`]. The first of the result, the deadline (enforced by
//! the [`Watchdog`]) and the cancellation of the task determines the outcome.

mod completion;
mod watchdog;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use scorer_admission::Queue;

use crate::sync::{Condvar, Mutex, MutexGuard};

pub(crate) use completion::{Completed, Completion, Expire, Outcome};
pub(crate) use watchdog::Watchdog;

/// Work to run, at once or in parts.
pub(crate) trait Work: Send {
    /// The queue of the work, which determines its priority.
    fn queue(&self) -> Queue;

    /// Runs the next part.
    fn run(&mut self) -> Progress;

    /// Called after a part has panicked. The work is then dropped.
    fn panicked(&mut self, panic: &(dyn Any + Send));
}

/// The result of running a part of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The work is done.
    Done,
    /// There is another part.
    More,
}

/// Work that waits for a thread. Admission control bounds its amount, because all work holds a permit.
#[derive(Default)]
pub(crate) struct Pool {
    waiting: Mutex<Waiting>,
    ready: Condvar,
}

#[derive(Default)]
struct Waiting {
    queues: [VecDeque<Box<dyn Work>>; 3],
    closed: bool,
}

// === impl Pool ===

impl Pool {
    /// Adds work to the end of its queue. A closed pool drops it.
    pub(crate) fn push(&self, work: Box<dyn Work>) {
        let mut waiting = self.lock();
        if !waiting.closed {
            waiting.queues[work.queue() as usize].push_back(work);
            drop(waiting);
            self.ready.notify_one();
        }
    }

    /// Runs work on the calling thread until the pool is closed.
    pub(crate) fn serve(&self) {
        while let Some(work) = self.next() {
            self.run_part(work);
        }
    }

    /// Runs one part of waiting work on this thread. Returns false if none waits.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) fn run_one(&self) -> bool {
        let work = self.lock().pop();
        work.map(|work| self.run_part(work)).is_some()
    }

    /// Drops waiting work and ends the threads.
    pub(crate) fn close(&self) {
        let queues = {
            let mut waiting = self.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.queues)
        };
        self.ready.notify_all();
        drop(queues);
    }

    fn run_part(&self, mut work: Box<dyn Work>) {
        match catch_unwind(AssertUnwindSafe(|| work.run())) {
            Ok(Progress::More) => self.push_front(work),
            Ok(Progress::Done) => {}
            Err(panic) => work.panicked(panic.as_ref()),
        }
    }

    /// Adds work that has started to the front of its queue.
    fn push_front(&self, work: Box<dyn Work>) {
        let mut waiting = self.lock();
        if !waiting.closed {
            waiting.queues[work.queue() as usize].push_front(work);
        }
    }

    fn next(&self) -> Option<Box<dyn Work>> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(work) = waiting.pop() {
                return Some(work);
            }
            waiting = self.ready.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Waiting ===

impl Waiting {
    fn pop(&mut self) -> Option<Box<dyn Work>> {
        self.queues.iter_mut().find_map(VecDeque::pop_front)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Work that stores its name when it is dropped, after it has been taken.
    struct Named(Queue, &'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Work for Named {
        fn queue(&self) -> Queue {
            self.0
        }

        fn run(&mut self) -> Progress {
            Progress::Done
        }

        fn panicked(&mut self, _: &(dyn Any + Send)) {}
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

        /// Returns the order in which one thread takes all waiting work.
        fn taken(self) -> Vec<&'static str> {
            while self.pool.lock().queues.iter().any(|queue| !queue.is_empty()) {
                drop(self.pool.next());
            }
            std::mem::take(&mut self.order.lock().unwrap())
        }
    }

    #[test]
    fn callers_within_their_share_go_first() {
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
    fn begun_work_goes_on_before_its_queue_and_after_higher_ones() {
        let test = Test::default();
        test.push(Queue::Last, "second batch");
        test.pool.push_front(test.work(Queue::Last, "first batch"));
        test.push(Queue::First, "one row");
        assert_eq!(test.taken(), ["one row", "first batch", "second batch"]);
    }

    #[test]
    fn a_closed_pool_drops_what_waits_and_what_comes() {
        let test = Test::default();
        test.push(Queue::First, "waited");
        test.pool.close();
        test.push(Queue::First, "came");
        test.pool.push_front(test.work(Queue::Last, "came back"));
        assert!(test.pool.next().is_none());
        assert_eq!(test.taken(), ["waited", "came", "came back"]);
    }

    /// Work that panics when it runs, and stores the panic's message.
    struct Panics(Arc<Mutex<Vec<&'static str>>>);

    impl Work for Panics {
        fn queue(&self) -> Queue {
            Queue::First
        }

        fn run(&mut self) -> Progress {
            panic!("a defect")
        }

        fn panicked(&mut self, panic: &(dyn Any + Send)) {
            self.0.lock().unwrap().extend(panic.downcast_ref::<&'static str>());
        }
    }

    #[test]
    fn a_panic_is_given_to_the_work_and_the_thread_goes_on() {
        let test = Test::default();
        test.pool.push(Box::new(Panics(Arc::clone(&test.order))));
        test.push(Queue::Last, "next");
        while test.pool.run_one() {}
        assert_eq!(*test.order.lock().unwrap(), ["a defect", "next"]);
    }
}
