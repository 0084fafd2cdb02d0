//! Internal faults: the request is still answered, and the reply gives the reason.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::time::Duration;

use crate::support::*;
use scorer_log::sim::SimMachine;
use scorer_proto::v1::{SelectActionRequest, Served};
use scorer_server::Fault;
use serde_json::{Value, json};
use tonic::Code;

fn fallback(served: Option<Served>) -> (String, String) {
    let served = served.unwrap();
    (served.fallback_source, served.fallback_reason)
}

fn of(source: &str, reason: &str) -> (String, String) {
    (source.to_owned(), reason.to_owned())
}

/// Fault case 84.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_one_request_gets_the_static_answer_and_affects_no_other() {
    let setup = start();
    let mut client = setup.client().await;
    let good = client.score(score("good", 5000.0)).await.unwrap().into_inner();
    setup.server.inject("s", Fault::Panic);
    setup.server.inject("a", Fault::Panic);
    let scored = client.score(score("s", 5000.0)).await.unwrap().into_inner();
    assert_eq!((scored.score, &*scored.decision), (0.5, "review"));
    assert_eq!(fallback(scored.served), of("static", "panic"));
    let mut request = SelectActionRequest { include_pmf: true, ..select("a", 250.0) };
    request.eligible = eligible(&[], &[0b11]);
    let selected = client.select_action(request).await.unwrap().into_inner();
    assert_eq!((&*selected.action, selected.propensity), ("3ds=none|exemption=none", 1.0));
    assert_eq!(selected.pmf, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(selected.logged);
    assert_eq!(fallback(selected.served), of("static", "panic"));
    let again = client.score(score("again", 5000.0)).await.unwrap().into_inner();
    assert_eq!(
        (again.score, &again.decision),
        (good.score, &good.decision),
        "the thread must answer as before"
    );

    assert_eq!(setup.server.status().panics, 2);
    let panics: Vec<Value> = setup.events().into_iter().filter(|event| event["event"] == "panic").collect();
    assert_eq!(panics.len(), 2);
    assert_eq!((&panics[0]["in"], &panics[0]["error"]), (&json!("evaluation"), &json!("injected")));
    let metrics = setup.metrics().await;
    assert!(metrics.contains(
        "scorer_fallbacks_total{checkpoint=\"fraud.checkout\",source=\"static\",reason=\"panic\"} 1"
    ));
    let decisions = setup.decisions();
    let logged = |id: &str| decisions.iter().find(|decision| decision.decision_id == id).unwrap().clone();
    assert_eq!((logged("s").score, logged("s").fallback_reason), (0.5, "panic".to_owned()));
    let selected = logged("a");
    assert_eq!(
        (selected.propensity, selected.eligible_mask, &*selected.fallback_source),
        (1.0, vec![0b11], "static")
    );
    assert_eq!(selected.pmf, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_static_answer_the_error_has_an_id_and_no_internals() {
    let setup = start_with(|config| {
        config["checkpoints"][FRAUD]["fallback"] = Value::Null;
    });
    let mut client = setup.client().await;
    setup.server.inject("s", Fault::Panic);
    setup.server.inject("n", Fault::NotFinite);
    // The static action exists, but this request does not allow it.
    setup.server.inject("a", Fault::Panic);
    let not_eligible = SelectActionRequest { eligible: eligible(&[], &[0b10]), ..select("a", 1.0) };
    let calls = [Call::Score(score("s", 1.0)), Call::Score(score("n", 1.0)), Call::Select(not_eligible)];
    let mut ids = Vec::new();
    for call in calls {
        let status = call.send(&mut client).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("injected"), "{}", status.message());
        let rest = status.message().strip_prefix("internal error, id ").unwrap();
        ids.push(rest.split(';').next().unwrap().to_owned());
    }
    let error_ids: Vec<String> = setup
        .events()
        .iter()
        .filter(|event| event["level"] == "error")
        .map(|event| event["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(error_ids, ids, "the log of the server must contain each id");
    assert!(setup.decisions().is_empty());
}

/// Fault case 67.
#[tokio::test(flavor = "multi_thread")]
async fn a_score_that_is_not_a_number_gets_the_static_answer() {
    let setup = start();
    let mut client = setup.client().await;
    for id in ["s", "a", "b"] {
        setup.server.inject(id, Fault::NotFinite);
    }
    let scored = client.score(score("s", 1.0)).await.unwrap().into_inner();
    assert_eq!(fallback(scored.served), of("static", "non_finite"));
    let selected = client.select_action(select("a", 1.0)).await.unwrap().into_inner();
    assert_eq!(fallback(selected.served), of("static", "non_finite"));
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    let request = batch("b", fingerprint, &[[1.0, 0.0, 0.0]; 2]);
    let batch = client.score_batch(request).await.unwrap().into_inner();
    assert_eq!(batch.scores, [0.5, 0.5]);
    assert_eq!(
        batch.decisions.iter().map(|&at| &*batch.labels[at as usize]).collect::<Vec<_>>(),
        ["review"; 2]
    );
    assert_eq!(fallback(batch.served), of("static", "non_finite"));
    assert_eq!(setup.server.status().panics, 0);
}

/// Fault case 73.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_only_exploration() {
    let machine = SimMachine::new(7);
    let setup = start_in(machine.start(), |_| ());
    let mut client = setup.client().await;
    let explored = client.select_action(select("before", 250.0)).await.unwrap().into_inner();
    assert!(explored.logged && explored.propensity < 1.0);

    machine.fs.set_capacity(machine.fs.used());
    let request = SelectActionRequest { include_pmf: true, ..select("during", 250.0) };
    let during = client.select_action(request.clone()).await.unwrap().into_inner();
    assert_eq!((during.propensity, during.logged), (1.0, false));
    assert_eq!(fallback(during.served.clone()), of("greedy", "log_unavailable"));
    assert_eq!(during.pmf.iter().sum::<f32>(), 1.0);
    assert_eq!(during.pmf[during.action_index as usize], 1.0);
    // With any id, no action is drawn and the same best action is chosen.
    for number in 0..20 {
        let other = client.select_action(select(&format!("d{number}"), 250.0)).await.unwrap().into_inner();
        assert_eq!((other.action, other.propensity), (during.action.clone(), 1.0));
    }
    let again = client.select_action(request).await.unwrap().into_inner();
    assert!(again.replayed && !again.logged);
    let scored = client.score(score("s", 1.0)).await.unwrap().into_inner();
    assert_eq!(fallback(scored.served), of("", ""));
    let status = client.report_outcome(outcome("before", "authorised", 1.0, 0)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("report it again later"), "{}", status.message());
    // While the log writes, its status is that of the call before.
    let state = || setup.server.status().log.unwrap().status.state;
    eventually("the log is unavailable", || state() == scorer_log::LogState::Unavailable).await;
    assert!(setup.metrics().await.contains("scorer_log_available 0"));

    // With free space, the log recovers by itself, and exploration resumes.
    machine.fs.set_capacity(u64::MAX);
    let mut number = 0;
    let wait = patience("the log recovers");
    let recovered = loop {
        wait();
        machine.clock.advance(Duration::from_secs(1));
        let id = format!("after{number}");
        let response = client.select_action(select(&id, 250.0)).await.unwrap().into_inner();
        // The record of an answer without exploration can be the one that finds free space.
        let exploiting = fallback(response.served.clone()) == of("greedy", "log_unavailable");
        if response.logged && !exploiting {
            break response;
        }
        number += 1;
        tokio::task::yield_now().await;
    };
    assert_eq!(fallback(recovered.served), of("", ""));
    client.report_outcome(outcome("before", "authorised", 1.0, 0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_log_nothing_is_explored() {
    let setup = start_with(|config| config["log"] = Value::Null);
    let mut client = setup.client().await;
    for number in 0..20 {
        let response = client.select_action(select(&format!("a{number}"), 250.0)).await.unwrap().into_inner();
        assert_eq!((response.propensity, response.logged), (1.0, false));
        assert_eq!(fallback(response.served), of("greedy", "log_off"));
    }
    let scored = client.score(score("s", 1.0)).await.unwrap().into_inner();
    assert_eq!(fallback(scored.served), of("", ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_durabilities_sync_and_async_work() {
    for durability in ["sync", "async", "written"] {
        let setup = start_with(|config| {
            for checkpoint in [FRAUD, ACTION] {
                config["checkpoints"][checkpoint]["durability"] = json!(durability);
            }
        });
        let mut client = setup.client().await;
        for number in 0..20 {
            client.score(score(&format!("s{number}"), 1.0)).await.unwrap();
            let id = format!("a{number}");
            assert!(
                client.select_action(select(&id, 1.0)).await.unwrap().into_inner().logged,
                "{durability}"
            );
        }
        assert_eq!(setup.decisions().len(), 40, "{durability}");
    }
}
