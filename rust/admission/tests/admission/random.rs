//! Seeded random draws.

use scorer_admission::Nanos;

/// SplitMix64 (Vigna). The state is one word, so that every stream of a scenario has a separate generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

// === impl Random ===

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 (included) to 1 (excluded).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns an integer from `low` to `high`, both included.
    pub(crate) fn whole(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.whole(0, values.len() as u64 - 1) as usize]
    }

    /// Returns the time to the next event of a Poisson process.
    pub(crate) fn gap(&mut self, per_second: f64) -> Nanos {
        let seconds = -(1.0 - self.unit()).ln() / per_second.max(1e-9);
        Nanos((seconds * 1e9) as u64 + 1)
    }

    /// Returns a factor near 1 with a tail and mean 1, as the service times of equal work vary.
    pub(crate) fn jitter(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| self.unit()).sum::<f64>() - 2.0;
        let tail = if self.chance(0.01) { 1.5 } else { 0.0 };
        (0.985 + 0.15 * sum + tail).max(0.3)
    }
}
