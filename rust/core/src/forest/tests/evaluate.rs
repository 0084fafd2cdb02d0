//! Every evaluator gives the bits of the reference.

use std::cell::Cell;

use proptest::prelude::*;

use super::super::build::{self, Choices};
use super::super::plan::Plan;
use super::{models, reference};
use crate::budget::{Budget, OutOfTime, Unlimited};
use crate::forest::*;

pub(super) fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the margins of all rows, one by one and then in blocks of several lengths, which must be equal.
fn all_margins(forest: &Forest, rows: &[f32]) -> Vec<u64> {
    let (features, outputs) = (forest.num_features(), forest.num_outputs());
    let mut scratch = Scratch::new(forest);
    let mut single = vec![f64::NAN; rows.len() / features * outputs];
    for (row, out) in rows.chunks(features).zip(single.chunks_mut(outputs)) {
        forest.margins(row, &mut scratch, out);
    }
    for length in [rows.len() / features, 64, 37, 21, 8] {
        let mut block = vec![f64::NAN; single.len()];
        for (rows, out) in rows.chunks(length * features).zip(block.chunks_mut(length * outputs)) {
            forest.margins_rows(rows, &Unlimited, &mut scratch, out).unwrap();
        }
        assert_eq!(bits(&block), bits(&single), "blocks of {length} rows, {}", forest.isa());
    }
    bits(&single)
}

/// The same forest, evaluated with these choices.
pub(super) fn planned(forest: &Forest, isa: Isa, choices: Choices) -> Forest {
    let layout = forest.layout.clone();
    let plan = build::plan(&layout, choices);
    Forest { layout, plan, isa: Detected::new(isa).unwrap() }
}

/// Choices that lead to every walk and to every kind of program.
pub(super) fn all_choices() -> Vec<Choices> {
    // Blocks of any length, so that the rows of all lengths above are evaluated as blocks.
    let any = Choices { least_rows: Some(1), ..Choices::default() };
    let mut all: Vec<Choices> =
        [0, usize::MAX].map(|padding| Choices { padding, ranked: false, ..any }).into();
    for narrow in [true, false] {
        for programs in [Some(false), Some(true)] {
            for (padding, padded, leaves) in
                [(0, None, 256), (4, None, 256), (usize::MAX, Some(false), 5), (usize::MAX, Some(true), 5)]
            {
                all.push(Choices { padding, narrow, padded, programs, leaves, ..any });
            }
        }
    }
    all
}

/// The reached leaves as numbers of trees and of leaves.
struct Leaves<'a> {
    forest: &'a Forest,
    reached: Vec<(usize, usize)>,
}

impl Reach for Leaves<'_> {
    fn complete(&mut self, first_tree: usize, depth: usize, positions: &[u8]) {
        let depths = self.forest.complete_depths();
        for (at, &position) in positions.iter().enumerate() {
            assert_eq!(depths[first_tree + at], Some(depth));
            let tree = self.forest.trees().nth(first_tree + at).unwrap();
            let end = tree.complete(depth)[(1 << depth) + usize::from(position)];
            let Some(NodeView::Leaf(leaf)) = tree.nodes().nth(end) else { panic!("node {end} is no leaf") };
            self.reached.push((first_tree + at, leaf));
        }
    }

    fn leaf(&mut self, tree: usize, leaf: usize) {
        assert_eq!(self.forest.complete_depths()[tree], None);
        self.reached.push((tree, leaf));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn margins_are_the_references(model in models::model(), seed in any::<u64>()) {
        let forest = Forest::compile(&model).unwrap();
        let rows = models::rows(&model, seed, 130);
        let expected: Vec<u64> =
            rows.chunks(model.num_features).flat_map(|row| bits(&reference::margins(&model, row))).collect();
        prop_assert_eq!(&all_margins(&forest, &rows), &expected);
        for isa in Isa::available() {
            for choices in all_choices() {
                let planned = planned(&forest, isa, choices);
                prop_assert_eq!(&all_margins(&planned, &rows), &expected, "{} {:?}", isa, choices);
            }
        }
        let bytes = forest.to_bytes();
        let again = Forest::from_bytes(&bytes).unwrap();
        prop_assert_eq!(again.to_bytes(), bytes);
        prop_assert_eq!(&all_margins(&again, &rows), &expected, "decoded");
    }

    #[test]
    fn every_walk_reports_the_leaves_that_it_adds(model in models::model(), seed in any::<u64>()) {
        let forest = Forest::compile(&model).unwrap();
        let rows = models::rows(&model, seed, 5);
        for isa in Isa::available() {
            for choices in all_choices() {
                let planned = planned(&forest, isa, choices);
                let mut scratch = Scratch::new(&planned);
                for row in rows.chunks(model.num_features) {
                    let mut out = vec![0.0; model.num_outputs];
                    let mut leaves = Leaves { forest: &planned, reached: Vec::new() };
                    planned.margins_reaching(row, &Unlimited, &mut scratch, &mut leaves, &mut out).unwrap();
                    let reached = leaves.reached;
                    prop_assert_eq!(bits(&out), bits(&reference::margins(&model, row)));
                    for (at, (&(tree, leaf), view)) in reached.iter().zip(planned.trees()).enumerate() {
                        let raw = &model.trees[at];
                        let expected = reference::leaf(raw, 0, row) as usize;
                        for output in (0..model.num_outputs).filter(|&output| view.adds_to(output)) {
                            let (width, column) = match raw.target {
                                Target::All => (model.num_outputs, output),
                                Target::Output(_) => (1, 0),
                            };
                            let divisor = model.divisor.get(output).copied().unwrap_or(1.0);
                            let value = raw.leaves[expected * width + column] / divisor;
                            prop_assert_eq!((tree, view.value(leaf, output)), (at, value), "{:?}", choices);
                        }
                    }
                    prop_assert_eq!(reached.len(), model.trees.len());
                }
            }
        }
    }

    #[test]
    fn one_test_agrees_with_float_comparison(threshold in any::<f64>(), x in any::<f32>()) {
        prop_assume!(!threshold.is_nan());
        let near = [threshold as f32, (threshold as f32).next_up(), (threshold as f32).next_down(), x];
        for test in [Test::Less(threshold), Test::LessEqual(threshold)] {
            let missing = Missing { nan: NanRule::Right, zero: ZeroRule::Keep };
            let model = models::of(vec![models::stump(0, test, missing)]);
            let forest = Forest::compile(&model).unwrap();
            for x in near {
                let row = [x, 0.0];
                prop_assert_eq!(all_margins(&forest, &row), bits(&reference::margins(&model, &row)));
            }
        }
    }
}

#[test]
fn rows_of_one_scratch_do_not_disturb_each_other() {
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let rule = CategoryRule::NonNegative;
    let test = Test::Category { set: 0, members: Side::Right, rule };
    let model = models::of(vec![models::stump(0, test, missing), models::stump(1, Test::Less(0.0), missing)]);
    let forest = Forest::compile(&model).unwrap();
    let mut scratch = Scratch::new(&forest);
    let rows = models::rows(&model, 3, 200);
    for row in rows.chunks(2) {
        let mut out = [0.0];
        forest.margins(row, &mut scratch, &mut out);
        assert_eq!(bits(&out), bits(&reference::margins(&model, row)));
    }
}

#[test]
fn trees_without_a_split_need_no_slot() {
    for precision in [Precision::F32, Precision::F64] {
        let tree = |value| Tree {
            nodes: vec![Node::Leaf(0)],
            leaves: vec![value],
            sets: Vec::new(),
            covers: Vec::new(),
            target: Target::Output(0),
        };
        let model = Model { precision, ..models::of(vec![tree(3.25), tree(-0.5)]) };
        let forest = Forest::compile(&model).unwrap();
        let rows = models::rows(&model, 5, 130);
        let expected: Vec<u64> =
            rows.chunks(model.num_features).flat_map(|row| bits(&reference::margins(&model, row))).collect();
        for isa in Isa::available() {
            for choices in all_choices() {
                assert_eq!(
                    all_margins(&planned(&forest, isa, choices), &rows),
                    expected,
                    "{isa} {choices:?}"
                );
            }
        }
    }
}

/// One tree per cut, each with distinct leaves. Feature `f` has `cuts[f]` cuts.
fn with_cuts(cuts: &[usize]) -> Model {
    let missing = Missing { nan: NanRule::Right, zero: ZeroRule::Keep };
    let places =
        cuts.iter().enumerate().flat_map(|(feature, &cuts)| (0..cuts).map(move |cut| (feature, cut)));
    let tree = |(feature, cut): (usize, usize)| Tree {
        leaves: vec![cut as f64 + 0.25, -(feature as f64) - 0.5],
        ..models::stump(feature as u32, Test::Less(cut as f64 / 8.0 - 3.0), missing)
    };
    Model { num_features: cuts.len(), ..models::of(places.map(tree).collect()) }
}

#[test]
fn many_cuts_take_several_byte_slots_and_too_many_slots_are_wide() {
    let one_each = |features| vec![1; features];
    let long_and_others = |cuts, others| [vec![cuts], one_each(others)].concat();
    for (cuts, slots) in [
        (vec![255, 3], Some(2)),
        (vec![256, 3], Some(3)),
        (vec![3, 2 * 255 + 1, 255], Some(5)),
        (one_each(256), Some(256)),
        (one_each(257), Some(257)),
        (long_and_others(3 * 255, 253), Some(256)),
        (long_and_others(3 * 255 + 1, 253), Some(257)),
    ] {
        let model = with_cuts(&cuts);
        let forest = Forest::compile(&model).unwrap();
        let rows = models::rows(&model, 11, 70);
        let expected: Vec<u64> =
            rows.chunks(model.num_features).flat_map(|row| bits(&reference::margins(&model, row))).collect();
        for isa in Isa::available() {
            let planned = planned(&forest, isa, Choices::default());
            let Plan::F64(engine) = &planned.plan else { panic!("the model is of float64") };
            let ranks = engine.ranks.as_ref();
            assert_eq!(ranks.map(|ranks| ranks.len()), slots, "{} features", cuts.len());
            assert_eq!(ranks.map(|ranks| ranks.is_narrow()), slots.map(|slots| slots <= 256));
            assert_eq!(all_margins(&planned, &rows), expected, "{isa}, {} features", cuts.len());
        }
    }
}

/// A tree with this number of complete levels, and with distinct tests and leaves.
pub(super) fn complete(number: u32, depth: u32) -> Tree {
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let inner = (1_u32 << depth) - 1;
    let split = |at: u32| {
        let threshold = f64::from((at * 7 + number * 3) % 29) / 4.0 - 3.5;
        let test = Test::Less(threshold);
        Node::Split(Split { feature: (at + number) % 2, test, missing, left: 2 * at + 1, right: 2 * at + 2 })
    };
    Tree {
        target: Target::Output(0),
        nodes: (0..inner).map(split).chain((0..=inner).map(Node::Leaf)).collect(),
        leaves: (0..=inner).map(|leaf| f64::from(leaf * 17 % 101) + 0.5).collect(),
        sets: Vec::new(),
        covers: Vec::new(),
    }
}

#[test]
fn deep_trees_are_walked_where_testing_them_all_takes_longer() {
    let of = |depths: &[u32]| models::of((0..).zip(depths).map(|(n, &depth)| complete(n, depth)).collect());
    let mixed = [vec![6; 30], vec![8; 10]].concat();
    for (depths, blocks) in [(vec![6; 12], true), (vec![7; 12], true), (vec![8; 12], false), (mixed, true)] {
        let model = of(&depths);
        let forest = Forest::compile(&model).unwrap();
        let rows = models::rows(&model, 5, 130);
        let expected: Vec<u64> =
            rows.chunks(model.num_features).flat_map(|row| bits(&reference::margins(&model, row))).collect();
        for isa in Isa::available() {
            let planned = planned(&forest, isa, Choices { programs: Some(false), ..Choices::default() });
            let together = planned.plan.least_rows(planned.isa) < usize::MAX;
            let expect = match isa {
                Isa::Portable => false,
                Isa::Avx512 => true,
                Isa::Avx2 | Isa::Neon => blocks,
            };
            assert_eq!(together, expect, "{isa} {depths:?}");
            assert_eq!(all_margins(&planned, &rows), expected, "{isa} {depths:?}");
        }
    }
}

#[test]
#[should_panic(expected = "another forest")]
fn a_scratch_of_another_forest_is_refused() {
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let small = Forest::compile(&models::of(vec![models::stump(0, Test::Less(0.0), missing)])).unwrap();
    let large = models::of(vec![
        models::stump(0, Test::Less(0.0), missing),
        models::stump(1, Test::Less(0.0), missing),
    ]);
    let large = Forest::compile(&large).unwrap();
    large.margins(&[0.0, 0.0], &mut Scratch::new(&small), &mut [0.0]);
}

/// A budget that is spent at the `left`-th check.
struct Asked {
    left: Cell<usize>,
}

impl Budget for Asked {
    fn spent(&self) -> bool {
        self.left.set(self.left.get().saturating_sub(1));
        self.left.get() == 0
    }
}

#[test]
fn a_spent_budget_ends_an_evaluation() {
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    for (trees, asked) in [(1, 1), (64, 1), (65, 2), (640, 10), (641, 11)] {
        let model = models::of((0..trees).map(|t| models::stump(t % 2, Test::Less(0.0), missing)).collect());
        let forest = Forest::compile(&model).unwrap();
        let mut scratch = Scratch::new(&forest);
        let mut out = [0.0];
        let mut within = |times| {
            let budget = Asked { left: Cell::new(times) };
            forest.margins_within(&[1.0, 1.0], &budget, &mut scratch, &mut out).map(|()| out[0])
        };
        for times in 1..=asked {
            assert_eq!(within(times), Err(OutOfTime), "{trees} trees, spent when asked {times} times");
        }
        assert_eq!(within(asked + 1), Ok(2.0 * f64::from(trees)));
    }
}

#[test]
fn buffers_of_other_lengths_are_errors() {
    let forest = Forest::compile(&models::of(vec![])).unwrap();
    let mut out = [0.0; 2];
    assert!(matches!(
        forest.predict(&[0.0; 3], 2, true, &mut out),
        Err(ForestError::Shape { what: "rows", expected: 4, found: 3 })
    ));
    assert!(matches!(
        forest.predict(&[0.0; 6], 3, true, &mut out),
        Err(ForestError::Shape { what: "outputs", expected: 3, found: 2 })
    ));
}
