//! The layout: the only form in which a forest is validated and evaluated.

use super::error::ForestError;
use super::model::{BaseOrder, Precision, Target};
use super::slots::SlotTable;
use super::{Link, key, limits};

/// A node. The nodes of a tree are in breadth-first order, and the two children of a node are adjacent.
///
/// If `slots[slot] < key`, the walk goes to `left`, otherwise to `left + 1`, counted from the tree's root. A leaf has
/// slot 0, whose value no key exceeds, and its own index minus one in `left`, so a walk that has reached a leaf stays
/// there. The `key` of a leaf is its number among the tree's leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct PackedNode {
    pub(super) key: i32,
    pub(super) slot: u32,
    pub(super) left: u32,
}

impl PackedNode {
    pub(super) fn leaf(index: u32, number: u32) -> Self {
        Self { key: number.cast_signed(), slot: 0, left: index.wrapping_sub(1) }
    }

    pub(super) fn is_leaf(self) -> bool {
        self.slot == 0
    }

    /// The number among the leaves of its tree, if this is a leaf.
    pub(super) fn leaf_number(self) -> usize {
        self.key.cast_unsigned() as usize
    }
}

/// The position of a tree in the arrays of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first_node: usize,
    pub(super) nodes: usize,
    /// First of its values in [`Leaves`].
    pub(super) first_value: usize,
    pub(super) target: Target,
    /// Depth of the tree; validation checks it.
    pub(super) depth: u8,
}

impl Span {
    pub(super) fn leaves(&self) -> usize {
        self.nodes.div_ceil(2)
    }
}

/// Leaf values in the precision of the sum.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Leaves {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Leaves {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    pub(super) fn get(&self, i: usize) -> f64 {
        match self {
            Self::F32(values) => f64::from(values[i]),
            Self::F64(values) => values[i],
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    pub(super) num_features: usize,
    pub(super) num_outputs: usize,
    pub(super) base: Vec<f64>,
    pub(super) base_order: BaseOrder,
    /// Divisor of each output's sum; empty if there is no division.
    pub(super) divisor: Vec<f64>,
    pub(super) link: Link,
    pub(super) slots: SlotTable,
    pub(super) trees: Vec<Span>,
    pub(super) nodes: Vec<PackedNode>,
    pub(super) leaves: Leaves,
}

impl Layout {
    pub(super) fn precision(&self) -> Precision {
        match self.leaves {
            Leaves::F32(_) => Precision::F32,
            Leaves::F64(_) => Precision::F64,
        }
    }

    /// Number of values per leaf.
    pub(super) fn width(&self, target: Target) -> usize {
        match target {
            Target::Output(_) => 1,
            Target::All => self.num_outputs,
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let leaf = if self.precision() == Precision::F32 { 4 } else { 8 };
        self.slots.heap_bytes()
            + size_of::<Span>() * self.trees.len()
            + size_of::<PackedNode>() * self.nodes.len()
            + leaf * self.leaves.len()
            + 8 * (self.base.len() + self.divisor.len())
    }

    /// Checks everything on which the unchecked indexing of the evaluators relies. Every layout that passes can be
    /// walked safely.
    pub(super) fn validate(&self) -> Result<(), ForestError> {
        self.validate_head()?;
        self.slots.validate(self.num_features)?;
        let numeric_end = self.slots.first_column();
        let slot_count = self.slots.len();
        let (mut node, mut value) = (0, 0);
        for (t, tree) in self.trees.iter().enumerate() {
            let fail = |rule: &str| Err(ForestError::invalid(format!("tree {t}"), rule));
            if tree.first_node != node || tree.first_value != value {
                return fail("trees must be stored one after the other");
            }
            if tree.nodes == 0 || tree.nodes % 2 == 0 {
                return fail("the number of nodes must be odd, as each split has two children");
            }
            if let Target::Output(output) = tree.target
                && output as usize >= self.num_outputs
            {
                return fail("its output is not below the number of outputs");
            }
            let Some(nodes) = node.checked_add(tree.nodes).and_then(|end| self.nodes.get(node..end)) else {
                return fail("it has more nodes than there are");
            };
            match tree_depth(nodes, numeric_end, slot_count) {
                Ok(depth) if depth == tree.depth => {}
                Ok(_) => return fail("its depth is not the stored depth"),
                Err((i, rule)) => return Err(ForestError::invalid(format!("tree {t}, node {i}"), rule)),
            }
            node += tree.nodes;
            value += tree.leaves() * self.width(tree.target);
            if value > self.leaves.len() {
                return fail("it has more leaf values than there are");
            }
        }
        if node != self.nodes.len() || value != self.leaves.len() {
            return Err(ForestError::invalid(
                "forest",
                "nodes or leaf values are left over after the last tree",
            ));
        }
        self.validate_sums()
    }

    fn validate_head(&self) -> Result<(), ForestError> {
        let limit = |what: &str, value: usize, limit: usize| {
            if (1..=limit).contains(&value) {
                return Ok(());
            }
            Err(ForestError::unsupported(
                what,
                format!("{value} is not between 1 and {limit}"),
                "use a smaller model",
            ))
        };
        limit("number of features", self.num_features, limits::FEATURES)?;
        limit("number of outputs", self.num_outputs, limits::OUTPUTS)?;
        limit("number of trees plus 1", self.trees.len() + 1, limits::TREES)?;
        limit("number of nodes plus 1", self.nodes.len() + 1, limits::NODES)?;
        if self.base.len() != self.num_outputs {
            return Err(ForestError::invalid("base margins", "there must be one per output"));
        }
        if !self.divisor.is_empty() && self.divisor.len() != self.num_outputs {
            return Err(ForestError::invalid("divisors", "there must be none or one per output"));
        }
        if self.divisor.iter().any(|d| !d.is_finite() || *d < 1.0 || (self.is_f32() && !is_f32(*d))) {
            return Err(ForestError::invalid("divisors", "they must be finite and not below 1"));
        }
        // A base margin that is added last is added in f64 and rounded once, as in Treelite.
        let narrow = self.is_f32() && self.base_order == BaseOrder::First;
        if self.base.iter().any(|b| !b.is_finite() || (narrow && !is_f32(*b))) {
            return Err(ForestError::invalid(
                "base margins",
                "they must be finite, and float32 where float32 sums start at them",
            ));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match self.link {
            Link::Sigmoid { alpha } if !positive(alpha) => {
                Err(ForestError::invalid("link sigmoid", "its alpha must be finite and positive"))
            }
            Link::ExpBase2 { scale } if !positive(scale) => {
                Err(ForestError::invalid("link exp_base2", "its scale must be finite and positive"))
            }
            _ => Ok(()),
        }
    }

    fn is_f32(&self) -> bool {
        self.precision() == Precision::F32
    }

    /// Checks that no sum can overflow: the sum of the largest |leaf| of each tree must stay in range.
    fn validate_sums(&self) -> Result<(), ForestError> {
        let bound = if self.is_f32() { f64::from(f32::MAX) / 2.0 } else { f64::MAX / 2.0 };
        let mut sums: Vec<f64> = self.base.iter().map(|b| b.abs()).collect();
        let mut largest = vec![0.0_f64; self.num_outputs];
        for (t, tree) in self.trees.iter().enumerate() {
            let width = self.width(tree.target);
            largest[..width].fill(0.0);
            for leaf in 0..tree.leaves() {
                for (k, largest) in largest[..width].iter_mut().enumerate() {
                    let value = self.leaves.get(tree.first_value + leaf * width + k);
                    if !value.is_finite() {
                        return Err(ForestError::invalid(
                            format!("tree {t}, leaf {leaf}"),
                            "its value must be finite",
                        ));
                    }
                    *largest = largest.max(value.abs());
                }
            }
            match tree.target {
                Target::Output(output) => sums[output as usize] += largest[0],
                Target::All => sums.iter_mut().zip(&largest).for_each(|(sum, largest)| *sum += largest),
            }
        }
        match sums.iter().position(|sum| *sum > bound) {
            None => Ok(()),
            Some(k) => Err(ForestError::invalid(
                format!("output {k}"),
                format!(
                    "the sum of the largest |leaf| of each tree is {:e}, above {bound:e}: margins could overflow",
                    sums[k]
                ),
            )),
        }
    }
}

pub(super) fn is_f32(value: f64) -> bool {
    let narrow = value as f32;
    f64::from(narrow).to_bits() == value.to_bits()
}

/// Returns the depth of a tree if its nodes are in the canonical order, otherwise the first node that breaks a rule.
///
/// In this order the children of the n-th split are nodes 2n+1 and 2n+2. One pass therefore proves that every node but
/// the root has exactly one parent, that a parent comes before its children (so there is no cycle), and that all nodes
/// can be reached.
pub(super) fn tree_depth(
    nodes: &[PackedNode],
    numeric_end: usize,
    slot_count: usize,
) -> Result<u8, (usize, &'static str)> {
    let (mut next_child, mut next_leaf) = (1_u32, 0_usize);
    let (mut depth, mut level_end) = (0_usize, 1_usize);
    for (i, node) in nodes.iter().enumerate() {
        if i >= next_child as usize {
            return Err((i, "it has no parent"));
        }
        if i == level_end {
            depth += 1;
            level_end = next_child as usize;
            if depth > limits::DEPTH {
                return Err((i, "it is deeper than 64 splits; train with a smaller max_depth"));
            }
        }
        if node.is_leaf() {
            if node.left != (i as u32).wrapping_sub(1) {
                return Err((i, "a leaf must lead to itself"));
            }
            if node.leaf_number() != next_leaf {
                return Err((i, "leaves must be numbered in order"));
            }
            next_leaf += 1;
            continue;
        }
        let slot = node.slot as usize;
        if slot >= slot_count {
            return Err((i, "its slot is not below the number of slots"));
        }
        if slot < numeric_end {
            if !(key::MIN_KEY..=key::MAX_KEY).contains(&node.key) {
                return Err((i, "its key is not that of a number"));
            }
        } else if node.key != 1 {
            return Err((i, "a categorical key must be 1"));
        }
        if node.left != next_child {
            return Err((i, "its left child is not the next free node"));
        }
        if next_child as usize + 1 >= nodes.len() {
            return Err((i, "its children are beyond the end of the tree"));
        }
        next_child += 2;
    }
    u8::try_from(depth).map_err(|_| (0, "it is too deep"))
}
