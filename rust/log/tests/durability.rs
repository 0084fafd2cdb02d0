//! The failures that each durability survives, as in the table in `docs/decision-log.md`, and the errors that
//! callers get when the device fails.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod limit;

use std::future::Future as _;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limit::time_limit;
use prost::Message as _;
use scorer_log::sim::{Faults, SimMachine, block_on};
use scorer_log::{
    Durability, Log, LogConfig, LogError, Outcome, OutcomeIndex, OutcomeKey, Reader, ReportRate,
};
use scorer_proto::v1::{DecisionRecord, LogRecord, OutcomeRecord, WithdrawnRecord, log_record};

const DIR: &str = "/log";
/// Reports are not limited.
const RATE: ReportRate = ReportRate { minute: 0, most: u32::MAX };

fn open(machine: &SimMachine) -> Log {
    let config = LogConfig { background: false, ..LogConfig::new(DIR) };
    Log::open(machine.start(), config).unwrap().0
}

fn decision(id: &str) -> Vec<u8> {
    let (decision_id, checkpoint) = (id.to_owned(), "c".to_owned());
    let record = DecisionRecord { decision_id, checkpoint, ..DecisionRecord::default() };
    LogRecord { record: Some(log_record::Record::Decision(record)) }.encode_to_vec()
}

/// Returns each record as text: its decision id, its outcome, or what it withdraws, without reports of
/// recovery.
fn words(machine: &SimMachine) -> Vec<String> {
    let mut reader = Reader::open(machine.start().fs, Path::new(DIR)).unwrap();
    let mut words = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        match LogRecord::decode(record.payload).unwrap().record.unwrap() {
            log_record::Record::Decision(decision) => words.push(decision.decision_id),
            log_record::Record::Outcome(outcome) => words.push(format!("{} {}", outcome.kind, outcome.value)),
            log_record::Record::Withdrawn(WithdrawnRecord { sequence, .. }) => {
                words.push(format!("withdrawn {sequence}"));
            }
            log_record::Record::Recovery(_) => {}
            other => panic!("{other:?}"),
        }
    }
    words
}

/// Appends one acknowledged record of each durability. Those of `written` and `async` are the newest of the
/// log.
fn acknowledge(machine: &SimMachine) -> Log {
    let log = open(machine);
    log.append(&decision("sync"), Durability::Sync).unwrap();
    log.append(&decision("written"), Durability::Written).unwrap();
    log.append(&decision("async"), Durability::Async).unwrap();
    log
}

#[test]
fn async_records_may_be_lost_with_the_process_until_they_are_written() {
    let _limit = time_limit();
    for (drained, kept) in [(false, false), (true, true)] {
        let machine = SimMachine::new(1);
        let log = acknowledge(&machine);
        if drained {
            log.drain().unwrap();
        }
        machine.fs.kill();
        assert_eq!(words(&machine).contains(&"async".to_owned()), kept);
    }
}

#[test]
fn written_and_sync_records_survive_the_loss_of_the_process() {
    let _limit = time_limit();
    let machine = SimMachine::new(2);
    let _log = acknowledge(&machine);
    machine.fs.kill();
    assert_eq!(words(&machine), ["sync", "written"]);
}

/// A crash of the kernel loses the page cache, and a loss of power also tears writes. The simulator does
/// both.
#[test]
fn async_and_written_records_may_be_lost_with_kernel_or_power_until_the_next_fdatasync() {
    let _limit = time_limit();
    let mut lost = 0;
    for seed in 0..50 {
        let machine = SimMachine::new(seed);
        let log = acknowledge(&machine);
        log.drain().unwrap();
        machine.fs.power_loss();
        lost += usize::from(!words(&machine).contains(&"written".to_owned()));

        let machine = SimMachine::new(seed);
        let log = acknowledge(&machine);
        log.drain().unwrap();
        log.sync().unwrap();
        machine.fs.power_loss();
        assert_eq!(words(&machine), ["sync", "written", "async"], "seed {seed}");
    }
    assert!(lost > 0, "the page cache was never lost, so the test proves nothing");
}

/// Fault case 72.
#[test]
fn sync_records_survive_the_loss_of_kernel_and_power() {
    let _limit = time_limit();
    for seed in 0..200 {
        let machine = SimMachine::new(seed);
        let _log = acknowledge(&machine);
        machine.fs.power_loss();
        assert!(words(&machine).contains(&"sync".to_owned()), "seed {seed}");
    }
}

/// Fault case 73.
#[test]
fn a_failed_fdatasync_is_reported_and_written_records_are_withdrawn() {
    let _limit = time_limit();
    for by_receipt in [false, true] {
        let machine = SimMachine::new(3);
        let log = open(&machine);
        log.append(&decision("before"), Durability::Sync).unwrap();
        machine.fs.set_faults(Faults { sync: 1000, ..Faults::default() });
        let error = if by_receipt {
            let receipt = log.submit(&decision("refused"), Durability::Sync).unwrap().unwrap();
            log.drain().unwrap();
            log.sync().unwrap_err();
            block_on(receipt).unwrap_err()
        } else {
            log.append(&decision("refused"), Durability::Sync).unwrap_err()
        };
        assert!(matches!(error, LogError::NotDurable { sequence: 2, .. }), "{error}");
        assert!(!log.available());
        // The disk works again. Written records are synced, and the withdrawal is written first.
        machine.fs.set_faults(Faults::default());
        machine.clock.advance(Duration::from_secs(10));
        log.maintain();
        log.append(&decision("after"), Durability::Sync).unwrap();
        machine.fs.power_loss();
        assert_eq!(words(&machine), ["before", "refused", "withdrawn 2", "after"], "{by_receipt}");
    }
}

/// Fault case 73.
#[test]
fn a_failed_fdatasync_that_a_new_segment_repairs_is_a_success() {
    let _limit = time_limit();
    for seed in 0..50 {
        let machine = SimMachine::new(seed);
        let log = open(&machine);
        machine.fs.set_faults(Faults { sync: 500, ..Faults::default() });
        let kept = log.append(&decision("one"), Durability::Sync).is_ok();
        machine.fs.power_loss();
        let found = words(&machine).contains(&"one".to_owned());
        assert!(found || !kept, "seed {seed}: acknowledged and lost");
    }
}

#[test]
fn a_sync_outcome_that_was_refused_can_be_reported_again() {
    let _limit = time_limit();
    let machine = SimMachine::new(4);
    let log = open(&machine);
    let index = OutcomeIndex::new(64);
    let key = OutcomeKey { checkpoint: "c", decision_id: "d", kind: "fraud", proven: true };
    let report = |value: f64| {
        let (checkpoint, decision_id, kind) = ("c".to_owned(), "d".to_owned(), "fraud".to_owned());
        let outcome = OutcomeRecord { checkpoint, decision_id, kind, value, ..OutcomeRecord::default() };
        let payload = LogRecord { record: Some(log_record::Record::Outcome(outcome)) }.encode_to_vec();
        let appended = log.append(&payload, Durability::Sync).map(Option::unwrap);
        block_on(index.record(key, 0, value, RATE, || std::future::ready(appended)))
    };
    machine.fs.set_faults(Faults { sync: 1000, ..Faults::default() });
    assert!(report(1.0).is_err());
    machine.fs.set_faults(Faults::default());
    machine.clock.advance(Duration::from_secs(10));
    log.maintain();
    assert_eq!(report(0.0).unwrap(), Outcome::New);
    assert_eq!(words(&machine), ["fraud 1", "withdrawn 1", "fraud 0"]);
}

#[test]
fn sealing_records_the_withdrawal_of_a_late_record() {
    let _limit = time_limit();
    let machine = SimMachine::new(5);
    let log = open(&machine);
    let mut receipt = log.submit(&decision("late"), Durability::Sync).unwrap().unwrap();
    log.drain().unwrap();
    assert!(Pin::new(&mut receipt).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The caller cancels after the write and before the fdatasync.
    receipt.slot().upgrade().unwrap().withdraw();
    log.seal().unwrap();
    let polled = Pin::new(&mut receipt).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(LogError::Withdrawn))), "{polled:?}");
    machine.fs.power_loss();
    assert_eq!(words(&machine), ["late", "withdrawn 1"]);
}
