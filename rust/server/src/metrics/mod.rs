//! Counters of the data plane: atomics that requests add to, read only when somebody scrapes.
//!
//! Labels are methods, checkpoints, codes, reasons and digests; never an id.

mod enforced;
mod expose;
mod histogram;
pub(crate) mod http;
mod observe;
mod shadow;
mod sla;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use scorer_admission::Nanos;
use tonic::Code;

use crate::answer::arrive::Arrival;
use crate::config::ServerConfig;
use crate::error::Refused;
pub(crate) use expose::render;
pub(crate) use histogram::Histogram;
use sla::{By, Miss, Sla};

/// The methods that are counted: those of the scoring service, and inference by the open protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Score,
    ScoreBatch,
    SelectAction,
    ReportOutcome,
    Describe,
    Noop,
    /// `inference.GRPCInferenceService`.
    ModelInfer,
    /// One message of such a stream.
    ModelStreamInfer,
    /// `ShadowService`.
    Observe,
    /// A path of the service that is none of its methods.
    Unknown,
}

/// Why the model did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Evaluation panicked.
    Panic,
    /// A score was NaN or infinite.
    NonFinite,
    /// The evaluation refused what the stages before should have refused.
    Error,
    /// The decision log cannot keep the propensity.
    Log,
    /// No decision log is configured.
    LogOff,
    /// The evaluation could not be done in time.
    Late,
    /// The request was shed.
    Overload,
    /// The bundle's breaker is open, and nothing else is in memory.
    Breaker,
    /// The same, and the bundle before it answered.
    Previous,
    /// The fallback has reached its exposure cap.
    Cap,
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    began: Instant,
    /// Index 0 is for requests that reached no configured checkpoint.
    checkpoints: Box<[CheckpointMetrics]>,
    /// Requests that came in; each of them is replied to or cancelled, or still in flight.
    arrived: AtomicU64,
    /// When the control plane could read the registry last, milliseconds since the Unix epoch, and whether it can.
    pub(crate) registry_seen_ms: AtomicU64,
    pub(crate) registry_reachable: AtomicBool,
    replied: AtomicU64,
    cancelled: AtomicU64,
    pub(crate) connections: Connections,
    /// Replies of the services beside scoring, by code.
    auxiliary: [AtomicU64; CODES],
    pub(crate) panics: AtomicU64,
    pub(crate) swaps: AtomicU64,
    pub(crate) swaps_refused: AtomicU64,
    pub(crate) loads: AtomicU64,
    loads_refused: [AtomicU64; Refused::COUNT],
    pub(crate) replays: AtomicU64,
    /// Decisions that were answered and are not in the log.
    pub(crate) unlogged: AtomicU64,
}

/// One checkpoint's share.
#[derive(Debug)]
pub(crate) struct CheckpointMetrics {
    name: String,
    pub(crate) sla: Sla,
    codes: [[AtomicU64; CODES]; Method::COUNT],
    latency: [Histogram; Method::COUNT],
    /// Nanoseconds that inference took, where it succeeded and where it failed.
    took_ns: [AtomicU64; 2],
    /// When the last inference ended, microseconds after `began`; 0 before the first.
    last_us: AtomicU64,
    pub(crate) exec: Histogram,
    pub(crate) rows: AtomicU64,
    fallbacks: [AtomicU64; Reason::COUNT],
}

/// What inference at a checkpoint came to, by whichever protocol: counts with their nanoseconds.
pub(crate) struct Totals {
    pub(crate) ok: (u64, u64),
    pub(crate) failed: (u64, u64),
    pub(crate) exec: (u64, u64),
    pub(crate) rows: u64,
    /// When the last one ended, after the start; zero before the first.
    pub(crate) last: Duration,
}

/// The transport's share.
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

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new(config: &ServerConfig) -> Metrics {
        let none = CheckpointMetrics::new(String::new(), None);
        let named = config
            .checkpoints
            .iter()
            .map(|(name, it)| CheckpointMetrics::new(name.clone(), Some(it.budget())));
        Metrics {
            began: Instant::now(),
            checkpoints: std::iter::once(none).chain(named).collect(),
            arrived: AtomicU64::new(0),
            registry_seen_ms: AtomicU64::new(0),
            registry_reachable: AtomicBool::new(false),
            replied: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            connections: Connections::default(),
            auxiliary: std::array::from_fn(|_| AtomicU64::new(0)),
            panics: AtomicU64::new(0),
            swaps: AtomicU64::new(0),
            swaps_refused: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            loads_refused: std::array::from_fn(|_| AtomicU64::new(0)),
            replays: AtomicU64::new(0),
            unlogged: AtomicU64::new(0),
        }
    }

    /// A bundle was not taken in.
    pub(crate) fn refused(&self, reason: Refused) {
        self.loads_refused[reason as usize].fetch_add(1, Relaxed);
    }

    /// The counters of a configured checkpoint, by its index.
    pub(crate) fn checkpoint(&self, index: usize) -> &CheckpointMetrics {
        &self.checkpoints[index + 1]
    }

    /// A service beside scoring has replied.
    pub(crate) fn auxiliary(&self, code: Code) {
        self.auxiliary[code as usize].fetch_add(1, Relaxed);
    }

    /// One request has been answered or given up.
    pub(crate) fn finished(&self, arrival: &Arrival, code: Code) {
        let it = &self.checkpoints[arrival.checkpoint().map_or(0, |index| index + 1)];
        let latency = arrival.at.elapsed();
        it.codes[arrival.method as usize][code as usize].fetch_add(1, Relaxed);
        it.latency[arrival.method as usize].record(latency);
        let end = if code == Code::Cancelled { &self.cancelled } else { &self.replied };
        end.fetch_add(1, Relaxed);
        if let Some(delay) = arrival.queue_delay() {
            it.sla.queue_delay.record(delay);
        }
        if arrival.method.infers() {
            let promised = arrival.method != Method::ScoreBatch;
            it.sla.finished(code, latency, arrival.timeout(), arrival.has_fallen_back(), promised);
            let took = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            it.took_ns[usize::from(code != Code::Ok)].fetch_add(took, Relaxed);
            let ended = (arrival.at + latency).saturating_duration_since(self.began);
            it.last_us.store(u64::try_from(ended.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// Moves what was counted into the error budgets' windows.
    pub(crate) fn tick(&self, now: Nanos) {
        for it in &self.checkpoints {
            it.sla.budget.tick(now);
        }
    }

    /// A request has come in; [`Metrics::finished`] is its other half.
    pub(crate) fn arrived(&self) {
        self.arrived.fetch_add(1, Relaxed);
    }
}

// === impl CheckpointMetrics ===

impl CheckpointMetrics {
    fn new(name: String, promise: Option<Duration>) -> CheckpointMetrics {
        CheckpointMetrics {
            name,
            sla: Sla::new(promise),
            codes: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            latency: std::array::from_fn(|_| Histogram::new(promise)),
            took_ns: Default::default(),
            last_us: AtomicU64::new(0),
            exec: Histogram::new(promise),
            rows: AtomicU64::new(0),
            fallbacks: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// What inference came to so far.
    pub(crate) fn totals(&self) -> Totals {
        let count = |ok: bool| {
            let infers = Method::ALL.into_iter().filter(|method| method.infers());
            let codes = infers.flat_map(|method| self.codes[method as usize].iter().enumerate());
            codes.filter(|&(code, _)| (code == 0) == ok).map(|(_, count)| count.load(Relaxed)).sum()
        };
        let (exec_seconds, exec_count, _) = self.exec.read();
        Totals {
            ok: (count(true), self.took_ns[0].load(Relaxed)),
            failed: (count(false), self.took_ns[1].load(Relaxed)),
            exec: (exec_count, (exec_seconds * 1e9) as u64),
            rows: self.rows.load(Relaxed),
            last: Duration::from_micros(self.last_us.load(Relaxed)),
        }
    }

    /// `count` answers did not come from the model.
    pub(crate) fn fell_back(&self, reason: Reason, count: u64) {
        self.fallbacks[reason as usize].fetch_add(count, Relaxed);
    }
}

// === impl Method ===

impl Method {
    const COUNT: usize = 10;
    const ALL: [Method; Method::COUNT] = [
        Method::Score,
        Method::ScoreBatch,
        Method::SelectAction,
        Method::ReportOutcome,
        Method::Describe,
        Method::Noop,
        Method::ModelInfer,
        Method::ModelStreamInfer,
        Method::Observe,
        Method::Unknown,
    ];

    /// From the last part of a request's path to the scoring service.
    pub(crate) fn from_name(name: &str) -> Method {
        match name {
            "Score" => Method::Score,
            "ScoreBatch" => Method::ScoreBatch,
            "SelectAction" => Method::SelectAction,
            "ReportOutcome" => Method::ReportOutcome,
            "Describe" => Method::Describe,
            "Noop" => Method::Noop,
            _ => Method::Unknown,
        }
    }

    /// Whether it answers with the bundle.
    pub(crate) fn infers(self) -> bool {
        match self {
            Method::Score
            | Method::ScoreBatch
            | Method::SelectAction
            | Method::ModelInfer
            | Method::ModelStreamInfer => true,
            Method::ReportOutcome | Method::Describe | Method::Noop | Method::Observe | Method::Unknown => {
                false
            }
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Method::Score => "Score",
            Method::ScoreBatch => "ScoreBatch",
            Method::SelectAction => "SelectAction",
            Method::ReportOutcome => "ReportOutcome",
            Method::Describe => "Describe",
            Method::Noop => "Noop",
            Method::ModelInfer => "ModelInfer",
            Method::ModelStreamInfer => "ModelStreamInfer",
            Method::Observe => "Observe",
            Method::Unknown => "unknown",
        }
    }
}

// === impl Reason ===

impl Reason {
    const COUNT: usize = 10;
    const ALL: [Reason; Reason::COUNT] = [
        Reason::Panic,
        Reason::NonFinite,
        Reason::Error,
        Reason::Log,
        Reason::LogOff,
        Reason::Late,
        Reason::Overload,
        Reason::Breaker,
        Reason::Previous,
        Reason::Cap,
    ];

    /// Who answered instead of the model's policy: its best action where only exploration is stopped, the
    /// checkpoint's static answer otherwise.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Reason::Panic
            | Reason::NonFinite
            | Reason::Error
            | Reason::Late
            | Reason::Overload
            | Reason::Breaker => "static",
            Reason::Previous => "previous",
            Reason::Cap => "on_cap",
            Reason::Log | Reason::LogOff => "greedy",
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reason::Panic => "panic",
            Reason::NonFinite => "non_finite",
            Reason::Error => "error",
            Reason::Log => "log_unavailable",
            Reason::LogOff => "log_off",
            Reason::Late => "late",
            Reason::Overload => "overload",
            Reason::Breaker | Reason::Previous => "breaker_open",
            Reason::Cap => "exposure_cap",
        }
    }
}

/// The name of a code as gRPC writes it.
pub(crate) fn code_name(code: usize) -> &'static str {
    scorer_proto::CODE_NAMES[code]
}
