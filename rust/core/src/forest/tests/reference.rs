//! The definition: a recursive walk with float comparisons, written without the engine's tricks.

use crate::forest::*;

/// Margins of one row by the definition of the model.
pub(crate) fn margins(model: &Model, row: &[f32]) -> Vec<f64> {
    match model.precision {
        Precision::F32 => sums(model, row, |x| f64::from(x as f32)),
        Precision::F64 => sums(model, row, |x| x),
    }
}

/// `round` rounds each intermediate result to the precision of the sum.
fn sums(model: &Model, row: &[f32], round: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..model.num_outputs)
        .map(|output| {
            let mut sum = match model.base_order {
                BaseOrder::First => model.base[output],
                BaseOrder::Last => 0.0,
            };
            for tree in &model.trees {
                let leaf = leaf(tree, 0, row) as usize;
                match tree.target {
                    Target::Output(target) if target as usize == output => {
                        sum = round(sum + tree.leaves[leaf])
                    }
                    Target::Output(_) => {}
                    Target::All => sum = round(sum + tree.leaves[leaf * model.num_outputs + output]),
                }
            }
            if let Some(divisor) = model.divisor.get(output) {
                sum = round(sum / divisor);
            }
            match model.base_order {
                BaseOrder::First => sum,
                BaseOrder::Last => round(sum + model.base[output]),
            }
        })
        .collect()
}

pub(crate) fn leaf(tree: &Tree, node: u32, row: &[f32]) -> u32 {
    match tree.nodes[node as usize] {
        Node::Leaf(leaf) => leaf,
        Node::Split(split) => {
            let next =
                if goes_left(tree, &split, row[split.feature as usize]) { split.left } else { split.right };
            leaf(tree, next, row)
        }
    }
}

pub(crate) fn goes_left(tree: &Tree, split: &Split, x: f32) -> bool {
    let is_zero = (-1e-35_f32..=1e-35).contains(&x);
    let is_number = !matches!(split.test, Test::Category { .. });
    if x.is_nan() || (is_number && is_zero && split.missing.zero == ZeroRule::Missing) {
        match split.missing.nan {
            NanRule::Left => return true,
            NanRule::Right => return false,
            NanRule::Zero => return present(tree, split, 0.0),
        }
    }
    if is_number && is_zero && split.missing.zero == ZeroRule::Flush {
        return present(tree, split, 0.0);
    }
    present(tree, split, f64::from(x))
}

fn present(tree: &Tree, split: &Split, x: f64) -> bool {
    match split.test {
        Test::Less(threshold) => x < threshold,
        Test::LessEqual(threshold) => x <= threshold,
        Test::Category { set, members, rule } => {
            let number = match rule {
                CategoryRule::NonNegative => (x >= 0.0).then(|| x.trunc()),
                CategoryRule::Truncated => (x.trunc() >= 0.0).then(|| x.trunc()),
                CategoryRule::Exact => (x >= 0.0 && x.trunc() == x).then_some(x),
            };
            let is_member = tree.sets[set as usize].iter().any(|&member| number == Some(f64::from(member)));
            is_member == (members == Side::Left)
        }
    }
}
