//! The definitions, written recursively on the raw model and without the engine's data structures.

use crate::forest::tests::reference::goes_left;
use crate::forest::{BaseOrder, Model, Node, Target, Tree};

/// The share of a split's left child. Of a split without cover, both children have one half.
fn left_share(tree: &Tree, left: u32, right: u32) -> f64 {
    let (left, right) = (tree.covers[left as usize], tree.covers[right as usize]);
    if left + right > 0.0 { left / (left + right) } else { 0.5 }
}

fn value(model: &Model, tree: &Tree, leaf: u32, output: usize) -> f64 {
    let value = match tree.target {
        Target::Output(target) if target as usize == output => tree.leaves[leaf as usize],
        Target::Output(_) => 0.0,
        Target::All => tree.leaves[leaf as usize * model.num_outputs + output],
    };
    model.divisor.get(output).map_or(value, |divisor| value / divisor)
}

fn base(model: &Model, output: usize) -> f64 {
    match (model.base_order, model.divisor.get(output)) {
        (BaseOrder::First, Some(divisor)) => model.base[output] / divisor,
        _ => model.base[output],
    }
}

/// The mean of a tree's leaves, where the features of `known` follow the row and the others the covers.
fn expectation(
    model: &Model,
    tree: &Tree,
    node: u32,
    row: &[f32],
    known: &dyn Fn(u32) -> bool,
    output: usize,
) -> f64 {
    match tree.nodes[node as usize] {
        Node::Leaf(leaf) => value(model, tree, leaf, output),
        Node::Split(split) => {
            let below = |node| expectation(model, tree, node, row, known, output);
            if known(split.feature) {
                let left = goes_left(tree, &split, row[split.feature as usize]);
                return below(if left { split.left } else { split.right });
            }
            let share = left_share(tree, split.left, split.right);
            share * below(split.left) + (1.0 - share) * below(split.right)
        }
    }
}

/// The margin's expectation, where the features of `known` follow the row and the others the covers.
pub(super) fn margin(model: &Model, row: &[f32], known: &dyn Fn(u32) -> bool, output: usize) -> f64 {
    let trees = model.trees.iter().map(|tree| expectation(model, tree, 0, row, known, output));
    base(model, output) + trees.sum::<f64>()
}

/// Path attributions by the definition.
pub(super) fn paths(model: &Model, row: &[f32], output: usize) -> Vec<f64> {
    let mut contributions = vec![0.0; model.num_features];
    for tree in &model.trees {
        let mean = |node| expectation(model, tree, node, row, &|_| false, output);
        let mut node = 0;
        while let Node::Split(split) = tree.nodes[node as usize] {
            let left = goes_left(tree, &split, row[split.feature as usize]);
            let child = if left { split.left } else { split.right };
            contributions[split.feature as usize] += mean(child) - mean(node);
            node = child;
        }
    }
    contributions
}

/// Shapley values by the definition: a sum over all sets of features. Only for few features.
pub(super) fn shapley(model: &Model, row: &[f32], output: usize) -> Vec<f64> {
    let count = model.num_features;
    let factorial = |n: usize| (1..=n).map(|k| k as f64).product::<f64>();
    let game: Vec<f64> = (0..1_u32 << count)
        .map(|set| margin(model, row, &|feature| set >> feature & 1 == 1, output))
        .collect();
    (0..count)
        .map(|feature| {
            (0..1_usize << count)
                .filter(|set| set >> feature & 1 == 0)
                .map(|set| {
                    let size = set.count_ones() as usize;
                    let weight = factorial(size) * factorial(count - size - 1) / factorial(count);
                    weight * (game[set | 1 << feature] - game[set])
                })
                .sum()
        })
        .collect()
}

/// Shapley values of any number of features: leaf by leaf, with the coalitions of each size counted together.
pub(super) fn shapley_by_leaf(model: &Model, row: &[f32], output: usize) -> Vec<f64> {
    let mut contributions = vec![0.0; model.num_features];
    for tree in &model.trees {
        leaves(model, tree, 0, row, output, &[], &mut contributions);
    }
    contributions
}

/// `path` has for each distinct feature whether the row passes all its tests and the share that passes them.
fn leaves(
    model: &Model,
    tree: &Tree,
    node: u32,
    row: &[f32],
    output: usize,
    path: &[(u32, bool, f64)],
    contributions: &mut [f64],
) {
    match tree.nodes[node as usize] {
        Node::Split(split) => {
            let goes = goes_left(tree, &split, row[split.feature as usize]);
            let share = left_share(tree, split.left, split.right);
            for (child, passes, share) in [(split.left, goes, share), (split.right, !goes, 1.0 - share)] {
                let mut path = path.to_vec();
                match path.iter_mut().find(|step| step.0 == split.feature) {
                    Some(step) => *step = (step.0, step.1 && passes, step.2 * share),
                    None => path.push((split.feature, passes, share)),
                }
                leaves(model, tree, child, row, output, &path, contributions);
            }
        }
        Node::Leaf(leaf) => {
            let value = value(model, tree, leaf, output);
            for &(feature, passes, share) in path {
                let others: Vec<_> = path.iter().filter(|step| step.0 != feature).collect();
                // The sum over the coalitions of each size of the product of the others' factors.
                let mut sizes = vec![1.0];
                for &&(_, passes, share) in &others {
                    let mut next = vec![0.0; sizes.len() + 1];
                    for (size, sum) in sizes.iter().enumerate() {
                        next[size] += sum * share;
                        next[size + 1] += sum * f64::from(u8::from(passes));
                    }
                    sizes = next;
                }
                // size! (n - size)! / (n + 1)!, where n is the number of the others.
                let mut weight = 1.0 / (others.len() + 1) as f64;
                let mut sum = 0.0;
                for (size, product) in sizes.iter().enumerate() {
                    sum += weight * product;
                    weight *= (size + 1) as f64 / (others.len() - size).max(1) as f64;
                }
                contributions[feature as usize] += value * (f64::from(u8::from(passes)) - share) * sum;
            }
        }
    }
}
