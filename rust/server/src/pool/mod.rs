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

use scorer_core::admission::Queue;

pub(crate) use job::{Job, evaluate};
pub(crate) use meeting::{Expire, Meeting, Met};
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
