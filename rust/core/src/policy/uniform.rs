//! Uniform: every eligible action has the same probability.

pub(super) fn fill(p: &mut [f64]) {
    let each = 1.0 / p.len() as f64;
    p.fill(each);
}
