//! The server's condition, as the control plane and operators ask for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use serde::Serialize;

use crate::bundles::Loaded;
use crate::lanes::LanesInForce;
use crate::shadow::{PoolStatus, Received};
use crate::state::Shared;

/// The server's condition.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// `live` or `shadow`.
    pub role: &'static str,
    /// Of this build.
    pub version: &'static str,
    /// `release` or `debug`.
    pub build_profile: &'static str,
    /// `SERVING`, `NOT_SERVING` or `DRAINING`.
    pub state: &'static str,
    /// Milliseconds since the Unix epoch.
    pub started_at_ms: i64,
    /// Start to ready, milliseconds; 0 while it never was.
    pub ready_after_ms: f64,
    /// Version of the table in force.
    pub lane_table: u64,
    /// Bundles in memory.
    pub bundles: Vec<BundleStatus>,
    /// By checkpoint: the digest of the bundle before the live one, ready to take over.
    pub previous: BTreeMap<String, String>,
    /// By checkpoint: how its promise was kept since the start.
    pub promises: BTreeMap<String, PromiseStatus>,
    /// Observe lanes in force.
    pub observers: Vec<ObserverStatus>,
    /// Absent if no log is configured.
    pub log: Option<LogStatus>,
    /// The way to the shadow pool; absent without one.
    pub pool: Option<PoolStatus>,
    /// For a shadow pool: what live servers sent it, by server.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub senders: BTreeMap<String, Received>,
    /// Requests in flight.
    pub inflight: usize,
    /// Connections open.
    pub connections: u64,
    /// Panics caught since the start.
    pub panics: u64,
}

/// How a checkpoint's promise was kept since the start.
#[derive(Clone, Debug, Serialize)]
pub struct PromiseStatus {
    /// The promise, milliseconds.
    pub p99_ms: f64,
    /// Requests that it is for.
    pub requests: u64,
    /// Those among them that were late, shed or failed.
    pub missed: u64,
    /// Part of the last 30 days' error budget that is left; below 0: overdrawn.
    pub budget_remaining: f64,
    /// How fast it is spent, over the last hour: 1 uses it up in 30 days.
    pub burn_rate_1h: f64,
}

/// One observe lane's counts since it began.
#[derive(Clone, Debug, Serialize)]
pub struct ObserverStatus {
    /// Where it observes.
    pub checkpoint: String,
    /// Its name.
    pub lane: String,
    /// `sha256:<hex>`.
    pub bundle: String,
    /// It is evaluated by the shadow pool.
    pub pool: bool,
    /// Requests that came by.
    pub seen: u64,
    /// Those that its filter or its sample left out.
    pub left_out: u64,
    /// Those that they did not.
    pub taken: u64,
    /// Taken, and not evaluated because there was no place for them.
    pub dropped: u64,
    /// Taken, and not evaluated because the server was under pressure.
    pub shed: u64,
    /// Evaluated.
    pub evaluated: u64,
    /// Evaluated without getting a score, by reason.
    pub failed: BTreeMap<&'static str, u64>,
    /// Observations that are in no log.
    pub unlogged: u64,
    /// Requests in its queue.
    pub waiting: u64,
    /// It has not come back from one evaluation for seconds.
    pub stuck: bool,
    /// The median evaluation, microseconds of its thread's processor time.
    pub exec_p50_us: f64,
    /// The 99th percentile.
    pub exec_p99_us: f64,
    /// The 99.9th percentile.
    pub exec_p999_us: f64,
    /// Processor time of its thread, seconds.
    pub cpu_seconds: f64,
}

/// One bundle in memory.
#[derive(Clone, Debug, Serialize)]
pub struct BundleStatus {
    /// `sha256:<hex>`.
    pub digest: String,
    /// The bundle's name.
    pub name: String,
    /// `score` or `action`.
    pub kind: &'static str,
    /// Time that loading took, milliseconds.
    pub load_ms: f64,
    /// How fast it was at warm-up.
    pub warm_up: crate::bundles::WarmUpReport,
    /// Bytes of its files.
    pub bytes: u64,
    /// Those of them that are of forests that bundles before it in this list hold: they are in memory once.
    pub shared_bytes: u64,
    /// Decisions it has made.
    pub decisions: u64,
    /// Whether it answers at a checkpoint now.
    pub live: bool,
}

/// The log's own status and where it is.
#[derive(Clone, Debug, Serialize)]
pub struct LogStatus {
    /// The directory.
    pub directory: String,
    /// See [`scorer_log::LogStatus`].
    #[serde(flatten)]
    pub status: scorer_log::LogStatus,
}

// === impl Status ===

impl Status {
    pub(crate) fn of(shared: &Shared) -> Status {
        shared.tick();
        let table = shared.lanes.load_full();
        let bundles = shared.bundles.all();
        let directory = |log: &crate::decisions::Decisions| log.dir.display().to_string();
        let previous = shared.checkpoints.iter().filter_map(|it| {
            let lane = table.previous(it.index)?;
            Some((it.name.clone(), lane.loaded.digest_text.to_string()))
        });
        let promises = shared.checkpoints.iter().map(|it| {
            let (requests, missed) = shared.metrics.checkpoint(it.index).sla.totals();
            let p99_ms = shared.config.checkpoints.get(&it.name).map_or(0.0, |config| config.p99_ms);
            let rates = shared.metrics.checkpoint(it.index).sla.burn_rates();
            let status = PromiseStatus {
                p99_ms,
                requests,
                missed,
                budget_remaining: rates.remaining,
                burn_rate_1h: rates.h1,
            };
            (it.name.clone(), status)
        });
        Status {
            role: shared.config.role.as_str(),
            version: env!("CARGO_PKG_VERSION"),
            build_profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            state: match (shared.draining.load(Acquire), shared.health.is_ready()) {
                (true, _) => "DRAINING",
                (false, true) => "SERVING",
                (false, false) => "NOT_SERVING",
            },
            started_at_ms: shared.started_at_us / 1000,
            ready_after_ms: shared.ready_after_us.load(Relaxed) as f64 / 1e3,
            lane_table: table.version,
            bundles: bundles.iter().map(|loaded| BundleStatus::of(loaded, &bundles, &table)).collect(),
            previous: previous.collect(),
            promises: promises.collect(),
            observers: table.observers().map(|lane| lane.status()).collect(),
            log: shared.log.as_ref().map(|log| LogStatus { directory: directory(log), status: log.status() }),
            pool: shared.forwarder.as_ref().map(|it| it.status()),
            senders: shared.senders.all(),
            inflight: shared.admission.inflight(),
            connections: shared.metrics.connections.open.load(Relaxed),
            panics: shared.metrics.panics.load(Relaxed),
        }
    }
}

// === impl BundleStatus ===

impl BundleStatus {
    fn of(loaded: &Loaded, all: &[Arc<Loaded>], table: &LanesInForce) -> BundleStatus {
        let before: Vec<_> = all.iter().filter(|it| it.serial < loaded.serial).map(|it| &it.bundle).collect();
        BundleStatus {
            digest: loaded.digest_text.to_string(),
            name: loaded.bundle.name().to_owned(),
            kind: loaded.kind.as_str(),
            load_ms: loaded.load_ms,
            warm_up: loaded.warmup.report(),
            bytes: loaded.bytes,
            shared_bytes: loaded.bundle.shared_bytes(&before),
            decisions: loaded.decisions.load(Relaxed),
            live: table.all().any(|(_, lane)| lane.loaded.digest == loaded.digest),
        }
    }
}
