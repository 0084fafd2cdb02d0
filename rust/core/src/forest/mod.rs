//! Tree ensembles, evaluated with the same bits as in the library that trained them.
//!
//! An importer builds a [`Model`]: raw trees with the library's own rules for comparisons, missing values and
//! summation. [`Forest::compile`] converts all of these rules to one form, in which a node is a pair `(slot, key)` and
//! its test is `slots[slot] < key` on integers. Everything that differs between libraries (directions of NaN, zero as
//! missing, category sets, `<=` on float64 thresholds) determines the vector of slots, which is computed once per row.
//!
//! There is one validated layout ([`layout::Layout`]); `docs/forest-format.md` describes its packed bytes. Loading a
//! forest chooses an evaluator for each group of trees.

pub mod actions;
mod bits;
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
mod operation;
mod outcome;
mod plan;
mod program;
mod rank;
mod reach;
mod scratch;
mod slots;
mod steps;
mod sum;
mod view;
mod walk;
mod work;

#[cfg(test)]
pub(crate) mod tests;

use cpu::Detected;
pub(crate) use cpu::HasAvx512;
pub use cpu::Isa;
pub use error::ForestError;
pub use link::Link;
pub use model::{
    BaseOrder, CategoryRule, Missing, Model, NanRule, Node, Precision, Side, Split, Target, Test, Tree,
    ZeroRule,
};
pub(crate) use reach::Reach;
pub use scratch::Scratch;
pub(crate) use view::{NodeView, TreeView};

use crate::budget::{Budget, OutOfTime, Unlimited};
use layout::{Layout, Leaves};
use plan::Plan;
use rank::ROWS;
use reach::Ignored;
use scratch::Blocks;

/// The limits of forests. A forest that exceeds one is refused.
pub mod limits {
    /// Greatest number of features of a row.
    pub const FEATURES: usize = 1 << 20;
    /// Greatest number of outputs (classes × targets).
    pub const OUTPUTS: usize = 1 << 12;
    /// Greatest number of trees.
    pub const TREES: usize = 1 << 20;
    /// Greatest number of nodes of all trees, including leaves.
    pub const NODES: usize = 1 << 26;
    /// Greatest number of splits between the root and a leaf.
    pub const DEPTH: usize = 64;
    /// Greatest number of derived slots.
    pub const SLOTS: usize = 1 << 20;
    /// Greatest size of all category tables in bytes.
    pub const CATEGORY_BYTES: usize = 1 << 28;
    /// Greatest size of a packed forest in bytes.
    pub const BYTES: usize = 1 << 30;
}

/// An immutable, validated forest. It is `Send + Sync`; share it in an `Arc`.
pub struct Forest {
    layout: Layout,
    plan: Plan,
    isa: Detected,
}

impl std::fmt::Debug for Forest {
    /// Writes only a summary, because the arrays of a forest take megabytes.
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
    /// Compiles a raw model and validates the result.
    ///
    /// # Errors
    /// Returns a [`ForestError`] that names the part of the model that is malformed, above a limit or not supported.
    pub fn compile(model: &Model) -> Result<Self, ForestError> {
        Self::from_layout(compile::lower(model)?)
    }

    /// Compiles a raw model and also returns the cover of every node, in the order of the packed nodes; `None` if the
    /// model does not state them.
    ///
    /// # Errors
    /// Fails as [`Forest::compile`] does.
    pub fn compile_with_covers(model: &Model) -> Result<(Self, Option<Vec<f64>>), ForestError> {
        let forest = Self::compile(model)?;
        let covers = compile::covers(model).filter(|covers| covers.len() == forest.num_nodes());
        Ok((forest, covers))
    }

    /// Decodes a packed forest (see `docs/forest-format.md`) and validates it completely.
    ///
    /// # Errors
    /// Returns a [`ForestError`] if the bytes are not exactly a result of [`Forest::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ForestError> {
        Self::from_layout(format::decode(bytes)?)
    }

    /// Encodes the packed forest. Equal forests have equal bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        format::encode(&self.layout)
    }

    /// Returns the forest, to be evaluated with this instruction set instead of the best one. Tests and measurements
    /// use it.
    ///
    /// # Errors
    /// Returns [`ForestError::Unsupported`] if this machine does not have the instruction set.
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

    /// The instruction set with which this forest is evaluated.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa.isa()
    }

    /// The proof that the machine has AVX-512, if this forest is evaluated with it.
    pub(crate) fn avx512(&self) -> Option<HasAvx512> {
        match self.isa {
            Detected::Avx512(has) => Some(has),
            Detected::Portable | Detected::Neon | Detected::Avx2(_) => None,
        }
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

    /// Number of values per row after [`Forest::transform`]: 1 if the link selects a class, otherwise `num_outputs`.
    #[must_use]
    pub fn num_predictions(&self) -> usize {
        if self.layout.link == Link::ArgMax { 1 } else { self.layout.num_outputs }
    }

    /// Number of trees of all outputs and rounds.
    #[must_use]
    pub fn num_trees(&self) -> usize {
        self.layout.trees.len()
    }

    /// Number of nodes of all trees, including leaves.
    #[must_use]
    pub fn num_nodes(&self) -> usize {
        self.layout.nodes.len()
    }

    /// Greatest number of splits between a root and a leaf.
    #[must_use]
    pub fn max_depth(&self) -> usize {
        self.layout.trees.iter().map(|tree| usize::from(tree.depth)).max().unwrap_or(0)
    }

    /// The precision in which the training library sums leaves. Results of f32 forests are exact f32 values.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.layout.precision()
    }

    /// The function that computes predictions from margins.
    #[must_use]
    pub fn link(&self) -> Link {
        self.layout.link
    }

    /// Heap memory of this forest in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.layout.heap_bytes() + self.plan.heap_bytes()
    }

    /// Computes the raw outputs of one row, before the link. Results in f32 are widened exactly. It allocates nothing.
    ///
    /// # Panics
    /// Panics if `row.len() != num_features()`, `out.len() != num_outputs()` or `scratch` belongs to a forest of
    /// another shape. Only errors in the caller's code cause this, never the values of the row.
    pub fn margins(&self, row: &[f32], scratch: &mut Scratch, out: &mut [f64]) {
        // `Unlimited` is never spent.
        let _ = self.evaluate(row, &Unlimited, scratch, &mut Ignored, out);
    }

    /// Does what [`Forest::margins`] does, and checks the budget before every chunk of 64 trees.
    ///
    /// # Errors
    /// Returns [`OutOfTime`] if the budget is spent before the end; `out` is then unspecified.
    ///
    /// # Panics
    /// Panics as [`Forest::margins`] does.
    pub fn margins_within(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut Scratch,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        self.evaluate(row, budget, scratch, &mut Ignored, out)
    }

    /// Does what [`Forest::margins_within`] does, and reports the leaf that the row reaches in every tree.
    ///
    /// # Errors
    /// Fails as [`Forest::margins_within`] does.
    ///
    /// # Panics
    /// Panics as [`Forest::margins`] does.
    pub(crate) fn margins_reaching(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut Scratch,
        reach: &mut impl Reach,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        self.evaluate(row, budget, scratch, reach, out)
    }

    /// Computes the margins `[n, num_outputs]` of any number of row-major rows `[n, num_features]`. The results have
    /// the same bits as those of [`Forest::margins`] for each row; for dozens of rows this takes a fraction of the
    /// time. The budget is checked before every chunk of 64 trees and 64 rows. It allocates nothing.
    ///
    /// # Errors
    /// Returns [`OutOfTime`] if the budget is spent before the end; `out` is then unspecified.
    ///
    /// # Panics
    /// Panics as [`Forest::margins`] does, and if `rows` is not a whole number of rows.
    pub fn margins_rows(
        &self,
        rows: &[f32],
        budget: &dyn Budget,
        scratch: &mut Scratch,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        let (features, outputs) = (self.layout.num_features, self.layout.num_outputs);
        assert!(rows.len().is_multiple_of(features), "the values are not a whole number of rows");
        assert_eq!(out.len(), rows.len() / features * outputs, "output length is not rows × outputs");
        scratch.check(self);
        let least = self.plan.least_rows(self.isa);
        for (rows, out) in rows.chunks(ROWS * features).zip(out.chunks_mut(ROWS * outputs)) {
            if rows.len() < least.saturating_mul(features) {
                for (row, out) in rows.chunks_exact(features).zip(out.chunks_exact_mut(outputs)) {
                    self.evaluate(row, budget, scratch, &mut Ignored, out)?;
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
                // Plan and layout have one precision as in `evaluate`; `Scratch::check` has compared that of the block.
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
        reach: &mut impl Reach,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        assert_eq!(row.len(), self.layout.num_features, "row length is not the forest's number of features");
        assert_eq!(out.len(), self.layout.num_outputs, "output length is not the forest's number of outputs");
        scratch.check(self);
        match (&self.layout.leaves, &self.plan) {
            (Leaves::F32(leaves), Plan::F32(engine)) => {
                engine.margins(self.isa, (&self.layout, leaves), row, budget, scratch, reach, out)
            }
            (Leaves::F64(leaves), Plan::F64(engine)) => {
                engine.margins(self.isa, (&self.layout, leaves), row, budget, scratch, reach, out)
            }
            // `from_layout` builds the plan from the layout, so both have the same precision.
            _ => unreachable!("plan and layout differ in precision"),
        }
    }

    /// Applies the training library's link function (sigmoid, softmax, exp ..) in place, in the library's precision.
    ///
    /// For [`Link::ArgMax`] `outputs[0]` is the class index and the rest is zero: use the first
    /// [`Forest::num_predictions`] values.
    pub fn transform(&self, outputs: &mut [f64]) {
        self.layout.link.apply(self.layout.precision(), outputs);
    }

    /// Scores `n` rows, row-major `[n, num_features]`, into `[n, num_outputs]` margins or
    /// `[n, num_predictions]` predictions.
    ///
    /// # Errors
    /// Returns [`ForestError::Shape`] if a length is wrong.
    pub fn predict(&self, rows: &[f32], n: usize, margin: bool, out: &mut [f64]) -> Result<(), ForestError> {
        self.predict_with(rows, n, margin, &mut Scratch::new(self), out)
    }

    /// Does what [`Forest::predict`] does with the memory of `scratch`. It allocates nothing.
    ///
    /// # Errors
    /// Fails as [`Forest::predict`] does.
    ///
    /// # Panics
    /// Panics if `scratch` belongs to a forest of another shape.
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
