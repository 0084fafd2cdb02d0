//! The amount of work of a forest, from which follows how many rows are evaluated as a block.

use super::cpu::Detected;
use super::kernel;

/// The work of evaluating one row by walks, and a block of rows by complete trees and programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Whether every run can be evaluated for a block of rows.
    pub(super) blocks: bool,
    /// Number of tests of complete trees on ranks that have no program.
    pub(super) complete: usize,
    /// Number of tests of those trees on one row's paths.
    pub(super) taken: usize,
    /// Number of operations of programs.
    pub(super) operations: usize,
    /// Number of trees with programs.
    pub(super) programs: usize,
    /// Number of steps that one row takes in those trees, estimated from their leaves.
    pub(super) steps: usize,
    /// Number of steps that one row takes below the programs of trees that are too large for one.
    pub(super) followed: usize,
    /// Least number of rows of a block, if it does not follow from the costs.
    pub(super) least: Option<usize>,
}

/// Nanoseconds on one instruction set. Only their ratios matter.
struct Costs {
    /// An operation of a program, for a block.
    operation: f64,
    /// The rest of a tree with a program, for a block: its category columns and its leaves.
    program: f64,
    /// A step of one row.
    step: f64,
}

/// Measured on Zen 4 with the forests of `loadtests/engine/shapes.py`. The portable figures are those of SSE2.
const AVX512: Costs = Costs { operation: 1.4, program: 60.0, step: 0.8 };
const AVX2: Costs = Costs { operation: 3.0, program: 80.0, step: 0.8 };
const PORTABLE: Costs = Costs { operation: 7.0, program: 100.0, step: 0.9 };

/// What one row of a forest with wide ranks costs by complete trees on 32-bit keys and step by step, in nanoseconds.
/// Complete trees need a key of each slot, steps need a search in each feature and a byte for each test.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowCosts {
    /// Numeric slots, and columns of category tables.
    pub(super) slots: usize,
    pub(super) columns: usize,
    /// Features with numeric tests, and outcomes of all tests.
    pub(super) searches: usize,
    pub(super) outcomes: usize,
    /// Number of trees, and the depth of most.
    pub(super) trees: usize,
    pub(super) depth: usize,
}

impl RowCosts {
    /// Whether complete trees are faster.
    pub(super) fn favour_padding(self) -> bool {
        // Complete trees of more levels leave the first caches.
        let visit = if self.depth <= kernel::LINE_DEPTH { 0.75 } else { 1.2 };
        let visits = (self.trees * self.depth) as f64;
        let padded = self.slots as f64 * 0.05 + self.columns as f64 * 0.5 + visits * visit;
        let stepped = self.searches as f64 * 5.0 + self.outcomes as f64 / 64.0 + visits * 0.65;
        padded < stepped
    }
}

impl Work {
    /// Least number of rows for which a block is faster than one row after the other; `None` if it never is.
    pub(super) fn least_rows(self, isa: Detected) -> Option<usize> {
        if !self.blocks {
            return None;
        }
        if self.least.is_some() {
            return self.least;
        }
        if self.programs == 0 {
            return kernel::least_rows(isa, self.complete, self.taken);
        }
        let costs = match isa {
            Detected::Avx512(_) => AVX512,
            Detected::Avx2(_) => AVX2,
            Detected::Neon | Detected::Portable => PORTABLE,
        };
        // A complete tree's test takes a block as long as an operation, or a little less.
        let block =
            (self.complete + self.operations) as f64 * costs.operation + self.programs as f64 * costs.program;
        let row = (self.taken + self.steps) as f64 * costs.step;
        let least = (block / row.max(1.0)).ceil() as usize;
        (least <= super::rank::ROWS).then_some(least.max(1))
    }
}
