//! SquareCB, also called inverse-gap weighting (Foster and Rakhlin 2020).
//!
//! `p(a) = 1 / (K + gamma * gap(a))` for every action except the best, `b`, with `gap(a) = s(b) - s(a)` and the number
//! `K` of eligible actions. The best action gets the remaining probability, so it never has less than `1 / K`. Tied
//! best actions share it equally, which is the average over all ways to break the tie.

use super::top;

pub(super) fn fill(gamma: f64, scores: &[f64], p: &mut [f64]) {
    let (best, ties) = top(scores);
    let count = scores.len() as f64;
    let mut others = 0.0;
    for (p, &score) in p.iter_mut().zip(scores) {
        if score != best {
            // The difference of two finite scores can be infinite, and 0 × infinity would be NaN.
            let gap = (best - score).min(f64::MAX);
            *p = 1.0 / (count + gamma * gap);
            others += *p;
        }
    }
    let share = (1.0 - others) / ties as f64;
    for (p, &score) in p.iter_mut().zip(scores) {
        if score == best {
            *p = share;
        }
    }
}
