//! From slots to leaves, several trees at once and without a branch that depends on the data.
//!
//! A processor predicts the loop exits and overlaps the loads of independent trees; what it cannot do is
//! guess which way a split goes. Hence fixed trip counts, and the test's outcome used as a number.

use super::layout::{PackedNode, Span};

/// Trees walked at once.
pub(super) const GROUP: usize = 8;

/// A node of a complete tree in heap order: children of node i are 2i and 2i+1.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PaddedNode {
    pub(super) key: i32,
    pub(super) slot: u32,
}

/// Leaf index, 0 to 2^depth, of each tree of a padded group.
///
/// `nodes` holds `GROUP` trees of `2^depth` nodes each, whose slots are below `slots.len()`
/// (`build::plan` copies them from a validated layout).
#[inline]
pub(super) fn padded(depth: usize, nodes: &[PaddedNode], slots: &[i32]) -> [usize; GROUP] {
    match depth {
        0 => [0; GROUP],
        1 => padded_to::<1>(nodes, slots),
        2 => padded_to::<2>(nodes, slots),
        3 => padded_to::<3>(nodes, slots),
        4 => padded_to::<4>(nodes, slots),
        5 => padded_to::<5>(nodes, slots),
        6 => padded_to::<6>(nodes, slots),
        7 => padded_to::<7>(nodes, slots),
        _ => padded_to::<8>(nodes, slots),
    }
}

#[inline(never)]
fn padded_to<const DEPTH: usize>(nodes: &[PaddedNode], slots: &[i32]) -> [usize; GROUP] {
    assert_eq!(nodes.len(), GROUP << DEPTH);
    let mut at = [1_usize; GROUP];
    for _ in 0..DEPTH {
        for (lane, at) in at.iter_mut().enumerate() {
            #[expect(unsafe_code, reason = "bounds checks would double the work per node")]
            // SAFETY: `at` starts at 1 and doubles fewer than DEPTH times before it is used, so it is below
            // 2^DEPTH and the index below GROUP << DEPTH, the asserted length. `Layout::validate` proved that
            // slots are below the number of slots, and `Scratch::check` that `slots` has that many.
            let (node, value) = unsafe {
                let node = *nodes.get_unchecked((lane << DEPTH) + *at);
                (node, *slots.get_unchecked(node.slot as usize))
            };
            *at = 2 * *at + usize::from(value >= node.key);
        }
    }
    at.map(|at| at - (1 << DEPTH))
}

/// Leaf node of each tree, counted from its root; trees that end early wait in their leaf.
///
/// `nodes` and `trees` are those of a validated layout, `steps` is at most the depth cap.
#[inline(never)]
pub(super) fn linked(steps: usize, nodes: &[PackedNode], trees: &[Span], slots: &[i32]) -> [usize; GROUP] {
    let mut roots = [0_usize; GROUP];
    for (root, tree) in roots.iter_mut().zip(trees) {
        *root = tree.first_node;
    }
    let mut at = [0_u32; GROUP];
    for _ in 0..steps {
        for (at, root) in at[..trees.len()].iter_mut().zip(&roots) {
            #[expect(unsafe_code, reason = "bounds checks would double the work per node")]
            // SAFETY: a tree's root is inside `nodes`, and `Layout::validate` proved that both children of a
            // split, and what a leaf leads to (itself: its slot 0 is never below its key), are nodes of the
            // same tree. Slots as in `padded_to`.
            let (node, value) = unsafe {
                let node = *nodes.get_unchecked(*root + *at as usize);
                (node, *slots.get_unchecked(node.slot as usize))
            };
            *at = node.left.wrapping_add(u32::from(value >= node.key));
        }
    }
    at.map(|at| at as usize)
}
