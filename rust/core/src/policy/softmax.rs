//! Softmax: `p(a)` is proportional to `exp(beta * s(a))`, where `beta` is the inverse temperature.
//!
//! Scores are probabilities, so a `beta` of 1 is nearly uniform: the ratio of the best to the worst is at most e. The
//! useful range is 20 to 200.

use super::top;

pub(super) fn fill(inverse_temperature: f64, scores: &[f64], p: &mut [f64]) {
    let (best, _) = top(scores);
    let mut sum = 0.0;
    for (p, &score) in p.iter_mut().zip(scores) {
        // The difference of two finite scores can be infinite, and 0 × infinity would be NaN.
        let behind = (score - best).max(-f64::MAX);
        // Golden cases compare bits. The platform's `exp` differs between machines in the last bit, `libm::exp` does
        // not.
        *p = libm::exp(inverse_temperature * behind);
        sum += *p;
    }
    for p in p {
        *p /= sum;
    }
}
