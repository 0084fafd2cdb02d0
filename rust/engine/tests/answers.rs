//! Every stage of the answer path and every fallback, without sockets, a runtime or protobuf.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scorer_admission::BreakerState;
use scorer_core::bundle::{Digest, testing};
use scorer_engine::*;
use serde_json::json;
use support::*;

// --- identify ---

#[test]
fn an_unknown_checkpoint_is_rejected_and_the_error_lists_the_configured_ones() {
    let world = world();
    let query = Query { checkpoint: "fraud.refunds", ..score("", 1.0) };
    let error = world.run(world.engine.score(&now(), query)).err().unwrap();
    let Rejection::UnknownCheckpoint { name, known } = error else { panic!("{error}") };
    assert_eq!((&*name, &*known), ("fraud.refunds", "action.authorise, fraud.checkout"));
}

#[test]
fn a_checkpoint_of_the_other_kind_is_rejected() {
    let world = world();
    let query = Query { checkpoint: ACTION, ..score("", 1.0) };
    let error = world.run(world.engine.score(&now(), query)).err().unwrap();
    assert!(matches!(error, Rejection::WrongKind { kind: "action", .. }), "{error}");
}

#[test]
fn ids_and_entities_have_limits() {
    let world = world();
    let error = world.score(&"x".repeat(65), 1.0).err().unwrap();
    assert!(matches!(error, Rejection::Id { field: "request_id", max: 64, .. }), "{error}");
    let entity = "e".repeat(257);
    let query = Query { entity: &entity, ..score("", 1.0) };
    let error = world.run(world.engine.score(&now(), query)).err().unwrap();
    assert!(matches!(error, Rejection::TooLong { field: "entity", bytes: 257, .. }), "{error}");
}

#[test]
fn a_request_after_its_deadline_is_not_evaluated() {
    let world = world();
    let arrival = Arrival::new(Instant::now(), Some(Duration::ZERO), 1);
    let error = world.run(world.engine.score(&arrival, score("", 1.0))).err().unwrap();
    assert_eq!(error, Rejection::Deadline);
    assert_eq!(world.decisions().len(), 0);
}

// --- replay ---

#[test]
fn a_retry_gets_the_same_answer_and_adds_no_record() {
    let world = world();
    let first = world.select("r", 250.0).unwrap();
    let again = world.select("r", 250.0).unwrap();
    assert!(!first.replayed && again.replayed);
    assert_eq!((first.value.index, first.value.propensity), (again.value.index, again.value.propensity));
    let error = world.select("r", 251.0).err().unwrap();
    assert!(matches!(error, Rejection::ContentDiffers { .. }), "{error}");
    assert_eq!(world.engine.counters.replays.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(world.decisions().len(), 1);
}

#[test]
fn requests_without_an_id_do_not_displace_the_answers_of_those_with_one() {
    let world = world_with(|settings| settings["remembered"] = json!(64));
    world.score("keyed", 1.0).unwrap();
    world.select("keyed", 1.0).unwrap();
    for _ in 0..2000 {
        world.score("", 1.0).unwrap();
        world.select("", 1.0).unwrap();
    }
    assert_eq!(world.engine.remembered(), (1, 1));
    assert!(world.score("keyed", 1.0).unwrap().replayed);
    assert!(world.select("keyed", 1.0).unwrap().replayed);
}

/// Fault case 16.
#[test]
fn a_concurrent_duplicate_waits_and_gets_the_answer_of_the_first() {
    let world = world();
    // Slow enough for the pool.
    world.engine.assume_cost(ACTION, Duration::from_millis(2));
    let arrivals = [now(), now()];
    let mut first = pin!(world.engine.select(&arrivals[0], select("r", 250.0)));
    let mut second = pin!(world.engine.select(&arrivals[1], select("r", 250.0)));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    let (first, second) = (world.run(first).unwrap(), world.run(second).unwrap());
    assert!(!first.replayed && second.replayed);
    assert_eq!(first.value.index, second.value.index);
    assert_eq!(world.decisions().len(), 1);
}

// --- route ---

#[test]
fn a_request_at_a_checkpoint_without_lanes_is_rejected() {
    let world = empty_world(|_| ());
    assert_eq!(world.score("", 1.0).err(), Some(Rejection::NoBundle { name: FRAUD.to_owned() }));
}

#[test]
fn a_request_loads_the_lane_table_once() {
    let world = world();
    let loads = |request: &dyn Fn()| {
        let before = world.engine.lane_loads();
        request();
        world.engine.lane_loads() - before
    };
    assert_eq!(loads(&|| drop(world.score("", 1.0).unwrap())), 1);
    assert_eq!(loads(&|| drop(world.select("keyed", 1.0).unwrap())), 1);
    assert_eq!(loads(&|| drop(world.select("keyed", 1.0).unwrap())), 0, "a retry must not be routed");
    let batch = || {
        let rows = DenseRows(2, vec![1.0, 0.0, 0.0, 2.0, 0.0, 0.0]);
        let query = BatchQuery { checkpoint: FRAUD, request_id: String::new(), entity: "", rows };
        assert_eq!(world.run(world.engine.score_batch(&now(), query)).unwrap().value.rows.len(), 2);
    };
    assert_eq!(loads(&batch), 1);
    world.engine.assume_cost(ACTION, Duration::from_millis(2));
    assert_eq!(loads(&|| drop(world.select("", 1.0).unwrap())), 1, "the evaluation runs on the pool");
}

// --- features ---

#[test]
fn features_that_the_schema_rejects_are_named_in_the_error() {
    let world = world();
    assert!(matches!(world.score("", -1.0).err(), Some(Rejection::Schema(_))));
    let wrong = Dense { fingerprint: Some(7), ..dense(1.0) };
    let query =
        Query { checkpoint: FRAUD, request_id: String::new(), entity: "", features: wrong, reasons: 0 };
    let error = world.run(world.engine.score(&now(), query)).err().unwrap();
    assert!(matches!(error, Rejection::Fingerprint { got: 7, .. }), "{error}");
}

#[test]
fn an_eligible_set_is_read_in_both_forms() {
    let world = world();
    let with = |ids: &[String], mask: &[u8]| {
        let eligible = Some(Eligible { ids, mask });
        let query = SelectQuery { eligible, ..select("", 250.0) };
        world.run(world.engine.select(&now(), query))
    };
    let only = with(&[FALLBACK.to_owned()], &[]).unwrap();
    assert_eq!((action_of(&only.value), only.value.propensity), (FALLBACK, 1.0));
    assert!(with(&[], &[0b10]).unwrap().value.index == 1);
    assert_eq!(with(&[], &[]).err(), Some(Rejection::NothingEligible));
    assert_eq!(with(&[FALLBACK.to_owned()], &[1]).err(), Some(Rejection::BothForms));
    assert_eq!(with(&[], &[0]).err(), Some(Rejection::EmptyMask));
    let twice = [FALLBACK.to_owned(), FALLBACK.to_owned()];
    assert!(matches!(with(&twice, &[]).err(), Some(Rejection::RepeatedAction { .. })));
    assert!(matches!(with(&["none".to_owned()], &[]).err(), Some(Rejection::UnknownAction { .. })));
}

// --- admit ---

#[test]
fn a_request_that_cannot_be_on_time_gets_the_fallback() {
    let world = world();
    world.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    let scored = world.score("", 1.0).unwrap().value;
    assert_eq!((scored.score, &*scored.label, scored.fallback), (0.5, "review", Some(Reason::Overload)));
    let sheds: u64 = world.counters(FRAUD).sheds().map(|(_, shed, _)| shed).sum();
    assert_eq!(sheds, 1);
}

#[test]
fn a_request_that_cannot_be_on_time_is_rejected_without_a_fallback() {
    let world = world_with(|settings| settings["checkpoints"][FRAUD] = json!({"kind": "score"}));
    world.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    let error = world.score("", 1.0).err().unwrap();
    assert!(matches!(error, Rejection::Deadline | Rejection::Shed { .. }), "{error}");
}

// --- evaluate ---

#[test]
fn the_pool_gives_the_same_answers_as_the_calling_thread() {
    let world = world();
    let (inline, drawn) = (world.score("s", 250.0).unwrap().value, world.select("d", 250.0).unwrap().value);
    let pooled = support::world();
    for checkpoint in [FRAUD, ACTION] {
        pooled.engine.assume_cost(checkpoint, Duration::from_millis(2));
    }
    let arrival = now();
    let mut future = pin!(pooled.engine.score(&arrival, score("s", 250.0)));
    assert!(poll(future.as_mut()).is_pending(), "the evaluation runs on the pool");
    let scored = pooled.run(future).unwrap().value;
    assert_eq!((scored.score, scored.margin), (inline.score, inline.margin));
    let selected = pooled.select("d", 250.0).unwrap().value;
    assert_eq!(
        (selected.index, selected.propensity, &selected.pmf),
        (drawn.index, drawn.propensity, &drawn.pmf)
    );
    let (one, other) = (world.decisions(), pooled.decisions());
    let pmf = |decisions: &[scorer_proto::v1::DecisionRecord]| {
        decisions.iter().find(|decision| decision.decision_id == "d").unwrap().pmf.clone()
    };
    assert_eq!(pmf(&one), pmf(&other), "the record must have the probabilities of the pool's thread");
}

/// Fault case 5.
#[test]
fn a_late_evaluation_is_replaced_by_the_fallback() {
    let world = world();
    world.engine.assume_cost(FRAUD, Duration::from_millis(2));
    // The pool has no thread, so the watchdog ends the wait.
    let answer = world.watched(|| {
        let arrival = Arrival::new(Instant::now(), Some(Duration::from_millis(100)), 1);
        world.wait(world.engine.score(&arrival, score("", 1.0)))
    });
    let scored = answer.unwrap().value;
    assert_eq!((scored.score, scored.fallback), (0.5, Some(Reason::Late)));
}

#[test]
fn a_caller_with_a_deadline_of_an_hour_leaves_no_deadlines_behind() {
    let world = world_with(|settings| {
        settings["checkpoints"][FRAUD] = json!({"kind": "score", "p99_ms": 60_000.0, "mode": "observe"});
    });
    world.engine.assume_cost(FRAUD, Duration::from_millis(2));
    for _ in 0..2000 {
        let arrival = Arrival::new(Instant::now(), Some(Duration::from_secs(3600)), 1);
        world.run(world.engine.score(&arrival, score("", 1.0))).unwrap();
    }
    assert!(world.engine.watched() <= 64 + 1, "{} deadlines are still stored", world.engine.watched());
}

/// Fault case 84.
#[test]
fn a_panic_is_caught_and_answered_by_the_fallback() {
    let world = world();
    world.engine.faults.set("p", Fault::Panic);
    let scored = world.score("p", 1.0).unwrap().value;
    assert_eq!((scored.score, scored.fallback), (0.5, Some(Reason::Panic)));
    let selected = world.select("p", 1.0).unwrap().value;
    assert_eq!((action_of(&selected), selected.fallback), (FALLBACK, Some(Reason::Panic)));
    assert!(selected.logged && selected.propensity == 1.0);
    assert_eq!(world.engine.counters.panics.load(std::sync::atomic::Ordering::Relaxed), 2);
    assert_eq!(world.score("again", 1.0).unwrap().value.fallback, None);
}

#[test]
fn a_panic_without_a_fallback_is_an_internal_error_with_its_id() {
    let world = world_with(|settings| settings["checkpoints"][FRAUD] = json!({"kind": "score"}));
    world.engine.faults.set("p", Fault::Panic);
    let error = world.score("p", 1.0).err().unwrap();
    let Rejection::Internal { id } = error else { panic!("{error}") };
    assert!(world.engine.events.take().iter().any(|line| line.contains(&id)));
}

#[test]
fn a_score_that_is_not_a_number_is_replaced_by_the_fallback() {
    let world = world();
    world.engine.faults.set("n", Fault::NotFinite);
    assert_eq!(world.score("n", 1.0).unwrap().value.fallback, Some(Reason::NonFinite));
    assert_eq!(world.select("n", 1.0).unwrap().value.fallback, Some(Reason::NonFinite));
}

#[test]
fn a_bundle_that_fails_repeatedly_is_taken_out_of_service() {
    let world = world();
    for number in 0..3 {
        let id = format!("p{number}");
        world.engine.faults.set(&id, Fault::Panic);
        assert_eq!(world.score(&id, 1.0).unwrap().value.fallback, Some(Reason::Panic));
    }
    let scored = world.score("", 1.0).unwrap().value;
    assert_eq!((&*scored.label, scored.fallback), ("review", Some(Reason::Breaker)));
    assert!(world.engine.events.take().iter().any(|line| line.contains("breaker_opened")));
    let rows = DenseRows(1, dense(1.0).values);
    let query = BatchQuery { checkpoint: FRAUD, request_id: String::new(), entity: "", rows };
    let error = world.run(world.engine.score_batch(&now(), query)).err().unwrap();
    assert!(matches!(error, Rejection::BreakerOpen { .. }), "{error}");
}

// --- decide ---

/// Fault case 14.
#[test]
fn beyond_its_caps_the_fallback_is_replaced_by_the_stricter_answer() {
    let world = world_with(|settings| {
        let caps = json!({"max_count": 1, "on_cap": {"decision": "decline", "score": 1.0}});
        settings["checkpoints"][FRAUD]["caps"] = caps;
    });
    world.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    let first = world.score("", 1.0).unwrap().value;
    let second = world.score("", 1.0).unwrap().value;
    assert_eq!((&*first.label, first.fallback), ("review", Some(Reason::Overload)));
    assert_eq!((&*second.label, second.score, second.fallback), ("decline", 1.0, Some(Reason::Cap)));
    assert_eq!(world.counters(FRAUD).caps().map(|(_, count)| count).sum::<u64>(), 1);
}

#[test]
fn beyond_its_caps_a_fallback_without_a_stricter_answer_is_rejected() {
    let world = world_with(|settings| settings["checkpoints"][ACTION]["caps"] = json!({"max_count": 1}));
    world.engine.assume_cost(ACTION, Duration::from_secs(3600));
    assert_eq!(world.select("", 1.0).unwrap().value.fallback, Some(Reason::Overload));
    assert_eq!(world.select("", 1.0).err(), Some(Rejection::Capped));
}

// --- record ---

#[test]
fn a_selection_is_recorded_before_it_is_answered() {
    let world = world();
    let selected = world.select("r", 250.0).unwrap().value;
    assert!(selected.logged && selected.fallback.is_none());
    let record = world.decisions().remove(0);
    assert_eq!((record.decision_id.as_str(), record.action_index), ("r", selected.index));
    assert_eq!((record.propensity, record.expected_reward), (selected.propensity, selected.expected_reward));
    let pmf: Vec<f32> = record.pmf.iter().map(|&p| p as f32).collect();
    assert_eq!(Some(&*pmf), selected.pmf.as_deref());
}

#[test]
fn without_a_log_the_best_action_is_chosen_and_scores_are_answered() {
    let world = world_with(|settings| settings["log"] = json!(null));
    let selected = world.select("", 250.0).unwrap().value;
    assert_eq!((selected.propensity, selected.fallback), (1.0, Some(Reason::LogOff)));
    assert!(!selected.logged);
    assert_eq!(world.score("", 1.0).unwrap().value.fallback, None);
}

#[test]
fn while_the_log_is_unavailable_nothing_is_explored() {
    let world = world();
    world.select("before", 250.0).unwrap();
    world.machine.fs.set_capacity(world.machine.fs.used());
    // The first selection meets the full disk. From then on, the log reports that it is unavailable.
    for id in ["first", "second"] {
        let selected = world.select(id, 250.0).unwrap().value;
        assert_eq!((selected.propensity, selected.fallback), (1.0, Some(Reason::Log)), "{id}");
        assert!(!selected.logged);
        let only: Vec<f32> = selected.pmf.unwrap().iter().copied().filter(|&p| p > 0.0).collect();
        assert_eq!(only, [1.0]);
    }
    assert!(world.engine.counters.unlogged.load(std::sync::atomic::Ordering::Relaxed) >= 2);
}

#[test]
fn a_selection_whose_record_is_late_is_unlogged_and_greedy() {
    let world = world_with(|settings| settings["checkpoints"][ACTION]["p99_ms"] = json!(200.0));
    let sink = Arc::new(Recorder::default());
    world.observe(&sink);
    world.machine.fs.stall(true);
    let answer = world.watched(|| world.wait(world.engine.select(&now(), select("late", 250.0))));
    world.machine.fs.stall(false);
    let selected = answer.unwrap().value;
    assert_eq!((selected.propensity, selected.fallback), (1.0, Some(Reason::Log)));
    assert!(!selected.logged);
    let seen = sink.0.lock().unwrap().clone();
    assert_eq!((seen.len(), &*seen[0].reason, seen[0].propensity), (1, "log_unavailable", 1.0));
    assert_eq!(seen[0].action, action_of(&selected));
}

#[test]
fn an_sla_that_is_not_enforced_does_not_bound_the_wait_for_the_record() {
    for mode in ["observe", "off"] {
        let world = world_with(|settings| {
            settings["checkpoints"][ACTION]["p99_ms"] = json!(1e-6);
            settings["checkpoints"][ACTION]["mode"] = json!(mode);
        });
        let arrival = Arrival::new(Instant::now(), Some(Duration::from_secs(60)), 1);
        let answer = world.watched(|| world.wait(world.engine.select(&arrival, select("", 250.0))));
        assert!(answer.unwrap().value.logged, "{mode}");
    }
}

#[test]
fn outcomes_are_recorded_once() {
    let world = world();
    world.select("r", 250.0).unwrap();
    let report = |value: f64| {
        let report = OutcomeReport {
            checkpoint: ACTION.to_owned(),
            decision_id: "r".to_owned(),
            kind: "authorised".to_owned(),
            value,
            revision: 1,
            occurred_at_ms: 0,
            token: Vec::new(),
            source: None,
        };
        world.run(world.engine.report_outcome(&now(), report))
    };
    let fresh = Reported { duplicate: false, decision_known: true, superseded: false, proven: true };
    assert_eq!(report(1.0), Ok(fresh));
    assert_eq!(report(1.0), Ok(Reported { duplicate: true, ..fresh }));
    assert!(matches!(report(0.0), Err(Rejection::OutcomeConflict { .. })));
    assert!(matches!(report(f64::NAN), Err(Rejection::OutcomeValue)));
}

// --- observe ---

#[test]
fn a_sink_receives_exactly_the_answers() {
    let world = world();
    let sink = Arc::new(Recorder::default());
    world.observe(&sink);
    let scored = world.score("s", 250.0).unwrap();
    let selected = world.select("a", 250.0).unwrap();
    world.engine.faults.set("p", Fault::Panic);
    let fallback = world.score("p", 250.0).unwrap();
    world.score("s", 250.0).unwrap();
    let seen = sink.0.lock().unwrap().clone();
    assert_eq!(seen.len(), 3, "a retry must not be observed again");
    assert_eq!(
        (&*seen[0].id, seen[0].score, &*seen[0].label, &*seen[0].reason),
        ("s", scored.value.score, &*scored.value.label, "")
    );
    assert_eq!(seen[0].row, [250.0, 0.0, 0.0]);
    assert_eq!(
        (&*seen[1].action, seen[1].propensity),
        (action_of(&selected.value), selected.value.propensity)
    );
    assert_eq!((seen[2].score, &*seen[2].label, &*seen[2].reason), (fallback.value.score, "review", "panic"));
}

// --- batch ---

#[test]
fn each_row_of_a_batch_is_scored_recorded_and_observed() {
    let world = world();
    let sink = Arc::new(Recorder::default());
    world.observe(&sink);
    let amounts = [1.0_f32, 250.0, 49_000.0];
    let values = amounts.iter().flat_map(|&amount| dense(amount).values).collect();
    let query =
        BatchQuery { checkpoint: FRAUD, request_id: "b".to_owned(), entity: "", rows: DenseRows(3, values) };
    let batch = world.run(world.engine.score_batch(&now(), query)).unwrap().value;
    let singly: Vec<f64> =
        amounts.iter().map(|&amount| world.score("", amount).unwrap().value.score).collect();
    assert_eq!(batch.rows.iter().map(|row| row.score).collect::<Vec<_>>(), singly);
    let ids: Vec<_> = sink.0.lock().unwrap().iter().take(3).map(|seen| seen.id.clone()).collect();
    assert_eq!(ids, ["b/0", "b/1", "b/2"]);
    let wrong = |rows: u32, values: Vec<f32>| {
        let rows = DenseRows(rows, values);
        let query = BatchQuery { checkpoint: FRAUD, request_id: String::new(), entity: "", rows };
        world.run(world.engine.score_batch(&now(), query)).err().unwrap()
    };
    assert_eq!(wrong(0, vec![]), Rejection::NoRows);
    assert_eq!(wrong(1001, vec![]), Rejection::TooManyRows { rows: 1001, max: 1000 });
    assert_eq!(wrong(2, vec![0.0; 5]), Rejection::Shape { got: 5, rows: 2, features: 3 });
    assert!(matches!(wrong(2, vec![1.0, 0.0, 0.0, -1.0, 0.0, 0.0]), Rejection::Row { row: 1, .. }));
}

#[test]
fn a_row_that_panics_has_the_label_of_the_fallback() {
    let world = world();
    world.engine.faults.set("b", Fault::Panic);
    let rows = DenseRows(2, [dense(1.0).values, dense(2.0).values].concat());
    let query = BatchQuery { checkpoint: FRAUD, request_id: "b".to_owned(), entity: "", rows };
    let batch = world.run(world.engine.score_batch(&now(), query)).unwrap().value;
    for row in &batch.rows {
        assert_eq!((row.score, row.fallback), (0.5, Some(Reason::Panic)));
        assert_eq!(&*batch.labels[row.label], "review");
    }
}

// --- lanes ---

#[test]
fn the_previous_bundle_answers_while_the_live_one_is_out_of_service() {
    let world = empty_world(|_| ());
    let newer = world.load(&testing::score_files("newer", 1.0));
    let table = json!({"version": 1, "previous": {FRAUD: world.fraud}, "checkpoints": {
        FRAUD: [{"name": "live", "bundle": newer, "share": 1.0}],
        ACTION: [],
    }});
    world.engine.publish(world.engine.compile(&serde_json::from_value(table).unwrap()).unwrap());
    assert_eq!(&*world.score("", 1.0).unwrap().value.source.bundle, newer);
    for number in 0..3 {
        let id = format!("p{number}");
        world.engine.faults.set(&id, Fault::Panic);
        assert_eq!(world.score(&id, 1.0).unwrap().value.fallback, Some(Reason::Panic));
    }
    let after = world.score("", 1.0).unwrap().value;
    assert_eq!((&*after.source.bundle, after.fallback), (&*world.fraud, Some(Reason::Previous)));
}

/// Fault case 67.
#[test]
fn a_bundle_with_nan_in_two_of_a_thousand_requests_is_replaced_by_the_previous_one() {
    let world = empty_world(|_| ());
    let new = world.load(&testing::score_files("fraud", 0.5));
    let table = json!({"version": 1, "previous": {FRAUD: world.fraud}, "checkpoints": {
        FRAUD: [{"name": "live", "bundle": new, "share": 1.0}], ACTION: []}});
    world.engine.publish(world.engine.compile(&serde_json::from_value(table).unwrap()).unwrap());
    let digest: Digest = new.parse().unwrap();
    let is_closed = || world.engine.bundles.get(&digest).unwrap().breaker.state() == BreakerState::Closed;
    let mut answered = 0;
    while is_closed() {
        assert!(answered < 3000, "the breaker stays closed");
        let id = format!("r{answered}");
        if answered % 500 == 499 {
            world.engine.faults.set(&id, Fault::NotFinite);
        }
        // A request that meets the defect is answered nevertheless.
        world.score(&id, 1.0).unwrap();
        answered += 1;
    }
    assert!(answered >= 1000, "opened after {answered}: too few to distinguish 0.2 % from chance");
    for number in 0..50 {
        let after = world.score(&format!("after {number}"), 1.0).unwrap().value;
        assert_eq!((&*after.source.bundle, after.fallback), (&*world.fraud, Some(Reason::Previous)));
    }
}
