//! Checkpoints that are added to a running server: what is accepted, and that other checkpoints are not
//! affected.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::*;
use scorer_core::bundle::testing;
use scorer_proto::v1::{DescribeRequest, ScoreRequest};
use scorer_server::{CheckpointConfig, LaneTable, ServerError};
use serde_json::{Value, json};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const ADDED: &str = "account.opening";

fn settings(change: impl FnOnce(&mut Value)) -> CheckpointConfig {
    let mut settings =
        json!({"kind": "score", "p99_ms": 10_000.0, "fallback": {"decision": "review", "score": 0.5}});
    change(&mut settings);
    serde_json::from_value(settings).unwrap()
}

fn add(setup: &Setup) -> bool {
    setup.server.add_checkpoint(ADDED, &settings(|_| ())).unwrap()
}

/// Returns the lane table of the setup with a bundle at the added checkpoint.
fn with_added(setup: &Setup, version: u64, bundle: Option<&str>) -> LaneTable {
    let mut table = table(version, &setup.fraud, &setup.action);
    table.checkpoints.insert(ADDED.to_owned(), bundle.map(|digest| vec![lane("live", digest, 1.0)]));
    table
}

fn at_added(id: &str) -> ScoreRequest {
    ScoreRequest { checkpoint: ADDED.to_owned(), ..score(id, 250.0) }
}

async fn health(setup: &Setup, service: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(setup.channel().await);
    let request = HealthCheckRequest { service: service.to_owned() };
    client.check(request).await.map(|found| found.into_inner().status()).map_err(|status| status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_added_checkpoint_answers_from_the_next_table_on() {
    let setup = start();
    let mut client = setup.client().await;
    assert_eq!(client.score(at_added("")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(health(&setup, ADDED).await, Err(Code::NotFound));

    assert!(add(&setup));
    // The checkpoint has no bundle yet and is not in the active table.
    assert_eq!(client.score(at_added("")).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(health(&setup, ADDED).await, Ok(ServingStatus::NotServing));
    assert_eq!(health(&setup, "").await, Ok(ServingStatus::Serving));
    client.score(score("", 250.0)).await.unwrap();
    client.select_action(select("", 250.0)).await.unwrap();

    // A table must contain every checkpoint, including this one.
    let left_out = setup.server.swap(&table(2, &setup.fraud, &setup.action)).unwrap_err();
    assert!(left_out.to_string().contains(ADDED), "{left_out}");
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("opening", 0.5));
    setup.server.swap(&with_added(&setup, 2, Some(&other))).unwrap();
    let answer = client.score(at_added("an-id")).await.unwrap().into_inner();
    assert_eq!(answer.served.unwrap().bundle, other);
    assert_eq!(health(&setup, ADDED).await, Ok(ServingStatus::Serving));
    let described = client.describe(DescribeRequest { checkpoint: ADDED.to_owned() }).await.unwrap();
    assert_eq!(described.into_inner().checkpoints[0].bundle, other);

    let page = setup.metrics().await;
    let counted = format!("scorer_requests_total{{method=\"Score\",checkpoint=\"{ADDED}\",code=\"OK\"}} 1");
    assert!(page.contains(&counted), "{page}");
    assert!(page.contains(&format!("scorer_sla_promise_seconds{{checkpoint=\"{ADDED}\"}} 10")), "{page}");
    // Requests of the other checkpoints are counted at those.
    assert!(page.contains(
        "scorer_requests_total{method=\"SelectAction\",checkpoint=\"action.authorise\",code=\"OK\"} 1"
    ));
    let decisions = setup.decisions();
    let last = decisions.last().unwrap();
    assert_eq!((last.checkpoint.as_str(), last.decision_id.as_str()), (ADDED, "an-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_addition_has_no_effect_and_other_settings_are_refused() {
    let setup = start();
    assert!(add(&setup));
    assert!(!add(&setup));
    let other = settings(|settings| settings["p99_ms"] = 20.0.into());
    let error = setup.server.add_checkpoint(ADDED, &other).unwrap_err();
    assert!(
        matches!(error, ServerError::Checkpoint(_)) && error.to_string().contains("other settings"),
        "{error}"
    );
    let error = setup.server.add_checkpoint(FRAUD, &other).unwrap_err();
    assert!(error.to_string().contains("other settings"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_settings_change_nothing() {
    let setup = start();
    for (name, change, message) in [
        ("liveness", ("p99_ms", json!(10.0)), "health checks use this name"),
        ("scorer.v1.ScoringService", ("p99_ms", json!(10.0)), "health checks use this name"),
        ("two words", ("p99_ms", json!(10.0)), "letters, digits"),
        ("", ("p99_ms", json!(10.0)), "letters, digits"),
        (ADDED, ("p99_ms", json!(0.0)), "above 0"),
        // Less than admission control reserves for the reply, which depends on the configured checkpoints.
        (ADDED, ("p99_ms", json!(0.000_001)), "reply margin"),
        (ADDED, ("tier", json!(4)), "0 to 3"),
        (ADDED, ("max_batch_rows", json!(0)), "at least 1"),
        (ADDED, ("fallback", json!({"action": "3ds=none"})), "fallback"),
    ] {
        let wrong = settings(|settings| settings[change.0] = change.1.clone());
        let error = setup.server.add_checkpoint(name, &wrong).unwrap_err().to_string();
        assert!(error.contains(message), "{name} {change:?}: {error}");
    }
    // The indices by checkpoint are still consistent.
    assert!(add(&setup));
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("opening", 0.5));
    setup.server.swap(&with_added(&setup, 2, Some(&other))).unwrap();
    setup.client().await.score(at_added("")).await.unwrap();
    let page = setup.metrics().await;
    assert!(page.contains(&format!("method=\"Score\",checkpoint=\"{ADDED}\",code=\"OK\"}} 1")), "{page}");
    setup.server.drain(std::time::Duration::from_secs(5));
    assert!(matches!(setup.server.add_checkpoint("late", &settings(|_| ())), Err(ServerError::Stopped)));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_other_checkpoints_continue_while_many_are_added() {
    let setup = Arc::new(start());
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let (setup, stop) = (Arc::clone(&setup), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut client = setup.client().await;
                let mut answered = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let id = format!("{caller}-{answered}");
                    client.score(score(&id, 250.0)).await.unwrap();
                    client.select_action(select(&id, 250.0)).await.unwrap();
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    let mut table = table(2, &setup.fraud, &setup.action);
    for at in 0..200_u64 {
        let name = format!("added.{at}");
        // Every growing vector exceeds its capacity several times.
        assert!(setup.server.add_checkpoint(&name, &settings(|_| ())).unwrap());
        table.checkpoints.insert(name.clone(), Some(vec![lane("live", &setup.fraud, 1.0)]));
        table.version = 2 + at;
        setup.server.swap(&table).unwrap();
        let mut client = setup.client().await;
        let request = ScoreRequest { checkpoint: name, ..score("", 250.0) };
        client.score(request).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
    assert_eq!(health(&setup, "").await, Ok(ServingStatus::Serving));
}
