//! Single faults on the simulated disk: reports and actions of the log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod limit;

use std::future::{Ready, ready};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use limit::time_limit;
use scorer_log::sim::{Faults, SimMachine, block_on};
use scorer_log::{
    Durability, FindingKind, Log, LogConfig, LogError, LogState, Outcome, OutcomeIndex, OutcomeKey, Reader,
    ReportRate,
};

/// Reports are not limited.
const RATE: ReportRate = ReportRate { minute: 0, most: u32::MAX };
const DIR: &str = "/log";

fn manual() -> LogConfig {
    LogConfig { background: false, ..LogConfig::new(DIR) }
}

fn open(machine: &SimMachine, config: LogConfig) -> Log {
    Log::open(machine.start(), config).unwrap().0
}

fn payloads(machine: &SimMachine) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(machine.start().fs, Path::new(DIR)).unwrap();
    let mut payloads = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        payloads.push(record.payload.to_vec());
    }
    assert!(reader.findings().iter().all(|finding| finding.kind == FindingKind::DamagedBytes));
    payloads
}

/// Fault case 73.
#[test]
fn a_full_disk_makes_the_log_unavailable_until_there_is_space() {
    let _limit = time_limit();
    let machine = SimMachine::new(1);
    let log = open(&machine, manual());
    log.append(b"before", Durability::Written).unwrap();
    // There is space for a part of the next record. The short write must not remain.
    machine.fs.set_capacity(machine.fs.used() + 20);
    let error = log.append(&[7; 100], Durability::Written).unwrap_err();
    assert!(error.to_string().contains("free space"), "{error}");
    let status = log.status();
    assert_eq!(status.state, LogState::Unavailable);
    assert!(status.error.unwrap().contains("/log"));
    assert!(!log.available());
    assert_eq!(payloads(&machine), [b"before"]);

    machine.fs.set_capacity(u64::MAX);
    assert!(matches!(log.append(b"too early", Durability::Written), Err(LogError::Unavailable { .. })));
    log.maintain();
    assert_eq!(log.status().state, LogState::Unavailable, "the first attempt must be after a pause");
    machine.clock.advance(Duration::from_millis(100));
    log.maintain();
    assert_eq!(log.status().state, LogState::Ok);
    assert!(log.available());
    assert_eq!(log.append(b"after", Durability::Written).unwrap(), Some(3));
    let kept = payloads(&machine);
    assert_eq!(kept.len(), 3);
    assert!(String::from_utf8_lossy(&kept[1]).contains("1 records refused"), "the outage must be recorded");
}

#[test]
fn attempts_on_a_full_disk_become_less_frequent() {
    let _limit = time_limit();
    let machine = SimMachine::new(1);
    let log = open(&machine, manual());
    machine.fs.set_capacity(machine.fs.used());
    log.append(b"x", Durability::Written).unwrap_err();
    for pause in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
        machine.clock.advance(Duration::from_millis(pause - 1));
        log.maintain();
        machine.fs.set_capacity(u64::MAX);
        log.maintain();
        assert_eq!(log.status().state, LogState::Unavailable, "not before {pause} ms");
        machine.fs.set_capacity(0);
        machine.clock.advance(Duration::from_millis(1));
        log.maintain();
    }
}

/// Fault case 73.
#[test]
fn a_failed_fdatasync_is_never_repeated_on_its_file() {
    let _limit = time_limit();
    let machine = SimMachine::new(3);
    let log = open(&machine, manual());
    log.append(b"one", Durability::Written).unwrap();
    log.append(b"two", Durability::Written).unwrap();
    let first = log.status().segment;
    let before = machine.fs.syncs();
    machine.fs.set_faults(Faults { sync: 1000, ..Faults::default() });
    assert!(matches!(log.sync(), Err(LogError::Unavailable { .. })));
    // One for the file, and one for the segment that was to replace it.
    assert_eq!(machine.fs.syncs() - before, 2);
    assert_eq!(log.status().state, LogState::Unavailable);
    machine.fs.set_faults(Faults::default());
    machine.clock.advance(Duration::from_secs(1));
    log.maintain();
    assert_eq!(log.status().state, LogState::Ok);
    assert_ne!(log.status().segment, first);
    assert_eq!(log.append(b"three", Durability::Sync).unwrap(), Some(4));
    machine.fs.power_loss();
    let kept = payloads(&machine);
    assert_eq!([&kept[0], &kept[1], &kept[3]], [&b"one"[..], b"two", b"three"]);
}

/// Fault case 73.
#[test]
fn a_sync_append_that_cannot_be_synced_fails() {
    let _limit = time_limit();
    let machine = SimMachine::new(4);
    let log = open(&machine, manual());
    machine.fs.set_faults(Faults { sync: 1000, ..Faults::default() });
    let error = log.append(b"one", Durability::Sync).unwrap_err();
    assert!(matches!(error, LogError::NotDurable { sequence: 1, .. }), "{error}");
    assert!(matches!(log.append(b"two", Durability::Sync), Err(LogError::Unavailable { .. })));
}

/// Fault case 74.
#[test]
fn unsynced_bytes_are_bounded() {
    let _limit = time_limit();
    let machine = SimMachine::new(5);
    let log = open(&machine, LogConfig { max_unsynced_bytes: 8192, ..manual() });
    let mut kept = 0;
    let error = loop {
        match log.append(&[1; 1000], Durability::Written) {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(kept, 8);
    assert!(error.to_string().contains("fdatasync"), "{error}");
    log.sync().unwrap();
    log.append(&[1; 1000], Durability::Written).unwrap();
}

#[test]
fn the_async_queue_drops_and_counts_and_survives_an_outage() {
    let _limit = time_limit();
    let machine = SimMachine::new(6);
    let log = open(&machine, LogConfig { queue_records: 3, ..manual() });
    for at in 0..5_u8 {
        let result = log.append(&[at], Durability::Async);
        assert_eq!(result.is_ok(), at < 3);
    }
    let status = log.status();
    assert_eq!((status.queued, status.dropped, status.next_sequence), (3, 2, 1));
    machine.fs.set_capacity(machine.fs.used());
    log.drain().unwrap_err();
    assert_eq!(log.status().queued, 3, "the records wait for space");
    machine.fs.set_capacity(u64::MAX);
    machine.clock.advance(Duration::from_secs(1));
    log.maintain();
    log.drain().unwrap();
    let status = log.status();
    assert_eq!((status.queued, status.next_sequence), (0, 5));
    assert_eq!(payloads(&machine)[1..], [[0], [1], [2]]);
}

#[test]
fn one_fdatasync_serves_all_waiting_callers_and_delays_no_others() {
    let _limit = time_limit();
    let machine = SimMachine::new(7);
    let log = open(&machine, manual());
    let before = machine.fs.syncs();
    machine.fs.hold_sync(true);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| log.append(b"first", Durability::Sync));
        while log.status().next_sequence < 2 {
            std::thread::yield_now();
        }
        // A slow disk does not delay callers that only need the page cache.
        log.append(b"written", Durability::Written).unwrap();
        let others: Vec<_> = (0..6).map(|_| scope.spawn(|| log.append(b"other", Durability::Sync))).collect();
        while log.status().next_sequence < 9 {
            std::thread::yield_now();
        }
        machine.fs.hold_sync(false);
        for thread in std::iter::once(first).chain(others) {
            thread.join().unwrap().unwrap();
        }
    });
    assert!(machine.fs.syncs() - before <= 2, "{} rounds", machine.fs.syncs() - before);
    assert_eq!(log.status().durable_sequence, 9);
}

#[test]
fn of_two_conflicting_reports_exactly_one_wins() {
    let _limit = time_limit();
    let machine = SimMachine::new(8);
    let log = open(&machine, manual());
    let index = OutcomeIndex::new(1 << 12);
    for decision in 0..200 {
        let id = decision.to_string();
        let key = OutcomeKey { checkpoint: "c", decision_id: &id, kind: "fraud", proven: true };
        let appended = AtomicUsize::new(0);
        let report = |value: f64| {
            block_on(index.record(key, 0, value, RATE, || {
                appended.fetch_add(1, Ordering::Relaxed);
                ready(log.append(&value.to_le_bytes(), Durability::Written).map(Option::unwrap))
            }))
        };
        let results = std::thread::scope(|scope| {
            let threads =
                [0.0, 1.0, 0.0, 1.0].map(|value| scope.spawn(move || (value, report(value).unwrap())));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(appended.load(Ordering::Relaxed), 1);
        let winners: Vec<f64> =
            results.iter().filter(|(_, outcome)| *outcome == Outcome::New).map(|(value, _)| *value).collect();
        assert_eq!(winners.len(), 1);
        for (value, outcome) in results {
            let expected = if value == winners[0] {
                [Outcome::New, Outcome::Duplicate]
            } else {
                [Outcome::Conflict { recorded: winners[0] }; 2]
            };
            assert!(expected.contains(&outcome), "{value} {outcome:?}");
        }
    }
}

#[test]
fn an_outcome_that_could_not_be_recorded_does_not_count() {
    let _limit = time_limit();
    let index = OutcomeIndex::new(64);
    let key = OutcomeKey { checkpoint: "c", decision_id: "d", kind: "fraud", proven: true };
    let fail = || ready(Err(LogError::Closed));
    assert!(block_on(index.record(key, 0, 1.0, RATE, fail)).is_err());
    let recorded = block_on(index.record(key, 0, 0.0, RATE, || ready(Ok(1)))).unwrap();
    assert_eq!(recorded, Outcome::New);
    let failed = block_on(index.record(key, 1, 1.0, RATE, fail));
    assert!(failed.is_err(), "a failed revision must not count either");
    let never = || -> Ready<Result<u64, LogError>> { unreachable!() };
    assert_eq!(block_on(index.record(key, 0, -0.0, RATE, never)).unwrap(), Outcome::Duplicate);
}

#[test]
fn the_index_forgets_the_oldest_first() {
    let _limit = time_limit();
    let index = OutcomeIndex::new(64 * 4);
    for at in 0..10_000 {
        index.note_decision("c", &at.to_string());
    }
    assert_eq!(index.decisions(), 256);
    assert!((9_996..10_000).all(|at| index.decision_known("c", &at.to_string())));
    assert!((0..1_000).all(|at| !index.decision_known("c", &at.to_string())));
}

#[test]
fn the_background_threads_write_sync_and_recover() {
    let _limit = time_limit();
    let machine = SimMachine::new(9);
    let config = LogConfig { sync_ms: 1, segment_bytes: 8192, ..LogConfig::new(DIR) };
    let log = Arc::new(open(&machine, config));
    machine.fs.set_faults(Faults { sync: 100, write: 5, ..Faults::default() });
    let kept: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (log, machine) = (Arc::clone(&log), &machine);
                scope.spawn(move || {
                    let mut kept = 0;
                    for at in 0..500 {
                        let durability = [Durability::Written, Durability::Async, Durability::Sync][at % 3];
                        while log.append(&[at as u8; 64], durability).is_err() {
                            machine.clock.advance(Duration::from_millis(50));
                            std::thread::yield_now();
                        }
                        kept += 1;
                    }
                    kept
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    machine.fs.set_faults(Faults::default());
    machine.clock.advance(Duration::from_secs(10));
    log.seal().unwrap();
    assert_eq!(log.status().dropped, 0);
    // A failed Sync append may be in the log together with its repetition.
    assert!(payloads(&machine).iter().filter(|payload| payload.len() == 64).count() as u64 >= kept);
    machine.fs.power_loss();
    assert!(payloads(&machine).iter().filter(|payload| payload.len() == 64).count() as u64 >= kept);
}

#[test]
fn sealing_writes_a_queue_larger_than_the_limit_of_unsynced_bytes() {
    let _limit = time_limit();
    let machine = SimMachine::new(10);
    let log = open(&machine, LogConfig { max_unsynced_bytes: 8192, ..manual() });
    for at in 0..40_u8 {
        log.append(&[at; 1000], Durability::Async).unwrap();
    }
    log.seal().unwrap();
    machine.fs.power_loss();
    assert_eq!(payloads(&machine).len(), 40);
}

#[test]
fn sealing_on_a_full_disk_reports_the_lost_records_and_ends() {
    let _limit = time_limit();
    let machine = SimMachine::new(11);
    let log = open(&machine, manual());
    log.append(b"kept", Durability::Written).unwrap();
    log.append(b"queued", Durability::Async).unwrap();
    machine.fs.set_capacity(machine.fs.used());
    let error = log.seal().unwrap_err();
    assert!(error.to_string().contains("free space"), "{error}");
    machine.fs.kill();
    assert_eq!(payloads(&machine), [b"kept"]);
}
