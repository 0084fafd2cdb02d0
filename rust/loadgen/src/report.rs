//! The report at the end of a run, and once per second before.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::config::{Caller, LoadConfig, Step};
use crate::record::{Record, Tally};

/// Shares at which the latency curve is given; the tail in detail.
const CURVE: [f64; 20] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9995, 0.9999,
    0.99995, 0.99999, 1.0,
];

/// Figures of one histogram, microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of values; the other fields are 0 where it is.
    pub count: u64,
    /// Smallest.
    pub min: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest.
    pub max: u64,
}

impl Summary {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Summary {
        if histogram.is_empty() {
            return Summary::default();
        }
        let at = |share| histogram.value_at_quantile(share);
        Summary {
            count: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
        }
    }
}

/// One window of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WindowReport {
    /// Its start, seconds since the measured part began.
    pub start: f64,
    /// Requests that should have been sent in it.
    pub intended: u64,
    /// Those of them later than the SLA or not answered.
    pub misses: u64,
    /// Those not answered.
    pub errors: u64,
    /// Those answered in time, but by a fallback.
    pub fallbacks: u64,
    /// Latency of the answered ones, to two digits.
    pub latency_us: Summary,
}

/// One caller of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallerReport {
    /// Its name.
    pub name: String,
    /// In order of time.
    pub steps: Vec<StepReport>,
}

/// One caller's part of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepReport {
    /// Its start, seconds since the measured part began.
    pub start: f64,
    /// Its length.
    pub seconds: f64,
    /// Requests per second that were due.
    pub rate: f64,
    /// Requests that were due, without the cancelled ones.
    pub requests: u64,
    /// Those of them later than the SLA or not answered.
    pub misses: u64,
    /// Those not answered.
    pub errors: u64,
    /// Those answered in time, but by a fallback.
    pub fallbacks: u64,
    /// Latency of the answered ones.
    pub latency_us: Summary,
}

/// One method of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MethodReport {
    /// Its name.
    pub name: String,
    /// Finished requests.
    pub requests: u64,
    /// Those not answered.
    pub errors: u64,
    /// Latency of the answered ones.
    pub latency_us: Summary,
}

/// The whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The settings of the run.
    pub config: LoadConfig,
    /// Requests of the measured part that the schedule had, all of them finished one way or another.
    pub requests: u64,
    /// Of them, sent at all (the others overflowed).
    pub sent: u64,
    /// Of them, answered.
    pub answered: u64,
    /// Of them, later than the SLA or not answered.
    pub misses: u64,
    /// Not answered, by gRPC status or the generator's own word: `overflow`, `not_connected`,
    /// `client_timeout`.
    pub errors: BTreeMap<String, u64>,
    /// Called off on purpose before a reply came; no misses.
    pub cancelled: u64,
    /// Answered by a fallback, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// From the intended send time to the reply, model and fallback.
    pub latency_us: Summary,
    /// The same of model answers alone.
    pub model_latency_us: Summary,
    /// From the intended to the actual send time: the generator's own health.
    pub send_lag_us: Summary,
    /// The server's figure for evaluating the bundle.
    pub server_exec_us: Summary,
    /// `[share, microseconds]` along the latency curve.
    pub curve: Vec<(f64, u64)>,
    /// By method.
    pub methods: Vec<MethodReport>,
    /// By caller and step.
    pub callers: Vec<CallerReport>,
    /// In order of time.
    pub windows: Vec<WindowReport>,
    /// True if the run was ended early.
    pub interrupted: bool,
}

impl Report {
    pub(crate) fn of(config: &LoadConfig, record: &Record, interrupted: bool) -> Report {
        let sum = |count: fn(&Tally) -> u64| record.windows.iter().map(count).sum();
        Report {
            config: config.clone(),
            requests: sum(|window| window.requests) + record.cancelled,
            sent: record.send_lag.len(),
            answered: record.answered.len(),
            misses: sum(|window| window.misses),
            errors: record.errors.iter().map(|(status, count)| ((*status).to_owned(), *count)).collect(),
            cancelled: record.cancelled,
            fallbacks: record.fallbacks.clone(),
            latency_us: Summary::of(&record.answered),
            model_latency_us: Summary::of(&record.model),
            send_lag_us: Summary::of(&record.send_lag),
            server_exec_us: Summary::of(&record.exec),
            curve: if record.answered.is_empty() {
                Vec::new()
            } else {
                CURVE.iter().map(|share| (*share, record.answered.value_at_quantile(*share))).collect()
            },
            methods: config
                .methods
                .iter()
                .zip(&record.methods)
                .map(|(method, tally)| MethodReport {
                    name: method.name.clone(),
                    requests: tally.requests,
                    errors: tally.errors,
                    latency_us: Summary::of(&tally.latency),
                })
                .collect(),
            callers: callers(config, record),
            windows: record
                .windows
                .iter()
                .enumerate()
                .map(|(i, window)| WindowReport {
                    start: i as f64 * config.window_seconds,
                    intended: window.requests,
                    misses: window.misses,
                    errors: window.errors,
                    fallbacks: window.fallbacks,
                    latency_us: Summary::of(&window.latency),
                })
                .collect(),
            interrupted,
        }
    }
}

fn callers(config: &LoadConfig, record: &Record) -> Vec<CallerReport> {
    let steps = config.steps();
    let of = |caller: &Caller, tallies: &[Tally]| {
        let mut start = 0.0;
        let report = |(i, (step, tally)): (usize, (&Step, &Tally))| {
            let begun = start;
            start += step.seconds;
            StepReport {
                start: begun,
                seconds: step.seconds,
                rate: config.rate * step.load * caller.load(i),
                requests: tally.requests,
                misses: tally.misses,
                errors: tally.errors,
                fallbacks: tally.fallbacks,
                latency_us: Summary::of(&tally.latency),
            }
        };
        let steps = steps.iter().zip(tallies).enumerate().map(report).collect();
        CallerReport { name: caller.name.clone(), steps }
    };
    config.callers().iter().zip(&record.callers).map(|(caller, tallies)| of(caller, tallies)).collect()
}

/// What is known once per second during a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Seconds since the first request, warm-up included.
    pub elapsed: f64,
    /// Whether the warm-up is still on.
    pub warming_up: bool,
    /// Requests finished since the last report, warm-up excluded.
    pub finished: u64,
    /// Requests not answered so far.
    pub errors: u64,
    /// Answered by a fallback so far.
    pub fallbacks: u64,
    /// 99th percentile so far of how late requests were sent, microseconds.
    pub send_lag_p99_us: u64,
    /// Latency of the answers since the last report.
    pub latency_us: Summary,
}
