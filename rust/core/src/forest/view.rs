//! The structure of a forest, for explanations.

use super::Forest;
use super::layout::{Layout, PackedNode, Span};
use super::model::Target;

/// One tree. Its nodes are in breadth-first order, and the two children of a split are adjacent.
#[derive(Clone, Copy)]
pub(crate) struct TreeView<'a> {
    layout: &'a Layout,
    span: &'a Span,
}

/// One node of a tree. Nodes are counted from the tree's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeView {
    /// The row goes to node `left` if the value of its slot is below the key, otherwise to node `left + 1`.
    Split { slot: usize, key: i32, left: usize },
    /// The number of the leaf among the tree's leaves.
    Leaf(usize),
}

impl NodeView {
    pub(crate) fn is_leaf(self) -> bool {
        matches!(self, NodeView::Leaf(_))
    }
}

impl TreeView<'_> {
    /// Position of the root among the nodes of all trees.
    pub(crate) fn first_node(&self) -> usize {
        self.span.first_node
    }

    pub(crate) fn len(&self) -> usize {
        self.span.nodes
    }

    pub(crate) fn leaves(&self) -> usize {
        self.span.leaves()
    }

    fn packed(&self) -> &[PackedNode] {
        &self.layout.nodes[self.span.first_node..self.span.first_node + self.span.nodes]
    }

    pub(crate) fn nodes(&self) -> impl ExactSizeIterator<Item = NodeView> + DoubleEndedIterator {
        self.packed().iter().map(|node| {
            if node.is_leaf() {
                return NodeView::Leaf(node.leaf_number());
            }
            NodeView::Split { slot: node.slot as usize, key: node.key, left: node.left as usize }
        })
    }

    /// The node at each position of a complete tree of this depth in heap order: the root is at 1, and the children of
    /// position i are at 2i and 2i + 1. Every position below a leaf of an upper level is that leaf.
    pub(crate) fn complete(&self, depth: usize) -> Vec<usize> {
        let nodes = self.packed();
        let mut heap = vec![0; 2 << depth];
        for at in 1..1 << depth {
            let node = nodes[heap[at]];
            let left = node.left as usize;
            let children = if node.is_leaf() { [heap[at]; 2] } else { [left, left + 1] };
            heap[2 * at..2 * at + 2].copy_from_slice(&children);
        }
        heap
    }

    /// Whether the tree's leaves are added to this output.
    pub(crate) fn adds_to(&self, output: usize) -> bool {
        match self.span.target {
            Target::Output(target) => target as usize == output,
            Target::All => true,
        }
    }

    /// The amount by which a leaf changes an output to which the tree adds.
    pub(crate) fn value(&self, leaf: usize, output: usize) -> f64 {
        let width = self.layout.width(self.span.target);
        let column = if width == 1 { 0 } else { output };
        let value = self.layout.leaves.get(self.span.first_value + leaf * width + column);
        self.layout.divisor.get(output).map_or(value, |divisor| value / divisor)
    }

    /// The difference between the greatest and the least value of the leaves.
    pub(crate) fn range(&self, output: usize) -> f64 {
        let values = (0..self.leaves()).map(|leaf| self.value(leaf, output));
        let (least, greatest) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), value| {
                (least.min(value), greatest.max(value))
            });
        greatest - least
    }
}

impl Forest {
    /// The trees, in the order in which their leaves are added.
    pub(crate) fn trees(&self) -> impl ExactSizeIterator<Item = TreeView<'_>> {
        self.layout.trees.iter().map(|span| TreeView { layout: &self.layout, span })
    }

    /// The feature that each slot is computed from. Slot 0 belongs to no feature.
    pub(crate) fn slot_features(&self) -> Vec<u32> {
        let slots = &self.layout.slots;
        let tables = slots.tables.iter().flat_map(|table| std::iter::repeat_n(table.feature, table.columns));
        std::iter::once(0).chain(slots.numeric.iter().map(|slot| slot.feature)).chain(tables).collect()
    }

    /// The base margin of an output, which no leaf contains.
    pub(crate) fn base(&self, output: usize) -> f64 {
        let base = self.layout.base[output];
        match (self.layout.base_order, self.layout.divisor.get(output)) {
            // The accumulator starts at the base margin, so the base is divided too.
            (super::BaseOrder::First, Some(divisor)) => base / divisor,
            _ => base,
        }
    }

    /// Allocates the slots of one row.
    pub(crate) fn new_slots(&self) -> Vec<i32> {
        self.layout.slots.sentinels(1)
    }

    /// Computes the slots that the tests of all trees read.
    ///
    /// # Panics
    /// Panics if `slots` was allocated for another forest, or `row` has not one value per feature.
    pub(crate) fn fill_slots(&self, row: &[f32], slots: &mut [i32]) {
        assert_eq!(row.len(), self.layout.num_features, "row length is not the forest's number of features");
        assert_eq!(slots.len(), self.layout.slots.len(), "the slots belong to another forest");
        self.layout.slots.fill(row, slots);
    }
}
