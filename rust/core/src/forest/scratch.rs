//! Working memory of one evaluating thread.

use super::layout::Layout;
use super::model::Precision;
use super::{Forest, key};

/// Working memory for [`Forest::margins`]: one per thread, reused for every row.
#[derive(Debug, Clone)]
pub struct Scratch {
    pub(super) slots: Vec<i32>,
    pub(super) sums_f32: Vec<f32>,
    pub(super) sums_f64: Vec<f64>,
}

impl Scratch {
    /// Allocates what rows of this forest need.
    #[must_use]
    pub fn new(forest: &Forest) -> Self {
        let layout = &forest.layout;
        let mut slots = vec![0; layout.slots.len()];
        slots[0] = key::HIGH;
        let width = |precision| if layout.precision() == precision { layout.num_outputs } else { 0 };
        Self { slots, sums_f32: vec![0.0; width(Precision::F32)], sums_f64: vec![0.0; width(Precision::F64)] }
    }

    /// The evaluators index slots without checks: a scratch of another forest must not get that far.
    pub(super) fn check(&self, layout: &Layout) {
        assert_eq!(self.slots.len(), layout.slots.len(), "the scratch belongs to another forest");
        let sums = match layout.precision() {
            Precision::F32 => self.sums_f32.len(),
            Precision::F64 => self.sums_f64.len(),
        };
        assert_eq!(sums, layout.num_outputs, "the scratch belongs to another forest");
    }
}
