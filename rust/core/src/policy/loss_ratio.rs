//! Loss ratios: `p(a)` is proportional to `(l(b) / l(a))^k`, with losses `l(a) = 1 - s(a)`, the least loss `l(b)` and
//! the exponent `k`.
//!
//! This is a softmax of inverse temperature `k` on the scores `-ln l(a)`. If even the best action mostly fails, it is
//! close to a softmax on the scores themselves. If the best action rarely fails, the same gap in score has more
//! weight, so exploration decreases with `l(b)`, as in FastCB. Unlike inverse-gap weights, the weights of actions far
//! behind the best tend to 0.

use super::top;

pub(super) fn fill(exponent: f64, scores: &[f64], p: &mut [f64]) {
    let (best, _) = top(scores);
    let least = 1.0 - best;
    let mut sum = 0.0;
    for (p, &score) in p.iter_mut().zip(scores) {
        // The best action is treated separately: without any loss its ratio would be 0 / 0.
        *p = if score == best { 1.0 } else { libm::pow(least / (1.0 - score), exponent) };
        sum += *p;
    }
    for p in p {
        *p /= sum;
    }
}
