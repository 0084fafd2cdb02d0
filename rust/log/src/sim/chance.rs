//! Chance, identifiers and time that a seed decides about.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Random};

/// A small seeded generator (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end` (0 for 0).
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.bits() % end }
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && self.below(1000) < per_mille
    }

    pub(crate) fn up_to(&mut self, most: usize) -> usize {
        usize::try_from(self.below(most as u64 + 1)).unwrap_or(most)
    }
}

/// A clock that the test advances.
#[derive(Debug, Default)]
pub struct SimClock(AtomicU64);

impl SimClock {
    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn unix_us(&self) -> i64 {
        1_700_000_000_000_000 + self.0.load(Ordering::Relaxed).cast_signed()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Identifiers from a seed.
#[derive(Debug)]
pub struct SimRandom(Mutex<Rng>);

impl SimRandom {
    /// Identifiers for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(Rng::new(seed)))
    }
}

impl Random for SimRandom {
    fn uuid(&self) -> [u8; 16] {
        let mut rng = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (u128::from(rng.bits()) << 64 | u128::from(rng.bits())).to_le_bytes()
    }
}
