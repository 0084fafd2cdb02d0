//! The specialised forms of forests, and refusals.

use super::*;
use crate::budget::{Budget, OutOfTime};
use crate::forest::tests::models;
use crate::forest::{Missing, NanRule, Node, Precision, Split, Test, Tree, ZeroRule};

const KEEP: Missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };

/// A chain of tests of one feature at 1, 2 .. `below`, under the root's test of the context (feature 0).
fn ladder(feature: u32, below: u32) -> Tree {
    let split = |feature, threshold, left, right| {
        Node::Split(Split { feature, test: Test::Less(threshold), missing: KEEP, left, right })
    };
    let mut nodes = vec![split(0, 0.0, 1, 2), Node::Leaf(0)];
    for step in 0..below {
        let at = nodes.len() as u32;
        nodes.push(split(feature, f64::from(step + 1), at + 1, at + 2));
        nodes.push(Node::Leaf(step + 1));
    }
    nodes.push(Node::Leaf(below + 1));
    Tree {
        target: Target::Output(0),
        nodes,
        leaves: (0..below + 2).map(|leaf| f64::from(leaf * leaf) + 0.25).collect(),
        sets: vec![],
        covers: vec![],
    }
}

/// A balanced tree over one feature with a leaf per whole number below `2^depth`, under a test of the context.
fn staircase(depth: u32) -> Tree {
    fn grow(low: u32, high: u32, nodes: &mut Vec<Node>) -> u32 {
        let at = nodes.len() as u32;
        nodes.push(Node::Leaf(low));
        if high - low > 1 {
            let middle = (low + high) / 2;
            let left = grow(low, middle, nodes);
            let right = grow(middle, high, nodes);
            let test = Test::Less(f64::from(middle));
            nodes[at as usize] = Node::Split(Split { feature: 1, test, missing: KEEP, left, right });
        }
        at
    }
    let mut nodes = vec![Node::Leaf(0), Node::Leaf(1 << depth)];
    let right = grow(0, 1 << depth, &mut nodes);
    nodes[0] = Node::Split(Split { feature: 0, test: Test::Less(0.0), missing: KEEP, left: 1, right });
    let leaves = (0..=1 << depth).map(|leaf: u32| f64::from(leaf * leaf) + 0.25).collect();
    Tree { target: Target::Output(0), nodes, leaves, sets: vec![], covers: vec![] }
}

fn forest(trees: Vec<Tree>, precision: Precision) -> (Model, Forest) {
    let mut model = models::of(trees);
    model.precision = precision;
    let forest = Forest::compile(&model).unwrap();
    (model, forest)
}

/// One action per whole number.
fn numbers(actions: usize) -> Vec<f32> {
    (0..actions).map(|action| action as f32).collect()
}

/// Compares with full rows for every instruction set; returns the shape for each.
fn shapes(forest: &Forest, actions: usize) -> Vec<Shape> {
    let rows = numbers(actions);
    let catalogue = Catalogue { context: 1, actions, rows: &rows };
    let eligible = set::first(actions);
    let shapes = Isa::available().map(|isa| {
        let factored = ActionForest::new(forest, &catalogue, isa).unwrap();
        let mut scratch = ActionScratch::new(forest, &factored);
        for context in [-1.0, 0.0, 1.0, f32::NAN] {
            let rows: Vec<f32> = rows.iter().flat_map(|&own| [context, own]).collect();
            let mut expected = vec![0.0; actions];
            forest.predict(&rows, actions, true, &mut expected).unwrap();
            assert_eq!(
                margins(forest, &factored, &mut scratch, &[context], &eligible),
                bits(expected),
                "{isa:?} {:?}",
                factored.shape()
            );
        }
        factored.shape()
    });
    shapes.collect()
}

/// Class numbers of each width, in so few actions that Miri evaluates them: `make miri`.
#[test]
fn small_forests_through_every_lookup() {
    for (precision, classes, depth) in
        [(Precision::F32, 3, 1), (Precision::F32, 12, 2), (Precision::F64, 6, 1)]
    {
        let (_, forest) = forest(vec![ladder(1, classes - 1), staircase(depth), ladder(1, 2)], precision);
        for shape in shapes(&forest, 9) {
            assert_eq!((shape.specialised, shape.split), (3, 0));
        }
    }
}

#[test]
fn class_numbers_of_every_width() {
    for precision in [Precision::F32, Precision::F64] {
        for classes in [1, 2, 3, 8, 9, 16, 17, 32, 33, 60] {
            // The context's leaf is one test away for every class, and no test is added.
            let (_, forest) = forest(vec![ladder(1, classes - 1), ladder(1, 2)], precision);
            for shape in shapes(&forest, 200) {
                assert_eq!((shape.split, shape.classes), (0, classes as usize + 3));
            }
        }
        for depth in 1..=8 {
            let (_, forest) = forest(vec![staircase(depth), staircase(2), staircase(depth)], precision);
            for shape in shapes(&forest, 256) {
                assert_eq!((shape.split, shape.classes), (0, 2 * (1 << depth) + 4));
            }
        }
    }
}

#[test]
fn more_classes_than_a_byte_holds_are_split() {
    let (_, forest) = forest(vec![staircase(2), staircase(9), staircase(1)], Precision::F32);
    for shape in shapes(&forest, 1024) {
        assert_eq!((shape.specialised, shape.split, shape.residuals, shape.classes), (2, 1, 8, 6));
        assert_eq!(shape.profiles, 512);
    }
}

#[test]
fn one_side_alone() {
    // The tree of the context has one residual, and the tree of the action needs no walk.
    let own = |feature| models::stump(feature, Test::Less(3.0), KEEP);
    let (_, forest) = forest(vec![own(0), own(1), own(1), own(0)], Precision::F64);
    for shape in shapes(&forest, 20) {
        assert_eq!((shape.specialised, shape.classes, shape.profiles), (4, 6, 2));
        assert_eq!(shape.tests, 1);
    }
    let (_, empty) = self::forest(vec![], Precision::F32);
    assert!(shapes(&empty, 20).iter().all(|shape| shape.classes == 0 && shape.profiles == 1));
}

#[test]
fn equal_residuals_are_one() {
    // Below the action's test, both sides have equal values in different leaves, and then one common test.
    let split = |feature, left, right| {
        Node::Split(Split { feature, test: Test::Less(1.0), missing: KEEP, left, right })
    };
    let nodes = vec![split(0, 1, 2), Node::Leaf(0), split(1, 3, 4), Node::Leaf(1), Node::Leaf(2)];
    let tree =
        Tree { target: Target::Output(0), nodes, leaves: vec![1.0, 2.0, 3.0], sets: vec![], covers: vec![] };
    let (_, forest) = forest(vec![tree], Precision::F32);
    for shape in shapes(&forest, 200) {
        assert_eq!((shape.classes, shape.profiles), (2, 2), "200 actions, 2 that can be told apart");
    }
}

#[test]
fn deep_and_thin_trees_are_linked() {
    let split = |feature, threshold, left, right| {
        Node::Split(Split { feature, test: Test::Less(threshold), missing: KEEP, left, right })
    };
    // A chain of 40 tests of the context, the last leaf under a test of the action.
    let mut nodes = Vec::new();
    for step in 0..40 {
        nodes.push(split(0, f64::from(step) * 0.05 - 1.0, 2 * step + 1, 2 * step + 2));
        nodes.push(Node::Leaf(step));
    }
    nodes.push(split(1, 7.0, 81, 82));
    nodes.extend([Node::Leaf(40), Node::Leaf(41)]);
    let tree = Tree {
        target: Target::Output(0),
        nodes,
        leaves: (0..42).map(f64::from).collect(),
        sets: vec![],
        covers: vec![],
    };
    let trees = std::iter::repeat_n(tree, 11).chain([ladder(1, 4)]).collect();
    let (_, forest) = forest(trees, Precision::F32);
    for shape in shapes(&forest, 20) {
        assert_eq!(shape.classes, 11 * 2 + 5);
    }
}

#[test]
fn what_does_not_fit_is_left_to_rows() {
    let (mut model, forest) = forest(vec![ladder(1, 2)], Precision::F32);
    let rows = numbers(4);
    let new = |forest: &Forest, context, actions, rows| {
        ActionForest::new(forest, &Catalogue { context, actions, rows }, Isa::best())
    };
    assert!(new(&forest, 1, 4, &rows).is_some());
    assert!(new(&forest, 1, 5, &rows).is_none());
    assert!(new(&forest, 3, 4, &rows).is_none());
    assert!(new(&forest, 1, 0, &[]).is_none());
    assert!(new(&forest, 2, 4, &[]).is_some(), "actions without features are all alike");
    model.trees[0].target = Target::All;
    let vectors = Forest::compile(&model).unwrap();
    assert!(new(&vectors, 1, 4, &rows).is_none());
}

/// A budget that is spent after a number of checks.
struct Looks(std::cell::Cell<usize>);

impl Budget for Looks {
    fn spent(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn a_spent_budget_ends_it() {
    let (_, forest) = forest(vec![ladder(1, 3); 2000], Precision::F32);
    let rows = numbers(10);
    let factored =
        ActionForest::new(&forest, &Catalogue { context: 1, actions: 10, rows: &rows }, Isa::best());
    let factored = factored.unwrap();
    let mut scratch = ActionScratch::new(&forest, &factored);
    let mut try_with = |looks| {
        let budget = Looks(std::cell::Cell::new(looks));
        factored.margins(&forest, &[1.0, 0.0], &[1], &budget, &mut scratch, &mut [0.0; 10])
    };
    let needed = (0..1000).find(|&looks| try_with(looks).is_ok()).unwrap();
    // 8,000 residuals in chunks of 512, and 2,000 trees in runs of as many.
    assert_eq!(needed, 8000_usize.div_ceil(512) + 4);
    assert_eq!(try_with(needed - 1), Err(OutOfTime));
}
