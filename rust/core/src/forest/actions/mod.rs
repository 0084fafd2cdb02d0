//! One context, many actions: the catalogue is known when a bundle is loaded, so every test on an action's feature
//! is settled then.
//!
//! Per tree, the actions that settle alike form a class, and the tree without its settled tests is the class's
//! residual ([`specialise`]). For a context, each distinct test is made once ([`outcomes`]), each residual is
//! walked once ([`residuals`]), and every action takes the leaf of its class, tree by tree in the library's order
//! ([`lookup`]): the sums are those of evaluating the forest on each action's full row, bit for bit. A tree of
//! which the catalogue makes too many residuals is walked with the set of actions instead ([`split`]).

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

/// The actions' side of the rows.
#[derive(Debug, Clone, Copy)]
pub struct Catalogue<'a> {
    /// Number of features that the context brings: the first ones of a row.
    pub context: usize,
    /// Number of actions.
    pub actions: usize,
    /// The features that each action brings, `[actions, features - context]`.
    pub rows: &'a [f32],
}

impl Catalogue<'_> {
    fn row(&self, action: usize) -> &[f32] {
        let width = self.rows.len() / self.actions;
        &self.rows[action * width..(action + 1) * width]
    }
}

/// A forest specialised to a catalogue. `Send + Sync`; needs the forest that it was made of to evaluate.
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

/// Working memory for [`ActionForest::margins`]: one per thread, reused for every context.
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

/// What a forest became.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Trees whose residuals are walked.
    pub specialised: usize,
    /// Trees that the set of actions is split along.
    pub split: usize,
    /// Residuals that are walked for each context.
    pub residuals: usize,
    /// Residuals over all specialised trees, those that are a single leaf included.
    pub classes: usize,
    /// Distinct tests on the context.
    pub tests: usize,
    /// Distinct actions, as far as the forest can tell them apart.
    pub profiles: usize,
}

impl ActionForest {
    /// Specialises a forest. `None` where only row-by-row evaluation will do: leaves with several values, or a
    /// catalogue that does not fit the forest.
    #[must_use]
    pub fn new(forest: &Forest, catalogue: &Catalogue<'_>, isa: Isa) -> Option<Self> {
        Self::within(forest, catalogue, isa, Limits::default())
    }

    fn within(forest: &Forest, catalogue: &Catalogue<'_>, isa: Isa, limits: Limits) -> Option<Self> {
        // What the vector code relies on: it runs where its instructions are.
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

    /// What the forest became.
    #[must_use]
    pub fn shape(&self) -> Shape {
        match &self.engine {
            Engine::F32(engine) => engine.shape,
            Engine::F64(engine) => engine.shape,
        }
    }

    /// Bytes that this keeps on the heap, beside the forest's own.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match &self.engine {
            Engine::F32(engine) => engine.heap_bytes(),
            Engine::F64(engine) => engine.heap_bytes(),
        }
    }

    /// Raw outputs of every eligible action, `out[output * actions + action]`; what stands there for other actions
    /// is unspecified. Allocates nothing.
    ///
    /// `row` is a whole row of `forest`, the one that this was made of; its action features are not looked at.
    /// `eligible` has a bit per action, least significant first. The budget is checked between chunks of trees.
    ///
    /// # Errors
    /// [`OutOfTime`] where the budget was spent first; `out` is then unspecified.
    ///
    /// # Panics
    /// If a length does not fit, or `forest` or `scratch` is another one's: mistakes of the caller's code, never
    /// of the data.
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
    /// Allocates what contexts of this forest need.
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
