//! Reasons of scores and actions, and the files that they need.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::testing::{Recipe, action_recipe, assemble, reseal, score_recipe};
use super::super::*;
use crate::budget::Unlimited;
use crate::explain::{Contribution, CoversError};
use crate::policy::Mask;

fn explained(mut recipe: Recipe) -> Recipe {
    recipe.covers = true;
    recipe
}

fn actions() -> Recipe {
    explained(action_recipe("authorise", 0.0, json!({"rule": "bagging", "voters": 2})))
}

fn contribution(feature: u32, amount: f64) -> Contribution {
    Contribution { feature, amount }
}

#[test]
fn a_score_has_reasons_and_the_same_bits() {
    let bundle = assemble(&explained(score_recipe("fraud", 0.5)).build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let row = [500.0, 0.0, 1.0];
    let bare = bundle.score(&row, &Unlimited, &mut scratch).unwrap();
    assert_eq!(bundle.score_explained(&row, &Unlimited, &mut scratch), Ok(bare));
    // Three of four training rows went left. The stumps' leaves are -1 and 1, -0.5 and 1.5, 0 and 0.25.
    assert_eq!(bundle.expected_margin(), Some(0.5 - 0.5 + 0.0 + 0.0625));
    assert_eq!(scratch.reasons(7).as_slice(), [contribution(0, 1.5 - 0.5), contribution(2, 0.1875)]);
    assert_eq!(scratch.reasons(1).as_slice(), [contribution(0, 1.0)]);
    assert_eq!((bundle.column_name(0), bundle.reason_code(2)), (Some("amount"), Some("night")));
    let exact = bundle.explain(&row, None, &Unlimited, &mut scratch);
    assert_eq!(exact, Ok(Explained { expectation: 0.0625, margin: bare.margin, score: bare.score }));
    // Both methods agree on trees of one split.
    for (found, expected) in scratch.contributions().iter().zip([1.0, 0.0, 0.1875]) {
        assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    }
    assert!((0.0625 + 1.1875 - bare.margin).abs() < 1e-12);
    let wrong = bundle.explain(&row, Some(0), &Unlimited, &mut scratch);
    assert_eq!(wrong, Err(EvalError::Kind { found: Kind::Score, wanted: Kind::Action }));
}

#[test]
fn reasons_come_from_the_row_that_the_forest_reads() {
    let mut recipe = explained(score_recipe("fraud", 0.0));
    let mut program = recipe.manifest["program"].as_array().unwrap().clone();
    program[0]["input"] = json!("scaled");
    let step = json!({"function": "standardise", "feature": "amount", "mean": 0.0, "scale": 0.01});
    program.insert(0, json!({"kind": "transform", "input": "row", "output": "scaled", "steps": [step]}));
    recipe.manifest["program"] = Value::Array(program);
    let bundle = recipe.draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    // 50 becomes 5000, which is above both thresholds.
    let row = [50.0, 0.0, 0.0];
    bundle.score_explained(&row, &Unlimited, &mut scratch).unwrap();
    assert_eq!(scratch.reasons(1).as_slice(), [contribution(0, 1.5 + 1.5)]);
    bundle.explain(&row, None, &Unlimited, &mut scratch).unwrap();
    assert!((scratch.contributions()[0] - 3.0_f64).abs() < 1e-12);
}

#[test]
fn an_action_has_the_reasons_of_the_oracle() {
    let bundle = assemble(&actions().build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let (row, all) = ([500.0, 1.0, 0.0], Mask::all(6));
    let chosen = bundle.select(&row, &all, "action.authorise", "order-1", &Unlimited, &mut scratch).unwrap();
    for action in 0..6 {
        bundle.explain_action(&row, action, &Unlimited, &mut scratch).unwrap();
        let reasons = scratch.reasons(7);
        let exact = bundle.explain(&row, Some(action), &Unlimited, &mut scratch).unwrap();
        let mut sum = exact.expectation;
        for reason in reasons.as_slice() {
            let found = scratch.contributions()[reason.feature as usize];
            assert!((reason.amount - found).abs() < 1e-6, "{reason:?} of {action}");
            sum += reason.amount;
        }
        // The margin of the bagging oracle's forest, from the score of its link.
        let q = bundle
            .select(&row, &all, "c", "d", &Unlimited, &mut scratch)
            .map(|_| scratch.expected_rewards()[action]);
        assert_eq!(q, Ok(exact.score), "the bits of a selection");
        let margin = q.map(|q| (q / (1.0 - q)).ln()).unwrap();
        assert!((exact.margin - margin).abs() < 1e-5, "action {action}: {}, not {margin}", exact.margin);
        assert!((sum - margin).abs() < 1e-5, "action {action}: {sum}, not {margin}");
    }
    assert_eq!((bundle.column_name(3), bundle.reason_code(4)), (Some("three_ds"), Some("exemption")));
    // An explanation between two selections changes nothing.
    bundle.explain_action(&row, 0, &Unlimited, &mut scratch).unwrap();
    assert_eq!(
        bundle.select(&row, &all, "action.authorise", "order-1", &Unlimited, &mut scratch),
        Ok(chosen)
    );
    assert_eq!(
        bundle.explain_action(&row, 6, &Unlimited, &mut scratch),
        Err(EvalError::Action { actions: 6 })
    );
    let none = bundle.explain(&row, None, &Unlimited, &mut scratch);
    assert_eq!(none, Err(EvalError::Action { actions: 6 }));
}

#[test]
fn a_bundle_without_covers_gives_no_reasons() {
    let bundle = assemble(&score_recipe("fraud", 0.0).build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    assert!(!bundle.explains());
    assert_eq!(bundle.score_explained(&[1.0, 0.0, 0.0], &Unlimited, &mut scratch), Err(EvalError::NoCovers));
    let exact = bundle.explain(&[1.0, 0.0, 0.0], None, &Unlimited, &mut scratch);
    assert_eq!(exact, Err(EvalError::NoCovers));
    assert!(scratch.contributions().is_empty());
    assert!(scratch.reasons(7).as_slice().is_empty());
}

#[test]
fn bundles_of_one_forest_share_their_contributions() {
    let files = actions().build().unwrap();
    let first = assemble(&files).unwrap();
    let (second, _) = Bundle::assemble_in_steps(
        &files[MANIFEST],
        &|name| files.get(name).cloned().ok_or(ReadError::Missing),
        &[&first],
        &mut |_| (),
    )
    .unwrap();
    let parts = |bundle: &Bundle| bundle.explainer.as_ref().unwrap().parts_for_tests();
    assert!(parts(&first) == parts(&second));
    assert!(Arc::ptr_eq(&first.forests()[0], &second.forests()[0]));
}

#[test]
fn the_dictionary_names_the_codes() {
    let mut recipe = actions();
    recipe.reasons = Some(json!({"features": {
        "amount": {"code": "R01", "text": {"en": "High amount", "pt-BR": "Valor alto"}},
        "exemption": {"code": "R09"},
    }}));
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let codes: Vec<_> = (0..6).map(|column| bundle.reason_code(column)).collect();
    let expected = [Some("R01"), Some("country"), Some("night"), Some("three_ds"), Some("R09"), None];
    assert_eq!(codes, expected);
}

#[test]
fn wrong_files_are_refused() {
    let refused = |reasons: Value| {
        let mut recipe = actions();
        recipe.reasons = Some(reasons);
        recipe.build().unwrap_err().to_string()
    };
    let one = |entry: Value| refused(json!({"features": {"amount": entry}}));
    for (found, part) in [
        (
            refused(json!({"features": {"colour": {"code": "R1"}}})),
            "\"colour\": the schema has no such feature",
        ),
        (one(json!({"code": " "})), "\"amount\": a code has 1 to 64 printable bytes"),
        (one(json!({"code": "R".repeat(65)})), "a code has 1 to 64"),
        (one(json!({"code": "R1", "text": {"e n": "text"}})), "\"e n\" is not the tag of a language"),
        (one(json!({"code": "R1", "text": {"en": "two\nlines"}})), "the text in \"en\" has not 1 to 1000"),
        (one(json!({"code": "R1", "weight": 1})), "reasons.json: unknown field `weight`"),
    ] {
        assert!(found.contains(part) && !found.contains('\n'), "{found}");
    }
    let mut without = score_recipe("fraud", 0.0);
    without.reasons = Some(json!({"features": {}}));
    assert!(without.build().unwrap_err().to_string().starts_with("reasons.json: without covers.bin"));
    let mut files = explained(score_recipe("fraud", 0.0)).build().unwrap();
    let other = actions().build().unwrap();
    files.insert("covers.bin".to_owned(), other["covers.bin"].clone());
    reseal(&mut files).unwrap();
    let expected = CoversError::Count { covers: 12, nodes: 9 };
    assert_eq!(assemble(&files).unwrap_err(), BundleError::Covers(expected));
}
