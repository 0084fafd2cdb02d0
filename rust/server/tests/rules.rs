//! The rules of bundles in replies, records, observations and metrics.

#![allow(clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;

use crate::support::*;
use scorer_core::bundle::testing::{action_recipe, score_recipe};
use scorer_proto::v1::FiredRule;
use serde_json::json;
use tonic::Code;

const CHECKOUT: &str = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "large"
when = "amount >= 5000.0 && has(night)"
decision = "decline"
reason = "R01"
source = "agreement"
queue = "level_2"
"#;

const EXEMPTIONS: &str = r#"
name = "exemptions"
[[rules]]
id = "tra_limit"
when = "amount > 100.0"
keep = { exemption = ["none"] }
source = "Delegated Regulation (EU) 2018/389, article 18"
"#;

/// A server whose bundles have rules.
fn ruled() -> (Setup, String, String) {
    let setup = start();
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let fraud = score_recipe("fraud", 0.0).with_rules(CHECKOUT, &[]).build().unwrap();
    let action = action_recipe("action", 0.0, policy).with_rules(EXEMPTIONS, &[]).build().unwrap();
    let fraud = load(&setup.server, setup.directory.path(), &fraud);
    let action = load(&setup.server, setup.directory.path(), &action);
    setup.server.swap(&table(2, &fraud, &action)).unwrap();
    (setup, fraud, action)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_says_which_rules_had_an_effect() {
    let (setup, fraud, _) = ruled();
    let mut client = setup.client().await;
    let calm = client.score(score("a", 500.0)).await.unwrap().into_inner();
    let rules = calm.rules.unwrap();
    assert_eq!((rules.fired, rules.score, calm.decision.as_str()), (vec![], calm.score, "review"));
    let large = client.score(score("b", 6000.0)).await.unwrap().into_inner();
    let rules = large.rules.unwrap();
    let expected = FiredRule { id: "large".into(), reason: "R01".into(), source: "agreement".into() };
    assert_eq!(
        (rules.fired, rules.queue.as_str(), large.decision.as_str()),
        (vec![expected], "level_2", "decline")
    );
    let print = fingerprint(&mut client, FRAUD).await;
    let batch = batch("batch", print, &[[500.0, 0.0, 0.0], [6000.0, 0.0, 0.0]]);
    let batch = client.score_batch(batch).await.unwrap().into_inner();
    let rows: Vec<(Vec<u32>, &str)> =
        batch.ruled_rows.iter().map(|row| (row.fired.clone(), row.queue.as_str())).collect();
    assert_eq!(rows, [(vec![], ""), (vec![0], "level_2")]);
    assert_eq!((batch.rules.len(), batch.rules[0].id.as_str()), (1, "large"));
    assert_eq!(batch.ruled_rows[0].score, batch.scores[0]);
    let action = client.select_action(select("c", 500.0)).await.unwrap().into_inner();
    assert_eq!(action.rules.unwrap().fired[0].id, "tra_limit");
    assert!(action.action.ends_with("exemption=none"));
    assert!(action.pmf.iter().enumerate().all(|(at, p)| (at % 3 == 0) == (*p > 0.0)), "{:?}", action.pmf);
    let metrics = setup.metrics().await;
    let short = &fraud[7..19];
    for line in [
        format!("scorer_rule_hits_total{{name=\"fraud\",bundle=\"{short}\",rule=\"large\"}} 2"),
        format!("scorer_rules_without_effect_total{{name=\"fraud\",bundle=\"{short}\",cause=\"missing\"}} 0"),
    ] {
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    let records = setup.decisions();
    let of = |id: &str| records.iter().find(|record| record.decision_id == id).unwrap();
    let fired = &of("b").rules.as_ref().unwrap().fired;
    assert_eq!((fired[0].id.as_str(), fired[0].source.as_str()), ("large", ""));
    assert_eq!(of("c").eligible_mask, [0b1001]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_without_rules_answers_without_the_field() {
    let setup = start();
    let mut client = setup.client().await;
    assert_eq!(client.score(score("a", 6000.0)).await.unwrap().into_inner().rules, None);
    assert_eq!(client.select_action(select("b", 500.0)).await.unwrap().into_inner().rules, None);
    assert!(!setup.metrics().await.contains("scorer_rule_hits_total{"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_leave_nothing_are_a_fault_of_the_request_without_a_fallback() {
    let (setup, _, action) = ruled();
    let mut request = select("a", 500.0);
    request.eligible = Some(scorer_proto::v1::EligibleActions { ids: Vec::new(), mask: vec![0b10] });
    let error = setup.client().await.select_action(request).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let message = format!("eligible: the rules of bundle {action} leave none of these actions");
    assert!(error.message().starts_with(&message), "{}", error.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observing_bundle_applies_its_own_rules_to_what_the_request_allowed() {
    let (setup, fraud, action) = ruled();
    // The bundle that observes scores has rules, and so has the one that answers actions.
    let mut lanes = table(3, &setup.fraud, &action);
    lanes.observe = BTreeMap::from([
        (FRAUD.to_owned(), vec![observer("scores", &fraud, 1.0)]),
        (ACTION.to_owned(), vec![observer("actions", &setup.action, 1.0)]),
    ]);
    setup.server.swap(&lanes).unwrap();
    let mut client = setup.client().await;
    let answer = client.score(score("a", 6000.0)).await.unwrap().into_inner();
    let selected = client.select_action(select("b", 500.0)).await.unwrap().into_inner();
    assert_eq!(answer.rules, None);
    assert!(selected.rules.is_some());
    status(&setup, "scores", |lane| lane.evaluated == 1).await;
    status(&setup, "actions", |lane| lane.evaluated == 1).await;
    let observations = observations(&setup);
    let score = &observations[&("scores".to_owned(), "a".to_owned())];
    let of_score = score.decision.as_ref().unwrap();
    assert_eq!(of_score.rules.as_ref().unwrap().fired[0].id, "large");
    assert_eq!((of_score.decision.as_str(), &score.live_decision), ("decline", &answer.decision));
    let action = &observations[&("actions".to_owned(), "b".to_owned())];
    let of_action = action.decision.as_ref().unwrap();
    assert_eq!((&of_action.rules, of_action.eligible_mask.len()), (&None, 0), "every action was eligible");
}
