//! Chooses the walk of each group of trees and copies what it needs out of the layout.

use super::layout::{Layout, Leaves, PackedNode, Span};
use super::model::Target;
use super::plan::{Engine, Group, PADDED_DEPTH, Plan, Walk};
use super::sum::Real;
use super::walk::{GROUP, PaddedNode};

/// A group is padded where that takes at most this many complete leaves per real one. Keeps the loaded
/// forest within twice the size of its UBJ file.
const PADDING: usize = 4;

pub(super) fn plan(layout: &Layout) -> Plan {
    plan_with(layout, PADDING)
}

/// A plan with another limit of padding: 0 pads nothing.
pub(super) fn plan_with(layout: &Layout, padding: usize) -> Plan {
    match &layout.leaves {
        Leaves::F32(leaves) => Plan::F32(engine(layout, leaves, padding)),
        Leaves::F64(leaves) => Plan::F64(engine(layout, leaves, padding)),
    }
}

fn engine<T: Real>(layout: &Layout, leaves: &[T], padding: usize) -> Engine<T> {
    let vectors = layout.trees.iter().any(|tree| tree.target == Target::All);
    let mut engine = Engine { groups: Vec::new(), nodes: Vec::new(), leaves: Vec::new(), rows: Vec::new() };
    for (g, trees) in layout.trees.chunks(GROUP).enumerate() {
        let depth = trees.iter().map(|tree| usize::from(tree.depth)).max().unwrap_or(0);
        let real: usize = trees.iter().map(Span::leaves).sum();
        // Rows of vector leaves are addressed in 32 bits.
        let addressable = !vectors || u32::try_from(leaves.len()).is_ok();
        let walk = if depth <= PADDED_DEPTH && GROUP << depth <= padding * real && addressable {
            let walk = Walk::Padded {
                depth: depth as u8,
                first_node: engine.nodes.len(),
                first_leaf: engine.leaf_count(),
            };
            pad(layout, leaves, trees, depth, vectors, &mut engine);
            walk
        } else {
            Walk::Linked { steps: depth as u8 }
        };
        engine.groups.push(Group { first_tree: g * GROUP, trees: trees.len(), walk });
    }
    engine.nodes.shrink_to_fit();
    engine.leaves.shrink_to_fit();
    engine.rows.shrink_to_fit();
    engine
}

impl<T: Real> Engine<T> {
    fn leaf_count(&self) -> usize {
        self.leaves.len().max(self.rows.len())
    }
}

fn pad<T: Real>(
    layout: &Layout,
    leaves: &[T],
    trees: &[Span],
    depth: usize,
    vectors: bool,
    engine: &mut Engine<T>,
) {
    let size = 1 << depth;
    let mut heap = vec![PaddedNode::default(); size];
    let mut values = vec![0_usize; size];
    for lane in 0..GROUP {
        if let Some(tree) = trees.get(lane) {
            let nodes = &layout.nodes[tree.first_node..tree.first_node + tree.nodes];
            let width = layout.width(tree.target);
            let mut copy = Complete { nodes, depth, heap: &mut heap, numbers: &mut values };
            copy.subtree(0, 1, 0);
            for value in &mut values {
                *value = tree.first_value + *value * width;
            }
        } else {
            heap.fill(PaddedNode::default());
            values.fill(0);
        }
        engine.nodes.extend_from_slice(&heap);
        if vectors {
            engine.rows.extend(values.iter().map(|&row| row as u32));
        } else {
            engine.leaves.extend(values.iter().map(|&row| leaves.get(row).copied().unwrap_or_default()));
        }
    }
}

/// Copies a tree into a complete one; recursion is bounded by the padded depth.
struct Complete<'a> {
    nodes: &'a [PackedNode],
    depth: usize,
    heap: &'a mut [PaddedNode],
    numbers: &'a mut [usize],
}

impl Complete<'_> {
    fn subtree(&mut self, node: usize, position: usize, level: usize) {
        let source = self.nodes[node];
        if level == self.depth {
            self.numbers[position - (1 << self.depth)] = source.leaf_number();
            return;
        }
        let (left, right) = if source.is_leaf() {
            // Both ways lead to copies of this leaf, so the test does not matter.
            self.heap[position] = PaddedNode::default();
            (node, node)
        } else {
            self.heap[position] = PaddedNode { key: source.key, slot: source.slot };
            (source.left as usize, source.left as usize + 1)
        };
        self.subtree(left, 2 * position, level + 1);
        self.subtree(right, 2 * position + 1, level + 1);
    }
}
