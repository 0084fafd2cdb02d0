//! The path through a bundle: assemble, score, select.

use super::testing::{action_files, action_recipe, assemble, score_files, score_recipe};
use super::*;
use crate::budget::Unlimited;
use crate::policy::Mask;
use serde_json::json;

#[test]
fn a_score_bundle_loads_and_scores() {
    let bundle = assemble(&score_files("fraud", 0.0)).unwrap();
    assert_eq!(bundle.labels(), ["approve", "review", "decline"]);
    let mut scratch = EvalScratch::new(&bundle);
    // Stumps: amount >= 100 gives 1, < 1000 gives -0.5, night 0.25; the calibration map is the identity.
    let out = bundle.score(&[500.0, 0.0, 1.0], &Unlimited, &mut scratch).unwrap();
    assert_eq!(out.margin, 0.75);
    assert!((out.score - 1.0 / (1.0 + (-0.75_f64).exp())).abs() < 1e-6, "{out:?}");
    assert_eq!(bundle.labels()[out.band], "review");
    assert_eq!(
        bundle.score(&[500.0], &Unlimited, &mut scratch),
        Err(EvalError::RowLength { got: 1, expected: 3 })
    );
    assert!(matches!(
        bundle.select(&[500.0, 0.0, 1.0], &Mask::all(0), "c", "d", &Unlimited, &mut scratch),
        Err(EvalError::Kind { .. })
    ));
}

#[test]
fn rows_together_score_as_they_do_alone() {
    let mut transformed = score_recipe("fraud", 0.0);
    transformed.manifest["program"] = json!([
        {"kind": "transform", "input": "row", "output": "logs", "steps": [{"function": "log1p", "feature": "amount"}]},
        {"kind": "forest", "file": "forest.bin", "input": "logs", "output": "margins"},
        {"kind": "link", "input": "margins", "output": "probability"},
        transformed.manifest["program"][2].clone(),
        transformed.manifest["program"][3].clone(),
    ]);
    for recipe in [score_recipe("fraud", 0.0), transformed] {
        let bundle = recipe.draft().unwrap();
        let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&bundle));
        let rows: Vec<f32> = (0..200)
            .flat_map(|i| [[50.0, 500.0, 5000.0, f32::NAN][i % 4], (i % 3) as f32, (i % 2) as f32])
            .collect();
        let alone: Vec<_> = rows.chunks(3).map(|row| bundle.score(row, &Unlimited, &mut other)).collect();
        for count in [0, 1, 19, 64, 65, 200] {
            let mut together = Vec::new();
            bundle.score_rows(&rows[..3 * count], &Unlimited, &mut scratch, &mut together).unwrap();
            assert_eq!(together, alone[..count], "{count} rows");
        }
        let mut together = Vec::new();
        assert_eq!(
            bundle.score_rows(&rows[..7], &Unlimited, &mut scratch, &mut together),
            Err(EvalError::RowLength { got: 1, expected: 3 })
        );
    }
}

#[test]
fn an_action_bundle_selects_and_replays() {
    let bundle = assemble(&action_files("authorise", 0.0)).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let mut eligible = Mask::all(6);
    let row = [50.0, f32::NAN, 0.0];
    let first =
        bundle.select(&row, &eligible, "action.authorise", "order-1", &Unlimited, &mut scratch).unwrap();
    assert!((scratch.pmf().iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert_eq!(scratch.pmf()[first.index], first.propensity);
    assert_eq!(scratch.expected_rewards()[first.index], first.expected_reward);
    let mut other = EvalScratch::new(&bundle);
    assert_eq!(
        bundle.select(&row, &eligible, "action.authorise", "order-1", &Unlimited, &mut other),
        Ok(first)
    );
    // Leaves of action 3 (3DS, no exemption) add up to 1.125, as do those of action 5; the first one is
    // chosen.
    let best = bundle.select_greedy(&row, &eligible, &Unlimited, &mut scratch).unwrap();
    assert_eq!((best.index, best.propensity), (3, 1.0));
    assert!((best.expected_reward - 1.0 / (1.0 + (-1.125_f64).exp())).abs() < 1e-6);
    assert_eq!(scratch.pmf().iter().filter(|&&p| p == 0.0).count(), 5);
    eligible.clear();
    assert!(matches!(
        bundle.select(&row, &eligible, "c", "d", &Unlimited, &mut scratch),
        Err(EvalError::Policy(crate::policy::PolicyError::NoEligibleAction))
    ));
}

#[test]
fn ensemble_members_vote() {
    let recipe = action_recipe("bag", 0.0, json!({"rule": "bagging", "voters": 4}));
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    bundle.select(&[50.0, 0.0, 0.0], &Mask::all(6), "c", "d", &Unlimited, &mut scratch).unwrap();
    assert!(scratch.pmf().iter().all(|p| (p * 4.0 * 3.0 * 2.0).fract() < 1e-9), "{:?}", scratch.pmf());
    assert_eq!(bundle.forests().len(), 5);
}

mod bad_input;
mod computed;
mod ensembles;
mod explained;
mod functions;
mod nets;
mod overlays;
mod parts;
mod ruled;
mod times;
mod together;
mod transforms;
