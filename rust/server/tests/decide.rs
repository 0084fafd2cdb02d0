//! `Decide` over the wire: shared features, tokens and outcomes of both decisions, errors, metrics.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::support::*;
use scorer_core::bundle::testing::scored_action_recipe;
use scorer_proto::v1::{
    ActionStep, DecideRequest, DecideResponse, DenseFeatures, NoAction, ReportOutcomeRequest, ScoreStep,
    feature, log_record,
};
use scorer_server::Fault;
use serde_json::{Value, json};
use tonic::{Code, Status};

/// A server whose action bundle reads the score.
fn start_scored(change: impl FnOnce(&mut Value)) -> Setup {
    let mut setup = start_with(change);
    let action = scored_action_recipe("scored").build().unwrap();
    setup.action = load(&setup.server, setup.directory.path(), &action);
    setup.server.swap(&table(2, &setup.fraud, &setup.action)).unwrap();
    setup
}

pub fn decide(id: &str, amount: f64) -> DecideRequest {
    DecideRequest {
        score: Some(ScoreStep { checkpoint: FRAUD.to_owned(), include_token: true, ..Default::default() }),
        action: Some(ActionStep { checkpoint: ACTION.to_owned(), ..Default::default() }),
        request_id: id.to_owned(),
        features: Some(context(amount)),
        score_feature: "fraud_score".to_owned(),
        decision_feature: "fraud_decision".to_owned(),
        ..Default::default()
    }
}

async fn answer(setup: &Setup, request: DecideRequest) -> Result<DecideResponse, Status> {
    setup.client().await.decide(request).await.map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_has_a_score_and_an_action() {
    let setup = start_scored(|_| ());
    let reply = answer(&setup, decide("payment", 250.0)).await.unwrap();
    let (score, action) = (reply.score.unwrap(), reply.action.unwrap());
    assert_eq!([&reply.decision_id, &score.decision_id, &action.decision_id], ["payment"; 3]);
    assert_eq!(reply.passed_features, ["fraud_score", "fraud_decision"]);
    let tables = [score.served.unwrap().lane_table, action.served.unwrap().lane_table];
    assert_eq!((tables, score.decision.as_str(), action.logged), ([2, 2], "review", true));

    let declined = answer(&setup, decide("declined", 2000.0)).await.unwrap();
    assert_eq!((declined.action, declined.no_action), (None, NoAction::Declined.into()));
    let wanted = DecideRequest { action_if_declined: true, ..decide("wanted", 2000.0) };
    assert!(answer(&setup, wanted).await.unwrap().action.is_some());

    let metrics = setup.metrics().await;
    for checkpoint in [FRAUD, ACTION] {
        let line = metrics
            .lines()
            .find(|line| {
                line.starts_with("scorer_requests_total{")
                    && line.contains("method=\"Decide\"")
                    && line.contains(checkpoint)
            })
            .unwrap_or_else(|| panic!("{metrics}"));
        assert!(line.ends_with(" 3"), "{line}");
    }
    assert!(metrics.contains("scorer_requests_arrived_total 3"), "a request arrives once");
    let mut records: BTreeMap<String, Vec<_>> = BTreeMap::new();
    // The record of a score waits in a queue, and that of an action is written before the reply.
    let mut decisions = setup.decisions();
    decisions.sort_by_key(|decision| decision.checkpoint != FRAUD);
    for decision in decisions {
        records.entry(decision.decision_id.clone()).or_default().push(decision);
    }
    let of_payment: Vec<_> = records["payment"]
        .iter()
        .map(|decision| (decision.checkpoint.as_str(), decision.linked_checkpoint.as_str()))
        .collect();
    assert_eq!(of_payment, [(FRAUD, ACTION), (ACTION, FRAUD)]);
    assert_eq!(records["declined"].len(), 1);
    assert_eq!(records["payment"][1].features, [250.0, 1.0, score.score as f32]);
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_in_schema_order_are_accepted_for_each_step() {
    let setup = start_scored(|_| ());
    let mut client = setup.client().await;
    let dense = async |client: &mut Client, checkpoint: &str, values: &[f32]| {
        let schema_fingerprint = fingerprint(client, checkpoint).await;
        Some(DenseFeatures { schema_fingerprint, values: values.to_vec() })
    };
    let named = answer(&setup, decide("", 250.0)).await.unwrap().score.unwrap().score;
    let mut request = DecideRequest { features: None, ..decide("", 0.0) };
    let of_score = dense(&mut client, FRAUD, &[250.0, 0.0, 0.0]).await;
    request.score.as_mut().unwrap().dense = of_score;
    let of_action = dense(&mut client, ACTION, &[250.0, f32::NAN, f32::NAN]).await;
    request.action.as_mut().unwrap().dense = of_action;
    assert_eq!(answer(&setup, request.clone()).await.unwrap().score.unwrap().score, named);
    // A value where the server sets one.
    request.action.as_mut().unwrap().dense.as_mut().unwrap().values[2] = 0.5;
    let error = answer(&setup, request).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().starts_with("action: features: \"fraud_score\" receives"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_rejected_by_name_and_decide_nothing() {
    let setup = start_scored(|_| ());
    let with = |change: &dyn Fn(&mut DecideRequest)| {
        let mut request = decide("bad", 250.0);
        change(&mut request);
        request
    };
    let add = |name: &'static str, value: feature::Value| {
        with(&|request| {
            let features = &mut request.features.as_mut().unwrap().features;
            features.extend(named(&[(name, value.clone())]).features);
        })
    };
    for (request, code, begins) in [
        (with(&|request| request.score = None), Code::InvalidArgument, "score: it is not set"),
        (with(&|request| request.action = None), Code::InvalidArgument, "action: it is not set"),
        (with(&|request| request.features = None), Code::InvalidArgument, "action: features: neither"),
        (
            add("amuont", feature::Value::Number(1.0)),
            Code::InvalidArgument,
            "features: neither bundle reads feature \"amuont\"",
        ),
        (
            add("fraud_score", feature::Value::Number(1.0)),
            Code::InvalidArgument,
            "action: features: \"fraud_score\" receives",
        ),
        (
            with(&|request| request.action.as_mut().unwrap().checkpoint = "action.refunds".to_owned()),
            Code::NotFound,
            "action: checkpoint \"action.refunds\"",
        ),
        (
            with(&|request| request.action.as_mut().unwrap().eligible = eligible(&["never"], &[])),
            Code::InvalidArgument,
            "action: eligible.ids: action \"never\"",
        ),
        (with(&|request| request.score_feature = "amount_".to_owned()), Code::Ok, ""),
    ] {
        match answer(&setup, request).await {
            Ok(_) => assert_eq!(code, Code::Ok),
            Err(error) => {
                assert_eq!(error.code(), code, "{error}");
                assert!(error.message().starts_with(begins), "{error}");
            }
        }
    }
    assert_eq!(setup.decisions().len(), 2, "only the valid request is recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_without_an_answer_is_an_error_in_the_reply() {
    let setup = start_scored(|config| {
        config["checkpoints"][ACTION].as_object_mut().unwrap().remove("fallback");
    });
    setup.server.inject(&format!("broken@{}", setup.action), Fault::Panic);
    let reply = answer(&setup, decide("broken", 250.0)).await.unwrap();
    assert_eq!((reply.no_action, reply.action_code), (NoAction::Failed.into(), Code::Internal as i32));
    assert!(reply.action_error.starts_with("internal error, id "), "{}", reply.action_error);
    assert_eq!(reply.score.unwrap().decision, "review");
    setup.server.inject(&format!("broken@{}", setup.action), Fault::RulesPanic);
    let again = answer(&setup, decide("broken", 250.0)).await.unwrap();
    assert!(again.action.is_some_and(|action| !action.replayed));
    assert_eq!(setup.decisions().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_decision_takes_its_outcome_with_its_token() {
    let keys = tempfile::tempdir().unwrap();
    let path = keys.path().join("keys.json");
    let secret = "0123456789abcdef".repeat(4);
    fs::write(&path, json!({"keys": [{"id": "00000001", "secret": secret}]}).to_string()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let setup = start_scored(|config| config["outcomes"] = json!({"token_keys": path}));
    let reply = answer(&setup, decide("payment", 250.0)).await.unwrap();
    let (score, action) = (reply.score.unwrap(), reply.action.unwrap());
    let mut client = setup.client().await;
    let report = |checkpoint: &str, kind: &str, token: &[u8]| ReportOutcomeRequest {
        checkpoint: checkpoint.to_owned(),
        decision_token: token.to_vec(),
        ..outcome("payment", kind, 1.0, 0)
    };
    let crossed = client.report_outcome(report(FRAUD, "fraud", &action.decision_token)).await;
    assert_eq!(crossed.unwrap_err().code(), Code::PermissionDenied);
    for (checkpoint, kind, token) in
        [(FRAUD, "fraud", &score.decision_token), (ACTION, "authorised", &action.decision_token)]
    {
        let ack = client.report_outcome(report(checkpoint, kind, token)).await.unwrap().into_inner();
        assert!(ack.proven && ack.decision_known, "{checkpoint}");
    }
    let outcomes = setup
        .records()
        .into_iter()
        .filter(|record| matches!(record, log_record::Record::Outcome(outcome) if outcome.token.is_some()));
    assert_eq!(outcomes.count(), 2);
}
