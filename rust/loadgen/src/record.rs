//! What came of the requests: one record per thread, merged at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies from 1 µs to 60 s at three significant digits; beyond that they count as 60 s.
const HIGHEST_US: u64 = 60_000_000;
const DIGITS: u8 = 3;
/// Per window: enough for a plot, at a tenth of the memory.
const WINDOW_DIGITS: u8 = 2;

/// How one request ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// Answered.
    Reply {
        /// Why the model did not answer; `None` where it did.
        fallback: Option<String>,
        /// What the server says that evaluating the bundle took, microseconds.
        exec_us: Option<u32>,
    },
    /// Not answered; the gRPC status or the generator's own word.
    Error(&'static str),
}

/// One finished request.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    /// Index of its method.
    pub(crate) method: usize,
    /// Its intended send time since the measured part began.
    pub(crate) intended: Duration,
    /// From then to its end.
    pub(crate) latency: Duration,
    /// How it ended.
    pub(crate) ending: Ending,
}

/// Counts and histograms of one kind of request.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Finished requests, errors included.
    pub(crate) finished: u64,
    /// Requests that were not answered.
    pub(crate) errors: u64,
    /// Latency of the answered ones.
    pub(crate) latency: Histogram<u64>,
}

/// One window of the run.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Requests that should have been sent in it.
    pub(crate) intended: u64,
    /// Those of them not answered, or later than the SLA.
    pub(crate) misses: u64,
    /// Those not answered.
    pub(crate) errors: u64,
    /// Latency of the answered ones.
    pub(crate) latency: Histogram<u64>,
}

/// Everything measured by one thread.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    sla_us: u64,
    window: Duration,
    /// Answered by model or fallback.
    pub(crate) answered: Histogram<u64>,
    /// Answered by the model.
    pub(crate) model: Histogram<u64>,
    /// From the intended to the actual send time.
    pub(crate) send_lag: Histogram<u64>,
    /// The server's own figure.
    pub(crate) exec: Histogram<u64>,
    /// By method.
    pub(crate) methods: Vec<Tally>,
    /// By status.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// By reason.
    pub(crate) fallbacks: BTreeMap<String, u64>,
    /// In order of time.
    pub(crate) windows: Vec<Window>,
    /// Answers since the last progress report.
    pub(crate) recent: Histogram<u64>,
    /// Requests answered or failed, warm-up included.
    pub(crate) finished: u64,
}

impl Record {
    /// An empty record for so many methods and windows.
    pub(crate) fn new(methods: usize, windows: usize, window: Duration, sla: Option<Duration>) -> Record {
        let tally = Tally { finished: 0, errors: 0, latency: histogram(DIGITS) };
        let empty = Window { intended: 0, misses: 0, errors: 0, latency: histogram(WINDOW_DIGITS) };
        Record {
            sla_us: sla.map_or(u64::MAX, micros),
            window,
            answered: histogram(DIGITS),
            model: histogram(DIGITS),
            send_lag: histogram(DIGITS),
            exec: histogram(DIGITS),
            methods: vec![tally; methods],
            errors: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            windows: vec![empty; windows],
            recent: histogram(DIGITS),
            finished: 0,
        }
    }

    /// A request is on its way: how late it left.
    pub(crate) fn sent(&mut self, lag: Duration) {
        self.send_lag.saturating_record(micros(lag));
    }

    /// A request of the measured part has ended.
    pub(crate) fn finish(&mut self, done: &Finished) {
        self.finished += 1;
        let latency = micros(done.latency);
        let late = latency > self.sla_us;
        let place = (done.intended.as_secs_f64() / self.window.as_secs_f64()) as usize;
        let last = self.windows.len().saturating_sub(1);
        if let Some(window) = self.windows.get_mut(place.min(last)) {
            window.intended += 1;
            match done.ending {
                Ending::Reply { .. } => {
                    window.latency.saturating_record(latency);
                    window.misses += u64::from(late);
                }
                Ending::Error(_) => {
                    window.errors += 1;
                    window.misses += 1;
                }
            }
        }
        if let Some(tally) = self.methods.get_mut(done.method) {
            tally.finished += 1;
            match done.ending {
                Ending::Reply { .. } => tally.latency.saturating_record(latency),
                Ending::Error(_) => tally.errors += 1,
            }
        }
        match &done.ending {
            Ending::Reply { fallback, exec_us } => {
                self.answered.saturating_record(latency);
                self.recent.saturating_record(latency);
                if let Some(exec_us) = exec_us {
                    self.exec.saturating_record(u64::from(*exec_us));
                }
                match fallback {
                    None => self.model.saturating_record(latency),
                    Some(reason) => *self.fallbacks.entry(reason.clone()).or_default() += 1,
                }
            }
            Ending::Error(status) => *self.errors.entry(status).or_default() += 1,
        }
    }

    /// Adds another thread's record of the same run.
    pub(crate) fn merge(&mut self, other: &Record) {
        // Equal bounds: adding cannot fail.
        let add = |into: &mut Histogram<u64>, from: &Histogram<u64>| {
            let added = into.add(from);
            debug_assert!(added.is_ok(), "histograms of one run have one shape");
        };
        add(&mut self.answered, &other.answered);
        add(&mut self.model, &other.model);
        add(&mut self.send_lag, &other.send_lag);
        add(&mut self.exec, &other.exec);
        add(&mut self.recent, &other.recent);
        for (into, from) in self.methods.iter_mut().zip(&other.methods) {
            into.finished += from.finished;
            into.errors += from.errors;
            add(&mut into.latency, &from.latency);
        }
        for (into, from) in self.windows.iter_mut().zip(&other.windows) {
            into.intended += from.intended;
            into.misses += from.misses;
            into.errors += from.errors;
            add(&mut into.latency, &from.latency);
        }
        for (status, count) in &other.errors {
            *self.errors.entry(status).or_default() += count;
        }
        for (reason, count) in &other.fallbacks {
            *self.fallbacks.entry(reason.clone()).or_default() += count;
        }
        self.finished += other.finished;
    }
}

/// An empty histogram of latencies in microseconds.
pub(crate) fn histogram(digits: u8) -> Histogram<u64> {
    // The bounds are constants that satisfy the constructor's rules.
    Histogram::new_with_bounds(1, HIGHEST_US, digits).unwrap_or_else(|_| unreachable!("constant bounds"))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn reply(intended_ms: u64, latency_us: u64) -> Finished {
        Finished {
            method: 0,
            intended: Duration::from_millis(intended_ms),
            latency: Duration::from_micros(latency_us),
            ending: Ending::Reply { fallback: None, exec_us: Some(5) },
        }
    }

    fn record(sla_us: Option<u64>) -> Record {
        Record::new(1, 3, Duration::from_secs(1), sla_us.map(Duration::from_micros))
    }

    /// The smallest value such that at least a share `q` of all values is at or below it.
    fn naive(sorted: &[u64], q: f64) -> u64 {
        let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted[rank - 1]
    }

    #[test]
    fn percentiles_equal_a_naive_computation_to_three_digits() {
        let mut rng = Rng::new(11, 0);
        // Latencies as they are: most near 100 µs, a long tail up to seconds.
        let values: Vec<u64> = (0..100_000).map(|_| (80.0 / (1.0 - rng.unit()).powf(0.8)) as u64).collect();
        let mut parts = [record(None), record(None), record(None)];
        for (i, value) in values.iter().enumerate() {
            parts[i % 3].finish(&reply(0, *value));
        }
        let mut whole = record(None);
        for part in &parts {
            whole.merge(part);
        }
        let mut sorted = values;
        sorted.sort_unstable();
        assert_eq!(whole.answered.len(), 100_000);
        for q in [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0] {
            let (exact, measured) = (naive(&sorted, q), whole.answered.value_at_quantile(q));
            let error = measured.abs_diff(exact) as f64 / exact as f64;
            assert!(error <= 0.001, "q {q}: {measured} is not {exact}");
        }
        let mean = sorted.iter().sum::<u64>() as f64 / sorted.len() as f64;
        assert!((whole.answered.mean() / mean - 1.0).abs() < 0.001);
    }

    #[test]
    fn beyond_a_minute_is_a_minute() {
        let mut one = record(None);
        one.finish(&reply(0, 600_000_000));
        assert!((60_000_000..60_100_000).contains(&one.answered.max()), "{}", one.answered.max());
    }

    #[test]
    fn a_request_belongs_to_the_window_it_should_have_been_sent_in() {
        let mut one = record(Some(1000));
        one.finish(&reply(0, 1000));
        one.finish(&reply(999, 5_000_000));
        one.finish(&reply(1000, 1001));
        one.finish(&Finished { ending: Ending::Error("overflow"), ..reply(2999, 0) });
        // Rounding of the last intended time must not open a fourth window.
        one.finish(&reply(3000, 1));
        let counts: Vec<_> = one.windows.iter().map(|w| (w.intended, w.misses, w.errors)).collect();
        assert_eq!(counts, [(2, 1, 0), (1, 1, 0), (2, 1, 1)]);
        assert_eq!(one.errors["overflow"], 1);
        assert_eq!(one.answered.len(), 4);
        assert_eq!((one.methods[0].finished, one.methods[0].errors), (5, 1));
    }

    #[test]
    fn a_fallback_is_an_answer_but_not_the_models() {
        let mut one = record(Some(1000));
        let ending = Ending::Reply { fallback: Some("deadline".into()), exec_us: None };
        one.finish(&Finished { ending, ..reply(0, 500) });
        one.finish(&reply(0, 100));
        assert_eq!((one.answered.len(), one.model.len(), one.exec.len()), (2, 1, 1));
        assert_eq!(one.fallbacks["deadline"], 1);
        assert_eq!(one.windows[0].misses, 0);
    }
}
