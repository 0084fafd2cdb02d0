//! Tree ensembles: what a model library means, evaluated bit for bit.
//!
//! An importer builds a [`Model`] (raw trees with the library's own comparison, missing-value and
//! summation rules). [`Forest::compile`] lowers all of those rules to one form: a node is a pair
//! `(slot, key)` and its test is `slots[slot] < key` on integers. Everything that differs between
//! libraries (NaN directions, zero-as-missing, category sets, `<=` on float64 thresholds) is moved
//! out of the trees and into the vector of slots, which is computed once per row.
//!
//! There is one validated layout ([`layout::Layout`]); its packed bytes are described in
//! `docs/forest-format.md`. Evaluators are chosen per group of trees when a forest is loaded.

pub mod actions;
mod block;
mod build;
mod compile;
mod cpu;
mod error;
mod format;
mod kernel;
mod key;
mod layout;
mod link;
mod model;
mod plan;
mod rank;
mod scratch;
mod slots;
mod sum;
mod walk;

#[cfg(test)]
mod tests;

use cpu::Detected;
pub use cpu::Isa;
pub use error::ForestError;
pub use link::Link;
pub use model::{
    BaseOrder, CategoryRule, Missing, Model, NanRule, Node, Precision, Side, Split, Target, Test, Tree,
    ZeroRule,
};
pub use scratch::Scratch;

use crate::budget::{Budget, OutOfTime, Unlimited};
use layout::{Layout, Leaves};
use plan::Plan;
use rank::ROWS;
use scratch::Blocks;

/// The limits that a forest must keep to be loaded.
pub mod limits {
    /// Most features of a row.
    pub const FEATURES: usize = 1 << 20;
    /// Most outputs (classes × targets).
    pub const OUTPUTS: usize = 1 << 12;
    /// Most trees.
    pub const TREES: usize = 1 << 20;
    /// Most nodes, leaves included, over all trees.
    pub const NODES: usize = 1 << 26;
    /// Most splits between the root and a leaf.
    pub const DEPTH: usize = 64;
    /// Most derived slots.
    pub const SLOTS: usize = 1 << 20;
    /// Most bytes of category tables.
    pub const CATEGORY_BYTES: usize = 1 << 28;
    /// Most bytes of a packed forest.
    pub const BYTES: usize = 1 << 30;
}

/// An immutable, validated forest, ready to evaluate. `Send + Sync`; share it behind an `Arc`.
pub struct Forest {
    layout: Layout,
    plan: Plan,
    isa: Detected,
}

impl std::fmt::Debug for Forest {
    /// A line: the arrays of a forest are megabytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forest")
            .field("features", &self.num_features())
            .field("outputs", &self.num_outputs())
            .field("trees", &self.num_trees())
            .field("nodes", &self.num_nodes())
            .field("precision", &self.precision())
            .field("link", &self.link())
            .finish_non_exhaustive()
    }
}

impl Forest {
    /// Lowers a raw model and validates the result.
    ///
    /// # Errors
    /// [`ForestError`] naming the part of the model that is malformed, over a limit or unsupported.
    pub fn compile(model: &Model) -> Result<Self, ForestError> {
        Self::from_layout(compile::lower(model)?)
    }

    /// Decodes packed bytes (see `docs/forest-format.md`) and validates the structure completely.
    ///
    /// # Errors
    /// [`ForestError`] for anything that is not exactly what [`Forest::to_bytes`] writes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ForestError> {
        Self::from_layout(format::decode(bytes)?)
    }

    /// The packed bytes: equal forests give equal bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        format::encode(&self.layout)
    }

    /// The same forest, evaluated with these instructions: for tests and measurements, as a forest uses the
    /// best that there are.
    ///
    /// # Errors
    /// [`ForestError::Unsupported`] where this machine does not have them.
    pub fn with_isa(self, isa: Isa) -> Result<Self, ForestError> {
        if let Some(isa) = Detected::new(isa) {
            return Ok(Self { isa, ..self });
        }
        Err(ForestError::unsupported(
            format!("instruction set {isa}"),
            "this machine does not have it",
            "use one of Isa::available()",
        ))
    }

    /// The instructions that this forest is evaluated with.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa.isa()
    }

    /// Number of values in a row.
    #[must_use]
    pub fn num_features(&self) -> usize {
        self.layout.num_features
    }

    /// Number of raw outputs (margins) per row.
    #[must_use]
    pub fn num_outputs(&self) -> usize {
        self.layout.num_outputs
    }

    /// Number of values per row after [`Forest::transform`]: 1 where the link picks a class, else `num_outputs`.
    #[must_use]
    pub fn num_predictions(&self) -> usize {
        if self.layout.link == Link::ArgMax { 1 } else { self.layout.num_outputs }
    }

    /// Number of trees, over all outputs and rounds.
    #[must_use]
    pub fn num_trees(&self) -> usize {
        self.layout.trees.len()
    }

    /// Number of nodes over all trees, leaves included.
    #[must_use]
    pub fn num_nodes(&self) -> usize {
        self.layout.nodes.len()
    }

    /// Most splits between a root and a leaf.
    #[must_use]
    pub fn max_depth(&self) -> usize {
        self.layout.trees.iter().map(|tree| usize::from(tree.depth)).max().unwrap_or(0)
    }

    /// The precision in which the library sums leaves: results of f32 forests are exact f32 values.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.layout.precision()
    }

    /// The function from margins to predictions.
    #[must_use]
    pub fn link(&self) -> Link {
        self.layout.link
    }

    /// Bytes that this forest keeps on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.layout.heap_bytes() + self.plan.heap_bytes()
    }

    /// Raw outputs of one row, before the link; f32 results are widened exactly. Allocates nothing.
    ///
    /// # Panics
    /// If `row.len() != num_features()`, `out.len() != num_outputs()` or `scratch` belongs to a forest of
    /// another shape: mistakes of the caller's code, never of the data.
    pub fn margins(&self, row: &[f32], scratch: &mut Scratch, out: &mut [f64]) {
        // `Unlimited` is never spent.
        let _ = self.evaluate(row, &Unlimited, scratch, out);
    }

    /// [`Forest::margins`] as long as the budget lasts; it is asked before every chunk of 64 trees.
    ///
    /// # Errors
    /// [`OutOfTime`] where the budget was spent first; `out` is then unspecified.
    ///
    /// # Panics
    /// As [`Forest::margins`].
    pub fn margins_within(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut Scratch,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        self.evaluate(row, budget, scratch, out)
    }

    /// Margins of any number of rows, row-major `[n, num_features]`, into `[n, num_outputs]`: the same bits as
    /// [`Forest::margins`] row by row, for a fraction of the time where there are dozens. The budget is asked before
    /// every chunk of 64 trees and 64 rows. Allocates nothing.
    ///
    /// # Errors
    /// [`OutOfTime`] where the budget was spent first; `out` is then unspecified.
    ///
    /// # Panics
    /// As [`Forest::margins`], and if `rows` is no whole number of rows.
    pub fn margins_rows(
        &self,
        rows: &[f32],
        budget: &dyn Budget,
        scratch: &mut Scratch,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        let (features, outputs) = (self.layout.num_features, self.layout.num_outputs);
        assert!(rows.len().is_multiple_of(features), "rows are no whole number of rows");
        assert_eq!(
            out.len(),
            rows.len() / features * outputs,
            "output length is not the rows' times outputs"
        );
        scratch.check(self);
        let least = self.plan.least_rows(self.isa);
        for (rows, out) in rows.chunks(ROWS * features).zip(out.chunks_mut(ROWS * outputs)) {
            if rows.len() < least.saturating_mul(features) {
                for (row, out) in rows.chunks_exact(features).zip(out.chunks_exact_mut(outputs)) {
                    self.evaluate(row, budget, scratch, out)?;
                }
                continue;
            }
            match (&self.layout.leaves, &self.plan, &mut scratch.block) {
                (Leaves::F32(leaves), Plan::F32(engine), Blocks::F32(block)) => {
                    engine.block(self.isa, (&self.layout, leaves), rows, budget, block, out)?;
                }
                (Leaves::F64(leaves), Plan::F64(engine), Blocks::F64(block)) => {
                    engine.block(self.isa, (&self.layout, leaves), rows, budget, block, out)?;
                }
                // As in `evaluate`; `Scratch::check` for the block.
                _ => unreachable!("plan, layout and scratch differ in precision"),
            }
        }
        Ok(())
    }

    fn evaluate<B: Budget + ?Sized>(
        &self,
        row: &[f32],
        budget: &B,
        scratch: &mut Scratch,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        assert_eq!(row.len(), self.layout.num_features, "row length is not the forest's number of features");
        assert_eq!(out.len(), self.layout.num_outputs, "output length is not the forest's number of outputs");
        scratch.check(self);
        match (&self.layout.leaves, &self.plan) {
            (Leaves::F32(leaves), Plan::F32(engine)) => {
                engine.margins(self.isa, (&self.layout, leaves), row, budget, scratch, out)
            }
            (Leaves::F64(leaves), Plan::F64(engine)) => {
                engine.margins(self.isa, (&self.layout, leaves), row, budget, scratch, out)
            }
            // `from_layout` builds the plan from the layout, so that both have one precision.
            _ => unreachable!("plan and layout differ in precision"),
        }
    }

    /// The library's own link (sigmoid, softmax, exp ..) in place, in the library's precision.
    ///
    /// For [`Link::ArgMax`] the class index is left in `outputs[0]` and the rest is zero: use the first
    /// [`Forest::num_predictions`] values.
    pub fn transform(&self, outputs: &mut [f64]) {
        self.layout.link.apply(self.layout.precision(), outputs);
    }

    /// Scores `n` rows, row-major `[n, num_features]`, into `[n, num_outputs]` margins or
    /// `[n, num_predictions]` predictions.
    ///
    /// # Errors
    /// [`ForestError::Shape`] where a length does not fit.
    pub fn predict(&self, rows: &[f32], n: usize, margin: bool, out: &mut [f64]) -> Result<(), ForestError> {
        self.predict_with(rows, n, margin, &mut Scratch::new(self), out)
    }

    /// [`Forest::predict`] in memory that is there already. Allocates nothing.
    ///
    /// # Errors
    /// As [`Forest::predict`].
    ///
    /// # Panics
    /// If `scratch` belongs to a forest of another shape.
    pub fn predict_with(
        &self,
        rows: &[f32],
        n: usize,
        margin: bool,
        scratch: &mut Scratch,
        out: &mut [f64],
    ) -> Result<(), ForestError> {
        let features = self.layout.num_features;
        let width = if margin { self.num_outputs() } else { self.num_predictions() };
        if n.checked_mul(features) != Some(rows.len()) {
            return Err(ForestError::Shape {
                what: "rows",
                expected: n.saturating_mul(features),
                found: rows.len(),
            });
        }
        if n.checked_mul(width) != Some(out.len()) {
            return Err(ForestError::Shape {
                what: "outputs",
                expected: n.saturating_mul(width),
                found: out.len(),
            });
        }
        let outputs = self.num_outputs();
        let mut margins = std::mem::take(&mut scratch.margins);
        for (rows, out) in rows.chunks(ROWS * features).zip(out.chunks_mut(ROWS * width)) {
            let margins = &mut margins[..rows.len() / features * outputs];
            // `Unlimited` is never spent.
            let _ = self.margins_rows(rows, &Unlimited, scratch, margins);
            for (margins, out) in margins.chunks_exact_mut(outputs).zip(out.chunks_exact_mut(width)) {
                if !margin {
                    self.transform(margins);
                }
                out.copy_from_slice(&margins[..width]);
            }
        }
        scratch.margins = margins;
        Ok(())
    }

    fn from_layout(layout: Layout) -> Result<Self, ForestError> {
        layout.validate()?;
        let plan = build::plan(&layout, build::Choices::default());
        Ok(Self { layout, plan, isa: Detected::best() })
    }
}
