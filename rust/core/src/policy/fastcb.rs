//! FastCB (Foster and Krishnamurthy 2021) on the loss side, with losses `l(a) = 1 - s(a)`.
//!
//! `p(a) = l(b) / (K * l(b) + gamma * (l(a) - l(b)))` for every action except the best, `b`. If the best action
//! rarely fails, `l(b)` is small, and the rule explores little. This is its first-order gain over SquareCB; the gain
//! would be lost if rewards were used in place of losses. Tied best actions share the remaining probability.

use super::top;

pub(super) fn fill(gamma: f64, scores: &[f64], p: &mut [f64]) {
    let (best, ties) = top(scores);
    let least = 1.0 - best;
    let count = scores.len() as f64;
    let mut others = 0.0;
    for (p, &score) in p.iter_mut().zip(scores) {
        if score != best {
            let gap = (best - score).min(f64::MAX);
            let weight = count * least + gamma * gap;
            // The weight is 0 only if the best action has no loss and gamma or the gap is 0: do not explore.
            *p = if weight > 0.0 { least / weight } else { 0.0 };
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
