//! The server's counters of requests and connections. The engine counts decisions, and observe lanes have their own
//! counters.
//!
//! Labels are methods, checkpoints, codes, reasons and digests, and never ids.

mod latency;
mod sla;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use scorer_admission::Nanos;
use scorer_engine::{Arrival, LoadErrorKind, Rejection, RequestStep};
use scorer_http::Limit;
use tonic::Code;

use crate::config::ServerConfig;
use crate::method::Method;
pub(crate) use latency::{Exemplar, Latency};
pub(crate) use sla::{By, Miss, Sla};

/// All counters of the server.
#[derive(Debug)]
pub(crate) struct Counters {
    began: Instant,
    /// The counters of checkpoints. Index 0 is for requests that reached no checkpoint.
    checkpoints: boxcar::Vec<CheckpointCounters>,
    /// Requests that arrived. Each has been replied to or cancelled, or is in flight.
    pub(crate) arrived: AtomicU64,
    pub(crate) replied: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    /// Time at which the control plane last read the registry, in milliseconds since the Unix epoch.
    pub(crate) registry_seen_ms: AtomicU64,
    pub(crate) registry_reachable: AtomicBool,
    /// Number of bundles in the control plane's quarantine.
    pub(crate) quarantined: AtomicU64,
    pub(crate) connections: Connections,
    /// Number of times that each limit was applied.
    pub(crate) limits: [AtomicU64; Limit::COUNT],
    /// Replies of the services other than scoring, by code.
    pub(crate) auxiliary: [AtomicU64; CODES],
    pub(crate) swaps: AtomicU64,
    pub(crate) swaps_rejected: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) loads_rejected: [AtomicU64; LoadErrorKind::COUNT],
}

/// Requests of one checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointCounters {
    /// Name of the checkpoint; empty for requests that reached no configured checkpoint.
    pub(crate) name: String,
    pub(crate) sla: Sla,
    pub(crate) codes: [[AtomicU64; CODES]; Method::COUNT],
    pub(crate) latency: [Latency; Method::COUNT],
    /// Total time of inference in nanoseconds, of successes and of failures.
    took_ns: [AtomicU64; 2],
    /// End of the last inference in microseconds after `began`; 0 before the first.
    last_us: AtomicU64,
}

/// Inference at a checkpoint by all protocols: counts and total times in nanoseconds.
pub(crate) struct Totals {
    pub(crate) ok: (u64, u64),
    pub(crate) failed: (u64, u64),
    /// End of the last inference after the server's start; zero before the first.
    pub(crate) last: Duration,
}

/// Connections by the way in which they ended.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    pub(crate) open: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) no_preface: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
}

/// gRPC has the codes 0 to 16.
const CODES: usize = scorer_proto::CODE_NAMES.len();

// === impl Counters ===

impl Counters {
    pub(crate) fn new(config: &ServerConfig) -> Counters {
        let none = CheckpointCounters::new(String::new(), None);
        let named = config
            .checkpoints
            .iter()
            .map(|(name, checkpoint)| CheckpointCounters::new(name.clone(), Some(checkpoint.sla())));
        Counters {
            began: Instant::now(),
            checkpoints: std::iter::once(none).chain(named).collect(),
            arrived: AtomicU64::new(0),
            replied: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            registry_seen_ms: AtomicU64::new(0),
            registry_reachable: AtomicBool::new(false),
            quarantined: AtomicU64::new(0),
            connections: Connections::default(),
            limits: std::array::from_fn(|_| AtomicU64::new(0)),
            auxiliary: std::array::from_fn(|_| AtomicU64::new(0)),
            swaps: AtomicU64::new(0),
            swaps_rejected: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            loads_rejected: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Counts a rejected bundle.
    pub(crate) fn load_rejected(&self, kind: LoadErrorKind) {
        self.loads_rejected[kind as usize].fetch_add(1, Relaxed);
    }

    /// Counts the application of a limit.
    pub(crate) fn limited(&self, limit: Limit) {
        self.limits[limit as usize].fetch_add(1, Relaxed);
    }

    /// Counts the limit by which a request was rejected on arrival, if it was a limit.
    pub(crate) fn rejected(&self, rejection: &Rejection) {
        match rejection {
            Rejection::Overloaded { .. } => self.limited(Limit::Inflight),
            Rejection::ShareUsed { of: "peer", .. } => self.limited(Limit::InflightPerPeer),
            Rejection::ShareUsed { .. } => self.limited(Limit::InflightPerConnection),
            _ => {}
        }
    }

    /// The counters of a checkpoint, by its index.
    pub(crate) fn checkpoint(&self, index: usize) -> &CheckpointCounters {
        &self.checkpoints[index + 1]
    }

    /// Adds counters for one more checkpoint.
    pub(crate) fn add(&self, name: &str, sla: Duration) {
        self.checkpoints.push(CheckpointCounters::new(name.to_owned(), Some(sla)));
    }

    /// The counters of every checkpoint, and of requests that reached none.
    pub(crate) fn all(&self) -> impl Iterator<Item = &CheckpointCounters> {
        self.checkpoints.iter().map(|(_, counters)| counters)
    }

    /// The counters of every checkpoint.
    pub(crate) fn named(&self) -> impl Iterator<Item = &CheckpointCounters> {
        self.all().skip(1)
    }

    /// Counts a reply of a service other than scoring.
    pub(crate) fn auxiliary(&self, code: Code) {
        self.auxiliary[code as usize].fetch_add(1, Relaxed);
    }

    /// Counts the arrival of a request. [`Counters::finished`] counts its end.
    pub(crate) fn arrived(&self) {
        self.arrived.fetch_add(1, Relaxed);
    }

    /// Counts a request that has been answered or cancelled after `latency`. `exemplar` is the request itself, if it is
    /// traced.
    pub(crate) fn finished(
        &self,
        method: Method,
        arrival: &Arrival,
        code: Code,
        latency: Duration,
        exemplar: Option<&Exemplar>,
    ) {
        let end = if code == Code::Cancelled { &self.cancelled } else { &self.replied };
        end.fetch_add(1, Relaxed);
        // A request with two decisions counts at both checkpoints, under the SLAs of both together.
        let slas = arrival.steps().map(|step| self.of_step(step).sla.sla());
        let sla = slas.reduce(|sum, sla| sum.zip(sla).map(|(sum, sla)| sum.saturating_add(sla))).flatten();
        let sla = sla.filter(|_| method != Method::ScoreBatch);
        for step in arrival.steps() {
            self.finished_step(method, arrival, step, code, latency, sla, exemplar);
        }
    }

    fn of_step(&self, step: &RequestStep) -> &CheckpointCounters {
        &self.checkpoints[step.checkpoint().map_or(0, |index| index + 1)]
    }

    #[expect(clippy::too_many_arguments, reason = "the properties of a request that has ended")]
    fn finished_step(
        &self,
        method: Method,
        arrival: &Arrival,
        step: &RequestStep,
        code: Code,
        latency: Duration,
        sla: Option<Duration>,
        exemplar: Option<&Exemplar>,
    ) {
        let counters = self.of_step(step);
        counters.codes[method as usize][code as usize].fetch_add(1, Relaxed);
        counters.latency[method as usize].record(latency, exemplar);
        if let Some(delay) = arrival.queue_delay() {
            counters.sla.queue_delay.record(delay);
        }
        if method.infers() {
            let fallback = step.has_fallen_back();
            counters.sla.finished(code, latency, arrival.timeout(), fallback, sla, exemplar);
            let took = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            counters.took_ns[usize::from(code != Code::Ok)].fetch_add(took, Relaxed);
            let ended = (arrival.at + latency).saturating_duration_since(self.began);
            counters.last_us.store(u64::try_from(ended.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// Moves the counts into the windows of the error budgets.
    pub(crate) fn tick(&self, now: Nanos) {
        for counters in self.all() {
            counters.sla.budget.tick(now);
        }
    }
}

// === impl CheckpointCounters ===

impl CheckpointCounters {
    fn new(name: String, sla: Option<Duration>) -> CheckpointCounters {
        CheckpointCounters {
            name,
            sla: Sla::new(sla),
            codes: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            latency: std::array::from_fn(|_| Latency::new(sla)),
            took_ns: Default::default(),
            last_us: AtomicU64::new(0),
        }
    }

    /// Returns the totals of inference since the start.
    pub(crate) fn totals(&self) -> Totals {
        let count = |ok: bool| {
            let infers = Method::ALL.into_iter().filter(|method| method.infers());
            let codes = infers.flat_map(|method| self.codes[method as usize].iter().enumerate());
            codes.filter(|&(code, _)| (code == 0) == ok).map(|(_, count)| count.load(Relaxed)).sum()
        };
        Totals {
            ok: (count(true), self.took_ns[0].load(Relaxed)),
            failed: (count(false), self.took_ns[1].load(Relaxed)),
            last: Duration::from_micros(self.last_us.load(Relaxed)),
        }
    }
}
