//! Working memory of one evaluating thread.

use super::Forest;
use super::block::Block;
use super::kernel::Positions;
use super::plan::{Plan, RUN};
use super::rank::{MAX_SLOTS, ROWS, RowRanks};
use super::sum::Sums;

/// Working memory for [`Forest::margins`]: one per thread, reused for every row.
#[derive(Debug, Clone)]
pub struct Scratch {
    pub(super) slots: Vec<i32>,
    pub(super) ranks: RowRanks,
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
    /// Allocates what rows of this forest need.
    #[must_use]
    pub fn new(forest: &Forest) -> Self {
        let layout = &forest.layout;
        Self {
            slots: layout.slots.sentinels(1),
            ranks: RowRanks([0; MAX_SLOTS]),
            positions: [0; RUN],
            sums: Sums::new(layout.precision(), layout.num_outputs),
            margins: vec![0.0; ROWS * layout.num_outputs],
            block: match &forest.plan {
                Plan::F32(engine) => Blocks::F32(Block::new(engine, layout)),
                Plan::F64(engine) => Blocks::F64(Block::new(engine, layout)),
            },
        }
    }

    /// The evaluators index slots without checks: a scratch of another forest must not get that far.
    pub(super) fn check(&self, forest: &Forest) {
        let layout = &forest.layout;
        let block = match (&forest.plan, &self.block) {
            (Plan::F32(engine), Blocks::F32(block)) => block.fits(engine, layout),
            (Plan::F64(engine), Blocks::F64(block)) => block.fits(engine, layout),
            _ => false,
        };
        let own =
            self.slots.len() == layout.slots.len() && self.sums.len(layout.precision()) == layout.num_outputs;
        assert!(own && block, "the scratch belongs to another forest");
    }
}
