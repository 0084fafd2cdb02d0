//! Link functions, compared with their definitions.

use super::models;
use crate::forest::*;

fn linked(link: Link, precision: Precision, outputs: &[f64]) -> Vec<f64> {
    let mut model = models::of(vec![]);
    model.link = link;
    model.precision = precision;
    model.num_outputs = outputs.len();
    model.base = vec![0.0; outputs.len()];
    let mut outputs = outputs.to_vec();
    Forest::compile(&model).unwrap().transform(&mut outputs);
    outputs
}

fn near(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance * expected.abs(), "{found} instead of {expected}");
    }
}

#[test]
fn values_are_right() {
    let x = [0.5, -1.25];
    for (precision, tolerance) in [(Precision::F32, 3e-7), (Precision::F64, 1e-15)] {
        let check = |link, expected: [f64; 2]| near(&linked(link, precision, &x), &expected, tolerance);
        check(Link::Identity, x);
        check(Link::Sigmoid { alpha: 1.0 }, [0.622_459_331_201_854_6, 0.222_700_138_825_308_84]);
        check(Link::Sigmoid { alpha: 2.0 }, [0.731_058_578_630_004_9, 0.075_858_180_021_243_55]);
        check(Link::Softmax, [0.851_952_801_968_310_5, 0.148_047_198_031_689_45]);
        check(Link::Exp, [1.648_721_270_700_128_2, 0.286_504_796_860_190_1]);
        check(Link::Hinge, [1.0, 0.0]);
        check(Link::LogOnePlusExp, [0.974_076_984_180_106_7, 0.251_929_081_345_372_9]);
        check(Link::SignedSquare, [0.25, -1.5625]);
        check(Link::ExpBase2 { scale: 2.0 }, [0.840_896_415_253_714_5, 1.542_210_825_407_940_7]);
        near(&linked(Link::Normalize, precision, &[1.0, 3.0]), &[0.25, 0.75], tolerance);
    }
}

#[test]
fn extremes_stay_finite() {
    for precision in [Precision::F32, Precision::F64] {
        let low = linked(Link::Sigmoid { alpha: 1.0 }, precision, &[-1e30, 1e30]);
        assert!(low[0] >= 0.0 && low[0] < 1e-37);
        assert!((low[1] - 1.0).abs() < f64::EPSILON);
        assert_eq!(linked(Link::Softmax, precision, &[-1e30, 1e30]), [0.0, 1.0]);
    }
}

#[test]
fn the_first_of_equal_classes_wins() {
    assert_eq!(linked(Link::ArgMax, Precision::F32, &[1.0, 3.0, 3.0])[0], 1.0);
    assert_eq!(linked(Link::ArgMax, Precision::F32, &[2.0, 2.0])[0], 0.0);
    let mut model = models::of(vec![]);
    (model.num_outputs, model.base, model.link) = (3, vec![0.0, 4.0, 1.0], Link::ArgMax);
    let forest = Forest::compile(&model).unwrap();
    let mut out = [f64::NAN; 2];
    forest.predict(&[0.0; 4], 2, false, &mut out).unwrap();
    assert_eq!((forest.num_predictions(), out), (1, [1.0, 1.0]));
}
