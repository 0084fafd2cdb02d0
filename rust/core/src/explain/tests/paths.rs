use proptest::prelude::*;

use super::{assert_close, compiled, reference, scale, with_covers};
use crate::budget::Unlimited;
use crate::explain::{PathAttributions, PathScratch};
use crate::forest::tests::models;
use crate::forest::{Forest, Isa, Missing, Model, NanRule, Node, Scratch, Split, Test, Tree, ZeroRule};

fn check(model: &Model, rows: &[f32]) {
    let (forest, covers) = compiled(model);
    let mut first: Option<Vec<u64>> = None;
    for isa in Isa::available() {
        let forest =
            std::sync::Arc::new(Forest::from_bytes(&forest.to_bytes()).unwrap().with_isa(isa).unwrap());
        let mut scratch = Scratch::new(&forest);
        let mut bits = Vec::new();
        for output in 0..model.num_outputs {
            let paths = PathAttributions::new(&forest, &covers, output);
            let mut found = PathScratch::new(&paths);
            for row in rows.chunks(model.num_features) {
                let (mut bare, mut margins) = (vec![0.0; model.num_outputs], vec![0.0; model.num_outputs]);
                forest.margins(row, &mut scratch, &mut bare);
                paths.margins(row, &Unlimited, &mut scratch, &mut margins, &mut found).unwrap();
                assert_eq!(margins, bare, "{isa}: the walk computes the same margins");
                let expected = reference::paths(model, row, output);
                let tolerance = 1e-6 * scale(model);
                let contributions = found.contributions();
                bits.extend(contributions.iter().map(|value| value.to_bits()));
                assert_close(contributions, &expected, tolerance, isa.name());
                let sum: f64 = paths.expectation() + contributions.iter().sum::<f64>();
                let whole = reference::margin(model, row, &|_| true, output);
                assert!((sum - whole).abs() <= tolerance, "{isa}: {sum}, not {whole}");
            }
        }
        assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits, "{isa}: other bits");
    }
}

/// A tree of complete levels, whose tests take the features that `feature` gives to its nodes.
fn complete(depth: u32, feature: impl Fn(u32) -> u32, leaf: impl Fn(u32) -> f64) -> Tree {
    let missing = Missing { nan: NanRule::Right, zero: ZeroRule::Keep };
    let inner = (1 << depth) - 1;
    let split = |at: u32| {
        let test = Test::Less(f64::from(at * 7 % 13) / 4.0 - 1.5);
        Node::Split(Split { feature: feature(at), test, missing, left: 2 * at + 1, right: 2 * at + 2 })
    };
    Tree {
        nodes: (0..inner).map(split).chain((0..=inner).map(Node::Leaf)).collect(),
        leaves: (0..=inner).map(leaf).collect(),
        ..models::stump(0, Test::Less(0.5), missing)
    }
}

#[test]
fn complete_trees_of_every_depth_and_more_than_one_batch() {
    let (features, depths) = (11, [1, 2, 3, 4, 5, 6, 7, 8]);
    let trees = depths.into_iter().flat_map(|depth| {
        let count = if depth == 4 { 90 } else { 3 };
        (0..count).map(move |number| {
            let feature = move |at| (at * 5 + number) % features;
            complete(depth, feature, move |leaf| f64::from((leaf * 31 + number * 7) % 97) / 50.0 - 1.0)
        })
    });
    let model = Model { num_features: features as usize, ..models::of(trees.collect()) };
    let model = with_covers(model, 4);
    check(&model, &models::rows(&model, 8, 10));
}

/// The numbers of features are bytes in the tables of complete trees.
#[test]
fn forests_that_test_more_than_256_features() {
    for features in [256, 257, 300_u32] {
        let tree = |number: u32| {
            complete(6, move |at| (number * 63 + at) % features, move |leaf| f64::from(leaf % 7 + number % 5))
        };
        let model = Model { num_features: features as usize, ..models::of((0..12).map(tree).collect()) };
        let model = with_covers(model, 5);
        check(&model, &models::rows(&model, 9, 6));
    }
}

/// The unit of the contributions is that of the whole forest.
#[test]
fn a_tree_of_great_leaves_leaves_the_others_their_precision() {
    let great = complete(4, |at| at % 2, |leaf| f64::from(leaf) * 100.0);
    let small = complete(4, |at| 2 + at % 2, |leaf| f64::from(leaf) / 1e5);
    let model = Model { num_features: 4, ..models::of(vec![great, small]) };
    let model = with_covers(model, 6);
    let (forest, covers) = compiled(&model);
    let paths = PathAttributions::new(&forest, &covers, 0);
    let (mut scratch, mut found) = (Scratch::new(&forest), PathScratch::new(&paths));
    // A path has two steps of each feature, rounded to half of a unit of at most 2^-27 of the ranges together.
    let tolerance = 2.0 * 1501.0 / f64::from(1 << 28);
    for row in models::rows(&model, 10, 20).chunks(4) {
        paths.margins(row, &Unlimited, &mut scratch, &mut [0.0], &mut found).unwrap();
        assert_close(found.contributions(), &reference::paths(&model, row, 0), tolerance, "contributions");
    }
}

/// Forests at the limits of the lines of two leaves: all numbers of registers, and one feature too many.
#[test]
fn forests_of_each_number_of_features_up_to_one_above_that_of_twins() {
    for features in [1, 15, 16, 17, 31, 32, 33, 43, 44, 45, 55, 56, 57_u32] {
        let tree = |depth: u32, number: u32| {
            let feature = move |at| (at * 3 + number * 13) % features;
            complete(depth, feature, move |leaf| f64::from((leaf * 31 + number * 7) % 97) / 50.0 - 1.0)
        };
        let trees = [3, 6, 8].into_iter().flat_map(|depth| (0..9).map(move |number| (depth, number)));
        let trees = trees.map(|(depth, number)| tree(depth, number)).collect();
        let model = Model { num_features: features as usize, ..models::of(trees) };
        let model = with_covers(model, 7);
        check(&model, &models::rows(&model, 11, 6));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn equal_to_the_definition(model in models::model(), seed in any::<u64>()) {
        let model = with_covers(model, seed);
        check(&model, &models::rows(&model, seed, 12));
    }
}

/// A tree of 20 tests on 20 features, whose steps are not stored in a table.
#[test]
fn deep_trees_are_followed_to_the_root() {
    let depth = 20_u32;
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let mut nodes = Vec::new();
    for level in 0..depth {
        let at = 2 * level;
        let split = Split { feature: level, test: Test::Less(0.5), missing, left: at + 1, right: at + 2 };
        nodes.extend([Node::Split(split), Node::Leaf(level)]);
    }
    nodes.push(Node::Leaf(depth));
    let tree = Tree {
        nodes,
        leaves: (0..=depth).map(|leaf| f64::from(leaf * leaf)).collect(),
        ..models::stump(0, Test::Less(0.5), missing)
    };
    let shallow = models::stump(3, Test::Less(0.5), missing);
    let model = Model { num_features: depth as usize, ..models::of(vec![tree, shallow]) };
    let model = with_covers(model, 77);
    check(&model, &models::rows(&model, 5, 40));
    check(&model, &vec![1.0; depth as usize]);
}
