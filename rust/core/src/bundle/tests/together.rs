//! The program that runs once for all actions, compared with the program that runs once per action.

use serde_json::json;

use super::super::testing::{Recipe, action_recipe};
use super::super::*;
use crate::budget::Unlimited;
use crate::forest::{Link, Precision, Target};
use crate::policy::Mask;

const ACTIONS: usize = 6;

/// The results of a selection as bits.
fn seen(bundle: &Bundle, row: &[f32], eligible: &Mask, id: &str) -> (SelectOut, Vec<u64>) {
    let mut scratch = EvalScratch::new(bundle);
    let out = bundle.select(row, eligible, "action.authorise", id, &Unlimited, &mut scratch).unwrap();
    let values = (0..bundle.program.values).flat_map(|value| scratch.columns.of(value));
    let values = scratch.scores.iter().chain(&scratch.pmf).chain(values);
    (out, values.map(|value| value.to_bits()).collect())
}

/// `factored` says which forests are evaluated for all actions at once.
fn check(recipe: &Recipe, factored: &[bool]) {
    let together = recipe.draft().unwrap();
    let oracle = together.oracle.as_ref().unwrap();
    assert_eq!(oracle.forests.iter().map(Option::is_some).collect::<Vec<_>>(), factored);
    let mut by_rows = recipe.draft().unwrap();
    by_rows.oracle = None;
    let mut differ = false;
    for amount in [0.0, 99.99, 100.0, 999.0, 1000.0, 50_000.0] {
        for (country, night) in [(0.0, 1.0), (2.0, f32::NAN), (f32::NAN, 0.0)] {
            let row = [amount, country, night];
            for bits in 1_u8..64 {
                let eligible = Mask::from_bytes(ACTIONS, &[bits]).unwrap();
                let (id, a) = (format!("{amount}-{bits}"), &together);
                let expected = seen(&by_rows, &row, &eligible, &id);
                assert_eq!(seen(a, &row, &eligible, &id), expected, "{row:?} {bits:b}");
                differ |= expected.0.index != 0;
            }
        }
    }
    assert!(differ, "every selection was of the first action");
}

fn recipe() -> Recipe {
    action_recipe("authorise", 0.25, json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05}))
}

#[test]
fn one_forest_and_many() {
    check(&recipe(), &[true]);
    let bagging = action_recipe("bag", 0.0, json!({"rule": "bagging", "voters": 3}));
    check(&bagging, &[true; 4]);
}

#[test]
fn moved_by_an_overlay() {
    let overlay = json!({"segment": "country", "limit": 2.0, "everywhere": {"three_ds": {"none": -0.5}},
        "segments": {"NL": {"exemption": {"tra": 1.0, "low": -1.0}}}});
    check(&recipe().with_overlay(overlay.clone()), &[true]);
    let mut bagging = action_recipe("bag", 0.0, json!({"rule": "bagging", "voters": 2}));
    bagging.forests.get_mut("member-01.bin").unwrap().trees[1].target = Target::All;
    check(&bagging.with_overlay(overlay), &[true, false, true]);
}

#[test]
fn a_forest_with_vector_leaves_goes_row_by_row() {
    let mut bagging = action_recipe("bag", 0.0, json!({"rule": "bagging", "voters": 2}));
    let member = bagging.forests.get_mut("member-01.bin").unwrap();
    member.trees[1].target = Target::All;
    check(&bagging, &[true, false, true]);
}

#[test]
fn every_kind_of_link() {
    for link in [
        Link::Identity,
        Link::Softmax,
        Link::ArgMax,
        Link::Normalize,
        Link::Hinge,
        Link::Exp,
        Link::Sigmoid { alpha: 2.0 },
    ] {
        for precision in [Precision::F32, Precision::F64] {
            let mut recipe = recipe();
            let model = recipe.forests.get_mut("forest.bin").unwrap();
            (model.num_outputs, model.base) = (3, vec![0.5, 0.25, 0.125]);
            (model.link, model.precision) = (link, precision);
            for (output, tree) in model.trees.iter_mut().enumerate() {
                tree.target = Target::Output(output as u32 % 3);
            }
            let index = if link == Link::ArgMax { 0 } else { 2 };
            recipe.manifest["program"][1]["index"] = json!(index);
            check(&recipe, &[true]);
        }
    }
}

#[test]
fn calibrated_and_transformed() {
    let mut recipe = recipe();
    recipe.calibration = Some(json!({"maps": {
        "steps": {"method": "isotonic", "x": [0.1, 0.2, 0.55, 0.7], "y": [0.0, 0.25, 0.5, 0.9]},
        "platt": {"method": "sigmoid", "slope": 2.0, "intercept": -0.5},
    }}));
    // An action's number and a context's number are transformed, and the raw row is used too.
    recipe.schema["action_features"][1] = json!({"name": "exemption", "type": "number", "minimum": 0.0});
    let forest = recipe.forests["forest.bin"].clone();
    recipe.forests.insert("member-01.bin".to_owned(), forest);
    let policy = recipe.manifest["program"][2]["policy"].clone();
    let mut bagging = policy.clone();
    bagging["rule"] = json!("bagging");
    bagging["voters"] = json!(2);
    bagging.as_object_mut().unwrap().remove("gamma");
    recipe.manifest["program"] = json!([
        {"kind": "transform", "input": "row", "output": "inputs", "steps": [
            {"function": "standardise", "feature": "amount", "mean": 40.0, "scale": 0.5},
            {"function": "log1p", "feature": "exemption"},
        ]},
        {"kind": "forest", "file": "forest.bin", "input": "inputs", "output": "margins"},
        {"kind": "link", "input": "margins", "output": "linked"},
        {"kind": "calibrate", "map": "steps", "input": "linked", "output": "first"},
        {"kind": "calibrate", "map": "platt", "input": "first", "output": "score"},
        {"kind": "forest", "file": "member-01.bin", "input": "row", "output": "raw"},
        {"kind": "link", "input": "raw", "output": "other"},
        {"kind": "policy", "input": "score", "voters": ["other", "score"], "output": "action", "policy": bagging},
    ]);
    check(&recipe, &[true, true]);
    // The transformed action feature is below the threshold of 1.5 for every action, the raw one is not.
    let bundle = recipe.draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let everyone = Mask::all(ACTIONS);
    bundle.select(&[0.0; 3], &everyone, "c", "d", &Unlimited, &mut scratch).unwrap();
    let margins: Vec<f64> = scratch.columns.of(bundle.program.margins[0].start).to_vec();
    let raw: Vec<f64> = scratch.columns.of(bundle.program.margins[1].start).to_vec();
    assert_ne!(margins, raw);
}

#[test]
fn an_action_whose_transform_overflows_is_an_error_when_it_is_eligible() {
    let mut recipe = recipe();
    recipe.schema["action_features"][1] = json!({"name": "exemption", "type": "number"});
    recipe.manifest["program"][0]["input"] = json!("inputs");
    let step = json!({"function": "standardise", "feature": "exemption", "mean": 1.0, "scale": 1e-300});
    let node = json!({"kind": "transform", "input": "row", "output": "inputs", "steps": [step]});
    recipe.manifest["program"].as_array_mut().unwrap().insert(0, node);
    let bundle = recipe.draft().unwrap();
    assert!(bundle.oracle.is_none());
    let mut scratch = EvalScratch::new(&bundle);
    let mut select = |mask: u8| {
        let eligible = Mask::from_bytes(ACTIONS, &[mask]).unwrap();
        bundle.select(&[0.0; 3], &eligible, "c", "d", &Unlimited, &mut scratch)
    };
    // Exemption 1 is the mean.
    assert_eq!(select(0b10).unwrap().index, 1);
    assert!(matches!(select(0b1), Err(EvalError::NotFinite { .. })));
}
