//! How much may be decided without the model: the caps that keep an induced overload from becoming a way
//! around it. Whoever floods the service must not buy approvals by rule.

use super::ring::Ring;
use super::time::Nanos;

/// Per-caller rings there are; callers that share one share its cap.
const CALLERS: usize = 256;
const COUNT: usize = 0;
const AMOUNT: usize = 1;

/// What fallbacks may answer in one window. Amounts are in one unit of the operator's choosing, such as cents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Length of the window that slides.
    pub window: Nanos,
    /// Answers.
    pub max_count: u64,
    /// Sum of their amounts.
    pub max_total: u64,
    /// The largest single amount.
    pub max_single: u64,
}

/// One checkpoint's exposure, in all and per caller.
#[derive(Debug)]
pub struct ExposureCaps {
    caps: Caps,
    all: Ring<2>,
    caller: Option<(Caps, Box<[Ring<2>]>)>,
}

/// Which cap a fallback would break. The answer is then the configured step-up action or a refusal, never the
/// fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CapHit {
    /// The amount alone is too large.
    #[error("the amount is above what a fallback may decide")]
    Single,
    /// The checkpoint has given as many fallbacks as it may.
    #[error("the checkpoint's cap on the number of fallbacks is reached")]
    Count,
    /// The checkpoint's fallbacks add up to as much as they may.
    #[error("the checkpoint's cap on the amount of fallbacks is reached")]
    Total,
    /// The same for this caller.
    #[error("the caller's cap on the number of fallbacks is reached")]
    CallerCount,
    /// The same for this caller.
    #[error("the caller's cap on the amount of fallbacks is reached")]
    CallerTotal,
    /// The window is being moved on by another thread after a long pause; treated as a hit.
    #[error("the exposure window is being moved on")]
    Moving,
}

/// What is on the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Fallback answers in the window.
    pub count: u64,
    /// Their amounts.
    pub amount: u64,
}

// === impl ExposureCaps ===

impl ExposureCaps {
    /// Nothing exposed yet. `per_caller`: caps of each caller, on top.
    #[must_use]
    pub fn new(caps: Caps, per_caller: Option<Caps>) -> ExposureCaps {
        let rings = |caps: Caps| (0..CALLERS).map(|_| Ring::new(caps.window)).collect();
        ExposureCaps { caps, all: Ring::new(caps.window), caller: per_caller.map(|caps| (caps, rings(caps))) }
    }

    /// Puts one fallback answer on the books, before it is given. No cap is ever exceeded, by any number of
    /// threads; near a cap, two at once may both be refused. What is reserved stays on the books even if the
    /// answer is then not given. `amount` unknown counts as the largest allowed.
    ///
    /// # Errors
    /// [`CapHit`] says which cap; nothing is on the books then.
    pub fn reserve(&self, now: Nanos, caller: u64, amount: Option<u64>) -> Result<(), CapHit> {
        let own = self.caller.as_ref().map(|(caps, rings)| (caps, &rings[caller as usize % rings.len()]));
        let largest = own.map_or(u64::MAX, |(caps, _)| caps.max_single).min(self.caps.max_single);
        let amount = amount.unwrap_or(largest);
        if amount > largest {
            return Err(CapHit::Single);
        }
        let part = self.all.advance(now).ok_or(CapHit::Moving)?;
        let own = match own {
            Some((caps, ring)) => Some((caps, ring, ring.advance(now).ok_or(CapHit::Moving)?)),
            None => None,
        };
        take(&self.all, &self.caps, amount).map_err(|kind| [CapHit::Count, CapHit::Total][kind])?;
        if let Some((caps, ring, part)) = own {
            if let Err(kind) = take(ring, caps, amount) {
                self.all.release(COUNT, 1);
                self.all.release(AMOUNT, amount);
                return Err([CapHit::CallerCount, CapHit::CallerTotal][kind]);
            }
            ring.keep(part, COUNT, 1);
            ring.keep(part, AMOUNT, amount);
        }
        self.all.keep(part, COUNT, 1);
        self.all.keep(part, AMOUNT, amount);
        Ok(())
    }

    /// What is on the books of the whole checkpoint.
    #[must_use]
    pub fn exposed(&self, now: Nanos) -> Exposure {
        let _ = self.all.advance(now);
        Exposure { count: self.all.sum(COUNT), amount: self.all.sum(AMOUNT) }
    }

    /// The checkpoint's caps.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        &self.caps
    }
}

/// Reserves both or none; tells which did not fit.
fn take(ring: &Ring<2>, caps: &Caps, amount: u64) -> Result<(), usize> {
    if !ring.reserve(COUNT, 1, caps.max_count) {
        return Err(COUNT);
    }
    if !ring.reserve(AMOUNT, amount, caps.max_total) {
        ring.release(COUNT, 1);
        return Err(AMOUNT);
    }
    Ok(())
}

// === impl CapHit ===

impl CapHit {
    /// As metrics and records spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            CapHit::Single => "single",
            CapHit::Count => "count",
            CapHit::Total => "total",
            CapHit::CallerCount => "caller_count",
            CapHit::CallerTotal => "caller_total",
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
        let caps = ExposureCaps::new(CAPS, None);
        let now = Nanos::from_secs(7);
        assert_eq!(caps.reserve(now, 1, Some(1_001)), Err(CapHit::Single));
        for _ in 0..4 {
            assert_eq!(caps.reserve(now, 1, Some(1_000)), Ok(()));
        }
        assert_eq!(caps.reserve(now, 1, Some(999)), Ok(()));
        assert_eq!(caps.reserve(now, 1, Some(2)), Err(CapHit::Total));
        assert_eq!(caps.reserve(now, 1, Some(1)), Ok(()));
        for _ in 0..4 {
            assert_eq!(caps.reserve(now, 1, Some(0)), Ok(()));
        }
        assert_eq!(caps.reserve(now, 1, Some(0)), Err(CapHit::Count));
        assert_eq!(caps.exposed(now), Exposure { count: 10, amount: 5_000 });
        assert_eq!(caps.reserve(now.plus(Nanos::from_secs(59)), 1, Some(0)), Err(CapHit::Count));
        assert_eq!(caps.reserve(now.plus(Nanos::from_secs(75)), 1, Some(1_000)), Ok(()));
    }

    #[test]
    fn an_unknown_amount_is_the_largest() {
        let caps = ExposureCaps::new(CAPS, None);
        assert_eq!(caps.reserve(Nanos::ZERO, 1, None), Ok(()));
        assert_eq!(caps.exposed(Nanos::ZERO).amount, 1_000);
        let open = ExposureCaps::new(Caps { max_single: u64::MAX, ..CAPS }, None);
        assert_eq!(open.reserve(Nanos::ZERO, 1, None), Err(CapHit::Total));
    }

    #[test]
    fn a_caller_at_its_cap_leaves_the_checkpoints_to_others() {
        let own = Caps { max_count: 2, max_total: 500, max_single: 400, ..CAPS };
        let caps = ExposureCaps::new(CAPS, Some(own));
        let now = Nanos::from_secs(1);
        assert_eq!(caps.reserve(now, 1, Some(401)), Err(CapHit::Single));
        assert_eq!(caps.reserve(now, 1, Some(400)), Ok(()));
        assert_eq!(caps.reserve(now, 1, Some(200)), Err(CapHit::CallerTotal));
        assert_eq!(caps.reserve(now, 1, Some(100)), Ok(()));
        for _ in 0..20 {
            assert_eq!(caps.reserve(now, 1, Some(0)), Err(CapHit::CallerCount));
        }
        assert_eq!(caps.exposed(now), Exposure { count: 2, amount: 500 }, "refusals leave nothing behind");
        assert_eq!(caps.reserve(now, 2, Some(400)), Ok(()));
    }

    /// Any window of any alignment, against a plain list of what was granted and when.
    #[test]
    fn no_window_holds_more_than_its_caps() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let caps = ExposureCaps::new(CAPS, None);
        let (mut now, mut granted) = (Nanos::ZERO, Vec::new());
        for _ in 0..20_000 {
            now = now.plus(Nanos::from_millis(next(4_000)));
            let amount = next(1_100);
            if caps.reserve(now, 0, Some(amount)).is_ok() {
                granted.push((now, amount));
            }
        }
        assert!(granted.len() > 1_000);
        for (at, &(begin, _)) in granted.iter().enumerate() {
            let within = granted[at..].iter().take_while(|(it, _)| it.since(begin) < CAPS.window);
            let (count, amount) = within.fold((0, 0), |(count, sum), (_, amount)| (count + 1, sum + amount));
            assert!(count <= CAPS.max_count && amount <= CAPS.max_total, "from {begin:?}: {count}, {amount}");
        }
    }

    #[test]
    fn threads_together_use_a_cap_up_and_do_not_exceed_it() {
        let caps = Caps { max_count: 1_000, max_total: 300_000, ..CAPS };
        for round in 0..20_u64 {
            let exposure = ExposureCaps::new(caps, None);
            let (count, amount) = (AtomicU64::new(0), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let (exposure, count, amount) = (&exposure, &count, &amount);
                    scope.spawn(move || {
                        for step in 0..1_000_u64 {
                            let now = Nanos::from_millis(round * 1_000 + step);
                            let each = (thread * 131 + step * 17) % 500;
                            if exposure.reserve(now, thread, Some(each)).is_ok() {
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
