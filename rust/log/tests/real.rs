//! The log on the operating system's own file system.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

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

#[test]
fn a_second_writer_is_refused_by_name_until_the_first_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(Env::real(), LogConfig::new(dir.path())).unwrap();
    let error = Log::open(Env::real(), LogConfig::new(dir.path())).unwrap_err();
    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
    assert!(matches!(error, LogError::Locked { .. }));
    drop(log);
    Log::open(Env::real(), LogConfig::new(dir.path())).unwrap();
}
