//! Softmax: `p(a)` proportional to `exp(beta * s(a))`, `beta` the inverse temperature.
//!
//! Scores are probabilities, so a `beta` of 1 is nearly uniform (the ratio of the best to the worst is at most
//! e); 20 to 200 is the useful range.

use super::top;

pub(super) fn fill(inverse_temperature: f64, scores: &[f64], p: &mut [f64]) {
    let (best, _) = top(scores);
    let mut sum = 0.0;
    for (p, &score) in p.iter_mut().zip(scores) {
        // The clamp keeps 0 x infinity out where two finite scores are further apart than f64 reaches.
        let behind = (score - best).max(-f64::MAX);
        // libm's own exp: the platform's differs in the last bit between machines, and golden cases compare bits.
        *p = libm::exp(inverse_temperature * behind);
        sum += *p;
    }
    for p in p {
        *p /= sum;
    }
}
