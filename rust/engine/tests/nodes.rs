//! The times of the nodes of a bundle's program: which decisions are measured, and what becomes of the times.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use scorer_core::bundle::testing::{action_recipe, score_recipe, scored_action_recipe};
use scorer_engine::*;
use serde_json::json;
use support::*;

/// A thread measures one decision in this many.
const TIMED: usize = 61;
const CHECKOUT: &str = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "large"
when = "amount >= 5000.0"
decision = "decline"
"#;
const EXEMPTIONS: &str = r#"
name = "exemptions"
[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra", "low"] }
source = "agreement"
"#;

/// A world whose bundles have rules.
fn ruled() -> World {
    let mut world = empty_world(|_| ());
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    world.fraud = world.load(&score_recipe("ruled", 0.0).with_rules(CHECKOUT, &[]).build().unwrap());
    world.action =
        world.load(&action_recipe("ruled", 0.0, policy).with_rules(EXEMPTIONS, &[]).build().unwrap());
    world.publish(1, &world.fraud.clone(), &world.action.clone());
    world
}

/// Returns for each node of the bundle at a checkpoint in how many decisions it was measured.
fn timed(world: &World, checkpoint: &str) -> BTreeMap<String, u64> {
    let table = world.engine.lanes();
    let index = world.engine.checkpoints.get(checkpoint).unwrap().index;
    let (_, lane) = table.all().find(|(at, _)| *at == index).unwrap();
    let nodes = lane.loaded.nodes.times();
    nodes
        .map(|time| {
            assert_eq!(time.nanos > 0, time.timed > 0, "{}", time.node.name);
            (time.node.name.clone(), time.timed)
        })
        .collect()
}

fn each(names: &[&str], times: u64) -> BTreeMap<String, u64> {
    names.iter().map(|name| ((*name).to_owned(), times)).collect()
}

/// The names of the nodes in the stages of a traced request, one list per decision.
fn traced(arrival: &Arrival) -> Vec<Vec<String>> {
    let names = |times: &StageTimes| {
        times.nodes().into_iter().inspect(|(_, nanos)| assert!(*nanos > 0)).map(|(name, _)| name).collect()
    };
    arrival.stages().map(|(_, times)| names(times)).collect()
}

const OF_SCORE: [&str; 5] = ["decision", "margins", "probability", "ruled", "score"];
const OF_ACTION: [&str; 4] = ["action", "margins", "ruled", "score"];

#[test]
fn one_decision_in_61_is_measured_with_its_rules() {
    let world = ruled();
    assert_eq!(timed(&world, FRAUD), each(&OF_SCORE, 0));
    for _ in 0..3 * TIMED {
        world.score("", 250.0).unwrap();
    }
    assert_eq!(timed(&world, FRAUD), each(&OF_SCORE, 3));
    for _ in 0..2 * TIMED {
        world.select("", 250.0).unwrap();
    }
    assert_eq!(timed(&world, ACTION), each(&OF_ACTION, 2));
    assert_eq!(timed(&world, FRAUD), each(&OF_SCORE, 3), "each bundle has its own times");
}

#[test]
fn both_decisions_of_a_decide_have_their_turn() {
    let mut world = empty_world(|_| ());
    world.action = world.load(&scored_action_recipe("scored").build().unwrap());
    world.publish(1, &world.fraud.clone(), &world.action.clone());
    for _ in 0..TIMED {
        let action = SelectQuery {
            query: Query {
                checkpoint: ACTION,
                features: Dense { fingerprint: None, values: vec![250.0, f32::NAN, f32::NAN] },
                ..score("", 0.0)
            },
            eligible: None,
            include_pmf: false,
        };
        let passed = PassedOn { score: "fraud_score", decision: "fraud_decision" };
        let query = DecideQuery { score: score("", 250.0), action, passed, action_if_declined: false };
        let arrival = now();
        let decided = world.run(world.engine.decide(&arrival, query)).unwrap();
        assert!(matches!(decided.action, ActionAnswer::Selected(_)));
    }
    assert!(timed(&world, FRAUD).values().all(|&times| times == 1));
    assert!(timed(&world, ACTION).values().all(|&times| times == 1));
}

#[test]
fn every_traced_request_is_measured_also_on_the_pool() {
    let world = ruled();
    let arrival = now().traced();
    world.run(world.engine.score(&arrival, score("", 250.0))).unwrap();
    assert_eq!(traced(&arrival), [["margins", "probability", "score", "ruled", "decision"]]);
    assert_eq!(timed(&world, FRAUD), each(&OF_SCORE, 1));

    let at_once = now().traced();
    world.run(world.engine.select(&at_once, select("", 250.0))).unwrap();
    // The rules are evaluated before the work goes to the pool.
    world.engine.assume_cost(ACTION, Duration::from_millis(2));
    let pooled = now().traced();
    world.run(world.engine.select(&pooled, select("", 250.0))).unwrap();
    for arrival in [&at_once, &pooled] {
        assert_eq!(traced(arrival), [["margins", "score", "ruled", "action"]]);
    }
    assert_eq!(timed(&world, ACTION), each(&OF_ACTION, 2));

    let untraced = now();
    world.run(world.engine.select(&untraced, select("", 250.0))).unwrap();
    assert_eq!(untraced.stages().count(), 0);
}

#[test]
fn a_retry_that_is_answered_from_memory_is_not_measured() {
    let world = ruled();
    for _ in 0..2 {
        let arrival = now().traced();
        world.run(world.engine.select(&arrival, select("keyed", 250.0))).unwrap();
    }
    assert_eq!(timed(&world, ACTION), each(&OF_ACTION, 1));
}
