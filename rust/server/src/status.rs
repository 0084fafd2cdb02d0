//! The server's condition, for the control plane and operators.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use scorer_engine::{ActiveLanes, Loaded, WarmUpReport};
use scorer_observe::{ObserverStatus, PoolStatus};
use scorer_signing::Signed;
use serde::Serialize;

use crate::senders::Received;
use crate::services::Services;

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
    /// Revision of the active lane table.
    pub lane_table: u64,
    /// Bundles in memory.
    pub bundles: Vec<BundleStatus>,
    /// By checkpoint: the digest of the bundle before the live one, ready to take over.
    pub previous: BTreeMap<String, String>,
    /// By checkpoint: how its SLA was met since the start.
    pub promises: BTreeMap<String, SlaStatus>,
    /// Active observe lanes.
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

/// How a checkpoint's SLA was met since the start.
#[derive(Clone, Debug, Serialize)]
pub struct SlaStatus {
    /// The SLA, milliseconds.
    pub p99_ms: f64,
    /// Requests under the SLA.
    pub requests: u64,
    /// Those among them that were late, shed or failed.
    pub missed: u64,
    /// Part of the last 30 days' error budget that is left; below 0: overdrawn.
    pub budget_remaining: f64,
    /// How fast it is spent, over the last hour: 1 uses it up in 30 days.
    pub burn_rate_1h: f64,
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
    pub warm_up: WarmUpReport,
    /// Bytes of its files.
    pub bytes: u64,
    /// Those of them that are of forests that bundles before it in this list hold: they are in memory once.
    pub shared_bytes: u64,
    /// Decisions it has made.
    pub decisions: u64,
    /// Whether it answers at a checkpoint now.
    pub live: bool,
    /// `closed`, `open` or `half_open`: whether it was taken out of service because it kept failing.
    pub breaker: &'static str,
    /// What its signature says; absent where none was needed.
    pub signed: Option<Signed>,
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
    pub(crate) fn of(services: &Services) -> Status {
        let table = services.engine.lanes();
        let bundles = services.engine.bundles.all();
        let previous = services.engine.checkpoints.iter().filter_map(|checkpoint| {
            let lane = table.previous(checkpoint.index)?;
            Some((checkpoint.name.clone(), lane.loaded.digest_text.to_string()))
        });
        let promises = services.engine.checkpoints.iter().map(|checkpoint| {
            let sla = &services.counters.checkpoint(checkpoint.index).sla;
            let (requests, missed) = sla.totals();
            let rates = sla.burn_rates();
            let status = SlaStatus {
                p99_ms: checkpoint.config.p99_ms,
                requests,
                missed,
                budget_remaining: rates.remaining,
                burn_rate_1h: rates.h1,
            };
            (checkpoint.name.clone(), status)
        });
        Status {
            role: services.config.role.as_str(),
            version: env!("CARGO_PKG_VERSION"),
            build_profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            state: match (services.draining.load(Acquire), services.health.is_ready()) {
                (true, _) => "DRAINING",
                (false, true) => "SERVING",
                (false, false) => "NOT_SERVING",
            },
            started_at_ms: services.started_at_us / 1000,
            ready_after_ms: services.ready_after_us.load(Relaxed) as f64 / 1e3,
            lane_table: table.version,
            bundles: bundles.iter().map(|loaded| BundleStatus::of(loaded, &bundles, &table)).collect(),
            previous: previous.collect(),
            promises: promises.collect(),
            observers: services.observers.status(),
            log: services
                .engine
                .log
                .as_ref()
                .map(|log| LogStatus { directory: log.dir().display().to_string(), status: log.status() }),
            pool: services.observers.pool_status(),
            senders: services.senders.all(),
            inflight: services.engine.admission.inflight(),
            connections: services.counters.connections.open.load(Relaxed),
            panics: services.engine.counters.panics.load(Relaxed),
        }
    }
}

// === impl BundleStatus ===

impl BundleStatus {
    fn of(loaded: &Loaded, all: &[Arc<Loaded>], table: &ActiveLanes) -> BundleStatus {
        let before: Vec<_> =
            all.iter().filter(|other| other.serial < loaded.serial).map(|other| &other.bundle).collect();
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
            breaker: loaded.breaker.state().as_str(),
            signed: loaded.signed.clone(),
        }
    }
}
