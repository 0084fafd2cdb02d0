//! Evaluates a forest for many actions in one context. The catalogue is known when a bundle is loaded, so every test on
//! an action's feature is settled (decided for each action) at load.
//!
//! In each tree, the actions for which the settled tests leave the same tests form a class, and the tree without its
//! settled tests is the residual of the class ([`specialise`]). For a context, each distinct test is evaluated once
//! ([`outcomes`]), each residual is walked once ([`residuals`]), and the leaf of its class is added to the sum of
//! every action, tree by tree in the training library's order ([`lookup`]). The sums have the same bits as those of
//! evaluating the forest on each action's full row. If a tree has too many residuals for the catalogue, it is walked
//! once, and the set of actions is divided on the way ([`split`]).

mod lookup;
mod outcomes;
mod plan;
mod residuals;
mod set;
mod settle;
mod specialise;
mod split;
#[cfg(test)]
mod tests;

use super::cpu::{Detected, Isa};
use super::layout::Leaves;
use super::{Forest, key};
use crate::budget::{Budget, OutOfTime};
use plan::{Factored, Limits};

/// The actions' part of the rows.
#[derive(Debug, Clone, Copy)]
pub struct Catalogue<'a> {
    /// Number of the context's features, which come first in a row.
    pub context: usize,
    /// Number of actions.
    pub actions: usize,
    /// The features of each action, `[actions, features - context]`.
    pub rows: &'a [f32],
}

impl Catalogue<'_> {
    fn row(&self, action: usize) -> &[f32] {
        let width = self.rows.len() / self.actions;
        &self.rows[action * width..(action + 1) * width]
    }
}

/// A forest specialised to a catalogue. It is `Send + Sync`. Evaluating it needs the forest that it was made from.
#[derive(Debug)]
pub struct ActionForest {
    actions: usize,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    F32(Factored<f32>),
    F64(Factored<f64>),
}

/// Working memory for [`ActionForest::margins`]. Each thread has one and uses it for every context.
#[derive(Debug, Clone)]
pub struct ActionScratch {
    slots: Vec<i32>,
    buffers: Buffers,
}

#[derive(Debug, Clone)]
enum Buffers {
    F32(plan::Buffers<f32>),
    F64(plan::Buffers<f64>),
}

/// Statistics of a specialised forest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Number of trees whose residuals are walked.
    pub specialised: usize,
    /// Number of trees that are walked with the set of actions.
    pub split: usize,
    /// Number of residuals that are walked for each context.
    pub residuals: usize,
    /// Number of residuals of all specialised trees, including those that are a single leaf.
    pub classes: usize,
    /// Number of distinct tests on the context.
    pub tests: usize,
    /// Number of groups of actions between which no test of the forest distinguishes.
    pub profiles: usize,
}

impl ActionForest {
    /// Specialises a forest. Returns `None` if the forest must be evaluated row by row: its leaves have several values,
    /// the tables would take too much memory, or the catalogue's size does not match the forest.
    #[must_use]
    pub fn new(forest: &Forest, catalogue: &Catalogue<'_>, isa: Isa) -> Option<Self> {
        Self::within(forest, catalogue, isa, Limits::default())
    }

    fn within(forest: &Forest, catalogue: &Catalogue<'_>, isa: Isa, limits: Limits) -> Option<Self> {
        // A value of `Detected` proves to the vector code that the processor has the instructions.
        let isa = Detected::new(isa).unwrap_or(Detected::Portable);
        let Catalogue { context, actions, rows } = *catalogue;
        let width = forest.num_features().checked_sub(context)?;
        if actions == 0 || actions.checked_mul(width) != Some(rows.len()) {
            return None;
        }
        let engine = match &forest.layout.leaves {
            Leaves::F32(leaves) => {
                Engine::F32(Factored::new(&forest.layout, leaves, catalogue, isa, limits)?)
            }
            Leaves::F64(leaves) => {
                Engine::F64(Factored::new(&forest.layout, leaves, catalogue, isa, limits)?)
            }
        };
        Some(Self { actions, engine })
    }

    /// Number of actions.
    #[must_use]
    pub fn actions(&self) -> usize {
        self.actions
    }

    /// Statistics of the specialised forest.
    #[must_use]
    pub fn shape(&self) -> Shape {
        match &self.engine {
            Engine::F32(engine) => engine.shape,
            Engine::F64(engine) => engine.shape,
        }
    }

    /// Heap memory in bytes, without that of the original forest.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match &self.engine {
            Engine::F32(engine) => engine.heap_bytes(),
            Engine::F64(engine) => engine.heap_bytes(),
        }
    }

    /// Computes the raw outputs of every eligible action, `out[output * actions + action]`. The values of other actions
    /// are unspecified. It allocates nothing.
    ///
    /// `forest` is the one that this was made from, and `row` is a whole row of it, whose action features are not read.
    /// `eligible` has one bit per action, least significant first. The budget is checked between chunks of trees.
    ///
    /// # Errors
    /// Returns [`OutOfTime`] if the budget is spent before the end; `out` is then unspecified.
    ///
    /// # Panics
    /// Panics if a length is wrong, or if `forest` or `scratch` belongs to another forest. Only errors in the caller's
    /// code cause this, never the data of a request.
    pub fn margins(
        &self,
        forest: &Forest,
        row: &[f32],
        eligible: &[u64],
        budget: &dyn Budget,
        scratch: &mut ActionScratch,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        assert_eq!(row.len(), forest.num_features(), "row length is not the forest's number of features");
        assert_eq!(eligible.len(), self.actions.div_ceil(64), "the eligible set is for another catalogue");
        assert_eq!(out.len(), forest.num_outputs() * self.actions, "output length is not outputs × actions");
        assert_eq!(scratch.slots.len(), forest.layout.slots.len(), "the scratch belongs to another forest");
        forest.layout.slots.fill(row, &mut scratch.slots);
        let slots = &scratch.slots;
        match (&self.engine, &mut scratch.buffers) {
            (Engine::F32(engine), Buffers::F32(buffers)) => {
                engine.margins(&forest.layout, slots, eligible, budget, buffers, out)
            }
            (Engine::F64(engine), Buffers::F64(buffers)) => {
                engine.margins(&forest.layout, slots, eligible, budget, buffers, out)
            }
            _ => unreachable!("the scratch belongs to another forest"),
        }
    }
}

impl ActionScratch {
    /// Allocates the memory that evaluating this forest needs.
    #[must_use]
    pub fn new(forest: &Forest, actions: &ActionForest) -> Self {
        let mut slots = vec![0; forest.layout.slots.len()];
        slots[0] = key::HIGH;
        let buffers = match &actions.engine {
            Engine::F32(engine) => Buffers::F32(engine.buffers()),
            Engine::F64(engine) => Buffers::F64(engine.buffers()),
        };
        Self { slots, buffers }
    }
}
