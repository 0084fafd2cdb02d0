//! Order-preserving integers for float32 values and the exact lowering of thresholds.
//!
//! Integer compares take one cycle, are immune to the flush-to-zero mode that some shared libraries
//! switch on for the whole process, and leave two values beyond the floats for "missing".

/// Below every number: missing values that go left.
pub(super) const LOW: i32 = i32::MIN;
/// Above every number: missing values that go right.
pub(super) const HIGH: i32 = i32::MAX;
/// Smallest key that a test on a number may have: no number is below it.
pub(super) const MIN_KEY: i32 = of(f32::NEG_INFINITY);
/// Largest key that a test on a number may have: every number is below it.
pub(super) const MAX_KEY: i32 = of(f32::INFINITY) + 1;
/// LightGBM's bound for "zero".
pub(super) const ZERO_BOUND: f32 = 1e-35;

/// The key of a float that is not NaN: `of(a) < of(b)` exactly where `a < b`, with -0 equal to +0.
pub(super) const fn of(value: f32) -> i32 {
    of_bits(value.to_bits())
}

/// [`of`] on the float's bits; what it gives for NaN has no meaning.
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

/// Whether these are the bits of a value that LightGBM takes for zero.
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
    // No float's key lies between a float's key and the next integer.
    of(rounded) + 1
}
fn narrow(value: f64) -> f32 {
    value as f32
}
