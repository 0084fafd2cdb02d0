//! A disk that stops responding, with a complete server: scores and selections continue.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure here is a failed test")]

use std::path::Path;
use std::time::Duration;

use crate::support::*;
use prost::Message as _;
use scorer_log::Reader;
use scorer_log::sim::SimMachine;
use scorer_proto::v1::{LogRecord, log_record};
use serde_json::json;

/// Far above the time of an answer.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_disk_stops_only_exploration() {
    let machine = SimMachine::new(1);
    let setup = start_in(machine.start(), |config| {
        config["log"]["dir"] = json!("/log");
        config["checkpoints"][ACTION]["p99_ms"] = json!(250.0);
    });
    let mut client = setup.client().await;
    let selected = client.select_action(select("before", 250.0)).await.unwrap().into_inner();
    assert!(selected.logged);

    machine.fs.stall(true);
    let answering = async {
        // The first selection waits for its record within its SLA, then chooses the best action.
        let late = client.select_action(select("late", 250.0)).await.unwrap().into_inner();
        assert!(!late.logged);
        assert_eq!(late.propensity, 1.0);
        // More requests of both kinds than the runtime has threads.
        for number in 0..20 {
            client.score(score(&format!("score-{number}"), 120.0)).await.unwrap();
            let number = format!("select-{number}");
            let selected = client.select_action(select(&number, 250.0)).await.unwrap().into_inner();
            assert!(!selected.logged);
            assert_eq!(selected.propensity, 1.0);
        }
        assert!(setup.metrics().await.contains("scorer_unlogged_decisions_total 21"));
        // A rollback does not wait for the disk either. The server reports its missing record by an event.
        let lanes = table(2, &setup.fraud, &setup.action);
        tokio::task::block_in_place(|| setup.server.swap(&lanes)).unwrap();
        let events = setup.events();
        let unrecorded = events.iter().find(|event| event["event"] == "lanes_not_logged").unwrap();
        assert_eq!(unrecorded["version"], 2);
    };
    tokio::time::timeout(LIMIT, answering).await.expect("a call is not answered");

    machine.fs.stall(false);
    let recovering = async {
        for number in 0.. {
            let id = format!("after-{number}");
            let selected = client.select_action(select(&id, 250.0)).await.unwrap().into_inner();
            if selected.logged {
                return id;
            }
        }
        unreachable!()
    };
    let after = tokio::time::timeout(LIMIT, recovering).await.expect("the log does not accept records again");

    setup.server.drain(LIMIT);
    let mut reader = Reader::open(machine.start().fs, Path::new("/log")).unwrap();
    let (mut decisions, mut withdrawn) = (Vec::new(), Vec::new());
    while let Some(record) = reader.next_record().unwrap() {
        match LogRecord::decode(record.payload).unwrap().record.unwrap() {
            log_record::Record::Decision(decision) if decision.checkpoint == ACTION => {
                decisions.push((record.sequence, decision.decision_id));
            }
            log_record::Record::Withdrawn(record) => withdrawn.push(record.sequence),
            _ => {}
        }
    }
    decisions.retain(|(sequence, _)| !withdrawn.contains(sequence));
    let ids: Vec<&str> = decisions.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(
        ids,
        ["before", after.as_str()],
        "a decision that was answered as unlogged must not be in the log"
    );
}
