//! A real `kill -9`: every acknowledged record is in the log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod limit;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use limit::time_limit;
use scorer_log::{Durability, Env, Log, LogConfig, Reader, RealFs, Severity};

const DIR: &str = "SCORER_LOG_KILL_DIR";

/// The child process. Until it is killed, it writes from four threads and reports each record after `append`
/// has returned.
#[test]
#[ignore = "started by the test below"]
fn child() {
    let _limit = time_limit();
    let Ok(dir) = std::env::var(DIR) else { return };
    let config = LogConfig { segment_bytes: 16 << 10, sync_ms: 2, ..LogConfig::new(&dir) };
    let (log, _) = Log::open(Env::real(), config).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let log = &log;
            scope.spawn(move || {
                for at in 0_u64.. {
                    let payload = format!("{worker}/{at}/{}", "x".repeat((at * 37 % 300) as usize));
                    let durability = if at % 50 == 49 { Durability::Sync } else { Durability::Written };
                    let sequence = log.append(payload.as_bytes(), durability).unwrap().unwrap();
                    println!("ack {sequence} {payload}");
                }
            });
        }
    });
}

/// Runs the child until it has acknowledged `records` records, kills it, and returns the acknowledged
/// records.
fn run_and_kill(dir: &Path, records: usize) -> BTreeMap<u64, String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acknowledged = BTreeMap::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut take = |line: &str| {
        let mut parts = line.split_whitespace().skip_while(|part| *part != "ack").skip(1);
        if let (Some(sequence), Some(payload)) = (parts.next(), parts.next()) {
            acknowledged.insert(sequence.parse().unwrap(), payload.to_owned());
        }
    };
    for _ in 0..records {
        take(&lines.next().unwrap().unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Records that it reported before the kill count too. Its last line may be incomplete.
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    for line in rest.iter().take(rest.len().saturating_sub(1)) {
        take(line);
    }
    acknowledged
}

/// Fault case 71.
#[test]
fn acknowledged_records_survive_kill_9() {
    let _limit = time_limit();
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = BTreeMap::new();
    for round in 0..12 {
        for (sequence, payload) in run_and_kill(dir.path(), 40 + 60 * round) {
            assert_eq!(ledger.insert(sequence, payload), None, "sequence {sequence} was given twice");
        }
    }
    let mut reader = Reader::open(Arc::new(RealFs), dir.path()).unwrap();
    let mut expected = 1;
    while let Some(record) = reader.next_record().unwrap() {
        assert_eq!(record.sequence, expected);
        expected += 1;
        if let Some(payload) = ledger.remove(&record.sequence) {
            assert_eq!(record.payload, payload.as_bytes());
        }
    }
    assert!(ledger.is_empty(), "{} acknowledged records are missing", ledger.len());
    assert!(
        reader.findings().iter().all(|finding| finding.severity == Severity::Info),
        "{:?}",
        reader.findings()
    );
}
