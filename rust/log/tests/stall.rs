//! A disk that stops responding: only the writer thread waits for it, and the log then records what was
//! withdrawn meanwhile.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod limit;

use std::future::Future as _;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limit::time_limit;
use prost::Message as _;
use scorer_log::sim::{SimMachine, block_on};
use scorer_log::{
    Durability, Log, LogConfig, LogError, LogState, Outcome, OutcomeIndex, OutcomeKey, Reader, Receipt,
    ReportRate,
};
use scorer_proto::v1::{DecisionRecord, LogRecord, OutcomeRecord, WithdrawnRecord, log_record};

/// Reports are not limited.
const RATE: ReportRate = ReportRate { minute: 0, most: u32::MAX };

const DIR: &str = "/log";

fn open(machine: &SimMachine) -> Log {
    // There is no round of fdatasync in between unless a test requests one.
    let config = LogConfig { sync_ms: 60_000, awaited_records: 4, ..LogConfig::new(DIR) };
    Log::open(machine.start(), config).unwrap().0
}

fn decision(id: &str) -> Vec<u8> {
    let record = DecisionRecord {
        decision_id: id.to_owned(),
        checkpoint: "c".to_owned(),
        ..DecisionRecord::default()
    };
    LogRecord { record: Some(log_record::Record::Decision(record)) }.encode_to_vec()
}

fn submit(log: &Log, id: &str) -> Receipt {
    log.submit(&decision(id), Durability::Written).unwrap().unwrap()
}

fn poll(receipt: &mut Receipt) -> Poll<Result<u64, LogError>> {
    Pin::new(receipt).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns each record as text: its decision id, or what it withdraws.
fn words(machine: &SimMachine) -> Vec<String> {
    let mut reader = Reader::open(machine.start().fs, Path::new(DIR)).unwrap();
    let mut words = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        words.push(match LogRecord::decode(record.payload).unwrap().record.unwrap() {
            log_record::Record::Decision(decision) => decision.decision_id,
            log_record::Record::Outcome(outcome) => format!("{} {}", outcome.kind, outcome.value),
            log_record::Record::Withdrawn(WithdrawnRecord { sequence, kind, .. }) => {
                format!("withdrawn {sequence} {kind}").trim_end().to_owned()
            }
            other => panic!("{other:?}"),
        });
    }
    assert!(reader.findings().is_empty(), "{:?}", reader.findings());
    words
}

#[test]
fn records_withdrawn_during_a_stall_are_not_written_or_are_withdrawn_in_the_log() {
    let _limit = time_limit();
    let machine = SimMachine::new(1);
    let log = open(&machine);
    submit(&log, "before").wait().unwrap();
    machine.fs.stall(true);
    let written = submit(&log, "written-late");
    machine.fs.wait_until_stalled();
    let queued = submit(&log, "queued");
    let mut patient = submit(&log, "patient");
    assert!(poll(&mut patient).is_pending());
    drop((written, queued));
    machine.fs.stall(false);
    assert_eq!(block_on(patient).unwrap(), 4);
    log.seal().unwrap();
    drop(log);
    assert_eq!(words(&machine), ["before", "written-late", "withdrawn 2", "patient"]);

    let (_, recovery) = Log::open(machine.start(), LogConfig::new(DIR)).unwrap();
    let known = |id| recovery.outcomes.decision_known("c", id);
    assert_eq!(["before", "written-late", "queued", "patient"].map(known), [true, false, false, true]);
}

#[test]
fn a_withdrawal_follows_its_record_within_twice_the_length_of_the_queue() {
    let _limit = time_limit();
    // Python's `scorer.log.scanning.REACH` equals this bound with the default settings.
    assert_eq!(2 * LogConfig::new(DIR).awaited_records, 8192);
    let machine = SimMachine::new(8);
    let config = LogConfig { background: false, awaited_records: 4, ..LogConfig::new(DIR) };
    let log = Log::open(machine.start(), config).unwrap().0;
    for at in 0..20 {
        log.append(&decision(&format!("async-{at}")), Durability::Async).unwrap();
    }
    let group: Vec<_> = (0..4).map(|at| submit(&log, &format!("late-{at}"))).collect();
    machine.fs.stall(true);
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| log.drain());
        // The four records are one write, which has started.
        machine.fs.wait_until_stalled();
        drop(group);
        machine.fs.stall(false);
        draining.join().unwrap().unwrap();
    });
    log.seal().unwrap();

    let mut reader = Reader::open(machine.start().fs, Path::new(DIR)).unwrap();
    let mut withdrawn = 0;
    while let Some(record) = reader.next_record().unwrap() {
        let decoded = LogRecord::decode(record.payload).unwrap().record.unwrap();
        if let log_record::Record::Withdrawn(withdrawal) = decoded {
            withdrawn += 1;
            assert!(
                record.sequence - withdrawal.sequence <= 8,
                "{} after {}",
                record.sequence,
                withdrawal.sequence
            );
        }
    }
    assert_eq!(withdrawn, 4);
}

/// Fault case 74.
#[test]
fn a_stalled_log_is_unavailable_and_its_status_does_not_wait() {
    let _limit = time_limit();
    let machine = SimMachine::new(2);
    let log = open(&machine);
    machine.fs.stall(true);
    let mut first = submit(&log, "first");
    machine.fs.wait_until_stalled();
    assert!(log.available(), "not yet a stall");
    machine.clock.advance(Duration::from_millis(101));
    assert!(!log.available());
    let status = log.status();
    assert_eq!(status.state, LogState::Unavailable);
    assert!(status.error.unwrap().contains("has not returned"));
    // The queue is full: at most four records wait for the writer.
    let waiting: Vec<_> = (0..4).map(|at| submit(&log, &at.to_string())).collect();
    let refused = log.submit(&decision("fifth"), Durability::Written);
    assert!(matches!(refused, Err(LogError::QueueFull { records: 4 })));
    log.append(&decision("async"), Durability::Async).unwrap();
    assert!(poll(&mut first).is_pending());
    machine.fs.stall(false);
    for receipt in waiting {
        receipt.wait().unwrap();
    }
    first.wait().unwrap();
    log.seal().unwrap();
    assert!(matches!(log.submit(&decision("late"), Durability::Written), Err(LogError::Closed)));
}

#[test]
fn records_that_wait_together_are_written_by_one_write() {
    let _limit = time_limit();
    let machine = SimMachine::new(3);
    let log = open(&machine);
    machine.fs.stall(true);
    let first = submit(&log, "first");
    machine.fs.wait_until_stalled();
    let group: Vec<_> = (0..4).map(|at| submit(&log, &at.to_string())).collect();
    let before = machine.fs.writes();
    machine.fs.stall(false);
    first.wait().unwrap();
    for receipt in group {
        receipt.wait().unwrap();
    }
    // The stalled write was counted when it was released.
    assert_eq!(machine.fs.writes() - before, 2);
}

#[test]
fn a_sync_record_is_acknowledged_when_it_is_on_stable_storage() {
    let _limit = time_limit();
    let machine = SimMachine::new(4);
    let log = open(&machine);
    let receipt = log.submit(&decision("sync"), Durability::Sync).unwrap().unwrap();
    let sequence = block_on(receipt).unwrap();
    // The status may be outdated while the sync thread holds the writer.
    while log.status().durable_sequence <= sequence {
        std::thread::yield_now();
    }
}

#[test]
fn outcomes_of_other_keys_do_not_wait_for_one_that_is_being_recorded() {
    let _limit = time_limit();
    let machine = SimMachine::new(5);
    let log = open(&machine);
    let index = OutcomeIndex::new(1 << 12);
    let report = |decision_id: &str, value: f64| {
        let key = OutcomeKey { checkpoint: "c", decision_id, kind: "fraud", proven: true };
        let outcome = OutcomeRecord {
            checkpoint: "c".to_owned(),
            decision_id: decision_id.to_owned(),
            kind: "fraud".to_owned(),
            value,
            ..OutcomeRecord::default()
        };
        let payload = LogRecord { record: Some(log_record::Record::Outcome(outcome)) }.encode_to_vec();
        let append = || async { log.submit(&payload, Durability::Written)?.unwrap().await };
        block_on(index.record(key, 0, value, RATE, append)).unwrap()
    };
    machine.fs.stall(true);
    std::thread::scope(|scope| {
        let reports = [1.0, 2.0].map(|value| {
            let report = &report;
            scope.spawn(move || report("slow", value))
        });
        machine.fs.wait_until_stalled();
        // No shard of the index is locked.
        for at in 0..1000 {
            index.note_decision("c", &at.to_string());
        }
        assert_eq!(index.decisions(), 1000);
        machine.fs.stall(false);
        let results = reports.map(|thread| thread.join().unwrap());
        let recorded = results.iter().filter(|result| **result == Outcome::New).count();
        let conflicts = results.iter().filter(|result| matches!(result, Outcome::Conflict { .. })).count();
        assert_eq!((recorded, conflicts), (1, 1), "{results:?}");
    });
    assert_eq!(report("other", 1.0), Outcome::New);
}

#[test]
fn an_outcome_whose_caller_cancelled_during_the_write_can_be_reported_again() {
    let _limit = time_limit();
    let machine = SimMachine::new(6);
    let log = open(&machine);
    let index = OutcomeIndex::new(64);
    let key = OutcomeKey { checkpoint: "c", decision_id: "d", kind: "fraud", proven: true };
    let payload = |value| {
        let (checkpoint, decision_id, kind) = ("c".to_owned(), "d".to_owned(), "fraud".to_owned());
        let outcome = OutcomeRecord { checkpoint, decision_id, kind, value, ..OutcomeRecord::default() };
        LogRecord { record: Some(log_record::Record::Outcome(outcome)) }.encode_to_vec()
    };
    let append = |value| {
        let log = &log;
        move || async move { log.submit(&payload(value), Durability::Written)?.unwrap().await }
    };
    machine.fs.stall(true);
    let mut report = Box::pin(index.record(key, 0, 1.0, RATE, append(1.0)));
    assert!(report.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    machine.fs.wait_until_stalled();
    drop(report);
    machine.fs.stall(false);
    assert_eq!(block_on(index.record(key, 0, 2.0, RATE, append(2.0))).unwrap(), Outcome::New);
    log.seal().unwrap();
    assert_eq!(words(&machine), ["fraud 1", "withdrawn 1 fraud", "fraud 2"]);
    let (_, recovery) = Log::open(machine.start(), LogConfig::new(DIR)).unwrap();
    let never = || async { panic!("the outcome is recorded already") };
    let again = block_on(recovery.outcomes.record(key, 0, 2.0, RATE, never)).unwrap();
    assert_eq!(again, Outcome::Duplicate);
}
