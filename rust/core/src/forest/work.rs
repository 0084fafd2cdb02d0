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
