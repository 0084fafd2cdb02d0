//! Thompson sampling by bagging: `p(a)` is the share of ensemble members whose best action is `a`.
//!
//! The probability is counted, not sampled, so the logged propensity is exact. A member with tied best actions
//! splits its vote.

use super::top;

pub(super) fn add_vote(voters: usize, scores: &[f64], p: &mut [f64]) {
    let (best, ties) = top(scores);
    let vote = 1.0 / (voters as f64 * ties as f64);
    for (p, &score) in p.iter_mut().zip(scores) {
        if score == best {
            *p += vote;
        }
    }
}
