//! FastCB (Foster and Krishnamurthy 2021) on the loss side, with losses `l(a) = 1 - s(a)`.
//!
//! `p(a) = l(b) / (K * l(b) + gamma * (l(a) - l(b)))` for every action that is not best. Where the best action
//! hardly ever fails, `l(b)` is small and exploration fades with it: the first-order gain over SquareCB, which
//! is lost when rewards stand where the losses belong. Tied best actions share what is left.

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
            // Without loss and without gamma there is nothing to weigh by: explore nothing.
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
