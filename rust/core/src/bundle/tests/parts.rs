//! Calibration maps, bands, transforms and the digest, tested separately.

use serde_json::json;

use super::super::testing::{Recipe, assemble, score_recipe};
use super::super::threshold::Thresholds;
use super::super::*;

#[test]
fn isotonic_maps_are_linear_between_knots_and_flat_beyond() {
    let map = CalibrationMap::Isotonic { x: vec![0.1, 0.2, 0.6], y: vec![0.0, 0.5, 0.9] };
    for (x, y) in [(-1.0, 0.0), (0.1, 0.0), (0.15, 0.25), (0.2, 0.5), (0.4, 0.7), (0.6, 0.9), (7.0, 0.9)] {
        assert!((map.apply(x) - y).abs() < 1e-12, "{x}");
    }
    assert!(map.apply(f64::NAN).is_nan());
    let single = CalibrationMap::Isotonic { x: vec![0.5], y: vec![0.25] };
    assert_eq!([single.apply(0.0), single.apply(0.5), single.apply(1.0)], [0.25; 3]);
}

#[test]
fn sigmoid_maps_are_platts() {
    let map = CalibrationMap::Sigmoid { slope: 2.0, intercept: -1.0 };
    assert_eq!(map.apply(0.5), 0.5);
    assert!((map.apply(1.0) - 1.0 / (1.0 + (-1.0_f64).exp())).abs() < 1e-15);
    assert_eq!((map.apply(1e300), map.apply(-1e300)), (1.0, 0.0));
}

#[test]
fn a_band_starts_at_its_edge() {
    let band = |from, label: &str| Band { from, label: label.to_owned() };
    let bands =
        Thresholds::compile(&[band(0.0, "approve"), band(0.5, "review"), band(0.9, "decline")]).unwrap();
    for (score, at) in [(-3.0, 0), (0.0, 0), (0.5_f64.next_down(), 0), (0.5, 1), (0.9, 2), (7.0, 2)] {
        assert_eq!(bands.band(score), at, "{score}");
    }
}

/// The score recipe with a transform of the amount in front of the forest.
fn transformed() -> Recipe {
    let mut recipe = score_recipe("fraud", 0.0);
    recipe.manifest["program"][0]["input"] = json!("inputs");
    let step = json!({"function": "standardise", "feature": "amount", "mean": 50.0, "scale": 0.5});
    let node = json!({"kind": "transform", "input": "row", "output": "inputs", "steps": [step]});
    recipe.manifest["program"].as_array_mut().unwrap().insert(0, node);
    recipe
}

#[test]
fn transforms_change_a_copy() {
    // (amount - 50) / 0.5 reaches 100 at 100. The flag after it must still be that of the request.
    let files = transformed().build();
    // The golden margins of the recipe are those of the untransformed row, so the difference must be
    // detected.
    assert!(matches!(files, Err(BundleError::Golden { .. })));

    let features: SchemaFile = serde_json::from_value(score_recipe("", 0.0).schema).unwrap();
    let steps: Vec<node::TransformStep> = serde_json::from_value(json!([
        {"function": "log1p", "feature": "amount"},
    ]))
    .unwrap();
    let rows = vec![0.0, 1.0, 1.0, f32::NAN, 2.0, 0.0, 1.718_281_8, 0.0, 0.0];
    let rows = transform_rows(&features.features, &steps, None, None, &rows).unwrap();
    assert_eq!((rows[0], rows[1], rows[2]), (0.0, 1.0, 1.0));
    assert!(rows[3].is_nan() && (rows[6] - 1.0).abs() < 1e-6);
    assert!(transform_rows(&features.features, &steps, None, None, &rows[1..]).is_err());
}

#[test]
fn digests_survive_text() {
    let digest = Digest::of(b"abc");
    let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(digest.to_string(), text);
    assert_eq!(text.parse::<Digest>(), Ok(digest));
    let upper = text.to_uppercase();
    for bad in ["", "sha256:", &text[7..], &text[..70], upper.as_str(), "sha256:ÿÿ"] {
        assert!(bad.parse::<Digest>().is_err(), "{bad}");
    }
}

#[test]
fn a_manifest_is_hashed_with_its_own_digest_blanked() {
    let files = score_recipe("fraud", 0.0).build().unwrap();
    let text = String::from_utf8(files[MANIFEST].clone()).unwrap();
    let bundle = assemble(&files).unwrap();
    let blank = text.replace(&bundle.digest().hex(), &"0".repeat(64));
    assert_eq!(Digest::of(blank.as_bytes()), *bundle.digest());
}
