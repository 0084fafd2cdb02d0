//! When each request should be sent. Knows nothing of replies, or of the clock.

use std::time::Duration;

use crate::config::Arrivals;
use crate::rng::Rng;

/// A stretch of time at one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    /// Seconds.
    pub(crate) seconds: f64,
    /// Requests per second of one caller over all threads; 0 is silence.
    pub(crate) rate: f64,
}

/// One thread's part of one caller's schedule: intended send times since the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    arrivals: Arrivals,
    stretches: std::vec::IntoIter<Stretch>,
    now: Stretch,
    /// Seconds from the run's start to the present stretch.
    start: f64,
    part: f64,
    parts: f64,
    index: u64,
    /// Seconds into the present stretch (Poisson arrivals).
    elapsed: f64,
    rng: Rng,
}

impl Schedule {
    /// Part `part` of `parts` of a schedule of one stretch after the other. `stream` distinguishes callers:
    /// each has its own randomness.
    pub(crate) fn new(
        arrivals: Arrivals,
        stretches: Vec<Stretch>,
        (part, parts): (usize, usize),
        seed: u64,
        stream: u64,
    ) -> Schedule {
        Schedule {
            arrivals,
            stretches: stretches.into_iter(),
            now: Stretch { seconds: 0.0, rate: 0.0 },
            start: 0.0,
            part: part as f64,
            parts: parts as f64,
            index: 0,
            elapsed: 0.0,
            rng: Rng::new(seed, stream << 16 | (part as u64 + 1)),
        }
    }

    /// The next time within the present stretch, relative to its start.
    fn within(&mut self) -> Option<f64> {
        if self.now.rate <= 0.0 {
            return None;
        }
        let at = match self.arrivals {
            // By multiplication: a running sum would drift over a long run.
            Arrivals::Uniform => (self.part + self.index as f64 * self.parts) / self.now.rate,
            Arrivals::Poisson => {
                // The sum of independent Poisson streams is one of the sum of their rates, and one that is
                // cut off and begun anew is still one: it has no memory.
                self.elapsed -= (1.0 - self.rng.unit()).ln() * self.parts / self.now.rate;
                self.elapsed
            }
        };
        self.index += 1;
        (at < self.now.seconds).then_some(at)
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        loop {
            if let Some(at) = self.within() {
                return Some(Duration::from_secs_f64(self.start + at));
            }
            self.start += self.now.seconds;
            self.now = self.stretches.next()?;
            (self.index, self.elapsed) = (0, 0.0);
        }
    }
}

/// The schedules of several callers as one, in order of time; each time with its caller's number.
pub(crate) struct Merged(Vec<(Option<Duration>, Schedule)>);

impl Merged {
    pub(crate) fn new(schedules: Vec<Schedule>) -> Merged {
        Merged(schedules.into_iter().map(|mut schedule| (schedule.next(), schedule)).collect())
    }
}

impl Iterator for Merged {
    type Item = (Duration, usize);

    fn next(&mut self) -> Option<(Duration, usize)> {
        let due = |(caller, (next, _)): (usize, &(Option<Duration>, Schedule))| Some(((*next)?, caller));
        // A few callers: looking at each is quicker than a heap.
        let (at, caller) = self.0.iter().enumerate().filter_map(due).min()?;
        let (next, schedule) = &mut self.0[caller];
        *next = schedule.next();
        Some((at, caller))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(seconds: f64, rate: f64) -> Stretch {
        Stretch { seconds, rate }
    }

    fn merged(arrivals: Arrivals, stretches: &[Stretch], parts: usize) -> Vec<f64> {
        let of = |part| Schedule::new(arrivals, stretches.to_vec(), (part, parts), 7, 0);
        let mut all: Vec<f64> = (0..parts).flat_map(|part| of(part).map(|at| at.as_secs_f64())).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    #[test]
    fn uniform_parts_interleave_to_an_even_whole() {
        for parts in 1..=5 {
            let times = merged(Arrivals::Uniform, &[stretch(3.0, 400.0)], parts);
            assert_eq!(times.len(), 1200, "{parts} parts");
            for (i, at) in times.iter().enumerate() {
                assert!((at - i as f64 / 400.0).abs() < 1e-8, "request {i} of {parts} parts at {at}");
            }
        }
    }

    #[test]
    fn uniform_times_do_not_drift() {
        let one = vec![stretch(3600.0, 3000.0)];
        let last = Schedule::new(Arrivals::Uniform, one, (0, 1), 0, 0).last().unwrap();
        let expected = (3600.0 * 3000.0 - 1.0) / 3000.0;
        assert!((last.as_secs_f64() - expected).abs() < 1e-6, "{last:?}");
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        for (parts, stretches) in
            [(1, vec![stretch(200.0, 1000.0)]), (3, vec![stretch(80.5, 1000.0), stretch(119.5, 1000.0)])]
        {
            let times = merged(Arrivals::Poisson, &stretches, parts);
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
    fn the_rate_follows_its_steps() {
        let steps = [stretch(2.0, 100.0), stretch(1.0, 0.0), stretch(0.5, 1000.0), stretch(1.0, 50.0)];
        for parts in [1, 3] {
            let times = merged(Arrivals::Uniform, &steps, parts);
            let between = |from: f64, to: f64| times.iter().filter(|at| (from..to).contains(*at)).count();
            assert_eq!(
                [between(0.0, 2.0), between(2.0, 3.0), between(3.0, 3.5), between(3.5, 4.5)],
                [200, 0, 500, 50]
            );
            assert_eq!(times.len(), 750);
        }
    }

    #[test]
    fn callers_are_merged_in_order_of_time() {
        let one =
            |rate, stream| Schedule::new(Arrivals::Poisson, vec![stretch(10.0, rate)], (0, 1), 3, stream);
        let both: Vec<_> = Merged::new(vec![one(100.0, 0), one(2000.0, 1)]).collect();
        assert!(both.is_sorted_by_key(|(at, _)| *at));
        for (caller, rate) in [(0, 100.0), (1, 2000.0)] {
            let its: Vec<_> = both.iter().filter(|(_, of)| *of == caller).map(|(at, _)| *at).collect();
            assert_eq!(its, one(rate, caller as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_seed_decides_poisson_times() {
        let times = |seed| {
            Schedule::new(Arrivals::Poisson, vec![stretch(10.0, 50.0)], (0, 1), seed, 0).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
