//! The order of shedding: a cut-off over tiers and, within a tier, over cohorts.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::settings::TIERS;

/// Cohorts per tier. A shopper stays in one cohort while the hash key stays the same, so that a journey is served or
/// shed as a whole.
const COHORTS: usize = 128;
pub(super) const LEVELS: usize = TIERS * COHORTS;
/// Factor of the admitted share per window with a standing queue (DAGOR's step).
const DOWN: f64 = 0.95;
const UP: f64 = 0.01;

/// Parts of the limit that tiers may use, counted from the highest tier in use. The rest is reserved for higher tiers.
pub(super) const CEILINGS: [f64; TIERS] = [1.0, 0.9, 0.7, 0.5];

/// The cut-off and the arrivals that it is computed from. Accesses are relaxed, because each word is independent.
#[derive(Debug)]
pub(super) struct Cutoff {
    /// The highest level that is admitted.
    level: AtomicU32,
    /// Expected cost of the requests that arrived in this window, by level.
    arrived: Box<[AtomicU64]>,
}

/// State that only ticks use.
#[derive(Debug)]
pub(super) struct CutoffShare {
    /// Admitted part of the arriving work, 0 to 1.
    share: f64,
}

/// Returns the level of a request. Lower levels are shed later.
pub(super) fn level(tier: u8, cohort: u64) -> usize {
    // Uses the top bits, because the low bits also select table cells.
    (usize::from(tier) * COHORTS + (cohort >> 57) as usize).min(LEVELS - 1)
}

// === impl Cutoff ===

impl Cutoff {
    pub(super) fn new() -> Cutoff {
        Cutoff {
            level: AtomicU32::new(LEVELS as u32 - 1),
            arrived: (0..LEVELS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(super) fn arrive(&self, level: usize, cost: u64) {
        self.arrived[level].fetch_add(cost, Relaxed);
    }

    pub(super) fn admits(&self, level: usize) -> bool {
        level <= self.level() as usize
    }

    pub(super) fn level(&self) -> u32 {
        self.level.load(Relaxed)
    }

    /// Ends a window. `capacity` is the work that the workers could have done in it, in nanoseconds.
    pub(super) fn tick(&self, state: &mut CutoffShare, standing: bool, capacity: f64) {
        let mut arrived = [0_u64; LEVELS];
        let mut total = 0;
        for (sum, level) in arrived.iter_mut().zip(&self.arrived) {
            if level.load(Relaxed) != 0 {
                *sum = level.swap(0, Relaxed);
                total += *sum;
            }
        }
        // The cost of all arrivals, shed or not, is known, and so is the share that fits the workers. The share is
        // not lowered below half of it, and it returns to it directly after a burst.
        let fits = if total == 0 { 1.0 } else { (capacity / total as f64).min(1.0) };
        state.share =
            if standing { (state.share * DOWN).max(fits * 0.5) } else { (state.share + UP).max(fits * 0.95) };
        if fits >= 1.0 && !standing {
            state.share = 1.0;
        }
        state.share = state.share.min(1.0);
        self.level.store(cut(&arrived, total as f64 * state.share) as u32, Relaxed);
    }
}

/// Returns the lowest level up to which at least `wanted` work arrived.
fn cut(arrived: &[u64; LEVELS], wanted: f64) -> usize {
    let mut sum = 0;
    for (level, cost) in arrived.iter().enumerate() {
        sum += cost;
        if sum as f64 >= wanted && sum > 0 {
            // Nothing arrived above this level, so it is admitted.
            let last = arrived.iter().rposition(|&cost| cost > 0).unwrap_or(0);
            return if level == last { LEVELS - 1 } else { level };
        }
    }
    LEVELS - 1
}

// === impl CutoffShare ===

impl CutoffShare {
    pub(super) fn new() -> CutoffShare {
        CutoffShare { share: 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(cutoff: &Cutoff) {
        for tier in 0..TIERS as u8 {
            for cohort in 0..COHORTS as u64 {
                cutoff.arrive(level(tier, cohort << 57), 1000);
            }
        }
    }

    #[test]
    fn a_standing_queue_moves_it_down_through_the_lowest_tier_first() {
        let (cutoff, mut state) = (Cutoff::new(), CutoffShare::new());
        let mut before = LEVELS as u32 - 1;
        for _ in 0..5 {
            arrive(&cutoff);
            cutoff.tick(&mut state, true, 256_000.0);
            assert!(cutoff.level() < before);
            before = cutoff.level();
        }
        // 0.95^5 of four tiers: 77 %, inside the lowest.
        assert!((390..400).contains(&before), "{before}");
        assert!(cutoff.admits(level(2, u64::MAX)) && !cutoff.admits(level(3, u64::MAX)));
        for _ in 0..100 {
            arrive(&cutoff);
            cutoff.tick(&mut state, true, 256_000.0);
        }
        assert_eq!(cutoff.level(), LEVELS as u32 / 4 - 1, "half of what would fit");
    }

    #[test]
    fn it_opens_as_soon_as_everything_fits() {
        let (cutoff, mut state) = (Cutoff::new(), CutoffShare::new());
        for _ in 0..50 {
            arrive(&cutoff);
            cutoff.tick(&mut state, true, 100_000.0);
        }
        arrive(&cutoff);
        cutoff.tick(&mut state, false, 256_000.0);
        assert!((240..250).contains(&cutoff.level()), "{}", cutoff.level());
        arrive(&cutoff);
        cutoff.tick(&mut state, false, 600_000.0);
        assert_eq!(cutoff.level(), LEVELS as u32 - 1);
    }

    #[test]
    fn whoever_comes_alone_is_let_in() {
        let (cutoff, mut state) = (Cutoff::new(), CutoffShare::new());
        cutoff.arrive(level(2, 5 << 57), 1000);
        cutoff.tick(&mut state, true, 1.0);
        assert!(cutoff.admits(level(3, u64::MAX)));
    }
}
