//! `Decide`: a score and an action of one payment by one lane table, one admission and one deadline.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use scorer_core::bundle::testing::{score_files, scored_action_recipe};
use scorer_engine::*;
use scorer_proto::v1::DecisionRecord;
use serde_json::{Value, json};
use support::*;

const RULES: &str = r#"
name = "exemptions"

[[rules]]
id = "risky"
when = "fraud_score > 0.5 && fraud_decision == \"review\""
keep = { three_ds = ["challenge"] }
source = "agreement"
"#;

/// Amounts that the fraud bundle approves, reviews and declines.
const SMALL: f32 = 50.0;
const MIDDLE: f32 = 250.0;
const LARGE: f32 = 2000.0;

/// A world whose action bundle reads the score, and has a rule on it.
fn scored_world(change: impl FnOnce(&mut Value)) -> World {
    let mut world = empty_world(change);
    world.action = world.load(&scored_action_recipe("scored").with_rules(RULES, &[]).build().unwrap());
    world.publish(1, &world.fraud.clone(), &world.action.clone());
    world
}

fn unbounded(_: &mut Value) {}

fn request(id: &str, amount: f32) -> DecideQuery<'static, Dense, Dense> {
    let action = SelectQuery {
        query: Query {
            checkpoint: ACTION,
            features: Dense { fingerprint: None, values: vec![amount, f32::NAN, f32::NAN] },
            ..score("", 0.0)
        },
        eligible: None,
        include_pmf: true,
    };
    let passed = PassedOn { score: "fraud_score", decision: "fraud_decision" };
    DecideQuery { score: score(id, amount), action, passed, action_if_declined: false }
}

fn decide(world: &World, query: DecideQuery<'_, Dense, Dense>) -> Result<Decided, Rejection> {
    world.run(world.engine.decide(&now(), query))
}

fn selected(decided: Decided) -> Answer<Selected> {
    match decided.action {
        ActionAnswer::Selected(answer) => answer,
        ActionAnswer::Declined => panic!("declined"),
        ActionAnswer::Failed(rejection) => panic!("{rejection}"),
    }
}

fn at<'a>(records: &'a [DecisionRecord], checkpoint: &str) -> Vec<&'a DecisionRecord> {
    records.iter().filter(|record| record.checkpoint == checkpoint).collect()
}

#[test]
fn the_action_is_that_of_a_score_and_then_a_selection_with_it() {
    let world = scored_world(unbounded);
    for (id, amount) in [("small", SMALL), ("middle", MIDDLE)] {
        let scored = world.score(id, amount).unwrap().value;
        let code = if &*scored.label == "review" { 1.0 } else { 0.0 };
        let values = vec![amount, code, scored.score as f32];
        let alone = scored_world(unbounded);
        let query = SelectQuery {
            query: Query {
                features: Dense { fingerprint: None, values },
                ..request("", amount).action.query
            },
            ..request("", amount).action
        };
        let query = SelectQuery { query: Query { request_id: id.to_owned(), ..query.query }, ..query };
        let expected = alone.run(alone.engine.select(&now(), query)).unwrap();

        let decided = decide(&world, request(id, amount)).unwrap();
        assert!(decided.score.replayed, "the score of the same request is known");
        let answer = selected(decided);
        assert_eq!((&*answer.id, answer.value.passed), (id, [true, true]));
        assert_eq!(answer.value.pmf, expected.value.pmf);
        assert_eq!(
            (answer.value.index, answer.value.propensity),
            (expected.value.index, expected.value.propensity)
        );
        let fired: Vec<_> = answer.value.rules.fired().map(|rule| rule.id.clone()).collect();
        assert_eq!(fired, if amount == MIDDLE { vec!["risky"] } else { vec![] });
    }
}

#[test]
fn both_decisions_are_recorded_under_one_id_and_name_each_other() {
    let world = scored_world(unbounded);
    let loads = world.engine.lane_loads();
    let decided = decide(&world, request("", MIDDLE)).unwrap();
    assert_eq!(world.engine.lane_loads() - loads, 1, "one lane table for both");
    let (id, score) = (decided.score.id.clone(), decided.score.value.score);
    let action = selected(decided);
    assert_eq!(action.id, id);
    let records = world.decisions();
    let [of_score] = at(&records, FRAUD)[..] else { panic!() };
    let [of_action] = at(&records, ACTION)[..] else { panic!() };
    assert_eq!((&of_score.decision_id, &of_action.decision_id), (&id, &id));
    assert_eq!((&*of_score.linked_checkpoint, &*of_action.linked_checkpoint), (ACTION, FRAUD));
    assert_eq!(of_score.score, score);
    assert_eq!(of_action.features, [MIDDLE, 1.0, score as f32], "the row has the score that it was given");
    assert_eq!(of_action.propensity, action.value.propensity);
    world.score("single", SMALL).unwrap();
    let records = world.decisions();
    let single = records.iter().find(|record| record.decision_id == "single");
    assert!(single.is_none_or(|record| record.linked_checkpoint.is_empty()));
}

#[test]
fn a_declined_payment_gets_no_action_unless_the_request_asks_for_it() {
    let world = scored_world(unbounded);
    let decided = decide(&world, request("declined", LARGE)).unwrap();
    assert_eq!(&*decided.score.value.label, "decline");
    assert!(matches!(decided.action, ActionAnswer::Declined));
    let again = decide(&world, request("declined", LARGE)).unwrap();
    assert!(again.score.replayed && matches!(again.action, ActionAnswer::Declined));
    let wanted = DecideQuery { action_if_declined: true, ..request("declined", LARGE) };
    assert_eq!(&*selected(decide(&world, wanted).unwrap()).id, "declined");
    let records = world.decisions();
    assert_eq!((at(&records, FRAUD).len(), at(&records, ACTION).len()), (1, 1));
}

#[test]
fn a_bundle_without_the_feature_receives_nothing() {
    let world = world();
    let mut query = request("r", SMALL);
    query.action.query.features = dense(SMALL);
    let answer = selected(decide(&world, query).unwrap());
    assert_eq!(answer.value.passed, [false, false]);
}

#[test]
fn a_retry_gets_both_answers_and_adds_no_record() {
    let world = scored_world(unbounded);
    let first = decide(&world, request("r", MIDDLE)).unwrap();
    let fraud = world.load(&score_files("fraud", 2.0));
    world.publish(2, &fraud, &world.action.clone());
    let loads = world.engine.lane_loads();
    let again = decide(&world, request("r", MIDDLE)).unwrap();
    assert_eq!(world.engine.lane_loads(), loads, "a retry must not be routed");
    assert!(again.score.replayed);
    assert_eq!(first.score.value.score, again.score.value.score);
    let (first, again) = (selected(first), selected(again));
    assert!(!first.replayed && again.replayed);
    assert_eq!((first.value.index, first.value.propensity), (again.value.index, again.value.propensity));
    assert_eq!(world.decisions().len(), 2);
}

#[test]
fn an_id_of_another_request_is_rejected_before_the_score() {
    let world = scored_world(unbounded);
    decide(&world, request("r", MIDDLE)).unwrap();
    let mut other = request("r", MIDDLE);
    other.action.include_pmf = false;
    let error = decide(&world, other).err().unwrap();
    let Rejection::Step { step: "action", rejection } = error else { panic!("{error}") };
    assert!(matches!(*rejection, Rejection::ContentDiffers { .. }));
    // The id of the action alone is in use; the score of the rejected request is not recorded.
    let values = vec![SMALL, 0.0, 0.1];
    let query = Query {
        request_id: "taken".to_owned(),
        features: Dense { fingerprint: None, values },
        ..request("", SMALL).action.query
    };
    let alone = SelectQuery { query, eligible: None, include_pmf: true };
    world.run(world.engine.select(&now(), alone)).unwrap();
    assert!(decide(&world, request("taken", SMALL)).is_err());
    let records = world.decisions();
    assert_eq!((at(&records, FRAUD).len(), at(&records, ACTION).len()), (1, 2));
}

#[test]
fn what_is_wrong_with_the_action_is_found_before_the_score() {
    let world = scored_world(unbounded);
    let unknown = ["3ds=never".to_owned()];
    let ids = |ids| Some(Eligible { ids, mask: &[] });
    let mut queries: Vec<(DecideQuery<'_, Dense, Dense>, &str)> = Vec::new();
    let mut query = request("a", SMALL);
    query.action.eligible = ids(&unknown);
    queries.push((query, "action: eligible.ids: action \"3ds=never\""));
    let mut query = request("b", SMALL);
    query.action.query.features.values[0] = f32::NAN;
    queries.push((query, "action: feature \"amount\""));
    let mut query = request("c", SMALL);
    query.action.query.checkpoint = FRAUD;
    queries.push((query, "action: checkpoint \"fraud.checkout\" is of kind score"));
    let mut query = request("d", SMALL);
    query.score.checkpoint = ACTION;
    queries.push((query, "score: checkpoint \"action.authorise\" is of kind action"));
    let mut query = request("e", SMALL);
    query.passed.score = "fraud_decision";
    query.passed.decision = "";
    queries.push((query, "action: score_feature: feature \"fraud_decision\""));
    let mut query = request("f", SMALL);
    query.passed.decision = "amount";
    queries.push((query, "action: decision_feature: feature \"amount\""));
    let mut query = request("g", SMALL);
    query.passed.decision = "fraud_score";
    queries.push((query, "decision_feature: feature \"fraud_score\" is score_feature as well"));
    let mut query = request("h", SMALL);
    query.action.query.reasons = 1000;
    queries.push((query, "action: reasons: 1000"));
    let mut query = request("i", SMALL);
    query.score.features.values[0] = f32::NAN;
    queries.push((query, "score: feature \"amount\""));
    for (query, expected) in queries {
        let error = decide(&world, query).err().unwrap().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(world.decisions().len(), 0, "nothing is half applied");
}

/// Runs a request whose evaluations are on the pool, and `between` after the score was decided.
fn in_two_parts<'w>(
    world: &'w World,
    arrival: &Arrival,
    query: DecideQuery<'_, Dense, Dense>,
    between: impl FnOnce(&'w World),
) -> Result<Decided, Rejection> {
    for checkpoint in [FRAUD, ACTION] {
        world.engine.assume_cost(checkpoint, Duration::from_millis(1));
    }
    let mut future = pin!(world.engine.decide(arrival, query));
    assert!(poll(future.as_mut()).is_pending());
    assert!(world.engine.run_pool_once());
    assert!(poll(future.as_mut()).is_pending(), "the score is decided, and the action waits");
    between(world);
    world.run(future)
}

#[test]
fn a_table_that_is_activated_between_both_decisions_changes_neither() {
    let world = scored_world(unbounded);
    let decided = in_two_parts(&world, &now(), request("r", MIDDLE), |world| {
        let other = world.load(&scored_action_recipe("other").build().unwrap());
        let fraud = world.load(&score_files("fraud", 2.0));
        world.publish(2, &fraud, &other);
    });
    let decided = decided.unwrap();
    let fraud = Arc::clone(&decided.score.value.source);
    let action = selected(decided);
    assert_eq!((fraud.lane_table, action.value.source.lane_table), (1, 1));
    assert_eq!(*action.value.source.bundle, *world.action);
    let next = decide(&world, request("next", SMALL)).unwrap();
    let tables = (next.score.value.source.lane_table, selected(next).value.source.lane_table);
    assert_eq!(tables, (2, 2));
}

#[test]
fn a_deadline_between_both_decisions_leaves_the_score_and_the_fallback_of_the_action() {
    let world = scored_world(unbounded);
    let timeout = Duration::from_secs(3);
    let arrival = Arrival::new(Instant::now(), Some(timeout), 1);
    let late = |_: &World| std::thread::sleep(timeout);
    let decided = in_two_parts(&world, &arrival, request("r", SMALL), late).unwrap();
    assert_eq!(decided.score.value.fallback, None);
    let action = selected(decided);
    assert_eq!(action.value.fallback, Some(Reason::Late));
    assert_eq!(action_of(&action.value), FALLBACK);
    let steps: Vec<_> = arrival.steps().map(RequestStep::has_fallen_back).collect();
    assert_eq!(steps, [false, true]);
    let records = world.decisions();
    assert_eq!((at(&records, FRAUD).len(), at(&records, ACTION).len()), (1, 1));
}

#[test]
fn without_a_fallback_the_action_has_an_error_and_the_score_stands() {
    let world = scored_world(|settings| {
        settings["checkpoints"][ACTION]["fallback"] = Value::Null;
    });
    let timeout = Duration::from_secs(3);
    let arrival = Arrival::new(Instant::now(), Some(timeout), 1);
    let late = |_: &World| std::thread::sleep(timeout);
    let decided = in_two_parts(&world, &arrival, request("r", MIDDLE), late).unwrap();
    assert!(matches!(decided.action, ActionAnswer::Failed(Rejection::Deadline)));
    // A retry gets the recorded score, and its action.
    let again = decide(&world, request("r", MIDDLE)).unwrap();
    assert!(again.score.replayed && !selected(again).replayed);
    let records = world.decisions();
    assert_eq!((at(&records, FRAUD).len(), at(&records, ACTION).len()), (1, 1));
}

#[test]
fn a_panic_of_one_evaluation_leaves_the_other_answer() {
    let world = scored_world(unbounded);
    let faults = &world.engine.faults;
    faults.set(&format!("one@{}", world.action), Fault::Panic);
    let decided = decide(&world, request("one", SMALL)).unwrap();
    assert_eq!(decided.score.value.fallback, None);
    assert_eq!(selected(decided).value.fallback, Some(Reason::Panic));
    faults.set(&format!("two@{}", world.fraud), Fault::Panic);
    let decided = decide(&world, request("two", SMALL)).unwrap();
    assert_eq!(decided.score.value.fallback, Some(Reason::Panic));
    let scored = decided.score.value.score;
    assert_eq!(selected(decided).value.fallback, None);
    let records = world.decisions();
    let of_two = at(&records, ACTION).into_iter().find(|record| record.decision_id == "two").unwrap();
    assert_eq!(of_two.features[2], scored as f32, "the action receives the score of the reply");
}

#[test]
fn both_evaluations_are_admitted_together() {
    let enforced = |settings: &mut Value| {
        for checkpoint in [FRAUD, ACTION] {
            settings["checkpoints"][checkpoint]["p99_ms"] = json!(2000.0);
            settings["checkpoints"][checkpoint]["mode"] = json!("enforce");
        }
    };
    let world = scored_world(enforced);
    // Each would fit into its own SLA of 2 s, and both into that of both.
    world.engine.assume_cost(FRAUD, Duration::from_millis(1500));
    world.engine.assume_cost(ACTION, Duration::from_millis(1500));
    let decided = decide(&world, request("fits", MIDDLE)).unwrap();
    assert_eq!((decided.score.value.fallback, selected(decided).value.fallback), (None, None));
    // One would fit, both would not: neither is evaluated.
    world.engine.assume_cost(FRAUD, Duration::from_millis(100));
    world.engine.assume_cost(ACTION, Duration::from_millis(4000));
    let decided = decide(&world, request("shed", MIDDLE)).unwrap();
    assert_eq!(decided.score.value.fallback, Some(Reason::Overload));
    assert_eq!(selected(decided).value.fallback, Some(Reason::Overload));
    let snapshot = world.engine.admission.snapshot();
    assert_eq!((snapshot.queued, snapshot.running), ([0; 3], 0), "everything is given back");
}

#[test]
fn observers_of_both_lanes_see_their_answers() {
    let world = scored_world(unbounded);
    let recorder = Arc::new(Recorder::default());
    world.observe(&recorder);
    decide(&world, request("r", MIDDLE)).unwrap();
    let seen = recorder.0.lock().unwrap();
    let checkpoints: Vec<_> = seen.iter().map(|seen| (&*seen.checkpoint, &*seen.id)).collect();
    assert_eq!(checkpoints, [(FRAUD, "r"), (ACTION, "r")]);
}

#[test]
fn a_reply_that_is_not_delivered_marks_both_decisions() {
    let world = scored_world(unbounded);
    let arrival = now();
    world.run(world.engine.decide(&arrival, request("r", MIDDLE))).unwrap();
    world.engine.given_up(&arrival);
    assert_eq!(world.engine.counters.undelivered.load(Relaxed), 2);
    let retry = now();
    world.run(world.engine.decide(&retry, request("r", MIDDLE))).unwrap();
    assert_eq!(retry.steps().map(RequestStep::recorded).collect::<Vec<_>>(), [Some(("r", true)); 2]);
}
