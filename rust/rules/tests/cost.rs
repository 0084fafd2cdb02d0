//! The measurement of the cost of rules, with clocks that the tests control.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use scorer_rules::{
    Actions, CostSettings, Costly, Costs, Environment, Exhausted, ListKey, Lists, Request, RuleSet, Type,
};

const KEY: [u8; 16] = [3; 16];
const RULES: &str = r#"
    name = "checkout"
    decisions = ["decline", "approve"]
    [[values]]
    name = "double"
    is = "amount * 2.0"
    [[rules]]
    id = "large"
    when = "double > 100.0"
    decision = "decline"
    [[rules]]
    id = "small"
    when = "amount <= 50.0"
    decision = "approve"
"#;
/// The empty loop, one value, two rules, the whole set.
const WORKS: usize = 5;

/// Measures the rules on a number of requests; `clock` has the number of the call.
fn measure(
    requests: usize,
    settings: CostSettings,
    clock: impl Fn(usize) -> u64,
) -> (Costs, usize, Vec<usize>) {
    let mut environment = Environment::new();
    let amount = environment.declare("amount", Type::Double).unwrap();
    let actions = Actions::new(0, Vec::new()).unwrap();
    let set = RuleSet::compile(RULES, &environment, &actions, ListKey::new(KEY)).unwrap();
    let lists = Lists::new(ListKey::new(KEY), &environment);
    let (mut calls, mut filled) = (0, Vec::new());
    let costs = set.cost(
        &lists,
        requests,
        |at, values| {
            filled.push(at);
            values.set_double(amount, at as f64);
            Request { seconds: 0, id: b"", exhausted: Exhausted::NONE }
        },
        settings,
        || {
            calls += 1;
            clock(calls - 1)
        },
    );
    (costs, calls, filled)
}

/// A clock on which batches take these times, one after the other. The first reading is the start, and one more follows
/// each round of `WORKS` batches; the first round has as many batches for calibration.
fn batches(times: &[u64]) -> impl Fn(usize) -> u64 {
    let mut readings = vec![0];
    let mut now = 0;
    for (at, time) in times.iter().enumerate() {
        readings.push(now);
        now += time;
        readings.push(now);
        let measured = (at + 1).checked_sub(2 * WORKS);
        if measured.is_some_and(|later| later.is_multiple_of(WORKS)) {
            readings.push(now);
        }
    }
    move |call| readings[call]
}

const SETTINGS: CostSettings = CostSettings { batches: 4, batch_nanos: 0, limit_nanos: u64::MAX };

#[test]
fn the_time_of_the_empty_loop_is_subtracted_and_spreads_are_those_of_batches() {
    let mut times = Vec::new();
    // Of the first round, each work is calibrated by one batch, whose time does not count.
    for (empty, value, large, small, whole) in [(2, 12, 30, 40, 90)] {
        for time in [empty, value, large, small, whole] {
            times.extend([1_000_000, time]);
        }
    }
    times.extend([4, 15, 35, 44, 104]);
    times.extend([2, 12, 300, 41, 90]);
    times.extend([6, 16, 32, 3, 96]);
    let (costs, calls, _) = measure(1, SETTINGS, batches(&times));
    assert_eq!(calls, 1 + 2 * times.len() + SETTINGS.batches);
    assert_eq!((costs.batches, costs.requests), (4, 1));
    let parts: Vec<_> =
        costs.parts.iter().map(|one| (one.kind, one.name.as_str(), one.time.median, one.time.p99)).collect();
    assert_eq!(
        parts,
        [
            (Costly::Value, "double", 10.0, 11.0),
            (Costly::Rule, "large", 28.0, 298.0),
            // A batch that was faster than the empty loop costs nothing, and never less.
            (Costly::Rule, "small", 38.0, 40.0),
        ]
    );
    assert_eq!((costs.empty.median, costs.empty.p99), (2.0, 6.0));
    assert_eq!((costs.whole.median, costs.whole.p99), (88.0, 100.0));
    let shares: Vec<f64> = costs.parts.iter().map(|one| one.share).collect();
    assert_eq!(shares, [10.0 / 76.0, 28.0 / 76.0, 38.0 / 76.0]);
    assert!(costs.parts.iter().all(|one| one.instructions > 0 && one.evaluations == 1));
}

#[test]
fn a_batch_repeats_its_requests_until_it_takes_long_enough() {
    let settings = CostSettings { batches: 1, batch_nanos: 9, limit_nanos: u64::MAX };
    // Each work is calibrated by the batches but its last one, which is measured.
    let works: [&[u64]; WORKS] = [&[3, 6, 12, 24], &[5, 10, 66], &[9, 39], &[1, 2, 4, 8, 16, 528], &[9, 66]];
    let mut readings = vec![0];
    for time in works.iter().flat_map(|times| times.iter()) {
        let now = readings[readings.len() - 1];
        readings.extend([now, now + time]);
    }
    readings.push(readings[readings.len() - 1]);
    let (costs, calls, _) = measure(3, settings, |call| readings[call]);
    assert_eq!(calls, readings.len());
    assert_eq!(costs.empty.median, 24.0 / 12.0);
    let parts: Vec<_> = costs.parts.iter().map(|one| (one.evaluations, one.time.median)).collect();
    assert_eq!(parts, [(6, 66.0 / 6.0 - 2.0), (3, 39.0 / 3.0 - 2.0), (48, 528.0 / 48.0 - 2.0)]);

    // On a clock that stands still, the repetitions have a bound.
    let (costs, calls, _) = measure(1, SETTINGS_OF_A_STOPPED_CLOCK, |_| 7);
    assert!(costs.parts.iter().all(|one| one.evaluations == 1 << 16 && one.time.median == 0.0));
    assert_eq!(calls, 1 + WORKS * (17 + 1) * 2 + 1);
    assert!(costs.parts.iter().all(|one| one.share == 0.0));
}

const SETTINGS_OF_A_STOPPED_CLOCK: CostSettings =
    CostSettings { batches: 1, batch_nanos: 1, limit_nanos: u64::MAX };

#[test]
fn batches_end_at_the_limit_but_each_rule_has_one() {
    let settings = CostSettings { batches: 100, batch_nanos: 0, limit_nanos: 1_000 };
    let (costs, _, _) = measure(1, settings, |call| 10_000 * call as u64);
    assert_eq!(costs.batches, 1);
    assert!(costs.parts.iter().all(|one| one.evaluations == 1));
    // Each round reads the clock 11 times after a first one of 21 readings.
    let (costs, _, _) = measure(1, settings, |call| 20 * call as u64);
    assert_eq!(costs.batches, 4);
}

#[test]
fn requests_take_turns_and_a_set_without_requests_costs_nothing() {
    let (costs, _, filled) = measure(40, CostSettings { batches: 2, ..SETTINGS }, |call| call as u64);
    assert_eq!(costs.requests, 40);
    let expected: Vec<usize> = (0..64).map(|at| at % 40).collect();
    assert_eq!(filled, expected);
    assert!(costs.parts.iter().all(|one| one.evaluations == 32));

    let (costs, calls, filled) = measure(0, SETTINGS, |call| call as u64);
    assert_eq!((costs.batches, calls, filled.len()), (0, 1, 0));
    assert!(costs.parts.iter().all(|one| (one.time.median, one.time.p99, one.share) == (0.0, 0.0, 0.0)));
}
