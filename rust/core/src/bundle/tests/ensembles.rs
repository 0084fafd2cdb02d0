//! Score maps, means, stacks and switches against naive computations.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::super::testing::{Recipe, action_recipe, assemble, ensemble_recipe};
use super::super::*;
use crate::budget::{Budget, Unlimited};
use crate::policy::Mask;

fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

fn logit(score: f64) -> f64 {
    (score / (1.0 - score)).ln()
}

/// The probabilities of the three forests of [`ensemble_recipe`], from the definitions of their stumps.
fn probabilities(row: &[f32]) -> [f64; 3] {
    [0, 1, 2].map(|number| {
        let base = [0.0, -1.0, 0.5][number];
        let amount = if row[0] < 100.0 * (number + 1) as f32 { -1.0 } else { 1.0 };
        let night = if row[2] >= 0.5 { 0.25 } else { 0.0 };
        sigmoid(base + amount + night)
    })
}

fn rows() -> Vec<f32> {
    let amounts = [50.0, 100.0, 150.0, 200.0, 299.0, 300.0, 5000.0, -0.0];
    let countries = [0.0, 1.0, 2.0, f32::NAN];
    (0..192).flat_map(|i| [amounts[i % 8], countries[i / 8 % 4], [0.0, 1.0, f32::NAN][i / 32 % 3]]).collect()
}

/// Checks every row alone, within a block, and as a golden case.
fn check(recipe: &Recipe, expected: impl Fn(&[f32], [f64; 3]) -> f64) {
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&bundle));
    let rows = rows();
    let mut together = Vec::new();
    bundle.score_rows(&rows, &Unlimited, &mut other, &mut together).unwrap();
    for (row, together) in rows.chunks(3).zip(together) {
        let out = bundle.score(row, &Unlimited, &mut scratch);
        assert_eq!(out, together, "{row:?}");
        let (score, expected) = (out.unwrap().score, expected(row, probabilities(row)));
        assert!((score - expected).abs() < 1e-6, "{row:?}: {score} is not {expected}");
    }
}

fn refusal(recipe: &Recipe) -> String {
    let message = recipe.build().unwrap_err().to_string();
    assert!(!message.contains('\n') && message.len() < 600, "{message}");
    message
}

fn three() -> Value {
    json!(["probability-0", "probability-1", "probability-2"])
}

#[test]
fn means_of_scores_and_of_logits() {
    let node = |of: &str, weights: Value| json!([{"kind": "mean", "inputs": three(), "of": of, "weights": weights, "output": "combined"}]);
    check(&ensemble_recipe("m", node("scores", json!([]))), |_, p| p.iter().sum::<f64>() / 3.0);
    let weighted = ensemble_recipe("m", node("scores", json!([2.0, 1.0, 0.5])));
    check(&weighted, |_, p| (2.0 * p[0] + p[1] + 0.5 * p[2]) / 3.5);
    let logits = ensemble_recipe("m", node("logits", json!([2.0, 1.0, 0.5])));
    check(&logits, |_, p| sigmoid((2.0 * logit(p[0]) + logit(p[1]) + 0.5 * logit(p[2])) / 3.5));
    // The margin of a mean of logits is the mean.
    let bundle = logits.draft().unwrap();
    let out = bundle.score(&[150.0, 0.0, 1.0], &Unlimited, &mut EvalScratch::new(&bundle)).unwrap();
    assert!((sigmoid(out.margin) - out.score).abs() < 1e-12, "{out:?}");
}

#[test]
fn stacks_are_logistic_regressions() {
    let node = |of: &str| {
        json!([{"kind": "stack", "inputs": three(), "of": of, "coefficients": [0.5, -0.25, 1.5],
                "intercept": -0.125, "output": "combined"}])
    };
    check(&ensemble_recipe("s", node("logits")), |_, p| {
        sigmoid(0.5 * logit(p[0]) - 0.25 * logit(p[1]) + 1.5 * logit(p[2]) - 0.125)
    });
    check(&ensemble_recipe("s", node("scores")), |_, p| {
        sigmoid(0.5 * p[0] - 0.25 * p[1] + 1.5 * p[2] - 0.125)
    });
}

fn by_country() -> Value {
    json!([{"kind": "switch", "feature": "country", "default": "probability-2", "output": "combined", "cases": [
        {"input": "probability-0", "categories": ["NL"]}, {"input": "probability-1", "categories": ["FR"]}]}])
}

#[test]
fn a_switch_selects_by_category_and_by_range() {
    check(&ensemble_recipe("s", by_country()), |row, p| match row[1] {
        0.0 => p[0],
        2.0 => p[1],
        _ => p[2],
    });
    let ranges = json!([{"kind": "switch", "feature": "amount", "default": "probability-2", "output": "combined",
        "cases": [{"input": "probability-0", "to": 100.0}, {"input": "probability-1", "from": 150.0, "to": 300.0}]}]);
    check(&ensemble_recipe("s", ranges), |row, p| match row[0] {
        amount if amount < 100.0 => p[0],
        amount if (150.0..300.0).contains(&amount) => p[1],
        _ => p[2],
    });
    let flag = json!([{"kind": "switch", "feature": "night", "default": "probability-2", "output": "combined",
        "cases": [{"input": "probability-1", "to": 0.5}, {"input": "probability-0", "from": 1.0}]}]);
    check(&ensemble_recipe("s", flag), |row, p| match row[2] {
        0.0 => p[1],
        1.0 => p[0],
        _ => p[2],
    });
}

#[test]
fn nested_switches_and_branches_with_shared_nodes() {
    let nodes = json!([
        {"kind": "mean", "inputs": ["probability-0", "probability-1"], "output": "mean"},
        {"kind": "switch", "feature": "night", "default": "mean", "output": "inner",
         "cases": [{"input": "probability-1", "from": 1.0}]},
        {"kind": "switch", "feature": "country", "default": "probability-2", "output": "combined",
         "cases": [{"input": "inner", "categories": ["DE", "NL"]}]},
    ]);
    check(&ensemble_recipe("s", nodes), |row, p| match (row[1], row[2]) {
        (0.0 | 1.0, 1.0) => p[1],
        (0.0 | 1.0, _) => (p[0] + p[1]) / 2.0,
        _ => p[2],
    });
}

#[derive(Default)]
struct Checks(AtomicUsize);

impl Budget for Checks {
    fn spent(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

#[test]
fn only_the_chosen_branch_is_evaluated() {
    let bundle = ensemble_recipe("s", by_country()).draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let checks = |scratch: &mut EvalScratch, bundle: &Bundle| {
        let checks = Checks::default();
        bundle.score(&[150.0, 0.0, 1.0], &checks, scratch).unwrap();
        checks.0.into_inner()
    };
    let one = checks(&mut scratch, &bundle);
    scratch.buffers.whole = true;
    assert_eq!(checks(&mut scratch, &bundle), 3 * one);
}

#[test]
fn a_fault_in_another_branch_is_no_fault() {
    let mut recipe = ensemble_recipe("s", by_country());
    // The amounts of forest 1 become infinite.
    let step = json!({"function": "standardise", "feature": "amount", "mean": 0.0, "scale": 1e-300});
    let nodes = recipe.manifest["program"].as_array_mut().unwrap();
    nodes[2]["input"] = json!("scaled");
    nodes.insert(0, json!({"kind": "transform", "input": "row", "output": "scaled", "steps": [step]}));
    let bundle = recipe.draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let rows = rows();
    let alone: Vec<_> = rows.chunks(3).map(|row| bundle.score(row, &Unlimited, &mut scratch)).collect();
    for (row, out) in rows.chunks(3).zip(&alone) {
        assert_eq!(out.is_err(), row[1] == 2.0 && row[0] != 0.0, "{row:?}");
    }
    let mut together = Vec::new();
    bundle.score_rows(&rows, &Unlimited, &mut scratch, &mut together).unwrap();
    // The faults hold NaN or infinities, which are compared as text.
    assert_eq!(format!("{together:?}"), format!("{alone:?}"));
}

fn mapped(map: Value) -> Recipe {
    let node = json!([{"kind": "scoremap", "file": "score_map.json", "input": "probability-0", "output": "combined"}]);
    let mut recipe = ensemble_recipe("m", node);
    recipe.forests.retain(|file, _| file == "forest.bin");
    recipe.manifest["program"].as_array_mut().unwrap().drain(2..6);
    recipe.score_map = Some(map);
    recipe
}

#[test]
fn a_score_map_is_linear_between_its_knots() {
    let naive = |score: f64| match score {
        s if s <= 0.25 => 0.125,
        s if s <= 0.75 => 0.125 + (s - 0.25) / 0.5 * 0.5,
        _ => 0.625,
    };
    check(&mapped(json!({"x": [0.25, 0.75], "y": [0.125, 0.625]})), move |_, p| naive(p[0]));
    for (map, reason) in [
        (json!({"x": [0.5], "y": [0.5]}), "equally many from 2"),
        (json!({"x": [0.5, 0.5], "y": [0.5, 0.6]}), "knot 1 goes back"),
        (json!({"x": [0.5, 0.6], "y": [0.5, 0.4]}), "knot 1 goes back"),
        (json!({"x": [0.5, 0.6], "y": [0.5, 0.5]}), "must ascend somewhere"),
        (json!({"x": [0.5, 0.6], "y": [0.5, 0.6], "z": []}), "unknown field `z`"),
    ] {
        let message = refusal(&mapped(map));
        assert!(message.starts_with("score_map.json: ") && message.contains(reason), "{message}");
    }
    let mut without = mapped(json!(null));
    without.score_map = None;
    assert!(refusal(&without).contains("program node 2 (scoremap): \"score_map.json\" is not a score map"));
    let mut unused = ensemble_recipe("m", by_country());
    unused.score_map = Some(json!({"x": [0.0, 1.0], "y": [0.0, 1.0]}));
    assert!(refusal(&unused).contains("score_map.json: no scoremap node uses it"));
}

#[test]
fn ensembles_that_break_a_rule_are_refused_by_node() {
    let switch = |feature: &str, cases: Value| json!({"kind": "switch", "feature": feature, "cases": cases, "default": "probability-2", "output": "combined"});
    for (node, reason) in [
        (json!({"kind": "mean", "inputs": ["probability-0"], "output": "combined"}), "1 inputs; give 2 to"),
        (
            json!({"kind": "mean", "inputs": three(), "weights": [1.0], "output": "combined"}),
            "1 weights for 3 inputs",
        ),
        (
            json!({"kind": "mean", "inputs": three(), "weights": [1.0, 0.0, 1.0], "output": "combined"}),
            "weight 0 must be",
        ),
        (
            json!({"kind": "mean", "inputs": ["margins-0", "row"], "output": "combined"}),
            "\"margins-0\" holds margins",
        ),
        (
            json!({"kind": "mean", "inputs": ["p", "q"], "output": "combined"}),
            "\"p\" is written by no earlier node",
        ),
        (
            json!({"kind": "stack", "inputs": three(), "coefficients": [0.0, 0.0, 0.0], "output": "combined"}),
            "every coefficient is 0",
        ),
        (
            json!({"kind": "stack", "inputs": three(), "coefficients": [1.0], "output": "combined"}),
            "1 coefficients for 3 inputs",
        ),
        (
            json!({"kind": "mean", "inputs": three(), "of": "ranks", "output": "combined"}),
            "unknown variant `ranks`",
        ),
        (
            switch("colour", json!([{"input": "probability-0", "from": 1.0}])),
            "\"colour\" is not in the schema",
        ),
        (
            switch("country", json!([{"input": "probability-0", "from": 1.0}])),
            "case 0: \"country\" is a category",
        ),
        (
            switch("country", json!([{"input": "probability-0", "categories": ["ES"]}])),
            "\"ES\" is not a category",
        ),
        (
            switch(
                "country",
                json!([{"input": "probability-0", "categories": ["NL"]}, {"input": "probability-1", "categories": ["DE", "NL"]}]),
            ),
            "case 1: category \"NL\" is in two cases",
        ),
        (
            switch("amount", json!([{"input": "probability-0", "categories": ["NL"]}])),
            "\"amount\" is a number",
        ),
        (switch("amount", json!([{"input": "probability-0"}])), "give the range"),
        (
            switch("amount", json!([{"input": "probability-0", "from": 5.0, "to": 5.0}])),
            "from 5 up to 5 is empty",
        ),
        (switch("amount", json!([{"input": "probability-0", "to": 1e300}])), "not finite in float32"),
        (
            switch(
                "amount",
                json!([{"input": "probability-0", "to": 5.0}, {"input": "probability-1", "from": 4.0}]),
            ),
            "case 1: its range begins before",
        ),
        (switch("amount", json!([])), "0 cases; give 1 to"),
    ] {
        let kind = node["kind"].as_str().unwrap().to_owned();
        let message = refusal(&ensemble_recipe("m", json!([node])));
        assert!(
            message.contains(&format!("program node 6 ({kind}): ")) && message.contains(reason),
            "{message}"
        );
    }
    let mut explained = ensemble_recipe("m", by_country());
    explained.covers = true;
    assert!(refusal(&explained).contains("covers.bin: no single forest explains the score"));
}

/// The scores of all actions at once, which are also compared with those of actions that are evaluated one by one.
#[test]
fn ensembles_of_actions() {
    for feature in ["country", "exemption", "three_ds"] {
        let mut recipe = action_recipe("a", 0.0, json!({"rule": "bagging", "voters": 2}));
        let nodes = recipe.manifest["program"].as_array_mut().unwrap();
        let mut end = nodes.pop().unwrap();
        let case = match feature {
            "country" => json!({"input": "score-1", "categories": ["DE"]}),
            "exemption" => json!({"input": "score-1", "categories": ["tra"]}),
            _ => json!({"input": "score-1", "from": 1.0}),
        };
        nodes.push(json!({"kind": "mean", "inputs": ["score", "score-2"], "of": "logits", "output": "mean"}));
        nodes.push(json!({"kind": "switch", "feature": feature, "cases": [case], "default": "mean", "output": "chosen"}));
        nodes.push(
            json!({"kind": "scoremap", "file": "score_map.json", "input": "chosen", "output": "mapped"}),
        );
        end["input"] = json!("mapped");
        nodes.push(end);
        recipe.score_map = Some(json!({"x": [0.0, 0.5, 1.0], "y": [0.0, 0.25, 1.0]}));
        let bundle = assemble(&recipe.build().unwrap()).unwrap();
        assert!(bundle.oracle.is_some());
        let mut by_rows = recipe.draft().unwrap();
        by_rows.oracle = None;
        let (mut scratch, mut alone) = (EvalScratch::new(&bundle), EvalScratch::new(&by_rows));
        for row in [[50.0, 0.0, 0.0], [500.0, 1.0, 0.0], [50.0, f32::NAN, 1.0]] {
            let out = bundle.select(&row, &Mask::all(6), "c", "d", &Unlimited, &mut scratch);
            assert_eq!(out, by_rows.select(&row, &Mask::all(6), "c", "d", &Unlimited, &mut alone));
            assert_eq!(scratch.scores, alone.scores);
            let oracles = scratch.columns.of(bundle.program.margins[0].start);
            for (action, oracle) in oracles.iter().enumerate() {
                let chosen = match feature {
                    "country" => row[1] == 1.0,
                    "exemption" => action % 3 == 1,
                    _ => action >= 3,
                };
                let [base, one, two] = [0, 6, 12].map(|voter| scratch.scores[voter + action]);
                let score = if chosen { one } else { sigmoid((oracle + logit(two)) / 2.0) };
                let expected = if score < 0.5 { score / 2.0 } else { 0.25 + (score - 0.5) * 1.5 };
                assert!((base - expected).abs() < 1e-6, "{feature} {action}: {base} is not {expected}");
            }
        }
    }
}
