//! The contribution of each feature to one margin of a forest.
//!
//! Both methods take the expectation of the margin over the training rows as the start and give each feature a share of
//! the difference to the row's margin. They need the [`Covers`] of the forest's nodes.
//!
//! * [`PathAttributions`] follows the row's own path: the step from a node to its child changes the expectation, and
//!   the feature that the node tests is given that change. It costs one to three walks more. It is an approximation: a
//!   feature near the root is given too little where it interacts with features below it.
//! * [`TreeShap`] computes exact Shapley values of the path-dependent game. It takes dozens of times as long.

mod complete;
mod covers;
mod largest;
mod paths;
mod quadrature;
mod quads;
mod shap;
mod twins;

#[cfg(test)]
mod tests;

pub use covers::{Covers, CoversError};
pub use largest::{Contribution, Largest, MAX_REASONS};
pub use paths::{PathAttributions, PathScratch};
pub use shap::{ShapScratch, TreeShap};

use crate::forest::{Forest, NodeView, TreeView};

/// The share of a split's training rows that went to the left child. Of a split that no training row reached, each
/// child has one half.
fn left_share(left: f32, right: f32) -> f64 {
    let (left, right) = (f64::from(left), f64::from(right));
    if left + right > 0.0 { left / (left + right) } else { 0.5 }
}

/// Returns the expectation of each node of a tree: the mean of the leaves below it, weighted by their covers.
fn expectations(tree: TreeView<'_>, covers: &[f32], output: usize) -> Vec<f64> {
    let mut expectations = vec![0.0; tree.len()];
    // Children come after their parents.
    for (at, node) in tree.nodes().enumerate().rev() {
        expectations[at] = match node {
            NodeView::Leaf(leaf) => tree.value(leaf, output),
            NodeView::Split { left, .. } => {
                let share = left_share(covers[left], covers[left + 1]);
                share * expectations[left] + (1.0 - share) * expectations[left + 1]
            }
        };
    }
    expectations
}

/// Returns the expectation of an output's margin over the training rows. `each` receives every tree, with the expectation
/// of each of its nodes if the tree adds to the output.
fn expectation(
    forest: &Forest,
    covers: &Covers,
    output: usize,
    mut each: impl FnMut(TreeView<'_>, Option<&[f64]>),
) -> f64 {
    let mut expectation = forest.base(output);
    for tree in forest.trees() {
        let expected = tree
            .adds_to(output)
            .then(|| expectations(tree, covers.of(tree.first_node(), tree.len()), output));
        expectation += expected.as_ref().map_or(0.0, |expected| expected[0]);
        each(tree, expected.as_deref());
    }
    expectation
}
