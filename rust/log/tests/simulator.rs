//! Runs the log through seeded histories of faults and crashes, and checks its guarantees with a ledger of
//! the acknowledged records.
//!
//! `SCORER_SIM_SEEDS=100000 cargo test -p scorer-log --test simulator` runs more histories,
//! `SCORER_SIM_SEED=1234 ...` repeats one history.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future as _;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prost::Message;
use scorer_log::sim::{Faults, Rng, SimMachine, block_on};
use scorer_log::{
    Durability, Finding, FindingKind, Log, LogConfig, LogError, Outcome, OutcomeIndex, OutcomeKey, Reader,
    Recovery, ReportRate, Severity,
};
use scorer_proto::v1::{DecisionRecord, LogRecord, OutcomeRecord, RecoveryRecord, log_record};

/// Reports are not limited.
const RATE: ReportRate = ReportRate { minute: 0, most: u32::MAX };

const DIR: &str = "/log";

/// The state of a record that the log reported.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// The record is in the log with this sequence.
    Kept(u64),
    /// The record is in the log and on stable storage.
    Durable(u64),
    /// The record is not in the log.
    Refused,
    /// The record was not acknowledged.
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    sequence: u64,
    record: log_record::Record,
}

struct World {
    machine: SimMachine,
    rng: Rng,
    config: LogConfig,
    faults: Faults,
    fates: BTreeMap<u64, Fate>,
    /// Records below this sequence survive a power loss.
    durable: u64,
    /// A process ended between a failed `fdatasync` and its repair, so it is unknown which of these are on
    /// disk.
    doubtful: BTreeSet<u64>,
    /// The same holds for records that are not in the ledger.
    doubt: bool,
    next_id: u64,
    outcomes: BTreeMap<(u64, u64), (u32, f64)>,
}

fn decision(id: u64, size: usize) -> Vec<u8> {
    let record = DecisionRecord {
        decision_id: id.to_string(),
        checkpoint: "c".to_owned(),
        entity: "x".repeat(size),
        ..DecisionRecord::default()
    };
    LogRecord { record: Some(log_record::Record::Decision(record)) }.encode_to_vec()
}

fn read(machine: &SimMachine) -> (Vec<Seen>, Vec<Finding>) {
    let mut reader = Reader::open(machine.start().fs, Path::new(DIR)).unwrap();
    let mut seen = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let decoded = LogRecord::decode(record.payload).unwrap();
        seen.push(Seen { sequence: record.sequence, record: decoded.record.unwrap() });
    }
    (seen, reader.findings().to_vec())
}

fn ids(seen: &[Seen]) -> BTreeMap<u64, u64> {
    let mut ids = BTreeMap::new();
    for Seen { sequence, record } in seen {
        if let log_record::Record::Decision(decision) = record {
            let earlier = ids.insert(decision.decision_id.parse().unwrap(), *sequence);
            assert_eq!(earlier, None, "decision {} is in the log twice", decision.decision_id);
        }
    }
    ids
}

/// Sequences of the records that the log has withdrawn.
fn withdrawn(seen: &[Seen]) -> BTreeSet<u64> {
    let sequences = seen.iter().map(|seen| match &seen.record {
        log_record::Record::Withdrawn(withdrawn) => Some(withdrawn.sequence),
        _ => None,
    });
    sequences.flatten().collect()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let config = LogConfig {
            segment_bytes: 4096 << rng.below(4),
            max_unsynced_bytes: 16_384 << rng.below(3),
            queue_records: 1 + usize::try_from(rng.below(20)).unwrap(),
            index_capacity: 1 << 14,
            background: false,
            ..LogConfig::new(DIR)
        };
        let faults = match rng.below(5) {
            0 => Faults::default(),
            1 => Faults { short_write: 300, short_read: 300, ..Faults::default() },
            2 => Faults { sync: 150, sync_dir: 50, ..Faults::default() },
            3 => Faults { write: 60, truncate: 200, ..Faults::default() },
            _ => Faults {
                write: 20,
                short_write: 100,
                short_read: 50,
                sync: 60,
                truncate: 100,
                create: 100,
                rename: 100,
                sync_dir: 60,
            },
        };
        Self {
            machine: SimMachine::new(seed),
            rng,
            config,
            faults,
            fates: BTreeMap::new(),
            durable: 0,
            doubtful: BTreeSet::new(),
            doubt: false,
            next_id: 0,
            outcomes: BTreeMap::new(),
        }
    }

    /// Opens the log with faults. If the start fails, the process exits.
    fn open(&mut self) -> (Log, Recovery) {
        for attempt in 0_u32.. {
            let faults = if attempt < 2 && self.rng.chance(300) { self.faults } else { Faults::default() };
            self.machine.fs.set_faults(faults);
            let opened = Log::open(self.machine.start(), self.config.clone());
            self.machine.fs.set_faults(self.faults);
            match opened {
                Ok(opened) => return opened,
                Err(error) if attempt < 3 => {
                    assert!(matches!(error, LogError::Io { .. }), "{error}");
                    // After a failed fdatasync, the state of the previous process's segments is unknown.
                    self.doubt(0);
                    self.machine.fs.kill();
                }
                Err(error) => panic!("cannot open a log on a healthy disk: {error}"),
            }
        }
        unreachable!()
    }

    fn size(&mut self) -> usize {
        let most = [40, 400, 2000, 3900][usize::try_from(self.rng.below(4)).unwrap()];
        usize::try_from(self.rng.below(most)).unwrap()
    }

    fn append(&mut self, log: &Log, durability: Durability) {
        let id = self.next_id;
        self.next_id += 1;
        let payload = decision(id, self.size());
        let fate = match (durability, log.append(&payload, durability)) {
            (Durability::Written, Ok(Some(sequence))) => Fate::Kept(sequence),
            (Durability::Sync, Ok(Some(sequence))) => Fate::Durable(sequence),
            (Durability::Async, Ok(None)) | (_, Err(LogError::NotDurable { .. })) => Fate::Unknown,
            (_, Err(LogError::Unavailable { .. } | LogError::QueueFull { .. })) => Fate::Refused,
            (_, other) => panic!("{durability:?} append: {other:?}"),
        };
        let fate = if self.machine.fs.is_dead() && fate == Fate::Refused { Fate::Unknown } else { fate };
        self.fates.insert(id, fate);
    }

    /// Submits records as the threads of a runtime do. Some are withdrawn before the writer takes them.
    fn submit(&mut self, log: &Log) {
        let mut receipts = Vec::new();
        for _ in 0..1 + self.rng.below(6) {
            let id = self.next_id;
            self.next_id += 1;
            let payload = decision(id, self.size());
            let durability = if self.rng.chance(200) { Durability::Sync } else { Durability::Written };
            let receipt = log.submit(&payload, durability).unwrap().unwrap();
            if self.rng.chance(200) {
                drop(receipt);
                self.fates.insert(id, Fate::Refused);
            } else {
                receipts.push((id, durability, receipt));
            }
        }
        // Queued `Async` records may fail. Every receipt has a separate result.
        let _ = log.drain();
        let _ = log.sync();
        for (id, durability, mut receipt) in receipts {
            let polled = Pin::new(&mut receipt).poll(&mut Context::from_waker(Waker::noop()));
            let fate = match (durability, polled) {
                (Durability::Written, Poll::Ready(Ok(sequence))) => Fate::Kept(sequence),
                (Durability::Sync, Poll::Ready(Ok(sequence))) => Fate::Durable(sequence),
                (Durability::Sync, Poll::Ready(Err(LogError::NotDurable { .. })) | Poll::Pending) => {
                    Fate::Unknown
                }
                (_, Poll::Ready(Err(LogError::Unavailable { .. }))) => Fate::Refused,
                (_, other) => panic!("{durability:?} submit: {other:?}"),
            };
            let fate = if self.machine.fs.is_dead() && fate == Fate::Refused { Fate::Unknown } else { fate };
            self.fates.insert(id, fate);
        }
    }

    fn report(&mut self, log: &Log, index: &OutcomeIndex) {
        let (decision, kind) = (self.rng.below(30), self.rng.below(2));
        let (revision, value) = (u32::try_from(self.rng.below(3)).unwrap(), self.rng.below(2) as f64);
        let outcome = OutcomeRecord {
            checkpoint: "c".to_owned(),
            decision_id: decision.to_string(),
            kind: kind.to_string(),
            value,
            revision,
            ..OutcomeRecord::default()
        };
        let key = OutcomeKey {
            checkpoint: "c",
            decision_id: &outcome.decision_id,
            kind: &outcome.kind,
            proven: true,
        };
        let payload =
            LogRecord { record: Some(log_record::Record::Outcome(outcome.clone())) }.encode_to_vec();
        let result = block_on(index.record(key, revision, value, RATE, || {
            std::future::ready(log.append(&payload, Durability::Written).map(Option::unwrap))
        }));
        let known = self.outcomes.get(&(decision, kind)).copied();
        let expected = match known {
            Some((top, recorded)) if top == revision && recorded == value => Outcome::Duplicate,
            Some((top, recorded)) if top == revision => Outcome::Conflict { recorded },
            Some((top, _)) if top > revision => Outcome::Superseded,
            _ => Outcome::New,
        };
        match result {
            Ok(outcome) => {
                assert_eq!(outcome, expected);
                if outcome == Outcome::New {
                    self.outcomes.insert((decision, kind), (revision, value));
                }
            }
            Err(error) => assert!(matches!(error, LogError::Unavailable { .. }), "{error}"),
        }
    }

    /// Simulates one process until its end.
    fn live(&mut self) {
        let (log, recovery) = self.open();
        self.check_index(&recovery.outcomes);
        if self.rng.chance(400) {
            self.machine.fs.crash_in(self.rng.below(120));
        }
        for _ in 0..self.rng.below(60) {
            match self.rng.below(20) {
                0..=7 => self.append(&log, Durability::Written),
                8..=9 => self.append(&log, Durability::Sync),
                10..=11 => self.append(&log, Durability::Async),
                12 => self.submit(&log),
                13 => drop(log.drain()),
                14 => drop(log.sync()),
                15..=16 => {
                    self.machine.clock.advance(Duration::from_millis(self.rng.below(1500)));
                    log.maintain();
                }
                17 => self.report(&log, &recovery.outcomes),
                18 => {
                    let used = self.machine.fs.used();
                    let room = [0, 500, 3000, u64::MAX][usize::try_from(self.rng.below(4)).unwrap()];
                    self.machine.fs.set_capacity(used.saturating_add(room));
                }
                _ => self.check_live(&log),
            }
            if self.machine.fs.is_dead() {
                break;
            }
            self.durable = self.durable.max(log.status().durable_sequence);
        }
        self.machine.fs.set_capacity(u64::MAX);
        self.end(log);
        self.check_after();
    }

    fn end(&mut self, log: Log) {
        let crashed = self.machine.fs.is_dead();
        let sealed = !crashed && self.rng.chance(300) && log.seal().is_ok();
        let status = log.status();
        let troubled = crashed || status.error.is_some();
        let power = self.rng.chance(500);
        if sealed && !self.machine.fs.is_dead() {
            // All accepted records are now on stable storage.
            self.durable = status.next_sequence;
        } else if troubled {
            self.forget_refusals();
            if self.faults.sync + self.faults.sync_dir > 0 {
                self.doubt(status.durable_sequence.max(self.durable));
            }
        }
        if power {
            self.machine.fs.power_loss();
            if self.faults.write > 0 {
                self.forget_refusals();
            }
        } else {
            self.machine.fs.kill();
        }
        let (seen, findings) = read(&self.machine);
        self.check(&seen, &findings, power);
        drop(log);
    }

    fn forget_refusals(&mut self) {
        for fate in self.fates.values_mut().filter(|fate| **fate == Fate::Refused) {
            *fate = Fate::Unknown;
        }
    }

    fn doubt(&mut self, from: u64) {
        self.doubt = true;
        for (id, fate) in &self.fates {
            if matches!(fate, Fate::Kept(sequence) if *sequence >= from) || *fate == Fate::Unknown {
                self.doubtful.insert(*id);
            }
        }
    }

    /// Compares the log with the ledger.
    fn check(&self, seen: &[Seen], findings: &[Finding], power: bool) {
        let present = ids(seen);
        let withdrawn = withdrawn(seen);
        for (id, fate) in &self.fates {
            let found = present.get(id).copied();
            if let Fate::Durable(sequence) | Fate::Kept(sequence) = fate {
                assert!(!withdrawn.contains(sequence), "acknowledged record {id} is withdrawn");
            }
            match *fate {
                Fate::Durable(sequence) => assert_eq!(found, Some(sequence), "durable record {id}"),
                Fate::Kept(sequence) if power && (sequence >= self.durable || self.doubtful.contains(id)) => {
                    assert!(found.is_none_or(|found| found == sequence), "record {id} moved");
                }
                Fate::Kept(sequence) => assert_eq!(found, Some(sequence), "acknowledged record {id}"),
                Fate::Refused => assert_eq!(found, None, "refused record {id}"),
                Fate::Unknown => {}
            }
        }
        let lost: Vec<_> = findings.iter().filter_map(|finding| finding.lost).collect();
        let mut expected = 1;
        for Seen { sequence, .. } in seen {
            for missing in expected..*sequence {
                let reported = lost.iter().any(|(first, last)| (*first..=*last).contains(&missing));
                assert!(
                    reported || self.doubt,
                    "sequence {missing} is missing and no finding reports it: {findings:?}"
                );
            }
            expected = sequence + 1;
        }
        if !self.doubt {
            let bad: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
            assert!(bad.is_empty(), "{bad:?}");
        }
    }

    /// While the writer runs, a reader gets all acknowledged records. A record that was written completely
    /// although the write reported an error, and that could not be removed, is visible until the log
    /// continues in another segment.
    fn check_live(&mut self, log: &Log) {
        if log.status().error.is_some() {
            self.forget_refusals();
        }
        if !self.machine.fs.is_dead() {
            let (seen, findings) = read(&self.machine);
            self.check(&seen, &findings, false);
            let current = log.status().segment;
            let ragged = findings.iter().any(|finding| finding.segment == current);
            assert!(!ragged || self.faults.truncate > 0, "a failed write left bytes behind: {findings:?}");
        }
    }

    /// Opens the log again. Recovery keeps the records that a reader found before, and reports its changes.
    fn check_after(&mut self) {
        let (before, _) = read(&self.machine);
        let (log, recovery) = self.open();
        let (after, findings) = read(&self.machine);
        assert!(after.starts_with(&before), "recovery changed records");
        let records: Vec<&RecoveryRecord> = after[before.len()..]
            .iter()
            .map(|seen| match &seen.record {
                log_record::Record::Recovery(record) => record,
                other => panic!("recovery wrote {other:?}"),
            })
            .collect();
        if log.available() {
            assert_eq!(records.iter().map(|record| record.bytes_cut).sum::<u64>(), recovery.bytes_cut);
            let unchanged = !recovery.unclean && recovery.quarantined.is_empty();
            assert!(unchanged || !records.is_empty(), "recovery changed the log without a record of it");
        }
        self.check(&after, &findings, true);
        // The remaining records are those of the log now, and recovery has synced them.
        let present = ids(&after);
        let withdrawn = withdrawn(&after);
        for (id, fate) in &mut self.fates {
            *fate = match present.get(id) {
                None => Fate::Refused,
                Some(sequence) if withdrawn.contains(sequence) => Fate::Unknown,
                Some(sequence) => Fate::Kept(*sequence),
            };
        }
        self.durable = log.status().durable_sequence;
        self.outcomes.clear();
        for seen in &after {
            if let log_record::Record::Outcome(outcome) = &seen.record {
                let key = (outcome.decision_id.parse().unwrap(), outcome.kind.parse().unwrap());
                let top = self.outcomes.entry(key).or_insert((outcome.revision, outcome.value));
                if outcome.revision > top.0 {
                    *top = (outcome.revision, outcome.value);
                }
            }
        }
        self.check_index(&recovery.outcomes);
        if log.seal().is_err() {
            self.doubt(self.durable);
        }
        self.machine.fs.kill();
    }

    /// Asserts that the index equals the result of a naive pass over the log.
    fn check_index(&self, index: &OutcomeIndex) {
        let never = || -> std::future::Ready<Result<u64, LogError>> {
            panic!("a recorded outcome is not in the index")
        };
        for (&(decision, kind), &(revision, value)) in &self.outcomes {
            let (decision, kind) = (decision.to_string(), kind.to_string());
            let key = OutcomeKey { checkpoint: "c", decision_id: &decision, kind: &kind, proven: true };
            assert_eq!(
                block_on(index.record(key, revision, value, RATE, never)).unwrap(),
                Outcome::Duplicate
            );
            let conflict = block_on(index.record(key, revision, value + 1.0, RATE, never)).unwrap();
            assert_eq!(conflict, Outcome::Conflict { recorded: value });
        }
        assert_eq!(index.outcomes(), self.outcomes.len());
        for (id, fate) in &self.fates {
            if matches!(fate, Fate::Kept(_)) {
                assert!(index.decision_known("c", &id.to_string()), "decision {id}");
            }
        }
    }
}

fn history(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..2 + world.rng.below(4) {
        world.live();
    }
}

/// Runs every seed. The panic names the first failing seed and the command that repeats it.
fn for_seeds(test: &str, default: u64, run: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match number("SCORER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SCORER_SIM_SEEDS").unwrap_or(default),
    };
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| run(seed));
        if std::panic::catch_unwind(run).is_err() {
            panic!(
                "seed {seed} fails; again: SCORER_SIM_SEED={seed} cargo test -p scorer-log --test simulator {test}"
            );
        }
    }
}

/// Fault case 72.
#[test]
fn guarantees_hold_through_faults_and_crashes() {
    for_seeds("guarantees_hold_through_faults_and_crashes", 3000, history);
}

/// Inverts one bit at any place. Every other record is still read, the loss is reported, and opening the log
/// keeps a copy and continues.
fn flipped(seed: u64) {
    let mut world = World::new(seed);
    world.faults = Faults::default();
    let (log, _) = world.open();
    for _ in 0..20 + world.rng.below(40) {
        world.append(&log, Durability::Written);
        if world.rng.chance(100) {
            log.sync().unwrap();
        }
    }
    let sealed = world.rng.chance(500);
    if sealed {
        log.seal().unwrap();
    }
    world.machine.fs.kill();
    drop(log);
    let (whole, findings) = read(&world.machine);
    assert_eq!(findings, []);

    let mut segments = world.machine.fs.files();
    segments.retain(|(path, _)| path.extension().is_some_and(|extension| extension == "seg"));
    let at = usize::try_from(world.rng.below(segments.len() as u64)).unwrap();
    let (path, len) = segments[at].clone();
    let offset = world.rng.below(len);
    let bit = u8::try_from(world.rng.below(8)).unwrap();
    world.machine.fs.flip(&path, offset, bit);

    let (rest, findings) = read(&world.machine);
    let missing: Vec<u64> =
        whole.iter().filter(|seen| !rest.contains(seen)).map(|seen| seen.sequence).collect();
    assert!(rest.iter().all(|seen| whole.contains(seen)), "no record may be invented");
    assert!(missing.len() <= 1, "one bit may damage at most one record: {missing:?}");
    let lost: Vec<u64> =
        findings.iter().filter_map(|finding| finding.lost).flat_map(|(first, last)| first..=last).collect();
    let torn = findings.iter().any(|finding| finding.kind == FindingKind::TornTail);
    let last = whole.last().map(|seen| seen.sequence);
    if torn {
        // A damaged last record cannot be distinguished from an incomplete one.
        assert!(!sealed || missing.is_empty(), "a sealed segment has no torn tail");
        assert!(missing.is_empty() || missing.last() == last.as_ref());
    } else {
        assert_eq!(lost, missing, "{findings:?}");
    }
    if !missing.is_empty() && !torn {
        assert!(findings.iter().any(|finding| finding.severity == Severity::Error), "{findings:?}");
    }

    let (log, recovery) = world.open();
    let damaged = findings.iter().any(|finding| finding.severity == Severity::Error);
    assert_eq!(recovery.quarantined.is_empty(), !damaged, "{findings:?}");
    let (after, _) = read(&world.machine);
    assert!(after.starts_with(&rest));
    for name in &recovery.quarantined {
        let copies = world.machine.fs.files();
        assert!(copies.iter().any(|(copy, size)| copy == &Path::new(DIR).join(name) && *size == len));
    }
    let copies = after[rest.len()..].iter().filter(|seen| {
        matches!(&seen.record, log_record::Record::Recovery(record) if record.finding.contains("segment"))
    });
    assert_eq!(copies.count(), recovery.quarantined.len());
    let next = log.append(&decision(u64::MAX, 1), Durability::Written).unwrap();
    assert!(next > after.last().map(|seen| seen.sequence));
    drop(log);
    let (log, again) = world.open();
    assert!(again.quarantined.is_empty(), "the same damage is copied once");
    drop(log);
}

/// Fault case 75.
#[test]
fn a_flipped_bit_damages_one_record_and_is_reported() {
    for_seeds("a_flipped_bit_damages_one_record_and_is_reported", 3000, flipped);
}
