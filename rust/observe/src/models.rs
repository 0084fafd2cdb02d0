//! Models of the queue, which `make loom` runs in every interleaving.

use loom::sync::Arc;
use loom::thread;

use crate::queue::Queue;

/// Runs a model in every interleaving with at most three preemptions.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Pops all values that are in the queue now.
fn drain(queue: &Queue<u8>, into: &mut Vec<u8>) {
    let mut value = 0;
    while queue.pop(&mut value) {
        into.push(value);
    }
}

/// Two threads push and one pops. Each value that was taken arrives once, in the order of its thread; refused values do
/// not arrive.
fn two_push_and_one_pops(places: usize) {
    bounded(move || {
        let queue = Arc::new(Queue::<u8>::new(places));
        let push = |queue: &Queue<u8>, values: &[u8]| -> Vec<u8> {
            values.iter().copied().filter(|&value| queue.push(|place| *place = value)).collect()
        };
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || push(&queue, &[1]))
        };
        let third = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || push(&queue, &[11, 12]))
        };
        let mut popped = Vec::new();
        drain(&queue, &mut popped);
        let taken = [other.join().unwrap(), third.join().unwrap()];
        drain(&queue, &mut popped);
        for taken in &taken {
            let of_it: Vec<u8> = popped.iter().copied().filter(|value| taken.contains(value)).collect();
            assert_eq!(&of_it, taken, "lost, twice, or out of order");
        }
        assert_eq!(popped.len(), taken[0].len() + taken[1].len(), "one that was refused");
        assert!(!popped.is_empty(), "an empty queue has room");
        assert_eq!(queue.len(), 0);
    });
}

#[test]
fn a_queue_of_one_place() {
    two_push_and_one_pops(1);
}

#[test]
fn a_queue_of_two_places() {
    two_push_and_one_pops(2);
}
