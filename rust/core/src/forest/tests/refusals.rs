//! Models that contradict themselves or exceed a limit are refused by name.

use super::models::{of, stump};
use crate::forest::*;

const KEEP: Missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };

fn refused(model: &Model, part: &str) {
    let error = Forest::compile(model).unwrap_err().to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

fn with(edit: impl Fn(&mut Model)) -> Model {
    let mut model = of(vec![stump(0, Test::Less(1.0), KEEP), stump(1, Test::LessEqual(1.0), KEEP)]);
    assert!(Forest::compile(&model).is_ok());
    edit(&mut model);
    model
}

fn split(model: &mut Model) -> &mut Split {
    match &mut model.trees[1].nodes[0] {
        Node::Split(split) => split,
        Node::Leaf(_) => panic!("node 0 is a split"),
    }
}

/// Fault case 59.
#[test]
fn links_between_nodes() {
    refused(&with(|m| split(m).left = 9), "tree 1, node 9: a child link leads out of the tree");
    refused(&with(|m| split(m).left = 0), "tree 1, node 0: two links lead to it");
    refused(&with(|m| split(m).left = 2), "tree 1, node 2: two links lead to it");
    refused(&with(|m| m.trees[0].nodes.clear()), "tree 0, node 0: a child link leads out of the tree");
}

#[test]
fn values() {
    refused(&with(|m| split(m).feature = 2), "its feature is not below the number of features");
    refused(&with(|m| split(m).test = Test::Less(f64::NAN)), "tree 1, node 0: its threshold is NaN");
    refused(&with(|m| m.trees[1].leaves[1] = f64::INFINITY), "tree 1, leaf 1: its value must be finite");
    refused(&with(|m| m.trees[1].leaves.truncate(1)), "tree 1, node 2: its leaf has no values");
    refused(&with(|m| m.trees[1].leaves[0] = 1e308), "sum of the largest |leaf|");
}

#[test]
fn float32_forests_hold_float32_values() {
    let f32 = |edit: fn(&mut Model)| {
        with(move |m| {
            m.precision = Precision::F32;
            edit(m);
        })
    };
    assert!(Forest::compile(&f32(|_| {})).is_ok());
    refused(&f32(|m| m.trees[0].leaves[0] = 0.1), "tree 0, node 1: its leaf value is not a finite float32");
    refused(&f32(|m| m.base[0] = 0.1), "base margins");
    refused(&f32(|m| m.trees[0].leaves[0] = f64::from(2e38_f32)), "margins could overflow");
    assert!(Forest::compile(&f32(|m| (m.base[0], m.base_order) = (0.1, BaseOrder::Last))).is_ok());
}

#[test]
fn heads() {
    refused(&with(|m| m.base.push(0.0)), "base margins: there must be one per output");
    refused(&with(|m| m.base[0] = f64::NAN), "base margins: they must be finite");
    refused(&with(|m| m.divisor = vec![0.5]), "divisors: they must be finite and not below 1");
    refused(&with(|m| m.divisor = vec![2.0, 2.0]), "divisors: there must be none or one per output");
    refused(&with(|m| m.num_features = 0), "number of features: 0 is not between 1");
    refused(&with(|m| m.num_outputs = limits::OUTPUTS + 1), "number of outputs");
    refused(&with(|m| m.trees[0].target = Target::Output(1)), "tree 0: its output");
    refused(&with(|m| m.link = Link::Sigmoid { alpha: -1.0 }), "link sigmoid");
    refused(&with(|m| m.link = Link::ExpBase2 { scale: 0.0 }), "link exp_base2");
}

#[test]
fn categories() {
    let rule = CategoryRule::NonNegative;
    let test = |set| Test::Category { set, members: Side::Left, rule };
    refused(&with(|m| split(m).test = test(1)), "its category set does not exist");
    refused(
        &with(|m| {
            m.trees[1].sets[0].push(1 << 31);
            split(m).test = test(0);
        }),
        "a category is not below 2^31",
    );
}

fn chain(depth: u32) -> Tree {
    let mut nodes = Vec::new();
    for level in 0..depth {
        let (left, right) = (2 * level + 1, 2 * level + 2);
        nodes.push(Node::Split(Split {
            feature: 0,
            test: Test::Less(f64::from(level)),
            missing: KEEP,
            left,
            right,
        }));
        nodes.push(Node::Leaf(level));
    }
    nodes.push(Node::Leaf(depth));
    Tree {
        target: Target::Output(0),
        nodes,
        leaves: (0..=depth).map(f64::from).collect(),
        sets: vec![],
        covers: vec![],
    }
}

/// Fault case 59.
#[test]
fn depth_is_limited() {
    let forest = Forest::compile(&of(vec![chain(64)])).unwrap();
    assert_eq!(forest.max_depth(), 64);
    let mut out = [0.0];
    forest.predict(&[63.5, 0.0], 1, true, &mut out).unwrap();
    assert_eq!(out, [64.0]);
    refused(&of(vec![chain(65)]), "deeper than 64");
}
