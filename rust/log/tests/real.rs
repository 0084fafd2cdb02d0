//! The log on a real file system.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod limit;

use std::path::Path;
use std::sync::Arc;

use limit::time_limit;
use prost::Message;
use scorer_log::{Durability, Env, FindingKind, Log, LogConfig, LogError, LogState, Reader, RealFs};
use scorer_proto::v1::{DecisionRecord, LogRecord, log_record};

fn decision(id: &str) -> Vec<u8> {
    let record = DecisionRecord {
        decision_id: id.to_owned(),
        checkpoint: "action.authorise".to_owned(),
        propensity: 0.25,
        features: vec![1.0, f32::NAN, 3.5],
        ..DecisionRecord::default()
    };
    LogRecord { record: Some(log_record::Record::Decision(record)) }.encode_to_vec()
}

fn read(dir: &Path) -> (Vec<(u64, Vec<u8>)>, Vec<FindingKind>) {
    let mut reader = Reader::open(Arc::new(RealFs), dir).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.sequence, record.payload.to_vec()));
    }
    (records, reader.findings().iter().map(|finding| finding.kind).collect())
}

fn segments(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    names.sort();
    names
}

#[test]
fn both_routes_share_one_gap_free_sequence_and_a_reader_sees_them_live() {
    let _limit = time_limit();
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig { segment_bytes: 4096, ..LogConfig::new(dir.path()) };
    let (log, recovery) = Log::open(Env::real(), config.clone()).unwrap();
    assert_eq!(recovery.next_sequence, 1);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for i in 0..250 {
                    let durability = [Durability::Written, Durability::Async][i % 2];
                    log.append(&decision(&format!("{worker}/{i}")), durability).unwrap();
                }
            });
        }
    });
    log.append(&decision("sync"), Durability::Sync).unwrap();
    assert_eq!(log.status().state, LogState::Ok);
    let (live, findings) = read(dir.path());
    assert!(live.len() >= 501, "written records are readable at once");
    for start in [0, 1, 2, 100, 333, 500, live.len() as u64, 10_000] {
        let mut reader = Reader::open(Arc::new(RealFs), dir.path()).unwrap().starting_at(start);
        let mut rest = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            rest.push((record.sequence, record.payload.to_vec()));
        }
        let expected: Vec<_> = live.iter().filter(|(sequence, _)| *sequence >= start).cloned().collect();
        assert!(rest.starts_with(&expected), "from {start}: these records and later ones");
    }
    assert_eq!(findings, []);
    log.seal().unwrap();
    let (records, findings) = read(dir.path());
    assert_eq!(
        records.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(),
        (1..=1001).collect::<Vec<_>>()
    );
    assert_eq!(findings, []);
    assert!(segments(dir.path()).len() > 5, "small segments rotate");

    let (log, recovery) = Log::open(Env::real(), config).unwrap();
    assert!(!recovery.unclean);
    assert_eq!(recovery.next_sequence, 1002);
    assert!(recovery.outcomes.decision_known("action.authorise", "3/249"));
    assert!(!recovery.outcomes.decision_known("action.authorise", "4/0"));
    assert!(matches!(log.seal(), Ok(())));
    assert!(matches!(log.append(b"x", Durability::Written), Err(LogError::Closed)));
    assert!(matches!(log.append(b"x", Durability::Async), Err(LogError::Closed)));
}

/// Fault case 76.
#[test]
fn a_second_writer_is_refused_by_name_until_the_first_is_gone() {
    let _limit = time_limit();
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(Env::real(), LogConfig::new(dir.path())).unwrap();
    let error = Log::open(Env::real(), LogConfig::new(dir.path())).unwrap_err();
    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
    assert!(matches!(error, LogError::Locked { .. }));
    drop(log);
    Log::open(Env::real(), LogConfig::new(dir.path())).unwrap();
}

/// Truncates the newest segment in the middle of its last record.
fn tear(dir: &Path) {
    let last = segments(dir).pop().unwrap();
    let len = std::fs::metadata(&last).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(last).unwrap().set_len(len - 5).unwrap();
}

fn stopped_uncleanly(records: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig { background: false, ..LogConfig::new(dir.path()) };
    let (log, _) = Log::open(Env::real(), config).unwrap();
    for at in 0..records {
        log.append(&decision(&at.to_string()), Durability::Written).unwrap();
    }
    // The log is copied while it is open. The copy has no seal, as after a kill.
    let copy = tempfile::tempdir().unwrap();
    for path in segments(dir.path()) {
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

#[test]
fn a_torn_tail_is_cut_and_recorded() {
    let _limit = time_limit();
    let dir = stopped_uncleanly(3);
    tear(dir.path());
    assert_eq!(read(dir.path()).1, [FindingKind::TornTail]);
    let (log, recovery) = Log::open(Env::real(), LogConfig::new(dir.path())).unwrap();
    assert!(recovery.unclean);
    assert_eq!(recovery.next_sequence, 3);
    assert_eq!(log.append(&decision("next"), Durability::Written).unwrap(), Some(4));
    log.seal().unwrap();
    let (records, findings) = read(dir.path());
    assert_eq!(findings, []);
    assert_eq!(records.len(), 4);
    let Some(log_record::Record::Recovery(recorded)) = LogRecord::decode(&*records[2].1).unwrap().record
    else {
        panic!("sequence 3 records the recovery")
    };
    assert_eq!((recorded.bytes_cut, recorded.last_sequence), (recovery.bytes_cut, 2));
    assert!(recorded.finding.contains("torn tail cut"));
}

/// Fault case 75.
#[test]
fn another_segment_s_bytes_never_validate() {
    let _limit = time_limit();
    let dir = stopped_uncleanly(2);
    let other = stopped_uncleanly(3);
    let (mine, theirs) = (segments(dir.path()).pop().unwrap(), segments(other.path()).pop().unwrap());
    let mut bytes = std::fs::read(&mine).unwrap();
    // A recycled block with the complete third record of the other log, whose sequence is the next one of
    // this log.
    bytes.extend_from_slice(&std::fs::read(&theirs).unwrap()[bytes.len()..]);
    std::fs::write(&mine, bytes).unwrap();
    let (records, findings) = read(dir.path());
    assert_eq!((records.len(), findings), (2, vec![FindingKind::TornTail]));
}

#[test]
fn records_that_are_too_large_are_refused_and_change_nothing() {
    let _limit = time_limit();
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig { max_unsynced_bytes: 8192, ..LogConfig::new(dir.path()) };
    let (log, _) = Log::open(Env::real(), config).unwrap();
    let error = log.append(&[0; 2049], Durability::Written).unwrap_err();
    assert!(matches!(error, LogError::TooLarge { bytes: 2049, max: 2048 }), "{error}");
    assert!(matches!(log.append(&[0; 2049], Durability::Async), Err(LogError::TooLarge { .. })));
    assert_eq!(log.append(&[0; 2048], Durability::Sync).unwrap(), Some(1));
}

#[test]
fn settings_out_of_range_are_refused() {
    let _limit = time_limit();
    for config in [
        LogConfig { segment_bytes: 100, ..LogConfig::new("unused") },
        LogConfig { sync_ms: 0, ..LogConfig::new("unused") },
        LogConfig { queue_records: 0, ..LogConfig::new("unused") },
    ] {
        assert!(matches!(Log::open(Env::real(), config), Err(LogError::Config { .. })));
    }
    assert!(!Path::new("unused").exists());
}

#[test]
fn directories_without_a_log_are_refused_by_name() {
    let _limit = time_limit();
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = Reader::open(Arc::new(RealFs), &missing).unwrap_err().to_string();
    assert!(error.contains("missing") && error.contains("no such directory"), "{error}");
    let error = Reader::open(Arc::new(RealFs), dir.path()).unwrap_err().to_string();
    assert!(error.contains("holds no segments"), "{error}");
}

#[test]
fn only_owner_and_group_can_read_the_log() {
    use std::os::unix::fs::PermissionsExt as _;

    let _limit = time_limit();
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("logs").join("decisions");
    let (log, _) = Log::open(Env::real(), LogConfig::new(&dir)).unwrap();
    log.append(&decision("d"), Durability::Sync).unwrap();
    log.seal().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir) & 0o027, 0);
    assert_eq!(mode(dir.parent().unwrap()) & 0o027, 0);
    for entry in std::fs::read_dir(&dir).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()) & 0o137, 0);
    }
}
