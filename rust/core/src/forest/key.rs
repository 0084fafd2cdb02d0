//! Keys: integers that preserve the order of float32 values, and the exact conversion of thresholds to keys.
//!
//! Integer comparisons take one cycle, do not depend on the flush-to-zero mode that some shared libraries switch on for
//! the whole process, and leave two values outside the range of floats for missing values.

/// A key below every number, for missing values that go left.
pub(super) const LOW: i32 = i32::MIN;
/// A key above every number, for missing values that go right.
pub(super) const HIGH: i32 = i32::MAX;
/// Smallest key that a test on a number may have: no number is below it.
pub(super) const MIN_KEY: i32 = of(f32::NEG_INFINITY);
/// Largest key that a test on a number may have: every number is below it.
pub(super) const MAX_KEY: i32 = of(f32::INFINITY) + 1;
/// The greatest absolute value that LightGBM treats as zero.
pub(super) const ZERO_BOUND: f32 = 1e-35;

/// The key of a float that is not NaN: `of(a) < of(b)` if and only if `a < b`. -0 and +0 have the same key.
pub(super) const fn of(value: f32) -> i32 {
    of_bits(value.to_bits())
}

/// [`of`] for the bits of a float. The result for NaN is unspecified.
#[inline]
pub(super) const fn of_bits(bits: u32) -> i32 {
    let bits = if bits == 0x8000_0000 { 0 } else { bits };
    let signed = bits.cast_signed();
    signed ^ ((signed >> 31) & 0x7fff_ffff)
}

/// Whether these are the bits of NaN.
#[inline]
pub(super) const fn is_nan(bits: u32) -> bool {
    bits & 0x7fff_ffff > f32::INFINITY.to_bits()
}

/// Whether these are the bits of a value that LightGBM treats as zero.
#[inline]
pub(super) const fn is_zero(bits: u32) -> bool {
    bits & 0x7fff_ffff <= ZERO_BOUND.to_bits()
}

/// The key for `x < threshold`, where `x` is a float32: the smallest float32 that is not below the threshold.
pub(super) fn less(threshold: f64) -> i32 {
    let nearest = narrow(threshold);
    let rounded = if f64::from(nearest) < threshold { nearest.next_up() } else { nearest };
    of(rounded)
}

/// The key for `x <= threshold`, where `x` is a float32: one above the largest float32 not above the threshold.
pub(super) fn less_equal(threshold: f64) -> i32 {
    let nearest = narrow(threshold);
    let rounded = if f64::from(nearest) > threshold { nearest.next_down() } else { nearest };
    // Keys are integers, so no float's key is between `of(rounded)` and the next integer.
    of(rounded) + 1
}
fn narrow(value: f64) -> f32 {
    value as f32
}
