//! Walks several trees at once from slots to leaves, without branches that depend on the data.
//!
//! A processor predicts the ends of loops and overlaps the loads of independent trees, but cannot predict the side that
//! a split takes. The loops therefore have fixed trip counts, and the outcome of a test is used as a number.
//!
//! Indices are not checked again: `Layout::validate` has checked the indices of nodes and slots, and `Scratch::check`
//! that there are as many slots as the layout has. Debug builds, and so the tests, check every index. The crate's other
//! unsafe code is in the kernels (`kernel`, `actions`), in `rank` and `sum`, and in the calls of `plan` and `block`.
#![expect(unsafe_code, reason = "bounds checks would double the work per node")]

use super::kernel::GROUP;
use super::layout::{PackedNode, Span};

/// A node of a complete tree in heap order. The children of node i are 2i and 2i+1.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PaddedNode {
    pub(super) key: i32,
    pub(super) slot: u32,
}

/// Returns the leaf index, below 2^depth, of each tree of a padded group.
///
/// # Safety
/// `nodes` holds `GROUP` trees of `2^depth` nodes each, whose slots are below `slots.len()`.
#[inline]
pub(super) unsafe fn padded(depth: usize, nodes: &[PaddedNode], slots: &[i32]) -> [u8; GROUP] {
    match depth {
        0 => [0; GROUP],
        // SAFETY: the caller's obligation, with the depth as a constant.
        1 => unsafe { padded_to::<1>(nodes, slots) },
        // SAFETY: the caller's obligation, with the depth as a constant.
        2 => unsafe { padded_to::<2>(nodes, slots) },
        // SAFETY: the caller's obligation, with the depth as a constant.
        3 => unsafe { padded_to::<3>(nodes, slots) },
        // SAFETY: the caller's obligation, with the depth as a constant.
        4 => unsafe { padded_to::<4>(nodes, slots) },
        // SAFETY: the caller's obligation, with the depth as a constant.
        5 => unsafe { padded_to::<5>(nodes, slots) },
        // SAFETY: the caller's obligation, with the depth as a constant.
        6 => unsafe { padded_to::<6>(nodes, slots) },
        // SAFETY: the caller's obligation, with the depth as a constant.
        7 => unsafe { padded_to::<7>(nodes, slots) },
        // SAFETY: the caller's obligation, with the depth as a constant.
        _ => unsafe { padded_to::<8>(nodes, slots) },
    }
}

/// # Safety
/// As `padded`.
#[inline(never)]
unsafe fn padded_to<const DEPTH: usize>(nodes: &[PaddedNode], slots: &[i32]) -> [u8; GROUP] {
    assert_eq!(nodes.len(), GROUP << DEPTH);
    let mut at = [1_usize; GROUP];
    for _ in 0..DEPTH {
        for (lane, at) in at.iter_mut().enumerate() {
            let index = (lane << DEPTH) + *at;
            debug_assert!(index < nodes.len());
            // SAFETY: `at` starts at 1 and has doubled fewer than DEPTH times, so it is below 2^DEPTH and the
            // index below GROUP << DEPTH, the asserted length.
            let node = unsafe { *nodes.get_unchecked(index) };
            debug_assert!((node.slot as usize) < slots.len());
            // SAFETY: the caller's obligation.
            let value = unsafe { *slots.get_unchecked(node.slot as usize) };
            *at = 2 * *at + usize::from(value >= node.key);
        }
    }
    at.map(|at| (at - (1 << DEPTH)) as u8)
}

/// Returns the leaf node of each tree, counted from its root, after `steps` steps from the root. Walks that reach a leaf
/// earlier stay there.
///
/// # Safety
/// `nodes` and `trees` are those of a validated layout, and `slots` has as many entries
/// as that layout has slots, with the sentinel in slot 0.
#[inline(never)]
pub(super) unsafe fn linked(
    steps: usize,
    nodes: &[PackedNode],
    trees: &[Span],
    slots: &[i32],
) -> [usize; GROUP] {
    let mut at = [0_u32; GROUP];
    let mut roots = [0_usize; GROUP];
    for (root, tree) in roots.iter_mut().zip(trees) {
        *root = tree.first_node;
    }
    for _ in 0..steps {
        for (at, root) in at[..trees.len()].iter_mut().zip(&roots) {
            let index = *root + *at as usize;
            debug_assert!(index < nodes.len());
            // SAFETY: a root is a node, both children of a split are nodes of its tree, and a leaf leads to
            // itself, as its slot 0 is never below its key: `Layout::validate` proved the former, and
            // `Scratch::new` put the sentinel into slot 0.
            let node = unsafe { *nodes.get_unchecked(index) };
            debug_assert!((node.slot as usize) < slots.len());
            // SAFETY: `Layout::validate` proved that slots are below their number, which is `slots.len()`.
            let value = unsafe { *slots.get_unchecked(node.slot as usize) };
            *at = node.left.wrapping_add(u32::from(value >= node.key));
        }
    }
    at.map(|at| at as usize)
}
