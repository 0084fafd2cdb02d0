//! Models of passing records to the writer thread, which `make loom` runs in every interleaving. A lost wake-up is a
//! deadlock, which loom reports.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use crate::config::{Durability, LogConfig};
use crate::error::LogError;
use crate::log::Log;
use crate::queue::{Batch, Bounds, Queue};
use crate::receipt::{Caller, slot};
use crate::sim::SimMachine;

/// Runs a model in every interleaving with at most three preemptions.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    preempted(3, model);
}

/// Every interleaving with at most so many preemptions.
fn preempted(times: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(times);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// The writer thread writes a record while its deadline passes. The caller's result is success if and only if the log
/// does not withdraw the record.
#[test]
fn a_caller_and_the_log_agree_on_a_record() {
    bounded(|| {
        let (ticket, receipt) = slot(b"record".to_vec(), false);
        let writer = thread::spawn(move || ticket.begin().then(|| ticket.finish(Ok(7))));
        let deadline = receipt.slot();
        let watchdog = thread::spawn(move || deadline.upgrade().map(|slot| slot.withdraw()));
        let told = receipt.wait();
        watchdog.join().unwrap();
        match (writer.join().unwrap(), told) {
            (Some(Caller::Informed), Ok(7)) => {}
            (None | Some(Caller::Gone), Err(LogError::Withdrawn)) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// A caller leaves while its record is written. Either the log detects it, or the caller had received the result
/// before.
#[test]
fn a_caller_that_leaves_withdraws_its_record() {
    bounded(|| {
        let (ticket, receipt) = slot(Vec::new(), false);
        let writer = thread::spawn(move || (ticket.begin(), ticket.finish(Ok(1))));
        drop(receipt);
        let (begun, caller) = writer.join().unwrap();
        assert!(begun || caller == Caller::Informed, "a record that was withdrawn before it was written");
    });
}

/// Two callers, one of which waits, and the writer thread, which sleeps while the queue is empty.
#[test]
fn the_writer_thread_misses_no_record() {
    bounded(|| {
        let bounds = Bounds { records: 4, bytes: 64 };
        let queue = Arc::new(Queue::new(bounds, bounds));
        let spawn = |push: fn(&Queue)| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || push(&queue))
        };
        let pushing = [
            spawn(|queue| queue.push(b"async").unwrap()),
            spawn(|queue| {
                let (ticket, receipt) = slot(b"awaited".to_vec(), false);
                queue.push_awaited(ticket).unwrap();
                assert!(matches!(receipt.wait(), Ok(9)));
            }),
        ];
        let (mut batch, mut awaited, mut written) = (Batch::default(), Vec::new(), 0);
        while written < 2 {
            assert!(queue.wait(Duration::ZERO));
            queue.take_awaited(&mut awaited);
            for ticket in awaited.drain(..) {
                assert!(ticket.begin());
                assert_eq!(ticket.finish(Ok(9)), Caller::Informed);
                written += 1;
            }
            queue.take(&mut batch);
            let records = batch.left();
            let bytes = batch.consume(records);
            queue.done(records, bytes);
            written += records;
        }
        pushing.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(queue.counts(), (0, 0));
    });
}

/// Closing the queue ends the writer thread. A record that arrives at the same time is written or refused.
#[test]
fn closing_wakes_the_writer_thread() {
    bounded(|| {
        let bounds = Bounds { records: 4, bytes: 64 };
        let queue = Arc::new(Queue::new(bounds, bounds));
        let writer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let (mut batch, mut written) = (Batch::default(), 0);
                loop {
                    let open = queue.wait(Duration::ZERO);
                    queue.take(&mut batch);
                    written += batch.left();
                    batch.consume(batch.left());
                    if !open {
                        return written;
                    }
                }
            })
        };
        let pusher = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(b"late").is_ok())
        };
        queue.close();
        let accepted = pusher.join().unwrap();
        assert_eq!(writer.join().unwrap(), usize::from(accepted));
    });
}

/// A log on a disk that does not fail, whose threads the model runs.
fn open(machine: &SimMachine) -> Arc<Log> {
    let mut config = LogConfig::new("/log");
    config.background = false;
    config.index_capacity = 64;
    config.max_unsynced_bytes = 64 << 10;
    Arc::new(Log::open(machine.start(), config).unwrap().0)
}

/// Two callers wait for stable storage: each record is there when its caller returns, no round of `fdatasync` ends
/// before another that began earlier, and callers that come together share one.
#[test]
fn callers_take_turns_to_sync_and_share_them() {
    static FEWEST: AtomicU64 = AtomicU64::new(u64::MAX);
    bounded(|| {
        let machine = SimMachine::new(1);
        let log = open(&machine);
        let before = machine.fs.syncs();
        let append = |log: &Log| {
            let sequence = log.append(b"record", Durability::Sync).unwrap().unwrap();
            assert!(log.shared.writer().durable > sequence, "reported before it was on stable storage");
        };
        let other = {
            let log = Arc::clone(&log);
            thread::spawn(move || append(&log))
        };
        append(&log);
        other.join().unwrap();
        let rounds = machine.fs.syncs() - before;
        assert!((1..=2).contains(&rounds), "{rounds} rounds for two records");
        FEWEST.fetch_min(rounds, Relaxed);
        let status = log.status();
        assert_eq!((status.durable_sequence, status.unsynced_bytes), (status.next_sequence, 0));
    });
    assert_eq!(FEWEST.load(Relaxed), 1, "callers that come together need one round");
}

/// The writer thread and the sync thread, which sleeps until it is signalled: the record of a caller that waits for
/// stable storage starts a round, and both threads end when the log is stopped.
#[test]
fn the_sync_thread_misses_no_record() {
    preempted(2, || {
        let machine = SimMachine::new(1);
        let log = open(&machine);
        let (writing, syncing) = (Arc::clone(&log), Arc::clone(&log));
        let writing = thread::spawn(move || writing.shared.write_loop());
        let syncing = thread::spawn(move || syncing.shared.sync_loop(Duration::MAX));
        let receipt = log.submit(b"record", Durability::Sync).unwrap().unwrap();
        let sequence = receipt.wait().unwrap();
        assert!(log.shared.writer().durable > sequence, "reported before it was on stable storage");
        log.shared.stop();
        writing.join().unwrap();
        syncing.join().unwrap();
    });
}
