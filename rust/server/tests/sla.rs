//! The enforced SLA: requests that are shed, fall back or are discarded, and that no resources leak.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::support::*;
use scorer_core::bundle::testing;
use scorer_proto::v1::Served;
use scorer_server::{Fault, LaneTable};
use serde_json::{Value, json};
use tonic::{Code, Request};

/// Longer than the limit for work on the calling thread.
const POOLED: Duration = Duration::from_millis(1);

fn why(served: Option<Served>) -> (String, String) {
    served.map(|served| (served.fallback_source, served.fallback_reason)).unwrap_or_default()
}

fn is(source: &str, reason: &str) -> (String, String) {
    (source.to_owned(), reason.to_owned())
}

/// The sum of a metric's samples whose line contains all of `labels`.
async fn count(setup: &Setup, name: &str, labels: &[&str]) -> u64 {
    let text = setup.metrics().await;
    let lines = text.lines().filter(|line| line.starts_with(&format!("scorer_{name}")));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// Waits until a metric has a value.
async fn until(setup: &Setup, name: &str, labels: &[&str], wanted: u64) {
    let state = format!("{name} {labels:?} is {wanted}");
    let wait = patience(&state);
    while count(setup, name, labels).await != wanted {
        wait();
        tokio::task::yield_now().await;
    }
}

/// Fault case 5.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_model_is_replaced_by_the_fallback_and_its_result_is_discarded() {
    for (method, checkpoint) in [("score", FRAUD), ("select", ACTION)] {
        let setup = start_with(|config| config["checkpoints"][checkpoint]["p99_ms"] = json!(300.0));
        setup.server.assume_cost(checkpoint, POOLED);
        let barrier = Arc::new(Barrier::new(2));
        setup.server.inject("slow", Fault::Meet(Arc::clone(&barrier)));
        let mut client = setup.client().await;
        // The evaluation is blocked until the reply has arrived.
        let answered = if method == "score" {
            why(client.score(score("slow", 5000.0)).await.unwrap().into_inner().served)
        } else {
            let reply = client.select_action(select("slow", 250.0)).await.unwrap().into_inner();
            assert_eq!((reply.propensity, reply.logged), (1.0, true));
            why(reply.served)
        };
        assert_eq!(answered, is("static", "late"), "{method}");
        assert_eq!(count(&setup, "late_results_total", &[checkpoint]).await, 0);
        tokio::task::spawn_blocking(move || {
            barrier.wait();
            barrier.wait();
        })
        .await
        .unwrap();
        until(&setup, "late_results_total", &[checkpoint], 1).await;
        until(&setup, "admitted_running", &[], 0).await;
        let decisions = setup.decisions();
        assert_eq!(decisions.len(), 1, "one request, one record");
        assert_eq!((&*decisions[0].fallback_source, &*decisions[0].fallback_reason), ("static", "late"));
    }
}

/// Fault case 12.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_expires_while_it_waits_is_never_evaluated() {
    let setup = start_with(|config| config["threads"] = json!(1));
    setup.server.assume_cost(FRAUD, POOLED);
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject("first", Fault::Meet(Arc::clone(&barrier)));
    setup.server.inject("second", Fault::Panic);
    let mut client = setup.client().await;
    let mut other = client.clone();
    let first = tokio::spawn(async move { other.score(score("first", 1.0)).await });
    // From here on, the only thread of the pool waits at the barrier.
    let gate = Arc::clone(&barrier);
    tokio::task::spawn_blocking(move || gate.wait()).await.unwrap();
    let mut request = Request::new(score("second", 1.0));
    request.set_timeout(Duration::from_millis(200));
    match client.score(request).await {
        // On a busy machine, its deadline may have passed before admission.
        Ok(reply) => assert_eq!(why(reply.into_inner().served).0, "static"),
        Err(status) => assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}"),
    }
    tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
    assert_eq!(why(first.await.unwrap().unwrap().into_inner().served), is("", ""));
    // The pool works in order. When this request is answered, the second one has been skipped.
    client.score(score("third", 1.0)).await.unwrap();
    assert_eq!(setup.server.status().panics, 0);
    assert_eq!(count(&setup, "late_results_total", &[]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_too_little_time_are_shed_or_fall_back_and_the_mode_observe_only_counts() {
    let far_too_long = Duration::from_secs(60);
    for (mode, fallback, expected) in [
        ("enforce", true, Ok(is("static", "overload"))),
        ("enforce", false, Err(Code::DeadlineExceeded)),
        ("observe", true, Ok(is("", ""))),
        ("off", true, Ok(is("", ""))),
    ] {
        let setup = start_with(|config| {
            config["checkpoints"][FRAUD]["mode"] = json!(mode);
            if !fallback {
                config["checkpoints"][FRAUD]["fallback"] = Value::Null;
            }
        });
        setup.server.assume_cost(FRAUD, far_too_long);
        let mut client = setup.client().await;
        let reply = client.score(score("s", 1.0)).await;
        let result = reply.map(|reply| why(reply.into_inner().served)).map_err(|status| status.code());
        assert_eq!(result, expected, "{mode}");
        let shed = count(&setup, "shed_total", &[FRAUD, "deadline"]).await;
        let would_shed = count(&setup, "would_shed_total", &[FRAUD, "deadline"]).await;
        assert_eq!(
            (shed, would_shed),
            (u64::from(mode == "enforce"), u64::from(mode == "observe")),
            "{mode}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_would_wait_too_long_are_refused_at_once_without_a_retry() {
    let setup = start_with(|config| {
        config["threads"] = json!(1);
        config["checkpoints"][FRAUD]["fallback"] = Value::Null;
    });
    setup.server.assume_cost(FRAUD, Duration::from_secs(3));
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject("first", Fault::Meet(Arc::clone(&barrier)));
    let client = setup.client().await;
    let mut other = client.clone();
    let first = tokio::spawn(async move { other.score(score("first", 1.0)).await });
    let gate = Arc::clone(&barrier);
    tokio::task::spawn_blocking(move || gate.wait()).await.unwrap();
    // The SLA is ten seconds, and the fifth request would wait for twelve.
    let mut waiting = Vec::new();
    let shed = loop {
        assert!(waiting.len() < 5, "no request was shed");
        let mut other = client.clone();
        let id = format!("w{}", waiting.len());
        let mut sent = tokio::spawn(async move { other.score(score(&id, 1.0)).await });
        let before = waiting.len() as u64;
        tokio::select! {
            reply = &mut sent => break reply.unwrap().unwrap_err(),
            () = until(&setup, "admitted_waiting", &[], before + 1) => waiting.push(sent),
        }
    };
    assert_eq!(shed.code(), Code::ResourceExhausted, "{shed}");
    assert_eq!(shed.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    assert_eq!(count(&setup, "shed_total", &[FRAUD]).await, 1);
    tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
    first.await.unwrap().unwrap();
    for waited in waiting {
        waited.await.unwrap().unwrap();
    }
}

/// Fault case 14.
#[tokio::test(flavor = "multi_thread")]
async fn fallbacks_are_returned_only_within_their_caps() {
    let setup = start_with(|config| {
        config["checkpoints"][FRAUD]["caps"] = json!({
            "window_seconds": 3600, "max_count": 3, "max_total_amount": 1000, "max_single_amount": 600,
            "amount_feature": "amount", "on_cap": {"decision": "decline", "score": 1.0},
        });
        config["checkpoints"][ACTION]["caps"] = json!({"window_seconds": 3600, "max_count": 1});
    });
    let mut client = setup.client().await;
    for (id, amount, expected) in [
        ("a", 500.0, ("review", is("static", "non_finite"))),
        // The amount exceeds the cap alone, or together with the first one.
        ("b", 601.0, ("decline", is("on_cap", "exposure_cap"))),
        ("c", 501.0, ("decline", is("on_cap", "exposure_cap"))),
        ("d", 1.0, ("review", is("static", "non_finite"))),
        ("e", 1.0, ("review", is("static", "non_finite"))),
        ("f", 1.0, ("decline", is("on_cap", "exposure_cap"))),
    ] {
        setup.server.inject(id, Fault::NotFinite);
        let reply = client.score(score(id, amount)).await.unwrap().into_inner();
        assert_eq!((&*reply.decision, why(reply.served)), expected, "{id}");
    }
    for (cap, hits) in [("single", 1), ("total", 1), ("count", 1)] {
        let cap = format!("cap=\"{cap}\"");
        assert_eq!(count(&setup, "exposure_cap_hits_total", &[FRAUD, &cap]).await, hits, "{cap}");
    }
    // A retry gets the same answer and adds no exposure.
    let again = client.score(score("a", 500.0)).await.unwrap().into_inner();
    assert_eq!(again.decision, "review");

    setup.server.inject("x", Fault::NotFinite);
    setup.server.inject("y", Fault::NotFinite);
    client.select_action(select("x", 1.0)).await.unwrap();
    let refused = client.select_action(select("y", 1.0)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(refused.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    let logged = setup.decisions();
    assert_eq!(logged.iter().filter(|record| record.fallback_source == "on_cap").count(), 3);
}

/// Fault case 84.
#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_panics_repeatedly_is_taken_out_of_service() {
    let setup = start();
    let mut client = setup.client().await;
    for number in 0..3 {
        let id = format!("p{number}");
        setup.server.inject(&id, Fault::Panic);
        let reply = client.score(score(&id, 1.0)).await.unwrap().into_inner();
        assert_eq!(why(reply.served), is("static", "panic"));
    }
    let reply = client.score(score("after", 1.0)).await.unwrap().into_inner();
    assert_eq!((&*reply.decision, why(reply.served)), ("review", is("static", "breaker_open")));
    assert!(setup.events().iter().any(|event| event["event"] == "breaker_opened"));
    // The bundle of the other checkpoint is not affected.
    let selected = client.select_action(select("a", 250.0)).await.unwrap().into_inner();
    assert_eq!(why(selected.served), is("", ""));

    // If the previous bundle is in memory, it answers.
    let before = load(&setup.server, setup.directory.path(), &testing::score_files("fraud", 0.5));
    let mut table = table(2, &setup.fraud, &setup.action);
    table.previous = BTreeMap::from([(FRAUD.to_owned(), before.clone())]);
    setup.server.swap(&LaneTable { version: 2, ..table }).unwrap();
    let reply = client.score(score("instead", 1.0)).await.unwrap().into_inner();
    let served = reply.served.clone().unwrap();
    assert_eq!((served.bundle, why(reply.served)), (before, is("previous", "breaker_open")));
    assert!(reply.margin != 0.0);
}

/// Every request ends once, wherever it was when its caller cancelled: waiting for its body or for the pool,
/// in evaluation, or answered.
/// Fault case 6.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_requests_leak_no_resources() {
    const REQUESTS: u64 = 100_000;
    let setup = start();
    let client = setup.client().await;
    let print = fingerprint(&mut client.clone(), FRAUD).await;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..REQUESTS {
        // Half of them on the pool.
        let cost = if number % 2 == 0 { POOLED } else { Duration::from_micros(1) };
        if number % 500 < 2 {
            setup.server.assume_cost(FRAUD, cost);
            setup.server.assume_cost(ACTION, cost);
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (patience, kind) = (random % 40, random >> 60);
        let mut client = client.clone();
        tasks.spawn(async move {
            let call = match kind {
                0..=6 => Call::Score(score("", 1.0)),
                7 | 8 => Call::Batch(batch("", print, &[[1.0, 0.0, 0.0]; 200])),
                _ => Call::Select(select("", 1.0)),
            };
            let leave = async {
                for _ in 0..patience {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                _ = call.send(&mut client) => {}
                () = leave => {}
            }
        });
        while tasks.len() > 100 {
            tasks.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    drop(client);
    until(&setup, "inflight", &[], 0).await;
    for gauge in ["admitted_waiting", "admitted_running", "unread_waiting"] {
        until(&setup, gauge, &[], 0).await;
    }
    let arrived = count(&setup, "requests_arrived_total", &[]).await;
    let ended = count(&setup, "requests_total", &[]).await;
    assert_eq!(arrived, ended, "each request must end once");
    assert!(arrived > 1);
    // The server works as before.
    let mut client = setup.client().await;
    setup.server.assume_cost(FRAUD, Duration::from_micros(1));
    let reply = client.score(score("last", 1.0)).await.unwrap().into_inner();
    assert_eq!(why(reply.served), is("", ""));
}
