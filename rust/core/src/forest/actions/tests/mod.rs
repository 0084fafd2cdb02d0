//! The sums of every action, compared with a naive recursive evaluation of the model on the action's full
//! row.

mod equal;
mod shapes;

use super::plan::Limits;
use super::*;
use crate::budget::Unlimited;
use crate::forest::{Model, Target};

/// Nothing is specialised.
const SPLIT: Limits = Limits { bytes_per_node: 0, free_bytes: 0, growth: 0, classes: 0 };

/// The same model with one value per leaf.
fn scalar(mut model: Model) -> Model {
    for tree in &mut model.trees {
        if tree.target == Target::All {
            tree.target = Target::Output(0);
        }
    }
    model
}

fn bits(values: impl IntoIterator<Item = f64>) -> Vec<u64> {
    values.into_iter().map(f64::to_bits).collect()
}

/// Margins of the eligible actions: per output, then per action.
fn margins(
    forest: &Forest,
    actions: &ActionForest,
    scratch: &mut ActionScratch,
    context: &[f32],
    eligible: &[u64],
) -> Vec<u64> {
    let mut row = vec![f32::NAN; forest.num_features()];
    row[..context.len()].copy_from_slice(context);
    let mut out = vec![f64::NAN; forest.num_outputs() * actions.actions()];
    actions.margins(forest, &row, eligible, &Unlimited, scratch, &mut out).unwrap();
    let eligible_only = out.chunks(actions.actions()).flat_map(|out| set::members(eligible).map(|a| out[a]));
    bits(eligible_only)
}
