//! Contributions, compared with naive computations on the raw model.

mod covers;
mod largest;
mod paths;
mod reference;
mod shap;

use std::sync::Arc;

use super::Covers;
use crate::forest::{Forest, Model, Node, Tree};

/// Gives every node of a model a cover: random ones to the leaves, some of them 0, and their sums to the splits.
fn with_covers(mut model: Model, seed: u64) -> Model {
    let mut state = seed | 1;
    let mut leaf = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % 9) as f64 / 2.0
    };
    for tree in &mut model.trees {
        let mut covers = vec![0.0; tree.nodes.len()];
        cover(tree, 0, &mut covers, &mut leaf);
        tree.covers = covers;
    }
    model
}

fn cover(tree: &Tree, node: u32, covers: &mut [f64], leaf: &mut dyn FnMut() -> f64) -> f64 {
    let own = match tree.nodes[node as usize] {
        Node::Leaf(_) => leaf(),
        Node::Split(split) => cover(tree, split.left, covers, leaf) + cover(tree, split.right, covers, leaf),
    };
    covers[node as usize] = own;
    own
}

fn compiled(model: &Model) -> (Arc<Forest>, Covers) {
    let (forest, covers) = Forest::compile_with_covers(model).unwrap();
    let covers = Covers::new(&forest, &covers.unwrap()).unwrap();
    (Arc::new(forest), covers)
}

/// The greatest amount by which the trees can change a margin.
fn scale(model: &Model) -> f64 {
    let largest = |tree: &Tree| tree.leaves.iter().fold(0.0_f64, |most, leaf| most.max(leaf.abs()));
    1.0 + model.trees.iter().map(largest).sum::<f64>()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (feature, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance, "{what}, feature {feature}: {found}, not {expected}");
    }
}
