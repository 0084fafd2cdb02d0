//! SquareCB, also called inverse-gap weighting (Foster and Rakhlin 2020).
//!
//! `p(a) = 1 / (K + gamma * gap(a))` for every action that is not best, with `gap(a) = s(b) - s(a)` and `K` the
//! number of eligible actions; what is left goes to the best one, so it never has less than `1 / K`. Tied best
//! actions share it: the average over all ways to break the tie.

use super::top;

pub(super) fn fill(gamma: f64, scores: &[f64], p: &mut [f64]) {
    let (best, ties) = top(scores);
    let count = scores.len() as f64;
    let mut others = 0.0;
    for (p, &score) in p.iter_mut().zip(scores) {
        if score != best {
            // Two finite scores can be further apart than f64 reaches; 0 x infinity would be NaN.
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
