use proptest::prelude::*;

use super::{assert_close, compiled, reference, scale, with_covers};
use crate::budget::{Budget, OutOfTime};
use crate::explain::{ShapScratch, TreeShap};
use crate::forest::tests::models;
use crate::forest::{Forest, Isa, Missing, Model, NanRule, Node, Split, Test, Tree, ZeroRule};

fn contributions(model: &Model, row: &[f32], output: usize) -> (Vec<f64>, f64) {
    let (forest, covers) = compiled(model);
    let shap = TreeShap::new(&forest, &covers);
    let mut scratch = ShapScratch::new(&shap);
    let mut contributions = vec![f64::NAN; model.num_features];
    shap.contributions(row, output, &mut scratch, &mut contributions);
    (contributions, shap.expectation(output))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equal_to_the_sum_over_all_coalitions(model in models::model(), seed in any::<u64>()) {
        let model = with_covers(model, seed);
        let tolerance = 1e-12 * scale(&model);
        for row in models::rows(&model, seed, 3).chunks(model.num_features) {
            for output in 0..model.num_outputs {
                let (found, start) = contributions(&model, row, output);
                assert_close(&found, &reference::shapley(&model, row, output), tolerance, "all coalitions");
                let by_leaf = reference::shapley_by_leaf(&model, row, output);
                assert_close(&found, &by_leaf, tolerance, "leaf by leaf");
                let whole = reference::margin(&model, row, &|_| true, output);
                let sum = start + found.iter().sum::<f64>();
                prop_assert!((sum - whole).abs() <= tolerance, "{} is not {}", sum, whole);
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let model = with_covers(chain(12), 3);
    let (forest, covers) = compiled(&model);
    let row = vec![0.25; 12];
    let all: Vec<Vec<u64>> = Isa::available()
        .map(|isa| {
            let forest = Forest::from_bytes(&forest.to_bytes()).unwrap().with_isa(isa).unwrap();
            let shap = TreeShap::new(&std::sync::Arc::new(forest), &covers);
            let mut found = vec![0.0; 12];
            shap.contributions(&row, 0, &mut ShapScratch::new(&shap), &mut found);
            found.iter().map(|value| value.to_bits()).collect()
        })
        .collect();
    assert!(all.iter().all(|found| *found == all[0]), "{all:?}");
}

/// A budget that is spent at the check of this number.
struct Spent(std::cell::Cell<usize>);

impl Budget for Spent {
    fn spent(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

#[test]
fn a_spent_budget_ends_the_computation_within_some_trees() {
    let tree = chain(64).trees.remove(0);
    let model = with_covers(Model { num_features: 64, ..models::of(vec![tree; 100]) }, 5);
    let (forest, covers) = compiled(&model);
    let shap = TreeShap::new(&forest, &covers);
    let (mut scratch, mut out) = (ShapScratch::new(&shap), vec![0.0; 64]);
    let mut within = |checks: usize| {
        let budget = Spent(std::cell::Cell::new(checks));
        shap.contributions_within(&[0.25; 64], 0, &budget, &mut scratch, &mut out)
    };
    assert_eq!(within(1), Err(OutOfTime));
    // 100 trees of 64 splits, checked every 512 splits.
    assert_eq!((within(12), within(13)), (Err(OutOfTime), Ok(())));
    let exact = out.clone();
    shap.contributions(&[0.25; 64], 0, &mut ShapScratch::new(&shap), &mut out);
    assert_eq!(out, exact, "an interrupted computation leaves nothing behind");
}

/// One path with this number of distinct features, and a leaf beside each of its nodes.
fn chain(features: u32) -> Model {
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let mut nodes = Vec::new();
    for level in 0..features {
        let at = 2 * level;
        let split = Split { feature: level, test: Test::Less(0.5), missing, left: at + 1, right: at + 2 };
        nodes.extend([Node::Split(split), Node::Leaf(level)]);
    }
    nodes.push(Node::Leaf(features));
    let leaves = (0..=features).map(|leaf| f64::from(leaf % 7) - 3.5).collect();
    let tree = Tree { nodes, leaves, ..models::stump(0, Test::Less(0.5), missing) };
    Model { num_features: features as usize, ..models::of(vec![tree]) }
}

#[test]
fn exact_for_every_number_of_features_on_a_path() {
    for features in [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64] {
        let model = with_covers(chain(features), 1 + u64::from(features));
        for row in models::rows(&model, 3, 20).chunks(model.num_features) {
            let (found, _) = contributions(&model, row, 0);
            let expected = reference::shapley_by_leaf(&model, row, 0);
            assert_close(&found, &expected, 1e-12, &format!("{features} features"));
        }
    }
}
