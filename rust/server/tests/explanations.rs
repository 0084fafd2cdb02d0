//! `Explain` over gRPC: replies, refusals, and its place beside the answers.

#![allow(clippy::panic, reason = "a failure here is a failed test")]

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::support::*;
use scorer_proto::v1::feature::Value;
use scorer_proto::v1::{
    DenseFeatures, DescribeRequest, ExplainRequest, Explanation, NamedFeatures, ReasonDirection,
    explain_request,
};
use scorer_server::Fault;
use serde_json::json;
use tonic::{Code, Request};

const NONE: &str = "3ds=none|exemption=none";
const CHALLENGE: &str = "3ds=challenge|exemption=none";

fn dense(fingerprint: u64, values: &[f32]) -> ExplainRequest {
    let dense = DenseFeatures { schema_fingerprint: fingerprint, values: values.to_vec() };
    ExplainRequest { features: Some(explain_request::Features::Dense(dense)), ..explain(0.0) }
}

fn sum(explanation: &Explanation) -> f64 {
    explanation.baseline + explanation.contributions.iter().map(|one| one.amount).sum::<f64>()
}

fn counted(metrics: &str, metric: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(metric));
    line.unwrap_or_else(|| panic!("no {metric} in {metrics}")).trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_score_is_explained_by_name_and_densely() {
    let setup = start_explained(|_| ());
    let mut client = setup.client().await;
    let request = ExplainRequest { reasons: 5, ..explain(500.0) };
    let reply = client.explain(request).await.unwrap().into_inner();
    let answer = client.score(score("a", 500.0)).await.unwrap().into_inner();
    assert_eq!(reply.bundle, setup.fraud);
    let explanation = reply.explanation.unwrap();
    assert_eq!((explanation.margin, explanation.score), (answer.margin, answer.score));
    assert!((sum(&explanation) - answer.margin).abs() < 1e-6, "{explanation:?}");
    let expected = [("amount", 1.0), ("country", 0.0), ("night", -0.0625)];
    assert_eq!(explanation.contributions.len(), expected.len());
    for (found, (feature, amount)) in explanation.contributions.iter().zip(expected) {
        assert!(found.feature == feature && (found.amount - amount).abs() < 1e-12, "{found:?}");
    }
    let (reason, first) = (&explanation.reasons[0], explanation.contributions[0].amount);
    assert_eq!(
        (reason.code.as_str(), reason.feature.as_str(), reason.contribution),
        ("R01", "amount", first)
    );
    assert_eq!(reason.direction(), ReasonDirection::Raises);
    assert_eq!(explanation.reasons[1].direction(), ReasonDirection::Lowers);
    assert!(reply.against.is_none() && reply.difference.is_none() && explanation.action.is_empty());
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    let again = client.explain(dense(fingerprint, &[500.0, 0.0, 0.0])).await.unwrap().into_inner();
    assert_eq!(again.explanation.unwrap().contributions, explanation.contributions);
    let metrics = setup.metrics().await;
    assert_eq!(counted(&metrics, "scorer_explanation_seconds_count"), 2);
    assert_eq!(counted(&metrics, "scorer_explanations_inflight"), 0);
    let requests = "scorer_requests_total{method=\"Explain\",checkpoint=\"fraud.checkout\",code=\"OK\"}";
    assert_eq!(counted(&metrics, requests), 2);
    assert_eq!(setup.decisions().len(), 1, "an explanation is no decision");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_is_explained_against_another() {
    let setup = start_explained(|_| ());
    let mut client = setup.client().await;
    let reply = client.explain(explain_action(CHALLENGE, NONE)).await.unwrap().into_inner();
    let [explanation, against, difference] =
        [reply.explanation, reply.against, reply.difference].map(Option::unwrap);
    assert_eq!(
        (explanation.action.as_str(), against.action.as_str(), difference.action.as_str()),
        (CHALLENGE, NONE, "")
    );
    for (at, one) in difference.contributions.iter().enumerate() {
        let expected = explanation.contributions[at].amount - against.contributions[at].amount;
        assert_eq!((&one.feature, one.amount), (&explanation.contributions[at].feature, expected));
    }
    assert!((sum(&difference) - (explanation.margin - against.margin)).abs() < 1e-6);
    assert_eq!((difference.baseline, difference.margin), (0.0, explanation.margin - against.margin));
}

/// Fault case 95.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_are_refused_by_field() {
    let setup = start_explained(|config| config["max_message_bytes"] = json!(4096));
    let mut client = setup.client().await;
    let digest = format!("sha256:{}", "0".repeat(64));
    let at = |checkpoint: &str| checkpoint.to_owned();
    let features = |features| ExplainRequest { features, ..explain(1.0) };
    let named_as = |values: &[(&str, Value)]| features(Some(explain_request::Features::Named(named(values))));
    let many = NamedFeatures { features: vec![Default::default(); 1900] };
    for (request, code, words) in [
        (
            ExplainRequest { checkpoint: at("nope"), ..explain(1.0) },
            Code::NotFound,
            "\"nope\" is not configured",
        ),
        (features(None), Code::InvalidArgument, "features: neither"),
        (named_as(&[("amount", Value::Number(f64::NAN))]), Code::InvalidArgument, "amount"),
        (named_as(&[("colour", Value::Number(1.0))]), Code::InvalidArgument, "colour"),
        (
            named_as(&[("country", Value::Category("4111111111111111".to_owned()))]),
            Code::InvalidArgument,
            "card",
        ),
        (dense(1, &[1.0, 0.0, 0.0]), Code::FailedPrecondition, "schema_fingerprint"),
        (ExplainRequest { bundle: "sha256:1".to_owned(), ..explain(1.0) }, Code::InvalidArgument, "bundle: "),
        (ExplainRequest { bundle: digest, ..explain(1.0) }, Code::NotFound, "does not answer or observe"),
        (ExplainRequest { bundle: setup.action.clone(), ..explain(1.0) }, Code::NotFound, "does not answer"),
        (
            ExplainRequest { action: NONE.to_owned(), ..explain(1.0) },
            Code::InvalidArgument,
            "leave the field out",
        ),
        (explain_action("", ""), Code::InvalidArgument, "name an action"),
        (explain_action("x".repeat(2000).as_str(), ""), Code::InvalidArgument, "action: "),
        (explain_action(NONE, NONE), Code::InvalidArgument, "against: "),
        (ExplainRequest { reasons: u32::MAX, ..explain(1.0) }, Code::InvalidArgument, "at most 32"),
        (features(Some(explain_request::Features::Named(many))), Code::InvalidArgument, "not in the schema"),
        (explain_action("y".repeat(5000).as_str(), ""), Code::ResourceExhausted, ""),
    ] {
        let status = client.explain(request.clone()).await.expect_err(words);
        assert_eq!(status.code(), code, "{words}: {}", status.message());
        assert!(status.message().contains(words), "{words:?} is not in {:?}", status.message());
        assert!(!status.message().contains('\n') && status.message().len() < 400, "{}", status.message());
    }
    client.explain(explain(1.0)).await.unwrap();
    assert_eq!(setup.server.explaining(), 0);
}

/// Explanations that hang on their only thread keep neither answers from their threads nor each other from being
/// refused. Nothing here depends on time: a request that shared their thread or places would never be answered.
///
/// Fault case 96.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_explanations_take_no_place_of_answers() {
    const PLACES: usize = 4;
    let setup = start_explained(|config| {
        config["threads"] = json!(1);
        config["explain_queue"] = json!(PLACES);
    });
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject_explanations(Fault::Meet(Arc::clone(&barrier)));
    let mut client = setup.client().await;
    let hanging: Vec<_> = (0..PLACES)
        .map(|_| {
            let mut client = client.clone();
            let mut request = Request::new(explain(500.0));
            request.set_timeout(Duration::from_secs(60));
            tokio::spawn(async move { client.explain(request).await })
        })
        .collect();
    eventually("every place is taken", || setup.server.explaining() == PLACES).await;
    let status = client.explain(explain(500.0)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("4 explanations wait or run, the limit"), "{}", status.message());
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    for number in 0..50 {
        let answer = client.score(score(&format!("s{number}"), 500.0)).await.unwrap().into_inner();
        assert_eq!(answer.served.unwrap().fallback_source, "");
    }
    client.select_action(select("a", 500.0)).await.unwrap();
    client.describe(DescribeRequest::default()).await.unwrap();
    let metrics = setup.metrics().await;
    assert_eq!(counted(&metrics, "scorer_explanations_inflight"), PLACES as u64);
    assert_eq!(counted(&metrics, "scorer_explanations_limit"), PLACES as u64);
    assert_eq!(counted(&metrics, "scorer_explanations_refused_total{reason=\"full\"}"), 1);
    let free = move || (0..2 * PLACES).for_each(|_| _ = barrier.wait());
    tokio::task::spawn_blocking(free).await.unwrap();
    for answer in hanging {
        assert_eq!(answer.await.unwrap().unwrap().into_inner().bundle, setup.fraud);
    }
    assert_eq!(setup.server.explaining(), 0);
}

/// At the level at which answers lose their reasons, explanations on demand are rejected.
#[tokio::test(flavor = "multi_thread")]
async fn under_pressure_explanations_stop_and_answers_do_not() {
    let setup = start_explained(|_| ());
    let mut client = setup.client().await;
    client.explain(explain(1.0)).await.unwrap();
    // The predicted cost of each row is seconds of both threads, so the demand exceeds the capacity.
    setup.server.assume_cost(FRAUD, Duration::from_secs(3));
    let waiting = patience("a pressure at which explanations stop");
    let status = loop {
        waiting();
        client.score(score("", 1.0)).await.unwrap();
        if let Err(status) = client.explain(explain(1.0)).await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("under pressure and computes no explanations"), "{}", status.message());
    let refused = "scorer_explanations_refused_total{reason=\"pressure\"}";
    assert_eq!(counted(&setup.metrics().await, refused), 1);
}
