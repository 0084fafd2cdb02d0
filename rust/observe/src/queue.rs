//! The bounded queue from the answering threads to an observing thread.
//!
//! Neither side waits: a push into a full queue and a pop of an entry that is still being written return at once.
//! Entries and their buffers are used again, so after the first round no memory is allocated on one side and freed on
//! the other.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{AtomicUsize, Mutex};

/// A bounded queue with many producers and one consumer.
pub(crate) struct Queue<T> {
    places: Box<[Place<T>]>,
    /// The next position to push at.
    tail: Apart<AtomicUsize>,
    /// The next position to pop at.
    head: Apart<AtomicUsize>,
}

/// An entry. `turn` states which side may access it: in round `r` the producer at `2r`, then the consumer at `2r + 1`.
/// The turn gives exclusive access, so the lock, which only proves that to the compiler, is always free.
struct Place<T> {
    turn: AtomicUsize,
    value: Mutex<T>,
}

/// A value on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

// === impl Queue ===

impl<T: Default> Queue<T> {
    /// Creates a queue with this number of entries, at least one.
    pub(crate) fn new(places: usize) -> Queue<T> {
        let place = || Place { turn: AtomicUsize::new(0), value: Mutex::default() };
        Queue {
            places: (0..places.max(1)).map(|_| place()).collect(),
            tail: Apart::default(),
            head: Apart::default(),
        }
    }

    /// Calls `fill` to write the next entry. Returns false, without calling it, if the queue is full.
    pub(crate) fn push(&self, fill: impl FnOnce(&mut T)) -> bool {
        let mut at = self.tail.0.load(Relaxed);
        loop {
            let (place, round) = self.place(at);
            let turn = place.turn.load(Acquire);
            if turn == 2 * round {
                match self.tail.0.compare_exchange_weak(at, at + 1, Relaxed, Relaxed) {
                    Ok(_) => {
                        fill(&mut place.value.lock().unwrap_or_else(PoisonError::into_inner));
                        place.turn.store(2 * round + 1, Release);
                        return true;
                    }
                    Err(now) => at = now,
                }
            } else if turn < 2 * round {
                return false;
            } else {
                // Another producer took the entry.
                at = self.tail.0.load(Relaxed);
            }
        }
    }

    /// Swaps the oldest value with `with`. Returns false if there is no completely written entry. Only one thread may
    /// call it.
    pub(crate) fn pop(&self, with: &mut T) -> bool {
        let at = self.head.0.load(Relaxed);
        let (place, round) = self.place(at);
        if place.turn.load(Acquire) != 2 * round + 1 {
            return false;
        }
        std::mem::swap(&mut *place.value.lock().unwrap_or_else(PoisonError::into_inner), with);
        self.head.0.store(at + 1, Relaxed);
        place.turn.store(2 * round + 2, Release);
        true
    }

    /// Approximate number of values in the queue.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.0.load(Relaxed);
        self.tail.0.load(Relaxed).saturating_sub(head)
    }

    fn place(&self, at: usize) -> (&Place<T>, usize) {
        (&self.places[at % self.places.len()], at / self.places.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn is_bounded_and_in_order_and_gives_buffers_back() {
        for places in [1, 2, 3, 8] {
            let queue: Queue<Vec<usize>> = Queue::new(places);
            let mut mine = Vec::with_capacity(77);
            assert!(!queue.pop(&mut mine));
            for round in 0..5 {
                for number in 0..places {
                    assert!(queue.push(|place| {
                        place.clear();
                        place.push(round * places + number);
                    }));
                }
                assert!(!queue.push(|_| unreachable!("it is full")));
                assert_eq!(queue.len(), places);
                for number in 0..places {
                    assert!(queue.pop(&mut mine));
                    assert_eq!(mine, [round * places + number]);
                }
                assert!(!queue.pop(&mut mine));
            }
            // The buffer that the first pop put into the queue has been used again.
            assert!(places != 1 || mine.capacity() < 77);
        }
    }

    #[test]
    fn loses_nothing_that_it_took_and_counts_what_it_refused() {
        let (queue, done) = (Arc::new(Queue::<u64>::new(7)), Arc::new(AtomicBool::new(false)));
        let pushers: Vec<_> = (0..3_u64)
            .map(|pusher| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let numbers = (0..20_000_u64).map(|number| pusher << 32 | number);
                    numbers.filter(|&number| queue.push(|place| *place = number)).collect::<Vec<_>>()
                })
            })
            .collect();
        let popper = {
            let (queue, done) = (Arc::clone(&queue), Arc::clone(&done));
            thread::spawn(move || {
                let (mut got, mut value) = (Vec::new(), 0);
                loop {
                    let over = done.load(Acquire);
                    while queue.pop(&mut value) {
                        got.push(value);
                    }
                    if over {
                        return got;
                    }
                    thread::yield_now();
                }
            })
        };
        let taken: Vec<Vec<u64>> = pushers.into_iter().map(|pusher| pusher.join().unwrap()).collect();
        done.store(true, Release);
        let got = popper.join().unwrap();
        let all: HashSet<u64> = got.iter().copied().collect();
        assert_eq!(all.len(), got.len(), "popped twice");
        assert_eq!(all, taken.iter().flatten().copied().collect());
        for (pusher, taken) in taken.into_iter().enumerate() {
            let of_it: Vec<u64> = got.iter().copied().filter(|value| value >> 32 == pusher as u64).collect();
            assert_eq!(of_it, taken, "out of order");
        }
    }
}
