//! Epsilon-greedy: every action has probability `epsilon / K`, and the best actions share the rest equally.

use super::top;

pub(super) fn fill(epsilon: f64, scores: &[f64], p: &mut [f64]) {
    let (best, ties) = top(scores);
    let each = epsilon / scores.len() as f64;
    let share = (1.0 - epsilon) / ties as f64;
    for (p, &score) in p.iter_mut().zip(scores) {
        *p = if score == best { each + share } else { each };
    }
}
