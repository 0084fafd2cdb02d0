//! The reasons of answers: in replies, in records, and left out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use scorer_core::bundle::testing::{action_recipe, score_recipe};
use scorer_engine::*;
use scorer_proto::v1::{DecisionRecord, ReasonDirection};
use serde_json::{Value, json};
use support::*;

/// A world whose bundles have covers and a dictionary.
fn explained(change: impl FnOnce(&mut Value)) -> World {
    let world = empty_world(change);
    let mut fraud = score_recipe("fraud", 0.0);
    fraud.covers = true;
    fraud.reasons = Some(json!({"features": {"amount": {"code": "R01"}}}));
    let mut action = action_recipe("action", 0.0, json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05}));
    action.covers = true;
    let fraud = world.load(&fraud.build().unwrap());
    let action = world.load(&action.build().unwrap());
    world.publish(1, &fraud, &action);
    world
}

fn given(reasons: &GivenReasons) -> Vec<(String, String, f64)> {
    reasons.iter().map(|(column, amount)| (column.code.clone(), column.feature.clone(), amount)).collect()
}

fn recorded(record: &DecisionRecord) -> Vec<(String, String, f64)> {
    let reason = |reason: &scorer_proto::v1::Reason| {
        (reason.code.clone(), reason.feature.clone(), reason.contribution)
    };
    record.feature_reasons.iter().map(reason).collect()
}

fn left_out(world: &World, checkpoint: &str) -> BTreeMap<&'static str, u64> {
    world.counters(checkpoint).without_reasons().map(|(cause, count)| (cause.as_str(), count)).collect()
}

#[test]
fn a_score_has_the_reasons_that_were_asked_for_in_reply_and_record() {
    let world = explained(|_| ());
    let ask = |id: &str, reasons| {
        let mut query = Query { reasons, ..score(id, 500.0) };
        // The flag "night" contributes as well.
        query.features.values[2] = 1.0;
        world.run(world.engine.score(&now(), query)).unwrap()
    };
    let (none, one, two) = (ask("a", 0), ask("b", 1), ask("c", 2));
    assert_eq!((none.value.margin, none.value.score), (two.value.margin, two.value.score));
    let amount = ("R01".to_owned(), "amount".to_owned(), 1.0);
    let night = ("night".to_owned(), "night".to_owned(), 0.1875);
    assert_eq!(given(&none.value.reasons), []);
    assert_eq!(given(&one.value.reasons), std::slice::from_ref(&amount));
    assert_eq!(given(&two.value.reasons), [amount.clone(), night.clone()]);
    let again = ask("c", 2);
    assert!(again.replayed);
    assert_eq!(given(&again.value.reasons), [amount.clone(), night.clone()]);
    let records = world.decisions();
    assert_eq!(
        records.iter().map(recorded).collect::<Vec<_>>(),
        [vec![], vec![amount.clone()], vec![amount, night]]
    );
    assert_eq!(records[2].feature_reasons[0].direction(), ReasonDirection::Raises);
}

#[test]
fn an_action_has_the_reasons_of_its_own_score_also_on_the_pool() {
    for pool in [false, true] {
        let world = explained(|_| ());
        if pool {
            world.engine.assume_cost(ACTION, Duration::from_millis(2));
        }
        let mut query = select("a", 500.0);
        query.query.reasons = 5;
        let answer = world.run(world.engine.select(&now(), query)).unwrap();
        let reasons = given(&answer.value.reasons);
        // The features of the action and of the context contribute. The two trees that test the exemption cancel each
        // other out, except for its second level.
        let mut names: Vec<_> = reasons.iter().map(|(_, feature, _)| feature.as_str()).collect();
        names.sort_unstable();
        let tra = if answer.value.index % 3 == 1 { &["exemption"][..] } else { &[] };
        assert_eq!(names, [&["amount"][..], tra, &["three_ds"]].concat());
        let expected: f64 = match answer.value.index / 3 {
            // Three of four training rows had no 3DS; its leaves are -0.25 and 0.5.
            0 => -0.25 - -0.0625,
            _ => 0.5 - -0.0625,
        };
        let found = reasons.iter().find(|(_, feature, _)| feature == "three_ds").unwrap();
        assert!((found.2 - expected).abs() < 1e-6, "{found:?}, not {expected}");
        assert_eq!(recorded(&world.decisions()[0]), reasons);
    }
}

#[test]
fn a_checkpoint_can_record_reasons_of_every_answer() {
    let world = explained(|settings| {
        settings["checkpoints"][FRAUD]["reasons"] = json!(3);
        settings["checkpoints"][ACTION]["reasons"] = json!(1);
    });
    let scored = world.score("a", 500.0).unwrap();
    let selected = world.select("b", 500.0).unwrap();
    assert_eq!((given(&scored.value.reasons), given(&selected.value.reasons)), (vec![], vec![]));
    // The record of a score is written by the log's own thread, before or after that of the action.
    let records = world.decisions();
    let record = |id: &str| records.iter().find(|record| record.decision_id == id).unwrap();
    assert_eq!(recorded(record("a"))[0].0, "R01");
    assert_eq!(record("b").feature_reasons.len(), 1);
}

#[test]
fn a_request_cannot_ask_for_too_many() {
    let world = explained(|_| ());
    let query = Query { reasons: 33, ..score("a", 1.0) };
    let error = world.run(world.engine.score(&now(), query)).err().unwrap();
    assert_eq!(error.to_string(), "reasons: 33 are asked for; an answer has at most 32");
    let mut wrong = Vec::new();
    let config = json!({"kind": "score", "reasons": 33});
    serde_json::from_value::<CheckpointConfig>(config).unwrap().check("c", &mut wrong);
    assert_eq!(wrong, ["checkpoint \"c\": \"reasons\" is 33; use at most 32"]);
}

#[test]
fn a_bundle_without_covers_answers_without_reasons_and_that_is_counted() {
    let world = world();
    let query = Query { reasons: 3, ..score("a", 500.0) };
    let answer = world.run(world.engine.score(&now(), query)).unwrap();
    assert_eq!(answer.value.fallback, None);
    assert_eq!(given(&answer.value.reasons), []);
    assert_eq!(left_out(&world, FRAUD), BTreeMap::from([("no_covers", 1), ("pressure", 0)]));
    assert_eq!(left_out(&world, ACTION), BTreeMap::from([("no_covers", 0), ("pressure", 0)]));
}

#[test]
fn the_contribution_of_a_sensitive_feature_or_of_a_column_from_it_is_not_recorded() {
    let world = explained(|_| ());
    // `Shape` is built with the rules of the store, so the record is made from a shape with such a rule.
    let lanes = world.engine.lanes();
    let (_, lane) = lanes.all().find(|(_, lane)| lane.loaded.kind == Kind::Score).unwrap();
    let shape = &lane.loaded.shape;
    let rules = FeatureRules::from([("amount".to_owned(), FeatureRule::Mask)]);
    let sensitive = Shape {
        fingerprint: shape.fingerprint,
        features: shape.features.clone(),
        actions: std::sync::Arc::clone(&shape.actions),
        sensitive: Sensitive::of(&shape.features, &rules),
        reasons: shape
            .reasons
            .iter()
            .map(|column| ReasonColumn {
                code: column.code.clone(),
                feature: column.feature.clone(),
                origins: column.origins.clone(),
            })
            // Columns that a program adds, from the country and the amount, and from the country alone.
            .chain([vec![0, 1], vec![1]].map(|origins| ReasonColumn {
                code: "R09".to_owned(),
                feature: "added".to_owned(),
                origins,
            }))
            .collect(),
        rules: Vec::new(),
        functions: Vec::new(),
        computed: None,
    };
    let sensitive = std::sync::Arc::new(sensitive);
    let contribution = |feature, amount| scorer_core::explain::Contribution { feature, amount };
    let reasons =
        [contribution(0, -1.5), contribution(2, 0.25), contribution(3, 0.75), contribution(4, -0.125)];
    let answered = Answered {
        checkpoint: FRAUD,
        linked: "",
        lane: "live",
        lane_table: 1,
        bundle: &[0; 32],
        shape: &sensitive,
        id: "a",
        entity: "",
        row: &[500.0, 0.0, 1.0],
        named: &(),
        keys: &(),
        origins: Origins::default(),
        fallback_source: "",
        fallback_reason: "",
        timings: Timings::default(),
        reasons: &reasons,
        ruled: None,
        faulted: scorer_core::bundle::FunctionSet::default(),
        outcome: Outcome::Score { margin: 0.0, score: 0.5, label: "review" },
    };
    let mut record = DecisionRecord::default();
    fill_record(&mut record, 0, &answered);
    let [amount, night, mixed, other] = &record.feature_reasons[..] else {
        panic!("{:?}", record.feature_reasons)
    };
    assert_eq!(
        (&*amount.code, amount.contribution, amount.direction()),
        ("R01", 0.0, ReasonDirection::Lowers)
    );
    assert_eq!((night.contribution, night.direction()), (0.25, ReasonDirection::Raises));
    assert_eq!((mixed.contribution, mixed.direction()), (0.0, ReasonDirection::Raises));
    assert_eq!((other.contribution, other.direction()), (-0.125, ReasonDirection::Lowers));
}
