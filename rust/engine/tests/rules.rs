//! The rules of a bundle in answers: decisions, eligible actions, records, counters.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use scorer_core::bundle::testing::{action_recipe, score_recipe};
use scorer_engine::*;
use scorer_proto::v1::DecisionRecord;
use serde_json::{Value, json};
use support::*;

const CHECKOUT: &str = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount >= 5000.0"
decision = "decline"
reason = "R01"
queue = "level_2"

[[rules]]
id = "trusted"
when = "amount == 700.0"
decision = "approve"
reason = "R02"
source = "agreement"

[[rules]]
id = "low"
when = "score < 0.3"
floor = 0.6
"#;

const EXEMPTIONS: &str = r#"
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra", "low"] }
reason = "E1"
source = "Delegated Regulation (EU) 2018/389, article 18"

[[rules]]
id = "without_3ds"
when = "amount > 2000.0"
keep = { three_ds = ["challenge"] }
source = "agreement"
"#;

/// A world whose bundles have rules.
fn ruled(change: impl FnOnce(&mut Value)) -> World {
    let world = empty_world(change);
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let fraud = world.load(&score_recipe("fraud", 0.0).with_rules(CHECKOUT, &[]).build().unwrap());
    let action =
        world.load(&action_recipe("action", 0.0, policy).with_rules(EXEMPTIONS, &[]).build().unwrap());
    world.publish(1, &fraud, &action);
    world
}

fn ids(rules: &GivenRules) -> Vec<&str> {
    rules.fired().map(|rule| rule.id.as_str()).collect()
}

fn record(world: &World, id: &str) -> DecisionRecord {
    world.decisions().into_iter().find(|record| record.decision_id == id).unwrap()
}

fn hits(world: &World, kind: Kind) -> Vec<u64> {
    let lanes = world.engine.lanes();
    let (_, lane) = lanes.all().find(|(_, lane)| lane.loaded.kind == kind).unwrap();
    lane.loaded.rules.hits().collect()
}

#[test]
fn rules_change_the_decision_and_not_the_score() {
    let world = ruled(|_| ());
    let plain = support::world();
    for (id, amount, label, fired, within) in [
        ("a", 500.0, "review", &[][..], None),
        ("b", 6000.0, "decline", &["large"], None),
        ("c", 700.0, "approve", &["trusted"], None),
        ("d", 5.0, "review", &["low"], Some(0.6)),
    ] {
        let answer = world.score(id, amount).unwrap().value;
        let without = plain.score(id, amount).unwrap().value;
        assert_eq!((answer.score, answer.margin), (without.score, without.margin));
        assert_eq!((&*answer.label, &ids(&answer.rules)[..], answer.fallback), (label, fired, None), "{id}");
        assert_eq!(answer.rules.ruled().unwrap().score, within.unwrap_or(answer.score));
        assert!(without.rules.ruled().is_none());
        // A retry has the same rules.
        let again = world.score(id, amount).unwrap();
        assert!(again.replayed);
        assert_eq!(ids(&again.value.rules), fired);
    }
    assert_eq!(hits(&world, Kind::Score), [1, 1, 1]);
    let records = world.decisions();
    let of = |id: &str| records.iter().find(|record| record.decision_id == id).unwrap();
    let rules = of("b").rules.clone().unwrap();
    assert_eq!((rules.fired[0].id.as_str(), rules.fired[0].reason.as_str()), ("large", "R01"));
    assert_eq!((rules.queue.as_str(), of("b").decision.as_str()), ("level_2", "decline"));
    assert_eq!((of("d").rules.clone().unwrap().score, of("d").decision.as_str()), (0.6, "review"));
    assert!(of("d").score < 0.3);
    assert!(of("a").rules.clone().unwrap().fired.is_empty());
    assert!(plain.decisions().iter().all(|record| record.rules.is_none()));
}

#[test]
fn rules_apply_to_every_row_of_a_batch() {
    let world = ruled(|_| ());
    let rows = DenseRows(3, [500.0, 6000.0, 5.0].iter().flat_map(|amount| [*amount, 0.0, 0.0]).collect());
    let query = BatchQuery { checkpoint: FRAUD, request_id: "b".to_owned(), entity: "", rows };
    let batch = world.run(world.engine.score_batch(&now(), query)).unwrap().value;
    let labels: Vec<&str> = batch.rows.iter().map(|row| &*batch.labels[row.label]).collect();
    assert_eq!(labels, ["review", "decline", "review"]);
    let fired: Vec<Vec<&str>> = batch
        .ruled
        .iter()
        .map(|ruled| ruled.fired(&batch.shape).map(|rule| rule.id.as_str()).collect())
        .collect();
    assert_eq!(fired, [vec![], vec!["large"], vec!["low"]]);
    assert_eq!(hits(&world, Kind::Score), [1, 0, 1]);
    let rules = record(&world, "b/1").rules.unwrap();
    assert_eq!(rules.fired[0].id, "large");
}

#[test]
fn a_fallback_is_made_stricter_and_never_milder() {
    let world = ruled(|_| ());
    world.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    // The fallback is `review` with the score 0.5, which rules do not see.
    for (id, amount, label, fired) in [
        ("a", 6000.0, "decline", &["large"][..]),
        ("b", 700.0, "review", &["trusted"]),
        ("c", 5.0, "review", &[]),
    ] {
        let answer = world.score(id, amount).unwrap().value;
        assert_eq!((&*answer.label, answer.score, answer.fallback), (label, 0.5, Some(Reason::Overload)));
        assert_eq!(ids(&answer.rules), fired);
        assert_eq!(answer.rules.ruled().unwrap().unknown, 1, "the rule that reads the score");
    }
    let unlisted = ruled(|settings| {
        settings["checkpoints"][FRAUD]["fallback"] = json!({"decision": "hold", "score": 0.5});
    });
    unlisted.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    assert_eq!(&*unlisted.score("a", 6000.0).unwrap().value.label, "hold");
}

#[test]
fn the_policy_chooses_among_the_actions_that_the_rules_allow() {
    for pool in [false, true] {
        let world = ruled(|_| ());
        if pool {
            world.engine.assume_cost(ACTION, Duration::from_millis(2));
        }
        let seen = Arc::new(Recorder::default());
        world.observe(&seen);
        let answer = world.select("a", 500.0).unwrap().value;
        assert_eq!((ids(&answer.rules), answer.fallback), (vec!["tra_limit"], None));
        let fired = answer.rules.fired().next().unwrap();
        assert_eq!(fired.source, "Delegated Regulation (EU) 2018/389, article 18");
        // Actions 0 and 3 have no exemption.
        let pmf = answer.pmf.clone().unwrap();
        assert!((pmf[0] + pmf[3] - 1.0).abs() < 1e-6 && pmf[0] > 0.0 && pmf[3] > 0.0, "{pmf:?}");
        assert_eq!(f64::from(pmf[answer.index as usize]) as f32, answer.propensity as f32);
        let mask = [0b11_1000];
        let eligible = Some(Eligible { ids: &[], mask: &mask });
        let query = SelectQuery { eligible, ..select("b", 500.0) };
        let only = world.run(world.engine.select(&now(), query)).unwrap().value;
        assert_eq!((only.index, only.propensity), (3, 1.0));
        let free = world.select("c", 50.0).unwrap().value;
        assert_eq!(ids(&free.rules), Vec::<&str>::new());
        assert_eq!(hits(&world, Kind::Action), [2, 0]);
        let records = world.decisions();
        let masks: Vec<(&[u8], &[u8])> =
            records.iter().map(|record| (&record.eligible_mask[..], &record.requested_mask[..])).collect();
        assert_eq!(masks, [(&[0b1001][..], &[][..]), (&[0b1000], &[0b11_1000]), (&[], &[])]);
        assert_eq!(records[0].rules.as_ref().unwrap().fired[0].reason, "E1");
    }
}

#[test]
fn rules_that_leave_nothing_are_answered_by_a_fallback_that_the_request_allows() {
    let world = ruled(|_| ());
    let with = |id: &str, amount: f32, mask: &[u8]| {
        let eligible = Some(Eligible { ids: &[], mask });
        world.run(world.engine.select(&now(), SelectQuery { eligible, ..select(id, amount) }))
    };
    // The fallback is action 0; the rule allows only 3DS, which actions 0 and 1 do not have.
    let answer = with("a", 3000.0, &[0b11]).unwrap().value;
    assert_eq!((action_of(&answer), answer.propensity), (FALLBACK, 1.0));
    assert_eq!(answer.fallback, Some(Reason::NothingAllowed));
    assert_eq!(answer.fallback.unwrap().source(), "static");
    assert_eq!(ids(&answer.rules), ["tra_limit", "without_3ds"]);
    let error = with("b", 3000.0, &[0b10]).err().unwrap();
    assert!(matches!(error, Rejection::NothingAllowed { .. }), "{error}");
    assert!(error.to_string().contains("leave none of these actions"));
    let counted = world.counters(ACTION).fallbacks().find(|(reason, _)| *reason == Reason::NothingAllowed);
    assert_eq!(counted, Some((Reason::NothingAllowed, 1)));
    // A fallback for another reason has to be an action that the rules allow.
    world.engine.faults.set("p", Fault::Panic);
    world.engine.faults.set("q", Fault::Panic);
    assert_eq!(world.select("p", 500.0).unwrap().value.fallback, Some(Reason::Panic));
    let error = world.select("q", 3000.0).err().unwrap();
    assert!(matches!(error, Rejection::Internal { .. }), "{error}");
    let record = record(&world, "a");
    assert_eq!((&record.eligible_mask[..], &record.requested_mask[..]), (&[0b11][..], &[0b11][..]));
    assert_eq!((record.fallback_reason.as_str(), record.pmf[0]), ("rules_leave_nothing", 1.0));
}

#[test]
fn a_draw_that_cannot_be_recorded_is_replaced_by_an_allowed_action() {
    let world = ruled(|settings| settings["log"] = json!(null));
    for number in 0..20 {
        let answer = world.select(&format!("r{number}"), 500.0).unwrap().value;
        assert_eq!((answer.index % 3, answer.fallback), (0, Some(Reason::LogOff)));
    }
}

#[test]
fn a_missing_value_is_counted() {
    let world = ruled(|_| ());
    let query = Query { ..score("a", 500.0) };
    world.run(world.engine.score(&now(), query)).unwrap();
    world.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    world.score("b", 500.0).unwrap();
    let lanes = world.engine.lanes();
    let (_, lane) = lanes.all().find(|(_, lane)| lane.loaded.kind == Kind::Score).unwrap();
    let counts: Vec<_> = lane.loaded.rules.without_value().collect();
    assert_eq!(counts, [("missing", 1), ("error", 0), ("conflict", 0), ("fault", 0)]);
}

/// Number of evaluations of rules that failed.
fn faults(world: &World, kind: Kind) -> u64 {
    let lanes = world.engine.lanes();
    let (_, lane) = lanes.all().find(|(_, lane)| lane.loaded.kind == kind).unwrap();
    lane.loaded.rules.without_value().find(|(cause, _)| *cause == "fault").unwrap().1
}

fn struck(world: &World, ids: &[&str]) {
    for id in ids {
        world.engine.faults.set(id, Fault::RulesPanic);
    }
}

#[test]
fn a_panic_in_rules_gives_the_stricter_of_the_model_and_the_fallback() {
    let world = ruled(|_| ());
    struck(&world, &["a", "b", "c"]);
    // The model approves; the fallback is `review` with the score 0.5.
    let answer = world.score("a", 5.0).unwrap().value;
    assert_eq!((&*answer.label, answer.score, answer.margin), ("review", 0.5, 0.0));
    let reason = answer.fallback.unwrap();
    assert_eq!((reason.source(), reason.as_str()), ("static", "rules_failed"));
    assert_eq!((ids(&answer.rules), answer.rules.ruled().unwrap().errors), (vec![], 3));
    // The model's own decision is as strict as the fallback.
    let answer = world.score("b", 500.0).unwrap().value;
    let plain = support::world().score("b", 500.0).unwrap().value;
    assert_eq!((&*answer.label, answer.score, answer.margin), ("review", plain.score, plain.margin));
    let reason = answer.fallback.unwrap();
    assert_eq!((reason.source(), reason.as_str()), ("model", "rules_failed"));
    // The reason of a fallback that answers already is kept.
    world.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    let answer = world.score("c", 6000.0).unwrap().value;
    assert_eq!((&*answer.label, answer.fallback), ("review", Some(Reason::Overload)));
    assert_eq!(answer.rules.ruled().unwrap().errors, 3);
    assert_eq!((faults(&world, Kind::Score), hits(&world, Kind::Score)), (3, vec![0, 0, 0]));
    let record = record(&world, "a");
    assert_eq!((record.fallback_source.as_str(), record.decision.as_str()), ("static", "review"));
    assert_eq!(record.rules.unwrap().errors, 3);
    // The next request has its rules again.
    assert_eq!(ids(&world.score("d", 6000.0).unwrap().value.rules), ["large"]);
}

#[test]
fn a_panic_in_rules_without_a_fallback_keeps_the_models_decision() {
    for fallback in [json!(null), json!({"decision": "hold", "score": 0.9})] {
        let world = ruled(|settings| settings["checkpoints"][FRAUD]["fallback"] = fallback.clone());
        struck(&world, &["a"]);
        let answer = world.score("a", 5.0).unwrap().value;
        // The strictness of a decision that is not a band's is not known, so the configured fallback answers.
        let expected = if fallback.is_null() { ("approve", "model") } else { ("hold", "static") };
        assert_eq!((&*answer.label, answer.fallback.unwrap().source()), expected);
    }
}

#[test]
fn a_panic_in_rules_changes_only_its_row_of_a_batch() {
    let world = ruled(|_| ());
    struck(&world, &["b/1"]);
    let rows = DenseRows(3, [6000.0, 5.0, 5.0].iter().flat_map(|amount| [*amount, 0.0, 0.0]).collect());
    let query = BatchQuery { checkpoint: FRAUD, request_id: "b".to_owned(), entity: "", rows };
    let batch = world.run(world.engine.score_batch(&now(), query)).unwrap().value;
    let reasons: Vec<Option<Reason>> = batch.rows.iter().map(|row| row.fallback).collect();
    assert_eq!(reasons, [None, Some(Reason::RulesFailed), None]);
    assert_eq!(hits(&world, Kind::Score), [1, 0, 1]);
    assert_eq!((batch.ruled[1].errors, batch.rows[1].score), (3, 0.5));
}

#[test]
fn a_panic_in_rules_is_answered_by_the_fallback_action() {
    for pool in [false, true] {
        let world = ruled(|_| ());
        if pool {
            world.engine.assume_cost(ACTION, Duration::from_millis(2));
        }
        struck(&world, &["a", "b"]);
        let answer = world.select("a", 500.0).unwrap().value;
        assert_eq!((action_of(&answer), answer.propensity), (FALLBACK, 1.0));
        assert_eq!(answer.fallback, Some(Reason::RulesFailed));
        assert_eq!((ids(&answer.rules), answer.rules.ruled().unwrap().errors), (vec![], 2));
        // Which actions the rules allow is not known, so no other action is chosen.
        let eligible = Some(Eligible { ids: &[], mask: &[0b10] });
        let query = SelectQuery { eligible, ..select("b", 500.0) };
        let error = world.run(world.engine.select(&now(), query)).err().unwrap();
        assert!(matches!(error, Rejection::Internal { .. }), "{error}");
        assert_eq!(faults(&world, Kind::Action), 2);
        let record = record(&world, "a");
        assert_eq!((&record.eligible_mask[..], &record.requested_mask[..]), (&[][..], &[][..]));
        assert_eq!(ids(&world.select("c", 500.0).unwrap().value.rules), ["tra_limit"]);
    }
}

#[test]
fn panics_in_rules_open_the_breaker_of_the_bundle() {
    let world = ruled(|_| ());
    for number in 0..1000 {
        let id = format!("r{number}");
        struck(&world, &[&id]);
        match world.score(&id, 6000.0).unwrap().value.fallback {
            Some(Reason::Breaker) => return,
            reason => assert!(reason.is_some()),
        }
    }
    panic!("the breaker stays closed");
}

const EXPLORING: &str = r#"
name = "checkout"
hit = "first"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "explore"
when = "amount >= 400.0 && amount < 600.0"
decision = "approve"
daily = 3
daily_amount = { of = "amount", most = 1400.0 }
"#;

/// A world whose score bundle has these rules.
fn exploring(rules: &str, change: impl FnOnce(&mut Value)) -> World {
    let world = empty_world(change);
    install(&world, 1, rules);
    world
}

fn install(world: &World, version: u64, rules: &str) {
    let name = format!("fraud{version}");
    let fraud = world.load(&score_recipe(&name, 0.0).with_rules(rules, &[]).build().unwrap());
    world.publish(version, &fraud, &world.action);
}

fn label(world: &World, id: &str, amount: f32) -> String {
    world.score(id, amount).unwrap().value.label.to_string()
}

/// What is used of the budgets of the score's rules: decisions, then amounts.
fn used(world: &World) -> Vec<f64> {
    let lanes = world.engine.lanes();
    let (at, lane) = lanes.all().find(|(_, lane)| lane.loaded.kind == Kind::Score).unwrap();
    let seconds = world.engine.clock.unix_us().div_euclid(1_000_000);
    world.engine.checkpoints.at(at).budgets(&lane.loaded, seconds).iter().map(|budget| budget.used).collect()
}

#[test]
fn a_rule_decides_until_its_daily_budget_is_used_up() {
    let world = exploring(EXPLORING, |_| ());
    assert_eq!(used(&world), [0.0, 0.0]);
    for (id, amount, expected) in [
        ("a", 500.0, "approve"),
        ("b", 700.0, "review"),
        ("a", 500.0, "approve"), // A retry is the same request.
        ("c", 500.0, "approve"),
        ("d", 500.0, "review"), // 1500 would be more than the amount.
        ("e", 400.0, "approve"),
        ("f", 400.0, "review"),
    ] {
        assert_eq!(label(&world, id, amount), expected, "{id}");
    }
    assert_eq!(used(&world), [3.0, 1400.0]);
    let exhausted: Vec<(String, Vec<String>)> = world
        .decisions()
        .into_iter()
        .map(|record| (record.decision_id, record.rules.unwrap().exhausted))
        .collect();
    let explore = vec!["explore".to_owned()];
    let expected =
        [("a", vec![]), ("b", vec![]), ("c", vec![]), ("d", explore.clone()), ("e", vec![]), ("f", explore)];
    assert_eq!(exhausted, expected.map(|(id, rules)| (id.to_owned(), rules)));
    assert_eq!(hits(&world, Kind::Score), [3]);

    // Another bundle with the rule has what is left, by its own limit. A rule with another id has a budget of its own.
    install(&world, 2, &EXPLORING.replace("daily = 3", "daily = 4").replace("1400.0", "5000.0"));
    assert_eq!((label(&world, "g", 500.0), label(&world, "h", 500.0)), ("approve".into(), "review".into()));
    assert_eq!(used(&world), [4.0, 1900.0]);
    install(&world, 3, &EXPLORING.replace("\"explore\"", "\"explore_2\""));
    assert_eq!((label(&world, "i", 500.0), used(&world)), ("approve".into(), vec![1.0, 500.0]));
    install(&world, 4, EXPLORING);
    assert_eq!((label(&world, "j", 400.0), used(&world)), ("review".into(), vec![4.0, 1900.0]));
}

#[test]
fn a_request_that_a_rule_does_not_decide_uses_none_of_its_budget() {
    let world = exploring(EXPLORING, |_| ());
    world.engine.faults.set("a", Fault::RulesPanic);
    assert_eq!(label(&world, "a", 500.0), "review");
    world.engine.assume_cost(FRAUD, Duration::from_secs(3600));
    let answer = world.score("b", 500.0).unwrap().value;
    assert_eq!(
        (&*answer.label, ids(&answer.rules), used(&world)),
        ("review", vec!["explore"], vec![0.0, 0.0])
    );
}

#[test]
fn a_rule_uses_none_of_its_budget_if_a_stricter_rule_decides() {
    let stricter = "\n[[rules]]\nid = \"strict\"\nwhen = \"amount > 450.0\"\ndecision = \"decline\"\n";
    let both = format!("{}{stricter}", EXPLORING.replace("hit = \"first\"", "hit = \"collect\""));
    let world = exploring(&both, |_| ());
    let answer = world.score("a", 500.0).unwrap().value;
    assert_eq!((&*answer.label, ids(&answer.rules)), ("decline", vec!["explore", "strict"]));
    assert_eq!(used(&world), [0.0, 0.0]);
    assert_eq!((label(&world, "b", 420.0), used(&world)), ("approve".into(), vec![1.0, 420.0]));
}

#[test]
fn a_request_is_taken_from_all_budgets_or_from_none() {
    let second =
        "\n[[rules]]\nid = \"other\"\nwhen = \"amount >= 500.0\"\ndecision = \"approve\"\ndaily = 1\n";
    let both = format!("{}{second}", EXPLORING.replace("hit = \"first\"", "hit = \"collect\""));
    let world = exploring(&both, |_| ());
    let fired = |id: &str, amount: f32| {
        let answer = world.score(id, amount).unwrap().value;
        answer.rules.fired().map(|rule| rule.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (fired("a", 500.0), used(&world)),
        (vec!["explore".into(), "other".into()], vec![1.0, 500.0, 1.0])
    );
    // The second budget does not hold the request, which is decided by the first rule alone.
    assert_eq!((fired("b", 500.0), used(&world)), (vec!["explore".into()], vec![2.0, 1000.0, 1.0]));
}

#[test]
fn rows_of_a_batch_use_budgets_and_a_rejected_batch_does_not() {
    let batch = |world: &World, rows: &[f32]| {
        let rows = DenseRows(rows.len() as u32, rows.iter().flat_map(|amount| [*amount, 0.0, 0.0]).collect());
        let query = BatchQuery { checkpoint: FRAUD, request_id: "b".to_owned(), entity: "", rows };
        let batch = world.run(world.engine.score_batch(&now(), query))?.value;
        Ok::<_, Rejection>(
            batch.rows.iter().map(|row| batch.labels[row.label].to_string()).collect::<Vec<_>>(),
        )
    };
    let world = exploring(EXPLORING, |_| ());
    assert_eq!(
        batch(&world, &[400.0, 400.0, 5.0, 400.0, 400.0]).unwrap(),
        ["approve", "approve", "approve", "approve", "review"]
    );
    assert_eq!(used(&world), [3.0, 1200.0]);
    // The last row has no answer, so the others are not given.
    let world = exploring(EXPLORING, |settings| settings["checkpoints"][FRAUD]["fallback"] = json!(null));
    world.engine.faults.set("b", Fault::Panic);
    assert!(batch(&world, &[400.0, 400.0]).is_err());
    assert_eq!(used(&world), [0.0, 0.0]);
}
