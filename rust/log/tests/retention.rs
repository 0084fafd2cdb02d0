//! Retention: which segments are removed and which are kept, and that the log continues unchanged.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod limit;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use limit::time_limit;
use scorer_log::sim::SimMachine;
use scorer_log::{
    Blocked, Durability, Env, Log, LogConfig, Reader, RealFs, Retention, mark_shipped, shipped,
};

const DIR: &str = "/log";

/// Segments of four records.
fn config(dir: impl Into<std::path::PathBuf>) -> LogConfig {
    LogConfig { segment_bytes: 4096, background: false, ..LogConfig::new(dir) }
}

fn fill(log: &Log, records: usize) {
    for at in 0..records {
        log.append(&vec![at as u8; 960], Durability::Written).unwrap();
    }
}

fn sequences(machine: &SimMachine) -> Vec<u64> {
    let mut reader = Reader::open(machine.start().fs, Path::new(DIR)).unwrap();
    let mut sequences = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        sequences.push(record.sequence);
    }
    assert_eq!(reader.findings(), [], "a log without its oldest segments must be complete");
    sequences
}

#[test]
fn without_a_limit_nothing_is_removed() {
    let _limit = time_limit();
    let machine = SimMachine::new(1);
    let log = Log::open(machine.start(), config(DIR)).unwrap().0;
    fill(&log, 40);
    log.keep();
    assert_eq!(log.upkeep().removed_segments, 0);
    assert_eq!(log.upkeep().retention.segments, 10);
    assert_eq!(sequences(&machine).len(), 40);
}

#[test]
fn by_size_only_shipped_segments_are_removed_unless_the_settings_allow_others() {
    let _limit = time_limit();
    let machine = SimMachine::new(2);
    let env = machine.start();
    let log = Log::open(env.clone(), config(DIR)).unwrap().0;
    fill(&log, 40);
    let limit = Retention { max_bytes: Some(16_384), ..Retention::default() };
    let pruned = limit.apply(&env, Path::new(DIR), false).unwrap();
    assert_eq!((pruned.removed.len(), pruned.blocked), (0, Some(Blocked::NotShipped)));
    assert!(pruned.blocked_bytes > 20_000, "{pruned:?}");

    // Two and a half segments are shipped, so two are removed.
    assert_eq!(mark_shipped(&env, Path::new(DIR), 11).unwrap(), 11);
    assert_eq!(mark_shipped(&env, Path::new(DIR), 5).unwrap(), 11, "the mark never decreases");
    let dry = limit.apply(&env, Path::new(DIR), true).unwrap();
    assert_eq!(sequences(&machine)[0], 1, "a dry run removes nothing");
    let pruned = limit.apply(&env, Path::new(DIR), false).unwrap();
    assert_eq!(
        (dry.removed, pruned.removed.len(), pruned.first_sequence),
        (pruned.removed.clone(), 2, Some(9))
    );
    assert_eq!(sequences(&machine), (9..=40).collect::<Vec<_>>());

    let anyway = Retention { unshipped: true, ..limit };
    let pruned = anyway.apply(&env, Path::new(DIR), false).unwrap();
    assert!(pruned.bytes <= 16_384 && pruned.blocked.is_none(), "{pruned:?}");
    assert_eq!(shipped(&*env.fs, Path::new(DIR)), 11);
    // The writer is not affected, and a restart continues with the next sequence.
    fill(&log, 1);
    log.seal().unwrap();
    drop(log);
    let (log, recovery) = Log::open(machine.start(), config(DIR)).unwrap();
    assert_eq!((recovery.next_sequence, recovery.findings.len()), (42, 0));
    drop(log);
}

#[test]
fn by_age_the_newest_record_of_a_segment_counts() {
    let _limit = time_limit();
    let machine = SimMachine::new(3);
    let env = machine.start();
    let log = Log::open(env.clone(), config(DIR)).unwrap().0;
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    for _ in 0..5 {
        fill(&log, 4);
        machine.clock.advance(hours(10));
    }
    let limit = Retention { max_age: Some(hours(24)), unshipped: true, ..Retention::default() };
    let pruned = limit.apply(&env, Path::new(DIR), false).unwrap();
    // The segments after them were started 40 and 30 hours ago.
    assert_eq!(pruned.removed.len(), 2, "{pruned:?}");
    assert_eq!(sequences(&machine)[0], 9);
}

#[test]
fn the_newest_sealed_segment_is_kept_so_that_sequences_continue() {
    let _limit = time_limit();
    let machine = SimMachine::new(4);
    let env = machine.start();
    let log = Log::open(env.clone(), config(DIR)).unwrap().0;
    fill(&log, 20);
    log.seal().unwrap();
    drop(log);
    let all = Retention { max_bytes: Some(0), unshipped: true, ..Retention::default() };
    for _ in 0..3 {
        let log = Log::open(machine.start(), config(DIR)).unwrap().0;
        all.apply(&machine.start(), Path::new(DIR), false).unwrap();
        log.seal().unwrap();
        drop(log);
        all.apply(&machine.start(), Path::new(DIR), false).unwrap();
    }
    let (log, recovery) = Log::open(machine.start(), config(DIR)).unwrap();
    assert_eq!(recovery.next_sequence, 21);
    drop(log);
}

#[test]
fn a_segment_that_is_being_read_is_kept() {
    let _limit = time_limit();
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(Env::real(), config(dir.path())).unwrap().0;
    fill(&log, 40);
    let all = Retention { max_bytes: Some(4096), unshipped: true, ..Retention::default() };
    let mut reader = Reader::open(Arc::new(RealFs), dir.path()).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().sequence, 1);
    let pruned = all.apply(&Env::real(), dir.path(), false).unwrap();
    assert_eq!((pruned.removed.len(), pruned.blocked), (0, Some(Blocked::BeingRead)));
    let mut last = 0;
    while let Some(record) = reader.next_record().unwrap() {
        last = record.sequence;
    }
    assert_eq!((last, reader.findings().len()), (40, 0));
    // The reader releases the segment at its end, although it still exists.
    let pruned = all.apply(&Env::real(), dir.path(), false).unwrap();
    assert_eq!((pruned.removed.len(), pruned.blocked), (8, None));
    drop(reader);
}

#[test]
fn readers_that_start_while_segments_are_removed_find_no_gap() {
    let _limit = time_limit();
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(Env::real(), config(dir.path())).unwrap().0;
    fill(&log, 400);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Acquire) {
                        let mut reader = Reader::open(Arc::new(RealFs), dir.path()).unwrap();
                        while reader.next_record().unwrap().is_some() {}
                        assert!(reader.findings().is_empty(), "{:?}", reader.findings());
                    }
                })
            })
            .collect();
        for bytes in (0..100).rev() {
            let limit = Retention { max_bytes: Some(bytes * 4096), unshipped: true, ..Retention::default() };
            limit.apply(&Env::real(), dir.path(), false).unwrap();
            std::thread::yield_now();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn a_round_measures_the_disk_and_predicts_when_it_is_full() {
    let _limit = time_limit();
    let machine = SimMachine::new(5);
    machine.fs.set_capacity(1 << 20);
    let log = Log::open(machine.start(), config(DIR)).unwrap().0;
    for _ in 0..10 {
        fill(&log, 4);
        machine.clock.advance(Duration::from_secs(60));
        log.sync().unwrap();
        log.keep();
    }
    let upkeep = log.upkeep();
    let (free, full) = (upkeep.free_bytes.unwrap(), upkeep.full_in_seconds.unwrap());
    assert!(free > 0 && full > 0.0);
    let expected = free as f64 / upkeep.growth_bytes_per_second;
    assert!((full / expected - 1.0).abs() < 1e-9, "{upkeep:?}");
    // About 4 KB per minute fill 1 MB in a little more than four hours.
    assert!((3.0..6.0).contains(&(full / 3600.0)), "{upkeep:?}");
    assert_eq!(log.upkeep_rounds(), 10);
}
