//! Explanations on demand: their content, their place beside the answers, and what is refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use scorer_core::bundle::testing::{action_recipe, score_recipe};
use scorer_engine::*;
use serde_json::{Value, json};
use support::*;

const NONE: &str = "3ds=none|exemption=none";

/// A world whose bundles have covers.
fn explained(places: usize) -> World {
    let world = empty_world(|settings: &mut Value| settings["explain_queue"] = json!(places));
    let fraud = world.load(&fraud(0.0));
    let mut action = action_recipe("action", 0.0, json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05}));
    action.covers = true;
    let action = world.load(&action.build().unwrap());
    world.publish(1, &fraud, &action);
    world
}

fn fraud(base: f32) -> scorer_core::bundle::testing::Files {
    let mut recipe = score_recipe("fraud", base);
    recipe.covers = true;
    recipe.reasons = Some(json!({"features": {"amount": {"code": "R01"}}}));
    recipe.build().unwrap()
}

fn ask(amount: f32) -> ExplainQuery<'static, Dense> {
    ExplainQuery {
        checkpoint: FRAUD,
        bundle: "",
        observing: &[],
        features: dense(amount),
        action: "",
        against: "",
        reasons: 0,
    }
}

fn ask_action(action: &'static str, against: &'static str) -> ExplainQuery<'static, Dense> {
    ExplainQuery { checkpoint: ACTION, action, against, ..ask(500.0) }
}

/// Runs a query, and computes on this thread.
fn run(world: &World, query: ExplainQuery<'_, Dense>) -> Result<Explanation, Rejection> {
    let arrival = now();
    let mut future = pin!(world.engine.explain(&arrival, query));
    loop {
        if let Poll::Ready(result) = poll(future.as_mut()) {
            return result;
        }
        assert!(world.engine.run_explanation_once(), "nothing is queued");
    }
}

fn refused(world: &World) -> BTreeMap<&'static str, u64> {
    world.engine.counters.explanations.by_refusal().collect()
}

fn sum(attributed: &Attributed) -> f64 {
    attributed.baseline + attributed.contributions.iter().sum::<f64>()
}

#[test]
fn a_score_is_explained_with_the_numbers_of_its_answer() {
    let world = explained(4);
    let mut query = ExplainQuery { reasons: 1, ..ask(500.0) };
    query.features.values[2] = 1.0;
    let found = run(&world, query).unwrap();
    let mut query = score("a", 500.0);
    query.features.values[2] = 1.0;
    let answer = world.run(world.engine.score(&now(), query)).unwrap().value;
    assert_eq!(*found.bundle, *answer.source.bundle);
    let names: Vec<_> = found.shape.reasons.iter().map(|column| column.feature.as_str()).collect();
    assert_eq!(names, ["amount", "country", "night"]);
    let Attributed { action, baseline, margin, score, contributions, reasons } = &found.explained;
    assert_eq!((*action, *margin, *score), (None, answer.margin, answer.score));
    // Three of four training rows went left. The stumps' leaves are -1 and 1, -0.5 and 1.5, 0 and 0.25.
    assert_eq!(*baseline, -0.4375);
    let close =
        |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    assert_eq!(contributions.len(), 3);
    contributions.iter().zip([1.0, 0.0, 0.1875]).for_each(|(found, expected)| close(*found, expected));
    let [reason] = reasons[..] else { panic!("one reason is asked for: {reasons:?}") };
    assert_eq!((reason.feature, reason.amount), (0, contributions[0]));
    assert!(found.against.is_none() && found.difference.is_none());
    assert_eq!(world.engine.explaining(), 0);
    assert_eq!(world.decisions().len(), 1, "an explanation is no decision");
}

#[test]
fn an_action_is_explained_and_compared_with_another() {
    let world = explained(4);
    let arrival = now();
    let mut query = select("a", 500.0);
    query.include_pmf = false;
    let answer = world.run(world.engine.select(&arrival, query)).unwrap().value;
    let chosen = answer.source.actions[answer.index as usize].id.clone();
    let other = if chosen == NONE { "3ds=challenge|exemption=none" } else { NONE };
    let query =
        ExplainQuery { checkpoint: ACTION, action: &chosen, against: other, reasons: 32, ..ask(500.0) };
    let found = run(&world, query).unwrap();
    let (against, difference) = (found.against.unwrap(), found.difference.unwrap());
    assert_eq!(found.explained.action, Some(answer.index as usize));
    assert_eq!(found.explained.score, answer.expected_reward, "the bits of the answer");
    for attributed in [&found.explained, &against, &difference] {
        assert!((sum(attributed) - attributed.margin).abs() < 1e-6, "{attributed:?}");
    }
    assert_eq!((difference.action, difference.baseline), (None, 0.0));
    assert_eq!(difference.margin, found.explained.margin - against.margin);
    // The context is the same, so in trees of one split the features of the action make the difference.
    let named = |reasons: &[scorer_core::explain::Contribution]| -> Vec<String> {
        let columns = &found.shape.reasons;
        reasons.iter().map(|reason| columns[reason.feature as usize].feature.clone()).collect()
    };
    let reasons = named(&difference.reasons);
    assert!(
        reasons.contains(&"three_ds".to_owned()) && !reasons.contains(&"amount".to_owned()),
        "{reasons:?}"
    );
    assert!(named(&found.explained.reasons).contains(&"amount".to_owned()));
}

#[test]
fn a_bundle_that_answered_before_or_observes_can_be_named() {
    let world = explained(4);
    let index = world.engine.checkpoints.get(FRAUD).unwrap().index;
    let first = world.engine.lanes().main(index).unwrap().digest_text.to_string();
    let (second, third) = (world.load(&fraud(0.25)), world.load(&fraud(0.5)));
    let action = world.action.clone();
    let table = json!({"version": 2, "checkpoints": {
        FRAUD: [{"name": "live", "bundle": second, "share": 0.5}, {"name": "b", "bundle": second, "share": 0.5}],
        ACTION: [{"name": "live", "bundle": action, "share": 1.0}],
    }, "previous": {FRAUD: first}});
    world.engine.publish(world.engine.compile(&serde_json::from_value(table).unwrap()).unwrap());
    let baseline = |bundle: &str, observing: &[std::sync::Arc<Loaded>]| {
        let query = ExplainQuery { bundle, observing, ..ask(500.0) };
        run(&world, query).map(|found| (found.bundle.to_string(), found.explained.baseline))
    };
    assert_eq!(baseline("", &[]).unwrap(), (second.clone(), -0.1875));
    assert_eq!(baseline(&first, &[]).unwrap(), (first.clone(), -0.4375));
    let loaded = world.engine.bundles.get(&third.parse().unwrap()).unwrap();
    assert_eq!(baseline(&third, &[loaded]).unwrap(), (third.clone(), 0.0625));
    // It is in memory, but of no lane of the checkpoint.
    let error = baseline(&third, &[]).unwrap_err().to_string();
    assert!(error.contains(&third) && error.contains("does not answer or observe at checkpoint"), "{error}");
    // A bundle of the other kind that the caller says observes here.
    let other = world.engine.bundles.get(&action.parse().unwrap()).unwrap();
    assert!(matches!(baseline(&action, &[other]), Err(Rejection::BundleNotHeld { .. })));
}

#[test]
fn what_breaks_a_rule_is_refused_before_it_is_queued() {
    let world = explained(4);
    let action = |action: &'static str, against: &'static str| ask_action(action, against);
    let many = ExplainQuery { reasons: 33, ..ask(1.0) };
    let mut wide = ask(1.0);
    wide.features.values.push(0.0);
    let mut stale = ask(1.0);
    stale.features.fingerprint = Some(7);
    for (query, says) in [
        (ExplainQuery { checkpoint: "fraud", ..ask(1.0) }, "checkpoint \"fraud\" is not configured"),
        (ExplainQuery { bundle: "latest", ..ask(1.0) }, "bundle: it is not a digest"),
        (ExplainQuery { action: NONE, ..ask(1.0) }, "action: checkpoint \"fraud.checkout\" is of kind score"),
        (
            ExplainQuery { against: NONE, ..ask(1.0) },
            "against: checkpoint \"fraud.checkout\" is of kind score",
        ),
        (action("", ""), "action: checkpoint \"action.authorise\" is of kind action; name"),
        (action("3ds=no", ""), "action: \"3ds=no\" is not in the catalogue"),
        (action(NONE, "3ds=no"), "against: \"3ds=no\" is not in the catalogue"),
        (action(NONE, NONE), "against: it is the explained action"),
        (many, "reasons: 33 are asked for; an answer has at most 32"),
        (wide, "4 values"),
        (stale, "schema_fingerprint 0x0000000000000007"),
    ] {
        let error = run(&world, query).err().unwrap().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{says:?} is not in {error:?}");
    }
    assert_eq!(world.engine.explaining(), 0);
    let world = support::world();
    let error = run(&world, ask(1.0)).err().unwrap().to_string();
    assert!(error.contains("has no covers, so it cannot be explained; build it again"), "{error}");
}

/// A structural proof that needs no clock: the only thread of the test computes nothing of a kind unless it is told
/// to, and both kinds are answered without the other's work.
#[test]
fn explanations_take_no_place_of_answers_and_answers_none_of_theirs() {
    let world = explained(3);
    world.engine.assume_cost(FRAUD, Duration::from_millis(2));
    let (arrival, queries) = (now(), 0..3);
    let mut waiting: Vec<_> = queries.map(|_| Box::pin(world.engine.explain(&arrival, ask(500.0)))).collect();
    for future in &mut waiting {
        assert!(poll(future.as_mut()).is_pending());
    }
    assert_eq!(world.engine.explaining(), 3);
    let full = run(&world, ask(500.0)).err().unwrap();
    assert_eq!(full, Rejection::ExplanationsFull { limit: 3 });
    assert_eq!(refused(&world), BTreeMap::from([("full", 1), ("pressure", 0), ("deadline", 0)]));
    // Nothing of them waits in front of answers: neither in admission control nor on the pool.
    let admitted = world.engine.admission.snapshot();
    assert_eq!((admitted.queued.iter().sum::<u64>(), admitted.running), (0, 0));
    assert!(!world.engine.run_pool_once(), "an explanation is on the pool of the answers");
    // An answer on the pool is computed while all places of explanations are taken.
    let answer = world.score("a", 500.0).unwrap();
    assert_eq!(answer.value.fallback, None);
    assert_eq!(world.engine.explaining(), 3);
    for _ in 0..3 {
        assert!(world.engine.run_explanation_once());
    }
    assert!(!world.engine.run_explanation_once());
    for mut future in waiting {
        let Poll::Ready(result) = poll(future.as_mut()) else { panic!("it has been computed") };
        assert_eq!(result.unwrap().explained.margin, answer.value.margin);
    }
    assert_eq!((world.engine.explaining(), world.engine.counters.explanations.exec.read().1), (0, 3));
}

#[test]
fn an_explanation_ends_at_its_deadline_and_is_not_computed_afterwards() {
    let world = explained(3);
    let late = world.watched(|| {
        let arrival = Arrival::new(Instant::now(), Some(Duration::from_millis(20)), 1);
        world.wait(world.engine.explain(&arrival, ask(500.0)))
    });
    assert_eq!(late.err(), Some(Rejection::Deadline));
    assert_eq!(refused(&world)["deadline"], 1);
    let arrival = Arrival::new(Instant::now(), Some(Duration::ZERO), 1);
    let Poll::Ready(result) = poll(pin!(world.engine.explain(&arrival, ask(500.0)))) else {
        panic!("queued")
    };
    assert_eq!(result.err(), Some(Rejection::Deadline));
}

#[test]
fn a_caller_that_is_gone_costs_no_computation() {
    let world = explained(1);
    let arrival = now();
    let mut future = Box::pin(world.engine.explain(&arrival, ask(500.0)));
    assert!(poll(future.as_mut()).is_pending());
    drop(future);
    assert!(world.engine.run_explanation_once());
    assert_eq!((world.engine.explaining(), world.engine.counters.explanations.exec.read().1), (0, 0));
    run(&world, ask(500.0)).unwrap();
}

#[test]
fn a_panic_is_an_internal_error_and_the_next_explanation_is_right() {
    let world = explained(1);
    let before = run(&world, ask(500.0)).unwrap();
    world.engine.faults.set(EXPLANATION_FAULT, Fault::Panic);
    let Err(Rejection::Internal { id }) = run(&world, ask(500.0)) else { panic!("not an internal error") };
    assert!(world.engine.events.take().iter().any(|line| line.contains(&id)));
    assert_eq!(world.engine.explaining(), 0);
    world.engine.faults.set(EXPLANATION_FAULT, Fault::NotFinite);
    assert!(matches!(run(&world, ask(500.0)), Err(Rejection::Internal { .. })));
    world.engine.faults.clear(EXPLANATION_FAULT);
    assert_eq!(run(&world, ask(500.0)).unwrap().explained, before.explained);
}

#[test]
fn a_stopped_engine_explains_nothing_more() {
    let world = explained(1);
    let arrival = now();
    let mut future = Box::pin(world.engine.explain(&arrival, ask(500.0)));
    assert!(poll(future.as_mut()).is_pending());
    world.engine.close();
    let Poll::Ready(result) = poll(future.as_mut()) else { panic!("it waits for a thread that has ended") };
    assert_eq!(result.err(), Some(Rejection::Draining));
    assert_eq!(world.engine.explaining(), 0);
}
