//! The number type of a forest's sums.

use std::ops::{AddAssign, DivAssign};

/// f32 or f64: the precision in which the library itself adds leaves.
pub(super) trait Real: Copy + Default + AddAssign + DivAssign {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Real for f32 {
    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }
}
