//! The server's status, for the control plane and operators.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use scorer_engine::{ActiveLanes, ListStatus, Loaded, WarmUpReport};
use scorer_observe::{ObserverStatus, PoolStatus};
use scorer_signing::Signed;
use serde::Serialize;

use crate::features::StoreStatus;
use crate::senders::Received;
use crate::services::Services;

/// The server's status at one time.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// `live` or `shadow`.
    pub role: &'static str,
    /// The version of this build.
    pub version: &'static str,
    /// `release` or `debug`.
    pub build_profile: &'static str,
    /// `SERVING`, `NOT_SERVING` or `DRAINING`.
    pub state: &'static str,
    /// Time of the start, in milliseconds since the Unix epoch.
    pub started_at_ms: i64,
    /// Time from the start to the first readiness, in milliseconds; 0 before it.
    pub ready_after_ms: f64,
    /// Revision of the active lane table.
    pub lane_table: u64,
    /// Bundles in memory.
    pub bundles: Vec<BundleStatus>,
    /// External lists of rules.
    pub lists: Vec<ListStatus>,
    /// The store of computed features; absent if no feature set is configured.
    pub feature_store: Option<StoreStatus>,
    /// By checkpoint: the digest of the bundle that was live before, kept in memory for a rollback.
    pub previous: BTreeMap<String, String>,
    /// By checkpoint: how well its SLA was met since the start.
    pub promises: BTreeMap<String, SlaStatus>,
    /// Active observe lanes.
    pub observers: Vec<ObserverStatus>,
    /// Absent if no log is configured.
    pub log: Option<LogStatus>,
    /// The status of the forwarder to the shadow pool; absent if none is configured.
    pub pool: Option<PoolStatus>,
    /// In a shadow pool: what it received, by live server.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub senders: BTreeMap<String, Received>,
    /// Requests in flight.
    pub inflight: usize,
    /// Connections open.
    pub connections: u64,
    /// Panics caught since the start.
    pub panics: u64,
}

/// How well a checkpoint's SLA was met since the start.
#[derive(Clone, Debug, Serialize)]
pub struct SlaStatus {
    /// The latency that the SLA allows at the 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// Requests to which the SLA applies.
    pub requests: u64,
    /// Of them, the requests that were late, shed or failed.
    pub missed: u64,
    /// The unused part of the error budget of the last 30 days, 1 or less; below 0 if more than the budget was used.
    pub budget_remaining: f64,
    /// The rate at which the last hour used the error budget; at 1, the budget lasts exactly 30 days.
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
    /// Time that loading took, in milliseconds.
    pub load_ms: f64,
    /// The latencies measured at warm-up.
    pub warm_up: WarmUpReport,
    /// Size of its files, in bytes.
    pub bytes: u64,
    /// Of these, the bytes of forests that it shares with bundles before it in this list; they are in memory once.
    pub shared_bytes: u64,
    /// Decisions that it has made since it was loaded.
    pub decisions: u64,
    /// Whether it answers at a checkpoint now.
    pub live: bool,
    /// The state of its circuit breaker, which stops its use while its evaluations fail: `closed` (in use), `open` (not
    /// in use) or `half_open` (on trial).
    pub breaker: &'static str,
    /// The statement of its signature; absent if no signature was required.
    pub signed: Option<Signed>,
    /// The nodes of its program, with their times.
    pub nodes: Vec<NodeStatus>,
}

/// A node of a bundle's program.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// The slot that the node writes.
    pub name: String,
    /// Its kind, as in the manifest.
    pub kind: &'static str,
    /// Total time of the timed evaluations in nanoseconds.
    pub nanos: u64,
    /// Number of timed evaluations in which the node ran.
    pub timed: u64,
}

/// The status of the log, and its directory.
#[derive(Clone, Debug, Serialize)]
pub struct LogStatus {
    /// The directory of the log.
    pub directory: String,
    /// The counters of the log; see [`scorer_log::LogStatus`].
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
            lists: services.engine.lists.status(&services.engine.bundles),
            feature_store: services.feature_status(),
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
            nodes: loaded
                .nodes
                .times()
                .map(|time| NodeStatus {
                    name: time.node.name.clone(),
                    kind: time.node.kind,
                    nanos: time.nanos,
                    timed: time.timed,
                })
                .collect(),
        }
    }
}
