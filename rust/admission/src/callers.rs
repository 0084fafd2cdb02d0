//! Fair shares of the capacity among callers, so that a noisy caller delays mainly its own requests.
//!
//! The memory is fixed: a keyed hash assigns each caller one cell in each of two rows, and a caller exceeds its share
//! only if *both* cells do. A quiet caller is affected only if it collides with a noisy one in both rows. With 1,024
//! cells, the probability is one in a million per pair, and a collision lasts at most ten minutes, because the second
//! row is rehashed then. Callers that collide in the first row count as one when shares are computed, which makes the
//! shares slightly larger.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::settings::TIERS;
use super::time::Nanos;
use super::verdict::Queue;

/// Burst that a caller may use ahead of its rate, in requests of average cost. Random traffic at two thirds of the rate
/// exceeds it once in many thousand requests.
const BURST: f64 = 24.0;
/// Parts of the burst that the tiers may use, so that a caller's lower tiers leave some of it to the higher ones.
const PARTS: [u64; TIERS] = [6, 4, 2, 0];
const WHOLE: u64 = 6;
/// Divisor of rejected demand. One part in this many of the work that a caller requests beyond its even share is
/// charged to it. A caller that requests many times its share therefore gets less of the first queue than one within
/// its share.
const INSISTENCE: u64 = 16;
/// Wall time in nanoseconds after which a caller that exceeded its share has its whole burst again.
const FORGIVEN: u64 = 100_000_000;
/// Part of the capacity above which shares are applied, until the load was lower for a number of windows.
const CROWDED: f64 = 0.7;
const ROOMY: f64 = 0.6;
const ROOMY_FOR: u32 = 10;
/// Part of the capacity that is divided evenly for the first queue.
const DIVIDED: f64 = 0.9;
/// Windows after which the second row is rehashed: ten minutes.
const REHASH: u64 = 6_000;
/// The number 1 in the fixed-point format of wall time per work.
const ONE: f64 = 1024.0;

/// Usage of all callers. Accesses are relaxed, because each word is independent and a share may be off by one request.
#[derive(Debug)]
pub(super) struct Callers {
    first: Box<[Cell]>,
    second: Box<[Cell]>,
    seed: u64,
    salt: AtomicU64,
    /// Rate of an even share.
    even: Rate,
    /// Rate that max-min fairness grants to the largest callers.
    fair: Rate,
}

/// A limit on how fast a caller may use the workers.
#[derive(Debug, Default)]
struct Rate {
    /// Wall time per unit of work, times [`ONE`]; 0: shares are off.
    stretch: AtomicU64,
    /// Wall time by which a caller may be ahead, in nanoseconds.
    burst: AtomicU64,
}

/// GCRA states (times at which callers are back at their rates) and the demand of this window.
#[derive(Debug, Default)]
struct Cell {
    even: AtomicU64,
    fair: AtomicU64,
    asked: AtomicU64,
}

/// State that only ticks use.
#[derive(Debug)]
pub(super) struct Shares {
    /// Demand per cell of the first row, as work per wall time.
    demand: Vec<f64>,
    /// Number of windows until shares end; 0: they are off.
    crowded: u32,
    /// Estimated number of callers, smoothed over quiet windows.
    callers: f64,
    windows: u64,
}

fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

// === impl Callers ===

impl Callers {
    pub(super) fn new(cells: usize, seed: u64) -> Callers {
        let cells = cells.clamp(2, 1 << 20).next_power_of_two();
        let row = || (0..cells).map(|_| Cell::default()).collect();
        Callers {
            first: row(),
            second: row(),
            seed,
            salt: AtomicU64::new(0),
            even: Rate::default(),
            fair: Rate::default(),
        }
    }

    fn cells(&self, caller: u64) -> (&Cell, &Cell) {
        let mask = self.first.len() - 1;
        let hash = mix(caller ^ self.seed);
        let again = mix(hash ^ self.salt.load(Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15));
        (&self.first[hash as usize & mask], &self.second[again as usize & mask])
    }

    /// Counts the demand and returns the queue that the caller's share allows. `cost` is in nanoseconds of work.
    pub(super) fn ask(&self, now: Nanos, caller: u64, tier: u8, cost: u64) -> Queue {
        let (first, second) = self.cells(caller);
        first.asked.fetch_add(cost, Relaxed);
        if self.even.stretch.load(Relaxed) == 0 {
            return Queue::First;
        }
        let part = PARTS[usize::from(tier).min(TIERS - 1)];
        if self.even.allows(&first.even, &second.even, now, part) {
            self.even.charge(&first.even, &second.even, now, cost);
            // Use of the even share also counts as use of the fair share.
            self.fair.charge(&first.fair, &second.fair, now, cost);
            Queue::First
        } else {
            self.even.charge(&first.even, &second.even, now, cost / INSISTENCE);
            self.behind(now, first, second, part, cost)
        }
    }

    fn behind(&self, now: Nanos, first: &Cell, second: &Cell, part: u64, cost: u64) -> Queue {
        if self.fair.allows(&first.fair, &second.fair, now, part) {
            self.fair.charge(&first.fair, &second.fair, now, cost);
            Queue::Second
        } else {
            Queue::Last
        }
    }

    /// Returns the time until a caller that exceeds its share is within it again.
    pub(super) fn back_in(&self, now: Nanos, caller: u64) -> Nanos {
        let (first, second) = self.cells(caller);
        let ahead = first.even.load(Relaxed).min(second.even.load(Relaxed));
        Nanos(ahead.saturating_sub(self.even.burst.load(Relaxed))).since(now)
    }

    /// Returns the wall time per work at an even share; 0 while shares are off.
    pub(super) fn even(&self) -> f64 {
        self.even.stretch.load(Relaxed) as f64 / ONE
    }

    /// Ends a window of length `elapsed`. `workers` is the number of workers, `unit` the average cost of a request.
    pub(super) fn tick(&self, state: &mut Shares, elapsed: Nanos, workers: f64, unit: f64) {
        let wall = elapsed.0.max(1) as f64;
        state.demand.clear();
        for cell in &self.first {
            if cell.asked.load(Relaxed) != 0 {
                state.demand.push(cell.asked.swap(0, Relaxed) as f64 / wall);
            }
        }
        state.windows += 1;
        if state.windows.is_multiple_of(REHASH) {
            self.salt.store(mix(self.seed ^ state.windows), Relaxed);
        }
        state.callers = (state.callers * 0.95).max(state.demand.len() as f64);
        let total: f64 = state.demand.iter().sum();
        if total > workers * CROWDED || (state.crowded > 0 && total > workers * ROOMY) {
            state.crowded = ROOMY_FOR;
        } else {
            state.crowded = state.crowded.saturating_sub(1);
        }
        if state.crowded > 0 && state.demand.len() > 1 {
            let even = workers * DIVIDED / state.callers.max(1.0);
            self.even.set(even, unit);
            self.fair.set(level(&state.demand, workers).max(even), unit);
        } else {
            self.even.stretch.store(0, Relaxed);
        }
    }
}

// === impl Rate ===

impl Rate {
    /// Sets the rate, as work per wall time.
    fn set(&self, rate: f64, unit: f64) {
        let stretch = ONE / rate.max(1e-6);
        self.stretch.store(stretch as u64 + 1, Relaxed);
        self.burst.store((BURST * unit * stretch / ONE) as u64, Relaxed);
    }

    /// Returns whether at least one of the cells is within its burst.
    fn allows(&self, first: &AtomicU64, second: &AtomicU64, now: Nanos, part: u64) -> bool {
        let ahead = self.burst.load(Relaxed) / WHOLE * part;
        first.load(Relaxed).min(second.load(Relaxed)) <= now.0.saturating_add(ahead)
    }

    fn charge(&self, first: &AtomicU64, second: &AtomicU64, now: Nanos, cost: u64) {
        let wall = (u128::from(cost) * u128::from(self.stretch.load(Relaxed)) / ONE as u128) as u64;
        let most = now.0.saturating_add(self.burst.load(Relaxed)).saturating_add(FORGIVEN);
        for cell in [first, second] {
            // A cell that is already beyond its burst is not charged further, because other callers may share it.
            let _ = cell.fetch_update(Relaxed, Relaxed, |at| {
                (at <= most).then(|| at.max(now.0).saturating_add(wall))
            });
        }
    }
}

/// Returns the max-min fair limit per caller at which all callers together get `capacity`.
fn level(demand: &[f64], capacity: f64) -> f64 {
    let mut level = capacity / demand.len() as f64;
    // Callers that demand less than the level leave the rest to the others. The iteration converges from below.
    for _ in 0..16 {
        let (mut below, mut above) = (0.0, 0.0_f64);
        for &demand in demand {
            if demand <= level { below += demand } else { above += 1.0 }
        }
        let next = (capacity - below) / above.max(1.0);
        if next <= level * 1.001 {
            break;
        }
        level = next;
    }
    level
}

// === impl Shares ===

impl Shares {
    pub(super) fn new(callers: &Callers) -> Shares {
        Shares { demand: Vec::with_capacity(callers.first.len()), crowded: 0, callers: 0.0, windows: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Nanos = Nanos::from_millis(100);

    #[test]
    fn max_min_leaves_to_the_greedy_what_the_modest_do_not_want() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 2e-3, "{a} {b}");
        close(level(&[0.1, 0.1, 3.0], 1.0), 0.8);
        close(level(&[1.0, 1.0, 1.0, 1.0], 1.0), 0.25);
        close(level(&[0.05, 0.4, 0.4, 5.0], 1.0), 0.316_666);
    }

    #[test]
    fn without_pressure_nobody_is_limited() {
        let callers = Callers::new(64, 1);
        let mut shares = Shares::new(&callers);
        for _ in 0..100 {
            assert_eq!(callers.ask(Nanos::ZERO, 1, 0, 500_000), Queue::First);
            assert_eq!(callers.ask(Nanos::ZERO, 2, 0, 100_000), Queue::First);
        }
        callers.tick(&mut shares, WINDOW, 1.0, 100_000.0);
        assert_eq!(callers.even(), 0.0);
    }

    /// Fault case 9.
    #[test]
    fn the_noisy_one_gets_what_the_others_leave_and_takes_nothing_from_them() {
        let callers = Callers::new(1024, 7);
        let mut shares = Shares::new(&callers);
        let mut got = [[0_u64; 3]; 10];
        let mut now = Nanos::ZERO;
        for window in 0..50 {
            for step in 0..1000_u64 {
                now = now.plus(Nanos(100_000));
                // Nine callers at 5 % each, one at 200 %.
                for caller in 0..10 {
                    if caller == 0 || step % 20 == caller {
                        let cost = if caller == 0 { 200_000 } else { 100_000 };
                        let queue = callers.ask(now, caller, 0, cost);
                        if window >= 10 {
                            got[caller as usize][queue as usize] += cost;
                        }
                    }
                }
            }
            callers.tick(&mut shares, WINDOW, 1.0, 100_000.0);
        }
        for modest in &got[1..] {
            assert_eq!((modest[1], modest[2]), (0, 0));
        }
        let wall = 40.0 * 100e6;
        let part = |queue: usize| got[0][queue] as f64 / wall;
        assert!(part(0) < 0.09, "no more than an even share: {}", part(0));
        assert!((part(0) + part(1) - 0.55).abs() < 0.06, "what the others leave: {}", part(1));
        assert!(part(2) > 1.2, "{}", part(2));
        assert!(callers.back_in(now, 0).0 <= FORGIVEN + 100_000 * 12);
    }

    #[test]
    fn a_callers_lower_tiers_leave_its_share_to_the_higher_ones() {
        let callers = Callers::new(1024, 7);
        let mut shares = Shares::new(&callers);
        let mut got = [[0_u64; 3]; 3];
        let mut now = Nanos::ZERO;
        for window in 0..50 {
            for step in 0..1000_u64 {
                now = now.plus(Nanos(100_000));
                let _ = callers.ask(now, 99, 0, 20_000);
                let tier = (step % 3) as u8;
                let queue = callers.ask(now, 0, tier, 300_000);
                if window >= 10 {
                    got[usize::from(tier)][queue as usize] += 1;
                }
            }
            callers.tick(&mut shares, WINDOW, 1.0, 100_000.0);
        }
        assert!(got[0][0] + got[0][1] > 1_000 && got[1][..2] == [0, 0] && got[2][..2] == [0, 0], "{got:?}");
    }

    #[test]
    fn who_meets_the_noisy_one_in_one_row_is_not_taken_for_it() {
        let callers = Callers::new(16, 3);
        let mut shares = Shares::new(&callers);
        let noisy = 0;
        let (first, second) = callers.cells(noisy);
        let same = |a: &Cell, b: &Cell| std::ptr::eq(a, b);
        let neighbour = (1..10_000)
            .find(|&caller| same(callers.cells(caller).0, first) && !same(callers.cells(caller).1, second))
            .unwrap();
        let colliding = (1..10_000)
            .find(|&caller| same(callers.cells(caller).0, first) && same(callers.cells(caller).1, second))
            .unwrap();
        let other = (1..10_000).find(|&caller| !same(callers.cells(caller).0, first)).unwrap();
        let mut now = Nanos::ZERO;
        for _ in 0..20 {
            for _ in 0..1000 {
                now = now.plus(Nanos(100_000));
                let _ = callers.ask(now, noisy, 0, 400_000);
            }
            let _ = callers.ask(now, other, 0, 1_000);
            callers.tick(&mut shares, WINDOW, 1.0, 100_000.0);
        }
        assert_eq!(callers.ask(now, neighbour, 0, 1_000), Queue::First);
        assert_ne!(callers.ask(now, colliding, 0, 1_000), Queue::First, "the documented collision");
    }
}
