//! The number type of a forest's sums.

use std::ops::{AddAssign, DivAssign};

use super::Precision;
use super::cpu::Detected;
use super::kernel::{self, Nodes};
use super::rank::{Column, ROWS};

/// f32 or f64, the precision in which the training library adds leaves.
pub(super) trait Real: Copy + Default + AddAssign + DivAssign {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    /// The sums of this type. Those of the other type are empty.
    fn sums(sums: &mut Sums) -> &mut [Self];
    /// Adds the leaves of one tree with scalar leaves to the sums of a block's first `rows` rows. The sums of other
    /// rows are then unspecified.
    ///
    /// # Safety
    /// As [`kernel::positions`].
    #[expect(unsafe_code, reason = "kernels trust the tables")]
    unsafe fn add_block(
        isa: Detected,
        nodes: Nodes<'_>,
        tree: usize,
        columns: &[Column],
        rows: usize,
        leaves: &[Self],
        sums: &mut [Self; ROWS],
    ) {
        // SAFETY: the caller's obligation.
        unsafe { add_found(isa, nodes, tree, columns, rows, leaves, sums) };
    }
    /// Adds the leaves of the numbers in `found` to the sums of a block's rows.
    ///
    /// # Safety
    /// As [`kernel::mux::add_f32`].
    #[expect(unsafe_code, reason = "kernels trust the numbers")]
    unsafe fn add_leaves(isa: Detected, found: &Column, leaves: &[Self], sums: &mut [Self; ROWS]);
}

/// The sum of each output, in the precision of the forest.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    f32: Vec<f32>,
    f64: Vec<f64>,
}

impl Sums {
    pub(super) fn new(precision: Precision, outputs: usize) -> Self {
        match precision {
            Precision::F32 => Self { f32: vec![0.0; outputs], f64: Vec::new() },
            Precision::F64 => Self { f32: Vec::new(), f64: vec![0.0; outputs] },
        }
    }

    pub(super) fn len(&self, precision: Precision) -> usize {
        match precision {
            Precision::F32 => self.f32.len(),
            Precision::F64 => self.f64.len(),
        }
    }
}

impl Real for f32 {
    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn sums(sums: &mut Sums) -> &mut [Self] {
        &mut sums.f32
    }

    #[expect(unsafe_code, reason = "kernels trust the tables")]
    unsafe fn add_block(
        isa: Detected,
        nodes: Nodes<'_>,
        tree: usize,
        columns: &[Column],
        rows: usize,
        leaves: &[Self],
        sums: &mut [Self; ROWS],
    ) {
        // SAFETY: the caller's obligation.
        unsafe {
            if !kernel::add(isa, nodes, tree, columns, leaves, sums) {
                add_found(isa, nodes, tree, columns, rows, leaves, sums);
            }
        }
    }

    #[expect(unsafe_code, reason = "kernels trust the numbers")]
    unsafe fn add_leaves(isa: Detected, found: &Column, leaves: &[Self], sums: &mut [Self; ROWS]) {
        // SAFETY: the caller's obligation.
        unsafe { kernel::mux::add_f32(isa, found, leaves, sums) };
    }
}

impl Real for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn sums(sums: &mut Sums) -> &mut [Self] {
        &mut sums.f64
    }

    #[expect(unsafe_code, reason = "kernels trust the numbers")]
    unsafe fn add_leaves(isa: Detected, found: &Column, leaves: &[Self], sums: &mut [Self; ROWS]) {
        // SAFETY: the caller's obligation.
        unsafe { kernel::mux::add_f64(isa, found, leaves, sums) };
    }
}

/// # Safety
/// As [`kernel::positions`].
#[expect(unsafe_code, reason = "kernels trust the tables")]
unsafe fn add_found<T: Real>(
    isa: Detected,
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    rows: usize,
    leaves: &[T],
    sums: &mut [T; ROWS],
) {
    let mut found = [0; ROWS];
    // SAFETY: the caller's obligation.
    unsafe { kernel::positions(isa, nodes, tree, columns, rows, &mut found) };
    for (sum, &position) in sums.iter_mut().zip(&found).take(rows) {
        *sum += leaves[usize::from(position)];
    }
}
