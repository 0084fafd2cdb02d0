//! Floors: the least probability of every eligible action, enforced by exact projection.
//!
//! The floor of action `a` among `K` eligible actions is `f(a) = max(floor / K, action_floors[a])`. The result is the
//! point nearest (in Euclidean distance) to the rule's probabilities that satisfies all floors:
//! `p(a) = max(p(a) - tau, f(a))`, with `tau` such that the sum is 1. Mixing, `f + (1 - sum f) * p`, would satisfy
//! them too, but it takes probability from every action, and most from the best. The projection leaves a pmf that
//! satisfies its floors exactly as it is.
//!
//! Compiling a policy refuses its floors unless `floor + sum of action_floors <= 1`. They can then be satisfied for
//! every eligible set, so serving needs no scaling.

use std::collections::BTreeMap;

use super::{ActionCatalogue, SpecError};

/// Compiled floors.
#[derive(Debug, Clone)]
pub(super) struct Floors {
    total: f64,
    /// The floor of each action; empty if no action has one.
    own: Box<[f64]>,
}

impl Floors {
    pub(super) fn compile(
        total: f64,
        own: &BTreeMap<String, f64>,
        catalogue: &ActionCatalogue,
    ) -> Result<Floors, SpecError> {
        if !(0.0..=1.0).contains(&total) {
            return Err(SpecError::Range { setting: "floor", value: total, rule: "between 0 and 1" });
        }
        let mut each = vec![0.0; if own.is_empty() { 0 } else { catalogue.len() }];
        let mut sum = total;
        for (id, &floor) in own {
            let index = catalogue
                .index_of(id)
                .ok_or_else(|| SpecError::UnknownAction { setting: "action_floors", action: id.clone() })?;
            if !(0.0..=1.0).contains(&floor) {
                return Err(SpecError::ActionFloor { action: id.clone(), value: floor });
            }
            each[index] = floor;
            sum += floor;
        }
        if sum > 1.0 {
            return Err(SpecError::FloorsTooHigh { sum });
        }
        Ok(Floors { total, own: each.into() })
    }

    pub(super) fn of(&self, action: usize, eligible: usize) -> f64 {
        let shared = self.total / eligible as f64;
        self.own.get(action).map_or(shared, |&own| shared.max(own))
    }

    /// Raises `p` to its floors. `indices` holds the action of each entry of `p`.
    pub(super) fn apply(&self, indices: &[u32], p: &mut [f64], floors: &mut Vec<f64>) {
        if self.total == 0.0 && self.own.is_empty() {
            return;
        }
        floors.clear();
        floors.extend(indices.iter().map(|&action| self.of(action as usize, indices.len())));
        if p.iter().zip(&*floors).any(|(p, floor)| p < floor) {
            project(p, floors);
        }
    }
}

/// Projects `p` (which sums to 1) onto `{p >= floors, sum p = 1}`.
///
/// `sum max(p - tau, floor)` decreases with `tau` and is convex, so Newton's method from `tau = 0` increases `tau` to
/// the solution without overshooting. It ends when the set of entries above their floor no longer changes, usually
/// after a few iterations, and needs no sorting.
fn project(p: &mut [f64], floors: &[f64]) {
    let mut tau = 0.0;
    loop {
        let (mut free, mut mass, mut held) = (0_usize, 0.0, 0.0);
        for (&p, &floor) in p.iter().zip(floors) {
            if p - tau > floor {
                free += 1;
                mass += p;
            } else {
                held += floor;
            }
        }
        if free == 0 {
            break;
        }
        let next = (mass + held - 1.0) / free as f64;
        // An unchanged set of free entries gives the same tau, bit for bit.
        if next <= tau {
            break;
        }
        tau = next;
    }
    for (p, &floor) in p.iter_mut().zip(floors) {
        *p = (*p - tau).max(floor);
    }
}
