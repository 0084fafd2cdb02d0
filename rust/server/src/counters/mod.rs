//! What the server counts of requests and connections. The engine counts decisions, observe lanes count their own.
//!
//! Labels are methods, checkpoints, codes, reasons and digests; never an id.

mod sla;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use scorer_admission::Nanos;
use scorer_engine::{Arrival, Histogram, LoadErrorKind, Rejection};
use scorer_http::Limit;
use tonic::Code;

use crate::config::ServerConfig;
use crate::method::Method;
pub(crate) use sla::{By, Miss, Sla};

/// Everything that the server counts.
#[derive(Debug)]
pub(crate) struct Counters {
    began: Instant,
    /// Index 0 is for requests that reached no checkpoint.
    checkpoints: boxcar::Vec<CheckpointCounters>,
    /// Requests that came in; each of them is replied to or cancelled, or still in flight.
    pub(crate) arrived: AtomicU64,
    pub(crate) replied: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    /// When the control plane could read the registry last, milliseconds since the Unix epoch, and whether it can.
    pub(crate) registry_seen_ms: AtomicU64,
    pub(crate) registry_reachable: AtomicBool,
    /// Bundles that the control plane keeps in quarantine.
    pub(crate) quarantined: AtomicU64,
    pub(crate) connections: Connections,
    /// How often each limit acted.
    pub(crate) limits: [AtomicU64; Limit::COUNT],
    /// Replies of the services beside scoring, by code.
    pub(crate) auxiliary: [AtomicU64; CODES],
    pub(crate) swaps: AtomicU64,
    pub(crate) swaps_rejected: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) loads_rejected: [AtomicU64; LoadErrorKind::COUNT],
}

/// Requests of one checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointCounters {
    /// Empty for requests that reached no configured checkpoint.
    pub(crate) name: String,
    pub(crate) sla: Sla,
    pub(crate) codes: [[AtomicU64; CODES]; Method::COUNT],
    pub(crate) latency: [Histogram; Method::COUNT],
    /// Nanoseconds that inference took, where it succeeded and where it failed.
    took_ns: [AtomicU64; 2],
    /// When the last inference ended, microseconds after `began`; 0 before the first.
    last_us: AtomicU64,
}

/// Inference at a checkpoint by all protocols: counts with their nanoseconds.
pub(crate) struct Totals {
    pub(crate) ok: (u64, u64),
    pub(crate) failed: (u64, u64),
    /// When the last one ended, after the start; zero before the first.
    pub(crate) last: Duration,
}

/// Connections by how they ended.
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

    /// A bundle was rejected.
    pub(crate) fn load_rejected(&self, kind: LoadErrorKind) {
        self.loads_rejected[kind as usize].fetch_add(1, Relaxed);
    }

    /// A limit acted.
    pub(crate) fn limited(&self, limit: Limit) {
        self.limits[limit as usize].fetch_add(1, Relaxed);
    }

    /// A request was rejected on arrival; counts the limit if it was one.
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

    /// Zeros for one checkpoint more.
    pub(crate) fn add(&self, name: &str, sla: Duration) {
        self.checkpoints.push(CheckpointCounters::new(name.to_owned(), Some(sla)));
    }

    /// Those of every checkpoint, and of requests that reached none.
    pub(crate) fn all(&self) -> impl Iterator<Item = &CheckpointCounters> {
        self.checkpoints.iter().map(|(_, counters)| counters)
    }

    /// Those of every checkpoint.
    pub(crate) fn named(&self) -> impl Iterator<Item = &CheckpointCounters> {
        self.all().skip(1)
    }

    /// A service beside scoring has replied.
    pub(crate) fn auxiliary(&self, code: Code) {
        self.auxiliary[code as usize].fetch_add(1, Relaxed);
    }

    /// A request has come in; [`Counters::finished`] is its other half.
    pub(crate) fn arrived(&self) {
        self.arrived.fetch_add(1, Relaxed);
    }

    /// A request has been answered or cancelled.
    pub(crate) fn finished(&self, method: Method, arrival: &Arrival, code: Code) {
        let counters = &self.checkpoints[arrival.checkpoint().map_or(0, |index| index + 1)];
        let latency = arrival.at.elapsed();
        counters.codes[method as usize][code as usize].fetch_add(1, Relaxed);
        counters.latency[method as usize].record(latency);
        let end = if code == Code::Cancelled { &self.cancelled } else { &self.replied };
        end.fetch_add(1, Relaxed);
        if let Some(delay) = arrival.queue_delay() {
            counters.sla.queue_delay.record(delay);
        }
        if method.infers() {
            let single_row = method != Method::ScoreBatch;
            let fallback = arrival.has_fallen_back();
            counters.sla.finished(code, latency, arrival.timeout(), fallback, single_row);
            let took = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            counters.took_ns[usize::from(code != Code::Ok)].fetch_add(took, Relaxed);
            let ended = (arrival.at + latency).saturating_duration_since(self.began);
            counters.last_us.store(u64::try_from(ended.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// Moves what was counted into the error budgets' windows.
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
            latency: std::array::from_fn(|_| Histogram::new(sla)),
            took_ns: Default::default(),
            last_us: AtomicU64::new(0),
        }
    }

    /// Inference since the start.
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
