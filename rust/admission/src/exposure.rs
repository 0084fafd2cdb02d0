//! Exposure caps: limits on how many answers, and how much money, fallbacks decide. Without them, a flood of requests
//! could bypass the model and obtain approvals from the fallback.

use super::ring::Ring;
use super::time::Nanos;

const COUNT: usize = 0;
const AMOUNT: usize = 1;

/// Limits on fallback answers in one window. Amounts are in a unit of the operator's choice, such as cents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Length of the sliding window.
    pub window: Nanos,
    /// Limit on the number of answers.
    pub max_count: u64,
    /// Limit on the sum of their amounts.
    pub max_total: u64,
    /// Limit on a single amount.
    pub max_single: u64,
}

/// The exposure of one checkpoint.
#[derive(Debug)]
pub struct ExposureCaps {
    caps: Caps,
    exposed: Ring<2>,
}

/// The cap that a fallback would exceed. The answer is then the configured step-up action or a refusal, never the
/// fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CapHit {
    /// The single amount is too large.
    #[error("the amount is above the limit of a single fallback")]
    Single,
    /// The number of fallbacks is at its cap.
    #[error("the checkpoint's cap on the number of fallbacks is reached")]
    Count,
    /// The sum of amounts is at its cap.
    #[error("the checkpoint's cap on the amount of fallbacks is reached")]
    Total,
    /// Another thread is advancing the window after a long pause. This counts as a hit.
    #[error("the exposure window is being advanced by another thread")]
    Moving,
}

/// The current exposure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Number of fallback answers in the window.
    pub count: u64,
    /// Sum of their amounts.
    pub amount: u64,
}

// === impl ExposureCaps ===

impl ExposureCaps {
    /// Creates the exposure of a checkpoint, initially zero.
    #[must_use]
    pub fn new(caps: Caps) -> ExposureCaps {
        ExposureCaps { caps, exposed: Ring::new(caps.window) }
    }

    /// Reserves the exposure of one fallback answer before it is given. No number of threads can exceed a cap; close to
    /// a cap, two concurrent reservations may both be rejected. A reservation is kept even if the answer is not given
    /// afterwards. An unknown `amount` counts as the largest allowed one.
    ///
    /// # Errors
    /// [`CapHit`] names the cap. Nothing is reserved.
    pub fn reserve(&self, now: Nanos, amount: Option<u64>) -> Result<(), CapHit> {
        let amount = amount.unwrap_or(self.caps.max_single);
        if amount > self.caps.max_single {
            return Err(CapHit::Single);
        }
        let part = self.exposed.advance(now).ok_or(CapHit::Moving)?;
        if !self.exposed.reserve(COUNT, 1, self.caps.max_count) {
            return Err(CapHit::Count);
        }
        if !self.exposed.reserve(AMOUNT, amount, self.caps.max_total) {
            self.exposed.release(COUNT, 1);
            return Err(CapHit::Total);
        }
        self.exposed.keep(part, COUNT, 1);
        self.exposed.keep(part, AMOUNT, amount);
        Ok(())
    }

    /// Returns the current exposure of the checkpoint.
    #[must_use]
    pub fn exposed(&self, now: Nanos) -> Exposure {
        let _ = self.exposed.advance(now);
        Exposure { count: self.exposed.sum(COUNT), amount: self.exposed.sum(AMOUNT) }
    }

    /// Returns the caps of the checkpoint.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        &self.caps
    }
}

// === impl CapHit ===

impl CapHit {
    /// Returns the name of the cap in metrics and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            CapHit::Single => "single",
            CapHit::Count => "count",
            CapHit::Total => "total",
            CapHit::Moving => "moving",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    const CAPS: Caps =
        Caps { window: Nanos::from_secs(60), max_count: 10, max_total: 5_000, max_single: 1_000 };

    #[test]
    fn each_cap_holds_to_the_last_unit() {
        let caps = ExposureCaps::new(CAPS);
        let now = Nanos::from_secs(7);
        assert_eq!(caps.reserve(now, Some(1_001)), Err(CapHit::Single));
        for _ in 0..4 {
            assert_eq!(caps.reserve(now, Some(1_000)), Ok(()));
        }
        assert_eq!(caps.reserve(now, Some(999)), Ok(()));
        assert_eq!(caps.reserve(now, Some(2)), Err(CapHit::Total));
        assert_eq!(caps.reserve(now, Some(1)), Ok(()));
        for _ in 0..4 {
            assert_eq!(caps.reserve(now, Some(0)), Ok(()));
        }
        assert_eq!(caps.reserve(now, Some(0)), Err(CapHit::Count));
        assert_eq!(caps.exposed(now), Exposure { count: 10, amount: 5_000 });
        assert_eq!(caps.reserve(now.plus(Nanos::from_secs(59)), Some(0)), Err(CapHit::Count));
        assert_eq!(caps.reserve(now.plus(Nanos::from_secs(75)), Some(1_000)), Ok(()));
    }

    #[test]
    fn an_unknown_amount_is_the_largest() {
        let caps = ExposureCaps::new(CAPS);
        assert_eq!(caps.reserve(Nanos::ZERO, None), Ok(()));
        assert_eq!(caps.exposed(Nanos::ZERO).amount, 1_000);
        let open = ExposureCaps::new(Caps { max_single: u64::MAX, ..CAPS });
        assert_eq!(open.reserve(Nanos::ZERO, None), Err(CapHit::Total));
    }

    /// Compares every window, with any alignment, with a list of the granted reservations and their times.
    #[test]
    fn no_window_holds_more_than_its_caps() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let caps = ExposureCaps::new(CAPS);
        let (mut now, mut granted) = (Nanos::ZERO, Vec::new());
        for _ in 0..20_000 {
            now = now.plus(Nanos::from_millis(next(4_000)));
            let amount = next(1_100);
            if caps.reserve(now, Some(amount)).is_ok() {
                granted.push((now, amount));
            }
        }
        assert!(granted.len() > 1_000);
        for (at, &(begin, _)) in granted.iter().enumerate() {
            let within = granted[at..].iter().take_while(|(time, _)| time.since(begin) < CAPS.window);
            let (count, amount) = within.fold((0, 0), |(count, sum), (_, amount)| (count + 1, sum + amount));
            assert!(count <= CAPS.max_count && amount <= CAPS.max_total, "from {begin:?}: {count}, {amount}");
        }
    }

    #[test]
    fn threads_together_use_a_cap_up_and_do_not_exceed_it() {
        let caps = Caps { max_count: 1_000, max_total: 300_000, ..CAPS };
        for round in 0..20_u64 {
            let exposure = ExposureCaps::new(caps);
            let (count, amount) = (AtomicU64::new(0), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let (exposure, count, amount) = (&exposure, &count, &amount);
                    scope.spawn(move || {
                        for step in 0..1_000_u64 {
                            let now = Nanos::from_millis(round * 1_000 + step);
                            let each = (thread * 131 + step * 17) % 500;
                            if exposure.reserve(now, Some(each)).is_ok() {
                                count.fetch_add(1, Relaxed);
                                amount.fetch_add(each, Relaxed);
                            }
                        }
                    });
                }
            });
            let (count, amount) = (count.into_inner(), amount.into_inner());
            assert!(count <= caps.max_count && amount <= caps.max_total);
            assert!(count == 1_000 || amount > 300_000 - 500, "{count} {amount}: nothing got lost");
            assert_eq!(exposure.exposed(Nanos::from_millis(round * 1_000 + 999)), Exposure { count, amount });
        }
    }
}
