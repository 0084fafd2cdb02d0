//! Programs that evaluate trees for a block of rows without a branch or a walk.
//!
//! The leaves of a tree have numbers below 256, so a leaf number is a byte, and the numbers of all rows of a block fill
//! a [`Column`]. An operation is a split: it selects, for each row, between the leaf numbers of its two children. The
//! operations of a tree are in post-order, and the last one gives the row's leaf. The work is one operation per split,
//! whatever the tree's shape: it depends on the number of splits, not on the depth.
//!
//! Operands are columns of one work space: the constants 0 to 255, then the ranks of the byte slots, then those columns
//! of category tables that the tree tests, then temporaries.
//!
//! A tree with more leaves has a program for its upper levels. Rows then continue in its [`Branch`]es.

use super::kernel::LINE_DEPTH;
use super::layout::{PackedNode, Span};
use super::operation::{Branch, Operation};
use super::rank::{Column, ROWS, Ranks, Tested};

/// Number of constants at the beginning of the work space, and the greatest number of leaves of a whole tree.
pub(super) const CONSTANTS: usize = 256;
/// Greatest number of columns of a work space, because operands have 16 bits.
const MOST_COLUMNS: usize = 1 << 16;

/// The program of one tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) first_operation: u32,
    pub(super) operations: u32,
    /// The columns of category tables that it reads: part of [`Programs::columns`].
    pub(super) first_column: u32,
    pub(super) columns: u32,
    /// The column with the result.
    pub(super) result: u16,
    /// The first of the tree's [`Programs::exits`], if it is too large for a program.
    pub(super) first_exit: Option<u32>,
}

/// The programs of a forest.
#[derive(Debug, Default)]
pub(super) struct Programs {
    pub(super) operations: Vec<Operation>,
    /// Columns of category tables.
    pub(super) columns: Vec<u32>,
    pub(super) parts: Vec<Part>,
    pub(super) branches: Vec<Branch>,
    /// Places of branches.
    pub(super) exits: Vec<u32>,
    /// Number of byte slots.
    slots: usize,
    /// Greatest number of category columns of a part.
    most_columns: usize,
    /// Number of columns of the work space.
    work: usize,
}

impl Programs {
    /// Programs for a forest of these ranks.
    pub(super) fn new(ranks: &Ranks) -> Self {
        let mut new = Self { slots: ranks.len(), ..Self::default() };
        // A part has at most one split for each constant.
        new.most_columns = CONSTANTS.min(MOST_COLUMNS - CONSTANTS - new.slots - CONSTANTS);
        new
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Operation>() * self.operations.capacity()
            + size_of::<u32>() * (self.columns.capacity() + self.exits.capacity())
            + size_of::<Part>() * self.parts.capacity()
            + size_of::<Branch>() * self.branches.capacity()
    }

    /// The first column of ranks.
    pub(super) fn first_rank(&self) -> usize {
        CONSTANTS
    }

    /// The first column for those of category tables.
    pub(super) fn first_table(&self) -> usize {
        CONSTANTS + self.slots
    }

    /// A work space with its constants.
    pub(super) fn work(&self) -> Vec<Column> {
        let mut work = vec![Column([0; ROWS]); self.work];
        for (constant, column) in work[..CONSTANTS].iter_mut().enumerate() {
            *column = Column([constant as u8; ROWS]);
        }
        work
    }

    /// Number of columns of the work space.
    pub(super) fn work_len(&self) -> usize {
        self.work
    }

    pub(super) fn operations(&self, part: &Part) -> &[Operation] {
        &self.operations[part.first_operation as usize..][..part.operations as usize]
    }

    pub(super) fn columns(&self, part: &Part) -> &[u32] {
        &self.columns[part.first_column as usize..][..part.columns as usize]
    }

    /// Appends the program of a tree, whole if it has at most `leaves` leaves. `test` returns the test of a split.
    pub(super) fn push(
        &mut self,
        tree: &Span,
        nodes: &[PackedNode],
        leaves: usize,
        test: impl Fn(PackedNode) -> Tested,
    ) {
        let whole = tree.leaves() <= leaves.min(CONSTANTS);
        let ends = if whole {
            (0..nodes.len() as u32).filter(|&node| nodes[node as usize].is_leaf()).collect()
        } else {
            ends(nodes, LINE_DEPTH)
        };
        let mut result = vec![None; nodes.len()];
        for (number, &end) in ends.iter().enumerate() {
            let node = nodes[end as usize];
            result[end as usize] = Some(if whole { node.leaf_number() } else { number } as u16);
        }
        let (first_operation, first_column) = (self.operations.len() as u32, self.columns.len() as u32);
        let mut writer = Writer {
            nodes,
            test,
            first_temporary: (self.first_table() + self.most_columns) as u16,
            programs: self,
            first_column: first_column as usize,
            needs: needs(nodes, &result),
            result,
        };
        let result = writer.write(0, 0);
        let test = writer.test;
        let first = self.branches.len() as u32;
        let first_exit = (!whole).then_some(self.exits.len() as u32);
        if !whole {
            self.exits.extend(ends.iter().map(|&end| first + end));
            for (place, &node) in (first..).zip(nodes) {
                self.branches.push(if node.is_leaf() {
                    Branch::new(place, node.leaf_number() as u32, 0)
                } else {
                    let (middle, cut) = match test(node) {
                        Tested::Rank { slot, cut } => (CONSTANTS as u32 + slot, cut),
                        Tested::Column(column) => (Branch::TABLE | column, 0),
                    };
                    Branch::new(first + node.left, middle, 255 - cut)
                });
            }
            // A walk that has arrived reads the column with the leaf's number, which must exist.
            self.work = self.work.max(tree.leaves());
        }
        self.parts.push(Part {
            first_operation,
            operations: self.operations.len() as u32 - first_operation,
            first_column,
            columns: self.columns.len() as u32 - first_column,
            result,
            first_exit,
        });
    }

    /// Ends the building: the temporaries follow the columns that parts really have.
    pub(super) fn finish(&mut self) {
        let most = self.parts.iter().map(|part| part.columns as usize).max().unwrap_or(0);
        let shift = (self.most_columns - most) as u16;
        let first = (self.first_table() + self.most_columns) as u16;
        let mut work = self.work.max(self.first_table() + most);
        let mut moved = |operand: &mut u16| {
            if *operand >= first {
                *operand -= shift;
                work = work.max(usize::from(*operand) + 1);
            }
        };
        for operation in &mut self.operations {
            for operand in [&mut operation.left, &mut operation.right, &mut operation.out] {
                moved(operand);
            }
        }
        self.parts.iter_mut().for_each(|part| moved(&mut part.result));
        self.work = work;
        self.most_columns = most;
        self.operations.shrink_to_fit();
        self.columns.shrink_to_fit();
        self.parts.shrink_to_fit();
        self.branches.shrink_to_fit();
        self.exits.shrink_to_fit();
    }
}

/// The nodes at a depth, and the leaves above it.
fn ends(nodes: &[PackedNode], depth: usize) -> Vec<u32> {
    let mut level = vec![0];
    for _ in 0..depth {
        level = level
            .into_iter()
            .flat_map(|index: u32| {
                let node = nodes[index as usize];
                if node.is_leaf() { vec![index] } else { vec![node.left, node.left + 1] }
            })
            .collect();
    }
    level
}

/// The number of temporaries that each node's operations need, if the child that needs more of them comes first.
fn needs(nodes: &[PackedNode], result: &[Option<u16>]) -> Vec<u8> {
    let mut needs = vec![0_u8; nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev() {
        if result[index].is_some() || node.is_leaf() {
            continue;
        }
        let (left, right) = (needs[node.left as usize], needs[node.left as usize + 1]);
        needs[index] = left.max(right).max(1 + left.min(right));
    }
    needs
}

/// Writes the operations of one tree.
struct Writer<'a, F> {
    programs: &'a mut Programs,
    nodes: &'a [PackedNode],
    test: F,
    first_temporary: u16,
    first_column: usize,
    needs: Vec<u8>,
    /// The operand of each node that is a result.
    result: Vec<Option<u16>>,
}

impl<F: Fn(PackedNode) -> Tested> Writer<'_, F> {
    /// Writes the operations of a subtree, with temporaries from `temporary`, and returns the operand of its result.
    fn write(&mut self, index: u32, temporary: u16) -> u16 {
        let index = index as usize;
        if let Some(result) = self.result[index] {
            return result;
        }
        let left = self.nodes[index].left;
        let is_left_first = self.needs[left as usize] >= self.needs[left as usize + 1];
        let (first, second) = if is_left_first { (left, left + 1) } else { (left + 1, left) };
        let first = self.write(first, temporary);
        let second = self.write(second, temporary + u16::from(first >= self.first_temporary));
        let (left, right) = if is_left_first { (first, second) } else { (second, first) };
        let (ranks, cut) = match (self.test)(self.nodes[index]) {
            Tested::Rank { slot, cut } => ((CONSTANTS as u32 + slot) as u16, cut),
            Tested::Column(column) => (self.table_column(column), 0),
        };
        let out = self.first_temporary + temporary;
        let cut = u32::from(255 - cut) * 0x0101_0101;
        self.programs.operations.push(Operation { cut, ranks, left, right, out });
        out
    }

    fn table_column(&mut self, column: u32) -> u16 {
        let first = self.first_column;
        let own = &self.programs.columns[first..];
        let at = own.iter().position(|&known| known == column).unwrap_or(own.len());
        if at == own.len() {
            self.programs.columns.push(column);
        }
        (self.programs.first_table() + at) as u16
    }
}
