//! ONNX models in a program: alone, in ensembles and in blocks of rows, golden cases, and refusals.

use std::cell::Cell;

use scorer_onnx::testing::{ModelWriter, Value as Attribute, dense_net};
use scorer_onnx::{Net, NetOptions, NetScratch};
use serde_json::{Value, json};

use super::super::testing::{Recipe, action_recipe, assemble, ensemble_recipe, net_recipe, reseal};
use super::super::*;
use crate::budget::{Budget, OutOfTime, Unlimited};

/// `sigmoid(amount / 1000 - night)`.
fn small_net() -> Vec<u8> {
    let weights = ModelWriter::new(3, 1).floats("w", &[3, 1], &[0.001, 0.0, -1.0]);
    weights.node("MatMul", "x,w", "m", &[]).node("Sigmoid", "m", "y", &[]).finish()
}

fn small(row: &[f32]) -> f64 {
    let known = |value: f32| if value.is_nan() { 0.0 } else { f64::from(value) };
    1.0 / (1.0 + (known(row[2]) - known(row[0]) / 1000.0).exp())
}

fn rows() -> Vec<f32> {
    let amounts = [50.0, 100.0, 150.0, 999.0, 1500.0, -0.0, 5000.0];
    (0..150)
        .flat_map(|i| [amounts[i % 7], [0.0, 1.0, 2.0, f32::NAN][i / 7 % 4], [0.0, 1.0, f32::NAN][i % 3]])
        .collect()
}

fn check(recipe: &Recipe, expected: impl Fn(&[f32]) -> f64) {
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&bundle));
    let rows = rows();
    let mut together = Vec::new();
    bundle.score_rows(&rows, &Unlimited, &mut other, &mut together).unwrap();
    for (row, together) in rows.chunks(3).zip(together) {
        let out = bundle.score(row, &Unlimited, &mut scratch);
        assert_eq!(out, together, "{row:?}");
        let (score, expected) = (out.unwrap().score, expected(row));
        assert!((score - expected).abs() < 1e-6, "{row:?}: {score} is not {expected}");
    }
}

fn refusal(recipe: &Recipe) -> String {
    let message = recipe.build().unwrap_err().to_string();
    assert!(!message.contains('\n') && message.len() < 600, "{message}");
    message
}

#[test]
fn a_net_scores_in_the_place_of_a_forest() {
    let recipe = net_recipe("fraud");
    let file = dense_net(&[3, 40, 8, 1]);
    let options = NetOptions { index: None, missing: Some(0.0) };
    let net = Net::parse(&file, &["amount", "country", "night"], options).unwrap();
    let run = |row: &[f32]| f64::from(net.run(row, &mut NetScratch::new(&net), || false).unwrap());
    check(&recipe, run);
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    assert_eq!((bundle.forests().len(), bundle.nets().len(), bundle.num_margins()), (0, 1, 1));
    let facts = bundle.nets().next().unwrap();
    assert_eq!((facts.file, facts.columns), ("model.onnx", 3));
    assert!(bundle.heap_bytes() > 4 * facts.constants && !bundle.explains());
}

#[test]
fn a_link_and_a_transform_around_a_net() {
    let mut recipe = net_recipe("fraud");
    let logit = ModelWriter::new(4, 1).floats("w", &[4, 1], &[0.001, 0.0, -1.0, 0.5]);
    recipe.nets.insert("model.onnx".to_owned(), logit.node("MatMul", "x,w", "y", &[]).finish());
    let program = recipe.manifest["program"].as_array_mut().unwrap();
    program[0]["link"] = json!("sigmoid");
    program[0]["input"] = json!("more");
    let flag = json!({"function": "missing", "feature": "night", "output": "dark"});
    program.insert(0, json!({"kind": "transform", "input": "row", "output": "more", "steps": [flag]}));
    let bundle = recipe.draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    for row in rows().chunks(3) {
        let out = bundle.score(row, &Unlimited, &mut scratch).unwrap();
        let dark = if row[2].is_nan() { 0.5 } else { 0.0 };
        let logit = (small(row) / (1.0 - small(row))).ln() + dark;
        assert!((out.margin - logit).abs() < 1e-5, "{row:?}: {} is not {logit}", out.margin);
        assert!((out.score - 1.0 / (1.0 + (-logit).exp())).abs() < 1e-6);
    }
}

/// Three forests and a net, whose score is `probability-3`.
fn with_net(nodes: Value) -> Recipe {
    let mut all = vec![json!({
        "kind": "onnx", "file": "member-03.onnx", "input": "row", "output": "probability-3", "missing": 0.0,
    })];
    all.extend(nodes.as_array().cloned().unwrap_or_default());
    let mut recipe = ensemble_recipe("fraud", Value::Array(all));
    recipe.nets.insert("member-03.onnx".to_owned(), small_net());
    recipe
}

/// The score of the first forest, from the definition of its stumps.
fn forest(row: &[f32]) -> f64 {
    let amount = if row[0] < 100.0 { -1.0 } else { 1.0 };
    let night = if row[2] >= 0.5 { 0.25 } else { 0.0 };
    1.0 / (1.0 + f64::exp(-amount - night))
}

#[test]
fn ensembles_of_nets_and_forests() {
    let others = json!(["probability-0", "probability-1", "probability-2", "probability-3"]);
    let mean = |of: &str| json!([{"kind": "mean", "inputs": others, "weights": [1.0, 1e-12, 1e-12, 3.0], "of": of, "output": "combined"}]);
    check(&with_net(mean("scores")), |row| (forest(row) + 3.0 * small(row)) / 4.0);
    let logit = |score: f64| (score / (1.0 - score)).ln();
    check(&with_net(mean("logits")), |row| {
        1.0 / (1.0 + (-(logit(forest(row)) + 3.0 * logit(small(row))) / 4.0).exp())
    });
    // Rows of other countries do not evaluate the net.
    let switch = json!([
        {"kind": "mean", "inputs": ["probability-1", "probability-2"], "output": "rest"},
        {"kind": "switch", "feature": "country", "default": "probability-0", "output": "combined",
         "cases": [{"input": "probability-3", "categories": ["DE"]}, {"input": "rest", "categories": ["FR"]}]},
    ]);
    let recipe = with_net(switch);
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&bundle));
    let (rows, mut together) = (rows(), Vec::new());
    bundle.score_rows(&rows, &Unlimited, &mut other, &mut together).unwrap();
    for (row, together) in rows.chunks(3).zip(together) {
        let asked = Cell::new(0);
        let counting = Counting { asked: &asked, most: usize::MAX };
        let out = bundle.score(row, &counting, &mut scratch);
        assert_eq!(out, together, "{row:?}");
        if row[1] == 1.0 {
            assert!((out.unwrap().score - small(row)).abs() < 1e-6);
        }
    }
}

/// A budget that is spent after some questions.
struct Counting<'a> {
    asked: &'a Cell<usize>,
    most: usize,
}

impl Budget for Counting<'_> {
    fn spent(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.asked.get() > self.most
    }
}

#[test]
fn a_deadline_ends_a_net() {
    let mut recipe = net_recipe("fraud");
    recipe.nets.insert("model.onnx".to_owned(), dense_net(&[3, 1000, 1000, 1]));
    let bundle = recipe.draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let asked = Cell::new(0);
    let row = [50.0, 0.0, 1.0];
    bundle.score(&row, &Counting { asked: &asked, most: usize::MAX }, &mut scratch).unwrap();
    let all = asked.get();
    assert!(all > 10, "{all} questions");
    for most in 0..all {
        asked.set(0);
        let late = Err(EvalError::OutOfTime(OutOfTime));
        assert_eq!(bundle.score(&row, &Counting { asked: &asked, most }, &mut scratch), late);
        asked.set(0);
        let mut out = Vec::new();
        let two = [row, row].concat();
        let block = bundle.score_rows(&two, &Counting { asked: &asked, most }, &mut scratch, &mut out);
        assert_eq!((block, out.len()), (Err(EvalError::OutOfTime(OutOfTime)), 0));
    }
}

#[test]
fn golden_outputs_are_compared_within_a_tolerance() {
    let files = net_recipe("fraud").build().unwrap();
    let row = 8 + 5 * 4;
    // A number of the first case after its row: 0 for the output, 1 for the score.
    let moved = |number: usize, by: f64| {
        let mut files = files.clone();
        let golden = files.get_mut("golden.bin").unwrap();
        let at = row + 12 + 8 * number;
        let value = f64::from_le_bytes(golden[at..at + 8].try_into().unwrap()) + by;
        golden[at..at + 8].copy_from_slice(&value.to_le_bytes());
        reseal(&mut files).unwrap();
        assemble(&files).map(|_| ()).map_err(|error| error.to_string())
    };
    let far = moved(0, 2e-5).unwrap_err();
    assert!(far.starts_with("golden case 0: model.onnx gives "), "{far}");
    assert!(moved(0, f64::NAN).unwrap_err().contains("golden case 0"));
    // The score is computed from the stored output, and compared bit for bit.
    assert!(moved(0, 5e-6).unwrap_err().starts_with("golden case 0: score"));
    assert!(moved(1, 1e-15).unwrap_err().starts_with("golden case 0: score"));
    assert_eq!(moved(0, 0.0), Ok(()));
}

#[test]
fn programs_with_nets_that_are_refused() {
    let changed = |key: &str, value: Value| {
        let mut recipe = net_recipe("fraud");
        recipe.manifest["program"][0][key] = value;
        recipe
    };
    assert_eq!(
        refusal(&changed("missing", Value::Null)),
        "manifest.json: program node 0 (onnx): column \"country\" may be missing, and a net computes NaN from it; state `missing`, a number or \"nan\", or refuse missing values in the schema"
    );
    assert!(refusal(&changed("missing", json!(1e300))).contains("missing is not finite"));
    assert!(refusal(&changed("missing", json!("zero"))).contains("program node 0 (onnx)"));
    assert!(
        refusal(&changed("file", json!("member-01.onnx")))
            .contains("\"member-01.onnx\" is not an ONNX model")
    );
    assert!(
        refusal(&changed("index", json!(1)))
            .contains("model.onnx: output: output_index 1 is beyond the 1 values")
    );
    assert!(refusal(&changed("link", json!("tanh"))).contains("program node 0 (onnx)"));
    // The row would have missing values.
    let mut recipe = changed("missing", json!("nan"));
    let message = refusal(&recipe);
    assert!(message.starts_with("golden case") && message.contains("the score is NaN"), "{message}");
    recipe.nets.insert("member-01.onnx".to_owned(), small_net());
    assert!(refusal(&recipe).contains("member-01.onnx: no onnx node evaluates it"));
    let mut other = net_recipe("fraud");
    other.nets.insert("model.onnx".to_owned(), dense_net(&[4, 8, 1]));
    assert!(refusal(&other).contains("model.onnx: input \"x\": takes 4 columns, the row has 3"));
    other.nets.insert("model.onnx".to_owned(), vec![1, 2, 3]);
    assert!(refusal(&other).contains("model.onnx: is not a readable ONNX model"));
    let cos = ModelWriter::new(3, 1).node("Cos", "x", "y", &[("alpha", Attribute::Float(1.0))]).finish();
    other.nets.insert("model.onnx".to_owned(), cos);
    assert!(refusal(&other).contains("model.onnx: node \"cos_y\": operator Cos is not supported"));
    let mut action =
        action_recipe("authorise", 0.0, json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05}));
    action.manifest["program"][0] =
        json!({"kind": "onnx", "file": "model.onnx", "input": "row", "output": "score", "missing": 0.0});
    action.manifest["program"].as_array_mut().unwrap().remove(1);
    action.forests.clear();
    action.nets.insert("model.onnx".to_owned(), dense_net(&[5, 1]));
    assert!(refusal(&action).contains("an action bundle evaluates forests alone"));
    // A score of any size has no logit.
    let linear =
        ModelWriter::new(3, 1).floats("w", &[3, 1], &[1.0, 0.0, 0.0]).node("MatMul", "x,w", "y", &[]);
    let inputs = json!(["probability-0", "probability-3"]);
    let ends = json!(["probability-1", "probability-2", "mean"]);
    let mut logits = with_net(json!([
        {"kind": "mean", "inputs": inputs, "of": "logits", "output": "mean"},
        {"kind": "mean", "inputs": ends, "output": "combined"},
    ]));
    logits.nets.insert("member-03.onnx".to_owned(), linear.finish());
    assert!(refusal(&logits).contains("slot \"probability-3\" holds no probabilities"));
}

#[test]
fn missing_columns_are_followed_through_transforms() {
    let with = |table: &str, steps: Value, columns: usize| {
        let mut recipe = net_recipe("fraud");
        recipe.nets.insert("model.onnx".to_owned(), dense_net(&[columns, 1]));
        // Without unknown countries and missing nights the row is complete.
        for feature in recipe.schema["features"].as_array_mut().unwrap() {
            feature["missing"] = json!("refuse");
            feature.as_object_mut().unwrap().remove("unknown_category");
        }
        let tables = json!({"some": {"values": {"NL": 1.0}}, "all": {"values": {}, "default": 2.0}});
        recipe.tables = Some(json!({"tables": {table: tables[table]}}));
        let program = recipe.manifest["program"].as_array_mut().unwrap();
        program[0].as_object_mut().unwrap().remove("missing");
        program[0]["input"] = json!("more");
        let looked = json!([{"function": "table", "feature": "country", "table": table, "output": "risk"}]);
        program.insert(0, json!({"kind": "transform", "input": "row", "output": "first", "steps": looked}));
        program.insert(1, json!({"kind": "transform", "input": "first", "output": "more", "steps": steps}));
        recipe.draft().map(|_| ()).map_err(|error| error.to_string())
    };
    let product = json!({"function": "multiply", "left": "amount", "right": "risk", "output": "loss"});
    let flag = json!({"function": "missing", "feature": "risk", "output": "no risk"});
    let ratio =
        json!({"function": "ratio", "left": "amount", "right": "night", "zero": "missing", "output": "r"});
    assert!(with("some", json!([product]), 5).unwrap_err().contains("column \"risk\" may be missing"));
    assert_eq!(with("all", json!([product, flag]), 6), Ok(()));
    assert!(
        with("all", json!([product, flag, ratio]), 7).unwrap_err().contains("column \"r\" may be missing")
    );
    let mut free = net_recipe("fraud");
    for feature in free.schema["features"].as_array_mut().unwrap() {
        feature["missing"] = json!("refuse");
    }
    free.manifest["program"][0].as_object_mut().unwrap().remove("missing");
    // A category that is not in the dictionary is a missing value.
    assert!(refusal(&free).contains("column \"country\" may be missing"));
}
