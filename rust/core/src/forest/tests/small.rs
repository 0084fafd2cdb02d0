//! Forests so small that Miri evaluates them within seconds, through every kernel of the instruction set: `make miri`.

use super::evaluate::{all_choices, bits, complete, planned};
use super::{models, reference};
use crate::budget::Unlimited;
use crate::forest::*;

/// Enough for a block of rows and a remainder.
const ROWS: usize = 19;

/// Splits of every kind, at depths that kernels treat differently.
fn model(precision: Precision) -> Model {
    let missing = Missing { nan: NanRule::Right, zero: ZeroRule::Keep };
    let zero = Missing { nan: NanRule::Left, zero: ZeroRule::Missing };
    let rule = CategoryRule::NonNegative;
    let category = Test::Category { set: 0, members: Side::Right, rule };
    let mut trees: Vec<Tree> = (1..3).map(|depth| complete(depth, depth)).collect();
    trees.push(models::stump(0, category, missing));
    trees.push(models::stump(1, Test::LessEqual(0.5), zero));
    Model { precision, ..models::of(trees) }
}

#[test]
fn small_forests_through_every_kernel() {
    for precision in [Precision::F32, Precision::F64] {
        let model = model(precision);
        let forest = Forest::compile(&model).unwrap();
        let rows = models::rows(&model, 7, ROWS);
        let expected: Vec<u64> =
            rows.chunks(model.num_features).flat_map(|row| bits(&reference::margins(&model, row))).collect();
        for isa in Isa::available() {
            for choices in all_choices() {
                let planned = planned(&forest, isa, choices);
                assert_eq!(margins(&planned, &rows), expected, "{isa} {choices:?}");
            }
        }
    }
}

/// Margins row by row, which those of one block must equal.
fn margins(forest: &Forest, rows: &[f32]) -> Vec<u64> {
    let mut scratch = Scratch::new(forest);
    let mut single = vec![f64::NAN; ROWS];
    for (row, out) in rows.chunks(forest.num_features()).zip(single.chunks_mut(1)) {
        forest.margins(row, &mut scratch, out);
    }
    let mut block = vec![f64::NAN; ROWS];
    forest.margins_rows(rows, &Unlimited, &mut scratch, &mut block).unwrap();
    assert_eq!(bits(&block), bits(&single), "{}", forest.isa());
    bits(&single)
}
