//! When each request should be sent. Knows nothing of replies, or of the clock.

use std::time::Duration;

use crate::config::Arrivals;
use crate::rng::Rng;

/// One thread's part of the schedule: intended send times since the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    arrivals: Arrivals,
    /// Seconds between requests of this thread, on average.
    gap: f64,
    /// Seconds from the start to this thread's first request (uniform arrivals).
    offset: f64,
    index: u64,
    elapsed: f64,
    end: f64,
    rng: Rng,
}

impl Schedule {
    /// Part `part` of `parts` of a schedule of `rate` per second that ends before `end` seconds.
    pub(crate) fn new(
        arrivals: Arrivals,
        rate: f64,
        end: f64,
        part: usize,
        parts: usize,
        seed: u64,
    ) -> Schedule {
        // The sum of independent Poisson streams is one of the sum of their rates.
        let gap = parts as f64 / rate;
        let rng = Rng::new(seed, part as u64 + 1);
        Schedule { arrivals, gap, offset: part as f64 / rate, index: 0, elapsed: 0.0, end, rng }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let at = match self.arrivals {
            // By multiplication: a running sum would drift over a long run.
            Arrivals::Uniform => self.offset + self.index as f64 * self.gap,
            Arrivals::Poisson => {
                self.elapsed -= (1.0 - self.rng.unit()).ln() * self.gap;
                self.elapsed
            }
        };
        self.index += 1;
        (at < self.end).then(|| Duration::from_secs_f64(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(arrivals: Arrivals, rate: f64, end: f64, parts: usize) -> Vec<f64> {
        let mut all: Vec<f64> = (0..parts)
            .flat_map(|part| Schedule::new(arrivals, rate, end, part, parts, 7).map(|at| at.as_secs_f64()))
            .collect();
        all.sort_by(f64::total_cmp);
        all
    }

    #[test]
    fn uniform_parts_interleave_to_an_even_whole() {
        for parts in 1..=5 {
            let times = merged(Arrivals::Uniform, 400.0, 3.0, parts);
            assert_eq!(times.len(), 1200, "{parts} parts");
            for (i, at) in times.iter().enumerate() {
                assert!((at - i as f64 / 400.0).abs() < 1e-8, "request {i} of {parts} parts at {at}");
            }
        }
    }

    #[test]
    fn uniform_times_do_not_drift() {
        let last = Schedule::new(Arrivals::Uniform, 3000.0, 3600.0, 0, 1, 0).last().unwrap();
        let expected = (3600.0 * 3000.0 - 1.0) / 3000.0;
        assert!((last.as_secs_f64() - expected).abs() < 1e-6, "{last:?}");
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        for parts in [1, 3] {
            let times = merged(Arrivals::Poisson, 1000.0, 200.0, parts);
            // 200,000 expected; the standard deviation is 447.
            assert!((times.len() as f64 - 200_000.0).abs() < 5.0 * 447.0, "{}", times.len());
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!(
                (variance.sqrt() / mean - 1.0).abs() < 0.02,
                "coefficient of variation {}",
                variance.sqrt() / mean
            );
            let beyond = gaps.iter().filter(|gap| **gap > 0.002).count() as f64 / gaps.len() as f64;
            assert!((beyond - (-2.0_f64).exp()).abs() < 0.005, "share of gaps beyond two means: {beyond}");
        }
    }

    #[test]
    fn the_seed_decides_poisson_times() {
        let times = |seed| Schedule::new(Arrivals::Poisson, 50.0, 10.0, 0, 1, seed).collect::<Vec<_>>();
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
