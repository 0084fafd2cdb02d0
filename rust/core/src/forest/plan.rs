//! How the trees of one forest are evaluated: groups of consecutive trees, each with its own walk.
//!
//! Groups keep the order of the trees, so that leaves are added exactly in the library's order.

use crate::budget::{Budget, OutOfTime};

use super::layout::{Layout, Span};
use super::model::{BaseOrder, Target};
use super::sum::Real;
use super::walk::{self, GROUP, PaddedNode};

/// Deepest tree that is padded to a complete one.
pub(super) const PADDED_DEPTH: usize = 8;
/// Groups between two looks at the budget: 64 trees.
const CHECK_EVERY: usize = 64 / GROUP;

#[derive(Debug)]
pub(super) enum Plan {
    F32(Engine<f32>),
    F64(Engine<f64>),
}

impl Plan {
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::F32(engine) => engine.heap_bytes(),
            Self::F64(engine) => engine.heap_bytes(),
        }
    }
}

/// The trees of one group: at most [`GROUP`] consecutive ones.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) first_tree: usize,
    pub(super) trees: usize,
    pub(super) walk: Walk,
}

#[derive(Debug)]
pub(super) enum Walk {
    /// Complete trees of one depth, their nodes and leaf values copied into the engine.
    Padded { depth: u8, first_node: usize, first_leaf: usize },
    /// Walked in the layout itself, all for as many steps as the deepest needs.
    Linked { steps: u8 },
}

/// Groups, and what their padded trees need.
#[derive(Debug)]
pub(super) struct Engine<T> {
    pub(super) groups: Vec<Group>,
    /// Per padded group `[GROUP][2^depth]` in heap order: node 0 unused, the root is 1.
    pub(super) nodes: Vec<PaddedNode>,
    /// Per padded group `[GROUP][2^depth]` leaf values (of vector leaves: none, see `rows`).
    pub(super) leaves: Vec<T>,
    /// Like `leaves`, in forests with vector leaves: index of the first value in the layout.
    pub(super) rows: Vec<u32>,
}

impl<T: Real> Engine<T> {
    fn heap_bytes(&self) -> usize {
        size_of::<Group>() * self.groups.len()
            + size_of::<PaddedNode>() * self.nodes.len()
            + size_of::<T>() * self.leaves.len()
            + 4 * self.rows.len()
    }

    /// Margins of the row that `slots` describe.
    pub(super) fn margins<B: Budget + ?Sized>(
        &self,
        layout: &Layout,
        leaves: &[T],
        slots: &[i32],
        budget: &B,
        sums: &mut [T],
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        match layout.base_order {
            BaseOrder::First => {
                for (sum, &base) in sums.iter_mut().zip(&layout.base) {
                    *sum = T::from_f64(base);
                }
            }
            BaseOrder::Last => sums.fill(T::default()),
        }
        for (g, group) in self.groups.iter().enumerate() {
            if g % CHECK_EVERY == 0 && budget.spent() {
                return Err(OutOfTime);
            }
            let trees = &layout.trees[group.first_tree..group.first_tree + group.trees];
            match group.walk {
                Walk::Padded { depth, first_node, first_leaf } => {
                    let nodes = &self.nodes[first_node..first_node + (GROUP << depth)];
                    #[expect(unsafe_code, reason = "the layout has been validated")]
                    // SAFETY: `build::plan` copied GROUP complete trees of this depth from a validated layout,
                    // and `Scratch::check` proved that there are as many slots as that layout has.
                    let found = unsafe { walk::padded(usize::from(depth), nodes, slots) };
                    if self.rows.is_empty() {
                        let values = &self.leaves[first_leaf..first_leaf + (GROUP << depth)];
                        for (lane, tree) in trees.iter().enumerate() {
                            add_scalar(tree, values[(lane << depth) + found[lane]], sums);
                        }
                    } else {
                        let rows = &self.rows[first_leaf..first_leaf + (GROUP << depth)];
                        for (lane, tree) in trees.iter().enumerate() {
                            add_row(tree, &leaves[rows[(lane << depth) + found[lane]] as usize..], sums);
                        }
                    }
                }
                Walk::Linked { steps } => {
                    #[expect(unsafe_code, reason = "the layout has been validated")]
                    // SAFETY: `Forest` holds validated layouts only; slots as above.
                    let found = unsafe { walk::linked(usize::from(steps), &layout.nodes, trees, slots) };
                    for (lane, tree) in trees.iter().enumerate() {
                        let number = layout.nodes[tree.first_node + found[lane]].leaf_number();
                        let first = tree.first_value + number * layout.width(tree.target);
                        add_row(tree, &leaves[first..], sums);
                    }
                }
            }
        }
        for (sum, &divisor) in sums.iter_mut().zip(&layout.divisor) {
            *sum /= T::from_f64(divisor);
        }
        if layout.base_order == BaseOrder::Last {
            for (sum, &base) in sums.iter_mut().zip(&layout.base) {
                *sum = T::from_f64(sum.to_f64() + base);
            }
        }
        for (out, &sum) in out.iter_mut().zip(sums.iter()) {
            *out = sum.to_f64();
        }
        Ok(())
    }
}

#[inline]
fn add_scalar<T: Real>(tree: &Span, value: T, sums: &mut [T]) {
    if let Target::Output(output) = tree.target {
        sums[output as usize] += value;
    }
}

#[inline]
fn add_row<T: Real>(tree: &Span, values: &[T], sums: &mut [T]) {
    match tree.target {
        Target::Output(output) => sums[output as usize] += values[0],
        Target::All => {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += value;
            }
        }
    }
}
