//! Loss ratios: `p(a)` proportional to `(l(b) / l(a))^k`, with losses `l(a) = 1 - s(a)`, `l(b)` the least, `k` the
//! exponent.
//!
//! It is a softmax of inverse temperature `k` on the scores `-ln l(a)`: where even the best action mostly fails it
//! is softmax on the scores themselves, and where the best one hardly ever fails the same gap counts for more, so
//! that exploration fades with `l(b)`, as in FastCB. Unlike inverse-gap weights, those of far actions vanish.

use super::top;

pub(super) fn fill(exponent: f64, scores: &[f64], p: &mut [f64]) {
    let (best, _) = top(scores);
    let least = 1.0 - best;
    let mut sum = 0.0;
    for (p, &score) in p.iter_mut().zip(scores) {
        // The best one apart: without any loss its ratio would be 0 / 0.
        *p = if score == best { 1.0 } else { libm::pow(least / (1.0 - score), exponent) };
        sum += *p;
    }
    for p in p {
        *p /= sum;
    }
}
