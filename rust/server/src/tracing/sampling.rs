//! Which requests are traced, and the ids of their spans. Nothing here allocates or locks.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The last 7 bytes of a trace id decide about sampling, so that all services with the same ratio agree.
const RANDOMNESS: u64 = (1 << 56) - 1;
/// Increment of the state of the generator (SplitMix64).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Samples a share of the traces, by their ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    /// The least value of the last 7 bytes of a sampled trace's id.
    least: u64,
}

/// Generates ids that differ from those of other servers and of earlier starts.
#[derive(Debug)]
pub(super) struct Ids {
    state: AtomicU64,
    seed: u64,
}

/// Admits at most a number of requests per second.
#[derive(Debug)]
pub(super) struct PerSecond {
    most: u32,
    started: Instant,
    /// The current second after `started`, and the number of requests in it, in 32 bits each.
    state: AtomicU64,
}

// === impl Ratio ===

impl Ratio {
    pub(super) fn new(ratio: f64) -> Ratio {
        Ratio { least: ((1.0 - ratio) * (RANDOMNESS + 1) as f64) as u64 }
    }

    pub(super) fn samples(self, trace_id: [u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g] = trace_id;
        u64::from_be_bytes([0, a, b, c, d, e, f, g]) >= self.least
    }
}

// === impl Ids ===

impl Ids {
    pub(super) fn new() -> Ids {
        // The keys of a `RandomState` come from the system's source of randomness.
        let [state, seed] = [0, 1].map(|number: u64| RandomState::new().hash_one(number));
        Ids { state: AtomicU64::new(state), seed }
    }

    fn next(&self) -> u64 {
        let state = self.state.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        mix(mix(state) ^ self.seed)
    }

    /// Returns the id of a new trace, which is not zero.
    pub(super) fn trace(&self) -> [u8; 16] {
        let ([a, b], mut id) = ([self.next(), self.next()], [0; 16]);
        id[..8].copy_from_slice(&a.max(1).to_be_bytes());
        id[8..].copy_from_slice(&b.to_be_bytes());
        id
    }

    /// Returns the id of a new span, which is not zero.
    pub(super) fn span(&self) -> [u8; 8] {
        self.next().max(1).to_be_bytes()
    }
}

/// Spreads the bits of a number; every number has another result.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

// === impl PerSecond ===

impl PerSecond {
    pub(super) fn new(most: u32, started: Instant) -> PerSecond {
        PerSecond { most, started, state: AtomicU64::new(0) }
    }

    /// Admits a request that arrived at `now`, unless its second is used up.
    pub(super) fn admits(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.started).as_secs() & u64::from(u32::MAX);
        let admitted = self.state.fetch_update(Relaxed, Relaxed, |state| {
            let (current, count) = (state >> 32, state as u32);
            match (current >= second, count < self.most) {
                (false, _) => Some((second << 32) | 1),
                (true, true) => Some(state + 1),
                (true, false) => None,
            }
        });
        admitted.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_share_of_sampled_traces_is_the_ratio() {
        let ids = Ids::new();
        for ratio in [0.0, 0.01, 0.5, 1.0] {
            let sampler = Ratio::new(ratio);
            let sampled = (0..20_000).filter(|_| sampler.samples(ids.trace())).count() as f64 / 20_000.0;
            // Five standard deviations.
            let off = 5.0 * (ratio * (1.0 - ratio) / 20_000.0).sqrt();
            assert!((sampled - ratio).abs() <= off, "{sampled} instead of {ratio}");
        }
        assert!(!Ratio::new(0.0).samples([0xff; 16]));
        assert!(Ratio::new(1.0).samples([0; 16]));
        let id = ids.trace();
        assert_eq!(Ratio::new(0.3).samples(id), Ratio::new(0.3).samples(id), "the id alone decides");
    }

    #[test]
    fn ids_are_new() {
        let (one, other) = (Ids::new(), Ids::new());
        let spans: HashSet<_> = (0..10_000).flat_map(|_| [one.span(), other.span()]).collect();
        let traces: HashSet<_> = (0..10_000).flat_map(|_| [one.trace(), other.trace()]).collect();
        assert_eq!((spans.len(), traces.len()), (20_000, 20_000));
    }

    #[test]
    fn a_second_admits_so_many_and_the_next_one_as_many_again() {
        let started = Instant::now();
        let limit = PerSecond::new(3, started);
        let admitted =
            |after: u64| (0..10).filter(|_| limit.admits(started + Duration::from_millis(after))).count();
        assert_eq!([admitted(0), admitted(999), admitted(1000), admitted(1500)], [3, 0, 3, 0]);
        assert_eq!(admitted(5000), 3);
        assert_eq!(admitted(4000), 0, "requests may arrive out of order");
    }
}
