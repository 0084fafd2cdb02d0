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
        /// The evaluation time that the server reports, microseconds.
        exec_us: Option<u32>,
    },
    /// Not answered; the gRPC status or the generator's own word.
    Error(&'static str),
    /// Called off by the generator, on purpose.
    Cancelled,
}

/// One finished request.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    /// Index of its method.
    pub(crate) method: usize,
    /// Index of its caller.
    pub(crate) caller: usize,
    /// Its intended send time since the measured part began.
    pub(crate) intended: Duration,
    /// From then to its end.
    pub(crate) latency: Duration,
    /// How it ended.
    pub(crate) ending: Ending,
}

/// Counts and latencies of a part of the requests.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Requests that were due and not cancelled, however they ended.
    pub(crate) requests: u64,
    /// Those of them not answered, or later than the SLA.
    pub(crate) misses: u64,
    /// Those not answered.
    pub(crate) errors: u64,
    /// Those answered in time, but by a fallback.
    pub(crate) fallbacks: u64,
    /// Latency of the answered ones.
    pub(crate) latency: Histogram<u64>,
}

impl Tally {
    fn new(digits: u8) -> Tally {
        Tally { requests: 0, misses: 0, errors: 0, fallbacks: 0, latency: histogram(digits) }
    }

    fn count(&mut self, latency: u64, late: bool, ending: &Ending) {
        match ending {
            Ending::Cancelled => return,
            Ending::Reply { fallback, .. } => {
                self.latency.saturating_record(latency);
                self.misses += u64::from(late);
                self.fallbacks += u64::from(fallback.is_some() && !late);
            }
            Ending::Error(_) => {
                self.errors += 1;
                self.misses += 1;
            }
        }
        self.requests += 1;
    }

    fn merge(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.misses += other.misses;
        self.errors += other.errors;
        self.fallbacks += other.fallbacks;
        add(&mut self.latency, &other.latency);
    }
}

/// How a run's record is divided.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    /// Number of methods.
    pub(crate) methods: usize,
    /// Number of callers.
    pub(crate) callers: usize,
    /// When each step ends, since the measured part began.
    pub(crate) step_ends: Vec<Duration>,
    /// Number of windows.
    pub(crate) windows: usize,
    /// Length of a window.
    pub(crate) window: Duration,
    /// What counts as late.
    pub(crate) sla: Option<Duration>,
}

/// Everything measured by one thread.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    sla_us: u64,
    window: Duration,
    step_ends: Vec<Duration>,
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
    /// By caller, and by step within.
    pub(crate) callers: Vec<Vec<Tally>>,
    /// By status.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// By reason.
    pub(crate) fallbacks: BTreeMap<String, u64>,
    /// Called off on purpose.
    pub(crate) cancelled: u64,
    /// In order of time.
    pub(crate) windows: Vec<Tally>,
    /// Answers since the last progress report.
    pub(crate) recent: Histogram<u64>,
    /// Requests answered or failed, warm-up included.
    pub(crate) finished: u64,
}

impl Record {
    /// An empty record.
    pub(crate) fn new(division: &Division) -> Record {
        Record {
            sla_us: division.sla.map_or(u64::MAX, micros),
            window: division.window,
            step_ends: division.step_ends.clone(),
            answered: histogram(DIGITS),
            model: histogram(DIGITS),
            send_lag: histogram(DIGITS),
            exec: histogram(DIGITS),
            methods: vec![Tally::new(DIGITS); division.methods],
            callers: vec![vec![Tally::new(DIGITS); division.step_ends.len()]; division.callers],
            errors: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            cancelled: 0,
            windows: vec![Tally::new(WINDOW_DIGITS); division.windows],
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
        let count = |tally: Option<&mut Tally>| {
            if let Some(tally) = tally {
                tally.count(latency, late, &done.ending);
            }
        };
        let place = (done.intended.as_secs_f64() / self.window.as_secs_f64()) as usize;
        // Rounding of the last intended time must not open one window, or one step, more.
        let last = self.windows.len().saturating_sub(1);
        count(self.windows.get_mut(place.min(last)));
        count(self.methods.get_mut(done.method));
        let step = self.step_ends.iter().position(|end| done.intended < *end);
        let step = step.unwrap_or(self.step_ends.len().saturating_sub(1));
        count(self.callers.get_mut(done.caller).and_then(|steps| steps.get_mut(step)));
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
            Ending::Cancelled => self.cancelled += 1,
        }
    }

    /// Adds another thread's record of the same run.
    pub(crate) fn merge(&mut self, other: &Record) {
        add(&mut self.answered, &other.answered);
        add(&mut self.model, &other.model);
        add(&mut self.send_lag, &other.send_lag);
        add(&mut self.exec, &other.exec);
        add(&mut self.recent, &other.recent);
        for (into, from) in self.methods.iter_mut().zip(&other.methods) {
            into.merge(from);
        }
        for (into, from) in self.callers.iter_mut().flatten().zip(other.callers.iter().flatten()) {
            into.merge(from);
        }
        for (into, from) in self.windows.iter_mut().zip(&other.windows) {
            into.merge(from);
        }
        self.cancelled += other.cancelled;
        for (status, count) in &other.errors {
            *self.errors.entry(status).or_default() += count;
        }
        for (reason, count) in &other.fallbacks {
            *self.fallbacks.entry(reason.clone()).or_default() += count;
        }
        self.finished += other.finished;
    }
}

/// Adds a histogram of the same run.
fn add(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    // Equal bounds: adding cannot fail.
    let added = into.add(from);
    debug_assert!(added.is_ok(), "histograms of one run have one shape");
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
            caller: 0,
            intended: Duration::from_millis(intended_ms),
            latency: Duration::from_micros(latency_us),
            ending: Ending::Reply { fallback: None, exec_us: Some(5) },
        }
    }

    fn record(sla_us: Option<u64>) -> Record {
        Record::new(&Division {
            methods: 1,
            callers: 2,
            step_ends: vec![Duration::from_millis(1500), Duration::from_secs(3)],
            windows: 3,
            window: Duration::from_secs(1),
            sla: sla_us.map(Duration::from_micros),
        })
    }

    /// The smallest value such that at least a share `q` of all values is at or below it.
    fn naive(sorted: &[u64], q: f64) -> u64 {
        let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted[rank - 1]
    }

    #[test]
    fn percentiles_equal_a_naive_computation_to_three_digits() {
        let mut rng = Rng::new(11, 0);
        // Typical latencies: most are near 100 µs, with a long tail up to seconds.
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
        one.finish(&reply(3000, 1));
        let counts: Vec<_> = one.windows.iter().map(|w| (w.requests, w.misses, w.errors)).collect();
        assert_eq!(counts, [(2, 1, 0), (1, 1, 0), (2, 1, 1)]);
        assert_eq!(one.errors["overflow"], 1);
        assert_eq!(one.answered.len(), 4);
        assert_eq!((one.methods[0].requests, one.methods[0].errors), (5, 1));
        let steps: Vec<_> = one.callers[0].iter().map(|step| (step.requests, step.misses)).collect();
        assert_eq!(steps, [(3, 2), (2, 1)]);
        assert_eq!(one.callers[1][0].requests, 0);
    }

    #[test]
    fn a_fallback_is_an_answer_but_not_the_models() {
        let mut one = record(Some(1000));
        let ending = Ending::Reply { fallback: Some("deadline".into()), exec_us: None };
        one.finish(&Finished { ending, ..reply(0, 500) });
        one.finish(&reply(0, 100));
        assert_eq!((one.answered.len(), one.model.len(), one.exec.len()), (2, 1, 1));
        assert_eq!(one.fallbacks["deadline"], 1);
        assert_eq!((one.windows[0].misses, one.windows[0].fallbacks), (0, 1));
        // A late answer is a miss too.
        let ending = Ending::Reply { fallback: Some("deadline".into()), exec_us: None };
        one.finish(&Finished { ending, ..reply(0, 1500) });
        assert_eq!((one.windows[0].misses, one.windows[0].fallbacks), (1, 1));
        assert_eq!(one.fallbacks["deadline"], 2);
    }

    #[test]
    fn a_cancelled_request_is_neither_answered_nor_missed() {
        let mut one = record(Some(1000));
        one.finish(&Finished { ending: Ending::Cancelled, caller: 1, ..reply(2000, 9000) });
        assert_eq!((one.cancelled, one.finished, one.answered.len()), (1, 1, 0));
        assert_eq!((one.windows[2].requests, one.windows[2].misses), (0, 0));
        assert_eq!(one.callers[1][1].requests, 0);
    }
}
