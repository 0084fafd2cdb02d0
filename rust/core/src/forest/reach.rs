//! The leaves that a row reaches, for explanations.

use std::iter::repeat_n;

use super::Forest;
use super::plan::{Plan, Run, Walk};

/// Receives the leaf that a row reaches in each tree, while the engine computes margins.
pub(crate) trait Reach {
    /// Receives the positions of one row in consecutive complete trees of one depth.
    fn complete(&mut self, first_tree: usize, depth: usize, positions: &[u8]);

    /// Receives the number of the leaf of a tree that is not evaluated as a complete tree.
    fn leaf(&mut self, tree: usize, leaf: usize);
}

/// Receives nothing, where only margins are computed.
pub(super) struct Ignored;

impl Reach for Ignored {
    #[inline(always)]
    fn complete(&mut self, _: usize, _: usize, _: &[u8]) {}

    #[inline(always)]
    fn leaf(&mut self, _: usize, _: usize) {}
}

impl Forest {
    /// The depth of each tree that the engine evaluates as a complete tree; `None` for the others.
    pub(crate) fn complete_depths(&self) -> Vec<Option<usize>> {
        let runs = match &self.plan {
            Plan::F32(engine) => &engine.runs,
            Plan::F64(engine) => &engine.runs,
        };
        let depth = |run: &Run| match run.walk {
            Walk::Ranked { depth, .. } | Walk::Padded { depth, .. } => Some(usize::from(depth)),
            Walk::Tipped { .. } | Walk::Stepped { .. } | Walk::Linked { .. } => None,
        };
        runs.iter().flat_map(|run| repeat_n(depth(run), run.trees)).collect()
    }
}
