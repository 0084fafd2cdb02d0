//! The overlay against the definition, in logits and float64, and the sharing that makes its revisions cheap.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::testing::{Files, Recipe, action_recipe, assemble, reseal};
use super::super::*;
use crate::budget::{Budget, OutOfTime, Unlimited};
use crate::policy::Mask;

const ACTIONS: usize = 6;
const ROWS: [[f32; 3]; 5] = [
    [0.0, 0.0, 1.0],
    [99.99, 1.0, 0.0],
    [100.0, 2.0, f32::NAN],
    [5000.0, f32::NAN, 0.0],
    [50_000.0, 1.0, 1.0],
];

fn recipe() -> Recipe {
    action_recipe("authorise", 0.25, json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05}))
}

fn overlay() -> Value {
    json!({
        "segment": "country",
        "limit": 1.5,
        "everywhere": {"three_ds": {"none": -0.25, "challenge": 0.5}, "exemption": {"tra": 0.125}},
        "segments": {
            "DE": {"three_ds": {"challenge": -1.0}, "exemption": {"low": 0.75}},
            "NL": {"three_ds": {"none": 4.0}, "exemption": {"none": -0.0, "tra": -9.0}},
        },
    })
}

/// The examples in the documentation, on its document.
fn naive_offset(overlay: &Value, country: f32, factors: &[(&str, &str)]) -> f64 {
    let segment = ["NL", "DE", "FR"].get(if country.is_nan() { 9 } else { country as usize });
    let mut sum = 0.0;
    for (factor, level) in factors {
        sum += overlay["everywhere"][factor][level].as_f64().unwrap_or(0.0);
        if let Some(segment) = segment {
            sum += overlay["segments"][segment][factor][level].as_f64().unwrap_or(0.0);
        }
    }
    let limit = overlay["limit"].as_f64().unwrap();
    sum.clamp(-limit, limit)
}

fn naive_move(score: f64, offset: f64) -> f64 {
    let score = score.clamp(1e-9, 1.0 - 1e-9);
    let logit = score.ln() - (-score).ln_1p();
    1.0 / (1.0 + (-(logit + offset)).exp())
}

/// All scores of a selection: those of the oracle, then those of the voters.
fn scores(bundle: &Bundle, row: &[f32]) -> Vec<f64> {
    let mut scratch = EvalScratch::new(bundle);
    let everyone = Mask::all(bundle.catalogue().len());
    bundle.select(row, &everyone, "c", "d", &Unlimited, &mut scratch).unwrap();
    scratch.scores.clone()
}

#[test]
fn moves_every_score_as_the_definition_says() {
    let bagging = action_recipe("bag", 0.25, json!({"rule": "bagging", "voters": 2}));
    for plain in [recipe(), bagging] {
        let moved = assemble(&plain.clone().with_overlay(overlay()).build().unwrap()).unwrap();
        let plain = assemble(&plain.build().unwrap()).unwrap();
        for row in ROWS {
            let (before, after) = (scores(&plain, &row), scores(&moved, &row));
            let actions: Vec<_> = moved.catalogue().iter().collect();
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let factors = &actions[at % ACTIONS].factors;
                let factors: Vec<_> = factors.iter().map(|(f, l)| (f.as_str(), l.as_str())).collect();
                let offset = naive_offset(&overlay(), row[1], &factors);
                let expected = naive_move(*before, offset);
                assert!((after - expected).abs() <= 4e-16, "{row:?} {at}: {after} {expected}");
                assert_eq!(offset == 0.0, before == after, "{row:?} {at}");
            }
        }
    }
}

#[test]
fn a_missing_or_unlisted_segment_has_what_is_everywhere() {
    let files = recipe().with_overlay(overlay()).build().unwrap();
    let (fr, none) = ([120.0, 2.0, 0.0], [120.0, f32::NAN, 0.0]);
    let bundle = assemble(&files).unwrap();
    // No tree of the recipe tests the country.
    assert_eq!(scores(&bundle, &fr), scores(&bundle, &none));
    assert_ne!(scores(&bundle, &fr), scores(&bundle, &[120.0, 0.0, 0.0]));
}

#[test]
fn an_overlay_of_zeros_changes_no_bit() {
    for zero in [
        json!({"segment": "country", "limit": 2.0}),
        json!({"segment": "country", "limit": 10.0, "everywhere": {"three_ds": {"none": 0.0}},
            "segments": {"FR": {"exemption": {"low": -0.0}}, "NL": {}}}),
        // Terms that cancel.
        json!({"segment": "country", "limit": 1.0, "everywhere": {"three_ds": {"none": 0.5}},
            "segments": {"NL": {"three_ds": {"none": -0.5}}, "DE": {"three_ds": {"none": -0.5}},
                "FR": {"three_ds": {"none": -0.5}}}}),
    ] {
        let plain = recipe().draft().unwrap();
        let moved = recipe().with_overlay(zero.clone()).draft().unwrap();
        let (mut one, mut other) = (EvalScratch::new(&plain), EvalScratch::new(&moved));
        for row in
            ROWS.into_iter().filter(|row| !(row[1].is_nan() && zero["everywhere"]["three_ds"]["none"] == 0.5))
        {
            for bits in 1_u8..64 {
                let eligible = Mask::from_bytes(ACTIONS, &[bits]).unwrap();
                let before = plain.select(&row, &eligible, "c", "d", &Unlimited, &mut one).unwrap();
                let after = moved.select(&row, &eligible, "c", "d", &Unlimited, &mut other).unwrap();
                assert_eq!(before.index, after.index);
                let bits = |scratch: &EvalScratch| -> Vec<u64> {
                    scratch.pmf.iter().chain(&scratch.scores).map(|value| value.to_bits()).collect()
                };
                assert_eq!(bits(&one), bits(&other), "{row:?}");
            }
        }
    }
}

#[test]
fn odds_are_moved_exactly_as_logits() {
    let offsets = [-10.0, -2.0, -0.3, -1e-300, 0.0, 1e-18, 0.7, 2.0, 10.0];
    let mut state = 9_u64;
    let mut tried = 0;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 11) as f64 / (1_u64 << 53) as f64;
        for score in [unit, unit * 1e-7, 1.0 - unit * 1e-7] {
            for offset in offsets {
                let got = overlay::moved(score, libm::exp(offset));
                if offset.abs() < 1e-17 {
                    assert_eq!(got.to_bits(), score.to_bits(), "{score}");
                }
                if libm::exp(offset) != 1.0 {
                    // The error is relative to the nearer end.
                    let expected = naive_move(score, offset);
                    let scale = expected.min(1.0 - expected);
                    assert!(
                        (got - expected).abs() <= 1e-15 + 1e-8 * scale,
                        "{score} {offset}: {got} {expected}"
                    );
                }
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 20_000 * 3 * offsets.len());
    let e = libm::exp(1.0);
    assert!(overlay::moved(f64::NAN, e).is_nan() && overlay::moved(f64::NAN, 1.0).is_nan());
    // The ends are moved inwards by 1e-9. Without an offset they are unchanged.
    assert!((overlay::moved(0.0, e) - naive_move(0.0, 1.0)).abs() < 1e-20);
    assert!((1.0 - overlay::moved(1.0, 1.0 / e) - (1.0 - naive_move(1.0, -1.0))).abs() < 1e-15);
    assert_eq!((overlay::moved(0.0, 1.0), overlay::moved(1.0, 1.0)), (0.0, 1.0));
}

#[test]
fn behind_a_transform_and_a_map_it_reads_the_request_s_own_segment() {
    let mut recipe = recipe();
    recipe.calibration =
        Some(json!({"maps": {"platt": {"method": "sigmoid", "slope": 2.0, "intercept": 0.1}}}));
    let policy = recipe.manifest["program"][2].clone();
    recipe.manifest["program"] = json!([
        {"kind": "transform", "input": "row", "output": "inputs", "steps": [
            {"function": "standardise", "feature": "amount", "mean": 40.0, "scale": 0.5}]},
        {"kind": "forest", "file": "forest.bin", "input": "inputs", "output": "margins"},
        {"kind": "calibrate", "map": "platt", "input": "margins", "output": "score"},
        policy,
    ]);
    let plain = recipe.draft().unwrap();
    let moved = recipe.with_overlay(overlay()).draft().unwrap();
    for row in ROWS {
        let expected = scores(&plain, &row);
        for (at, (got, before)) in scores(&moved, &row).iter().zip(expected).enumerate() {
            let action = moved.catalogue().get(at).unwrap();
            let factors: Vec<_> = action.factors.iter().map(|(f, l)| (f.as_str(), l.as_str())).collect();
            let expected = naive_move(before, naive_offset(&overlay(), row[1], &factors));
            assert!((got - expected).abs() <= 4e-16, "{row:?} {at}");
        }
    }
}

#[track_caller]
fn refused(recipe: &Recipe, expected: &str) {
    let message = recipe.build().unwrap_err().to_string();
    assert!(message.contains(expected) && !message.contains('\n'), "{message}\nshould say: {expected}");
}

#[test]
fn overlays_that_do_not_fit() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut overlay = overlay();
        change(&mut overlay);
        recipe().with_overlay(overlay)
    };
    for (recipe, expected) in [
        (
            with(&|o| o["segment"] = json!("issuer")),
            "overlay.json: segment \"issuer\" is not a feature of the request",
        ),
        (with(&|o| o["segment"] = json!("amount")), "segment \"amount\" is a number; name a category"),
        (
            with(&|o| o["segment"] = json!("exemption")),
            "segment \"exemption\" is not a feature of the request",
        ),
        (with(&|o| o["limit"] = json!(0.0)), "limit 0 must be above 0 and at most 10"),
        (with(&|o| o["limit"] = json!(10.5)), "limit 10.5 must be above 0 and at most 10"),
        (with(&|o| o["limit"] = json!(null)), "overlay.json: invalid type: null"),
        (with(&|o| o["segments"]["ES"] = json!({})), "segments: \"ES\" is not a category of \"country\""),
        (
            with(&|o| o["everywhere"]["route"] = json!({})),
            "everywhere: \"route\" is not a factor of the actions",
        ),
        (
            with(&|o| o["segments"]["DE"]["exemption"]["trap"] = json!(0.5)),
            "segments.DE.exemption: no action has the level \"trap\"; correct it or leave it out",
        ),
        (with(&|o| o["everywhere"]["three_ds"]["none"] = json!("0.5")), "overlay.json: invalid type: string"),
        (with(&|o| o["decay"] = json!(1)), "overlay.json: unknown field `decay`"),
    ] {
        refused(&recipe, expected);
    }
    // JSON has no infinity, but numbers beyond float64 are read as infinite.
    let files = recipe().with_overlay(overlay()).build().unwrap();
    for (number, expected) in
        [("1e999", "number out of range"), ("NaN", "expected"), ("0.75,\"low\":[]", "invalid type")]
    {
        let mut files = files.clone();
        let text = String::from_utf8(files["overlay.json"].clone()).unwrap();
        assert!(text.contains("0.75"));
        files.insert("overlay.json".to_owned(), text.replace("0.75", number).into_bytes());
        reseal(&mut files).unwrap();
        let message = assemble(&files).unwrap_err().to_string();
        assert!(message.contains("overlay.json") && message.contains(expected), "{message}");
    }
    let program = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut recipe = recipe().with_overlay(overlay());
        change(recipe.manifest["program"].as_array_mut().unwrap());
        recipe
    };
    for (recipe, expected) in [
        (
            program(&|p| {
                p.remove(2);
                p[2]["input"] = json!("score");
            }),
            "overlay.json: no overlay node uses it; remove it",
        ),
        (program(&|p| p[2]["file"] = json!("other.json")), "\"other.json\" is not an overlay of this bundle"),
        (
            program(&|p| p[2]["input"] = json!("margins")),
            "slot \"margins\" holds a row or margins, a score is needed",
        ),
        (program(&|p| p[2]["limit"] = json!(2)), "program node 2 (overlay): unknown field `limit`"),
    ] {
        refused(&recipe, expected);
    }
    let mut without = recipe().with_overlay(overlay());
    without.overlay = None;
    refused(&without, "program node 2 (overlay): \"overlay.json\" is not an overlay of this bundle");
    let mut rewards = recipe().with_overlay(overlay());
    rewards.forests.get_mut("forest.bin").unwrap().link = crate::forest::Link::Identity;
    refused(&rewards, "slot \"score\" holds no probabilities; put a calibrate node before");
    let mut score = super::super::testing::score_recipe("fraud", 0.0);
    score.overlay = Some(overlay());
    refused(&score, "overlay.json: a score bundle has no actions to adjust; remove it");
    score.overlay = None;
    score.manifest["program"][2] =
        json!({"kind": "overlay", "file": "overlay.json", "input": "probability", "output": "score"});
    refused(&score, "program node 2 (overlay): a score bundle has no actions to adjust");
}

#[test]
fn too_many_segments_and_bytes() {
    let mut large = recipe();
    let names: Vec<String> = (0..65_536).map(|at| format!("bin-{at:05}")).collect();
    large.schema["features"][1]["categories"] = json!(names);
    let action = large.actions.as_ref().unwrap()[0].clone();
    let actions: Vec<Value> = (0..100)
        .map(|at| {
            let mut action = action.clone();
            action["id"] = json!(format!("a{at}"));
            action
        })
        .collect();
    large.actions = Some(json!(actions));
    let segments: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({}))).collect();
    let wide = json!({"segment": "country", "limit": 2.0, "segments": segments});
    let message = large.with_overlay(wide).draft().unwrap_err().to_string();
    assert!(message.contains("65536 segments for 100 actions, at most 41942 fit"), "{message}");
    let mut files = recipe().with_overlay(overlay()).build().unwrap();
    files.get_mut("overlay.json").unwrap().extend([b' '].repeat(16 << 20));
    reseal(&mut files).unwrap();
    assert!(assemble(&files).unwrap_err().to_string().contains("at most 16777216 are allowed"));
}

struct Spent;

impl Budget for Spent {
    fn spent(&self) -> bool {
        true
    }
}

#[test]
fn a_spent_budget_leaves_no_answer() {
    let bundle = recipe().with_overlay(overlay()).draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let result = bundle.select(&ROWS[0], &Mask::all(ACTIONS), "c", "d", &Spent, &mut scratch);
    assert_eq!(result, Err(EvalError::OutOfTime(OutOfTime)));
}

fn assembled(files: &Files, known: &[&Bundle]) -> Result<Bundle, BundleError> {
    let read = |name: &str| files.get(name).cloned().ok_or(ReadError::Missing);
    Bundle::assemble_in_steps(&files[MANIFEST], &read, known, &mut |_| ()).map(|(bundle, _)| bundle)
}

#[test]
fn a_revision_shares_its_forests_and_answers_as_if_it_did_not() {
    let bagging = action_recipe("bag", 0.25, json!({"rule": "bagging", "voters": 2}));
    for recipe in [recipe(), bagging] {
        let first = assemble(&recipe.build().unwrap()).unwrap();
        let files = recipe.clone().with_overlay(overlay()).build().unwrap();
        let alone = assembled(&files, &[]).unwrap();
        let shared = assembled(&files, &[&first]).unwrap();
        for (at, forest) in shared.forests().iter().enumerate() {
            assert!(Arc::ptr_eq(forest, &first.forests()[at]) && !Arc::ptr_eq(forest, &alone.forests()[at]));
            let specialised = |bundle: &Bundle| bundle.oracle.as_ref().unwrap().forests[at].clone().unwrap();
            assert!(Arc::ptr_eq(&specialised(&shared), &specialised(&first)));
        }
        let forests = files.iter().filter(|(name, _)| name.ends_with(".bin") && *name != "golden.bin");
        assert_eq!(shared.shared_bytes(&[&first]), forests.map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
        assert_eq!((alone.shared_bytes(&[&first]), shared.shared_bytes(&[])), (0, 0));
        for row in ROWS {
            assert_eq!(scores(&shared, &row), scores(&alone, &row));
        }
        // After the first bundle is dropped, the revision is still complete.
        drop(first);
        assert_eq!(scores(&shared, &ROWS[1]), scores(&alone, &ROWS[1]));
    }
}

#[test]
fn what_only_looks_alike_is_not_shared() {
    let first = assemble(&recipe().build().unwrap()).unwrap();
    // The same forest with other actions: the forest is shared, but its specialisation to the catalogue is
    // not.
    let mut other = recipe();
    other.actions.as_mut().unwrap()[1]["features"] = json!([0.0, 2]);
    let files = other.build().unwrap();
    let (shared, alone) = (assembled(&files, &[&first]).unwrap(), assembled(&files, &[]).unwrap());
    assert!(Arc::ptr_eq(&shared.forests()[0], &first.forests()[0]));
    let specialised = |bundle: &Bundle| bundle.oracle.as_ref().unwrap().forests[0].clone().unwrap();
    assert!(!Arc::ptr_eq(&specialised(&shared), &specialised(&first)));
    for row in ROWS {
        assert_eq!(scores(&shared, &row), scores(&alone, &row));
        assert_ne!(scores(&shared, &row), scores(&first, &row));
    }
    // Another forest under the same name.
    let mut retrained = recipe();
    retrained.forests.get_mut("forest.bin").unwrap().base = vec![0.5];
    let shared = assembled(&retrained.build().unwrap(), &[&first]).unwrap();
    assert!(!Arc::ptr_eq(&shared.forests()[0], &first.forests()[0]));
    assert_ne!(scores(&shared, &ROWS[0]), scores(&first, &ROWS[0]));
    // Altered bytes are refused although the correct ones are in memory, and so are golden cases of another
    // overlay.
    let good = recipe().with_overlay(overlay()).build().unwrap();
    let mut files = good.clone();
    files.get_mut("forest.bin").unwrap()[40] ^= 1;
    assert!(matches!(assembled(&files, &[&first]), Err(BundleError::Hash { .. })));
    let mut files = good.clone();
    let mut changed = overlay();
    changed["everywhere"]["three_ds"]["none"] = json!(-0.2500001);
    files.insert("overlay.json".to_owned(), changed.to_string().into_bytes());
    reseal(&mut files).unwrap();
    let message = assembled(&files, &[&first]).unwrap_err().to_string();
    assert!(message.starts_with("golden case ") && message.contains("score"), "{message}");
}

#[test]
fn one_forest_listed_twice_is_in_memory_once() {
    let mut twice = action_recipe("bag", 0.0, json!({"rule": "bagging", "voters": 2}));
    let once = twice.draft().unwrap().heap_bytes();
    let oracle = twice.forests["forest.bin"].clone();
    twice.forests.insert("member-02.bin".to_owned(), oracle);
    let bundle = assemble(&twice.build().unwrap()).unwrap();
    assert!(Arc::ptr_eq(&bundle.forests()[0], &bundle.forests()[2]));
    assert!(!Arc::ptr_eq(&bundle.forests()[0], &bundle.forests()[1]));
    assert!(bundle.heap_bytes() < once * 3 / 4);
}

#[test]
fn golden_cases_of_a_revision_are_remade() {
    let first = recipe().build().unwrap();
    let revised = recipe().with_overlay(overlay());
    let expected = revised.build().unwrap();
    let draft = revised.draft().unwrap();
    assert_eq!(golden::revise(&draft, &first["golden.bin"]).unwrap(), expected["golden.bin"]);
    // The change in the other direction.
    let back = golden::revise(&recipe().draft().unwrap(), &expected["golden.bin"]).unwrap();
    assert_eq!(back, first["golden.bin"]);
    let mut wrong = first["golden.bin"].clone();
    wrong.truncate(wrong.len() - 1);
    assert!(golden::revise(&draft, &wrong).unwrap_err().to_string().contains("ends in the middle of a case"));
    // The engine must still reproduce the margins of the library.
    let mut other = first["golden.bin"].clone();
    let margin = 8 + 5 * 4 + 3 * 4 + 1;
    other[margin] ^= 1;
    assert!(golden::revise(&draft, &other).unwrap_err().to_string().starts_with("golden case 0: margin"));
}
