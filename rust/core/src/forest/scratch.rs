//! Working memory of a thread that evaluates a forest.

use super::Forest;
use super::block::Block;
use super::kernel::Positions;
use super::plan::{Plan, RUN};
use super::rank::{MAX_SLOTS, ROWS, RowRanks};
use super::sum::Sums;

/// Working memory for [`Forest::margins`]. Each thread has one and uses it for every row.
#[derive(Debug, Clone)]
pub struct Scratch {
    pub(super) slots: Vec<i32>,
    pub(super) ranks: RowRanks,
    /// One byte per test; empty if no tree is walked step by step.
    pub(super) outcomes: Vec<u8>,
    pub(super) positions: Positions,
    pub(super) sums: Sums,
    pub(super) block: Blocks,
    /// `[ROWS, outputs]`.
    pub(super) margins: Vec<f64>,
}

/// Memory for blocks of rows, in the precision of the forest.
#[derive(Debug, Clone)]
pub(super) enum Blocks {
    F32(Block<f32>),
    F64(Block<f64>),
}

impl Scratch {
    /// Allocates the memory that evaluating this forest needs.
    #[must_use]
    pub fn new(forest: &Forest) -> Self {
        let layout = &forest.layout;
        Self {
            slots: layout.slots.sentinels(1),
            ranks: RowRanks([0; MAX_SLOTS]),
            outcomes: vec![0; forest.plan.outcomes_room()],
            positions: [0; RUN],
            sums: Sums::new(layout.precision(), layout.num_outputs),
            margins: vec![0.0; ROWS * layout.num_outputs],
            block: match &forest.plan {
                Plan::F32(engine) => Blocks::F32(Block::new(engine, layout)),
                Plan::F64(engine) => Blocks::F64(Block::new(engine, layout)),
            },
        }
    }

    /// Panics if this is the scratch of a forest of another shape, because the evaluators index slots without checks.
    pub(super) fn check(&self, forest: &Forest) {
        let layout = &forest.layout;
        let block = match (&forest.plan, &self.block) {
            (Plan::F32(engine), Blocks::F32(block)) => block.fits(engine, layout),
            (Plan::F64(engine), Blocks::F64(block)) => block.fits(engine, layout),
            _ => false,
        };
        let own = self.slots.len() == layout.slots.len()
            && self.outcomes.len() == forest.plan.outcomes_room()
            && self.sums.len(layout.precision()) == layout.num_outputs;
        assert!(own && block, "the scratch belongs to another forest");
    }
}
